/*
 * The aarch64 variant with the dot-product extension: udot of the four bytes of state * M with
 * ones, started at -510, gives b - 510 in one instruction. Rotation and epilogue are the plain
 * code (fmaf is one instruction here). Compiled with the extension (the Makefile knows it by the
 * file name); nothing here runs before neon_usable said yes.
 */
#include "kernels/exl3/exl3_internal.h"

#if defined(__aarch64__)

#include <arm_neon.h>
#include <string.h>

#include "kernels/simd.h"

#define NEON_INLINE static inline __attribute__((always_inline))

enum { NEON_GROUP = 4 }; /* rows whose sums stay in registers */

/* start + the sum of the four bytes of each lane of y. */
NEON_INLINE int32x4_t byte_sums(int32x4_t start, uint32x4_t y) {
    return vreinterpretq_s32_u32(
        vdotq_u32(vreinterpretq_u32_s32(start), vreinterpretq_u8_u32(y), vdupq_n_u8(1)));
}

typedef struct neon_tile {
    uint32x4_t v[9][2]; /* [0]: the word before word 0; lanes 0-3 and 4-7 */
} neon_tile;

NEON_INLINE void load_tile(const uint32_t *words, int n_words, neon_tile *t) {
    for (int i = 0; i < n_words; i++) {
        t->v[i + 1][0] = vld1q_u32(words + i * EXL3_LANES);
        t->v[i + 1][1] = vld1q_u32(words + i * EXL3_LANES + 4);
    }
    t->v[0][0] = vextq_u32(t->v[n_words][1], t->v[n_words][0], 3);
    t->v[0][1] = vextq_u32(t->v[n_words][0], t->v[n_words][1], 3);
}

/* b - 510 of position p for lanes 4h .. 4h+3. */
NEON_INLINE int32x4_t weights(const neon_tile *t, int k2, int p, int h) {
    int end = exl3_lane_end(p, k2), i = (end - 1) >> 5, s = 32 * (i + 1) - end;
    uint32x4_t state = t->v[i + 1][h] >> s;
    if (s > 16) state |= t->v[i][h] << (32 - s);
    state = (state & 0xffffu) * EXL3_MUL1_MULTIPLIER;
    return byte_sums(vdupq_n_s32(-EXL3_CENTRE), state);
}

/* Position of row k, columns 4q .. 4q+3 (q = 0..3), and which half of the lanes it is in. */
NEON_INLINE int position(int k, int q) {
    return 8 * ((k & 7) >> 1) + (k & 1) + 2 * (k >> 3) + 4 * (q >> 1);
}

NEON_INLINE void one_row(
    const uint32_t *words, const int16_t *a, int k2, int n_words, int32x4_t sums[4]) {
    for (int q = 0; q < 4; q++)
        sums[q] = vdupq_n_s32(0);
    for (int tile = 0; tile < EXL3_BLOCK / EXL3_TILE; tile++) {
        neon_tile t;
        load_tile(words + tile * n_words * EXL3_LANES, n_words, &t);
#pragma GCC unroll 16
        for (int k = 0; k < EXL3_TILE; k++) {
            int32_t x = a[tile * EXL3_TILE + k];
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++)
                sums[q] = vmlaq_n_s32(sums[q], weights(&t, k2, position(k, q), q & 1), x);
        }
    }
}

/* b - 510 of one block of 128 inputs into b[128][16]. */
NEON_INLINE void decode(const uint32_t *words, int k2, int n_words, int16_t *b) {
    for (int tile = 0; tile < EXL3_BLOCK / EXL3_TILE; tile++) {
        neon_tile t;
        load_tile(words + tile * n_words * EXL3_LANES, n_words, &t);
#pragma GCC unroll 16
        for (int k = 0; k < EXL3_TILE; k++) {
#pragma GCC unroll 4
            for (int q = 0; q < 4; q++)
                vst1_s16(b + (tile * EXL3_TILE + k) * EXL3_TILE + 4 * q,
                    vmovn_s32(weights(&t, k2, position(k, q), q & 1)));
        }
    }
}

#define NEON_RATE(k2)                                                                              \
    static void one_row_##k2(const uint32_t *words, const int16_t *a, int32x4_t sums[4]) {         \
        one_row(words, a, k2, (k2 + 1) / 2, sums);                                                 \
    }                                                                                              \
    static void decode_##k2(const uint32_t *words, int16_t *b) {                                   \
        decode(words, k2, (k2 + 1) / 2, b);                                                        \
    }
