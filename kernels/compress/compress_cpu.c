#include <math.h>
#include <string.h>

#include "kernels/compress/compress.h"

typedef struct compress_job {
    const compress_args *a;
    const kernel_context *k;
} compress_job;

static void pool_pair(
    const float *a0, const float *b0, const float *a1, const float *b1, int d, float *out) {
    for (int i = 0; i < d; i++) {
        float most = b0[i] > b1[i] ? b0[i] : b1[i];
        float e0 = expf(b0[i] - most), e1 = expf(b1[i] - most);
        float sum = e0 + e1;
        out[i] = e0 / sum * a0[i] + e1 / sum * a1[i];
    }
}

static void compress_groups(const void *args, int first, int n, int i_thread) {
    const compress_job *j = args;
    const compress_args *a = j->a;
    size_t d = (size_t)a->d;
    (void)i_thread;
    for (int i = first; i < first + n; i++) {
        int32_t row = a->closed_row[i];
        const float *a0, *b0;
        if (row > a->batch.span_row[row]) {
            a0 = a->a + (size_t)(row - 1) * d;
            b0 = a->b + (size_t)(row - 1) * d;
        } else {
            a0 = (const float *)(const void *)kv_ring_row(
                &a->tails, a->batch.slot[row], a->batch.pos[row] - 1);
            b0 = a0 + d;
        }
        float *out = a->latent + (size_t)i * d;
        pool_pair(a0, b0, a->a + (size_t)row * d, a->b + (size_t)row * d, a->d, out);
        context_round(j->k, out, d);
    }
}

void compress_pair_run(kernel_context *k, const compress_args *a) {
    compress_job j = {a, k};
    rows_run(k, a->n_closed, (size_t)a->d * 30, compress_groups, &j);
}

void compress_tail_write_run(kernel_context *k, const compress_args *a) {
    if (k->rc != OK) {
        return;
    }
    size_t d = (size_t)a->d;
    for (int i = 0; i < a->batch.n; i++) {
        int64_t end = a->batch.span_pos[i] + a->batch.span_len[i];
        if (end - a->batch.pos[i] > a->tails.cap) {
            continue;
        }
        float *row = (float *)(void *)kv_ring_row(&a->tails, a->batch.slot[i], a->batch.pos[i]);
        memcpy(row, a->a + (size_t)i * d, d * sizeof(float));
        memcpy(row + d, a->b + (size_t)i * d, d * sizeof(float));
    }
}

void gather_run(kernel_context *k, const gather_args *a) {
    if (k->rc != OK) {
        return;
    }
    for (int i = 0; i < a->n; i++) {
        memcpy(a->y + (size_t)i * (size_t)a->d, a->x + (size_t)a->index[i] * a->x_stride,
            (size_t)a->d * sizeof(float));
    }
}
