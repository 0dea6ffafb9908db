/*
 * Exact conversions between the 16-bit float formats and float/double, in plain integer C so that
 * every machine gives
 * the same bits. Rounding is to nearest even, subnormals are kept, NaN stays NaN. Any thread.
 */
#ifndef KERNELS_HALF_H
#define KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

/* The bit pattern of a float and back. */
static inline uint32_t float_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float float_from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* fp16 bits to float, exact. */
static inline float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 31u;
    uint32_t mantissa = h & 0x3ffu;
    if (exponent == 31) return float_from_bits(sign | 0x7f800000u | (mantissa << 13));
    if (exponent != 0) return float_from_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    float tiny = (float)mantissa * 0x1p-24f;
    return sign != 0 ? -tiny : tiny;
}

/* Double to fp16 bits with one rounding. */
static inline uint16_t half_from_double(double value) {
    uint64_t u;
    memcpy(&u, &value, sizeof u);
    uint16_t sign = (uint16_t)((u >> 48) & 0x8000u);
    int exponent = (int)((u >> 52) & 0x7ffu) - 1023;
    uint64_t mantissa = u & 0xfffffffffffffULL;
    if (exponent == 1024) return (uint16_t)(sign | 0x7c00u | (mantissa != 0 ? 0x200u : 0u));
    if (exponent < -25) return sign;
    if (exponent > 15) return (uint16_t)(sign | 0x7c00u);
    mantissa |= 1ULL << 52;
    int drop = exponent < -14 ? 42 + (-14 - exponent) : 42;
    uint64_t kept = mantissa >> drop;
    uint64_t rest = mantissa & ((1ULL << drop) - 1);
    uint64_t half = 1ULL << (drop - 1);
    if (rest > half || (rest == half && (kept & 1u) != 0)) kept++;
    /* A normal value carries its leading one into the exponent field; a carry out of the mantissa
     * does the same. */
    uint64_t base = exponent < -14 ? 0 : (uint64_t)(exponent + 14) << 10;
    return (uint16_t)(sign | (uint16_t)(base + kept));
}

/* Float to fp16 bits with one rounding (float to double is exact). */
static inline uint16_t half_from_float(float value) {
    return half_from_double((double)value);
}

/* bf16 bits to float, exact. */
static inline float bf16_to_float(uint16_t b) {
    return float_from_bits((uint32_t)b << 16);
}

/* Float to bf16 bits. */
static inline uint16_t bf16_from_float(float value) {
    uint32_t u = float_bits(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* A float rounded to the nearest bf16 value. */
static inline float bf16_round(float value) {
    return bf16_to_float(bf16_from_float(value));
}

#endif
