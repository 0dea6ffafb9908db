#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/chat_reply.h"
#include "engine/api/fields.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

static int check_model(const api *a, const json *body, api_error *e) {
    const char *name = NULL;
    int rc = field_str(body, "model", &name, e);
    if (rc != OK || name == NULL || !a->options.is_strict_model) return rc;
    if (model_name_is_known(a, name)) return OK;
    api_set(e, 404, "invalid_request_error", "model_not_found", "");
    snprintf(e->message, sizeof e->message, "the model '%.100s' is not served; %s is", name,
        a->options.model_id);
    str_copy(e->param, sizeof e->param, "model");
    return ERR_ARG;
}

/* Prompt and reply must fit the window; *max_tokens becomes the limit of the reply. */
int api_check_window(
    const api *a, size_t n_prompt, const gen_params *p, int32_t *max_tokens, api_error *e) {
    int64_t window = a->options.max_context;
    if ((int64_t)n_prompt >= window) {
        return api_bad(e, "messages", "context_length_exceeded",
            "the prompt has %zu tokens; the window of %lld tokens must hold prompt and reply",
            n_prompt, (long long)window);
    }
    int64_t left = window - (int64_t)n_prompt;
    if (p->max_tokens > left) {
        return api_bad(e, p->max_tokens_field, "context_length_exceeded",
            "the prompt has %zu tokens and %s is %lld; together they exceed the window of %lld"
            " tokens",
            n_prompt, p->max_tokens_field, (long long)p->max_tokens, (long long)window);
    }
    *max_tokens = (int32_t)(p->max_tokens > 0 ? p->max_tokens : left);
    return OK;
}

/* Reads and renders the body up to token ids. */
static int prepare(chat_reply *r, http_request *q, int32_t *max_tokens, api_error *e) {
    const api *a = r->a;
    chat_settings settings = {.thinks_by_default = a->options.thinks_by_default};
    err why = ERR_INIT;
    int rc = http_body_json(q, &r->body, e);
    if (rc != OK) return rc;
    rc = params_read(a, r->body, &r->params, e);
    if (rc == OK) rc = check_model(a, r->body, e);
    if (rc != OK) return rc;
    rc = chat_render_body(r->body, &settings, &r->prompt, &why);
    if (rc == OK) {
        rc = chat_prompt_encode(&r->prompt, a->options.tokenizer, false, &r->tokens, &why);
    }
    if (rc != OK) return api_from_err(e, &why);
    params_default(a, &r->params, r->prompt.is_thinking);
    return api_check_window(a, r->tokens.len, &r->params, max_tokens, e);
}

static int start_choices(chat_reply *r, int32_t max_tokens, api_error *e) {
    for (int i = 0; i < (int)r->params.n; i++) {
        gen_request g = {.a = r->a,
            .id = r->id,
            .params = &r->params,
            .prompt = &r->tokens,
            .starts_in_reasoning = r->prompt.starts_in_reasoning,
            .has_tools = r->prompt.has_tools,
            .max_tokens = max_tokens,
            .i_choice = i,
            .sink_ctx = r,
            .sink = r->params.is_stream ? chat_reply_event : chat_whole_event};
        int rc = generation_start(&g, &r->choices[i].gen, e);
        if (rc != OK) return rc;
        r->n_choices = i + 1;
    }
    return OK;
}

static bool pump_all(chat_reply *r) {
    bool has_any = false;
    for (int i = 0; i < r->n_choices; i++) {
        has_any |= generation_pump(r->choices[i].gen);
    }
    return has_any;
}

static bool all_done(const chat_reply *r) {
    for (int i = 0; i < r->n_choices; i++) {
        if (!generation_is_done(r->choices[i].gen)) return false;
    }
    return true;
}

static const err *first_failure(const chat_reply *r) {
    for (int i = 0; i < r->n_choices; i++) {
        gen_result result;
        generation_result(r->choices[i].gen, &result);
        if (result.failure != NULL) return result.failure;
    }
    return NULL;
}

/* Waits for a token of any choice, at most timeout_ms (< 0: for ever). */
static int wait_any(chat_reply *r, http_request *q, int timeout_ms, bool is_streaming) {
    int fds[PARAMS_N_MAX];
    int n = 0;
    for (int i = 0; i < r->n_choices; i++) {
        generation *g = r->choices[i].gen;
        if (generation_is_done(g)) continue;
        if (generation_arm(g)) return HTTP_WAKE;
        fds[n++] = generation_fd(g);
    }
    return http_wait(q, fds, n, timeout_ms, is_streaming);
}

