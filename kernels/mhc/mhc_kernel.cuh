/* Hyper-connections: expand, collapse and the dots of the mix in one pass over the streams. A block
 * owns 64 channels of all streams; what needs a whole row (the norm, the end of the mix) is left to
 * the launch behind it (prepare_kernel.cuh). This form is for few rows and for what mhc_many_kernel.cuh
 * does not take. Bound by latency: the matrix, 2 MB at the real size, is read before the wait for the
 * kernel before. */
#ifndef TANDEM_KERNELS_MHC_MHC_KERNEL_CUH
#define TANDEM_KERNELS_MHC_MHC_KERNEL_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"
#include "kernels/mhc/mhc_device.cuh"
#include "kernels/mhc/mhc_gpu.h"

constexpr int MHC_THREADS = 256, MHC_WARPS = MHC_THREADS / 32;
constexpr int MHC_FAST_OUTPUTS = 3; /* outputs of a warp with four streams: 24 in all */

/* Four streams: the block's part of three rows of the matrix, in registers. */
struct mhc_fast_matrix {
    float4 w[MHC_FAST_OUTPUTS][2];
    __device__ void load(const mhc_streams_params &p, int c0) {
        const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n = 4 * p.d;
#pragma unroll
        for (int q = 0; q < MHC_FAST_OUTPUTS; q++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int e = i * 128 + lane * 4;
                w[q][i] =
                    __ldg((const float4 *)(p.fn + (size_t)(warp * MHC_FAST_OUTPUTS + q) * n +
                                           (size_t)(e / MHC_SLICE) * p.d + c0 + e % MHC_SLICE));
            }
    }
};

__device__ __forceinline__ float mhc_dot4(float4 a, float4 b, float sum) {
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
    sum = fmaf(a.z, b.z, sum);
    return fmaf(a.w, b.w, sum);
}

/* Dots of the block's channels u [S][64] of one row. */
__device__ __forceinline__ void mhc_fast_dots(
    const mhc_fast_matrix &m, const float *u, float *dots) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const float4 a = *(const float4 *)(u + lane * 4), b = *(const float4 *)(u + 128 + lane * 4);
#pragma unroll
    for (int q = 0; q < MHC_FAST_OUTPUTS; q++) {
        const float sum = warp_sum(mhc_dot4(m.w[q][1], b, mhc_dot4(m.w[q][0], a, 0.f)));
        if (lane == 0) dots[warp * MHC_FAST_OUTPUTS + q] = sum;
    }
    if (warp != MHC_WARPS - 1) return;
    const float sum = warp_sum(mhc_dot4(b, b, mhc_dot4(a, a, 0.f)));
    if (lane == 0) dots[MHC_WARPS * MHC_FAST_OUTPUTS] = sum;
}

/* The same for any number of streams and width of the last slice. */
__device__ __forceinline__ void mhc_any_dots(
    const mhc_streams_params &p, int c0, const float *u, float *dots) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, s = p.n_streams;
    const int n_mix = s * (2 + s), width = min(MHC_SLICE, p.d - c0);
    for (int f = warp; f <= n_mix; f += MHC_WARPS) {
        float sum = 0.f;
        for (int e = lane; e < s * MHC_SLICE; e += 32) {
            const int t = e / MHC_SLICE, c = e % MHC_SLICE;
            if (c >= width) continue;
            const float w = f < n_mix ? p.fn[((size_t)f * s + t) * p.d + c0 + c] : u[e];
            sum = fmaf(w, u[e], sum);
        }
        sum = warp_sum(sum);
        if (lane == 0) dots[f] = sum;
    }
}

/* Row of h of the i-th row. */
__device__ __forceinline__ size_t mhc_row(const mhc_streams_params &p, int i) {
    return p.rows == nullptr ? (size_t)i : (size_t)p.rows[i];
}

/* Stream t, channel c of the block, expanded when asked. */
__device__ __forceinline__ float mhc_value(
    const mhc_streams_params &p, size_t r, int t, int channel) {
    const int s = p.n_streams;
    const float *h = p.h + r * s * p.d + channel;
    if (p.y == nullptr) return h[(size_t)t * p.d];
    float v = p.y[r * p.d + channel] * p.post[r * s + t];
#pragma unroll
    for (int j = 0; j < MHC_MAX_STREAMS; j++)
        if (j < s) v += h[(size_t)j * p.d] * p.comb[(r * s + j) * s + t];
    return bf16_near_if(p.is_bf16, v);
}

