/* Rows of a plain table. One block a row; bound by memory. */
#ifndef TANDEM_KERNELS_EMBED_EMBED_KERNEL_CUH
#define TANDEM_KERNELS_EMBED_EMBED_KERNEL_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"

__device__ __forceinline__ float table_value(const linear_weight &t, int32_t row, int i) {
    const size_t at = (size_t)row * t.row_stride + (size_t)i;
    return t.form == MATRIX_F32 ? ((const float *)t.data)[at]
                                : bf16_value(((const uint16_t *)t.data)[at]);
}

/* args.table is host memory: the table travels by value beside it. */
__global__ void __launch_bounds__(DEVICE_BLOCK)
    embed_kernel(embed_args a, linear_weight table, bool is_bf16) {
    kernel_begin();
    const int r = blockIdx.x, d = table.n_in, s = a.n_streams;
    float *h = a.h + (size_t)r * s * d;
    for (int i = threadIdx.x; i < d; i += DEVICE_BLOCK) {
        const float v = bf16_near_if(is_bf16, table_value(table, a.token[r], i));
        for (int t = 0; t < s; t++)
            h[(size_t)t * d + i] = v;
    }
    if ((int)threadIdx.x < s) a.pre[(size_t)r * s + threadIdx.x] = threadIdx.x == 0 ? 1.f : 0.f;
}

__global__ void __launch_bounds__(DEVICE_BLOCK) lookup_kernel(lookup_args a, linear_weight table) {
    kernel_begin();
    float *y = a.y + blockIdx.x * a.y_stride;
    for (int i = threadIdx.x; i < table.n_in; i += DEVICE_BLOCK)
        y[i] = table_value(table, a.index[blockIdx.x], i);
}

#endif
