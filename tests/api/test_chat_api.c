/* The HTTP layer over a scripted source: what the case files do not cover. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "engine/api/api.h"
#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/str.h"
#include "tests/harness/sse_message.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/wire.h"

#define HELLO "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"sh\",\"parameters\":{\"type\":"    \
    "\"object\",\"properties\":{\"c\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"}}}}}]"
#define MARK "\uFF5CDSML\uFF5C"

enum { PATIENCE_MS = 120000 };

static tokenizer *tok;
static _Atomic int is_held;

static stub_server_options options(const char *const *pieces, int n) {
    return (stub_server_options){.tokenizer = tok, .script = {.pieces = pieces, .n_pieces = n}};
}

static const char *const hello_pieces[] = {"Hel", "lo", " wor", "ld"};

static void ask(
    const stub_server *s, const char *method, const char *path, const char *body, wire_answer *a) {
    wire w;
    wire_open_unix(&w, s->socket_path);
    wire_request(&w, method, path, "", body);
    wire_read(&w, a, PATIENCE_MS);
    wire_close(&w);
}

static json *parsed(const wire_answer *a) {
    json *v = NULL;
    err e = ERR_INIT;
    if (json_parse(buf_cstr(&a->body), a->body.len, NULL, &v, &e) != OK) {
        fail_msg("no JSON: %s", buf_cstr(&a->body));
    }
    return v;
}

static json *ask_json(const stub_server *s, const char *path, const char *body, int status) {
    wire_answer a;
    ask(s, body != NULL ? "POST" : "GET", path, body, &a);
    if (a.status != status) fail_msg("%s %s: %d %s", path, body, a.status, buf_cstr(&a.body));
    json *v = parsed(&a);
    wire_answer_release(&a);
    return v;
}

static const char *text_at(const json *v, const char *const *path) {
    for (; *path != NULL; path++) {
        v = (*path)[0] >= '0' && (*path)[0] <= '9' ? json_at(v, (size_t)((*path)[0] - '0'))
                                                   : json_get(v, *path);
    }
    return json_str(v);
}
#define TEXT_AT(v, ...) text_at(v, (const char *const[]){__VA_ARGS__, NULL})

/* ---- streamed equals whole ---- */

static void message_of(
    const char *const *pieces, int n, const char *fields, bool thinks, sse_message *m) {
    stub_server_options o = options(pieces, n);
    stub_server s;
    wire_answer a;
    buf body = BUF_INIT;
    o.thinks_by_default = thinks;
    stub_server_start(&s, &o);
    buf_printf(&body, "{%s}", fields);
    ask(&s, "POST", "/v1/chat/completions", buf_cstr(&body), &a);
    if (a.status != 200) fail_msg("%d %s", a.status, buf_cstr(&a.body));
    memset(m, 0, sizeof *m);
    if (strstr(fields, "\"stream\":true") != NULL) {
        const char *why;
        sse_read_stream(&a.body, m);
        if (!sse_check_rule(m, "ends_with_done", &why)) fail_msg("%s", buf_cstr(&a.body));
    } else {
        json *v = parsed(&a);
        sse_read_whole(v, m);
        json_free(v);
    }
    wire_answer_release(&a);
    buf_release(&body);
    stub_server_stop(&s);
}

/* Cuts text into pieces of size bytes, never inside a character. */
static int cut(const char *text, size_t size, char store[][64], const char **pieces, int most) {
    size_t len = strlen(text);
    int n = 0;
    for (size_t at = 0; at < len && n < most; n++) {
        size_t k = size;
        while (at + k < len && ((unsigned char)text[at + k] & 0xC0) == 0x80)
            k++;
        if (at + k > len) k = len - at;
        str_copy(store[n], k + 1, text + at);
        pieces[n] = store[n];
        at += k;
    }
    return n;
}

static void streamed_equals_whole(void **state) {
    (void)state;
    static const struct {
        const char *text, *fields;
        bool thinks;
    } cases[] = {
        {"thought </think>answer with \"quotes\", \\ and \xE2\x82\xAC", HELLO, true},
        {"one\n\n<" MARK " calls>\n<" MARK " invoke name=\"sh\">\n<" MARK
         " parameter name=\"c\" string=\"true\">ls \"x\"\n</" MARK " parameter>\n<" MARK
         " parameter name=\"n\" string=\"false\">12</" MARK " parameter>\n</" MARK
         " invoke>\n</" MARK " calls>",
            HELLO "," TOOLS, false},
        {"plain END not this", HELLO ",\"stop\":[\"END\"]", false},
        {"cut by length, this is", HELLO ",\"max_tokens\":3", false},
        {"2 < 3 and <thin", HELLO, false},
    };
    static const size_t sizes[] = {1, 3, 7, 60};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            static char store[400][64];
            const char *pieces[400];
            char fields[1000];
            sse_message whole;
            sse_message streamed;
            const char *why;
            int n = cut(cases[i].text, sizes[k], store, pieces, 400);
            message_of(pieces, n, cases[i].fields, cases[i].thinks, &whole);
            snprintf(fields, sizeof fields, "%s,\"stream\":true", cases[i].fields);
            message_of(pieces, n, fields, cases[i].thinks, &streamed);
            if (!sse_message_equal(&whole, &streamed, &why)) {
                fail_msg("case %zu cut %zu: %s differs: '%s' and '%s'", i, sizes[k], why,
                    buf_cstr(&whole.content), buf_cstr(&streamed.content));
            }
            sse_message_release(&whole);
            sse_message_release(&streamed);
        }
    }
}

