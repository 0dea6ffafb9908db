#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/mhc/mhc.h"
#include "kernels/norm/norm.h"
#include "kernels/vec/vec.h"

static float sigmoid(float v) {
    return 1.0f / (1.0f + expf(-v));
}

/* ---- mix ---- */

static void softmax_rows(float *c, int s, float eps) {
    for (int j = 0; j < s; j++) {
        float *row = c + j * s;
        float most = row[0], sum = 0.0f;
        for (int i = 1; i < s; i++) {
            most = row[i] > most ? row[i] : most;
        }
        for (int i = 0; i < s; i++) {
            row[i] = expf(row[i] - most);
            sum += row[i];
        }
        for (int i = 0; i < s; i++) {
            row[i] = row[i] / sum + eps;
        }
    }
}

static void normalize_columns(float *c, int s, float eps) {
    for (int i = 0; i < s; i++) {
        float sum = 0.0f;
        for (int j = 0; j < s; j++) {
            sum += c[j * s + i];
        }
        for (int j = 0; j < s; j++) {
            c[j * s + i] /= sum + eps;
        }
    }
}

static void normalize_rows(float *c, int s, float eps) {
    for (int j = 0; j < s; j++) {
        float sum = 0.0f;
        for (int i = 0; i < s; i++) {
            sum += c[j * s + i];
        }
        for (int i = 0; i < s; i++) {
            c[j * s + i] /= sum + eps;
        }
    }
}

static void mix_row(const mhc_mix_args *a, size_t r, const float *m) {
    int s = a->n_streams;
    float *pre = a->pre + r * (size_t)s, *post = a->post + r * (size_t)s;
    float *comb = a->comb + r * (size_t)(s * s);
    for (int i = 0; i < s; i++) {
        pre[i] = sigmoid(m[i] * a->w.scale[0] + a->w.base[i]) + a->eps;
        post[i] = 2.0f * sigmoid(m[s + i] * a->w.scale[1] + a->w.base[s + i]);
    }
    for (int i = 0; i < s * s; i++) {
        comb[i] = m[2 * s + i] * a->w.scale[2] + a->w.base[2 * s + i];
    }
    softmax_rows(comb, s, a->eps);
    normalize_columns(comb, s, a->eps);
    for (int i = 1; i < a->n_iters; i++) {
        normalize_rows(comb, s, a->eps);
        normalize_columns(comb, s, a->eps);
    }
}

/* Rows are taken a few at a time, so that the function's matrix is read once for them. */
static void mix_rows(const void *args, int first, int n_rows, int i_thread) {
    enum { MAX_MIX = MHC_MAX_STREAMS * (2 + MHC_MAX_STREAMS) };
    const mhc_mix_args *a = args;
    int n = a->n_streams * a->d, n_mix = a->n_streams * (2 + a->n_streams);
    (void)i_thread;
    for (int r = first; r < first + n_rows; r += VEC_MAX_ROWS) {
        int count = first + n_rows - r < VEC_MAX_ROWS ? first + n_rows - r : VEC_MAX_ROWS;
        float m[VEC_MAX_ROWS][MAX_MIX], inverse[VEC_MAX_ROWS], y[VEC_MAX_ROWS];
        const float *v[VEC_MAX_ROWS];
        for (int i = 0; i < count; i++) {
            v[i] = a->h + (size_t)(r + i) * (size_t)n;
            inverse[i] = 1.0f / sqrtf(vec()->sum_squares(v[i], n) / (float)n + a->norm_eps);
        }
        for (int f = 0; f < n_mix; f++) {
            vec()->dot_rows(a->w.fn + (size_t)f * (size_t)n, v, count, n, y);
            for (int i = 0; i < count; i++) {
                m[i][f] = y[i] * inverse[i];
            }
        }
        for (int i = 0; i < count; i++) {
            mix_row(a, (size_t)(r + i), m[i]);
        }
    }
}

void mhc_mix_run(kernel_context *k, const mhc_mix_args *a) {
    size_t cost = (size_t)(a->n_streams * (2 + a->n_streams)) * (size_t)(a->n_streams * a->d);
    rows_run(k, a->n_rows, cost, mix_rows, a);
}

