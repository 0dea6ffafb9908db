#include "tests/harness/sabotage.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/weights/safetensors.h"

/* Rotates forward what the engine is about to rotate back. */
static void undo_inverse(const saboteur *s, const tap_data *t) {
    const model_config *c = s->c;
    bool is_window = c->layers[t->layer].ratio == 0;
    double theta = is_window ? c->rope_theta : c->compress_theta;
    for (int r = 0; r < t->n_rows; r++) {
        for (int h = 0; h < c->n_heads; h++) {
            float *tail =
                (float *)t->data + (size_t)r * t->stride + h * c->d_head + (c->d_head - c->d_rope);
            for (int i = 0; i < c->d_rope; i += 2) {
                double a = (double)r * pow(theta, -(double)i / c->d_rope);
                double re = (double)tail[i], im = (double)tail[i + 1];
                tail[i] = (float)(re * cos(a) - im * sin(a));
                tail[i + 1] = (float)(re * sin(a) + im * cos(a));
            }
        }
    }
}

static void transpose_comb(const saboteur *s, const tap_data *t) {
    int n = s->c->n_streams;
    for (int r = 0; r < t->n_rows; r++) {
        float *comb = (float *)t->data + (size_t)r * t->stride;
        for (int j = 0; j < n; j++) {
            for (int k = 0; k < j; k++) {
                float x = comb[j * n + k];
                comb[j * n + k] = comb[k * n + j];
                comb[k * n + j] = x;
            }
        }
    }
}

void sabotage_tap(void *user, const tap_data *t) {
    saboteur *s = user;
    size_t pre_bytes = (size_t)t->n_rows * t->stride * sizeof(float);
    size_t len = strlen(t->name);
    if (t->is_draft) {
        return;
    }
    if (s->what == 'r' && strcmp(t->name, "attn_o") == 0) {
        undo_inverse(s, t);
    }
    if (s->what == 'c' && len > 5 && strcmp(t->name + len - 5, "_comb") == 0) {
        transpose_comb(s, t);
    }
    if (s->what != 'p') {
        return;
    }
    if (strcmp(t->name, "hc_attn_pre") == 0 || strcmp(t->name, "hc_ffn_pre") == 0) {
        memcpy(s->own_pre, t->data, pre_bytes);
    } else if (strcmp(t->name, "attn_collapse_pre") == 0 ||
               strcmp(t->name, "ffn_collapse_pre") == 0) {
        memcpy(t->data, s->own_pre, pre_bytes);
    }
}

bool sabotage_sinks(const char *path) {
    st_set *s = NULL;
    err e = ERR_INIT;
    if (st_open(path, ST_MAPPED, &s, &e) != OK) {
        return false;
    }
    FILE *f = fopen(path, "r+b");
    bool is_fine = f != NULL;
    for (size_t i = 0; i < st_count(s) && is_fine; i++) {
        const st_tensor *t = st_at(s, i);
        if (strstr(t->name, "attn_sink") == NULL || t->dtype != ST_F32) {
            continue;
        }
        is_fine = fseek(f, (long)t->offset, SEEK_SET) == 0;
        for (uint64_t k = 0; k < st_elements(t) && is_fine; k++) {
            float low = -1e30f;
            is_fine = fwrite(&low, sizeof(low), 1, f) == 1;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    st_close(s);
    return is_fine;
}
