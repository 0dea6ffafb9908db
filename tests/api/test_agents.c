/* Requests as the agent programs send them, to /v1/messages (Claude Code) and /v1/responses (Codex),
 * with the shapes that their packages were seen to send: system blocks with a line that changes
 * every time, server tools, thinking blocks that come back, tool results; instructions, items of
 * every kind, tools in groups. Over a scripted source. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/api/api.h"
#include "engine/base/json.h"
#include "engine/base/str.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/wire.h"

enum { PATIENCE_MS = 120000, N_TOOLS = 60 };

#define M "\uFF5CDSML\uFF5C"
#define MESSAGES "/v1/messages?beta=true"
#define COUNT "/v1/messages/count_tokens"
#define RESPONSES "/v1/responses"

static tokenizer *tok;
static stub_server server;
static const char *const pieces[] = {"Let me see.", "</think>",
    "\n\n<" M " calls>\n<" M " invoke name=\"Bash\">\n<" M
    " parameter name=\"command\" string=\"true\">",
    "ls", "</" M " parameter>\n</" M " invoke>\n</" M " calls>"};

static void send(const char *method, const char *path, const char *body, wire_answer *a) {
    wire w;
    wire_open_unix(&w, server.socket_path);
    wire_request(&w, method, path,
        "anthropic-version: 2023-06-01\r\nanthropic-beta: interleaved-thinking-2025-05-14\r\n",
        body);
    wire_read(&w, a, PATIENCE_MS);
    wire_close(&w);
}

static json *ask(const char *path, const char *body, int status) {
    wire_answer a;
    json *v = NULL;
    send("POST", path, body, &a);
    if (a.status != status || json_parse(buf_cstr(&a.body), a.body.len, NULL, &v, NULL) != OK) {
        fail_msg("%s %.2000s: %d %s", path, body, a.status, buf_cstr(&a.body));
    }
    wire_answer_release(&a);
    return v;
}

static int64_t number(const json *v, const char *key) {
    int64_t n = -1;
    json_i64(json_get(v, key), &n);
    return n;
}

static const char *text_of(const json *v, const char *key) {
    const char *s = json_str(json_get(v, key));
    return s != NULL ? s : "";
}

/* ---- Claude Code ---- */

typedef struct claude_request {
    const char *billing; /* changes every time */
    const char *more;    /* further messages, each behind a comma */
    const char *fields;  /* behind a comma */
    int n_tools;
} claude_request;

static void put_claude(const claude_request *q, buf *out) {
    buf_printf(out,
        "{\"model\":\"claude-sonnet-5\",\"max_tokens\":64000,\"metadata\":{\"user_id\":\"u\"},\"system\":["
        "{\"type\":\"text\",\"text\":\"x-anthropic-billing-header: cc_version=2.1; cch=%s;\"},"
        "{\"type\":\"text\",\"text\":\"You are an agent.\",\"cache_control\":{\"type\":\"ephemeral\"}},"
        "{\"type\":\"text\",\"text\":\"",
        q->billing);
    for (int i = 0; i < 200; i++)
        buf_printf(out, "Rule %d: do what was asked and nothing else. ", i);
    buf_puts(out,
        "\",\"cache_control\":{\"type\":\"ephemeral\"}}],\"messages\":["
        "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"<system-reminder>the date"
        "</system-reminder>\"},{\"type\":\"text\",\"text\":\"list the folder\",\"cache_control\":"
        "{\"type\":\"ephemeral\"}}]},{\"role\":\"system\",\"content\":\"Agent types: one.\"}");
    buf_printf(out,
        "%s],\"tools\":[{\"name\":\"Bash\",\"description\":\"Runs a command.\","
        "\"input_schema\":{\"type\":\"object\",\"properties\":{\"command\":{\"type\":\"string\"},"
        "\"timeout\":{\"type\":\"number\"}},\"required\":[\"command\"],"
        "\"additionalProperties\":false}},{\"type\":\"web_search_20250305\",\"name\":"
        "\"web_search\",\"max_uses\":8}",
        q->more);
    for (int i = 0; i < q->n_tools; i++)
        buf_printf(out,
            ",{\"name\":\"Tool%d\",\"description\":\"Number %d.\",\"input_schema\":{\"type\":\"object\","
            "\"properties\":{\"path\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}}}}",
            i, i);
    buf_printf(out, "]%s}", q->fields);
}

