/* Device side of prepare.h: a row in the registers of 32 warps, warp w holds blocks w, w + 32, .. of
 * 128 values, four a lane; at most BLOCKS of them. Bound by latency: one read of the row, three
 * block-wide sums, and the fetching of code that runs once (so little is unrolled). What does not
 * depend on earlier kernels (weights) is read before the wait for them. At most 64 registers. */
#ifndef TANDEM_KERNELS_PREPARE_PREPARE_KERNEL_CUH
#define TANDEM_KERNELS_PREPARE_PREPARE_KERNEL_CUH

#include "kernels/attn/attn_sum.cuh"
#include "kernels/exl3/exl3_operand.cuh"
#include "kernels/kv/kv_device.cuh"
#include "kernels/mhc/mhc_device.cuh"
#include "kernels/prepare/prepare.h"

static_assert(sizeof(prepare_args) <= 4096, "the size of kernel parameters");
constexpr int PREPARE_WARPS = 32, PREPARE_THREADS = PREPARE_WARPS * 32;
constexpr int PREPARE_FEW = 2, PREPARE_MOST = EXL3_MAX_IN / 128 / PREPARE_WARPS; /* BLOCKS */
constexpr int PREPARE_HEADS = 8; /* of attention in one task */

struct prepare_shared {
    float sums[PREPARE_WARPS];
    uint32_t most[PREPARE_WARPS];
    int total[PREPARE_WARPS];
    float mix[MHC_MAX_MIX + 1], comb[MHC_MAX_STREAMS * MHC_MAX_STREAMS];
    float before[PREPARE_HEADS][ATTN_MAX_TILES], now[PREPARE_HEADS][ATTN_MAX_TILES];
    float den[PREPARE_HEADS];
};

/* First value of a lane in its warp's block i. */
__device__ __forceinline__ int prepare_at(int i) {
    return ((threadIdx.x >> 5) + i * PREPARE_WARPS) * 128 + (threadIdx.x & 31) * 4;
}

/* Values at .. at + 3 of p; those behind the end are 0. */
__device__ __forceinline__ float4 prepare_load(const float *p, int at, int n, bool is_wide) {
    if (at >= n) return make_float4(0.f, 0.f, 0.f, 0.f);
    if (is_wide) return __ldcg((const float4 *)(p + at));
    return make_float4(p[at], at + 1 < n ? p[at + 1] : 0.f, at + 2 < n ? p[at + 2] : 0.f,
        at + 3 < n ? p[at + 3] : 0.f);
}

__device__ __forceinline__ void prepare_store(float *p, int at, int n, bool is_wide, float4 v) {
    if (at >= n) return;
    if (is_wide) {
        *(float4 *)(p + at) = v;
        return;
    }
    const float f[4] = {v.x, v.y, v.z, v.w};
    for (int c = 0; c < 4 && at + c < n; c++)
        p[at + c] = f[c];
}

/* The weights of the tiles of a task's heads, one head a warp. */
__device__ __forceinline__ void prepare_attn_steps(
    const attn_parts &a, int row, int first_head, int n_heads, prepare_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, head = first_head + warp;
    if (warp >= n_heads) return;
    const int n_tiles = a.n_tiles[row], h = head % ATTN_SUM_GROUP;
    const size_t unit = (size_t)row * a.n_groups + head / ATTN_SUM_GROUP;
    const float2 *ends = (const float2 *)a.ends + unit * a.max_tiles * ATTN_SUM_GROUP + h;
    /* Those of tiles that were not summed are read, not used: nothing waits for their number. */
    const float2 end = __ldcg(ends + (size_t)min(lane, a.max_tiles - 1) * ATTN_SUM_GROUP);
    /* The largest score up to a tile does not depend on the order it is found in. */
    float most = end.x;
#pragma unroll 1
    for (int m = 1; m < 32; m <<= 1) {
        const float o = __shfl_up_sync(~0u, most, m);
        if (lane >= m) most = o > most ? o : most;
    }
    const float earlier = __shfl_up_sync(~0u, most, 1);
    const attn_step s = attn_step_of(lane == 0, earlier, end.x);
    sh.before[warp][lane] = s.before;
    sh.now[warp][lane] = s.now;
    float den = 0.f;
#pragma unroll 1
    for (int t = 0; t < n_tiles; t++) {
        const attn_step u = {0.f, __shfl_sync(~0u, s.before, t), __shfl_sync(~0u, s.now, t)};
        den = attn_add(t == 0, u, den, __shfl_sync(~0u, end.y, t));
    }
    den += expf(a.sink[head] - __shfl_sync(~0u, most, n_tiles - 1));
    if (lane == 0) sh.den[warp] = den;
}

