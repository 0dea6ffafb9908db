/* Intermediate values for tests. Nothing here runs when no tap is set. */
#include "engine/model/model_internal.h"

void model_set_tap(model *m, model_tap tap, void *user) {
    m->tap = tap;
    m->tap_user = user;
    if (m->tap_score != NULL) {
        m->ops->mem_free(m->tap_score);
    }
    m->tap_score = NULL;
    if (tap != NULL && m->config.n_index_sources > 0) {
        m->tap_score =
            m->ops->mem_new((size_t)m->rows_cap * (size_t)m->options.max_context * sizeof(float));
        CHECK(m->tap_score != NULL);
    }
}

void tap_give_host(model *m, const tap_data *t) {
    if (m->tap != NULL && m->k.rc == OK) {
        m->tap(m->tap_user, t);
    }
}

static size_t element_bytes(tap_type t) {
    return t == TAP_U8 ? 1 : t == TAP_I64 ? 8 : 4;
}

/* Bytes from the first to the last element. */
static size_t tap_extent(const tap_data *t) {
    size_t n = t->n_rows > 0 ? (size_t)(t->n_rows - 1) * t->stride + (size_t)t->n_cols : 0;
    return n * element_bytes(t->type);
}

/* The tap sees a host copy, which goes back to the back end after it. */
void tap_give(model *m, const tap_data *t) {
    if (m->tap == NULL || m->k.rc != OK || m->ops->is_host) {
        tap_give_host(m, t);
        return;
    }
    size_t bytes = tap_extent(t);
    if (bytes > m->tap_bytes) {
        m->tap_copy = mem_realloc(m->tap_copy, bytes);
        m->tap_bytes = bytes;
    }
    m->ops->fetch(&m->k, m->tap_copy, t->data, bytes);
    tap_data copy = *t;
    copy.data = m->tap_copy;
    tap_give_host(m, &copy);
    m->ops->copy(&m->k, t->data, m->tap_copy, bytes);
}

void tap_floats(model *m, const char *name, int layer, int n_cols, float *data) {
    if (m->tap == NULL) {
        return;
    }
    tap_give(m, &(tap_data){name, layer, false, TAP_F32, m->step_rows.rows.n, n_cols,
                    (size_t)n_cols, data});
}

void tap_draft_floats(model *m, const char *name, int stage, int n_cols, float *data) {
    tap_give(m, &(tap_data){name, stage, true, TAP_F32, m->draft_rows.rows.n, n_cols,
                    (size_t)n_cols, data});
}

void tap_embed(model *m) {
    const model_config *c = &m->config;
    tap_give(m, &(tap_data){"embed", -1, false, TAP_F32, m->step_rows.rows.n, c->n_embd,
                    (size_t)(c->n_streams * c->n_embd), m->b.h});
    for (int t = 0; t < c->n_engram; t++) {
        tap_give_host(
            m, &(tap_data){"engram_ids", c->engram[t].layer, false, TAP_I64, m->step_rows.rows.n,
                   c->n_hashes, (size_t)c->n_hashes, m->b.host.row_ids[t]});
    }
}

/* The collapsed and the normalized rows that logits are made of. */
void tap_logit_rows(model *m, int n) {
    int d = m->config.n_embd;
    tap_give(m, &(tap_data){"final_hidden", -1, false, TAP_F32, n, d, (size_t)d, m->b.y});
    tap_give(m, &(tap_data){"final_norm", -1, false, TAP_F32, n, d, (size_t)d, m->b.head_x});
}

/* Gives a list of up to width entries a row, with -1 behind its end. */
static void give_list(
    model *m, const char *name, int layer, int32_t *const list_count[2], int width) {
    int n = m->step_rows.rows.n;
    size_t k = (size_t)width;
    int32_t *list = mem_array((size_t)n * k, sizeof(*list));
    int32_t *count = mem_array((size_t)n, sizeof(*count));
    m->ops->fetch(&m->k, list, list_count[0], (size_t)n * k * sizeof(*list));
    m->ops->fetch(&m->k, count, list_count[1], (size_t)n * sizeof(*count));
    for (int r = 0; r < n; r++) {
        for (int i = count[r]; i < width; i++) {
            list[(size_t)r * k + (size_t)i] = -1;
        }
    }
    tap_give_host(m, &(tap_data){name, layer, false, TAP_I32, n, width, k, list});
    m->ops->copy(&m->k, list_count[0], list, (size_t)n * k * sizeof(*list));
    m->ops->wait(&m->k);
    mem_free(list);
    mem_free(count);
}

