/* Opening, changing and finding sessions. */
#include "tui/session_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/paths.h"

int session_dir(buf *out, err *e) {
    int rc = paths_state(out, e);
    if (rc == OK) rc = buf_puts(out, "/sessions");
    if (rc == OK) rc = paths_make_private(buf_cstr(out), e);
    return rc;
}

/* Life. */

static session *make(const char *dir) {
    session *s = mem_alloc(sizeof *s);
    s->dir = mem_strdup(dir);
    s->fd = -1;
    return s;
}

/* Local time to the second, and a counter where two begin in the same second. */
static void choose_name(session *s) {
    uint64_t now = clock_wall_ms();
    time_t seconds = (time_t)(now / 1000);
    struct tm local;
    localtime_r(&seconds, &local);
    char stamp[24];
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
    buf path = BUF_INIT;
    unsigned salt = (unsigned)(now % 1000) ^ ((unsigned)getpid() << 10);
    do {
        buf name = BUF_INIT;
        buf_printf(&name, "%s-%04x", stamp, salt++ & 0xffffu);
        str_copy(s->name, sizeof s->name, buf_cstr(&name));
        buf_release(&name);
        journal_path(&path, s->dir, s->name);
    } while (file_exists(buf_cstr(&path)));
    buf_release(&path);
    s->created_ms = (int64_t)now;
}

int session_new(const char *dir, session **out, err *e) {
    if (!dir_exists(dir)) return err_set(e, ERR_NOT_FOUND, "there is no folder %s", dir);
    session *s = make(dir);
    choose_name(s);
    *out = s;
    return OK;
}

static int check_name(const char *name, err *e) {
    bool is_fine = name[0] != '\0' && name[0] != '.' && strlen(name) < SESSION_NAME_BYTES &&
                   strchr(name, '/') == NULL;
    return is_fine ? OK : err_set(e, ERR_ARG, "\"%.80s\" is no name of a session", name);
}

