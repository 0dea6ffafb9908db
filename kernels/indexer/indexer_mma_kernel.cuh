/* Index scores of the real size (32 heads of 128 values, packed queries and keys) on tensor cores, exact
 * but for the last sums: twice an E2M1 value is an integer of -12 .. 12, so the product of a block of 32
 * values is an integer below 4609, which m16n8k32 adds up exactly; a block's scales are powers of two.
 *
 *   dot      sum over the four blocks, in order: fp32(integer) * (scale of key * scale of query / 4)
 *   score    a lane adds w * max(0, dot) of its eight heads in order, then four lanes by halving
 *
 * Where the four scales of a key lie within a factor of eight, and those of a head of the query too, both
 * go into the integers (12 * 8 = 96 fits a signed byte): the sum over the four blocks is then one integer
 * below 2^21, times the smallest scales. Every sum of the formula for dot is exact there, and the scale of the key
 * can wait until its score is complete, so the bits are the same; a key and a head take three instructions a lane
 * instead of ten for each block. Keys or heads with scales further apart, or so large or small that a sum could
 * leave the range of floats, go by the formula.
 *
 *   A        16 keys a warp: a lane's eight codes of a block (4 bytes) are its two registers; the order of
 *            the 32 values is free, since the queries have the same
 *   B        8 heads (mma.sync) or all 32 of one or two rows (wgmma), from shared memory
 *
 * The order depends on nothing but the head, so a row's scores are the same in any batch. A block takes 128
 * keys at a time, 32 a warp: of one row (by its list of candidates), or by position for eight rows, which
 * share the decoded keys while they are of one slot.
 *
 * H200, 2026-12-01, 4,096 rows at 24,576 positions: by position 1.41 ms (6.0 by the formula), 11 instructions a
 * key and row for each of 32 lanes; by 16,384 candidates 2.76 ms (9.4), which the unpacking of keys limits: 28. */
#ifndef TANDEM_KERNELS_INDEXER_INDEXER_MMA_KERNEL_CUH
#define TANDEM_KERNELS_INDEXER_INDEXER_MMA_KERNEL_CUH

#include "kernels/indexer/indexer_kernel.cuh"

constexpr int INDEXER_MMA_HEADS = 32, INDEXER_MMA_D = 128, INDEXER_MMA_BLOCKS = 4;
constexpr int INDEXER_MMA_TILES = 2;                     /* of 16 keys a warp */
constexpr int INDEXER_MMA_KEYS = 16 * INDEXER_MMA_TILES; /* of a warp, one a lane */
constexpr int INDEXER_MMA_BLOCK = 8;    /* positions of a candidate block that is known here */
constexpr int INDEXER_MMA_CHUNK = 4096; /* most positions of a block of threads */
constexpr int INDEXER_MMA_WORDS = INDEXER_MMA_CHUNK / INDEXER_MMA_BLOCK / 32;
static_assert(INDEXER_MMA_KEYS == 32 && INDEXER_KEYS == 4 * INDEXER_MMA_KEYS, "a key a lane");

/* Divides numbers below 2^31; shift where n is a power of two, else -1. */
struct indexer_divisor {
    int n, shift;
};
__device__ __forceinline__ int indexer_over(int i, const indexer_divisor &d) {
    return d.shift >= 0 ? i >> d.shift : (int)((unsigned)i / (unsigned)d.n);
}

struct indexer_mma_params {
    indexer_params p;
    int n_rows; /* of this launch */
    int chunk;  /* positions of a block of threads: a multiple of INDEXER_KEYS */
    indexer_divisor block, page;
};

/* Queries of ROWS rows. */
template <int ROWS> struct __align__(16) indexer_mma_queries {
    /* [block][half][row][head][lane of four] */
    uint32_t words[INDEXER_MMA_BLOCKS][2][ROWS][INDEXER_MMA_HEADS][4];
    float scale[ROWS][INDEXER_MMA_HEADS]
               [INDEXER_MMA_BLOCKS]; /* a quarter of what the integers lack */
    float weight[ROWS][INDEXER_MMA_HEADS];
    float scaled[ROWS][INDEXER_MMA_HEADS]; /* weight times the scale, where is_close */
    int is_close[ROWS];                    /* the scales of every head are in the integers */
};

