/* tandem sessions list, show, export, import, fork, rename, delete. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/cmd_internal.h"
#include "tui/session.h"

enum { IMPORT_MAX_BYTES = 256 << 20 };

static void put_row(json_w *w, const session_info *r) {
    json_w_object(w);
    json_w_kstr(w, "name", r->name);
    json_w_kstr(w, "title", r->title);
    json_w_ki64(w, "created_ms", r->created_ms);
    json_w_ki64(w, "changed_ms", r->changed_ms);
    json_w_ki64(w, "turns", r->n_turns);
    json_w_ki64(w, "branches", r->n_branches);
    json_w_kbool(w, "damaged", r->is_damaged);
    json_w_kbool(w, "open", r->is_locked);
    json_w_close(w);
}

static void list_json(const session_info *rows, int n) {
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_key(&w, "sessions");
    json_w_array(&w);
    for (int i = 0; i < n; i++)
        put_row(&w, &rows[i]);
    json_w_close(&w);
    cmd_put_json(&w);
    buf_release(&out);
}

static void list_text(const session_info *rows, int n) {
    for (int i = 0; i < n; i++) {
        char date[32];
        cmd_printf("%s  %s  %4d turn%s  ", rows[i].name, cmd_date_text(rows[i].changed_ms, date),
            rows[i].n_turns, rows[i].n_turns == 1 ? " " : "s");
        cmd_put_text(rows[i].title, strlen(rows[i].title));
        cmd_printf(
            "%s%s\n", rows[i].is_locked ? "  (open)" : "", rows[i].is_damaged ? "  (damaged)" : "");
    }
}

int cmd_sessions_list(const cmd_args *a) {
    buf dir = BUF_INIT;
    session_info *rows = NULL;
    int n = 0, code = EXIT_OK;
    err e = ERR_INIT;
    int rc = session_dir(&dir, &e);
    if (rc == OK) rc = session_list(buf_cstr(&dir), &rows, &n, &e);
    if (rc != OK) {
        code = cmd_fail(&e);
    } else if (cmd_has(a, "json")) {
        list_json(rows, n);
    } else {
        list_text(rows, n);
        if (n == 0) cmd_note("there is no session yet");
    }
    mem_free(rows);
    buf_release(&dir);
    return cmd_finish(code);
}

/* Finds and opens the session of the first argument. */
static int open_named(const cmd_args *a, bool to_write, buf *dir, session **s, err *e) {
    char name[SESSION_NAME_BYTES];
    int rc = session_dir(dir, e);
    if (rc == OK) rc = session_find(buf_cstr(dir), a->args[0], name, e);
    if (rc != OK) return rc;
    return to_write ? session_open(buf_cstr(dir), name, s, e)
                    : session_open_read(buf_cstr(dir), name, s, e);
}

static void show_all(const session *s, buf *out) {
    for (int id = 1; id <= session_n_turns(s); id++) {
        const session_turn *t = session_turn_at(s, id);
        buf_printf(out, "%sTurn %d, after %d, %s, %s:\n%s\n", id > 1 ? "\n" : "", id, t->parent,
            session_role_name(t->role), session_state_name(t->state), t->text);
    }
}

int cmd_sessions_show(const cmd_args *a) {
    buf dir = BUF_INIT, out = BUF_INIT;
    session *s = NULL;
    err e = ERR_INIT;
    int code = EXIT_OK;
    int rc = open_named(a, false, &dir, &s, &e);
    if (rc == OK && cmd_has(a, "all") && !cmd_has(a, "json")) {
        show_all(s, &out);
    } else if (rc == OK) {
        rc = session_export(s, cmd_has(a, "json") ? SESSION_JSON : SESSION_TXT, &out, &e);
    }
    if (rc != OK) {
        code = cmd_fail(&e);
    } else if (cmd_has(a, "json") || !isatty(1)) {
        cmd_put(buf_cstr(&out), out.len);
    } else {
        cmd_put_text(buf_cstr(&out), out.len);
    }
    if (rc == OK && session_note(s) != NULL) {
        cmd_note("%s", session_note(s));
        code = EXIT_WARNINGS;
    }
    session_close(s);
    buf_release(&out);
    buf_release(&dir);
    return cmd_finish(code);
}

static int parse_format(const char *word, session_format *out, err *e) {
    static const char *const words[] = {"md", "json", "txt"};
    *out = SESSION_MD;
    for (int i = 0; word != NULL && i < 3; i++) {
        if (!str_eq(word, words[i])) continue;
        *out = (session_format)i;
        return OK;
    }
    if (word == NULL) return OK;
    return err_set(e, ERR_ARG, "--format is \"%.20s\"; it must be md, json or txt", word);
}

