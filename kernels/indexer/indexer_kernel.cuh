/* Index scores, one thread a key; exact selection by radix, one block a row. A row whose candidate
 * mask leaves positions out is scored and picked over its candidates only ("compact"): entry i is
 * position blocks[i / block] * block + i % block. Scores: bound by fp32 arithmetic at the real size
 * (32 heads x 128 values a key). */
#ifndef TANDEM_KERNELS_INDEXER_INDEXER_KERNEL_CUH
#define TANDEM_KERNELS_INDEXER_INDEXER_KERNEL_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"
#include "kernels/kv/kv_device.cuh"

constexpr int INDEXER_KEYS = 128;  /* of a block */
constexpr int INDEXER_PICK = 1024; /* threads of a picking block */

struct indexer_params {
    indexer_args a;
    int first_row;  /* of this launch */
    int64_t stride; /* floats between rows of score: scores, then best scores of blocks */
    int64_t scores; /* entries of the first part */
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

/* Larger float = larger key; -inf and NaN become 0 = never picked. */
__device__ __forceinline__ uint32_t indexer_key(float v) {
    uint32_t u = __float_as_uint(v);
    if ((u & 0x7fffffffu) > 0x7f800000u || u == 0xff800000u) return 0;
    if (u == 0x80000000u) u = 0;
    return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

struct indexer_pick_shared {
    int count[256];
    int warps[33];
    uint32_t prefix;
    int left;
};

/* The digit in which the left-th largest key lies, by one warp: a lane counts eight digits. */
__device__ __forceinline__ void indexer_digit(uint32_t prefix, int shift, indexer_pick_shared &sh) {
    const int lane = threadIdx.x & 31, first = 255 - lane * 8, left = sh.left;
    int count[8], sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        count[i] = sh.count[first - i];
        sum += count[i];
    }
    int before = sum;
    for (int m = 1; m < 32; m <<= 1) {
        const int o = __shfl_up_sync(~0u, before, m);
        if (lane >= m) before += o;
    }
    before -= sum;
    /* The last lane takes what no lane reaches: digit 0. */
    const unsigned reached = __ballot_sync(~0u, before + sum >= left);
    const int mine = reached == 0 ? 31 : __ffs(reached) - 1;
    if (lane != mine) return;
    int digit = first, rest = left - before;
    for (int i = 0; i < 7 && count[i] < rest; i++) {
        rest -= count[i];
        digit--;
    }
    sh.left = rest;
    sh.prefix = prefix | (uint32_t)digit << shift;
}

/* The key of the topk-th largest and how many entries of that very key are taken. */
__device__ __forceinline__ void indexer_threshold(
    const float *score, int64_t n, int topk, indexer_pick_shared &sh) {
    if (threadIdx.x == 0) {
        sh.prefix = 0;
        sh.left = topk;
    }
    uint32_t mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = threadIdx.x; i < 256; i += INDEXER_PICK)
            sh.count[i] = 0;
        __syncthreads();
        const uint32_t prefix = sh.prefix;
        for (int64_t i = threadIdx.x; i < n; i += INDEXER_PICK) {
            const uint32_t key = indexer_key(score[i]);
            if (key != 0 && (key & mask) == prefix) atomicAdd(sh.count + (key >> shift & 255u), 1);
        }
        __syncthreads();
        if (threadIdx.x < 32) indexer_digit(prefix, shift, sh);
        mask |= 255u << shift;
        __syncthreads();
    }
}

/* Exclusive prefix of v over the block; total in *all. */
__device__ __forceinline__ int indexer_before(int v, indexer_pick_shared &sh, int *all) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int sum = v;
    for (int m = 1; m < 32; m <<= 1) {
        const int o = __shfl_up_sync(~0u, sum, m);
        if (lane >= m) sum += o;
    }
    if (lane == 31) sh.warps[warp] = sum;
    __syncthreads();
    int w = sh.warps[lane];
    for (int m = 1; m < 32; m <<= 1) {
        const int o = __shfl_up_sync(~0u, w, m);
        if (lane >= m) w += o;
    }
    const int before = __shfl_sync(~0u, w, warp) - sh.warps[warp];
    *all = __shfl_sync(~0u, w, 31);
    __syncthreads();
    return before + sum - v;
}

/* The topk largest of score[0..n), ties to the lower index; give(rank, index) in ascending order.
 * Returns how many. Whole block. */