static json *ask_claude(const char *path, const claude_request *q, int status) {
    buf body = BUF_INIT;
    put_claude(q, &body);
    json *v = ask(path, buf_cstr(&body), status);
    buf_release(&body);
    return v;
}

#define ADAPTIVE                                                                                   \
    ",\"thinking\":{\"type\":\"adaptive\"},\"output_config\":{\"effort\":\"high\"},"               \
    "\"context_management\":{\"edits\":[{\"type\":\"clear_thinking_20251015\",\"keep\":\"all\"}]}"
#define CALL                                                                                              \
    ",{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"Let me see.\","          \
    "\"signature\":\"whatever\"},{\"type\":\"redacted_thinking\",\"data\":\"x\"},{\"type\":\"tool_use\"," \
    "\"id\":\"toolu_1\",\"name\":\"Bash\",\"input\":{\"command\":\"ls\"}}]}"
#define RESULT(content)                                                                                           \
    ",{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"toolu_1\",\"content\":" content \
    ",\"is_error\":false},{\"type\":\"text\",\"text\":\"go on\"}]}"

static void claude_code_is_served(void **state) {
    wire_answer a;
    (void)state;
    json *v = ask_claude(MESSAGES, &(claude_request){"a1", "", ADAPTIVE, N_TOOLS}, 200);
    assert_string_equal(text_of(v, "stop_reason"), "tool_use");
    const json *content = json_get(v, "content");
    assert_string_equal(text_of(json_at(content, 0), "type"), "thinking");
    assert_true(text_of(json_at(content, 0), "signature")[0] != '\0');
    assert_string_equal(text_of(json_at(content, 1), "name"), "Bash");
    assert_string_equal(text_of(json_get(json_at(content, 1), "input"), "command"), "ls");
    json_free(v);
    /* The whole turn comes back; blocks with any signature are taken. */
    json_free(ask_claude(
        MESSAGES, &(claude_request){"a2", CALL RESULT("\"a.txt\""), ADAPTIVE, N_TOOLS}, 200));
    json_free(ask_claude(MESSAGES,
        &(claude_request){
            "a2", CALL RESULT("[{\"type\":\"text\",\"text\":\"a.txt\"}]"), ADAPTIVE, 3},
        200));
    /* A helper's call switches thinking off: no thinking block. */
    v = ask_claude(
        MESSAGES, &(claude_request){"a3", "", ",\"thinking\":{\"type\":\"disabled\"}", 0}, 200);
    assert_string_equal(text_of(json_at(json_get(v, "content"), 0), "type"), "text");
    json_free(v);
    send("HEAD", "/", NULL, &a); /* it looks whether anybody is there */
    assert_int_equal(a.status, 404);
    wire_answer_release(&a);
}

static void changing_lines_do_not_reach_the_prompt(void **state) {
    (void)state;
    json *one = ask_claude(COUNT, &(claude_request){"a1", "", ADAPTIVE, 2}, 200);
    json *two = ask_claude(
        COUNT, &(claude_request){"a much longer one that would cost tokens", "", ADAPTIVE, 2}, 200);
    json *used = ask_claude(MESSAGES, &(claude_request){"b", "", ADAPTIVE, 2}, 200);
    const json *usage = json_get(used, "usage");
    assert_true(number(one, "input_tokens") > 1000);
    assert_int_equal(number(one, "input_tokens"), number(two, "input_tokens"));
    assert_int_equal(number(usage, "input_tokens") + number(usage, "cache_read_input_tokens"),
        number(one, "input_tokens"));
    json_free(one);
    json_free(two);
    json_free(used);
}

