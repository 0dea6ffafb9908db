/* DSpark: feeding the draft rings from the taps of final positions, and one draft block per
 * request. */
#include <math.h>

#include "engine/base/clock.h"
#include "engine/base/rand.h"
#include "engine/model/model_internal.h"

/* ---- feeding ---- */

static float *kept_tap(model *m, int slot, int64_t pos) {
    size_t width = (size_t)(m->config.n_taps * m->config.n_embd);
    uint8_t *base = m->slot_slab + (size_t)slot * m->slot_at.bytes + m->slot_at.taps;
    return (float *)(void *)base + (size_t)(pos % m->slot_at.tap_cap) * width;
}

/* Adds rows at [pos, pos + n) of a slot as one span; the caller fills feed_x from the returned row
 * on. */
static int add_feed_span(model *m, int slot, int64_t pos, int n) {
    row_lists *l = &m->feed_rows;
    int first = l->rows.n;
    for (int i = first; i < first + n; i++) {
        l->token[i] = 0;
        l->slot[i] = slot;
        l->pos[i] = pos + (i - first);
        l->span_row[i] = first;
        l->span_pos[i] = pos;
        l->span_len[i] = n;
    }
    l->rows.n += n;
    return first;
}

void draft_feed_pending(model *m, int slot) {
    slot_state *s = &m->slots[slot];
    size_t width = (size_t)(m->config.n_taps * m->config.n_embd);
    int n = (int)(s->final_len - s->fed_len);
    if (n <= 0) {
        return;
    }
    int first = add_feed_span(m, slot, s->fed_len, n);
    for (int i = 0; i < n; i++) {
        m->ops->copy(&m->k, m->b.feed_x + (size_t)(first + i) * width,
            kept_tap(m, slot, s->fed_len + i), width * sizeof(float));
    }
    s->fed_len = s->final_len;
}

static void feed_stage(model *m, int i, int n) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    size_t d = (size_t)c->d_head, row = kv_row_bytes(m->window_format, c->d_head);
    linear_job job = {.weight = &m->blocks[i].wkv,
        .x = b->feed_main,
        .x_stride = (size_t)c->n_embd,
        .y = b->kv,
        .y_stride = d,
        .n_rows = n};
    m->ops->linear(&m->k, &(linear_args){&job, 1});
    m->ops->rmsnorm(&m->k,
        &(rmsnorm_args){b->kv, d, m->blocks[i].kv_norm, b->kv, d, n, c->d_head, c->norm_eps});
    m->ops->rope(&m->k, &(rope_args){b->kv, d, b->rope_a, n, 1, c->d_head, c->d_rope, false});
    m->ops->kv_pack(
        &m->k, &(kv_pack_args){m->window_format, b->kv, d, b->window_rows, row, n, c->d_head});
    m->ops->kv_ring_write(
        &m->k, &(kv_ring_write_args){model_window_ring(m, i), b->window_rows, m->feed_rows.rows});
}

void draft_feed_run(model *m) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    int n = m->feed_rows.rows.n;
    size_t width = (size_t)(c->n_taps * c->n_embd), d = (size_t)c->n_embd;
    if (n == 0) {
        return;
    }
    row_lists_send(m, &m->feed_rows);
    m->ops->rope_table(&m->k,
        &(rope_table_args){m->rope_frequency_a, m->feed_rows.rows.pos, b->rope_a, n, c->d_rope});
    linear_job job = {.weight = &m->draft.main_proj,
        .x = b->feed_x,
        .x_stride = width,
        .y = b->feed_main,
        .y_stride = d,
        .n_rows = n};
    m->ops->linear(&m->k, &(linear_args){&job, 1});
    m->ops->rmsnorm(&m->k, &(rmsnorm_args){b->feed_main, d, m->draft.main_norm, b->feed_main, d, n,
                               c->n_embd, c->norm_eps});
    for (int i = c->n_layers; i < c->n_layers + c->n_stages; i++) {
        feed_stage(m, i, n);
    }
}

