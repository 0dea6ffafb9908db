#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/thread.h"
#include "engine/run/entries.h"
#include "engine/run/planner.h"
#include "engine/run/run_internal.h"

/* A prompt slice beside running streams is never smaller than this, however slow the machine. */
#define PROMPT_ROWS_MIN 8
/* Tokens before a slice that say which rows its first positions need. */
#define PREFETCH_BEFORE 8
#define COPY_FORGIVE 0.01
/* Of the allowed gap, what a step is planned to take: steps differ, and drafts come on top. */
#define GAP_SHARE 0.7
/* A step that only reads prompts may take so many gaps; it never reads fewer rows than these. */
#define LONE_GAPS 4.0
#define LONE_ROWS_MIN 64

typedef struct step_work {
    plan_view views[RUN_MAX_SLOTS];
    int32_t slots[RUN_MAX_SLOTS]; /* slot of each view, then of each span */
    plan_span spans[RUN_MAX_SLOTS];
    draft_request drafts[RUN_MAX_SLOTS];
    int32_t n_views, n_spans;
    bool has_paused;
    slice_cost slice; /* the step before, from slice_start on; n_prompt 0: it read no prompt */
    uint64_t slice_start;
} step_work;

/* The events of a scored slice must fit into the ring as those of a verify window do. */
static int32_t score_rows(int32_t n_most) {
    return n_most > 0 && n_most < RUN_DRAFT_MAX ? n_most : RUN_DRAFT_MAX;
}

static void look(run *r, step_work *w) {
    w->n_views = 0;
    w->has_paused = false;
    for (int32_t i = 0; i < r->info.n_slots; i++) {
        stream *s = &r->streams[i];
        if (s->t == NULL || s->load.is_on) continue;
        bool is_prompt = s->n_known == s->t->n_prompt;
        plan_view *v = &w->views[w->n_views];
        *v = (plan_view){.n_todo = s->n_known - s->n_done,
            .n_most = is_prompt ? reuse_rows_to_mark(r, s) : 0,
            .n_draft = s->n_draft,
            .order = s->t->order,
            .is_prompt = is_prompt,
            .is_background = s->t->priority == RUN_PRIORITY_BACKGROUND,
            .needs_logits = is_prompt && s->t->scores_prompt,
            .is_paused = ticket_is_full(s->t)};
        if (v->needs_logits) v->n_most = score_rows(v->n_most);
        w->has_paused |= v->is_paused;
        w->slots[w->n_views++] = i;
    }
}

static void fill_span(run *r, step_work *w, int32_t slot, int32_t n_rows) {
    stream *s = &r->streams[slot];
    bool is_prompt = s->n_known == s->t->n_prompt;
    plan_span *span = &w->spans[w->n_spans];
    *span = (plan_span){
        .slot = slot, .n_rows = n_rows, .pos = s->n_done, .tokens = s->t->tokens + s->n_done};
    if (is_prompt) {
        span->kind = PLAN_PROMPT;
        span->logits = s->t->scores_prompt                ? PLAN_LOGITS_ALL
                       : s->n_done + n_rows == s->n_known ? PLAN_LOGITS_LAST
                                                          : PLAN_LOGITS_NONE;
    } else if (n_rows > 1) {
        span->kind = PLAN_VERIFY;
        span->logits = PLAN_LOGITS_ALL;
        s->span_tokens[0] = s->t->tokens[s->n_done];
        memcpy(&s->span_tokens[1], s->draft, (size_t)(n_rows - 1) * sizeof *s->draft);
        span->tokens = s->span_tokens;
    } else {
        span->kind = PLAN_DECODE;
        span->logits = PLAN_LOGITS_LAST;
    }
    w->n_spans++;
}

/* Prompt rows beside the running streams that fit into the promised gap, and rows of a step where
 * nobody decodes: new requests and cancels wait for its end. */
