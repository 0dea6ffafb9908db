#include <string.h>

#include "kernels/embed/embed.h"
#include "kernels/half.h"

static void table_row(const linear_weight *t, int32_t index, float *y) {
    size_t at = (size_t)index * t->row_stride;
    if (t->form == MATRIX_F32) {
        memcpy(y, (const float *)t->data + at, (size_t)t->n_in * sizeof(float));
        return;
    }
    const uint16_t *row = (const uint16_t *)t->data + at;
    for (int i = 0; i < t->n_in; i++) {
        y[i] = bf16_to_float(row[i]);
    }
}

void embed_run(kernel_context *k, const embed_args *a) {
    if (k->rc != OK) {
        return;
    }
    size_t d = (size_t)a->table->n_in, s = (size_t)a->n_streams;
    for (int r = 0; r < a->n_rows; r++) {
        float *h = a->h + (size_t)r * s * d, *pre = a->pre + (size_t)r * s;
        table_row(a->table, a->token[r], h);
        context_round(k, h, d);
        for (size_t t = 0; t < s; t++) {
            if (t > 0) {
                memcpy(h + t * d, h, d * sizeof(float));
            }
            pre[t] = t == 0 ? 1.0f : 0.0f;
        }
    }
}

void lookup_run(kernel_context *k, const lookup_args *a) {
    if (k->rc != OK) {
        return;
    }
    for (int i = 0; i < a->n; i++) {
        table_row(a->table, a->index[i], a->y + (size_t)i * a->y_stride);
    }
}
