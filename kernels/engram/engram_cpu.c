#include <math.h>

#include "kernels/engram/engram.h"
#include "kernels/kv/kv.h"
#include "kernels/vec/vec.h"

enum { RECORD_BLOCK = 32 };

static void decode_rows(const void *args, int first, int n, int i_thread) {
    const engram_decode_args *a = args;
    (void)i_thread;
    for (int r = first; r < first + n; r++) {
        const uint8_t *in = a->records + (size_t)r * a->record_bytes;
        float *x = a->x + (size_t)r * (size_t)a->d;
        for (int i = 0; i < a->d; i++) {
            x[i] = e4m3_to_float(in[i]) * ue8m0_to_float(in[a->d + i / RECORD_BLOCK]);
        }
    }
}

void engram_decode_run(kernel_context *k, const engram_decode_args *a) {
    rows_run(k, a->n, (size_t)a->d * 2, decode_rows, a);
}

typedef struct gate_job {
    const engram_gate_args *a;
    const kernel_context *k;
} gate_job;

static float gate_of(const float *h, const float *key, const float *qk, int d, float eps) {
    float sum = 0.0f;
    enum { PIECE = 256 };
    float product[PIECE];
    for (int i = 0; i < d; i += PIECE) {
        int n = d - i < PIECE ? d - i : PIECE;
        for (int c = 0; c < n; c++) {
            product[c] = h[i + c] * qk[i + c];
        }
        sum += vec()->dot(product, key + i, n);
    }
    float rh = 1.0f / sqrtf(vec()->sum_squares(h, d) / (float)d + eps);
    float rk = 1.0f / sqrtf(vec()->sum_squares(key, d) / (float)d + eps);
    float dot = sum * rh * rk / sqrtf((float)d);
    float root = copysignf(sqrtf(fmaxf(fabsf(dot), 1e-6f)), dot);
    return 1.0f / (1.0f + expf(-root));
}

static void gate_rows(const void *args, int first, int n, int i_thread) {
    const gate_job *j = args;
    const engram_gate_args *a = j->a;
    size_t d = (size_t)a->d, s = (size_t)a->n_streams;
    (void)i_thread;
    for (int r = first; r < first + n; r++) {
        const float *kv = a->kv + (size_t)r * (s + 1) * d;
        for (size_t t = 0; t < s; t++) {
            float *h = a->h + ((size_t)r * s + t) * d;
            float gate = gate_of(h, kv + t * d, a->qk + t * d, a->d, a->eps);
            vec()->axpy(h, kv + s * d, gate, a->d);
            context_round(j->k, h, d);
        }
    }
}

void engram_gate_run(kernel_context *k, const engram_gate_args *a) {
    gate_job j = {a, k};
    rows_run(k, a->n_rows, (size_t)a->n_streams * (size_t)a->d * 5, gate_rows, &j);
}
