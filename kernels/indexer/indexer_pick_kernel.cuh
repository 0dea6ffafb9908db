/* Exact pick of the largest entries of a row by a cluster of up to eight CTAs: a step of few rows at a long
 * context has more entries than one SM can read in time, a prompt has a row for every SM.
 *
 *   entries   every warp has a contiguous run, four entries a lane, in registers where sixteen a thread are
 *             enough (16,384 a CTA), else read again in every pass, 16 bytes a load, four loads under way
 *   border    radix by digits of 11, 11 and 10 bits: a CTA counts its own, gives what is not zero to all
 *             CTAs, each finds the digit by itself; done when all of a digit's entries are needed
 *   places    one scan of what warps and CTAs take, then every warp writes its own, in order
 *
 * Candidate blocks are picked from their best scores, read from the scores again. 34 KB of shared memory, at
 * most 64 registers. Integer counts only: the result depends on no order and on no number of CTAs. */
#ifndef TANDEM_KERNELS_INDEXER_INDEXER_PICK_KERNEL_CUH
#define TANDEM_KERNELS_INDEXER_INDEXER_PICK_KERNEL_CUH

#include "kernels/indexer/indexer_kernel.cuh"

constexpr int INDEXER_PICK = 1024, INDEXER_PICK_WARPS = INDEXER_PICK / 32;
constexpr int INDEXER_MAX_PARTS = 8;  /* CTAs of a cluster that every device allows */
constexpr int INDEXER_HELD = 4;       /* groups of a lane that stay in registers */
constexpr int INDEXER_GROUP = 4 * 32; /* entries a warp takes at once */
constexpr int INDEXER_PASSES = 3, INDEXER_DIGITS = 2048;

struct indexer_pick_shared {
    __align__(16) int count[INDEXER_PASSES][INDEXER_DIGITS]; /* of the cluster */
    __align__(16) int own[INDEXER_DIGITS];       /* of this CTA, where it is not alone */
    __align__(16) int2 taken[INDEXER_MAX_PARTS]; /* by CTAs: above the border, on it */
    int2 warps[INDEXER_PICK_WARPS];              /* likewise by warps */
    int sums[INDEXER_PICK_WARPS];
};

/* Larger float = larger key; -inf and NaN become 0 = never picked. */
__device__ __forceinline__ uint32_t indexer_key(float v) {
    uint32_t u = __float_as_uint(v);
    if ((u & 0x7fffffffu) > 0x7f800000u || u == 0xff800000u) return 0;
    if (u == 0x80000000u) u = 0;
    return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}
__device__ __forceinline__ uint32_t indexer_key_most(float4 v) {
    return max(max(indexer_key(v.x), indexer_key(v.y)), max(indexer_key(v.z), indexer_key(v.w)));
}

/* What a pick chooses from: get gives the keys of entries i .. i + 3, i a multiple of four; 0 from n on. The room of a
 * row is a multiple of four, too. */
struct indexer_score_entries {
    const float *score;
    int n;
    __device__ __forceinline__ void get(int i, uint32_t (&key)[4]) const {
        float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
        if (i < n) v = *(const float4 *)(score + i);
        key[0] = i < n ? indexer_key(v.x) : 0, key[1] = i + 1 < n ? indexer_key(v.y) : 0;
        key[2] = i + 2 < n ? indexer_key(v.z) : 0, key[3] = i + 3 < n ? indexer_key(v.w) : 0;
    }
};
/* Candidate blocks by their best scores. The last one is pinned, so all that are read are whole. */
struct indexer_block_entries {
    const float *score;
    int n, block;
    __device__ __forceinline__ uint32_t best(int b) const {
        if (b >= n - 1) return b == n - 1 ? indexer_key(__uint_as_float(0x7f800000u)) : 0;
        const float *from = score + (int64_t)b * block;
        uint32_t most = 0;
#pragma unroll 1
        for (int j = 0; j < block; j++)
            most = max(most, indexer_key(from[j]));
        return most;
    }
    __device__ __forceinline__ void get(int i, uint32_t (&key)[4]) const {
        if (block == 8 && i + 4 < n) {
            const float4 *from = (const float4 *)(score + (int64_t)i * 8);
#pragma unroll
            for (int e = 0; e < 4; e++)
                key[e] = max(indexer_key_most(from[2 * e]), indexer_key_most(from[2 * e + 1]));
            return;
        }
#pragma unroll
        for (int e = 0; e < 4; e++)
            key[e] = best(i + e);
    }
};

