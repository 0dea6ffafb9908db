/*
 * Device side of moe_row.h. Both kernels: 16 warps, each with a private ring of
 * stages filled by bulk copies, one CTA an SM, operands resident in shared
 * memory as integers.
 *
 *   up     a cluster of CTAs for 128 outputs of gate and of up of one expert,
 * each CTA a part of the inputs; every CTA rotates the row itself; sums meet in
 * the cluster's shared memory down   stream-K over (block of 128 outputs,
 * expert, strip, inputs); the weights are fetched before the wait for up; sums
 * meet in global memory, one counter a block, and who completes it adds the
 * experts
 *
 * Bound by instruction issue on Hopper and by latency at both ends of a launch.
 */
#ifndef TANDEM_KERNELS_MOE_MOE_ROW_KERNEL_CUH
#define TANDEM_KERNELS_MOE_MOE_ROW_KERNEL_CUH

#include "kernels/exl3/exl3_rows_kernel.cuh"
#include "kernels/moe/moe_row.h"

constexpr int MOE_ROW_HELD = 5; /* blocks of 128 values a warp holds of a row */
constexpr int MOE_ROW_HALF = EXL3_WARPS / 2;

struct moe_row_params {
    exl3_powers powers;
    moe_row_args a;
    int slot_bytes, n_stages, n_rows_held; /* down: rows of operands a CTA has room for */
};

__device__ __forceinline__ int moe_row_slots(const moe_row_args &a) {
    return a.n_used + (a.has_shared ? 1 : 0);
}
/* Number of the expert in a slot. */
__device__ __forceinline__ int moe_row_expert(const moe_row_args &a, int slot) {
    return slot < a.n_used ? __ldcg(a.expert + slot) : a.n_experts;
}

/* A warp's ring over one run of units; lane 0 fills. */
struct moe_row_ring {
    exl3_ring ring;
    const char *next;
    int unit_bytes;

    __device__ void init(unsigned char *shared, unsigned long long *barriers, int bytes, int n) {
        const int warp = threadIdx.x >> 5;
        ring = {ptx_shared(shared) + warp * n * bytes,
            ptx_shared(barriers + warp * EXL3_MAX_STAGES), (uint32_t)bytes, (uint32_t)n, 0, 0};
        if ((threadIdx.x & 31) == 0) {
            for (int i = 0; i < n; i++)
                ptx_barrier_init(ring.barriers + 8 * i, 1);
            ptx_barrier_init_fence();
        }
        __syncwarp();
    }
    __device__ void fetch(uint32_t to, uint32_t barrier, uint64_t policy) {
        ptx_barrier_expect(barrier, unit_bytes);
        ptx_bulk_copy_once(to, next, unit_bytes, barrier, policy);
        next += unit_bytes;
    }
};

/* Where the units behind those of a run come from. */
struct moe_row_same {
    __device__ void operator()(moe_row_ring &) {
    }
};

/* n units whose operand (this lane's word) begins at operand; left: units of
 * the warp, these included. before_fetch looks whether the next unit lies
 * elsewhere. K = 0: any rate. */
template <int K, class MOVE>
__device__ __forceinline__ void moe_row_units(moe_row_ring &r, int n, int left, uint32_t operand,
    int k2, MOVE &before_fetch, const exl3_powers &powers, int (&acc)[4][1][4]) {
    const int lane = threadIdx.x & 31;
    const uint64_t policy = ptx_policy_once();
    const exl3_lane<(K ? K : 1)> l(lane);
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        ptx_barrier_wait(r.ring.barrier(), r.ring.parity);
        if constexpr (K != 0) {
            exl3_unit<K, 1>(acc, r.ring.slot(), operand, 1, l, powers);
        } else {
            exl3_unit_any<1>(acc, r.ring.slot(), operand, 1, k2, lane);
        }
        operand += EXL3_SLICES * 32;
        __syncwarp();
        if (lane == 0 && left - i > (int)r.ring.n_stages) {
            before_fetch(r);
            r.fetch(r.ring.slot(), r.ring.barrier(), policy);
        }
        r.ring.next();
    }
}

