/* One row on matrices that the SMs' shared memory holds at once, exl3_one_kernel.cuh. */
#ifndef KERNELS_EXL3_ONE_H
#define KERNELS_EXL3_ONE_H

#include "kernels/exl3/exl3_gpu.h"

struct prepare_aside;

#ifdef __cplusplus
extern "C" {
#endif

/* What the job of the same number multiplies: x, or norm(x). */
typedef struct exl3_one_row {
    const float *x, *norm; /* 16-byte aligned; norm: weights, or NULL */
    float *y;              /* norm(x) goes here too, or NULL; lies over no row of the launch */
    float eps;
} exl3_one_row;

typedef struct exl3_one_rows {
    exl3_one_row of_job[EXL3_GPU_OWN_JOBS];
    const struct prepare_aside *aside; /* other work of the launch, or NULL */
    int is_bf16;                       /* rounds norm(x) */
} exl3_one_rows;

/* exl3_gpu_rows_run for a list that travels in the launch, all jobs with one row. *is_done: whether it ran; else the jobs
 * do not fit this form and nothing was launched. rotates: the rows themselves are read, x of the jobs, 16-byte aligned;
 * nobody need make their operands. */
int exl3_one_run(
    const exl3_gpu_rows_args *a, int rotates, cudaStream_t stream, int *is_done, err *e);
/* Whether it would run, all rows given as floats, beside n_aside CTAs of other work. */
int exl3_one_fits(const exl3_gpu_rows_args *a, int n_aside, int *fits, err *e);
/* The same with rotates, for these rows in place of x of the jobs. */
int exl3_one_run_rows(const exl3_gpu_rows_args *a, const exl3_one_rows *rows, cudaStream_t stream,
    int *is_done, err *e);

#ifdef __cplusplus
}
#endif

#endif