static void note_end(chat_reply *r, http_request *q) {
    for (int i = 0; i < r->n_choices; i++) {
        gen_result result;
        generation_measure(r->choices[i].gen);
        generation_result(r->choices[i].gen, &result);
        q->finish = result.failure != NULL ? "error" : result.finish_reason;
    }
}

static void answer_whole(chat_reply *r, http_request *q) {
    api_error e;
    buf body = BUF_INIT;
    while (!all_done(r)) {
        if (pump_all(r)) continue;
        if (wait_any(r, q, -1, false) != HTTP_GONE) continue;
        /* Nobody reads this; the connection is on its way down. */
        api_set(&e, 503, "server_error", "shutting_down", "the server is shutting down");
        http_fail(q, &e);
        return;
    }
    note_end(r, q);
    const err *failure = first_failure(r);
    if (failure != NULL) {
        api_from_err(&e, failure);
        http_fail(q, &e);
        return;
    }
    body.max = 0;
    if (chat_whole_print(r, &body) != OK) {
        buf_release(&body);
        api_set(&e, 500, "server_error", "internal_error", "the answer is too large to send whole");
        http_fail(q, &e);
        return;
    }
    http_send_json(q, 200, &body);
}

static void put_keep_alive(chat_reply *r, buf *out) {
    run_progress p;
    generation_progress(r->choices[0].gen, &p);
    if (p.phase == RUN_PHASE_PREFILL) {
        buf_printf(out, ": prefill %d/%d\n\n", p.n_prefilled, p.n_prompt);
    } else {
        buf_puts(out, p.phase == RUN_PHASE_QUEUED ? ": queued\n\n" : ": keep-alive\n\n");
    }
}

/* Closes the choices that have ended; HTTP_LAST when all have. */
static int settle(chat_reply *r, http_request *q) {
    const err *failure = first_failure(r);
    if (failure != NULL) {
        note_end(r, q);
        chat_reply_fail(r, failure);
        return HTTP_LAST;
    }
    for (int i = 0; i < r->n_choices; i++) {
        if (r->has_finished[i] || !generation_is_done(r->choices[i].gen)) continue;
        r->has_finished[i] = true;
        chat_reply_finish(r, i);
    }
    if (!all_done(r)) return HTTP_MORE;
    note_end(r, q);
    chat_reply_end(r);
    return HTTP_LAST;
}

static int fill(void *ctx, http_request *q, buf *out) {
    chat_reply *r = ctx;
    r->out = out;
    for (;;) {
        pump_all(r);
        int rc = settle(r, q);
        if (rc == HTTP_LAST) return rc;
        uint64_t now = clock_mono_ms();
        if (out->len > 0) {
            r->last_write_ms = now;
            return HTTP_MORE;
        }
        uint64_t due = r->last_write_ms + (uint64_t)r->a->options.keep_alive_ms;
        switch (wait_any(r, q, due > now ? (int)(due - now) : 0, true)) {
        case HTTP_GONE:
            return HTTP_BROKEN;
        case HTTP_WAKE:
            break;
        case HTTP_HALF_CLOSED:
            buf_puts(out, ": still here?\n\n");
            break;
        default:
            put_keep_alive(r, out);
        }
    }
}

static void release(void *ctx) {
    chat_reply_free(ctx);
}

void route_chat(http_request *q) {
    api_error e;
    int32_t max_tokens = 0;
    chat_reply *r = mem_alloc(sizeof *r);
    r->a = q->api;
    r->prompt = (chat_prompt)CHAT_PROMPT_INIT;
    r->created_s = clock_wall_ms() / 1000;
    r->last_write_ms = clock_mono_ms();
    api_new_id("chatcmpl-", r->id);
    int rc = prepare(r, q, &max_tokens, &e);
    if (rc == OK) {
        if (r->params.is_stream) chat_reply_begin(r);
        rc = start_choices(r, max_tokens, &e);
    }
    buf_release(&q->body);
    if (rc != OK) {
        http_fail(q, &e);
    } else if (r->params.is_stream) {
        http_stream(q, "text/event-stream; charset=utf-8",
            (http_producer){.fill = fill, .release = release, .ctx = r});
        return;
    } else {
        answer_whole(r, q);
    }
    chat_reply_free(r);
}
