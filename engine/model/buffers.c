/* Sizes and places: slots, pages and the work space of a pass. Everything is laid out twice by the
 * same code, first to count (base NULL), then to place. */
#include "engine/model/model_internal.h"

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t)63;
}

void model_lay_out_state(model *m) {
    const model_config *c = &m->config;
    slot_layout *s = &m->slot_at;
    size_t at = 0, width = (size_t)c->n_embd;
    s->window_cap = c->window + m->options.max_rollback;
    s->tail_cap = m->options.max_rollback + 2;
    s->tap_cap = m->options.max_rollback + 1;
    int n = c->n_layers + (model_has_drafts(m) ? c->n_stages : 0);
    for (int i = 0; i < n; i++) {
        s->window[i] = at;
        at += align64((size_t)s->window_cap * kv_row_bytes(m->window_format, c->d_head));
        if (c->layers[i].i_kv_source < 0 || c->layers[i].ratio < 2) {
            continue;
        }
        s->tails[i] = at;
        at += align64((size_t)s->tail_cap * 2 * (size_t)c->d_head * sizeof(float));
    }
    s->taps = at;
    if (model_has_drafts(m)) {
        at += align64((size_t)(s->tap_cap * c->n_taps) * width * sizeof(float));
    }
    s->bytes = align64(at);
    at = 0;
    for (int i = 0; i < c->n_kv_sources; i++) {
        size_t rows = (size_t)(m->options.page_tokens / c->layers[c->kv_source_layers[i]].ratio);
        m->page_at.compressed[i] = at;
        at += align64(rows * kv_row_bytes(m->compressed_format, c->d_head));
        m->page_at.keys[i] = at;
        at += align64(rows * kv_row_bytes(m->key_format, c->d_index));
    }
    m->page_at.bytes = at;
    m->max_pages =
        (int)((m->options.max_context + m->options.page_tokens - 1) / m->options.page_tokens);
    m->recent_cap = m->options.max_rollback + MODEL_MAX_NGRAM;
}

/* Takes bytes from a running offset; NULL while counting. */
static void *take(char *base, size_t *at, size_t bytes) {
    void *p = base == NULL ? NULL : base + *at;
    *at += align64(bytes);
    return p;
}

static size_t floats(int rows, int width) {
    return (size_t)rows * (size_t)width * sizeof(float);
}

static int larger(int a, int b) {
    return a > b ? a : b;
}

/* Host arrays of the lists. */
static void place_arrays(const model *m, row_lists *l, char *base, size_t *at) {
    size_t n = (size_t)m->rows_cap, start = *at;
    l->token = take(base, at, n * 4);
    l->slot = take(base, at, n * 4);
    l->span_row = take(base, at, n * 4);
    l->span_len = take(base, at, n * 4);
    l->pos = take(base, at, n * 8);
    l->span_pos = take(base, at, n * 8);
    l->closed_row = take(base, at, n * 4);
    l->closed_slot = take(base, at, n * 4);
    l->closed_group = take(base, at, n * 8);
    l->closed_pos = take(base, at, n * 8);
    l->logit_row = take(base, at, n * 4);
    l->bytes = *at - start;
    l->host = base == NULL ? NULL : base + start;
}

/* The same arrays in memory of the back end; the host's are these until model_lay_out_host. */
static void place_lists(model *m, row_lists *l, char *base, size_t *at) {
    place_arrays(m, l, base, at);
    l->back = l->host;
    l->rows = (batch_rows){0, l->token, l->slot, l->pos, l->span_row, l->span_pos, l->span_len, 0};
    l->sent =
        (sent_lists){l->closed_row, l->closed_slot, l->logit_row, l->closed_group, l->closed_pos};
}

static void place_streams(model *m, char *base, size_t *at) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    int n = m->rows_cap, s = c->n_streams, d = c->n_embd;
    b->h = take(base, at, floats(n, s * d));
    b->x = take(base, at, floats(n, d));
    b->y = take(base, at, floats(n, d));
    b->pre = take(base, at, floats(n, s));
    b->pre_attn = take(base, at, floats(n, s));
    b->post_attn = take(base, at, floats(n, s));
    b->comb_attn = take(base, at, floats(n, s * s));
    b->pre_ffn = take(base, at, floats(n, s));
    b->post_ffn = take(base, at, floats(n, s));
    b->comb_ffn = take(base, at, floats(n, s * s));
    b->rope_a = take(base, at, floats(n, c->d_rope));
    b->rope_b = take(base, at, floats(n, c->d_rope));
    b->rope_pair = take(base, at, floats(n, c->d_rope));
}

