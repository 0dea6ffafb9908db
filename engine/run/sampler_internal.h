/* Shared by the sampler of whole rows and the one of short lists. */
#ifndef TANDEM_RUN_SAMPLER_INTERNAL_H
#define TANDEM_RUN_SAMPLER_INTERNAL_H

#include "engine/run/sampler.h"

struct sampler {
    int32_t n_vocab;
    float *scaled; /* [n_vocab] working copy of a row */
    int32_t *heap; /* [n_vocab] candidate ids, a max-heap by (value, lower id) */
    int32_t *kept; /* [n_vocab] candidates after top-k, top-p, min-p */
};

/* What is known of the tokens that are no candidates. Where nothing is left out the bounds meet. */
typedef struct sample_rest {
    float max;                  /* of the row */
    float limit;                /* every token above it is a candidate; -infinity: all are */
    double mass_low, mass_high; /* bounds of the whole row's mass, unless top-k comes first */
} sample_rest;

/* Keeps, in order of value, what top-k, then top-p over the rest, then min-p leave of the n
 * candidates in the heap; their values are in scaled. At least one id; -1: what is left out might
 * change the outcome. */
int32_t sampler_cut(sampler *s, const sample_params *p, const sample_rest *rest, int32_t n);
/* The largest of value + noise over the ids given, or over all ids when ids is NULL; -1: none. */
int32_t sampler_noisy_argmax(
    const float *v, const int32_t *ids, int32_t n, const sample_params *p, int64_t position);
bool sampler_is_banned(const sample_row *row, int32_t token);
/* Of a raw row: what its log probabilities need. */
typedef struct sample_mass {
    float max;
    int32_t want; /* of the likeliest tokens */
    uint64_t mass;
} sample_mass;
int32_t sampler_top_wanted(const sample_params *p);
/* Log probabilities of out->token and of the likeliest of the n candidates in the heap; v holds the
 * raw logits of these. */
void sampler_fill_logprobs(
    sampler *s, const sample_mass *m, const float *v, int32_t n, sample_pick *out);

/* ---- sampler_list.c ---- */

/* The token that the whole row would give; -1: the list does not tell. */
int32_t sampler_list_pick(sampler *s, const sample_params *p, const sample_row *row);
/* The log probabilities that the whole row would give; false: the list does not tell. */
bool sampler_list_logprobs(
    sampler *s, const sample_params *p, const shortlist *l, sample_pick *out);

#endif
