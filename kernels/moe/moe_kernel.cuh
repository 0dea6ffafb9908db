/* Grouping of (row, expert) pairs on the device, and what lies between the linears of the experts.
 * The shared expert is one more expert, last, that every row uses with weight 1. */
#ifndef TANDEM_KERNELS_MOE_MOE_KERNEL_CUH
#define TANDEM_KERNELS_MOE_MOE_KERNEL_CUH

#include "kernels/device.cuh"
#include "kernels/moe/moe_row.h"

constexpr int MOE_PLAN_BLOCK = 1024;
constexpr int MOE_MAX_EXPERTS = MOE_PLAN_BLOCK - 1;

/* Lists of tiles for the products: of the input jobs by moe_tile_class, then of down. */
enum { MOE_TILE_CLASSES = 4, MOE_TILE_LISTS = 2 * MOE_TILE_CLASSES };

/* Work areas of a run; the tail of moe_args.work. */
struct moe_buffers {
    int32_t *pair_row;  /* [pairs] row of a pair; pairs of an expert lie together */
    float *pair_weight; /* [pairs] */
    int32_t *row_pair;  /* [rows][used + 1] pairs of a row in expert order, shared last */
    float *gate, *up;   /* [pairs][n_ff] */
    float *down;        /* [pairs][d] */
    /* jobs of the three linears; lists of gate and up alternate */
    exl3_gpu_job *packed_in, *packed_out;
    plain_job *plain_in, *plain_out;
    exl3_gpu_tile *tiles; /* of the input jobs; those of down are the even ones, made beside */
    exl3_gpu_tile *down_tiles;
    /* The same by rows of the product that takes them. */
    exl3_gpu_tile *part_tiles[MOE_TILE_LISTS];
    exl3_gpu_tile *groups; /* every eighth row of every expert */
    int32_t *n_tiles;      /* [3 + MOE_TILE_LISTS]: input jobs, down, of part_tiles, of groups */
    exl3_gpu_list *few_in, *few_out; /* for the fused form */
    uint32_t *operand_in, *operand_out;
    exl3_gpu_scale *scale_in, *scale_out;
    uint32_t *row_max;
    int32_t *row_counter, *block_counter;
};

struct moe_plan_args {
    moe_args a;
    moe_buffers b;
    const moe_expert *experts; /* [n_experts + 1] */
    int is_few, is_bf16, tile_rows;
};

/* Exclusive prefix sums over the block. shared: 33 ints. *total: of all. */
__device__ __forceinline__ int moe_prefix(int v, int *shared, int *total) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int sum = v;
    for (int m = 1; m < 32; m <<= 1) {
        const int o = __shfl_up_sync(~0u, sum, m);
        if (lane >= m) sum += o;
    }
    if (lane == 31) shared[warp] = sum;
    __syncthreads();
    int all = shared[lane];
    for (int m = 1; m < 32; m <<= 1) {
        const int o = __shfl_up_sync(~0u, all, m);
        if (lane >= m) all += o;
    }
    const int before = __shfl_sync(~0u, all, warp) - shared[warp];
    *total = __shfl_sync(~0u, all, 31);
    __syncthreads();
    return before + sum - v;
}

__device__ __forceinline__ int moe_row_cap(int n, bool is_few) {
    return !is_few ? (n + 7) / 8 * 8 : n <= 2 ? n : n <= 4 ? 4 : 8;
}

/* What a block knows of an expert: its job, first pair and first group of eight rows. */
struct moe_start {
    int job, pair, group;
};

/* The pairs of one of the blocks. */
struct moe_part {
    int first, last, number, count; /* count: of the blocks */
    __device__ explicit moe_part(int n_pairs) : number((int)blockIdx.x), count((int)gridDim.x) {
        const int size = (int)((unsigned)(n_pairs + count - 1) / (unsigned)count);
        first = number * size;
        last = min(n_pairs, first + size);
    }
};