/* The run of this warp. */
template <class ENTRIES> struct indexer_run_of {
    ENTRIES from;
    int first, n_groups;
    uint32_t key[INDEXER_HELD][4];

    __device__ __forceinline__ indexer_run_of(const ENTRIES &entries) : from(entries) {
        const int n_warps = gridDim.x * INDEXER_PICK_WARPS, all = n_warps * INDEXER_GROUP;
        const int warp = blockIdx.x * INDEXER_PICK_WARPS + (threadIdx.x >> 5);
        n_groups = (from.n + all - 1) / all;
        first = warp * n_groups * INDEXER_GROUP + (threadIdx.x & 31) * 4;
        if (n_groups <= INDEXER_HELD) fetch(0);
    }
    __device__ __forceinline__ void fetch(int group) {
#pragma unroll
        for (int g = 0; g < INDEXER_HELD; g++) {
            if (group + g < n_groups) {
                from.get(first + (group + g) * INDEXER_GROUP, key[g]);
            } else {
                key[g][0] = key[g][1] = key[g][2] = key[g][3] = 0;
            }
        }
    }
    /* use(i, keys of entries i .. i + 3) in ascending order, by the whole warp. */
    template <class USE> __device__ __forceinline__ void each(USE use) {
        for (int group = 0; group < n_groups; group += INDEXER_HELD) {
            if (n_groups > INDEXER_HELD) fetch(group);
#pragma unroll
            for (int g = 0; g < INDEXER_HELD; g++)
                if (group + g < n_groups) use(first + (group + g) * INDEXER_GROUP, key[g]);
        }
    }
};

/* All threads of the row's CTAs meet, and what they wrote is seen. */
__device__ __forceinline__ void indexer_meet() {
    if (gridDim.x > 1) {
        __syncwarp();
        ptx_cluster_barrier();
    } else {
        __syncthreads();
    }
}

/* Sum over the lanes up to this one. */
__device__ __forceinline__ int indexer_scan(int v) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int m = 1; m < 32; m <<= 1) {
        const int o = __shfl_up_sync(~0u, v, m);
        if (lane >= m) v += o;
    }
    return v;
}
/* The first lane whose sum reaches left; the last one if none does. */
__device__ __forceinline__ int indexer_reach(int sum, int left) {
    const unsigned reached = __ballot_sync(~0u, sum >= left);
    return reached == 0 ? 31 : __ffs(reached) - 1;
}

/* After all counted: what this CTA counted is in the count of every CTA. */
__device__ __forceinline__ void indexer_share_counts(indexer_pick_shared &sh, int pass) {
    if (gridDim.x > 1) {
        __syncthreads();
        for (int i = threadIdx.x; i < INDEXER_DIGITS; i += INDEXER_PICK) {
            const int v = sh.own[i];
            if (v == 0) continue;
            sh.own[i] = 0;
            for (int part = 0; part < (int)gridDim.x; part++)
                ptx_add_cluster(ptx_shared(sh.count[pass] + i), part, v);
        }
    }
    indexer_meet();
}

struct indexer_digit {
    int digit, count; /* entries with it */
    int left;         /* of these, needed */
    int all;          /* entries counted */
};

/* The digit in which the left-th largest lies: a warp sums 64 digits, the largest first; then every warp
 * finds the 64 and the two of a lane. */
__device__ __forceinline__ indexer_digit indexer_find_digit(
    indexer_pick_shared &sh, const int *count, int left) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int2 mine = ((const int2 *)(count + INDEXER_DIGITS - 64 * (warp + 1)))[lane];
    const int sum = __reduce_add_sync(~0u, mine.x + mine.y);
    if (lane == 0) sh.sums[warp] = sum;
    __syncthreads();
    indexer_digit d;
    const int part = sh.sums[lane], parts = indexer_scan(part), at = indexer_reach(parts, left);
    d.all = __shfl_sync(~0u, parts, 31);
    left -= __shfl_sync(~0u, parts - part, at);
    const int low = INDEXER_DIGITS - 64 * (at + 1) + 62 - 2 * lane;
    const int2 two = *(const int2 *)(count + low); /* lanes from the largest digit down */
    const int both = two.x + two.y, scan = indexer_scan(both), from = indexer_reach(scan, left);
    left -= scan - both;
    const bool is_high = two.y >= left;
    d.digit = __shfl_sync(~0u, is_high ? low + 1 : low, from);
    d.count = __shfl_sync(~0u, is_high ? two.y : two.x, from);
    d.left = __shfl_sync(~0u, is_high ? left : left - two.y, from);
    return d;
}

