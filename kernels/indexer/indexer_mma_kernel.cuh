/* Index scores of the real size (32 heads of 128 values, packed queries and keys) on tensor cores, exact
 * but for the last sums: twice an E2M1 value is an integer of -12 .. 12, so the product of a block of 32
 * values is an integer below 4609, which m16n8k32 adds up exactly; a block's scales are powers of two.
 *
 *   dot      sum over the four blocks, in order: fp32(integer) * (scale of key * scale of query / 4)
 *   score    a lane adds w * max(0, dot) of its eight heads in order, then four lanes by halving
 *   A        16 keys: a lane's eight codes of a block (4 bytes) are its two registers; the order of the 32
 *            values is free, since the queries have the same
 *   B        8 heads, from shared memory
 *
 * The order depends on nothing but the head, so a row's scores are the same in any batch. A block: 128 keys
 * at a time and one row, or 128 keys and up to ROWS rows, which share the decoded keys while they are of
 * one slot. About 16 instructions a key
 * and row for each of 32 lanes, 128 without tensor cores. */
#ifndef TANDEM_KERNELS_INDEXER_INDEXER_MMA_KERNEL_CUH
#define TANDEM_KERNELS_INDEXER_INDEXER_MMA_KERNEL_CUH

#include "kernels/indexer/indexer_kernel.cuh"

constexpr int INDEXER_MMA_HEADS = 32, INDEXER_MMA_D = 128, INDEXER_MMA_BLOCKS = 4;
constexpr int INDEXER_MMA_PITCH =
    36; /* words between heads: 8 heads by 4 lanes hit all banks once */
constexpr int INDEXER_MMA_TILES = 2; /* of 16 keys a warp */

struct indexer_mma_query {
    uint32_t words[INDEXER_MMA_HEADS * INDEXER_MMA_PITCH]; /* [head][block][half][lane of four] */
    float scale[INDEXER_MMA_HEADS][INDEXER_MMA_BLOCKS];    /* a quarter of it */
    float weight[INDEXER_MMA_HEADS];
};

/* Twice the values of the four codes in the low half of c, as signed bytes. */
__device__ __forceinline__ uint32_t indexer_integers(uint32_t c) {
    const uint32_t size = c & 0x7777u;
    const uint32_t plus = __byte_perm(0x03020100u, 0x0c080604u, size);
    const uint32_t minus = __byte_perm(0xfdfeff00u, 0xf4f8fafcu, size);
    const uint32_t is_minus = ptx_spread_signs(c);
    return (plus & ~is_minus) | (minus & is_minus);
}

/* c[16 x 8] = bias + a . b; the bias makes the bits those of a float. */
__device__ __forceinline__ void indexer_product(
    int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        d[i] = 0x4b400000;
    ptx_mma_s8s8(d, a[0], a[1], a[2], a[3], b0, b1);
}
__device__ __forceinline__ float indexer_value(int biased) {
    return __int_as_float(biased) - 12582912.0f;
}

__device__ __forceinline__ void indexer_load_query(
    const indexer_args &a, int row, indexer_mma_query &q) {
    const uint8_t *rows = a.packed + (size_t)row * INDEXER_MMA_HEADS * a.packed_bytes;
    for (int i = threadIdx.x; i < INDEXER_MMA_HEADS * 16; i += INDEXER_KEYS) {
        const int head = i >> 4, block = (i >> 2) & 3, t = i & 3;
        const uint32_t c = load_bytes(rows + (size_t)head * a.packed_bytes + (i & 15) * 4, 4);
        uint32_t *to = q.words + head * INDEXER_MMA_PITCH + block * 8 + t;
        to[0] = indexer_integers(c);
        to[4] = indexer_integers(c >> 16);
    }
    for (int i = threadIdx.x; i < INDEXER_MMA_HEADS * INDEXER_MMA_BLOCKS; i += INDEXER_KEYS)
        q.scale[i >> 2][i & 3] =
            0.25f *
            ue8m0_value(rows[(size_t)(i >> 2) * a.packed_bytes + INDEXER_MMA_D / 2 + (i & 3)]);
    for (int h = threadIdx.x; h < INDEXER_MMA_HEADS; h += INDEXER_KEYS)
        q.weight[h] = a.w[(size_t)row * a.n_heads + h] * a.w_scale;
}

/* Sixteen keys of a warp; a lane has parts of keys g and g + 8. */
struct indexer_mma_keys {
    uint32_t a[INDEXER_MMA_BLOCKS][4];
    float scale[2][INDEXER_MMA_BLOCKS];
};

/* Entries first + g and first + g + 8 of a row; those that are not visible become zero. */
__device__ __forceinline__ void indexer_load_keys(
    const indexer_args &a, int row, int64_t first, int64_t n, int64_t n_vis, indexer_mma_keys &k) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t i = first + g + half * 8;
        const int64_t pos = i < n ? indexer_position(a, row, i) : n_vis;
        uint32_t codes[INDEXER_MMA_BLOCKS] = {0, 0, 0, 0}, scales = 0;
        if (pos < n_vis) {
            const uint8_t *packed = paged_row(a.keys, a.batch.slot[row], pos);
#pragma unroll
            for (int b = 0; b < INDEXER_MMA_BLOCKS; b++)
                codes[b] = *(const uint32_t *)(packed + b * 16 + t * 4);
            scales = *(const uint32_t *)(packed + INDEXER_MMA_D / 2);
        }
#pragma unroll
        for (int b = 0; b < INDEXER_MMA_BLOCKS; b++) {
            k.a[b][half] = indexer_integers(codes[b]);
            k.a[b][2 + half] = indexer_integers(codes[b] >> 16);
            k.scale[half][b] = ue8m0_value(scales >> 8 * b & 255u);
        }
    }
}

