/* The pair of two machines in start, stop, restart and status. Main thread only. */
#ifndef TUI_CMD_PAIR_H
#define TUI_CMD_PAIR_H

#include "engine/base/json.h"
#include "setup/pair.h"
#include "tui/cmd_nodes.h"

/* True when the settings describe a pair and the command line does not ask for this machine alone
 * (--local, --socket or --model). A settings file that cannot be read is left to the command. */
bool cmd_pair_applies(const cmd_args *a);
/* The commands; they print and return exit codes. */
int cmd_pair_start(const cmd_args *a);
int cmd_pair_stop(const cmd_args *a);
int cmd_pair_restart(const cmd_args *a);

/* The options of the pair over machines that were opened; n is borrowed. */
pair_options cmd_pair_options(const cmd_nodes *n);
/* A few lines about the pair for people. */
void cmd_pair_put(const pair_view *v);
/* Exit code of errors about the pair; the sentence is printed. */
int cmd_pair_fail(const err *e);

#endif