static void give_selection(model *m, const char *name, int layer) {
    give_list(
        m, name, layer, (int32_t *[2]){m->b.selection, m->b.n_selected}, m->config.index_topk);
}

void tap_selection(model *m, int layer) {
    const model_config *c = &m->config;
    int n = m->step_rows.rows.n;
    tap_give(m, &(tap_data){"index_score", layer, false, TAP_F32, n, (int)m->options.max_context,
                    (size_t)m->options.max_context, m->tap_score});
    give_selection(m, "index_ids", layer);
    if (!c->layers[layer].is_candidate_source) {
        return;
    }
    give_list(m, "candidate_blocks", layer, (int32_t *[2]){m->b.blocks, m->b.n_blocks},
        c->candidate_blocks);
}

void tap_used(model *m, int layer) {
    give_selection(m, "used_ids", layer);
}

void tap_router(model *m, int i, int n_used, bool is_draft) {
    int n = is_draft ? m->draft_rows.rows.n : m->step_rows.rows.n;
    int layer = is_draft ? i - m->config.n_layers : i;
    size_t k = (size_t)n_used;
    tap_give(
        m, &(tap_data){"router_ids", layer, is_draft, TAP_I32, n, n_used, k, m->b.router_expert});
    tap_give(
        m, &(tap_data){"router_w", layer, is_draft, TAP_F32, n, n_used, k, m->b.router_weight});
}

/* Logits of drafted position i, one row per request, Markov bias included. */
void tap_draft_logits(model *m, int i, int n) {
    int v = m->config.n_vocab;
    tap_give(m, &(tap_data){"logits", i, true, TAP_F32, n, v, (size_t)v, m->b.draft_logits});
}

static int err_copy(const model *m, err *e) {
    if (m->k.rc != OK && e != NULL) {
        *e = m->k.error;
    }
    return m->k.rc;
}

int model_read_rows(
    model *m, int slot, model_rows what, int layer, int64_t first, int n, float *out, err *e) {
    const model_config *c = &m->config;
    bool is_layer = layer >= 0 && layer < c->n_layers + (model_has_drafts(m) ? c->n_stages : 0);
    if (slot < 0 || slot >= m->options.n_slots || !is_layer || first < 0 || n < 0 ||
        (what != MODEL_ROWS_WINDOW && c->layers[layer].i_kv_source < 0)) {
        return err_set(
            e, ERR_ARG, "no stored rows of kind %d for slot %d, layer %d", (int)what, slot, layer);
    }
    bool is_window = what == MODEL_ROWS_WINDOW, is_key = what == MODEL_ROWS_KEYS;
    int64_t rows = m->slots[slot].len / (is_window ? 1 : c->layers[layer].ratio);
    if (first + n > rows || (is_window && first < m->slots[slot].len - c->window)) {
        return err_set(e, ERR_ARG, "rows %lld to %lld of slot %d, layer %d are not stored",
            (long long)first, (long long)(first + n), slot, layer);
    }
    kv_format f = is_window ? m->window_format : is_key ? m->key_format : m->compressed_format;
    int d = is_key ? c->d_index : c->d_head;
    kv_ring ring = model_window_ring(m, layer);
    uint8_t *packed = mem_alloc(kv_row_bytes(f, d));
    m->k.rc = OK;
    for (int i = 0; i < n; i++) {
        const uint8_t *row = NULL;
        if (is_window) {
            row = kv_ring_row(&ring, slot, first + i);
        } else {
            kv_paged pages = model_pages_view(m, c->layers[layer].i_kv_source, is_key);
            pages.table = m->host_page_table;
            row = kv_paged_row(&pages, slot, first + i);
        }
        m->ops->fetch(&m->k, packed, row, kv_row_bytes(f, d));
        kv_unpack(f, packed, d, out + (size_t)i * (size_t)d);
    }
    mem_free(packed);
    return err_copy(m, e);
}
