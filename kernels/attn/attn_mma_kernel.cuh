/* Attention of the real size (512 values a head, packed rows, heads in groups of 16) on tensor
 * cores, with the accuracy of fp32: packed values are exact in bf16, queries and weights are taken
 * as sums of three bf16 values.
 *
 *   list     places of the rows a query attends, in shared memory
 *   tile     64 rows (32 where shared memory is short) are decoded to bf16; a warp multiplies 16 or
 *            32 of them with the 16 queries over a part of the 512 values
 *   weights  exp(score - max of the tile) and their sum
 *   values   the same tile; a warp owns 32 of the 512 values
 *   sum      tiles in order: with M the largest score so far, a = exp(M before - M), b = exp(max - M):
 *            v = a v + b tile, den = a den + b sum; at the end den + exp(sink - M)
 *
 * Many rows: one block does all tiles of a row and group. Few: a block a tile, and the launch behind
 * adds them (prepare_kernel.cuh): the same operations in the same order, so a row has the same bits
 * either way. Queries may be rotated as they are read. 138 KB of shared memory (100 KB with tiles of
 * 32). One H200, 2026-12-01: a tile of one row 11.2 -> 8.2 us, a layer of 8,192 rows 9.0 -> 6.2 ms with
 * conversions in pairs, decode by tables and queries read for more rows (attn_wide_kernel.cuh: 3.2). */
#ifndef TANDEM_KERNELS_ATTN_ATTN_MMA_KERNEL_CUH
#define TANDEM_KERNELS_ATTN_ATTN_MMA_KERNEL_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/attn/attn_kernel.cuh"
#include "kernels/attn/attn_sum.cuh"
#include "kernels/ptx.cuh"

constexpr int ATTN_D = ATTN_SUM_D, ATTN_GROUP = ATTN_SUM_GROUP, ATTN_PLANES = 3;
constexpr int ATTN_PITCH = ATTN_D + 8; /* bf16 values between rows of a tile or queries */
constexpr int ATTN_MMA_WARPS = 16, ATTN_THREADS = ATTN_MMA_WARPS * 32;
constexpr int ATTN_COLUMNS = ATTN_D / ATTN_MMA_WARPS; /* values of a warp */

struct attn_mma_params {
    attn_args a;
    attn_parts parts; /* few rows */
    int cap;          /* rows a list may have, a multiple of the tile */
    int n_groups;
    const float *rope; /* table for the queries, or NULL */
    int d_rope;
    bool is_bf16;
    int n_blocks; /* of attn_wide_kernel that run at a time */
};

template <int TILE> struct attn_mma_shared {
    static constexpr int K_PARTS = ATTN_MMA_WARPS * 8 / TILE; /* parts of the 512 values */
    __nv_bfloat16 tile[TILE][ATTN_PITCH];
    __nv_bfloat16 q[ATTN_PLANES][ATTN_GROUP][ATTN_PITCH];
    __nv_bfloat16 w[ATTN_PLANES][ATTN_GROUP][TILE + 8];
    float score[K_PARTS][ATTN_GROUP][TILE + 1];
    float most[ATTN_GROUP], den[ATTN_GROUP]; /* of this tile; many rows: of all so far */
    float before[ATTN_GROUP], now[ATTN_GROUP];
};
template <int TILE> constexpr size_t attn_mma_shared_bytes(int cap) {
    return sizeof(attn_mma_shared<TILE>) + (size_t)cap * sizeof(uint8_t *);
}

__device__ __forceinline__ uint32_t attn_pair(float a, float b) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
    return *(const uint32_t *)&v;
}

/* a (low half) and b as three bf16 values each whose sums are a and b, nearly: 24 bits. Converted in pairs,
 * since single values take a unit of a quarter of the rate. */
__device__ __forceinline__ void attn_planes(float a, float b, uint32_t (&out)[ATTN_PLANES]) {
#pragma unroll
    for (int p = 0; p < ATTN_PLANES; p++) {
        out[p] = attn_pair(a, b);
        a -= __uint_as_float(out[p] << 16);
        b -= __uint_as_float(out[p] & 0xffff0000u);
    }
}

