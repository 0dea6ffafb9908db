/* Field cases of the terminal interface (tui/ of CASES_DIR) and of the chat client (client_sse in
 * chat/). Each case is run on the library and, where it is about what a user sees, on the real
 * program on a pseudo terminal. Names each failing case with expected and got. */
#include <dirent.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tests/harness/screen_test.h"
#include "tests/harness/vectors.h"
#include "tui/chat_stream.h"
#include "tui/sse.h"
#include "tui/width.h"

#define WAIT_MS 120000

static vectors counts;

static void check(const char *id, bool ok, const char *want, const char *got) {
    if (ok)
        vectors_pass(&counts);
    else
        vectors_fail(&counts, id, want, got);
}

/* --- sanitize --- */

static void cleaned(const json *c, buf *out) {
    width_cleaner k;
    width_cleaner_reset(&k);
    const char *whole = json_str(json_get(c, "input"));
    if (whole != NULL) width_clean(&k, whole, strlen(whole), out);
    JSON_EACH(piece, json_get(c, "pieces"))
    width_clean(&k, json_str(piece), strlen(json_str(piece)), out);
    width_clean_end(&k, out);
}

static bool has_bytes(const buf *b, const json *list, char out[8]) {
    JSON_EACH(item, list) {
        unsigned char byte = (unsigned char)strtoul(json_str(item), NULL, 16);
        if (b->len > 0 && memchr(b->data, byte, b->len) != NULL) {
            str_copy(out, 8, json_str(item));
            return true;
        }
    }
    return false;
}

/* The same text as a reply of the engine: nothing of it may act on the terminal. */
static void sanitize_on_screen(const char *id, const json *c, const char *visible) {
    const char *pieces[8];
    int n = 0;
    if (json_str(json_get(c, "input")) != NULL) pieces[n++] = json_str(json_get(c, "input"));
    JSON_EACH(piece, json_get(c, "pieces")) pieces[n++] = json_str(piece);
    screen_test t;
    const screen_setup s = {.n_rows = 24, .n_columns = 80};
    fake_reply r = {.pieces = pieces, .n_pieces = n};
    screen_open(&t, &s);
    fake_daemon_script(t.daemon, &r);
    screen_run(&t, &s);
    pty_wait(&t.term, "engine READY", true, WAIT_MS);
    pty_keys(&t.term, "q\r");
    bool is_done = pty_wait(&t.term, "done ", true, WAIT_MS) &&
                   (visible == NULL || pty_wait(&t.term, visible, true, WAIT_MS));
    char got[160];
    snprintf(got, sizeof got,
        "done %d, unknown %d (%s), controls %d, clipboard %zu bytes, title \"%s\", shown %d",
        is_done, t.term.screen.n_unknown,
        t.term.screen.n_unknown > 0 ? t.term.screen.unknown + 1 : "", t.term.screen.n_controls,
        t.term.screen.clipboard.len, t.term.screen.title,
        visible == NULL || vt_has(&t.term.screen, visible));
    bool ok = is_done && t.term.screen.n_unknown == 0 && t.term.screen.n_controls == 0 &&
              t.term.screen.clipboard.len == 0 && t.term.screen.title[0] == '\0' &&
              (visible == NULL || vt_has(&t.term.screen, visible));
    check(id, ok, "on the screen: the visible text and no effect", got);
    screen_close(&t);
}

static void run_sanitize(const char *id, const json *c) {
    const json *expect = json_get(c, "expect");
    const char *visible = json_str(json_get(expect, "visible"));
    const char *contains = json_str(json_get(expect, "visible_contains"));
    buf out = BUF_INIT;
    char bad[8] = "";
    cleaned(c, &out);
    check(id, !has_bytes(&out, json_get(expect, "no_bytes"), bad), "none of no_bytes", bad);
    if (visible != NULL) check(id, str_eq(buf_cstr(&out), visible), visible, buf_cstr(&out));
    if (contains != NULL)
        check(id, strstr(buf_cstr(&out), contains) != NULL, contains, buf_cstr(&out));
    sanitize_on_screen(id, c, visible != NULL ? visible : contains);
    buf_release(&out);
}