/* A turn whose thinking is closed goes on with its answer, one that only thought with its thinking. */
static void a_continued_turn_goes_on_where_it_was(void **state) {
    (void)state;
    static const char *const turns[] = {
        "\"content\":\"It is\",\"reasoning_content\":\"r\"", "\"reasoning_content\":\"I think\""};
    for (int i = 0; i < 2; i++) {
        char fields[400];
        sse_message m;
        snprintf(fields, sizeof fields,
            "\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",%s,"
            "\"prefix\":true}],\"thinking\":true",
            turns[i]);
        message_of(hello_pieces, 4, fields, false, &m);
        assert_string_equal(buf_cstr(i == 0 ? &m.content : &m.reasoning), "Hello world");
        assert_int_equal(i == 0 ? m.reasoning.len : m.content.len, 0);
        sse_message_release(&m);
    }
}

/* ---- refusals ---- */

#define E8 "\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9\u00e9"
#define E128 E8 E8 E8 E8 E8 E8 E8 E8 E8 E8 E8 E8 E8 E8 E8 E8
#define NAMED(name) ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"" name "\"}}]"
static const struct {
    const char *fields, *param;
} misfits[] = {
    {"\"messages\":[]", "messages"},
    {"\"messages\":\"x\"", "messages"},
    {"\"model\":\"x\"", "messages"},
    {HELLO ",\"stream\":\"yes\"", "stream"},
    {HELLO ",\"temperature\":true", "temperature"},
    {HELLO ",\"top_k\":1.5", "top_k"},
    {HELLO ",\"min_p\":2", "min_p"},
    {HELLO ",\"repetition_penalty\":0", "repetition_penalty"},
    {HELLO ",\"seed\":\"abc\"", "seed"},
    {HELLO ",\"n\":9", "n"},
    {HELLO ",\"stop\":5", "stop"},
    {HELLO ",\"stop\":[\"a\",7]", "stop"},
    {HELLO ",\"stop_token_ids\":[-1]", "stop_token_ids"},
    {HELLO ",\"logit_bias\":{\"x\":1}", "logit_bias"},
    {HELLO ",\"logit_bias\":{\"5\":101}", "logit_bias"},
    {HELLO ",\"logit_bias\":{\"9999999\":1}", "logit_bias"},
    {HELLO ",\"top_logprobs\":3", "top_logprobs"},
    {HELLO ",\"logprobs\":true,\"top_logprobs\":21", "top_logprobs"},
    {HELLO ",\"max_completion_tokens\":0", "max_completion_tokens"},
    {HELLO ",\"tools\":{}", "tools"},
    {HELLO ",\"tool_choice\":\"required\"", "tool_choice"},
    {HELLO "," TOOLS ",\"tool_choice\":\"sometimes\"", "tool_choice"},
    {HELLO ",\"response_format\":{\"type\":\"json\"}", "response_format"},
    {HELLO ",\"response_format\":{\"type\":\"json_object\"},\"guided_json\":{}", "guided_json"},
    {HELLO ",\"guided_choice\":[]", "guided_choice"},
    {HELLO ",\"guided_regex\":7", "guided_regex"},
    {HELLO "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"no\"}}",
        "tool_choice"},
    {HELLO "," TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"x\",\"tools\":[]}",
        "tool_choice"},
    {HELLO ",\"functions\":[{\"name\":\"a\"}],\"function_call\":{\"name\":\"b\"}", "function_call"},
    {HELLO ",\"response_format\":7", "response_format"},
    {HELLO ",\"guided_json\":7", "guided_json"},
    {HELLO ",\"modalities\":[\"audio\"]", "modalities"},
    {HELLO ",\"stream\":true,\"stream_options\":5", "stream_options"},
    {HELLO ",\"stream\":true,\"stream_options\":{\"include_usage\":1}",
        "stream_options.include_usage"},
    {HELLO ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{},"
           "\"strict\":\"yes\"}}",
        "response_format.json_schema.strict"},
    {HELLO NAMED(E128 "a"), "tools[0]"},
    {HELLO ",\"reasoning\":\"high\"", "reasoning"},
    {HELLO ",\"chat_template_kwargs\":[]", "chat_template_kwargs"},
    {HELLO ",\"logit_bias\":{\"5\":\"1x\"}", "logit_bias"},
    {HELLO ",\"logit_bias\":{\"5\":true}", "logit_bias"},
    {HELLO ",\"stop_token_ids\":[\"x\"]", "stop_token_ids"},
    {HELLO ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":"
           "\"none\"}}]",
        "tools[0].function.parameters"},
    {HELLO ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":"
           "\"yes\"}}]",
        "tools[0].function.strict"},
    {HELLO ",\"thinking_budget\":-1", "thinking_budget"},
    {HELLO ",\"max_tokens\":999999", "max_tokens"},
};

