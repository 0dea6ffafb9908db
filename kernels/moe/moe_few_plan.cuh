/*
 * What a block of moe_few works on: it finds the distinct experts of all tokens and deals the slices (16 inputs x 64 outputs)
 * of all matrices out to the blocks by cost, each block for itself. A job is an expert with the rows that chose it, numbered
 * as the first pair that did; the shared one comes last.
 */
#ifndef TANDEM_KERNELS_MOE_MOE_FEW_PLAN_CUH
#define TANDEM_KERNELS_MOE_MOE_FEW_PLAN_CUH

#include "kernels/exl3/exl3_rows_kernel.cuh"
#include "kernels/moe/moe_few.h"
#include "kernels/moe/moe_row_link.cuh"

constexpr int MOE_FEW_WARPS = 16; /* 12 and 8 take 6 and 14% longer (H200, 2026-12-01) */
constexpr int MOE_FEW_SEGMENTS =
    6; /* parts of matrices a block may touch, of gate and up or of down */
constexpr int MOE_FEW_STAGES = 2;

struct moe_few_params {
    exl3_powers powers;
    moe_few_args a;
    int slot_bytes, room, stage; /* room: bytes for operands, stage: for rows on their way */
};

struct moe_few_matrix {
    const char *words;
    const uint16_t *suh, *svh;
    int k2, reserved;
};

/* A block's part of one matrix. */
struct moe_few_segment {
    const char *words; /* of the matrix */
    const uint16_t *suh;
    int which, k2;         /* which: 0 gate, 1 up, 2 down */
    int n_rows, row;       /* row: the first of its job */
    int begin, end;        /* slices of the matrix */
    int cost, before;      /* of a slice; of the segments of its group before it */
    int operand, first_op; /* of its operands: byte offset, number of the first */
};

/* Segments whose operands are in shared memory at once. */
struct moe_few_group {
    int first, last, cost, is_down;
    int first_op, n_ops;
};

constexpr int MOE_FEW_OPS = 2 * MOE_FEW_SEGMENTS * EXL3_GPU_MAX_ROWS;

/* One operand: a row of a segment. */
struct moe_few_op {
    const uint16_t *suh; /* of gate or up */
    int token, row;      /* row: of all */
    int at;              /* byte offset of its operand */
    int which, is_first; /* matrix; whether this block tells the row's scale */
};

struct moe_few_shared {
    moe_few_matrix matrix[MOE_FEW_PAIRS][3];             /* of a job */
    int expert[MOE_FEW_PAIRS];                           /* of a pair */
    int owner[MOE_FEW_PAIRS], row[MOE_FEW_PAIRS];        /* of a pair: its job, its row */
    int pair[MOE_FEW_PAIRS];                             /* of a row */
    int n_rows[MOE_FEW_PAIRS], first_row[MOE_FEW_PAIRS]; /* of a job */
    int cost_in[2 * MOE_FEW_PAIRS + 1], cost_out[MOE_FEW_PAIRS + 1]; /* of a slice of each before */
    moe_few_segment segment[2 * MOE_FEW_SEGMENTS];
    moe_few_group group[2 * MOE_FEW_SEGMENTS];
    int n_segments[2], n_groups[2];
    int2 piece[MOE_FEW_WARPS][2 * MOE_FEW_SEGMENTS];
    moe_few_op op[MOE_FEW_OPS];
    uint32_t most[MOE_FEW_OPS];
    int sum[MOE_FEW_OPS];
};

__device__ __forceinline__ int moe_few_pairs(const moe_few_args &a) {
    return a.n_tokens * a.n_used;
}
__device__ __forceinline__ int moe_few_rows(const moe_few_args &a) {
    return a.n_tokens * (a.n_used + a.has_shared);
}
__device__ __forceinline__ int moe_few_cost(int k2, int n_rows) {
    return n_rows == 0 ? 0 : exl3_gpu_unit_cost(k2, n_rows);
}

/* Slices that a stage brings: two units up to 3 bits (6 us of 148 for six rows, H200, 2026-12-01), else one. */
__host__ __device__ __forceinline__ int moe_few_stage_size(int k2) {
    return k2 <= 6 ? 2 * EXL3_SLICES : EXL3_SLICES;
}

/* Bytes of a stage of any rate up to k2. */
__host__ __device__ __forceinline__ int moe_few_slot_bytes(int k2) {
    const int two = 2 * EXL3_SLICES * 64 * 6, one = EXL3_SLICES * 64 * k2;
    return one > two ? one : two;
}

