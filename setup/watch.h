/* The watchdog: one look at the pair, and the rules of when it may be started again by itself
 * (setup.md 12). Deciding is a pure function of what was seen and what is remembered, so that every
 * rule can be tested without waiting; watch_tick does the looking and the acting. One thread. */
#ifndef SETUP_WATCH_H
#define SETUP_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/json.h"
#include "setup/pair.h"

enum { WATCH_HEALS_MAX = 32 };

/* What one look saw. Times are wall clock milliseconds, 0 unknown. */
typedef struct watch_facts {
    uint64_t now_ms;
    pair_state state;
    bool is_held;                       /* another command holds the pair */
    bool is_marked_stopped;             /* stopped on purpose */
    bool is_refusal;                    /* a rank refused: wrong model, settings, build */
    bool is_fail_fast;                  /* a rank ended by itself, or a keeper was killed */
    bool does_answer;                   /* /ready says 200 */
    bool is_busy;                       /* requests are in hand */
    uint64_t progress;                  /* grows while requests move */
    uint64_t ready_ms;                  /* since when it is, or was, ready */
    bool has_probe, has_probe_passed;   /* of this look */
    uint64_t heals_ms[WATCH_HEALS_MAX]; /* new starts by the keepers */
    int n_heals;
    uint64_t lease_until_ms; /* maintenance */
    char reason[400];        /* of the state */
} watch_facts;

/* What is kept between two looks. */
typedef struct watch_memory {
    int n_bad; /* bad looks in a row */
    uint64_t heals_ms[WATCH_HEALS_MAX];
    int n_heals;
    uint64_t progress, progress_ms; /* last change */
    uint64_t probe_ms;              /* last completion asked for */
    bool has_given_up;              /* said once */
} watch_memory;

typedef enum watch_action {
    WATCH_FINE,
    WATCH_STANDS_DOWN, /* nothing is judged now */
    WATCH_COUNTS,      /* a bad look */
    WATCH_HEALS,       /* start again now */
    WATCH_GIVES_UP,    /* the budget is spent, or only a person can help */
    WATCH_PROBES,      /* ask for a few tokens, then judge again */
    WATCH_ACTIONS
} watch_action;
const char *watch_action_name(watch_action a);

typedef struct watch_rules {
    int64_t fails;            /* bad looks before a heal */
    int64_t min_heal_s;       /* between two heals */
    int64_t fail_fast_heal_s; /* the same after a rank that ended by itself */
    int64_t grace_s;          /* after a start */
    int64_t stall_s, probe_s; /* a request that does not move; between two probes */
    int64_t budget, window_s; /* heals in a window */
} watch_rules;
void watch_rules_of(const settings *s, watch_rules *out);
/* Judges, updates the memory (a heal is noted as done) and says why in one sentence. */
watch_action watch_decide(
    const watch_rules *r, const watch_facts *f, watch_memory *m, char why[400]);

typedef struct watch_result {
    watch_action action;
    char why[900];
    int heal_code; /* of the start: an error code or OK */
} watch_result;
/* One tick: looks, decides, heals, remembers, tells NOTIFY. is_dry: only decides. */
int watch_tick(const pair_options *o, bool is_dry, watch_result *out, err *e);

/* After a boot: whether the pair should be started. OK: yes. ERR_CANCELLED: no, and why. Reads only. */
int watch_boot_wanted(const pair_options *o, err *e);
/* What is still missing before it can be: OK nothing, ERR_BUSY with the reason. */
int watch_boot_ready(const pair_options *o, err *e);

/* The maintenance lease: no judging until then. 0 ends it. */
int watch_pause(uint64_t until_ms, err *e);
uint64_t watch_paused_until(void);
/* Runs the program of NOTIFY with a code and a sentence; does nothing when it is not set. */
void watch_notify(const settings *s, const char *code, const char *text);

#endif
