#include "engine/api/generation.h"

#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/run/novelty.h"
#include "engine/run/reply_guide.h"
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
    bool has_started, is_done, has_stopped, is_cancelled, is_looping;
    utf8_stream raw;          /* is_raw: bytes to whole characters */
    novelty *novelty;         /* NULL: no loop guard */
    buf call_name, arguments; /* of the running call, for the replay store */
    char call_id[64];
    const char *finish_reason;
    int32_t stop_id;
    const err *failure;
    int32_t n_completion, n_reasoning;
    token_list ids; /* only when they were asked for */
    bool has_said;  /* content or a call */
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
    g->has_said |= kind == GEN_CONTENT;
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

/* The exact text of a call is kept under its id, so that a history that brings it back gives the
 * same tokens. */
static void follow_call(generation *g, const reply_event *ev) {
    if (ev->kind == REPLY_EVENT_CALL) {
        buf_reset(&g->call_name);
        buf_reset(&g->arguments);
        buf_append(&g->call_name, ev->text, ev->len);
    } else if (ev->kind == REPLY_EVENT_ARGUMENTS) {
        buf_append(&g->arguments, ev->text, ev->len);
    } else if (ev->kind == REPLY_EVENT_CALL_END && ev->len > 0) {
        replay_call call = {.id = ev->id,
            .name = buf_cstr(&g->call_name),
            .arguments = &g->arguments,
            .text = ev->text,
            .len = ev->len};
        replay_keep(g->q.a->replay, &call);
    }
}

