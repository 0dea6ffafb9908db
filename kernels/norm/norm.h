/* RMSNorm over rows: y[i] = w[i] * (x[i] * r), r = 1 / sqrt(mean(x^2) + eps), everything in fp32,
 * the weight multiplied last. Rounded to bf16 when the context asks for it. Each row by itself: no
 * dependence on the batch. */
#ifndef TANDEM_KERNELS_NORM_NORM_H
#define TANDEM_KERNELS_NORM_NORM_H

#include "kernels/context.h"

typedef struct rmsnorm_args {
    const float *x; /* [n_rows][x_stride], first n used */
    size_t x_stride;
    const float *weight; /* [n] */
    float *y;            /* [n_rows][y_stride], may be x */
    size_t y_stride;
    int n_rows, n;
    float eps;
} rmsnorm_args;
void rmsnorm_run(kernel_context *k, const rmsnorm_args *a);
/* One row, for operators that end in a norm. */
void rmsnorm_row(const float *x, const float *weight, int n, float eps, float *y);

#endif
