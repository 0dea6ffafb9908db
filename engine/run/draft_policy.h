/* How many drafts pay: for each stream how often drafts are kept, against what steps cost. It steers
 * only how much work a step holds, never which tokens come out.
 * Threads: the step thread. Nothing here may fail. */
#ifndef TANDEM_RUN_DRAFT_POLICY_H
#define TANDEM_RUN_DRAFT_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/run/cost.h"

#define DRAFT_RANGES 18 /* of confidence logits, each 1 wide */

/* What streams of one kind have learnt, the next one's beginning: of the drafts whose confidence logit
 * lay in each range, how many were tried and how many kept (decayed). */
typedef struct draft_history {
    double n_tried[DRAFT_RANGES], n_kept[DRAFT_RANGES];
} draft_history;

/* Whether drafting pays for one stream. */
typedef struct draft_policy {
    draft_history *history;
    double bias;  /* added to the logits of the chances: what sets this stream apart */
    double gain;  /* moving: speed with drafts, as they were expected to be kept, over without */
    int32_t skip; /* how long the last pause was; 0: none since drafts paid */
    int32_t skip_left; /* steps to go without drafts before the next try */
} draft_policy;

void draft_history_reset(draft_history *h);
/* For a new stream. history: borrowed, shared with the streams of the same kind. */
void draft_policy_reset(draft_policy *p, draft_history *history);
/* Whether to draft for this stream before its next step. */
bool draft_policy_wants(draft_policy *p);
/* Of n_draft drafts n_kept were kept: confidence that says too much or too little is corrected. */
void draft_policy_learn(draft_policy *p, const float *confidence, int32_t n_kept, int32_t n_draft);
/* How many of n drafts to verify, from their confidence logits and the costs; n_other rows share
 * the step. */
int32_t draft_policy_choose(
    draft_policy *p, const step_cost *c, const float *confidence, int32_t n, int32_t n_other);
/* How many of n copied drafts to verify, each kept with probability rate if the ones before it are;
 * they cost nothing to make. */
int32_t draft_copy_choose(const step_cost *c, double rate, int32_t n, int32_t n_other);

#endif