static void bad_requests_name_the_field(void **state) {
    (void)state;
    stub_server_options o = options(hello_pieces, 4);
    stub_server s;
    stub_server_start(&s, &o);
    for (size_t i = 0; i < sizeof misfits / sizeof misfits[0]; i++) {
        char body[1000];
        snprintf(body, sizeof body, "{%s}", misfits[i].fields);
        json *v = ask_json(&s, "/v1/chat/completions", body, 400);
        const char *param = TEXT_AT(v, "error", "param");
        if (param == NULL || strcmp(param, misfits[i].param) != 0) {
            fail_msg("%s: param is %s", misfits[i].fields, param != NULL ? param : "null");
        }
        assert_string_equal(TEXT_AT(v, "error", "type"), "invalid_request_error");
        json_free(v);
    }
    static const char *const bodies[] = {"", "[]", "{", "\"x\"", "{\"messages\":[]}x", "\xff"};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        json_free(ask_json(&s, "/v1/chat/completions", bodies[i], 400));
    }
    stub_server_stop(&s);
}

/* The sentence is true whatever the size of the number, and the place is the one that the client
 * wrote, also where the body was translated. */
#define SCHEMA(text)                                                                               \
    HELLO ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":"  \
          "\"integer\"," text "}}}"
#define CUSTOM "{\"type\":\"custom\",\"name\":\"p\"}"
#define PIXEL "{\"type\":\"input_image\",\"image_url\":\"data:image/png;base64,AA==\"}"
static const struct {
    const char *path, *fields, *param, *message;
} refusals[] = {
    {"chat/completions", HELLO ",\"max_tokens\":3000000000", "max_tokens", "exceed the window"},
    {"chat/completions", HELLO ",\"max_tokens\":0", "max_tokens",
        "max_tokens is 0; it must be at least 1"},
    {"chat/completions", HELLO ",\"max_tokens\":99999999999999999999", "max_tokens",
        "it must be at most 9223372036854775807"},
    {"chat/completions", HELLO ",\"max_tokens\":-99999999999999999999", "max_tokens",
        "it must be at least 1"},
    {"chat/completions", HELLO ",\"max_tokens\":1e30", "max_tokens",
        "max_tokens is 1e30; it must be at most 9223372036854775807"},
    {"chat/completions", HELLO ",\"max_tokens\":1.5", "max_tokens", "must be an integer"},
    {"chat/completions", HELLO ",\"n\":9000000000", "n", "n is 9000000000; it must be from 1 to 8"},
    {"chat/completions", SCHEMA("\"minimum\":1180591620717411303424"), "/minimum",
        "only bounds between -10^18 and 10^18 can be enforced"},
    {"chat/completions", SCHEMA("\"exclusiveMaximum\":-1e30"), "/exclusiveMaximum",
        "only bounds between -10^18 and 10^18 can be enforced"},
    {"chat/completions", SCHEMA("\"minimum\":5,\"maximum\":4"), NULL, "no value"},
    {"chat/completions", HELLO ",\"tools\":[" CUSTOM "]", "tools[0].type", "must be function"},
    {"chat/completions", HELLO ",\"tools\":[{\"type\":7,\"function\":{\"name\":\"f\"}}]",
        "tools[0].type", "must be function"},
    {"responses", "\"input\":\"hi\",\"max_output_tokens\":3000000000", "max_output_tokens",
        "max_output_tokens is 3000000000"},
    {"responses", "\"input\":\"hi\",\"tools\":[{\"type\":\"web_search\"},{\"type\":\"custom\"}]",
        "tools[1].name", "tools[1].name"},
    {"responses",
        "\"input\":\"hi\",\"tools\":[" CUSTOM
        ",{\"type\":\"namespace\",\"name\":\"s\",\"tools\":[{\"name\":\"a\"},{\"name\":\"\"}]}]",
        "tools[1].tools[1].name", "tools[1].tools[1].name"},
    {"responses",
        "\"input\":\"hi\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"strict\":true,"
        "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"str\"}}}}]",
        "tools[0].parameters/properties/a/type", "not the name of a type"},
    {"responses",
        "\"instructions\":\"x\",\"input\":[{\"role\":\"user\",\"content\":\"a\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"b\"}," PIXEL "]}]",
        "input[1].content", "input[1].content: this server has no vision part"},
    {"responses",
        "\"input\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":"
        "\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":[" PIXEL "]}]",
        "input[1].output", "no vision part"},
    {"responses", "\"input\":[{\"role\":\"wizard\",\"content\":\"a\"}]", "input[0].role",
        "input[0].role: must be"},
    {"responses", "\"input\":\"hi\",\"reasoning\":{\"effort\":\"huge\"}", "reasoning.effort",
        "reasoning.effort"},
    {"responses", "\"input\":\"hi\",\"text\":{\"format\":{\"type\":\"json_schema\"}}",
        "text.format.schema", "text.format.schema must be a JSON schema"},
    {"responses",
        "\"input\":\"hi\",\"text\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"pattern\":"
        "\"(?=a)\"}}}",
        "/pattern", "text.format.schema: schema at /pattern"},
    {"responses", "\"input\":\"hi\",\"text\":\"x\"", "text", "text must be an object"},
    {"responses", "\"input\":\"hi\",\"reasoning\":\"high\"", "reasoning", "must be an object"},
    {"messages",
        "\"max_tokens\":9," HELLO
        ",\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"pattern\":"
        "\"(?=a)\"}}}",
        NULL, "output_config.format.schema: schema at /pattern"},
    {"messages", "\"max_tokens\":9," HELLO ",\"output_config\":\"low\"", NULL,
        "output_config must be an object"},
    {"messages",
        "\"max_tokens\":9," HELLO
        ",\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":1}",
        NULL, "tool_choice.disable_parallel_tool_use must be true or false"},
    {"messages", "\"max_tokens\":9,\"system\":\"x\"," HELLO ",\"stop_sequences\":[7]", NULL,
        "stop_sequences must be a string or"},
    {"messages",
        "\"max_tokens\":9,\"system\":\"x\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"url\",\"url\":"
        "\"http://x/y.png\"}}]}]",
        NULL, "messages[1].content: this server has no vision part"},
    {"messages",
        "\"max_tokens\":9," HELLO
        ",\"tools\":[{\"type\":\"web_search_1\",\"name\":\"w\"},{\"name\":\"f\",\"strict\":true,"
        "\"input_schema\":{\"type\":\"object\",\"minProperties\":\"x\"}}]",
        NULL, "tools[1].input_schema/minProperties: "},
};

