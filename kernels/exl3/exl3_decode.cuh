/*
 * Device side of the EXL3 integer form: windows of the trellis, integer operands, rotations. Register-only helpers that
 * the kernels of this folder share. Order of every float operation as in exl3.h.
 */
#ifndef KERNELS_EXL3_DECODE_CUH
#define KERNELS_EXL3_DECODE_CUH

#include <cuda_fp16.h>

#include "kernels/exl3/exl3_gpu.h"
#include "kernels/ptx.cuh"

constexpr int EXL3_INT_MAX = 32512; /* 127 * 256: the largest activation integer */

/* Powers of two as kernel parameters: the compiler must keep the multiply, which runs beside the ALU pipe, and not turn
 * it into a shift (kernels.md 3). */
struct exl3_powers {
    uint32_t p13, p7, p1, p3, p10, p4;
};
constexpr exl3_powers EXL3_POWERS = {1u << 13, 1u << 7, 1u << 1, 1u << 3, 1u << 10, 1u << 4};

__device__ __forceinline__ uint32_t exl3_window(uint32_t v, int shift) {
    return (v >> shift) & 0xffffu;
}
__device__ __forceinline__ uint32_t exl3_window_mul(uint32_t v, uint32_t power) {
    return ptx_high_half(v * power);
}

/* Words of a lane: word[0] holds the end of its last window, word[1] the word before, word[2] the one before that. */
template <int K> struct exl3_lane {
    static constexpr int WORDS = 8 * K;
    static constexpr bool HAS_THREE = K > 4;
    int i0, i1, i2, shift;
    __device__ explicit exl3_lane(int lane) {
        int end = (lane + 1) * 8 * K;
        i0 = (end - 1) >> 5;
        shift = 32 * (i0 + 1) - end;
        i1 = i0 >= 1 ? i0 - 1 : i0 - 1 + WORDS;
        i2 = i0 >= 2 ? i0 - 2 : i0 - 2 + WORDS;
    }
};