/* Pairs of every row in expert order: the order of the sum. */
__device__ __forceinline__ void moe_row_pairs(
    const moe_plan_args &p, const moe_part &part, int *next, const moe_start *start) {
    const moe_args &a = p.a;
    const int n_pairs = a.n_rows * a.n_used;
    for (int i = part.first + threadIdx.x; i < part.last; i += MOE_PLAN_BLOCK) {
        const int e = a.expert[i], row = i / a.n_used, at = atomicAdd(next + e, 1);
        const moe_start &s = start[e];
        const int in_job = at - s.pair;
        if (!p.is_few && in_job % 8 == 0) p.b.groups[s.group + in_job / 8] = {s.job, in_job};
        p.b.pair_row[at] = row;
        p.b.pair_weight[at] = a.weight[i];
        int rank = 0; /* experts of a row are distinct */
        for (int c = 0; c < a.n_used; c++)
            rank += a.expert[row * a.n_used + c] < e;
        p.b.row_pair[row * (a.n_used + 1) + rank] = at;
    }
    for (int r = part.number * MOE_PLAN_BLOCK + threadIdx.x; r < a.n_rows;
         r += part.count * MOE_PLAN_BLOCK) {
        const moe_start &s = start[a.n_experts];
        if (!p.is_few && r % 8 == 0) p.b.groups[s.group + r / 8] = {s.job, r};
        p.b.pair_row[n_pairs + r] = r;
        p.b.pair_weight[n_pairs + r] = 1.f;
        p.b.row_pair[r * (a.n_used + 1) + a.n_used] = n_pairs + r;
    }
}

/* Pairs of expert threadIdx.x in all blocks, and in those before this one. count: of this block, [MOE_PLAN_BLOCK]. */
__device__ __forceinline__ int moe_count(
    const moe_plan_args &p, const moe_part &part, int *count, int *before) {
    const int e = threadIdx.x;
    int all = 0;
    *before = 0;
    count[e] = 0;
    __syncthreads();
    for (int i = part.first + e; i < part.last; i += MOE_PLAN_BLOCK)
        atomicAdd(count + p.a.expert[i], 1);
    if (part.count == 1) {
        __syncthreads();
        return count[e];
    }
    ptx_cluster_barrier();
    for (int q = 0; q < part.count; q++) {
        const int n = ptx_cluster_at(count, q)[e];
        *before += q < part.number ? n : 0;
        all += n;
    }
    return all;
}

__device__ __forceinline__ exl3_gpu_job moe_packed_job(
    const exl3_gpu_matrix &m, int n_rows, bool is_few) {
    exl3_gpu_job j = {};
    j.matrix = m;
    j.n_rows = n_rows;
    j.row_cap = moe_row_cap(n_rows, is_few);
    return j;
}

/* Rows a run may have in the fused form; an expert with more than 8 of them is listed again. */
constexpr int MOE_FEW_ROWS = 32;

/* What an expert's jobs begin with. */
struct moe_place {
    int job, pair, rows, operand_row; /* jobs, pairs and rows of operands before */
    int cost_in, cost_out;            /* of one unit of every job before: gate and up, down */
};

/* Jobs of an expert, and rows of operands they take. */
__device__ __forceinline__ int moe_jobs_of(int rows, bool is_few) {
    return is_few ? (rows + EXL3_GPU_MAX_ROWS - 1) / EXL3_GPU_MAX_ROWS : rows > 0;
}
__device__ __forceinline__ int moe_operand_rows(int rows, bool is_few) {
    if (!is_few) return moe_row_cap(rows, false);
    const int rest = rows % EXL3_GPU_MAX_ROWS;
    return rows - rest + (rest > 0 ? moe_row_cap(rest, true) : 0);
}

/* Of one unit of gate and of up (is_in) or of down, for a job of rows. */
__device__ __forceinline__ int moe_unit_cost(const moe_expert &x, int rows, bool is_in) {
    if (!is_in) return exl3_gpu_unit_cost(x.w2.packed.k2, rows);
    return exl3_gpu_unit_cost(x.w1.packed.k2, rows) + exl3_gpu_unit_cost(x.w3.packed.k2, rows);
}
/* The same for all jobs of an expert in the fused form. */
__device__ __forceinline__ int moe_cost(const moe_expert &x, int rows, bool is_in) {
    const int rest = rows % EXL3_GPU_MAX_ROWS;
    int cost = rows / EXL3_GPU_MAX_ROWS * moe_unit_cost(x, EXL3_GPU_MAX_ROWS, is_in);
    if (rest > 0) cost += moe_unit_cost(x, rest, is_in);
    return cost;
}