static void refusals_are_exact(void **state) {
    (void)state;
    stub_server_options o = options(hello_pieces, 4);
    stub_server s;
    stub_server_start(&s, &o);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        char path[64], body[1000];
        snprintf(path, sizeof path, "/v1/%s", refusals[i].path);
        snprintf(body, sizeof body, "{%s}", refusals[i].fields);
        json *v = ask_json(&s, path, body, 400);
        const char *param = TEXT_AT(v, "error", "param"), *text = TEXT_AT(v, "error", "message");
        bool is_right = refusals[i].param == NULL || str_eq(param, refusals[i].param);
        if (!is_right || strstr(text, refusals[i].message) == NULL) {
            fail_msg("%s: param %s, %s", body, param != NULL ? param : "null", text);
        }
        json_free(v);
    }
    /* Claude Code asks for more than the window; a limit of any size is lowered on its route. */
    json_free(ask_json(&s, "/v1/messages", "{\"max_tokens\":3000000000," HELLO "}", 200));
    json_free(ask_json(&s, "/v1/chat/completions", "{" HELLO ",\"top_k\":3000000000}", 200));
    json_free(ask_json(&s, "/v1/chat/completions", "{" HELLO ",\"top_k\":-3000000000}", 200));
    stub_server_stop(&s);
}

static void fields_that_mean_nothing_are_taken(void **state) {
    (void)state;
    stub_server_options o = options(hello_pieces, 4);
    stub_server s;
    stub_server_start(&s, &o);
    json *v = ask_json(&s, "/chat/completions/",
        "{" HELLO
        ",\"user\":\"u\",\"metadata\":{},\"store\":true,\"temperature\":\"0.5\",\"seed\":-3,"
        "\"top_p\":null,\"max_tokens\":null,\"stop\":\"\",\"what\":{\"is\":\"this\"},\"top_k\":-1,"
        "\"response_format\":{\"type\":\"text\"},\"tools\":[],\"model\":\"gpt-4\"}",
        200);
    assert_string_equal(TEXT_AT(v, "choices", "0", "message", "content"), "Hello world");
    assert_string_equal(TEXT_AT(v, "model"), "tandem-stub");
    assert_string_equal(TEXT_AT(v, "service_tier"), "default");
    json_free(v);
    stub_server_stop(&s);
}

