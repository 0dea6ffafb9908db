/* The end of a hyper-connection mix for device code of other folders. */
#ifndef TANDEM_KERNELS_MHC_MHC_DEVICE_CUH
#define TANDEM_KERNELS_MHC_MHC_DEVICE_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"

constexpr int MHC_MAX_MIX = MHC_MAX_STREAMS * (2 + MHC_MAX_STREAMS);

/* Divides each column (step 1) or row (step 0) of comb by its sum + eps; one warp. */
__device__ __forceinline__ void mhc_normalize(float *c, int s, float eps, bool is_column) {
    const int lane = threadIdx.x & 31;
    float v[2] = {0.f, 0.f};
#pragma unroll
    for (int q = 0; q < 2; q++) {
        const int i = lane + q * 32;
        if (i >= s * s) continue;
        float sum = 0.f;
        for (int j = 0; j < s; j++)
            sum += is_column ? c[j * s + i % s] : c[i / s * s + j];
        v[q] = c[i] / (sum + eps);
    }
    __syncwarp();
    if (lane < s * s) c[lane] = v[0];
    if (lane + 32 < s * s) c[lane + 32] = v[1];
    __syncwarp();
}

/* The whole of it for four streams: lane j * 4 + k holds comb[j][k] (the lanes behind repeat them).
 * The operations are those of the general form in its order. */
__device__ __forceinline__ float mhc_sum_column(float v, int lane) {
    const int k = lane & 3;
    const float a = __shfl_sync(~0u, v, k), b = __shfl_sync(~0u, v, 4 + k);
    const float c = __shfl_sync(~0u, v, 8 + k), d = __shfl_sync(~0u, v, 12 + k);
    return ((a + b) + c) + d;
}
__device__ __forceinline__ float mhc_sum_row(float v, int lane) {
    const int j = lane & 12;
    const float a = __shfl_sync(~0u, v, j), b = __shfl_sync(~0u, v, j + 1);
    const float c = __shfl_sync(~0u, v, j + 2), d = __shfl_sync(~0u, v, j + 3);
    return ((a + b) + c) + d;
}
__device__ __forceinline__ float mhc_sinkhorn_4(float x, int n_iters, float eps) {
    const int lane = threadIdx.x & 31, j = lane & 12;
    float most = __shfl_sync(~0u, x, j);
    for (int i = 1; i < 4; i++) {
        const float v = __shfl_sync(~0u, x, j + i);
        most = v > most ? v : most;
    }
    float v = expf(x - most);
    v = v / mhc_sum_row(v, lane) + eps;
    v = v / (mhc_sum_column(v, lane) + eps);
    for (int i = 1; i < n_iters; i++) {
        v = v / (mhc_sum_row(v, lane) + eps);
        v = v / (mhc_sum_column(v, lane) + eps);
    }
    return v;
}

__device__ __forceinline__ float sigmoid_of(float v) {
    return 1.0f / (1.0f + expf(-v));
}

/* The mix of row r from its dots m and, behind them, the sum of squares; one warp. c: S * S floats
 * of shared memory. */
__device__ __forceinline__ void mhc_mix_row(
    const mhc_mix_args &a, int r, const float *m, float *c) {
    const int lane = threadIdx.x & 31, s = a.n_streams, n_mix = s * (2 + s);
    const float inverse = 1.0f / sqrtf(m[n_mix] / (float)(s * a.d) + a.norm_eps);
    for (int i = lane; i < n_mix; i += 32) {
        const float v = m[i] * inverse;
        const int site = i < s ? 0 : i < 2 * s ? 1 : 2;
        const float x = v * a.w.scale[site] + a.w.base[i];
        if (site == 0) a.pre[(size_t)r * s + i] = sigmoid_of(x) + a.eps;
        if (site == 1) a.post[(size_t)r * s + i - s] = 2.0f * sigmoid_of(x);
        if (site == 2) c[i - 2 * s] = x;
    }
    __syncwarp();
    if (s == 4) {
        const float v = mhc_sinkhorn_4(c[lane & 15], a.n_iters, a.eps);
        if (lane < 16) a.comb[(size_t)r * 16 + lane] = v;
        return;
    }
    float e[2];
    for (int q = 0; q < 2; q++) {
        const int i = lane + q * 32, row = i / s * s;
        if (i >= s * s) continue;
        float most = c[row], sum = 0.f;
        for (int j = 1; j < s; j++)
            most = c[row + j] > most ? c[row + j] : most;
        for (int j = 0; j < s; j++)
            sum += expf(c[row + j] - most);
        e[q] = expf(c[i] - most) / sum + a.eps;
    }
    __syncwarp();
    if (lane < s * s) c[lane] = e[0];
    if (lane + 32 < s * s) c[lane + 32] = e[1];
    __syncwarp();
    mhc_normalize(c, s, a.eps, true);
    for (int i = 1; i < a.n_iters; i++) {
        mhc_normalize(c, s, a.eps, false);
        mhc_normalize(c, s, a.eps, true);
    }
    for (int i = lane; i < s * s; i += 32)
        a.comb[(size_t)r * s * s + i] = c[i];
}

#endif
