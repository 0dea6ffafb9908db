/* What is done with logits inside a step: the finite check of every row, argmax for greedy drafts,
 * and the bias of the Markov head. */
#ifndef TANDEM_KERNELS_HEAD_HEAD_H
#define TANDEM_KERNELS_HEAD_HEAD_H

#include "kernels/context.h"

typedef struct finite_args {
    const float *x;     /* [n_rows][n] */
    uint8_t *is_finite; /* [n_rows] */
    int n_rows, n;
} finite_args;
void finite_run(kernel_context *k, const finite_args *a);

typedef struct argmax_args {
    const float *x; /* [n_rows][n] */
    float *value;   /* [n_rows] */
    int32_t *index; /* [n_rows]; ties to the lower index */
    int n_rows, n;
} argmax_args;
void argmax_run(kernel_context *k, const argmax_args *a);

/* y += x for n values. */
typedef struct add_args {
    float *y;
    const float *x;
    size_t n;
} add_args;
void add_run(kernel_context *k, const add_args *a);

/* Joins the vocabulary parts of all ranks: out[r][part * n_part + i] = parts[part][r][i]. */
typedef struct join_args {
    const float *parts; /* [n_parts][n_rows][n_part] */
    float *out;         /* [n_rows][n_parts * n_part] */
    int n_parts, n_rows, n_part;
} join_args;
void join_run(kernel_context *k, const join_args *a);

#endif
