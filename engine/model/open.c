/* Opening and closing a model, and the memory plan. */
#include <stdio.h>
#include <string.h>

#include "engine/model/model_internal.h"
#include "kernels/vec/vec.h"

static int open_weights(model *m, err *e) {
    bool has_pack = m->options.pack != NULL;
    checkpoint_options o = {.without_stages = !model_has_drafts(m),
        .without_engram = m->options.store != NULL,
        .only_tables = has_pack};
    buf tables = BUF_INIT;
    checkpoint_engram_dir(m->options.dir, &tables);
    if (m->options.store == NULL && tables.len > 0) o.engram_dir = buf_cstr(&tables);
    int rc = has_pack ? model_open_pack(m, e) : OK;
    bool needs_files = !has_pack || (m->config.n_engram > 0 && m->options.store == NULL);
    if (rc == OK && needs_files) {
        rc = checkpoint_open(m->options.dir, &m->config, &o, &m->ck, e);
    }
    buf_release(&tables);
    if (rc == OK) {
        rc = model_load_weights(m, e);
    }
    return rc;
}

static int open_engram(model *m, err *e) {
    const model_config *c = &m->config;
    if (c->n_engram == 0) {
        return OK;
    }
    if (m->options.store != NULL) {
        m->store = m->options.store;
        return OK;
    }
    engram_table tables[MODEL_MAX_ENGRAM];
    for (int i = 0; i < c->n_engram; i++) {
        int rc =
            checkpoint_engram(m->ck, i, &tables[i].values, &tables[i].scales, &tables[i].n_rows, e);
        if (rc != OK) {
            return rc;
        }
        if (tables[i].n_rows != c->engram[i].n_rows) {
            return err_set(e, ERR_MISMATCH,
                "the Engram table of layer %d has %lld rows, its hash needs %lld",
                c->engram[i].layer, (long long)tables[i].n_rows, (long long)c->engram[i].n_rows);
        }
    }
    int rc = engram_store_memory_open(tables, c->n_engram, c->d_engram, &m->own_store, e);
    m->store = m->own_store;
    return rc;
}

static int make_rope(model *m, err *e) {
    const model_config *c = &m->config;
    size_t bytes = (size_t)(c->d_rope / 2) * sizeof(float);
    void *a = NULL, *b = NULL;
    int rc = model_new_memory(m, bytes, &a, e);
    if (rc == OK) {
        rc = model_new_memory(m, bytes, &b, e);
    }
    if (rc != OK) {
        return rc;
    }
    rope_yarn yarn = {c->yarn_factor, c->yarn_beta_fast, c->yarn_beta_slow, c->yarn_original};
    float *table = mem_alloc(bytes);
    m->rope_frequency_a = a;
    m->rope_frequency_b = b;
    rope_frequencies(c->rope_theta, c->d_rope, NULL, table);
    m->ops->copy(&m->k, a, table, bytes);
    rope_frequencies(c->compress_theta, c->d_rope, &yarn, table);
    m->ops->copy(&m->k, b, table, bytes);
    mem_free(table);
    return OK;
}

static int make_state(model *m, err *e) {
    const model_options *o = &m->options;
    size_t slots = (size_t)o->n_slots;
    void *slab = NULL, *pages = NULL, *table = NULL, *work = NULL;
    int rc = model_new_memory(m, slots * m->slot_at.bytes, &slab, e);
    if (rc == OK) {
        rc = model_new_memory(m, (size_t)o->n_pages * m->page_at.bytes, &pages, e);
    }
    if (rc == OK) {
        rc = model_new_memory(m, slots * (size_t)m->max_pages * sizeof(int32_t), &table, e);
    }
    if (rc == OK) {
        rc = model_new_memory(m, model_lay_out_buffers(m, NULL), &work, e);
    }
    if (rc != OK) {
        return rc;
    }
    m->slot_slab = slab;
    m->pages = pages;
    m->page_table = table;
    m->host_page_table =
        m->ops->is_host ? table : mem_array(slots * (size_t)m->max_pages, sizeof(int32_t));
    (void)model_lay_out_buffers(m, work);
    m->host_area = mem_aligned(64, model_lay_out_host(m, NULL) + 64);
    (void)model_lay_out_host(m, m->host_area);
    m->slots = mem_array(slots, sizeof(*m->slots));
    for (size_t i = 0; i < slots; i++) {
        m->slots[i].recent = mem_array((size_t)m->recent_cap, 4);
    }
    return OK;
}

/* What recorded steps take, and with several ranks the exchange: NCCL's channels come with the first
 * call and are the most of it. H200, CUDA 13.0, NCCL 2.28: 36 graphs of 821 kernels 94 MiB, that is
 * 3.2 KiB a kernel; 922 MiB with NCCL in them; 34 MiB of inboxes a rank without. */
static size_t device_extra_bytes(const model *m) {
    enum { KERNEL_BYTES = 3400, LAYER_KERNELS = 21 };
    const size_t exchange_bytes = (size_t)960 << 20;
    if (m->ops->graph_begin == NULL) {
        return 0;
    }
    size_t graph = (size_t)m->config.n_layers * LAYER_KERNELS * KERNEL_BYTES;
    return MODEL_MAX_GRAPHS * graph + (m->world > 1 ? exchange_bytes : 0);
}

