#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "engine/base/str.h"
#include "engine/text/reply.h"

#define BAR "\xEF\xBD\x9C"
#define DSML BAR "DSML" BAR
#define CALLS "\n\n<" DSML " calls>\n"
#define INVOKE(name) "<" DSML " invoke name=\"" name "\">\n"
#define VALUE(key, text)                                                                           \
    "<" DSML " parameter name=\"" key "\" string=\"true\">" text "</" DSML " parameter>\n"
#define END_INVOKE "</" DSML " invoke>\n"
#define END_CALLS "</" DSML " calls>"

static uint64_t random_state = 11;
static uint32_t random_below(uint32_t n) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % n;
}

typedef struct result {
    reply_message m;
    reply_finish finish;
} result;

/* max_step 0: whole; else random steps up to it. */
static void parse(const char *text, bool reasons, reply_end how, uint32_t max_step, result *out) {
    *out = (result){0};
    reply_options o = {
        .starts_in_reasoning = reasons, .sink = reply_message_take, .sink_ctx = &out->m};
    reply_parser *p = reply_parser_new(&o);
    size_t n = strlen(text);
    for (size_t at = 0; at < n;) {
        size_t len = max_step == 0 ? n : random_below(max_step) + 1;
        if (len > n - at) len = n - at;
        assert_int_equal(reply_feed(p, text + at, len), OK);
        at += len;
    }
    assert_int_equal(reply_end_of_text(p, how, &out->finish), OK);
    reply_parser_free(p);
}

static void describe(const result *r, buf *out) {
    static const char *const ends[] = {"stop", "length", "calls"};
    assert_int_equal(
        buf_printf(out, "r=%s|c=%s|", buf_cstr(&r->m.reasoning), buf_cstr(&r->m.content)), OK);
    for (size_t i = 0; i < r->m.n_calls; i++) {
        assert_int_equal(
            buf_printf(out, "%s%s|", r->m.calls[i].name, buf_cstr(&r->m.calls[i].arguments)), OK);
    }
    assert_int_equal(buf_puts(out, ends[r->finish]), OK);
}

static void check(const char *text, bool reasons, reply_end how, const char *want) {
    for (uint32_t step = 0; step < 12; step++) {
        result r;
        buf got = BUF_INIT;
        parse(text, reasons, how, step, &r);
        describe(&r, &got);
        assert_string_equal(buf_cstr(&got), want);
        reply_message_release(&r.m);
        buf_release(&got);
    }
}

static void test_text(void **state) {
    (void)state;
    check("hi", false, REPLY_END_EOS, "r=|c=hi|stop");
    check("a</think>b", true, REPLY_END_EOS, "r=a|c=b|stop");
    check(" \n<think>x</think>y", false, REPLY_END_EOS, "r=x|c=y|stop");
    check("z<think>x</think>y", false, REPLY_END_EOS, "r=|c=zxy|stop");
    check("a\n\n\n", false, REPLY_END_EOS, "r=|c=a\n\n\n|stop");
    check("a\n<", false, REPLY_END_LENGTH, "r=|c=a\n<|length");
    check("a <" BAR "DS", false, REPLY_END_EOS, "r=|c=a <" BAR "DS|stop");
    check("a <" BAR "DS", false, REPLY_END_LENGTH, "r=|c=a |length");
    check("a <" DSML " cal", false, REPLY_END_LENGTH, "r=|c=a |length");
    /* Only "<" and the beginning of a bar is dropped. */
    check("a <thin" BAR, false, REPLY_END_LENGTH, "r=|c=a <thin" BAR "|length");
    check("a <" BAR "D" BAR "D", false, REPLY_END_LENGTH, "r=|c=a <" BAR "D" BAR "D|length");
    check("a </" BAR BAR "D", false, REPLY_END_LENGTH, "r=|c=a |length");
    check("a <thin" DSML, true, REPLY_END_LENGTH, "r=a <thin" DSML "|c=|length");
    check("the " DSML " mark", false, REPLY_END_EOS, "r=|c=the " DSML " mark|stop");
    check("a" BAR BAR "DSM b", false, REPLY_END_EOS, "r=|c=a" BAR BAR "DSM b|stop");
}