void draft_feed_step(model *m, const batch_plan *plan) {
    size_t width = (size_t)(m->config.n_taps * m->config.n_embd);
    int row = 0;
    m->feed_rows.rows.n = 0;
    if (m->k.rc != OK) {
        return;
    }
    for (int i = 0; i < plan->n_spans; i++) {
        const plan_span *s = &plan->spans[i];
        const float *taps = m->b.taps + (size_t)row * width;
        row += s->n_rows;
        if (s->kind == PLAN_VERIFY) {
            for (int r = 0; r < s->n_rows; r++) {
                m->ops->copy(&m->k, kept_tap(m, s->slot, s->pos + r), taps + (size_t)r * width,
                    width * sizeof(float));
            }
            continue;
        }
        int n = s->n_rows < m->slot_at.window_cap ? s->n_rows : m->slot_at.window_cap;
        int first = add_feed_span(m, s->slot, s->pos + s->n_rows - n, n);
        m->ops->copy(&m->k, m->b.feed_x + (size_t)first * width,
            taps + (size_t)(s->n_rows - n) * width, (size_t)n * width * sizeof(float));
    }
    draft_feed_run(m);
}

/* ---- one block ---- */

static int check_requests(const model *m, const draft_request *requests, int n, err *e) {
    if (!model_has_drafts(m)) {
        return err_set(e, ERR_UNSUPPORTED, "this model was opened without draft stages");
    }
    if (n < 1 || n > m->options.n_slots) {
        return err_set(
            e, ERR_ARG, "%d draft requests; 1 to %d are possible", n, m->options.n_slots);
    }
    for (int i = 0; i < n; i++) {
        const draft_request *r = &requests[i];
        if (r->slot < 0 || r->slot >= m->options.n_slots || r->token < 0 ||
            r->token >= m->config.n_vocab) {
            return err_set(e, ERR_ARG, "draft request %d: slot %d, token %d", i, r->slot, r->token);
        }
        if (m->slots[r->slot].len != m->slots[r->slot].final_len) {
            return err_set(
                e, ERR_ARG, "draft request %d: slot %d has uncommitted rows", i, r->slot);
        }
    }
    return OK;
}

static void fill_draft_rows(model *m, const draft_request *requests, int n) {
    row_lists *l = &m->draft_rows;
    int block = m->config.block;
    l->rows.n = n * block;
    for (int i = 0; i < n * block; i++) {
        const draft_request *r = &requests[i / block];
        int64_t start = m->slots[r->slot].len;
        l->token[i] = i % block == 0 ? r->token : m->config.noise_id;
        l->slot[i] = r->slot;
        l->pos[i] = start + i % block;
        l->span_row[i] = i / block * block;
        l->span_pos[i] = start;
        l->span_len[i] = block;
    }
}

static void run_stages(model *m) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    const row_lists *l = &m->draft_rows;
    int n = l->rows.n;
    block_pass p = {l, true};
    m->ops->embed(&m->k, &(embed_args){&m->embed, l->rows.token, b->h, b->pre, n, c->n_streams});
    m->ops->rope_table(
        &m->k, &(rope_table_args){m->rope_frequency_a, l->rows.pos, b->rope_a, n, c->d_rope});
    for (int i = 0; i < c->n_stages; i++) {
        block_run(m, c->n_layers + i, &p);
    }
    m->ops->mhc_collapse(&m->k, &(mhc_collapse_args){.h = b->h,
                                    .pre = b->pre,
                                    .weight = m->draft.norm,
                                    .raw = b->x,
                                    .x = b->head_x,
                                    .n_rows = n,
                                    .n_streams = c->n_streams,
                                    .d = c->n_embd,
                                    .norm_eps = c->norm_eps});
    head_run(m, n, b->logits);
}

/* Where model_draft's choices come from. */
typedef struct draft_choice {
    draft_pick pick;
    void *user;
    const draft_request *requests;
    int n;
} draft_choice;

/* The tokens before the next drafted ones, to where operators look them up. */
static void send_prev(model *m, int n) {
    buffers *b = &m->b;
    if (b->host.draft_prev != b->draft_prev) {
        m->ops->copy(&m->k, b->draft_prev, b->host.draft_prev, (size_t)n * sizeof(int32_t));
    }
}

static void fetch_confidence(model *m, int n) {
    buffers *b = &m->b;
    if (b->host.draft_confidence != b->draft_confidence) {
        m->ops->copy(&m->k, b->host.draft_confidence, b->draft_confidence,
            (size_t)(n * m->config.block) * sizeof(float));
    }
    m->ops->wait(&m->k);
}