/* The eight states of a lane, from its words (lo: word 0, mid: word 1, hi: word 2). */
template <int K>
__device__ __forceinline__ void exl3_states(
    uint32_t hi, uint32_t mid, uint32_t lo, int shift, const exl3_powers &p, uint32_t (&s)[8]) {
    if constexpr (K == 2) {
        uint32_t v = __funnelshift_r(lo, mid, shift);
        s[7] = v & 0xffffu;
        s[6] = exl3_window_mul(v, p.p13 * 2);
        s[5] = exl3_window_mul(v, p.p10 * 4);
        s[4] = exl3_window_mul(v, p.p10);
        s[3] = __byte_perm(v, 0, 0x4421);
        s[2] = exl3_window(v, 10);
        s[1] = exl3_window_mul(v, p.p4);
        s[0] = exl3_window(v, 14);
    } else if constexpr (K == 3) {
        uint32_t v0 = __funnelshift_r(lo, mid, shift), v1 = __funnelshift_r(lo, mid, shift + 5);
        s[7] = v0 & 0xffffu;
        s[6] = exl3_window_mul(v0, p.p13);
        s[5] = exl3_window_mul(v0, p.p10);
        s[4] = exl3_window_mul(v0, p.p7);
        s[3] = exl3_window(v0, 12);
        s[2] = exl3_window_mul(v0, p.p1);
        s[1] = exl3_window_mul(v1, p.p3);
        s[0] = v1 >> 16;
    } else if constexpr (K == 4) {
        uint32_t m = __funnelshift_r(lo, mid, 16), q = lo >> 4, r = m >> 4;
        s[7] = lo & 0xffffu;
        s[6] = q & 0xffffu;
        s[5] = __byte_perm(lo, 0, 0x4421);
        s[4] = __byte_perm(q, 0, 0x4421);
        s[3] = lo >> 16;
        s[2] = r & 0xffffu;
        s[1] = __byte_perm(m, 0, 0x4421);
        s[0] = __byte_perm(r, 0, 0x4421);
    } else if constexpr (K == 5) {
        /* v: the 32 bits that end the last window, w: the 32 that end the fourth. */
        uint32_t v = __funnelshift_r(lo, mid, shift), u = __funnelshift_r(mid, hi, shift);
        uint32_t w = __funnelshift_r(v, u, 20);
        s[7] = v & 0xffffu;
        s[6] = exl3_window_mul(v, p.p10 * 2);
        s[5] = exl3_window_mul(v, p.p3 * 8);
        s[4] = exl3_window_mul(v, p.p1);
        s[3] = w & 0xffffu;
        s[2] = exl3_window_mul(w, p.p10 * 2);
        s[1] = exl3_window_mul(w, p.p3 * 8);
        s[0] = exl3_window_mul(w, p.p1);
    } else if constexpr (K == 6) {
        /* The same; w ends the fifth window, x the second. */
        uint32_t v = __funnelshift_r(lo, mid, shift), u = __funnelshift_r(mid, hi, shift);
        uint32_t w = __funnelshift_r(v, u, 18), x = __funnelshift_r(u, hi >> shift, 4);
        s[7] = v & 0xffffu;
        s[6] = exl3_window_mul(v, p.p10);
        s[5] = exl3_window_mul(v, p.p4);
        s[4] = w & 0xffffu;
        s[3] = exl3_window_mul(w, p.p10);
        s[2] = exl3_window_mul(w, p.p4);
        s[1] = x & 0xffffu;
        s[0] = exl3_window_mul(x, p.p10);
    } else {
        /* 8 bits: v = the 32 bits that end the last window, u the 32 before them, t the 32 before those. */
        uint32_t v = __funnelshift_r(lo, mid, shift), u = __funnelshift_r(mid, hi, shift);
        uint32_t t = hi >> shift;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            constexpr int STEP = K;
            const int o = (7 - j) * STEP;
            if (o <= 16) {
                s[j] = o == 16 ? v >> 16 : exl3_window(v, o);
            } else if (o < 32) {
                s[j] = __funnelshift_r(v, u, o) & 0xffffu;
            } else if (o <= 48) {
                s[j] = o == 48 ? u >> 16 : exl3_window(u, o - 32);
            } else {
                s[j] = __funnelshift_r(u, t, o - 32) & 0xffffu;
            }
        }
    }
}

/* 128-point rotation over a warp, four consecutive values a lane. */
__device__ __forceinline__ float4 exl3_rotate(float4 v, int lane) {
    float a = v.x + v.y, b = v.x - v.y, c = v.z + v.w, d = v.z - v.w;
    v = make_float4(a + c, b + d, a - c, b - d);
#pragma unroll
    for (int m = 1; m < 32; m <<= 1) {
        float s = (lane & m) ? -1.f : 1.f;
        v.x = fmaf(s, v.x, __shfl_xor_sync(~0u, v.x, m));
        v.y = fmaf(s, v.y, __shfl_xor_sync(~0u, v.y, m));
        v.z = fmaf(s, v.z, __shfl_xor_sync(~0u, v.z, m));
        v.w = fmaf(s, v.w, __shfl_xor_sync(~0u, v.w, m));
    }
    v.x *= EXL3_HADAMARD_SCALE;
    v.y *= EXL3_HADAMARD_SCALE;
    v.z *= EXL3_HADAMARD_SCALE;
    v.w *= EXL3_HADAMARD_SCALE;
    return v;
}

/* Four fp16 values, 8-byte aligned. */
__device__ __forceinline__ float4 exl3_half4(const uint16_t *p) {
    uint2 u = __ldg((const uint2 *)p);
    float2 a = __half22float2(*(const __half2 *)&u.x), b = __half22float2(*(const __half2 *)&u.y);
    return make_float4(a.x, a.y, b.x, b.y);
}

