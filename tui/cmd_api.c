/* tandem api: keys of the endpoint, and who uses it. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "engine/api/keys.h"
#include "engine/base/file.h"
#include "engine/base/str.h"
#include "setup/engine_args.h"
#include "setup/paths.h"
#include "tui/cmd_internal.h"

#define WATCH_MS 1000

int cmd_key_file(const cmd_args *a, buf *out, err *e) {
    const char *given = cmd_value(a, "keys");
    buf_reset(out);
    if (given != NULL) return buf_puts(out, given);
    settings *s = settings_new();
    int rc = settings_load(s, e);
    if (rc == OK) rc = engine_args_key_file(s, out, e);
    settings_free(s);
    return rc;
}

/* ---- keys ---- */

static int read_limits(const cmd_args *a, key_limits *out, err *e) {
    static const char *const names[] = {"requests", "tokens", "seconds", "context"};
    int64_t *const places[] = {&out->requests, &out->tokens, &out->seconds, &out->context};
    for (int i = 0; i < 4; i++) {
        int rc = cmd_int_option(a, names[i], (cmd_range){1, INT64_MAX, 0}, places[i], e);
        if (rc != OK) return rc;
    }
    return OK;
}

static int make_folder(const char *path, err *e) {
    buf dir = BUF_INIT;
    path_dir(&dir, path);
    int rc = dir_exists(buf_cstr(&dir)) ? OK : paths_make_private(buf_cstr(&dir), e);
    buf_release(&dir);
    return rc;
}

static int key_new(const cmd_args *a, const char *path, const char *label, err *e) {
    key_limits limits = {0};
    char key[64];
    int rc = read_limits(a, &limits, e);
    if (rc == OK) rc = make_folder(path, e);
    if (rc != OK) return rc;
    key_make(key, sizeof key);
    rc = keys_add(path, label, key, &limits, e);
    if (rc == OK && cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_kstr(&w, "label", label);
        json_w_kstr(&w, "key", key);
        json_w_kstr(&w, "file", path);
        cmd_put_json(&w);
        explicit_bzero(out.data, out.cap);
        buf_release(&out);
    } else if (rc == OK) {
        cmd_printf("%s\n", key);
        cmd_note(
            "this is the only time the key of '%s' is shown; %s keeps its digest", label, path);
    }
    explicit_bzero(key, sizeof key);
    return rc;
}

typedef struct key_lister {
    bool is_json;
    json_w *w;
} key_lister;

static void list_key(void *ctx, const char *label, const key_limits *limits) {
    static const char *const names[] = {"requests", "tokens", "seconds", "context"};
    const int64_t values[] = {limits->requests, limits->tokens, limits->seconds, limits->context};
    const key_lister *l = ctx;
    if (l->is_json) {
        json_w_object(l->w);
        json_w_kstr(l->w, "label", label);
        for (int i = 0; i < 4; i++) {
            json_w_key(l->w, names[i]);
            if (values[i] > 0) {
                json_w_i64(l->w, values[i]);
            } else {
                json_w_null(l->w);
            }
        }
        json_w_close(l->w);
        return;
    }
    cmd_puts(label);
    for (int i = 0; i < 4; i++) {
        if (values[i] > 0) cmd_printf(" %s=%lld", names[i], (long long)values[i]);
    }
    cmd_puts("\n");
}

static int key_list(const cmd_args *a, const char *path, err *e) {
    buf out = BUF_INIT;
    json_w w;
    key_lister l = {.is_json = cmd_has(a, "json"), .w = &w};
    if (l.is_json) {
        cmd_begin_json(&w, &out);
        json_w_kstr(&w, "file", path);
        json_w_key(&w, "keys");
        json_w_array(&w);
    }
    int rc = file_exists(path) ? keys_each(path, list_key, &l, e) : OK;
    if (l.is_json && rc == OK) {
        json_w_close(&w);
        cmd_put_json(&w);
    }
    buf_release(&out);
    return rc;
}

