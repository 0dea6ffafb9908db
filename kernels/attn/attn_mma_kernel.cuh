/* Attention of the real size (512 values a head, packed rows, heads in groups of 16) on tensor
 * cores, with the accuracy of fp32: packed values are exact in bf16, queries and weights are taken
 * as sums of three bf16 values.
 *
 *   list     places of the rows a query attends, in shared memory
 *   scores   tiles of 64 rows are decoded to bf16 [64][512]; a warp multiplies 8 of them with the
 *            16 queries
 *   weights  exp(score - max), sum, as the plain kernel
 *   values   the same tiles again; a warp owns 64 of the 512 values; tile sums are added in order
 *
 * Many rows: one block does all tiles of a row and group. Few: a block a tile, in two launches with
 * scores and tile sums in global memory; the launch behind adds them (prepare_kernel.cuh): the same
 * operations in the same order, so a row has the same bits either way. Queries may be rotated as they
 * are read. 170 KB of shared memory; decode of the rows
 * and MMA take about the same time. */
#ifndef TANDEM_KERNELS_ATTN_ATTN_MMA_KERNEL_CUH
#define TANDEM_KERNELS_ATTN_ATTN_MMA_KERNEL_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/attn/attn_kernel.cuh"
#include "kernels/ptx.cuh"

constexpr int ATTN_D = 512, ATTN_GROUP = 16, ATTN_TILE = 64, ATTN_PLANES = 3;
constexpr int ATTN_PITCH = ATTN_D + 8;      /* bf16 values between rows of a tile or queries */
constexpr int ATTN_W_PITCH = ATTN_TILE + 8; /* between rows of weights */
constexpr int ATTN_THREADS = ATTN_WARPS * 32;

struct attn_mma_params {
    attn_args a;
    int cap;               /* rows a list may have, a multiple of the tile */
    float *scores;         /* few rows: [row][group][16][cap] */
    float *sums;           /* few rows: [row][group][tile][16][512] */
    float *den;            /* few rows: [row][group][16] */
    int32_t *n_used_tiles; /* few rows: [row] */
    const float *rope;     /* table for the queries, or NULL */
    int d_rope;
    int n_groups, n_tiles;
    bool is_bf16;
};

struct attn_mma_shared {
    __nv_bfloat16 tile[ATTN_TILE][ATTN_PITCH];
    __nv_bfloat16 q[ATTN_PLANES][ATTN_GROUP][ATTN_PITCH];
    __nv_bfloat16 w[ATTN_PLANES][ATTN_GROUP][ATTN_W_PITCH];
    float den[ATTN_GROUP];
};
constexpr size_t attn_mma_shared_bytes(int cap) {
    return sizeof(attn_mma_shared) + (size_t)cap * (sizeof(uint8_t *) + ATTN_GROUP * sizeof(float));
}

/* v as three bf16 values whose sum is v, nearly: 24 bits. */
__device__ __forceinline__ void attn_planes(float v, __nv_bfloat16 (&out)[ATTN_PLANES]) {
#pragma unroll
    for (int p = 0; p < ATTN_PLANES; p++) {
        out[p] = __float2bfloat16_rn(v);
        v -= __bfloat162float(out[p]);
    }
}

__device__ __forceinline__ uint32_t attn_pair(float a, float b) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *(const uint32_t *)&v;
}

/* 16 values of a lane: E4M3 at its 16 bytes. */
__device__ __forceinline__ void attn_decode_window(const uint8_t *row, int lane, uint32_t (&v)[8]) {
    const uint4 c = *(const uint4 *)(row + lane * 16);
    const float s = ue8m0_value(row[ATTN_D + lane / 2]);
    const uint32_t w[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = attn_pair(e4m3_value(w[i] & 255u) * s, e4m3_value(w[i] >> 8 & 255u) * s);
        v[2 * i + 1] = attn_pair(e4m3_value(w[i] >> 16 & 255u) * s, e4m3_value(w[i] >> 24) * s);
    }
}

/* 16 values of a lane: E2M1 pairs at its 8 bytes, one scale. */
__device__ __forceinline__ void attn_decode_compressed(
    const uint8_t *row, int lane, uint32_t (&v)[8]) {
    const uint2 c = *(const uint2 *)(row + lane * 8);
    const float s = e4m3_value(row[ATTN_D / 2 + lane]);
    const uint32_t w[2] = {c.x, c.y};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t b = w[i / 4] >> (i % 4) * 8;
        v[i] = attn_pair(e2m1_value(b) * s, e2m1_value(b >> 4) * s);
    }
}

