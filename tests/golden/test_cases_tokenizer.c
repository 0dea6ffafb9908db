/* Runs the field cases in CASES_DIR/tokenizer with the mini tokenizer that lies there and with the
 * demo model's own tokenizer. Time limits are processor time, so a busy machine fails nothing. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/text/tokenizer.h"
#include "tests/harness/vectors.h"

#define DEMO_TOKENIZER "templates/demo-model/tokenizer.json"
#define MINI_NAME "mini-tokenizer.json"
#define STACK_KB 1024 /* every case runs on a stack of this size */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TIME_FACTOR 20
#else
#define TIME_FACTOR 1
#endif

static vectors counts;
static json *mini_json;
static tokenizer *tokenizers[2]; /* mini, demo (NULL when it is not there) */
static const char *const tokenizer_names[2] = {"mini", "demo"};

typedef struct finding {
    buf want, got;
} finding;

static bool found(finding *f, const char *want, const char *got) {
    buf_reset(&f->want);
    buf_reset(&f->got);
    assert_int_equal(buf_puts(&f->want, want), OK);
    assert_int_equal(buf_puts(&f->got, got), OK);
    return false;
}

static bool found_bytes(finding *f, const buf *want, const buf *got) {
    return found(f, buf_cstr(want), buf_cstr(got));
}

static bool same_bytes(const buf *a, const buf *b) {
    return a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0);
}

/* --- streaming decode --- */

static void unhex(const char *hex, buf *out) {
    for (; hex[0] != 0 && hex[1] != 0; hex += 2) {
        char pair[3] = {hex[0], hex[1], 0};
        assert_int_equal(buf_putc(out, (char)strtoul(pair, NULL, 16)), OK);
    }
}

static bool decode_case(const json *c, finding *f) {
    const json *expect = json_get(c, "expect");
    utf8_stream s = {0};
    buf all = BUF_INIT, delta = BUF_INIT, piece = BUF_INIT, want = BUF_INIT;
    bool right = true;
    assert_int_equal(json_str_bytes(json_get(expect, "text"), &want), OK);
    JSON_EACH(hex, json_get(c, "pieces_hex")) {
        buf_reset(&piece);
        buf_reset(&delta);
        unhex(json_str(hex), &piece);
        assert_int_equal(utf8_stream_feed(&s, buf_cstr(&piece), piece.len, &delta), OK);
        right = right && utf8_valid(buf_cstr(&delta), delta.len);
        assert_int_equal(buf_append(&all, buf_cstr(&delta), delta.len), OK);
    }
    assert_int_equal(utf8_stream_end(&s, &all), OK);
    if (!right)
        (void)found(f, "every delta valid UTF-8", buf_cstr(&all));
    else if (!same_bytes(&want, &all))
        right = found_bytes(f, &want, &all);
    buf_release(&all);
    buf_release(&delta);
    buf_release(&piece);
    buf_release(&want);
    return right;
}

/* --- encoding --- */

static void encode(const tokenizer *t, const buf *text, bool is_trusted, token_list *ids) {
    text_span span = {buf_cstr(text), text->len, is_trusted};
    assert_int_equal(tokenizer_encode(t, span, ids, NULL), OK);
}

static bool round_trip(const tokenizer *t, const buf *text, finding *f) {
    token_list ids = {0};
    buf back = BUF_INIT;
    encode(t, text, false, &ids);
    assert_int_equal(tokenizer_decode_bytes(t, ids.ids, ids.len, &back), OK);
    bool same = same_bytes(text, &back) || found_bytes(f, text, &back);
    token_list_release(&ids);
    buf_release(&back);
    return same;
}

static bool ids_case(const json *c, finding *f) {
    const tokenizer *t = tokenizers[0];
    const json *trust = json_get(c, "parse_special");
    token_list ids = {0};
    buf text = BUF_INIT, want = BUF_INIT, got = BUF_INIT;
    assert_int_equal(json_str_bytes(json_get(c, "text"), &text), OK);
    encode(t, &text, trust == NULL || json_is_true(trust), &ids);
    assert_int_equal(json_print(json_get(json_get(c, "expect"), "ids"), &want), OK);
    assert_int_equal(buf_puts(&got, "["), OK);
    for (size_t i = 0; i < ids.len; i++) {
        assert_int_equal(buf_printf(&got, "%s%d", i > 0 ? ", " : "", ids.ids[i]), OK);
    }
    assert_int_equal(buf_puts(&got, "]"), OK);
    bool same = same_bytes(&want, &got) || found_bytes(f, &want, &got);
    same = same && round_trip(t, &text, f);
    token_list_release(&ids);
    buf_release(&text);
    buf_release(&want);
    buf_release(&got);
    return same;
}

