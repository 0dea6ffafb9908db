/* Steps of the engine cases that are whole experiments: drafts of every length and luck, load with
 * cancels, two ranks of which one errs, rollback in the built-in model. Each returns what the cases
 * expect something of. One thread calls. */
#ifndef TESTS_HARNESS_ENGINE_STEPS_H
#define TESTS_HARNESS_ENGINE_STEPS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct step_facts {
    bool identical_tokens;
    bool has_begin_token; /* the token that starts a text came out */
    bool all_finished, digests_equal, state_identical, both_report;
    bool is_reported,
        is_monotone;       /* acceptance by position; no later position is kept more often */
    double longest_wait_s; /* for the next event of any request */
    double error_after_s;  /* of the fault; below 0: none came */
    char detail[200];
} step_facts;

/* Drafts of length n of which the first 0 .. n are right, n_prompts prompts each, against decoding
 * without drafts. */
void step_spec_compare(int32_t draft_len, int32_t n_prompts, step_facts *f);
/* That many streams at once for a time, rows of a step just below, at and above what all drafts
 * need. */
void step_spec_load(int32_t n_streams, int32_t draft_len, uint64_t ms, step_facts *f);
void step_spec_stats(int32_t n_prompts, int32_t draft_len, step_facts *f);
/* Streams that are cancelled with this probability; whoever is not must get what it gets alone. */
void step_chaos(int32_t n_streams, double abort_probability, uint64_t ms, step_facts *f);
/* Two ranks; at that step the second one drops a row. */
void step_drop_row(int32_t at_step, step_facts *f);
/* The built-in model: state and logits after a rollback at each position around the multiples of
 * mod, against those that never went back. False: there is no model here. */
bool step_rollback(const int64_t *mod, int n_mod, step_facts *f);

/* One of the comparisons of cases; *is_known is left alone, or false for another name. */
bool step_compare(const char *op, double a, double b, bool *is_known);

#endif