/* What a lane reads of a packed row: codes of its 16 values and their scale. */
struct attn_raw {
    uint4 codes;
    uint32_t scale;
};

/* 16 values of a lane: E4M3 at its 16 bytes. */
__device__ __forceinline__ void attn_decode_window(const attn_raw &r, uint32_t (&v)[8]) {
    const float s = ue8m0_value(r.scale);
    const uint32_t w[4] = {r.codes.x, r.codes.y, r.codes.z, r.codes.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t h = ptx_e4m3_pair(i & 1 ? w[i / 2] >> 16 : w[i / 2]);
        const float2 f = __half22float2(*(const __half2 *)&h);
        v[i] = attn_pair(f.x * s, f.y * s);
    }
}

/* The scale of compressed values, twice. */
__device__ __forceinline__ uint32_t attn_compressed_scale(uint32_t code) {
    const uint32_t h = ptx_e4m3_pair(code);
    const float s = __low2float(*(const __half2 *)&h);
    return attn_pair(s, s);
}

/* Values 4 i .. 4 i + 3 of the E2M1 codes c. The lower three bits of four codes pick the upper and the
 * lower bytes of their bf16 values from tables of eight; their products with the scale have at most
 * six bits, so they are exact. */
template <bool IS_HERE>
__device__ __forceinline__ void attn_decode_four(
    uint32_t c, int i, uint32_t scale, uint32_t &v0, uint32_t &v1) {
    constexpr auto permute = IS_HERE ? ptx_permute_here : ptx_permute;
    constexpr auto multiply = IS_HERE ? ptx_multiply_bf16_here : ptx_multiply_bf16;
    const uint32_t code = (c & 0x77777777u) >> i * 16;
    const uint32_t signs = permute(c << 4, c, i == 0 ? 0xd9c8u : 0xfbeau);
    const uint32_t upper = permute(0x3f3f3f00u, 0x40404040u, code) | (signs & 0x80808080u),
                   lower = permute(0xc0800000u, 0xc0804000u, code);
    v0 = multiply(permute(lower, upper, 0x5140u), scale);
    v1 = multiply(permute(lower, upper, 0x7362u), scale);
}

/* 16 values of a lane: E2M1 pairs at its 8 bytes, one scale. */
__device__ __forceinline__ void attn_decode_compressed(const attn_raw &r, uint32_t (&v)[8]) {
    const uint32_t scale = attn_compressed_scale(r.scale);
#pragma unroll
    for (int i = 0; i < 4; i++)
        attn_decode_four<false>(
            i < 2 ? r.codes.x : r.codes.y, i % 2, scale, v[2 * i], v[2 * i + 1]);
}

/* Reads a warp's rows of the tile that begins at first. */
template <int TILE>
__device__ __forceinline__ void attn_fetch_tile(
    const attn_list &l, uint8_t *const *rows, int first, attn_raw (&raw)[TILE / ATTN_MMA_WARPS]) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < TILE / ATTN_MMA_WARPS; i++) {
        const int j = first + i * ATTN_MMA_WARPS + warp;
        raw[i].codes = make_uint4(0, 0, 0, 0);
        raw[i].scale = 0;
        if (j < l.n_window) {
            raw[i].codes = *(const uint4 *)(rows[j] + lane * 16);
            raw[i].scale = rows[j][ATTN_D + lane / 2];
        } else if (j < l.n_all) {
            const uint2 c = *(const uint2 *)(rows[j] + lane * 8);
            raw[i].codes.x = c.x, raw[i].codes.y = c.y;
            raw[i].scale = rows[j][ATTN_D / 2 + lane];
        }
    }
}

/* Rows [first, first + TILE) of the list to the tile; rows behind the end become zero. */
template <int TILE>
__device__ __forceinline__ void attn_put_tile(attn_mma_shared<TILE> &sh, const attn_list &l,
    int first, const attn_raw (&raw)[TILE / ATTN_MMA_WARPS]) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < TILE / ATTN_MMA_WARPS; i++) {
        const int k = i * ATTN_MMA_WARPS + warp, j = first + k;
        uint32_t v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (j < l.n_window) {
            attn_decode_window(raw[i], v);
        } else if (j < l.n_all) {
            attn_decode_compressed(raw[i], v);
        }
        uint4 *to = (uint4 *)&sh.tile[k][lane * 16];
        to[0] = make_uint4(v[0], v[1], v[2], v[3]);
        to[1] = make_uint4(v[4], v[5], v[6], v[7]);
    }
}

