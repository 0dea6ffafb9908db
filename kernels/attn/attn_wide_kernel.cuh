/* Attention of many rows on sm_90: the operations and the order of attn_mma_kernel<64>, hence its bits,
 * for two groups of heads a block and with `wgmma`. A block decodes its rows once for 32 heads.
 *
 *   scores  rows x (plane, head) of 16 heads over half of the values: 64 x 48 a warpgroup, both from
 *           shared memory
 *   values  values x heads, 64 x 32 twice a warpgroup, the tile as A by way of registers
 *
 * The next tile is read while this one is multiplied, half of it decoded between the products of the
 * scores (a warp that has issued one waits for its turn) where it has no window rows, the rest behind
 * the products. 200 KB of shared memory, all 128 registers: anything more kept over a tile spills, and a
 * spill costs more than it hides. One H200, 2026-12-01, a layer of 8,192 rows from position 0, 32
 * heads: 9.0 -> 3.2 ms. A tile takes about 8,000 cycles, with nothing multiplied 5,700 (43 % of the
 * issue slots, a third of them weights); the start and the end of a block are a fifth of the time. */
#ifndef TANDEM_KERNELS_ATTN_ATTN_WIDE_KERNEL_CUH
#define TANDEM_KERNELS_ATTN_ATTN_WIDE_KERNEL_CUH

#include "kernels/attn/attn_mma_kernel.cuh"

constexpr int ATTN_WIDE_TILE = 64, ATTN_WIDE_HEADS = 2 * ATTN_GROUP;
constexpr int ATTN_CHUNKS = ATTN_D / 64; /* of 64 values: 128 bytes, a row of ptx_wgmma_rows */
constexpr int ATTN_WIDE_STEPS = ATTN_WIDE_TILE / ATTN_MMA_WARPS; /* rows of a warp */
constexpr int ATTN_WIDE_QUERIES = ATTN_WIDE_HEADS * ATTN_D / ATTN_THREADS / 4;

/* Rows of 128 bytes are those of ptx_wgmma_rows. */
struct attn_wide_shared {
    unsigned char tile[ATTN_CHUNKS][ATTN_WIDE_TILE][128];
    unsigned char q[ATTN_CHUNKS][2 * ATTN_PLANES * ATTN_GROUP][128]; /* group, plane, head */
    unsigned char w[ATTN_PLANES][ATTN_WIDE_HEADS][128];
    float score[2][ATTN_WIDE_HEADS][ATTN_WIDE_TILE + 4]; /* two halves of the values */
    float before[ATTN_WIDE_HEADS], now[ATTN_WIDE_HEADS], den[ATTN_WIDE_HEADS];
};
constexpr size_t attn_wide_shared_bytes(int cap) {
    return sizeof(attn_wide_shared) + (size_t)cap * sizeof(uint8_t *);
}

/* Row of the tile of which a lane handles 16 values in step i: two rows a warp, exchanged between
 * groups of four lanes so that eight lanes store to different banks. */
__device__ __forceinline__ int attn_wide_row(int i) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    return (i >> 1) * 2 * ATTN_MMA_WARPS + warp * 2 + ((lane >> 2 & 1) ^ (i & 1));
}

/* A tile of a row's list. */
struct attn_wide_tile {
    uint8_t *const *rows; /* the list's places, in shared memory */
    int first, n_window, n_all;
};

/* No row of the window among them: they are decoded the same way, those behind the end as zeros. */
__device__ __forceinline__ bool attn_wide_is_compressed(const attn_wide_tile &t) {
    return t.first >= t.n_window;
}

__device__ __forceinline__ void attn_wide_fetch_compressed(const uint8_t *row, attn_raw &raw) {
    const int lane = threadIdx.x & 31;
    const uint2 c = *(const uint2 *)(row + lane * 8);
    raw.codes.x = c.x, raw.codes.y = c.y;
    raw.scale = row[ATTN_D / 2 + lane];
}

