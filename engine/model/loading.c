/* Binds the weights of this rank: walks their names in the order in which a pack holds them. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/loading_internal.h"

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

static const float *load_vector(loader *l, const char *tail, int n) {
    return loader_floats(l, name_of(l, "%s", tail).text, (size_t)n);
}

static void load_linear(loader *l, const char *tail, linear_weight *out) {
    loader_linear(l, name_of(l, "%s", tail).text, out);
}

static void load_block_table(
    loader *l, const char *tail, const int rows_cols[2], linear_weight *out) {
    loader_table(l, name_of(l, "%s", tail).text, rows_cols, out);
}

/* ---- blocks ---- */

static void load_streams(loader *l, const char *which, mhc_weights *w) {
    const model_config *c = &l->m->config;
    int n = c->n_streams * (c->n_streams + 2);
    w->fn = loader_floats(
        l, name_of(l, "%s_fn", which).text, (size_t)n * (size_t)(c->n_streams * c->n_embd));
    w->base = loader_floats(l, name_of(l, "%s_base", which).text, (size_t)n);
    w->scale = loader_floats(l, name_of(l, "%s_scale", which).text, 3);
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
        loader_linear(l, name_of(l, "attn.wo_a.slice.%d", m->part.group0 + g).text, &b->wo_a[g]);
    }
    load_linear(l, "attn.wo_b", &b->wo_b);
    load_sources(l, p, b);
}

static void load_expert(loader *l, const char *who, expert_weights *x) {
    loader_linear(l, name_of(l, "ffn.%s.w1", who).text, &x->w1);
    loader_linear(l, name_of(l, "ffn.%s.w3", who).text, &x->w3);
    loader_linear(l, name_of(l, "ffn.%s.w2", who).text, &x->w2);
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
    weight_name name = name_of(l, "engram.qk_weight");
    weight_name q = name_of(l, "engram.q_weight"), k = name_of(l, "engram.k_weight");
    b->engram_qk = loader_product(l, name.text, (const char *const[2]){q.text, k.text}, (size_t)n);
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
    loader_table(&l, "embed.weight", (int[2]){c->n_vocab, c->n_embd}, &m->embed);
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