/* Numbers as numeric strings everywhere; an empty list in place of an empty object; names are
 * counted in characters. */
static void odd_spellings_are_taken(void **state) {
    (void)state;
    static const char *const more[] = {",\"logit_bias\":{\"5\":\"1.5\"}",
        ",\"stop_token_ids\":[\"7\",8.0]",
        ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[],"
        "\"strict\":null}}]",
        NAMED(E128)};
    stub_server_options o = options(hello_pieces, 4);
    stub_server s;
    stub_server_start(&s, &o);
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        char body[1000];
        snprintf(body, sizeof body, "{" HELLO "%s}", more[i]);
        json_free(ask_json(&s, "/v1/chat/completions", body, 200));
    }
    stub_server_stop(&s);
}

/* ---- shapes ---- */

static void choices_usage_and_logprobs(void **state) {
    (void)state;
    int64_t n = 0;
    stub_server_options o = options(hello_pieces, 4);
    stub_server s;
    stub_server_start(&s, &o);
    json *v = ask_json(&s, "/v1/chat/completions",
        "{" HELLO ",\"n\":3,\"logprobs\":true,\"top_logprobs\":2}", 200);
    assert_int_equal(json_count(json_get(v, "choices")), 3);
    JSON_EACH(choice, json_get(v, "choices")) {
        const json *content = json_get(json_get(choice, "logprobs"), "content");
        assert_int_equal(json_count(content), 4);
        const json *first = json_at(content, 0);
        assert_string_equal(json_str(json_get(first, "token")), "Hel");
        assert_int_equal(json_count(json_get(first, "top_logprobs")), 2);
        assert_int_equal(json_count(json_get(first, "bytes")), 3);
        assert_string_equal(TEXT_AT(choice, "message", "content"), "Hello world");
    }
    const json *usage = json_get(v, "usage");
    assert_int_equal(json_i64(json_get(usage, "completion_tokens"), &n), OK);
    assert_int_equal(n, 12);
    json_free(v);
    v = ask_json(&s, "/v1/chat/completions", "{" HELLO ",\"stop\":[\"zz\",\"wor\"]}", 200);
    assert_string_equal(TEXT_AT(v, "choices", "0", "message", "content"), "Hello ");
    assert_string_equal(TEXT_AT(v, "choices", "0", "stop_reason"), "wor");
    assert_string_equal(TEXT_AT(v, "choices", "0", "finish_reason"), "stop");
    assert_int_equal(json_i64(json_get(json_get(v, "usage"), "completion_tokens"), &n), OK);
    assert_int_equal(n, 3);
    json_free(v);
    wire_answer a;
    ask(&s, "POST", "/v1/chat/completions",
        "{" HELLO ",\"n\":2,\"stream\":true,\"stream_options\":{\"include_usage\":true}}", &a);
    sse_message m = {0};
    sse_read_stream(&a.body, &m);
    assert_int_equal(m.n_finish, 2);
    const char *why;
    assert_true(sse_check_rule(&m, "usage_null_or_absent_elsewhere", &why));
    sse_message_release(&m);
    wire_answer_release(&a);
    stub_server_stop(&s);
}

static void paths_methods_and_ids(void **state) {
    (void)state;
    char text[200];
    wire_answer a;
    wire w;
    stub_server_options o = options(hello_pieces, 4);
    stub_server s;
    stub_server_start(&s, &o);
    json_free(ask_json(&s, "/models", NULL, 200));
    json_free(ask_json(&s, "/v1/models/tandem-stub", NULL, 200));
    json_free(ask_json(&s, "/v1/models/other", NULL, 404));
    json_free(ask_json(&s, "/health?x=1", NULL, 200));
    json_free(ask_json(&s, "/v1/ready/", NULL, 200));
    json_free(ask_json(&s, "/v1/nothing", NULL, 404));
    json_free(ask_json(&s, "/tandem/v1/state", NULL, 200));
    json_free(ask_json(&s, "/tandem/v1/cancel", "{\"id\":\"no\"}", 404));
    ask(&s, "GET", "/v1/chat/completions", NULL, &a);
    assert_int_equal(a.status, 405);
    wire_header(&a, "Allow", text, sizeof text);
    assert_string_equal(text, "POST, OPTIONS");
    wire_answer_release(&a);
    ask(&s, "GET", "/metrics", NULL, &a);
    assert_non_null(strstr(buf_cstr(&a.body), "\ntandem_requests_running 0\n"));
    assert_non_null(strstr(buf_cstr(&a.body), "# TYPE tandem_request_seconds histogram"));
    wire_answer_release(&a);
    wire_open_tcp(&w, s.port);
    wire_request(&w, "GET", "/tandem/v1/state", "x-request-id: abc-1\r\n", NULL);
    wire_read(&w, &a, PATIENCE_MS);
    assert_int_equal(a.status, 404); /* control paths are not on TCP */
    wire_header(&a, "x-request-id", text, sizeof text);
    assert_string_equal(text, "abc-1");
    wire_answer_release(&a);
    wire_request(&w, "GET", "/v1/models", "", NULL); /* the connection is kept */
    wire_read(&w, &a, PATIENCE_MS);
    assert_int_equal(a.status, 200);
    wire_header(&a, "x-request-id", text, sizeof text);
    assert_true(strlen(text) > 20);
    wire_answer_release(&a);
    wire_close(&w);
    stub_server_stop(&s);
}

