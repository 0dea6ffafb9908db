/*
 * x86-64 variants: AVX2, and AVX2 with the VNNI pair product in its two encodings (AVX-VNNI,
 * AVX512-VNNI with VL). Rotation and epilogue are the same AVX2 code in all three.
 */
#include "kernels/exl3/exl3_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/simd.h"

#define EXL3_PRAGMA(x) _Pragma(#x)
#if defined(__clang__)
#define EXL3_UNROLL(n) EXL3_PRAGMA(clang loop unroll_count(n))
#else
#define EXL3_UNROLL(n) EXL3_PRAGMA(GCC unroll n)
#endif

/* ---- rotation and epilogue ---- */

#define AVX2_FN static __attribute__((target("avx2,fma")))
#define AVX2_INLINE static inline __attribute__((target("avx2,fma"), always_inline))

/* Stride inside a vector: the partner's value plus the own one, negated where the stride bit is
 * set. */
AVX2_INLINE __m256 butterfly(__m256 own, __m256 partner, __m256 signs) {
    return _mm256_add_ps(partner, _mm256_xor_ps(own, signs));
}

/* exl3_hadamard_128 on 16 vectors. Additions only change operand order, so the bits are those of
 * the plain code. */
AVX2_INLINE void hadamard(__m256 v[16]) {
    const __m256 sign1 = _mm256_setr_ps(0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f);
    const __m256 sign2 = _mm256_setr_ps(0.0f, 0.0f, -0.0f, -0.0f, 0.0f, 0.0f, -0.0f, -0.0f);
    const __m256 sign4 = _mm256_setr_ps(0.0f, 0.0f, 0.0f, 0.0f, -0.0f, -0.0f, -0.0f, -0.0f);
    const __m256 scale = _mm256_set1_ps(EXL3_HADAMARD_SCALE);
    EXL3_UNROLL(16)
    for (int i = 0; i < 16; i++) {
        v[i] = butterfly(v[i], _mm256_permute_ps(v[i], 0xB1), sign1);
        v[i] = butterfly(v[i], _mm256_permute_ps(v[i], 0x4E), sign2);
        v[i] = butterfly(v[i], _mm256_permute2f128_ps(v[i], v[i], 1), sign4);
    }
    EXL3_UNROLL(4)
    for (int stride = 1; stride < 16; stride *= 2) {
        EXL3_UNROLL(16)
        for (int i = 0; i < 16; i++) {
            if ((i & stride) != 0) continue;
            __m256 a = v[i], b = v[i + stride];
            v[i] = _mm256_add_ps(a, b);
            v[i + stride] = _mm256_sub_ps(a, b);
        }
    }
    EXL3_UNROLL(16)
    for (int i = 0; i < 16; i++)
        v[i] = _mm256_mul_ps(v[i], scale);
}

/* Rotates one block into t and returns the running maximum of the bit patterns without sign. */
AVX2_FN __m256i rotate_block(const float *x, const float *suh, float *t, __m256i max) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256 v[16];
    for (int i = 0; i < 16; i++)
        v[i] = _mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_load_ps(suh + 8 * i));
    hadamard(v);
    for (int i = 0; i < 16; i++) {
        _mm256_store_ps(t + 8 * i, v[i]);
        max = _mm256_max_epu32(max, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    }
    return max;
}

AVX2_INLINE uint32_t max_of(__m256i v) {
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

AVX2_INLINE int32_t sum_of(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    return _mm_cvtsi128_si32(s);
}

/* 128 values to integers; returns their sum. The conversion rounds to nearest even (the default
 * mode). */
AVX2_FN int32_t quantize_block(const float *t, float inverse, int16_t *a) {
    const __m256 factor = _mm256_set1_ps(inverse);
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < EXL3_BLOCK; i += 16) {
        __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(t + i), factor));
        __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(t + i + 8), factor));
        __m256i both = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8);
        _mm256_store_si256((__m256i *)(a + i), both);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(both, ones));
    }
    return sum_of(sum);
}

