/* Binds the weights of this rank: EXL3 matrices are repacked, BF16 and F32 ones are used where they
 * are mapped, the other forms become BF16 (FP8, FP4: exact) or F32 (F16). */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/model/model_internal.h"
#include "kernels/half.h"

typedef struct loader {
    model *m;
    err *e;
    int rc;         /* sticky */
    char block[64]; /* "layers.3." or "mtp.0." or "" */
} loader;

typedef struct weight_name {
    char text[192];
} weight_name;

static weight_name name_of(const loader *l, const char *fmt, ...) {
    weight_name n;
    char tail[96];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(tail, sizeof(tail), fmt, ap);
    va_end(ap);
    snprintf(n.text, sizeof(n.text), "%s%s", l->block, tail);
    return n;
}

/* ---- plain vectors ---- */

/* Brings loaded bytes to memory of the back end; stops the loading when that fails. */
static void send(loader *l, void *to, const void *from, size_t bytes) {
    model *m = l->m;
    if (l->rc != OK || to == from) {
        return;
    }
    m->ops->copy(&m->k, to, from, bytes);
    l->rc = m->k.rc;
    if (l->rc != OK && l->e != NULL) {
        *l->e = m->k.error;
    }
}

/* Host memory to prepare bytes in that go to `to`: itself where the host can write there. */
static void *stage(const loader *l, void *to, size_t bytes) {
    return l->m->ops->is_host ? to : mem_alloc(bytes);
}

static void unstage(loader *l, void *to, void *staged, size_t bytes) {
    send(l, to, staged, bytes);
    if (staged != to) {
        l->m->ops->wait(&l->m->k);
        mem_free(staged);
    }
}

static const float *load_floats(loader *l, const char *name, size_t n) {
    void *p = NULL;
    if (l->rc == OK) {
        l->rc = model_new_memory(l->m, n * sizeof(float), &p, l->e);
    }
    if (l->rc != OK || p == NULL) {
        return NULL;
    }
    float *staged = stage(l, p, n * sizeof(float));
    l->rc = checkpoint_floats(l->m->ck, name, staged, n, l->e);
    unstage(l, p, staged, n * sizeof(float));
    return l->rc == OK ? p : NULL;
}

static const float *load_vector(loader *l, const char *tail, int n) {
    return load_floats(l, name_of(l, "%s", tail).text, (size_t)n);
}

/* ---- matrices ---- */

static void keep_packed(model *m, const void *p) {
    if (m->n_packed == m->cap_packed) {
        m->cap_packed = m->cap_packed == 0 ? 256 : m->cap_packed * 2;
        m->packed = mem_realloc(m->packed, m->cap_packed * sizeof(*m->packed));
    }
    m->packed[m->n_packed++] = p;
}

static void load_packed(loader *l, const linear_source *s, linear_weight *out) {
    model *m = l->m;
    out->form = MATRIX_EXL3;
    m->weight_bytes += exl3_linear_bytes(s->exl3.in, s->exl3.out, s->exl3.k2, s->exl3.codebook);
    if (m->is_dry) {
        return;
    }
    const void *p = NULL;
    l->rc = m->ops->packed_new(&m->k, &s->exl3, &p, l->e);
    if (l->rc != OK) {
        return;
    }
    keep_packed(m, p);
    out->packed = p;
}

/* Whether the rows can be read where they lie. */
static bool is_mappable(const linear_source *s) {
    size_t size = s->dtype == ST_BF16 ? 2 : 4;
    return s->kind == LINEAR_FLOAT && (s->dtype == ST_BF16 || s->dtype == ST_F32) &&
           (uintptr_t)s->weight % size == 0 && s->weight_stride % size == 0;
}