/* A row of operands: two digits a value, the rows of a job in different banks. */
__host__ __device__ __forceinline__ int moe_few_row_bytes(int width) {
    return 2 * width + 32;
}

/* Experts of the pairs and their matrices. Threads i + 64 m: matrix m of pair i. */
__device__ __forceinline__ void moe_few_load(const moe_few_args &a, moe_few_shared &sh) {
    const int i = threadIdx.x % MOE_FEW_PAIRS, m = threadIdx.x / MOE_FEW_PAIRS;
    const int n = moe_few_pairs(a);
    if (m < 3) {
        const bool is_job = i < n || (i == n && a.has_shared);
        const int e = i < n ? __ldcg(a.expert + i) : i == n ? a.n_experts : -1 - i;
        if (m == 0) sh.expert[i] = e;
        moe_few_matrix x = {};
        if (is_job) {
            const moe_expert &from = a.experts[e];
            const exl3_gpu_matrix &p = (m == 0 ? from.w1 : m == 1 ? from.w3 : from.w2).packed;
            x = {(const char *)p.words, p.suh, p.svh, p.k2, 0};
        }
        /* rows of a job, and the places of pairs, while the matrices are on their way */
        if (m == 0) {
            ptx_named_barrier(1, MOE_FEW_PAIRS);
            unsigned same[2] = {0, 0};
#pragma unroll
            for (int j = 0; j < MOE_FEW_PAIRS; j += 4) {
                const int4 o = *(const int4 *)(sh.expert + j);
                same[j >> 5] |=
                    (unsigned)(o.x == e) << (j & 31) | (unsigned)(o.y == e) << (j + 1 & 31) |
                    (unsigned)(o.z == e) << (j + 2 & 31) | (unsigned)(o.w == e) << (j + 3 & 31);
            }
            const unsigned long long all = same[0] | (unsigned long long)same[1] << 32;
            const int owner = __ffsll((long long)all) - 1;
            sh.owner[i] = owner;
            sh.row[i] = __popcll(all & ((1ull << i) - 1)); /* in its job, until moe_few_plan */
            sh.n_rows[i] = !is_job || owner != i ? 0 : i == n ? a.n_tokens : __popcll(all);
        }
        sh.matrix[i][m] = x;
    }
    for (int k = threadIdx.x; k < MOE_FEW_OPS; k += blockDim.x) {
        sh.most[k] = 0;
        sh.sum[k] = 0;
    }
}

/* Inclusive prefix sums over a warp. */
__device__ __forceinline__ int moe_few_upto(int v) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int m = 1; m < 32; m <<= 1) {
        const int o = __shfl_up_sync(~0u, v, m);
        if (lane >= m) v += o;
    }
    return v;
}

/* Rows and costs before every job: warp 0 gate and up, warp 1 down. */
__device__ __forceinline__ void moe_few_count(moe_few_shared &sh, int warp) {
    const int lane = threadIdx.x & 31;
    const int n0 = sh.n_rows[lane], n1 = sh.n_rows[lane + 32];
    if (warp == 0) {
        const int g0 = moe_few_cost(sh.matrix[lane][0].k2, n0),
                  u0 = moe_few_cost(sh.matrix[lane][1].k2, n0);
        const int g1 = moe_few_cost(sh.matrix[lane + 32][0].k2, n1),
                  u1 = moe_few_cost(sh.matrix[lane + 32][1].k2, n1);
        const int c0 = moe_few_upto(g0 + u0), all0 = __shfl_sync(~0u, c0, 31);
        const int c1 = moe_few_upto(g1 + u1) + all0;
        *(int2 *)(sh.cost_in + 2 * lane) = make_int2(c0 - g0 - u0, c0 - u0);
        *(int2 *)(sh.cost_in + 64 + 2 * lane) = make_int2(c1 - g1 - u1, c1 - u1);
        if (lane == 31) sh.cost_in[128] = c1;
    } else {
        const int d0 = moe_few_cost(sh.matrix[lane][2].k2, n0),
                  d1 = moe_few_cost(sh.matrix[lane + 32][2].k2, n1);
        const int c0 = moe_few_upto(d0), all0 = __shfl_sync(~0u, c0, 31);
        const int c1 = moe_few_upto(d1) + all0;
        sh.cost_out[lane] = c0 - d0;
        sh.cost_out[lane + 32] = c1 - d1;
        if (lane == 31) sh.cost_out[64] = c1;
    }
    const int r0 = moe_few_upto(n0), r1 = moe_few_upto(n1) + __shfl_sync(~0u, r0, 31);
    sh.first_row[lane] = r0 - n0; /* by both warps, each for itself */
    sh.first_row[lane + 32] = r1 - n1;
    __syncwarp();
}