static void fill_memory(const model *m, size_t weight_bytes, model_memory_plan *out) {
    const model_config *c = &m->config;
    const model_options *o = &m->options;
    model copy = *m;
    memset(out, 0, sizeof(*out));
    out->weight_bytes = weight_bytes;
    size_t width = (size_t)c->n_embd * (m->embed.form == MATRIX_F32 ? 4 : 2);
    out->embedding_bytes = (size_t)c->n_vocab * width;
    for (int i = 0; i < c->n_engram && o->store == NULL; i++) {
        out->engram_bytes += (size_t)c->engram[i].n_rows * engram_record_bytes(c->d_engram);
    }
    out->page_bytes = m->page_at.bytes;
    out->pages_bytes = (size_t)o->n_pages * m->page_at.bytes;
    out->slot_bytes = m->slot_at.bytes + (size_t)m->max_pages * sizeof(int32_t);
    out->slots_bytes = (size_t)o->n_slots * out->slot_bytes;
    out->scratch_bytes = model_lay_out_buffers(&copy, NULL);
    out->scratch_bytes += model_lay_out_host(&copy, NULL);
    out->scratch_bytes += device_extra_bytes(m);
    out->total_bytes = out->weight_bytes + out->engram_bytes + out->pages_bytes + out->slots_bytes +
                       out->scratch_bytes;
}

int model_open(const model_options *options, model **out, err *e) {
    model *m = mem_alloc(sizeof(*m));
    *out = NULL;
    int rc = model_prepare(m, options, e);
    if (rc == OK) {
        rc = m->ops->open(&m->k, e);
    }
    if (rc == OK) {
        rc = open_weights(m, e);
    }
    size_t weight_bytes = m->weight_bytes;
    if (rc == OK) {
        rc = open_engram(m, e);
    }
    if (rc == OK) {
        rc = model_load_classes(m, e);
    }
    if (rc == OK) {
        rc = make_rope(m, e);
    }
    if (rc == OK) {
        m->k.workers = pool_new(m->n_threads);
        m->n_threads = pool_size(m->k.workers);
        rc = make_state(m, e);
        fill_memory(m, weight_bytes, &m->memory);
    }
    if (rc != OK) {
        model_close(m);
        return rc;
    }
    *out = m;
    return OK;
}

void model_close(model *m) {
    if (m == NULL) {
        return;
    }
    for (int i = 0; m->slots != NULL && i < m->options.n_slots; i++) {
        mem_free(m->slots[i].recent);
    }
    mem_free(m->slots);
    for (int i = 0; i < MODEL_MAX_GRAPHS; i++) {
        if (m->graphs[i].graph != NULL) {
            m->ops->graph_free(m->graphs[i].graph);
        }
    }
    /* A step that failed may still be under way, and giving its memory back would wait without end for
     * what waits there for a lost rank; this wait looks after the exchange. Behind the graphs (one that
     * is under way goes when it ends), because NCCL's end waits for them. */
    if (m->k.device != NULL) {
        m->k.rc = OK;
        m->ops->wait(&m->k);
    }
    for (size_t i = 0; i < m->n_owned; i++) {
        m->ops->mem_free(m->owned[i]);
    }
    mem_free(m->owned);
    model_drop_weights(m);
    mem_free(m->token_class);
    if (m->tap_score != NULL) {
        m->ops->mem_free(m->tap_score);
    }
    mem_free(m->tap_copy);
    mem_aligned_free(m->host_area);
    if (m->host_page_table != m->page_table) {
        mem_free(m->host_page_table);
    }
    if (m->ops != NULL) {
        m->ops->close(&m->k);
    }
    engram_store_close(m->own_store);
    checkpoint_close(m->ck);
    model_close_pack(m);
    pool_free(m->k.workers);
    mem_free(m);
}

int model_memory(const model_options *options, model_memory_plan *out, err *e) {
    model *m = mem_alloc(sizeof(*m));
    m->is_dry = true;
    int rc = model_prepare(m, options, e);
    if (rc == OK) {
        rc = open_weights(m, e);
    }
    if (rc == OK) {
        fill_memory(m, m->weight_bytes, out);
    }
    model_close(m);
    return rc;
}

void model_get_info(const model *m, model_info *out) {
    const model_options *o = &m->options;
    *out = (model_info){.config = &m->config,
        .rank = m->rank,
        .world = m->world,
        .n_threads = m->n_threads,
        .n_slots = o->n_slots,
        .n_pages = o->n_pages,
        .page_tokens = o->page_tokens,
        .max_rows = o->max_rows,
        .max_logit_rows = o->max_logit_rows,
        .max_rollback = o->max_rollback,
        .max_context = o->max_context,
        .has_drafts = model_has_drafts(m),
        .page_bytes = m->page_at.bytes};
    out->block = out->has_drafts ? m->config.block : 0;
    out->snapshot_bytes = model_snapshot_bytes(m);
    out->layout_hash = model_layout_hash(m);
    out->memory = m->memory;
    snprintf(out->arithmetic, sizeof(out->arithmetic), "%s %s", m->ops->name,
        m->ops->is_host ? vec()->name : "");
}
