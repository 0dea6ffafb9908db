#include "tui/chat.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

#define CONNECT_MS 3000
#define STALL_MS 60000
#define RATE_MS 2000

void chat_notice(chat *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->notice, sizeof c->notice, fmt, ap);
    va_end(ap);
}

const char *chat_take_notice(chat *c) {
    static const char *const NONE = NULL;
    if (c->notice[0] == '\0') return NONE;
    return c->notice;
}

/* --- views --- */

static void release_view(chat_message_view *v) {
    md_free(v->text);
    md_free(v->think);
    memset(v, 0, sizeof *v);
}

static void add_clean(md *d, width_cleaner *k, const char *s, size_t n) {
    buf clean = BUF_INIT;
    if (width_clean(k, s, n, &clean) == OK) md_append(d, buf_cstr(&clean), clean.len);
    buf_release(&clean);
}

static void end_clean(md *d, width_cleaner *k) {
    buf rest = BUF_INIT;
    if (d == NULL) return;
    if (width_clean_end(k, &rest) == OK) md_append(d, buf_cstr(&rest), rest.len);
    md_finish(d);
    buf_release(&rest);
}

static void add_think(chat_message_view *v, const char *s, size_t n) {
    if (v->think == NULL) v->think = md_new(true, ROLE_THINK);
    add_clean(v->think, &v->clean_think, s, n);
}

static double stat(const json *v, const char *key) {
    double d;
    return json_double(json_get(v, key), &d) == OK ? d : (double)NAN;
}

static void take_stats(chat *c, chat_message_view *v, const char *text) {
    json *root = NULL;
    if (text == NULL || json_parse(text, strlen(text), NULL, &root, NULL) != OK) return;
    double tokens = stat(root, "completion_tokens"), think = stat(root, "reasoning_tokens");
    double prompt = stat(root, "prompt_tokens");
    if (!isnan(tokens)) v->tokens = (int64_t)tokens;
    if (!isnan(think)) v->think_tokens = (int64_t)think;
    if (!isnan(tokens) && !isnan(prompt)) c->context_used = (int64_t)(tokens + prompt);
    v->seconds = stat(root, "total_s");
    v->first_s = stat(root, "first_s");
    double content = stat(root, "content_s");
    v->think_s = v->first_s >= 0 && content >= 0 ? content - v->first_s : (double)NAN;
    v->rate = stat(root, "tokens_per_s");
    json_free(root);
}

static chat_message_view *new_view(chat *c) {
    if (c->n_views == c->views_cap) {
        c->views_cap = c->views_cap == 0 ? 16 : 2 * c->views_cap;
        c->views = mem_realloc(c->views, (size_t)c->views_cap * sizeof *c->views);
    }
    chat_message_view *v = &c->views[c->n_views++];
    memset(v, 0, sizeof *v);
    v->tokens = v->think_tokens = -1;
    v->seconds = v->rate = v->first_s = v->think_s = (double)NAN;
    return v;
}

static void find_siblings(const chat *c, chat_message_view *v) {
    int ids[64];
    int n = session_siblings(c->open, v->id, ids, 64);
    v->n_siblings = n;
    v->i_sibling = 1;
    for (int i = 0; i < n && i < 64; i++) {
        if (ids[i] == v->id) v->i_sibling = i + 1;
    }
}

static void add_view(chat *c, int id) {
    const session_turn *t = session_turn_at(c->open, id);
    if (t == NULL) return;
    chat_message_view *v = new_view(c);
    bool is_reply = t->role == SESSION_ASSISTANT;
    v->id = id;
    v->role = t->role;
    v->state = t->state;
    v->time_ms = t->time_ms;
    v->is_folded = t->role == SESSION_SYSTEM || t->role == SESSION_TOOL;
    v->text = md_new(!is_reply, is_reply                  ? ROLE_TEXT
                                : t->role == SESSION_USER ? ROLE_TEXT
                                                          : ROLE_DIM);
    add_clean(v->text, &v->clean_text, t->text, strlen(t->text));
    if (t->think != NULL && t->think[0] != '\0') add_think(v, t->think, strlen(t->think));
    if (t->state != SESSION_WRITING) {
        end_clean(v->text, &v->clean_text);
        end_clean(v->think, &v->clean_think);
    }
    if (t->error != NULL) str_copy(v->error, sizeof v->error, t->error);
    if (is_reply) take_stats(c, v, t->stats);
    find_siblings(c, v);
}