static void convert_rows(loader *l, const linear_source *s, linear_weight *out) {
    bool is_exact_bf16 = s->kind == LINEAR_FP8 || s->kind == LINEAR_FP4 ||
                         (s->kind == LINEAR_FLOAT && s->dtype == ST_BF16);
    size_t n_in = (size_t)s->in, n_out = (size_t)s->out;
    void *p = NULL;
    out->form = is_exact_bf16 ? MATRIX_BF16 : MATRIX_F32;
    out->row_stride = n_in;
    l->rc = model_new_memory(l->m, n_in * n_out * (is_exact_bf16 ? 2 : 4), &p, l->e);
    if (l->rc != OK || p == NULL) {
        return;
    }
    out->data = p;
    size_t bytes = n_in * n_out * (is_exact_bf16 ? 2 : 4);
    void *staged = stage(l, p, bytes);
    if (!is_exact_bf16) {
        l->rc = linear_source_floats(s, staged, l->e);
        unstage(l, p, staged, bytes);
        return;
    }
    float *row = mem_array(n_in, sizeof(float));
    for (size_t o = 0; o < n_out; o++) {
        linear_source_rows(s, (int)o, 1, row);
        for (size_t i = 0; i < n_in; i++) {
            ((uint16_t *)staged)[o * n_in + i] = bf16_from_float(row[i]);
        }
    }
    mem_free(row);
    unstage(l, p, staged, bytes);
}

static void bind_source(loader *l, const linear_source *s, linear_weight *out) {
    *out = (linear_weight){.n_in = s->in, .n_out = s->out};
    bool is_packed = s->kind == LINEAR_EXL3 && s->exl3.in == s->in && s->exl3.out == s->out;
    if (is_packed && !l->m->options.has_float_exl3) {
        load_packed(l, s, out);
    } else if (l->m->ops->is_host && is_mappable(s)) {
        size_t size = s->dtype == ST_BF16 ? 2 : 4;
        out->form = s->dtype == ST_BF16 ? MATRIX_BF16 : MATRIX_F32;
        out->data = s->weight;
        out->row_stride = s->weight_stride / size;
        l->m->weight_bytes += (size_t)s->out * s->weight_stride;
    } else {
        convert_rows(l, s, out);
    }
}

/* This rank's part of a linear. */
static void load_linear_named(loader *l, const char *name, linear_weight *out) {
    linear_source s;
    tp_part part;
    int rank_world[2] = {l->m->rank, l->m->world};
    if (l->rc != OK) {
        return;
    }
    l->rc = checkpoint_linear_part(l->m->ck, name, rank_world, &s, &part, l->e);
    if (l->rc != OK) {
        return;
    }
    CHECK_MSG(!part.is_absent, "%s is absent on rank %d", name, l->m->rank);
    if (part.is_partial_sum && l->m->rank > 0) {
        s.exl3.bias = NULL;
    }
    bind_source(l, &s, out);
    l->rc = err_add(l->e, l->rc, "%s", name);
}

static void load_linear(loader *l, const char *tail, linear_weight *out) {
    load_linear_named(l, name_of(l, "%s", tail).text, out);
}

/* A plain [rows][cols] tensor by its full name, whole on every rank. */
static void load_table(loader *l, const char *name, const int rows_cols[2], linear_weight *out) {
    if (l->rc != OK) {
        return;
    }
    const st_tensor *t = st_find(checkpoint_set(l->m->ck), name);
    uint64_t want = (uint64_t)rows_cols[0] * (uint64_t)rows_cols[1];
    if (t == NULL || st_elements(t) != want ||
        (t->dtype != ST_BF16 && t->dtype != ST_F16 && t->dtype != ST_F32)) {
        l->rc = err_set(l->e, ERR_FORMAT, "tensor %s is missing or not a float tensor of %d x %d",
            name, rows_cols[0], rows_cols[1]);
        return;
    }
    linear_source s = {.kind = LINEAR_FLOAT,
        .in = rows_cols[1],
        .out = rows_cols[0],
        .dtype = t->dtype,
        .weight = t->data,
        .weight_stride = (size_t)rows_cols[1] * st_dtype_bytes(t->dtype)};
    bind_source(l, &s, out);
}