/* Rows [first, first + 64) of the list to the tile; rows behind the end become zero. */
__device__ __forceinline__ void attn_load_tile(
    attn_mma_shared &sh, const attn_list &l, uint8_t *const *rows, int first) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll 4
    for (int i = 0; i < ATTN_TILE / ATTN_WARPS; i++) {
        const int k = i * ATTN_WARPS + warp, j = first + k;
        uint32_t v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (j < l.n_window) {
            attn_decode_window(rows[j], lane, v);
        } else if (j < l.n_all) {
            attn_decode_compressed(rows[j], lane, v);
        }
        uint4 *to = (uint4 *)&sh.tile[k][lane * 16];
        to[0] = make_uint4(v[0], v[1], v[2], v[3]);
        to[1] = make_uint4(v[4], v[5], v[6], v[7]);
    }
}

/* Four values of a query, rotated by the operations of rope_kernel. */
__device__ __forceinline__ float4 attn_rotated(
    const attn_mma_params &p, int row, int in_head, float4 u) {
    if (p.rope == nullptr || in_head < ATTN_D - p.d_rope) return u;
    const float4 c =
        *(const float4 *)(p.rope + (size_t)row * p.d_rope + in_head - (ATTN_D - p.d_rope));
    const bool b = p.is_bf16;
    return make_float4(bf16_near_if(b, u.x * c.x - u.y * c.y),
        bf16_near_if(b, u.x * c.y + u.y * c.x), bf16_near_if(b, u.z * c.z - u.w * c.w),
        bf16_near_if(b, u.z * c.w + u.w * c.z));
}

__device__ __forceinline__ void attn_load_queries(
    attn_mma_shared &sh, const attn_mma_params &p, int row, int head0) {
    const float *q = p.a.q + ((size_t)row * p.a.n_heads + head0) * ATTN_D;
    for (int i = threadIdx.x * 4; i < ATTN_GROUP * ATTN_D; i += ATTN_THREADS * 4) {
        const float4 u = attn_rotated(p, row, i % ATTN_D, *(const float4 *)(q + i));
        const float v[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
        for (int c = 0; c < 4; c++) {
            __nv_bfloat16 planes[ATTN_PLANES];
            attn_planes(v[c], planes);
#pragma unroll
            for (int k = 0; k < ATTN_PLANES; k++)
                sh.q[k][i / ATTN_D][i % ATTN_D + c] = planes[k];
        }
    }
}

/* Scores of the 8 rows of this warp: c[i] of the MMA's result. */
__device__ __forceinline__ void attn_scores(const attn_mma_shared &sh, float (&s)[4]) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float c[ATTN_PLANES][4] = {};
    /* A: rows 0-7, 8-15 at two halves of k; B: four blocks of k of the warp's 8 rows. */
    const int a_row = lane & 15, a_k = (lane >> 4) * 8, b_row = warp * 8 + (lane & 7);
    const uint32_t b_at = ptx_shared(&sh.tile[b_row][(lane >> 3) * 8]);
#pragma unroll 2
    for (int k = 0; k < ATTN_D; k += 32) {
        uint32_t b[4];
        ptx_load_matrix_4(b_at + k * 2, b);
#pragma unroll
        for (int p = 0; p < ATTN_PLANES; p++) {
            uint32_t x[4];
            ptx_load_matrix_4(ptx_shared(&sh.q[p][a_row][a_k + k]), x);
            ptx_mma_bf16(c[p], x, b[0], b[1]);
            ptx_load_matrix_4(ptx_shared(&sh.q[p][a_row][a_k + k + 16]), x);
            ptx_mma_bf16(c[p], x, b[2], b[3]);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] = (c[2][i] + c[1][i]) + c[0][i];
}

/* Writes them as [head][row of list], scaled. */
__device__ __forceinline__ void attn_put_scores(
    const float (&s)[4], float scale, float *scores, int cap, int first) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    float *at = scores + first + warp * 8 + 2 * t;
    at[(size_t)g * cap] = s[0] * scale;
    at[(size_t)g * cap + 1] = s[1] * scale;
    at[(size_t)(g + 8) * cap] = s[2] * scale;
    at[(size_t)(g + 8) * cap + 1] = s[3] * scale;
}