static int open_as(const char *dir, const char *name, bool is_read_only, session **out, err *e) {
    int rc = check_name(name, e);
    if (rc != OK) return rc;
    session *s = make(dir);
    buf path = BUF_INIT;
    str_copy(s->name, sizeof s->name, name);
    s->is_read_only = is_read_only;
    journal_path(&path, dir, name);
    int fd = open(buf_cstr(&path), (is_read_only ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        rc = err_set(e, ERR_NOT_FOUND, "there is no session %s", name);
    } else if (fd < 0) {
        rc = err_errno(e, "cannot open the session %s", buf_cstr(&path));
    }
    s->fd = fd;
    if (rc == OK && !is_read_only) rc = journal_lock(fd, e);
    if (rc == OK) rc = journal_load(s, buf_cstr(&path), !is_read_only, e);
    buf_release(&path);
    if (rc == OK) {
        *out = s;
        return OK;
    }
    s->is_read_only = true;
    session_close(s);
    return rc;
}

int session_open(const char *dir, const char *name, session **out, err *e) {
    return open_as(dir, name, false, out, e);
}

int session_open_read(const char *dir, const char *name, session **out, err *e) {
    return open_as(dir, name, true, out, e);
}

void session_close(session *s) {
    if (s == NULL) return;
    if (!s->is_read_only && s->open_id != 0) session_flush(s, NULL);
    session_sync_free(s->sync);
    if (s->fd >= 0) close(s->fd);
    tree_release(s);
    mem_free(s);
}

/* Records. Each is written first; memory changes only when it is on disk. */

static void begin(json_w *w, buf *out, const char *type) {
    json_w_begin(w, out);
    json_w_object(w);
    json_w_kstr(w, "t", type);
}

static int commit(session *s, json_w *w, buf *record, bool sync, err *e) {
    json_w_close(w);
    int rc = json_w_end(w);
    if (rc != OK) err_set(e, rc, "the turn is too long to keep");
    if (rc == OK) rc = journal_append(s, record, sync, e);
    buf_release(record);
    return rc;
}

static int write_session(session *s, err *e) {
    if (s->fd >= 0 || s->is_read_only) return OK;
    buf record = BUF_INIT;
    json_w w;
    begin(&w, &record, "session");
    json_w_kstr(&w, "name", s->name);
    json_w_ki64(&w, "created_ms", s->created_ms);
    return commit(s, &w, &record, false, e);
}

static int add_turn(session *s, session_turn *t, err *e) {
    if (s->open_id != 0) return err_set(e, ERR_BUSY, "a reply is still being written");
    if (s->n_turns >= SESSION_MAX_TURNS) {
        return err_set(e, ERR_LIMIT, "the session has %d turns, more are not kept; start a new one",
            s->n_turns);
    }
    t->id = s->n_turns + 1;
    if (t->time_ms == 0) t->time_ms = (int64_t)clock_wall_ms();
    int rc = write_session(s, e);
    buf record = BUF_MAX(SESSION_MAX_BYTES);
    json_w w;
    begin(&w, &record, "turn");
    record_put_turn(&w, t);
    if (rc == OK) {
        rc = commit(s, &w, &record, true, e);
    } else {
        buf_release(&record);
    }
    return rc == OK ? tree_add(s, t, e) : rc;
}

/* The first line of text, at most SESSION_TITLE_CHARS characters, control characters as blanks. */
static void title_from(const char *text, buf *out) {
    size_t n = strlen(text), at = 0;
    for (int chars = 0; at < n && chars < SESSION_TITLE_CHARS; chars++) {
        uint32_t cp = 0;
        size_t used = utf8_decode(text + at, n - at, &cp);
        if (cp < 0x20 || cp == 0x7f) {
            if (out->len > 0 && out->data[out->len - 1] != ' ') buf_putc(out, ' ');
        } else {
            buf_append(out, text + at, used);
        }
        at += used;
    }
    while (out->len > 0 && out->data[out->len - 1] == ' ')
        buf_truncate(out, out->len - 1);
    if (at < n) buf_puts(out, "...");
}

int session_rename(session *s, const char *title, err *e) {
    if (!utf8_valid(title, strlen(title))) return err_set(e, ERR_FORMAT, "the title is not UTF-8");
    buf clean = BUF_INIT, record = BUF_INIT;
    title_from(title, &clean);
    if (clean.len == 0) {
        buf_release(&clean);
        return err_set(e, ERR_ARG, "a title needs at least one character");
    }
    json_w w;
    int rc = write_session(s, e);
    begin(&w, &record, "title");
    json_w_kstr(&w, "title", buf_cstr(&clean));
    if (rc == OK) {
        rc = commit(s, &w, &record, true, e);
    } else {
        buf_release(&record);
    }
    if (rc == OK) tree_set_title(s, buf_cstr(&clean));
    buf_release(&clean);
    return rc;
}

int session_add(session *s, session_role role, const char *text, int parent, int *id, err *e) {
    if (!utf8_valid(text, strlen(text))) {
        return err_set(e, ERR_FORMAT, "the text is not UTF-8; convert it first (iconv -t UTF-8)");
    }
    if (parent > s->n_turns) return err_set(e, ERR_ARG, "there is no turn %d", parent);
    session_turn t = {.parent = parent >= 0 ? parent : s->head, .role = role, .text = (char *)text};
    int rc = add_turn(s, &t, e);
    if (rc != OK) return rc;
    if (id != NULL) *id = t.id;
    if (s->title == NULL && role == SESSION_USER && text[0] != '\0') {
        /* The turn is safe already; a title that cannot be written is not worth failing it. */
        session_rename(s, text, NULL);
    }
    return OK;
}

int session_reply_begin(session *s, const char *settings, int *id, err *e) {
    session_turn t = {.parent = s->head,
        .role = SESSION_ASSISTANT,
        .state = SESSION_WRITING,
        .text = (char *)"",
        .settings = (char *)settings};
    int rc = add_turn(s, &t, e);
    if (rc != OK) return rc;
    tree_open_reply(s, t.id);
    s->written_ms = (int64_t)clock_mono_ms();
    if (id != NULL) *id = t.id;
    return OK;
}

static int write_about(session *s, const char *type, int id, err *e) {
    buf record = BUF_INIT;
    json_w w;
    begin(&w, &record, type);
    json_w_ki64(&w, "id", id);
    return commit(s, &w, &record, true, e);
}

int session_reply_reopen(session *s, int id, err *e) {
    const session_turn *t = tree_turn(s, id);
    if (t == NULL || t->role != SESSION_ASSISTANT || s->open_id != 0) {
        return err_set(e, ERR_ARG, "turn %d is no reply that can be continued", id);
    }
    int rc = write_about(s, "open", id, e);
    if (rc != OK) return rc;
    tree_open_reply(s, id);
    s->head = id;
    s->written_ms = (int64_t)clock_mono_ms();
    return OK;
}

int session_reply_append(session *s, const char *text, size_t len, bool is_think, err *e) {
    if (s->open_id == 0) return err_set(e, ERR_ARG, "no reply is open");
    /* A NUL cannot stand in the texts we hand out; the mark for an unknown character can. */
    for (size_t at = 0; at < len;) {
        const char *nul = memchr(text + at, '\0', len - at);
        size_t n = nul != NULL ? (size_t)(nul - text) - at : len - at;
        int rc = tree_append(s, is_think, text + at, n, e);
        if (rc == OK && nul != NULL) rc = tree_append(s, is_think, "\xEF\xBF\xBD", 3, e);
        if (rc != OK) return rc;
        at += n + 1;
    }
    return OK;
}

int session_reply_tool_calls(session *s, const char *json_text, err *e) {
    session_turn *t = tree_turn(s, s->open_id);
    if (t == NULL) return err_set(e, ERR_ARG, "no reply is open");
    json *v = NULL;
    int rc = json_parse(json_text, strlen(json_text), NULL, &v, e);
    if (rc == OK && !json_is_array(v)) rc = err_set(e, ERR_ARG, "tool calls must be a JSON array");
    json_free(v);
    if (rc != OK) return rc;
    turn_set(&t->tool_calls, json_text);
    s->is_changed = true;
    return OK;
}

static int write_part(session *s, bool sync, err *e) {
    size_t text_len = s->text.len - s->text_written, think_len = s->think.len - s->think_written;
    text_len -= utf8_partial_tail(s->text.data + s->text_written, text_len);
    if (think_len > 0) {
        think_len -= utf8_partial_tail(s->think.data + s->think_written, think_len);
    }
    s->written_ms = (int64_t)clock_mono_ms();
    if (text_len == 0 && think_len == 0 && !s->is_changed) return OK;
    buf record = BUF_MAX(SESSION_MAX_BYTES);
    json_w w;
    begin(&w, &record, "part");
    json_w_ki64(&w, "id", s->open_id);
    if (think_len > 0) {
        json_w_key(&w, "think");
        json_w_strn(&w, s->think.data + s->think_written, think_len);
    }
    if (text_len > 0) {
        json_w_key(&w, "text");
        json_w_strn(&w, s->text.data + s->text_written, text_len);
    }
    const char *calls = tree_turn(s, s->open_id)->tool_calls;
    if (s->is_changed && calls != NULL) {
        json_w_key(&w, "tool_calls");
        json_w_raw(&w, calls, strlen(calls));
    }
    int rc = commit(s, &w, &record, sync, e);
    if (rc != OK) return rc;
    s->text_written += text_len;
    s->think_written += think_len;
    s->is_changed = false;
    return OK;
}

int session_flush(session *s, err *e) {
    return s->open_id != 0 ? write_part(s, true, e) : OK;
}

int session_tick(session *s, int64_t now_ms, err *e) {
    int rc = session_sync_take_error(s->sync, e);
    if (rc != OK || s->open_id == 0) return rc;
    size_t waiting = s->text.len - s->text_written + s->think.len - s->think_written;
    bool is_due = waiting >= SESSION_WRITE_BYTES ||
                  (waiting > 0 && now_ms - s->written_ms >= SESSION_WRITE_MS);
    return is_due ? write_part(s, true, e) : OK;
}

int session_reply_end(
    session *s, session_state state, const char *stats, const char *error, err *e) {
    if (s->open_id == 0) return err_set(e, ERR_ARG, "no reply is open");
    int rc = write_part(s, false, e);
    if (rc == OK) {
        buf record = BUF_INIT;
        json_w w;
        begin(&w, &record, "end");
        json_w_ki64(&w, "id", s->open_id);
        json_w_kstr(&w, "state", session_state_name(state));
        if (stats != NULL) {
            json_w_key(&w, "stats");
            json_w_raw(&w, stats, strlen(stats));
        }
        if (error != NULL) json_w_kstr(&w, "error", error);
        rc = commit(s, &w, &record, true, e);
    }
    /* In memory the reply has ended whatever the disk says; the caller shows the error. */
    tree_close_reply(s, state, stats, error);
    return rc;
}

int session_set_head(session *s, int id, err *e) {
    if ((id != 0 && tree_turn(s, id) == NULL) || s->open_id != 0) {
        return err_set(e, ERR_ARG, "there is no turn %d to go to", id);
    }
    int rc = write_about(s, "head", id, e);
    if (rc == OK) s->head = id;
    return rc;
}

/* Writes a copy of a turn with a new id and parent into another session. */
static int copy_turn(session *to, const session_turn *t, int parent, err *e) {
    session_turn copy = *t;
    if (copy.state == SESSION_WRITING) copy.state = SESSION_INTERRUPTED;
    copy.parent = parent;
    return add_turn(to, &copy, e);
}

int session_fork(session *s, const char *dir, session **out, err *e) {
    session *to = NULL;
    int n = session_path(s, NULL, 0);
    int *ids = mem_array((size_t)n + 1, sizeof *ids);
    session_path(s, ids, n);
    int rc = session_new(dir, &to, e);
    for (int i = 0; rc == OK && i < n; i++) {
        rc = copy_turn(to, session_turn_at(s, ids[i]), to->head, e);
    }
    if (rc == OK && s->title != NULL) rc = session_rename(to, s->title, e);
    mem_free(ids);
    if (rc != OK) {
        session_close(to);
        return rc;
    }
    *out = to;
    return OK;
}

static int import_turns(session *to, const json *turns, err *e) {
    int rc = OK;
    JSON_EACH(v, turns) {
        session_turn t;
        rc = record_read_turn(v, &t, e);
        if (rc == OK && t.id != to->n_turns + 1) {
            rc = err_set(e, ERR_FORMAT, "turn %d of the export is out of order", t.id);
        }
        if (rc == OK) rc = copy_turn(to, &t, t.parent, e);
        turn_release(&t);
        if (rc != OK) return rc;
    }
    return OK;
}

int session_import(const char *dir, const char *json_text, size_t len, session **out, err *e) {
    json *root = NULL;
    session *to = NULL;
    int rc = json_parse(json_text, len, NULL, &root, e);
    if (rc == OK && !str_eq(json_str(json_get(root, "kind")), "tandem-session")) {
        rc = err_set(e, ERR_FORMAT, "the file is no JSON export of a session");
    }
    if (rc == OK) rc = session_new(dir, &to, e);
    if (rc == OK) rc = import_turns(to, json_get(root, "turns"), e);
    const char *title = json_str(json_get(root, "title"));
    if (rc == OK && title != NULL && title[0] != '\0') rc = session_rename(to, title, e);
    int64_t head = 0;
    if (rc == OK && json_i64(json_get(root, "head"), &head) == OK && head > 0) {
        rc = head <= to->n_turns ? session_set_head(to, (int)head, e)
                                 : err_set(e, ERR_FORMAT, "the export names a head it has not");
    }
    json_free(root);
    if (rc != OK) {
        bool has_file = to != NULL && to->fd >= 0;
        char name[SESSION_NAME_BYTES] = "";
        if (has_file) str_copy(name, sizeof name, to->name);
        session_close(to);
        if (has_file) session_delete(dir, name, NULL);
        return rc;
    }
    *out = to;
    return OK;
}
