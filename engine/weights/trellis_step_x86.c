/* The steps of the search with AVX2. Compiled for every x86-64 and used where the CPU has it. */
#include "engine/weights/trellis_internal.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "kernels/simd.h"

#define AVX2_CODE __attribute__((target("avx2,fma,f16c")))

bool trellis_has_avx2(void) {
    return simd_has(SIMD_AVX2); /* with FMA and F16C */
}

/* Costs of 8 neighbouring out-edges' in-edges: with 3 and more new bits they share one in-edge,
 * else 2 (n_in 2) or 4 (n_in 1) follow one another. */
AVX2_CODE static inline __attribute__((always_inline)) __m256 spread(const float *in, int n_in) {
    if (n_in >= 3) return _mm256_broadcast_ss(in);
    __m256 four = _mm256_broadcast_ps((const __m128 *)(const void *)in);
    __m256i pick = n_in == 2 ? _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1)
                             : _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    return _mm256_permutevar_ps(four, pick);
}

/* The whole step; n_in and n_out are constants at each call, so that the loop over q is unrolled.
 */
AVX2_CODE static inline __attribute__((always_inline)) void step_all(
    const trellis_step *s, const int n_in, const int n_out) {
    const int n_q = 1 << n_out;
    const int part_shift = STATE_BITS - n_out - n_in;
    const int part = trellis_edge_at(1 << part_shift, part_shift);
    const int n_edges = 1 << (STATE_BITS - n_out);
    const __m256 x0 = _mm256_set1_ps(s->x[0]);
    const __m256 x1 = _mm256_set1_ps(s->x[1]);
    const float *values = s->values;
    float *out0 = s->out[0];
    float *out1 = s->out[1];
    for (int o = 0; o < n_edges; o += LANES, values += LANES << n_out) {
        const float *in0 = s->in[0] + (o >> n_in);
        const float *in1 = s->in[1] + (o >> n_in);
        const int at = trellis_edge_at(o, s->out_shift);
        __m256 best0 = _mm256_set1_ps(__builtin_inff());
        __m256 best1 = best0;
        for (int q = 0; q < n_q; q++) {
            __m256 v = _mm256_load_ps(values + q * LANES);
            __m256 d0 = _mm256_sub_ps(v, x0);
            __m256 d1 = _mm256_sub_ps(v, x1);
            best0 = _mm256_min_ps(_mm256_fmadd_ps(d0, d0, spread(in0 + q * part, n_in)), best0);
            best1 = _mm256_min_ps(_mm256_fmadd_ps(d1, d1, spread(in1 + q * part, n_in)), best1);
        }
        _mm256_storeu_ps(out0 + at, best0);
        _mm256_storeu_ps(out1 + at, best1);
    }
}

AVX2_CODE void trellis_step_avx2(const trellis_step *s) {
    switch (s->n_in * 16 + s->n_out) {
    case 0x11:
        step_all(s, 1, 1);
        break;
    case 0x12:
        step_all(s, 1, 2);
        break;
    case 0x21:
        step_all(s, 2, 1);
        break;
    case 0x22:
        step_all(s, 2, 2);
        break;
    case 0x23:
        step_all(s, 2, 3);
        break;
    case 0x32:
        step_all(s, 3, 2);
        break;
    case 0x33:
        step_all(s, 3, 3);
        break;
    case 0x34:
        step_all(s, 3, 4);
        break;
    case 0x43:
        step_all(s, 4, 3);
        break;
    case 0x44:
        step_all(s, 4, 4);
        break;
    default:
        step_all(s, s->n_in, s->n_out);
        break;
    }
}

/* Rounds d * d + in to fp16 once. The float sum rounds a first time, which matters only when it
 * lands exactly between two fp16 numbers or below their normal range: those lanes are redone. */
AVX2_CODE static inline __m256 candidate_half(__m256 v, __m256 x, __m256 in) {
    const __m256 smallest = _mm256_set1_ps(0x1p-14f);
    const __m256i middle = _mm256_set1_epi32(0x1000);
    const __m256i rest = _mm256_set1_epi32(0x1fff);
    __m256 d = _mm256_sub_ps(v, x);
    d = _mm256_cvtph_ps(_mm256_cvtps_ph(d, _MM_FROUND_TO_NEAREST_INT));
    __m256 sum = _mm256_fmadd_ps(d, d, in);
    __m256i low = _mm256_and_si256(_mm256_castps_si256(sum), rest);
    __m256 doubt = _mm256_or_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(low, middle)),
        _mm256_cmp_ps(sum, smallest, _CMP_LT_OQ));
    __m256 r = _mm256_cvtph_ps(_mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT));
    int lanes = _mm256_movemask_ps(doubt);
    if (__builtin_expect(lanes != 0, 0)) {
        float vs[LANES], xs[LANES], ins[LANES], rs[LANES];
        _mm256_storeu_ps(vs, v);
        _mm256_storeu_ps(xs, x);
        _mm256_storeu_ps(ins, in);
        _mm256_storeu_ps(rs, r);
        for (int l = 0; l < LANES; l++) {
            if ((lanes >> l & 1) != 0) {
                rs[l] = trellis_candidate_half(ins[l], vs[l], xs[l]);
            }
        }
        r = _mm256_loadu_ps(rs);
    }
    return r;
}

AVX2_CODE void trellis_step_half_avx2(const trellis_step *s) {
    const int n_q = 1 << s->n_out;
    const int n_edges = 1 << (STATE_BITS - s->n_out);
    const int part_shift = STATE_BITS - s->n_out - s->n_in;
    const int part = trellis_edge_at(1 << part_shift, part_shift);
    for (int t = 0; t < 2; t++) {
        const float *values = s->values;
        const __m256 x = _mm256_set1_ps(s->x[t]);
        for (int o = 0; o < n_edges; o += LANES) {
            const float *in = s->in[t] + (o >> s->n_in);
            __m256 best = _mm256_set1_ps(__builtin_inff());
            for (int q = 0; q < n_q; q++, values += LANES) {
                __m256 c = spread(in + q * part, s->n_in);
                best = _mm256_min_ps(candidate_half(_mm256_load_ps(values), x, c), best);
            }
            _mm256_storeu_ps(s->out[t] + trellis_edge_at(o, s->out_shift), best);
        }
    }
}

#else

/* ISO C wants at least one declaration in a file. */
typedef int trellis_step_x86_is_empty;

#endif