AVX2_FN void avx2_rotate(const float *x, const float *suh, int in, exl3_row *row) {
    __m256i max = _mm256_setzero_si256();
    for (int k = 0; k < in; k += EXL3_BLOCK)
        max = rotate_block(x + k, suh + k, row->t + k, max);
    uint32_t max_bits = max_of(max);
    row->sum = 0;
    if (max_bits >= 0x7f800000u) {
        memset(row->a, 0, (size_t)in * sizeof row->a[0]);
        memset(row->block_sums, 0, (size_t)(in / EXL3_BLOCK) * sizeof row->block_sums[0]);
        row->scale = float_from_bits(0x7fc00000u);
        return;
    }
    float largest = float_from_bits(max_bits) > 1e-30f ? float_from_bits(max_bits) : 1e-30f;
    float inverse = (float)EXL3_A_MAX / largest;
    row->scale = largest / (float)EXL3_A_MAX;
    for (int i = 0; i < in / EXL3_BLOCK; i++) {
        row->block_sums[i] =
            quantize_block(row->t + i * EXL3_BLOCK, inverse, row->a + i * EXL3_BLOCK);
        row->sum += row->block_sums[i];
    }
}

AVX2_FN void avx2_finish(float *y, const exl3_row *row, const float *svh, const float *bias) {
    const __m256 offset = _mm256_set1_ps(EXL3_MUL1_OFFSET), sum = _mm256_set1_ps((float)row->sum);
    const __m256 gain = _mm256_set1_ps(EXL3_MUL1_SCALE * row->scale);
    __m256 v[16];
    for (int i = 0; i < 16; i++)
        v[i] = _mm256_mul_ps(_mm256_fnmadd_ps(offset, sum, _mm256_loadu_ps(y + 8 * i)), gain);
    hadamard(v);
    for (int i = 0; i < 16; i++) {
        __m256 out = _mm256_mul_ps(v[i], _mm256_load_ps(svh + 8 * i));
        if (bias != NULL) out = _mm256_add_ps(out, _mm256_load_ps(bias + 8 * i));
        _mm256_storeu_ps(y + 8 * i, out);
    }
}

/* ---- the integer sums, three times ---- */

/* Rows whose sums stay in registers: 2 * 4 sums, 2 weights and 1 input of the 16 registers (6
 * rows spilled with gcc 12). */
enum { X86_GROUP = 4 };

#define X86_NAME(x) avx2_##x
#define X86_FN static __attribute__((target("avx2")))
#define X86_INLINE static inline __attribute__((target("avx2"), always_inline))
#define X86_DOT(sum, b, a) _mm256_add_epi32(sum, _mm256_madd_epi16(b, a))
#include "kernels/exl3/exl3_x86_body.h"
#undef X86_NAME
#undef X86_FN
#undef X86_INLINE
#undef X86_DOT

#define X86_NAME(x) avx_vnni_##x
#define X86_FN static __attribute__((target("avx2,avxvnni")))
#define X86_INLINE static inline __attribute__((target("avx2,avxvnni"), always_inline))
#define X86_DOT(sum, b, a) _mm256_dpwssd_avx_epi32(sum, b, a)
#include "kernels/exl3/exl3_x86_body.h"
#undef X86_NAME
#undef X86_FN
#undef X86_INLINE
#undef X86_DOT

#define X86_NAME(x) avx512_vnni_##x
#define X86_FN static __attribute__((target("avx2,avx512f,avx512bw,avx512vl,avx512vnni")))
#define X86_INLINE                                                                                 \
    static inline                                                                                  \
        __attribute__((target("avx2,avx512f,avx512bw,avx512vl,avx512vnni"), always_inline))
#define X86_DOT(sum, b, a) _mm256_dpwssd_epi32(sum, b, a)
#include "kernels/exl3/exl3_x86_body.h"

static bool avx2_usable(void) {
    return simd_has(SIMD_AVX2);
}

static bool avx_vnni_usable(void) {
    return simd_has(SIMD_AVX2) && simd_has(SIMD_AVX_VNNI);
}

static bool avx512_vnni_usable(void) {
    return simd_has(SIMD_AVX2) && simd_has(SIMD_AVX512_VNNI);
}

const exl3_kernel exl3_kernel_avx2 = {"avx2", avx2_usable, avx2_rotate, avx2_dot, avx2_finish};
const exl3_kernel exl3_kernel_avx_vnni = {
    "avx_vnni", avx_vnni_usable, avx2_rotate, avx_vnni_dot, avx2_finish};
const exl3_kernel exl3_kernel_avx512_vnni = {
    "avx512_vnni", avx512_vnni_usable, avx2_rotate, avx512_vnni_dot, avx2_finish};

#endif