/* The streams of the block's channels of row r of h into u, stored again when expanded. All loads are on
 * their way before the first value is used. */
__device__ __forceinline__ void mhc_load_streams(
    const mhc_streams_params &p, size_t r, int c0, float *u) {
    constexpr int PARTS = MHC_MAX_STREAMS * MHC_SLICE / MHC_THREADS;
    const int n_values = p.n_streams * MHC_SLICE;
    float v[PARTS];
#pragma unroll
    for (int q = 0; q < PARTS; q++) {
        const int e = q * MHC_THREADS + threadIdx.x, c = c0 + e % MHC_SLICE;
        v[q] = e < n_values && c < p.d ? mhc_value(p, r, e / MHC_SLICE, c) : 0.f;
    }
    __syncthreads(); /* every stream was read before one is written */
#pragma unroll
    for (int q = 0; q < PARTS; q++) {
        const int e = q * MHC_THREADS + threadIdx.x, c = c0 + e % MHC_SLICE;
        if (e >= n_values) continue;
        u[e] = v[q];
        if (p.y != nullptr && c < p.d) p.h[(r * p.n_streams + e / MHC_SLICE) * p.d + c] = v[q];
    }
    __syncthreads();
}

/* Collapse of one row by the threads of one stream. */
__device__ __forceinline__ void mhc_collapse_row(
    const mhc_streams_params &p, size_t i, size_t r, int c0, const float *u) {
    const int c = threadIdx.x % MHC_SLICE, s = p.n_streams;
    if (c0 + c >= p.d) return;
    const float *pre = p.pre + r * s;
    float v = u[c] * pre[0];
    for (int t = 1; t < s; t++)
        v += u[t * MHC_SLICE + c] * pre[t];
    p.raw[i * p.d + c0 + c] = bf16_near_if(p.is_bf16, v);
}

/* Grid: slices, rows. */
template <bool IS_FAST>
__global__ void __launch_bounds__(MHC_THREADS)
    mhc_streams_kernel(const __grid_constant__ mhc_streams_params p) {
    __shared__ __align__(16) float u[MHC_MAX_STREAMS * MHC_SLICE];
    __shared__ float sums[MHC_MAX_MIX + 1];
    const int c0 = blockIdx.x * MHC_SLICE, i = blockIdx.y;
    const int n_dots = p.n_streams * (2 + p.n_streams) + 1;
    mhc_fast_matrix m;
    ptx_release_next();
    if (IS_FAST && p.dots != nullptr) m.load(p, c0);
    ptx_wait_for_previous();
    const size_t r = mhc_row(p, i);
    mhc_load_streams(p, r, c0, u);
    if (threadIdx.x < MHC_SLICE && p.raw != nullptr) mhc_collapse_row(p, i, r, c0, u);
    if (p.dots == nullptr) return;
    if constexpr (IS_FAST) mhc_fast_dots(m, u, sums);
    if constexpr (!IS_FAST) mhc_any_dots(p, c0, u, sums);
    __syncthreads();
    for (int f = threadIdx.x; f < n_dots; f += MHC_THREADS)
        p.dots[((size_t)i * p.n_slices + blockIdx.x) * p.dots_stride + f] = sums[f];
}

__global__ void __launch_bounds__(DEVICE_BLOCK) mhc_mean_kernel(mhc_mean_args a, bool is_bf16) {
    kernel_begin();
    const int s = a.n_streams, d = a.d, c = blockIdx.y * DEVICE_BLOCK + threadIdx.x;
    const size_t r = blockIdx.x;
    if (c >= d) return;
    const float *h = a.h + r * s * d + c;
    float v = h[0];
    for (int t = 1; t < s; t++)
        v += h[(size_t)t * d];
    a.out[r * a.out_stride + c] = bf16_near_if(is_bf16, v / (float)s);
}

#endif
