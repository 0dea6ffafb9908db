/* A program on a pseudo terminal, with the emulator of vt.h on the other side: keys in, screens
 * out. One thread. */
#ifndef TESTS_HARNESS_PTY_H
#define TESTS_HARNESS_PTY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "tests/harness/vt.h"

typedef struct pty {
    int master;
    pid_t pid;
    bool has_ended;
    int status; /* of waitpid */
    vt screen;
    uint64_t n_bytes; /* received */
    buf raw;          /* all bytes received, when keeps_raw */
    bool keeps_raw;
} pty;

/* Starts argv with the environment of this process changed by env ("NAME=VALUE", or "NAME" to
 * unset; NULL-ended). Ends the program if it cannot. */
void pty_start(pty *p, const char *const *argv, const char *const *env, int n_rows, int n_columns);
/* Kills what still runs and frees. */
void pty_stop(pty *p);
void pty_send(pty *p, const char *s, size_t n);
void pty_keys(pty *p, const char *s);
/* Reads what comes until nothing came for quiet_ms or limit_ms are over. */
void pty_settle(pty *p, int quiet_ms, int limit_ms);
/* Reads until the text is on the screen (or is not, with wanted false); false after limit_ms. */
bool pty_wait(pty *p, const char *text, bool wanted, int limit_ms);
/* Asks for the whole screen anew (Ctrl-L) and reads it: then all keys sent before have been taken and
 * what they changed at once is shown. False after limit_ms. */
bool pty_redraw(pty *p, int limit_ms);
/* Reads until the program has ended; false after limit_ms. */
bool pty_wait_end(pty *p, int limit_ms);
void pty_resize(pty *p, int n_rows, int n_columns);
/* Reads for at most ms once; true if bytes came. */
bool pty_read(pty *p, int ms);

#endif