/* --- width --- */

static bool is_allowed(const json *item, int columns) {
    int64_t want;
    if (json_i64(json_get(item, "columns"), &want) == OK) return want == columns;
    JSON_EACH(one, json_get(item, "columns_any")) {
        if (json_i64(one, &want) == OK && want == columns) return true;
    }
    return false;
}

/* The first row without the border of the side panel; 40: there is none. */
static int row_without_border(const vt *v) {
    for (int row = 1; row < 40; row++) {
        const vt_cell *k = vt_at(v, row, 84);
        if (k->len != 3 || memcmp(k->text, "\xe2\x94\x82", 3) != 0) return row;
    }
    return 40;
}

/* Beside the transcript stands the side panel: its border must stay in its column in every row,
 * whatever the terminal makes of the clusters. */
static void border_stays(const char *id, const json *items) {
    buf reply = BUF_INIT;
    JSON_EACH(item, items) buf_printf(&reply, "x %s y\n\n", json_str(json_get(item, "text")));
    const char *pieces[] = {buf_cstr(&reply)};
    screen_test t;
    const screen_setup s = {.n_rows = 40, .n_columns = 120};
    fake_reply r = {.pieces = pieces, .n_pieces = 1};
    screen_open(&t, &s);
    fake_daemon_script(t.daemon, &r);
    screen_run(&t, &s);
    pty_wait(&t.term, "engine READY", true, WAIT_MS);
    pty_keys(&t.term, "q\r");
    bool ok = pty_wait(&t.term, "done ", true, WAIT_MS);
    int row = 0;
    for (uint64_t end = clock_mono_ms() + WAIT_MS; ok && row < 40 && clock_mono_ms() < end;) {
        pty_settle(&t.term, 100, 500);
        row = row_without_border(&t.term.screen);
    }
    char got[64];
    snprintf(got, sizeof got, "no border in row %d", row);
    check(id, ok && row == 40, "a border in column 84 of every row", got);
    JSON_EACH(item, items) {
        const char *text = json_str(json_get(item, "text"));
        uint32_t code;
        size_t len = utf8_decode(text, strlen(text), &code);
        if (width_text(text, strlen(text)) == 0) continue;
        char *first = mem_strndup(text, len);
        check(id, vt_has(&t.term.screen, first), first, "not on the screen");
        mem_free(first);
    }
    screen_close(&t);
    buf_release(&reply);
}

static void run_width(const char *id, const json *c) {
    const json *expect = json_get(c, "expect");
    JSON_EACH(item, json_get(c, "items")) {
        const char *text = json_str(json_get(item, "text"));
        int columns = width_text(text, strlen(text));
        char got[160];
        snprintf(got, sizeof got, "\"%s\" has %d columns", text, columns);
        check(id, is_allowed(item, columns), "the columns of the case", got);
        if (!json_is_true(json_get(expect, "clusters_not_split"))) continue;
        width_cluster k = width_next(text, strlen(text));
        check(id, k.len == strlen(text), "one cluster", got);
    }
    if (json_is_true(json_get(expect, "border_column_fixed")))
        border_stays(id, json_get(c, "items"));
}

static void run_truncate(const char *id, const json *c) {
    JSON_EACH(item, json_get(c, "items")) {
        const char *text = json_str(json_get(item, "text"));
        int64_t most = 0;
        json_i64(json_get(item, "max_columns"), &most);
        char *cut = mem_strndup(text, width_fit(text, strlen(text), (int)most, NULL));
        bool ok = false;
        JSON_EACH(allowed, json_get(item, "allowed")) ok = ok || str_eq(json_str(allowed), cut);
        check(id, ok, json_str(json_at(json_get(item, "allowed"), 0)), cut);
        mem_free(cut);
    }
}

/* --- the program --- */

static bool is_alive(screen_test *t) {
    pty_resize(&t->term, 24, 80);
    pty_settle(&t->term, 60, 500);
    pty_keys(&t->term, "/help\r");
    return pty_wait(&t->term, "Help: Chat", true, WAIT_MS) && !t->term.has_ended;
}

