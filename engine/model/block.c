/* One block: attention and expert sublayers around the hyper-connections, and the head. The same
 * code runs backbone layers and draft stages; what differs comes from the layer plan and the pass.
 */
#include <math.h>

#include "engine/base/clock.h"
#include "engine/model/model_internal.h"

/* The exchange works on memory of the back end, so that nothing has to be brought to the host. */
static bool is_direct(const model *m) {
    return m->ops->is_host || exchange_is_device(m->x);
}

static void sum_ranks(model *m, float *rows, size_t n) {
    float *host = m->b.host.exchange;
    size_t bytes = n * sizeof(float);
    if (is_direct(m)) {
        m->k.rc = exchange_sum_rows(m->x, rows, n, m->k.stream, &m->k.error);
        return;
    }
    m->ops->fetch(&m->k, host, rows, bytes);
    if (m->k.rc == OK) {
        m->k.rc = exchange_sum_rows(m->x, host, n, NULL, &m->k.error);
    }
    m->ops->copy(&m->k, rows, host, bytes);
}

/* Every rank's part into all, this rank's own lying in its place there. */
static void gather_ranks(model *m, float *all, size_t n) {
    float *mine = all + (size_t)m->rank * n, *host = m->b.host.exchange;
    size_t bytes = n * sizeof(float);
    if (is_direct(m)) {
        m->k.rc = exchange_gather(m->x, mine, bytes, all, m->k.stream, &m->k.error);
        return;
    }
    m->ops->fetch(&m->k, host + (size_t)m->rank * n, mine, bytes);
    if (m->k.rc == OK) {
        m->k.rc = exchange_gather(m->x, host + (size_t)m->rank * n, bytes, host, NULL, &m->k.error);
    }
    m->ops->copy(&m->k, all, host, (size_t)m->world * bytes);
}

void model_sum(model *m, float *rows, size_t n) {
    if (m->world > 1 && m->k.rc == OK) {
        uint64_t start = clock_mono_ns();
        sum_ranks(m, rows, n);
        m->part_ns[STEP_PART_EXCHANGE] += clock_mono_ns() - start;
    }
    m->ops->round(&m->k, rows, n);
}

kv_ring model_window_ring(const model *m, int i) {
    return (kv_ring){m->slot_slab + m->slot_at.window[i], m->slot_at.bytes,
        kv_row_bytes(m->window_format, m->config.d_head), m->slot_at.window_cap};
}

kv_ring model_tail_ring(const model *m, int i) {
    return (kv_ring){m->slot_slab + m->slot_at.tails[i], m->slot_at.bytes,
        2 * (size_t)m->config.d_head * sizeof(float), m->slot_at.tail_cap};
}

kv_paged model_pages_view(const model *m, int i_kv_source, bool is_key) {
    const model_config *c = &m->config;
    int ratio = c->layers[c->kv_source_layers[i_kv_source]].ratio;
    size_t at = is_key ? m->page_at.keys[i_kv_source] : m->page_at.compressed[i_kv_source];
    size_t row = is_key ? kv_row_bytes(m->key_format, c->d_index)
                        : kv_row_bytes(m->compressed_format, c->d_head);
    return (kv_paged){m->pages + at, m->page_at.bytes, row, m->page_table, m->max_pages,
        m->options.page_tokens / ratio};
}

static void give(model *m, const block_pass *p, int i, const char *name, int n_cols, float *data) {
    if (m->tap == NULL) {
        return;
    }
    if (p->is_draft) {
        tap_draft_floats(m, name, i - m->config.n_layers, n_cols, data);
    } else {
        tap_floats(m, name, i, n_cols, data);
    }
}

static void norm(model *m, float *x, const float *weight, const int rows_cols[2]) {
    size_t n = (size_t)rows_cols[1];
    m->ops->rmsnorm(
        &m->k, &(rmsnorm_args){x, n, weight, x, n, rows_cols[0], rows_cols[1], m->config.norm_eps});
}

static void rope(
    model *m, float *x, const float *table, const int rows_heads_dim[3], bool is_inverse) {
    m->ops->rope(&m->k,
        &(rope_args){x, (size_t)(rows_heads_dim[1] * rows_heads_dim[2]), table, rows_heads_dim[0],
            rows_heads_dim[1], rows_heads_dim[2], m->config.d_rope, is_inverse});
}

