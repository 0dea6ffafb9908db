/*
 * What the vector unit of this CPU can do, asked once at run time, so that one binary runs
 * everywhere. Any thread.
 * Operators pick their variant with simd_has; a variant must equal the plain C one within the
 * bound its header states.
 */
#ifndef KERNELS_SIMD_H
#define KERNELS_SIMD_H

#include <stdbool.h>

typedef enum simd_feature {
    SIMD_AVX2,         /* x86-64: AVX2, FMA and F16C, and the system saves the registers */
    SIMD_AVX_VNNI,     /* x86-64: VNNI in the VEX encoding */
    SIMD_AVX512_VNNI,  /* x86-64: AVX-512 F, BW, VL and VNNI */
    SIMD_NEON,         /* aarch64: always there */
    SIMD_NEON_DOTPROD, /* aarch64: udot and sdot */
    SIMD_FEATURE_COUNT
} simd_feature;

/* Whether this CPU and system have the feature. False for another architecture's features. */
bool simd_has(simd_feature feature);
/* "AVX2" and so on, for logs. */
const char *simd_name(simd_feature feature);

#endif
