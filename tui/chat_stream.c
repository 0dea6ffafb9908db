#include "tui/chat_stream.h"

#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

enum { REPLY_MAX_BYTES = 64 << 20, CALL_MAX_BYTES = 16 << 20 };

void chat_stream_init(chat_stream *s, chat_event_fn on_event, void *ctx) {
    *s = (chat_stream){.content = BUF_MAX(REPLY_MAX_BYTES),
        .reasoning = BUF_MAX(REPLY_MAX_BYTES),
        .on_event = on_event,
        .ctx = ctx};
    s->usage = (chat_usage){-1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
}

void chat_stream_release(chat_stream *s) {
    buf_release(&s->content);
    buf_release(&s->reasoning);
    for (int i = 0; i < s->n_calls; i++) {
        mem_free(s->calls[i].id);
        mem_free(s->calls[i].name);
        buf_release(&s->calls[i].arguments);
    }
    s->n_calls = 0;
}

static void give(chat_stream *s, chat_event_kind kind, const char *text, size_t len, int i_call) {
    chat_event ev = {kind, text, len, i_call};
    if (s->on_event != NULL) s->on_event(s->ctx, &ev);
}

static int take_text(chat_stream *s, const json *v, chat_event_kind kind, err *e) {
    buf text = BUF_INIT;
    if (!json_is_string(v) || json_str_bytes(v, &text) != OK || text.len == 0) {
        buf_release(&text);
        return OK;
    }
    buf *into = kind == CHAT_EVENT_CONTENT ? &s->content : &s->reasoning;
    int rc = buf_append(into, text.data, text.len);
    if (rc != OK) {
        err_set(e, rc, "the reply is longer than %d MiB", REPLY_MAX_BYTES >> 20);
    } else {
        give(s, kind, text.data, text.len, 0);
    }
    buf_release(&text);
    return rc;
}

/* A name or id only ever becomes known; empty and null ones of later deltas change nothing. */
static void keep_identity(char **slot, const json *v) {
    const char *text = json_str(v);
    if (text == NULL || text[0] == '\0' || *slot != NULL) return;
    *slot = mem_strdup(text);
}

static int take_call(chat_stream *s, const json *v, int i_default, err *e) {
    int64_t index = i_default;
    json_i64(json_get(v, "index"), &index);
    if (index < 0 || index >= CHAT_MAX_CALLS || index > s->n_calls) {
        return err_set(
            e, ERR_FORMAT, "the stream sent tool call %lld out of order", (long long)index);
    }
    if (index == s->n_calls) {
        s->calls[s->n_calls++] = (chat_call){.arguments = BUF_MAX(CALL_MAX_BYTES)};
    }
    chat_call *c = &s->calls[index];
    const json *function = json_get(v, "function");
    keep_identity(&c->id, json_get(v, "id"));
    keep_identity(&c->name, json_get(function, "name"));
    buf piece = BUF_INIT;
    int rc = OK;
    if (json_is_string(json_get(function, "arguments"))) {
        rc = json_str_bytes(json_get(function, "arguments"), &piece);
        if (rc == OK) rc = buf_append(&c->arguments, buf_cstr(&piece), piece.len);
        if (rc != OK) err_set(e, rc, "the arguments of a tool call are too long");
    }
    if (rc == OK) give(s, CHAT_EVENT_TOOL, buf_cstr(&piece), piece.len, (int)index);
    buf_release(&piece);
    return rc;
}

static void take_usage(chat_stream *s, const json *root) {
    const json *u = json_get(root, "usage"), *t = json_get(root, "timings");
    bool has_new = json_is_object(u) || json_is_object(t);
    if (!has_new) return;
    chat_usage *o = &s->usage;
    json_i64(json_get(u, "prompt_tokens"), &o->prompt_tokens);
    json_i64(json_get(u, "completion_tokens"), &o->completion_tokens);
    json_i64(json_get(u, "total_tokens"), &o->total_tokens);
    json_i64(json_get(json_get(u, "prompt_tokens_details"), "cached_tokens"), &o->cached_tokens);
    json_i64(json_get(json_get(u, "completion_tokens_details"), "reasoning_tokens"),
        &o->reasoning_tokens);
    json_double(json_get(t, "prompt_ms"), &o->prompt_ms);
    json_double(json_get(t, "predicted_ms"), &o->predicted_ms);
    json_double(json_get(t, "predicted_per_second"), &o->predicted_per_second);
    json_i64(json_get(t, "draft_n"), &o->draft_n);
    json_i64(json_get(t, "draft_n_accepted"), &o->draft_n_accepted);
    s->has_usage = s->has_usage || json_is_object(u);
    give(s, CHAT_EVENT_USAGE, "", 0, 0);
}

/* delta of a stream or message of a whole answer: the fields are the same. */
static int take_delta(chat_stream *s, const json *delta, err *e) {
    if (json_is_string(json_get(delta, "role"))) give(s, CHAT_EVENT_ROLE, "", 0, 0);
    const json *reasoning = json_get(delta, "reasoning_content");
    if (!json_is_string(reasoning)) reasoning = json_get(delta, "reasoning");
    int rc = take_text(s, reasoning, CHAT_EVENT_REASONING, e);
    if (rc == OK) rc = take_text(s, json_get(delta, "content"), CHAT_EVENT_CONTENT, e);
    int i = 0;
    JSON_EACH(call, json_get(delta, "tool_calls")) {
        if (rc == OK) rc = take_call(s, call, i++, e);
    }
    return rc;
}

static void take_finish(chat_stream *s, const json *choice) {
    const char *finish = json_str(json_get(choice, "finish_reason"));
    if (finish == NULL || finish[0] == '\0') return;
    str_copy(s->finish, sizeof s->finish, finish);
    give(s, CHAT_EVENT_FINISH, s->finish, strlen(s->finish), 0);
}

static int error_object(const json *error, err *e) {
    const char *message = json_str(json_get(error, "message"));
    const char *code = json_str(json_get(error, "code"));
    if (message == NULL) message = json_str(error);
    int rc = str_eq(code, "loading") || str_eq(code, "queue_full") ? ERR_BUSY : ERR_NET;
    if (str_eq(json_str(json_get(error, "type")), "invalid_request_error")) rc = ERR_ARG;
    return err_set(e, rc, "%s", message != NULL ? message : "the engine reported an error");
}

static int take_chunk(chat_stream *s, const json *root, const char *part, err *e) {
    const json *error = json_get(root, "error");
    if (error != NULL && !json_is_null(error)) return error_object(error, e);
    const char *id = json_str(json_get(root, "id"));
    if (id != NULL && s->id[0] == '\0') str_copy(s->id, sizeof s->id, id);
    int rc = OK;
    JSON_EACH(choice, json_get(root, "choices")) {
        int64_t index = 0;
        json_i64(json_get(choice, "index"), &index);
        if (index != 0) continue; /* we ask for one choice */
        rc = take_delta(s, json_get(choice, part), e);
        if (rc != OK) return rc;
        take_finish(s, choice);
    }
    take_usage(s, root);
    return OK;
}

static int take_json(chat_stream *s, const char *data, size_t len, const char *part, err *e) {
    json *root = NULL;
    err why = ERR_INIT;
    int rc = json_parse(data, len, NULL, &root, &why);
    if (rc != OK || !json_is_object(root)) {
        json_free(root);
        return err_set(e, ERR_FORMAT, "the engine sent an event that is no JSON object%s%s",
            rc != OK ? ": " : "", why.msg);
    }
    rc = take_chunk(s, root, part, e);
    json_free(root);
    return rc;
}

int chat_stream_data(chat_stream *s, const char *data, size_t len, err *e) {
    if (s->is_done) return OK;
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) {
        s->is_done = true;
        give(s, CHAT_EVENT_DONE, "", 0, 0);
        return OK;
    }
    return take_json(s, data, len, "delta", e);
}

int chat_stream_whole(chat_stream *s, const char *data, size_t len, err *e) {
    int rc = take_json(s, data, len, "message", e);
    if (rc != OK) return rc;
    s->is_done = true;
    give(s, CHAT_EVENT_DONE, "", 0, 0);
    return OK;
}

int chat_stream_end(const chat_stream *s, err *e) {
    if (s->is_done) return OK;
    return err_set(e, ERR_NET, "the connection to the engine ended before the reply was complete");
}

int chat_error_body(int status, const char *body, size_t len, err *e) {
    json *root = NULL;
    int rc = status == 503 || status == 429 ? ERR_BUSY
             : status == 404                ? ERR_NOT_FOUND
             : status == 401                ? ERR_AUTH
             : status < 500                 ? ERR_ARG
                                            : ERR_NET;
    const char *message = NULL;
    if (json_parse(body, len, NULL, &root, NULL) == OK) {
        message = json_str(json_get(json_get(root, "error"), "message"));
    }
    if (message != NULL) {
        err_set(e, rc, "%s", message);
    } else {
        err_set(e, rc, "the engine answered with status %d", status);
    }
    json_free(root);
    return rc;
}
