#include "tui/turn.h"

#include <poll.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

typedef struct running {
    const turn_request *request;
    turn_result *result;
    client_call *call;
    uint64_t sent_ms;
    bool is_over;
} running;

int turn_messages(const session *s, chat_message **out, int *n) {
    int n_path = session_path(s, NULL, 0);
    int *ids = mem_array((size_t)n_path + 1, sizeof *ids);
    chat_message *messages = mem_array((size_t)n_path + 1, sizeof *messages);
    session_path(s, ids, n_path);
    *n = 0;
    for (int i = 0; i < n_path; i++) {
        const session_turn *t = session_turn_at(s, ids[i]);
        /* A reply that ended before its first word says nothing to the model. */
        bool is_empty = t->text[0] == '\0' && t->tool_calls == NULL && t->think == NULL;
        if (t->role == SESSION_ASSISTANT && is_empty) continue;
        messages[(*n)++] = (chat_message){.role = session_role_name(t->role),
            .content = t->text,
            .reasoning = t->think,
            .tool_calls_json = t->tool_calls};
    }
    mem_free(ids);
    *out = messages;
    return OK;
}

static double since(const running *r) {
    return (double)(clock_mono_ms() - r->sent_ms) / 1000.0;
}

static void keep(running *r, int rc, const err *why) {
    if (rc != OK && r->result->kept.code == OK) r->result->kept = *why;
}

static void take_text(running *r, const chat_event *ev) {
    bool is_think = ev->kind == CHAT_EVENT_REASONING;
    turn_result *res = r->result;
    err why = ERR_INIT;
    res->last_s = since(r);
    if (res->first_s < 0) res->first_s = res->last_s;
    if (!is_think && res->content_s < 0) res->content_s = res->last_s;
    keep(r, session_reply_append(r->request->session, ev->text, ev->len, is_think, &why), &why);
    const turn_printer *p = &r->request->printer;
    p->on_part(p->ctx, is_think ? TURN_THINKING : TURN_TEXT, ev->text, ev->len);
}

static void keep_calls(running *r, const chat_stream *s) {
    if (s->n_calls == 0) return;
    buf out = BUF_INIT;
    json_w w;
    err why = ERR_INIT;
    json_w_begin(&w, &out);
    json_w_array(&w);
    for (int i = 0; i < s->n_calls; i++) {
        const chat_call *c = &s->calls[i];
        json_w_object(&w);
        json_w_kstr(&w, "id", c->id != NULL ? c->id : "");
        json_w_kstr(&w, "type", "function");
        json_w_key(&w, "function");
        json_w_object(&w);
        json_w_kstr(&w, "name", c->name != NULL ? c->name : "");
        json_w_kstr(&w, "arguments", buf_cstr(&c->arguments));
        json_w_close(&w);
        json_w_close(&w);
    }
    json_w_close(&w);
    json_w_end(&w);
    keep(r, session_reply_tool_calls(r->request->session, buf_cstr(&out), &why), &why);
    buf_release(&out);
}

static void take_end(running *r, const client_event *ev) {
    turn_result *res = r->result;
    res->usage = ev->reply->usage;
    res->total_s = since(r);
    res->n_calls = ev->reply->n_calls;
    str_copy(res->finish, sizeof res->finish, ev->reply->finish);
    str_copy(res->reply_id, sizeof res->reply_id, ev->reply->id);
    keep_calls(r, ev->reply);
    if (ev->error == NULL) {
        res->state = str_eq(res->finish, "length") ? SESSION_CUT : SESSION_DONE;
    } else if (ev->error->code == ERR_CANCELLED) {
        res->state = SESSION_STOPPED;
    } else {
        res->state = SESSION_FAILED;
        res->error = *ev->error;
    }
    r->is_over = true;
}

static void on_event(void *ctx, const client_event *ev) {
    running *r = ctx;
    const turn_printer *p = &r->request->printer;
    switch (ev->kind) {
    case CLIENT_CHAT:
        if (ev->chat->kind == CHAT_EVENT_REASONING || ev->chat->kind == CHAT_EVENT_CONTENT) {
            take_text(r, ev->chat);
        } else if (ev->chat->kind == CHAT_EVENT_TOOL) {
            p->on_part(p->ctx, TURN_CALL, ev->chat->text, ev->chat->len);
        }
        break;
    case CLIENT_PROGRESS:
        if (p->on_progress != NULL) p->on_progress(p->ctx, ev->done, ev->total);
        break;
    case CLIENT_END:
        take_end(r, ev);
        break;
    case CLIENT_OPEN:
        p->on_part(p->ctx, TURN_WAITING, "", 0);
        break;
    case CLIENT_STATS:
    case CLIENT_LOST:
        break;
    }
}

