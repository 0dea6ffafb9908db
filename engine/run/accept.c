#include <string.h>

#include "engine/run/run_internal.h"

#define COPY_AVERAGE 0.1

typedef struct drawn {
    sample_pick pick;
    int32_t end; /* the token that ends the reply here beside the stop ids, or -1 */
} drawn;

static bool is_stop(const ticket *t, int32_t token) {
    for (int32_t i = 0; i < t->n_stop_ids; i++) {
        if (t->stop_ids[i] == token) return true;
    }
    return false;
}

/* One logit row of a step's result. */
typedef struct result_row {
    const run *r;
    int32_t i_row;
    err why;
} result_row;

static int fetch_row(void *ctx, const float **logits) {
    result_row *at = ctx;
    const run_source *source = at->r->source;
    if (source->logit_row == NULL) return ERR_INTERNAL;
    return source->logit_row(source->self, at->i_row, logits, &at->why);
}

/* at is borrowed as long as the row is used. */
static sample_row row_of(result_row *at, const step_result *result, int64_t position) {
    size_t i = (size_t)at->i_row, n_vocab = (size_t)at->r->info.n_vocab;
    return (sample_row){.logits = result->logits != NULL ? result->logits + i * n_vocab : NULL,
        .list = result->lists != NULL ? &result->lists[i] : NULL,
        .fetch = fetch_row,
        .ctx = at,
        .position = position};
}

/* Draws the token of a row, under the bans, the guide and the settings of the stream. */
static int pick_token(run *r, ticket *t, sample_row *row, drawn *out) {
    run_guide_view view = {.forced = -1, .end = -1};
    if (t->has_guide) {
        int rc = t->guide.before(t->guide.ctx, &view);
        if (rc != OK) return rc;
    }
    out->end = view.end;
    if (view.forced >= 0) {
        return sampler_force(r->sampler, &t->sampling, row, view.forced, &out->pick);
    }
    for (int32_t i = 0; i < view.n_banned; i++) {
        t->banned[t->n_banned + i] = view.banned[i];
    }
    row->banned = t->banned;
    row->n_banned = t->n_banned + view.n_banned;
    row->mask = view.mask;
    row->counts = t->counts.generated != NULL ? &t->counts : NULL;
    return sampler_pick(r->sampler, &t->sampling, row, &out->pick);
}

/* Appends a drawn token. True if the stream goes on; else it has ended. */
static bool keep_token(run *r, stream *s, const drawn *d) {
    ticket *t = s->t;
    const sample_pick *pick = &d->pick;
    if (pick->token == d->end || is_stop(t, pick->token)) {
        stream_end(r, s, RUN_END_STOP, pick->token, NULL);
        return false;
    }
    uint64_t now = run_now(r);
    if (s->n_known == t->n_prompt) {
        atomic_store_explicit(&t->first_ns, now, memory_order_relaxed);
        atomic_store_explicit(&t->phase, RUN_PHASE_DECODE, memory_order_relaxed);
    }
    t->tokens[s->n_known++] = pick->token;
    if (t->counts.generated != NULL && t->counts.generated[pick->token] < UINT16_MAX) {
        t->counts.generated[pick->token]++;
    }
    if (t->has_guide) {
        t->guide.after(t->guide.ctx, pick->token);
    }
    int32_t n = s->n_known - t->n_prompt;
    atomic_store_explicit(&t->n_generated, n, memory_order_relaxed);
    atomic_store_explicit(&t->last_ns, now, memory_order_relaxed);
    atomic_fetch_add_explicit(&r->n_generated, 1, memory_order_relaxed);
    run_event event = {.kind = RUN_EVENT_TOKEN, .pick = *pick};
    ticket_push(t, &event);
    if (n < t->max_tokens) return true;
    stream_end(r, s, RUN_END_LENGTH, -1, NULL);
    return false;
}

static void fail_stream(run *r, stream *s, int code, const char *what, int64_t position) {
    err why = ERR_INIT;
    err_set(&why, code, "%s at position %lld; this reply ended, others go on", what,
        (long long)position);
    stream_end(r, s, RUN_END_ERROR, -1, &why);
}

/* The guard found a value that is not finite; where the store said why, that is the reason. */
static void fail_row(run *r, stream *s, const step_result *result, int64_t position) {
    const char *what =
        result->fault != NULL ? result->fault->msg : "the model gave a value that is not finite";
    fail_stream(r, s, ERR_INTERNAL, what, position);
}

/* One row: guard, draw, keep. True if the stream goes on with *token. */
static bool take_row(
    run *r, stream *s, const step_result *result, int32_t i_row, int64_t position, int32_t *token) {
    drawn d;
    if (!result->is_finite[i_row]) {
        fail_row(r, s, result, position);
        return false;
    }
    result_row at = {.r = r, .i_row = i_row, .why = ERR_INIT};
    sample_row row = row_of(&at, result, position);
    int rc = pick_token(r, s->t, &row, &d);
    if (rc != OK && at.why.code != OK) {
        stream_end(r, s, RUN_END_ERROR, -1, &at.why);
        return false;
    }
    if (rc != OK) {
        fail_stream(r, s, rc, "no token is allowed by the request's own limits", position);
        return false;
    }
    *token = d.pick.token;
    return keep_token(r, s, &d);
}

