/* Runs the field cases in CASES_DIR/chat: what the model wrote to a message (parse), messages to a
 * prompt (encode). The client_sse cases belong to the chat client and are run there. */
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
#include "engine/text/chat.h"
#include "engine/text/reply.h"
#include "tests/harness/vectors.h"

#define BAR "\xEF\xBD\x9C"

static vectors counts;

/* A check that failed, for the one line that names it. */
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

/* --- parse --- */

typedef struct outcome {
    reply_message message;
    reply_finish finish;
} outcome;

static void outcome_release(outcome *o) {
    reply_message_release(&o->message);
}

static const char *finish_name(reply_finish f) {
    return f == REPLY_STOP ? "stop" : f == REPLY_LENGTH ? "length" : "tool_calls";
}

static void describe(const outcome *o, buf *out) {
    json_w w;
    json_w_begin(&w, out);
    json_w_object(&w);
    json_w_kstr(&w, "reasoning_content", buf_cstr(&o->message.reasoning));
    json_w_kstr(&w, "content", buf_cstr(&o->message.content));
    json_w_key(&w, "tool_calls");
    json_w_array(&w);
    for (size_t i = 0; i < o->message.n_calls; i++) {
        json_w_object(&w);
        json_w_kstr(&w, "name", o->message.calls[i].name);
        json_w_kstr(&w, "arguments", buf_cstr(&o->message.calls[i].arguments));
        json_w_close(&w);
    }
    json_w_close(&w);
    json_w_kstr(&w, "finish_reason", finish_name(o->finish));
    json_w_close(&w);
    assert_int_equal(json_w_end(&w), OK);
}

/* Length of the next piece at p: bytes, or a number of characters. */
static size_t piece_len(const char *p, size_t left, const char *chunking) {
    if (str_eq(chunking, "whole")) return left;
    if (str_eq(chunking, "bytes")) return 1;
    uint64_t n = 1;
    if (str_starts(chunking, "size:"))
        assert_int_equal(parse_u64(chunking + 5, &n), OK);
    else
        assert_string_equal(chunking, "chars");
    size_t at = 0;
    uint32_t cp;
    for (uint64_t i = 0; i < n && at < left; i++)
        at += utf8_decode(p + at, left - at, &cp);
    return at;
}

static void run_parser(const json *c, const char *chunking, outcome *o) {
    const json *tools = json_get(c, "tools");
    bool is_banned = json_count(tools) == 0 || str_eq(json_str(json_get(c, "tool_choice")), "none");
    reply_options options = {.starts_in_reasoning = json_is_true(json_get(c, "thinking")),
        .drops_calls = is_banned,
        .tools = tools,
        .sink = reply_message_take,
        .sink_ctx = &o->message};
    buf raw = BUF_INIT;
    assert_int_equal(json_str_bytes(json_get(c, "raw"), &raw), OK);
    reply_parser *p = reply_parser_new(&options);
    for (size_t at = 0; at < raw.len;) {
        size_t n = piece_len(raw.data + at, raw.len - at, chunking);
        assert_int_equal(reply_feed(p, raw.data + at, n), OK);
        at += n;
    }
    bool by_eos = !str_eq(json_str(json_get(c, "end")), "length");
    assert_int_equal(
        reply_end_of_text(p, by_eos ? REPLY_END_EOS : REPLY_END_LENGTH, &o->finish), OK);
    reply_parser_free(p);
    buf_release(&raw);
}

/* Null and empty text count as equal. */
static bool same_text(const json *want, const buf *got, finding *f) {
    const char *text = json_is_string(want) ? json_str(want) : "";
    return strcmp(text, buf_cstr(got)) == 0 || found(f, text, buf_cstr(got));
}

static bool same_arguments(const json *want, const reply_call *call, finding *f) {
    const json *value = json_get(want, "arguments");
    const char *part = json_str(json_get(want, "arguments_text_contains"));
    const char *text = buf_cstr(&call->arguments);
    if (part != NULL && strstr(text, part) == NULL) return found(f, part, text);
    if (value == NULL) return true;
    json *got = NULL;
    buf a = BUF_INIT, b = BUF_INIT;
    assert_int_equal(json_print(value, &a), OK);
    bool parses = json_parse(text, call->arguments.len, NULL, &got, NULL) == OK;
    if (parses) assert_int_equal(json_print(got, &b), OK);
    bool same = parses && strcmp(buf_cstr(&a), buf_cstr(&b)) == 0;
    if (!same) (void)found(f, buf_cstr(&a), text);
    json_free(got);
    buf_release(&a);
    buf_release(&b);
    return same;
}

static bool same_calls(const json *want, const outcome *o, finding *f) {
    size_t i = 0;
    buf got = BUF_INIT;
    describe(o, &got);
    bool same = json_count(want) == o->message.n_calls || found(f, "other calls", buf_cstr(&got));
    buf_release(&got);
    JSON_EACH(item, want) {
        if (!same) break;
        const reply_call *call = &o->message.calls[i++];
        const char *name = json_str(json_get(item, "name"));
        same = str_eq(name, call->name) || found(f, name != NULL ? name : "", call->name);
        if (same) same = same_arguments(item, call, f);
    }
    return same;
}