/* Four values of a head: tiles added in order, divided. */
__device__ __forceinline__ float4 prepare_attn(
    const attn_parts &a, int row, int first_head, int value, const prepare_shared &sh) {
    const int head = value / ATTN_SUM_D, h = head % ATTN_SUM_GROUP, q = head - first_head;
    const size_t unit = (size_t)row * a.n_groups + head / ATTN_SUM_GROUP;
    const float *sums =
        a.sums + (unit * a.max_tiles * ATTN_SUM_GROUP + h) * ATTN_SUM_D + value % ATTN_SUM_D;
    const int n_tiles = a.n_tiles[row];
    float4 v = __ldcg((const float4 *)sums);
#pragma unroll 8
    for (int t = 1; t < n_tiles; t++) {
        const float4 c = __ldcg((const float4 *)(sums + (size_t)t * ATTN_SUM_GROUP * ATTN_SUM_D));
        const attn_step s = {0.f, sh.before[q][t], sh.now[q][t]};
        v = make_float4(attn_add(false, s, v.x, c.x), attn_add(false, s, v.y, c.y),
            attn_add(false, s, v.z, c.z), attn_add(false, s, v.w, c.w));
    }
    const float d = sh.den[q];
    return make_float4(v.x / d, v.y / d, v.z / d, v.w / d);
}

template <int BLOCKS>
__device__ __forceinline__ void prepare_norm(const prepare_task &t, float4 (&v)[BLOCKS],
    const float4 (&w)[BLOCKS], bool is_bf16, prepare_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        if (prepare_at(i) >= t.n) continue;
        sum = fmaf(v[i].x, v[i].x, sum);
        sum = fmaf(v[i].y, v[i].y, sum);
        sum = fmaf(v[i].z, v[i].z, sum);
        sum = fmaf(v[i].w, v[i].w, sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) sh.sums[warp] = sum;
    __syncthreads();
    sum = warp_sum(sh.sums[lane]);
    const float r = 1.0f / sqrtf(sum / (float)t.n + t.eps);
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        if (prepare_at(i) >= t.n) continue;
        v[i] = bf16_near_4_if(is_bf16, make_float4(w[i].x * (v[i].x * r), w[i].y * (v[i].y * r),
                                           w[i].z * (v[i].z * r), w[i].w * (v[i].w * r)));
    }
}

/* Two pairs rotated by the table at c. */
__device__ __forceinline__ float4 prepare_turned(
    const prepare_task &t, const float *table, float4 v, bool is_bf16) {
    const float4 c = *(const float4 *)table;
    const float s0 = t.is_inverse ? -c.y : c.y, s1 = t.is_inverse ? -c.w : c.w;
    return bf16_near_4_if(is_bf16, make_float4(v.x * c.x - v.y * s0, v.x * s0 + v.y * c.x,
                                       v.z * c.z - v.w * s1, v.z * s1 + v.w * c.z));
}

/* Pairs of the last d_rope values of every head. */
template <int BLOCKS>
__device__ __forceinline__ void prepare_rope(
    const prepare_task &t, int row, float4 (&v)[BLOCKS], bool is_bf16) {
    const float *table = t.rope + (size_t)row * t.d_rope;
    const int fixed = t.d_head - t.d_rope;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        const int at = prepare_at(i), in_head = at % t.d_head;
        if (at < t.n && in_head >= fixed)
            v[i] = prepare_turned(t, table + in_head - fixed, v[i], is_bf16);
    }
}

/* The integer operand of row of one linear. n % 128 == 0. */
template <int BLOCKS>
__device__ __forceinline__ void prepare_quantize(const prepare_operand &o, int n, int row,
    const float4 (&v)[BLOCKS], const uint2 (&suh)[BLOCKS], prepare_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float4 u[BLOCKS];
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        if (prepare_at(i) >= n) continue;
        u[i] = exl3_rotate(exl3_times(v[i], exl3_half4_value(suh[i])), lane);
        most = max(most, exl3_magnitude(u[i]));
    }
    most = __reduce_max_sync(~0u, most);
    if (lane == 0) sh.most[warp] = most;
    __syncthreads();
    const exl3_row_range range(__reduce_max_sync(~0u, sh.most[lane]));
    int sum = 0;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        const int at = prepare_at(i);
        if (at >= n) continue;
        if (o.tile_rows != 0) {
            const exl3_gemm_place place = {o.operand, o.row_cap, o.tile_rows, n};
            sum += exl3_put_gemm_operand(place, row, at, u[i], range.inv);
        } else {
            sum += exl3_put_operand(o.operand, o.row_cap, row, at, u[i], range.inv);
        }
    }
    sum = __reduce_add_sync(~0u, sum);
    if (lane == 0) sh.total[warp] = sum;
    __syncthreads();
    if (warp != 0) return;
    sum = __reduce_add_sync(~0u, sh.total[lane]);
    if (lane == 0) *(int2 *)(o.scale + row) = make_int2(__float_as_int(range.scale), sum);
}

