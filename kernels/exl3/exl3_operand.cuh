/* Rows as integer operands, in the two forms of exl3_gpu.h; for kernels of other folders too. */
#ifndef KERNELS_EXL3_OPERAND_CUH
#define KERNELS_EXL3_OPERAND_CUH

#include "kernels/exl3/exl3_decode.cuh"

/* Four fp16 values. */
__device__ __forceinline__ float4 exl3_half4_value(uint2 u) {
    const float2 a = __half22float2(*(const __half2 *)&u.x),
                 b = __half22float2(*(const __half2 *)&u.y);
    return make_float4(a.x, a.y, b.x, b.y);
}

/* exl3_put_operand for gemm: [in/32][hi, lo][slice][row_cap][16 bytes], so that 8 rows of a slice are a
 * block of 128 bytes as tensor cores read it; the inputs of a slice stand in the order of the windows. */
__device__ __forceinline__ int exl3_put_gemm_operand(
    uint32_t *operand, int row_cap, int row, int at, float4 v, float inv) {
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
    unsigned short *o = (unsigned short *)operand +
                        (((size_t)(at >> 5) * 4 + slice) * row_cap + row) * 8 + t * 2 + (q >> 1);
    o[0] = (unsigned short)((hi[0] & 255) | (hi[1] & 255) << 8);
    o[2] = (unsigned short)((hi[2] & 255) | (hi[3] & 255) << 8);
    o += (size_t)16 * row_cap;
    o[0] = (unsigned short)((lo[0] & 255) | (lo[1] & 255) << 8);
    o[2] = (unsigned short)((lo[2] & 255) | (lo[3] & 255) << 8);
    return sum;
}

#endif
