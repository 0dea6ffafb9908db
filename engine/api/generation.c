#include "engine/api/generation.h"

#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/run/think_guide.h"
#include "engine/text/stop.h"

/* Tokens waiting for a delta to carry their log probabilities. */
#define LOGPROBS_FIRST 64

struct generation {
    gen_request q;
    ticket *ticket;
    reply_parser *parser;
    stop_matcher *stops; /* NULL: none */
    buf released;        /* content that is certainly before any stop string */
    gen_logprob *logprobs;
    size_t n_logprobs, logprobs_cap;
    bool has_started, is_done, has_stopped, is_cancelled;
    const char *finish_reason;
    int32_t stop_id;
    const err *failure;
    int32_t n_completion, n_reasoning;
};

static void emit(generation *g, gen_event event) {
    event.i_choice = g->q.i_choice;
    g->q.sink(g->q.sink_ctx, &event);
}

/* A text delta takes along the log probabilities collected so far. */
static void emit_text(generation *g, gen_event_kind kind, const char *text, size_t len) {
    gen_event event = {.kind = kind,
        .text = text,
        .len = len,
        .logprobs = g->logprobs,
        .n_logprobs = g->n_logprobs};
    if (len == 0) return;
    emit(g, event);
    g->n_logprobs = 0;
}

static void take_content(generation *g, const char *text, size_t len) {
    bool is_hit = false;
    if (g->stops == NULL) {
        emit_text(g, GEN_CONTENT, text, len);
        return;
    }
    buf_reset(&g->released);
    if (stop_matcher_feed(g->stops, text, len, &g->released, &is_hit) != OK) return;
    emit_text(g, GEN_CONTENT, g->released.data, g->released.len);
    g->has_stopped |= is_hit;
}

static void flush_content(generation *g) {
    if (g->stops == NULL) return;
    buf_reset(&g->released);
    stop_matcher_end(g->stops, &g->released);
    emit_text(g, GEN_CONTENT, g->released.data, g->released.len);
}

static int on_reply(void *ctx, const reply_event *ev) {
    generation *g = ctx;
    gen_event event = {.text = ev->text, .len = ev->len, .i_call = ev->i_call, .call_id = ev->id};
    if (g->has_stopped) return OK;
    switch (ev->kind) {
    case REPLY_EVENT_REASONING:
        emit_text(g, GEN_REASONING, ev->text, ev->len);
        return OK;
    case REPLY_EVENT_CONTENT:
        take_content(g, ev->text, ev->len);
        return OK;
    case REPLY_EVENT_CALL:
        flush_content(g);
        event.kind = GEN_CALL;
        break;
    case REPLY_EVENT_ARGUMENTS:
        event.kind = GEN_ARGUMENTS;
        break;
    case REPLY_EVENT_CALL_END:
        event.kind = GEN_CALL_END;
        break;
    case REPLY_EVENT_CALL_DROP:
        event.kind = GEN_CALL_DROP;
        metric_add(g->q.a->metrics.dropped_calls, 1.0);
        break;
    }
    emit(g, event);
    return OK;
}

static void new_call_id(void *ctx, char id[64]) {
    (void)ctx;
    api_new_id("call_", id);
}

static void start_parser(generation *g) {
    reply_options o = {.starts_in_reasoning = g->q.starts_in_reasoning,
        .drops_calls = !g->q.has_tools,
        .tools = g->q.params->tools,
        .new_id = new_call_id,
        .sink = on_reply,
        .sink_ctx = g};
    g->parser = reply_parser_new(&o);
    if (g->q.params->n_stops > 0) {
        g->stops = stop_matcher_new(g->q.params->stops, g->q.params->n_stops);
    }
}