static bool texts_case(const json *c, const tokenizer *t, finding *f) {
    token_list lists[32] = {{0}};
    size_t n = 0;
    bool right = true;
    JSON_EACH(item, json_get(c, "texts")) {
        buf text = BUF_INIT;
        assert_true(n < 32);
        assert_int_equal(json_str_bytes(item, &text), OK);
        encode(t, &text, false, &lists[n++]);
        right = right && round_trip(t, &text, f);
        buf_release(&text);
    }
    JSON_EACH(pair, json_get(json_get(c, "expect"), "distinct_ids")) {
        int64_t a = 0, b = 0;
        assert_int_equal(json_i64(json_at(pair, 0), &a), OK);
        assert_int_equal(json_i64(json_at(pair, 1), &b), OK);
        const token_list *x = &lists[a], *y = &lists[b];
        bool same = x->len == y->len && memcmp(x->ids, y->ids, x->len * sizeof *x->ids) == 0;
        if (same) right = found(f, "different ids", "the same ids");
    }
    for (size_t i = 0; i < n; i++)
        token_list_release(&lists[i]);
    return right;
}

static bool time_case(const json *c, const tokenizer *t, const char *who, finding *f) {
    const json *repeat = json_get(json_get(c, "generate"), "repeat");
    int64_t times = 0, limit = 0;
    buf unit = BUF_INIT, text = BUF_INIT;
    assert_int_equal(json_i64(json_at(repeat, 1), &times), OK);
    assert_int_equal(json_str_bytes(json_at(repeat, 0), &unit), OK);
    for (int64_t i = 0; i < times; i++) {
        assert_int_equal(buf_append(&text, unit.data, unit.len), OK);
    }
    int64_t start = vectors_cpu_ms();
    bool right = round_trip(t, &text, f);
    int64_t took = vectors_cpu_ms() - start;
    printf("  %s, %s: %zu bytes in %lld ms\n", json_str(json_get(c, "title")), who, text.len,
        (long long)took);
    if (json_i64(json_get(json_get(c, "expect"), "max_ms"), &limit) == OK &&
        took > limit * TIME_FACTOR) {
        char want[40], got[40];
        (void)snprintf(want, sizeof want, "at most %lld ms", (long long)limit);
        (void)snprintf(got, sizeof got, "%lld ms", (long long)took);
        right = found(f, want, got);
    }
    buf_release(&unit);
    buf_release(&text);
    return right;
}

/* --- split rules --- */

/* The mini tokenizer with another rule in front of its byte mapping. */
static int load_with_rule(const json *rule, tokenizer **out, err *e) {
    buf text = BUF_INIT;
    json_w w;
    json_w_begin(&w, &text);
    json_w_object(&w);
    JSON_EACH(member, mini_json) {
        json_w_key(&w, json_key(member));
        if (!str_eq(json_key(member), "pre_tokenizer")) {
            json_w_value(&w, member);
            continue;
        }
        json_w_object(&w);
        json_w_kstr(&w, "type", "Sequence");
        json_w_key(&w, "pretokenizers");
        json_w_array(&w);
        json_w_value(&w, rule);
        json_w_object(&w);
        json_w_kstr(&w, "type", "ByteLevel");
        json_w_kbool(&w, "use_regex", false);
        json_w_close(&w);
        json_w_close(&w);
        json_w_close(&w);
    }
    json_w_close(&w);
    assert_int_equal(json_w_end(&w), OK);
    int rc = tokenizer_parse(text.data, text.len, out, e);
    buf_release(&text);
    return rc;
}