int cmd_api_key(const cmd_args *a) {
    buf path = BUF_INIT;
    err e = ERR_INIT;
    const char *verb = a->args[0];
    const char *label = a->n_args > 1 ? a->args[1] : NULL;
    bool needs_label = strcmp(verb, "list") != 0;
    if (needs_label != (label != NULL)) {
        err_set(&e, ERR_ARG,
            needs_label ? "give a label: tandem api key %s LABEL"
                        : "tandem api key %s takes no label",
            verb);
        return cmd_fail_usage(&e);
    }
    int rc = cmd_key_file(a, &path, &e);
    if (rc != OK) {
    } else if (strcmp(verb, "new") == 0) {
        rc = key_new(a, buf_cstr(&path), label, &e);
    } else if (strcmp(verb, "list") == 0) {
        rc = key_list(a, buf_cstr(&path), &e);
    } else if (strcmp(verb, "revoke") == 0) {
        rc = keys_remove(buf_cstr(&path), label, &e);
        if (rc == OK) cmd_printf("key '%s' is revoked; a running engine notices at once\n", label);
    } else {
        rc = err_set(&e, ERR_ARG, "'%s' is not known; use new, list or revoke", verb);
    }
    buf_release(&path);
    if (rc == ERR_ARG) return cmd_fail_usage(&e);
    return rc == OK ? cmd_finish(EXIT_OK) : cmd_fail(&e);
}

/* ---- requests ---- */

static int64_t number(const json *v, const char *key) {
    int64_t n = 0;
    return json_i64(json_get(v, key), &n) == OK ? n : 0;
}

static const char *word(const json *v, const char *key) {
    const char *s = json_str(json_get(v, key));
    return s != NULL ? s : "-";
}

static void put_done(const json *r) {
    buf line = BUF_INIT;
    char date[32];
    double ms = 0.0;
    json_double(json_get(r, "ms"), &ms);
    buf_printf(&line,
        "%s  %-4s %-24s %3lld  %-10s  in %lld (cached %lld)  out %lld  %.0f ms  key %s\n",
        cmd_date_text(number(r, "time_ms"), date), word(r, "method"), word(r, "path"),
        (long long)number(r, "status"), word(r, "finish_reason"),
        (long long)number(r, "prompt_tokens"), (long long)number(r, "cached_tokens"),
        (long long)number(r, "completion_tokens"), ms, word(r, "key"));
    cmd_put_text(buf_cstr(&line), line.len);
    buf_release(&line);
}

static void put_running(const json *r) {
    buf line = BUF_INIT;
    buf_printf(&line, "running  %-40s %-8s  in %lld of %lld  out %lld\n", word(r, "id"),
        word(r, "phase"), (long long)number(r, "prefilled_tokens"),
        (long long)number(r, "prompt_tokens"), (long long)number(r, "done_tokens"));
    cmd_put_text(buf_cstr(&line), line.len);
    buf_release(&line);
}

static void put_requests(const cmd_args *a, const json *answer, bool has_running) {
    if (cmd_has(a, "json")) {
        cmd_put_json_of(answer);
        return;
    }
    JSON_EACH(r, json_get(answer, "done")) {
        put_done(r);
    }
    if (!has_running) return;
    JSON_EACH(r, json_get(answer, "running")) {
        put_running(r);
    }
}

int cmd_api_requests(const cmd_args *a) {
    client *c = NULL;
    err e = ERR_INIT;
    uint64_t since = 0;
    bool is_watching = cmd_has(a, "watch");
    int rc = cmd_engine(a, false, &c, &e);
    while (rc == OK) {
        char path[64];
        json *answer = NULL;
        snprintf(path, sizeof path, "/tandem/v1/requests?since=%llu", (unsigned long long)since);
        rc = cmd_get_json(c, path, &answer, &e);
        if (rc != OK) break;
        bool has_new = json_count(json_get(answer, "done")) > 0;
        if (!is_watching || has_new || !cmd_has(a, "json")) put_requests(a, answer, !is_watching);
        json_u64(json_get(answer, "newest"), &since);
        json_free(answer);
        cmd_flush();
        struct pollfd stop = {.fd = cmd_stop_fd(), .events = POLLIN};
        if (!is_watching || cmd_output_failed() || poll(&stop, 1, WATCH_MS) != 0) break;
    }
    client_close(c);
    return rc == OK ? cmd_finish(EXIT_OK) : cmd_fail_engine(&e);
}
