/* Decoding of records and the gated write, one block a row and stream. */
#ifndef TANDEM_KERNELS_ENGRAM_ENGRAM_KERNEL_CUH
#define TANDEM_KERNELS_ENGRAM_ENGRAM_KERNEL_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"

__global__ void __launch_bounds__(DEVICE_BLOCK) engram_decode_kernel(engram_decode_args a) {
    kernel_begin();
    const uint8_t *in = a.records + blockIdx.x * a.record_bytes;
    for (int i = threadIdx.x; i < a.d; i += blockDim.x)
        a.x[(size_t)blockIdx.x * a.d + i] = e4m3_value(in[i]) * ue8m0_value(in[a.d + i / 32]);
}

constexpr int ENGRAM_HELD = 20; /* values a thread reads at once: all of a real row */

__global__ void __launch_bounds__(DEVICE_BLOCK)
    engram_gate_kernel(engram_gate_args a, bool is_bf16) {
    kernel_begin();
    __shared__ float shared[33];
    const int d = a.d, s = a.n_streams, t = blockIdx.y;
    const size_t r = blockIdx.x;
    const float *kv = a.kv + r * (s + 1) * d, *key = kv + (size_t)t * d,
                *value = kv + (size_t)s * d;
    const float *qk = a.qk + (size_t)t * d;
    float *h = a.h + (r * s + t) * d;
    float sum = 0.f, hh = 0.f, kk = 0.f;
    for (int first = threadIdx.x; first < d; first += ENGRAM_HELD * DEVICE_BLOCK) {
        float v[ENGRAM_HELD], c[ENGRAM_HELD], q[ENGRAM_HELD]; /* all on their way at once */
#pragma unroll
        for (int i = 0; i < ENGRAM_HELD; i++) {
            const int at = first + i * DEVICE_BLOCK;
            if (at < d) v[i] = h[at], c[i] = key[at], q[i] = __ldg(qk + at);
        }
#pragma unroll
        for (int i = 0; i < ENGRAM_HELD; i++) {
            if (first + i * DEVICE_BLOCK >= d) break;
            sum = fmaf(v[i] * q[i], c[i], sum);
            hh = fmaf(v[i], v[i], hh);
            kk = fmaf(c[i], c[i], kk);
        }
    }
    sum = block_sum(sum, shared);
    hh = block_sum(hh, shared);
    kk = block_sum(kk, shared);
    const float rh = 1.0f / sqrtf(hh / (float)d + a.eps), rk = 1.0f / sqrtf(kk / (float)d + a.eps);
    const float dot = sum * rh * rk / sqrtf((float)d);
    const float root = copysignf(sqrtf(fmaxf(fabsf(dot), 1e-6f)), dot);
    const float gate = 1.0f / (1.0f + expf(-root));
    for (int first = threadIdx.x; first < d; first += ENGRAM_HELD * DEVICE_BLOCK) {
        float v[ENGRAM_HELD], c[ENGRAM_HELD];
#pragma unroll
        for (int i = 0; i < ENGRAM_HELD; i++) {
            const int at = first + i * DEVICE_BLOCK;
            if (at < d) v[i] = h[at], c[i] = value[at];
        }
#pragma unroll
        for (int i = 0; i < ENGRAM_HELD; i++) {
            const int at = first + i * DEVICE_BLOCK;
            if (at < d) h[at] = bf16_near_if(is_bf16, v[i] + c[i] * gate);
        }
    }
}

#endif