static void test_invalid_bytes_become_replacements(void **state) {
    (void)state;
    check("a\xFF"
          "b\xE4\xB8",
        false, REPLY_END_EOS,
        "r=|c=a\xEF\xBF\xBD"
        "b\xEF\xBF\xBD|stop");
}

static void test_broken_calls_are_dropped_whole(void **state) {
    (void)state;
    check("x" CALLS INVOKE("f") "junk" END_INVOKE INVOKE("g") VALUE("k", "v") END_INVOKE END_CALLS,
        false, REPLY_END_EOS, "r=|c=x|g{\"k\": \"v\"}|calls");
    check(CALLS "<" DSML " invoke name=\"f\n" VALUE("k", "v") END_INVOKE END_CALLS, false,
        REPLY_END_EOS, "r=|c=|stop");
    /* The closing tag of a value was forgotten: the next parameter does not become a part of it. */
    check(CALLS INVOKE("f") "<" DSML " parameter name=\"a\" string=\"true\">x\n" VALUE("b", "y")
              END_INVOKE END_CALLS,
        false, REPLY_END_EOS, "r=|c=|stop");
    check(CALLS INVOKE("f") "{\"a\": 1} and more" END_INVOKE END_CALLS, false, REPLY_END_EOS,
        "r=|c=|stop");
    check(CALLS INVOKE("f") VALUE("k", "v") "{\"a\": 1}" END_INVOKE END_CALLS, false, REPLY_END_EOS,
        "r=|c=|stop");
}

static void test_no_half_command_can_run(void **state) {
    (void)state;
    check(CALLS INVOKE("f") VALUE("k", "v") "<" DSML " parameter na", false, REPLY_END_EOS,
        "r=|c=|f{\"k\": \"v\"|calls");
    check(CALLS INVOKE("f") "<" DSML " parameter name=\"k\" string=\"true\">rm </" BAR, false,
        REPLY_END_EOS, "r=|c=|f{\"k\": \"rm |calls");
    check(CALLS INVOKE("f") "{\"k\": 1", false, REPLY_END_EOS, "r=|c=|f{|calls");
    check(CALLS INVOKE("f") "{\"k\": 1}", false, REPLY_END_EOS, "r=|c=|f{\"k\": 1}|calls");
    check(CALLS INVOKE("f"), false, REPLY_END_EOS, "r=|c=|f{}|calls");
    /* Its closing tag is cut off, but nothing that it says. */
    check(CALLS INVOKE("f") VALUE("k", "v") "</" DSML " inv", false, REPLY_END_EOS,
        "r=|c=|f{\"k\": \"v\"}|calls");
    check(CALLS INVOKE("f") VALUE("k", "v") "</" DSML " inv", false, REPLY_END_LENGTH,
        "r=|c=|f{\"k\": \"v\"|length");
    check(CALLS INVOKE("f"), false, REPLY_END_LENGTH, "r=|c=|f{|length");
}

static void test_plain_markup_opens_nothing(void **state) {
    (void)state;
    result r = {0};
    reply_options o = {.sink = reply_message_take, .sink_ctx = &r.m};
    reply_parser *p = reply_parser_new(&o);
    static const char quoted[] = "<" DSML " calls> is how it looks";
    assert_int_equal(reply_feed_token(p, quoted, strlen(quoted), false), OK);
    assert_int_equal(reply_parser_state(p), REPLY_CONTENT);
    assert_int_equal(reply_feed_token(p, "\n\n<", 3, false), OK);
    assert_int_equal(reply_feed_token(p, DSML, strlen(DSML), true), OK);
    assert_int_equal(reply_feed_token(p, " calls", 6, false), OK);
    assert_int_equal(reply_parser_state(p), REPLY_CALLS);
    assert_int_equal(reply_end_of_text(p, REPLY_END_EOS, &r.finish), OK);
    assert_string_equal(buf_cstr(&r.m.content), quoted);
    assert_int_equal(r.finish, REPLY_STOP);
    reply_parser_free(p);
    reply_message_release(&r.m);
}

