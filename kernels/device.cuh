/* Register-only helpers that the kernels of all operators share. The orders of their sums are
 * fixed: a warp sums by halving distances, a block sums its warps in the same way. */
#ifndef TANDEM_KERNELS_DEVICE_CUH
#define TANDEM_KERNELS_DEVICE_CUH

#include <cstdint>

#include "kernels/ptx.cuh"

constexpr int DEVICE_BLOCK = 256; /* threads of a block, unless a kernel says otherwise */

/* First thing in every kernel: what came before is complete and visible after it, and the kernel
 * behind this one may be set up from here on. */
__device__ __forceinline__ void kernel_begin() {
    ptx_wait_for_previous();
    ptx_release_next();
}

/* The nearest bf16 value. */
__device__ __forceinline__ float bf16_near(float v) {
    uint32_t u = __float_as_uint(v);
    if ((u & 0x7fffffffu) > 0x7f800000u) return __uint_as_float((u | 0x400000u) & 0xffff0000u);
    return __uint_as_float((u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u);
}
__device__ __forceinline__ float bf16_near_if(bool is_bf16, float v) {
    return is_bf16 ? bf16_near(v) : v;
}
/* The same for four values. */
__device__ __forceinline__ float4 bf16_near_4_if(bool is_bf16, float4 v) {
    return make_float4(bf16_near_if(is_bf16, v.x), bf16_near_if(is_bf16, v.y),
        bf16_near_if(is_bf16, v.z), bf16_near_if(is_bf16, v.w));
}
/* Four values rounded, in fewer instructions. */
__device__ __forceinline__ float4 bf16_near_4(float4 v) {
    if (isnan((v.x + v.y) + (v.z + v.w))) /* the instruction has no payload of a NaN */
        return make_float4(bf16_near(v.x), bf16_near(v.y), bf16_near(v.z), bf16_near(v.w));
    const uint32_t a = ptx_bf16_pair(v.x, v.y), b = ptx_bf16_pair(v.z, v.w);
    return make_float4(__uint_as_float(a << 16), __uint_as_float(a & 0xffff0000u),
        __uint_as_float(b << 16), __uint_as_float(b & 0xffff0000u));
}
__device__ __forceinline__ float bf16_value(uint16_t b) {
    return __uint_as_float((uint32_t)b << 16);
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int m = 16; m > 0; m >>= 1)
        v += __shfl_xor_sync(~0u, v, m);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int m = 16; m > 0; m >>= 1)
        v = fmaxf(v, __shfl_xor_sync(~0u, v, m));
    return v;
}
/* Sum over a block of whole warps, for every thread. shared: 33 floats, free again after return. */
__device__ __forceinline__ float block_sum(float v, float *shared) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_warps = blockDim.x >> 5;
    v = warp_sum(v);
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    v = warp_sum(lane < n_warps ? shared[lane] : 0.f);
    __syncthreads();
    return v;
}
__device__ __forceinline__ float block_max(float v, float *shared) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_warps = blockDim.x >> 5;
    v = warp_max(v);
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    v = warp_max(lane < n_warps ? shared[lane] : __uint_as_float(0xff800000u));
    __syncthreads();
    return v;
}
/* Sum over a block of whole warps, for every thread. shared: 33 ints. */
__device__ __forceinline__ int block_sum_int(int v, int *shared) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_warps = blockDim.x >> 5;
    v = __reduce_add_sync(~0u, v);
    if (lane == 0) shared[warp] = v;
    __syncthreads();
    v = __reduce_add_sync(~0u, lane < n_warps ? shared[lane] : 0);
    __syncthreads();
    return v;
}

/* e^x by the operations of kernels/vec (exp8), the same bits. */
__device__ __forceinline__ float exp_near(float x) {
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    float t = x * 0x1.715476p+0f;
    t = t + 12582912.0f;
    int n = (int)__float_as_uint(t) - 0x4B400000;
    t = t - 12582912.0f;
    float r = x - t * 0x1.62p-1f;
    r = r - t * 0x1.c85fep-10f;
    float p = r * 0x1.6d113cp-10f + 0x1.120ba2p-7f;
    p = p * r + 0x1.55551ap-5f;
    p = p * r + 0x1.5554dcp-3f;
    p = p * r + 0.5f;
    float y = (p * (r * r) + r) + 1.0f;
    int half = n >> 1;
    return y * __uint_as_float((uint32_t)(half + 127) << 23) *
           __uint_as_float((uint32_t)(n - half + 127) << 23);
}
/* weight * silu(min(gate, limit)) * clamp(up, +-limit), as vec's swiglu. */
__device__ __forceinline__ float swiglu_of(float g, float u, float limit, float weight) {
    g = g > limit ? limit : g;
    u = u > limit ? limit : u < -limit ? -limit : u;
    return weight * (g / (1.0f + exp_near(-g)) * u);
}
__device__ __forceinline__ float4 swiglu_4(float4 g, float4 u, float limit, float weight) {
    return make_float4(swiglu_of(g.x, u.x, limit, weight), swiglu_of(g.y, u.y, limit, weight),
        swiglu_of(g.z, u.z, limit, weight), swiglu_of(g.w, u.w, limit, weight));
}

/* Small floats of kernels/kv. */
__device__ __forceinline__ float e4m3_value(uint32_t code) {
    uint32_t size = code & 0x7fu;
    float a = size < 8 ? (float)size * 0x1p-9f : __uint_as_float((size << 20) + (120u << 23));
    a = size == 0x7fu ? __uint_as_float(0x7fc00000u) : a;
    return __uint_as_float(__float_as_uint(a) | (code & 0x80u) << 24);
}
__device__ __forceinline__ float e2m1_value(uint32_t code) {
    uint32_t size = code & 7u;
    float a = size < 2 ? (float)size * 0.5f : __uint_as_float((size << 22) + (126u << 23));
    return __uint_as_float(__float_as_uint(a) | (code & 8u) << 28);
}
__device__ __forceinline__ float ue8m0_value(uint32_t code) {
    return code == 0 ? 0x1p-127f : __uint_as_float(code << 23);
}

#endif
