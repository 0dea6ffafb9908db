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
 * stage is one run; the inputs of a slice stand in the order of the windows. n: inputs of a row. */
__device__ __forceinline__ int exl3_put_gemm_operand(
    const exl3_gemm_place &place, int row, int at, float4 v, float inv) {
    const float f[4] = {v.x, v.y, v.z, v.w};
    int hi[4], lo[4], sum = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int a = __float2int_rn(f[i] * inv);
        hi[i] = (a + 128) >> 8;
        lo[i] = a - hi[i] * 256;
        sum += a;
    }
    const int slice = (at >> 4) & 1, q = (at >> 2) & 3, t = 2 * (q & 1);
    const int row0 = row / place.tile_rows * place.tile_rows;
    const int rows = min(place.tile_rows, place.row_cap - row0);
    unsigned short *o = (unsigned short *)place.operand + (size_t)row0 * place.n +
                        (((size_t)(at >> 5) * 4 + slice) * rows + (row - row0)) * 8 + t * 2 +
                        (q >> 1);
    o[0] = (unsigned short)((hi[0] & 255) | (hi[1] & 255) << 8);
    o[2] = (unsigned short)((hi[2] & 255) | (hi[3] & 255) << 8);
    o += (size_t)16 * rows;
    o[0] = (unsigned short)((lo[0] & 255) | (lo[1] & 255) << 8);
    o[2] = (unsigned short)((lo[2] & 255) | (lo[3] & 255) << 8);
    return sum;
}

#endif