void chat_rebuild(chat *c) {
    for (int i = 0; i < c->n_views; i++)
        release_view(&c->views[i]);
    c->n_views = 0;
    c->context_used = -1;
    c->revision++;
    int n = session_path(c->open, NULL, 0);
    int *ids = mem_array((size_t)n + 1, sizeof *ids);
    session_path(c->open, ids, n);
    for (int i = 0; i < n; i++)
        add_view(c, ids[i]);
    mem_free(ids);
}

/* --- life --- */

int chat_open(chat *c, client *engine, const char *session_dir, err *e) {
    memset(c, 0, sizeof *c);
    c->engine = engine;
    c->dir = mem_strdup(session_dir);
    c->edit_parent = -1;
    c->context_used = -1;
    chat_settings_init(&c->settings);
    return session_new(c->dir, &c->open, e);
}

void chat_close(chat *c) {
    if (c->open != NULL && chat_is_busy(c))
        session_reply_end(c->open, SESSION_STOPPED, NULL, NULL, NULL);
    for (int i = 0; i < c->n_views; i++)
        release_view(&c->views[i]);
    for (int i = 0; i < c->n_queue; i++)
        mem_free(c->queue[i]);
    mem_free(c->views);
    mem_free(c->dir);
    session_close(c->open);
    chat_settings_release(&c->settings);
    memset(c, 0, sizeof *c);
}

int chat_load(chat *c, const char *name, err *e) {
    session *s = NULL;
    if (chat_is_busy(c)) return err_set(e, ERR_BUSY, "a reply is being written; Ctrl-C stops it");
    if (name != NULL && str_eq(name, session_name(c->open))) return OK;
    int rc = name == NULL ? session_new(c->dir, &s, e) : session_open(c->dir, name, &s, e);
    if (rc != OK) return rc;
    session_close(c->open);
    c->open = s;
    c->edit_parent = -1;
    c->n_redo = 0;
    c->last_line[0] = '\0';
    chat_rebuild(c);
    if (session_note(s) != NULL) chat_notice(c, "%s", session_note(s));
    return OK;
}

bool chat_is_busy(const chat *c) {
    return c->phase != CHAT_IDLE;
}

double chat_rate(const chat *c, uint64_t now_ms) {
    int n = 0;
    int64_t first = c->n_pieces > CHAT_RATE_SLOTS ? c->n_pieces - CHAT_RATE_SLOTS : 0;
    for (int64_t i = c->n_pieces - 1; i >= first; i--) {
        if (now_ms - c->piece_ms[i % CHAT_RATE_SLOTS] > RATE_MS) break;
        n++;
    }
    uint64_t span = now_ms - c->first_ms < RATE_MS ? now_ms - c->first_ms : RATE_MS;
    return span < 100 ? (double)NAN : n * 1000.0 / (double)span;
}

void chat_tick(chat *c, uint64_t now_ms) {
    err e = ERR_INIT;
    c->now_ms = now_ms;
    if (session_tick(c->open, (int64_t)now_ms, &e) != OK) chat_notice(c, "not saved: %s", e.msg);
}

/* --- the reply --- */

static chat_message_view *last_view(chat *c) {
    return c->n_views > 0 ? &c->views[c->n_views - 1] : NULL;
}

