/*
 * The plain C variant: the reference for the SIMD ones and what runs on a CPU without them.
 */
#include <math.h>
#include <string.h>

#include "kernels/exl3/exl3_internal.h"
#include "kernels/half.h"

static bool plain_usable(void) {
    return true;
}

/* Nearest integer, ties to even, for |v| < 2^22: adding 1.5 * 2^23 leaves the integer in the low
 * mantissa bits. */
static int32_t round_even(float v) {
    float shifted = v + 12582912.0f;
    return (int32_t)(float_bits(shifted) - 0x4B400000u);
}

void exl3_plain_rotate(const float *x, const float *suh, int in, exl3_row *row) {
    uint32_t max_bits = 0;
    for (int k = 0; k < in; k++)
        row->t[k] = x[k] * suh[k];
    for (int k = 0; k < in; k += EXL3_BLOCK)
        exl3_hadamard_128(row->t + k);
    for (int k = 0; k < in; k++) {
        uint32_t bits = float_bits(row->t[k]) & 0x7fffffffu;
        if (bits > max_bits) max_bits = bits;
    }
    row->sum = 0;
    if (max_bits >= 0x7f800000u) { /* not finite: the NaN scale reaches every output */
        memset(row->a, 0, (size_t)in * sizeof row->a[0]);
        memset(row->block_sums, 0, (size_t)(in / EXL3_BLOCK) * sizeof row->block_sums[0]);
        row->scale = float_from_bits(0x7fc00000u);
        return;
    }
    float max = fmaxf(float_from_bits(max_bits), 1e-30f);
    float inverse = (float)EXL3_A_MAX / max;
    row->scale = max / (float)EXL3_A_MAX;
    for (int block = 0; block < in / EXL3_BLOCK; block++) {
        int32_t sum = 0;
        for (int k = block * EXL3_BLOCK; k < (block + 1) * EXL3_BLOCK; k++) {
            int32_t a = round_even(row->t[k] * inverse);
            row->a[k] = (int16_t)a;
            sum += a;
        }
        row->block_sums[block] = sum;
        row->sum += sum;
    }
}

/* b - 510 of the 256 weights of a packed tile, [row][column]. */
static void decode_tile(
    const uint32_t *words, int k2, int n_words, int16_t b[EXL3_TILE][EXL3_TILE]) {
    for (int c = 0; c < EXL3_LANES; c++) {
        uint32_t before = words[(n_words - 1) * EXL3_LANES + ((c + 7) & 7)];
        for (int p = 0; p < 32; p++) {
            int end = exl3_lane_end(p, k2);
            int i = (end - 1) >> 5;
            uint64_t high = i == 0 ? before : words[(i - 1) * EXL3_LANES + c];
            uint64_t both = high << 32 | words[i * EXL3_LANES + c];
            uint16_t state = (uint16_t)(both >> (32 * (i + 1) - end));
            int q = p >> 3, j = (p >> 1) & 3;
            int value = (int)exl3_byte_sum(state) - EXL3_CENTRE;
            b[2 * q + 8 * (j & 1) + (p & 1)][c + 8 * (j >> 1)] = (int16_t)value;
        }
    }
}

static void add_tile(int16_t b[EXL3_TILE][EXL3_TILE], const int16_t *a, int64_t *sums) {
    for (int n = 0; n < EXL3_TILE; n++) {
        int32_t sum = 0; /* 16 * 510 * 32512 fits */
        for (int k = 0; k < EXL3_TILE; k++)
            sum += b[k][n] * a[k];
        sums[n] += sum;
    }
}

static void plain_dot(
    const exl3_strip *s, const exl3_row *rows, int n_rows, float *out, size_t stride) {
    int64_t sums[EXL3_ROW_BLOCK][EXL3_TILE];
    memset(sums, 0, (size_t)n_rows * sizeof sums[0]);
    for (int i = 0; i < s->in / EXL3_TILE; i++) {
        int16_t b[EXL3_TILE][EXL3_TILE];
        decode_tile(s->packed + (size_t)i * (size_t)s->n_words * EXL3_LANES, s->k2, s->n_words, b);
        for (int r = 0; r < n_rows; r++)
            add_tile(b, rows[r].a + i * EXL3_TILE, sums[r]);
    }
    for (int r = 0; r < n_rows; r++)
        for (int n = 0; n < EXL3_TILE; n++)
            out[(size_t)r * stride + (size_t)n] = (float)sums[r][n];
}

void exl3_finish_rotated(float *z, const float *svh, const float *bias) {
    exl3_hadamard_128(z);
    for (int n = 0; n < EXL3_BLOCK; n++)
        z[n] *= svh[n];
    if (bias == NULL) return;
    for (int n = 0; n < EXL3_BLOCK; n++)
        z[n] += bias[n];
}

void exl3_plain_finish(float *y, const exl3_row *row, const float *svh, const float *bias) {
    float gain = EXL3_MUL1_SCALE * row->scale;
    for (int n = 0; n < EXL3_BLOCK; n++) {
        float centred = fmaf(-EXL3_MUL1_OFFSET, (float)row->sum, y[n]);
        y[n] = centred * gain;
    }
    exl3_finish_rotated(y, svh, bias);
}

void exl3_dot_values(const uint16_t *values, int in, const float *t, float *z) {
    memset(z, 0, EXL3_TILE * sizeof z[0]);
    for (int k = 0; k < in; k++) {
        for (int n = 0; n < EXL3_TILE; n++) {
            float product = t[k] * half_to_float(values[(size_t)k * EXL3_TILE + (size_t)n]);
            z[n] += product;
        }
    }
}

const exl3_kernel exl3_kernel_plain = {
    "plain", plain_usable, exl3_plain_rotate, plain_dot, exl3_plain_finish};
