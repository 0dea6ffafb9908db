/* What is done with logits: finite check, argmax, sums, joining of vocabulary parts. */
#ifndef TANDEM_KERNELS_HEAD_HEAD_KERNEL_CUH
#define TANDEM_KERNELS_HEAD_HEAD_KERNEL_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"

constexpr int HEAD_BLOCK = 1024;

__global__ void __launch_bounds__(HEAD_BLOCK) finite_kernel(finite_args a) {
    kernel_begin();
    const float *x = a.x + (size_t)blockIdx.x * a.n;
    const int n_four = ((uintptr_t)x & 15) == 0 ? a.n / 4 : 0;
    int is_bad = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < n_four; i += HEAD_BLOCK) {
        const uint4 v = ((const uint4 *)x)[i];
        const uint32_t m = 0x7fffffffu;
        is_bad |= max(max(v.x & m, v.y & m), max(v.z & m, v.w & m)) >= 0x7f800000u;
    }
    for (int i = 4 * n_four + threadIdx.x; i < a.n; i += HEAD_BLOCK)
        is_bad |= (__float_as_uint(x[i]) & 0x7fffffffu) >= 0x7f800000u;
    is_bad = __syncthreads_or(is_bad);
    if (threadIdx.x == 0) a.is_finite[blockIdx.x] = is_bad == 0;
}

/* The first index of the largest value. NaN never wins, as in the plain loop, unless it is the
 * first value. */
__global__ void __launch_bounds__(HEAD_BLOCK) argmax_kernel(argmax_args a) {
    kernel_begin();
    __shared__ float best_value[32];
    __shared__ int best_index[32];
    const float *x = a.x + (size_t)blockIdx.x * a.n;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float value = __uint_as_float(0xff800000u);
    int index = a.n;
    for (int i = threadIdx.x; i < a.n; i += HEAD_BLOCK)
        if (x[i] > value || (index == a.n && x[i] == value)) {
            value = x[i];
            index = i;
        }
    for (int round = 0; round < 2; round++) {
        for (int m = 16; m > 0; m >>= 1) {
            const float v = __shfl_xor_sync(~0u, value, m);
            const int i = __shfl_xor_sync(~0u, index, m);
            if (v > value || (v == value && i < index)) {
                value = v;
                index = i;
            }
        }
        if (round == 1) break;
        if (lane == 0) {
            best_value[warp] = value;
            best_index[warp] = index;
        }
        __syncthreads();
        value = best_value[lane];
        index = best_index[lane];
    }
    if (threadIdx.x != 0) return;
    const bool is_first = index == a.n || isnan(x[0]);
    a.index[blockIdx.x] = is_first ? 0 : index;
    a.value[blockIdx.x] = is_first ? x[0] : value;
}

__global__ void __launch_bounds__(DEVICE_BLOCK) add_kernel(add_args a) {
    kernel_begin();
    const size_t i = (size_t)blockIdx.x * DEVICE_BLOCK + threadIdx.x;
    if (i < a.n) a.y[i] += a.x[i];
}

__global__ void __launch_bounds__(DEVICE_BLOCK) join_kernel(join_args a) {
    kernel_begin();
    const size_t n = (size_t)a.n_part, r = blockIdx.x, p = blockIdx.y;
    const float *from = a.parts + (p * a.n_rows + r) * n;
    float *to = a.out + (r * a.n_parts + p) * n;
    const size_t i = (size_t)blockIdx.z * DEVICE_BLOCK + threadIdx.x;
    if (i < n) to[i] = from[i];
}

__global__ void __launch_bounds__(DEVICE_BLOCK) round_kernel(float *x, size_t n) {
    kernel_begin();
    const size_t i = (size_t)blockIdx.x * DEVICE_BLOCK + threadIdx.x;
    if (i < n) x[i] = bf16_near(x[i]);
}

#endif