static void run_resize(const char *id, const json *c) {
    static const char *const PIECES[] = {"some **text** that streams \xe4\xb8\xad\xe6\x96\x87 ",
        "| a | b |\n|---|---|\n| c | d |\n\n"};
    screen_test t;
    const screen_setup s = {.n_rows = 24, .n_columns = 80};
    fake_reply r = {
        .pieces = PIECES, .n_pieces = 2, .n_times = 2000, .delay_ms = 2, .hold_after = 4000};
    screen_open(&t, &s);
    fake_daemon_script(t.daemon, &r);
    screen_run(&t, &s);
    pty_wait(&t.term, "engine READY", true, WAIT_MS);
    pty_keys(&t.term, "go\r");
    pty_wait(&t.term, "gen ", true, WAIT_MS);
    JSON_EACH(size, json_get(c, "sizes")) {
        int64_t rows = 1, columns = 1;
        json_i64(json_at(size, 0), &columns);
        json_i64(json_at(size, 1), &rows);
        pty_resize(&t.term, (int)rows, (int)columns);
        pty_settle(&t.term, 35, 60);
    }
    pty_resize(&t.term, 24, 80);
    pty_settle(&t.term, 60, 300);
    pty_keys(&t.term, "\003");
    bool ok = pty_wait(&t.term, "stopped by you", true, WAIT_MS) && is_alive(&t);
    check(id, ok, "alive at the end, a reply streaming meanwhile", ok ? "alive" : "dead or stuck");
    screen_close(&t);
}

/* The keys of the case by name. */
static void send_named(screen_test *t, const char *key) {
    static const struct {
        const char *name, *bytes;
    } KEYS[] = {{"HOME", "\033[H"}, {"END", "\033[F"}, {"UP", "\033[A"}, {"DOWN", "\033[B"}};
    for (size_t i = 0; i < 4; i++) {
        if (str_eq(KEYS[i].name, key)) key = KEYS[i].bytes;
    }
    screen_keys(t, key);
    if (!pty_redraw(&t->term, WAIT_MS)) fprintf(stderr, "not drawn anew after %s\n", key);
}

static void run_prompt(const char *id, const json *c) {
    static const char *const PLAIN[] = {"NO_COLOR=1", NULL};
    screen_test t[2];
    int64_t columns = 40;
    json_i64(json_get(c, "columns"), &columns);
    for (int i = 0; i < 2; i++) {
        const screen_setup s = {
            .n_rows = 24, .n_columns = (int)columns, .env = i == 0 ? NULL : PLAIN};
        screen_open(&t[i], &s);
        screen_run(&t[i], &s);
        pty_wait(&t[i].term, "engine READY", true, WAIT_MS);
    }
    JSON_EACH(key, json_get(c, "keys")) {
        char got[96];
        for (int i = 0; i < 2; i++)
            send_named(&t[i], json_str(key));
        const vt *a = &t[0].term.screen, *b = &t[1].term.screen;
        for (uint64_t end = clock_mono_ms() + WAIT_MS;
             (a->row != b->row || a->column != b->column || !a->has_cursor) &&
             clock_mono_ms() < end;) {
            pty_settle(&t[0].term, 20, 20);
            pty_settle(&t[1].term, 20, 20);
        }
        snprintf(got, sizeof got, "after %.20s: %d,%d and %d,%d", json_str(key), a->row, a->column,
            b->row, b->column);
        check(id, a->row == b->row && a->column == b->column && a->has_cursor,
            "the same cursor with and without colour", got);
    }
    for (int i = 0; i < 2; i++)
        screen_close(&t[i]);
}

