/* Rotary position encoding of the last d_rope channels, adjacent pairs: (re, im) -> (re cos - im
 * sin, re sin + im cos) in fp32. The angle is fp32(position * frequency), its cosine and sine are
 * evaluated in double and rounded once, so positions up to 2^20 keep their accuracy. Each row by
 * itself. */
#ifndef TANDEM_KERNELS_ROPE_ROPE_H
#define TANDEM_KERNELS_ROPE_ROPE_H

#include "kernels/context.h"

typedef struct rope_yarn {
    double factor, beta_fast, beta_slow;
    int64_t original; /* 0: no YaRN */
} rope_yarn;

/* Frequencies [d_rope / 2] in fp32, as the published code computes them. */
void rope_frequencies(double theta, int d_rope, const rope_yarn *yarn, float *out);

typedef struct rope_table_args {
    const float *frequency; /* [d_rope / 2] */
    const int64_t *pos;     /* [n] */
    float *table;           /* [n][d_rope]: cos, sin of pair 0, of pair 1, .. */
    int n, d_rope;
} rope_table_args;
void rope_table_run(kernel_context *k, const rope_table_args *a);

typedef struct rope_args {
    float *x; /* [n_rows][x_stride], head h at h * d_head; rotated in place */
    size_t x_stride;
    const float *table; /* [n_rows][d_rope] */
    int n_rows, n_heads, d_head, d_rope;
    bool is_inverse;
} rope_args;
void rope_run(kernel_context *k, const rope_args *a);

#endif
