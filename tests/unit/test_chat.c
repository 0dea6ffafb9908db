#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
// clang-format off
#include <cmocka.h>
// clang-format on

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/text/chat.h"
#include "engine/text/reply.h"

#define BAR "\xEF\xBD\x9C"
#define DSML BAR "DSML" BAR
#define USER "{\"role\":\"user\",\"content\":\"q\"}"

static json *parse(const char *text) {
    json *v = NULL;
    err e = ERR_INIT;
    if (json_parse(text, strlen(text), NULL, &v, &e) != OK) fail_msg("%s in %s", e.msg, text);
    return v;
}

static int render(const char *body_text, const chat_settings *settings, chat_prompt *p, err *e) {
    json *body = parse(body_text);
    int rc = chat_render_body(body, settings, p, e);
    json_free(body);
    return rc;
}

static void refuses_with(const char *body, const chat_settings *settings, const char *param) {
    chat_prompt p = CHAT_PROMPT_INIT;
    err e = ERR_INIT;
    int rc = render(body, settings, &p, &e);
    if (rc == OK) fail_msg("taken: %s", body);
    if (strcmp(e.place, param) != 0)
        fail_msg("param '%s' is not '%s' for %s", e.place, param, body);
    assert_true(e.msg[0] != 0);
    chat_prompt_release(&p);
}

static void test_refusals_name_the_field(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{}", "messages"},
        {"{\"messages\":[]}", "messages"},
        {"{\"messages\":\"x\"}", "messages"},
        {"{\"messages\":[5]}", "messages[0]"},
        {"{\"messages\":[" USER ",{\"role\":\"bot\"}]}", "messages[1].role"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":{}}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[7]}]}", "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
            "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":\"http://x\"}]}]}",
            "messages[0].content"},
        {"{\"messages\":[{\"role\":\"tool\",\"content\":\"x\"}," USER "]}", "messages[0].role"},
        {"{\"messages\":[" USER ",{\"role\":\"assistant\",\"reasoning_content\":4}]}",
            "messages[1].reasoning_content"},
        {"{\"messages\":[" USER ",{\"role\":\"assistant\",\"tool_calls\":{}}]}",
            "messages[1].tool_calls"},
        {"{\"messages\":[" USER ",{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]}",
            "messages[1].tool_calls[0].function.name"},
        {"{\"messages\":[" USER "],\"tools\":{}}", "tools"},
        {"{\"messages\":[" USER "],\"tools\":[3]}", "tools"},
        {"{\"messages\":[" USER "],\"tools\":[{\"type\":\"function\",\"function\":{}}]}",
            "tools[0].function.name"},
        {"{\"messages\":[" USER "],\"tools\":[{\"function\":{\"name\":\"a::b::c\"}}]}",
            "tools[0].function.name"},
        {"{\"messages\":[" USER
         "],\"tools\":[{\"namespace\":\"x\",\"function\":{\"name\":\"y::f\"}}]}",
            "tools[0].namespace"},
        {"{\"messages\":[" USER "],\"response_format\":{\"type\":\"yaml\"}}",
            "response_format.type"},
        {"{\"messages\":[" USER "],\"response_format\":{\"type\":\"json_schema\"}}",
            "response_format.json_schema.schema"},
        {"{\"messages\":[" USER "],\"reasoning_effort\":\"disabled\"}", "reasoning_effort"},
        {"{\"messages\":[" USER "],\"reasoning\":{\"effort\":1.5}}", "reasoning_effort"},
        {"{\"messages\":[" USER "],\"thinking\":\"yes\"}", "thinking"},
        {"{\"messages\":[" USER "],\"thinking\":{\"type\":\"maybe\"}}", "thinking"},
        {"{\"messages\":[" USER "],\"chat_template_kwargs\":{\"enable_thinking\":1}}",
            "chat_template_kwargs.enable_thinking"},
        {"{\"messages\":[" USER "],\"continue_final_message\":true}", "messages"},
        {"{\"messages\":[" USER "],\"add_generation_prompt\":\"no\"}", "add_generation_prompt"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"q\",\"task\":\"title\"}]}",
            "messages[0].task"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        refuses_with(cases[i][0], NULL, cases[i][1]);
    }
}