/* Twice the values of the four codes in the low half of c, as signed bytes. */
__device__ __forceinline__ uint32_t indexer_integers(uint32_t c) {
    const uint32_t size = c & 0x7777u;
    const uint32_t plus = __byte_perm(0x03020100u, 0x0c080604u, size);
    const uint32_t minus = __byte_perm(0xfdfeff00u, 0xf4f8fafcu, size);
    const uint32_t is_minus = ptx_spread_signs(c);
    return (plus & ~is_minus) | (minus & is_minus);
}
/* Four signed bytes times 2^r, r = 0 .. 3. */
__device__ __forceinline__ uint32_t indexer_scaled(uint32_t bytes, uint32_t r) {
    return (bytes << r) & __byte_perm(0xf8fcfeffu, 0, r * 0x1111u);
}
/* Whether four scale codes lie within a factor of eight, and so near to one that no sum of products with them
 * leaves the range of floats. */
__device__ __forceinline__ bool indexer_is_close(uint32_t scales, uint32_t *smallest) {
    const uint32_t low =
        min(min(scales & 255u, scales >> 8 & 255u), min(scales >> 16 & 255u, scales >> 24));
    *smallest = low;
    return (scales - low * 0x01010101u & 0xfcfcfcfcu) == 0 && low - 87u <= 77u;
}

/* What was stored to shared memory is seen by wgmma behind the next barrier. */
__device__ __forceinline__ void indexer_fence() {
#ifdef PTX_HAS_WGMMA
    ptx_wgmma_fence_shared();
#endif
}

/* Row row becomes query r, by all threads; is_close was set. */
template <int ROWS>
__device__ __forceinline__ void indexer_load_query(
    const indexer_args &a, int row, int r, indexer_mma_queries<ROWS> &q) {
    constexpr int N = INDEXER_MMA_HEADS * 16 / INDEXER_KEYS, HEADS = INDEXER_KEYS / 16;
    const int block = threadIdx.x >> 2 & 3, t = threadIdx.x & 3;
    const int first = threadIdx.x >> 4; /* head, then every HEADS-th */
    const uint8_t *rows = a.packed + ((size_t)row * INDEXER_MMA_HEADS + first) * a.packed_bytes;
    uint32_t codes[N], scales[N];
    float w[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint8_t *from = rows + (size_t)(i * HEADS) * a.packed_bytes;
        codes[i] = load_bytes(from + (threadIdx.x & 15) * 4, 4);
        scales[i] = load_bytes(from + INDEXER_MMA_D / 2, 4);
        w[i] = a.w[(size_t)row * a.n_heads + first + i * HEADS] * a.w_scale;
    }
    bool all_close = true;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int head = first + i * HEADS;
        uint32_t low;
        const bool is_close = indexer_is_close(scales[i], &low);
        const uint32_t code = scales[i] >> 8 * block & 255u, shift = is_close ? code - low : 0;
        const float scale = 0.25f * ue8m0_value(is_close ? low : code);
        q.words[block][0][r][head][t] = indexer_scaled(indexer_integers(codes[i]), shift);
        q.words[block][1][r][head][t] = indexer_scaled(indexer_integers(codes[i] >> 16), shift);
        if (t == 0) q.scale[r][head][block] = scale;
        all_close = all_close && is_close &&
                    (w[i] == 0.f || (fabsf(w[i]) > 0x1p-30f && fabsf(w[i]) < 0x1p30f));
        if ((threadIdx.x & 15) != 0) continue;
        q.weight[r][head] = w[i];
        q.scaled[r][head] = w[i] * scale;
    }
    if (!all_close) q.is_close[r] = 0;
}

/* The packed key of a row's entry i of n; NULL where there is none or it is not visible. */
__device__ __forceinline__ const uint8_t *indexer_key_at(
    const indexer_mma_params &x, int row, bool is_compact, int i, int n, int n_vis) {
    const indexer_args &a = x.p.a;
    int pos = i;
    if (i >= n) return nullptr;
    if (is_compact) {
        const int b = indexer_over(i, x.block);
        pos = a.blocks[(size_t)row * a.max_blocks + b] * a.block + (i - b * a.block);
    }
    if (pos >= n_vis) return nullptr;
    const int page = indexer_over(pos, x.page);
    const int32_t at = a.keys.table[(int64_t)a.batch.slot[row] * a.keys.table_stride + page];
    return a.keys.base + (size_t)at * a.keys.page_stride +
           (size_t)(pos - page * a.keys.rows_per_page) * a.keys.row_bytes;
}

