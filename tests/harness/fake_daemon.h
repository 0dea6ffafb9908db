/* A daemon for tests of the screens: speaks the routes that `tandem` uses on a Unix socket and
 * plays scripted replies. Replies can be held after a piece and released, so that a test sees a
 * definite state. Threads of its own; the functions are called from one test thread. */
#ifndef TESTS_HARNESS_FAKE_DAEMON_H
#define TESTS_HARNESS_FAKE_DAEMON_H

#include <stdbool.h>
#include <stddef.h>

typedef struct fake_daemon fake_daemon;

/* How the next reply goes. Strings are borrowed until the daemon is stopped. */
typedef struct fake_reply {
    const char *const *pieces;
    int n_pieces;
    int n_times;    /* the pieces are gone through so often; 0: once */
    int n_think;    /* the first so many are reasoning */
    int delay_ms;   /* between pieces */
    int hold_after; /* stops after this many pieces until fake_daemon_release; 0: never */
    const char
        *finish; /* "stop" when NULL; "drop" cuts the connection, "error" sends an error event */
    int prefill_total;     /* > 0: progress comments up to this many prompt tokens */
    int completion_tokens; /* in the usage; 0: the number of pieces */
} fake_reply;

/* Starts on DIR/engine.sock, DIR given by the caller. Ends the program if it cannot. */
fake_daemon *fake_daemon_start(const char *dir);
/* Closes every connection and the socket at once, as a killed process would, and frees. */
void fake_daemon_stop(fake_daemon *d);
void fake_daemon_script(fake_daemon *d, const fake_reply *reply);
/* The object that the stats stream repeats every 100 ms, and the answer of the state route; "null"
 * for the stats keeps the stream silent. */
void fake_daemon_stats(fake_daemon *d, const char *text);
void fake_daemon_state(fake_daemon *d, const char *text);
/* Lets a held reply go on. */
void fake_daemon_release(fake_daemon *d);
/* Chat requests so far, and the body of the last one (a copy; the caller frees with free). */
int fake_daemon_n_chats(fake_daemon *d);
char *fake_daemon_last_body(fake_daemon *d);
/* Clients that closed a chat before its end. */
int fake_daemon_n_gone(fake_daemon *d);

#endif
