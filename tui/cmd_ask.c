/* tandem ask: one question, one answer. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/chat_settings.h"
#include "tui/cmd_chat_options.h"
#include "tui/cmd_internal.h"
#include "tui/session.h"
#include "tui/turn.h"
#include "tui/width.h"

enum { INPUT_MAX_BYTES = 32 << 20 };

typedef struct asking {
    const cmd_args *args;
    bool is_json, is_stream, is_raw, shows_thinking;
    bool ends_line;       /* the answer so far ends with a line break */
    bool is_thought_open; /* thinking was shown and its line has no end yet */
    width_cleaner cleaner;
} asking;

/* Standard input to its end. */
static int read_input(buf *out, err *e) {
    char part[16384];
    ssize_t n;
    while ((n = read(0, part, sizeof part)) > 0) {
        if (out->len + (size_t)n > INPUT_MAX_BYTES) {
            return err_set(
                e, ERR_LIMIT, "standard input is longer than %d MiB", INPUT_MAX_BYTES >> 20);
        }
        buf_append(out, part, (size_t)n);
    }
    return n < 0 ? err_errno(e, "cannot read standard input") : OK;
}

static int check_text(const char *text, size_t len, const char *what, err *e) {
    if (memchr(text, '\0', len) != NULL || !utf8_valid(text, len)) {
        return err_set(e, ERR_FORMAT,
            "%s is not UTF-8 text; convert it first, for example with: iconv "
            "-f LATIN1 -t UTF-8",
            what);
    }
    return OK;
}

static int add_file(const char *path, buf *out, err *e) {
    buf text = BUF_INIT;
    int rc = file_read(path, &text, INPUT_MAX_BYTES, e);
    if (rc == OK) rc = check_text(buf_cstr(&text), text.len, path, e);
    if (rc == OK) {
        bool has_end = text.len > 0 && text.data[text.len - 1] == '\n';
        buf_printf(out, "File %s:\n```\n%s%s```\n\n", path_base(path), buf_cstr(&text),
            has_end ? "" : "\n");
    }
    buf_release(&text);
    return rc;
}

/* The question: files, then the words or standard input. */
static int read_question(const cmd_args *a, buf *out, err *e) {
    int rc = OK;
    for (int i = 0; i < a->n_given && rc == OK; i++) {
        if (str_eq(a->given[i].option->name, "file")) rc = add_file(a->given[i].value, out, e);
    }
    if (rc != OK) return rc;
    size_t from = out->len;
    bool is_dash = a->n_args == 1 && str_eq(a->args[0], "-");
    if (a->n_args == 0 || is_dash) {
        if (a->n_args == 0 && isatty(0)) {
            return err_set(
                e, ERR_ARG, "what is the question? tandem ask TEXT, or text on standard input");
        }
        rc = read_input(out, e);
    } else {
        for (int i = 0; i < a->n_args; i++)
            buf_printf(out, "%s%s", i > 0 ? " " : "", a->args[i]);
    }
    if (rc == OK) rc = check_text(buf_cstr(out) + from, out->len - from, "the question", e);
    while (out->len > from && out->data[out->len - 1] == '\n')
        buf_truncate(out, out->len - 1);
    if (rc == OK && out->len == from) rc = err_set(e, ERR_ARG, "the question is empty");
    return rc;
}

/* Printing. */

static void put_event(const char *type, const char *text, size_t len) {
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_kstr(&w, "event", type);
    json_w_key(&w, "text");
    json_w_strn(&w, text, len);
    cmd_put_json(&w);
    buf_release(&out);
}

/* Thinking goes to standard error, the answer to standard output: on a terminal they must not run
 * together. */
static void end_thought(asking *k) {
    if (k->is_thought_open) fputc('\n', stderr);
    k->is_thought_open = false;
}

static void on_part(void *ctx, turn_part part, const char *text, size_t len) {
    asking *k = ctx;
    if (part == TURN_WAITING) return;
    if (k->is_stream) {
        put_event(part == TURN_THINKING ? "thinking"
                  : part == TURN_TEXT   ? "text"
                                        : "call",
            text, len);
        return;
    }
    if (k->is_json || len == 0) return;
    buf shown = BUF_INIT;
    if (k->is_raw) {
        buf_append(&shown, text, len);
    } else {
        width_clean(&k->cleaner, text, len, &shown);
    }
    if (part == TURN_TEXT) {
        end_thought(k);
        cmd_put(buf_cstr(&shown), shown.len);
        cmd_flush();
        k->ends_line = shown.len > 0 && shown.data[shown.len - 1] == '\n';
    } else if (part == TURN_THINKING && k->shows_thinking) {
        fwrite(buf_cstr(&shown), 1, shown.len, stderr);
        if (shown.len > 0) k->is_thought_open = shown.data[shown.len - 1] != '\n';
    }
    buf_release(&shown);
}

static void put_result(const session *s, const turn_result *r, bool is_kept) {
    buf out = BUF_INIT, stats = BUF_INIT;
    const session_turn *t = session_turn_at(s, session_head(s));
    json_w w;
    turn_stats_json(r, &stats);
    cmd_begin_json(&w, &out);
    json_w_kstr(&w, "event", "end");
    json_w_kstr(&w, "state", session_state_name(r->state));
    json_w_kstr(&w, "text", t != NULL ? t->text : "");
    json_w_kstr(&w, "thinking", t != NULL ? t->think : NULL);
    json_w_key(&w, "tool_calls");
    if (t != NULL && t->tool_calls != NULL) {
        json_w_raw(&w, t->tool_calls, strlen(t->tool_calls));
    } else {
        json_w_null(&w);
    }
    json_w_kstr(&w, "session", is_kept ? session_name(s) : NULL);
    json_w_kstr(&w, "error", r->state == SESSION_FAILED ? r->error.msg : NULL);
    json_w_key(&w, "stats");
    json_w_raw(&w, buf_cstr(&stats), stats.len);
    cmd_put_json(&w);
    buf_release(&out);
    buf_release(&stats);
}

