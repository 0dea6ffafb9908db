/* What steps cost, measured while they run, and how many drafts pay. Two estimates: seconds of a
 * step by its rows, and for each stream how often drafts are kept. They steer only how much work
 * a step holds, never which tokens come out. Threads: the step thread. */
#ifndef TANDEM_RUN_COST_H
#define TANDEM_RUN_COST_H

#include <stdbool.h>
#include <stdint.h>

/* Moving fit of step time: base_ns + row_ns * rows. */
typedef struct step_cost {
    double w, x, y, xx, xy; /* decayed sums */
    double
        mixed_row_ns; /* time per row of steps that mix prompts and running streams; 0: unknown */
    double draft_ns;  /* one draft call, moving average; 0: unknown */
} step_cost;

/* Whether drafting pays for one stream. */
typedef struct draft_policy {
    int32_t n_losses;  /* drafts in a row whose expected gain was below their price */
    int32_t skip_left; /* steps to go without drafts before the next try */
} draft_policy;

void step_cost_reset(step_cost *c);
void step_cost_add(step_cost *c, int32_t n_rows, uint64_t ns);
void step_cost_add_draft(step_cost *c, uint64_t ns);
/* Expected nanoseconds of a step with this many rows; 0 before the first step. */
double step_cost_of(const step_cost *c, int32_t n_rows);
/* A step that mixed prompt slices with running streams, with everything up to the next step. */
void step_cost_add_mixed(step_cost *c, int32_t n_rows, uint64_t ns);
/* The most prompt rows whose step is expected to take at most limit_ns; at least floor_rows. */
int32_t step_cost_rows(const step_cost *c, double limit_ns, int32_t floor_rows, int32_t max_rows);

void draft_policy_reset(draft_policy *p);
/* Whether to draft for this stream before its next step. */
bool draft_policy_wants(draft_policy *p);
/* How many of n copied drafts to verify, each kept with probability rate if the ones before it are;
 * they cost nothing to make. */
int32_t draft_copy_choose(const step_cost *c, double rate, int32_t n, int32_t n_other);
/* How many of n drafts to verify, from their confidence logits and the costs; n_other rows share
 * the step. */
int32_t draft_policy_choose(
    draft_policy *p, const step_cost *c, const float *confidence, int32_t n, int32_t n_other);

#endif