static void text_to_tokens_and_back(void **state) {
    (void)state;
    stub_server_options o = options(hello_pieces, 4);
    stub_server s;
    buf body = BUF_INIT;
    stub_server_start(&s, &o);
    json *v = ask_json(&s, "/tokenize",
        "{\"prompt\":\"Hello \\u20ac world\",\"add_special_tokens\":false,"
        "\"return_token_strs\":true}",
        200);
    assert_int_equal(json_count(json_get(v, "tokens")), json_count(json_get(v, "token_strs")));
    buf_puts(&body, "{\"tokens\":");
    json_print(json_get(v, "tokens"), &body);
    buf_puts(&body, "}");
    json *back = ask_json(&s, "/detokenize", buf_cstr(&body), 200);
    assert_string_equal(TEXT_AT(back, "prompt"), "Hello \xE2\x82\xAC world");
    json_free(back);
    json_free(v);
    json_free(ask_json(&s, "/detokenize", "{\"tokens\":[99999999]}", 400));
    json_free(ask_json(&s, "/tokenize", "{}", 400));
    v = ask_json(&s, "/tokenize", "{" HELLO "}", 200);
    json *w = ask_json(&s, "/v1/chat/completions", "{" HELLO "}", 200);
    int64_t count = 0;
    int64_t used = 0;
    json_i64(json_get(v, "count"), &count);
    json_i64(json_get(json_get(w, "usage"), "prompt_tokens"), &used);
    assert_int_equal(count, used);
    json_free(v);
    json_free(w);
    buf_release(&body);
    stub_server_stop(&s);
}

/* ---- load and life ---- */

static void a_full_queue_answers_429(void **state) {
    (void)state;
    enum { N = 4 };
    char text[64];
    wire w[N];
    wire_answer a;
    stub_server_options o = options(hello_pieces, 4);
    stub_server s;
    o.queue_cap = 2;
    o.script.n_slots = 1;
    o.script.n_times = 100;
    o.script.is_held = &is_held;
    is_held = 1; /* the first one stays at its first step */
    stub_server_start(&s, &o);
    for (int i = 0; i < N; i++) {
        wire_open_unix(&w[i], s.socket_path);
        wire_request(&w[i], "POST", "/v1/chat/completions", "", "{" HELLO ",\"stream\":true}");
        if (i < N - 1) assert_true(stub_server_wait(&s, i + 1)); /* in this order */
        if (i == 0) assert_true(stub_server_wait_running(&s, 1));
    }
    wire_read(&w[N - 1], &a, PATIENCE_MS);
    assert_int_equal(a.status, 429);
    wire_header(&a, "Retry-After", text, sizeof text);
    assert_string_equal(text, "1");
    wire_header(&a, "retry-after-ms", text, sizeof text);
    assert_string_equal(text, "1000");
    assert_non_null(strstr(buf_cstr(&a.body), "queue_full"));
    wire_answer_release(&a);
    json *v = ask_json(&s, "/tandem/v1/state", NULL, 200);
    assert_int_equal(json_count(json_get(v, "requests")), 3);
    char body[200];
    snprintf(body, sizeof body, "{\"id\":\"%s\"}", TEXT_AT(v, "requests", "0", "id"));
    json_free(ask_json(&s, "/tandem/v1/cancel", body, 200));
    json_free(v);
    is_held = 0;
    wire_read(&w[0], &a, PATIENCE_MS); /* cancelled by id: a clean end of its stream */
    assert_true(a.is_complete);
    assert_non_null(strstr(buf_cstr(&a.body), "\"stop_reason\":\"cancelled\""));
    wire_answer_release(&a);
    for (int i = 0; i < N; i++) {
        wire_close(&w[i]);
    }
    run_stats stats;
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    do {
        sleep_ms(10);
        run_stats_get(s.run, &stats);
    } while (stats.n_running + stats.n_waiting > 0 && clock_mono_ms() < deadline);
    assert_int_equal(stats.n_running + stats.n_waiting, 0);
    stub_server_stop(&s);
}