static void limit_rows(const run *r, const step_work *w, plan_limits *limits) {
    double gap_ns = (double)r->options.gap_ms * 1e6;
    slice_limits l = {.max_rows = r->info.max_rows};
    for (int32_t i = 0; i < w->n_views; i++) {
        const plan_view *v = &w->views[i];
        const stream *s = &r->streams[w->slots[i]];
        if (!v->is_prompt) {
            l.n_other += v->is_paused ? 0 : 1 + v->n_draft;
        } else if (s->n_done > l.context) {
            l.context = s->n_done;
        }
    }
    bool is_lone = l.n_other == 0;
    l.limit_ns = gap_ns * (is_lone ? LONE_GAPS : GAP_SHARE);
    l.floor_rows = is_lone ? LONE_ROWS_MIN : PROMPT_ROWS_MIN;
    limits->prompt_rows = step_cost_slice(&r->cost, &l);
    if (is_lone) limits->max_rows = limits->prompt_rows;
}

static int32_t make_plan(run *r, step_work *w) {
    plan_limits limits = {.max_rows = r->info.max_rows, .max_logit_rows = r->info.max_logit_rows};
    limit_rows(r, w, &limits);
    int32_t n_rows = plan_rows(w->views, w->n_views, &limits);
    w->n_spans = 0;
    for (int32_t i = 0; i < w->n_views; i++) {
        stream *s = &r->streams[w->slots[i]];
        err why = ERR_INIT;
        if (w->views[i].n_rows == 0) continue;
        if (stream_grow(r, s, s->n_done + w->views[i].n_rows, &why) != OK) {
            n_rows -= w->views[i].n_rows;
            stream_end(r, s, RUN_END_ERROR, -1, &why);
            continue;
        }
        fill_span(r, w, w->slots[i], w->views[i].n_rows);
    }
    return n_rows;
}

static bool is_fatal(int rc) {
    return rc == ERR_PEER || rc == ERR_DEVICE || rc == ERR_NET || rc == ERR_TIMEOUT ||
           rc == ERR_MISMATCH;
}

/* A failed step: fatal codes end the engine's service, others only the streams of the plan. */
static void fail_step(run *r, step_work *w, int rc, const err *why) {
    LOG(LOG_ERROR, "run", "step failed", "code=%d message=\"%s\"", rc, why->msg);
    if (is_fatal(rc)) {
        run_fail(r, why);
        return;
    }
    for (int32_t i = 0; i < w->n_spans; i++) {
        stream *s = &r->streams[w->spans[i].slot];
        stream_end(r, s, RUN_END_ERROR, -1, why);
    }
}

/* Drafts that a stream may still use. */
static int32_t room_for_drafts(const run *r, const stream *s) {
    int32_t left = s->t->max_tokens - (s->n_known - s->t->n_prompt) - 1;
    int32_t most = r->info.max_rollback > 0 && r->info.max_rollback < RUN_DRAFT_MAX
                       ? r->info.max_rollback
                       : RUN_DRAFT_MAX;
    return left < most ? left : most;
}

/* True if the context itself says how it may go on. */
static bool draft_by_copy(run *r, stream *s, int32_t n_other) {
    int32_t most = r->info.max_rollback > 0 ? room_for_drafts(r, s) : 0;
    s->is_copy = false;
    if (most < 2) return false;
    int32_t n = copy_draft_find(s->copies, s->t->tokens, s->n_known, most, s->draft);
    if (n < 2) return false;
    s->n_draft = draft_copy_choose(&r->cost, s->copy_rate, n, n_other);
    s->is_copy = s->n_draft > 0;
    /* A rate that fell is tried again after a while. */
    if (!s->is_copy) s->copy_rate += (1.0 - s->copy_rate) * COPY_FORGIVE;
    return s->is_copy;
}

static int32_t count_decoding(const run *r) {
    int32_t n = 0;
    for (int32_t i = 0; i < r->info.n_slots; i++) {
        const stream *s = &r->streams[i];
        n += s->t != NULL && s->n_known > s->t->n_prompt;
    }
    return n;
}