int cmd_sessions_export(const cmd_args *a) {
    buf dir = BUF_INIT, out = BUF_INIT;
    session *s = NULL;
    session_format format;
    const char *file = cmd_value(a, "output");
    err e = ERR_INIT;
    int code = EXIT_OK;
    if (parse_format(cmd_value(a, "format"), &format, &e) != OK) return cmd_fail_usage(&e);
    int rc = open_named(a, false, &dir, &s, &e);
    if (rc == OK) rc = session_export(s, format, &out, &e);
    if (rc == OK && file != NULL) {
        rc = file_write_atomic(file, buf_cstr(&out), out.len, 0600, &e);
    } else if (rc == OK) {
        cmd_put(buf_cstr(&out), out.len);
    }
    if (rc != OK) code = cmd_fail(&e);
    session_close(s);
    buf_release(&out);
    buf_release(&dir);
    return cmd_finish(code);
}

/* Says the name of a session that was made. */
static void put_made(const cmd_args *a, const session *s) {
    if (!cmd_has(a, "json")) {
        cmd_printf("%s\n", session_name(s));
        return;
    }
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_kstr(&w, "name", session_name(s));
    json_w_kstr(&w, "title", session_title(s));
    json_w_ki64(&w, "messages", session_n_turns(s));
    cmd_put_json(&w);
    buf_release(&out);
}

int cmd_sessions_import(const cmd_args *a) {
    buf dir = BUF_INIT, text = BUF_MAX(IMPORT_MAX_BYTES);
    session *s = NULL;
    err e = ERR_INIT;
    int code = EXIT_OK;
    int rc = session_dir(&dir, &e);
    if (rc == OK) rc = file_read(a->args[0], &text, IMPORT_MAX_BYTES, &e);
    if (rc == OK) {
        rc = session_import(buf_cstr(&dir), buf_cstr(&text), text.len, &s, &e);
        rc = err_add(&e, rc, "%s", a->args[0]);
    }
    if (rc == OK) {
        put_made(a, s);
    } else {
        code = cmd_fail(&e);
    }
    session_close(s);
    buf_release(&text);
    buf_release(&dir);
    return cmd_finish(code);
}

int cmd_sessions_fork(const cmd_args *a) {
    buf dir = BUF_INIT;
    session *s = NULL, *to = NULL;
    err e = ERR_INIT;
    int code = EXIT_OK;
    int rc = open_named(a, false, &dir, &s, &e);
    if (rc == OK) rc = session_fork(s, buf_cstr(&dir), &to, &e);
    if (rc == OK) {
        put_made(a, to);
    } else {
        code = cmd_fail(&e);
    }
    session_close(to);
    session_close(s);
    buf_release(&dir);
    return cmd_finish(code);
}

int cmd_sessions_rename(const cmd_args *a) {
    buf dir = BUF_INIT, title = BUF_INIT;
    session *s = NULL;
    err e = ERR_INIT;
    for (int i = 1; i < a->n_args; i++)
        buf_printf(&title, "%s%s", i > 1 ? " " : "", a->args[i]);
    int rc = open_named(a, true, &dir, &s, &e);
    if (rc == OK) rc = session_rename(s, buf_cstr(&title), &e);
    session_close(s);
    buf_release(&title);
    buf_release(&dir);
    return rc == OK ? EXIT_OK : cmd_fail(&e);
}

static bool is_confirmed(const cmd_args *a, const session_info *row) {
    char answer[8] = "";
    if (cmd_has(a, "yes")) return true;
    fprintf(stderr, "Delete session %s \"", row->name);
    fflush(stderr);
    cmd_put_text(row->title, strlen(row->title));
    cmd_flush();
    fprintf(stderr, "\", %d turn%s? [y/N] ", row->n_turns, row->n_turns == 1 ? "" : "s");
    return fgets(answer, sizeof answer, stdin) != NULL && (answer[0] == 'y' || answer[0] == 'Y');
}

static int delete_one(const cmd_args *a, const char *dir, const char *wanted) {
    char name[SESSION_NAME_BYTES];
    session_info *rows = NULL;
    int n = 0;
    err e = ERR_INIT;
    int rc = session_find(dir, wanted, name, &e);
    if (rc == OK) rc = session_list(dir, &rows, &n, &e);
    bool does = false;
    for (int i = 0; rc == OK && i < n; i++) {
        if (str_eq(rows[i].name, name)) does = is_confirmed(a, &rows[i]);
    }
    mem_free(rows);
    if (rc == OK && does) rc = session_delete(dir, name, &e);
    if (rc != OK) return cmd_fail(&e);
    if (!does) {
        cmd_note("%s is kept", name);
        return EXIT_REFUSED;
    }
    return EXIT_OK;
}

int cmd_sessions_delete(const cmd_args *a) {
    buf dir = BUF_INIT;
    err e = ERR_INIT;
    int code = EXIT_OK;
    if (session_dir(&dir, &e) != OK) return cmd_fail(&e);
    if (!cmd_has(a, "yes") && !isatty(0)) {
        buf_release(&dir);
        err_set(&e, ERR_ARG, "deleting asks first, and standard input is no terminal; give --yes");
        return cmd_fail_usage(&e);
    }
    for (int i = 0; i < a->n_args; i++) {
        int one = delete_one(a, buf_cstr(&dir), a->args[i]);
        if (one != EXIT_OK) code = one;
    }
    buf_release(&dir);
    return cmd_finish(code);
}
