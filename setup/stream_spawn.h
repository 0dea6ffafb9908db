/* A receiver started by a command (ssh, or a program of this machine): the setup goes to its standard
 * input, its lines come back. Owned by one thread. */
#ifndef SETUP_STREAM_SPAWN_H
#define SETUP_STREAM_SPAWN_H

#include <sys/types.h>

#include "setup/stream.h"

typedef struct stream_child {
    pid_t pid;
    int lines_fd;
} stream_child;

/* Starts argv[0] (looked up in PATH), writes the setup and closes its input. */
int stream_spawn(
    stream_child *c, char *const *argv, const stream_setup *s, const manifest *m, err *e);
/* Waits up to wait_ms for its end, then ends it. */
void stream_child_end(stream_child *c, int wait_ms);

/* Sessions until the copy is whole: a receiver or a link that went away is started again, up to
 * n_tries times in a row without progress. */
typedef struct stream_copy {
    const stream_setup *setup;
    const manifest *m;
    stream_send_options send; /* lines_fd is filled in here */
    char *const *command;
    int n_tries;
} stream_copy;
int stream_copy_run(const stream_copy *c, err *e);

#endif
