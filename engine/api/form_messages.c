/* The words of Anthropic's Messages (api.md 5). */
#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/job.h"
#include "engine/base/mem.h"

/* Blocks stand one after another; only the newest is open. A call is shown when it is complete: its
 * input is an object, of which a part could be taken for the whole. */
typedef struct messages_own {
    bool has_started;
    bool is_open;
    item_kind kind; /* of the open block */
    int n_blocks;
} messages_own;

static messages_own *own_of(job *j) {
    job_choice *c = &j->choices[0];
    if (c->own == NULL) c->own = mem_alloc(sizeof(messages_own));
    return c->own;
}

/* Thinking is signed for the client's sake; it comes back unchecked. */
static void put_signature(const job *j, buf *out) {
    buf_printf(out, "tandem-%.64s", j->id);
}

static bool has_whole_call(const items *said) {
    for (int i = 0; i < said->n; i++) {
        if (said->list[i].kind == ITEM_CALL && item_is_whole(&said->list[i])) return true;
    }
    return false;
}

/* tool_use without a block of that kind would leave a client waiting for one. */
static const char *reason_of(const items *said, const gen_result *r) {
    if (r->i_stop >= 0) return "stop_sequence";
    if (strcmp(r->finish_reason, "length") == 0) return "max_tokens";
    bool is_call = strcmp(r->finish_reason, "tool_calls") == 0;
    return is_call && has_whole_call(said) ? "tool_use" : "end_turn";
}

static void put_stop(const job *j, buf *out) {
    gen_result r;
    generation_result(j->choices[0].gen, &r);
    buf_printf(
        out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason_of(&j->choices[0].said, &r));
    if (r.i_stop >= 0) {
        json_quote(out, j->params.stops[r.i_stop], strlen(j->params.stops[r.i_stop]));
    } else {
        buf_puts(out, "null");
    }
}

static void put_usage(const job *j, int64_t n_output, buf *out) {
    usage_sum s;
    usage_count(j, &s);
    buf_printf(out,
        "{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%lld,"
        "\"output_tokens\":%lld}",
        (long long)(s.n_prompt - s.n_cached), (long long)s.n_cached,
        (long long)(n_output >= 0 ? n_output : s.n_completion));
}