static int on_reply(void *ctx, const reply_event *ev) {
    generation *g = ctx;
    gen_event event = {.text = ev->text, .len = ev->len, .i_call = ev->i_call, .call_id = ev->id};
    if (g->has_stopped) return OK;
    follow_call(g, ev);
    switch (ev->kind) {
    case REPLY_EVENT_REASONING:
        emit_text(g, GEN_REASONING, ev->text, ev->len);
        return OK;
    case REPLY_EVENT_CONTENT:
        take_content(g, ev->text, ev->len);
        return OK;
    case REPLY_EVENT_CALL:
        flush_content(g);
        g->has_said = true;
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
    const generation *g = ctx;
    api_new_id(g->q.call_prefix != NULL ? g->q.call_prefix : "call_", id);
}

static void start_parser(generation *g) {
    reply_options o = {.starts_in_reasoning = g->q.starts_in_reasoning,
        .drops_calls = !g->q.has_tools,
        .tools = g->q.params->tools,
        .new_id = new_call_id,
        .id_ctx = g,
        .sink = on_reply,
        .sink_ctx = g};
    g->parser = reply_parser_new(&o);
    if (g->q.params->n_stops > 0) {
        g->stops = stop_matcher_new(g->q.params->stops, g->q.params->n_stops);
    }
}

/* What the reply may be; *has_guide is false when it is free. */
static int make_guide(generation *g, run_guide *out, bool *has_guide, err *e) {
    const gen_params *p = g->q.params;
    const api *a = g->q.a;
    reply_guide_options o = {.tokenizer = a->options.tokenizer,
        .run = a->options.run,
        .starts_in_reasoning = g->q.starts_in_reasoning,
        .value = p->value,
        .calls = g->q.has_tools ? p->calls : NULL,
        .is_forced = p->must_call,
        .ignores_eos = p->ignores_eos,
        .thinking_budget = p->thinking_budget,
        .max_tokens = g->q.max_tokens,
        .keeps_room = p->max_tokens > 0 && (p->keeps_room || p->value != NULL || p->must_call),
        .guards_loops = p->guards_loops};
    bool thinks =
        o.starts_in_reasoning && (o.thinking_budget >= 0 || o.keeps_room || o.guards_loops);
    *has_guide = !g->q.is_raw ? thinks || o.value != NULL || o.calls != NULL : o.value != NULL;
    return *has_guide ? reply_guide_new(&o, out, e) : OK;
}

static void fill_run_request(const generation *g, run_request *r, int32_t *stops, int32_t *banned) {
    const gen_params *p = g->q.params;
    const control_ids *ids = &g->q.a->controls;
    *r = (run_request){.id = g->q.id,
        .prompt = g->q.prompt->ids,
        .n_prompt = (int32_t)g->q.prompt->len,
        .max_tokens = g->q.max_tokens,
        .sampling = p->sampling,
        .stop_ids = stops,
        .banned = banned,
        .scores_prompt = p->scores_prompt,
        .priority = p->priority};
    memcpy(stops, p->stop_ids, sizeof p->stop_ids);
    r->n_stop_ids = p->n_stop_ids;
    if (!p->ignores_eos) {
        if (ids->eos >= 0) stops[r->n_stop_ids++] = ids->eos;
        if (ids->eot >= 0) stops[r->n_stop_ids++] = ids->eot;
    }
    if (!g->q.is_raw && !g->q.has_tools && ids->dsml >= 0) banned[r->n_banned++] = ids->dsml;
    r->sampling.seed += (uint64_t)g->q.i_seed;
    memcpy(r->salt, p->salt, sizeof r->salt);
}

static int submit(generation *g, api_error *e) {
    int32_t stops[RUN_STOP_MAX];
    int32_t banned[2];
    err why = ERR_INIT;
    run_guide guide;
    bool has_guide = false;
    run_request r;
    fill_run_request(g, &r, stops, banned);
    int rc = make_guide(g, &guide, &has_guide, &why);
    if (rc != OK) return api_from_err(e, &why);
    if (has_guide) r.guide = &guide;
    rc = run_submit(g->q.a->options.run, &r, &g->ticket, &why);
    if (rc == OK) return OK;
    if (has_guide) guide.release(guide.ctx);
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
    g->call_name = g->arguments = (buf)BUF_INIT;
    if (q->params->guards_loops) g->novelty = novelty_new();
    *out = g;
    return OK;
}

void generation_free(generation *g) {
    if (g == NULL) return;
    ticket_free(g->ticket);
    reply_parser_free(g->parser);
    stop_matcher_free(g->stops);
    novelty_free(g->novelty);
    buf_release(&g->released);
    buf_release(&g->call_name);
    buf_release(&g->arguments);
    mem_free(g->logprobs);
    token_list_release(&g->ids);
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

/* A raw interface: what the tokens stand for, held back only inside a character. */
static void take_raw(generation *g, const sample_pick *pick) {
    size_t len = 0;
    bool is_literal = false;
    const char *bytes = api_token_bytes(g->q.a, pick->token, &len, &is_literal);
    buf text = BUF_INIT;
    g->n_completion++;
    if (g->q.params->has_logprobs) keep_logprob(g, pick, false);
    utf8_stream_feed(&g->raw, bytes, len, &text);
    take_content(g, buf_cstr(&text), text.len);
    buf_release(&text);
}

/* Outside of thinking a loop ends the reply; inside the guide ends the thinking. */
static void watch_loop(generation *g, int32_t token, reply_state before) {
    if (g->novelty == NULL) return;
    if (before == REPLY_REASONING) {
        if (reply_parser_state(g->parser) != REPLY_REASONING) novelty_reset(g->novelty);
        return;
    }
    g->is_looping |= novelty_take(g->novelty, token);
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
    watch_loop(g, pick->token, before);
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
    if (g->q.is_raw) {
        buf text = BUF_INIT;
        utf8_stream_end(&g->raw, &text);
        take_content(g, buf_cstr(&text), text.len);
        buf_release(&text);
        reason = how == REPLY_END_EOS ? REPLY_STOP : REPLY_LENGTH;
    } else {
        reply_end_of_text(g->parser, how, &reason);
    }
    flush_content(g);
    if (g->n_logprobs > 0) {
        emit(g, (gen_event){
                    .kind = GEN_LOGPROBS, .logprobs = g->logprobs, .n_logprobs = g->n_logprobs});
        g->n_logprobs = 0;
    }
    g->finish_reason = g->has_stopped ? "stop" : names[reason];
    bool is_empty = how == REPLY_END_EOS && !g->has_said && !g->has_stopped;
    if (is_empty && g->q.has_tools) metric_add(g->q.a->metrics.empty_answers, 1.0);
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
        if (event.kind == RUN_EVENT_SCORE) {
            gen_logprob score = {.pick = event.pick};
            emit(g, (gen_event){.kind = GEN_SCORE, .logprobs = &score, .n_logprobs = 1});
            continue;
        }
        if (event.kind == RUN_EVENT_TOKEN || event.end != RUN_END_ERROR) {
            start_once(g);
        }
        if (event.kind == RUN_EVENT_END) {
            take_end(g, &event);
            break;
        }
        if (g->q.params->scores_only) {
            ticket_cancel(g->ticket);
            finish(g, REPLY_END_LENGTH);
            break;
        }
        if (g->q.params->returns_ids) token_list_push(&g->ids, event.pick.token);
        if (g->q.is_raw) {
            take_raw(g, &event.pick);
        } else {
            take_token(g, &event.pick);
        }
        if (g->has_stopped || g->is_looping) {
            ticket_cancel(g->ticket);
            finish(g, g->has_stopped ? REPLY_END_EOS : REPLY_END_LENGTH);
        }
    }
    return has_any;
}

void generation_expire(generation *g) {
    if (g->is_done) return;
    ticket_cancel(g->ticket);
    start_once(g);
    finish(g, REPLY_END_LENGTH);
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
        .is_looping = g->is_looping,
        .failure = g->failure,
        .n_completion = g->n_completion,
        .n_reasoning = g->n_reasoning,
        .ids = g->ids.ids,
        .n_ids = g->ids.len,
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
        g->failure != NULL                            ? "error"
        : g->is_cancelled || g->finish_reason == NULL ? "cancelled"
                                                      : g->finish_reason,
        p->n_prompt, p->n_cached, p->n_generated, first_ms,
        seconds > 0.0 ? (double)(p->n_generated - 1) / seconds : 0.0, (long long)p->n_drafted,
        (long long)p->n_accepted);
}

