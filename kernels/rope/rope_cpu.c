#include <math.h>

#include "kernels/rope/rope.h"

/* Pair number at which r full turns fit into the original context. */
static double yarn_pair(double turns, double theta, int d_rope, const rope_yarn *y) {
    return d_rope * log((double)y->original / (turns * 2.0 * 3.14159265358979323846)) /
           (2.0 * log(theta));
}

void rope_frequencies(double theta, int d_rope, const rope_yarn *yarn, float *out) {
    int n = d_rope / 2;
    for (int i = 0; i < n; i++) {
        out[i] = 1.0f / (float)pow(theta, (double)((float)(2 * i) / (float)d_rope));
    }
    if (yarn == NULL || yarn->original == 0) {
        return;
    }
    double low = floor(yarn_pair(yarn->beta_fast, theta, d_rope, yarn));
    double high = ceil(yarn_pair(yarn->beta_slow, theta, d_rope, yarn));
    low = low < 0 ? 0 : low;
    high = high > d_rope - 1 ? d_rope - 1 : high;
    float span = high > low ? (float)(high - low) : 0.001f;
    for (int i = 0; i < n; i++) {
        float ramp = ((float)i - (float)low) / span;
        ramp = ramp < 0.0f ? 0.0f : ramp > 1.0f ? 1.0f : ramp;
        float smooth = 1.0f - ramp;
        out[i] = out[i] / (float)yarn->factor * (1.0f - smooth) + out[i] * smooth;
    }
}

static void table_rows(const void *args, int first, int n, int i_thread) {
    const rope_table_args *a = args;
    (void)i_thread;
    for (int r = first; r < first + n; r++) {
        float *out = a->table + (size_t)r * (size_t)a->d_rope;
        for (int i = 0; i < a->d_rope / 2; i++) {
            double angle = (double)((float)a->pos[r] * a->frequency[i]);
            out[2 * i] = (float)cos(angle);
            out[2 * i + 1] = (float)sin(angle);
        }
    }
}

void rope_table_run(kernel_context *k, const rope_table_args *a) {
    rows_run(k, a->n, (size_t)a->d_rope * 60, table_rows, a);
}

typedef struct rope_job {
    const rope_args *a;
    const kernel_context *k;
} rope_job;

static void rotate(float *x, const float *table, int d_rope, float sign) {
    for (int i = 0; i < d_rope; i += 2) {
        float c = table[i], s = table[i + 1] * sign;
        float re = x[i], im = x[i + 1];
        x[i] = re * c - im * s;
        x[i + 1] = re * s + im * c;
    }
}

static void rope_rows(const void *args, int first, int n, int i_thread) {
    const rope_job *j = args;
    const rope_args *a = j->a;
    (void)i_thread;
    float sign = a->is_inverse ? -1.0f : 1.0f;
    for (int r = first; r < first + n; r++) {
        const float *table = a->table + (size_t)r * (size_t)a->d_rope;
        for (int h = 0; h < a->n_heads; h++) {
            float *tail = a->x + (size_t)r * a->x_stride + (size_t)(h * a->d_head) +
                          (size_t)(a->d_head - a->d_rope);
            rotate(tail, table, a->d_rope, sign);
            context_round(j->k, tail, (size_t)a->d_rope);
        }
    }
}

void rope_run(kernel_context *k, const rope_args *a) {
    rope_job j = {a, k};
    rows_run(k, a->n_rows, (size_t)a->n_heads * (size_t)a->d_rope, rope_rows, &j);
}
