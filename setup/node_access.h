/* One interface to a machine: files read, commands run, on this one or by ssh on the other. A
 * node_access belongs to one thread. Nothing is installed there; files are read before tools are
 * asked. With a root, every path is taken below it and every tool from ROOT/tools only, so that a
 * stored tree can stand for a machine. */
#ifndef SETUP_NODE_ACCESS_H
#define SETUP_NODE_ACCESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "setup/ssh.h"

typedef struct node_access node_access;

/* This machine. name is shown ("head"); root NULL or "" for the real one. */
node_access *node_access_local(const char *name, const char *root);
/* A machine reached by ssh; takes the session. */
node_access *node_access_ssh(const char *name, remote *session, const char *root);
void node_access_close(node_access *n);
const char *node_access_name(const node_access *n);
/* The session, NULL for a local machine. */
remote *node_access_session(node_access *n);
/* True when a root stands for the machine: what measures it (time, traffic, load) means nothing. */
bool node_access_is_fixture(const node_access *n);

typedef struct node_command {
    const char *const *argv; /* ends with NULL; argv[0] is looked up in PATH and the sbin folders */
    const void *input;
    size_t n_input;
    int timeout_ms;   /* 0: 20 s, < 0: none */
    size_t max_out;   /* 0: 1 MiB of each stream */
    remote_sink sink; /* gets data as it comes instead of the buffers, may be NULL */
    void *sink_ctx;
    const atomic_bool *stop;
} node_command;

/* Runs a command without a shell reading its words. OK whatever its exit code; a tool that is not
 * there is ERR_NOT_FOUND. What a login file prints there is cut off. */
int node_run(node_access *n, const node_command *c, remote_result *out, err *e);
/* The same with the words given as arguments, ended by NULL; only standard output is kept, and an
 * exit code other than 0 is ERR_IO with the first line of standard error. */
int node_tool(node_access *n, buf *out, err *e, ...) __attribute__((sentinel));

/* Text of a file, at most max bytes (ERR_LIMIT). ERR_NOT_FOUND, ERR_AUTH when it may not be read. */
int node_read(node_access *n, const char *path, size_t max, buf *out, err *e);
/* The same with blanks at the end cut. */
int node_read_line(node_access *n, const char *path, buf *out, err *e);
/* Names in a folder in byte order, each ended by a line feed. */
int node_list(node_access *n, const char *path, buf *out, err *e);
/* Where a symbolic link points. */
int node_link(node_access *n, const char *path, buf *out, err *e);
bool node_exists(node_access *n, const char *path);
/* Fetches files and links of shell patterns ("/sys/class/net/STAR/mtu"), separated by blanks, in one
 * round trip; later reads of them cost none. What is fetched is kept until node_forget. */
int node_fetch(node_access *n, const char *patterns, err *e);
void node_forget(node_access *n);
/* Writes a file there in one step with this mode; the folder must exist. Bytes go by standard
 * input. */
int node_write(
    node_access *n, const char *path, const void *data, size_t len, unsigned mode, err *e);

/* Privileged commands: sudo -n first; else the password is asked for once and given to sudo on
 * standard input, never on a command line. As root there is no sudo. */
typedef struct node_sudo {
    void *ctx;
    /* NULL: nobody is asked. False gives up. */
    bool (*password)(void *ctx, const char *node, ssh_secret *out);
    /* Told before each privileged command; may be NULL. False refuses it. */
    bool (*confirm)(void *ctx, const char *node, const char *command, const char *why);
} node_sudo;
/* Until node_sudo_end. sudo is borrowed for as long. */
void node_sudo_begin(node_access *n, const node_sudo *sudo);
/* Wipes the password: call it when the step is over. */
void node_sudo_end(node_access *n);
/* As node_run, with the rights of root. ERR_AUTH when they are not given. */
int node_run_root(
    node_access *n, const node_command *c, const char *why, remote_result *out, err *e);
/* The command as a person would type it. */
int node_command_text(const node_command *c, bool as_root, buf *out);

#endif