/* A client that only shuts down its sending side still gets its answer, on both kinds of socket. */
static void half_closed_clients_are_served(void **state) {
    (void)state;
    static const char *const bodies[] = {"{" HELLO "}", "{" HELLO ",\"stream\":true}"};
    stub_server_options o = options(hello_pieces, 4);
    stub_server s;
    o.script.delay_ms = 30;
    stub_server_start(&s, &o);
    for (int i = 0; i < 4; i++) {
        wire w;
        wire_answer a;
        if (i % 2 == 0) {
            wire_open_unix(&w, s.socket_path);
        } else {
            wire_open_tcp(&w, s.port);
        }
        wire_request(&w, "POST", "/v1/chat/completions", "", bodies[i / 2]);
        shutdown(w.fd, SHUT_WR);
        wire_read(&w, &a, PATIENCE_MS);
        assert_int_equal(a.status, 200);
        assert_true(a.is_complete);
        assert_non_null(strstr(buf_cstr(&a.body), "ld\""));
        wire_answer_release(&a);
        wire_close(&w);
    }
    stub_server_stop(&s);
}

static void a_lost_peer_is_not_ready(void **state) {
    (void)state;
    wire_answer a;
    stub_server_options o = options(hello_pieces, 4);
    stub_server s;
    o.script.end = STUB_END_PEER_LOST;
    stub_server_start(&s, &o);
    ask(&s, "POST", "/v1/chat/completions", "{" HELLO ",\"stream\":true}", &a);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(buf_cstr(&a.body), "engine_failed"));
    assert_null(strstr(buf_cstr(&a.body), "[DONE]"));
    wire_answer_release(&a);
    json *v = ask_json(&s, "/ready", NULL, 503);
    assert_string_equal(TEXT_AT(v, "status"), "peer_lost");
    json_free(v);
    json_free(ask_json(&s, "/health", NULL, 200));
    json_free(ask_json(&s, "/v1/chat/completions", "{" HELLO "}", 503));
    stub_server_stop(&s);
}

static void quiet_streams_carry_comments(void **state) {
    (void)state;
    wire w;
    wire_answer a;
    stub_server_options o = options(hello_pieces, 4);
    stub_server s;
    o.script.is_held = &is_held;
    o.keep_alive_ms = 100;
    is_held = 1;
    stub_server_start(&s, &o);
    wire_open_unix(&w, s.socket_path);
    wire_request(&w, "POST", "/v1/chat/completions", "", "{" HELLO ",\"stream\":true}");
    /* As long as the engine says nothing they come again and again. */
    assert_true(wire_await(&w, ": prefill ", 6, PATIENCE_MS));
    assert_null(strstr(buf_cstr(&w.in), "data: "));
    is_held = 0;
    wire_read(&w, &a, PATIENCE_MS);
    assert_int_equal(strncmp(buf_cstr(&a.body), ": prefill ", 10), 0);
    assert_non_null(strstr(buf_cstr(&a.body), "data: [DONE]"));
    wire_answer_release(&a);
    wire_close(&w);
    stub_server_stop(&s);
}

static void large_bodies_are_refused(void **state) {
    (void)state;
    wire w;
    wire_answer a;
    stub_server_options o = options(hello_pieces, 4);
    stub_server s;
    static char chunk[5000];
    o.max_body_bytes = 20000;
    stub_server_start(&s, &o);
    memset(chunk, 'x', sizeof chunk);
    wire_open_unix(&w, s.socket_path);
    const char *head =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    wire_send(&w, head, strlen(head));
    for (int i = 0; i < 6; i++) {
        wire_send(&w, "1388\r\n", 6);
        wire_send(&w, chunk, sizeof chunk);
        wire_send(&w, "\r\n", 2);
    }
    wire_send(&w, "0\r\n\r\n", 5);
    wire_read(&w, &a, PATIENCE_MS);
    assert_int_equal(a.status, 413);
    wire_answer_release(&a);
    wire_close(&w);
    json_free(ask_json(&s, "/v1/chat/completions", "{" HELLO "}", 200));
    stub_server_stop(&s);
}