static void thinks(const char *fields, bool by_default, int want_budget) {
    buf body = BUF_INIT;
    chat_settings s = {.thinks_by_default = by_default};
    bool is_thinking = false;
    int budget = -1;
    err e = ERR_INIT;
    assert_int_equal(
        buf_printf(&body, "{\"messages\":[]%s%s}", fields[0] != 0 ? "," : "", fields), OK);
    json *v = parse(buf_cstr(&body));
    if (chat_thinking_of(v, &s, &is_thinking, &budget, &e) != OK) fail_msg("%s: %s", fields, e.msg);
    if (budget != want_budget || is_thinking != (want_budget > 0)) {
        fail_msg("'%s': expected budget %d, got %d", fields, want_budget, budget);
    }
    json_free(v);
    buf_release(&body);
}

static void test_thinking_is_off_unless_asked(void **state) {
    (void)state;
    thinks("", false, 0);
    thinks("", true, 75);
    thinks("\"reasoning_effort\":null,\"thinking\":null", false, 0);
    thinks("\"reasoning_effort\":\"none\"", true, 0);
    thinks("\"reasoning_effort\":\"off\"", true, 0);
    thinks("\"reasoning_effort\":\"minimal\"", false, 50);
    thinks("\"reasoning_effort\":\"medium\"", false, 75);
    thinks("\"reasoning_effort\":\"Max\"", false, 100);
    thinks("\"reasoning_effort\":7", false, 7);
    thinks("\"reasoning\":{\"effort\":\"low\"}", false, 50);
    thinks("\"reasoning\":{\"enabled\":true}", false, 75);
    thinks("\"reasoning\":{\"enabled\":false,\"effort\":\"high\"}", false, 0);
    thinks("\"enable_thinking\":true", false, 75);
    thinks("\"thinking\":{\"type\":\"adaptive\"}", false, 75);
    thinks("\"thinking\":false,\"enable_thinking\":true", true, 0);
    thinks("\"chat_template_kwargs\":{\"enable_thinking\":true},\"reasoning_effort\":\"none\"",
        false, 75);
    thinks("\"chat_template_kwargs\":{\"enable_thinking\":false,\"thinking\":true}", true, 0);
    thinks("\"chat_template_kwargs\":{\"thinking\":true,\"reasoning_effort\":\"max\"}", false, 100);
}

static void test_effort_table(void **state) {
    (void)state;
    assert_int_equal(chat_effort_budget(" XHigh\n"), 75);
    assert_int_equal(chat_effort_budget("ultra"), 100);
    assert_int_equal(chat_effort_budget("100"), 100);
    assert_int_equal(chat_effort_budget("101"), -1);
    assert_int_equal(chat_effort_budget("0"), -1);
    assert_int_equal(chat_effort_budget(""), -1);
    assert_int_equal(chat_effort_budget("hi gh"), -1);
}

static void renders(const char *body, const chat_settings *settings, const char *want_end) {
    chat_prompt p = CHAT_PROMPT_INIT;
    err e = ERR_INIT;
    if (render(body, settings, &p, &e) != OK) fail_msg("%s", e.msg);
    if (!str_ends(buf_cstr(&p.text), want_end)) {
        fail_msg("expected the end '%s' of '%s'", want_end, buf_cstr(&p.text));
    }
    chat_prompt_release(&p);
}

static void test_tasks_when_allowed(void **state) {
    (void)state;
    chat_settings s = {.allows_tasks = true};
    renders("{\"messages\":[{\"role\":\"user\",\"content\":\"q\",\"task\":\"title\"}]}", &s,
        "<" BAR "User" BAR ">q<" BAR "title" BAR ">");
    refuses_with("{\"messages\":[{\"role\":\"user\",\"task\":\"x\"}]}", &s, "messages");
    refuses_with(
        "{\"messages\":[{\"role\":\"user\",\"task\":\"title\"}," USER "]}", &s, "messages[0].task");
}