static int submit(generation *g, api_error *e) {
    const gen_params *p = g->q.params;
    const control_ids *ids = &g->q.a->controls;
    int32_t stops[RUN_STOP_MAX];
    int32_t banned[2];
    err why = ERR_INIT;
    run_guide guide;
    run_request r = {.id = g->q.id,
        .prompt = g->q.prompt->ids,
        .n_prompt = (int32_t)g->q.prompt->len,
        .max_tokens = g->q.max_tokens,
        .sampling = p->sampling,
        .stop_ids = stops,
        .banned = banned,
        .priority = p->priority};
    memcpy(stops, p->stop_ids, sizeof stops);
    r.n_stop_ids = p->n_stop_ids;
    if (!p->ignores_eos) {
        if (ids->eos >= 0) stops[r.n_stop_ids++] = ids->eos;
        if (ids->eot >= 0) stops[r.n_stop_ids++] = ids->eot;
    }
    if (!g->q.has_tools && ids->dsml >= 0) banned[r.n_banned++] = ids->dsml;
    if (p->thinking_budget >= 0 && g->q.starts_in_reasoning && ids->think_close >= 0) {
        guide = think_guide_new(ids->think_close, p->thinking_budget);
        r.guide = &guide;
    }
    r.sampling.seed += (uint64_t)g->q.i_choice;
    int rc = run_submit(g->q.a->options.run, &r, &g->ticket, &why);
    if (rc == OK) return OK;
    if (r.guide != NULL) guide.release(guide.ctx);
    return api_from_err(e, &why);
}

int generation_start(const gen_request *q, generation **out, api_error *e) {
    generation *g = mem_alloc(sizeof *g);
    g->q = *q;
    g->stop_id = -1;
    g->released.max = BUF_DEFAULT_MAX;
    int rc = submit(g, e);
    if (rc != OK) {
        mem_free(g);
        return rc;
    }
    start_parser(g);
    *out = g;
    return OK;
}

void generation_free(generation *g) {
    if (g == NULL) return;
    ticket_free(g->ticket);
    reply_parser_free(g->parser);
    stop_matcher_free(g->stops);
    buf_release(&g->released);
    mem_free(g->logprobs);
    mem_free(g);
}

static void keep_logprob(generation *g, const sample_pick *pick, bool is_reasoning) {
    if (g->n_logprobs == g->logprobs_cap) {
        g->logprobs_cap = g->logprobs_cap > 0 ? g->logprobs_cap * 2 : LOGPROBS_FIRST;
        g->logprobs = mem_realloc(g->logprobs, g->logprobs_cap * sizeof *g->logprobs);
    }
    g->logprobs[g->n_logprobs++] = (gen_logprob){.pick = *pick, .is_reasoning = is_reasoning};
}

static void start_once(generation *g) {
    if (g->has_started) return;
    g->has_started = true;
    emit(g, (gen_event){.kind = GEN_STARTED});
}

static void take_token(generation *g, const sample_pick *pick) {
    const api *a = g->q.a;
    size_t len = 0;
    bool is_literal = false;
    const char *bytes = api_token_bytes(a, pick->token, &len, &is_literal);
    reply_state before = reply_parser_state(g->parser);
    g->n_completion++;
    g->n_reasoning += before == REPLY_REASONING;
    bool is_marker =
        pick->token == a->controls.think_close || pick->token == a->controls.think_open;
    if (g->q.params->has_logprobs && before != REPLY_CALLS && !is_marker) {
        keep_logprob(g, pick, before == REPLY_REASONING);
    }
    if (pick->token == a->controls.eos || pick->token == a->controls.eot) return;
    if (is_literal) {
        reply_feed(g->parser, bytes, len);
    } else {
        reply_feed_token(g->parser, bytes, len, pick->token == a->controls.dsml);
    }
}

static bool is_client_stop(const generation *g, int32_t id) {
    for (int32_t i = 0; i < g->q.params->n_stop_ids; i++) {
        if (g->q.params->stop_ids[i] == id) return true;
    }
    return false;
}

/* The text is over: held-back parts come out, the reason is settled. */
static void finish(generation *g, reply_end how) {
    static const char *const names[] = {
        [REPLY_STOP] = "stop", [REPLY_LENGTH] = "length", [REPLY_TOOL_CALLS] = "tool_calls"};
    reply_finish reason = REPLY_STOP;
    g->is_done = true;
    if (g->has_stopped) {
        g->finish_reason = "stop";
        return;
    }
    reply_end_of_text(g->parser, how, &reason);
    flush_content(g);
    if (g->n_logprobs > 0) {
        emit(g, (gen_event){
                    .kind = GEN_LOGPROBS, .logprobs = g->logprobs, .n_logprobs = g->n_logprobs});
        g->n_logprobs = 0;
    }
    g->finish_reason = g->has_stopped ? "stop" : names[reason];
}

