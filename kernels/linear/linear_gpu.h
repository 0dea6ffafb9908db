/* Matrices and plain jobs as the CUDA linears and experts share them. Device code and launchers
 * only. */
#ifndef TANDEM_KERNELS_LINEAR_LINEAR_GPU_H
#define TANDEM_KERNELS_LINEAR_LINEAR_GPU_H

#include "kernels/cuda_ops.h"
#include "kernels/exl3/exl3_gpu.h"

/* A weight matrix of either form in device memory. */
typedef struct gpu_matrix {
    exl3_gpu_matrix packed; /* words NULL: plain */
    const void *data;       /* plain: [n_out][row_stride] */
    int64_t row_stride;
    int32_t is_bf16, n_in, n_out, reserved;
} gpu_matrix;

gpu_matrix linear_gpu_matrix(const linear_weight *w);

/* Rows of one plain matrix, as exl3_gpu_job. */
typedef struct plain_job {
    gpu_matrix matrix;
    const float *x;
    const int32_t *x_rows;
    int64_t x_stride;
    float *y;
    int64_t y_stride;
    int32_t n_rows, is_bf16;
} plain_job;

enum { PLAIN_OWN_JOBS = 8 };

typedef struct plain_args {
    const plain_job *jobs;      /* device, with tiles; NULL: own */
    const exl3_gpu_tile *tiles; /* device */
    const int32_t *n_tiles;
    int n_own;
    plain_job own[PLAIN_OWN_JOBS];
} plain_args;

/* y of every tile (at most max_tiles, of own: of one job); at most max_rows rows of a job and
 * max_out outputs. */
void linear_plain_run(
    kernel_context *k, const plain_args *a, int max_rows, int max_tiles, int max_out);

/* The same for one job of many rows, by a kernel whose sums have the same bits; the scratch is used until then.
 * False: not a job for it, nothing was done. */
bool linear_tile_run(kernel_context *k, const plain_job *j);

/* Work areas that stay zero between runs, made when the context is opened. */
enum {
    EXL3_GPU_MAX_SUMS = 4 << 20, /* 64-bit sums: 8 rows of 129280 outputs and more */
    EXL3_GPU_MAX_COUNTERS = 64 << 10
};

#endif
