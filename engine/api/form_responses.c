/* The words of Responses (api.md 5): every item is added, grows, and is done; its id and text are
 * the same in its last event and in the answer. */
#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/body_responses.h"
#include "engine/api/fields.h"
#include "engine/api/job.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

typedef struct responses_own {
    bool has_started;
    int i_open; /* item that grows; -1: none */
} responses_own;

static responses_own *own_of(job *j) {
    job_choice *c = &j->choices[0];
    if (c->own == NULL) {
        responses_own *own = mem_alloc(sizeof *own);
        own->i_open = -1;
        c->own = own;
    }
    return c->own;
}

static bool wants_summary(const job *j) {
    const json *reasoning = field_get(j->body, "reasoning");
    return field_get(reasoning, "summary") != NULL ||
           field_get(reasoning, "generate_summary") != NULL;
}

static bool wants_secret(const job *j) {
    JSON_EACH(word, field_get(j->body, "include")) {
        const char *s = json_str(word);
        if (s != NULL && strcmp(s, "reasoning.encrypted_content") == 0) return true;
    }
    return false;
}

/* ---- items ---- */

static tool_kind kind_of(const job *j, const item *it) {
    return responses_tool_kind(j->body, buf_cstr(&it->name));
}

static void name_item(const job *j, item *it) {
    static const char *const prefixes[] = {"rs_", "msg_", "fc_"};
    static const char *const calls[] = {"fc_", "ctc_", "lsh_"};
    if (it->id[0] != '\0') return;
    api_new_id(it->kind == ITEM_CALL ? calls[kind_of(j, it)] : prefixes[it->kind], it->id);
}

static void put_string(buf *out, const buf *text) {
    json_quote(out, buf_cstr(text), text->len);
}

/* The member of a whole call's arguments as text. */
static void get_argument(const item *it, const char *name, buf *out) {
    json *v = NULL;
    if (json_parse(buf_cstr(&it->text), it->text.len, NULL, &v, NULL) != OK) return;
    json_str_bytes(json_get(v, name), out);
    json_free(v);
}

static void put_reasoning(const job *j, const item *it, bool is_done, buf *out) {
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"reasoning\",\"summary\":[", it->id);
    if (is_done && wants_summary(j)) {
        buf_puts(out, "{\"type\":\"summary_text\",\"text\":");
        put_string(out, &it->text);
        buf_putc(out, '}');
    }
    buf_puts(out, "],\"content\":[");
    if (is_done) {
        buf_puts(out, "{\"type\":\"reasoning_text\",\"text\":");
        put_string(out, &it->text);
        buf_putc(out, '}');
    }
    buf_puts(out, "],\"encrypted_content\":");
    if (is_done && wants_secret(j)) {
        buf_puts(out, "\"" RESPONSES_SECRET_PREFIX);
        for (size_t i = 0; i < it->text.len; i++) {
            buf_printf(out, "%02x", (unsigned char)it->text.data[i]);
        }
        buf_putc(out, '"');
    } else {
        buf_puts(out, "null");
    }
    buf_printf(out, ",\"status\":\"%s\"}", is_done ? "completed" : "in_progress");
}

static void put_logprobs(const buf *list, buf *out) {
    buf_puts(out, ",\"logprobs\":[");
    if (list != NULL) buf_append(out, buf_cstr(list), list->len);
    buf_putc(out, ']');
}

/* Log probabilities of an event belong to the newest text; those of reasoning have no place here. */
static void keep_logprobs(job *j, const gen_event *event) {
    items *said = &j->choices[0].said;
    int i = said->n - 1;
    buf reasoning = BUF_INIT;
    while (i >= 0 && said->list[i].kind != ITEM_TEXT)
        i--;
    if (i >= 0 && event->n_logprobs > 0) {
        job_collect_logprobs(j, event, &said->list[i].logprobs, &reasoning);
    }
    buf_release(&reasoning);
}

