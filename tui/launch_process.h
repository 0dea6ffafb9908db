/* The daemon as a process: finding its program, starting it detached, seeing it end. Used by launch
 * only. One thread. */
#ifndef TUI_LAUNCH_PROCESS_H
#define TUI_LAUNCH_PROCESS_H

#include <stdbool.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

typedef struct launch_process {
    int pid;   /* 0: none */
    int pidfd; /* -1: the kernel has none; then only pid is looked at */
} launch_process;

/* Starts argv[0] in a session of its own, as nobody's child: standard input is /dev/null, output and
 * errors are appended to log_path (mode 0600), the folder is /, signals are at their defaults.
 * Returns when the program has been entered or could not be. */
int launch_process_start(launch_process *p, const char *const *argv, const char *log_path, err *e);
/* Looks at a process that somebody else started; pid <= 0 watches none. */
void launch_process_watch(launch_process *p, int pid);
/* True when it has ended. */
bool launch_process_ended(const launch_process *p);
/* Forgets the process; it goes on. */
void launch_process_release(launch_process *p);

/* tandemd beside this program, else in PATH. */
int launch_find_daemon(buf *out, err *e);
/* True when something accepts connections at the socket. */
bool launch_socket_answers(const char *socket_path);

#endif