/* Taken are keys larger than above, and the first n_equal of those that are equal. */
struct indexer_border {
    uint32_t above, equal;
    int n_equal;
};

template <class ENTRIES>
__device__ __forceinline__ indexer_border indexer_find_border(
    indexer_run_of<ENTRIES> &run, int topk, indexer_pick_shared &sh) {
    uint32_t prefix = 0, mask = 0;
    int left = topk;
#pragma unroll 1
    for (int pass = 0; pass < INDEXER_PASSES; pass++) {
        const int shift = max(21 - 11 * pass, 0); /* the last digit has a known bit */
        int *count = gridDim.x > 1 ? sh.own : sh.count[pass];
        run.each([=](int, const uint32_t(&key)[4]) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (key[e] != 0 && (key[e] & mask) == prefix)
                    atomicAdd(count + (key[e] >> shift & (INDEXER_DIGITS - 1)), 1);
        });
        indexer_share_counts(sh, pass);
        const indexer_digit d = indexer_find_digit(sh, sh.count[pass], left);
        if (pass == 0 && d.all <= topk) return {0, 0, 0};
        left = d.left;
        prefix |= (uint32_t)d.digit << shift;
        mask |= (uint32_t)(INDEXER_DIGITS - 1) << shift;
        if (d.count == left) return {prefix == 0 ? 0 : prefix - 1, 0, 0};
    }
    return {prefix, prefix, left};
}

/* What lies before this warp's run above the border (x) and on it (y); all of the row in *all. */
__device__ __forceinline__ int2 indexer_before(int2 mine, indexer_pick_shared &sh, int2 *all) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (lane == 0) sh.warps[warp] = mine;
    __syncthreads();
    int2 v = sh.warps[lane];
    int x = indexer_scan(v.x), y = indexer_scan(v.y);
    int2 before = make_int2(__shfl_sync(~0u, x - v.x, warp), __shfl_sync(~0u, y - v.y, warp));
    *all = make_int2(__shfl_sync(~0u, x, 31), __shfl_sync(~0u, y, 31));
    if (gridDim.x == 1) return before;
    if (warp == 0 && lane < (int)gridDim.x)
        ptx_store_cluster_8(ptx_shared(sh.taken + blockIdx.x), lane, *all);
    indexer_meet(); /* the last access to another CTA's memory lies before it */
    v = lane < (int)gridDim.x ? sh.taken[lane] : make_int2(0, 0);
    x = indexer_scan(v.x), y = indexer_scan(v.y);
    before.x += __shfl_sync(~0u, x - v.x, blockIdx.x);
    before.y += __shfl_sync(~0u, y - v.y, blockIdx.x);
    *all = make_int2(__shfl_sync(~0u, x, 31), __shfl_sync(~0u, y, 31));
    return before;
}

/* The topk largest entries, ties to the lower index; give(rank, index) in ascending order. Returns how many.
 * By all CTAs of the row, once. */
template <class ENTRIES, class GIVE>
__device__ __forceinline__ int indexer_pick_row(
    const ENTRIES &entries, int topk, indexer_pick_shared &sh, GIVE give) {
    indexer_run_of<ENTRIES> run(entries);
    const indexer_border border = indexer_find_border(run, topk, sh);
    const bool has_equal = border.n_equal > 0;
    int2 mine = make_int2(0, 0), all;
    run.each([&](int, const uint32_t(&key)[4]) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            mine.x += key[e] > border.above;
            mine.y += has_equal && key[e] == border.equal;
        }
    });
    mine = make_int2(__reduce_add_sync(~0u, mine.x), __reduce_add_sync(~0u, mine.y));
    int2 before = indexer_before(mine, sh, &all);
    const int n_picked = all.x + border.n_equal;
    if (mine.x == 0 && (mine.y == 0 || before.y >= border.n_equal)) return n_picked;
    run.each([&](int i, const uint32_t(&key)[4]) {
        int two = 0; /* of this lane, the equal ones in the upper half */
#pragma unroll
        for (int e = 0; e < 4; e++)
            two += key[e] > border.above ? 1 : has_equal && key[e] == border.equal ? 1 << 16 : 0;
        if (!__any_sync(~0u, two != 0)) return;
        const int sum = indexer_scan(two), warp = __shfl_sync(~0u, sum, 31);
        int above = before.x + ((sum - two) & 0xffff), equal = before.y + ((sum - two) >> 16);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (key[e] > border.above) {
                give(above++ + min(equal, border.n_equal), i + e);
            } else if (has_equal && key[e] == border.equal) {
                if (equal < border.n_equal) give(above + equal, i + e);
                equal++;
            }
        }
        before.x += warp & 0xffff, before.y += warp >> 16;
    });
    return n_picked;
}