/* The keys of a warp as they are stored: lane l has the scales of key l, and its parts of the codes of keys g
 * and g + 8 of every tile. */
struct indexer_mma_codes {
    uint32_t codes[INDEXER_MMA_TILES][2][INDEXER_MMA_BLOCKS], scales;
};
/* The same as integers with their scales in them. */
struct indexer_mma_keys {
    uint32_t a[INDEXER_MMA_TILES][INDEXER_MMA_BLOCKS][4];
    float scale;   /* the smallest one of the key whose score this lane gives */
    bool is_close; /* of all keys, else nothing here is of use */
};
/* That key, and the lane that has its scales. */
__device__ __forceinline__ int indexer_mma_at() {
    return (threadIdx.x & 3) * 8 + ((threadIdx.x & 31) >> 2);
}

__device__ __forceinline__ void indexer_load_codes(const uint8_t *key, indexer_mma_codes &c) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    c.scales = key == nullptr ? 0x7f7f7f7fu : *(const uint32_t *)(key + INDEXER_MMA_D / 2);
#pragma unroll
    for (int i = 0; i < 2 * INDEXER_MMA_TILES; i++) {
        const uint8_t *from = (const uint8_t *)__shfl_sync(~0u, (unsigned long long)key, i * 8 + g);
#pragma unroll
        for (int b = 0; b < INDEXER_MMA_BLOCKS; b++)
            c.codes[i >> 1][i & 1][b] =
                from == nullptr ? 0 : *(const uint32_t *)(from + b * 16 + t * 4);
    }
}

__device__ __forceinline__ void indexer_unpack(const indexer_mma_codes &c, indexer_mma_keys &k) {
    const int g = (threadIdx.x & 31) >> 2;
    uint32_t low;
    k.is_close = __all_sync(~0u, indexer_is_close(c.scales, &low));
    const uint32_t own = c.scales - low * 0x01010101u;
    k.scale = __uint_as_float(__shfl_sync(~0u, low, indexer_mma_at()) << 23);
#pragma unroll
    for (int i = 0; i < 2 * INDEXER_MMA_TILES; i++) {
        const uint32_t in = __shfl_sync(~0u, own, i * 8 + g);
#pragma unroll
        for (int b = 0; b < INDEXER_MMA_BLOCKS; b++) {
            const uint32_t codes = c.codes[i >> 1][i & 1][b], shift = in >> 8 * b & 3u;
            k.a[i >> 1][b][i & 1] = indexer_scaled(indexer_integers(codes), shift);
            k.a[i >> 1][b][2 + (i & 1)] = indexer_scaled(indexer_integers(codes >> 16), shift);
        }
    }
}

/* Sums of 16 keys of a warp with all heads of N rows from r on, as ptx_mma_s8s8 has them for 8 heads. With wgmma all
 * warps of the block come here. */
template <int N, int ROWS>
__device__ __forceinline__ void indexer_products(const indexer_mma_queries<ROWS> &q, int r,
    const uint32_t (&a)[INDEXER_MMA_BLOCKS][4], int (&d)[N * 4][4]) {
#ifdef PTX_HAS_WGMMA
    constexpr uint32_t HALF_BYTES = ROWS * INDEXER_MMA_HEADS * 16;
    const uint32_t words = ptx_shared(q.words[0][0][r]);
    ptx_wgmma_fence();
    ptx_wgmma_s8s8_first(d, a[0], ptx_wgmma_matrix(words, HALF_BYTES));
#pragma unroll
    for (int b = 1; b < INDEXER_MMA_BLOCKS; b++)
        ptx_wgmma_s8s8(d, a[b], ptx_wgmma_matrix(words + b * 2 * HALF_BYTES, HALF_BYTES));
    ptx_wgmma_commit();
    ptx_wgmma_wait<0>();
    ptx_wgmma_settle(d);
#else
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < N * 16; i++)
        d[i >> 2][i & 3] = 0;
#pragma unroll
    for (int i = 0; i < N * 4; i++)
