/* tandem verify: real requests, each with its result. */
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/pair.h"
#include "setup/paths.h"
#include "setup/verify.h"
#include "tui/cmd_internal.h"

enum { KEY_MAX_BYTES = 4096 };

typedef struct report {
    bool is_json;
    char first_failed[32];
} report;

static void put_number(json_w *w, const char *key, double v) {
    if (v < 0) {
        json_w_knull(w, key);
    } else {
        json_w_key(w, key);
        json_w_fixed(w, v, 1);
    }
}

static void put_line_json(const verify_line *l) {
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_ki64(&w, "level", l->level);
    json_w_kstr(&w, "id", l->id);
    json_w_kstr(&w, "verdict", verify_verdict_name(l->verdict));
    json_w_kstr(&w, "request", l->request);
    json_w_kstr(&w, "expected", l->expected);
    json_w_kstr(&w, "got", l->got);
    json_w_kstr(&w, "reason", l->reason);
    put_number(&w, "first_ms", l->first_ms);
    put_number(&w, "tokens_per_s", l->tokens_per_s);
    cmd_put_json(&w);
    buf_release(&out);
}

static void put_line_text(const verify_line *l) {
    cmd_printf("%s  %-10s %s\n", verify_verdict_name(l->verdict), l->id, l->request);
    cmd_printf("      expected  %s\n", l->expected);
    cmd_puts("      got       ");
    cmd_put_text(l->got, strlen(l->got) > 80 ? 80 : strlen(l->got));
    cmd_puts("\n");
    if (l->first_ms >= 0) cmd_printf("      time      first %.0f ms", l->first_ms);
    if (l->first_ms >= 0 && l->tokens_per_s >= 0) cmd_printf(", %.1f tokens/s", l->tokens_per_s);
    if (l->first_ms >= 0) cmd_puts("\n");
    if (l->reason[0] != '\0') {
        cmd_puts("      reason    ");
        cmd_put_text(l->reason, strlen(l->reason));
        cmd_puts("\n");
    }
}

static void on_line(void *ctx, const verify_line *l) {
    report *r = ctx;
    if (l->verdict == VERIFY_FAIL && r->first_failed[0] == '\0')
        str_copy(r->first_failed, sizeof r->first_failed, l->id);
    if (r->is_json) {
        put_line_json(l);
    } else {
        put_line_text(l);
    }
    cmd_flush();
}

static void put_summary(const report *r, const verify_summary *s) {
    if (!r->is_json) {
        cmd_printf("%s: %d passed, %d with warnings, %d failed, %d skipped\n", s->model, s->n_pass,
            s->n_warn, s->n_fail, s->n_skip);
        return;
    }
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_kstr(&w, "model", s->model);
    json_w_ki64(&w, "passed", s->n_pass);
    json_w_ki64(&w, "warnings", s->n_warn);
    json_w_ki64(&w, "failed", s->n_fail);
    json_w_ki64(&w, "skipped", s->n_skip);
    cmd_put_json(&w);
    buf_release(&out);
}

/* The first line of the key file that is no comment; the key never stands on the command line. */
static int read_key(const char *path, buf *key, err *e) {
    buf text = BUF_INIT;
    int rc = file_read(path, &text, KEY_MAX_BYTES, e);
    const char *at = buf_cstr(&text);
    while (rc == OK && *at != '\0') {
        size_t n = strcspn(at, "\r\n");
        if (n > 0 && *at != '#') {
            buf_append(key, at, n);
            break;
        }
        at += n + strspn(at + n, "\r\n");
    }
    if (rc == OK && key->len == 0) rc = err_set(e, ERR_FORMAT, "%s holds no key", path);
    if (text.data != NULL) memset(text.data, 0, text.len);
    buf_release(&text);
    return rc;
}

static int verify_exit_code(const verify_summary *s) {
    if (s->n_fail > 0) return EXIT_REFUSED;
    return s->n_warn > 0 ? EXIT_WARNINGS : EXIT_OK;
}

/* Makes sure that there is an engine, unless a URL was given. */
static int find_target(const cmd_args *a, verify_options *o, buf *socket, err *e) {
    o->base_url = cmd_value(a, "url");
    if (o->base_url != NULL) return OK;
    client *c = NULL;
    int rc = cmd_engine(a, true, &c, e);
    if (rc != OK) return rc;
    buf_puts(socket, client_socket_path(c));
    client_close(c);
    o->socket_path = buf_cstr(socket);
    return OK;
}

int cmd_verify(const cmd_args *a) {
    err e = ERR_INIT;
    buf key = BUF_INIT, socket = BUF_INIT;
    report r = {.is_json = cmd_has(a, "json")};
    verify_options o = {.stop = cmd_stop_flag()};
    verify_summary s;
    int64_t level = 1, minutes = 60;
    buf baseline = BUF_INIT;
    const char *key_file = cmd_value(a, "key-file");
    int code = EXIT_OK, rc = cmd_int_option(a, "level", (cmd_range){1, 3, 1}, &level, &e);
    if (rc == OK) rc = cmd_int_option(a, "soak", (cmd_range){0, 1440, 60}, &minutes, &e);
    if (rc != OK) return cmd_fail_usage(&e);
    o.level = (int)level;
    o.soak_s = minutes > 0 ? (int)minutes * 60 : -1;
    if (paths_state(&baseline, NULL) == OK && buf_puts(&baseline, "/verify-speed.json") == OK)
        o.baseline = buf_cstr(&baseline);
    if (key_file != NULL) rc = read_key(key_file, &key, &e);
    if (rc != OK) {
        buf_release(&baseline);
        return cmd_fail(&e);
    }
    if (key.len > 0) o.key = buf_cstr(&key);
    rc = find_target(a, &o, &socket, &e);
    if (rc == OK) rc = verify_run(&o, on_line, &r, &s, &e);
    if (rc == OK) {
        put_summary(&r, &s);
        if (o.base_url == NULL) pair_verify_keep(&s, o.level, r.first_failed);
        code = verify_exit_code(&s);
    } else {
        code = rc == ERR_CANCELLED ? EXIT_INTERRUPTED : cmd_fail_engine(&e);
    }
    if (key.data != NULL) memset(key.data, 0, key.len);
    buf_release(&key);
    buf_release(&socket);
    buf_release(&baseline);
    return cmd_finish(code);
}