static bool as_expected(const json *expect, const outcome *o, finding *f) {
    JSON_EACH(field, expect) {
        const char *key = json_key(field);
        bool same = true;
        if (str_eq(key, "content"))
            same = same_text(field, &o->message.content, f);
        else if (str_eq(key, "reasoning_content"))
            same = same_text(field, &o->message.reasoning, f);
        else if (str_eq(key, "tool_calls"))
            same = same_calls(field, o, f);
        else if (str_eq(key, "finish_reason")) {
            same = str_eq(json_str(field), finish_name(o->finish)) ||
                   found(f, json_str(field), finish_name(o->finish));
        } else {
            same = found(f, "a known field", key);
        }
        if (!same) return false;
    }
    return true;
}

static bool holds(const outcome *o, const char *part, bool in_calls) {
    if (strstr(buf_cstr(&o->message.content), part) != NULL) return true;
    if (strstr(buf_cstr(&o->message.reasoning), part) != NULL) return true;
    for (size_t i = 0; in_calls && i < o->message.n_calls; i++) {
        if (strstr(o->message.calls[i].name, part) != NULL) return true;
        if (strstr(buf_cstr(&o->message.calls[i].arguments), part) != NULL) return true;
    }
    return false;
}

static bool arguments_are_objects(const outcome *o) {
    bool all = true;
    for (size_t i = 0; i < o->message.n_calls; i++) {
        const buf *a = &o->message.calls[i].arguments;
        json *v = NULL;
        all = all && json_parse(buf_cstr(a), a->len, NULL, &v, NULL) == OK && json_is_object(v);
        json_free(v);
    }
    return all;
}

static bool keeps_invariant(const char *name, const outcome *o) {
    if (str_eq(name, "no_markup"))
        return !holds(o, BAR "DSML" BAR, true) && !holds(o, "</" BAR, true);
    if (str_eq(name, "no_partial_marker")) return !holds(o, "<" BAR, true);
    if (str_eq(name, "no_special_tokens")) return !holds(o, "<" BAR, true);
    if (str_eq(name, "no_think_tags"))
        return !holds(o, "<think>", false) && !holds(o, "</think>", false);
    if (str_eq(name, "args_valid_json")) return arguments_are_objects(o);
    if (str_eq(name, "no_invented_args")) {
        for (size_t i = 0; i < o->message.n_calls; i++) {
            if (str_eq(buf_cstr(&o->message.calls[i].arguments), "{}")) return false;
        }
        return true;
    }
    return str_eq(name, "chunk_invariant"); /* every cutting is compared below */
}

static bool outcome_is_right(const json *c, const outcome *o, finding *f) {
    const json *expect = json_get(c, "expect");
    bool same = expect != NULL && as_expected(expect, o, f);
    JSON_EACH(one, json_get(c, "expect_any")) {
        same = same || as_expected(one, o, f);
    }
    if (!same) return false;
    JSON_EACH(name, json_get(c, "invariants")) {
        if (!keeps_invariant(json_str(name), o)) {
            buf got = BUF_INIT;
            describe(o, &got);
            (void)found(f, json_str(name), buf_cstr(&got));
            buf_release(&got);
            return false;
        }
    }
    return true;
}

static bool parse_case(const json *c, finding *f) {
    outcome whole = {0};
    buf want = BUF_INIT;
    run_parser(c, "whole", &whole);
    bool right = outcome_is_right(c, &whole, f);
    describe(&whole, &want);
    JSON_EACH(chunking, json_get(c, "chunkings")) {
        if (!right) break;
        outcome o = {0};
        buf got = BUF_INIT;
        run_parser(c, json_str(chunking), &o);
        describe(&o, &got);
        right = strcmp(buf_cstr(&want), buf_cstr(&got)) == 0 ||
                found(f, buf_cstr(&want), buf_cstr(&got));
        outcome_release(&o);
        buf_release(&got);
    }
    outcome_release(&whole);
    buf_release(&want);
    return right;
}

/* --- encode --- */

static int render(const json *c, const json *messages, chat_prompt *p, err *e) {
    const json *options = json_get(c, "options"), *effort = json_get(options, "reasoning_effort");
    buf text = BUF_INIT;
    json *body = NULL;
    json_w w;
    json_w_begin(&w, &text);
    json_w_object(&w);
    json_w_key(&w, "messages");
    json_w_value(&w, messages);
    json_w_key(&w, "tools");
    json_w_value(&w, json_get(c, "tools"));
    if (effort != NULL) {
        json_w_key(&w, "reasoning_effort");
        json_w_value(&w, effort);
    }
    if (json_get(options, "thinking") != NULL) {
        json_w_key(&w, "chat_template_kwargs");
        json_w_object(&w);
        json_w_kbool(&w, "enable_thinking", json_is_true(json_get(options, "thinking")));
        json_w_close(&w);
    }
    json_w_close(&w);
    assert_int_equal(json_w_end(&w), OK);
    assert_int_equal(json_parse(text.data, text.len, NULL, &body, NULL), OK);
    int rc = chat_render_body(body, NULL, p, e);
    json_free(body);
    buf_release(&text);
    return rc;
}

