/* Runs shared/golden/chat (folder from GOLDEN_DIR): both renderings and both parsers. */
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

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/text/chat.h"
#include "engine/text/reply.h"
#include "tests/harness/vectors.h"

static vectors counts;

static const char *case_id(const json *c) {
    const char *id = json_str(json_get(c, "id"));
    return id != NULL ? id : "(no id)";
}

/* --- rendering --- */

static void describe_prompt(int rc, const chat_prompt *p, const err *e, bool is_serving, buf *out) {
    json_w w;
    json_w_begin(&w, out);
    json_w_object(&w);
    if (rc != OK) {
        if (!is_serving) json_w_kbool(&w, "error", true);
        if (is_serving) json_w_ki64(&w, "status", 400);
        if (is_serving) json_w_kstr(&w, "param", e->place);
        json_w_close(&w);
        (void)json_w_end(&w);
        return;
    }
    json_w_key(&w, "prompt");
    json_w_strn(&w, buf_cstr(&p->text), p->text.len);
    json_w_key(&w, "segments");
    json_w_array(&w);
    for (size_t i = 0; i < p->n_segments; i++) {
        json_w_array(&w);
        json_w_str(&w, p->segments[i].is_template ? "T" : "U");
        json_w_strn(&w, p->text.data + p->segments[i].start, p->segments[i].len);
        json_w_close(&w);
    }
    json_w_close(&w);
    json_w_kbool(&w, "thinking", p->is_thinking);
    json_w_ki64(&w, "budget", p->budget);
    json_w_close(&w);
    (void)json_w_end(&w);
}

/* Only the fields that the vector names. */
static void pick(const json *expect, const json *got, buf *want_text, buf *got_text) {
    json_w w, g;
    json_w_begin(&w, want_text);
    json_w_begin(&g, got_text);
    json_w_object(&w);
    json_w_object(&g);
    JSON_EACH(field, expect) {
        const char *key = json_key(field);
        if (strcmp(key, "images") == 0) continue; /* compared apart */
        json_w_key(&w, key);
        json_w_value(&w, field);
        json_w_key(&g, key);
        json_w_value(&g, json_get(got, key));
    }
    json_w_close(&w);
    json_w_close(&g);
    (void)json_w_end(&w);
    (void)json_w_end(&g);
}

static void compare_prompt(
    const json *c, int rc, const chat_prompt *p, const err *e, bool is_serving) {
    buf described = BUF_INIT, want = BUF_INIT, got = BUF_INIT;
    json *tree = NULL;
    const json *expect = json_get(c, "expect");
    describe_prompt(rc, p, e, is_serving, &described);
    assert_int_equal(json_parse(described.data, described.len, NULL, &tree, NULL), OK);
    pick(expect, tree, &want, &got);
    const json *images = json_get(expect, "images");
    size_t n_images = json_is_array(images) ? json_count(images) : 0;
    int64_t number = 0;
    if (json_i64(images, &number) == OK) n_images = (size_t)number;
    if (rc == OK && n_images != p->n_images) {
        char text[2][40];
        (void)snprintf(text[0], 40, "%zu images", n_images);
        (void)snprintf(text[1], 40, "%zu images", p->n_images);
        vectors_fail(&counts, case_id(c), text[0], text[1]);
    } else {
        (void)vectors_text(&counts, case_id(c), "rendering", &want, &got);
    }
    json_free(tree);
    buf_release(&described);
    buf_release(&want);
    buf_release(&got);
}

static void test_prompt_reference(void **state) {
    (void)state;
    json *root = vectors_load(vectors_golden_dir(), "chat/prompt-reference.json");
    int before = counts.failed;
    JSON_EACH(c, json_get(root, "cases")) {
        const json *drops = json_get(c, "drop_thinking"), *bos = json_get(c, "add_bos");
        chat_reference r = {.messages = json_get(c, "messages"),
            .context = json_get(c, "context"),
            .effort = json_get(c, "reasoning_effort"),
            .is_thinking = str_eq(json_str(json_get(c, "thinking_mode")), "thinking"),
            .keeps_reasoning = json_is_bool(drops) && !json_is_true(drops),
            .omits_bos = json_is_bool(bos) && !json_is_true(bos)};
        chat_prompt p = CHAT_PROMPT_INIT;
        err e = ERR_INIT;
        int rc = chat_render_reference(&r, &p, &e);
        compare_prompt(c, rc, &p, &e, false);
        chat_prompt_release(&p);
    }
    json_free(root);
    assert_int_equal(counts.failed, before);
}

static void test_prompt_serving(void **state) {
    (void)state;
    json *root = vectors_load(vectors_golden_dir(), "chat/prompt-serving.json");
    int before = counts.failed;
    chat_settings settings = {.has_vision = true};
    JSON_EACH(c, json_get(root, "cases")) {
        chat_prompt p = CHAT_PROMPT_INIT;
        err e = ERR_INIT;
        int rc = chat_render_body(json_get(c, "body"), &settings, &p, &e);
        compare_prompt(c, rc, &p, &e, true);
        chat_prompt_release(&p);
    }
    json_free(root);
    assert_int_equal(counts.failed, before);
}