static void put_text_part(const item *it, bool is_done, buf *out) {
    buf_puts(out, "{\"type\":\"output_text\",\"annotations\":[]");
    put_logprobs(is_done ? &it->logprobs : NULL, out);
    buf_puts(out, ",\"text\":");
    if (is_done) {
        put_string(out, &it->text);
    } else {
        buf_puts(out, "\"\"");
    }
    buf_putc(out, '}');
}

static void put_message(const item *it, bool is_done, const char *status, buf *out) {
    buf_printf(out,
        "{\"id\":\"%s\",\"type\":\"message\",\"status\":\"%s\",\"role\":\"assistant\",\"content\":[",
        it->id, status);
    if (is_done) put_text_part(it, true, out);
    buf_puts(out, "]}");
}

/* ns::name is told as namespace and name. */
static void put_name(const item *it, buf *out) {
    const char *name = buf_cstr(&it->name);
    const char *colons = strstr(name, "::");
    if (colons != NULL) {
        buf_puts(out, ",\"namespace\":");
        json_quote(out, name, (size_t)(colons - name));
        name = colons + 2;
    }
    buf_puts(out, ",\"name\":");
    json_quote(out, name, strlen(name));
}

static void put_shell_action(const item *it, buf *out) {
    json *v = NULL;
    json_w w;
    json_parse(buf_cstr(&it->text), it->text.len, NULL, &v, NULL);
    json_w_begin(&w, out);
    json_w_object(&w);
    json_w_kstr(&w, "type", "exec");
    json_w_key(&w, "command");
    if (json_is_array(json_get(v, "command"))) {
        json_w_value(&w, json_get(v, "command"));
    } else {
        json_w_raw(&w, "[]", 2);
    }
    json_w_key(&w, "env");
    json_w_raw(&w, "{}", 2);
    json_w_key(&w, "working_directory");
    json_w_value(&w, json_get(v, "working_directory"));
    json_w_key(&w, "timeout_ms");
    json_w_value(&w, json_get(v, "timeout_ms"));
    json_w_close(&w);
    json_w_end(&w);
    json_free(v);
}

static void put_call(const job *j, const item *it, bool is_done, const char *status, buf *out) {
    static const char *const types[] = {"function_call", "custom_tool_call", "local_shell_call"};
    tool_kind kind = kind_of(j, it);
    buf input = BUF_INIT;
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"%s\",\"status\":\"%s\",\"call_id\":\"%s\"", it->id,
        types[kind], status, it->call_id);
    if (kind == TOOL_SHELL) {
        buf_puts(out, ",\"action\":");
        put_shell_action(it, out);
    } else if (kind == TOOL_CUSTOM) {
        put_name(it, out);
        if (is_done) get_argument(it, "input", &input);
        buf_puts(out, ",\"input\":");
        put_string(out, &input);
    } else {
        put_name(it, out);
        if (is_done) buf_append(&input, buf_cstr(&it->text), it->text.len);
        buf_puts(out, ",\"arguments\":");
        put_string(out, &input);
    }
    buf_putc(out, '}');
    buf_release(&input);
}

/* A call that did not come to its end, or a text that the limit cut. */
static const char *status_of(const job *j, const item *it) {
    gen_result r;
    if (it->kind == ITEM_CALL) return it->is_ended && !it->is_dropped ? "completed" : "incomplete";
    generation_result(j->choices[0].gen, &r);
    const items *said = &j->choices[0].said;
    bool is_cut = r.finish_reason != NULL && strcmp(r.finish_reason, "length") == 0;
    return is_cut && it == &said->list[said->n - 1] ? "incomplete" : "completed";
}

static void put_item(const job *j, const item *it, bool is_done, buf *out) {
    const char *status = is_done ? status_of(j, it) : "in_progress";
    if (it->kind == ITEM_REASONING) {
        put_reasoning(j, it, is_done, out);
    } else if (it->kind == ITEM_TEXT) {
        put_message(it, is_done, status, out);
    } else {
        put_call(j, it, is_done, status, out);
    }
}

/* ---- the response object ---- */

static void put_echo(const job *j, const char *key, const char *otherwise, buf *out) {
    const json *v = field_get(j->body, key);
    buf_printf(out, ",\"%s\":", key);
    if (v != NULL) {
        json_print_compact(v, out);
    } else {
        buf_puts(out, otherwise);
    }
}

