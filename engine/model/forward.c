/* The forward pass of a step: the one sequence of operators for prompt chunks, decoding and verify
 * windows. */
#include <math.h>

#include "engine/base/clock.h"
#include "engine/model/model_internal.h"

static void make_rope_tables(model *m, const row_lists *l) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    m->ops->rope_table(&m->k,
        &(rope_table_args){m->rope_frequency_a, l->rows.pos, b->rope_a, l->rows.n, c->d_rope});
    m->ops->rope_table(&m->k,
        &(rope_table_args){m->rope_frequency_b, l->rows.pos, b->rope_b, l->rows.n, c->d_rope});
    m->ops->rope_table(&m->k, &(rope_table_args){m->rope_frequency_b, l->sent.closed_pos,
                                  b->rope_pair, l->n_closed, c->d_rope});
}

static void take_tap(model *m, int i_tap) {
    const model_config *c = &m->config;
    if (i_tap < 0 || !model_has_drafts(m)) {
        return;
    }
    m->ops->mhc_mean(
        &m->k, &(mhc_mean_args){m->b.h, m->b.taps + (size_t)(i_tap * c->n_embd),
                   (size_t)(c->n_taps * c->n_embd), m->step_rows.rows.n, c->n_streams, c->n_embd});
}

static void run_layers(model *m) {
    const model_config *c = &m->config;
    block_pass p = {&m->step_rows, false};
    for (int i = 0; i < c->n_layers && m->k.rc == OK; i++) {
        uint64_t start = clock_mono_ns();
        if (c->layers[i].i_engram >= 0) {
            engram_layer(m, i);
        }
        m->part_ns[STEP_PART_ENGRAM] += clock_mono_ns() - start;
        take_tap(m, c->layers[i].i_tap);
        block_run(m, i, &p);
    }
    if (m->tap != NULL && model_has_drafts(m)) {
        tap_floats(m, "main_hidden", -1, c->n_taps * c->n_embd, m->b.taps);
    }
}

static void run_logits(model *m, int n_logits) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    if (n_logits == 0) {
        return;
    }
    m->ops->mhc_collapse(&m->k, &(mhc_collapse_args){.h = b->h,
                                    .pre = b->pre,
                                    .weight = m->norm,
                                    .raw = m->tap != NULL ? b->y : NULL,
                                    .x = b->head_x,
                                    .rows = m->step_rows.sent.logit_row,
                                    .n_rows = n_logits,
                                    .n_streams = c->n_streams,
                                    .d = c->n_embd,
                                    .norm_eps = c->norm_eps});
    if (m->tap != NULL) {
        tap_logit_rows(m, n_logits);
    }
    head_run(m, n_logits, b->logits);
    m->ops->finite(&m->k, &(finite_args){b->logits, b->is_finite, n_logits, c->n_vocab});
}

static void advance_slots(model *m, const batch_plan *plan) {
    for (int i = 0; i < plan->n_spans; i++) {
        const plan_span *s = &plan->spans[i];
        slot_state *slot = &m->slots[s->slot];
        for (int r = 0; r < s->n_rows; r++) {
            slot->recent[(s->pos + r) % m->recent_cap] = s->tokens[r];
        }
        slot->len += s->n_rows;
        slot->high = slot->len > slot->high ? slot->len : slot->high;
        if (s->kind != PLAN_VERIFY) {
            slot->final_len = slot->len;
        }
        if (s->kind != PLAN_VERIFY || !model_has_drafts(m)) {
            slot->fed_len = slot->len;
        }
    }
}

static uint64_t lap(model *m, step_part part, uint64_t since) {
    uint64_t now = clock_mono_ns();
    m->part_ns[part] += now - since;
    return now;
}

/* For tests: rows of one token go wrong from the start. */
static void spoil_rows(model *m) {
    static const float nan = NAN;
    size_t width = (size_t)(m->config.n_streams * m->config.n_embd);
    for (int i = 0; i < m->step_rows.rows.n; i++) {
        if (m->step_rows.token[i] == m->options.fault_token) {
            m->ops->copy(&m->k, m->b.h + (size_t)i * width, &nan, sizeof(nan));
        }
    }
}

