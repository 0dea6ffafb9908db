/* Picks one token from one row of logits: bans, bias, penalties, temperature, top-k, top-p,
 * min-p, then the largest of logit/T plus keyed Gumbel noise. The noise is a pure function of
 * (seed, position, token), so the pick depends on nothing but the row and the settings: alone or
 * in company, drafted or serial. Where a device made a short list of the row, the pick comes from it
 * whenever that is provably the pick of the whole row. Threads: one sampler belongs to one thread
 * (the step thread). Nothing here allocates after sampler_new. */
#ifndef TANDEM_RUN_SAMPLER_H
#define TANDEM_RUN_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/head/shortlist.h"

#define SAMPLER_TOP_MAX 20

typedef struct sample_bias {
    int32_t token;
    float
        bias; /* added to the raw logit; -100 or less bans the token, as long as another is allowed */
} sample_bias;

/* How one stream samples. The arrays are borrowed for the life of the stream. */
typedef struct sample_params {
    float temperature;                         /* 0 = greedy, lowest id on ties */
    float top_p;                               /* (0, 1]; 0 is greedy */
    float min_p;                               /* 0 = off */
    int32_t top_k;                             /* 0 or less = off */
    float presence_penalty, frequency_penalty; /* over generated tokens */
    float repetition_penalty;                  /* over prompt and generated tokens; 1 = off */
    uint64_t seed;
    int32_t n_top; /* -1: no logprobs; 0..SAMPLER_TOP_MAX alternatives */
    const sample_bias *bias;
    int32_t n_bias;
} sample_params;

/* Token counts of one stream, needed only when a penalty is on. Both arrays have one entry per
 * vocabulary id. */
typedef struct sample_counts {
    uint16_t *generated; /* times generated, saturating */
    uint8_t *in_prompt;  /* 1 if the prompt holds it */
} sample_counts;

/* What was picked. Log probabilities are log-softmax of the raw logits, natural log. */
typedef struct sample_pick {
    int32_t token;
    float logprob;
    int32_t n_top;
    int32_t top_token[SAMPLER_TOP_MAX];
    float top_logprob[SAMPLER_TOP_MAX];
} sample_pick;

typedef struct sampler sampler;

/* Makes a sampler for rows of n_vocab logits. The caller frees it with sampler_free. */
sampler *sampler_new(int32_t n_vocab);
void sampler_free(sampler *s);

/* True if p needs counts (some penalty is on). */
bool sample_params_penalize(const sample_params *p);
/* True if the largest logit is taken, without noise. */
bool sample_params_greedy(const sample_params *p);
/* Defaults: temperature 1, top_p 1, nothing else on, seed 0, no logprobs. */
void sample_params_init(sample_params *p);

/* What is asked of a row's short list so that it serves a pick of these settings at a position. */
shortlist_ask sample_params_ask(const sample_params *p, int64_t position);

/* One row to sample. banned tokens can never be picked; counts may be NULL when no penalty is on.
 * Where there is a list, the row is fetched only when the list does not settle what it would say. */
typedef struct sample_row {
    const float *logits;   /* [n_vocab], all finite or -infinity; NULL: fetch gives them */
    const shortlist *list; /* of the row, for this position; NULL: none */
    int (*fetch)(void *ctx, const float **logits);
    void *ctx;
    int64_t position; /* absolute position of the token to be picked */
    const int32_t *banned;
    int32_t n_banned;
    const uint64_t *mask; /* bit set = allowed; NULL: all are */
    const sample_counts *counts;
} sample_row;

/* Fills out. A bias never leaves nothing: where it bans each token that mask and banned allow, a
 * ban counts as a bias of -100 in this row. Returns OK, ERR_INTERNAL if mask and banned allow
 * nothing or no logit is finite, or what fetch said. */
int sampler_pick(sampler *s, const sample_params *p, const sample_row *row, sample_pick *out);

/* Fills out for a token that is forced, not drawn: its log probabilities only. OK, or what fetch
 * said. */
int sampler_force(
    sampler *s, const sample_params *p, const sample_row *row, int32_t token, sample_pick *out);

/* The Gumbel noise of one token at one position; exposed for tests. */
double sampler_noise(uint64_t seed, int64_t position, int32_t token);

#endif