/* The groups a kv source closes in this pass. */
typedef struct closed_groups {
    int n;
    const int32_t *slot;
    const int64_t *group;
    const float *table; /* rotation at the group's first position */
} closed_groups;

static closed_groups groups_of(const model *m, const layer_plan *plan, const row_lists *l) {
    if (plan->ratio == 1) {
        return (closed_groups){l->rows.n, l->rows.slot, l->rows.pos, m->b.rope_b};
    }
    return (closed_groups){l->n_closed, l->sent.closed_slot, l->sent.closed_group, m->b.rope_pair};
}

/* Everything that reads the sublayer's input, in one parallel pass. */
static void project_input(model *m, int i, int n) {
    const model_config *c = &m->config;
    const layer_plan *plan = &c->layers[i];
    const block_weights *w = &m->blocks[i];
    buffers *b = &m->b;
    size_t d = (size_t)c->n_embd;
    linear_job jobs[5];
    int n_jobs = 0;
    linear_job base = {.x = b->x, .x_stride = d, .n_rows = n};
    base.weight = &w->wq_a, base.y = b->qa, base.y_stride = (size_t)c->q_rank;
    jobs[n_jobs++] = base;
    base.weight = &w->wkv, base.y = b->kv, base.y_stride = (size_t)c->d_head;
    jobs[n_jobs++] = base;
    if (plan->i_index_source >= 0) {
        base.weight = &w->index_w, base.y = b->index_w, base.y_stride = (size_t)c->n_index_heads;
        jobs[n_jobs++] = base;
    }
    if (plan->i_kv_source >= 0) {
        base.keeps_f32 = plan->ratio > 1;
        base.weight = &w->comp_kv, base.y = b->comp_a, base.y_stride = (size_t)c->d_head;
        jobs[n_jobs++] = base;
        base.weight = &w->comp_gate, base.y = b->comp_b;
        if (plan->ratio > 1) {
            jobs[n_jobs++] = base;
        }
    }
    m->ops->linear(&m->k, &(linear_args){jobs, n_jobs});
}

/* Latents of the groups that close here, normalized, not rotated: buffers.latent [groups][d_head].
 */
static void make_latents(model *m, int i, const row_lists *l, int n_groups) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    if (c->layers[i].ratio > 1) {
        compress_args a = {b->comp_a, b->comp_b, model_tail_ring(m, i), l->rows, l->sent.closed_row,
            b->latent, n_groups, c->d_head};
        m->ops->compress_pair(&m->k, &a);
        m->ops->compress_tail_write(&m->k, &a);
        norm(m, b->latent, m->blocks[i].comp_norm, (int[2]){n_groups, c->d_head});
        return;
    }
    size_t d = (size_t)c->d_head;
    m->ops->rmsnorm(&m->k, &(rmsnorm_args){b->comp_a, d, m->blocks[i].comp_norm, b->latent, d,
                               n_groups, c->d_head, c->norm_eps});
}

/* Queries, index queries and index keys, in one parallel pass. */
static void project_queries(model *m, int i, int n, int n_groups) {
    const model_config *c = &m->config;
    const layer_plan *plan = &c->layers[i];
    const block_weights *w = &m->blocks[i];
    buffers *b = &m->b;
    linear_job jobs[3];
    int n_jobs = 0;
    linear_job base = {.x = b->u, .x_stride = (size_t)c->q_rank, .n_rows = n};
    base.weight = &w->wq_b, base.y = b->q, base.y_stride = (size_t)(m->part.n_heads * c->d_head);
    jobs[n_jobs++] = base;
    if (plan->i_index_source >= 0) {
        base.weight = &w->index_q, base.y = b->index_q;
        base.y_stride = (size_t)(c->n_index_heads * c->d_index);
        jobs[n_jobs++] = base;
    }
    if (plan->i_kv_source >= 0) {
        jobs[n_jobs++] = (linear_job){.weight = &w->index_k,
            .x = b->latent,
            .x_stride = (size_t)c->d_head,
            .y = b->index_k,
            .y_stride = (size_t)c->d_index,
            .n_rows = n_groups};
    }
    m->ops->linear(&m->k, &(linear_args){jobs, n_jobs});
}