__device__ __forceinline__ void attn_wide_fetch(
    const attn_wide_tile &t, attn_raw (&raw)[ATTN_WIDE_STEPS]) {
    const int lane = threadIdx.x & 31;
    if (attn_wide_is_compressed(t) && t.first + ATTN_WIDE_TILE <= t.n_all) {
#pragma unroll
        for (int i = 0; i < ATTN_WIDE_STEPS; i++)
            attn_wide_fetch_compressed(t.rows[t.first + attn_wide_row(i)], raw[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < ATTN_WIDE_STEPS; i++) {
        const int j = t.first + attn_wide_row(i);
        raw[i].codes = make_uint4(0, 0, 0, 0);
        raw[i].scale = 0;
        if (j < t.n_window) {
            raw[i].codes = *(const uint4 *)(t.rows[j] + lane * 16);
            raw[i].scale = t.rows[j][ATTN_D + lane / 2];
        } else if (j < t.n_all) {
            attn_wide_fetch_compressed(t.rows[j], raw[i]);
        }
    }
}

/* Two steps from i on. */
__device__ __forceinline__ void attn_wide_decode(const attn_wide_tile &t, int i,
    const attn_raw (&raw)[ATTN_WIDE_STEPS], uint32_t (&v)[ATTN_WIDE_STEPS][8]) {
    if (attn_wide_is_compressed(t)) {
        attn_decode_compressed(raw[i], v[i]);
        attn_decode_compressed(raw[i + 1], v[i + 1]);
        return;
    }
#pragma unroll
    for (int k = i; k < i + 2; k++) {
        if (t.first + attn_wide_row(k) < t.n_window) {
            attn_decode_window(raw[k], v[k]);
        } else {
            attn_decode_compressed(raw[k], v[k]);
        }
    }
}

__device__ __forceinline__ void attn_wide_put(
    attn_wide_shared &sh, const uint32_t (&v)[ATTN_WIDE_STEPS][8]) {
    const int lane = threadIdx.x & 31, unit = (lane & 3) * 2;
#pragma unroll
    for (int i = 0; i < ATTN_WIDE_STEPS; i++) {
        const int row = attn_wide_row(i);
        unsigned char *to = sh.tile[lane >> 2][row];
        *(uint4 *)(to + (unit ^ (row & 7)) * 16) = make_uint4(v[i][0], v[i][1], v[i][2], v[i][3]);
        *(uint4 *)(to + ((unit + 1) ^ (row & 7)) * 16) =
            make_uint4(v[i][4], v[i][5], v[i][6], v[i][7]);
    }
}

__device__ __forceinline__ void attn_wide_fetch_queries(
    const attn_mma_params &p, int row, int head0, float4 (&u)[ATTN_WIDE_QUERIES]) {
    const float *q = p.a.q + ((size_t)row * p.a.n_heads + head0) * ATTN_D;
#pragma unroll
    for (int i = 0; i < ATTN_WIDE_QUERIES; i++)
        u[i] = *(const float4 *)(q + (i * ATTN_THREADS + threadIdx.x) * 4);
}

__device__ __forceinline__ void attn_wide_put_queries(
    attn_wide_shared &sh, const attn_mma_params &p, int row, const float4 (&u)[ATTN_WIDE_QUERIES]) {
    const int in_head = threadIdx.x * 4 % ATTN_D; /* of all values of a thread */
    const bool is_rotated = attn_is_rotated(p, in_head);
    float4 rope = make_float4(0.f, 0.f, 0.f, 0.f);
    if (is_rotated) rope = attn_rope_of(p, row, in_head);
#pragma unroll
    for (int i = 0; i < ATTN_WIDE_QUERIES; i++) {
        const int at = (i * ATTN_THREADS + threadIdx.x) * 4, head = at / ATTN_D, c = at % ATTN_D;
        const float4 v = is_rotated ? attn_rotated(p.is_bf16, rope, u[i]) : u[i];
        uint32_t x[ATTN_PLANES], y[ATTN_PLANES];
        attn_planes(v.x, v.y, x);
        attn_planes(v.z, v.w, y);
#pragma unroll
        for (int k = 0; k < ATTN_PLANES; k++) {
            const int n = (head / ATTN_GROUP * ATTN_PLANES + k) * ATTN_GROUP + head % ATTN_GROUP;
            *(uint2 *)&sh.q[c / 64][n][((c / 8 % 8) ^ (n & 7)) * 16 + (c & 4) * 2] =
                make_uint2(x[k], y[k]);
        }
    }
}

/* What a warp keeps of its heads, warp and warp + 16: sums of the first in the lower 16 lanes, of the
 * second in the upper ones. */
struct attn_wide_sums {
    float most[2], den;
};

/* The largest value of a warp, none of them a NaN. */
__device__ __forceinline__ float attn_wide_most(float v) {
    const int i = __float_as_int(v), m = __reduce_max_sync(~0u, i ^ (i >> 31 & 0x7fffffff));
    return __int_as_float(m ^ (m >> 31 & 0x7fffffff));
}

/* warp_sum of a in the lower half of the lanes, of b in the upper one. */
__device__ __forceinline__ float attn_wide_sum(float a, float b) {
    const bool is_low = (threadIdx.x & 16) == 0;
    float v = is_low ? a : b;
    v += __shfl_xor_sync(~0u, is_low ? b : a, 16);
#pragma unroll
    for (int m = 8; m > 0; m >>= 1)
        v += __shfl_xor_sync(~0u, v, m);
    return v;
}

/* exp_near of x that is not above 0, with its bits. */
__device__ __forceinline__ float attn_wide_exp(float x) {
    x = x < -104.0f ? -104.0f : x;
    float t = x * 0x1.715476p+0f + 12582912.0f;
    const int n = (int)__float_as_uint(t) - 0x4B400000, half = n >> 1;
    t = t - 12582912.0f;
    float r = fmaf(-t, 0x1.62p-1f, x); /* this product is exact, the next ones are not */
    r = r - t * 0x1.c85fep-10f;
    float p = r * 0x1.6d113cp-10f + 0x1.120ba2p-7f;
    p = p * r + 0x1.55551ap-5f;
    p = p * r + 0x1.5554dcp-3f;
    p = p * r + 0.5f;
    const float y = (p * (r * r) + r) + 1.0f;
    return y * __uint_as_float((uint32_t)(half + 127) << 23) *
           __uint_as_float((uint32_t)(n - half + 127) << 23);
}

/* Sums and steps of the warp's heads with a tile: attn_step_of and attn_add, an exponential a lane. */
__device__ __forceinline__ void attn_wide_step(
    attn_wide_shared &sh, bool is_first, const float (&most)[2], float sum, attn_wide_sums &s) {
    const int lane = threadIdx.x & 31, h = (threadIdx.x >> 5) + (lane & 16);
    const bool is_low = lane < 16, is_now = lane & 1;
    const float m0 = is_first || most[0] > s.most[0] ? most[0] : s.most[0],
                m1 = is_first || most[1] > s.most[1] ? most[1] : s.most[1];
    const float from0 = is_now ? most[0] : s.most[0], from1 = is_now ? most[1] : s.most[1];
    float e = attn_wide_exp(is_low ? from0 - m0 : from1 - m1);
    if (is_first) e = is_now ? 1.f : 0.f;
    const float other = __shfl_xor_sync(~0u, e, 1);
    const attn_step t = {0.f, is_now ? other : e, is_now ? e : other};
    s.den = attn_add(is_first, t, s.den, sum);
    s.most[0] = m0, s.most[1] = m1;
    if ((lane & 15) == 0) sh.before[h] = t.before, sh.now[h] = t.now;
}

/* attn_weights of two heads a warp; n rows are left. */
__device__ __forceinline__ void attn_wide_weights(
    attn_wide_shared &sh, const attn_mma_params &p, bool is_first, int n, attn_wide_sums &s) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float v[2][2], sum[2], most[2] = {-1e30f, -1e30f};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int g = i >> 1, h = warp + g * 16, j = lane + (i & 1) * 32;
        const float x = (sh.score[0][h][j] + sh.score[1][h][j]) * p.a.scale;
        v[g][i & 1] = x;
        if (j < n) most[g] = x > most[g] ? x : most[g];
    }
    most[0] = attn_wide_most(most[0]), most[1] = attn_wide_most(most[1]);
#pragma unroll
    for (int g = 0; g < 2; g++) {
        float a = lane < n ? attn_wide_exp(v[g][0] - most[g]) : 0.f,
              b = lane + 32 < n ? attn_wide_exp(v[g][1] - most[g]) : 0.f;
        uint32_t x[ATTN_PLANES];
        sum[g] = a + b;
        if (p.is_bf16) a = bf16_near(a), b = bf16_near(b);
        attn_planes(a, b, x);
        const int h = warp + g * 16, at = ((lane >> 3) ^ (h & 7)) * 16 + (lane & 7) * 2;
#pragma unroll
        for (int k = 0; k < ATTN_PLANES; k++) {
            *(uint16_t *)&sh.w[k][h][at] = (uint16_t)x[k];
            *(uint16_t *)&sh.w[k][h][at ^ 64] = (uint16_t)(x[k] >> 16);
        }
    }
    attn_wide_step(sh, is_first, most, attn_wide_sum(sum[0], sum[1]), s);
}