static void take_drafts(run *r, step_work *w, int n, const draft_result *result, int32_t n_other) {
    for (int i = 0; i < n; i++) {
        stream *s = &r->streams[w->slots[i]];
        int32_t most = room_for_drafts(r, s);
        most = most < result->block ? most : result->block;
        const float *confidence = result->confidence + (size_t)i * (size_t)result->block;
        s->n_draft = draft_policy_choose(&s->policy, &r->cost, confidence, most, n_other);
        memcpy(s->confidence, confidence, (size_t)most * sizeof *s->confidence);
        memcpy(s->draft, result->tokens + (size_t)i * (size_t)result->block,
            (size_t)s->n_draft * sizeof *s->draft);
    }
}

/* Drafted as the stream samples: what does not shape the row is the same for both. */
static draft_request draft_of(const stream *s, int32_t slot) {
    const sample_params *p = &s->t->sampling;
    return (draft_request){.slot = slot,
        .token = s->t->tokens[s->n_known - 1],
        .temperature = sample_params_greedy(p) ? 0.0f : p->temperature,
        .seed = p->seed};
}

/* Drafts for every stream that waits for its next token and has room for more than one. */
static void draft_next(run *r, step_work *w) {
    err why = ERR_INIT;
    draft_result result;
    int n = 0;
    int32_t n_other = count_decoding(r) - 1;
    for (int32_t i = 0; i < r->info.n_slots; i++) {
        stream *s = &r->streams[i];
        if (s->t == NULL || s->n_known == s->t->n_prompt) continue;
        if (s->n_draft > 0 || room_for_drafts(r, s) < 1 || draft_by_copy(r, s, n_other)) continue;
        if (r->info.block == 0 || !draft_policy_wants(&s->policy)) continue;
        w->slots[n] = i;
        w->drafts[n++] = draft_of(s, i);
    }
    if (n == 0) return;
    uint64_t start = run_now(r);
    int rc = r->source->draft(r->source->self, w->drafts, n, &result, &why);
    if (rc != OK) {
        LOG(LOG_ERROR, "run", "draft failed", "code=%d message=\"%s\"", rc, why.msg);
        if (is_fatal(rc)) {
            run_fail(r, &why);
        }
        return;
    }
    step_cost_add_draft(&r->cost, run_now(r) - start);
    take_drafts(r, w, n, &result, n_other);
}

/* The step before has taken until now: its tokens came out in between, so all of it is gap. */
static void note_slice(run *r, step_work *w) {
    if (w->slice.n_prompt > 0) {
        w->slice.ns = run_now(r) - w->slice_start;
        step_cost_add_slice(&r->cost, &w->slice);
    }
    w->slice = (slice_cost){0};
}

/* What the spans of this step are, for note_slice. */
static slice_cost slice_of(const step_work *w) {
    slice_cost slice = {0};
    for (int32_t i = 0; i < w->n_spans; i++) {
        const plan_span *span = &w->spans[i];
        int64_t end = span->pos + span->n_rows;
        if (span->kind != PLAN_PROMPT) {
            slice.n_other += span->n_rows;
            continue;
        }
        slice.n_prompt += span->n_rows;
        if (end > slice.context) slice.context = end;
    }
    return slice;
}

/* Each prompt's rows behind this step's slice: where they lie on disk they are read while the step
 * computes. */
static void prefetch_next(run *r, const step_work *w, int32_t n_rows) {
    for (int32_t i = 0; i < w->n_spans && r->source->prefetch != NULL; i++) {
        const plan_span *span = &w->spans[i];
        int32_t end = (int32_t)span->pos + span->n_rows;
        int32_t n = r->streams[span->slot].n_known - end;
        if (span->kind != PLAN_PROMPT || n <= 0) continue;
        int32_t n_before = end < PREFETCH_BEFORE ? end : PREFETCH_BEFORE;
        r->source->prefetch(r->source->self, span->tokens + span->n_rows - n_before, n_before,
            n < n_rows ? n : n_rows);
    }
}