static void on_piece(chat *c, const chat_event *ev) {
    bool is_think = ev->kind == CHAT_EVENT_REASONING;
    chat_message_view *v = last_view(c);
    err e = ERR_INIT;
    if (ev->len == 0) return;
    if (c->n_pieces == 0) c->first_ms = c->now_ms;
    if (!is_think && c->content_ms == 0) c->content_ms = c->now_ms;
    c->last_ms = c->now_ms;
    c->piece_ms[c->n_pieces++ % CHAT_RATE_SLOTS] = c->now_ms;
    if (is_think) c->n_think_pieces++;
    c->phase = is_think ? CHAT_THINKING_NOW : CHAT_WRITING;
    if (session_reply_append(c->open, ev->text, ev->len, is_think, &e) != OK) {
        chat_notice(c, "not saved: %s", e.msg);
    }
    if (is_think)
        add_think(v, ev->text, ev->len);
    else
        add_clean(v->text, &v->clean_text, ev->text, ev->len);
    v->is_laid = false;
}

static double since_sent(const chat *c, uint64_t at) {
    return at == 0 ? -1.0 : (double)(at - c->sent_ms) / 1000;
}

static void fill_result(chat *c, const client_event *ev) {
    turn_result *r = &c->result;
    r->first_s = c->n_pieces > 0 ? since_sent(c, c->first_ms) : -1;
    r->content_s = since_sent(c, c->content_ms);
    r->last_s = since_sent(c, c->last_ms);
    r->total_s = since_sent(c, c->now_ms);
    r->state = SESSION_DONE;
    if (ev->reply != NULL) {
        r->usage = ev->reply->usage;
        r->n_calls = ev->reply->n_calls;
        str_copy(r->finish, sizeof r->finish, ev->reply->finish);
        str_copy(r->reply_id, sizeof r->reply_id, ev->reply->id);
    }
    if (str_eq(r->finish, "length")) r->state = SESSION_CUT;
    if (ev->error == NULL) return;
    r->state =
        c->is_stopping || ev->error->code == ERR_CANCELLED ? SESSION_STOPPED : SESSION_FAILED;
    r->error = *ev->error;
}

static void put_calls(chat *c, const chat_stream *reply) {
    buf out = BUF_INIT;
    json_w w;
    if (reply == NULL || reply->n_calls == 0) return;
    json_w_begin(&w, &out);
    json_w_array(&w);
    for (int i = 0; i < reply->n_calls; i++) {
        json_w_object(&w);
        json_w_kstr(&w, "id", reply->calls[i].id);
        json_w_kstr(&w, "type", "function");
        json_w_key(&w, "function");
        json_w_object(&w);
        json_w_kstr(&w, "name", reply->calls[i].name);
        json_w_kstr(&w, "arguments", buf_cstr(&reply->calls[i].arguments));
        json_w_close(&w);
        json_w_close(&w);
    }
    json_w_close(&w);
    if (json_w_end(&w) == OK) session_reply_tool_calls(c->open, buf_cstr(&out), NULL);
    buf_release(&out);
}

static void end_reply(chat *c, const client_event *ev) {
    chat_message_view *v = last_view(c);
    buf stats = BUF_INIT;
    err e = ERR_INIT;
    fill_result(c, ev);
    put_calls(c, ev->reply);
    turn_stats_json(&c->result, &stats);
    const char *why = c->result.state == SESSION_FAILED ? c->result.error.msg : NULL;
    if (session_reply_end(c->open, c->result.state, buf_cstr(&stats), why, &e) != OK) {
        chat_notice(c, "not saved: %s", e.msg);
    }
    end_clean(v->text, &v->clean_text);
    end_clean(v->think, &v->clean_think);
    v->state = c->result.state;
    v->is_laid = false;
    if (why != NULL) str_copy(v->error, sizeof v->error, why);
    take_stats(c, v, buf_cstr(&stats));
    buf_reset(&stats);
    turn_stats_line(&c->result, &stats);
    str_copy(c->last_line, sizeof c->last_line, buf_cstr(&stats));
    buf_release(&stats);
    c->phase = CHAT_IDLE;
    c->call = NULL;
    c->is_stopping = false;
    bool go_on = c->result.state != SESSION_FAILED &&
                 (c->result.state != SESSION_STOPPED || c->send_queued_after_stop);
    c->send_queued_after_stop = false;
    if (go_on) chat_send_queued(c, c->now_ms);
}