static void put_head(const job *j, buf *out) {
    buf_printf(out, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", j->id);
    json_quote(out, j->a->options.model_id, strlen(j->a->options.model_id));
}

/* ---- whole ---- */

static void take(job *j, const gen_event *event) {
    bool is_new = false;
    items_take(&j->choices[0].said, event, &is_new);
}

static void put_block(const job *j, const item *it, buf *out) {
    switch (it->kind) {
    case ITEM_REASONING:
        buf_puts(out, "{\"type\":\"thinking\",\"thinking\":");
        json_quote(out, buf_cstr(&it->text), it->text.len);
        buf_puts(out, ",\"signature\":\"");
        put_signature(j, out);
        buf_puts(out, "\"}");
        return;
    case ITEM_TEXT:
        buf_puts(out, "{\"type\":\"text\",\"text\":");
        json_quote(out, buf_cstr(&it->text), it->text.len);
        buf_putc(out, '}');
        return;
    case ITEM_CALL:
        buf_printf(out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", it->call_id);
        json_quote(out, buf_cstr(&it->name), it->name.len);
        buf_puts(out, ",\"input\":");
        buf_append(out, buf_cstr(&it->text), it->text.len);
        buf_putc(out, '}');
        return;
    }
}

static void print(job *j, buf *out) {
    const items *said = &j->choices[0].said;
    bool is_first = true;
    put_head(j, out);
    buf_puts(out, ",\"content\":[");
    for (int i = 0; i < said->n; i++) {
        if (!item_is_whole(&said->list[i])) continue;
        if (!is_first) buf_putc(out, ',');
        is_first = false;
        put_block(j, &said->list[i], out);
    }
    buf_puts(out, "],");
    put_stop(j, out);
    buf_puts(out, ",\"usage\":");
    put_usage(j, -1, out);
    buf_putc(out, '}');
}

/* ---- streamed ---- */

static void start_message(job *j) {
    messages_own *own = own_of(j);
    if (own->has_started) return;
    own->has_started = true;
    job_open_event(j, "message_start");
    buf_puts(j->out, "{\"type\":\"message_start\",\"message\":");
    put_head(j, j->out);
    buf_puts(j->out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    put_usage(j, 1, j->out);
    buf_puts(j->out, "}}\n\n");
}

static void open_delta(job *j, const char *type) {
    job_open_event(j, "content_block_delta");
    buf_printf(j->out, "{\"type\":\"content_block_delta\",\"index\":%d,\"delta\":{\"type\":\"%s\",",
        own_of(j)->n_blocks - 1, type);
}

static void close_block(job *j) {
    messages_own *own = own_of(j);
    if (!own->is_open) return;
    own->is_open = false;
    if (own->kind == ITEM_REASONING) {
        open_delta(j, "signature_delta");
        buf_puts(j->out, "\"signature\":\"");
        put_signature(j, j->out);
        buf_puts(j->out, "\"}}\n\n");
    }
    job_open_event(j, "content_block_stop");
    buf_printf(j->out, "{\"type\":\"content_block_stop\",\"index\":%d}\n\n", own->n_blocks - 1);
}

/* it: the call, when it is one. */
static void open_block(job *j, item_kind kind, const item *it) {
    messages_own *own = own_of(j);
    close_block(j);
    own->is_open = true;
    own->kind = kind;
    job_open_event(j, "content_block_start");
    buf_printf(j->out,
        "{\"type\":\"content_block_start\",\"index\":%d,\"content_block\":", own->n_blocks++);
    if (kind == ITEM_REASONING) {
        buf_puts(j->out, "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n");
    } else if (kind == ITEM_TEXT) {
        buf_puts(j->out, "{\"type\":\"text\",\"text\":\"\"}}\n\n");
    } else {
        buf_printf(j->out, "{\"type\":\"tool_use\",\"id\":\"%s\",\"name\":", it->call_id);
        json_quote(j->out, buf_cstr(&it->name), it->name.len);
        buf_puts(j->out, ",\"input\":{}}}\n\n");
        open_delta(j, "input_json_delta");
        buf_puts(j->out, "\"partial_json\":\"\"}}\n\n");
    }
}

static void put_text(job *j, const gen_event *event, item_kind kind) {
    messages_own *own = own_of(j);
    bool is_text = kind == ITEM_TEXT;
    if (!own->is_open || own->kind != kind) open_block(j, kind, NULL);
    open_delta(j, is_text ? "text_delta" : "thinking_delta");
    buf_puts(j->out, is_text ? "\"text\":" : "\"thinking\":");
    json_quote(j->out, event->text, event->len);
    buf_puts(j->out, "}}\n\n");
}

static void put_call(job *j, const item *it) {
    open_block(j, ITEM_CALL, it);
    open_delta(j, "input_json_delta");
    buf_puts(j->out, "\"partial_json\":");
    json_quote(j->out, buf_cstr(&it->text), it->text.len);
    buf_puts(j->out, "}}\n\n");
    close_block(j);
}

static void event(job *j, const gen_event *event) {
    bool is_new = false;
    start_message(j);
    const item *it = items_take(&j->choices[0].said, event, &is_new);
    if (event->kind == GEN_REASONING) put_text(j, event, ITEM_REASONING);
    if (event->kind == GEN_CONTENT) put_text(j, event, ITEM_TEXT);
    if (event->kind == GEN_CALL) close_block(j);
    if (event->kind == GEN_CALL_END && it != NULL && item_is_whole(it)) put_call(j, it);
}

static void finish(job *j, int i_choice) {
    (void)i_choice;
    start_message(j);
    close_block(j);
    job_open_event(j, "message_delta");
    buf_puts(j->out, "{\"type\":\"message_delta\",\"delta\":{");
    put_stop(j, j->out);
    buf_puts(j->out, "},\"usage\":");
    put_usage(j, -1, j->out);
    buf_puts(j->out, "}\n\n");
}

static void end(job *j) {
    job_open_event(j, "message_stop");
    buf_puts(j->out, "{\"type\":\"message_stop\"}\n\n");
}

static void fail(job *j, const api_error *e) {
    job_open_event(j, "error");
    api_error_print(e, API_SHAPE_ANTHROPIC, NULL, j->out);
    buf_puts(j->out, "\n\n");
}

/* Before message_start there may be no ping, so a comment stands for it. */
static void wait(job *j, const run_progress *p) {
    if (!own_of(j)->has_started) {
        job_wait_comment(j, p);
        return;
    }
    job_open_event(j, "ping");
    buf_puts(j->out, "{\"type\":\"ping\"}\n\n");
}

const job_form form_messages = {.id_prefix = "msg_",
    .call_prefix = "toolu_",
    .event = event,
    .take = take,
    .finish = finish,
    .end = end,
    .fail = fail,
    .wait = wait,
    .print = print};
