/* The pair: one rank on each machine, started, stopped and looked at from the head. What runs is
 * looked after by a keeper on each machine (keeper.h); this side brings the programs to the worker,
 * gives both keepers the same order, and follows them. It may be killed at any point: the keepers
 * come up together or end together, and the next command sees what is there and mends it.
 *
 * Blocking; one thread for each pair. The settings and machines are borrowed. Nothing is printed:
 * what happens goes to the sink. */
#ifndef SETUP_PAIR_H
#define SETUP_PAIR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"
#include "setup/node_access.h"
#include "setup/settings.h"
#include "setup/verify.h"

enum { PAIR_HEAD, PAIR_WORKER, PAIR_NODES };

/* Both machines and the addresses of rail A are set. */
bool pair_is_configured(const settings *s);

typedef struct pair_options {
    const settings *settings;
    node_access *node[PAIR_NODES]; /* worker NULL: not reachable */
    /* Stored trees that the checks look at in place of a machine; NULL: the machine. */
    node_access *checked[PAIR_NODES];
    const char *missing;      /* why the worker is not there, NULL or "" when it is */
    const char *const *extra; /* further words for both ranks, ends with NULL; may be NULL */
    const atomic_bool *stop;  /* Ctrl-C; may be NULL */
    bool is_attended;         /* a person started this: allowed after a new kernel or driver */
} pair_options;

typedef enum pair_event_kind {
    PAIR_NOTE,  /* something was done or found */
    PAIR_PHASE, /* a rank's phase or progress changed */
    PAIR_WARN
} pair_event_kind;

typedef struct pair_event {
    pair_event_kind kind;
    int node;                       /* -1: both */
    const char *text;               /* one sentence, or the phase's name */
    double progress;                /* of a phase, below 0: unknown */
    const char *phases[PAIR_NODES]; /* of PAIR_PHASE: both as they are now */
    double parts[PAIR_NODES];
} pair_event;
typedef void (*pair_sink)(void *ctx, const pair_event *ev);

typedef struct pair_report {
    char start_id[20], settings[65];
    char model[96], build[64];
    bool was_running, is_demo;
    int64_t context, slots, wanted_slots;
    uint64_t waited_ms;
    verify_summary verify;
    bool has_verify, verify_failed;
    char verify_text[320]; /* the first line that failed */
    char log[512];
} pair_report;

/* Starts both ranks and waits until they are ready (setup.md 10.2). ERR_CANCELLED when the person
 * left: the start goes on. ERR_BUSY: another command holds the pair, named. ERR_NET: a machine cannot
 * be reached. ERR_MISMATCH, ERR_ARG, ERR_EXISTS: refused before anything was started. Anything else:
 * it was tried, both ranks have ended, and the message holds the first error of each. */
int pair_start(const pair_options *o, pair_sink sink, void *ctx, pair_report *out, err *e);
/* What pair_start would do: one line for each command or file, "NODE: ...". Changes nothing. */
int pair_plan(const pair_options *o, buf *out, err *e);

typedef struct pair_stopped {
    bool was_running;
    bool is_worker_seen;                  /* false: it could not be asked */
    uint64_t available_bytes[PAIR_NODES]; /* afterwards; 0 unknown */
} pair_stopped;
/* Stops both ranks, in order, and leaves the mark that it was meant. Works with the worker
 * unreachable (is_worker_seen false): its rank ends by itself when the head's is gone. */
int pair_stop(const pair_options *o, pair_sink sink, void *ctx, pair_stopped *out, err *e);

typedef enum pair_state {
    PAIR_ABSENT,     /* not set up */
    PAIR_CONFIGURED, /* machines are set, no model files yet */
    PAIR_DATA_PARTIAL,
    PAIR_DATA_READY,
    PAIR_PREPARED,
    PAIR_STARTING,
    PAIR_READY,
    PAIR_SERVING,  /* ready, with requests in hand */
    PAIR_DEGRADED, /* one side is ready and the other cannot be seen */
    PAIR_STOPPING,
    PAIR_STOPPED,
    PAIR_FAILED,
    PAIR_FOREIGN, /* something else holds its port */
    PAIR_STATES
} pair_state;
const char *pair_state_name(pair_state s);

typedef struct pair_node_view {
    bool is_reachable, has_keeper; /* a keeper runs there */
    bool was_killed;               /* its keeper ended in the middle of something */
    char missing[700];             /* why not reachable */
    json *keeper;                  /* its state, or NULL; owned by the view */
    const char *state;             /* the keeper's word, "unknown" */
} pair_node_view;

typedef struct pair_view {
    pair_state state;
    char reason[700]; /* of failed, degraded, foreign */
    char start_id[20];
    int generation;
    bool is_marked_stopped; /* the last stop was meant */
    char holder[300];       /* who holds the pair right now, "" nobody */
    pair_node_view node[PAIR_NODES];
} pair_view;
/* Asks both machines. A worker that does not answer is part of the view, no error. */
int pair_look(const pair_options *o, pair_view *out, err *e);
void pair_view_release(pair_view *v);
/* Members of an object: state, reason, start_id, nodes with their ranks. */
void pair_view_write(const pair_view *v, json_w *w);

/* Versions, provenance and licences of both machines as members of an object; what a machine that
 * cannot be reached had when it was last seen is marked with its time. */
void pair_versions_write(const pair_options *o, json_w *w);
/* The same figures kept for later. */
void pair_versions_keep(const pair_options *o);
/* ERR_CANCELLED with a sentence when a kernel or driver is another one than at the last good start. */
int pair_versions_same(const pair_options *o, err *e);

/* Memory, swap, GPU, disk and logs of both machines as a member of an object; unknown is null. */
void pair_figures_write(const pair_options *o, json_w *w);
/* How old the proof of the link and the last verify are. */
void pair_proofs_write(const pair_options *o, json_w *w);
void pair_verify_keep(const verify_summary *s, int level, const char *first_failed);

/* Where things are: STATE/pair/NAME. */
int pair_file(const char *name, buf *out, err *e);

#endif