/* The same with the rate chosen; sums are added to local [64][2]. */
template <class MOVE>
__device__ __forceinline__ void moe_row_strip(moe_row_ring &r, int n, int left, uint32_t operand,
    int k2, MOVE &move, const exl3_powers &powers, int *local) {
    int acc[4][1][4];
#pragma unroll
    for (int i = 0; i < 16; i++)
        (&acc[0][0][0])[i] = 0;
    switch (k2) {
    case 4:
        moe_row_units<2>(r, n, left, operand, k2, move, powers, acc);
        break;
    case 6:
        moe_row_units<3>(r, n, left, operand, k2, move, powers, acc);
        break;
    case 8:
        moe_row_units<4>(r, n, left, operand, k2, move, powers, acc);
        break;
    case 10:
        moe_row_units<5>(r, n, left, operand, k2, move, powers, acc);
        break;
    case 12:
        moe_row_units<6>(r, n, left, operand, k2, move, powers, acc);
        break;
    default:
        moe_row_units<0>(r, n, left, operand, k2, move, powers, acc);
        break;
    }
    const exl3_target to = {local, nullptr, 0, 1};
    exl3_flush<1>(acc, to, threadIdx.x & 31);
}

/* This lane's word of the operand of a strip's first unit. */
__device__ __forceinline__ uint32_t moe_row_operand(const uint32_t *operand, int first_unit) {
    return ptx_shared(operand) + first_unit * EXL3_SLICES * 32 + (threadIdx.x & 7) * 4;
}

/* ---- up ---- */

struct moe_row_up_shared {
    unsigned long long barriers[EXL3_WARPS * EXL3_MAX_STAGES];
    uint32_t most[EXL3_WARPS];
    int sum[EXL3_WARPS];
    int local[4][64][2]; /* gate's strips, up's strips */
};

/* The row as operand of gate (the lower eight warps) and up. */
__device__ __forceinline__ void moe_row_rotate(const moe_row_args &a, const uint16_t *suh,
    uint32_t *operand, moe_row_up_shared &sh, const float4 (&x)[MOE_ROW_HELD]) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_blocks = a.d / 128;
    float4 v[MOE_ROW_HELD];
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < MOE_ROW_HELD; i++) {
        const int b = warp % MOE_ROW_HALF + i * MOE_ROW_HALF;
        if (b >= n_blocks) continue;
        v[i] = exl3_rotate(exl3_times(x[i], exl3_half4(suh + b * 128 + lane * 4)), lane);
        most = max(most, exl3_magnitude(v[i]));
    }
    most = __reduce_max_sync(~0u, most);
    if (lane == 0) sh.most[warp] = most;
    __syncthreads();
    const int half = warp & MOE_ROW_HALF;
    const exl3_row_range range(__reduce_max_sync(~0u, sh.most[half + lane % MOE_ROW_HALF]));
    int sum = 0;
#pragma unroll
    for (int i = 0; i < MOE_ROW_HELD; i++) {
        const int b = warp % MOE_ROW_HALF + i * MOE_ROW_HALF;
        if (b >= n_blocks) continue;
        sum += exl3_put_operand(operand, 1, 0, b * 128 + lane * 4, v[i], range.inv);
    }
    sum = __reduce_add_sync(~0u, sum);
    if (lane == 0) sh.sum[warp] = sum;
    __syncthreads();
}

/* Scale of gate's (half 0) or up's row. */
__device__ __forceinline__ exl3_gpu_scale moe_row_scale(const moe_row_up_shared &sh, int half) {
    const int at = half * MOE_ROW_HALF + (threadIdx.x & 31) % MOE_ROW_HALF;
    const bool is_first = (threadIdx.x & 31) < MOE_ROW_HALF;
    const exl3_row_range range(__reduce_max_sync(~0u, sh.most[at]));
    return {range.scale, __reduce_add_sync(~0u, is_first ? sh.sum[at] : 0)};
}

/* The block's hidden values, rotated for down. One warp. */
__device__ __forceinline__ void moe_row_finish_up(
    const moe_row_args &a, const moe_expert &x, int slot, int block, const moe_row_up_shared &sh) {
    const int lane = threadIdx.x & 31, at = block * 128 + lane * 4;
    const int n_parts = (int)ptx_cluster_size();
    const bool is_bf16 = a.is_bf16 != 0;
    const float4 gate_svh = exl3_half4(x.w1.packed.svh + at),
                 up_svh = exl3_half4(x.w3.packed.svh + at), suh = exl3_half4(x.w2.packed.suh + at);
    const float w = slot < a.n_used ? __ldcg(a.weight + slot) : 1.f;
    float4 g = exl3_cluster_row(ptx_shared(sh.local[0]), n_parts, 1, 0, moe_row_scale(sh, 0));
    float4 u = exl3_cluster_row(ptx_shared(sh.local[2]), n_parts, 1, 0, moe_row_scale(sh, 1));
    g = exl3_rounded(is_bf16, exl3_times(exl3_rotate(g, lane), gate_svh));
    u = exl3_rounded(is_bf16, exl3_times(exl3_rotate(u, lane), up_svh));
    float4 h = make_float4(swiglu_of(g.x, u.x, a.limit, w), swiglu_of(g.y, u.y, a.limit, w),
        swiglu_of(g.z, u.z, a.limit, w), swiglu_of(g.w, u.w, a.limit, w));
    h = exl3_rotate(exl3_times(exl3_rounded(is_bf16, h), suh), lane);
    __stcg((float4 *)(a.hidden + (size_t)slot * a.n_ff + at), h);
}

