/* Pooling of the compressor. A group of ratio 2 closes when its second token arrives:
 *
 *   latent[d] = w0 a_{2g}[d] + w1 a_{2g+1}[d]
 *   (w0, w1)  = softmax of (b_{2g}[d], b_{2g+1}[d]), per channel
 *
 * The first token's a and b come from this step when its row is here, else from the tail
 * ring of the slot. Inputs are kept in fp32 whatever the rounding mode; the latent is rounded. Each
 * group by itself. */
#ifndef TANDEM_KERNELS_COMPRESS_COMPRESS_H
#define TANDEM_KERNELS_COMPRESS_COMPRESS_H

#include "kernels/kv/kv.h"

typedef struct compress_args {
    const float *a, *b; /* [batch.n][d] */
    kv_ring tails;      /* rows of 2 * d floats: a, b */
    batch_rows batch;
    const int32_t *closed_row; /* [n_closed] step rows that close a group */
    float *latent;             /* [n_closed][d] */
    int n_closed, d;
} compress_args;
void compress_pair_run(kernel_context *k, const compress_args *a);

/* Stores a and b of the step's last rows into the tails, after compress_pair_run. */
void compress_tail_write_run(kernel_context *k, const compress_args *a);

/* x[i] = rows[index[i]]: gathers the rows that close a group. */
typedef struct gather_args {
    const float *x; /* [..][x_stride] */
    size_t x_stride;
    const int32_t *index; /* [n] */
    float *y;             /* [n][d] */
    int n, d;
} gather_args;
void gather_run(kernel_context *k, const gather_args *a);

#endif