template <class GIVE>
__device__ __forceinline__ int indexer_pick_block(
    const float *score, int64_t n, int topk, indexer_pick_shared &sh, GIVE give) {
    int n_valid = 0, n_equal = 0, n_out = 0;
    for (int64_t i = threadIdx.x; i < n; i += INDEXER_PICK)
        n_valid += indexer_key(score[i]) != 0;
    n_valid = block_sum_int(n_valid, sh.warps);
    uint32_t threshold = 0;
    if (n_valid > topk) {
        indexer_threshold(score, n, topk, sh);
        threshold = sh.prefix;
        n_equal = sh.left;
    }
    for (int64_t base = 0; base < n && n_out < topk; base += INDEXER_PICK) {
        const int64_t i = base + threadIdx.x;
        const uint32_t key = i < n ? indexer_key(score[i]) : 0;
        const bool is_equal = threshold != 0 && key == threshold;
        int all, all_equal;
        const int equal_before = threshold != 0 ? indexer_before(is_equal, sh, &all_equal) : 0;
        if (threshold == 0) all_equal = 0;
        const bool is_taken = key != 0 && key >= threshold && (!is_equal || equal_before < n_equal);
        const int before = indexer_before(is_taken, sh, &all);
        if (is_taken) give(n_out + before, i);
        n_out += all;
        n_equal -= min(all_equal, n_equal);
    }
    return n_out;
}

__device__ __forceinline__ void indexer_keep_blocks(
    const indexer_params &p, int row, const float *score, float *best, indexer_pick_shared &sh) {
    const indexer_args &a = p.a;
    const int64_t n_vis = indexer_visible(a, row), n = indexer_blocks(a, n_vis);
    int32_t *out = a.blocks + (size_t)row * a.max_blocks;
    if (n <= a.max_blocks) {
        for (int64_t b = threadIdx.x; b < n; b += INDEXER_PICK)
            out[b] = (int32_t)b;
        if (threadIdx.x == 0) a.n_blocks[row] = (int32_t)n;
        return;
    }
    for (int64_t b = threadIdx.x; b < n; b += INDEXER_PICK) {
        float most = __uint_as_float(0xff800000u);
        for (int64_t i = b * a.block; i < (b + 1) * a.block && i < n_vis; i++)
            most = score[i] > most ? score[i] : most;
        best[b] = b == (n_vis - 1) / a.block ? __uint_as_float(0x7f800000u) : most;
    }
    __syncthreads();
    const int kept = indexer_pick_block(
        best, n, a.max_blocks, sh, [out](int rank, int64_t i) { out[rank] = (int32_t)i; });
    if (threadIdx.x == 0) a.n_blocks[row] = kept;
}

__device__ __forceinline__ void indexer_give_tap(
    const indexer_args &a, int row, const float *score, int64_t n) {
    float *tap = a.score_tap + (int64_t)row * a.score_cap;
    for (int64_t i = threadIdx.x; i < a.score_cap; i += INDEXER_PICK)
        tap[i] = __uint_as_float(0xff800000u);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += INDEXER_PICK)
        tap[indexer_position(a, row, i)] = score[i];
}

__global__ void __launch_bounds__(INDEXER_PICK) indexer_pick_kernel(indexer_params p) {
    kernel_begin();
    __shared__ indexer_pick_shared sh;
    const indexer_args &a = p.a;
    const int row = p.first_row + blockIdx.x;
    const float *score = a.score + (int64_t)blockIdx.x * p.stride;
    int32_t *out = a.selection + (size_t)row * a.topk;
    if (a.builds_candidates) indexer_keep_blocks(p, row, score, (float *)score + p.scores, sh);
    __syncthreads();
    if (!indexer_needs_scores(a, row)) {
        const int64_t n_vis = indexer_visible(a, row);
        for (int64_t i = threadIdx.x; i < n_vis; i += INDEXER_PICK)
            out[i] = (int32_t)i;
        if (threadIdx.x == 0) a.n_selected[row] = (int32_t)n_vis;
        return;
    }
    const int64_t n = indexer_entries(a, row);
    const int picked = indexer_pick_block(score, n, a.topk, sh,
        [&a, row, out](int rank, int64_t i) { out[rank] = (int32_t)indexer_position(a, row, i); });
    if (threadIdx.x == 0) a.n_selected[row] = picked;
    if (a.score_tap != nullptr) indexer_give_tap(a, row, score, n);
}

#endif