/* Grid: slots, blocks of n_ff, parts (fastest). */
static __global__ void __launch_bounds__(EXL3_WARPS * 32, 1)
    moe_row_up_kernel(const __grid_constant__ moe_row_params p) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(16) moe_row_up_shared sh;
    const moe_row_args &a = p.a;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int n_parts = (int)ptx_cluster_size(), part = blockIdx.x % n_parts;
    const int unit = blockIdx.x / n_parts, n_blocks = a.n_ff / 128;
    const int slot = unit / n_blocks, block = unit % n_blocks, units_in = a.d / EXL3_GPU_UNIT_IN;
    moe_row_ring r;
    r.init(shared, sh.barriers, p.slot_bytes, p.n_stages);
    for (int i = threadIdx.x; i < 4 * 64 * 2; i += EXL3_WARPS * 32)
        (&sh.local[0][0][0])[i] = 0;
    uint32_t *operand = (uint32_t *)(shared + EXL3_WARPS * p.n_stages * p.slot_bytes);
    const int strip = warp % 4, share = warp / 4; /* of the block's four strips */
    const int2 mine =
        exl3_share(units_in, n_parts * (EXL3_WARPS / 4), part * (EXL3_WARPS / 4) + share);
    const int n_mine = mine.y - mine.x;
    ptx_wait_for_previous();
    ptx_release_next();
    float4 x[MOE_ROW_HELD];
#pragma unroll
    for (int i = 0; i < MOE_ROW_HELD; i++) {
        const int b = warp % MOE_ROW_HALF + i * MOE_ROW_HALF;
        if (b < a.d / 128) x[i] = __ldcg((const float4 *)(a.x + b * 128 + lane * 4));
    }
    const moe_expert &expert = a.experts[moe_row_expert(a, slot)];
    const exl3_gpu_matrix &m = strip < 2 ? expert.w1.packed : expert.w3.packed;
    const int k2 = m.k2;
    r.unit_bytes = EXL3_SLICES * 64 * k2;
    if (lane == 0) {
        const uint64_t policy = ptx_policy_once();
        r.next = (const char *)m.words +
                 (size_t)((block * 2 + strip % 2) * units_in + mine.x) * r.unit_bytes;
        for (int i = 0; i < min(n_mine, p.n_stages); i++)
            r.fetch(r.ring.slots + i * p.slot_bytes, r.ring.barriers + 8 * i, policy);
    }
    const uint16_t *suh = (warp < MOE_ROW_HALF ? expert.w1 : expert.w3).packed.suh;
    moe_row_rotate(a, suh, operand + (warp < MOE_ROW_HALF ? 0 : a.d / 2), sh, x);
    if (warp == EXL3_WARPS - 1 && lane < 6) {
        const uint16_t *end = lane < 2   ? expert.w1.packed.svh
                              : lane < 4 ? expert.w3.packed.svh
                                         : expert.w2.packed.suh;
        ptx_prefetch_l2(end + block * 128 + lane % 2 * 64);
    }
    moe_row_same move;
    if (n_mine > 0)
        moe_row_strip(r, n_mine, n_mine,
            moe_row_operand(operand + (strip < 2 ? 0 : a.d / 2), mine.x), k2, move, p.powers,
            &sh.local[strip][0][0]);
    ptx_cluster_barrier();
    if (part == 0 && warp == 0) moe_row_finish_up(a, expert, slot, block, sh);
    ptx_cluster_barrier(); /* nobody leaves while its sums are read */
}

/* ---- down ---- */

struct moe_row_down_shared {
    unsigned long long barriers[EXL3_WARPS * EXL3_MAX_STAGES];
    exl3_gpu_matrix matrix[MOE_ROW_SLOTS];
    int expert[MOE_ROW_SLOTS];
    uint32_t most[MOE_ROW_SLOTS];
    int sum[MOE_ROW_SLOTS];
    int is_last;
    float4 part[MOE_ROW_SLOTS][32]; /* a block's values of every expert */
};

