/* Codes, packing and places of cache rows for device code; one lane a value, a warp a block of 32
 * values. The codes are those of kernels/kv, bit for bit. */
#ifndef TANDEM_KERNELS_KV_KV_DEVICE_CUH
#define TANDEM_KERNELS_KV_KV_DEVICE_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"

/* kv_ring_row and kv_paged_row of kv.h for device code. */
__device__ __forceinline__ uint8_t *ring_row(const kv_ring &r, int32_t slot, int64_t pos) {
    return r.base + (size_t)slot * r.slot_stride + (size_t)(pos % r.cap) * r.row_bytes;
}
__device__ __forceinline__ uint8_t *paged_row(const kv_paged &p, int32_t slot, int64_t j) {
    const int32_t page = p.table[(int64_t)slot * p.table_stride + j / p.rows_per_page];
    return p.base + (size_t)page * p.page_stride + (size_t)(j % p.rows_per_page) * p.row_bytes;
}

__device__ __forceinline__ uint32_t e4m3_code(float v) {
    uint32_t u = __float_as_uint(v), sign = u >> 24 & 0x80u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return sign | 0x7fu;
    const float a = __uint_as_float(u);
    if (a >= 464.0f) return sign | 0x7eu;
    if (a < 0x1p-6f) return sign | (uint32_t)__float2int_rn(a * 512.0f);
    const uint32_t code = ((u + 0x7ffffu + (u >> 20 & 1u)) >> 20) - (120u << 3);
    return sign | min(code, 0x7eu);
}
__device__ __forceinline__ uint32_t e2m1_code(float v) {
    const float a = fabsf(v);
    const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                     (a >= 3.5f) + (a > 5.0f);
    return (__float_as_uint(v) >> 28 & 8u) | (uint32_t)code;
}
/* Code of the smallest power of two not below v. */
__device__ __forceinline__ uint32_t ceil_power_code(float v) {
    const uint32_t u = __float_as_uint(v);
    return min((u >> 23 & 255u) + ((u & 0x7fffffu) != 0 ? 1u : 0u), 254u);
}
__device__ __forceinline__ float clamp_of(float v, float limit) {
    return v > limit ? limit : v < -limit ? -limit : v;
}
/* Largest of floor and the magnitudes of n (16 or 32) neighbouring lanes; NaN is passed over. */
__device__ __forceinline__ float lanes_most(float v, float floor, int n) {
    const float a = fabsf(v);
    float most = a > floor ? a : floor;
    for (int m = n / 2; m > 0; m >>= 1)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, m));
    return most;
}

/* Packs one row with a whole block of warps. d % 32 == 0. */
__device__ __forceinline__ void kv_pack_row(kv_format f, const float *x, int d, uint8_t *row) {
    const int lane = threadIdx.x & 31;
    for (int i = threadIdx.x; i < d; i += blockDim.x) {
        const float v = x[i];
        if (f == KV_FLOAT) {
            ((float *)row)[i] = v;
            continue;
        }
        if (f == KV_WINDOW) {
            const uint32_t code = ceil_power_code(lanes_most(v, 1e-4f, 32) * (float)(1.0 / 448.0));
            row[i] = (uint8_t)e4m3_code(clamp_of(v / ue8m0_value(code), 448.0f));
            if (lane == 0) row[d + i / 32] = (uint8_t)code;
            continue;
        }
        const bool is_key = f == KV_KEY;
        const float most =
            is_key ? lanes_most(v, 6.0f * 0x1p-126f, 32) : lanes_most(v, 6.0f * 0x1p-9f, 16);
        const uint32_t scale =
            is_key ? ceil_power_code(most * (float)(1.0 / 6.0)) : e4m3_code(most / 6.0f);
        const float s = is_key ? ue8m0_value(scale) : e4m3_value(scale);
        const uint32_t code = e2m1_code(clamp_of(v / s, 6.0f));
        const uint32_t high = __shfl_down_sync(~0u, code, 1);
        if ((lane & 1) == 0) row[i / 2] = (uint8_t)(code | high << 4);
        const int block = is_key ? 32 : 16;
        if (i % block == 0) row[d / 2 + i / block] = (uint8_t)scale;
    }
}

/* Code of E4M3 or E2M1, and the value it stands for. */
__device__ __forceinline__ uint32_t kv_code(bool is_e4m3, float v) {
    return is_e4m3 ? e4m3_code(clamp_of(v, 448.0f)) : e2m1_code(clamp_of(v, 6.0f));
}
__device__ __forceinline__ float kv_code_value(bool is_e4m3, uint32_t code) {
    return is_e4m3 ? e4m3_value(code) : e2m1_value(code);
}

/* The same for a row that lies in registers: four neighbouring values at .. at + 3 a lane, at = 4 lane
 * mod 128; all lanes of a warp. Returns the values that the row holds then. */
