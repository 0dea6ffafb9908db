/* Hyper-connections. The mix is a small matrix (2 MB at the real size) times a long row: every
 * output has a block of its own, so that one row fills the device; the last block of a row finishes
 * it. Bound by memory for few rows. */
#ifndef TANDEM_KERNELS_MHC_MHC_KERNEL_CUH
#define TANDEM_KERNELS_MHC_MHC_KERNEL_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"

constexpr int MHC_TILE = 4; /* rows that share one read of the matrix */
constexpr int MHC_MAX_MIX = MHC_MAX_STREAMS * (2 + MHC_MAX_STREAMS);
constexpr int MHC_MIX_BLOCK = 512;

/* Work of a mix: raw dots and the sum of squares, [rows][n_mix + 1]. TILE: rows that share one read
 * of the matrix; a row's arithmetic does not depend on it. */
template <int TILE>
__global__ void __launch_bounds__(MHC_MIX_BLOCK) mhc_dot_kernel(mhc_mix_args a, float *raw) {
    kernel_begin();
    __shared__ float shared[33];
    const int n = a.n_streams * a.d, n_mix = a.n_streams * (2 + a.n_streams), f = blockIdx.x;
    const int r0 = blockIdx.y * TILE, n_rows = min(TILE, a.n_rows - r0);
    const float *h = a.h + (size_t)r0 * n, *fn = a.w.fn + (size_t)f * n;
    float sum[TILE];
#pragma unroll
    for (int r = 0; r < TILE; r++)
        sum[r] = 0.f;
#pragma unroll(TILE > 4 ? 2 : 5)
    for (int i = threadIdx.x * 4; i < n; i += MHC_MIX_BLOCK * 4) {
        float4 w = make_float4(0.f, 0.f, 0.f, 0.f);
        if (f < n_mix) w = *(const float4 *)(fn + i);
#pragma unroll
        for (int r = 0; r < TILE; r++) {
            const float4 v = *(const float4 *)(h + (size_t)min(r, n_rows - 1) * n + i);
            const float4 u = f < n_mix ? w : v;
            sum[r] = fmaf(u.x, v.x, sum[r]);
            sum[r] = fmaf(u.y, v.y, sum[r]);
            sum[r] = fmaf(u.z, v.z, sum[r]);
            sum[r] = fmaf(u.w, v.w, sum[r]);
        }
    }
#pragma unroll
    for (int r = 0; r < TILE; r++) {
        if (r >= n_rows) break;
        const float s = block_sum(sum[r], shared);
        if (threadIdx.x == 0) raw[(size_t)(r0 + r) * (n_mix + 1) + f] = s;
    }
}

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

/* One warp a row. */
__global__ void __launch_bounds__(128) mhc_mix_kernel(mhc_mix_args a, const float *raw) {
    kernel_begin();
    __shared__ float shared[4][MHC_MAX_STREAMS * MHC_MAX_STREAMS];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, r = blockIdx.x * 4 + warp;
    if (r >= a.n_rows) return;
    const int s = a.n_streams, n_mix = s * (2 + s);
    const float *m = raw + (size_t)r * (n_mix + 1);
    const float inverse = 1.0f / sqrtf(m[n_mix] / (float)(s * a.d) + a.norm_eps);
    float *c = shared[warp];
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

/* Values of a row stay in registers between the sum of squares and the norm. d % 4 == 0, d at most
 * MHC_COLLAPSE_BLOCK * MHC_COLLAPSE_HELD * 4. */
constexpr int MHC_COLLAPSE_BLOCK = 640, MHC_COLLAPSE_HELD = 4;

__global__ void __launch_bounds__(MHC_COLLAPSE_BLOCK)
    mhc_collapse_kernel(mhc_collapse_args a, bool is_bf16) {
    kernel_begin();
    __shared__ float shared[33];
    const size_t i = blockIdx.x, r = a.rows == nullptr ? i : (size_t)a.rows[i];
    const int s = a.n_streams, d = a.d;
    const float *h = a.h + r * s * d, *pre = a.pre + r * s;
    float4 v[MHC_COLLAPSE_HELD];
    float sum = 0.f;
#pragma unroll
    for (int q = 0; q < MHC_COLLAPSE_HELD; q++) {
        const int c = (q * MHC_COLLAPSE_BLOCK + threadIdx.x) * 4;
        v[q] = make_float4(0.f, 0.f, 0.f, 0.f);
        if (c >= d) continue;
        for (int t = 0; t < s; t++) {
            const float4 u = *(const float4 *)(h + (size_t)t * d + c);
            const float p = pre[t];
            v[q].x = t == 0 ? u.x * p : v[q].x + u.x * p;
            v[q].y = t == 0 ? u.y * p : v[q].y + u.y * p;
            v[q].z = t == 0 ? u.z * p : v[q].z + u.z * p;
            v[q].w = t == 0 ? u.w * p : v[q].w + u.w * p;
        }
        v[q] = make_float4(bf16_near_if(is_bf16, v[q].x), bf16_near_if(is_bf16, v[q].y),
            bf16_near_if(is_bf16, v[q].z), bf16_near_if(is_bf16, v[q].w));
        if (a.raw != nullptr) *(float4 *)(a.raw + i * d + c) = v[q];
        sum = fmaf(v[q].x, v[q].x, sum);
        sum = fmaf(v[q].y, v[q].y, sum);
        sum = fmaf(v[q].z, v[q].z, sum);
        sum = fmaf(v[q].w, v[q].w, sum);
    }
    sum = block_sum(sum, shared);
    const float scale = 1.0f / sqrtf(sum / (float)d + a.norm_eps);
#pragma unroll
    for (int q = 0; q < MHC_COLLAPSE_HELD; q++) {
        const int c = (q * MHC_COLLAPSE_BLOCK + threadIdx.x) * 4;
        if (c >= d) continue;
        const float4 w = *(const float4 *)(a.weight + c);
        *(float4 *)(a.x + i * d + c) = make_float4(bf16_near_if(is_bf16, w.x * (v[q].x * scale)),
            bf16_near_if(is_bf16, w.y * (v[q].y * scale)),
            bf16_near_if(is_bf16, w.z * (v[q].z * scale)),
            bf16_near_if(is_bf16, w.w * (v[q].w * scale)));
    }
}

__global__ void __launch_bounds__(DEVICE_BLOCK) mhc_expand_kernel(mhc_expand_args a, bool is_bf16) {
    kernel_begin();
    const int s = a.n_streams, d = a.d, c = blockIdx.y * DEVICE_BLOCK + threadIdx.x;
    const size_t r = blockIdx.x;
    if (c >= d) return;
    float *h = a.h + r * s * d + c;
    const float y = a.y[r * d + c], *post = a.post + r * s, *comb = a.comb + r * s * s;
    float in[MHC_MAX_STREAMS];
#pragma unroll
    for (int j = 0; j < MHC_MAX_STREAMS; j++)
        if (j < s) in[j] = h[(size_t)j * d];
#pragma unroll
    for (int t = 0; t < MHC_MAX_STREAMS; t++) {
        if (t >= s) break;
        float v = y * post[t];
#pragma unroll
        for (int j = 0; j < MHC_MAX_STREAMS; j++)
            if (j < s) v += in[j] * comb[j * s + t];
        h[(size_t)t * d] = bf16_near_if(is_bf16, v);
    }
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