/* Whether the values of a query from in_head on are rotated, and four of them, by the operations of
 * rope_kernel with the table's entries c. */
__device__ __forceinline__ bool attn_is_rotated(const attn_mma_params &p, int in_head) {
    return p.rope != nullptr && in_head >= ATTN_D - p.d_rope;
}
__device__ __forceinline__ float4 attn_rope_of(const attn_mma_params &p, int row, int in_head) {
    return *(const float4 *)(p.rope + (size_t)row * p.d_rope + in_head - (ATTN_D - p.d_rope));
}
__device__ __forceinline__ float4 attn_rotated(bool is_bf16, float4 c, float4 u) {
    const bool b = is_bf16;
    return make_float4(bf16_near_if(b, u.x * c.x - u.y * c.y),
        bf16_near_if(b, u.x * c.y + u.y * c.x), bf16_near_if(b, u.z * c.z - u.w * c.w),
        bf16_near_if(b, u.z * c.w + u.w * c.z));
}

template <int TILE>
__device__ __forceinline__ void attn_load_queries(
    attn_mma_shared<TILE> &sh, const attn_mma_params &p, int row, int head0) {
    const float *q = p.a.q + ((size_t)row * p.a.n_heads + head0) * ATTN_D;
    for (int i = threadIdx.x * 4; i < ATTN_GROUP * ATTN_D; i += ATTN_THREADS * 4) {
        float4 u = *(const float4 *)(q + i);
        if (attn_is_rotated(p, i % ATTN_D))
            u = attn_rotated(p.is_bf16, attn_rope_of(p, row, i % ATTN_D), u);
        uint32_t x[ATTN_PLANES], y[ATTN_PLANES];
        attn_planes(u.x, u.y, x);
        attn_planes(u.z, u.w, y);
#pragma unroll
        for (int k = 0; k < ATTN_PLANES; k++)
            *(uint2 *)&sh.q[k][i / ATTN_D][i % ATTN_D] = make_uint2(x[k], y[k]);
    }
}

/* Scores over a part of the values. A warp takes 8 ROWS rows, so that the queries are read from shared
 * memory for that many; the other warps wait. */
template <int TILE, int ROWS>
__device__ __forceinline__ void attn_scores(attn_mma_shared<TILE> &sh) {
    constexpr int GROUPS = TILE / (8 * ROWS), N_K = ATTN_D / attn_mma_shared<TILE>::K_PARTS;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (warp >= ATTN_MMA_WARPS / ROWS) return;
    const int rows = warp % GROUPS * 8 * ROWS, part = warp / GROUPS, k0 = part * N_K;
    float c[ROWS][ATTN_PLANES][4] = {};
    /* A: rows 0-7, 8-15 at two halves of k; B: four blocks of k of 8 rows. */
    const int a_row = lane & 15, a_k = (lane >> 4) * 8 + k0;
    const uint32_t b_at = ptx_shared(&sh.tile[rows + (lane & 7)][(lane >> 3) * 8 + k0]);
#pragma unroll 2
    for (int k = 0; k < N_K; k += 32) {
        uint32_t b[ROWS][4];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            ptx_load_matrix_4(b_at + (k + r * 8 * ATTN_PITCH) * 2, b[r]);
#pragma unroll
        for (int i = 0; i < 2 * ATTN_PLANES; i++) {
            const int half = i / ATTN_PLANES, p = i % ATTN_PLANES;
            uint32_t x[4];
            ptx_load_matrix_4(ptx_shared(&sh.q[p][a_row][a_k + k + half * 16]), x);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                ptx_mma_bf16(c[r][p], x, b[r][2 * half], b[r][2 * half + 1]);
        }
    }
    const int g = lane >> 2, t = rows + 2 * (lane & 3);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sh.score[part][g + (i >> 1) * 8][t + r * 8 + (i & 1)] =
                (c[r][2][i] + c[r][1][i]) + c[r][0][i];
}