__device__ __forceinline__ void moe_packed_jobs(
    const moe_plan_args &p, const moe_expert &x, const moe_place &at) {
    const bool is_few = p.is_few != 0;
    const int d = p.a.d, ff = p.a.n_ff;
    exl3_gpu_job *in = is_few ? p.b.few_in->jobs : p.b.packed_in;
    exl3_gpu_job *out = is_few ? p.b.few_out->jobs : p.b.packed_out;
    for (int i = 0; i < 2; i++) {
        exl3_gpu_job j = moe_packed_job(i == 0 ? x.w1.packed : x.w3.packed, at.rows, is_few);
        const size_t row = (size_t)(2 * at.operand_row + i * j.row_cap);
        j.x = p.a.x;
        j.x_rows = p.b.pair_row + at.pair;
        j.x_stride = d;
        j.operand = p.b.operand_in + row * (size_t)d / 2;
        j.scale = p.b.scale_in + row;
        j.y = (i == 0 ? p.b.gate : p.b.up) + (size_t)at.pair * ff;
        j.y_stride = ff;
        j.is_bf16 = p.is_bf16;
        j.first_sum = (2 * at.pair + i * at.rows) * ff;
        j.first_counter = at.job * (ff / 128);
        j.first_unit = (2 * at.job + i) * exl3_gpu_units(d, ff);
        const int before = i == 0 ? 0 : exl3_gpu_unit_cost(x.w1.packed.k2, at.rows);
        j.first_cost = (at.cost_in + before) * exl3_gpu_units(d, ff);
        in[2 * at.job + i] = j;
    }
    exl3_gpu_job j = moe_packed_job(x.w2.packed, at.rows, is_few);
    j.x = p.b.gate + (size_t)at.pair * ff;
    j.x_stride = ff;
    j.operand = p.b.operand_out + (size_t)at.operand_row * ff / 2;
    j.scale = p.b.scale_out + at.operand_row;
    j.y = p.b.down + (size_t)at.pair * d;
    j.y_stride = d;
    j.is_bf16 = p.is_bf16;
    j.first_pair = at.pair;
    const int n_pairs = p.a.n_rows * (p.a.n_used + 1);
    j.first_sum = 2 * n_pairs * ff + at.pair * d;
    j.first_counter = (n_pairs * (ff / 128)) + at.job * (d / 128);
    j.first_unit = at.job * exl3_gpu_units(ff, d);
    j.first_cost = at.cost_out * exl3_gpu_units(ff, d);
    out[at.job] = j;
}

__device__ __forceinline__ void moe_plain_jobs(
    const moe_plan_args &p, const moe_expert &x, const moe_place &at) {
    const int d = p.a.d, ff = p.a.n_ff;
    for (int i = 0; i < 2; i++) {
        plain_job j = {};
        j.matrix = i == 0 ? x.w1 : x.w3;
        j.x = p.a.x;
        j.x_rows = p.b.pair_row + at.pair;
        j.x_stride = d;
        j.y = (i == 0 ? p.b.gate : p.b.up) + (size_t)at.pair * ff;
        j.y_stride = ff;
        j.n_rows = at.rows;
        j.is_bf16 = p.is_bf16;
        p.b.plain_in[2 * at.job + i] = j;
    }
    plain_job j = {};
    j.matrix = x.w2;
    j.x = p.b.gate + (size_t)at.pair * ff;
    j.x_stride = ff;
    j.y = p.b.down + (size_t)at.pair * d;
    j.y_stride = d;
    j.n_rows = at.rows;
    j.is_bf16 = p.is_bf16;
    p.b.plain_out[at.job] = j;
}

/* The product for a tile with rows left of its expert: 0: of tile_rows, 1, 2, 3: of 96, 64 and 32 rows, for what is left
 * behind full tiles of 128, since a tile costs what the rows of its product cost. */
__device__ __forceinline__ int moe_tile_class(const moe_plan_args &p, int rows) {
    if (p.tile_rows < EXL3_GPU_WIDEST_ROWS || rows > EXL3_GPU_WIDE_ROWS) return 0;
    return rows > EXL3_GPU_TILE_ROWS ? 1 : rows > EXL3_GPU_SHORT_ROWS ? 2 : 3;
}

