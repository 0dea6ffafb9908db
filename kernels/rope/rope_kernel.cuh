/* Rotation tables and rotations; one thread a pair. */
#ifndef TANDEM_KERNELS_ROPE_ROPE_KERNEL_CUH
#define TANDEM_KERNELS_ROPE_ROPE_KERNEL_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"

__global__ void __launch_bounds__(DEVICE_BLOCK) rope_table_kernel(rope_table_args a) {
    kernel_begin();
    const int n_pairs = a.d_rope / 2, i = blockIdx.x * DEVICE_BLOCK + threadIdx.x;
    if (i >= a.n * n_pairs) return;
    const int r = i / n_pairs, p = i % n_pairs;
    const double angle = (double)((float)a.pos[r] * a.frequency[p]);
    float *out = a.table + (size_t)r * a.d_rope + 2 * p;
    out[0] = (float)cos(angle);
    out[1] = (float)sin(angle);
}

__global__ void __launch_bounds__(DEVICE_BLOCK) rope_kernel(rope_args a, bool is_bf16) {
    kernel_begin();
    const int n_pairs = a.d_rope / 2, i = blockIdx.y * DEVICE_BLOCK + threadIdx.x;
    if (i >= a.n_heads * n_pairs) return;
    const int head = i / n_pairs, p = i % n_pairs;
    const float *t = a.table + (size_t)blockIdx.x * a.d_rope + 2 * p;
    float *x =
        a.x + blockIdx.x * a.x_stride + (size_t)head * a.d_head + (a.d_head - a.d_rope) + 2 * p;
    const float c = t[0], s = a.is_inverse ? -t[1] : t[1], re = x[0], im = x[1];
    x[0] = bf16_near_if(is_bf16, re * c - im * s);
    x[1] = bf16_near_if(is_bf16, re * s + im * c);
}

#endif
