/* Row work that goes along in a launch of products: a block does a task of prepare_aside, with the operations of
 * prepare_kernel.cuh in their order, for one row. Four values a thread. */
#ifndef TANDEM_KERNELS_PREPARE_PREPARE_ASIDE_CUH
#define TANDEM_KERNELS_PREPARE_PREPARE_ASIDE_CUH

#include "kernels/kv/kv_device.cuh"
#include "kernels/mhc/mhc_device.cuh"
#include "kernels/prepare/prepare.h"

constexpr int PREPARE_ASIDE_WARPS = PREPARE_ASIDE_VALUES / 128;

struct prepare_aside_shared {
    float sums[PREPARE_ASIDE_WARPS];
    float mix[MHC_MAX_MIX + 1], comb[MHC_MAX_STREAMS * MHC_MAX_STREAMS];
};

/* The warps of the row kernel that hold no value of so short a row add zeros to its sum. */
__device__ __forceinline__ float4 prepare_aside_norm(
    const prepare_task &t, float4 v, float4 w, bool is_bf16, prepare_aside_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float sum = 0.f;
    sum = fmaf(v.x, v.x, sum);
    sum = fmaf(v.y, v.y, sum);
    sum = fmaf(v.z, v.z, sum);
    sum = warp_sum(fmaf(v.w, v.w, sum));
    if (lane == 0) sh.sums[warp] = sum;
    __syncthreads();
    sum = warp_sum(lane < PREPARE_ASIDE_WARPS ? sh.sums[lane] : 0.f);
    const float r = 1.0f / sqrtf(sum / (float)t.n + t.eps);
    return bf16_near_4_if(
        is_bf16, make_float4(w.x * (v.x * r), w.y * (v.y * r), w.z * (v.z * r), w.w * (v.w * r)));
}

/* Two pairs of the last d_rope values of a head. */
__device__ __forceinline__ float4 prepare_aside_rope(
    const prepare_task &t, int at, float4 v, bool is_bf16) {
    const int fixed = t.d_head - t.d_rope, in_head = at % t.d_head;
    if (in_head < fixed) return v;
    const float4 c = __ldcg((const float4 *)(t.rope + in_head - fixed));
    const float s0 = t.is_inverse ? -c.y : c.y, s1 = t.is_inverse ? -c.w : c.w;
    return bf16_near_4_if(is_bf16, make_float4(v.x * c.x - v.y * s0, v.x * s0 + v.y * c.x,
                                       v.z * c.z - v.w * s1, v.z * s1 + v.w * c.z));
}

__device__ __forceinline__ void prepare_aside_row(
    const prepare_task &t, bool is_bf16, prepare_aside_shared &sh) {
    const int at = threadIdx.x * 4;
    const bool is_in = at < t.n;
    float4 v = make_float4(0.f, 0.f, 0.f, 0.f), w = v;
    if (is_in && t.norm != nullptr) w = __ldg((const float4 *)(t.norm + at));
    ptx_wait_for_previous();
    ptx_release_next();
    if (is_in) v = __ldcg((const float4 *)(t.x + at));
    if (t.norm != nullptr) v = prepare_aside_norm(t, v, w, is_bf16, sh);
    if (is_in && t.rope != nullptr) v = prepare_aside_rope(t, at, v, is_bf16);
    if (is_in && t.y != nullptr) *(float4 *)(t.y + at) = v;
    if (t.packed != nullptr && (threadIdx.x & ~31) * 4 < t.n)
        kv_pack_four((kv_format)t.format, v, at, t.n, t.packed);
}

/* Slices of a row's dots added in a fixed order, a few outputs of a warp at once, then one warp. A block of WARPS. */
template <int WARPS>
__device__ __forceinline__ void prepare_aside_mix(
    const prepare_aside &p, int row, prepare_aside_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const float *dots = p.dots + (size_t)row * p.n_slices * p.dots_stride;
    const int n_mix = p.mix.n_streams * (2 + p.mix.n_streams);
    ptx_wait_for_previous();
    ptx_release_next();
    constexpr int HELD = 32 / WARPS;
    for (int first = warp; first <= n_mix; first += WARPS * HELD) {
        float sums[HELD] = {};
        for (int s = lane; s < p.n_slices; s += 32)
#pragma unroll
            for (int i = 0; i < HELD; i++)
                if (first + i * WARPS <= n_mix)
                    sums[i] += __ldcg(dots + s * p.dots_stride + first + i * WARPS);
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const float sum = warp_sum(sums[i]);
            if (lane == 0 && first + i * WARPS <= n_mix) sh.mix[first + i * WARPS] = sum;
        }
    }
    __syncthreads();
    if (warp == 0) mhc_mix_row(p.mix, row, sh.mix, sh.comb);
}

/* A whole block of PREPARE_ASIDE_WARPS warps. */
__device__ __forceinline__ void prepare_aside_task(
    const prepare_aside &p, int i, prepare_aside_shared &sh) {
    if (p.tasks[i].kind == PREPARE_MIX) {
        prepare_aside_mix<PREPARE_ASIDE_WARPS>(p, 0, sh);
    } else {
        prepare_aside_row(p.tasks[i], p.is_bf16 != 0, sh);
    }
}

#endif