/* Scores to weights in place (shared), and their sums; two heads a warp. */
__device__ __forceinline__ void attn_weights(
    attn_mma_shared &sh, const attn_args &a, float *scores, int cap, int n, int head0) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (int h = warp; h < ATTN_GROUP; h += ATTN_WARPS) {
        float *w = scores + (size_t)h * cap, most = -1e30f, sum = 0.f;
        for (int j = lane; j < n; j += 32)
            most = w[j] > most ? w[j] : most;
        most = warp_max(most);
        for (int j = lane; j < n; j += 32) {
            const float e = exp_near(w[j] - most);
            sum += e;
            w[j] = e;
        }
        sum = warp_sum(sum);
        if (lane == 0) sh.den[h] = sum + expf(a.sink[head0 + h] - most);
    }
}

/* Weights of a tile as bf16 planes. */
__device__ __forceinline__ void attn_load_weights(
    attn_mma_shared &sh, const float *weights, int cap, int first, int n, bool is_bf16) {
    for (int i = threadIdx.x; i < ATTN_GROUP * ATTN_TILE; i += ATTN_THREADS) {
        const int h = i / ATTN_TILE, j = first + i % ATTN_TILE;
        const float w = j < n ? bf16_near_if(is_bf16, weights[(size_t)h * cap + j]) : 0.f;
        __nv_bfloat16 p[ATTN_PLANES];
        attn_planes(w, p);
#pragma unroll
        for (int k = 0; k < ATTN_PLANES; k++)
            sh.w[k][h][i % ATTN_TILE] = p[k];
    }
}

/* Sums of a tile over its rows: the warp's 64 values of 16 heads. */
__device__ __forceinline__ void attn_values(const attn_mma_shared &sh, float (&c)[8][4]) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 32; i++)
        (&c[0][0])[i] = 0.f;
    const int a_row = lane & 15, a_k = (lane >> 4) * 8;
    /* B, transposed: blocks (k 0-7, 8-15) x (values 0-7, 8-15). */
    const int b_row = (lane & 7) + ((lane >> 3) & 1) * 8, b_column = warp * 64 + (lane >> 4) * 8;
#pragma unroll
    for (int k = 0; k < ATTN_TILE; k += 16) {
        uint32_t x[ATTN_PLANES][4];
#pragma unroll
        for (int p = 0; p < ATTN_PLANES; p++)
            ptx_load_matrix_4(ptx_shared(&sh.w[p][a_row][a_k + k]), x[p]);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            ptx_load_matrix_4_transposed(ptx_shared(&sh.tile[b_row + k][b_column + n * 16]), b);
#pragma unroll
            for (int p = ATTN_PLANES - 1; p >= 0; p--) {
                ptx_mma_bf16(c[2 * n], x[p], b[0], b[1]);
                ptx_mma_bf16(c[2 * n + 1], x[p], b[2], b[3]);
            }
        }
    }
}

/* Places of the listed rows. */
__device__ __forceinline__ void attn_load_list(
    const attn_args &a, const attn_list &l, uint8_t **rows, int first, int end) {
    for (int j = first + threadIdx.x; j < min(end, l.n_all); j += ATTN_THREADS)
        rows[j] = (uint8_t *)attn_row_of(a, l, j).at;
}

/* Many rows. Grid: rows, groups. */
__global__ void __launch_bounds__(ATTN_THREADS)
    attn_mma_kernel(const __grid_constant__ attn_mma_params p) {
    kernel_begin();
    extern __shared__ __align__(16) unsigned char raw[];
    attn_mma_shared &sh = *(attn_mma_shared *)raw;
    uint8_t **rows = (uint8_t **)(raw + sizeof(attn_mma_shared));
    float *scores = (float *)(rows + p.cap);
    const attn_args &a = p.a;
    const int row = blockIdx.x, head0 = blockIdx.y * ATTN_GROUP;
    const attn_list l = attn_list_of(a, row);
    attn_load_list(a, l, rows, 0, p.cap);
    attn_load_queries(sh, p, row, head0);
    __syncthreads();
    for (int first = 0; first < l.n_all; first += ATTN_TILE) {
        float s[4];
        attn_load_tile(sh, l, rows, first);
        __syncthreads();
        attn_scores(sh, s);
        attn_put_scores(s, a.scale, scores, p.cap, first);
        __syncthreads();
    }
    attn_weights(sh, a, scores, p.cap, l.n_all, head0);
    __syncthreads();
    float total[8][4], c[8][4];
    for (int first = 0; first < l.n_all; first += ATTN_TILE) {
        attn_load_tile(sh, l, rows, first);
        attn_load_weights(sh, scores, p.cap, first, l.n_all, p.is_bf16);
        __syncthreads();
        attn_values(sh, c);
#pragma unroll
        for (int i = 0; i < 32; i++)
            (&total[0][0])[i] = first == 0 ? (&c[0][0])[i] : (&total[0][0])[i] + (&c[0][0])[i];
        __syncthreads();
    }
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int h = g + (i >> 1) * 8, at = warp * 64 + n * 8 + 2 * t + (i & 1);
            a.o[((size_t)row * a.n_heads + head0 + h) * ATTN_D + at] =
                bf16_near_if(p.is_bf16, total[n][i] / sh.den[h]);
        }
}

