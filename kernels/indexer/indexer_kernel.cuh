/* Index scores, one thread a key. A row whose candidate mask leaves positions out is scored and
 * picked over its candidates only ("compact"): entry i is position blocks[i / block] * block +
 * i % block. Bound by fp32 arithmetic at the real size (32 heads x 128 values a key). */
#ifndef TANDEM_KERNELS_INDEXER_INDEXER_KERNEL_CUH
#define TANDEM_KERNELS_INDEXER_INDEXER_KERNEL_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"
#include "kernels/kv/kv_device.cuh"

constexpr int INDEXER_KEYS = 128; /* of a block */

struct indexer_params {
    indexer_args a;
    int first_row;  /* of this launch */
    int64_t stride; /* floats between rows of score; a multiple of four */
};

__device__ __forceinline__ int64_t indexer_visible(const indexer_args &a, int row) {
    return (a.batch.pos[row] + 1) / a.ratio;
}
__device__ __forceinline__ int64_t indexer_blocks(const indexer_args &a, int64_t n_vis) {
    return (n_vis + a.block - 1) / a.block;
}
__device__ __forceinline__ bool indexer_is_masked(const indexer_args &a, int row) {
    return indexer_blocks(a, indexer_visible(a, row)) > a.max_blocks;
}
__device__ __forceinline__ bool indexer_needs_scores(const indexer_args &a, int row) {
    return a.score_tap != nullptr || indexer_visible(a, row) > a.topk ||
           ((a.builds_candidates || a.uses_candidates) && indexer_is_masked(a, row));
}
__device__ __forceinline__ bool indexer_is_compact(const indexer_args &a, int row) {
    return a.uses_candidates && indexer_is_masked(a, row);
}
/* Entries to score and pick from. */
__device__ __forceinline__ int64_t indexer_entries(const indexer_args &a, int row) {
    return indexer_is_compact(a, row) ? (int64_t)a.n_blocks[row] * a.block
                                      : indexer_visible(a, row);
}
__device__ __forceinline__ int64_t indexer_position(const indexer_args &a, int row, int64_t i) {
    if (!indexer_is_compact(a, row)) return i;
    return (int64_t)a.blocks[(size_t)row * a.max_blocks + i / a.block] * a.block + i % a.block;
}

/* D: values of a key, 0: any. Shared: queries [n_heads][d], weights [n_heads]. */
template <int D>
__global__ void __launch_bounds__(INDEXER_KEYS) indexer_score_kernel(indexer_params p) {
    kernel_begin();
    extern __shared__ __align__(16) float shared[];
    const indexer_args &a = p.a;
    const int row = p.first_row + blockIdx.y, d = D != 0 ? D : a.d, n_q = a.n_heads * d;
    const int64_t i = (int64_t)blockIdx.x * INDEXER_KEYS + threadIdx.x;
    if (!indexer_needs_scores(a, row)) return;
    const int64_t n = indexer_entries(a, row);
    if ((int64_t)blockIdx.x * INDEXER_KEYS >= n) return;
    for (int c = threadIdx.x; c < n_q; c += INDEXER_KEYS)
        shared[c] = a.q[(size_t)row * n_q + c];
    for (int h = threadIdx.x; h < a.n_heads; h += INDEXER_KEYS)
        shared[n_q + h] = a.w[(size_t)row * a.n_heads + h] * a.w_scale;
    __syncthreads();
    if (i >= n) return;
    const int64_t pos = indexer_position(a, row, i);
    float *out = a.score + (int64_t)blockIdx.y * p.stride + i;
    if (pos >= indexer_visible(a, row)) {
        *out = __uint_as_float(0xff800000u);
        return;
    }
    const uint8_t *packed = paged_row(a.keys, a.batch.slot[row], pos);
    float4 key[D != 0 ? D / 4 : 1];
    if constexpr (D != 0) {
#pragma unroll
        for (int c = 0; c < D / 4; c++)
            key[c] = kv_value4(a.key_format, packed, d, 4 * c);
    }
    float sum = 0.f;
    for (int h = 0; h < a.n_heads; h++) {
        const float4 *q = (const float4 *)(shared + h * d);
        float4 s = make_float4(0.f, 0.f, 0.f, 0.f);
        if constexpr (D != 0) {
#pragma unroll
            for (int c = 0; c < D / 4; c++) {
                const float4 v = q[c];
                s.x = fmaf(v.x, key[c].x, s.x);
                s.y = fmaf(v.y, key[c].y, s.y);
                s.z = fmaf(v.z, key[c].z, s.z);
                s.w = fmaf(v.w, key[c].w, s.w);
            }
        } else {
            for (int c = 0; c < d / 4; c++) {
                const float4 v = q[c], k = kv_value4(a.key_format, packed, d, 4 * c);
                s.x = fmaf(v.x, k.x, s.x);
                s.y = fmaf(v.y, k.y, s.y);
                s.z = fmaf(v.z, k.z, s.z);
                s.w = fmaf(v.w, k.w, s.w);
            }
        }
        const float t = (s.x + s.z) + (s.y + s.w);
        if (t > 0.f || isnan(t)) sum = fmaf(shared[n_q + h], t, sum);
    }
    *out = sum;
}

#endif