static void load_block_table(
    loader *l, const char *tail, const int rows_cols[2], linear_weight *out) {
    load_table(l, name_of(l, "%s", tail).text, rows_cols, out);
}

/* ---- blocks ---- */

static void load_streams(loader *l, const char *which, mhc_weights *w) {
    const model_config *c = &l->m->config;
    int n = c->n_streams * (c->n_streams + 2);
    w->fn = load_floats(
        l, name_of(l, "%s_fn", which).text, (size_t)n * (size_t)(c->n_streams * c->n_embd));
    w->base = load_floats(l, name_of(l, "%s_base", which).text, (size_t)n);
    w->scale = load_floats(l, name_of(l, "%s_scale", which).text, 3);
}

static void load_sources(loader *l, const layer_plan *p, block_weights *b) {
    const model_config *c = &l->m->config;
    if (p->i_kv_source >= 0) {
        load_linear(l, "attn.compressor.wkv", &b->comp_kv);
        if (p->ratio > 1) {
            load_linear(l, "attn.compressor.wgate", &b->comp_gate);
        }
        b->comp_norm = load_vector(l, "attn.compressor.norm.weight", c->d_head);
        load_linear(l, "attn.indexer.wk", &b->index_k);
        b->index_k_norm = load_vector(l, "attn.indexer.k_norm.weight", c->d_index);
    }
    if (p->i_index_source >= 0) {
        load_linear(l, "attn.indexer.wq_b", &b->index_q);
        load_block_table(l, "attn.indexer.weights_proj.weight",
            (int[2]){c->n_index_heads, c->n_embd}, &b->index_w);
    }
}

static void load_attention(loader *l, const layer_plan *p, block_weights *b) {
    const model *m = l->m;
    const model_config *c = &m->config;
    const float *sink = load_vector(l, "attn.attn_sink", c->n_heads);
    b->sink = sink == NULL ? NULL : sink + m->part.head0;
    load_linear(l, "attn.wq_a", &b->wq_a);
    b->q_norm = load_vector(l, "attn.q_norm.weight", c->q_rank);
    load_linear(l, "attn.wq_b", &b->wq_b);
    load_linear(l, "attn.wkv", &b->wkv);
    b->kv_norm = load_vector(l, "attn.kv_norm.weight", c->d_head);
    for (int g = 0; g < m->part.n_groups; g++) {
        load_linear_named(
            l, name_of(l, "attn.wo_a.slice.%d", m->part.group0 + g).text, &b->wo_a[g]);
    }
    load_linear(l, "attn.wo_b", &b->wo_b);
    load_sources(l, p, b);
}

static void load_expert(loader *l, const char *who, expert_weights *x) {
    load_linear_named(l, name_of(l, "ffn.%s.w1", who).text, &x->w1);
    load_linear_named(l, name_of(l, "ffn.%s.w3", who).text, &x->w3);
    load_linear_named(l, name_of(l, "ffn.%s.w2", who).text, &x->w2);
}

static void load_experts(loader *l, const layer_plan *p, block_weights *b) {
    load_block_table(l, "ffn.gate.weight", (int[2]){p->n_experts, l->m->config.n_embd}, &b->gate);
    b->gate_bias = load_vector(l, "ffn.gate.bias", p->n_experts);
    b->experts = mem_array((size_t)p->n_experts, sizeof(*b->experts));
    for (int e = 0; e < p->n_experts && l->rc == OK; e++) {
        char who[32];
        snprintf(who, sizeof(who), "experts.%d", e);
        load_expert(l, who, &b->experts[e]);
    }
    load_expert(l, "shared_experts", &b->shared);
    if (l->rc == OK && !l->m->is_dry) {
        l->rc = l->m->ops->expert_table(
            &l->m->k, b->experts, p->n_experts, &b->shared, &b->expert_table, l->e);
    }
}

