/* What steps cost, measured while they run: seconds of a step of decode and verify rows by their number,
 * of a prompt row by the context it is read at, of a draft call. It steers only how much work a step
 * holds, never which tokens come out.
 * Threads: the step thread. */
#ifndef TANDEM_RUN_COST_H
#define TANDEM_RUN_COST_H

#include <stdint.h>

#define COST_CONTEXTS 16 /* ranges of context, each twice as long as the one before */

/* Moving fit of the time of steps without prompt rows: base_ns + row_ns * rows; what a prompt row
 * takes, by context; what a draft call takes. Unknown: 0. */
typedef struct step_cost {
    double w, x, y, xx, xy; /* decayed sums */
    double prompt_row_ns[COST_CONTEXTS];
    double draft_ns; /* moving average */
} step_cost;

void step_cost_reset(step_cost *c);
/* A step without prompt rows. */
void step_cost_add(step_cost *c, int32_t n_rows, uint64_t ns);
void step_cost_add_draft(step_cost *c, uint64_t ns);
/* Expected nanoseconds of such a step with this many rows; 0 before the first one. */
double step_cost_of(const step_cost *c, int32_t n_rows);

/* A step that read prompt rows, with everything up to the next step. */
typedef struct slice_cost {
    int32_t n_other, n_prompt; /* rows of running streams, rows of prompts */
    int64_t context;           /* position of the deepest prompt row */
    uint64_t ns;
} slice_cost;
void step_cost_add_slice(step_cost *c, const slice_cost *s);

/* How many prompt rows a step may read beside n_other rows, at this context, so that it is expected to
 * take at most limit_ns: at least floor_rows, at most max_rows. A context never seen costs as if time
 * grew with it. */
typedef struct slice_limits {
    double limit_ns;
    int32_t n_other, floor_rows, max_rows;
    int64_t context;
} slice_limits;
int32_t step_cost_slice(const step_cost *c, const slice_limits *l);

#endif
