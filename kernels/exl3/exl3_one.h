/* One row on matrices that the SMs' shared memory holds at once, exl3_one_kernel.cuh. */
#ifndef KERNELS_EXL3_ONE_H
#define KERNELS_EXL3_ONE_H

#include "kernels/exl3/exl3_gpu.h"

#ifdef __cplusplus
extern "C" {
#endif

/* exl3_gpu_rows_run for a list that travels in the launch, all jobs with one row. *is_done: whether it ran; else the jobs
 * do not fit this form and nothing was launched. rotates: the rows themselves are read, x of the jobs, 16-byte aligned;
 * nobody need make their operands. */
int exl3_one_run(
    const exl3_gpu_rows_args *a, int rotates, cudaStream_t stream, int *is_done, err *e);

#ifdef __cplusplus
}
#endif

#endif