__device__ __forceinline__ float4 kv_pack_four(kv_format f, float4 v, int at, int d, uint8_t *row) {
    const float x[4] = {v.x, v.y, v.z, v.w};
    if (f == KV_FLOAT) {
        for (int i = 0; i < 4 && at < d; i++)
            ((float *)row)[at + i] = x[i];
        return v;
    }
    const int block = f == KV_WINDOW || f == KV_KEY ? 32 : 16;
    const float floor = f == KV_WINDOW ? 1e-4f : 6.0f * (f == KV_KEY ? 0x1p-126f : 0x1p-9f);
    float most = fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
    most = fmaxf(most, floor);
    for (int m = block / 8; m > 0; m >>= 1)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, m));
    if (at >= d) return v;
    const bool is_window = f == KV_WINDOW;
    uint32_t scale, codes = 0;
    float s, w[4]; /* w: in units of the scale; for a power of two the product is the quotient */
    if (block == 32) {
        scale = ceil_power_code(most * (is_window ? (float)(1.0 / 448.0) : (float)(1.0 / 6.0)));
        const float inverse = ue8m0_value(254 - scale);
        s = ue8m0_value(scale);
        for (int i = 0; i < 4; i++)
            w[i] = x[i] * inverse;
    } else {
        scale = e4m3_code(most / 6.0f);
        s = e4m3_value(scale);
        for (int i = 0; i < 4; i++)
            w[i] = x[i] / s;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t code = kv_code(is_window, w[i]);
        codes |= code << (is_window ? 8 : 4) * i;
        w[i] = kv_code_value(is_window, code) * s;
    }
    const int bytes = is_window ? 4 : 2;
    uint8_t *to = row + at / 4 * bytes;
    if (is_window && ((uintptr_t)to & 3) == 0) {
        *(uint32_t *)to = codes;
    } else {
        for (int i = 0; i < bytes; i++)
            to[i] = (uint8_t)(codes >> 8 * i);
    }
    if (at % block == 0) row[d / 4 * bytes + at / block] = (uint8_t)scale;
    return make_float4(w[0], w[1], w[2], w[3]);
}

/* Value i of a packed row. */
__device__ __forceinline__ float kv_value(kv_format f, const uint8_t *row, int d, int i) {
    if (f == KV_FLOAT) return ((const float *)row)[i];
    if (f == KV_WINDOW) return e4m3_value(row[i]) * ue8m0_value(row[d + i / 32]);
    const uint32_t code = (uint32_t)row[i / 2] >> (i & 1) * 4;
    const float s =
        f == KV_KEY ? ue8m0_value(row[d / 2 + i / 32]) : e4m3_value(row[d / 2 + i / 16]);
    return e2m1_value(code) * s;
}

/* n bytes (2 or 4) at p, low first; rows of small models are not aligned. */
__device__ __forceinline__ uint32_t load_bytes(const uint8_t *p, int n) {
    if (((uintptr_t)p & (n - 1)) == 0)
        return n == 4 ? *(const uint32_t *)p : (uint32_t) * (const uint16_t *)p;
    uint32_t v = 0;
    for (int i = 0; i < n; i++)
        v |= (uint32_t)p[i] << 8 * i;
    return v;
}

/* Values i .. i + 3 of a packed row, i % 4 == 0. */
__device__ __forceinline__ float4 kv_value4(kv_format f, const uint8_t *row, int d, int i) {
    if (f == KV_FLOAT) return *(const float4 *)((const float *)row + i);
    if (f == KV_WINDOW) {
        const uint32_t c = load_bytes(row + i, 4);
        const float s = ue8m0_value(row[d + i / 32]);
        return make_float4(e4m3_value(c & 255u) * s, e4m3_value(c >> 8 & 255u) * s,
            e4m3_value(c >> 16 & 255u) * s, e4m3_value(c >> 24) * s);
    }
    const uint32_t c = load_bytes(row + i / 2, 2);
    const float s =
        f == KV_KEY ? ue8m0_value(row[d / 2 + i / 32]) : e4m3_value(row[d / 2 + i / 16]);
    return make_float4(
        e2m1_value(c) * s, e2m1_value(c >> 4) * s, e2m1_value(c >> 8) * s, e2m1_value(c >> 12) * s);
}

__device__ __forceinline__ void copy_bytes(uint8_t *to, const uint8_t *from, size_t n) {
    if ((((uintptr_t)to | (uintptr_t)from | n) & 3) == 0) {
        for (size_t i = threadIdx.x * 4; i < n; i += blockDim.x * 4)
            *(uint32_t *)(to + i) = *(const uint32_t *)(from + i);
        return;
    }
    for (size_t i = threadIdx.x; i < n; i += blockDim.x)
        to[i] = from[i];
}

#endif
