/*
 * What the samples of both nodes say that somebody should know: rules with a cause, a value, since
 * when and one thing to do. A rule must hold for a while before it fires and clears the same way, so
 * that a single sample neither raises nor hides it. Fed by the loop with each sample, read by the
 * screens in the same thread.
 */
#ifndef TUI_DASH_ALERTS_H
#define TUI_DASH_ALERTS_H

#include <stdbool.h>
#include <stdint.h>

#include "tui/gauges.h"

enum { ALERTS_MAX = 16, ALERT_STEPS = 96 };

typedef enum alert_level { ALERT_NONE, ALERT_WARN, ALERT_CRITICAL } alert_level;

typedef struct alert {
    const char *cause; /* "slow_node"; a constant */
    int rank;          /* -1: the engine */
    alert_level level;
    uint64_t since_ms; /* monotonic */
    char text[96];     /* with the value in it */
    const char *action;
} alert;

/* The newest step times of a rank. */
typedef struct alert_steps {
    float ms[ALERT_STEPS];
    uint32_t n;
    double last_steps; /* the counter of the sample they came from */
} alert_steps;

typedef struct alerts {
    alert list[ALERTS_MAX]; /* that fire now, the worst first */
    int n;
    /* Rules that begin to hold or to clear. */
    struct alert_hold {
        const char *cause;
        int rank;
        bool is_on;
        uint64_t changed_ms;
    } holds[ALERTS_MAX * 2];
    int n_holds;
    alert_steps steps[GAUGES_MAX_RANKS];
    int64_t last_steps, last_proposed, last_accepted; /* of the engine */
    uint64_t moved_ms;                                /* it made a step, or had nothing to do */
} alerts;

void alerts_init(alerts *a);
/* Takes a sample; now_ms is monotonic. */
void alerts_update(alerts *a, const gauges *g, uint64_t now_ms);
/* The one to show in one line; NULL: none. */
const alert *alerts_first(const alerts *a);

/* ---- the rules that need no history, and the one over steps ---- */

/* Whether rank's newest ALERT_SLOW steps are a quarter over its own earlier ones or over the other's. */
enum { ALERT_SLOW = 10 };
void alert_steps_add(alert_steps *s, double ms);
bool alert_is_slow(const alert_steps *s, const alert_steps *other);
/* SM clock that is low although the GPU is busy. */
alert_level alert_low_power(const gauges_rank *r);

/* How a node's memory is shown. On machines where CPU and GPU share one memory the GPU has none of
 * its own, and only the machine's figures are true. */
typedef struct memory_view {
    double total_gib, available_gib, engine_gib; /* NAN: unknown */
    const char *label;                           /* "shared", or "machine" without a GPU */
} memory_view;
void memory_view_of(const gauges_rank *r, memory_view *out);

#endif
