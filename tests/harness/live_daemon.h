/* The real tandemd with the built-in demo model as a process, for tests: a Unix socket in a folder
 * of its own and a TCP port. One thread. */
#ifndef TESTS_HARNESS_LIVE_DAEMON_H
#define TESTS_HARNESS_LIVE_DAEMON_H

#include <sys/types.h>

#include "engine/base/err.h"

typedef struct live_daemon {
    char dir[64], socket_path[96], log_path[96];
    int port;
    pid_t pid;
} live_daemon;

/* Starts OUT/tandemd (default build) with these further arguments (ends with NULL) and waits until it
 * is ready. ERR_NOT_FOUND: no program or no demo model here. The caller ends it with
 * live_daemon_stop. */
int live_daemon_start(live_daemon *d, const char *const *arguments, err *e);
/* Ends the process and removes the folder. */
void live_daemon_stop(live_daemon *d);

#endif