static void run_interleave(const char *id, const json *c) {
    static const char *const PIECES[] = {"stream ", "chunk "};
    const char *typed = json_str(json_get(c, "typed"));
    const char *visible = json_str(json_get(json_get(c, "expect"), "visible_input"));
    const char *edit = json_str(json_get(json_get(c, "expect"), "edit_buffer"));
    screen_test t;
    const screen_setup s = {.n_rows = 24, .n_columns = 80};
    fake_reply r = {
        .pieces = PIECES, .n_pieces = 2, .n_times = 150, .delay_ms = 5, .hold_after = 300};
    char line[96], quoted[96];
    screen_open(&t, &s);
    fake_daemon_script(t.daemon, &r);
    screen_run(&t, &s);
    pty_wait(&t.term, "engine READY", true, WAIT_MS);
    pty_keys(&t.term, "go\r");
    pty_wait(&t.term, "gen ", true, WAIT_MS);
    for (size_t i = 0; i < strlen(typed); i++) {
        pty_send(&t.term, typed + i, 1);
        pty_settle(&t.term, 10, 40);
    }
    snprintf(line, sizeof line, "> %s", visible);
    check(id, pty_wait(&t.term, line, true, WAIT_MS), line, "the input is not shown");
    fake_daemon_release(t.daemon);
    pty_wait(&t.term, "done ", true, WAIT_MS);
    check(id, vt_has(&t.term.screen, line), line, "the input went away");
    pty_keys(&t.term, "\r");
    pty_wait(&t.term, "turn 2", true, WAIT_MS);
    snprintf(quoted, sizeof quoted, "\"%s\"", edit);
    char *body = fake_daemon_last_body(t.daemon);
    for (uint64_t end = clock_mono_ms() + WAIT_MS;
         strstr(body, quoted) == NULL && clock_mono_ms() < end;) {
        free(body);
        pty_settle(&t.term, 20, 20);
        body = fake_daemon_last_body(t.daemon);
    }
    check(id, strstr(body, quoted) != NULL, quoted, body);
    free(body);
    screen_close(&t);
}

static int signal_of(const char *name) {
    if (str_eq(name, "TERM")) return SIGTERM;
    if (str_eq(name, "INT")) return SIGINT;
    return str_eq(name, "HUP") ? SIGHUP : SIGSEGV;
}

static void run_restore(const char *id, const json *c) {
    JSON_EACH(name, json_get(c, "signals")) {
        screen_test t;
        struct termios modes;
        const screen_setup s = {.n_rows = 24, .n_columns = 80, .answers = true};
        char got[128];
        screen_open(&t, &s);
        screen_run(&t, &s);
        pty_wait(&t.term, "engine READY", true, WAIT_MS);
        bool was_there = t.term.screen.is_alternate && t.term.screen.has_paste;
        kill(t.term.pid, signal_of(json_str(name)));
        bool has_ended = pty_wait_end(&t.term, WAIT_MS);
        const vt *v = &t.term.screen;
        bool has_echo = tcgetattr(t.term.master, &modes) == 0 && (modes.c_lflag & ECHO) &&
                        (modes.c_lflag & ICANON);
        snprintf(got, sizeof got,
            "%s: was up %d, ended %d, echo %d, cursor %d, alternate %d, paste %d, sync %d",
            json_str(name), was_there, has_ended, has_echo, v->has_cursor, v->is_alternate,
            v->has_paste, v->in_sync);
        check(id,
            was_there && has_ended && has_echo && v->has_cursor && !v->is_alternate &&
                !v->has_paste && !v->in_sync,
            "the terminal as it was", got);
        screen_close(&t);
    }
}

/* --- client_sse --- */

static int on_data(void *ctx, const char *data, size_t n, err *e) {
    return chat_stream_data(ctx, data, n, e);
}

static void no_event(void *ctx, const chat_event *ev) {
    (void)ctx;
    (void)ev;
}

static void check_text(const char *id, const json *expect, const char *key, const char *got) {
    const char *want = json_str(json_get(expect, key));
    if (want != NULL) check(id, str_eq(want, got), want, got);
}

static void check_counts(const char *id, const json *usage, const chat_usage *got) {
    const struct {
        const char *name;
        int64_t value;
    } FIELDS[] = {{"prompt_tokens", got->prompt_tokens},
        {"completion_tokens", got->completion_tokens}, {"total_tokens", got->total_tokens}};
    for (size_t i = 0; i < 3; i++) {
        int64_t want;
        char text[32];
        if (json_i64(json_get(usage, FIELDS[i].name), &want) != OK) continue;
        snprintf(text, sizeof text, "%lld", (long long)FIELDS[i].value);
        check(id, want == FIELDS[i].value, FIELDS[i].name, text);
    }
}