/* ---- collapse ---- */

typedef struct collapse_job {
    const mhc_collapse_args *a;
    const kernel_context *k;
} collapse_job;

static void collapse_rows(const void *args, int first, int n, int i_thread) {
    const collapse_job *j = args;
    const mhc_collapse_args *a = j->a;
    size_t d = (size_t)a->d, s = (size_t)a->n_streams;
    (void)i_thread;
    for (int i = first; i < first + n; i++) {
        size_t r = a->rows == NULL ? (size_t)i : (size_t)a->rows[i];
        const float *h = a->h + r * s * d, *pre = a->pre + r * s;
        float *x = a->x + (size_t)i * d;
        const float *streams[MHC_MAX_STREAMS];
        for (size_t t = 0; t < s; t++) {
            streams[t] = h + t * d;
        }
        vec()->combine(x, streams, pre, a->n_streams, a->d);
        context_round(j->k, x, d);
        if (a->raw != NULL) {
            memcpy(a->raw + (size_t)i * d, x, d * sizeof(float));
        }
        rmsnorm_row(x, a->weight, a->d, a->norm_eps, x);
        context_round(j->k, x, d);
    }
}

void mhc_collapse_run(kernel_context *k, const mhc_collapse_args *a) {
    collapse_job j = {a, k};
    rows_run(k, a->n_rows, (size_t)a->n_streams * (size_t)a->d, collapse_rows, &j);
}

/* ---- expand ---- */

typedef struct expand_job {
    const mhc_expand_args *a;
    const kernel_context *k;
} expand_job;

/* The new streams of a piece of the row are made beside the old ones, which all of them read. */
static void expand_row(const mhc_expand_args *a, size_t r) {
    enum { PIECE = 256 };
    size_t d = (size_t)a->d, s = (size_t)a->n_streams;
    float *h = a->h + r * s * d, out[MHC_MAX_STREAMS][PIECE];
    const float *y = a->y + r * d, *post = a->post + r * s, *comb = a->comb + r * s * s;
    for (size_t c = 0; c < d; c += PIECE) {
        size_t n = d - c < PIECE ? d - c : PIECE;
        const float *in[1 + MHC_MAX_STREAMS] = {y + c};
        for (size_t j = 0; j < s; j++) {
            in[1 + j] = h + j * d + c;
        }
        for (size_t t = 0; t < s; t++) {
            float w[1 + MHC_MAX_STREAMS] = {post[t]};
            for (size_t j = 0; j < s; j++) {
                w[1 + j] = comb[j * s + t];
            }
            vec()->combine(out[t], in, w, 1 + a->n_streams, (int)n);
        }
        for (size_t t = 0; t < s; t++) {
            memcpy(h + t * d + c, out[t], n * sizeof(float));
        }
    }
}

static void expand_rows(const void *args, int first, int n, int i_thread) {
    const expand_job *j = args;
    size_t width = (size_t)j->a->n_streams * (size_t)j->a->d;
    (void)i_thread;
    for (int r = first; r < first + n; r++) {
        expand_row(j->a, (size_t)r);
        context_round(j->k, j->a->h + (size_t)r * width, width);
    }
}

void mhc_expand_run(kernel_context *k, const mhc_expand_args *a) {
    expand_job j = {a, k};
    rows_run(
        k, a->n_rows, (size_t)(a->n_streams * (a->n_streams + 1)) * (size_t)a->d, expand_rows, &j);
}

void mhc_mean_run(kernel_context *k, const mhc_mean_args *a) {
    if (k->rc != OK) {
        return;
    }
    size_t d = (size_t)a->d, s = (size_t)a->n_streams;
    for (size_t r = 0; r < (size_t)a->n_rows; r++) {
        float *out = a->out + r * a->out_stride;
        const float *h = a->h + r * s * d;
        memcpy(out, h, d * sizeof(float));
        for (size_t t = 1; t < s; t++) {
            vec()->axpy(out, h + t * d, 1.0f, a->d);
        }
        for (size_t c = 0; c < d; c++) {
            out[c] /= (float)s;
        }
        context_round(k, out, d);
    }
}
