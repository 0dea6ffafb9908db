/*
 * EXL3 linears on the CPU: y[r] = x[r] . W (+ bias) for one or many rows, one or many matrices
 * in one parallel run. A linear is made once from an exl3_matrix and is read-only after that;
 * any number of threads may run it. A run uses the caller's scratch and the caller's pool
 * (pool_run rules: one caller at a time per pool) and allocates nothing.
 *
 * The arithmetic (codebook mul1; EXACT: every line is part of the contract, all back ends give
 * these bits for S, A, scale, and for y when they keep the fp32 order below; f32 means each
 * operation rounded to nearest even, fused only where it says so):
 *
 *   per row of one matrix
 *     t[k]   = x[k] * suh[k]                                                    f32
 *     t      = exl3_hadamard_128 of every aligned 128 of t               f32, order given there
 *     m      = max |t[k]| over the whole row, by bit pattern; at least 1e-30
 *     inv    = 32512 / m;  scale = m / 32512                                    f32 divisions
 *     a[k]   = t[k] * inv, rounded to the nearest integer, ties to even         in [-32512, 32512]
 *     A      = sum of a[k]                                                      integer
 *     if any t[k] is not finite: all a = 0 and scale = NaN, so that the whole output row is NaN
 *   per output n, with b(k, n) = sum of the four bytes of state(k, n) * 0x83DCD12D
 *     S      = sum over k of (b(k, n) - 510) * a[k]                             integer, |S| < 2^39
 *     d      = fmaf(-0.26832611, float(A), float(S))                            f32, fused
 *     g      = 0.00676727294921875 * scale;  z[n] = d * g                       f32
 *     z      = exl3_hadamard_128 of every aligned 128 of z                      f32
 *     y[n]   = z[n] * svh[n], then y[n] = y[n] + bias[n] if there is a bias     f32
 *
 * Integer sums do not depend on order, so S is the same for any split: two signed bytes (a = 256
 * hi + lo with hi = (a + 128) >> 8, lo = a - 256 hi) against bytes on tensor cores, 16-bit
 * products here. Over one block of 128 inputs |sum| <= 510 * 32512 * 128 = 2,122,383,360 < 2^31:
 * 32-bit accumulation is exact per block even when it wraps on the way (sum of b * a modulo
 * 2^32, then 510 * A_block is taken off), and blocks are added in 64 bits. A row alone has the
 * same bits as the row in any batch, with any thread count and any SIMD variant. The rounding of
 * the codebook values to fp16 is not reproduced (kernels.md 2); against the fp64 layer the error
 * stays under 1e-3 of max |y|.
 *
 * The other codebooks (3INST, mcg) are not affine in a byte sum and run in fp32: the row as
 * rotated above in f32, then z[n] = sum over k ascending of t[k] * value(k, n), product and sum
 * each rounded, then the same output steps.
 */
#ifndef KERNELS_EXL3_EXL3_H
#define KERNELS_EXL3_EXL3_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/thread.h"
#include "kernels/exl3/exl3_codec.h"

/* A matrix in the order the CPU kernels read. Owns its memory (one allocation), borrows nothing. */
typedef struct exl3_linear exl3_linear;

/* Repacks m (about k2/16 bytes a weight for mul1, 2 bytes for the other codebooks). The caller
 * frees it with exl3_linear_free. ERR_ARG when m is not valid, ERR_MEMORY. */
int exl3_linear_new(const exl3_matrix *m, exl3_linear **out, err *e);
void exl3_linear_free(exl3_linear *l);
int exl3_linear_in(const exl3_linear *l);
int exl3_linear_out(const exl3_linear *l);
/* Bytes exl3_linear_new takes for a matrix of this form. */
size_t exl3_linear_bytes(int in, int out, int k2, exl3_codebook codebook);

/* Rows for one matrix. Input row i is x + (x_rows ? x_rows[i] : i) * x_stride, output row i is y
 * + i * y_stride, both in floats. n_rows may be 0. y must not overlap any x of the same run. */
typedef struct exl3_job {
    const exl3_linear *linear;
    const float *x;
    size_t x_stride;
    const int32_t *x_rows;
    float *y;
    size_t y_stride;
    int n_rows;
} exl3_job;

/* All jobs run in one pass over the pool: experts of a layer, gate beside up, or simply several
 * linears of one input. */
typedef struct exl3_run_args {
    const exl3_job *jobs;
    int n_jobs;
    pool *pool; /* NULL: on the calling thread */
} exl3_run_args;

/* Scratch for any run whose jobs together have at most n_rows rows (rows counted once per job),
 * at most n_jobs jobs and no input longer than max_in. Alignment of the scratch: 64. */
size_t exl3_scratch_bytes(int n_jobs, int n_rows, int max_in);
/* Runs all jobs. Never fails on values; CHECKs only programming mistakes. */
void exl3_grouped_run(const exl3_run_args *a, void *scratch);
/* One job. */
void exl3_linear_run(const exl3_job *job, pool *p, void *scratch);

/* The fp32 decode form of exl3.md 6, straight from the file layout, for every codebook: the
 * check of the above. The values are the fp16-rounded ones; products summed in fp32, k
 * ascending. Slow; allocates. x [n_rows][in], y [n_rows][out]. */
int exl3_linear_reference(const exl3_matrix *m, const float *x, int n_rows, float *y, err *e);

/* SIMD variants. The one in use is the best that the CPU has, or the one named by exl3_select
 * (tests and benches). */
int exl3_variant_count(void);
/* Name of variant i: "plain", "avx2", "avx_vnni", "avx512_vnni", "neon_dotprod". */
const char *exl3_variant_name(int i);
/* Whether this CPU can run variant i. */
int exl3_variant_usable(int i);
/* The variant that runs use now. */
int exl3_variant_in_use(void);
/* Makes later runs of the whole process use variant i; -1 = the best. Not while a run is going
 * on. ERR_UNSUPPORTED when the CPU cannot. All variants give the same bits. */
int exl3_select(int i);

#endif
