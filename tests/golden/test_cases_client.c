/* Runs the client_sse cases: what the chat client makes of an event stream. Folder from CASES_DIR.
 * Every stream is also fed cut at every byte and in both line endings; the result must be equal. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tui/chat_stream.h"
#include "tui/sse.h"

typedef struct counts {
    int passed, failed;
    const char *dir;
} counts;

static int to_stream(void *ctx, const char *data, size_t len, err *e) {
    return chat_stream_data(ctx, data, len, e);
}

/* The reply as one JSON text, so that two runs can be compared and a difference be shown. */
static void describe(const chat_stream *s, const err *e, buf *out) {
    json_w w;
    json_w_begin(&w, out);
    json_w_object(&w);
    json_w_kstr(&w, "content", buf_cstr(&s->content));
    json_w_kstr(&w, "reasoning_content", buf_cstr(&s->reasoning));
    json_w_kstr(&w, "finish_reason", s->finish[0] != '\0' ? s->finish : NULL);
    json_w_kstr(&w, "error", e->code != OK ? e->msg : NULL);
    json_w_key(&w, "usage");
    json_w_object(&w);
    if (s->has_usage) {
        json_w_ki64(&w, "prompt_tokens", s->usage.prompt_tokens);
        json_w_ki64(&w, "completion_tokens", s->usage.completion_tokens);
        json_w_ki64(&w, "total_tokens", s->usage.total_tokens);
    }
    json_w_close(&w);
    json_w_key(&w, "tool_calls");
    json_w_array(&w);
    for (int i = 0; i < s->n_calls; i++) {
        json_w_object(&w);
        json_w_kstr(&w, "id", s->calls[i].id);
        json_w_kstr(&w, "name", s->calls[i].name);
        json_w_kstr(&w, "arguments", buf_cstr(&s->calls[i].arguments));
        json_w_close(&w);
    }
    json_w_close(&w);
    json_w_close(&w);
    json_w_end(&w);
}

static void run_stream(const char *raw, size_t n, size_t step, buf *out) {
    chat_stream s;
    sse reader;
    err e = ERR_INIT;
    chat_stream_init(&s, NULL, NULL);
    sse_init(&reader, &(sse_sink){to_stream, NULL, &s});
    int rc = OK;
    for (size_t at = 0; at < n && rc == OK; at += step) {
        rc = sse_feed(&reader, raw + at, n - at < step ? n - at : step, &e);
    }
    if (rc == OK) chat_stream_end(&s, &e);
    describe(&s, &e, out);
    sse_release(&reader);
    chat_stream_release(&s);
}

static void case_bytes(const json *root, const char *line_end, buf *raw) {
    if (json_is_string(json_get(root, "raw"))) {
        json_str_bytes(json_get(root, "raw"), raw);
        return;
    }
    JSON_EACH(event, json_get(root, "events")) {
        buf_printf(raw, "data: %s%s%s", json_str(event), line_end, line_end);
    }
}

static bool values_equal(const json *expected, const json *got) {
    buf a = BUF_INIT, b = BUF_INIT;
    json_print(expected, &a);
    json_print(got, &b);
    bool same = str_eq(buf_cstr(&a), buf_cstr(&b));
    buf_release(&a);
    buf_release(&b);
    return same;
}

/* Null and empty text count as equal. */
static bool is_nothing(const json *v) {
    return v == NULL || json_is_null(v) || (json_is_string(v) && json_str(v)[0] == '\0');
}

static bool as_expected(const json *expect, const char *got_text, const char **field) {
    json *got = NULL;
    if (json_parse(got_text, strlen(got_text), NULL, &got, NULL) != OK) return false;
    bool same = true;
    JSON_EACH(want, expect) {
        const json *have = json_get(got, json_key(want));
        *field = json_key(want);
        same = (is_nothing(want) && is_nothing(have)) || values_equal(want, have);
        if (!same) break;
    }
    json_free(got);
    return same;
}

static bool check_variant(const json *root, const char *line_end, const char *file) {
    buf raw = BUF_INIT, whole = BUF_INIT;
    const char *field = "";
    case_bytes(root, line_end, &raw);
    run_stream(raw.data, raw.len, raw.len, &whole);
    bool is_fine = as_expected(json_get(root, "expect"), buf_cstr(&whole), &field);
    if (!is_fine) {
        buf want = BUF_INIT;
        json_print(json_get(json_get(root, "expect"), field), &want);
        printf(
            "FAIL %s: %s: expected %s, got %s\n", file, field, buf_cstr(&want), buf_cstr(&whole));
        buf_release(&want);
    }
    for (size_t step = 1; step < raw.len && is_fine; step++) {
        buf cut = BUF_INIT;
        run_stream(raw.data, raw.len, step, &cut);
        is_fine = str_eq(buf_cstr(&cut), buf_cstr(&whole));
        if (!is_fine) {
            printf("FAIL %s: pieces of %zu bytes: expected %s, got %s\n", file, step,
                buf_cstr(&whole), buf_cstr(&cut));
        }
        buf_release(&cut);
    }
    buf_release(&raw);
    buf_release(&whole);
    return is_fine;
}

static int run_file(void *ctx, const char *name, err *e) {
    counts *c = ctx;
    (void)e;
    if (!str_ends(name, ".json")) return OK;
    buf path = BUF_INIT;
    json *root = NULL;
    err why = ERR_INIT;
    path_join(&path, c->dir, name);
    if (json_parse_file(buf_cstr(&path), NULL, &root, &why) != OK) {
        printf("FAIL %s: %s\n", name, why.msg);
        c->failed++;
    } else if (str_eq(json_str(json_get(root, "kind")), "client_sse")) {
        bool is_fine = check_variant(root, "\n", name) && check_variant(root, "\r\n", name) &&
                       check_variant(root, "\r", name);
        if (is_fine) {
            c->passed++;
        } else {
            c->failed++;
        }
    }
    json_free(root);
    buf_release(&path);
    return OK;
}

int main(void) {
    const char *base = getenv("CASES_DIR");
    buf dir = BUF_INIT;
    path_join(&dir, base != NULL ? base : "tests/data/cases", "chat");
    counts c = {.dir = buf_cstr(&dir)};
    if (!dir_exists(c.dir)) {
        printf("%s is not there\n0 passed, 0 failed, 1 skipped\n", c.dir);
        return 77;
    }
    err e = ERR_INIT;
    if (dir_each(c.dir, run_file, &c, &e) != OK) printf("FAIL %s\n", e.msg);
    if (c.passed + c.failed == 0) {
        printf("FAIL %s holds no client_sse case\n", c.dir);
        c.failed++;
    }
    printf("%d passed, %d failed, 0 skipped\n", c.passed, c.failed);
    buf_release(&dir);
    return c.failed > 0 ? 1 : 0;
}