static void put_settings(const job *j, buf *out) {
    const json *reasoning = field_get(j->body, "reasoning");
    const json *format = field_get(field_get(j->body, "text"), "format");
    put_echo(j, "instructions", "null", out);
    put_echo(j, "max_output_tokens", "null", out);
    put_echo(j, "parallel_tool_calls", "true", out);
    put_echo(j, "tool_choice", "\"auto\"", out);
    put_echo(j, "tools", "[]", out);
    put_echo(j, "metadata", "{}", out);
    put_echo(j, "user", "null", out);
    buf_printf(out, ",\"temperature\":%.7g,\"top_p\":%.7g", (double)j->params.sampling.temperature,
        (double)j->params.sampling.top_p);
    buf_puts(out, ",\"reasoning\":{\"effort\":");
    json_w w;
    json_w_begin(&w, out);
    json_w_value(&w, field_get(reasoning, "effort"));
    json_w_end(&w);
    buf_puts(out, ",\"summary\":");
    json_w_begin(&w, out);
    json_w_value(&w, field_get(reasoning, "summary"));
    json_w_end(&w);
    buf_puts(out, "},\"text\":{\"format\":");
    if (format != NULL) {
        json_print_compact(format, out);
    } else {
        buf_puts(out, "{\"type\":\"text\"}");
    }
    buf_puts(out, "},\"previous_response_id\":null,\"store\":false,\"truncation\":\"disabled\","
                  "\"background\":false,\"service_tier\":\"default\"");
}

static void put_usage(const job *j, buf *out) {
    usage_sum s;
    usage_count(j, &s);
    buf_printf(out,
        ",\"usage\":{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld},"
        "\"output_tokens\":%lld,\"output_tokens_details\":{\"reasoning_tokens\":%lld},"
        "\"total_tokens\":%lld}",
        (long long)s.n_prompt, (long long)s.n_cached, (long long)s.n_completion,
        (long long)s.n_reasoning, (long long)(s.n_prompt + s.n_completion));
}

/* Calls other than of functions are shown when they are complete: a client runs their command or
 * input as it stands, and nobody may run a part of it. The arguments of a function are text that
 * stays unfinished when the call was cut. */
static bool comes_whole(const job *j, const item *it) {
    return it->kind == ITEM_CALL && kind_of(j, it) != TOOL_FUNCTION;
}

static bool is_hidden(const job *j, const item *it) {
    return comes_whole(j, it) && !item_is_whole(it);
}

/* Where an item stands among those that are shown. */
static int place_of(const job *j, int i) {
    int n = 0;
    for (int k = 0; k < i; k++) {
        n += !is_hidden(j, &j->choices[0].said.list[k]);
    }
    return n;
}

static void put_output(const job *j, buf *out) {
    const items *said = &j->choices[0].said;
    bool is_first = true;
    buf_puts(out, ",\"output\":[");
    for (int i = 0; i < said->n; i++) {
        if (is_hidden(j, &said->list[i])) continue;
        if (!is_first) buf_putc(out, ',');
        is_first = false;
        put_item(j, &said->list[i], true, out);
    }
    buf_putc(out, ']');
}

/* failure NULL: none. The status is the one of the reply when it has ended. */
static void put_response(const job *j, const char *status, const api_error *failure, buf *out) {
    bool is_open = strcmp(status, "in_progress") == 0;
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%llu,\"status\":\"%s\"",
        j->id, (unsigned long long)j->created_s, status);
    buf_puts(out, ",\"error\":");
    if (failure != NULL) {
        buf_printf(out, "{\"code\":\"%s\",\"message\":",
            failure->code != NULL ? failure->code : "server_error");
        json_quote(out, failure->message, strlen(failure->message));
        buf_putc(out, '}');
    } else {
        buf_puts(out, "null");
    }
    buf_puts(out, strcmp(status, "incomplete") == 0
                      ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"}"
                      : ",\"incomplete_details\":null");
    buf_puts(out, ",\"model\":");
    json_quote(out, j->a->options.model_id, strlen(j->a->options.model_id));
    put_settings(j, out);
    if (is_open) {
        buf_puts(out, ",\"output\":[],\"usage\":null}");
        return;
    }
    put_output(j, out);
    put_usage(j, out);
    buf_putc(out, '}');
}