/* A tag that is cut off inside its mark, where the mark comes in plain tokens. */
static void test_cut_mark_in_plain_tokens(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        result r = {0};
        reply_options o = {.sink = reply_message_take, .sink_ctx = &r.m};
        reply_parser *p = reply_parser_new(&o);
        static const char *const tokens[] = {"ok <", BAR "DS", "x </", BAR, "D"};
        for (size_t k = 0; k < sizeof tokens / sizeof tokens[0]; k++)
            assert_int_equal(reply_feed_token(p, tokens[k], strlen(tokens[k]), false), OK);
        assert_int_equal(
            reply_end_of_text(p, i == 0 ? REPLY_END_EOS : REPLY_END_LENGTH, &r.finish), OK);
        assert_string_equal(
            buf_cstr(&r.m.content), i == 0 ? "ok <" BAR "DSx </" BAR "D" : "ok <" BAR "DSx ");
        reply_parser_free(p);
        reply_message_release(&r.m);
    }
}

static void test_swallowed_calls(void **state) {
    (void)state;
    result r = {0};
    reply_options o = {.drops_calls = true, .sink = reply_message_take, .sink_ctx = &r.m};
    reply_parser *p = reply_parser_new(&o);
    static const char text[] = "ok" CALLS INVOKE("f") VALUE("k", "v") END_INVOKE END_CALLS;
    assert_int_equal(reply_feed(p, text, strlen(text)), OK);
    assert_int_equal(reply_parser_state(p), REPLY_DONE);
    assert_int_equal(reply_end_of_text(p, REPLY_END_EOS, &r.finish), OK);
    assert_int_equal(r.m.n_calls, 0);
    assert_int_equal(r.finish, REPLY_STOP);
    assert_string_equal(buf_cstr(&r.m.content), "ok");
    reply_parser_free(p);
    reply_message_release(&r.m);
}

static void test_exact_text_of_a_call(void **state) {
    (void)state;
    static const char call[] =
        INVOKE("f") "<" DSML " parameter name=\"a\" string=\"false\">{\"x\":1,  \"y\":2}</" DSML
                    " parameter>\n</" DSML " invoke>";
    result r;
    buf text = BUF_INIT;
    assert_int_equal(buf_printf(&text, CALLS "%s\n%s\n" END_CALLS, call, call), OK);
    parse(buf_cstr(&text), false, REPLY_END_EOS, 3, &r);
    assert_int_equal(r.m.n_calls, 2);
    assert_string_equal(buf_cstr(&r.m.calls[0].raw), call);
    assert_string_equal(buf_cstr(&r.m.calls[1].raw), call);
    assert_string_not_equal(r.m.calls[0].id, r.m.calls[1].id);
    assert_true(str_starts(r.m.calls[0].id, "call_"));
    reply_message_release(&r.m);
    buf_release(&text);
}

/* A string value leaves as it comes, the name as soon as it closes. */

static int note(void *ctx, const reply_event *ev) {
    static const char kinds[] = {'R', 'C', 'N', 'A', 'E', 'D'};
    buf *out = ctx;
    int rc = buf_printf(out, "%c%d", kinds[ev->kind], ev->i_call);
    if (rc == OK && ev->kind <= REPLY_EVENT_ARGUMENTS) {
        rc = buf_printf(out, ":%.*s", (int)ev->len, ev->text);
    }
    return rc == OK ? buf_puts(out, ";") : rc;
}

static void feed_and_check(reply_parser *p, buf *log, const char *text, const char *want) {
    buf_reset(log);
    assert_int_equal(reply_feed(p, text, strlen(text)), OK);
    assert_string_equal(buf_cstr(log), want);
}