static void take_end(generation *g, const run_event *event) {
    switch (event->end) {
    case RUN_END_ERROR:
        g->is_done = true;
        g->failure = ticket_error(g->ticket);
        return;
    case RUN_END_STOP:
        if (is_client_stop(g, event->pick.token)) g->stop_id = event->pick.token;
        finish(g, REPLY_END_EOS);
        return;
    case RUN_END_CANCELLED:
        g->is_cancelled = true;
        finish(g, REPLY_END_LENGTH);
        g->finish_reason = "stop";
        return;
    default:
        finish(g, REPLY_END_LENGTH);
    }
}

bool generation_pump(generation *g) {
    run_event event;
    bool has_any = false;
    while (!g->is_done && ticket_next(g->ticket, &event, 0) == OK) {
        has_any = true;
        if (event.kind == RUN_EVENT_TOKEN || event.end != RUN_END_ERROR) {
            start_once(g);
        }
        if (event.kind == RUN_EVENT_END) {
            take_end(g, &event);
            break;
        }
        take_token(g, &event.pick);
        if (g->has_stopped) {
            ticket_cancel(g->ticket);
            finish(g, REPLY_END_EOS);
        }
    }
    return has_any;
}

int generation_fd(const generation *g) {
    return ticket_fd(g->ticket);
}

bool generation_arm(generation *g) {
    return g->is_done || ticket_arm(g->ticket);
}

bool generation_is_done(const generation *g) {
    return g->is_done;
}

void generation_progress(const generation *g, run_progress *out) {
    ticket_progress(g->ticket, out);
}

void generation_result(const generation *g, gen_result *out) {
    *out = (gen_result){.finish_reason = g->finish_reason,
        .stop_id = g->stop_id,
        .is_cancelled = g->is_cancelled,
        .failure = g->failure,
        .n_completion = g->n_completion,
        .n_reasoning = g->n_reasoning,
        .i_stop = g->stops != NULL ? stop_matcher_which(g->stops) : -1};
    ticket_progress(g->ticket, &out->progress);
}

static void log_end(const generation *g, const run_progress *p) {
    double seconds = p->last_ns > p->first_ns ? (double)(p->last_ns - p->first_ns) / 1e9 : 0.0;
    double first_ms = p->first_ns != 0 ? (double)(p->first_ns - p->submit_ns) / 1e6 : -1.0;
    LOG(LOG_INFO, "api", "reply ended",
        "id=%s end=%s prompt=%d cached=%d tokens=%d first_ms=%.1f tokens_per_s=%.1f drafted=%lld"
        " kept=%lld",
        g->q.id,
        g->failure != NULL ? "error"
        : g->is_cancelled  ? "cancelled"
                           : g->finish_reason,
        p->n_prompt, p->n_cached, p->n_generated, first_ms,
        seconds > 0.0 ? (double)(p->n_generated - 1) / seconds : 0.0, (long long)p->n_drafted,
        (long long)p->n_accepted);
}

void generation_measure(const generation *g) {
    api_metrics *m = &g->q.a->metrics;
    run_progress p;
    ticket_progress(g->ticket, &p);
    log_end(g, &p);
    metric_add(m->reasoning_tokens, (double)g->n_reasoning);
    if (p.start_ns == 0) return;
    metric_observe(m->queue, (double)(p.start_ns - p.submit_ns) / 1e9);
    if (p.first_ns == 0) return;
    metric_observe(m->prefill, (double)(p.first_ns - p.start_ns) / 1e9);
    metric_observe(m->first_token, (double)(p.first_ns - p.submit_ns) / 1e9);
    if (p.n_generated < 2) return;
    double between = (double)(p.last_ns - p.first_ns) / (double)(p.n_generated - 1);
    metric_observe(m->per_token, between / 1e9);
}
