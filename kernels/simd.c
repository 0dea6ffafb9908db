#include "kernels/simd.h"

#include <stdatomic.h>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

/* Bit f = feature f, and one more bit once it is filled in. Every thread computes the same
 * value. */
static atomic_uint detected;

#if defined(__x86_64__)
static unsigned detect(void) {
    unsigned found = 0, a = 0, b = 0, c = 0, d = 0;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0)
        found |= 1u << SIMD_AVX2;
    /* Leaf 7, subleaf 1: EAX bit 4 is AVX-VNNI. */
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 4)) != 0 &&
        __builtin_cpu_supports("avx2"))
        found |= 1u << SIMD_AVX_VNNI;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
        found |= 1u << SIMD_AVX512_VNNI;
    return found;
}
#elif defined(__aarch64__)
static unsigned detect(void) {
    const unsigned long dot_product = 1UL << 20; /* HWCAP_ASIMDDP */
    unsigned found = 1u << SIMD_NEON;
    if ((getauxval(AT_HWCAP) & dot_product) != 0) found |= 1u << SIMD_NEON_DOTPROD;
    return found;
}
#else
static unsigned detect(void) {
    return 0;
}
#endif

bool simd_has(simd_feature feature) {
    unsigned found = atomic_load_explicit(&detected, memory_order_relaxed);
    if (found == 0) {
        found = detect() | 1u << SIMD_FEATURE_COUNT;
        atomic_store_explicit(&detected, found, memory_order_relaxed);
    }
    return (found >> feature & 1u) != 0;
}

const char *simd_name(simd_feature feature) {
    static const char *const names[SIMD_FEATURE_COUNT] = {
        "AVX2", "AVX-VNNI", "AVX512-VNNI", "NEON", "NEON dot product"};
    return feature < SIMD_FEATURE_COUNT ? names[feature] : "?";
}