static void place_attention(model *m, char *base, size_t *at) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    int n = m->rows_cap;
    b->qa = take(base, at, floats(n, c->q_rank));
    b->q = take(base, at, floats(n, m->part.n_heads * c->d_head));
    b->o = take(base, at, floats(n, m->part.n_heads * c->d_head));
    b->u = take(base, at, floats(n, larger(m->part.n_groups * c->o_rank, c->q_rank)));
    b->kv = take(base, at, floats(n, c->d_head));
    b->window_rows = take(base, at, (size_t)n * kv_row_bytes(m->window_format, c->d_head));
    b->comp_a = take(base, at, floats(n, c->d_head));
    b->comp_b = take(base, at, floats(n, c->d_head));
    b->latent = take(base, at, floats(n, c->d_head));
    b->index_k = take(base, at, floats(n, c->d_index));
    b->index_q = take(base, at, floats(n, c->n_index_heads * c->d_index));
    b->index_w = take(base, at, floats(n, c->n_index_heads));
    b->index_rows =
        take(base, at, (size_t)(n * c->n_index_heads) * kv_row_bytes(m->key_format, c->d_index));
    b->blocks = take(base, at, (size_t)n * (size_t)c->candidate_blocks * 4);
    b->n_blocks = take(base, at, (size_t)n * 4);
    b->selection = take(base, at, (size_t)n * (size_t)c->index_topk * 4);
    b->n_selected = take(base, at, (size_t)n * 4);
}

/* Rows whose scores are held at once: about 4 MiB on the host, 256 MiB on a device, which scores
 * many rows in one launch; at least one row. */
int model_score_rows(const model *m) {
    int64_t rows = ((int64_t)1 << (m->ops->is_host ? 20 : 26)) / m->options.max_context;
    if (rows > m->rows_cap) {
        rows = m->rows_cap;
    }
    return rows < 1 ? 1 : (int)rows;
}

static void place_ffn(model *m, char *base, size_t *at) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    int n = m->rows_cap;
    int experts = larger(c->n_experts, c->n_stage_experts);
    int used = larger(c->n_experts_used, c->n_stage_experts_used);
    b->router_logits = take(base, at, floats(n, experts));
    b->router_work = take(base, at, floats(n, 2 * experts));
    b->router_weight = take(base, at, floats(n, used));
    b->router_expert = take(base, at, (size_t)(n * used) * 4);
    b->moe_work = take(base, at, m->ops->moe_work_bytes(n, experts, used, c->n_embd, m->part.n_ff));
}

static void place_engram(model *m, char *base, size_t *at) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    if (c->n_engram == 0) {
        return;
    }
    int n = m->rows_cap, columns = m->part.n_columns;
    for (int i = 0; i < c->n_engram; i++) {
        b->records[i] = take(base, at, (size_t)(n * columns) * engram_record_bytes(c->d_engram));
    }
    b->engram_x = take(base, at, floats(n, columns * c->d_engram));
    b->engram_kv = take(base, at, floats(n, (c->n_streams + 1) * c->n_embd));
}

static int most_logit_rows(const model *m) {
    int drafted = model_has_drafts(m) ? m->options.n_slots * m->config.block : 0;
    return larger(m->options.max_logit_rows, drafted);
}

static void place_head(model *m, char *base, size_t *at) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    int rows = most_logit_rows(m);
    b->head_x = take(base, at, floats(rows, c->n_embd));
    b->logits = take(base, at, floats(rows, c->n_vocab));
    b->logits_part = take(base, at, m->world > 1 ? floats(rows, c->n_vocab) : 0);
    if (!m->ops->is_host) {
        b->asks = take(base, at, (size_t)rows * sizeof(*b->asks));
        b->lists = take(base, at, (size_t)rows * sizeof(*b->lists));
    }
    b->is_finite = take(base, at, (size_t)rows);
    b->is_row_finite = take(base, at, (size_t)m->rows_cap);
}

static void place_draft(model *m, char *base, size_t *at) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    if (!model_has_drafts(m)) {
        return;
    }
    int n = m->rows_cap, slots = m->options.n_slots, taps = c->n_taps * c->n_embd;
    b->taps = take(base, at, floats(n, taps));
    b->feed_x = take(base, at, floats(n, taps));
    b->feed_main = take(base, at, floats(n, c->n_embd));
    b->draft_confidence = take(base, at, floats(slots, c->block));
    b->draft_prev = take(base, at, (size_t)slots * 4);
    b->draft_pick = take(base, at, (size_t)slots * 4);
    b->draft_value = take(base, at, floats(slots, 1));
    b->draft_xe = take(base, at, floats(slots, c->n_embd + c->markov_rank));
    b->draft_logits = take(base, at, floats(slots, c->n_vocab));
}

