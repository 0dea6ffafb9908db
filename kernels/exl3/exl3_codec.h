/*
 * The EXL3 weight format: codebooks, tile and bit layout, whole-matrix decode, packing and the
 * 128-point Hadamard rotation. Pure functions on the caller's memory; any thread. Vectors and
 * trellis data may have any alignment.
 *
 * W[in, out] = diag(suh) . H . W_inner . H . diag(svh) with H block-diagonal. W_inner is cut
 * into 16x16 tiles; a tile is a circular string of 128*k2 bits, k2 = twice the bits per weight
 * (so that half rates are integers); the value at position p of a tile is a fixed function of
 * the 16 bits that end at exl3_window_end(p).
 */
#ifndef KERNELS_EXL3_CODEC_H
#define KERNELS_EXL3_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

enum {
    EXL3_TILE = 16, /* a tile is 16 inputs by 16 outputs */
    EXL3_TILE_VALUES = 256,
    EXL3_BLOCK = 128,    /* Hadamard block; in and out are multiples of it */
    EXL3_MAX_IN = 16384, /* kernels.md 2: integer sums stay inside their types */
    EXL3_MIN_K2 = 2,
    EXL3_MAX_K2 = 16
};

#define EXL3_HADAMARD_SCALE 0.088388347648f /* 1/sqrt(128) */
#define EXL3_MUL1_MULTIPLIER 0x83DCD12Du    /* also the value of the marker tensor P.mul1 */
#define EXL3_MCG_MULTIPLIER 0xCBAC1FEDu     /* also the value of the marker tensor P.mcg */
/* mul1: value = scale * (byte sum - 510 - offset), rounded to fp16; scale is fp16 0x1EEE and
 * offset 10.3828125 / scale - 1024 - 510. */
#define EXL3_MUL1_SCALE 0.00676727294921875f
#define EXL3_MUL1_OFFSET 0.26832611f

typedef enum exl3_codebook { EXL3_3INST = 0, EXL3_MCG = 1, EXL3_MUL1 = 2 } exl3_codebook;

/* One quantized linear, or a slice of one, as it lies in a file. Plain data, borrows everything
 * it points to. */
typedef struct exl3_matrix {
    const void *trellis; /* tile (i, j) at i * slice_stride + j * 16 * k2 bytes */
    const void *suh;     /* fp16 little endian [in] */
    const void *svh;     /* fp16 [out] */
    const void *bias;    /* fp16 [out], or NULL */
    size_t slice_stride; /* bytes from one 16-input slice to the next; 0 = contiguous, out * k2 */
    int in, out;         /* multiples of 128 */
    int k2;              /* twice the bits per weight: 2..16; odd only with mul1 */
    exl3_codebook codebook;
} exl3_matrix;

/* Whether the rate exists for the codebook: even 2..16 for all, 3, 5 and 7 for mul1. */
bool exl3_rate_ok(exl3_codebook codebook, int k2);
/* Checks sizes, rate and pointers of m. OK or ERR_ARG with the offending value in e. */
int exl3_matrix_check(const exl3_matrix *m, err *e);
/* Bytes of the whole trellis of an in x out matrix. */
size_t exl3_trellis_bytes(int in, int out, int k2);
/* Cuts inputs [in0, in1) and outputs [out0, out1) (multiples of 128) out of m; the slice borrows
 * m's data. The bias goes with the outputs; a caller that splits inputs over ranks clears it on
 * all but one. ERR_ARG for other cuts. */
int exl3_matrix_slice(const exl3_matrix *m, const int in_range[2], const int out_range[2],
    exl3_matrix *slice, err *e);

/* The fp16 bits of a state's value; exact for all 65,536 states. */
uint16_t exl3_state_half(exl3_codebook codebook, uint16_t state);
/* mul1: the sum of the four bytes of state * multiplier, 0..1020. */
uint32_t exl3_byte_sum(uint16_t state);
/* Fills table[65536] with exl3_state_half. */
void exl3_codebook_table(exl3_codebook codebook, uint16_t *table);

/* Row (input) and column (output) inside the tile of position p = 0..255, and the inverse. */
int exl3_position_row(int p);
int exl3_position_column(int p);
int exl3_position_at(int row, int column);
/* Stream position just after the window of p. */
int exl3_window_end(int p, int k2);

/* The 256 states of a tile (16 * k2 bytes) in position order. */
void exl3_tile_states(const void *tile, int k2, uint16_t states[EXL3_TILE_VALUES]);
/* The inverse: writes the low (new) bits of every state. The states must overlap as a trellis
 * path does, else the bits that do not fit are lost; exl3_tile_states then gives other states. */
void exl3_tile_pack(const uint16_t states[EXL3_TILE_VALUES], int k2, void *tile);

/* Decodes W_inner: fp16 bits, row-major [in, out]. ERR_ARG when m is not valid. */
int exl3_decode_half(const exl3_matrix *m, uint16_t *out, err *e);
/* Decodes and undoes both rotations: W[in, out] in float, computed in fp32. ERR_ARG when m is
 * not valid. */
int exl3_decode_full(const exl3_matrix *m, float *out, err *e);

/* Rotates 128 values in place: butterflies (a + b, a - b) for strides 1, 2, 4 .. 64 in fp32,
 * each rounded, then times EXL3_HADAMARD_SCALE. This order is part of the arithmetic contract of
 * exl3.h. */
void exl3_hadamard_128(float *values);
/* The same for the quantizer in double; the scale is 1/sqrt(128) to double precision. */
void exl3_hadamard_128_double(double *values);

#endif
