/*
 * Shared inside kernels/exl3: the packed order, the operand of one row and the table of SIMD
 * variants.
 *
 * Packed order of a mul1 matrix: [out/16 strips][in/16 tiles][n_words][8 lanes] 32-bit words.
 * Lane c of a tile holds the stream of columns c and c + 8: positions 32c .. 32c+31 of the tile,
 * 16 * k2 bits, most significant bit first, ending at the last bit of the last word. The window
 * of its first positions reaches back into lane c - 1 (cyclic): for even k2 that is the last
 * word of that lane; for odd k2 the stream fills only half of word 0 and the 16 bits before it
 * are copied into the other half. Eight lanes side by side make one vector, and every window of
 * a vector then has constant shifts.
 *
 * Position 8q + 2i + s of a lane (q, i = 0..3, s = 0, 1) is input row 2q + 8 (i & 1) + s, column
 * c + 8 (i >> 1).
 */
#ifndef KERNELS_EXL3_EXL3_INTERNAL_H
#define KERNELS_EXL3_EXL3_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/exl3/exl3_codec.h"

enum {
    EXL3_LANES = 8,
    EXL3_ROW_BLOCK = 64, /* rows of one work item */
    EXL3_CENTRE = 510,   /* (0 + 1020) / 2 */
    EXL3_A_MAX = 32512   /* 127 * 256 */
};

struct exl3_linear {
    int in, out, k2, n_words;
    exl3_codebook codebook;
    const uint32_t *packed; /* mul1 */
    const uint16_t *values; /* other codebooks: fp16 [out/16][in][16] */
    const float *suh, *svh; /* [in], [out] */
    const float *bias;      /* [out] or NULL */
};

/* One row made ready for one matrix. */
typedef struct exl3_row {
    float *t;            /* [in] rotated row */
    int16_t *a;          /* [in] integers */
    int32_t *block_sums; /* [in/128] sums of a */
    float scale;
    int32_t sum; /* A */
} exl3_row;

/* One strip of 16 outputs of a mul1 matrix. */
typedef struct exl3_strip {
    const uint32_t *packed; /* [in/16][n_words][8], 32-byte aligned */
    int in, k2, n_words;
} exl3_strip;

/* All functions of a variant give the bits of exl3.h. */
typedef struct exl3_kernel {
    const char *name;
    bool (*is_usable)(void);
    /* Fills row->t, a, block_sums, scale and sum. */
    void (*rotate)(const float *x, const float *suh, int in, exl3_row *row);
    /* out[r * stride + 0..15] = float(S) of the strip for n_rows <= EXL3_ROW_BLOCK rows. */
    void (*dot)(const exl3_strip *s, const exl3_row *rows, int n_rows, float *out, size_t stride);
    /* From float(S) to y for 128 outputs, in place. svh and bias point at the block; bias may be
     * NULL. */
    void (*finish)(float *y, const exl3_row *row, const float *svh, const float *bias);
} exl3_kernel;

extern const exl3_kernel exl3_kernel_plain;
extern const exl3_kernel exl3_kernel_avx2;
extern const exl3_kernel exl3_kernel_avx_vnni;
extern const exl3_kernel exl3_kernel_avx512_vnni;
extern const exl3_kernel exl3_kernel_neon;

/* 32-bit words of one lane of a packed tile. */
static inline int exl3_lane_words(int k2) {
    return k2 % 2 == 0 ? k2 / 2 : (k2 + 1) / 2;
}

/* Bit just after the window of position p of a lane, counted from the top of the lane's word 0. */
static inline int exl3_lane_end(int p, int k2) {
    if (k2 % 2 == 0) return (p + 1) * (k2 / 2);
    return 16 + (p >> 1) * k2 + ((p & 1) != 0 ? k2 : k2 >> 1);
}

/* The plain rotation and epilogue, also used by the NEON variant. */
void exl3_plain_rotate(const float *x, const float *suh, int in, exl3_row *row);
void exl3_plain_finish(float *y, const exl3_row *row, const float *svh, const float *bias);
/* Packs one tile of the file layout into [n_words][8]. */
void exl3_pack_lanes(const void *tile, int k2, uint32_t *words);
/* The weights of m in the packed order (other codebooks: fp16 values), exl3_packed_bytes long. */
void exl3_pack_weights(const exl3_matrix *m, void *weights);
size_t exl3_packed_bytes(int in, int out, int k2, exl3_codebook codebook);
void exl3_unpack_halves(const void *halves, int n, float *out);
/* z[n] = sum of t * value, k ascending, for the 16 outputs of one strip (codebooks other than
 * mul1). */
void exl3_dot_values(const uint16_t *values, int in, const float *t, float *z);
/* The output steps after z: rotation, svh, bias; plain C. */
void exl3_finish_rotated(float *z, const float *svh, const float *bias);

#endif
