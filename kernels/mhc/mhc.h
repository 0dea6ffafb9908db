/* Hyper-connections: S residual streams of width d per row, h [n][S][d].
 *
 *   mix       r = 1 / sqrt(mean(h^2 over S*d) + norm_eps); m[i] = (fn[i] . h) * r, i < S * (2 + S)
 *             pre[s]  = sigmoid(m[s] scale[0] + base[s]) + eps
 *             post[s] = 2 sigmoid(m[S+s] scale[1] + base[S+s])
 *             c[j][k] = m[2S + S j + k] scale[2] + base[2S + S j + k]
 *             comb    = softmax of c over k, + eps, then column and row normalizations in turn
 *                       (each / (sum + eps)), n_iters of columns, ending on columns
 *   collapse  x[d] = sum_s pre[s] h[s][d], then RMSNorm with a weight
 *   expand    h[k][d] <- post[k] y[d] + sum_j comb[j][k] h[j][d]
 *             (the first index of comb is the summed stream)
 *
 * fp32 throughout; with bf16 rounding collapse rounds before its norm and expand rounds h. Each row
 * by itself. */
#ifndef TANDEM_KERNELS_MHC_MHC_H
#define TANDEM_KERNELS_MHC_MHC_H

#include "kernels/context.h"

enum { MHC_MAX_STREAMS = 8 };

typedef struct mhc_weights {
    const float *fn;    /* [S * (2 + S)][S * d] */
    const float *base;  /* [S * (2 + S)] */
    const float *scale; /* [3] */
} mhc_weights;

typedef struct mhc_mix_args {
    const float *h;
    mhc_weights w;
    float *pre;  /* [n][S] */
    float *post; /* [n][S] */
    float *comb; /* [n][S][S] */
    int n_rows, n_streams, d, n_iters;
    float eps, norm_eps;
} mhc_mix_args;
void mhc_mix_run(kernel_context *k, const mhc_mix_args *a);

typedef struct mhc_collapse_args {
    const float *h;
    const float *pre;    /* [n][S] */
    const float *weight; /* [d] of the norm */
    float *raw;          /* [n][d] the collapsed input; NULL: not wanted */
    float *x;            /* [n][d] after the norm */
    const int32_t *rows; /* rows of h and pre to take; NULL: all in order */
    int n_rows, n_streams, d;
    float norm_eps;
} mhc_collapse_args;
void mhc_collapse_run(kernel_context *k, const mhc_collapse_args *a);

typedef struct mhc_expand_args {
    float *h;
    const float *y; /* [n][d] */
    const float *post, *comb;
    int n_rows, n_streams, d;
} mhc_expand_args;
void mhc_expand_run(kernel_context *k, const mhc_expand_args *a);

/* out[r] = mean over the streams. */
typedef struct mhc_mean_args {
    const float *h;
    float *out; /* [n][out_stride] */
    size_t out_stride;
    int n_rows, n_streams, d;
} mhc_mean_args;
void mhc_mean_run(kernel_context *k, const mhc_mean_args *a);

#endif