/* The operators of a pass, from embedding to logits. */
static void run_pass(model *m, int n_logits) {
    const model_config *c = &m->config;
    uint64_t start = clock_mono_ns();
    m->ops->embed(&m->k, &(embed_args){&m->embed, m->step_rows.rows.token, m->b.h, m->b.pre,
                             m->step_rows.rows.n, c->n_streams});
    if (m->tap != NULL) {
        tap_embed(m);
    }
    if (m->options.fault_token > 0) {
        spoil_rows(m);
    }
    make_rope_tables(m, &m->step_rows);
    (void)lap(m, STEP_PART_EMBED, start);
    run_layers(m);
    /* A row that went wrong anywhere shows it in its streams at the end, with or without logits. */
    m->ops->finite(&m->k,
        &(finite_args){m->b.h, m->b.is_row_finite, m->step_rows.rows.n, c->n_streams * c->n_embd});
    start = clock_mono_ns();
    run_logits(m, n_logits);
    (void)lap(m, STEP_PART_HEAD, start);
}

static bool can_record(const model *m) {
    bool has_host_exchange = m->world > 1 && !exchange_is_device(m->x);
    return m->ops->graph_begin != NULL && m->tap == NULL && !has_host_exchange &&
           m->step_rows.rows.n <= MODEL_GRAPH_ROWS;
}

/* The entry of this pass; a full table gives up its least recently used one. */
static step_graph *find_graph(model *m, int n_logits) {
    const row_lists *l = &m->step_rows;
    step_graph *oldest = &m->graphs[0];
    for (int i = 0; i < MODEL_MAX_GRAPHS; i++) {
        step_graph *g = &m->graphs[i];
        if (g->n_seen > 0 && g->n_rows == l->rows.n && g->n_closed == l->n_closed &&
            g->n_logits == n_logits && g->pos_bound == l->rows.pos_bound) {
            return g;
        }
        oldest = g->used < oldest->used ? g : oldest;
    }
    if (oldest->graph != NULL) {
        m->ops->graph_free(oldest->graph);
    }
    *oldest = (step_graph){l->rows.n, l->n_closed, n_logits, l->rows.pos_bound, 0, NULL, 0};
    return oldest;
}

static void record(model *m, step_graph *g, int n_logits) {
    m->ops->graph_begin(&m->k);
    if (m->k.rc == OK) {
        run_pass(m, n_logits);
        g->graph = m->ops->graph_end(&m->k);
    }
}

void pass_record(model *m, int n_logits) {
    step_graph *g = find_graph(m, n_logits);
    if (m->k.rc != OK || g->graph != NULL) {
        return;
    }
    g->used = ++m->n_steps;
    /* Work of another size loads other kernels, which a recording cannot. */
    if (m->n_recorded_rows < m->step_rows.rows.n) {
        m->n_recorded_rows = m->step_rows.rows.n;
        run_pass(m, n_logits);
    }
    g->n_seen = 1;
    record(m, g, n_logits);
}

/* Records the pass the second time its key comes, replays it from then on. */
static void run_recorded(model *m, int n_logits) {
    step_graph *g = find_graph(m, n_logits);
    g->used = ++m->n_steps;
    for (int t = 0; t < m->config.n_engram; t++) {
        engram_fetch(m, t);
    }
    if (g->n_seen++ == 0) {
        run_pass(m, n_logits);
        return;
    }
    if (g->graph == NULL) {
        record(m, g, n_logits);
    }
    m->ops->graph_run(&m->k, g->graph);
}

static void run_step(model *m, const batch_plan *plan, int n_logits) {
    engram_begin(m);
    if (can_record(m)) {
        run_recorded(m, n_logits);
    } else {
        run_pass(m, n_logits);
    }
    uint64_t start = clock_mono_ns();
    if (model_has_drafts(m)) {
        draft_feed_step(m, plan);
    }
    (void)lap(m, STEP_PART_DRAFT_FEED, start);
}

/* Whole rows, or what a sampler needs of them. Not part of a recorded pass: it may differ from step to
 * step. */
static void fetch_rows(model *m, const batch_plan *plan, size_t n) {
    buffers *b = &m->b;
    if (plan->form == PLAN_FORM_WHOLE) {
        m->ops->copy(
            &m->k, b->host.logits, b->logits, n * (size_t)m->config.n_vocab * sizeof(float));
    } else if (plan->asks != NULL) {
        m->ops->copy(&m->k, b->asks, plan->asks, n * sizeof(*b->asks));
        m->ops->shortlist(
            &m->k, &(shortlist_args){b->logits, b->asks, b->lists, (int)n, m->config.n_vocab});
        m->ops->copy(&m->k, b->host.lists, b->lists, n * sizeof(*b->lists));
    }
}

