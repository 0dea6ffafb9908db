/* Device side of prepare.h: a row in the registers of 16 warps, warp w holds blocks w, w + 16, .. of
 * 128 values, four a lane. Bound by latency: one read of the row, three block-wide sums. What does
 * not depend on earlier kernels (weights) is read before the wait for them. */
#ifndef TANDEM_KERNELS_PREPARE_PREPARE_KERNEL_CUH
#define TANDEM_KERNELS_PREPARE_PREPARE_KERNEL_CUH

#include "kernels/exl3/exl3_operand.cuh"
#include "kernels/kv/kv_device.cuh"
#include "kernels/mhc/mhc_device.cuh"
#include "kernels/prepare/prepare.h"

constexpr int PREPARE_WARPS = 16, PREPARE_THREADS = PREPARE_WARPS * 32;
constexpr int PREPARE_BLOCKS = EXL3_MAX_IN / 128 / PREPARE_WARPS; /* of a warp */
constexpr int PREPARE_ATTN_D = 512, PREPARE_ATTN_GROUP = 16;

struct prepare_shared {
    float sums[PREPARE_WARPS];
    uint32_t most[PREPARE_WARPS];
    int total[PREPARE_WARPS];
    float mix[MHC_MAX_MIX + 1], comb[MHC_MAX_STREAMS * MHC_MAX_STREAMS];
};

typedef float4 prepare_values[PREPARE_BLOCKS];

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

__device__ __forceinline__ float4 prepare_rounded(bool is_bf16, float4 v) {
    return make_float4(bf16_near_if(is_bf16, v.x), bf16_near_if(is_bf16, v.y),
        bf16_near_if(is_bf16, v.z), bf16_near_if(is_bf16, v.w));
}

/* Tiles of attention added in order, divided. */
__device__ __forceinline__ float4 prepare_attn(const attn_parts &a, int row, int value) {
    const int head = value / PREPARE_ATTN_D, h = head % PREPARE_ATTN_GROUP;
    const size_t unit = (size_t)row * a.n_groups + head / PREPARE_ATTN_GROUP;
    const float *sums = a.sums + (unit * a.max_tiles * PREPARE_ATTN_GROUP + h) * PREPARE_ATTN_D +
                        value % PREPARE_ATTN_D;
    const int n_tiles = a.n_tiles[row];
    float4 v = __ldcg((const float4 *)sums);
#pragma unroll 4
    for (int t = 1; t < n_tiles; t++) {
        const float4 c =
            __ldcg((const float4 *)(sums + (size_t)t * PREPARE_ATTN_GROUP * PREPARE_ATTN_D));
        v = make_float4(v.x + c.x, v.y + c.y, v.z + c.z, v.w + c.w);
    }
    const float d = a.den[unit * PREPARE_ATTN_GROUP + h];
    return make_float4(v.x / d, v.y / d, v.z / d, v.w / d);
}

__device__ __forceinline__ void prepare_norm(const prepare_task &t, prepare_values &v,
    const prepare_values &w, bool is_bf16, prepare_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < PREPARE_BLOCKS; i++) {
        if (prepare_at(i) >= t.n) continue;
        sum = fmaf(v[i].x, v[i].x, sum);
        sum = fmaf(v[i].y, v[i].y, sum);
        sum = fmaf(v[i].z, v[i].z, sum);
        sum = fmaf(v[i].w, v[i].w, sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) sh.sums[warp] = sum;
    __syncthreads();
    sum = warp_sum(lane < PREPARE_WARPS ? sh.sums[lane] : 0.f);
    const float r = 1.0f / sqrtf(sum / (float)t.n + t.eps);
#pragma unroll
    for (int i = 0; i < PREPARE_BLOCKS; i++) {
        if (prepare_at(i) >= t.n) continue;
        v[i] = prepare_rounded(is_bf16, make_float4(w[i].x * (v[i].x * r), w[i].y * (v[i].y * r),
                                            w[i].z * (v[i].z * r), w[i].w * (v[i].w * r)));
    }
}

/* Pairs of the last d_rope values of every head. */
__device__ __forceinline__ void prepare_rope(
    const prepare_task &t, int row, prepare_values &v, bool is_bf16) {
    const float *table = t.rope + (size_t)row * t.d_rope;
    const int fixed = t.d_head - t.d_rope;
#pragma unroll
    for (int i = 0; i < PREPARE_BLOCKS; i++) {
        const int at = prepare_at(i), in_head = at % t.d_head;
        if (at >= t.n || in_head < fixed) continue;
        const float4 c = *(const float4 *)(table + in_head - fixed);
        const float s0 = t.is_inverse ? -c.y : c.y, s1 = t.is_inverse ? -c.w : c.w;
        v[i] = prepare_rounded(
            is_bf16, make_float4(v[i].x * c.x - v[i].y * s0, v[i].x * s0 + v[i].y * c.x,
                         v[i].z * c.z - v[i].w * s1, v[i].z * s1 + v[i].w * c.z));
    }
}

