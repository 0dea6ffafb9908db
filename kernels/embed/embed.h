/* Token embedding: all streams of a row start as the token's row of the table; pre starts as (1, 0,
 * 0, ..). */
#ifndef TANDEM_KERNELS_EMBED_EMBED_H
#define TANDEM_KERNELS_EMBED_EMBED_H

#include "kernels/linear/linear.h"

typedef struct embed_args {
    const linear_weight *table; /* [n_vocab][d], plain */
    const int32_t *token;
    float *h;   /* [n][S][d] */
    float *pre; /* [n][S] */
    int n_rows, n_streams;
} embed_args;
void embed_run(kernel_context *k, const embed_args *a);

/* One row of a plain table. */
typedef struct lookup_args {
    const linear_weight *table;
    const int32_t *index; /* [n] */
    float *y;             /* [n][y_stride] */
    size_t y_stride;
    int n;
} lookup_args;
void lookup_run(kernel_context *k, const lookup_args *a);

#endif