/* How the streams of the spans will sample each logit row. */
static void fill_asks(run *r, const step_work *w) {
    shortlist_ask *at = r->asks;
    for (int32_t i = 0; i < w->n_spans; i++) {
        const plan_span *span = &w->spans[i];
        const sample_params *p = &r->streams[span->slot].t->sampling;
        int64_t end = span->pos + span->n_rows, n = span->n_rows;
        if (span->logits == PLAN_LOGITS_NONE) continue;
        for (n = span->logits == PLAN_LOGITS_LAST ? 1 : n; n > 0; n--) {
            *at++ = sample_params_ask(p, end - n + 1);
        }
    }
}

static void do_step(run *r, step_work *w, int32_t n_rows) {
    err why = ERR_INIT;
    step_result result = {0};
    batch_plan plan = {.id = ++r->plan_id, .n_spans = w->n_spans, .spans = w->spans};
    uint64_t before = atomic_load_explicit(&r->n_generated, memory_order_relaxed);
    if (r->asks != NULL) {
        fill_asks(r, w);
        plan.form = PLAN_FORM_LISTED;
        plan.asks = r->asks;
    }
    note_slice(r, w);
    slice_cost slice = slice_of(w);
    uint64_t start = run_now(r);
    atomic_store(&r->step_started_ns, clock_mono_ns());
    prefetch_next(r, w, n_rows);
    int rc = r->source->step(r->source->self, &plan, &result, &why);
    uint64_t step_ns = run_now(r) - start;
    if (rc != OK) {
        fail_step(r, w, rc, &why);
    } else {
        if (slice.n_prompt == 0) step_cost_add(&r->cost, n_rows, step_ns);
        for (int32_t i = 0; i < w->n_spans; i++) {
            run_absorb(r, &r->streams[w->spans[i].slot], &w->spans[i], &result, i);
        }
        uint64_t n_new = atomic_load_explicit(&r->n_generated, memory_order_relaxed) - before;
        run_count_second(r, (uint32_t)n_new, (uint32_t)slice.n_prompt);
        if (!r->options.no_drafts) draft_next(r, w);
        run_count_step(r, step_ns, n_rows);
        w->slice = slice;
        w->slice_start = start;
    }
    atomic_store(&r->step_ended_ns, clock_mono_ns());
    atomic_store(&r->step_started_ns, 0);
}

/* Something arrived since the last look: new requests, a cancel, an order to stop. */
static bool has_news(run *r) {
    if (atomic_load(&r->intake) != NULL || atomic_load(&r->is_stopping) ||
        atomic_load(&r->is_aborting) || store_has_work(r) || run_has_entries_asked(r))
        return true;
    if (atomic_load(&r->has_failed) && !r->has_swept_failure) return true;
    for (int32_t i = 0; i < r->n_wait_list; i++) {
        if (atomic_load(&r->waiting[i]->is_cancelled)) return true;
    }
    for (int32_t i = 0; i < r->info.n_slots; i++) {
        ticket *t = r->streams[i].t;
        if (t != NULL && (atomic_load(&t->is_cancelled) || !ticket_is_full(t))) return true;
    }
    return false;
}

static void doze(run *r) {
    struct pollfd p = {.fd = r->wake_fd, .events = POLLIN};
    uint64_t drop;
    run_reap(r); /* nobody waits: what ended last need not be kept until the next request */
    atomic_store(&r->is_asleep, 1);
    if (!has_news(r)) {
        poll(&p, 1, -1);
    }
    atomic_store(&r->is_asleep, 0);
    ssize_t n = read(r->wake_fd, &drop, sizeof drop);
    (void)n;
}

void *run_step_thread(void *arg) {
    run *r = arg;
    step_work w = {0};
    thread_set_name("step");
    while (!atomic_load(&r->is_stopping)) {
        run_cancel_sweep(r, atomic_exchange(&r->is_aborting, 0) != 0);
        run_admit(r);
        run_answer_entries(r);
        bool is_loading = store_load(r);
        look(r, &w);
        int32_t n_rows = w.n_views > 0 ? make_plan(r, &w) : 0;
        if (w.n_spans > 0 && n_rows > 0) {
            do_step(r, &w, n_rows);
        } else if (!is_loading) {
            note_slice(r, &w);
            doze(r);
        }
        store_pump(r);
    }
    run_cancel_sweep(r, true);
    store_finish(r);
    return NULL;
}
