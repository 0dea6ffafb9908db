#include <math.h>

#include "kernels/half.h"
#include "kernels/head/shortlist.h"

/* One row on its way. */
typedef struct row_work {
    const float *x;
    int32_t n;
    const shortlist_ask *ask;
    shortlist *out;
} row_work;

static void find_largest(const row_work *w) {
    shortlist *out = w->out;
    out->max = -INFINITY;
    out->token = -1;
    for (int32_t i = 0; i < w->n; i++) {
        if (w->x[i] > out->max) {
            out->max = w->x[i];
            out->token = i;
        }
    }
    out->max += 0.0f; /* one zero */
}

static void sum_weights(const row_work *w) {
    shortlist *out = w->out;
    float inverse = w->ask->inverse, top = out->max * inverse;
    for (int32_t i = 0; i < w->n; i++) {
        float v = w->x[i];
        if (!(v > -INFINITY)) continue;
        out->mass_raw += weight_of(v - out->max);
        if (inverse > 0.0f) {
            out->mass += weight_of(v * inverse - top);
        }
    }
}

static void list_bins(const row_work *w) {
    int32_t count[SHORTLIST_BINS] = {0}, sum = 0;
    shortlist *out = w->out;
    for (int32_t i = 0; i < w->n; i++) {
        int32_t bin = w->x[i] > -INFINITY ? shortlist_bin(out->max, w->x[i]) : SHORTLIST_BINS;
        if (bin < SHORTLIST_BINS) {
            count[bin]++;
        }
    }
    while (out->n_bins < SHORTLIST_BINS && sum + count[out->n_bins] <= SHORTLIST_CAP) {
        sum += count[out->n_bins++];
    }
    for (int32_t i = 0; i < w->n && out->n < sum; i++) {
        if (w->x[i] > -INFINITY && shortlist_bin(out->max, w->x[i]) < out->n_bins) {
            out->entries[out->n++] = (shortlist_entry){i, w->x[i]};
        }
    }
}

/* Depth of a value below the largest at the temperature, and zeros of its hash; false: no noise helps
 * it. */
static bool noise_of(const row_work *w, int32_t i, float *depth, int32_t *zeros) {
    float v = w->x[i], inverse = w->ask->inverse;
    if (!(v > -INFINITY)) return false;
    *depth = v * inverse - w->out->max * inverse;
    if (!(*depth > SHORTLIST_NOISE_DEPTH)) return false;
    uint64_t position = (uint64_t)w->ask->position;
    *zeros = shortlist_zeros(rand_keyed(w->ask->seed, position, (uint64_t)(uint32_t)i));
    return true;
}

static void list_noisy(const row_work *w) {
    shortlist *out = w->out;
    float depth = 0.0f;
    int32_t zeros = 0;
    for (int32_t i = 0; i < w->n; i++) {
        if (!noise_of(w, i, &depth, &zeros)) continue;
        float low = depth + shortlist_noise_low(zeros);
        out->noisy_low = low > out->noisy_low ? low : out->noisy_low;
    }
    for (int32_t i = 0; i < w->n; i++) {
        if (!noise_of(w, i, &depth, &zeros)) continue;
        if (!(depth + shortlist_noise_high(zeros) >= out->noisy_low)) continue;
        if (out->n_noisy < SHORTLIST_NOISY) {
            out->noisy[out->n_noisy] = (shortlist_entry){i, w->x[i]};
        }
        out->n_noisy++;
    }
}

static void shortlist_rows(const void *args, int first, int n, int i_thread) {
    const shortlist_args *a = args;
    (void)i_thread;
    for (int r = first; r < first + n; r++) {
        row_work w = {a->x + (size_t)r * (size_t)a->n, a->n, &a->asks[r], &a->out[r]};
        w.out->mass = w.out->mass_raw = 0;
        w.out->n = w.out->n_bins = w.out->n_noisy = 0;
        w.out->ask = *w.ask;
        w.out->noisy_low = -INFINITY;
        find_largest(&w);
        if (w.out->token < 0) continue;
        sum_weights(&w);
        list_bins(&w);
        if (w.ask->has_noise != 0 && w.ask->inverse > 0.0f) {
            list_noisy(&w);
        }
    }
}

void shortlist_run(kernel_context *k, const shortlist_args *a) {
    rows_run(k, a->n_rows, (size_t)a->n * 8, shortlist_rows, a);
}