/* Tokens whose logit is so much below the largest, in units of the temperature, are not looked at:
 * their noise would have to be above that, which happens once in 160,000 draws. */
#define DRAW_WINDOW 12.0f

/* The largest of logit / temperature + noise, as the sampler draws the token that this one is compared
 * with. */
static int32_t draw(const draft_request *r, int64_t pos, const float *logits, int n_vocab) {
    int32_t pick = 0;
    float max = logits[0];
    double best = -INFINITY;
    for (int i = 1; i < n_vocab; i++) {
        max = logits[i] > max ? logits[i] : max;
    }
    float limit = max - DRAW_WINDOW * r->temperature;
    for (int i = 0; i < n_vocab; i++) {
        if (!(logits[i] >= limit)) continue;
        double u = rand_keyed_uniform(r->seed, (uint64_t)pos, (uint64_t)(unsigned)i);
        double score = (double)(logits[i] / r->temperature) - log(-log(u));
        if (score > best) {
            best = score;
            pick = i;
        }
    }
    return pick;
}

static int64_t drafted_pos(const model *m, const draft_request *q, int i) {
    return m->slots[q->slot].len + 1 + i;
}

static bool has_draws(const draft_choice *d) {
    bool has = false;
    for (int r = 0; r < d->n; r++) {
        has |= d->requests[r].temperature > 0.0f;
    }
    return has;
}

/* What is needed of the rows beside their largest: all of them, or of a device the lists of the tokens
 * that can be drawn. */
static void bring_rows(model *m, const draft_choice *d, int i) {
    buffers *b = &m->b;
    size_t n = (size_t)d->n, vocab = (size_t)m->config.n_vocab;
    if (m->ops->is_host) {
        return;
    }
    if (d->pick != NULL) {
        m->ops->fetch(&m->k, b->host.draft_logits, b->draft_logits, n * vocab * sizeof(float));
        return;
    }
    if (!has_draws(d)) {
        return;
    }
    for (int r = 0; r < d->n; r++) {
        const draft_request *q = &d->requests[r];
        bool draws = q->temperature > 0.0f;
        b->host.asks[r] = (shortlist_ask){.seed = q->seed,
            .position = drafted_pos(m, q, i),
            .inverse = draws ? 1.0f / q->temperature : 0.0f,
            .has_noise = draws};
    }
    m->ops->copy(&m->k, b->asks, b->host.asks, n * sizeof(*b->asks));
    m->ops->shortlist(
        &m->k, &(shortlist_args){b->draft_logits, b->asks, b->lists, d->n, m->config.n_vocab});
    m->ops->copy(&m->k, b->host.lists, b->lists, n * sizeof(*b->lists));
}

/* The same as draw of the whole row, but for its window; -1: the list does not hold it. */
static int32_t draw_listed(const shortlist *l) {
    double best = -INFINITY;
    int32_t pick = -1;
    if (l->n_noisy > SHORTLIST_NOISY) {
        return -1;
    }
    for (int32_t i = 0; i < l->n_noisy; i++) {
        uint64_t pos = (uint64_t)l->ask.position, token = (uint64_t)(uint32_t)l->noisy[i].token;
        double u = rand_keyed_uniform(l->ask.seed, pos, token);
        double score = (double)(l->noisy[i].logit * l->ask.inverse) - log(-log(u));
        if (score > best) {
            best = score;
            pick = l->noisy[i].token;
        }
    }
    return pick;
}

/* Request r's token, drawn from what bring_rows brought. */
static int32_t draw_row(model *m, const draft_request *q, int r, int i) {
    host_buffers *h = &m->b.host;
    size_t vocab = (size_t)m->config.n_vocab, at = (size_t)r * vocab;
    int32_t pick = m->ops->is_host ? -1 : draw_listed(&h->lists[r]);
    if (pick >= 0) {
        return pick;
    }
    if (!m->ops->is_host) {
        m->ops->fetch(&m->k, h->draft_logits + at, m->b.draft_logits + at, vocab * sizeof(float));
    }
    return draw(q, drafted_pos(m, q, i), h->draft_logits + at, m->config.n_vocab);
}