static int result_code(const turn_result *r) {
    switch (r->state) {
    case SESSION_STOPPED:
        return EXIT_INTERRUPTED;
    case SESSION_FAILED:
        return r->error.code == ERR_ARG ? EXIT_REFUSED : EXIT_NOT_READY;
    default:
        return r->kept.code != OK ? EXIT_WARNINGS : EXIT_OK;
    }
}

static void print_end(asking *k, const session *s, const turn_result *r, bool is_kept) {
    end_thought(k);
    if (k->is_json || k->is_stream) {
        put_result(s, r, is_kept);
    } else if (r->content_s >= 0 && !k->ends_line) {
        cmd_puts("\n");
    }
    cmd_flush();
    if (r->state == SESSION_FAILED) {
        cmd_note("%s%s", r->error.msg,
            r->content_s >= 0 ? "; what came before is printed and kept" : "");
    }
    if (r->state == SESSION_STOPPED && !cmd_output_failed()) cmd_note("stopped by you");
    if (r->state == SESSION_CUT) cmd_note("the answer was cut at the length limit");
    if (r->kept.code != OK) cmd_note("%s", r->kept.msg);
}

/* A named session is gone on with. Without one the answer is kept in a session of its own while it
 * is written, which is deleted when all of it has been printed. */
static int open_session(const cmd_args *a, session **out, err *e) {
    buf dir = BUF_INIT;
    char name[SESSION_NAME_BYTES];
    const char *wanted = cmd_value(a, "session");
    int rc = session_dir(&dir, e);
    if (rc == OK && wanted != NULL) {
        rc = session_find(buf_cstr(&dir), wanted, name, e);
        if (rc == OK) rc = session_open(buf_cstr(&dir), name, out, e);
        if (rc == ERR_NOT_FOUND) {
            rc = session_new(buf_cstr(&dir), out, e);
            if (rc == OK) rc = session_rename(*out, wanted, e);
        }
    } else if (rc == OK) {
        rc = session_new(buf_cstr(&dir), out, e);
    }
    buf_release(&dir);
    return rc;
}

/* The reader of our output has gone: nobody wants the rest. */
static bool is_closed(void *ctx) {
    (void)ctx;
    return cmd_output_failed();
}

static int ask(asking *k, const chat_settings *settings, client *c, session *s, bool *keep) {
    turn_request q = {.client = c,
        .session = s,
        .settings = settings,
        .stop_fd = cmd_stop_fd(),
        .printer = {on_part, NULL, is_closed, k}};
    turn_result r;
    err e = ERR_INIT;
    width_cleaner_reset(&k->cleaner);
    if (turn_run(&q, &r, &e) != OK) return cmd_fail(&e);
    bool is_kept = r.state != SESSION_DONE || cmd_value(k->args, "session") != NULL;
    print_end(k, s, &r, is_kept);
    if (is_kept && r.state != SESSION_DONE && r.state != SESSION_CUT && r.content_s >= 0) {
        cmd_note("it is kept as session %s", session_name(s));
    }
    *keep = is_kept;
    return result_code(&r);
}

static void end_session(session *s, bool keep) {
    char name[SESSION_NAME_BYTES] = "";
    buf dir = BUF_INIT;
    if (s == NULL) return;
    str_copy(name, sizeof name, session_name(s));
    session_close(s);
    if (!keep && session_dir(&dir, NULL) == OK) session_delete(buf_cstr(&dir), name, NULL);
    buf_release(&dir);
}

static int add_question(session *s, const cmd_args *a, const char *question, err *e) {
    buf system = BUF_INIT;
    int rc = cmd_system_prompt(a, &system, e);
    if (rc == OK && system.len > 0 && session_n_turns(s) == 0) {
        rc = session_add(s, SESSION_SYSTEM, buf_cstr(&system), -1, NULL, e);
    }
    if (rc == OK) rc = session_add(s, SESSION_USER, question, -1, NULL, e);
    buf_release(&system);
    return rc;
}

int cmd_ask(const cmd_args *a) {
    asking k = {.args = a,
        .is_json = cmd_has(a, "json"),
        .is_stream = cmd_has(a, "stream"),
        .is_raw = !isatty(1),
        .shows_thinking = cmd_has(a, "show-thinking")};
    buf question = BUF_INIT;
    chat_settings settings;
    client *c = NULL;
    session *s = NULL;
    err e = ERR_INIT;
    int code = EXIT_OK;
    bool keep = true;
    chat_settings_init(&settings);
    int rc = cmd_chat_settings(a, &settings, &e);
    if (rc == OK) rc = read_question(a, &question, &e);
    if (rc != OK) {
        code = rc == ERR_NOT_FOUND || rc == ERR_IO ? cmd_fail(&e) : cmd_fail_usage(&e);
    } else if (cmd_engine(a, true, &c, &e) != OK) {
        code = cmd_fail_engine(&e);
    } else if (open_session(a, &s, &e) != OK || add_question(s, a, buf_cstr(&question), &e) != OK) {
        code = cmd_fail(&e);
    } else {
        code = ask(&k, &settings, c, s, &keep);
    }
    end_session(s, keep);
    client_close(c);
    chat_settings_release(&settings);
    buf_release(&question);
    return cmd_finish(code);
}