static void check_calls(const char *id, const json *calls, const chat_stream *s) {
    int i = 0;
    JSON_EACH(call, calls) {
        if (i >= s->n_calls) {
            check(id, false, "a tool call", "none");
            return;
        }
        check_text(id, call, "id", s->calls[i].id);
        check_text(id, call, "name", s->calls[i].name);
        check_text(id, call, "arguments", buf_cstr(&s->calls[i].arguments));
        i++;
    }
    if (calls != NULL) check(id, i == s->n_calls, "no further call", "more calls");
}

static void run_client_sse(const char *id, const json *c, size_t piece) {
    chat_stream s;
    sse reader;
    err e = ERR_INIT;
    buf raw = BUF_INIT;
    const json *expect = json_get(c, "expect");
    const char *text = json_str(json_get(c, "raw"));
    if (text != NULL) buf_puts(&raw, text);
    JSON_EACH(event, json_get(c, "events")) buf_printf(&raw, "data: %s\n\n", json_str(event));
    chat_stream_init(&s, no_event, NULL);
    sse_init(&reader, &(sse_sink){.on_data = on_data, .ctx = &s});
    int rc = OK;
    for (size_t i = 0; i < raw.len && rc == OK; i += piece) {
        rc = sse_feed(&reader, raw.data + i, raw.len - i < piece ? raw.len - i : piece, &e);
    }
    if (rc == OK) rc = chat_stream_end(&s, &e);
    if (json_is_null(json_get(expect, "error"))) check(id, rc == OK, "no error", e.msg);
    check_text(id, expect, "content", buf_cstr(&s.content));
    check_text(id, expect, "finish_reason", s.finish);
    check_counts(id, json_get(expect, "usage"), &s.usage);
    check_calls(id, json_get(expect, "tool_calls"), &s);
    sse_release(&reader);
    chat_stream_release(&s);
    buf_release(&raw);
}

/* --- the runner --- */

static void run_case(const char *dir, const char *name) {
    json *c = vectors_load(dir, name);
    const char *id = json_str(json_get(c, "id")), *kind = json_str(json_get(c, "kind"));
    static const struct {
        const char *kind;
        void (*run)(const char *id, const json *c);
    } KINDS[] = {{"sanitize", run_sanitize}, {"width", run_width}, {"truncate", run_truncate},
        {"resize", run_resize}, {"prompt", run_prompt}, {"interleave", run_interleave},
        {"restore", run_restore}};
    bool is_known = str_eq(kind, "client_sse");
    if (is_known) {
        for (size_t piece = 1; piece < 200; piece += 66)
            run_client_sse(id, c, piece);
    }
    for (size_t i = 0; i < sizeof KINDS / sizeof KINDS[0]; i++) {
        if (!str_eq(KINDS[i].kind, kind)) continue;
        KINDS[i].run(id, c);
        is_known = true;
    }
    if (!is_known) vectors_skip(&counts, id, kind);
    json_free(c);
}

static int is_case(const struct dirent *d) {
    return str_ends(d->d_name, ".json");
}

/* The chat folder holds cases of other runners: only client_sse is ours. */
static bool is_ours(const char *dir, const char *name, bool only_sse) {
    if (!only_sse) return true;
    json *c = vectors_load(dir, name);
    const char *kind = json_str(json_get(c, "kind"));
    bool ours = kind != NULL && str_eq(kind, "client_sse");
    json_free(c);
    return ours;
}

static void run_folder(const char *sub, bool only_sse) {
    char dir[512];
    struct dirent **names = NULL;
    snprintf(dir, sizeof dir, "%s/%s", vectors_cases_dir(), sub);
    int n = scandir(dir, &names, is_case, alphasort);
    for (int i = 0; i < n; i++) {
        if (is_ours(dir, names[i]->d_name, only_sse)) run_case(dir, names[i]->d_name);
        free(names[i]);
    }
    free(names);
    if (n <= 0) vectors_fail(&counts, sub, "case files", "none found");
}

int main(void) {
    setlocale(LC_CTYPE, "C.UTF-8");
    run_folder("tui", false);
    run_folder("chat", true);
    return vectors_end(&counts);
}
