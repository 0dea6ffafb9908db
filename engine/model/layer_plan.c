/* The layer plan: which block owns, re-indexes or reuses compressed rows, selections and
 * candidates. */
#include "engine/model/config.h"
#include "engine/model/config_internal.h"

static int list_index(const int *list, int n, int value) {
    for (int i = 0; i < n; i++) {
        if (list[i] == value) {
            return i;
        }
    }
    return -1;
}

static int check_ascending(const char *name, const int *list, int n, err *e) {
    for (int i = 1; i < n; i++) {
        if (list[i] <= list[i - 1]) {
            return err_set(e, ERR_FORMAT, "config.json: %s must rise, entry %d does not", name, i);
        }
    }
    return OK;
}

static layer_mode mode_of(const layer_plan *p) {
    if (p->ratio == 0) {
        return LAYER_WINDOW;
    }
    if (p->i_kv_source >= 0) {
        return LAYER_FULL;
    }
    return p->i_index_source >= 0 ? LAYER_REINDEX : LAYER_REUSE;
}

/* Fills layer i from the nearest sources so far; kv and index are layer numbers or -1. */
static int fill_layer(model_config *c, int i, int kv, int index, err *e) {
    layer_plan *p = &c->layers[i];
    p->mode = mode_of(p);
    p->kv_source = p->ratio == 0 ? -1 : kv;
    p->index_source = p->ratio == 0 ? -1 : index;
    p->n_experts = c->n_experts;
    p->n_experts_used = c->n_experts_used;
    if (p->ratio > MODEL_MAX_RATIO) {
        return err_set(e, ERR_UNSUPPORTED,
            "config.json: compress_ratios[%d] is %d; 0, 1 and 2 are known", i, p->ratio);
    }
    if (p->ratio == 0 && (p->i_kv_source >= 0 || p->i_index_source >= 0)) {
        return err_set(
            e, ERR_FORMAT, "config.json: layer %d has compress ratio 0 and cannot be a source", i);
    }
    if (p->i_kv_source >= 0 && p->i_index_source < 0) {
        return err_set(
            e, ERR_UNSUPPORTED, "config.json: layer %d is a KV source but no index source", i);
    }
    if (p->ratio == 0) {
        return OK;
    }
    if (kv < 0 || index < 0 || index < kv || c->layers[kv].ratio != p->ratio) {
        return err_set(e, ERR_FORMAT,
            "config.json: layer %d of compress ratio %d has no KV source of the same "
            "ratio with a selection before it",
            i, p->ratio);
    }
    return OK;
}

static int fill_candidates(model_config *c, err *e) {
    int source = c->candidate_layer;
    if (source < 0) {
        return OK;
    }
    if (source >= c->n_layers || c->layers[source].mode != LAYER_FULL) {
        return err_set(
            e, ERR_FORMAT, "config.json: candidate source layer %d is no KV source", source);
    }
    c->layers[source].is_candidate_source = true;
    for (int i = source + 1; i < c->n_layers; i++) {
        layer_plan *p = &c->layers[i];
        if (p->i_index_source < 0) {
            continue;
        }
        if (p->kv_source != source) {
            return err_set(e, ERR_UNSUPPORTED,
                "config.json: layer %d selects inside the candidates of layer %d "
                "but reads the rows of layer %d",
                i, source, p->kv_source);
        }
        p->has_candidates = true;
    }
    return OK;
}

static void fill_stages(model_config *c) {
    for (int i = c->n_layers; i < c->n_layers + c->n_stages; i++) {
        c->layers[i] = (layer_plan){.mode = LAYER_WINDOW,
            .kv_source = -1,
            .index_source = -1,
            .i_kv_source = -1,
            .i_index_source = -1,
            .i_engram = -1,
            .i_tap = -1,
            .n_experts = c->n_stage_experts,
            .n_experts_used = c->n_stage_experts_used};
    }
}

int layer_plan_fill(model_config *c, const int *ratios, err *e) {
    int rc =
        check_ascending("the list of KV source layers", c->kv_source_layers, c->n_kv_sources, e);
    if (rc == OK) {
        rc = check_ascending(
            "the list of index source layers", c->index_source_layers, c->n_index_sources, e);
    }
    int engram_layers[MODEL_MAX_ENGRAM];
    for (int i = 0; i < c->n_engram; i++) {
        engram_layers[i] = c->engram[i].layer;
    }
    if (rc == OK) {
        rc = check_ascending("engram_layer_ids", engram_layers, c->n_engram, e);
    }
    if (rc == OK) {
        rc = check_ascending("dspark_target_layer_ids", c->tap_layers, c->n_taps, e);
    }
    int kv = -1, index = -1;
    for (int i = 0; i < c->n_layers && rc == OK; i++) {
        layer_plan *p = &c->layers[i];
        *p = (layer_plan){.ratio = ratios[i]};
        p->i_kv_source = list_index(c->kv_source_layers, c->n_kv_sources, i);
        p->i_index_source = list_index(c->index_source_layers, c->n_index_sources, i);
        p->i_engram = list_index(engram_layers, c->n_engram, i);
        p->i_tap = list_index(c->tap_layers, c->n_taps, i);
        if (p->i_kv_source >= 0) {
            kv = i;
        }
        if (p->i_index_source >= 0) {
            index = i;
        }
        rc = fill_layer(c, i, kv, index, e);
    }
    for (int i = c->n_layers; i < c->n_layers + c->n_stages && rc == OK; i++) {
        if (ratios[i] != 0) {
            rc = err_set(e, ERR_UNSUPPORTED,
                "config.json: compress_ratios[%d] of a draft stage is %d, must be 0", i, ratios[i]);
        }
    }
    if (rc == OK) {
        rc = fill_candidates(c, e);
    }
    fill_stages(c);
    return rc;
}

size_t model_window_row_bytes(int n) {
    return (size_t)n + (size_t)n / 32;
}

size_t model_compressed_row_bytes(int n) {
    return (size_t)n / 2 + (size_t)n / 16;
}

size_t model_key_row_bytes(int n) {
    return (size_t)n / 2 + (size_t)n / 32;
}
