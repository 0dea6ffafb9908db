/* Engram in a step: hashing tokens to rows, fetching them early, and the gated write. */
#include "engine/base/clock.h"
#include "engine/model/model_internal.h"

void engram_hash(const model *m, int i_engram, const int32_t *history, int64_t *ids) {
    const model_config *c = &m->config;
    const engram_plan *p = &c->engram[i_engram];
    bool is_cut = false;
    uint64_t mixed = 0;
    for (int n = 0; n < c->max_ngram; n++) {
        int32_t token = history[n];
        is_cut = is_cut || token < 0 || token == c->image_token_id;
        uint64_t class_id = (uint64_t)(is_cut ? m->pad_class : m->token_class[token]);
        mixed ^= class_id * (uint64_t)p->multipliers[n];
        if (n == 0) {
            continue;
        }
        for (int h = 0; h < c->engram_heads; h++) {
            int column = (n - 1) * c->engram_heads + h;
            ids[column] = (int64_t)(mixed % (uint64_t)p->primes[column]) + p->offsets[column];
        }
    }
}

void engram_begin(model *m) {
    const model_config *c = &m->config;
    int n = m->step_rows.rows.n, columns = m->part.n_columns;
    for (int t = 0; t < c->n_engram; t++) {
        m->tickets[t] = -1;
    }
    for (int t = 0; t < c->n_engram && m->k.rc == OK; t++) {
        for (int i = 0; i < n; i++) {
            const int64_t *ids =
                m->b.host.row_ids[t] + (size_t)i * (size_t)c->n_hashes + m->part.column0;
            for (int k = 0; k < columns; k++) {
                m->b.host.local_ids[(size_t)(i * columns + k)] = ids[k];
            }
        }
        m->k.rc = m->store->ops->begin(m->store, t, m->b.host.local_ids, n * columns,
            m->b.host.records[t], &m->tickets[t], &m->k.error);
    }
}

/* Hints the rows of table t for n positions of a sequence; tokens[-n_before ..] come before it. */
static void hint_positions(model *m, int t, const int32_t *tokens, int n_before, int n) {
    const model_config *c = &m->config;
    int64_t *ids = m->b.host.row_ids[t];
    int columns = m->part.n_columns;
    for (int i = 0; i < n; i++) {
        int32_t history[MODEL_MAX_NGRAM];
        for (int back = 0; back < c->max_ngram; back++) {
            history[back] = back <= i + n_before ? tokens[i - back] : -1;
        }
        engram_hash(m, t, history, ids);
        for (int k = 0; k < columns; k++) {
            m->b.host.local_ids[(size_t)(i * columns + k)] = ids[m->part.column0 + k];
        }
    }
    m->store->ops->hint(m->store, t, m->b.host.local_ids, n * columns);
}

void engram_hint(model *m, const int32_t *tokens, int n_before, int n) {
    if (m->config.n_engram == 0 || m->store->ops->hint == NULL) {
        return;
    }
    for (int at = 0; at < n; at += m->options.max_rows) {
        int rows = n - at < m->options.max_rows ? n - at : m->options.max_rows;
        for (int t = 0; t < m->config.n_engram; t++) {
            hint_positions(m, t, tokens + n_before + at, n_before + at, rows);
        }
    }
}

void engram_hint_draft(model *m, const draft_request *requests, int n, int n_drafted) {
    int32_t tokens[MODEL_MAX_NGRAM + MODEL_MAX_BLOCK];
    if (m->config.n_engram == 0 || m->store->ops->hint == NULL) {
        return;
    }
    for (int r = 0; r < n; r++) {
        const slot_state *s = &m->slots[requests[r].slot];
        int64_t most = m->config.max_ngram - 1, n_before = s->len < most ? s->len : most;
        for (int64_t i = 0; i < n_before; i++) {
            tokens[i] = s->recent[(s->len - n_before + i) % m->recent_cap];
        }
        tokens[n_before] = requests[r].token;
        for (int i = 0; i < n_drafted; i++) {
            tokens[n_before + 1 + i] = m->b.host.draft_tokens[r * m->config.block + i];
        }
        engram_hint(m, tokens, (int)n_before + n_drafted, 1);
    }
}

void engram_fetch(model *m, int t) {
    buffers *b = &m->b;
    if (m->k.rc != OK || m->tickets[t] < 0) {
        return;
    }
    uint64_t deadline = clock_mono_ns() + (uint64_t)m->options.engram_timeout_ms * 1000000u;
    err why = ERR_INIT;
    int rc = m->store->ops->wait(m->store, m->tickets[t], deadline, &why);
    m->tickets[t] = -1;
    /* Records that did not come are NaN: the rows that need them end, the others go on, and no rank
     * leaves the common order of operators. */
    if (rc != OK && m->fault.code == OK) {
        m->fault = why;
    }
    if (b->host.records[t] != b->records[t]) {
        size_t n = (size_t)(m->step_rows.rows.n * m->part.n_columns);
        m->ops->copy(
            &m->k, b->records[t], b->host.records[t], n * engram_record_bytes(m->config.d_engram));
    }
}

void engram_abandon(model *m) {
    for (int t = 0; t < m->config.n_engram; t++) {
        if (m->tickets[t] < 0) {
            continue;
        }
        err ignored = ERR_INIT;
        uint64_t deadline = clock_mono_ns() + (uint64_t)m->options.engram_timeout_ms * 1000000u;
        (void)m->store->ops->wait(m->store, m->tickets[t], deadline, &ignored);
        m->tickets[t] = -1;
    }
}

void engram_layer(model *m, int i_layer) {
    const model_config *c = &m->config;
    const block_weights *w = &m->blocks[i_layer];
    buffers *b = &m->b;
    int n = m->step_rows.rows.n, t = c->layers[i_layer].i_engram, columns = m->part.n_columns;
    size_t in = (size_t)(columns * c->d_engram), out = (size_t)((c->n_streams + 1) * c->n_embd);
    engram_fetch(m, t);
    m->ops->engram_decode(
        &m->k, &(engram_decode_args){b->records[t], engram_record_bytes(c->d_engram), b->engram_x,
                   n * columns, c->d_engram});
    linear_job job = {.weight = &w->engram_kv,
        .x = b->engram_x,
        .x_stride = in,
        .y = b->engram_kv,
        .y_stride = out,
        .n_rows = n,
        .keeps_f32 = m->world > 1};
    m->ops->linear(&m->k, &(linear_args){&job, 1});
    model_sum(m, b->engram_kv, (size_t)n * out);
    m->ops->engram_gate(&m->k, &(engram_gate_args){b->h, b->engram_kv, w->engram_qk, n,
                                   c->n_streams, c->n_embd, c->norm_eps});
    tap_floats(m, "engram", i_layer, c->n_streams * c->n_embd, b->h);
}

void model_engram_stats(const model *m, engram_store_stats *out) {
    *out = (engram_store_stats){0};
    if (m->store != NULL) {
        m->store->ops->stats(m->store, out);
    }
}
