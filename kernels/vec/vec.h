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
} vec_ops;

/* The best variant for this CPU, chosen once. */
const vec_ops *vec(void);
/* A variant by number for tests; NULL past the last or when the CPU cannot run it. 0 is the plain
 * one. */
const vec_ops *vec_variant(int i);

#endif
