#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/head/head.h"
#include "kernels/vec/vec.h"

static void finite_rows(const void *args, int first, int n, int i_thread) {
    const finite_args *a = args;
    (void)i_thread;
    for (int r = first; r < first + n; r++) {
        float most = vec()->max_abs(a->x + (size_t)r * (size_t)a->n, a->n);
        a->is_finite[r] = float_bits(most) < 0x7f800000u;
    }
}

void finite_run(kernel_context *k, const finite_args *a) {
    rows_run(k, a->n_rows, (size_t)a->n, finite_rows, a);
}

static void argmax_rows(const void *args, int first, int n, int i_thread) {
    const argmax_args *a = args;
    (void)i_thread;
    for (int r = first; r < first + n; r++) {
        const float *x = a->x + (size_t)r * (size_t)a->n;
        int32_t best = 0;
        for (int32_t i = 1; i < a->n; i++) {
            if (x[i] > x[best]) {
                best = i;
            }
        }
        a->index[r] = best;
        a->value[r] = x[best];
    }
}

void argmax_run(kernel_context *k, const argmax_args *a) {
    rows_run(k, a->n_rows, (size_t)a->n, argmax_rows, a);
}

void add_run(kernel_context *k, const add_args *a) {
    if (k->rc != OK) {
        return;
    }
    for (size_t i = 0; i < a->n; i++) {
        a->y[i] += a->x[i];
    }
}

void join_run(kernel_context *k, const join_args *a) {
    if (k->rc != OK) {
        return;
    }
    size_t n = (size_t)a->n_part, rows = (size_t)a->n_rows, parts = (size_t)a->n_parts;
    for (size_t p = 0; p < parts; p++) {
        for (size_t r = 0; r < rows; r++) {
            memcpy(a->out + (r * parts + p) * n, a->parts + (p * rows + r) * n, n * sizeof(float));
        }
    }
}