static void pump_until_over(running *r) {
    const turn_request *q = r->request;
    while (!r->is_over) {
        client_pump(q->client);
        if (r->is_over) return;
        const turn_printer *p = &q->printer;
        if (p->is_closed != NULL && p->is_closed(p->ctx)) client_cancel(q->client, r->call);
        err why = ERR_INIT;
        keep(r, session_tick(q->session, (int64_t)clock_mono_ms(), &why), &why);
        int wait = client_timeout_ms(q->client);
        /* The journal wants a look once a second. */
        if (wait < 0 || wait > 250) wait = 250;
        struct pollfd fds[2] = {
            {.fd = client_fd(q->client), .events = POLLIN}, {.fd = q->stop_fd, .events = POLLIN}};
        if (poll(fds, q->stop_fd >= 0 ? 2 : 1, wait) > 0 && fds[1].revents != 0) {
            client_cancel(q->client, r->call);
        }
    }
}

static int start(running *r, err *e) {
    const turn_request *q = r->request;
    chat_request chat = {.options = q->settings->options, .limits = {.stall_ms = 60000}};
    chat_message *messages = NULL;
    chat.options.is_continuation = q->continue_id != 0;
    turn_messages(q->session, &messages, &chat.n_messages);
    chat.messages = messages;
    int rc = client_chat(q->client, &chat, (client_sink){on_event, r}, &r->call, e);
    mem_free(messages);
    if (rc != OK) return rc;
    buf settings = BUF_INIT;
    chat_settings_json(q->settings, &settings);
    rc = q->continue_id != 0 ? session_reply_reopen(q->session, q->continue_id, e)
                             : session_reply_begin(q->session, buf_cstr(&settings), NULL, e);
    buf_release(&settings);
    if (rc != OK) {
        client_cancel(q->client, r->call);
        client_pump(q->client);
    }
    return rc;
}

int turn_run(const turn_request *q, turn_result *out, err *e) {
    *out = (turn_result){.first_s = -1, .content_s = -1, .last_s = -1};
    running r = {.request = q, .result = out, .sent_ms = clock_mono_ms()};
    int rc = start(&r, e);
    if (rc != OK) return rc;
    pump_until_over(&r);
    buf stats = BUF_INIT;
    err why = ERR_INIT;
    turn_stats_json(out, &stats);
    rc = session_reply_end(q->session, out->state, buf_cstr(&stats),
        out->state == SESSION_FAILED ? out->error.msg : NULL, &why);
    keep(&r, rc, &why);
    buf_release(&stats);
    return OK;
}

static void put_known(json_w *w, const char *key, int64_t v) {
    if (v >= 0) {
        json_w_ki64(w, key, v);
    } else {
        json_w_knull(w, key);
    }
}

static void put_seconds(json_w *w, const char *key, double v) {
    json_w_key(w, key);
    if (v >= 0) {
        json_w_fixed(w, v, 3);
    } else {
        json_w_null(w);
    }
}

/* Tokens per second between the first and the last text; negative when it cannot be known. */
static double rate(const turn_result *r) {
    if (r->usage.predicted_per_second > 0) return r->usage.predicted_per_second;
    double seconds = r->last_s - r->first_s;
    if (r->usage.completion_tokens < 2 || seconds <= 0) return -1;
    return (double)(r->usage.completion_tokens - 1) / seconds;
}

void turn_stats_json(const turn_result *r, buf *out) {
    json_w w;
    json_w_begin(&w, out);
    json_w_object(&w);
    put_known(&w, "prompt_tokens", r->usage.prompt_tokens);
    put_known(&w, "cached_tokens", r->usage.cached_tokens);
    put_known(&w, "completion_tokens", r->usage.completion_tokens);
    put_known(&w, "reasoning_tokens", r->usage.reasoning_tokens);
    put_known(&w, "draft_tokens", r->usage.draft_n);
    put_known(&w, "draft_tokens_accepted", r->usage.draft_n_accepted);
    put_seconds(&w, "first_s", r->first_s);
    put_seconds(&w, "content_s", r->content_s);
    put_seconds(&w, "total_s", r->total_s);
    put_seconds(&w, "tokens_per_s", rate(r));
    json_w_kstr(&w, "finish_reason", r->finish[0] != '\0' ? r->finish : NULL);
    json_w_close(&w);
    json_w_end(&w);
}

void turn_stats_line(const turn_result *r, buf *out) {
    if (r->usage.completion_tokens >= 0) {
        buf_printf(out, "%lld tokens, ", (long long)r->usage.completion_tokens);
    }
    if (rate(r) > 0) buf_printf(out, "%.1f tokens per second, ", rate(r));
    if (r->first_s >= 0) buf_printf(out, "first after %.2f s, ", r->first_s);
    buf_printf(out, "%.1f s in all", r->total_s);
    if (r->usage.prompt_tokens > 0 && r->usage.cached_tokens >= 0) {
        buf_printf(out, ", %lld prompt tokens, %lld from cache", (long long)r->usage.prompt_tokens,
            (long long)r->usage.cached_tokens);
    }
    if (r->usage.draft_n > 0) {
        buf_printf(out, ", %.0f %% of drafts accepted",
            100.0 * (double)r->usage.draft_n_accepted / (double)r->usage.draft_n);
    }
}