NEON_RATE(2)
NEON_RATE(3)
NEON_RATE(4)
NEON_RATE(5)
NEON_RATE(6)
NEON_RATE(7)
NEON_RATE(8)
NEON_RATE(10)
NEON_RATE(12)
NEON_RATE(14)
NEON_RATE(16)

typedef struct neon_rate {
    void (*one_row)(const uint32_t *words, const int16_t *a, int32x4_t sums[4]);
    void (*decode)(const uint32_t *words, int16_t *b);
} neon_rate;

#define NEON_ENTRY(k2) [k2] = {one_row_##k2, decode_##k2}
static const neon_rate rates[EXL3_MAX_K2 + 1] = {NEON_ENTRY(2), NEON_ENTRY(3), NEON_ENTRY(4),
    NEON_ENTRY(5), NEON_ENTRY(6), NEON_ENTRY(7), NEON_ENTRY(8), NEON_ENTRY(10), NEON_ENTRY(12),
    NEON_ENTRY(14), NEON_ENTRY(16)};

NEON_INLINE void add_block(const int32x4_t sums[4], int64_t *total) {
    for (int q = 0; q < 4; q++) {
        int64_t *at = total + 4 * q;
        vst1q_s64(at, vaddw_s32(vld1q_s64(at), vget_low_s32(sums[q])));
        vst1q_s64(at + 2, vaddw_s32(vld1q_s64(at + 2), vget_high_s32(sums[q])));
    }
}

/* The n rows of a group against one decoded block; n is a constant at every call. */
NEON_INLINE void group(
    const int16_t *b, const exl3_row *rows, int i_block, int n, int64_t (*totals)[EXL3_TILE]) {
    int32x4_t sums[NEON_GROUP][4];
    for (int r = 0; r < n; r++)
        for (int q = 0; q < 4; q++)
            sums[r][q] = vdupq_n_s32(0);
    for (int k = 0; k < EXL3_BLOCK; k++) {
        int16x8_t b0 = vld1q_s16(b + k * EXL3_TILE), b1 = vld1q_s16(b + k * EXL3_TILE + 8);
#pragma GCC unroll 4
        for (int r = 0; r < n; r++) {
            int16_t a = rows[r].a[i_block * EXL3_BLOCK + k];
            sums[r][0] = vmlal_n_s16(sums[r][0], vget_low_s16(b0), a);
            sums[r][1] = vmlal_high_n_s16(sums[r][1], b0, a);
            sums[r][2] = vmlal_n_s16(sums[r][2], vget_low_s16(b1), a);
            sums[r][3] = vmlal_high_n_s16(sums[r][3], b1, a);
        }
    }
    for (int r = 0; r < n; r++)
        add_block(sums[r], totals[r]);
}

static void groups(
    const int16_t *b, const exl3_row *rows, int n_rows, int i_block, int64_t (*totals)[EXL3_TILE]) {
    int r = 0;
    for (; r + 4 <= n_rows; r += 4)
        group(b, rows + r, i_block, 4, totals + r);
    switch (n_rows - r) {
    case 3:
        group(b, rows + r, i_block, 3, totals + r);
        break;
    case 2:
        group(b, rows + r, i_block, 2, totals + r);
        break;
    case 1:
        group(b, rows + r, i_block, 1, totals + r);
        break;
    default:
        break;
    }
}

static void neon_dot(
    const exl3_strip *s, const exl3_row *rows, int n_rows, float *out, size_t stride) {
    int64_t totals[EXL3_ROW_BLOCK][EXL3_TILE];
    const size_t block_words = (size_t)(EXL3_BLOCK / EXL3_TILE * s->n_words * EXL3_LANES);
    memset(totals, 0, (size_t)n_rows * sizeof totals[0]);
    for (int i = 0; i < s->in / EXL3_BLOCK; i++) {
        const uint32_t *words = s->packed + (size_t)i * block_words;
        if (n_rows == 1) {
            int32x4_t sums[4];
            rates[s->k2].one_row(words, rows[0].a + i * EXL3_BLOCK, sums);
            add_block(sums, totals[0]);
        } else {
            int16_t b[EXL3_BLOCK * EXL3_TILE];
            rates[s->k2].decode(words, b);
            groups(b, rows, n_rows, i, totals);
        }
    }
    for (int r = 0; r < n_rows; r++)
        for (size_t n = 0; n < EXL3_TILE; n++)
            out[(size_t)r * stride + n] = (float)totals[r][n];
}

static bool neon_usable(void) {
    return simd_has(SIMD_NEON_DOTPROD);
}

const exl3_kernel exl3_kernel_neon = {
    "neon_dotprod", neon_usable, exl3_plain_rotate, neon_dot, exl3_plain_finish};

#endif
