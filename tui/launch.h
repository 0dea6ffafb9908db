/* Finding and starting the daemon. A launch is a small state machine that never blocks: the screen
 * steps it between frames, commands use launch_run. It attaches to the daemon behind the socket, or
 * starts tandemd detached (own session, own log file) and waits for ready. A lock beside the socket
 * makes sure that two programs never start two daemons. The daemon outlives whoever started it. */
#ifndef TUI_LAUNCH_H
#define TUI_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "tui/client.h"

typedef struct launch launch;

typedef enum launch_phase {
    LAUNCH_PROBING,  /* asking the socket */
    LAUNCH_ABSENT,   /* no daemon, and starting was not asked for: ended */
    LAUNCH_STARTING, /* started (by us or another program), not ready yet */
    LAUNCH_READY,    /* ended well */
    LAUNCH_FAILED    /* ended; the error says why */
} launch_phase;

/* Strings are borrowed until launch_open returns. */
typedef struct launch_options {
    const char *socket_path;       /* NULL: the usual place */
    const char *model_dir;         /* NULL: the setting MODEL_DIR, else the built-in demo model */
    const char *daemon_path;       /* NULL: beside this program, else PATH */
    const char *const *extra_args; /* further daemon arguments, NULL-ended; may be NULL */
    int deadline_ms;               /* 0: the setting READY_TIMEOUT */
    bool may_start;                /* false: only attach */
    bool is_alone;                 /* starts an engine here also when a pair is set up */
} launch_options;

/* What is known of the daemon while it comes up. */
typedef struct launch_report {
    launch_phase phase;
    bool was_running; /* attached, not started by us */
    char state[24];   /* the daemon's own word: loading, ready, draining, failed */
    char model_id[128];
    char model_dir[512]; /* of the engine that answers, "" not known */
    bool is_other_model; /* it was running with another model than options.model_dir */
    bool is_demo;
    int pid; /* of a daemon that we started, else 0 */
    int64_t waited_ms;
    const char *log_path; /* owned by the launch */
    const err *error; /* LAUNCH_FAILED; the daemon's own first error sentence when it gave one */
} launch_report;

int launch_open(const launch_options *o, launch **out, err *e);
/* Frees; a daemon that is coming up goes on. NULL is allowed. */
void launch_close(launch *l);

/* Moves on; call it whenever launch_fd is readable and at least every launch_timeout_ms. */
void launch_step(launch *l);
int launch_fd(const launch *l);
int launch_timeout_ms(const launch *l);
void launch_get_report(const launch *l, launch_report *r);

/* Blocking: steps until ready, absent, failed or stop_fd is readable (ERR_CANCELLED). on_change (or
 * NULL) sees each change of phase or state. OK only when ready. */
int launch_run(launch *l, int stop_fd, void (*on_change)(void *ctx, const launch_report *r),
    void *ctx, err *e);

/* The words with which the daemon would be started, ended by NULL; nothing is started. Valid until
 * launch_close or the next call. */
int launch_words(launch *l, const char *const **out, err *e);

/* Asks the daemon to end and waits until its socket is gone. ERR_NOT_FOUND when none runs. */
int launch_stop(const char *socket_path, int deadline_ms, err *e);

#endif