/* Weights of the tile's rows as bf16 planes, and its largest score and sum; one head a warp. */
template <int TILE>
__device__ __forceinline__ void attn_weights(
    attn_mma_shared<TILE> &sh, const attn_mma_params &p, int n, float &most, float &sum) {
    const int h = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float v[TILE / 32];
    most = -1e30f;
#pragma unroll
    for (int i = 0; i < TILE / 32; i++) {
        const int j = lane + i * 32;
        float s = sh.score[0][h][j];
#pragma unroll
        for (int q = 1; q < attn_mma_shared<TILE>::K_PARTS; q++)
            s += sh.score[q][h][j];
        v[i] = s * p.a.scale;
        if (j < n) most = v[i] > most ? v[i] : most;
    }
    most = warp_max(most);
    float e[2] = {0.f, 0.f};
    sum = 0.f;
#pragma unroll
    for (int i = 0; i < TILE / 32; i++) {
        e[i] = lane + i * 32 < n ? exp_near(v[i] - most) : 0.f;
        sum += e[i];
    }
    uint32_t planes[ATTN_PLANES];
    attn_planes(bf16_near_if(p.is_bf16, e[0]), bf16_near_if(p.is_bf16, e[1]), planes);
#pragma unroll
    for (int k = 0; k < ATTN_PLANES; k++) {
        *(uint16_t *)&sh.w[k][h][lane] = (uint16_t)planes[k];
        if (TILE > 32) *(uint16_t *)&sh.w[k][h][lane + 32] = (uint16_t)(planes[k] >> 16);
    }
    sum = warp_sum(sum);
}

/* Sums of a tile over its rows: the warp's 32 values of 16 heads. */
template <int TILE>
__device__ __forceinline__ void attn_values(const attn_mma_shared<TILE> &sh, float (&c)[4][4]) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 16; i++)
        (&c[0][0])[i] = 0.f;
    const int a_row = lane & 15, a_k = (lane >> 4) * 8;
    /* B, transposed: blocks (k 0-7, 8-15) x (values 0-7, 8-15). */
    const int b_row = (lane & 7) + ((lane >> 3) & 1) * 8;
    const int b_column = warp * ATTN_COLUMNS + (lane >> 4) * 8;
