/* Rows as integer operands, in the two forms of exl3_gpu.h; for kernels of other folders too. */
#ifndef KERNELS_EXL3_OPERAND_CUH
#define KERNELS_EXL3_OPERAND_CUH

#include "kernels/exl3/exl3_decode.cuh"

/* Where rows of a gemm job go. */
struct exl3_gemm_place {
    uint32_t *operand;
    int row_cap, tile_rows, n; /* n: inputs */
};

/* Four fp16 values. */
__device__ __forceinline__ float4 exl3_half4_value(uint2 u) {
    const float2 a = __half22float2(*(const __half2 *)&u.x),
                 b = __half22float2(*(const __half2 *)&u.y);
    return make_float4(a.x, a.y, b.x, b.y);
}

/* exl3_put_operand for gemm: the rows of a tile lie together, and in them [in/32][hi, lo][slice][rows of
 * the tile][16 bytes], so that 8 rows of a slice are a block of 128 bytes as tensor cores read it and a
 * stage is one run; the inputs of a slice stand in the order of the windows (0, 1, 8, 9, 2, 3, 10, 11, ..).
 * A whole warp, lane L with inputs at .. at + 3, at = 4 L mod 128: the lanes of a slice that hold inputs 0-7
 * store the high bytes and the others the low ones, 8 bytes each. place.n: inputs of a row. */
__device__ __forceinline__ int exl3_put_gemm_operand(
    const exl3_gemm_place &place, int row, int at, float4 v, float inv) {
    const float f[4] = {v.x, v.y, v.z, v.w};
    uint32_t hi = 0, lo = 0;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int a = __float2int_rn(f[i] * inv), h = (a + 128) >> 8;
        hi |= (uint32_t)(h & 255) << 8 * i;
        lo |= (uint32_t)(a & 255) << 8 * i; /* a - 256 h, its low byte */
        sum += a;
    }
    const int slice = (at >> 4) & 1, q = (at >> 2) & 3;
    const bool is_low = q >= 2;
    const uint32_t mine = is_low ? lo : hi;
    const uint32_t other = __shfl_xor_sync(~0u, is_low ? hi : lo, 2);
    /* first: inputs 4 (q & 1) + 0 .. 3, second: those 8 further on. */
    const uint32_t first = is_low ? other : mine, second = is_low ? mine : other;
    const int row0 = row / place.tile_rows * place.tile_rows;
    const int rows = min(place.tile_rows, place.row_cap - row0);
    const size_t block = (size_t)(at >> 5) * 4 + (is_low ? 2 : 0) + slice;
    uint2 *o = (uint2 *)((char *)place.operand + (size_t)row0 * place.n * 2 +
                         (block * rows + (row - row0)) * 16 + (q & 1) * 8);
    *o = make_uint2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
    return sum;
}

#endif
