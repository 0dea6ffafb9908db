/*
 * Device side of moe_row.h: one CTA an SM, 16 warps, each with a private ring of stages filled by bulk copies, operands
 * resident in shared memory.
 *
 *   plan   CTAs are dealt out to the matrices by cost, so a CTA works on one of gate and up and on one of down: it
 *          rotates one row and waits for one expert's hidden values
 *   work   a warp's slices (16 inputs x 64 outputs) of both, one behind the other in its ring: the weights of down arrive
 *          while gate and up end
 *   meet   moe_row_link.cuh: one warp of a CTA finishes a block of 128 hidden values, eight warps a block of outputs
 *
 * On an H200 (2026-12-01) six experts of 3 bits, half width, take 34 us: 3 from start to the first window (expert ids,
 * descriptors, scales of the inputs, rotation), 13 gate and up, 4 from the last sum to the operand of down, 7 down, 3 for
 * its end. The loop is bound by instruction issue, everything else by latency.
 */
#ifndef TANDEM_KERNELS_MOE_MOE_ROW_KERNEL_CUH
#define TANDEM_KERNELS_MOE_MOE_ROW_KERNEL_CUH

#include "kernels/exl3/exl3_operand.cuh"
#include "kernels/exl3/exl3_rows_kernel.cuh"
#include "kernels/moe/moe_row_link.cuh"

constexpr int MOE_ROW_HELD =
    MOE_ROW_MAX_WIDTH / 128 / EXL3_WARPS; /* blocks of 128 values of a warp */
constexpr int MOE_ROW_SLICE_BYTES = 128;  /* of the operand */
constexpr int MOE_ROW_MAX_STAGES = 4;

struct moe_row_params {
    exl3_powers powers;
    moe_row_args a;
    int slot_bytes, n_stages;
    int n_in_strips, n_out_strips; /* most that a CTA touches */
};

__device__ __forceinline__ int moe_row_slots(const moe_row_args &a) {
    return a.n_used + (a.has_shared ? 1 : 0);
}

/* A CTA's part of one matrix. */
struct moe_row_share {
    const char *words;
    int which, k2, first_cta; /* which: 2 * slot + (up), or slot of down */
    int2 units;
};

struct moe_row_shared {
    unsigned long long barriers[EXL3_WARPS * MOE_ROW_MAX_STAGES];
    const uint16_t *svh[32], *suh[32]; /* 2 * slot + (up), 16 + slot of down */
    int expert[MOE_ROW_SLOTS];
    moe_row_share in, out;
    uint32_t most[EXL3_WARPS];
    int sum[EXL3_WARPS];
    float4 part[MOE_ROW_SLOTS][32]; /* a block's values of every expert */
};

/* ---- plan ---- */

/* One warp; lane 2 s and 2 s + 1: gate and up of slot s, 16 + s: its down. */
__device__ __forceinline__ void moe_row_plan(const moe_row_args &a, moe_row_shared &sh) {
    const int lane = threadIdx.x & 31, n_slots = moe_row_slots(a);
    const int cta = (int)blockIdx.x, n_ctas = (int)gridDim.x;
    const int n_units = a.d / EXL3_GPU_UNIT_IN * (a.n_ff / EXL3_GPU_UNIT_IN);
    const int slot = lane < 16 ? lane >> 1 : lane - 16;
    const bool is_one = slot < n_slots;
    const int e = is_one && slot < a.n_used ? __ldcg(a.expert + slot) : a.n_experts;
    const moe_expert &x = a.experts[is_one ? e : 0];
    const exl3_gpu_matrix &m = (lane >= 16 ? x.w2 : (lane & 1) != 0 ? x.w3 : x.w1).packed;
    const int k2 = m.k2, cost = is_one ? exl3_gpu_unit_cost(k2, 1) : 0;
    const char *words = (const char *)m.words;
    sh.svh[lane] = m.svh;
    sh.suh[lane] = m.suh;
    int upto = cost;
#pragma unroll
    for (int i = 1; i < 16; i <<= 1) {
        const int o = __shfl_up_sync(~0u, upto, i, 16);
        if ((lane & 15) >= i) upto += o;
    }
    const int all = __shfl_sync(~0u, upto, 15, 16);
    const int begin = ((upto - cost) * n_ctas + all / 2) / all;
    const int end = (upto * n_ctas + all / 2) / all;
    if (lane >= 16 && is_one) sh.expert[slot] = e;
    if (!is_one || cta < begin || cta >= end) return;
    const int2 units = exl3_share(n_units, end - begin, cta - begin);
    (lane < 16 ? sh.in : sh.out) = {words, lane & 15, k2, begin, units};
}

