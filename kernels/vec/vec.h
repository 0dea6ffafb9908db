/* Inner loops over contiguous floats, the only place where SIMD matters for the plain operators.
 * Every variant sums in
 * the same order (sixteen lanes, then a fixed tree, then the tail in order; no fused
 * multiply-add), so all variants give
 * the same bits and a result never depends on how many rows are handled together. Pure functions,
 * any thread. */
#ifndef TANDEM_KERNELS_VEC_VEC_H
#define TANDEM_KERNELS_VEC_VEC_H

#include <stddef.h>
#include <stdint.h>

enum { VEC_MAX_ROWS = 4 };

typedef struct vec_ops {
    const char *name;
    float (*dot)(const float *a, const float *b, int n);
    /* y[i] = sum of w * x[i] for i < n_rows <= VEC_MAX_ROWS; each row as dot would give it. */
    void (*dot_rows)(const float *w, const float *const *x, int n_rows, int n, float *y);
    /* The same with bf16 weights. */
    void (*dot_rows_bf16)(const uint16_t *w, const float *const *x, int n_rows, int n, float *y);
    /* y += a * x */
    void (*axpy)(float *y, const float *x, float a, int n);
    /* y = w * (x * r); w NULL: x * r */
    void (*scale)(float *y, const float *x, const float *w, float r, int n);
    float (*sum_squares)(const float *x, int n);
    /* Largest magnitude; NaN counts as the largest. */
    float (*max_abs)(const float *x, int n);
    /* x[i] = e^(x[i] - most) within 2 ulp; returns their sum in the order of dot. */
    float (*exp_sum)(float *x, float most, int n);
    /* Sum of weight_of(x[i] - most), kernels/head/weight.h; most is the largest or above it. */
    uint64_t (*weigh)(const float *x, float most, int n);
    /* x[i] *= scale; returns the largest, at least floor. NaN is passed over. */
    float (*scale_max)(float *x, float scale, float floor, int n);
    /* gate = weight * (g / (1 + e^-g) * u), g = gate up to limit, u = up within +-limit. */
    void (*swiglu)(float *gate, const float *up, float limit, float weight, int n);
    /* y += w[i] * row i for i = 0, 1 ..: as n_rows calls of axpy. Row i of rows [][n] is index[i],
     * or i when index is NULL. */
    void (*sum_rows)(
        float *y, const float *rows, const int32_t *index, const float *w, int n_rows, int n);
    /* y = w[0] * x[0], then += w[i] * x[i]; y may be one of x. */
    void (*combine)(float *y, const float *const *x, const float *w, int n_x, int n);
    /* Small floats of kernels/kv times one scale per block of values. block: a multiple of
     * 8, n: of block. */
    void (*from_e4m3)(float *y, const uint8_t *code, const float *scale, int block, int n);
    /* Two codes a byte, low half first. block: a multiple of 16, n: of block. */
    void (*from_e2m1)(float *y, const uint8_t *code, const float *scale, int block, int n);
} vec_ops;

/* The best variant for this CPU, chosen once. On aarch64 the plain one is made of NEON instructions
 * already: the loops are written in vector types. */
const vec_ops *vec(void);
/* A variant by number for tests; NULL past the last or when the CPU cannot run it. 0 is the plain
 * one. */
const vec_ops *vec_variant(int i);

#endif