static void choose(model *m, const draft_choice *d, int i) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    host_buffers *h = &b->host;
    m->ops->argmax(
        &m->k, &(argmax_args){b->draft_logits, b->draft_value, b->draft_pick, d->n, c->n_vocab});
    size_t n = (size_t)d->n, vocab = (size_t)c->n_vocab;
    bring_rows(m, d, i);
    m->ops->fetch(&m->k, h->draft_prev, b->draft_pick, n * sizeof(int32_t));
    for (int r = 0; r < d->n && m->k.rc == OK; r++) {
        const draft_request *q = &d->requests[r];
        if (d->pick != NULL) {
            const float *logits = h->draft_logits + (size_t)r * vocab;
            h->draft_prev[r] = d->pick(d->user, r, drafted_pos(m, q, i), logits, c->n_vocab);
        } else if (q->temperature > 0.0f) {
            h->draft_prev[r] = draw_row(m, q, r, i);
        }
        CHECK(h->draft_prev[r] >= 0 && h->draft_prev[r] < c->n_vocab);
        h->draft_tokens[r * c->block + i] = h->draft_prev[r];
    }
    send_prev(m, d->n);
    if (m->k.rc == OK) {
        engram_hint_draft(m, d->requests, d->n, i + 1);
    }
}

/* Drafted position i of every request: bias from the token before, choice, confidence. */
static void markov_step(model *m, const draft_choice *d, int i) {
    const model_config *c = &m->config;
    buffers *b = &m->b;
    size_t width = (size_t)(c->n_embd + c->markov_rank), vocab = (size_t)c->n_vocab;
    m->ops->lookup(&m->k, &(lookup_args){&m->draft.markov_embed, b->draft_prev,
                              b->draft_xe + c->n_embd, width, d->n});
    linear_job jobs[2] = {{.weight = &m->draft.markov_head,
                              .x = b->draft_xe + c->n_embd,
                              .x_stride = width,
                              .y = b->draft_logits,
                              .y_stride = vocab,
                              .n_rows = d->n,
                              .keeps_f32 = true},
        {.weight = &m->draft.confidence,
            .x = b->draft_xe,
            .x_stride = width,
            .y = b->draft_confidence + i,
            .y_stride = (size_t)c->block,
            .n_rows = d->n,
            .keeps_f32 = true}};
    for (int r = 0; r < d->n; r++) {
        m->ops->copy(&m->k, b->draft_xe + (size_t)r * width,
            b->x + (size_t)(r * c->block + i) * (size_t)c->n_embd,
            (size_t)c->n_embd * sizeof(float));
    }
    m->ops->linear(&m->k, &(linear_args){jobs, 2});
    for (int r = 0; r < d->n; r++) {
        m->ops->add(&m->k, &(add_args){b->draft_logits + (size_t)r * vocab,
                               b->logits + (size_t)(r * c->block + i) * vocab, vocab});
    }
    if (m->tap != NULL) {
        tap_draft_logits(m, i, d->n);
    }
    choose(m, d, i);
}

int model_draft(model *m, const draft_request *requests, int n, draft_pick pick, void *user,
    draft_result *out, err *e) {
    uint64_t start = clock_mono_ns();
    int rc = check_requests(m, requests, n, e);
    if (rc != OK) {
        return rc;
    }
    m->k.rc = OK;
    engram_hint_draft(m, requests, n, 0);
    m->feed_rows.rows.n = 0;
    for (int i = 0; i < n; i++) {
        draft_feed_pending(m, requests[i].slot);
    }
    draft_feed_run(m);
    fill_draft_rows(m, requests, n);
    row_lists_send(m, &m->draft_rows);
    run_stages(m);
    draft_choice d = {pick, user, requests, n};
    for (int r = 0; r < n; r++) {
        m->b.host.draft_prev[r] = requests[r].token;
    }
    send_prev(m, n);
    for (int i = 0; i < m->config.block && m->k.rc == OK; i++) {
        markov_step(m, &d, i);
    }
    fetch_confidence(m, n);
    if (m->k.rc != OK) {
        if (e != NULL) {
            *e = m->k.error;
        }
        return err_add(e, m->k.rc, "drafting");
    }
    *out = (draft_result){n, m->config.block, m->b.host.draft_tokens, m->b.host.draft_confidence,
        clock_mono_ns() - start};
    return OK;
}