/* What finishing this CTA's blocks will need, on its way to the L2 cache. One warp. */
__device__ __forceinline__ void moe_row_prefetch_ends(
    const moe_row_args &a, const moe_row_shared &sh) {
    const int lane = threadIdx.x & 31, cta = (int)blockIdx.x, n_slots = moe_row_slots(a);
    const int n_blocks = a.n_ff / 128, slot = cta / n_blocks, of_down = (lane - 16) / 2;
    const uint16_t *at = nullptr;
    if (slot < n_slots && lane < 6)
        at = (lane < 4 ? sh.svh[2 * slot + lane / 2] : sh.suh[16 + slot]) + cta % n_blocks * 128;
    if (cta < a.d / 128 && lane >= 16 && of_down < n_slots) at = sh.svh[16 + of_down] + cta * 128;
    if (at != nullptr) ptx_prefetch_l2(at + lane % 2 * 64);
}

/* ---- weights ---- */

/* Slices of this warp of a CTA's share. */
__device__ __forceinline__ int2 moe_row_slices(const moe_row_share &s, int warp) {
    const int2 mine = exl3_share(EXL3_SLICES * (s.units.y - s.units.x), EXL3_WARPS, warp);
    return make_int2(EXL3_SLICES * s.units.x + mine.x, EXL3_SLICES * s.units.x + mine.y);
}
/* Stages that bring them: none reaches over a unit's end. */
__device__ __forceinline__ int moe_row_stages(int2 s) {
    return s.x == s.y ? 0 : (s.y + EXL3_SLICES - 1) / EXL3_SLICES - s.x / EXL3_SLICES;
}
__device__ __forceinline__ int moe_row_stage(int at, int end) {
    return min(end, (at & ~(EXL3_SLICES - 1)) + EXL3_SLICES) - at;
}

