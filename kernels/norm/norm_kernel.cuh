/* RMSNorm, one block a row. Bound by latency: two passes over a row that stays in the caches. */
#ifndef TANDEM_KERNELS_NORM_NORM_KERNEL_CUH
#define TANDEM_KERNELS_NORM_NORM_KERNEL_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"

__global__ void __launch_bounds__(DEVICE_BLOCK) rmsnorm_kernel(rmsnorm_args a, bool is_bf16) {
    kernel_begin();
    __shared__ float shared[33];
    norm_row(a.x + blockIdx.x * a.x_stride, a.weight, a.y + blockIdx.x * a.y_stride, a.n, a.eps,
        is_bf16, shared);
}

#endif