template <int BLOCKS>
__device__ __forceinline__ void prepare_signs(
    const prepare_operand &o, int n, uint2 (&suh)[BLOCKS]) {
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        const int at = prepare_at(i);
        if (at < n) suh[i] = __ldg((const uint2 *)(o.suh + at));
    }
}

template <int BLOCKS>
__device__ __forceinline__ void prepare_row(
    const prepare_args &p, const prepare_task &t, prepare_shared &sh) {
    const int row = t.first_row + (int)blockIdx.x, n = t.n;
    const bool is_wide = t.is_wide != 0, is_bf16 = p.is_bf16 != 0;
    float4 v[BLOCKS], w[BLOCKS];
    uint2 suh[BLOCKS];
    if (t.norm != nullptr) {
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
            w[i] = prepare_load(t.norm, prepare_at(i), n, is_wide);
    }
    if (t.n_operands > 0) prepare_signs(p.operands[t.first_operand], n, suh);
    ptx_wait_for_previous();
    if (t.kind == PREPARE_ATTN) {
        const int first_head = t.first_value / ATTN_SUM_D;
        prepare_attn_steps(p.attn, row, first_head, n / ATTN_SUM_D, sh);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            const int at = prepare_at(i);
            if (at < n)
                v[i] = bf16_near_4_if(
                    is_bf16, prepare_attn(p.attn, row, first_head, t.first_value + at, sh));
        }
    } else {
        const float *x = t.x + (t.x_rows == nullptr ? row : t.x_rows[row]) * t.x_stride;
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
            v[i] = prepare_load(x, prepare_at(i), n, is_wide);
    }
    if (t.norm != nullptr) prepare_norm(t, v, w, is_bf16, sh);
    if (t.rope != nullptr) prepare_rope(t, row, v, is_bf16);
    if (t.y != nullptr) {
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
            prepare_store(t.y + row * t.y_stride, prepare_at(i), n, is_wide, v[i]);
    }
    if (t.packed != nullptr) {
        __syncthreads();
        kv_pack_row((kv_format)t.format, t.y + row * t.y_stride, n,
            t.packed + (size_t)row * t.packed_bytes);
    }
    for (int q = 0; q < t.n_operands; q++) {
        const prepare_operand &o = p.operands[t.first_operand + q];
        if (q > 0) {
            __syncthreads();
            prepare_signs(o, n, suh);
        }
        prepare_quantize(o, n, blockIdx.x, v, suh, sh);
    }
}

/* The end of a mix: slices of the dots added in a fixed order, then one warp. */
__device__ __forceinline__ void prepare_mix(const prepare_args &p, prepare_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, r = blockIdx.x;
    const int n_mix = p.mix.n_streams * (2 + p.mix.n_streams);
    ptx_wait_for_previous();
#pragma unroll 1
    for (int f = warp; f <= n_mix; f += PREPARE_WARPS) {
        const float *at = p.dots + (size_t)r * p.n_slices * p.dots_stride + f;
        float sum = 0.f;
        for (int s = lane; s < p.n_slices; s += 32)
            sum += __ldcg(at + s * p.dots_stride);
        sum = warp_sum(sum);
        if (lane == 0) sh.mix[f] = sum;
    }
    __syncthreads();
    if (warp == 0) mhc_mix_row(p.mix, r, sh.mix, sh.comb);
}

__device__ __forceinline__ void prepare_ring(const kv_ring_write_args &a) {
    const int i = blockIdx.x;
    const batch_rows &b = a.batch;
    ptx_wait_for_previous();
    if (b.span_pos[i] + b.span_len[i] - b.pos[i] > a.ring.cap) return;
    copy_bytes(ring_row(a.ring, b.slot[i], b.pos[i]), a.rows + (size_t)i * a.ring.row_bytes,
        a.ring.row_bytes);
}

/* Grid: rows of the longest task, tasks. */
template <int BLOCKS>
__global__ void __launch_bounds__(PREPARE_THREADS, 1)
    prepare_kernel(const __grid_constant__ prepare_args p) {
    __shared__ prepare_shared sh;
    ptx_release_next();
    const prepare_task &t = p.tasks[blockIdx.y];
    if ((int)blockIdx.x >= t.n_rows) return;
    if (t.kind == PREPARE_MIX) {
        prepare_mix(p, sh);
    } else if (t.kind == PREPARE_RING) {
        prepare_ring(p.ring);
    } else {
        prepare_row<BLOCKS>(p, t, sh);
    }
}

#endif
