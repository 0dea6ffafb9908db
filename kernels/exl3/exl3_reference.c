/*
 * The fp32 decode form of a linear, straight from the file layout: the check of the integer form.
 */
#include <string.h>

#include "engine/base/mem.h"
#include "kernels/exl3/exl3.h"
#include "kernels/half.h"

static float half_at(const void *halves, int i) {
    uint16_t h;
    memcpy(&h, (const char *)halves + 2 * (size_t)i, sizeof h);
    return half_to_float(h);
}

static void reference_row(
    const exl3_matrix *m, const uint16_t *inner, const float *x, float *t, float *y) {
    for (int k = 0; k < m->in; k++)
        t[k] = x[k] * half_at(m->suh, k);
    for (int k = 0; k < m->in; k += EXL3_BLOCK)
        exl3_hadamard_128(t + k);
    memset(y, 0, (size_t)m->out * sizeof *y);
    for (int k = 0; k < m->in; k++) {
        const uint16_t *w = inner + (size_t)k * (size_t)m->out;
        for (int n = 0; n < m->out; n++) {
            float product = t[k] * half_to_float(w[n]);
            y[n] += product;
        }
    }
    for (int n = 0; n < m->out; n += EXL3_BLOCK)
        exl3_hadamard_128(y + n);
    for (int n = 0; n < m->out; n++)
        y[n] *= half_at(m->svh, n);
    if (m->bias == NULL) return;
    for (int n = 0; n < m->out; n++)
        y[n] += half_at(m->bias, n);
}

int exl3_linear_reference(const exl3_matrix *m, const float *x, int n_rows, float *y, err *e) {
    int rc = exl3_matrix_check(m, e);
    if (rc != OK) return rc;
    uint16_t *inner = mem_try_alloc((size_t)m->in * (size_t)m->out * sizeof *inner);
    float *t = mem_try_alloc((size_t)m->in * sizeof *t);
    if (inner == NULL || t == NULL) {
        rc = err_set(e, ERR_MEMORY, "no memory to decode an EXL3 matrix of %d x %d", m->in, m->out);
        goto out;
    }
    rc = exl3_decode_half(m, inner, e);
    if (rc != OK) goto out;
    for (int r = 0; r < n_rows; r++)
        reference_row(m, inner, x + (size_t)r * (size_t)m->in, t, y + (size_t)r * (size_t)m->out);
out:
    mem_free(inner);
    mem_free(t);
    return rc;
}
