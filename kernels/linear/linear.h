/* Linear layers y = x W^T over any mix of weight forms, many matrices in one parallel pass. Plain
 * weights are dot products in the fixed order of vec.h; EXL3 weights use the exact integer form of
 * kernels/exl3. Either way a row has the same bits alone, in a batch, with any thread count. */
#ifndef TANDEM_KERNELS_LINEAR_LINEAR_H
#define TANDEM_KERNELS_LINEAR_LINEAR_H

#include "kernels/context.h"
#include "kernels/exl3/exl3.h"

typedef enum matrix_form { MATRIX_NONE, MATRIX_F32, MATRIX_BF16, MATRIX_EXL3 } matrix_form;

/* One weight matrix, or the slice of one that this rank holds. Borrows its data. */
typedef struct linear_weight {
    matrix_form form;
    int n_in, n_out;
    const void *data; /* plain: [n_out][row_stride] elements, first n_in used */
    size_t row_stride;
    const void *packed; /* MATRIX_EXL3: made by the back end's packed_new */
} linear_weight;

/* Input row i is x + (x_rows ? x_rows[i] : i) * x_stride, output row i is y + i * y_stride. n_rows
 * may be 0. */
typedef struct linear_job {
    const linear_weight *weight;
    const float *x;
    size_t x_stride;
    const int32_t *x_rows;
    float *y;
    size_t y_stride;
    int n_rows;
    bool keeps_f32; /* no bf16 rounding of y */
} linear_job;

enum { LINEAR_MAX_JOBS = 4096 };

typedef struct linear_args {
    const linear_job *jobs;
    int n_jobs; /* at most LINEAR_MAX_JOBS */
} linear_args;

/* Bytes of kernel_context.scratch for runs of at most n_jobs jobs with n_rows rows over all jobs.
 */
size_t linear_scratch_bytes(int n_jobs, int n_rows, int max_in);
void linear_run(kernel_context *k, const linear_args *a);

#endif
