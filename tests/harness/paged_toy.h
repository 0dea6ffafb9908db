/* A stand-in for the model whose next-token scores depend on every token that its pages hold and on
 * a private window of the newest ones, so that a wrong page, a stale row, a wrong snapshot or a
 * wrong rollback changes what comes out. Cheap enough for thousands of requests. A prompt that
 * begins with PAGED_TOY_BAD gives rows that are not finite once it decodes. One thread steps. */
#ifndef TESTS_HARNESS_PAGED_TOY_H
#define TESTS_HARNESS_PAGED_TOY_H

#include <stdatomic.h>

#include "engine/run/source.h"

enum { PAGED_TOY_VOCAB = 61, PAGED_TOY_BAD = 0, PAGED_TOY_EOS = 1, PAGED_TOY_BLOCK = 4 };

typedef struct paged_toy paged_toy;

/* What a step takes on the toy's own clock; all 0: the clock stands still. */
typedef struct toy_cost {
    uint64_t step_ns, row_ns;
    uint64_t prompt_row_ns, prompt_row_ns_at_64k; /* of a prompt row, by its position */
} toy_cost;

typedef struct paged_toy_options {
    int32_t n_slots, n_pages, page_tokens, max_rows;
    int64_t max_context;
    bool has_drafts;
    int32_t block;   /* drafts of a call; 0: PAGED_TOY_BLOCK */
    int32_t n_right; /* of a block so many drafts are right, less one; 0: mistakes now and then */
    toy_cost cost;
} paged_toy_options;

paged_toy *paged_toy_new(const paged_toy_options *o);
void paged_toy_free(paged_toy *t);
const run_source *paged_toy_source(const paged_toy *t);

/* Any thread. The next step fails with this code, once. */
void paged_toy_fail(paged_toy *t, int code);
void paged_toy_slow(paged_toy *t, int ms_per_step);
/* Any thread. n more steps are made, one that has begun may be made on top; those after them wait, and
 * the clock with them, until let_go: a test asks or looks while nothing moves. Let go before the run
 * is closed. */
void paged_toy_hold_after(paged_toy *t, int n);
void paged_toy_let_go(paged_toy *t);
/* Steps that were begun. */
int paged_toy_begun(const paged_toy *t);
/* The toy's own clock, for run_options.now_ns with the toy as context. */
uint64_t paged_toy_now(void *toy);
/* By it, the longest time between the ends of two steps after each other that both held rows of the
 * same running stream. */
uint64_t paged_toy_longest_gap(const paged_toy *t);

/* Prompt rows stepped since the start. */
int64_t paged_toy_prompt_rows(const paged_toy *t);
/* Positions that were hinted at. */
int64_t paged_toy_prefetched(const paged_toy *t);

#endif
