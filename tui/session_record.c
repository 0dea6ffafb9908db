/* Records of the journal: turns and changes as JSON objects. */
#include "tui/session_internal.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"

static void put_raw(json_w *w, const char *key, const char *text) {
    if (text == NULL) return;
    json_w_key(w, key);
    json_w_raw(w, text, strlen(text));
}

void record_put_turn(json_w *w, const session_turn *t) {
    json_w_ki64(w, "id", t->id);
    json_w_ki64(w, "parent", t->parent);
    json_w_kstr(w, "role", session_role_name(t->role));
    json_w_kstr(w, "state", session_state_name(t->state));
    json_w_ki64(w, "time_ms", t->time_ms);
    json_w_kstr(w, "text", t->text != NULL ? t->text : "");
    if (t->think != NULL) json_w_kstr(w, "think", t->think);
    put_raw(w, "tool_calls", t->tool_calls);
    put_raw(w, "settings", t->settings);
    put_raw(w, "stats", t->stats);
    if (t->error != NULL) json_w_kstr(w, "error", t->error);
}

static char *text_of(const json *v) {
    const char *text = json_str(v);
    return text != NULL && text[0] != '\0' ? mem_strdup(text) : NULL;
}

/* A nested value kept as its own text. */
static char *raw_of(const json *v) {
    if (!json_is_object(v) && !json_is_array(v)) return NULL;
    buf text = BUF_INIT;
    if (json_print_compact(v, &text) == OK) return buf_take(&text);
    buf_release(&text);
    return NULL;
}

int record_read_turn(const json *v, session_turn *t, err *e) {
    int64_t id = 0, parent = -1;
    *t = (session_turn){0};
    bool is_fine = json_i64(json_get(v, "id"), &id) == OK && id > 0 && id <= SESSION_MAX_TURNS &&
                   json_i64(json_get(v, "parent"), &parent) == OK && parent >= 0 && parent < id &&
                   session_role_parse(json_str(json_get(v, "role")), &t->role) &&
                   session_state_parse(json_str(json_get(v, "state")), &t->state);
    if (!is_fine) return err_set(e, ERR_FORMAT, "a turn has no valid id, parent, role or state");
    t->id = (int)id;
    t->parent = (int)parent;
    json_i64(json_get(v, "time_ms"), &t->time_ms);
    t->text = text_of(json_get(v, "text"));
    t->think = text_of(json_get(v, "think"));
    t->tool_calls = raw_of(json_get(v, "tool_calls"));
    t->settings = raw_of(json_get(v, "settings"));
    t->stats = raw_of(json_get(v, "stats"));
    t->error = text_of(json_get(v, "error"));
    return OK;
}

/* The reply that was open stays as it is: another one begins, so its program has ended. */
static void close_interrupted(session *s) {
    if (s->open_id != 0) tree_close_reply(s, SESSION_INTERRUPTED, NULL, NULL);
}

static int apply_turn(session *s, const json *v, err *e) {
    session_turn t;
    int rc = record_read_turn(v, &t, e);
    if (rc == OK) {
        close_interrupted(s);
        rc = tree_add(s, &t, e);
        if (rc == OK && t.state == SESSION_WRITING) tree_open_reply(s, t.id);
    }
    turn_release(&t);
    return rc;
}

static int apply_part(session *s, const json *v, err *e) {
    const char *text = json_str(json_get(v, "text")), *think = json_str(json_get(v, "think"));
    int rc = OK;
    if (think != NULL) rc = tree_append(s, true, think, strlen(think), e);
    if (rc == OK && text != NULL) rc = tree_append(s, false, text, strlen(text), e);
    char *calls = raw_of(json_get(v, "tool_calls"));
    if (rc == OK && calls != NULL) turn_set(&tree_turn(s, s->open_id)->tool_calls, calls);
    mem_free(calls);
    return rc;
}

static int apply_end(session *s, const json *v, err *e) {
    session_state state;
    if (!session_state_parse(json_str(json_get(v, "state")), &state) || state == SESSION_WRITING) {
        return err_set(e, ERR_FORMAT, "a reply ends in an unknown state");
    }
    char *stats = raw_of(json_get(v, "stats"));
    tree_close_reply(s, state, stats, json_str(json_get(v, "error")));
    mem_free(stats);
    return OK;
}

/* Records about one reply name it, so that a damaged beginning does not give its text to another. */
static int apply_to_turn(session *s, const char *type, const json *v, err *e) {
    int64_t id = -1;
    json_i64(json_get(v, "id"), &id);
    session_turn *t = id > 0 && id <= s->n_turns ? tree_turn(s, (int)id) : NULL;
    if (str_eq(type, "head") && (t != NULL || id == 0)) {
        s->head = (int)id;
        return OK;
    }
    if (t == NULL) return err_set(e, ERR_FORMAT, "a record names a turn that is not there");
    if (str_eq(type, "open")) {
        close_interrupted(s);
        tree_open_reply(s, t->id);
        s->head = t->id;
        return OK;
    }
    if (s->open_id != t->id) return err_set(e, ERR_FORMAT, "text of a reply that is not open");
    return str_eq(type, "part") ? apply_part(s, v, e) : apply_end(s, v, e);
}

int record_apply(session *s, const json *v, err *e) {
    const char *type = json_str(json_get(v, "t"));
    if (type == NULL) return err_set(e, ERR_FORMAT, "a record has no type");
    if (str_eq(type, "turn")) return apply_turn(s, v, e);
    if (str_eq(type, "session")) {
        json_i64(json_get(v, "created_ms"), &s->created_ms);
        return OK;
    }
    if (str_eq(type, "title")) {
        const char *title = json_str(json_get(v, "title"));
        if (title != NULL) tree_set_title(s, title);
        return OK;
    }
    bool is_about_turn =
        str_eq(type, "head") || str_eq(type, "open") || str_eq(type, "part") || str_eq(type, "end");
    /* A type of a later version that kept the format number: not ours to judge. */
    return is_about_turn ? apply_to_turn(s, type, v, e) : OK;
}
