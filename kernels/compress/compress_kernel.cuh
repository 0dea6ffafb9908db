/* Pooling of pairs, tails and gathers; one thread a channel. */
#ifndef TANDEM_KERNELS_COMPRESS_COMPRESS_KERNEL_CUH
#define TANDEM_KERNELS_COMPRESS_COMPRESS_KERNEL_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"
#include "kernels/kv/kv_device.cuh"

__global__ void __launch_bounds__(DEVICE_BLOCK)
    compress_pair_kernel(compress_args a, bool is_bf16) {
    kernel_begin();
    const int row = a.closed_row[blockIdx.x];
    const size_t d = (size_t)a.d;
    const float *a0 = a.a + (size_t)(row - 1) * d, *b0 = a.b + (size_t)(row - 1) * d;
    if (row == a.batch.span_row[row]) {
        a0 = (const float *)ring_row(a.tails, a.batch.slot[row], a.batch.pos[row] - 1);
        b0 = a0 + d;
    }
    const float *a1 = a.a + (size_t)row * d, *b1 = a.b + (size_t)row * d;
    for (int i = threadIdx.x; i < a.d; i += DEVICE_BLOCK) {
        const float most = b0[i] > b1[i] ? b0[i] : b1[i];
        const float e0 = expf(b0[i] - most), e1 = expf(b1[i] - most), sum = e0 + e1;
        a.latent[blockIdx.x * d + i] = bf16_near_if(is_bf16, e0 / sum * a0[i] + e1 / sum * a1[i]);
    }
}

__global__ void __launch_bounds__(DEVICE_BLOCK) compress_tail_kernel(compress_args a) {
    kernel_begin();
    const int i = blockIdx.x;
    const batch_rows &b = a.batch;
    if (b.span_pos[i] + b.span_len[i] - b.pos[i] > a.tails.cap) return;
    float *row = (float *)ring_row(a.tails, b.slot[i], b.pos[i]);
    for (int c = threadIdx.x; c < a.d; c += DEVICE_BLOCK) {
        row[c] = a.a[(size_t)i * a.d + c];
        row[a.d + c] = a.b[(size_t)i * a.d + c];
    }
}

__global__ void __launch_bounds__(DEVICE_BLOCK) gather_kernel(gather_args a) {
    kernel_begin();
    for (int i = threadIdx.x; i < a.d; i += DEVICE_BLOCK)
        a.y[(size_t)blockIdx.x * a.d + i] = a.x[a.index[blockIdx.x] * a.x_stride + i];
}

#endif