static void on_event(void *ctx, const client_event *ev) {
    chat *c = ctx;
    switch (ev->kind) {
    case CLIENT_PROGRESS:
        if (c->n_pieces == 0) c->phase = CHAT_READING;
        c->read_done = ev->done;
        c->read_total = ev->total;
        break;
    case CLIENT_CHAT:
        if (ev->chat->kind == CHAT_EVENT_REASONING || ev->chat->kind == CHAT_EVENT_CONTENT) {
            on_piece(c, ev->chat);
        }
        break;
    case CLIENT_END:
        end_reply(c, ev);
        break;
    default:
        break;
    }
}

/* Starts the call for the session's path; the reply is open in the session already. */
static int start_call(chat *c, bool is_continuation, uint64_t now_ms, err *e) {
    chat_message *messages = NULL;
    int n = 0;
    int rc = turn_messages(c->open, &messages, &n);
    if (rc != OK) return err_set(e, rc, "the messages could not be put together");
    /* The open reply itself is sent only when it is to be gone on with. */
    if (!is_continuation && n > 0 && str_eq(messages[n - 1].role, "assistant")) n--;
    chat_request q = {.messages = messages,
        .n_messages = n,
        .options = c->settings.options,
        .limits = {CONNECT_MS, STALL_MS, 0}};
    q.options.is_continuation = is_continuation;
    memset(&c->result, 0, sizeof c->result);
    c->sent_ms = c->now_ms = now_ms;
    c->first_ms = c->content_ms = c->last_ms = 0;
    c->n_pieces = c->n_think_pieces = 0;
    c->read_done = c->read_total = -1;
    c->phase = CHAT_WAITING;
    rc = client_chat(c->engine, &q, (client_sink){on_event, c}, &c->call, e);
    if (rc != OK) c->phase = CHAT_IDLE;
    mem_free(messages);
    return rc;
}

static int begin_reply(chat *c, uint64_t now_ms, err *e) {
    buf settings = BUF_INIT;
    int id = 0;
    chat_settings_json(&c->settings, &settings);
    int rc = session_reply_begin(c->open, buf_cstr(&settings), &id, e);
    buf_release(&settings);
    if (rc != OK) return rc;
    add_view(c, id);
    rc = start_call(c, false, now_ms, e);
    if (rc == OK) return OK;
    err ignored = ERR_INIT;
    session_reply_end(c->open, SESSION_FAILED, NULL, e != NULL ? e->msg : NULL, &ignored);
    chat_rebuild(c);
    return rc;
}

static int send_now(chat *c, const char *text, uint64_t now_ms, err *e) {
    int id = 0, parent = c->edit_parent;
    int rc = session_add(c->open, SESSION_USER, text, parent >= 0 ? parent : -1, &id, e);
    if (rc != OK) return rc;
    bool is_branch = parent >= 0;
    c->edit_parent = -1;
    c->n_redo = 0;
    if (is_branch)
        chat_rebuild(c);
    else
        add_view(c, id);
    return begin_reply(c, now_ms, e);
}

int chat_queue(chat *c, const char *text, err *e) {
    if (c->n_queue == CHAT_QUEUE_MAX) {
        return err_set(
            e, ERR_FULL, "%d messages wait already; Ctrl-X Ctrl-Q takes one back", CHAT_QUEUE_MAX);
    }
    c->queue[c->n_queue++] = mem_strdup(text);
    return OK;
}

int chat_send(chat *c, const char *text, uint64_t now_ms, err *e) {
    return chat_is_busy(c) ? chat_queue(c, text, e) : send_now(c, text, now_ms, e);
}

void chat_send_queued(chat *c, uint64_t now_ms) {
    if (chat_is_busy(c) || c->n_queue == 0) return;
    char *text = c->queue[0];
    err e = ERR_INIT;
    memmove(c->queue, c->queue + 1, (size_t)(CHAT_QUEUE_MAX - 1) * sizeof c->queue[0]);
    c->n_queue--;
    if (send_now(c, text, now_ms, &e) != OK) chat_notice(c, "%s", e.msg);
    mem_free(text);
}

void chat_stop(chat *c) {
    if (!chat_is_busy(c) || c->call == NULL) return;
    c->is_stopping = true;
    client_cancel(c->engine, c->call);
}