static double seconds_between(uint64_t from_ns, uint64_t to_ns) {
    return to_ns > from_ns ? (double)(to_ns - from_ns) / 1e9 : 0.0;
}

static void show_reply(api_metrics *m, const run_progress *p) {
    double prefill = seconds_between(p->start_ns, p->first_ns);
    double decode = seconds_between(p->first_ns, p->last_ns);
    double n_read = p->n_prompt - p->n_cached;
    api_metrics_reply(m, &(api_reply){.time_ms = clock_wall_ms(),
                             .first_token_ms = 1e3 * seconds_between(p->submit_ns, p->first_ns),
                             .queue_ms = 1e3 * seconds_between(p->submit_ns, p->start_ns),
                             .prefill_per_s = prefill > 0.0 ? n_read / prefill : -1.0,
                             .tokens_per_s = decode > 0.0 ? (p->n_generated - 1) / decode : -1.0,
                             .n_prompt = p->n_prompt,
                             .n_cached = p->n_cached,
                             .n_generated = p->n_generated,
                             .n_drafted = p->n_drafted,
                             .n_accepted = p->n_accepted});
}

void generation_measure(const generation *g) {
    api_metrics *m = &g->q.a->metrics;
    run_progress p;
    ticket_progress(g->ticket, &p);
    log_end(g, &p);
    if (g->failure != NULL) {
        LOG(LOG_ERROR, "api", "reply failed", "id=%s code=%s message=\"%s\"", g->q.id,
            err_name(g->failure->code), g->failure->msg);
    }
    metric_add(m->reasoning_tokens, (double)g->n_reasoning);
    if (p.start_ns == 0) return;
    metric_observe(m->queue, (double)(p.start_ns - p.submit_ns) / 1e9);
    if (p.first_ns == 0) return;
    metric_observe(m->prefill, (double)(p.first_ns - p.start_ns) / 1e9);
    metric_observe(m->first_token, (double)(p.first_ns - p.submit_ns) / 1e9);
    show_reply(m, &p);
    if (p.n_generated < 2) return;
    double between = (double)(p.last_ns - p.first_ns) / (double)(p.n_generated - 1);
    metric_observe(m->per_token, between / 1e9);
}
