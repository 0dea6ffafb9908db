#include "engine/api/job.h"

#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/fields.h"
#include "engine/api/replies.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

job *job_new(api *a, const job_form *form) {
    job *j = mem_alloc(sizeof *j);
    j->a = a;
    j->form = form;
    j->prompt = (chat_prompt)CHAT_PROMPT_INIT;
    j->created_s = clock_wall_ms() / 1000;
    j->last_write_ms = clock_mono_ms();
    if (a->options.request_timeout_ms > 0) {
        j->deadline_ms = j->last_write_ms + (uint64_t)a->options.request_timeout_ms;
    }
    api_new_id(form->id_prefix, j->id);
    return j;
}

void job_free(job *j) {
    if (j == NULL) return;
    for (int i = 0; i < j->n_choices; i++) {
        job_choice *c = &j->choices[i];
        generation_free(c->gen);
        items_release(&c->said);
        buf_release(&c->logprobs);
        buf_release(&c->reasoning_logprobs);
        mem_free(c->own);
    }
    mem_free(j->choices);
    params_release(&j->params);
    chat_prompt_release(&j->prompt);
    for (int i = 0; i < j->n_prompts; i++) {
        token_list_release(&j->prompts[i]);
    }
    mem_free(j->prompts);
    buf_release(&j->head);
    body_places_release(&j->places);
    json_free(j->chat);
    json_free(j->body);
    mem_free(j);
}

int job_check_model(const job *j, api_error *e) {
    const char *name = NULL;
    int rc = field_str(j->body, "model", &name, e);
    if (rc != OK || name == NULL || !j->a->options.is_strict_model) return rc;
    if (model_name_is_known(j->a, name)) return OK;
    api_set(e, 404, "invalid_request_error", "model_not_found", "");
    snprintf(e->message, sizeof e->message, "the model '%.100s' is not served; %s is", name,
        j->a->options.model_id);
    str_copy(e->param, sizeof e->param, "model");
    return ERR_ARG;
}

int job_render(job *j, api_error *e) {
    chat_settings settings = {.thinks_by_default = j->a->options.thinks_by_default,
        .replay = replay_find,
        .replay_ctx = j->a->replay};
    err why = ERR_INIT;
    j->prompts = mem_array(1, sizeof *j->prompts);
    j->n_prompts = 1;
    replay_lock(j->a->replay); /* the texts it gives are borrowed while rendering */
    int rc = chat_render_body(j->chat != NULL ? j->chat : j->body, &settings, &j->prompt, &why);
    replay_unlock(j->a->replay);
    if (rc == OK) {
        rc = chat_prompt_encode(&j->prompt, j->a->options.tokenizer, false, j->prompts, &why);
    }
    return rc == OK ? OK : api_from_err(e, &why);
}

void job_refuse(job *j, http_request *q, const api_error *e) {
    api_error own = *e;
    buf_release(&q->body);
    if (j->chat != NULL) body_places_rename(&j->places, &own);
    http_fail(q, &own);
    job_free(j);
}

void job_results(const job *j, gen_result *out) {
    for (int i = 0; i < j->n_choices; i++) {
        if (j->choices[i].gen != NULL) {
            generation_result(j->choices[i].gen, &out[i]);
        } else {
            out[i] = (gen_result){.i_stop = -1, .stop_id = -1};
        }
    }
}

/* ---- log probabilities ---- */

void job_put_token(const api *a, int32_t id, float logprob, buf *out) {
    size_t len = 0;
    bool is_literal = false;
    const char *bytes = api_token_bytes(a, id, &len, &is_literal);
    buf_puts(out, "{\"token\":");
    json_quote(out, bytes, len);
    buf_printf(out, ",\"logprob\":%.6f,\"bytes\":[", (double)logprob);
    for (size_t i = 0; i < len; i++) {
        buf_printf(out, i > 0 ? ",%d" : "%d", (unsigned char)bytes[i]);
    }
    buf_putc(out, ']');
}

