/* Dense linears whose blocks of 128 outputs are few enough for a cluster of CTAs each. Inside this
 * folder. */
#ifndef KERNELS_EXL3_BLOCK_H
#define KERNELS_EXL3_BLOCK_H

#include "kernels/exl3/exl3_gpu.h"

/* exl3_gpu_rows_run for a list that travels in the launch, when the device has room for all its blocks
 * at once and fills it: *is_done says whether it ran. n_sms: of the device in use. Uses no scratch. */
int exl3_block_run(
    const exl3_gpu_rows_args *a, int n_sms, cudaStream_t stream, bool *is_done, err *e);

#endif