/* The integer operand of row of one linear. n % 128 == 0. */
__device__ __forceinline__ void prepare_quantize(const prepare_operand &o, int n, int row,
    const prepare_values &v, const uint2 (&suh)[PREPARE_BLOCKS], prepare_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    prepare_values u;
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < PREPARE_BLOCKS; i++) {
        if (prepare_at(i) >= n) continue;
        u[i] = exl3_rotate(exl3_times(v[i], exl3_half4_value(suh[i])), lane);
        most = max(most, exl3_magnitude(u[i]));
    }
    most = __reduce_max_sync(~0u, most);
    if (lane == 0) sh.most[warp] = most;
    __syncthreads();
    const exl3_row_range range(__reduce_max_sync(~0u, lane < PREPARE_WARPS ? sh.most[lane] : 0u));
    int sum = 0;
#pragma unroll
    for (int i = 0; i < PREPARE_BLOCKS; i++) {
        const int at = prepare_at(i);
        if (at >= n) continue;
        sum += o.is_gemm ? exl3_put_gemm_operand(o.operand, o.row_cap, row, at, u[i], range.inv)
                         : exl3_put_operand(o.operand, o.row_cap, row, at, u[i], range.inv);
    }
    sum = __reduce_add_sync(~0u, sum);
    if (lane == 0) sh.total[warp] = sum;
    __syncthreads();
    if (warp != 0) return;
    sum = __reduce_add_sync(~0u, lane < PREPARE_WARPS ? sh.total[lane] : 0);
    if (lane == 0) *(int2 *)(o.scale + row) = make_int2(__float_as_int(range.scale), sum);
}

__device__ __forceinline__ void prepare_signs(
    const prepare_operand &o, int n, uint2 (&suh)[PREPARE_BLOCKS]) {
#pragma unroll
    for (int i = 0; i < PREPARE_BLOCKS; i++) {
        const int at = prepare_at(i);
        if (at < n) suh[i] = __ldg((const uint2 *)(o.suh + at));
    }
}

__device__ __forceinline__ void prepare_row(
    const prepare_args &p, const prepare_task &t, prepare_shared &sh) {
    const int row = t.first_row + (int)blockIdx.x, n = t.n;
    const bool is_wide = t.is_wide != 0, is_bf16 = p.is_bf16 != 0;
    prepare_values v, w;
    uint2 suh[PREPARE_BLOCKS];
    if (t.norm != nullptr) {
#pragma unroll
        for (int i = 0; i < PREPARE_BLOCKS; i++)
            w[i] = prepare_load(t.norm, prepare_at(i), n, is_wide);
    }
    if (t.n_operands > 0) prepare_signs(p.operands[t.first_operand], n, suh);
    ptx_wait_for_previous();
    if (t.kind == PREPARE_ATTN) {
#pragma unroll
        for (int i = 0; i < PREPARE_BLOCKS; i++) {
            const int at = prepare_at(i);
            if (at < n)
                v[i] = prepare_rounded(is_bf16, prepare_attn(p.attn, row, t.first_value + at));
        }
    } else {
        const float *x = t.x + (t.x_rows == nullptr ? row : t.x_rows[row]) * t.x_stride;
#pragma unroll
        for (int i = 0; i < PREPARE_BLOCKS; i++)
            v[i] = prepare_load(x, prepare_at(i), n, is_wide);
    }
    if (t.norm != nullptr) prepare_norm(t, v, w, is_bf16, sh);
    if (t.rope != nullptr) prepare_rope(t, row, v, is_bf16);
    if (t.y != nullptr) {
#pragma unroll
        for (int i = 0; i < PREPARE_BLOCKS; i++)
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
    for (int f = warp; f <= n_mix; f += PREPARE_WARPS) {
        const float *at = p.dots + ((size_t)r * (n_mix + 1) + f) * p.n_slices;
        float sum = 0.f;
        for (int s = lane; s < p.n_slices; s += 32)
            sum += __ldcg(at + s);
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
        prepare_row(p, t, sh);
    }
}

#endif