/* A warp's ring: addresses of its first slot and barrier, and the slot and phase it uses next. */
struct moe_row_slots_ring {
    uint32_t slots, barriers, slot_bytes, n_stages, stage, parity;
    __device__ uint32_t slot() const {
        return slots + stage * slot_bytes;
    }
    __device__ uint32_t barrier() const {
        return barriers + 8 * stage;
    }
    __device__ void next() {
        if (++stage == n_stages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/* A run of slices, and where a warp's ring fills itself from: gate or up, then down. Lane 0. */
struct moe_row_source {
    const char *next;
    int at, end, bytes; /* bytes: of a slice */
    __device__ moe_row_source(const moe_row_share &s, int2 mine)
        : at(mine.x), end(mine.y), bytes(64 * s.k2) {
        next = s.words + (size_t)at * bytes;
    }
};
struct moe_row_feed {
    moe_row_source now, then;
    __device__ void fetch(uint32_t to, uint32_t barrier, uint64_t policy) {
        if (now.at == now.end) now = then;
        const int n = moe_row_stage(now.at, now.end);
        ptx_barrier_expect(barrier, n * now.bytes);
        ptx_bulk_copy_once(to, now.next, n * now.bytes, barrier, policy);
        now.next += n * now.bytes;
        now.at += n;
    }
};

__device__ __forceinline__ moe_row_slots_ring moe_row_ring(
    const moe_row_params &p, unsigned char *shared, unsigned long long *barriers) {
    const int warp = threadIdx.x >> 5;
    const moe_row_slots_ring ring = {ptx_shared(shared) + warp * p.n_stages * p.slot_bytes,
        ptx_shared(barriers + warp * MOE_ROW_MAX_STAGES), (uint32_t)p.slot_bytes,
        (uint32_t)p.n_stages, 0, 0};
    if ((threadIdx.x & 31) == 0) {
        for (int i = 0; i < p.n_stages; i++)
            ptx_barrier_init(ring.barriers + 8 * i, 1);
        ptx_barrier_init_fence();
    }
    __syncwarp();
    return ring;
}

/* ---- operands: every byte four times, as the product wants it ---- */

/* Writes inputs at .. at + 3; returns their sum. */
__device__ __forceinline__ int moe_row_put(uint32_t *operand, int at, float4 v, float inv) {
    const int slice = at >> 4, q = (at >> 2) & 3;
    const float f[4] = {v.x, v.y, v.z, v.w};
    uint32_t hi[4], lo[4];
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int a = __float2int_rn(f[i] * inv), h = (a + 128) >> 8;
        hi[i] = (uint32_t)(h & 255) * 0x01010101u;
        lo[i] = (uint32_t)(a & 255) * 0x01010101u; /* a - 256 h, its low byte */
        sum += a;
    }
    /* [slice][high, low][4 words of exl3_put_operand, of which each byte is a word here] */
    uint2 *o = (uint2 *)operand + slice * 16 + (q & 1) * 4 + (q >> 1);
    o[0] = make_uint2(hi[0], hi[1]);
    o[2] = make_uint2(hi[2], hi[3]);
    o[8] = make_uint2(lo[0], lo[1]);
    o[10] = make_uint2(lo[2], lo[3]);
    return sum;
}

/* Block warp + 16 i of a rotated row in v[i], as operand; scale: where the row's scale and sum are told, or NULL. */
__device__ __forceinline__ void moe_row_quantize(float4 (&v)[MOE_ROW_HELD], int n_blocks,
    uint32_t *operand, moe_row_word *scale, uint32_t run, moe_row_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < MOE_ROW_HELD; i++)
        if (warp + i * EXL3_WARPS < n_blocks) most = max(most, exl3_magnitude(v[i]));
    most = __reduce_max_sync(~0u, most);
    if (lane == 0) sh.most[warp] = most;
    __syncthreads();
    const exl3_row_range range(__reduce_max_sync(~0u, sh.most[lane % EXL3_WARPS]));
    int sum = 0;
#pragma unroll
    for (int i = 0; i < MOE_ROW_HELD; i++) {
        const int b = warp + i * EXL3_WARPS;
        if (b < n_blocks) sum += moe_row_put(operand, b * 128 + lane * 4, v[i], range.inv);
    }
    sum = __reduce_add_sync(~0u, sum);
    if (lane == 0) sh.sum[warp] = sum;
    __syncthreads();
    if (scale == nullptr || warp != 0) return;
    sum = __reduce_add_sync(~0u, lane < EXL3_WARPS ? sh.sum[lane] : 0);
    if (lane == 0) moe_row_store(scale, __float_as_uint(range.scale), (uint32_t)sum, run);
}

/* The hidden values of an expert as soon as they are there. */
__device__ __forceinline__ void moe_row_read_hidden(
    const moe_row_args &a, int slot, uint32_t run, float4 (&v)[MOE_ROW_HELD]) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < MOE_ROW_HELD; i++) {
        const int b = warp + i * EXL3_WARPS;
        if (b >= a.n_ff / 128) continue;
        const moe_row_word *from = a.link->hidden[slot] + b * 128 + lane * 4;
        moe_row_pair x, y;
        do {
            x.load(from);
            y.load(from + 2);
        } while (!x.is_of(run) || !y.is_of(run));
        __syncwarp();
        v[i] = make_float4(__uint_as_float(x.first()), __uint_as_float(x.second()),
            __uint_as_float(y.first()), __uint_as_float(y.second()));
    }
}

/* ---- products ---- */

/* A slice of K bits, or of any rate when K is 0. */
template <int K>
__device__ __forceinline__ void moe_row_slice(int (&acc)[4][1][4], uint32_t words, uint32_t operand,
    const exl3_lane<(K ? K : 1)> &l, const exl3_powers &powers, int k2) {
    const uint4 o = ptx_load_shared_16(operand);
    const uint32_t b[1][4] = {{o.x, o.y, o.z, o.w}};
    if constexpr (K != 0) {
        exl3_slice<K, 1>(acc, words, b, l, powers);
    } else {
        exl3_slice_any<1>(acc, words, b, k2, threadIdx.x & 31);
    }
}

/* Slices s of one strip; operand: this lane's, of the first one; left: stages of the warp, these included. The sums are
 * added to local [64][2]. */
