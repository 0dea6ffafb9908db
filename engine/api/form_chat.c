/* The words of chat completions (api.md 3). */
#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/form_openai.h"

static void put_logprobs(const buf *content, const buf *reasoning, buf *out) {
    buf_puts(out, "{\"content\":[");
    buf_append(out, buf_cstr(content), content->len);
    buf_puts(out, "],\"reasoning_content\":[");
    buf_append(out, buf_cstr(reasoning), reasoning->len);
    buf_puts(out, "],\"refusal\":null}");
}

static void put_stop_reason(const job *j, const gen_result *result, buf *out) {
    if (result->is_looping) {
        buf_puts(out, "\"loop_guard\"");
    } else if (result->i_stop >= 0) {
        const char *s = j->params.stops[result->i_stop];
        json_quote(out, s, strlen(s));
    } else if (result->stop_id >= 0) {
        buf_printf(out, "%d", result->stop_id);
    } else {
        buf_puts(out, result->is_cancelled ? "\"cancelled\"" : "null");
    }
}

/* The reason as the client knows it: functions of the old kind have their own word. */
static const char *reason_of(const job *j, const gen_result *result) {
    bool is_call = strcmp(result->finish_reason, "tool_calls") == 0;
    return is_call && j->params.is_legacy ? "function_call" : result->finish_reason;
}

#define SERVICE_TIER ",\"service_tier\":\"default\""

/* What was read and what was drawn, for those who look for a wrong token. */
static void put_ids(const job *j, int i_choice, const gen_result *result, buf *out) {
    if (!j->params.returns_ids) return;
    const token_list *prompt = &j->prompts[i_choice / (int)j->params.n];
    buf_puts(out, ",\"prompt_token_ids\":[");
    for (size_t i = 0; i < prompt->len; i++)
        buf_printf(out, i > 0 ? ",%d" : "%d", prompt->ids[i]);
    buf_puts(out, "],\"token_ids\":[");
    for (size_t i = 0; i < result->n_ids; i++)
        buf_printf(out, i > 0 ? ",%d" : "%d", result->ids[i]);
    buf_putc(out, ']');
}

/* ---- whole ---- */

static void take(job *j, const gen_event *event) {
    job_choice *c = &j->choices[event->i_choice];
    bool is_new = false;
    job_collect_logprobs(j, event, &c->logprobs, &c->reasoning_logprobs);
    items_take(&c->said, event, &is_new);
}

static void put_function(const item *it, buf *out) {
    buf_puts(out, "{\"name\":");
    json_quote(out, buf_cstr(&it->name), it->name.len);
    buf_puts(out, ",\"arguments\":");
    json_quote(out, buf_cstr(&it->text), it->text.len);
    buf_putc(out, '}');
}

/* A broken call is told as a stream has told it and as one that was cut: its arguments are no JSON. */
static void put_calls(const job *j, const items *said, buf *out) {
    bool is_first = true;
    buf_puts(out, j->params.is_legacy ? ",\"function_call\":" : ",\"tool_calls\":[");
    for (int i = 0; i < said->n; i++) {
        const item *it = &said->list[i];
        if (it->kind != ITEM_CALL) continue;
        if (!is_first) buf_putc(out, ',');
        is_first = false;
        if (j->params.is_legacy) {
            put_function(it, out);
            return; /* the old form has room for one */
        }
        buf_printf(out, "{\"id\":\"%s\",\"type\":\"function\",\"function\":", it->call_id);
        put_function(it, out);
        buf_putc(out, '}');
    }
    buf_putc(out, ']');
}

static void put_message(const job *j, const items *said, buf *out) {
    buf text = BUF_INIT;
    int n_calls = items_calls(said);
    text.max = out->max;
    items_join(said, ITEM_TEXT, &text);
    buf_puts(out, "{\"role\":\"assistant\",\"content\":");
    if (text.len == 0 && n_calls > 0) {
        buf_puts(out, "null");
    } else {
        json_quote(out, buf_cstr(&text), text.len);
    }
    buf_puts(out, ",\"refusal\":null");
    buf_reset(&text);
    items_join(said, ITEM_REASONING, &text);
    if (text.len > 0) {
        buf_puts(out, ",\"reasoning_content\":");
        json_quote(out, text.data, text.len);
        buf_puts(out, ",\"reasoning\":");
        json_quote(out, text.data, text.len);
    }
    if (n_calls > 0) put_calls(j, said, out);
    buf_putc(out, '}');
    buf_release(&text);
}