/* Scores of the two keys of a lane, in every lane of their four. */
__device__ __forceinline__ void indexer_mma_scores(
    const indexer_mma_query &q, const indexer_mma_keys &k, float (&out)[2]) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    float sum[2] = {0.f, 0.f};
#pragma unroll
    for (int tile = 0; tile < INDEXER_MMA_HEADS / 8; tile++) {
        const uint32_t *words = q.words + (tile * 8 + g) * INDEXER_MMA_PITCH + t;
        const float4 s0 = *(const float4 *)q.scale[tile * 8 + 2 * t],
                     s1 = *(const float4 *)q.scale[tile * 8 + 2 * t + 1];
        const float scale[2][INDEXER_MMA_BLOCKS] = {
            {s0.x, s0.y, s0.z, s0.w}, {s1.x, s1.y, s1.z, s1.w}};
        float dot[4] = {0.f, 0.f, 0.f, 0.f}; /* key g, two heads; key g + 8, two heads */
#pragma unroll
        for (int b = 0; b < INDEXER_MMA_BLOCKS; b++) {
            int d[4];
            indexer_product(d, k.a[b], words[b * 8], words[b * 8 + 4]);
#pragma unroll
            for (int i = 0; i < 4; i++)
                dot[i] = fmaf(indexer_value(d[i]), k.scale[i >> 1][b] * scale[i & 1][b], dot[i]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float w = q.weight[tile * 8 + 2 * t + (i & 1)];
            if (dot[i] > 0.f || isnan(dot[i])) sum[i >> 1] = fmaf(w, dot[i], sum[i >> 1]);
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i] += __shfl_xor_sync(~0u, sum[i], 1);
        out[i] = sum[i] + __shfl_xor_sync(~0u, sum[i], 2);
    }
}

/* Most visible positions of the rows from row on that are of its slot. */
__device__ __forceinline__ int64_t indexer_most_visible(const indexer_args &a, int row, int end) {
    int64_t most = 0;
    for (int r = row; r < end && a.batch.slot[r] == a.batch.slot[row]; r++) {
        const int64_t n = indexer_visible(a, r);
        most = n > most ? n : most;
    }
    return most;
}

/* Scores of the keys of a warp, from entry i on, of n. */
__device__ __forceinline__ void indexer_give_scores(const indexer_params &p, int row,
    const indexer_mma_query &q, const indexer_mma_keys (&keys)[INDEXER_MMA_TILES], int64_t i,
    int64_t n) {
    const int lane = threadIdx.x & 31, g = lane >> 2;
    const int64_t n_vis = indexer_visible(p.a, row);
    float *out = p.a.score + (int64_t)(row - p.first_row) * p.stride;
#pragma unroll
    for (int t = 0; t < INDEXER_MMA_TILES; t++) {
        float score[2];
        indexer_mma_scores(q, keys[t], score);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int64_t at = i + t * 16 + g + half * 8;
            if ((lane & 3) != half || at >= n) continue;
            out[at] =
                indexer_position(p.a, row, at) < n_vis ? score[half] : __uint_as_float(0xff800000u);
        }
    }
}

/* Grid: any number of blocks of entries, which take the others in turn, and the rows of this launch. */
__global__ void __launch_bounds__(INDEXER_KEYS) indexer_mma_row_kernel(indexer_params p) {
    kernel_begin();
    __shared__ __align__(16) indexer_mma_query q;
    const indexer_args &a = p.a;
    const int row = p.first_row + blockIdx.y;
    const int64_t n = indexer_entries(a, row), n_vis = indexer_visible(a, row);
    int64_t first = (int64_t)blockIdx.x * INDEXER_KEYS;
    if (!indexer_needs_scores(a, row) || first >= n) return;
    indexer_load_query(a, row, q);
    __syncthreads();
    for (first += (threadIdx.x >> 5) * (16 * INDEXER_MMA_TILES); first < n;
         first += (int64_t)gridDim.x * INDEXER_KEYS) {
        indexer_mma_keys keys[INDEXER_MMA_TILES];
#pragma unroll
        for (int t = 0; t < INDEXER_MMA_TILES; t++)
            indexer_load_keys(a, row, first + t * 16, n, n_vis, keys[t]);
        indexer_give_scores(p, row, q, keys, first, n);
    }
}

/* Grid: blocks of entries, rows of this launch by ROWS, which share the keys. Without candidates. */
template <int ROWS>
__global__ void __launch_bounds__(INDEXER_KEYS) indexer_mma_kernel(indexer_params p, int n_rows) {
    kernel_begin();
    __shared__ __align__(16) indexer_mma_query q;
    const indexer_args &a = p.a;
    const int first_row = p.first_row + blockIdx.y * ROWS,
              end = min(first_row + ROWS, p.first_row + n_rows);
    const int64_t first = (int64_t)blockIdx.x * INDEXER_KEYS;
    const int64_t mine = first + (threadIdx.x >> 5) * (16 * INDEXER_MMA_TILES);
    indexer_mma_keys keys[INDEXER_MMA_TILES];
    int held = -1; /* slot whose keys these are */
    for (int row = first_row; row < end; row++) {
        const int64_t n = indexer_visible(a, row);
        if (!indexer_needs_scores(a, row) || first >= n) continue;
        __syncthreads();
        indexer_load_query(a, row, q);
        if (held != a.batch.slot[row]) {
            const int64_t most = indexer_most_visible(a, row, end);
#pragma unroll
            for (int t = 0; t < INDEXER_MMA_TILES; t++)
                indexer_load_keys(a, row, mine + t * 16, most, most, keys[t]);
            held = a.batch.slot[row];
        }
        __syncthreads();
        indexer_give_scores(p, row, q, keys, mine, n);
    }
}

#endif
