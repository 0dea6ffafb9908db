/*
 * How the blocks of moe_row.h meet without fences and counters: whoever needs a value reads it until it is complete.
 *
 *   sums     64-bit integers; every addition also adds the units of work it stands for to the upper bits
 *   words    value and number of the run in 8 bytes that are written at once
 */
#ifndef TANDEM_KERNELS_MOE_MOE_ROW_LINK_CUH
#define TANDEM_KERNELS_MOE_MOE_ROW_LINK_CUH

#include "kernels/exl3/exl3_decode.cuh"
#include "kernels/moe/moe_row.h"

/* Bit where the count of units begins: a sum of MOE_ROW_MAX_WIDTH products of at most 1020 * 32512 has 39 bits. */
constexpr int MOE_ROW_COUNT_AT = 48;

__device__ __forceinline__ unsigned long long moe_row_counted(long long sum, int units) {
    return (unsigned long long)sum + ((unsigned long long)units << MOE_ROW_COUNT_AT);
}

/* Four sums of a lane, read until they are complete. */
struct moe_row_sums {
    int64_t *at;
    ulonglong2 a, b;
    /* sums: of a block of 128 outputs. */
    __device__ moe_row_sums(int64_t *sums, int lane) : at(sums + lane * 4) {
    }
    __device__ void load() {
        a = ptx_load_device_16(at);
        b = ptx_load_device_16(at + 2);
    }
    __device__ static bool is_of(unsigned long long sum, int units) {
        const long long half = 1ll << (MOE_ROW_COUNT_AT - 1); /* the sum may be negative */
        return (int)(((long long)sum + half) >> MOE_ROW_COUNT_AT) == units;
    }
    __device__ bool has(int units) const {
        return is_of(a.x, units) && is_of(a.y, units) && is_of(b.x, units) && is_of(b.y, units);
    }
    /* Converts them and leaves zeros. */
    __device__ float4 take(int units, exl3_gpu_scale r) const {
        const unsigned long long all = moe_row_counted(0, units);
        __stcg((longlong2 *)at, make_longlong2(0, 0));
        __stcg((longlong2 *)at + 1, make_longlong2(0, 0));
        return make_float4(exl3_unscale((long long)(a.x - all), r),
            exl3_unscale((long long)(a.y - all), r), exl3_unscale((long long)(b.x - all), r),
            exl3_unscale((long long)(b.y - all), r));
    }
};

/* Two words, 16-byte aligned. */
struct moe_row_pair {
    ulonglong2 v;
    __device__ void load(const moe_row_word *from) {
        v = ptx_load_device_16(from);
    }
    __device__ bool is_of(uint32_t run) const {
        return (uint32_t)(v.x >> 32) == run && (uint32_t)(v.y >> 32) == run;
    }
    __device__ uint32_t first() const {
        return (uint32_t)v.x;
    }
    __device__ uint32_t second() const {
        return (uint32_t)v.y;
    }
    __device__ exl3_gpu_scale scale() const {
        return {__uint_as_float(first()), (int)second()};
    }
};
__device__ __forceinline__ void moe_row_store(
    moe_row_word *to, uint32_t first, uint32_t second, uint32_t run) {
    const unsigned long long tag = (unsigned long long)run << 32;
    ptx_store_device_16(to, make_ulonglong2(tag | first, tag | second));
}
/* Four values of a lane. */
__device__ __forceinline__ void moe_row_hand_on(moe_row_word *to, float4 v, uint32_t run) {
    moe_row_store(to, __float_as_uint(v.x), __float_as_uint(v.y), run);
    moe_row_store(to + 2, __float_as_uint(v.z), __float_as_uint(v.w), run);
}

#endif