static void while_loading_it_says_so(void **state) {
    (void)state;
    char text[32];
    wire_answer a;
    stub_server_options o = options(hello_pieces, 4);
    stub_server s;
    o.starts_loading = true;
    stub_server_start(&s, &o);
    json *v = ask_json(&s, "/ready", NULL, 503);
    assert_string_equal(TEXT_AT(v, "status"), "loading");
    json_free(v);
    v = ask_json(&s, "/tandem/v1/state", NULL, 200);
    assert_string_equal(TEXT_AT(v, "state"), "loading");
    assert_true(json_is_null(json_get(json_get(v, "model"), "context")));
    json_free(v);
    json_free(ask_json(&s, "/health", NULL, 200));
    json_free(ask_json(&s, "/v1/models", NULL, 503));
    ask(&s, "POST", "/v1/chat/completions", "{" HELLO "}", &a);
    assert_int_equal(a.status, 503);
    wire_header(&a, "Retry-After", text, sizeof text);
    assert_string_equal(text, "1");
    assert_non_null(strstr(buf_cstr(&a.body), "\"loading\""));
    wire_answer_release(&a);
    stub_server_attach(&s, &o);
    json_free(ask_json(&s, "/ready", NULL, 200));
    json_free(ask_json(&s, "/v1/chat/completions", "{" HELLO "}", 200));
    stub_server_stop(&s);
}

/* Idle connections and slow senders do not hold up the others. */
static void idle_and_slow_clients_disturb_nobody(void **state) {
    (void)state;
    enum { N_IDLE = 200, N_SLOW = 50 };
    static wire idle[N_IDLE];
    static wire slow[N_SLOW];
    const char *head =
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{";
    stub_server_options o = options(hello_pieces, 4);
    stub_server s;
    stub_server_start(&s, &o);
    for (int i = 0; i < N_IDLE; i++) {
        wire_open_unix(&idle[i], s.socket_path);
        assert_true(idle[i].fd >= 0);
    }
    for (int i = 0; i < N_SLOW; i++) {
        wire_open_unix(&slow[i], s.socket_path);
        wire_send(&slow[i], head, strlen(head));
    }
    for (int i = 0; i < 20; i++) {
        json_free(ask_json(&s, "/v1/chat/completions", "{" HELLO "}", 200));
    }
    wire_answer a;
    wire_request(&idle[N_IDLE - 1], "GET", "/health", "", NULL);
    wire_read(&idle[N_IDLE - 1], &a, PATIENCE_MS);
    assert_int_equal(a.status, 200);
    wire_answer_release(&a);
    for (int i = 0; i < N_IDLE; i++) {
        wire_close(&idle[i]);
    }
    for (int i = 0; i < N_SLOW; i++) {
        wire_close(&slow[i]);
    }
    stub_server_stop(&s);
}

static void the_endpoint_is_switched(void **state) {
    (void)state;
    int64_t port = 0;
    wire w;
    stub_server_options o = options(hello_pieces, 4);
    stub_server s;
    stub_server_start(&s, &o);
    json_free(ask_json(&s, "/tandem/v1/endpoint", "{\"on\":false}", 200));
    wire_open_tcp(&w, s.port);
    assert_int_equal(w.fd, -1);
    json_free(
        ask_json(&s, "/tandem/v1/endpoint", "{\"on\":true,\"bind\":\"0.0.0.0\",\"port\":0}", 400));
    json *v = ask_json(&s, "/tandem/v1/endpoint", "{\"on\":true,\"port\":0}", 200);
    const char *address = TEXT_AT(v, "endpoint", "address");
    assert_int_equal(parse_i64(strchr(address, ':') + 1, &port), OK);
    wire_open_tcp(&w, (int)port);
    assert_true(w.fd >= 0);
    wire_close(&w);
    json_free(v);
    stub_server_stop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streamed_equals_whole),
        cmocka_unit_test(a_continued_turn_goes_on_where_it_was),
        cmocka_unit_test(bad_requests_name_the_field),
        cmocka_unit_test(refusals_are_exact),
        cmocka_unit_test(fields_that_mean_nothing_are_taken),
        cmocka_unit_test(odd_spellings_are_taken),
        cmocka_unit_test(choices_usage_and_logprobs),
        cmocka_unit_test(paths_methods_and_ids),
        cmocka_unit_test(text_to_tokens_and_back),
        cmocka_unit_test(a_full_queue_answers_429),
        cmocka_unit_test(half_closed_clients_are_served),
        cmocka_unit_test(a_lost_peer_is_not_ready),
        cmocka_unit_test(quiet_streams_carry_comments),
        cmocka_unit_test(large_bodies_are_refused),
        cmocka_unit_test(while_loading_it_says_so),
        cmocka_unit_test(idle_and_slow_clients_disturb_nobody),
        cmocka_unit_test(the_endpoint_is_switched),
    };
    tok = stub_tokenizer_open();
    if (tok == NULL) {
        print_message("skipped: no demo tokenizer here (templates/demo-model or DEMO_WEIGHTS)\n");
        return 77;
    }
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(tok);
    return rc;
}