/* What a row of operands costs a block, in slices of cost 1 (H200, 2026-12-01): gate and up, down. */
constexpr int MOE_FEW_ROW_IN = 700, MOE_FEW_ROW_OUT = 600;

/* Costs of gate and up or of down that are the block's. The matrices of the shared expert have blocks of their own, since
 * they make operands of the rows of all tokens: as few as are done before the others. */
__device__ __forceinline__ int2 moe_few_share(
    const moe_few_args &a, const int *costs, int n_slices, int is_down) {
    const int lane = threadIdx.x & 31, n_ctas = (int)gridDim.x, cta = (int)blockIdx.x;
    const int n = moe_few_pairs(a), parts = is_down ? 1 : 2, *c = costs + parts * n;
    const int row = is_down ? MOE_FEW_ROW_OUT : MOE_FEW_ROW_IN;
    const int first = c[0] * n_slices + parts * n * row; /* the others' */
    if (!a.has_shared) return exl3_share(first, n_ctas, cta);
    const int gate = (c[1] - c[0]) * n_slices, up = (c[parts] - c[1]) * n_slices;
    int own = 0;
    for (int n0 = 1; own == 0; n0 += 32) {
        const int k = n0 + lane, rest = n_ctas - parts * k;
        const bool is_enough =
            4 * parts * k >= n_ctas || max(gate, up) / k + (a.n_tokens - 1) * row <= first / rest;
        const unsigned are = __ballot_sync(~0u, is_enough);
        if (are != 0) own = n0 + __ffs((int)are) - 1;
    }
    const int rest = n_ctas - parts * own, i = cta - rest;
    if (i < 0) return exl3_share(first, rest, cta);
    const int2 s = i < own ? exl3_share(gate, own, i) : exl3_share(up, own, i - own);
    const int at = first + (i < own ? 0 : gate) + (i < own ? 1 : 2) * a.n_tokens * row;
    return make_int2(at + s.x, at + s.y);
}

/* The block's segments of gate and up (warp 0) or of down (warp 1); how many. */
__device__ __forceinline__ int moe_few_find(
    const moe_few_args &a, moe_few_shared &sh, int is_down) {
    const int lane = threadIdx.x & 31, n = (is_down ? 1 : 2) * MOE_FEW_PAIRS;
    const int n_slices = a.d / 64 * (a.n_ff / 64) * EXL3_SLICES;
    const int *costs = is_down ? sh.cost_out : sh.cost_in;
    const int2 mine = moe_few_share(a, costs, n_slices, is_down);
    moe_few_segment *to = sh.segment + is_down * MOE_FEW_SEGMENTS;
    int found = 0;
    for (int i0 = 0; i0 < n; i0 += 32) {
        const int i = i0 + lane, cost = costs[i + 1] - costs[i];
        const int job = is_down ? i : i >> 1, which = is_down ? 2 : i & 1;
        const int rows = sh.n_rows[job], row = sh.first_row[job];
        /* operands of those before and its own */
        const int made = is_down ? (row + rows) * MOE_FEW_ROW_OUT
                                 : (2 * row + (which + 1) * rows) * MOE_FEW_ROW_IN;
        const int first = costs[i] * n_slices + made;
        int begin = 0, end = 0;
        if (cost > 0 && first < mine.y && first + cost * n_slices > mine.x) {
            begin = (max(mine.x - first, 0) + cost - 1) / cost;
            end = min((mine.y - first + cost - 1) / cost, n_slices);
        }
        const unsigned are = __ballot_sync(~0u, begin < end);
        if (begin < end) {
            const moe_few_matrix &m = sh.matrix[job][which];
            to[found + __popc(are & ((1u << lane) - 1))] = {
                m.words, m.suh, which, m.k2, rows, row, begin, end, cost, 0, 0, 0};
        }
        found += __popc(are);
    }
    __syncwarp();
    return found;
}