static void images_in_results_are_refused_clearly(void **state) {
    (void)state;
    json *v = ask_claude(MESSAGES,
        &(claude_request){"a",
            CALL RESULT("[{\"type\":\"image\",\"source\":{\"type\":\"base64\","
                        "\"media_type\":\"image/png\",\"data\":\"AAAA\"}}]"),
            ADAPTIVE, 0},
        400);
    assert_string_equal(text_of(json_get(v, "error"), "type"), "invalid_request_error");
    assert_non_null(strstr(text_of(json_get(v, "error"), "message"), "image"));
    json_free(v);
}

/* ---- Codex ---- */

#define CODEX_HEAD                                                                                           \
    "{\"model\":\"gpt-5\",\"stream\":false,\"store\":false,\"parallel_tool_calls\":true,\"tool_choice\":"    \
    "\"auto\",\"include\":[\"reasoning.encrypted_content\"],\"prompt_cache_key\":\"k\","                     \
    "\"client_metadata\":{\"x\":\"y\"},\"reasoning\":{\"effort\":\"medium\",\"summary\":\"auto\"},"          \
    "\"instructions\":\"You are a coding agent.\",\"tools\":[{\"type\":\"function\",\"name\":\"Bash\","      \
    "\"strict\":false,\"parameters\":{\"type\":\"object\",\"properties\":{\"command\":{\"type\":\"string\""  \
    "}},\"required\":[\"command\"],\"additionalProperties\":false}},{\"type\":\"custom\",\"name\":"          \
    "\"apply_patch\",\"description\":\"A patch.\",\"format\":{\"type\":\"grammar\",\"syntax\":\"lark\","     \
    "\"definition\":\"start: x\"}},{\"type\":\"namespace\",\"name\":\"agents\",\"description\":\"Others.\"," \
    "\"tools\":[{\"type\":\"function\",\"name\":\"close\",\"parameters\":{\"type\":\"object\","              \
    "\"properties\":{\"id\":{\"type\":\"string\"}}}}]},{\"type\":\"local_shell\"},{\"type\":\"web_search\"," \
    "\"external_web_access\":false}],\"input\":["
#define CODEX_DEVELOPER                                                                            \
    "{\"type\":\"message\",\"role\":\"developer\",\"content\":[{\"type\":\"input_text\",\"text\":\"Rules.\"}]}"
#define CODEX_USER                                                                                     \
    ",{\"type\":\"message\",\"id\":\"msg_1\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\"," \
    "\"text\":\"list the folder\"}]}"
#define CODEX_TURN                                                                                            \
    ",{\"type\":\"reasoning\",\"id\":\"rs_1\",\"summary\":[{\"type\":\"summary_text\",\"text\":\"short\"}],"  \
    "\"encrypted_content\":null},{\"type\":\"function_call\",\"call_id\":\"c1\",\"name\":\"Bash\","           \
    "\"arguments\":\"{\\\"command\\\":\\\"ls\\\"}\"},{\"type\":\"custom_tool_call\",\"call_id\":\"c2\","      \
    "\"name\":\"apply_patch\",\"input\":\"*** Begin\"},{\"type\":\"function_call\",\"call_id\":\"c3\","       \
    "\"namespace\":\"agents\",\"name\":\"close\",\"arguments\":\"{\\\"id\\\":\\\"a\\\"}\"},"                  \
    "{\"type\":\"local_shell_call\",\"call_id\":\"c4\",\"action\":{\"type\":\"exec\",\"command\":[\"ls\"]}}," \
    "{\"type\":\"function_call_output\",\"call_id\":\"c1\",\"output\":\"a.txt\"},"                            \
    "{\"type\":\"custom_tool_call_output\",\"call_id\":\"c2\",\"output\":\"done\"},"                          \
    "{\"type\":\"function_call_output\",\"call_id\":\"c3\",\"output\":[{\"type\":\"input_text\",\"text\":"    \
    "\"closed\"}]},{\"type\":\"local_shell_call_output\",\"call_id\":\"c4\",\"output\":\"a.txt\"},"           \
    "{\"type\":\"message\",\"role\":\"assistant\",\"content\":[{\"type\":\"output_text\",\"text\":\"There is" \
    " one.\"}]}," CODEX_DEVELOPER                                                                             \
    ",{\"type\":\"message\",\"role\":\"user\",\"content\":\"and now?\"}"