template <int K>
__device__ __forceinline__ void moe_row_run_of(moe_row_slots_ring &r, moe_row_feed &feed, int2 s,
    int left, uint32_t operand, int k2, const exl3_powers &powers, int *local) {
    const int lane = threadIdx.x & 31, bytes = 64 * (K ? 2 * K : k2);
    const uint64_t policy = ptx_policy_once();
    const exl3_lane<(K ? K : 1)> l(lane);
    int acc[4][1][4];
#pragma unroll
    for (int i = 0; i < 16; i++)
        (&acc[0][0][0])[i] = 0;
#pragma unroll 1
    for (int at = s.x; at < s.y;) {
        const int n = moe_row_stage(at, s.y);
        const uint32_t words = r.slot();
        ptx_barrier_wait(r.barrier(), r.parity);
        if (K != 0 && n == EXL3_SLICES) {
#pragma unroll
            for (int i = 0; i < EXL3_SLICES; i++)
                moe_row_slice<K>(
                    acc, words + i * bytes, operand + i * MOE_ROW_SLICE_BYTES, l, powers, k2);
        } else {
#pragma unroll 1
            for (int i = 0; i < n; i++)
                moe_row_slice<K>(
                    acc, words + i * bytes, operand + i * MOE_ROW_SLICE_BYTES, l, powers, k2);
        }
        operand += n * MOE_ROW_SLICE_BYTES;
        at += n;
        __syncwarp();
        if (lane == 0 && left > (int)r.n_stages) feed.fetch(words, r.barrier(), policy);
        left--;
        r.next();
    }
    const exl3_target to = {local, nullptr, 0, 1};
    exl3_flush<1>(acc, to, lane);
}

/* The same with the rate chosen. */
__device__ __forceinline__ void moe_row_run(moe_row_slots_ring &r, moe_row_feed &feed, int2 s,
    int left, uint32_t operand, int k2, const exl3_powers &powers, int *local) {
    switch (k2) {
    case 4:
        moe_row_run_of<2>(r, feed, s, left, operand, k2, powers, local);
        break;
    case 6:
        moe_row_run_of<3>(r, feed, s, left, operand, k2, powers, local);
        break;
    case 8:
        moe_row_run_of<4>(r, feed, s, left, operand, k2, powers, local);
        break;
    case 10:
        moe_row_run_of<5>(r, feed, s, left, operand, k2, powers, local);
        break;
    case 12:
        moe_row_run_of<6>(r, feed, s, left, operand, k2, powers, local);
        break;
    default:
        moe_row_run_of<0>(r, feed, s, left, operand, k2, powers, local);
        break;
    }
}

/* A CTA's sums of its strips, local [strips][64][2], go to the sums of all. */
__device__ __forceinline__ void moe_row_add(
    const moe_row_share &s, int units_in, const int *local, int64_t *sums) {
    const int lane = threadIdx.x & 31, first = s.units.x / units_in;
    if (s.units.x == s.units.y) return;
    for (int i = threadIdx.x >> 5; i <= (s.units.y - 1) / units_in - first; i += EXL3_WARPS) {
        const int strip = first + i;
        const int units = min(s.units.y, (strip + 1) * units_in) - max(s.units.x, strip * units_in);
        const int4 v = *(const int4 *)(local + i * 128 + lane * 4);
        unsigned long long *to = (unsigned long long *)sums + strip * 64 + lane * 2;
        atomicAdd(to, moe_row_counted(v.x * 256ll + v.y, units));
        atomicAdd(to + 1, moe_row_counted(v.z * 256ll + v.w, units));
    }
}

/* ---- ends ---- */

