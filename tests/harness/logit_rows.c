#include "tests/harness/logit_rows.h"

#include <math.h>

#include "engine/base/rand.h"

const char *const logit_kind_names[LOGITS_KINDS] = {
    "plain", "peaky", "sure", "ties", "flat", "masked", "deep", "nothing"};

static float value_of(rand_state *r, int kind) {
    switch (kind) {
    case LOGITS_TIES: {
        static const float values[] = {0.0f, -0.0f, 1.5f, 1.5f, -2.25f, 1.25f, -0.5f};
        return values[rand_below(r, 7)];
    }
    case LOGITS_FLAT:
        return 4.0f + (float)rand_below(r, 8) * 0x1p-21f;
    case LOGITS_MASKED:
        return rand_below(r, 40) == 0 ? 4.0f * (float)rand_normal(r) : -INFINITY;
    case LOGITS_DEEP:
        return 120.0f * (float)rand_normal(r);
    case LOGITS_NOTHING:
        return -INFINITY;
    default:
        return 3.0f * (float)rand_normal(r);
    }
}

void logit_row_fill(float *x, int32_t n, int kind, uint64_t seed) {
    rand_state r;
    rand_init(&r, seed, (uint64_t)kind + 1);
    for (int32_t i = 0; i < n; i++) {
        x[i] = value_of(&r, kind);
    }
    int32_t n_peaks = kind == LOGITS_PEAKY ? 12 : kind == LOGITS_SURE ? 1 : 0;
    for (int32_t i = 0; i < n_peaks; i++) {
        float more = n_peaks == 1 ? 40.0f : 18.0f + 1.5f * (float)rand_normal(&r);
        x[rand_below(&r, (uint32_t)n)] = more;
    }
}