static void test_nul_in_text_stays_one_byte(void **state) {
    (void)state;
    chat_prompt p = CHAT_PROMPT_INIT;
    err e = ERR_INIT;
    assert_int_equal(
        render("{\"messages\":[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]}", NULL, &p, &e), OK);
    assert_int_equal(p.n_segments, 3);
    assert_int_equal(p.segments[1].len, 3);
    assert_memory_equal(p.text.data + p.segments[1].start, "a\0b", 3);
    chat_prompt_release(&p);
}

static void test_prefix_continues_the_last_turn(void **state) {
    (void)state;
    renders("{\"messages\":[" USER
            ",{\"role\":\"assistant\",\"content\":\"Once\",\"prefix\":true}]}",
        NULL, "</think>Once");
}

static void starts(const char *body, bool in_reasoning) {
    chat_prompt p = CHAT_PROMPT_INIT;
    err e = ERR_INIT;
    if (render(body, NULL, &p, &e) != OK) fail_msg("%s", e.msg);
    if (p.starts_in_reasoning != in_reasoning) fail_msg("the reply to %s starts wrong", body);
    chat_prompt_release(&p);
}

static void test_where_the_reply_starts(void **state) {
    (void)state;
#define THINKING "{\"thinking\":true,\"messages\":[" USER
    starts(THINKING "]}", true);
    starts("{\"messages\":[" USER "]}", false);
    starts(THINKING ",{\"role\":\"assistant\",\"content\":\"a\"}]}", true);
    starts(THINKING ",{\"role\":\"assistant\",\"content\":\"a\",\"prefix\":true}]}", false);
    starts(THINKING ",{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"r\","
                    "\"prefix\":true}]}",
        false);
    starts(
        THINKING ",{\"role\":\"assistant\",\"reasoning_content\":\"r\",\"prefix\":true}]}", true);
    starts(THINKING ",{\"role\":\"assistant\",\"content\":\"a\"}],"
                    "\"add_generation_prompt\":false}",
        false);
    starts(THINKING ",{\"role\":\"latest_reminder\",\"content\":\"n\"}]}", true);
    starts(THINKING ",{\"role\":\"latest_reminder\",\"content\":\"n\"}," USER
                    "],\"add_generation_prompt\":false}",
        false);
#undef THINKING
}

static void test_built_in_tools_of_others_are_left_out(void **state) {
    (void)state;
    renders("{\"messages\":[" USER
            "],\"tools\":[{\"type\":\"web_search\"},{\"type\":\"function\",\"name\":\"f\"}]}",
        NULL,
        "### Available Tool Schemas\n\n{\"name\": \"f\"}\n\nYou MUST strictly follow the above defined tool "
        "name and parameter schemas to invoke tool calls.\n<" BAR "User" BAR ">q<" BAR
        "Assistant" BAR "></think>");
}

/* A call whose exact text is still known is written as the model wrote it. */
static bool recall(void *ctx, const chat_call_view *call, const char **text, size_t *len) {
    const reply_call *known = ctx;
    if (!str_eq(call->id, known->id) || !str_eq(call->name, known->name)) return false;
    if (!str_eq(json_str(call->arguments), buf_cstr(&known->arguments))) return false;
    *text = known->raw.data;
    *len = known->raw.len;
    return true;
}