/* Tiles of the experts before one, or of all: in all and of the classes but the first, of which an expert has one at
 * most. */
struct moe_tile_counts {
    int all, of[MOE_TILE_CLASSES];
};
__device__ __forceinline__ moe_tile_counts moe_count_tiles(
    const moe_plan_args &p, int rows, int *shared, moe_tile_counts &total) {
    const int n = (rows + p.tile_rows - 1) / p.tile_rows;
    const int last = rows > 0 ? moe_tile_class(p, rows - (n - 1) * p.tile_rows) : 0;
    moe_tile_counts before;
    before.all = before.of[0] = moe_prefix(n, shared, &total.all);
    total.of[0] = total.all;
#pragma unroll
    for (int i = 1; i < MOE_TILE_CLASSES; i++) {
        before.of[i] = moe_prefix(last == i, shared, total.of + i);
        before.of[0] -= before.of[i];
        total.of[0] -= total.of[i];
    }
    return before;
}

/* Tiles of an expert. */
__device__ __forceinline__ void moe_tiles(
    const moe_plan_args &p, const moe_place &at, moe_tile_counts before) {
    for (int row = 0; row < at.rows; row += p.tile_rows, before.all++) {
        const exl3_gpu_tile gate = {2 * at.job, row}, up = {2 * at.job + 1, row},
                            down = {at.job, row};
        const int kind = moe_tile_class(p, at.rows - row);
        const int to = kind == 0   ? before.of[0]++
                       : kind == 1 ? before.of[1]
                       : kind == 2 ? before.of[2]
                                   : before.of[3];
        exl3_gpu_tile *in = p.b.part_tiles[kind];
        p.b.tiles[2 * before.all] = in[2 * to] = gate;
        p.b.tiles[2 * before.all + 1] = in[2 * to + 1] = up;
        p.b.down_tiles[before.all] = p.b.part_tiles[MOE_TILE_CLASSES + kind][to] = down;
    }
}

/* Heads of the lists of the fused form; costs of one unit of every job. */
__device__ __forceinline__ void moe_few_totals(
    const moe_plan_args &p, int n_jobs, int cost_in, int cost_out) {
    const int units_in = exl3_gpu_units(p.a.d, p.a.n_ff),
              units_out = exl3_gpu_units(p.a.n_ff, p.a.d);
    p.b.few_in->n_jobs = 2 * n_jobs;
    p.b.few_in->n_units = 2 * n_jobs * units_in;
    p.b.few_in->n_cost = cost_in * units_in;
    p.b.few_out->n_jobs = n_jobs;
    p.b.few_out->n_cost = cost_out * units_out;
    p.b.few_out->n_units = n_jobs * units_out;
}

/* Counts pairs of every expert, gives them places, writes the jobs, groups and tiles. One block, or a cluster of blocks each
 * with a part of the pairs: 49,152 pairs take 158 us with one, 86, 51 and 33 with two, four and eight (H200, 2026-12-01). */