int chat_again(chat *c, uint64_t now_ms, err *e) {
    if (chat_is_busy(c)) return err_set(e, ERR_BUSY, "a reply is being written; Ctrl-C stops it");
    const session_turn *t = session_turn_at(c->open, session_head(c->open));
    while (t != NULL && t->role != SESSION_USER)
        t = session_turn_at(c->open, t->parent);
    if (t == NULL) return err_set(e, ERR_NOT_FOUND, "there is no question to answer again");
    int rc = session_set_head(c->open, t->id, e);
    if (rc != OK) return rc;
    chat_rebuild(c);
    return begin_reply(c, now_ms, e);
}

int chat_continue(chat *c, uint64_t now_ms, err *e) {
    if (chat_is_busy(c)) return err_set(e, ERR_BUSY, "a reply is being written; Ctrl-C stops it");
    const session_turn *t = session_turn_at(c->open, session_head(c->open));
    if (t == NULL || t->role != SESSION_ASSISTANT || t->state == SESSION_DONE) {
        return err_set(
            e, ERR_NOT_FOUND, "the last reply is complete; there is nothing to go on with");
    }
    if (t->text[0] == '\0') return chat_again(c, now_ms, e);
    int rc = session_reply_reopen(c->open, t->id, e);
    if (rc != OK) return rc;
    chat_rebuild(c);
    return start_call(c, true, now_ms, e);
}

/* --- branches --- */

static int move_head(chat *c, int id, err *e) {
    if (chat_is_busy(c)) return err_set(e, ERR_BUSY, "a reply is being written; Ctrl-C stops it");
    int rc = session_set_head(c->open, id, e);
    if (rc != OK) return rc;
    c->edit_parent = -1;
    chat_rebuild(c);
    return OK;
}

int chat_sibling(chat *c, int i, int direction, err *e) {
    int ids[64];
    for (; i >= 0; i--) {
        if (c->views[i].n_siblings > 1) break;
    }
    if (i < 0) return err_set(e, ERR_NOT_FOUND, "there is only one branch here");
    int n = session_siblings(c->open, c->views[i].id, ids, 64);
    int to = c->views[i].i_sibling - 1 + direction;
    if (to < 0 || to >= n || to >= 64) {
        return err_set(e, ERR_NOT_FOUND, "no %s branch", direction < 0 ? "older" : "newer");
    }
    return move_head(c, session_leaf(c->open, ids[to]), e);
}

int chat_undo(chat *c, err *e) {
    int head = session_head(c->open);
    const session_turn *t = session_turn_at(c->open, head);
    while (t != NULL && t->role != SESSION_USER)
        t = session_turn_at(c->open, t->parent);
    if (t == NULL) return err_set(e, ERR_NOT_FOUND, "there is nothing to undo");
    int parent = t->parent;
    int rc = move_head(c, parent, e);
    if (rc == OK && c->n_redo < 64) c->redo[c->n_redo++] = head;
    return rc;
}

int chat_redo(chat *c, err *e) {
    if (c->n_redo == 0) return err_set(e, ERR_NOT_FOUND, "there is nothing to redo");
    int rc = move_head(c, c->redo[c->n_redo - 1], e);
    if (rc == OK) c->n_redo--;
    return rc;
}

int chat_edit(chat *c, int i, buf *out, err *e) {
    while (i >= 0 && i < c->n_views && c->views[i].role != SESSION_USER)
        i--;
    if (i < 0 || i >= c->n_views) return err_set(e, ERR_NOT_FOUND, "there is no question to edit");
    const session_turn *t = session_turn_at(c->open, c->views[i].id);
    c->edit_parent = t->parent;
    return buf_puts(out, t->text);
}

int chat_set_system(chat *c, const char *text, err *e) {
    if (chat_is_busy(c)) return err_set(e, ERR_BUSY, "a reply is being written; Ctrl-C stops it");
    int id;
    int rc = session_add(c->open, SESSION_SYSTEM, text, 0, &id, e);
    if (rc == OK) chat_rebuild(c);
    return rc;
}
