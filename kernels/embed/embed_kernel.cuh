/* Rows of a plain table. Values of a thread are on their way at once; bound by memory. */
#ifndef TANDEM_KERNELS_EMBED_EMBED_KERNEL_CUH
#define TANDEM_KERNELS_EMBED_EMBED_KERNEL_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"

__device__ __forceinline__ float table_value(const linear_weight &t, int32_t row, int i) {
    const size_t at = (size_t)row * t.row_stride + (size_t)i;
    return t.form == MATRIX_F32 ? ((const float *)t.data)[at]
                                : bf16_value(((const uint16_t *)t.data)[at]);
}

constexpr int EMBED_HELD = 4;

/* args.table is host memory: the table travels by value beside it. Grid: rows, EMBED_HELD values a thread. */
__global__ void __launch_bounds__(DEVICE_BLOCK)
    embed_kernel(embed_args a, linear_weight table, bool is_bf16) {
    kernel_begin();
    const int r = blockIdx.x, d = table.n_in, s = a.n_streams;
    const int first = blockIdx.y * EMBED_HELD * DEVICE_BLOCK + threadIdx.x;
    const int32_t token = a.token[r];
    float *h = a.h + (size_t)r * s * d, v[EMBED_HELD];
#pragma unroll
    for (int i = 0; i < EMBED_HELD; i++)
        if (first + i * DEVICE_BLOCK < d)
            v[i] = bf16_near_if(is_bf16, table_value(table, token, first + i * DEVICE_BLOCK));
#pragma unroll
    for (int i = 0; i < EMBED_HELD; i++)
        for (int t = 0; t < s && first + i * DEVICE_BLOCK < d; t++)
            h[(size_t)t * d + first + i * DEVICE_BLOCK] = v[i];
    if (first < s) a.pre[(size_t)r * s + first] = first == 0 ? 1.f : 0.f;
}

__global__ void __launch_bounds__(DEVICE_BLOCK) lookup_kernel(lookup_args a, linear_weight table) {
    kernel_begin();
    float *y = a.y + blockIdx.x * a.y_stride;
    for (int i = threadIdx.x; i < table.n_in; i += DEVICE_BLOCK)
        y[i] = table_value(table, a.index[blockIdx.x], i);
}

#endif
