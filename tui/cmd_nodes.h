/* What the commands about the two machines share: the settings, the access to head and worker, and
 * the questions on the terminal. Main thread only. */
#ifndef TUI_CMD_NODES_H
#define TUI_CMD_NODES_H

#include "setup/link.h"
#include "setup/node_access.h"
#include "setup/settings.h"
#include "tui/cmd_internal.h"

/* Said where a command needs the second machine and none is set up. */
#define CMD_NO_WORKER                                                                              \
    "no worker is set up; name it with: tandem config set WORKER_SSH USER@HOST, or let tandem "    \
    "setup lead through all of it"

typedef struct cmd_nodes {
    settings *settings;
    node_access *node[2]; /* head, worker; NULL when not there */
    char missing[2][700]; /* why not, "" when it is not set up */
    remote_fault fault;   /* of the worker's session */
} cmd_nodes;

/* Opens the head (this machine) and, when wanted and set up, the worker. A worker that cannot be
 * reached is no error here: missing says why. --head-root and --worker-root name stored trees. */
int cmd_nodes_open(const cmd_args *a, bool with_worker, cmd_nodes *out, err *e);
void cmd_nodes_close(cmd_nodes *n);
/* The options of an ssh session to the worker from the settings; ask is used when a person is there. */
remote_options cmd_worker_options(const settings *s, const remote_ask *ask);
/* Questions on the terminal; members are NULL when there is none. */
const remote_ask *cmd_ask_terminal(void);
/* sudo's password and consent on the terminal; with yes everything is consented to. */
const node_sudo *cmd_sudo_terminal(bool yes);
/* A yes or no question; false without a terminal. */
bool cmd_confirm(const char *question);
/* Facts of both machines and the plan. needs both nodes. nodes are freed with mem_free. */
int cmd_link_facts(cmd_nodes *n, link_node *facts[2], link_plan *plan, err *e);

#endif