/* Which of n segments go together: all, as long as there is room for their operands. One thread. */
__device__ __forceinline__ void moe_few_gather(
    const moe_few_params &p, moe_few_shared &sh, int is_down, int n) {
    const int row = moe_few_row_bytes(is_down ? p.a.n_ff : p.a.d);
    const int at = is_down * MOE_FEW_SEGMENTS;
    int n_groups = 0, used = 0, ops = at * EXL3_GPU_MAX_ROWS;
    moe_few_group g = {at, at, 0, is_down, ops, 0};
    for (int i = at; i < at + n; i++) {
        moe_few_segment &s = sh.segment[i];
        const int bytes = s.n_rows * row;
        if (used + bytes > p.room) {
            sh.group[at + n_groups++] = g;
            g = {i, i, 0, is_down, ops, 0};
            used = 0;
        }
        s.operand = used;
        s.first_op = ops;
        s.before = g.cost;
        used += bytes;
        ops += s.n_rows;
        g.n_ops += s.n_rows;
        g.cost += s.cost * (s.end - s.begin);
        g.last = i + 1;
    }
    if (g.first < g.last) sh.group[at + n_groups++] = g;
    sh.n_segments[is_down] = n;
    sh.n_groups[is_down] = n_groups;
}

/* Slice of a group's segment where cost falls. */
__device__ __forceinline__ int moe_few_at(const moe_few_segment &s, int cost) {
    return min(max(s.begin, s.begin + (cost - s.before + s.cost - 1) / s.cost), s.end);
}

/* The pieces of a warp: lane i of segment i. Stages that bring them. */
__device__ __forceinline__ int moe_few_pieces(moe_few_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int is_down = lane >= MOE_FEW_SEGMENTS, i = is_down ? lane - MOE_FEW_SEGMENTS : lane;
    int stages = 0;
    if (lane < 2 * MOE_FEW_SEGMENTS) {
        int2 piece = make_int2(0, 0);
        if (i < sh.n_segments[is_down]) {
            const moe_few_group *g = sh.group + is_down * MOE_FEW_SEGMENTS;
            while (lane >= g->last)
                g++;
            const int2 share =
                exl3_share(g->cost, MOE_FEW_WARPS, is_down ? MOE_FEW_WARPS - 1 - warp : warp);
            const moe_few_segment &s = sh.segment[lane];
            piece = make_int2(moe_few_at(s, share.x), moe_few_at(s, share.y));
            const int size = moe_few_stage_size(s.k2);
            if (piece.x < piece.y) stages = (piece.y + size - 1) / size - piece.x / size;
        }
        sh.piece[warp][lane] = piece;
    }
    __syncwarp();
    return __reduce_add_sync(~0u, stages);
}

/* All of it, by all threads. */
__device__ __forceinline__ void moe_few_plan(const moe_few_params &p, moe_few_shared &sh) {
    const int warp = threadIdx.x >> 5, n = moe_few_pairs(p.a);
    moe_few_load(p.a, sh);
    __syncthreads();
    if (warp < 2) {
        moe_few_count(sh, warp);
        const int found = moe_few_find(p.a, sh, warp);
        if (threadIdx.x % 32 == 0) moe_few_gather(p, sh, warp, found);
    }
    __syncthreads();
    if (warp == 2 || warp == 3) {
        const int i = threadIdx.x - 64;
        if (i < n) {
            const int row = sh.first_row[sh.owner[i]] + sh.row[i];
            sh.row[i] = row;
            sh.pair[row] = i;
        } else if (i < moe_few_rows(p.a)) {
            sh.pair[i] = i;
            sh.row[i] = i;
            sh.owner[i] = n;
        }
    }
    __syncthreads();
    /* eight threads a segment: its rows */
    const int i = threadIdx.x / EXL3_GPU_MAX_ROWS, r = threadIdx.x % EXL3_GPU_MAX_ROWS;
    const int is_down = i >= MOE_FEW_SEGMENTS;
    if (i < 2 * MOE_FEW_SEGMENTS && i - is_down * MOE_FEW_SEGMENTS < sh.n_segments[is_down] &&
        r < sh.segment[i].n_rows) {
        const moe_few_segment &s = sh.segment[i];
        const int row = s.row + r, pair = sh.pair[row];
        const int token = pair < n ? pair / p.a.n_used : pair - n;
        const int at = s.operand + r * moe_few_row_bytes(is_down ? p.a.n_ff : p.a.d);
        sh.op[s.first_op + r] = {s.suh, token, row, at, s.which, s.begin == 0};
    }
    __syncthreads();
}

#endif
