/* Corners of the release's own rendering that the golden vectors leave out; the expected texts are
 * what its encoder (encoding.py, revision dba1be0a) prints. */
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
#include "engine/text/chat.h"

#define BAR "\xEF\xBD\x9C"
#define SYSTEM "<" BAR "System" BAR ">"
#define USER "<" BAR "User" BAR ">"
#define ASSISTANT "<" BAR "Assistant" BAR ">"
#define EOS "<" BAR "end\xE2\x96\x81of\xE2\x96\x81sentence" BAR ">"
#define CALL_F "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":{}}"

static json *parse(const char *text) {
    json *v = NULL;
    err e = ERR_INIT;
    if (json_parse(text, strlen(text), NULL, &v, &e) != OK) fail_msg("%s in %s", e.msg, text);
    return v;
}

static int render(const char *messages, const char *effort, bool thinks, chat_prompt *p) {
    json *list = parse(messages), *level = parse(effort);
    chat_reference r = {
        .messages = list, .effort = level, .is_thinking = thinks, .omits_bos = true};
    err e = ERR_INIT;
    int rc = chat_render_reference(&r, p, &e);
    json_free(list);
    json_free(level);
    return rc;
}

/* In chat mode. want NULL: refused. */
static void renders(const char *messages, const char *want) {
    chat_prompt p = CHAT_PROMPT_INIT;
    int rc = render(messages, "null", false, &p);
    if ((rc == OK) != (want != NULL)) fail_msg("%d for %s", rc, messages);
    if (want != NULL) assert_string_equal(buf_cstr(&p.text), want);
    chat_prompt_release(&p);
}

static void test_effort_is_checked_in_both_modes(void **state) {
    (void)state;
    static const char *const wrong[] = {"0", "101", "50.0", "true", "\"medium\"", "\"\"", "[]"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        for (int thinks = 0; thinks < 2; thinks++) {
            chat_prompt p = CHAT_PROMPT_INIT;
            int rc = render("[{\"role\":\"user\",\"content\":\"q\"}]", wrong[i], thinks == 1, &p);
            if (rc == OK) fail_msg("taken: %s", wrong[i]);
            chat_prompt_release(&p);
        }
    }
}

static void test_blocks_of_a_user_message(void **state) {
    (void)state;
    renders("[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
            "{\"type\":\"input_image\"},{\"text\":\"b\"}]}]",
        USER "a\n\n[Unsupported input_image]\n\n[Unsupported None]" ASSISTANT "</think>");
    renders("[{\"role\":\"user\",\"content\":[]},{\"role\":\"user\",\"content\":\"b\"}]",
        USER "b" ASSISTANT "</think>");
    renders("[{\"role\":\"user\",\"content\":[]}]", USER ASSISTANT "</think>");
    renders("[{\"role\":\"user\",\"content\":[\"a\"]}]", NULL);
    renders("[{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":\"\","
            "\"data\":\"x\"}]}]",
        USER "<" BAR "deepseek_image" BAR ">" ASSISTANT "</think>");
}

static void test_results_among_the_blocks(void **state) {
    (void)state;
    renders("[{\"role\":\"assistant\",\"tool_calls\":[" CALL_F ",\"id\":\"1\"}," CALL_F
            ",\"id\":\"2\"}],\"wo_eos\":true,\"content\":\"\"},"
            "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"2\","
            "\"content\":[{\"type\":\"text\",\"text\":\"x\"},{\"type\":\"audio\"}]},"
            "{\"type\":\"text\",\"text\":\"t\"},{\"type\":\"text\",\"text\":\"u\"},"
            "{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"content\":\"y\"}]},"
            "{\"role\":\"user\",\"content\":\"v\"}]",
        "\n\n<" BAR "DSML" BAR " calls>\n<" BAR "DSML" BAR " invoke name=\"f\">\n\n</" BAR
        "DSML" BAR " invoke>\n<" BAR "DSML" BAR " invoke name=\"f\">\n\n</" BAR "DSML" BAR
        " invoke>\n</" BAR "DSML" BAR " calls>" USER
        "<tool_result>y</tool_result>\n\nt\n\nu\n\n<tool_result>x\n\n[Unsupported audio]"
        "</tool_result>\n\nv" ASSISTANT "</think>");
}