static size_t scratch_bytes(const model *m) {
    const model_config *c = &m->config;
    int n = m->rows_cap;
    int experts = larger(c->n_experts, c->n_stage_experts);
    int used = larger(c->n_experts_used, c->n_stage_experts_used);
    int max_in = larger(c->n_embd, larger(c->n_taps * c->n_embd, m->part.n_ff));
    max_in = larger(max_in, larger(c->n_hashes * c->d_engram, c->n_heads * c->d_head));
    int jobs = larger(moe_max_jobs(n, experts, used), MODEL_MAX_GROUPS);
    int rows = n * larger(2 * (used + 1), larger(m->part.n_groups, 8));
    int max_out = larger(larger(c->n_embd, m->part.n_vocab), m->part.n_heads * c->d_head);
    max_out = larger(max_out, (c->n_streams + 1) * c->n_embd);
    max_out = larger(max_out, larger(m->part.n_ff, c->n_index_heads * c->d_index));
    kernel_limits l = {jobs, rows, larger(max_in, c->o_groups * c->o_rank), max_out};
    return m->ops->scratch_bytes(&l);
}

static size_t thread_bytes(const model *m) {
    const model_config *c = &m->config;
    size_t attn = attn_thread_bytes(c->window, c->index_topk, c->d_head);
    size_t index = indexer_thread_bytes(c->d_index, m->options.max_context, c->candidate_block);
    return align64(attn > index ? attn : index);
}

size_t model_lay_out_buffers(model *m, char *base) {
    size_t at = 0;
    place_lists(m, &m->step_rows, base, &at);
    place_lists(m, &m->feed_rows, base, &at);
    place_lists(m, &m->draft_rows, base, &at);
    place_streams(m, base, &at);
    place_attention(m, base, &at);
    /* A device takes twice the rows at once (indexer.h). */
    size_t scores = (size_t)model_score_rows(m) * (size_t)m->options.max_context;
    m->b.score = take(base, &at, scores * (m->ops->is_host ? 4 : 8));
    place_ffn(m, base, &at);
    place_engram(m, base, &at);
    place_head(m, base, &at);
    place_draft(m, base, &at);
    size_t scratch = scratch_bytes(m), thread = thread_bytes(m);
    m->k.scratch_bytes = scratch;
    m->k.thread_scratch_bytes = thread;
    m->k.scratch = take(base, &at, scratch);
    for (int i = 0; i < m->n_threads && m->ops->is_host; i++) {
        m->k.thread_scratch[i] = take(base, &at, thread);
    }
    return at;
}

/* ---- the host's part ---- */

static void place_host_engram(model *m, char *base, size_t *at) {
    const model_config *c = &m->config;
    host_buffers *h = &m->b.host;
    int n = m->rows_cap, columns = m->part.n_columns;
    size_t record = engram_record_bytes(c->d_engram);
    for (int i = 0; i < c->n_engram; i++) {
        h->row_ids[i] = take(base, at, (size_t)(n * c->n_hashes) * 8);
        h->records[i] =
            m->ops->is_host ? m->b.records[i] : take(base, at, (size_t)(n * columns) * record);
    }
    h->local_ids = take(base, at, (size_t)(n * columns) * 8);
}

/* Where results are read: in place, or in copies. */
static void place_host_results(model *m, char *base, size_t *at) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    host_buffers *h = &b->host;
    int rows = most_logit_rows(m), slots = m->options.n_slots;
    h->first_logit = take(base, at, (size_t)slots * 4);
    h->is_span_finite = take(base, at, (size_t)slots);
    h->draft_tokens = take(base, at, (size_t)(slots * larger(c->block, 1)) * 4);
    if (m->ops->is_host) {
        h->logits = b->logits;
        h->is_finite = b->is_finite;
        h->is_row_finite = b->is_row_finite;
        h->draft_prev = b->draft_prev;
        h->draft_confidence = b->draft_confidence;
        h->draft_logits = b->draft_logits;
        return;
    }
    h->logits = take(base, at, floats(rows, c->n_vocab));
    h->lists = take(base, at, (size_t)rows * sizeof(*h->lists));
    h->asks = take(base, at, (size_t)slots * sizeof(*h->asks));
    h->is_finite = take(base, at, (size_t)rows);
    h->is_row_finite = take(base, at, (size_t)m->rows_cap);
    h->draft_prev = take(base, at, (size_t)slots * 4);
    h->draft_confidence = take(base, at, floats(slots, larger(c->block, 1)));
    h->draft_logits = take(base, at, floats(slots, c->n_vocab));
    /* Sizes are asked for before there is an exchange: then with room for one of the host. */
    if (m->world > 1 && (m->x == NULL || !exchange_is_device(m->x))) {
        size_t sum = floats(m->rows_cap, (c->n_streams + 1) * c->n_embd);
        size_t gather = floats(rows, c->n_vocab);
        h->exchange = take(base, at, sum > gather ? sum : gather);
    }
}

size_t model_lay_out_host(model *m, char *base) {
    size_t at = 0;
    if (!m->ops->is_host) {
        place_arrays(m, &m->step_rows, base, &at);
        place_arrays(m, &m->feed_rows, base, &at);
        place_arrays(m, &m->draft_rows, base, &at);
    }
    if (m->config.n_engram > 0) {
        place_host_engram(m, base, &at);
    }
    place_host_results(m, base, &at);
    return at;
}
