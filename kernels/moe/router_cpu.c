#include <math.h>

#include "engine/base/mem.h"
#include "kernels/moe/moe.h"

static float score_of(float z) {
    float softplus = z > 20.0f ? z : log1pf(expf(z));
    return sqrtf(softplus);
}

/* Highest biased score that is not taken; the lower expert wins a tie. A row of NaN still picks
 * distinct experts. */
static int best_expert(float *biased, int n) {
    int best = -1;
    for (int e = 0; e < n; e++) {
        if (biased[e] > -INFINITY && (best < 0 || biased[e] > biased[best])) {
            best = e;
        }
    }
    for (int e = 0; e < n && best < 0; e++) {
        if (isnan(biased[e])) {
            best = e;
        }
    }
    biased[best < 0 ? 0 : best] = -INFINITY;
    return best < 0 ? 0 : best;
}

static void route_row(const router_args *a, int r) {
    size_t n = (size_t)a->n_experts;
    const float *z = a->logits + (size_t)r * n;
    float *score = a->work + (size_t)r * 2 * n, *biased = score + n;
    int32_t *expert = a->expert + (size_t)r * (size_t)a->n_used;
    float *weight = a->weight + (size_t)r * (size_t)a->n_used;
    for (size_t e = 0; e < n; e++) {
        score[e] = score_of(z[e] / a->temperature);
        biased[e] = score[e] + a->bias[e];
    }
    float sum = 0.0f;
    for (int i = 0; i < a->n_used; i++) {
        expert[i] = best_expert(biased, a->n_experts);
        weight[i] = score[expert[i]];
        sum += weight[i];
    }
    /* A single expert keeps its own score: only choices among several are normalized. */
    float total = a->n_used > 1 ? sum + 1e-20f : 1.0f;
    for (int i = 0; i < a->n_used; i++) {
        weight[i] = weight[i] / total * a->route_scale;
    }
}

static void route_rows(const void *args, int first, int n, int i_thread) {
    (void)i_thread;
    for (int r = first; r < first + n; r++) {
        route_row(args, r);
    }
}

void router_run(kernel_context *k, const router_args *a) {
    CHECK(a->n_used <= MOE_MAX_USED && a->n_used <= a->n_experts);
    rows_run(k, a->n_rows, (size_t)a->n_experts * 40, route_rows, a);
}