/* Only texts and images of a list stand in a message that is no user's; a tool's null is Python's
 * word for it. */
static void test_lists_and_nulls_elsewhere(void **state) {
    (void)state;
    static const char list[] = "[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"audio\"},"
                               "\"raw\",{\"type\":\"text\",\"text\":\"b\"}]";
    buf text = BUF_INIT;
    assert_int_equal(buf_printf(&text,
                         "[{\"role\":\"system\",\"content\":%s},{\"role\":\"tool\",\"content\":%s},"
                         "{\"role\":\"assistant\",\"content\":%s}]",
                         list, list, list),
        OK);
    renders(buf_cstr(&text),
        SYSTEM "a\n\nb" USER "<tool_result>a\n\nb</tool_result>" ASSISTANT "</think>a\n\nb" EOS);
    buf_release(&text);
    renders("[{\"role\":\"tool\",\"content\":null}]",
        USER "<tool_result>None</tool_result>" ASSISTANT "</think>");
    renders("[{\"role\":\"tool\"}]", USER "<tool_result></tool_result>" ASSISTANT "</think>");
}

static void test_an_empty_format_prints_nothing(void **state) {
    (void)state;
    renders("[{\"role\":\"system\",\"content\":\"s\",\"response_format\":{}}]", SYSTEM "s");
    renders("[{\"role\":\"system\",\"content\":\"s\",\"response_format\":false}]", SYSTEM "s");
}

/* What stands for the definition of a tool. */
static void defines(const char *tool, const char *want) {
    buf text = BUF_INIT;
    chat_prompt p = CHAT_PROMPT_INIT;
    assert_int_equal(
        buf_printf(&text, "[{\"role\":\"system\",\"content\":\"\",\"tools\":[%s]}]", tool), OK);
    assert_int_equal(render(buf_cstr(&text), "null", false, &p), OK);
    const char *from = strstr(buf_cstr(&p.text), "Schemas\n\n");
    assert_non_null(from);
    from += strlen("Schemas\n\n");
    assert_true(strlen(from) > strlen(want));
    assert_memory_equal(from, want, strlen(want));
    assert_int_equal(from[strlen(want)], '\n');
    chat_prompt_release(&p);
    buf_release(&text);
}

static void test_namespaces(void **state) {
    (void)state;
    defines("{\"function\":{\"name\":\"f\",\"parameters\":{}},"
            "\"namespace\":{\"name\":\"n\",\"description\":\"D\"}}",
        "{\"name\": \"n::f\", \"parameters\": {}, \"description\": \"D\\n\"}");
    defines("{\"function\":{\"description\":null,\"name\":\"f\"},"
            "\"namespace\":{\"name\":\"n\",\"description\":\"D\"}}",
        "{\"description\": \"D\\n\", \"name\": \"n::f\"}");
    defines("{\"function\":{\"name\":\"f\",\"description\":\"d\"},"
            "\"namespace\":{\"name\":\"n\",\"description\":\"\"}}",
        "{\"name\": \"n::f\", \"description\": \"d\"}");
    defines("{\"function\":{\"name\":\"f\",\"namespace\":\"in\"},\"namespace\":\"out\"}",
        "{\"name\": \"out::f\"}");
}

/* Tools of a message that was joined to the one before are lost with it. */
static void test_tools_of_a_joined_message(void **state) {
    (void)state;
    chat_prompt p = CHAT_PROMPT_INIT;
    assert_int_equal(
        render("[{\"role\":\"user\",\"content\":\"a\"},"
               "{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"r\"},"
               "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"user\",\"content\":\"d\","
               "\"tools\":[{\"function\":{\"name\":\"f\"}}]}]",
            "null", true, &p),
        OK);
    assert_true(str_ends(
        buf_cstr(&p.text), USER "a" ASSISTANT "</think>b" EOS USER "c\n\nd" ASSISTANT "<think>"));
    chat_prompt_release(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_effort_is_checked_in_both_modes),
        cmocka_unit_test(test_blocks_of_a_user_message),
        cmocka_unit_test(test_results_among_the_blocks),
        cmocka_unit_test(test_lists_and_nulls_elsewhere),
        cmocka_unit_test(test_an_empty_format_prints_nothing),
        cmocka_unit_test(test_namespaces),
        cmocka_unit_test(test_tools_of_a_joined_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
