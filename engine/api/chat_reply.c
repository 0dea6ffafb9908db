#include "engine/api/chat_reply.h"

#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

void chat_reply_free(chat_reply *r) {
    if (r == NULL) return;
    for (int i = 0; i < r->n_choices; i++) {
        chat_choice *c = &r->choices[i];
        generation_free(c->gen);
        buf_release(&c->reasoning);
        buf_release(&c->content);
        buf_release(&c->calls);
        buf_release(&c->arguments);
        buf_release(&c->call_name);
        buf_release(&c->logprobs);
        buf_release(&c->reasoning_logprobs);
    }
    params_release(&r->params);
    chat_prompt_release(&r->prompt);
    token_list_release(&r->tokens);
    buf_release(&r->head);
    json_free(r->body);
    mem_free(r);
}

/* The token's bytes as text, and as numbers because a token may hold half a character. */
static void put_token(const api *a, int32_t id, float logprob, buf *out) {
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
    put_token(a, pick->token, pick->logprob, out);
    buf_puts(out, ",\"top_logprobs\":[");
    for (int32_t i = 0; i < pick->n_top; i++) {
        if (i > 0) buf_putc(out, ',');
        put_token(a, pick->top_token[i], pick->top_logprob[i], out);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
}

static void collect_logprobs(const api *a, const gen_event *event, buf *content, buf *reasoning) {
    for (size_t i = 0; i < event->n_logprobs; i++) {
        const gen_logprob *l = &event->logprobs[i];
        put_logprob(a, &l->pick, l->is_reasoning ? reasoning : content);
    }
}

static void put_logprobs(const buf *content, const buf *reasoning, buf *out) {
    buf_puts(out, "{\"content\":[");
    buf_append(out, buf_cstr(content), content->len);
    buf_puts(out, "],\"reasoning_content\":[");
    buf_append(out, buf_cstr(reasoning), reasoning->len);
    buf_puts(out, "],\"refusal\":null}");
}

/* ---- whole ---- */

static void end_call(chat_choice *c) {
    if (!c->has_open_call) return;
    c->has_open_call = false;
    if (c->n_calls > 0) buf_putc(&c->calls, ',');
    c->n_calls++;
    buf_printf(
        &c->calls, "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", c->call_id);
    json_quote(&c->calls, buf_cstr(&c->call_name), c->call_name.len);
    buf_puts(&c->calls, ",\"arguments\":");
    json_quote(&c->calls, buf_cstr(&c->arguments), c->arguments.len);
    buf_puts(&c->calls, "}}");
}

void chat_whole_event(void *ctx, const gen_event *event) {
    chat_reply *r = ctx;
    chat_choice *c = &r->choices[event->i_choice];
    collect_logprobs(r->a, event, &c->logprobs, &c->reasoning_logprobs);
    switch (event->kind) {
    case GEN_REASONING:
        buf_append(&c->reasoning, event->text, event->len);
        return;
    case GEN_CONTENT:
        buf_append(&c->content, event->text, event->len);
        return;
    case GEN_CALL:
        end_call(c);
        c->has_open_call = true;
        snprintf(c->call_id, sizeof c->call_id, "%s", event->call_id);
        buf_reset(&c->call_name);
        buf_append(&c->call_name, event->text, event->len);
        buf_reset(&c->arguments);
        return;
    case GEN_ARGUMENTS:
        buf_append(&c->arguments, event->text, event->len);
        return;
    case GEN_CALL_DROP:
        c->has_open_call = false;
        return;
    default:
        return;
    }
}

static void put_stop_reason(const chat_reply *r, const gen_result *result, buf *out) {
    if (result->i_stop >= 0) {
        const char *s = r->params.stops[result->i_stop];
        json_quote(out, s, strlen(s));
    } else if (result->stop_id >= 0) {
        buf_printf(out, "%d", result->stop_id);
    } else {
        buf_puts(out, result->is_cancelled ? "\"cancelled\"" : "null");
    }
}

static void put_message(chat_choice *c, buf *out) {
    end_call(c);
    buf_puts(out, "{\"role\":\"assistant\",\"content\":");
    if (c->content.len == 0 && c->n_calls > 0) {
        buf_puts(out, "null");
    } else {
        json_quote(out, buf_cstr(&c->content), c->content.len);
    }
    buf_puts(out, ",\"refusal\":null");
    if (c->reasoning.len > 0) {
        buf_puts(out, ",\"reasoning_content\":");
        json_quote(out, c->reasoning.data, c->reasoning.len);
        buf_puts(out, ",\"reasoning\":");
        json_quote(out, c->reasoning.data, c->reasoning.len);
    }
    if (c->n_calls > 0) {
        buf_puts(out, ",\"tool_calls\":[");
        buf_append(out, c->calls.data, c->calls.len);
        buf_putc(out, ']');
    }
    buf_putc(out, '}');
}

static void put_head(const chat_reply *r, const char *object, buf *out) {
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%llu,\"model\":", r->id, object,
        (unsigned long long)r->created_s);
    json_quote(out, r->a->options.model_id, strlen(r->a->options.model_id));
    buf_puts(out, ",\"system_fingerprint\":");
    json_quote(out, r->a->fingerprint, strlen(r->a->fingerprint));
}

static void get_results(const chat_reply *r, gen_result *results) {
    for (int i = 0; i < r->n_choices; i++) {
        generation_result(r->choices[i].gen, &results[i]);
    }
}