__device__ __forceinline__ float4 exl3_times(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}

/* Largest magnitude as a bit pattern: the order of the integers is that of the magnitudes, NaN above all. */
__device__ __forceinline__ uint32_t exl3_magnitude(float4 v) {
    const uint32_t m = 0x7fffffffu;
    return max(max(__float_as_uint(v.x) & m, __float_as_uint(v.y) & m),
        max(__float_as_uint(v.z) & m, __float_as_uint(v.w) & m));
}

/* What a row's largest magnitude makes of it. A row that is not finite gets integers 0 and the scale NaN. */
struct exl3_row_range {
    float inv, scale;
    __device__ explicit exl3_row_range(uint32_t magnitude) {
        const float most = fmaxf(__uint_as_float(magnitude), 1e-30f);
        const bool is_finite = magnitude < 0x7f800000u;
        inv = is_finite ? (float)EXL3_INT_MAX / most : 0.f;
        scale = is_finite ? most / (float)EXL3_INT_MAX : __uint_as_float(0x7fc00000u);
    }
};

/* Writes inputs at, at + 1 .. at + 3 of one row as integers; returns their sum. */
__device__ __forceinline__ int exl3_put_operand(
    uint32_t *operand, int row_cap, int row, int at, float4 v, float inv) {
    const int slice = at >> 4, q = (at >> 2) & 3;
    const float f[4] = {v.x, v.y, v.z, v.w};
    int hi[4], lo[4], sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int a = __float2int_rn(f[i] * inv);
        hi[i] = (a + 128) >> 8;
        lo[i] = a - hi[i] * 256;
        sum += a;
    }
    unsigned short *o = (unsigned short *)(operand + (size_t)slice * 8 * row_cap + 8 * row);
    const int t = 2 * (q & 1), w = q >> 1;
    o[t * 2 + w] = (unsigned short)((hi[0] & 255) | (hi[1] & 255) << 8);
    o[t * 2 + 2 + w] = (unsigned short)((hi[2] & 255) | (hi[3] & 255) << 8);
    o[8 + t * 2 + w] = (unsigned short)((lo[0] & 255) | (lo[1] & 255) << 8);
    o[8 + t * 2 + 2 + w] = (unsigned short)((lo[2] & 255) | (lo[3] & 255) << 8);
    return sum;
}

/* An exact sum as a value of the rotated output basis. */
__device__ __forceinline__ float exl3_unscale(long long s, exl3_gpu_scale r) {
    float base = (float)(s - 510ll * r.sum);
    return fmaf(-EXL3_MUL1_OFFSET, (float)r.sum, base) * (EXL3_MUL1_SCALE * r.scale);
}

/* Four sums of a row, in the order: read, cleared, converted; sums of several rows can be on their way
 * at once. */
struct exl3_four_sums {
    longlong2 *at, a, b;
    int2 m;
    __device__ exl3_four_sums(int64_t *sums, const exl3_gpu_scale *scale, int lane)
        : at((longlong2 *)sums + lane * 2), a(__ldcg(at)), b(__ldcg(at + 1)),
          m(__ldcg((const int2 *)scale)) {
    }
    __device__ void clear() const {
        __stcg(at, make_longlong2(0, 0));
        __stcg(at + 1, make_longlong2(0, 0));
    }
    __device__ float4 value() const {
        const exl3_gpu_scale r = {__int_as_float(m.x), m.y};
        return make_float4(
            exl3_unscale(a.x, r), exl3_unscale(a.y, r), exl3_unscale(b.x, r), exl3_unscale(b.y, r));
    }
};
/* Reads four sums of a row, leaves zeros, converts. */
__device__ __forceinline__ float4 exl3_take(int64_t *sums, const exl3_gpu_scale *scale, int lane) {
    const exl3_four_sums s(sums, scale, lane);
    s.clear();
    return s.value();
}

#endif