/* Few rows, first: scores. Grid: tiles, groups, rows. */
__global__ void __launch_bounds__(ATTN_THREADS)
    attn_mma_score_kernel(const __grid_constant__ attn_mma_params p) {
    kernel_begin();
    extern __shared__ __align__(16) unsigned char raw[];
    attn_mma_shared &sh = *(attn_mma_shared *)raw;
    uint8_t **rows = (uint8_t **)(raw + sizeof(attn_mma_shared));
    const attn_args &a = p.a;
    const int first = blockIdx.x * ATTN_TILE, row = blockIdx.z;
    const attn_list l = attn_list_of(a, row);
    if (first >= l.n_all) return;
    attn_load_list(a, l, rows, first, first + ATTN_TILE);
    attn_load_queries(sh, p, row, blockIdx.y * ATTN_GROUP);
    __syncthreads();
    float s[4];
    attn_load_tile(sh, l, rows, first);
    __syncthreads();
    attn_scores(sh, s);
    float *scores = p.scores + ((size_t)row * p.n_groups + blockIdx.y) * ATTN_GROUP * p.cap;
    attn_put_scores(s, a.scale, scores, p.cap, first);
}

/* Second: weights and the sums of a tile; the first tile also keeps the denominators and how many
 * tiles there are. */
__global__ void __launch_bounds__(ATTN_THREADS)
    attn_mma_value_kernel(const __grid_constant__ attn_mma_params p) {
    kernel_begin();
    extern __shared__ __align__(16) unsigned char raw[];
    attn_mma_shared &sh = *(attn_mma_shared *)raw;
    uint8_t **rows = (uint8_t **)(raw + sizeof(attn_mma_shared));
    float *scores = (float *)(rows + p.cap);
    const attn_args &a = p.a;
    const int first = blockIdx.x * ATTN_TILE, row = blockIdx.z;
    const attn_list l = attn_list_of(a, row);
    if (first >= l.n_all) return;
    const size_t unit = (size_t)row * p.n_groups + blockIdx.y;
    const float *from = p.scores + unit * ATTN_GROUP * p.cap;
    attn_load_list(a, l, rows, first, first + ATTN_TILE);
    /* Entries behind the end of the list are copied too and never used. */
#pragma unroll 12
    for (int i = threadIdx.x; i < ATTN_GROUP * p.cap / 4; i += ATTN_THREADS)
        ((float4 *)scores)[i] = ((const float4 *)from)[i];
    __syncthreads();
    attn_load_tile(sh, l, rows, first);
    attn_weights(sh, a, scores, p.cap, l.n_all, blockIdx.y * ATTN_GROUP);
    __syncthreads();
    attn_load_weights(sh, scores, p.cap, first, l.n_all, p.is_bf16);
    __syncthreads();
    float c[8][4];
    attn_values(sh, c);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    float *sums = p.sums + (unit * p.n_tiles + blockIdx.x) * ATTN_GROUP * ATTN_D;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int h = g + (i >> 1) * 8, at = warp * 64 + n * 8 + 2 * t + (i & 1);
            sums[(size_t)h * ATTN_D + at] = c[n][i];
        }
    if (first == 0 && threadIdx.x < ATTN_GROUP)
        p.den[unit * ATTN_GROUP + threadIdx.x] = sh.den[threadIdx.x];
    if (first == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        p.n_used_tiles[row] = (l.n_all + ATTN_TILE - 1) / ATTN_TILE;
}

#endif