__global__ void __launch_bounds__(MOE_PLAN_BLOCK)
    moe_plan_kernel(const __grid_constant__ moe_plan_args p) {
    kernel_begin();
    __shared__ int count[MOE_PLAN_BLOCK], next[MOE_PLAN_BLOCK], shared[33];
    __shared__ moe_start start[MOE_PLAN_BLOCK];
    const moe_args &a = p.a;
    const moe_part part(a.n_rows * a.n_used);
    const int e = threadIdx.x;
    int before = 0;
    const int counted = moe_count(p, part, count, &before);
    const int rows = e < a.n_experts ? counted : e == a.n_experts ? a.n_rows : 0;
    int n_jobs, all_pairs, all_rows;
    moe_tile_counts all_tiles;
    moe_place at = {};
    at.rows = rows;
    at.job = moe_prefix(moe_jobs_of(rows, p.is_few), shared, &n_jobs);
    at.pair = moe_prefix(rows, shared, &all_pairs);
    at.operand_row = moe_prefix(moe_operand_rows(rows, p.is_few), shared, &all_rows);
    const moe_tile_counts tiles_before = moe_count_tiles(p, rows, shared, all_tiles);
    int all_in = 0, all_out = 0;
    if (p.is_few) {
        const moe_expert &x = p.experts[rows > 0 ? e : 0];
        at.cost_in = moe_prefix(rows > 0 ? moe_cost(x, rows, true) : 0, shared, &all_in);
        at.cost_out = moe_prefix(rows > 0 ? moe_cost(x, rows, false) : 0, shared, &all_out);
    }
    next[e] = at.pair + before;
    start[e] = {at.job, at.pair, at.operand_row / 8};
    __syncthreads();
    moe_row_pairs(p, part, next, start);
    if (part.count > 1) ptx_cluster_barrier(); /* nobody leaves while its counts are read */
    if (e == 0 && part.number == 0) {
        p.b.n_tiles[0] = 2 * all_tiles.all;
        p.b.n_tiles[1] = all_tiles.all;
#pragma unroll
        for (int i = 0; i < MOE_TILE_CLASSES; i++) {
            p.b.n_tiles[2 + i] = 2 * all_tiles.of[i];
            p.b.n_tiles[2 + MOE_TILE_CLASSES + i] = all_tiles.of[i];
        }
        p.b.n_tiles[2 + MOE_TILE_LISTS] = all_rows / 8;
        if (p.is_few) moe_few_totals(p, n_jobs, all_in, all_out);
    }
    if (rows == 0 || e % part.count != part.number) return;
    const moe_expert &x = p.experts[e];
    if (p.is_few) {
        for (int left = rows; left > 0; left -= EXL3_GPU_MAX_ROWS) {
            at.rows = min(left, EXL3_GPU_MAX_ROWS);
            moe_packed_jobs(p, x, at);
            at.job++;
            at.cost_in += moe_unit_cost(x, at.rows, true);
            at.cost_out += moe_unit_cost(x, at.rows, false);
            at.pair += at.rows;
            at.operand_row += moe_row_cap(at.rows, true);
        }
        return;
    }
    if (x.w1.packed.words != nullptr) {
        moe_packed_jobs(p, x, at);
    } else {
        moe_plain_jobs(p, x, at);
    }
    moe_tiles(p, at, tiles_before);
}

/* gate = weight * silu(gate) * up, with the limits. */
__global__ void __launch_bounds__(DEVICE_BLOCK) moe_act_kernel(
    float *gate, const float *up, const float *weight, int n_ff, float limit, bool is_bf16) {
    kernel_begin();
    const size_t p = blockIdx.x;
    for (int i = threadIdx.x; i < n_ff; i += DEVICE_BLOCK) {
        const size_t at = p * n_ff + i;
        gate[at] = bf16_near_if(is_bf16, swiglu_of(gate[at], up[at], limit, weight[p]));
    }
}

constexpr int MOE_SUM_BLOCK = 128;
constexpr int MOE_SUM_BATCH = 8; /* pairs of a row that are read at once */

__device__ __forceinline__ float moe_add(float a, float b) {
    return a + b;
}
__device__ __forceinline__ float4 moe_add(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* out = sum of a row's pairs in their order, n values a row. VALUE: float or float4, as the rows' length allows. 8,192 rows of
 * 7 x 5120 floats: 332 us, 4.0 TB/s (H200, 2026-12-01). */
template <class VALUE>
__global__ void __launch_bounds__(MOE_SUM_BLOCK)
    moe_sum_kernel(VALUE *out, const VALUE *down, const int32_t *row_pair, int n_used, int n) {
    kernel_begin();
    const int c = blockIdx.y * MOE_SUM_BLOCK + threadIdx.x;
    const size_t r = blockIdx.x;
    if (c >= n) return;
    const int32_t *list = row_pair + r * n_used;
    VALUE sum = {};
    for (int i0 = 0; i0 < n_used; i0 += MOE_SUM_BATCH) {
        VALUE v[MOE_SUM_BATCH];
#pragma unroll
        for (int i = 0; i < MOE_SUM_BATCH; i++) {
            if (i0 + i < n_used) v[i] = __ldcs(down + (size_t)list[i0 + i] * n + c);
        }
#pragma unroll
        for (int i = 0; i < MOE_SUM_BATCH; i++) {
            if (i0 + i < n_used) sum = i0 + i == 0 ? v[0] : moe_add(sum, v[i]);
        }
    }
    out[r * n + c] = sum;
}

#endif