static size_t count_of(const char *text, const char *part) {
    size_t n = 0;
    for (const char *p = text; (p = strstr(p, part)) != NULL; p += strlen(part))
        n++;
    return n;
}

/* Control strings of the template. */
static size_t count_controls(const chat_prompt *p) {
    size_t n = 0;
    for (size_t i = 0; i < p->n_segments; i++) {
        if (!p->segments[i].is_template) continue;
        char *text = mem_strndup(p->text.data + p->segments[i].start, p->segments[i].len);
        n += count_of(text, "<" BAR) + count_of(text, "<think>") + count_of(text, "</think>");
        mem_free(text);
    }
    return n;
}

static bool check_others(const json *c, const json *field, const chat_prompt *p, finding *f) {
    bool same = true;
    bool counts_only = str_eq(json_key(field), "special_token_counts_same_as");
    JSON_EACH(messages, field) {
        chat_prompt other = CHAT_PROMPT_INIT;
        err e = ERR_INIT;
        if (!same) break;
        int rc = render(c, messages, &other, &e);
        const char *text = buf_cstr(&other.text);
        if (rc != OK)
            same = found(f, "a prompt", e.msg);
        else if (counts_only)
            same = count_controls(p) == count_controls(&other);
        else
            same = strcmp(buf_cstr(&p->text), text) == 0;
        if (!same && rc == OK) (void)found(f, text, buf_cstr(&p->text));
        chat_prompt_release(&other);
    }
    return same;
}

static bool check_prompt(const json *c, const json *field, const chat_prompt *p, finding *f) {
    const char *key = json_key(field), *text = buf_cstr(&p->text), *want = json_str(field);
    if (str_eq(key, "prompt")) return strcmp(text, want) == 0 || found(f, want, text);
    if (str_eq(key, "prompt_starts_with")) return str_starts(text, want) || found(f, want, text);
    if (str_eq(key, "prompt_ends_with")) return str_ends(text, want) || found(f, want, text);
    if (str_eq(key, "prompt_contains") || str_eq(key, "prompt_not_contains")) {
        bool wants = str_eq(key, "prompt_contains");
        JSON_EACH(part, field) {
            if ((strstr(text, json_str(part)) != NULL) != wants)
                return found(f, json_str(part), text);
        }
        return true;
    }
    if (str_eq(key, "prompt_count")) {
        JSON_EACH(part, field) {
            int64_t n = 0;
            assert_int_equal(json_i64(part, &n), OK);
            if (count_of(text, json_key(part)) != (size_t)n) return found(f, json_key(part), text);
        }
        return true;
    }
    bool compares = str_eq(key, "same_prompt_as") || str_eq(key, "special_token_counts_same_as");
    return compares ? check_others(c, field, p, f) : found(f, "a known field", key);
}

static bool encode_case(const json *c, finding *f) {
    chat_prompt p = CHAT_PROMPT_INIT;
    err e = ERR_INIT;
    bool right = render(c, json_get(c, "messages"), &p, &e) == OK || found(f, "a prompt", e.msg);
    JSON_EACH(field, json_get(c, "expect")) {
        right = right && check_prompt(c, field, &p, f);
    }
    chat_prompt_release(&p);
    return right;
}

/* --- all files --- */

static int run_file(void *ctx, const char *name, err *e) {
    const char *dir = ctx;
    (void)e;
    if (!str_ends(name, ".json")) return OK;
    json *c = vectors_load(dir, name);
    const char *kind = json_str(json_get(c, "kind"));
    finding f = {BUF_INIT, BUF_INIT};
    bool right = true;
    if (str_eq(kind, "parse"))
        right = parse_case(c, &f);
    else if (str_eq(kind, "encode"))
        right = encode_case(c, &f);
    else if (str_eq(kind, "client_sse"))
        vectors_skip(&counts, name, "run by the client's cases");
    else
        right = found(&f, "a known kind", kind != NULL ? kind : "(none)");
    if (!right)
        vectors_fail(&counts, name, buf_cstr(&f.want), buf_cstr(&f.got));
    else if (!str_eq(kind, "client_sse"))
        vectors_pass(&counts);
    buf_release(&f.want);
    buf_release(&f.got);
    json_free(c);
    return OK;
}

static void test_chat_cases(void **state) {
    (void)state;
    buf dir = BUF_INIT;
    err e = ERR_INIT;
    assert_int_equal(path_join(&dir, vectors_cases_dir(), "chat"), OK);
    if (dir_each(buf_cstr(&dir), run_file, dir.data, &e) != OK) fail_msg("%s", e.msg);
    buf_release(&dir);
    assert_int_equal(counts.failed, 0);
    assert_true(counts.passed > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_chat_cases)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return vectors_end(&counts) != 0 || failed != 0;
}