static const json *item_of_type(const json *answer, const char *type) {
    JSON_EACH(item, json_get(answer, "output")) {
        if (strcmp(text_of(item, "type"), type) == 0) return item;
    }
    fail_msg("no item of type %s", type);
    return NULL;
}

static void codex_is_served(void **state) {
    wire_answer a;
    char warning[256];
    buf body = BUF_INIT;
    (void)state;
    json *v = ask(RESPONSES, CODEX_HEAD CODEX_DEVELOPER CODEX_USER "]}", 200);
    const json *call = item_of_type(v, "function_call");
    const json *reasoning = item_of_type(v, "reasoning");
    assert_string_equal(text_of(call, "name"), "Bash");
    assert_string_equal(text_of(call, "arguments"), "{\"command\": \"ls\"}");
    assert_string_equal(text_of(call, "status"), "completed");
    assert_string_equal(text_of(json_at(json_get(reasoning, "summary"), 0), "text"), "Let me see.");
    /* What it gets it sends back, with the secret alone; the thought is read out of it. */
    buf_puts(&body, CODEX_HEAD CODEX_DEVELOPER CODEX_USER ",{\"type\":\"reasoning\",\"summary\":[],"
                                                          "\"encrypted_content\":");
    json_print_compact(json_get(reasoning, "encrypted_content"), &body);
    buf_puts(&body, "},");
    json_print_compact(call, &body);
    buf_printf(&body,
        ",{\"type\":\"function_call_output\",\"call_id\":\"%s\",\"output\":\"a.txt\"}]}",
        text_of(call, "call_id"));
    json *next = ask(RESPONSES, buf_cstr(&body), 200);
    assert_true(number(json_get(next, "usage"), "input_tokens") >
                number(json_get(v, "usage"), "input_tokens") + 10);
    json_free(next);
    json_free(v);
    buf_release(&body);
    send("POST", RESPONSES, CODEX_HEAD CODEX_DEVELOPER CODEX_USER CODEX_TURN "]}", &a);
    if (a.status != 200) fail_msg("%s", buf_cstr(&a.body));
    wire_header(&a, "x-tandem-warning", warning, sizeof warning);
    assert_non_null(strstr(warning, "web_search"));
    wire_answer_release(&a);
}

static void codex_is_told_what_is_not_kept(void **state) {
    static const struct {
        const char *body, *param;
    } cases[] = {
        {"{\"input\":\"x\",\"previous_response_id\":\"resp_1\"}", "previous_response_id"},
        {"{\"input\":\"x\",\"conversation\":\"conv_1\"}", "conversation"},
        {"{\"input\":[{\"type\":\"item_reference\",\"id\":\"msg_1\"}]}", "input[0].type"},
        {"{\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"no\",\"output\":\"x\"}]}",
            "input[0].call_id"},
        {"{\"input\":\"x\",\"instructions\":7}", "instructions"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json *v = ask(RESPONSES, cases[i].body, 400);
        assert_string_equal(text_of(json_get(v, "error"), "param"), cases[i].param);
        json_free(v);
    }
}

static int open_all(void **state) {
    stub_server_options o = {.tokenizer = tok};
    (void)state;
    o.script =
        (stub_script){.pieces = pieces, .n_pieces = 5, .max_context = 32768, .max_rows = 1024};
    stub_server_start(&server, &o);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    stub_server_stop(&server);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(claude_code_is_served),
        cmocka_unit_test(changing_lines_do_not_reach_the_prompt),
        cmocka_unit_test(images_in_results_are_refused_clearly), cmocka_unit_test(codex_is_served),
        cmocka_unit_test(codex_is_told_what_is_not_kept)};
    tok = stub_tokenizer_open();
    if (tok == NULL) {
        print_message("skipped: no demo tokenizer here\n");
        return 77;
    }
    int rc = cmocka_run_group_tests(tests, open_all, close_all);
    tokenizer_close(tok);
    return rc;
}