#pragma unroll
        for (int b = 0; b < INDEXER_MMA_BLOCKS; b++)
            ptx_mma_s8s8(d[i], a[b][0], a[b][1], a[b][2], a[b][3],
                q.words[b][0][r + i / 4][i % 4 * 8][lane],
                q.words[b][1][r + i / 4][i % 4 * 8][lane]);
#endif
}

__device__ __forceinline__ float indexer_sum_of_four(float v) {
    v += __shfl_xor_sync(~0u, v, 1);
    return v + __shfl_xor_sync(~0u, v, 2);
}

/* The score of key indexer_mma_at() of the warp by the formula, for scales of any size: tile by tile, the keys
 * are read again. */
template <int ROWS>
__device__ __forceinline__ float indexer_any_score(
    const indexer_mma_queries<ROWS> &q, int r, const uint8_t *key) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    float score = 0.f;
#pragma unroll 1
    for (int tile = 0; tile < INDEXER_MMA_TILES; tile++) {
        uint32_t a[INDEXER_MMA_BLOCKS][4];
        float scale[2][INDEXER_MMA_BLOCKS], sum[2] = {0.f, 0.f};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint8_t *from = (const uint8_t *)__shfl_sync(
                ~0u, (unsigned long long)key, (tile * 2 + half) * 8 + g);
            const uint32_t scales =
                from == nullptr ? 0 : *(const uint32_t *)(from + INDEXER_MMA_D / 2);
#pragma unroll
            for (int b = 0; b < INDEXER_MMA_BLOCKS; b++) {
                const uint32_t c = from == nullptr ? 0 : *(const uint32_t *)(from + b * 16 + t * 4);
                a[b][half] = indexer_integers(c);
                a[b][2 + half] = indexer_integers(c >> 16);
                scale[half][b] = ue8m0_value(scales >> 8 * b & 255u);
            }
        }
#pragma unroll 1
        for (int h = 0; h < INDEXER_MMA_HEADS / 8; h++) {
            float dot[4] = {0.f, 0.f, 0.f, 0.f}; /* key g, two heads; key g + 8, two heads */
            const int head = h * 8 + 2 * t;
#pragma unroll
            for (int b = 0; b < INDEXER_MMA_BLOCKS; b++) {
                int d[4] = {0, 0, 0, 0};
                ptx_mma_s8s8(d, a[b][0], a[b][1], a[b][2], a[b][3], q.words[b][0][r][h * 8][lane],
                    q.words[b][1][r][h * 8][lane]);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    dot[i] =
                        fmaf((float)d[i], scale[i >> 1][b] * q.scale[r][head + (i & 1)][b], dot[i]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (dot[i] > 0.f || isnan(dot[i]))
                    sum[i >> 1] = fmaf(q.weight[r][head + (i & 1)], dot[i], sum[i >> 1]);
        }
        const float s[2] = {indexer_sum_of_four(sum[0]), indexer_sum_of_four(sum[1])};
        if (t >> 1 == tile) score = t & 1 ? s[1] : s[0];
    }
    return score;
}

/* Scores of key indexer_mma_at() of the warp with N rows from r on. */
template <int N, int ROWS>
__device__ __forceinline__ void indexer_mma_scores(const indexer_mma_queries<ROWS> &q, int r,
    const indexer_mma_keys &k, const uint8_t *key, float (&score)[N]) {
    const int t = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < N; i++)
        score[i] = 0.f;
#pragma unroll
    for (int tile = 0; tile < INDEXER_MMA_TILES; tile++) {
        int d[N * 4][4];
        indexer_products<N>(q, r, k.a[tile], d);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float sum[2] = {0.f, 0.f};
#pragma unroll
            for (int h = 0; h < INDEXER_MMA_HEADS / 8; h++) {
                const float2 w = *(const float2 *)&q.scaled[r + i][h * 8 + 2 * t];
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const float dot = (float)d[i * 4 + h][c];
                    if (dot > 0.f) sum[c >> 1] = fmaf(c & 1 ? w.y : w.x, dot, sum[c >> 1]);
                }
            }
            const float s[2] = {indexer_sum_of_four(sum[0]), indexer_sum_of_four(sum[1])};
            if (t >> 1 == tile) score[i] = (t & 1 ? s[1] : s[0]) * k.scale;
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        if (q.is_close[r + i] == 0 || !k.is_close) score[i] = indexer_any_score(q, r + i, key);
}