#ifdef PTX_HAS_WGMMA
/* Scores of a tile: warpgroup / 2 is the half of the values, warpgroup % 2 the group of heads. beside(k)
 * is done behind product k of 16. */
template <class BESIDE>
__device__ __forceinline__ void attn_wide_scores(attn_wide_shared &sh, BESIDE beside) {
    const int part = threadIdx.x >> 8, group = threadIdx.x >> 7 & 1, lane = threadIdx.x & 31;
    const uint32_t a = ptx_wgmma_rows(ptx_shared(sh.tile[part * ATTN_CHUNKS / 2])),
                   b = ptx_wgmma_rows(
                       ptx_shared(sh.q[part * ATTN_CHUNKS / 2][group * ATTN_PLANES * ATTN_GROUP]));
    float c[24] = {};
    ptx_wgmma_fence();
#pragma unroll
    for (int k = 0; k < ATTN_D / 2; k += 16) {
        ptx_wgmma_bf16(c, a + (k / 64 * (int)sizeof(sh.tile[0]) + k % 64 * 2) / 16,
            b + (k / 64 * (int)sizeof(sh.q[0]) + k % 64 * 2) / 16);
        beside(k / 16);
    }
    ptx_wgmma_commit();
    ptx_wgmma_wait<0>();
    ptx_wgmma_settle(c);
    const int row = (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
#pragma unroll
    for (int i = 0; i < 8; i++)
        sh.score[part][group * 16 + (i >> 2) * 8 + 2 * (lane & 3) + (i & 1)]
                [row + (i >> 1 & 1) * 8] = (c[16 + i] + c[8 + i]) + c[i];
}

/* Adds a tile to the sums of chunk n of the warpgroup: 64 values of 32 heads. */
__device__ __forceinline__ void attn_wide_values(
    const attn_wide_shared &sh, int n, float (&total)[16]) {
    const int lane = threadIdx.x & 31, row = (lane & 7) + (lane >> 4) * 8;
    const int unit = (threadIdx.x >> 5 & 3) * 2 + (lane >> 3 & 1);
    const uint32_t w = ptx_wgmma_rows(ptx_shared(sh.w)),
                   tile = ptx_shared(
                       &sh.tile[(threadIdx.x >> 7) * 2 + n][row][(unit ^ (row & 7)) * 16]);
    uint32_t x[ATTN_WIDE_TILE / 16][4]; /* A: the tile transposed */
#pragma unroll
    for (int k = 0; k < ATTN_WIDE_TILE / 16; k++)
        ptx_load_matrix_4_transposed(tile + k * 16 * 128, x[k]);
    float c[16] = {};
    ptx_wgmma_fence();
#pragma unroll
    for (int k = 0; k < ATTN_WIDE_TILE / 16; k++)
#pragma unroll
        for (int i = ATTN_PLANES - 1; i >= 0; i--)
            ptx_wgmma_bf16(c, x[k], w + (i * (int)sizeof(sh.w[0]) + k * 32) / 16);
    ptx_wgmma_commit();
    ptx_wgmma_wait<0>();
    ptx_wgmma_settle(c);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int h = (i >> 2) * 8 + 2 * (lane & 3) + (i & 1);
        total[i] = attn_add(false, {0.f, sh.before[h], sh.now[h]}, total[i], c[i]);
    }
}