#pragma unroll
    for (int k = 0; k < TILE; k += 16) {
        uint32_t x[ATTN_PLANES][4];
#pragma unroll
        for (int p = 0; p < ATTN_PLANES; p++)
            ptx_load_matrix_4(ptx_shared(&sh.w[p][a_row][a_k + k]), x[p]);
#pragma unroll
        for (int n = 0; n < 2; n++) {
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

/* Head and value of entry i of block n of a warp's sums. */
__device__ __forceinline__ int attn_head_of(int i) {
    return ((threadIdx.x & 31) >> 2) + (i >> 1) * 8;
}
__device__ __forceinline__ int attn_value_of(int n, int i) {
    return (threadIdx.x >> 5) * ATTN_COLUMNS + n * 8 + 2 * (threadIdx.x & 3) + (i & 1);
}

/* Places of the listed rows. */
__device__ __forceinline__ void attn_load_list(
    const attn_args &a, const attn_list &l, uint8_t **rows, int first, int end) {
    for (int j = first + threadIdx.x; j < min(end, l.n_all); j += ATTN_THREADS)
        rows[j] = (uint8_t *)attn_row_of(a, l, j).at;
}

/* Many rows. Grid: rows, groups. */
template <int TILE>
__global__ void __launch_bounds__(ATTN_THREADS, 1)
    attn_mma_kernel(const __grid_constant__ attn_mma_params p) {
    kernel_begin();
    extern __shared__ __align__(16) unsigned char raw[];
    attn_mma_shared<TILE> &sh = *(attn_mma_shared<TILE> *)raw;
    uint8_t **rows = (uint8_t **)(raw + sizeof(attn_mma_shared<TILE>));
    const attn_args &a = p.a;
    const int row = blockIdx.x, head0 = blockIdx.y * ATTN_GROUP, head = threadIdx.x >> 5;
    const attn_list l = attn_list_of(a, row);
    attn_load_list(a, l, rows, 0, p.cap);
    attn_load_queries(sh, p, row, head0);
    __syncthreads();
    float total[4][4], c[4][4], most = 0.f, den = 0.f;
    attn_raw ahead[TILE / ATTN_MMA_WARPS]; /* the next tile comes while this one is multiplied */
    attn_fetch_tile<TILE>(l, rows, 0, ahead);
    for (int first = 0; first < l.n_all; first += TILE) {
        float tile_most, tile_sum;
        attn_put_tile(sh, l, first, ahead);
        attn_fetch_tile<TILE>(l, rows, first + TILE, ahead);
        __syncthreads();
        attn_scores<TILE, 2>(sh);
        __syncthreads();
        attn_weights(sh, p, l.n_all - first, tile_most, tile_sum);
        const attn_step s = attn_step_of(first == 0, most, tile_most);
        most = s.most;
        den = attn_add(first == 0, s, den, tile_sum);
        if ((threadIdx.x & 31) == 0) sh.before[head] = s.before, sh.now[head] = s.now;
        __syncthreads();
        attn_values(sh, c);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int h = attn_head_of(i & 3);
            const attn_step t = {0.f, sh.before[h], sh.now[h]};
            (&total[0][0])[i] = attn_add(first == 0, t, (&total[0][0])[i], (&c[0][0])[i]);
        }
        __syncthreads();
    }
    if ((threadIdx.x & 31) == 0) sh.den[head] = den + expf(a.sink[head0 + head] - most);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int h = attn_head_of(i);
            a.o[((size_t)row * a.n_heads + head0 + h) * ATTN_D + attn_value_of(n, i)] =
                bf16_near_if(p.is_bf16, total[n][i] / sh.den[h]);
        }
}

/* Few rows: a tile a block. Grid: tiles, groups, rows. */
template <int TILE>
__global__ void __launch_bounds__(ATTN_THREADS, 1)
    attn_mma_tile_kernel(const __grid_constant__ attn_mma_params p) {
    kernel_begin();
    extern __shared__ __align__(16) unsigned char raw[];
    attn_mma_shared<TILE> &sh = *(attn_mma_shared<TILE> *)raw;
    uint8_t **rows = (uint8_t **)(raw + sizeof(attn_mma_shared<TILE>));
    const int first = blockIdx.x * TILE, row = blockIdx.z;
    const attn_list l = attn_list_of(p.a, row);
    if (first >= l.n_all) return;
    attn_load_list(p.a, l, rows, first, first + TILE);
    attn_load_queries(sh, p, row, blockIdx.y * ATTN_GROUP);
    __syncthreads();
    float c[4][4], most, sum;
    attn_raw ahead[TILE / ATTN_MMA_WARPS];
    attn_fetch_tile<TILE>(l, rows, first, ahead);
    attn_put_tile(sh, l, first, ahead);
    __syncthreads();
    attn_scores<TILE, 4>(sh);
    __syncthreads();
    attn_weights(sh, p, l.n_all - first, most, sum);
    __syncthreads();
    attn_values(sh, c);
    const attn_parts &o = p.parts;
    const size_t unit = (size_t)row * p.n_groups + blockIdx.y,
                 part = unit * o.max_tiles + blockIdx.x;
    float *sums = (float *)o.sums + part * ATTN_GROUP * ATTN_D;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i += 2)
            *(float2 *)(sums + (size_t)attn_head_of(i) * ATTN_D + attn_value_of(n, i)) =
                make_float2(c[n][i], c[n][i + 1]);
    if ((threadIdx.x & 31) == 0)
        ((float2 *)o.ends)[part * ATTN_GROUP + (threadIdx.x >> 5)] = make_float2(most, sum);
    if (first == 0 && blockIdx.y == 0 && threadIdx.x == 0)
        ((int32_t *)o.n_tiles)[row] = (l.n_all + TILE - 1) / TILE;
}

#endif