static void test_replayed_call_is_byte_equal(void **state) {
    (void)state;
    static const char written[] = "\n\n<" DSML " calls>\n<" DSML " invoke name=\"f\">\n<" DSML
                                  " parameter name=\"a\" string=\"false\">[1,2]</" DSML
                                  " parameter>\n</" DSML " invoke>\n</" DSML " calls>";
    reply_message m = {0};
    reply_options o = {.sink = reply_message_take, .sink_ctx = &m};
    reply_parser *parser = reply_parser_new(&o);
    assert_int_equal(reply_feed(parser, written, strlen(written)), OK);
    assert_int_equal(reply_end_of_text(parser, REPLY_END_EOS, NULL), OK);
    assert_int_equal(m.n_calls, 1);
    buf body = BUF_INIT;
    assert_int_equal(
        buf_printf(&body,
            "{\"messages\":[" USER ",{\"role\":\"assistant\",\"tool_calls\":[{\"id\":"
            "\"%s\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": [1,2]}\"}}]}]"
            ",\"add_generation_prompt\":false}",
            m.calls[0].id),
        OK);
    chat_settings s = {.replay = recall, .replay_ctx = &m.calls[0]};
    buf end = BUF_INIT;
    assert_int_equal(
        buf_printf(&end, "%s<" BAR "end\xE2\x96\x81of\xE2\x96\x81sentence" BAR ">", written), OK);
    renders(buf_cstr(&body), &s, buf_cstr(&end));
    /* Without it the arguments are printed again, with spaces. */
    renders(buf_cstr(&body), NULL,
        "[1, 2]</" DSML " parameter>\n</" DSML " invoke>\n</" DSML " calls><" BAR
        "end\xE2\x96\x81of\xE2\x96\x81sentence" BAR ">");
    reply_parser_free(parser);
    reply_message_release(&m);
    buf_release(&body);
    buf_release(&end);
}

/* What we render, the strict parser reads back. */
static void test_rendered_turns_parse_back(void **state) {
    (void)state;
    chat_prompt p = CHAT_PROMPT_INIT;
    err e = ERR_INIT;
    assert_int_equal(
        render("{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":\"ok\","
               "\"reasoning_content\":\"why\",\"tool_calls\":[{\"function\":{\"name\":\"n::f\","
               "\"arguments\":{\"a\":\"x\\ny\",\"b\":[1,{\"c\":null}]}}}]}],"
               "\"add_generation_prompt\":false,\"thinking\":true}",
            NULL, &p, &e),
        OK);
    const char *turn = strstr(buf_cstr(&p.text), "<think>");
    assert_non_null(turn);
    strict_message m;
    turn += strlen("<think>");
    if (reply_parse_strict(turn, strlen(turn), true, &m, &e) != OK) fail_msg("%s", e.msg);
    assert_string_equal(buf_cstr(&m.reasoning), "why");
    assert_string_equal(buf_cstr(&m.content), "ok");
    assert_int_equal(m.n_calls, 1);
    assert_string_equal(m.calls[0].name_space, "n");
    assert_string_equal(m.calls[0].name, "f");
    assert_string_equal(
        buf_cstr(&m.calls[0].arguments), "{\"a\": \"x\\ny\", \"b\": [1, {\"c\": null}]}");
    strict_message_release(&m);
    chat_prompt_release(&p);
}

static void test_strict_names(void **state) {
    (void)state;
    strict_message m;
    static const char form[] = "\n\n<" DSML " calls>\n<" DSML " invoke name=\"%s\">\n</" DSML
                               " invoke>\n</" DSML " calls>";
    char text[200];
    (void)snprintf(text, sizeof text, form, "a::b::c");
    assert_int_equal(reply_parse_strict(text, strlen(text), false, &m, NULL), ERR_FORMAT);
    (void)snprintf(text, sizeof text, form, "a::b");
    assert_int_equal(reply_parse_strict(text, strlen(text), false, &m, NULL), OK);
    assert_string_equal(m.calls[0].name_space, "a");
    strict_message_release(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals_name_the_field),
        cmocka_unit_test(test_thinking_is_off_unless_asked),
        cmocka_unit_test(test_effort_table),
        cmocka_unit_test(test_tasks_when_allowed),
        cmocka_unit_test(test_nul_in_text_stays_one_byte),
        cmocka_unit_test(test_prefix_continues_the_last_turn),
        cmocka_unit_test(test_where_the_reply_starts),
        cmocka_unit_test(test_built_in_tools_of_others_are_left_out),
        cmocka_unit_test(test_replayed_call_is_byte_equal),
        cmocka_unit_test(test_rendered_turns_parse_back),
        cmocka_unit_test(test_strict_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