static void load_engram(loader *l, block_weights *b) {
    const model_config *c = &l->m->config;
    int n = c->n_streams * c->n_embd;
    load_linear(l, "engram.wkv", &b->engram_kv);
    size_t bytes = (size_t)n * sizeof(float);
    void *qk = NULL;
    if (l->rc == OK) {
        l->rc = model_new_memory(l->m, bytes, &qk, l->e);
    }
    if (l->rc != OK || qk == NULL) {
        return;
    }
    float *q = stage(l, qk, bytes), *k = mem_alloc(bytes);
    l->rc = checkpoint_floats(l->m->ck, name_of(l, "engram.q_weight").text, q, (size_t)n, l->e);
    if (l->rc == OK) {
        l->rc = checkpoint_floats(l->m->ck, name_of(l, "engram.k_weight").text, k, (size_t)n, l->e);
    }
    for (int i = 0; i < n; i++) {
        q[i] *= k[i];
    }
    mem_free(k);
    unstage(l, qk, q, bytes);
    b->engram_qk = qk;
}

static void load_block(loader *l, int i) {
    const model_config *c = &l->m->config;
    const layer_plan *p = &c->layers[i];
    block_weights *b = &l->m->blocks[i];
    bool is_stage = i >= c->n_layers;
    snprintf(l->block, sizeof(l->block), "%s.%d.", is_stage ? "mtp" : "layers",
        is_stage ? i - c->n_layers : i);
    b->attn_norm = load_vector(l, "attn_norm.weight", c->n_embd);
    b->ffn_norm = load_vector(l, "ffn_norm.weight", c->n_embd);
    load_streams(l, "hc_attn", &b->hc_attn);
    load_streams(l, "hc_ffn", &b->hc_ffn);
    load_attention(l, p, b);
    load_experts(l, p, b);
    if (p->i_engram >= 0) {
        load_engram(l, b);
    }
}

static void load_draft(loader *l) {
    const model_config *c = &l->m->config;
    draft_weights *d = &l->m->draft;
    snprintf(l->block, sizeof(l->block), "mtp.0.");
    load_linear(l, "main_proj", &d->main_proj);
    d->main_norm = load_vector(l, "main_norm.weight", c->n_embd);
    snprintf(l->block, sizeof(l->block), "mtp.%d.", c->n_stages - 1);
    int vocab_rank[2] = {c->n_vocab, c->markov_rank};
    d->norm = load_vector(l, "norm.weight", c->n_embd);
    load_block_table(l, "markov_head.embed.weight", vocab_rank, &d->markov_embed);
    load_block_table(l, "markov_head.head.weight", vocab_rank, &d->markov_head);
    load_block_table(
        l, "confidence_head.proj.weight", (int[2]){1, c->n_embd + c->markov_rank}, &d->confidence);
}

int model_load_weights(model *m, err *e) {
    loader l = {.m = m, .e = e, .rc = OK, .block = ""};
    const model_config *c = &m->config;
    load_table(&l, "embed.weight", (int[2]){c->n_vocab, c->n_embd}, &m->embed);
    m->norm = load_vector(&l, "norm.weight", c->n_embd);
    load_linear(&l, "head", &m->head);
    int n = c->n_layers + (model_has_drafts(m) ? c->n_stages : 0);
    for (int i = 0; i < n && l.rc == OK; i++) {
        load_block(&l, i);
    }
    if (model_has_drafts(m)) {
        load_draft(&l);
    }
    return l.rc;
}

void model_drop_weights(model *m) {
    for (size_t i = 0; i < m->n_packed; i++) {
        m->ops->packed_free(m->packed[i]);
    }
    mem_free(m->packed);
    for (int i = 0; i < MODEL_MAX_LAYERS; i++) {
        mem_free(m->blocks[i].experts);
    }
}