int chat_whole_print(chat_reply *r, buf *out) {
    gen_result results[PARAMS_N_MAX];
    get_results(r, results);
    put_head(r, "chat.completion", out);
    buf_puts(out, ",\"choices\":[");
    for (int i = 0; i < r->n_choices; i++) {
        chat_choice *c = &r->choices[i];
        buf_printf(out, i > 0 ? ",{\"index\":%d,\"message\":" : "{\"index\":%d,\"message\":", i);
        put_message(c, out);
        buf_puts(out, ",\"logprobs\":");
        if (r->params.has_logprobs) {
            put_logprobs(&c->logprobs, &c->reasoning_logprobs, out);
        } else {
            buf_puts(out, "null");
        }
        buf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", results[i].finish_reason);
        put_stop_reason(r, &results[i], out);
        buf_putc(out, '}');
    }
    buf_puts(out, "],\"usage\":");
    usage_print(results, r->n_choices, out);
    buf_puts(out, ",\"timings\":");
    timings_print(&results[0], out);
    return buf_puts(out, ",\"service_tier\":\"default\"}");
}

/* ---- streamed ---- */

void chat_reply_begin(chat_reply *r) {
    buf_puts(&r->head, "data: ");
    put_head(r, "chat.completion.chunk", &r->head);
    buf_puts(&r->head, ",\"choices\":[");
}

static void put_running_usage(chat_reply *r) {
    gen_result results[PARAMS_N_MAX];
    if (!r->params.has_usage_chunk) return;
    buf_puts(r->out, ",\"usage\":");
    if (!r->params.has_continuous_usage) {
        buf_puts(r->out, "null");
        return;
    }
    get_results(r, results);
    usage_print(results, r->n_choices, r->out);
}

static void open_chunk(chat_reply *r, int i_choice) {
    buf_append(r->out, r->head.data, r->head.len);
    buf_printf(r->out, "{\"index\":%d,\"delta\":{", i_choice);
}

static void close_chunk(chat_reply *r, const gen_event *event) {
    buf_puts(r->out, "},\"logprobs\":");
    if (r->params.has_logprobs && event->n_logprobs > 0) {
        buf content = BUF_INIT;
        buf reasoning = BUF_INIT;
        collect_logprobs(r->a, event, &content, &reasoning);
        put_logprobs(&content, &reasoning, r->out);
        buf_release(&content);
        buf_release(&reasoning);
    } else {
        buf_puts(r->out, "null");
    }
    buf_puts(r->out, ",\"finish_reason\":null}]");
    put_running_usage(r);
    buf_puts(r->out, "}\n\n");
}

void chat_reply_event(void *ctx, const gen_event *event) {
    chat_reply *r = ctx;
    if (event->kind == GEN_CALL_END || event->kind == GEN_CALL_DROP) return;
    open_chunk(r, event->i_choice);
    switch (event->kind) {
    case GEN_STARTED:
        buf_puts(r->out, "\"role\":\"assistant\",\"content\":\"\"");
        break;
    case GEN_REASONING:
        buf_puts(r->out, "\"reasoning_content\":");
        json_quote(r->out, event->text, event->len);
        buf_puts(r->out, ",\"reasoning\":");
        json_quote(r->out, event->text, event->len);
        break;
    case GEN_CONTENT:
        buf_puts(r->out, "\"content\":");
        json_quote(r->out, event->text, event->len);
        break;
    case GEN_CALL:
        buf_printf(r->out,
            "\"tool_calls\":[{\"index\":%d,\"id\":\"%s\",\"type\":\"function\","
            "\"function\":{\"name\":",
            event->i_call, event->call_id);
        json_quote(r->out, event->text, event->len);
        buf_puts(r->out, ",\"arguments\":\"\"}}]");
        break;
    case GEN_ARGUMENTS:
        buf_printf(
            r->out, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", event->i_call);
        json_quote(r->out, event->text, event->len);
        buf_puts(r->out, "}}]");
        break;
    default:
        buf_puts(r->out, "\"content\":\"\""); /* log probabilities alone, after the last text */
        break;
    }
    close_chunk(r, event);
}

void chat_reply_finish(chat_reply *r, int i_choice) {
    gen_result result;
    generation_result(r->choices[i_choice].gen, &result);
    open_chunk(r, i_choice);
    buf_printf(r->out,
        "},\"logprobs\":null,\"finish_reason\":\"%s\",\"stop_reason\":", result.finish_reason);
    put_stop_reason(r, &result, r->out);
    buf_puts(r->out, "}]");
    put_running_usage(r);
    buf_puts(r->out, ",\"timings\":");
    timings_print(&result, r->out);
    buf_puts(r->out, "}\n\n");
}

void chat_reply_end(chat_reply *r) {
    gen_result results[PARAMS_N_MAX];
    if (r->params.has_usage_chunk) {
        get_results(r, results);
        buf_append(r->out, r->head.data, r->head.len);
        buf_puts(r->out, "],\"usage\":");
        usage_print(results, r->n_choices, r->out);
        buf_puts(r->out, ",\"service_tier\":\"default\"}\n\n");
    }
    buf_puts(r->out, "data: [DONE]\n\n");
}

void chat_reply_fail(chat_reply *r, const err *cause) {
    api_error e;
    api_from_err(&e, cause);
    buf_puts(r->out, "data: ");
    api_error_print(&e, r->out);
    buf_puts(r->out, "\n\n");
}