static void put_logprob(const api *a, const sample_pick *pick, buf *out) {
    if (out->len > 0) buf_putc(out, ',');
    job_put_token(a, pick->token, pick->logprob, out);
    buf_puts(out, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < pick->n_top; i++) {
        if (i > 0) buf_putc(out, ',');
        job_put_token(a, pick->top_token[i], pick->top_logprob[i], out);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
}

void job_collect_logprobs(job *j, const gen_event *event, buf *content, buf *reasoning) {
    for (size_t i = 0; i < event->n_logprobs; i++) {
        const gen_logprob *l = &event->logprobs[i];
        put_logprob(j->a, &l->pick, l->is_reasoning ? reasoning : content);
    }
}

/* ---- the replies ---- */

static void on_event(void *ctx, const gen_event *event) {
    job *j = ctx;
    if (j->params.is_stream) {
        j->form->event(j, event);
    } else {
        j->form->take(j, event);
    }
}

static int begin_choice(job *j, api_error *e) {
    int i = j->n_begun;
    gen_request g = {.a = j->a,
        .id = j->id,
        .params = &j->params,
        .prompt = &j->prompts[i / (int)j->params.n],
        .is_raw = j->is_raw,
        .starts_in_reasoning = j->prompt.starts_in_reasoning,
        .has_tools = j->prompt.has_tools,
        .max_tokens = j->max_tokens,
        .i_choice = i,
        .i_seed = i % (int)j->params.n,
        .call_prefix = j->form->call_prefix,
        .sink_ctx = j,
        .sink = on_event};
    int rc = generation_start(&g, &j->choices[i].gen, e);
    if (rc == OK) j->n_begun = i + 1;
    return rc;
}

static int n_open(const job *j) {
    int n = 0;
    for (int i = 0; i < j->n_begun; i++) {
        n += !generation_is_done(j->choices[i].gen);
    }
    return n;
}

/* Begins as many replies as may run. A full queue is a refusal only while none of ours runs. */
static int begin_more(job *j, api_error *e) {
    while (j->n_begun < j->n_choices) {
        int n = n_open(j);
        if (n == JOB_OPEN_MAX) return OK;
        int rc = begin_choice(j, e);
        if (rc != OK && e->status == 429 && n > 0) return OK;
        if (rc != OK) return rc;
    }
    return OK;
}

static void fail_job(job *j, const api_error *e) {
    if (j->has_failed) return;
    j->has_failed = true;
    j->failure = *e;
}

static bool pump_all(job *j) {
    bool has_any = false;
    bool has_ended = false;
    for (int i = 0; i < j->n_begun; i++) {
        generation *g = j->choices[i].gen;
        gen_result result;
        if (generation_is_done(g)) continue;
        has_any |= generation_pump(g);
        if (!generation_is_done(g)) continue;
        has_ended = true;
        generation_result(g, &result);
        if (result.failure == NULL) continue;
        api_error e;
        api_from_err(&e, result.failure);
        fail_job(j, &e);
    }
    if (has_ended && !j->has_failed) {
        api_error e;
        if (begin_more(j, &e) != OK) fail_job(j, &e);
    }
    return has_any;
}

static bool all_done(const job *j) {
    return j->n_begun == j->n_choices && n_open(j) == 0;
}

/* The time of the request is over: what exists is the answer. */
static void check_deadline(job *j) {
    bool has_text = false;
    if (j->deadline_ms == 0 || clock_mono_ms() < j->deadline_ms) return;
    j->deadline_ms = 0;
    j->n_choices = j->n_begun;
    for (int i = 0; i < j->n_begun; i++) {
        generation_expire(j->choices[i].gen);
        gen_result result;
        generation_result(j->choices[i].gen, &result);
        has_text |= result.n_completion > 0;
    }
    if (has_text) return;
    api_error e;
    api_set(&e, 503, "server_error", "timeout", "the time limit of requests is over");
    e.retry_after_s = 1;
    fail_job(j, &e);
}

/* Waits for a token of any choice, at most timeout_ms (< 0: for ever). */
static int wait_any(job *j, http_request *q, int timeout_ms, bool is_streaming) {
    int fds[JOB_OPEN_MAX];
    int n = 0;
    uint64_t now = clock_mono_ms();
    for (int i = 0; i < j->n_begun; i++) {
        generation *g = j->choices[i].gen;
        if (generation_is_done(g)) continue;
        if (generation_arm(g)) return HTTP_WAKE;
        fds[n++] = generation_fd(g);
    }
    if (j->deadline_ms != 0) {
        int left = j->deadline_ms > now ? (int)(j->deadline_ms - now) : 0;
        if (timeout_ms < 0 || left < timeout_ms) timeout_ms = left;
    }
    return http_wait(q, fds, n, timeout_ms, is_streaming);
}

static void note_end(job *j, http_request *q) {
    for (int i = 0; i < j->n_begun; i++) {
        gen_result result;
        generation_measure(j->choices[i].gen);
        generation_result(j->choices[i].gen, &result);
        q->finish = result.failure != NULL ? "error" : result.finish_reason;
        q->n_prompt = result.progress.n_prompt;
        q->n_cached = result.progress.n_cached;
        q->n_completion += result.n_completion;
    }
}

/* ---- whole answers ---- */

static void answer_whole(job *j, http_request *q) {
    buf body = BUF_INIT;
    api_error e;
    while (!j->has_failed && !all_done(j)) {
        if (pump_all(j)) continue;
        int rc = wait_any(j, q, -1, false);
        check_deadline(j);
        if (rc != HTTP_GONE) continue;
        /* Nobody reads this; the connection is on its way down. */
        api_set(&e, 503, "server_error", "shutting_down", "the server is shutting down");
        note_end(j, q);
        http_fail(q, &e);
        return;
    }
    note_end(j, q);
    if (j->has_failed) {
        http_fail(q, &j->failure);
        return;
    }
    body.max = (size_t)1 << 40;
    j->form->print(j, &body);
    http_send_json(q, 200, &body);
}

/* Newlines before the body keep impatient readers; the status is fixed by then. */
static int fill_whole(void *ctx, http_request *q, buf *out) {
    job *j = ctx;
    while (!j->has_failed && !all_done(j)) {
        if (pump_all(j)) continue;
        int rc = wait_any(j, q, j->a->options.keep_alive_ms, true);
        check_deadline(j);
        if (rc == HTTP_GONE) return HTTP_BROKEN;
        if (rc == HTTP_WAKE) continue;
        buf_putc(out, '\n');
        return HTTP_MORE;
    }
    note_end(j, q);
    if (j->has_failed) {
        api_error_print(&j->failure, q->shape, q->id, out);
    } else {
        j->form->print(j, out);
    }
    return HTTP_LAST;
}

/* ---- streamed answers ---- */

void job_wait_comment(job *j, const run_progress *p) {
    if (p->phase == RUN_PHASE_PREFILL) {
        buf_printf(j->out, ": prefill %d/%d\n\n", p->n_prefilled, p->n_prompt);
    } else {
        buf_puts(j->out, p->phase == RUN_PHASE_QUEUED ? ": queued\n\n" : ": keep-alive\n\n");
    }
}

void job_open_event(job *j, const char *name) {
    buf_printf(j->out, "event: %s\ndata: ", name);
}

/* Closes the choices that have ended; HTTP_LAST when all have. */
static int settle(job *j, http_request *q) {
    if (j->has_failed) {
        note_end(j, q);
        j->form->fail(j, &j->failure);
        return HTTP_LAST;
    }
    for (int i = 0; i < j->n_begun; i++) {
        if (j->choices[i].has_finished || !generation_is_done(j->choices[i].gen)) continue;
        j->choices[i].has_finished = true;
        j->form->finish(j, i);
    }
    if (!all_done(j)) return HTTP_MORE;
    note_end(j, q);
    j->form->end(j);
    return HTTP_LAST;
}

static void put_wait(job *j) {
    run_progress p = {0};
    for (int i = 0; i < j->n_begun; i++) {
        generation_progress(j->choices[i].gen, &p);
        if (!generation_is_done(j->choices[i].gen)) break;
    }
    j->form->wait(j, &p);
}

static int fill(void *ctx, http_request *q, buf *out) {
    job *j = ctx;
    j->out = out;
    for (;;) {
        pump_all(j);
        check_deadline(j);
        if (settle(j, q) == HTTP_LAST) return HTTP_LAST;
        uint64_t now = clock_mono_ms();
        if (out->len > 0) {
            j->last_write_ms = now;
            return HTTP_MORE;
        }
        uint64_t due = j->last_write_ms + (uint64_t)j->a->options.keep_alive_ms;
        switch (wait_any(j, q, due > now ? (int)(due - now) : 0, true)) {
        case HTTP_GONE:
            note_end(j, q);
            return HTTP_BROKEN;
        case HTTP_WAKE:
            break;
        case HTTP_HALF_CLOSED:
            buf_puts(out, ": still here?\n\n");
            break;
        default:
            if (clock_mono_ms() >= due) put_wait(j);
        }
    }
}

static void release(void *ctx) {
    job_free(ctx);
}

/* The answer goes on when the connection ends. False: it does not, and nothing was taken. */
static bool run_detached(job *j, http_request *q, const char *type, http_producer producer) {
    const char *wish = http_header(q, "tandem-detach");
    char id[64];
    if (wish == NULL || strcmp(wish, "1") != 0 || !q->is_local) return false;
    str_copy(id, sizeof id, j->id);
    int rc = replies_begin(
        q->api->replies, q, &(reply_start){.id = id, .type = type, .producer = producer});
    if (rc == OK) replies_send(q->api->replies, q, id, 0);
    return rc == OK;
}

static void limit_time(job *j, int64_t seconds) {
    if (seconds == 0) return;
    uint64_t deadline = clock_mono_ms() + (uint64_t)seconds * 1000u;
    if (j->deadline_ms == 0 || deadline < j->deadline_ms) j->deadline_ms = deadline;
}

void job_run(job *j, http_request *q) {
    api_error e;
    j->n_choices = j->n_prompts * (int)j->params.n;
    j->choices = mem_array((size_t)j->n_choices, sizeof *j->choices);
    if (q->key != NULL && j->a->options.is_cache_per_key) {
        params_separate(&j->params, key_user_label(q->key));
    }
    if (q->key != NULL) limit_time(j, key_user_limits(q->key)->seconds);
    str_copy(q->warning, sizeof q->warning, j->params.warning);
    if (j->params.is_stream && j->form->begin != NULL) j->form->begin(j);
    int rc = begin_more(j, &e);
    if (rc != OK) {
        job_refuse(j, q, &e);
        return;
    }
    buf_release(&q->body);
    const char *type =
        j->params.is_stream ? "text/event-stream; charset=utf-8" : "application/json";
    http_producer producer = {
        .fill = j->params.is_stream ? fill : fill_whole, .release = release, .ctx = j};
    if (run_detached(j, q, type, producer)) return;
    if (j->params.is_stream) {
        http_stream(q, type, producer);
    } else if (j->a->options.keeps_json_alive) {
        http_stream(q, type, producer);
    } else {
        answer_whole(j, q);
        job_free(j);
    }
}