static void store_groups(model *m, int i, const closed_groups *g) {
    const model_config *c = &m->config;
    const layer_plan *plan = &c->layers[i];
    buffers *b = &m->b;
    norm(m, b->index_k, m->blocks[i].index_k_norm, (int[2]){g->n, c->d_index});
    rope(m, b->index_k, g->table, (int[3]){g->n, 1, c->d_index}, false);
    m->ops->kv_page_write(
        &m->k, &(kv_page_write_args){m->key_format, model_pages_view(m, plan->i_kv_source, true),
                   b->index_k, g->slot, g->group, g->n, c->d_index});
    rope(m, b->latent, g->table, (int[3]){g->n, 1, c->d_head}, false);
    m->ops->kv_page_write(&m->k,
        &(kv_page_write_args){m->compressed_format, model_pages_view(m, plan->i_kv_source, false),
            b->latent, g->slot, g->group, g->n, c->d_head});
}

static void select_rows(model *m, int i, const row_lists *l) {
    const model_config *c = &m->config;
    const layer_plan *plan = &c->layers[i];
    buffers *b = &m->b;
    size_t row = kv_row_bytes(m->key_format, c->d_index);
    m->ops->index_queries(
        &m->k, &(index_queries_args){b->index_q, b->rope_b, m->key_format, b->index_rows, row,
                   l->rows.n, c->n_index_heads, c->d_index, c->d_rope});
    int i_source = c->layers[plan->kv_source].i_kv_source;
    indexer_args a = {.q = b->index_q,
        .packed = m->key_format == KV_KEY ? b->index_rows : NULL,
        .packed_bytes = row,
        .w = b->index_w,
        .batch = l->rows,
        .key_format = m->key_format,
        .keys = model_pages_view(m, i_source, true),
        .ratio = plan->ratio,
        .n_heads = c->n_index_heads,
        .d = c->d_index,
        .topk = c->index_topk,
        .builds_candidates = plan->is_candidate_source,
        .uses_candidates = plan->has_candidates,
        .blocks = b->blocks,
        .n_blocks = b->n_blocks,
        .max_blocks = c->candidate_blocks,
        .block = c->candidate_block,
        .selection = b->selection,
        .n_selected = b->n_selected,
        .score = b->score,
        .score_rows = model_score_rows(m),
        .score_cap = m->options.max_context,
        .score_tap = m->tap_score};
    a.w_scale = (float)(1.0 / sqrt((double)c->d_index) / sqrt((double)c->n_index_heads));
    m->ops->indexer(&m->k, &a);
    if (m->tap != NULL) {
        tap_selection(m, i);
    }
}

static void attend(model *m, int i, const block_pass *p) {
    const model_config *c = &m->config;
    const layer_plan *plan = &c->layers[i];
    buffers *b = &m->b;
    const row_lists *l = p->lists;
    attn_args a = {.q = b->q,
        .o = b->o,
        .sink = m->blocks[i].sink,
        .batch = l->rows,
        .window_format = m->window_format,
        .compressed_format = m->compressed_format,
        .ring = model_window_ring(m, i),
        .rows = b->window_rows,
        .max_selected = c->index_topk,
        .n_heads = m->part.n_heads,
        .d = c->d_head,
        .window = c->window,
        .scale = (float)(1.0 / sqrt((double)c->d_head)),
        .is_block = p->is_draft};
    if (plan->ratio > 0) {
        a.pages = model_pages_view(m, c->layers[plan->kv_source].i_kv_source, false);
        a.selection = b->selection;
        a.n_selected = b->n_selected;
        if (m->tap != NULL) {
            tap_used(m, i);
        }
    }
    m->ops->attn(&m->k, &a);
    give(m, p, i, "attn_o", m->part.n_heads * c->d_head, b->o);
    if (p->is_draft) {
        return;
    }
    m->ops->kv_ring_write(&m->k, &(kv_ring_write_args){a.ring, b->window_rows, l->rows});
}