/* Pairs (block, slot) in the order of the work: number q is block q / slots,
 * slot q % slots. The ring's move to the next pair's weights. */
struct moe_row_move {
    const moe_row_down_shared *sh;
    int left, pair, n_slots, run; /* units left in the pair; units of a pair */
    __device__ void begin(moe_row_ring &r, int q, int unit) {
        const exl3_gpu_matrix &m = sh->matrix[q % n_slots];
        pair = q;
        left = run - unit;
        r.unit_bytes = EXL3_SLICES * 64 * m.k2;
        r.next =
            (const char *)m.words + ((size_t)(q / n_slots) * run + unit) * (size_t)r.unit_bytes;
    }
    __device__ void operator()(moe_row_ring &r) {
        if (left == 0) begin(r, pair + 1, 0);
        left--;
    }
};

/* Rows of the pairs [first, first + n) as operands. */
__device__ __forceinline__ void moe_row_quantize(const moe_row_args &a, int first, int n,
    int n_slots, uint32_t *operand, moe_row_down_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_blocks = a.n_ff / 128;
    float4 v[MOE_ROW_HELD];
#pragma unroll
    for (int i = 0; i < MOE_ROW_HELD; i++) {
        const int f = warp + i * EXL3_WARPS, row = f / n_blocks, b = f % n_blocks;
        if (row >= n) continue;
        const int slot = (first + row) % n_slots;
        v[i] = __ldcg((const float4 *)(a.hidden + (size_t)slot * a.n_ff + b * 128 + lane * 4));
        const uint32_t most = __reduce_max_sync(~0u, exl3_magnitude(v[i]));
        if (lane == 0) atomicMax(sh.most + row, most);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < MOE_ROW_HELD; i++) {
        const int f = warp + i * EXL3_WARPS, row = f / n_blocks, b = f % n_blocks;
        if (row >= n) continue;
        const exl3_row_range range(sh.most[row]);
        const int sum = __reduce_add_sync(~0u, exl3_put_operand(operand + (size_t)row * a.n_ff / 2,
                                                   1, 0, b * 128 + lane * 4, v[i], range.inv));
        if (lane == 0) atomicAdd(sh.sum + row, sum);
    }
    __syncthreads();
    if ((int)threadIdx.x >= n) return; /* every CTA that makes a row finds the same */
    const exl3_row_range range(sh.most[threadIdx.x]);
    __stcg((int2 *)(a.scale + (first + (int)threadIdx.x) % n_slots),
        make_int2(__float_as_int(range.scale), sh.sum[threadIdx.x]));
}

/* Adds a strip's sums to the sums of all. One warp. */
__device__ __forceinline__ void moe_row_add(
    const moe_row_args &a, const int *local, int slot, int output) {
    const int lane = threadIdx.x & 31;
    const int4 v = *(const int4 *)(local + lane * 4);
    unsigned long long *to = (unsigned long long *)a.sums + (size_t)slot * a.d + output + lane * 2;
    atomicAdd(to, (unsigned long long)(v.x * 256ll + v.y));
    atomicAdd(to + 1, (unsigned long long)(v.z * 256ll + v.w));
}

/* The sum over the experts of a block whose sums are complete. All threads. */
__device__ __forceinline__ void moe_row_finish_down(
    const moe_row_args &a, int block, int n_slots, moe_row_down_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, at = block * 128 + lane * 4;
    if (warp < n_slots) {
        const float4 svh = exl3_half4(sh.matrix[warp].svh + at);
        int64_t *sums = a.sums + (size_t)warp * a.d + block * 128;
        const float4 z = exl3_rotate(exl3_take(sums, a.scale + warp, lane), lane);
        int place = 0; /* ascending experts, the shared one last */
        for (int s = 0; s < n_slots; s++)
            place += sh.expert[s] < sh.expert[warp];
        sh.part[place][lane] = exl3_rounded(a.is_bf16 != 0, exl3_times(z, svh));
    }
    __syncthreads();
    if (warp == 0) {
        float4 sum = make_float4(0.f, 0.f, 0.f, 0.f);
        for (int s = 0; s < n_slots; s++) {
            const float4 y = sh.part[s][lane];
            sum = make_float4(sum.x + y.x, sum.y + y.y, sum.z + y.z, sum.w + y.w);
        }
        *(float4 *)(a.y + at) = sum;
    }
    __syncthreads();
}