static const char *end_status(const job *j) {
    gen_result r;
    generation_result(j->choices[0].gen, &r);
    return strcmp(r.finish_reason, "length") == 0 ? "incomplete" : "completed";
}

/* ---- whole ---- */

static void take(job *j, const gen_event *event) {
    bool is_new = false;
    item *it = items_take(&j->choices[0].said, event, &is_new);
    if (it != NULL) name_item(j, it);
    keep_logprobs(j, event);
}

static void print(job *j, buf *out) {
    put_response(j, end_status(j), NULL, out);
}

/* ---- streamed ---- */

static void open_event(job *j, const char *type) {
    job_open_event(j, type);
    buf_printf(j->out, "{\"type\":\"%s\",\"sequence_number\":%d", type, j->n_sequence++);
}

static void close_event(job *j) {
    buf_puts(j->out, "}\n\n");
}

static void start(job *j) {
    static const char *const types[] = {"response.created", "response.in_progress"};
    responses_own *own = own_of(j);
    if (own->has_started) return;
    own->has_started = true;
    for (int i = 0; i < 2; i++) {
        open_event(j, types[i]);
        buf_puts(j->out, ",\"response\":");
        put_response(j, "in_progress", NULL, j->out);
        close_event(j);
    }
}

/* item_id and output_index, which every event of an item carries. */
static void put_place(job *j, int i) {
    buf_printf(j->out, ",\"item_id\":\"%s\",\"output_index\":%d", j->choices[0].said.list[i].id,
        place_of(j, i));
}

static void put_item_event(job *j, int i, bool is_done) {
    open_event(j, is_done ? "response.output_item.done" : "response.output_item.added");
    buf_printf(j->out, ",\"output_index\":%d,\"item\":", place_of(j, i));
    put_item(j, &j->choices[0].said.list[i], is_done, j->out);
    close_event(j);
}

static void put_text_event(job *j, int i, const char *type, const char *rest, const buf *text) {
    open_event(j, type);
    put_place(j, i);
    buf_puts(j->out, rest);
    put_string(j->out, text);
    close_event(j);
}

static void end_reasoning(job *j, int i) {
    const item *it = &j->choices[0].said.list[i];
    put_text_event(
        j, i, "response.reasoning_text.done", ",\"content_index\":0,\"text\":", &it->text);
    if (!wants_summary(j)) return;
    open_event(j, "response.reasoning_summary_part.added");
    put_place(j, i);
    buf_puts(j->out, ",\"summary_index\":0,\"part\":{\"type\":\"summary_text\",\"text\":\"\"}");
    close_event(j);
    put_text_event(j, i, "response.reasoning_summary_text.delta",
        ",\"summary_index\":0,\"delta\":", &it->text);
    put_text_event(
        j, i, "response.reasoning_summary_text.done", ",\"summary_index\":0,\"text\":", &it->text);
    open_event(j, "response.reasoning_summary_part.done");
    put_place(j, i);
    buf_puts(j->out, ",\"summary_index\":0,\"part\":{\"type\":\"summary_text\",\"text\":");
    put_string(j->out, &it->text);
    buf_putc(j->out, '}');
    close_event(j);
}

static void end_text(job *j, int i) {
    const item *it = &j->choices[0].said.list[i];
    open_event(j, "response.output_text.done");
    put_place(j, i);
    buf_puts(j->out, ",\"content_index\":0");
    put_logprobs(&it->logprobs, j->out);
    buf_puts(j->out, ",\"text\":");
    put_string(j->out, &it->text);
    close_event(j);
    open_event(j, "response.content_part.done");
    put_place(j, i);
    buf_puts(j->out, ",\"content_index\":0,\"part\":");
    put_text_part(it, true, j->out);
    close_event(j);
}