/* One row by its entries. Grid: any number of blocks of entries, which take the others in turn, and the rows. */
__global__ void __launch_bounds__(INDEXER_KEYS, 4)
    indexer_mma_row_kernel(const __grid_constant__ indexer_mma_params x) {
    kernel_begin();
    __shared__ indexer_mma_queries<1> q;
    const indexer_args &a = x.p.a;
    const int row = x.p.first_row + blockIdx.y, at = indexer_mma_at();
    const int n = (int)indexer_entries(a, row), n_vis = (int)indexer_visible(a, row);
    int first = blockIdx.x * INDEXER_KEYS;
    if (!indexer_needs_scores(a, row) || first >= n) return;
    const bool is_compact = indexer_is_compact(a, row);
    if (threadIdx.x == 0) q.is_close[0] = 1;
    __syncthreads();
    indexer_load_query(a, row, 0, q);
    indexer_fence();
    __syncthreads();
    const int own = threadIdx.x / 32 * INDEXER_MMA_KEYS, step = gridDim.x * INDEXER_KEYS;
    float *out = a.score + (int64_t)blockIdx.y * x.p.stride;
    const uint8_t *key =
        indexer_key_at(x, row, is_compact, first + own + (threadIdx.x & 31), n, n_vis);
    indexer_mma_codes codes;
    indexer_load_codes(key, codes);
    for (; first < n; first += step) {
        indexer_mma_keys k;
        indexer_unpack(codes, k);
        const uint8_t *now = key;
        /* The next keys are read meanwhile. */
        key = indexer_key_at(x, row, is_compact, first + step + own + (threadIdx.x & 31), n, n_vis);
        indexer_load_codes(key, codes);
        float score[1];
        indexer_mma_scores(q, 0, k, now, score);
        const bool is_seen = (__ballot_sync(~0u, now != nullptr) >> at & 1u) != 0;
        if (first + own + at < n)
            out[first + own + at] = is_seen ? score[0] : __uint_as_float(0xff800000u);
    }
}

/* What a block of threads has of its rows. */
struct indexer_mma_row {
    int end, visible; /* positions to score, visible ones */
    int slot, is_compact;
};
template <int ROWS> struct indexer_mma_rows {
    indexer_mma_queries<ROWS> q;
    __align__(16) indexer_mma_row row[ROWS];
    /* Candidate blocks of this block's positions as bits, and how many of the row's come before a word. */
    uint32_t kept[ROWS][INDEXER_MMA_WORDS];
    int rank[ROWS][INDEXER_MMA_WORDS];
};

/* kept and rank of a row whose list is sorted, by a warp. */
__device__ __forceinline__ void indexer_find_kept(const indexer_args &a, int row, int first_block,
    uint32_t (&kept)[INDEXER_MMA_WORDS], int (&rank)[INDEXER_MMA_WORDS]) {
    const int lane = threadIdx.x & 31, n = a.n_blocks[row], part = (n + 31) / 32;
    const int32_t *list = a.blocks + (size_t)row * a.max_blocks;
    const unsigned below = __ballot_sync(~0u, lane * part < n && list[lane * part] < first_block);
    int from = below == 0 ? 0 : (__popc(below) - 1) * part, before = 0;
    for (int i = lane; i < part && from + i < n; i += 32)
        before += list[from + i] < first_block;
    from += __reduce_add_sync(~0u, before); /* the first that is not before */
    if (lane < INDEXER_MMA_WORDS) kept[lane] = 0;
    __syncwarp();
    for (int i = from + lane; i < n; i += 32) {
        const int b = list[i] - first_block;
        if (b >= 32 * INDEXER_MMA_WORDS) break;
        atomicOr(&kept[b >> 5], 1u << (b & 31));
    }
    __syncwarp();
    if (lane >= INDEXER_MMA_WORDS) return;
    for (int w = 0; w < lane; w++)
        from += __popc(kept[w]);
    rank[lane] = from;
}