/* Hidden values block of slot, rotated for down. One warp. */
__device__ __forceinline__ void moe_row_finish_up(
    const moe_row_args &a, int slot, int block, uint32_t run, const moe_row_shared &sh) {
    const int lane = threadIdx.x & 31, at = block * 128 + lane * 4;
    const int units = a.d / EXL3_GPU_UNIT_IN;
    const bool is_bf16 = a.is_bf16 != 0;
    const float4 gate_svh = exl3_half4(sh.svh[2 * slot] + at),
                 up_svh = exl3_half4(sh.svh[2 * slot + 1] + at),
                 suh = exl3_half4(sh.suh[16 + slot] + at);
    const float w = slot < a.n_used ? __ldcg(a.weight + slot) : 1.f;
    int64_t *sums = a.sums + (size_t)moe_row_slots(a) * a.d + (size_t)2 * slot * a.n_ff;
    moe_row_sums gate(sums + block * 128, lane), up(sums + a.n_ff + block * 128, lane);
    moe_row_pair gate_scale, up_scale;
    do {
        gate.load();
        up.load();
        gate_scale.load(a.link->in_scale[2 * slot]);
        up_scale.load(a.link->in_scale[2 * slot + 1]);
    } while (!gate.has(units) || !up.has(units) || !gate_scale.is_of(run) || !up_scale.is_of(run));
    __syncwarp();
    float4 g = gate.take(units, gate_scale.scale()), u = up.take(units, up_scale.scale());
    g = bf16_near_4_if(is_bf16, exl3_times(exl3_rotate(g, lane), gate_svh));
    u = bf16_near_4_if(is_bf16, exl3_times(exl3_rotate(u, lane), up_svh));
    moe_row_hand_on(a.link->hidden[slot] + at,
        exl3_rotate(exl3_times(bf16_near_4_if(is_bf16, swiglu_4(g, u, a.limit, w)), suh), lane),
        run);
}