/* Scores of a tile, and half of the next one decoded beside the products. */
__device__ __forceinline__ void attn_wide_scores_decode(attn_wide_shared &sh,
    const attn_wide_tile &next, const attn_raw (&raw)[ATTN_WIDE_STEPS],
    uint32_t (&v)[ATTN_WIDE_STEPS][8]) {
    if (!attn_wide_is_compressed(next)) {
        attn_wide_scores(sh, [](int) {});
        attn_wide_decode(next, 0, raw, v);
        return;
    }
    uint32_t scale = 0; /* made late: the rows may still be on their way */
    attn_wide_scores(sh, [&](int k) {
        if (k % 2 == 0) return;
        const int i = k / 8, at = k / 2 % 4; /* four values of step i */
        if (at == 0) scale = attn_compressed_scale(raw[i].scale);
        attn_decode_four<true>(at < 2 ? raw[i].codes.x : raw[i].codes.y, at % 2, scale,
            v[i][2 * at], v[i][2 * at + 1]);
    });
}
#endif

/* The outputs of a block from its sums and denominators. */
__device__ __forceinline__ void attn_wide_store(const attn_wide_shared &sh,
    const attn_mma_params &p, int row, int head0, const float (&total)[2][16]) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float *o = p.a.o + ((size_t)row * p.a.n_heads + head0) * ATTN_D;
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const int h = (i >> 2 & 3) * 8 + 2 * (lane & 3) + (i & 1);
        const int value =
            ((warp >> 2) * 2 + i / 16) * 64 + (warp & 3) * 16 + (lane >> 2) + (i >> 1 & 1) * 8;
        o[(size_t)h * ATTN_D + value] = bf16_near_if(p.is_bf16, total[i / 16][i % 16] / sh.den[h]);
    }
}

