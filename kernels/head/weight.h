/* Probability weights as integers: about e^x * 2^44 for x <= 0, made of separately rounded float
 * operations, so that the host, the device and every SIMD variant give the same bits. Sums of them
 * are exact, whatever the order. Relative error below 2e-7 and one unit; 0 below x = -31. */
#ifndef TANDEM_KERNELS_HEAD_WEIGHT_H
#define TANDEM_KERNELS_HEAD_WEIGHT_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define WEIGHT_INLINE static __host__ __device__ inline
#else
#define WEIGHT_INLINE static inline
#endif

#define WEIGHT_ONE_BITS 44
#define WEIGHT_ONE ((uint64_t)1 << WEIGHT_ONE_BITS)
/* Rows of more values might overflow a sum. */
#define WEIGHT_MAX_VALUES ((int32_t)1 << 19)
/* Every weight below is 0; the shift by what is 2^n stays below 64 here. */
#define WEIGHT_X_MIN (-43.0f)

/* x = n ln 2 + r as in exp8 of kernels/vec; e^r has 24 bits, which go to their place by a shift. NaN
 * weighs nothing. vec's weigh does the same eight at a time. */
WEIGHT_INLINE uint64_t weight_of(float x) {
    uint32_t bits;
    x = x > WEIGHT_X_MIN ? x : WEIGHT_X_MIN;
    float t = x * 0x1.715476p+0f;
    t = t + 12582912.0f;
    memcpy(&bits, &t, sizeof bits);
    int32_t n = (int32_t)(bits - 0x4B400000u);
    t = t - 12582912.0f;
    float r = x - t * 0x1.62p-1f;
    r = r - t * 0x1.c85fep-10f;
    float p = r * 0x1.6d113cp-10f + 0x1.120ba2p-7f;
    p = p * r + 0x1.55551ap-5f;
    p = p * r + 0x1.5554dcp-3f;
    p = p * r + 0.5f;
    float y = (p * (r * r) + r) + 1.0f;
    uint64_t mantissa = (uint64_t)(uint32_t)(int32_t)(y * 0x1p+24f);
    return mantissa << (WEIGHT_ONE_BITS - 24) >> -n;
}

#endif