template <int ROWS>
__device__ __forceinline__ void indexer_load_rows(
    const indexer_args &a, int first_row, int n, int first, indexer_mma_rows<ROWS> &s) {
    if ((int)threadIdx.x < ROWS) {
        const int i = threadIdx.x, row = first_row + min(i, n - 1),
                  n_vis = (int)indexer_visible(a, row);
        const bool is_compact = indexer_is_compact(a, row);
        const int end = is_compact ? (int)indexer_blocks(a, n_vis) * INDEXER_MMA_BLOCK : n_vis;
        s.row[i] = {
            i < n && indexer_needs_scores(a, row) ? end : 0, n_vis, a.batch.slot[row], is_compact};
        s.q.is_close[i] = 1;
    }
    __syncthreads();
    for (int r = 0; r < n; r++)
        if (first < s.row[r].end) indexer_load_query(a, first_row + r, r, s.q);
    for (int r = threadIdx.x >> 5; r < n; r += INDEXER_KEYS / 32)
        if (first < s.row[r].end && s.row[r].is_compact)
            indexer_find_kept(a, first_row + r, first / INDEXER_MMA_BLOCK, s.kept[r], s.rank[r]);
    indexer_fence();
    __syncthreads();
}

/* Gives position pos of the chunk that begins at begin its score. */
template <int ROWS>
__device__ __forceinline__ void indexer_give_score(
    const indexer_mma_rows<ROWS> &s, int r, int begin, int pos, float score, float *out) {
    const indexer_mma_row row = s.row[r];
    const int block = (pos - begin) / INDEXER_MMA_BLOCK;
    if (!row.is_compact) {
        if (pos < row.end) out[pos] = score;
        return;
    }
    const uint32_t kept = s.kept[r][block >> 5], bit = 1u << (block & 31);
    const int rank = s.rank[r][block >> 5] + __popc(kept & (bit - 1));
    if ((kept & bit) != 0 && pos < row.end)
        out[rank * INDEXER_MMA_BLOCK + pos % INDEXER_MMA_BLOCK] =
            pos < row.visible ? score : __uint_as_float(0xff800000u);
}

/* By position. Grid: chunks of positions, rows of this launch by ROWS. Where a row has candidates, their blocks are
 * of INDEXER_MMA_BLOCK positions. */
template <int ROWS>
__global__ void __launch_bounds__(INDEXER_KEYS, 4)
    indexer_mma_kernel(const __grid_constant__ indexer_mma_params x) {
    kernel_begin();
    __shared__ indexer_mma_rows<ROWS> s;
    const indexer_args &a = x.p.a;
    const int first_row = x.p.first_row + blockIdx.y * ROWS,
              n = min(ROWS, x.p.first_row + x.n_rows - first_row);
    const int begin = blockIdx.x * x.chunk, own = threadIdx.x / 32 * INDEXER_MMA_KEYS;
    float *out = a.score + (int64_t)blockIdx.y * ROWS * x.p.stride;
    indexer_load_rows<ROWS>(a, first_row, n, begin, s);
    for (int r0 = 0, r1; r0 < n; r0 = r1) { /* rows of one slot */
        int end = 0, n_vis = 0;
        for (r1 = r0; r1 < n && s.row[r1].slot == s.row[r0].slot; r1++) {
            end = max(end, s.row[r1].end);
            n_vis = max(n_vis, s.row[r1].visible);
        }
        end = min(end, begin + x.chunk);
        for (int first = begin; first < end; first += INDEXER_KEYS) {
            const uint8_t *key = indexer_key_at(
                x, first_row + r0, false, first + own + (threadIdx.x & 31), n_vis, n_vis);
            indexer_mma_codes codes;
            indexer_mma_keys k;
            indexer_load_codes(key, codes);
            indexer_unpack(codes, k);
            const int pos = first + own + indexer_mma_at();
            for (int r = r0; r < r1; r += 2) {
                /* Two rows; an odd last one has a neighbour whose scores nobody wants. */
                const int two = min(r, ROWS - 2);
                if (first >= max(s.row[two].end, s.row[two + 1].end)) continue;
                float score[2];
                indexer_mma_scores(s.q, two, k, key, score);
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (two + i >= r && two + i < r1)
                        indexer_give_score<ROWS>(
                            s, two + i, begin, pos, score[i], out + (two + i) * x.p.stride);
            }
        }
    }
}

#endif
