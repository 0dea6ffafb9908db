/* The best tokens of logit rows, for a sampler that need not read the rows: the largest value, exact
 * sums of probability weights (weight.h), every token of the whole bins of depth below the largest
 * that fit, and the few tokens that can win with Gumbel noise. Only comparisons, integers and separately rounded
 * float operations: all back ends give the same bits, whatever else is in the pass. NaN counts as
 * -infinity; a row of nothing else has token -1. */
#ifndef TANDEM_KERNELS_HEAD_SHORTLIST_H
#define TANDEM_KERNELS_HEAD_SHORTLIST_H

#include "engine/base/rand.h"
#include "kernels/context.h"
#include "kernels/head/weight.h"

enum {
    SHORTLIST_BINS = 512,  /* of 1/16 of a logit: down to 32 below the largest */
    SHORTLIST_CAP = 512,   /* tokens listed */
    SHORTLIST_NOISY = 64,  /* tokens that noise can lift, listed */
    SHORTLIST_CLZ_MAX = 52 /* leading zeros that still tell noise apart */
};

/* How a row will be sampled. */
typedef struct shortlist_ask {
    uint64_t seed;
    int64_t position;  /* of the token to be picked */
    float inverse;     /* of the temperature; 0: mass is not wanted */
    int32_t has_noise; /* tokens are wanted that can win; inverse is above 0 */
} shortlist_ask;

typedef struct shortlist_entry {
    int32_t token;
    float logit;
} shortlist_entry;

/* Entries are in the order of tokens; those behind n and n_noisy are undefined. */
typedef struct shortlist {
    shortlist_ask ask;
    uint64_t mass;     /* sum of weight_of(logit * inverse - max * inverse) */
    uint64_t mass_raw; /* sum of weight_of(logit - max) */
    float max;
    int32_t token; /* the first that has it */
    int32_t n;
    int32_t n_bins;  /* tokens whose bin is below are listed, the others are not */
    int32_t n_noisy; /* above SHORTLIST_NOISY: the first ones are listed */
    /* No token beside the noisy ones gets as far as max * inverse + noisy_low. */
    float noisy_low;
    shortlist_entry entries[SHORTLIST_CAP];
    shortlist_entry noisy[SHORTLIST_NOISY];
} shortlist;

typedef struct shortlist_args {
    const float *x;            /* [n_rows][n], n <= WEIGHT_MAX_VALUES */
    const shortlist_ask *asks; /* [n_rows] */
    shortlist *out;            /* [n_rows] */
    int n_rows, n;
} shortlist_args;
void shortlist_run(kernel_context *k, const shortlist_args *a);

/* Bin of a value; it never falls as the value falls. SHORTLIST_BINS: below all of them. */
WEIGHT_INLINE int32_t shortlist_bin(float max, float v) {
    float depth = (max - v) * 16.0f;
    return depth < (float)SHORTLIST_BINS ? (int32_t)depth : SHORTLIST_BINS;
}

/* Noise of a token is -log(-log u) with u from its hash h. With v = 1 - u and z leading zeros of ~h, v is from
 * 2^-(z + 1) to 2^-z, and the noise above -log(2 ln 2 v) (above -3.61 when z is 0) and at most -log v. */
WEIGHT_INLINE int32_t shortlist_zeros(uint64_t h) {
    uint64_t v = ~h | (uint64_t)1 << (63 - SHORTLIST_CLZ_MAX);
#ifdef __CUDA_ARCH__
    return __clzll((long long)v);
#else
    return __builtin_clzll(v);
#endif
}

/* Bounds with 0.01 to spare, which covers the rounding of scores of at most 64. */
WEIGHT_INLINE float shortlist_noise_low(int32_t zeros) {
    return zeros == 0 ? -3.8f : (float)zeros * 0.69314f - 0.34f;
}
WEIGHT_INLINE float shortlist_noise_high(int32_t zeros) {
    return (float)zeros * 0.69315f + 0.71f;
}

/* Depth below which no noise helps: -3.8 of the largest is out of reach. */
#define SHORTLIST_NOISE_DEPTH (-42.0f)

#endif