static void count_drafted(run *r, ticket *t, int32_t n_drafted) {
    atomic_fetch_add_explicit(&t->n_drafted, n_drafted, memory_order_relaxed);
    atomic_fetch_add_explicit(&r->n_drafted, (uint64_t)n_drafted, memory_order_relaxed);
    for (int32_t i = 0; i < n_drafted; i++) {
        atomic_fetch_add_explicit(&r->drafted_at[i], 1, memory_order_relaxed);
    }
}

static void count_kept(run *r, ticket *t, int32_t i_draft) {
    atomic_fetch_add_explicit(&t->n_accepted, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&r->n_accepted, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&r->accepted_at[i_draft], 1, memory_order_relaxed);
}

/* Chances that were had: those kept and the one that was not. */
static void note_copy(stream *s, int32_t n_kept, int32_t n_draft) {
    for (int32_t i = 0; i < n_draft && i <= n_kept; i++) {
        s->copy_rate += COPY_AVERAGE * ((i < n_kept ? 1.0 : 0.0) - s->copy_rate);
    }
}

/* A draft is kept while it equals what serial decoding draws at its position; the row behind the
 * last kept one gives one more token. The stream may end on the way, so nothing of its ticket is
 * touched after a row that ended it. */
static void absorb_verify(
    run *r, stream *s, const plan_span *span, const step_result *result, int32_t first) {
    int32_t n_draft = span->n_rows - 1;
    s->is_open = true;
    count_drafted(r, s->t, n_draft);
    int32_t n_kept = 0;
    for (int32_t i = 0;; i++) {
        int32_t token = -1;
        s->n_done = (int32_t)span->pos + i + 1;
        if (!take_row(r, s, result, first + i, span->pos + i + 1, &token)) return;
        if (i >= n_draft || token != span->tokens[i + 1]) break;
        count_kept(r, s->t, i);
        n_kept++;
    }
    if (s->is_copy) {
        note_copy(s, n_kept, n_draft);
    } else {
        draft_policy_learn(&s->policy, s->confidence, n_kept, n_draft);
    }
    err why = ERR_INIT;
    int rc = r->source->commit(r->source->self, span->slot, s->n_done, &why);
    if (rc != OK) {
        stream_end(r, s, RUN_END_ERROR, -1, &why);
        return;
    }
    s->is_open = false;
    reuse_after(r, s, (int32_t)span->pos);
}

/* Rows of a prompt whose scores were asked for: each says how likely the token behind it was. False:
 * the stream has ended. */
static bool push_scores(
    run *r, stream *s, const plan_span *span, const step_result *result, int32_t first) {
    for (int32_t i = 0; i < span->n_rows; i++) {
        int32_t at = (int32_t)span->pos + i + 1;
        run_event event = {.kind = RUN_EVENT_SCORE};
        if (at >= s->t->n_prompt) return true; /* the last row draws the first token */
        if (!result->is_finite[first + i]) {
            fail_row(r, s, result, at);
            return false;
        }
        result_row here = {.r = r, .i_row = first + i, .why = ERR_INIT};
        sample_row row = row_of(&here, result, at);
        int32_t token = s->t->tokens[at];
        if (sampler_force(r->sampler, &s->t->sampling, &row, token, &event.pick) != OK) {
            stream_end(r, s, RUN_END_ERROR, -1, &here.why);
            return false;
        }
        ticket_push(s->t, &event);
    }
    return true;
}

void run_absorb(
    run *r, stream *s, const plan_span *span, const step_result *result, int32_t i_span) {
    int32_t first = result->first_logit[i_span];
    int32_t token;
    s->n_draft = 0;
    if (span->kind == PLAN_VERIFY) {
        absorb_verify(r, s, span, result, first);
        return;
    }
    s->n_done += span->n_rows;
    if (result->is_span_finite != NULL && !result->is_span_finite[i_span]) {
        fail_row(r, s, result, span->pos);
        return;
    }
    if (span->kind == PLAN_PROMPT) {
        atomic_store_explicit(&s->t->n_prefilled, s->n_done, memory_order_relaxed);
        atomic_fetch_add_explicit(
            &r->n_prompt_tokens, (uint64_t)span->n_rows, memory_order_relaxed);
        reuse_after(r, s, (int32_t)span->pos);
        if (span->logits == PLAN_LOGITS_NONE) return;
        if (span->logits == PLAN_LOGITS_ALL) {
            if (!push_scores(r, s, span, result, first) || s->n_done < s->t->n_prompt) return;
            first += span->n_rows - 1;
        }
    }
    if (span->kind == PLAN_DECODE) reuse_after(r, s, (int32_t)span->pos);
    take_row(r, s, result, first, span->pos + span->n_rows, &token);
}