static void put_choice(job *j, int i, const gen_result *result, buf *out) {
    job_choice *c = &j->choices[i];
    buf_printf(out, "{\"index\":%d,\"message\":", i);
    put_message(j, &c->said, out);
    buf_puts(out, ",\"logprobs\":");
    if (j->params.has_logprobs) {
        put_logprobs(&c->logprobs, &c->reasoning_logprobs, out);
    } else {
        buf_puts(out, "null");
    }
    buf_printf(out, ",\"finish_reason\":\"%s\",\"stop_reason\":", reason_of(j, result));
    put_stop_reason(j, result, out);
    put_ids(j, i, result, out);
    buf_putc(out, '}');
}

static void print(job *j, buf *out) {
    openai_print(j,
        &(openai_answer){.object = "chat.completion", .tail = SERVICE_TIER, .put = put_choice},
        out);
}

/* ---- streamed ---- */

static void begin(job *j) {
    openai_begin(j, "chat.completion.chunk");
}

static void open_chunk(job *j, int i_choice) {
    buf_append(j->out, j->head.data, j->head.len);
    buf_printf(j->out, "{\"index\":%d,\"delta\":{", i_choice);
}

static void close_chunk(job *j, const gen_event *event) {
    buf_puts(j->out, "},\"logprobs\":");
    if (j->params.has_logprobs && event->n_logprobs > 0) {
        buf content = BUF_INIT;
        buf reasoning = BUF_INIT;
        job_collect_logprobs(j, event, &content, &reasoning);
        put_logprobs(&content, &reasoning, j->out);
        buf_release(&content);
        buf_release(&reasoning);
    } else {
        buf_puts(j->out, "null");
    }
    buf_puts(j->out, ",\"finish_reason\":null}]");
    openai_running_usage(j);
    buf_puts(j->out, "}\n\n");
}

static void put_call(job *j, const gen_event *event) {
    if (j->params.is_legacy) {
        buf_puts(j->out, "\"function_call\":{\"name\":");
        json_quote(j->out, event->text, event->len);
        buf_puts(j->out, ",\"arguments\":\"\"}");
        return;
    }
    buf_printf(j->out,
        "\"tool_calls\":[{\"index\":%d,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":",
        event->i_call, event->call_id);
    json_quote(j->out, event->text, event->len);
    buf_puts(j->out, ",\"arguments\":\"\"}}]");
}

static void put_arguments(job *j, const gen_event *event) {
    if (j->params.is_legacy) {
        buf_puts(j->out, "\"function_call\":{\"arguments\":");
        json_quote(j->out, event->text, event->len);
        buf_putc(j->out, '}');
        return;
    }
    buf_printf(j->out, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", event->i_call);
    json_quote(j->out, event->text, event->len);
    buf_puts(j->out, "}}]");
}

static void event(job *j, const gen_event *event) {
    bool is_call = event->kind == GEN_CALL || event->kind == GEN_ARGUMENTS;
    if (event->kind == GEN_CALL_END || event->kind == GEN_CALL_DROP) return;
    if (is_call && j->params.is_legacy && event->i_call > 0) return;
    open_chunk(j, event->i_choice);
    switch (event->kind) {
    case GEN_STARTED:
        buf_puts(j->out, "\"role\":\"assistant\",\"content\":\"\"");
        break;
    case GEN_REASONING:
        buf_puts(j->out, "\"reasoning_content\":");
        json_quote(j->out, event->text, event->len);
        buf_puts(j->out, ",\"reasoning\":");
        json_quote(j->out, event->text, event->len);
        break;
    case GEN_CONTENT:
        buf_puts(j->out, "\"content\":");
        json_quote(j->out, event->text, event->len);
        break;
    case GEN_CALL:
        put_call(j, event);
        break;
    case GEN_ARGUMENTS:
        put_arguments(j, event);
        break;
    default:
        buf_puts(j->out, "\"content\":\"\""); /* log probabilities alone, after the last text */
        break;
    }
    close_chunk(j, event);
}

static void finish(job *j, int i_choice) {
    gen_result result;
    generation_result(j->choices[i_choice].gen, &result);
    open_chunk(j, i_choice);
    buf_printf(j->out,
        "},\"logprobs\":null,\"finish_reason\":\"%s\",\"stop_reason\":", reason_of(j, &result));
    put_stop_reason(j, &result, j->out);
    put_ids(j, i_choice, &result, j->out);
    buf_puts(j->out, "}]");
    openai_running_usage(j);
    buf_puts(j->out, ",\"timings\":");
    timings_print(&result, j->out);
    buf_puts(j->out, "}\n\n");
}

static void end(job *j) {
    openai_end(j, SERVICE_TIER);
}

const job_form form_chat = {.id_prefix = "chatcmpl-",
    .call_prefix = "call_",
    .begin = begin,
    .event = event,
    .take = take,
    .finish = finish,
    .end = end,
    .fail = openai_fail,
    .wait = job_wait_comment,
    .print = print};