/* Asks for what the block behind those now at work begins with. */
__device__ __forceinline__ void attn_wide_prefetch(const attn_mma_params &p, int row, int head0) {
    const attn_args &a = p.a;
    const int i = threadIdx.x;
    if (row >= a.batch.n) return;
    ptx_prefetch_l2(a.q + ((size_t)row * a.n_heads + head0) * ATTN_D + i * 32);
    if (a.selection != nullptr && i * 32 < a.max_selected)
        ptx_prefetch_l2(a.selection + (size_t)row * a.max_selected + i * 32);
}

/* Queries, list and first tile of a block; the next tile is on its way. */
__device__ __forceinline__ attn_wide_tile attn_wide_begin(attn_wide_shared &sh,
    const attn_mma_params &p, uint8_t **rows, attn_raw (&raw)[ATTN_WIDE_STEPS]) {
    const int row = blockIdx.x, head0 = blockIdx.y * ATTN_WIDE_HEADS;
    float4 u[ATTN_WIDE_QUERIES];
    attn_wide_fetch_queries(p, row, head0, u);
    const attn_list l = attn_list_of(p.a, row);
    attn_load_list(p.a, l, rows, 0, p.cap);
    __syncthreads();
    attn_wide_tile t = {rows, 0, l.n_window, l.n_all};
    attn_wide_fetch(t, raw);
    attn_wide_prefetch(p, row + p.n_blocks, head0);
    attn_wide_put_queries(sh, p, row, u);
    uint32_t v[ATTN_WIDE_STEPS][8];
    attn_wide_decode(t, 0, raw, v);
    attn_wide_decode(t, 2, raw, v);
    attn_wide_put(sh, v);
    t.first += ATTN_WIDE_TILE;
    attn_wide_fetch(t, raw);
    return t;
}

/* Grid: rows, pairs of groups. */
__global__ void __launch_bounds__(ATTN_THREADS, 1)
    attn_wide_kernel(const __grid_constant__ attn_mma_params p) {
#ifdef PTX_HAS_WGMMA /* else never launched */
    extern __shared__ __align__(1024) unsigned char attn_wide_bytes[];
    attn_wide_shared &sh = *(attn_wide_shared *)attn_wide_bytes;
    attn_raw raw[ATTN_WIDE_STEPS];
    kernel_begin();
    attn_wide_tile next =
        attn_wide_begin(sh, p, (uint8_t **)(attn_wide_bytes + sizeof(attn_wide_shared)), raw);
    float total[2][16];
#pragma unroll
    for (int i = 0; i < 32; i++)
        total[i / 16][i % 16] = -0.f; /* 0 times it and a tile: the tile */
    attn_wide_sums sums = {{0.f, 0.f}, 0.f};
#pragma unroll 1
    for (int first = 0; first < next.n_all; first += ATTN_WIDE_TILE) {
        uint32_t v[ATTN_WIDE_STEPS][8];
        next.first = first + ATTN_WIDE_TILE;
        ptx_wgmma_fence_shared();
        __syncthreads();
        attn_wide_scores_decode(sh, next, raw, v);
        __syncthreads();
        attn_wide_weights(sh, p, first == 0, next.n_all - first, sums);
        ptx_wgmma_fence_shared();
        __syncthreads();
        attn_wide_values(sh, 0, total[0]);
        attn_wide_values(sh, 1, total[1]);
        attn_wide_decode(next, 2, raw, v);
        attn_wide_fetch({next.rows, first + 2 * ATTN_WIDE_TILE, next.n_window, next.n_all}, raw);
        __syncthreads();
        attn_wide_put(sh, v);
    }
    const int lane = threadIdx.x & 31, h = (threadIdx.x >> 5) + (lane & 16);
    const float most = lane == 0 ? sums.most[0] : sums.most[1];
    const int head0 = blockIdx.y * ATTN_WIDE_HEADS;
    if ((lane & 15) == 0) sh.den[h] = sums.den + expf(p.a.sink[head0 + h] - most);
    __syncthreads();
    attn_wide_store(sh, p, blockIdx.x, head0, total);
#endif
}

#endif
