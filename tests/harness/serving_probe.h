/* Requests to a scheduler over the built-in model and their replies with log probabilities, for tests
 * that compare them bit for bit: alone, in company, in slices, drafted, cached, after a restart, over
 * several ranks. Failures end the program with a message. One thread. */
#ifndef TESTS_HARNESS_SERVING_PROBE_H
#define TESTS_HARNESS_SERVING_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/model/model.h"
#include "engine/run/run.h"
#include "tests/harness/vectors.h"

enum {
    PROBE_SLOTS = 4,
    PROBE_CONTEXT = 1024,
    PROBE_PAGE = 128,
    PROBE_REPLY = 10,
    PROBE_CROWD = 12
};

typedef struct ask {
    int32_t tokens[PROBE_CONTEXT];
    int32_t n, max_tokens;
    float temperature, presence;
    uint64_t seed;
} ask;

typedef struct reply {
    int32_t tokens[PROBE_REPLY];
    float logprobs[PROBE_REPLY];
    int n, end;
    int32_t n_cached;
} reply;

/* The folder of the built-in model; false: there is none here. */
bool probe_find_model(void);
/* Options for it, of rank 0 of 1. */
model_options probe_model_options(int n_slots, int max_rows);
model *probe_open_model(const model_options *o);
run *probe_open_run(const run_source *source, run_options o);

/* Text-like ids: words that come again. */
void probe_fill(ask *a, int32_t n, uint64_t seed);
/* PROBE_CROWD requests of different lengths and settings; every three share a beginning. */
void probe_make_crowd(ask *asks);
ticket *probe_submit(run *r, const ask *a);
reply probe_collect(ticket *t);
reply probe_answer(run *r, const ask *a);
/* Tokens, log probabilities and end. */
bool probe_same(const reply *a, const reply *b);

/* Counts one comparison of a reply to n tokens. */
void probe_verdict(vectors *v, const char *what, int32_t n, const char *problem);

/* Prompts of lengths around page borders, each asked again and gone on with: the cache changes
 * nothing and is used. */
void probe_check_cached(vectors *v, const run_source *source);
/* The crowd, staggered, with and without drafts and cache: as want says. all_modes false: only some
 * of the four. */
void probe_check_crowd(
    vectors *v, const run_source *source, const ask *asks, const reply *want, bool all_modes);

#endif