static void project_output(model *m, int i, int n) {
    const model_config *c = &m->config;
    const block_weights *w = &m->blocks[i];
    buffers *b = &m->b;
    linear_job jobs[MODEL_MAX_GROUPS];
    int n_groups = m->part.n_groups, width = m->part.n_heads * c->d_head;
    size_t out = (size_t)(n_groups * c->o_rank);
    for (int g = 0; g < n_groups; g++) {
        jobs[g] = (linear_job){.weight = &w->wo_a[g],
            .x = b->o + (size_t)(g * (width / n_groups)),
            .x_stride = (size_t)width,
            .y = b->u + (size_t)(g * c->o_rank),
            .y_stride = out,
            .n_rows = n};
    }
    m->ops->linear(&m->k, &(linear_args){jobs, n_groups});
    linear_job last = {.weight = &w->wo_b,
        .x = b->u,
        .x_stride = out,
        .y = b->y,
        .y_stride = (size_t)c->n_embd,
        .n_rows = n,
        .keeps_f32 = true};
    m->ops->linear(&m->k, &(linear_args){&last, 1});
    model_sum(m, b->y, (size_t)n * (size_t)c->n_embd);
}

void attention_run(model *m, int i, const block_pass *p) {
    const model_config *c = &m->config;
    const layer_plan *plan = &c->layers[i];
    const block_weights *w = &m->blocks[i];
    buffers *b = &m->b;
    int n = p->lists->rows.n;
    const float *table = plan->ratio == 0 ? b->rope_a : b->rope_b;
    closed_groups g = groups_of(m, plan, p->lists);
    project_input(m, i, n);
    /* Not in place: the products of one row then read qa and do it themselves. u is free until attention. */
    m->ops->rmsnorm(&m->k, &(rmsnorm_args){b->qa, (size_t)c->q_rank, w->q_norm, b->u,
                               (size_t)c->q_rank, n, c->q_rank, c->norm_eps});
    norm(m, b->kv, w->kv_norm, (int[2]){n, c->d_head});
    rope(m, b->kv, table, (int[3]){n, 1, c->d_head}, false);
    m->ops->kv_pack(
        &m->k, &(kv_pack_args){m->window_format, b->kv, (size_t)c->d_head, b->window_rows,
                   kv_row_bytes(m->window_format, c->d_head), n, c->d_head});
    if (plan->i_kv_source >= 0) {
        make_latents(m, i, p->lists, g.n);
    }
    project_queries(m, i, n, g.n);
    if (plan->i_kv_source >= 0) {
        store_groups(m, i, &g);
    }
    if (plan->i_index_source >= 0) {
        select_rows(m, i, p->lists);
    }
    /* Next to attention, which may do it as it reads the queries. */
    rope(m, b->q, table, (int[3]){n, m->part.n_heads, c->d_head}, false);
    give(m, p, i, "q", m->part.n_heads * c->d_head, b->q);
    attend(m, i, p);
    rope(m, b->o, table, (int[3]){n, m->part.n_heads, c->d_head}, true);
    project_output(m, i, n);
    give(m, p, i, "attn_out", c->n_embd, b->y);
}

void ffn_run(model *m, int i, const block_pass *p) {
    const model_config *c = &m->config;
    const layer_plan *plan = &c->layers[i];
    const block_weights *w = &m->blocks[i];
    buffers *b = &m->b;
    int n = p->lists->rows.n, used = plan->n_experts_used;
    linear_job gate = {.weight = &w->gate,
        .x = b->x,
        .x_stride = (size_t)c->n_embd,
        .y = b->router_logits,
        .y_stride = (size_t)plan->n_experts,
        .n_rows = n,
        .keeps_f32 = true};
    m->ops->linear(&m->k, &(linear_args){&gate, 1});
    m->ops->router(
        &m->k, &(router_args){b->router_logits, w->gate_bias, b->router_expert, b->router_weight,
                   b->router_work, n, plan->n_experts, used, c->gate_temperature, c->route_scale});
    if (m->tap != NULL) {
        tap_router(m, i, used, p->is_draft);
    }
    m->ops->moe(&m->k, &(moe_args){b->x, b->router_expert, b->router_weight, w->experts, &w->shared,
                           b->y, n, plan->n_experts, used, c->n_embd, m->part.n_ff, c->swiglu_limit,
                           b->moe_work, w->expert_table});
    model_sum(m, b->y, (size_t)n * (size_t)c->n_embd);
    give(m, p, i, "ffn_out", c->n_embd, b->y);
}