/* Results to where the caller reads them; the step is complete after it. */
static void fetch_results(model *m, const batch_plan *plan, int n_logits) {
    buffers *b = &m->b;
    if (!m->ops->is_host) {
        size_t n = (size_t)n_logits;
        m->ops->copy(&m->k, b->host.is_row_finite, b->is_row_finite, (size_t)m->step_rows.rows.n);
        fetch_rows(m, plan, n);
        m->ops->copy(&m->k, b->host.is_finite, b->is_finite, n);
    }
    m->ops->wait(&m->k);
}

int model_logit_row(model *m, int i, const float **row, err *e) {
    size_t width = (size_t)m->config.n_vocab, at = (size_t)i * width;
    m->k.rc = OK;
    if (!m->ops->is_host) {
        m->ops->fetch(&m->k, m->b.host.logits + at, m->b.logits + at, width * sizeof(float));
    }
    *row = m->b.host.logits + at;
    if (m->k.rc == OK) {
        return OK;
    }
    if (e != NULL) {
        *e = m->k.error;
    }
    return err_add(e, m->k.rc, "reading a row of logits");
}

static void mark_spans(model *m, const batch_plan *plan) {
    const uint8_t *row = m->b.host.is_row_finite;
    for (int i = 0; i < plan->n_spans; i++) {
        uint8_t is_finite = 1;
        for (int r = 0; r < plan->spans[i].n_rows; r++) {
            is_finite &= *row++ != 0;
        }
        m->b.host.is_span_finite[i] = is_finite;
    }
}

/* Pending verify rows of the plan's slots go into the draft rings before new rows come. */
static void feed_pending(model *m, const batch_plan *plan) {
    if (!model_has_drafts(m)) {
        return;
    }
    m->feed_rows.rows.n = 0;
    for (int i = 0; i < plan->n_spans; i++) {
        draft_feed_pending(m, plan->spans[i].slot);
    }
    draft_feed_run(m);
}

void model_prefetch(model *m, const int32_t *tokens, int n_before, int n) {
    for (int i = 0; i < n_before + n; i++) {
        if (tokens[i] < 0 || tokens[i] >= m->config.n_vocab) {
            return;
        }
    }
    if (n > 0 && n_before >= 0) {
        engram_hint(m, tokens, n_before, n);
    }
}

int model_step(model *m, const batch_plan *plan, step_result *out, err *e) {
    uint64_t start = clock_mono_ns();
    int rc = plan_check(m, plan, e);
    if (rc != OK) {
        return rc;
    }
    m->k.rc = OK;
    m->fault.code = OK;
    for (int i = 0; i < STEP_N_PARTS; i++) {
        m->part_ns[i] = 0;
    }
    feed_pending(m, plan);
    int n_logits = plan_fill(m, plan);
    row_lists_send(m, &m->step_rows);
    run_step(m, plan, n_logits);
    fetch_results(m, plan, n_logits);
    if (m->k.rc != OK) {
        engram_abandon(m);
        if (e != NULL) {
            *e = m->k.error;
        }
        return err_add(e, m->k.rc, "step %llu", (unsigned long long)plan->id);
    }
    advance_slots(m, plan);
    mark_spans(m, plan);
    bool is_listed = !m->ops->is_host && plan->form == PLAN_FORM_LISTED;
    *out = (step_result){.n_rows = m->step_rows.rows.n,
        .n_logit_rows = n_logits,
        .logits = is_listed ? NULL : m->b.host.logits,
        .lists = is_listed && plan->asks != NULL ? m->b.host.lists : NULL,
        .first_logit = m->b.host.first_logit,
        .is_finite = m->b.host.is_finite,
        .is_span_finite = m->b.host.is_span_finite,
        .fault = m->fault.code != OK ? &m->fault : NULL};
    for (int i = 0; i < STEP_N_PARTS; i++) {
        out->part_ns[i] = m->part_ns[i];
    }
    out->total_ns = clock_mono_ns() - start;
    return OK;
}