__device__ __forceinline__ void indexer_keep_blocks(
    const indexer_args &a, int row, const float *score, indexer_pick_shared &sh) {
    const int n = (int)indexer_blocks(a, indexer_visible(a, row));
    int32_t *out = a.blocks + (size_t)row * a.max_blocks;
    int kept = n;
    if (n <= a.max_blocks) {
        for (int b = blockIdx.x * INDEXER_PICK + threadIdx.x; b < n; b += gridDim.x * INDEXER_PICK)
            out[b] = b;
    } else {
        kept = indexer_pick_row(indexer_block_entries{score, n, a.block}, a.max_blocks, sh,
            [out](int rank, int i) { out[rank] = i; });
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) a.n_blocks[row] = kept;
}

/* indexer_position of an entry below 2^31, in 32-bit arithmetic. */
__device__ __forceinline__ int indexer_place(
    const indexer_args &a, int row, bool is_compact, int i) {
    if (!is_compact) return i;
    const int b = (int)((unsigned)i / (unsigned)a.block);
    return a.blocks[(size_t)row * a.max_blocks + b] * a.block + (i - b * a.block);
}

/* By one CTA. */
__device__ __forceinline__ void indexer_give_tap(
    const indexer_args &a, int row, const float *score, int64_t n) {
    float *tap = a.score_tap + (int64_t)row * a.score_cap;
    for (int64_t i = threadIdx.x; i < a.score_cap; i += INDEXER_PICK)
        tap[i] = __uint_as_float(0xff800000u);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < n; i += INDEXER_PICK) {
        /* The last candidate block may reach behind what the tap holds. */
        const int64_t at = indexer_position(a, row, i);
        if (at < a.score_cap) tap[at] = score[i];
    }
}

__device__ __forceinline__ void indexer_select(
    const indexer_args &a, int row, const float *score, indexer_pick_shared &sh) {
    const int n = (int)indexer_entries(a, row);
    int32_t *out = a.selection + (size_t)row * a.topk;
    int picked = (int)indexer_visible(a, row);
    if (!indexer_needs_scores(a, row)) {
        for (int i = blockIdx.x * INDEXER_PICK + threadIdx.x; i < picked;
             i += gridDim.x * INDEXER_PICK)
            out[i] = i;
    } else {
        const bool is_compact = indexer_is_compact(a, row);
        picked = indexer_pick_row(indexer_score_entries{score, n}, a.topk, sh,
            [&a, row, out, is_compact](
                int rank, int i) { out[rank] = indexer_place(a, row, is_compact, i); });
        if (a.score_tap != nullptr && blockIdx.x == 0) indexer_give_tap(a, row, score, n);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) a.n_selected[row] = picked;
}

/* Grid: CTAs of a row = of a cluster, rows of this launch, then 2 where blocks are kept as well. Most layers keep none,
 * and a step finds the code of no kernel in the caches of its SMs: without that part it is short. */
template <bool KEEPS_BLOCKS>
__global__ void __launch_bounds__(INDEXER_PICK) indexer_pick_kernel(indexer_params p) {
    __shared__ indexer_pick_shared sh;
    for (int i = threadIdx.x; i < INDEXER_PASSES * INDEXER_DIGITS; i += INDEXER_PICK)
        sh.count[0][i] = 0;
    for (int i = threadIdx.x; i < INDEXER_DIGITS; i += INDEXER_PICK)
        sh.own[i] = 0;
    indexer_meet(); /* nobody adds to a CTA that has not begun */
    kernel_begin();
    const int row = p.first_row + blockIdx.y;
    const float *score = p.a.score + (int64_t)blockIdx.y * p.stride;
    if (!KEEPS_BLOCKS || blockIdx.z == 0) {
        indexer_select(p.a, row, score, sh);
    } else {
        indexer_keep_blocks(p.a, row, score, sh);
    }
}

#endif