/* ---- hyper-connections around a sublayer ---- */

/* Site 0 is attention, 1 the experts. */
static void mix(model *m, int i, const block_pass *p, int site) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    int s = c->n_streams;
    float *pre = site == 0 ? b->pre_attn : b->pre_ffn,
          *post = site == 0 ? b->post_attn : b->post_ffn;
    float *comb = site == 0 ? b->comb_attn : b->comb_ffn;
    m->ops->mhc_mix(&m->k,
        &(mhc_mix_args){b->h, site == 0 ? m->blocks[i].hc_attn : m->blocks[i].hc_ffn, pre, post,
            comb, p->lists->rows.n, s, c->n_embd, c->sinkhorn_iters, c->hc_eps, c->norm_eps});
    give(m, p, i, site == 0 ? "hc_attn_pre" : "hc_ffn_pre", s, pre);
    give(m, p, i, site == 0 ? "hc_attn_post" : "hc_ffn_post", s, post);
    give(m, p, i, site == 0 ? "hc_attn_comb" : "hc_ffn_comb", s * s, comb);
}

static void collapse(model *m, int i, const block_pass *p, int site) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    float *pre = site == 0 ? b->pre : b->pre_attn;
    give(m, p, i, site == 0 ? "attn_collapse_pre" : "ffn_collapse_pre", c->n_streams, pre);
    m->ops->mhc_collapse(
        &m->k, &(mhc_collapse_args){.h = b->h,
                   .pre = pre,
                   .weight = site == 0 ? m->blocks[i].attn_norm : m->blocks[i].ffn_norm,
                   .x = b->x,
                   .n_rows = p->lists->rows.n,
                   .n_streams = c->n_streams,
                   .d = c->n_embd,
                   .norm_eps = c->norm_eps});
    give(m, p, i, site == 0 ? "attn_in" : "ffn_in", c->n_embd, b->x);
}

static void expand(model *m, const block_pass *p, int site) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    m->ops->mhc_expand(&m->k,
        &(mhc_expand_args){b->h, b->y, site == 0 ? b->post_attn : b->post_ffn,
            site == 0 ? b->comb_attn : b->comb_ffn, p->lists->rows.n, c->n_streams, c->n_embd});
}

static uint64_t lap(model *m, step_part part, uint64_t since) {
    uint64_t now = clock_mono_ns();
    m->part_ns[part] += now - since;
    return now;
}

void block_run(model *m, int i, const block_pass *p) {
    buffers *b = &m->b;
    uint64_t start = clock_mono_ns();
    mix(m, i, p, 0);
    collapse(m, i, p, 0);
    attention_run(m, i, p);
    expand(m, p, 0);
    start = lap(m, STEP_PART_ATTENTION, start);
    mix(m, i, p, 1);
    collapse(m, i, p, 1);
    ffn_run(m, i, p);
    expand(m, p, 1);
    (void)lap(m, STEP_PART_MOE, start);
    /* This block's last collapse weights are the next block's first: the two buffers change places.
     */
    float *old = b->pre;
    b->pre = b->pre_ffn;
    b->pre_ffn = old;
    give(m, p, i, "hidden", m->config.n_streams * m->config.n_embd, b->h);
    give(m, p, i, "pre_mix", m->config.n_streams, b->pre);
}

void head_run(model *m, int n, float *out) {
    const model_config *c = &m->config;
    size_t width = (size_t)m->part.n_vocab;
    float *mine = m->world > 1 ? m->b.logits_part + (size_t)m->rank * (size_t)n * width : out;
    linear_job job = {.weight = &m->head,
        .x = m->b.head_x,
        .x_stride = (size_t)c->n_embd,
        .y = mine,
        .y_stride = width,
        .n_rows = n,
        .keeps_f32 = true};
    m->ops->linear(&m->k, &(linear_args){&job, 1});
    if (m->world == 1 || m->k.rc != OK) {
        return;
    }
    uint64_t start = clock_mono_ns();
    gather_ranks(m, m->b.logits_part, (size_t)n * width);
    m->part_ns[STEP_PART_EXCHANGE] += clock_mono_ns() - start;
    m->ops->join(&m->k, &(join_args){m->b.logits_part, out, m->world, n, m->part.n_vocab});
}