static void test_events_leave_early(void **state) {
    (void)state;
    buf log = BUF_INIT;
    reply_options o = {.sink = note, .sink_ctx = &log};
    reply_parser *p = reply_parser_new(&o);
    feed_and_check(p, &log, "Hi <", "C-1:Hi ;");
    feed_and_check(p, &log, "b>\n\n", "C-1:<b>;");
    feed_and_check(p, &log, "<" DSML " calls>\n<" DSML " invoke name=\"f", "");
    feed_and_check(p, &log, "\">", "N0:f;");
    feed_and_check(p, &log, "\n<" DSML " parameter name=\"k\" string=\"true\">a\"b",
        "A0:{\"k\": \";A0:a\\\"b;");
    feed_and_check(p, &log, "</", "");
    feed_and_check(p, &log, "x", "A0:<;A0:/x;");
    feed_and_check(p, &log, "</" DSML " parameter>\n", "A0:\";");
    feed_and_check(p, &log, "</" DSML " invoke>", "A0:};E0;");
    feed_and_check(p, &log, INVOKE("g") "oops", "N1:g;A1:{;D1;");
    assert_int_equal(reply_parser_calls(p), 1);
    assert_int_equal(reply_end_of_text(p, REPLY_END_EOS, NULL), OK);
    reply_parser_free(p);
    buf_release(&log);
}

static int fail_at_once(void *ctx, const reply_event *ev) {
    (void)ctx;
    (void)ev;
    return ERR_CANCELLED;
}

static void test_a_failing_sink_is_heard(void **state) {
    (void)state;
    reply_options o = {.sink = fail_at_once};
    reply_parser *p = reply_parser_new(&o);
    assert_int_equal(reply_feed(p, "text", 4), ERR_CANCELLED);
    reply_parser_free(p);
}

/* Any sequence of tags and text gives the same message in every cutting. */
static void test_random_markup_in_random_cuts(void **state) {
    (void)state;
    static const char *const parts[] = {CALLS, INVOKE("f"), INVOKE("g"), VALUE("k", "v"),
        END_INVOKE, END_CALLS, "<think>", "</think>", "\n", "x", "<", "</", BAR, DSML,
        "{\"a\": [1]}", "\"", ">", " ", "<" DSML " parameter name=\"n\" string=\"false\">3",
        "</" DSML " parameter>", "\xE4\xB8\xAD", "</" BAR DSML BAR "invoke>"};
    for (int i = 0; i < 3000; i++) {
        buf text = BUF_INIT, want = BUF_INIT;
        for (uint32_t k = random_below(14); k > 0; k--) {
            assert_int_equal(
                buf_puts(&text, parts[random_below(sizeof parts / sizeof parts[0])]), OK);
        }
        bool reasons = random_below(2) == 0;
        reply_end how = random_below(2) == 0 ? REPLY_END_EOS : REPLY_END_LENGTH;
        for (uint32_t step = 0; step < 5; step++) {
            result r;
            buf got = BUF_INIT;
            parse(buf_cstr(&text), reasons, how, step, &r);
            describe(&r, step == 0 ? &want : &got);
            if (step > 0 && strcmp(buf_cstr(&want), buf_cstr(&got)) != 0) {
                fail_msg("steps %u of '%s': '%s' is not '%s'", step, buf_cstr(&text),
                    buf_cstr(&got), buf_cstr(&want));
            }
            reply_message_release(&r.m);
            buf_release(&got);
        }
        buf_release(&text);
        buf_release(&want);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_invalid_bytes_become_replacements),
        cmocka_unit_test(test_broken_calls_are_dropped_whole),
        cmocka_unit_test(test_no_half_command_can_run),
        cmocka_unit_test(test_plain_markup_opens_nothing),
        cmocka_unit_test(test_cut_mark_in_plain_tokens),
        cmocka_unit_test(test_swallowed_calls),
        cmocka_unit_test(test_exact_text_of_a_call),
        cmocka_unit_test(test_events_leave_early),
        cmocka_unit_test(test_a_failing_sink_is_heard),
        cmocka_unit_test(test_random_markup_in_random_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