/* Everything the CTA summed goes to the sums of all; blocks that are complete
 * then are finished. units: the CTA's; first: its first pair. */
__device__ __forceinline__ void moe_row_arrive(
    const moe_row_params &p, const int *local, int2 units, int first, moe_row_down_shared &sh) {
    const moe_row_args &a = p.a;
    const int n_slots = moe_row_slots(a), run = a.n_ff / EXL3_GPU_UNIT_IN * 2, all = run * n_slots;
    const int n_strips = ((units.y - 1) / run - first + 1) * 2;
    for (int i = threadIdx.x >> 5; i < n_strips; i += EXL3_WARPS) {
        const int q = first + i / 2;
        moe_row_add(a, local + i * 128, q % n_slots, q / n_slots * 128 + i % 2 * 64);
    }
    for (int block = units.x / all; block <= (units.y - 1) / all; block++) {
        ptx_fence_device();
        __syncthreads();
        if (threadIdx.x == 0) {
            const int done = min(units.y, (block + 1) * all) - max(units.x, block * all);
            sh.is_last = atomicAdd(a.counters + block, done) + done == all;
            if (sh.is_last) a.counters[block] = 0;
            ptx_fence_device();
        }
        __syncthreads();
        if (sh.is_last) moe_row_finish_down(a, block, n_slots, sh);
    }
}

/* Grid: one CTA an SM. */
static __global__ void __launch_bounds__(EXL3_WARPS * 32, 1)
    moe_row_down_kernel(const __grid_constant__ moe_row_params p) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(16) moe_row_down_shared sh;
    const moe_row_args &a = p.a;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_slots = moe_row_slots(a);
    const int units_in = a.n_ff / EXL3_GPU_UNIT_IN, run = 2 * units_in;
    const int n_units = a.d / 128 * n_slots * run, worker = blockIdx.x * EXL3_WARPS;
    const int2 mine = exl3_share(n_units, gridDim.x * EXL3_WARPS, worker + warp);
    const int2 cta = {exl3_share(n_units, gridDim.x * EXL3_WARPS, worker).x,
        exl3_share(n_units, gridDim.x * EXL3_WARPS, worker + EXL3_WARPS - 1).y};
    if (cta.x == cta.y) return;
    const int first = cta.x / run, n_rows = (cta.y - 1) / run - first + 1, n_mine = mine.y - mine.x;
    /* The experts were chosen before up began to let this kernel in. */
    if ((int)threadIdx.x < n_slots) {
        const int e = moe_row_expert(a, threadIdx.x);
        sh.expert[threadIdx.x] = e;
        sh.matrix[threadIdx.x] = a.experts[e].w2.packed;
    }
    if (threadIdx.x < MOE_ROW_SLOTS) sh.most[threadIdx.x] = 0, sh.sum[threadIdx.x] = 0;
    moe_row_ring r;
    r.init(shared, sh.barriers, p.slot_bytes, p.n_stages);
    uint32_t *operand = (uint32_t *)(shared + EXL3_WARPS * p.n_stages * p.slot_bytes);
    int *local = (int *)(operand + (size_t)p.n_rows_held * a.n_ff / 2);
    for (int i = threadIdx.x; i < n_rows * 256; i += EXL3_WARPS * 32)
        local[i] = 0;
    __syncthreads();
    moe_row_move move = {&sh, 0, 0, n_slots, run};
    if (lane == 0 && n_mine > 0) {
        const uint64_t policy = ptx_policy_once();
        move.begin(r, mine.x / run, mine.x % run);
        for (int i = 0; i < min(n_mine, p.n_stages); i++) {
            move(r);
            r.fetch(r.ring.slots + i * p.slot_bytes, r.ring.barriers + 8 * i, policy);
        }
    }
    ptx_wait_for_previous();
    ptx_release_next();
    moe_row_quantize(a, first, n_rows, n_slots, operand, sh);
#pragma unroll 1
    for (int done = 0; done < n_mine;) {
        const int unit = mine.x + done, q = unit / run, in_pair = unit % run;
        const int strip = in_pair / units_in, k = in_pair % units_in;
        const int n = min(n_mine - done, units_in - k);
        const uint32_t *row = operand + (size_t)(q - first) * a.n_ff / 2;
        moe_row_strip(r, n, n_mine - done, moe_row_operand(row, k), sh.matrix[q % n_slots].k2, move,
            p.powers, local + ((q - first) * 2 + strip) * 128);
        done += n;
    }
    __syncthreads();
    moe_row_arrive(p, local, cta, first, sh);
}

#endif
