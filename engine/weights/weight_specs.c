/* The list of tensors of model.md 2.1, computed from the layer plan. */
#include <stdio.h>
#include <string.h>

#include "engine/weights/checkpoint.h"

typedef struct spec_walk {
    const model_config *c;
    int (*fn)(void *ctx, const weight_spec *w, err *e);
    void *ctx;
    err *e;
    int rc;
    bool is_stage;
    char block[64]; /* "layers.3" */
} spec_walk;

static void give(spec_walk *w, weight_role role, const char *name, int64_t d0, int64_t d1) {
    char full[160];
    weight_spec spec = {
        full, role, d1 > 0 ? 2 : 1, {(uint64_t)d0, d1 > 0 ? (uint64_t)d1 : 0}, w->is_stage};
    if (w->rc != OK) return;
    snprintf(full, sizeof full, "%s%s%s", w->block, *w->block != '\0' ? "." : "", name);
    w->rc = w->fn(w->ctx, &spec, w->e);
}

static void linear(spec_walk *w, const char *name, int64_t out, int64_t in) {
    give(w, WEIGHT_LINEAR, name, out, in);
}

static void plain(spec_walk *w, const char *name, int64_t d0, int64_t d1) {
    give(w, WEIGHT_PLAIN, name, d0, d1);
}

static void attention(spec_walk *w, const layer_plan *p) {
    const model_config *c = w->c;
    plain(w, "attn.attn_sink", c->n_heads, 0);
    linear(w, "attn.wq_a", c->q_rank, c->n_embd);
    plain(w, "attn.q_norm.weight", c->q_rank, 0);
    linear(w, "attn.wq_b", (int64_t)c->n_heads * c->d_head, c->q_rank);
    linear(w, "attn.wkv", c->d_head, c->n_embd);
    plain(w, "attn.kv_norm.weight", c->d_head, 0);
    linear(w, "attn.wo_a", (int64_t)c->o_groups * c->o_rank,
        (int64_t)c->n_heads * c->d_head / c->o_groups);
    linear(w, "attn.wo_b", c->n_embd, (int64_t)c->o_groups * c->o_rank);
    if (p->i_kv_source >= 0) {
        linear(w, "attn.compressor.wkv", c->d_head, c->n_embd);
        if (p->ratio > 1) {
            linear(w, "attn.compressor.wgate", c->d_head, c->n_embd);
        }
        plain(w, "attn.compressor.norm.weight", c->d_head, 0);
        linear(w, "attn.indexer.wk", c->d_index, c->d_head);
        plain(w, "attn.indexer.k_norm.weight", c->d_index, 0);
    }
    if (p->i_index_source >= 0) {
        linear(w, "attn.indexer.wq_b", (int64_t)c->n_index_heads * c->d_index, c->q_rank);
        plain(w, "attn.indexer.weights_proj.weight", c->n_index_heads, c->n_embd);
    }
}

static void streams(spec_walk *w) {
    static const char *const names[2] = {"hc_attn", "hc_ffn"};
    const model_config *c = w->c;
    int64_t n = (int64_t)c->n_streams * (c->n_streams + 2);
    for (int i = 0; i < 2; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s_fn", names[i]);
        plain(w, name, n, (int64_t)c->n_streams * c->n_embd);
        snprintf(name, sizeof name, "%s_base", names[i]);
        plain(w, name, n, 0);
        snprintf(name, sizeof name, "%s_scale", names[i]);
        plain(w, name, 3, 0);
    }
}

static void experts(spec_walk *w, const layer_plan *p) {
    const model_config *c = w->c;
    char name[64];
    plain(w, "ffn.gate.weight", p->n_experts, c->n_embd);
    plain(w, "ffn.gate.bias", p->n_experts, 0);
    give(w, WEIGHT_OPTIONAL, "ffn.gate.bias_vl", p->n_experts, 0);
    for (int i = -1; i < p->n_experts; i++) {
        char who[32] = "shared_experts";
        if (i >= 0) {
            snprintf(who, sizeof who, "experts.%d", i);
        } else if (c->n_shared == 0) {
            continue;
        }
        snprintf(name, sizeof name, "ffn.%s.w1", who);
        linear(w, name, c->n_ff, c->n_embd);
        snprintf(name, sizeof name, "ffn.%s.w2", who);
        linear(w, name, c->n_embd, c->n_ff);
        snprintf(name, sizeof name, "ffn.%s.w3", who);
        linear(w, name, c->n_ff, c->n_embd);
    }
}

static void engram(spec_walk *w, const engram_plan *g) {
    const model_config *c = w->c;
    give(w, WEIGHT_TABLE, "engram.embed", g->n_rows, c->d_engram);
    linear(w, "engram.wkv", ((int64_t)c->n_streams + 1) * c->n_embd,
        (int64_t)c->n_hashes * c->d_engram);
    plain(w, "engram.q_weight", c->n_streams, c->n_embd);
    plain(w, "engram.k_weight", c->n_streams, c->n_embd);
}

static void stage_extras(spec_walk *w, int i) {
    const model_config *c = w->c;
    if (i == 0) {
        linear(w, "main_proj", c->n_embd, (int64_t)c->n_taps * c->n_embd);
        plain(w, "main_norm.weight", c->n_embd, 0);
    }
    if (i == c->n_stages - 1) {
        plain(w, "norm.weight", c->n_embd, 0);
        plain(w, "markov_head.embed.weight", c->n_vocab, c->markov_rank);
        plain(w, "markov_head.head.weight", c->n_vocab, c->markov_rank);
        plain(w, "confidence_head.proj.weight", 1, (int64_t)c->n_embd + c->markov_rank);
    }
}

int weight_specs_each(
    const model_config *c, int (*fn)(void *ctx, const weight_spec *w, err *e), void *ctx, err *e) {
    spec_walk w = {c, fn, ctx, e, OK, false, ""};
    plain(&w, "embed.weight", c->n_vocab, c->n_embd);
    for (int i = 0; i < c->n_layers + c->n_stages && w.rc == OK; i++) {
        const layer_plan *p = &c->layers[i];
        w.is_stage = i >= c->n_layers;
        snprintf(w.block, sizeof w.block, w.is_stage ? "mtp.%d" : "layers.%d",
            w.is_stage ? i - c->n_layers : i);
        plain(&w, "attn_norm.weight", c->n_embd, 0);
        plain(&w, "ffn_norm.weight", c->n_embd, 0);
        streams(&w);
        attention(&w, p);
        experts(&w, p);
        if (p->i_engram >= 0) {
            engram(&w, &c->engram[p->i_engram]);
        }
        if (w.is_stage) {
            stage_extras(&w, i - c->n_layers);
        }
    }
    w.is_stage = false;
    w.block[0] = '\0';
    plain(&w, "norm.weight", c->n_embd, 0);
    linear(&w, "head", c->n_vocab, c->n_embd);
    return w.rc;
}