/* The sum over the experts of a block of outputs. All threads. */
__device__ __forceinline__ void moe_row_finish_down(
    const moe_row_args &a, int block, uint32_t run, moe_row_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, at = block * 128 + lane * 4;
    const int n_slots = moe_row_slots(a), units = a.n_ff / EXL3_GPU_UNIT_IN;
    if (warp < n_slots) {
        const float4 svh = exl3_half4(sh.svh[16 + warp] + at);
        moe_row_sums sums(a.sums + (size_t)warp * a.d + block * 128, lane);
        moe_row_pair scale;
        do {
            sums.load();
            scale.load(a.link->out_scale[warp]);
        } while (!sums.has(units) || !scale.is_of(run));
        __syncwarp();
        const float4 z = exl3_rotate(sums.take(units, scale.scale()), lane);
        int place = 0; /* ascending experts, the shared one last */
        for (int s = 0; s < n_slots; s++)
            place += sh.expert[s] < sh.expert[warp];
        sh.part[place][lane] = bf16_near_4_if(a.is_bf16 != 0, exl3_times(z, svh));
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

/* The CTA's blocks of hidden values by its last warp, then the operand of its down. */
__device__ __forceinline__ void moe_row_between(
    const moe_row_args &a, uint32_t *operand, uint32_t run, moe_row_shared &sh) {
    const int cta = (int)blockIdx.x, n_blocks = a.n_ff / 128, slot = sh.out.which;
    float4 v[MOE_ROW_HELD];
    if (threadIdx.x / 32 == EXL3_WARPS - 1) {
        for (int b = cta; b < moe_row_slots(a) * n_blocks; b += (int)gridDim.x)
            moe_row_finish_up(a, b / n_blocks, b % n_blocks, run, sh);
    }
    moe_row_read_hidden(a, slot, run, v);
    moe_row_word *scale = cta == sh.out.first_cta ? a.link->out_scale[slot] : nullptr;
    moe_row_quantize(v, n_blocks, operand, scale, run, sh);
}

/* ---- the kernel ---- */

/* This CTA's row of gate or up: x times its scales, rotated. The scales are asked for before the weights, which would
 * keep them waiting. */
struct moe_row_input {
    float4 x[MOE_ROW_HELD];
    uint2 suh[MOE_ROW_HELD];
    int n_blocks;
    __device__ static int block(int i) {
        return (int)(threadIdx.x >> 5) + i * EXL3_WARPS;
    }
    __device__ moe_row_input(const float *from, int d) : n_blocks(d / 128) {
#pragma unroll
        for (int i = 0; i < MOE_ROW_HELD; i++)
            if (block(i) < n_blocks)
                x[i] = __ldcg((const float4 *)(from + block(i) * 128) + threadIdx.x % 32);
    }
    __device__ void load_scales(const uint16_t *from) {
#pragma unroll
        for (int i = 0; i < MOE_ROW_HELD; i++)
            if (block(i) < n_blocks)
                suh[i] = ptx_load_constant_8(from + block(i) * 128 + threadIdx.x % 32 * 4);
    }
    __device__ void rotate() {
#pragma unroll
        for (int i = 0; i < MOE_ROW_HELD; i++)
            if (block(i) < n_blocks)
                x[i] = exl3_rotate(exl3_times(x[i], exl3_half4_value(suh[i])), threadIdx.x % 32);
    }
};

/* Where things lie in the shared memory behind the rings. */
struct moe_row_places {
    uint32_t *in_operand, *out_operand;
    int *in_local, *out_local;
    __device__ moe_row_places(const moe_row_params &p, unsigned char *at) {
        in_operand = (uint32_t *)at;
        out_operand = in_operand + p.a.d / 16 * (MOE_ROW_SLICE_BYTES / 4);
        in_local = (int *)(out_operand + p.a.n_ff / 16 * (MOE_ROW_SLICE_BYTES / 4));
        out_local = in_local + p.n_in_strips * 128;
        for (int i = threadIdx.x; i < (p.n_in_strips + p.n_out_strips) * 128; i += blockDim.x)
            in_local[i] = 0;
    }
};

/* Grid: one CTA an SM. */
static __global__ void __launch_bounds__(EXL3_WARPS * 32, 1)
    moe_row_kernel(const __grid_constant__ moe_row_params p) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(16) moe_row_shared sh;
    const moe_row_args &a = p.a;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, cta = (int)blockIdx.x;
    moe_row_slots_ring r = moe_row_ring(p, shared, sh.barriers);
    const moe_row_places at(p, shared + EXL3_WARPS * p.n_stages * p.slot_bytes);
    ptx_wait_for_previous();
    ptx_release_next();
    moe_row_input row(a.x, a.d);
    const uint32_t run = __ldcg(a.link->run + cta) + 1;
    if (warp == 0) moe_row_plan(a, sh);
    __syncthreads();
    row.load_scales(sh.suh[sh.in.which]);
    /* warps with a slice more of gate and up have one less of down */
    const int2 in = moe_row_slices(sh.in, warp),
               out = moe_row_slices(sh.out, EXL3_WARPS - 1 - warp);
    int left = moe_row_stages(in) + moe_row_stages(out);
    moe_row_feed feed = {moe_row_source(sh.in, in), moe_row_source(sh.out, out)};
    if (lane == 0) {
        for (int i = 0; i < min(left, p.n_stages); i++)
            feed.fetch(r.slots + i * p.slot_bytes, r.barriers + 8 * i, ptx_policy_once());
    }
    row.rotate();
    if (warp == EXL3_WARPS - 1) moe_row_prefetch_ends(a, sh);
    moe_row_word *scale = cta == sh.in.first_cta ? a.link->in_scale[sh.in.which] : nullptr;
    moe_row_quantize(row.x, a.d / 128, at.in_operand, scale, run, sh);
#pragma unroll 1
    for (int is_down = 0; is_down < 2; is_down++) { /* one copy of the loops' code for both */
        if (is_down != 0) moe_row_between(a, at.out_operand, run, sh);
        const moe_row_share &share = is_down != 0 ? sh.out : sh.in;
        const int units_in = (is_down != 0 ? a.n_ff : a.d) / EXL3_GPU_UNIT_IN;
        const int slices_in = EXL3_SLICES * units_in, first = share.units.x / units_in;
        const int2 mine = is_down != 0 ? out : in;
        const uint32_t operand = ptx_shared(is_down != 0 ? at.out_operand : at.in_operand) +
                                 (lane & 7) * (MOE_ROW_SLICE_BYTES / 8);
        int *local = is_down != 0 ? at.out_local : at.in_local;
#pragma unroll 1
        for (int i = mine.x; i < mine.y;) {
            const int strip = i / slices_in, k = i % slices_in;
            const int2 s = make_int2(i, min(mine.y, i - k + slices_in));
            moe_row_run(r, feed, s, left, operand + k * MOE_ROW_SLICE_BYTES, share.k2, p.powers,
                local + (strip - first) * 128);
            left -= moe_row_stages(s);
            i = s.y;
        }
        __syncthreads();
        const size_t to = is_down != 0 ? (size_t)share.which * a.d
                                       : (size_t)moe_row_slots(a) * a.d + share.which * a.n_ff;
        moe_row_add(share, units_in, local, a.sums + to);
    }
    for (int b = cta; b < a.d / 128; b += (int)gridDim.x)
        moe_row_finish_down(a, b, run, sh);
    if (threadIdx.x == 0) __stcg(a.link->run + cta, run);
}

#endif