static void end_call(job *j, int i) {
    const item *it = &j->choices[0].said.list[i];
    tool_kind kind = kind_of(j, it);
    buf input = BUF_INIT;
    if (kind == TOOL_FUNCTION) {
        put_text_event(j, i, "response.function_call_arguments.done", ",\"arguments\":", &it->text);
    } else if (kind == TOOL_CUSTOM) {
        get_argument(it, "input", &input);
        put_text_event(j, i, "response.custom_tool_call_input.delta", ",\"delta\":", &input);
        put_text_event(j, i, "response.custom_tool_call_input.done", ",\"input\":", &input);
    }
    buf_release(&input);
}

static void end_item(job *j) {
    responses_own *own = own_of(j);
    int i = own->i_open;
    if (i < 0) return;
    const item *it = &j->choices[0].said.list[i];
    own->i_open = -1;
    if (is_hidden(j, it)) return;
    if (comes_whole(j, it)) put_item_event(j, i, false);
    switch (it->kind) {
    case ITEM_REASONING:
        end_reasoning(j, i);
        break;
    case ITEM_TEXT:
        end_text(j, i);
        break;
    case ITEM_CALL:
        end_call(j, i);
        break;
    }
    put_item_event(j, i, true);
}

static void begin_item(job *j, int i) {
    const item *it = &j->choices[0].said.list[i];
    end_item(j);
    own_of(j)->i_open = i;
    if (!comes_whole(j, it)) put_item_event(j, i, false);
    if (it->kind != ITEM_TEXT) return;
    open_event(j, "response.content_part.added");
    put_place(j, i);
    buf_puts(j->out, ",\"content_index\":0,\"part\":");
    put_text_part(it, false, j->out);
    close_event(j);
}

static void put_delta(job *j, int i, const gen_event *event) {
    const item *it = &j->choices[0].said.list[i];
    static const char *const types[] = {"response.reasoning_text.delta",
        "response.output_text.delta", "response.function_call_arguments.delta"};
    if (comes_whole(j, it)) return;
    open_event(j, types[it->kind]);
    put_place(j, i);
    if (it->kind != ITEM_CALL) buf_puts(j->out, ",\"content_index\":0");
    if (it->kind == ITEM_TEXT) {
        buf list = BUF_INIT, reasoning = BUF_INIT;
        job_collect_logprobs(j, event, &list, &reasoning);
        put_logprobs(&list, j->out);
        buf_release(&list);
        buf_release(&reasoning);
    }
    buf_puts(j->out, ",\"delta\":");
    json_quote(j->out, event->text, event->len);
    close_event(j);
}

static void event(job *j, const gen_event *event) {
    bool is_new = false;
    start(j);
    item *it = items_take(&j->choices[0].said, event, &is_new);
    keep_logprobs(j, event);
    if (it == NULL) return;
    int i = (int)(it - j->choices[0].said.list);
    name_item(j, it);
    if (event->kind == GEN_CALL_END || event->kind == GEN_CALL_DROP) {
        if (own_of(j)->i_open == i) end_item(j);
        return;
    }
    if (is_new) begin_item(j, i);
    if (event->kind != GEN_CALL && own_of(j)->i_open == i) put_delta(j, i, event);
}

static void finish(job *j, int i_choice) {
    (void)i_choice;
    start(j);
    end_item(j);
}

static void end(job *j) {
    const char *status = end_status(j);
    open_event(j, strcmp(status, "completed") == 0 ? "response.completed" : "response.incomplete");
    buf_puts(j->out, ",\"response\":");
    put_response(j, status, NULL, j->out);
    close_event(j);
}

static void fail(job *j, const api_error *e) {
    start(j);
    open_event(j, "response.failed");
    buf_puts(j->out, ",\"response\":");
    put_response(j, "failed", e, j->out);
    close_event(j);
}

static void wait(job *j, const run_progress *p) {
    start(j);
    job_wait_comment(j, p);
}

const job_form form_responses = {.id_prefix = "resp_",
    .call_prefix = "call_",
    .event = event,
    .take = take,
    .finish = finish,
    .end = end,
    .fail = fail,
    .wait = wait,
    .print = print};
