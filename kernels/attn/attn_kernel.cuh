/* Attention of one row and a few heads by one block of eight warps. Warp w takes keys w, w + 8, ..;
 * a lane holds four values of every 128. Two passes over the packed rows (scores, then the weighted
 * sum), both decoding them in registers; the partial sums of the warps are added in their order.
 * Each head's arithmetic is the same for any number of heads a block. */
#ifndef TANDEM_KERNELS_ATTN_ATTN_KERNEL_CUH
#define TANDEM_KERNELS_ATTN_ATTN_KERNEL_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"
#include "kernels/kv/kv_device.cuh"

constexpr int ATTN_WARPS = 8;

/* What a row attends. */
struct attn_list {
    int64_t first, start; /* position of the first window row; first position of this step */
    int n_window, n_all, slot, span_row;
    const int32_t *selection;
};

__device__ __forceinline__ attn_list attn_list_of(const attn_args &a, int row) {
    const batch_rows &b = a.batch;
    attn_list l;
    l.start = b.span_pos[row];
    l.slot = b.slot[row];
    l.span_row = b.span_row[row];
    const int64_t p = b.pos[row];
    l.first = a.is_block ? l.start - a.window : p - a.window + 1;
    if (l.first < 0) l.first = 0;
    const int64_t last = a.is_block ? l.start + b.span_len[row] - 1 : p;
    l.n_window = (int)(last - l.first + 1);
    l.selection = a.selection == nullptr ? nullptr : a.selection + (size_t)row * a.max_selected;
    l.n_all = l.n_window + (a.selection == nullptr ? 0 : a.n_selected[row]);
    return l;
}

struct attn_row {
    const uint8_t *at;
    kv_format format;
};

__device__ __forceinline__ attn_row attn_row_of(const attn_args &a, const attn_list &l, int j) {
    if (j >= l.n_window)
        return {paged_row(a.pages, l.slot, l.selection[j - l.n_window]), a.compressed_format};
    const int64_t p = l.first + j;
    if (p < l.start) return {ring_row(a.ring, l.slot, p), a.window_format};
    return {a.rows + (size_t)(l.span_row + (int)(p - l.start)) * a.ring.row_bytes, a.window_format};
}

/* CHUNKS of 128 values; HEADS of a block. Shared: queries [HEADS][d], weights [HEADS][cap], sums
 * [ATTN_WARPS][HEADS][d]. */
template <int CHUNKS, int HEADS>
__global__ void __launch_bounds__(ATTN_WARPS * 32)
    attn_kernel(attn_args a, int weight_cap, bool is_bf16) {
    kernel_begin();
    extern __shared__ __align__(16) float shared[];
    __shared__ float reduce[33];
    const int row = blockIdx.x, head0 = blockIdx.y * HEADS, d = a.d;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float *q = shared, *weight = q + HEADS * d, *sums = weight + HEADS * weight_cap;
    const attn_list l = attn_list_of(a, row);
    const size_t at = ((size_t)row * a.n_heads + head0) * d;
    for (int i = threadIdx.x; i < HEADS * d; i += ATTN_WARPS * 32)
        q[i] = a.q[at + i];
    __syncthreads();
    for (int j = warp; j < l.n_all; j += ATTN_WARPS) {
        const attn_row r = attn_row_of(a, l, j);
        float s[HEADS];
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            s[h] = 0.f;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int i = c * 128 + lane * 4;
            if (i >= d) break;
            const float4 v = kv_value4(r.format, r.at, d, i);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                const float4 u = *(const float4 *)(q + h * d + i);
                s[h] = fmaf(u.x, v.x, s[h]);
                s[h] = fmaf(u.y, v.y, s[h]);
                s[h] = fmaf(u.z, v.z, s[h]);
                s[h] = fmaf(u.w, v.w, s[h]);
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            s[h] = warp_sum(s[h]);
            if (lane == 0) weight[h * weight_cap + j] = s[h] * a.scale;
        }
    }
    __syncthreads();
    float den[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        float *w = weight + h * weight_cap, most = -1e30f, sum = 0.f;
        for (int j = threadIdx.x; j < l.n_all; j += ATTN_WARPS * 32)
            most = w[j] > most ? w[j] : most;
        most = block_max(most, reduce);
        for (int j = threadIdx.x; j < l.n_all; j += ATTN_WARPS * 32) {
            const float e = exp_near(w[j] - most);
            sum += e;
            w[j] = bf16_near_if(is_bf16, e);
        }
        den[h] = block_sum(sum, reduce) + expf(a.sink[head0 + h] - most);
    }
    __syncthreads();
    float o[HEADS][CHUNKS][4];
#pragma unroll
    for (int i = 0; i < HEADS * CHUNKS * 4; i++)
        (&o[0][0][0])[i] = 0.f;
    for (int j = warp; j < l.n_all; j += ATTN_WARPS) {
        const attn_row r = attn_row_of(a, l, j);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int i = c * 128 + lane * 4;
            if (i >= d) break;
            const float4 v = kv_value4(r.format, r.at, d, i);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                const float w = weight[h * weight_cap + j];
                o[h][c][0] = fmaf(w, v.x, o[h][c][0]);
                o[h][c][1] = fmaf(w, v.y, o[h][c][1]);
                o[h][c][2] = fmaf(w, v.z, o[h][c][2]);
                o[h][c][3] = fmaf(w, v.w, o[h][c][3]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int i = c * 128 + lane * 4;
            if (i < d)
                *(float4 *)(sums + (size_t)(warp * HEADS + h) * d + i) =
                    make_float4(o[h][c][0], o[h][c][1], o[h][c][2], o[h][c][3]);
        }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < HEADS; h++)
        for (int i = threadIdx.x; i < d; i += ATTN_WARPS * 32) {
            float sum = sums[(size_t)h * d + i];
            for (int w = 1; w < ATTN_WARPS; w++)
                sum += sums[(size_t)(w * HEADS + h) * d + i];
            a.o[at + (size_t)h * d + i] = bf16_near_if(is_bf16, sum / den[h]);
        }
}

#endif
