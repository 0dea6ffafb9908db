/* What steps cost, measured while they run, and how many drafts pay: seconds of a step of decode and
 * verify rows by their number, of a prompt row by the context it is read at, and for each stream how
 * often drafts are kept. They steer only how much work a step holds, never which tokens come out.
 * Threads: the step thread. */
#ifndef TANDEM_RUN_COST_H
#define TANDEM_RUN_COST_H

#include <stdbool.h>
#include <stdint.h>

#define COST_CONTEXTS 16 /* ranges of context, each twice as long as the one before */

/* Moving fit of the time of steps without prompt rows: base_ns + row_ns * rows; what a prompt row
 * takes, by context; what a draft call takes. Unknown: 0. */
typedef struct step_cost {
    double w, x, y, xx, xy; /* decayed sums */
    double prompt_row_ns[COST_CONTEXTS];
    double draft_ns; /* moving average */
} step_cost;

/* Whether drafting pays for one stream. */
typedef struct draft_policy {
    double bias;  /* added to the confidence logits: learnt from what was kept */
    double gain;  /* moving: speed with drafts, as they were expected to be kept, over without */
    int32_t skip; /* how long the last pause was; 0: none since drafts paid */
    int32_t skip_left; /* steps to go without drafts before the next try */
} draft_policy;

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

/* bias: what earlier streams have learnt. */
void draft_policy_reset(draft_policy *p, double bias);
/* Whether to draft for this stream before its next step. */
bool draft_policy_wants(draft_policy *p);
/* Of n_draft drafts n_kept were kept: confidence that says too much or too little is corrected. */
void draft_policy_learn(draft_policy *p, const float *confidence, int32_t n_kept, int32_t n_draft);
/* How many of n copied drafts to verify, each kept with probability rate if the ones before it are;
 * they cost nothing to make. */
int32_t draft_copy_choose(const step_cost *c, double rate, int32_t n, int32_t n_other);
/* How many of n drafts to verify, from their confidence logits and the costs; n_other rows share
 * the step. */
int32_t draft_policy_choose(
    draft_policy *p, const step_cost *c, const float *confidence, int32_t n, int32_t n_other);

#endif