/* --- the strict parser --- */

static void describe_strict(int rc, const strict_message *m, buf *out) {
    json_w w;
    json_w_begin(&w, out);
    json_w_object(&w);
    if (rc != OK) {
        json_w_kbool(&w, "error", true);
    } else {
        json_w_kstr(&w, "content", buf_cstr(&m->content));
        json_w_kstr(&w, "reasoning_content", buf_cstr(&m->reasoning));
        json_w_key(&w, "tool_calls");
        json_w_array(&w);
        for (size_t i = 0; i < m->n_calls; i++) {
            json_w_object(&w);
            json_w_kstr(&w, "type", "function");
            json_w_key(&w, "function");
            json_w_object(&w);
            json_w_kstr(&w, "name", m->calls[i].name);
            json_w_kstr(&w, "arguments", buf_cstr(&m->calls[i].arguments));
            json_w_close(&w);
            if (m->calls[i].name_space != NULL) {
                json_w_kstr(&w, "namespace", m->calls[i].name_space);
            }
            json_w_close(&w);
        }
        json_w_close(&w);
    }
    json_w_close(&w);
    (void)json_w_end(&w);
}

static void test_parse_reference(void **state) {
    (void)state;
    json *root = vectors_load(vectors_golden_dir(), "chat/parse-reference.json");
    int before = counts.failed;
    JSON_EACH(c, json_get(root, "cases")) {
        buf text = BUF_INIT, want = BUF_INIT, got = BUF_INIT;
        strict_message m = {0};
        bool thinks = str_eq(json_str(json_get(c, "thinking_mode")), "thinking");
        assert_int_equal(json_str_bytes(json_get(c, "text"), &text), OK);
        int rc = reply_parse_strict(buf_cstr(&text), text.len, thinks, &m, NULL);
        describe_strict(rc, &m, &got);
        assert_int_equal(json_print_compact(json_get(c, "expect"), &want), OK);
        (void)vectors_text(&counts, case_id(c), "strict message", &want, &got);
        if (rc == OK) strict_message_release(&m);
        buf_release(&text);
        buf_release(&want);
        buf_release(&got);
    }
    json_free(root);
    assert_int_equal(counts.failed, before);
}

/* --- the serving parser --- */

/* Definitions by name, as the request would hold them. */
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

/* step bytes at a time; 0 whole. */
static void parse_in_steps(const json *c, const json *tools, size_t step, buf *got) {
    buf text = BUF_INIT;
    reply_message m = {0};
    reply_finish finish = REPLY_STOP;
    reply_options o = {.starts_in_reasoning = str_eq(json_str(json_get(c, "start")), "reasoning"),
        .tools = tools,
        .sink = reply_message_take,
        .sink_ctx = &m};
    assert_int_equal(json_str_bytes(json_get(c, "text"), &text), OK);
    reply_parser *p = reply_parser_new(&o);
    if (step == 0) step = text.len + 1;
    for (size_t at = 0; at < text.len; at += step) {
        size_t n = text.len - at < step ? text.len - at : step;
        assert_int_equal(reply_feed(p, text.data + at, n), OK);
    }
    bool by_eos = str_eq(json_str(json_get(c, "stop")), "eos");
    reply_end how = by_eos ? REPLY_END_EOS : REPLY_END_LENGTH;
    assert_int_equal(reply_end_of_text(p, how, &finish), OK);
    describe_reply(&m, finish, got);
    reply_parser_free(p);
    reply_message_release(&m);
    buf_release(&text);
}

static void test_parse_serving(void **state) {
    (void)state;
    static const size_t steps[] = {0, 1, 2, 3, 5, 7, 16, 64};
    json *root = vectors_load(vectors_golden_dir(), "chat/parse-serving.json");
    json *all = vectors_load(vectors_golden_dir(), "chat/tools.json");
    int before = counts.failed;
    JSON_EACH(c, json_get(root, "cases")) {
        json *tools = named_tools(json_get(c, "tools"), all);
        buf want = BUF_INIT;
        assert_int_equal(json_print_compact(json_get(c, "expect"), &want), OK);
        for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
            buf got = BUF_INIT;
            char what[64];
            (void)snprintf(what, sizeof what, "message in steps of %zu bytes", steps[i]);
            parse_in_steps(c, tools, steps[i], &got);
            (void)vectors_text(&counts, case_id(c), what, &want, &got);
            buf_release(&got);
        }
        buf_release(&want);
        json_free(tools);
    }
    json_free(all);
    json_free(root);
    assert_int_equal(counts.failed, before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_reference),
        cmocka_unit_test(test_prompt_serving),
        cmocka_unit_test(test_parse_reference),
        cmocka_unit_test(test_parse_serving),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return vectors_end(&counts) != 0 || failed != 0;
}