static bool split_case(const json *c, finding *f) {
    const json *expect = json_get(c, "expect");
    tokenizer *t = NULL;
    err e = ERR_INIT;
    int rc = load_with_rule(json_get(c, "pre_tokenizer"), &t, &e);
    bool wants_error = json_is_true(json_get(expect, "load_error"));
    if (rc != OK || wants_error) {
        bool right = (rc != OK) == wants_error;
        tokenizer_close(t);
        return right ||
               found(f, wants_error ? "a load error" : "pieces", rc != OK ? e.msg : "none");
    }
    buf text = BUF_INIT, want = BUF_INIT, got = BUF_INIT;
    size_t *ends = NULL, n = 0, at = 0;
    json_w w;
    assert_int_equal(json_str_bytes(json_get(c, "text"), &text), OK);
    assert_int_equal(tokenizer_split(t, text.data, text.len, &ends, &n, &e), OK);
    json_w_begin(&w, &got);
    json_w_array(&w);
    for (size_t i = 0; i < n; i++) {
        json_w_strn(&w, text.data + at, ends[i] - at);
        at = ends[i];
    }
    json_w_close(&w);
    assert_int_equal(json_w_end(&w), OK);
    assert_int_equal(json_print_compact(json_get(expect, "pieces"), &want), OK);
    bool same = same_bytes(&want, &got) || found_bytes(f, &want, &got);
    mem_free(ends);
    tokenizer_close(t);
    buf_release(&text);
    buf_release(&want);
    buf_release(&got);
    return same;
}

/* --- all files --- */

static bool with_each_tokenizer(const json *c, const char *name, finding *f) {
    bool is_timed = str_eq(json_str(json_get(c, "kind")), "encode_time");
    bool right = true;
    for (int i = 0; i < 2 && right; i++) {
        if (tokenizers[i] == NULL) {
            printf("SKIP %s with the demo tokenizer: no %s\n", name, DEMO_TOKENIZER);
            continue;
        }
        right = is_timed ? time_case(c, tokenizers[i], tokenizer_names[i], f)
                         : texts_case(c, tokenizers[i], f);
    }
    return right;
}

static int run_file(void *ctx, const char *name, err *e) {
    (void)e;
    if (!str_ends(name, ".json") || str_eq(name, MINI_NAME)) return OK;
    json *c = vectors_load(ctx, name);
    const char *kind = json_str(json_get(c, "kind"));
    finding f = {BUF_INIT, BUF_INIT};
    bool right = false;
    if (str_eq(kind, "incremental_decode"))
        right = decode_case(c, &f);
    else if (str_eq(kind, "encode_ids"))
        right = ids_case(c, &f);
    else if (str_eq(kind, "split_rule"))
        right = split_case(c, &f);
    else if (str_eq(kind, "roundtrip") || str_eq(kind, "encode_time")) {
        right = with_each_tokenizer(c, name, &f);
    } else {
        right = found(&f, "a known kind", kind != NULL ? kind : "(none)");
    }
    if (f.got.len > 400) buf_truncate(&f.got, 400);
    if (f.want.len > 400) buf_truncate(&f.want, 400);
    if (right)
        vectors_pass(&counts);
    else
        vectors_fail(&counts, name, buf_cstr(&f.want), buf_cstr(&f.got));
    buf_release(&f.want);
    buf_release(&f.got);
    json_free(c);
    return OK;
}

static void *run_all(void *dir) {
    err e = ERR_INIT;
    return dir_each(dir, run_file, dir, &e) == OK ? NULL : dir;
}

static void test_tokenizer_cases(void **state) {
    (void)state;
    buf dir = BUF_INIT;
    err e = ERR_INIT;
    pthread_attr_t attr;
    pthread_t thread;
    void *failed = NULL;
    assert_int_equal(path_join(&dir, vectors_cases_dir(), "tokenizer"), OK);
    mini_json = vectors_load(dir.data, MINI_NAME);
    buf mini = BUF_INIT;
    assert_int_equal(json_print(mini_json, &mini), OK);
    if (tokenizer_parse(mini.data, mini.len, &tokenizers[0], &e) != OK) fail_msg("%s", e.msg);
    if (file_exists(DEMO_TOKENIZER)) {
        assert_int_equal(tokenizer_open(DEMO_TOKENIZER, &tokenizers[1], &e), OK);
    }
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, (size_t)STACK_KB * 1024), 0);
    assert_int_equal(pthread_create(&thread, &attr, run_all, dir.data), 0);
    assert_int_equal(pthread_join(thread, &failed), 0);
    (void)pthread_attr_destroy(&attr);
    tokenizer_close(tokenizers[0]);
    tokenizer_close(tokenizers[1]);
    json_free(mini_json);
    buf_release(&mini);
    buf_release(&dir);
    assert_null(failed);
    assert_int_equal(counts.failed, 0);
    assert_true(counts.passed > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tokenizer_cases)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return vectors_end(&counts) != 0 || failed != 0;
}
