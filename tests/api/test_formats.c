/* What each protocol's answers look like, field by field and event by event (api.md 2, 3, 5 and 7),
 * over a scripted source. */
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

enum { PATIENCE_MS = 120000 };

#define M "\uFF5CDSML\uFF5C"
#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define CHAT "/v1/chat/completions"
#define PARAMETERS "{\"type\":\"object\",\"properties\":{\"c\":{\"type\":\"string\"}}}"
#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"sh\",\"parameters\":" PARAMETERS   \
    "}}]"

static tokenizer *tok;
static api_options wanted; /* fields that a test sets */
static bool has_wishes;

static const char *const thought_pieces[] = {"Let me ", "see.", "</think>", "Hel", "lo"};
static const char *const empty_pieces[] = {"Let me see.", "</think>"};
static const char *const call_pieces[] = {"Let me see.", "</think>", "One.",
    "\n\n<" M " calls>\n<" M " invoke name=\"sh\">\n<" M " parameter name=\"c\" string=\"true\">",
    "ls", "</" M " parameter>\n</" M " invoke>\n</" M " calls>"};

static void adjust(api_options *o) {
    if (!has_wishes) return;
    o->is_demo = wanted.is_demo;
    o->is_strict_model = wanted.is_strict_model;
}

static void start(stub_server *s, const char *const *pieces, int n) {
    stub_server_options o = {.tokenizer = tok, .adjust = adjust};
    o.script = (stub_script){.pieces = pieces, .n_pieces = n};
    stub_server_start(s, &o);
}

static void send(const stub_server *s, const char *path, const char *body, wire_answer *a) {
    wire w;
    wire_open_unix(&w, s->socket_path);
    wire_request(&w, body != NULL ? "POST" : "GET", path, "", body);
    wire_read(&w, a, PATIENCE_MS);
    wire_close(&w);
}

static json *ask(const stub_server *s, const char *path, const char *body, int status) {
    wire_answer a;
    json *v = NULL;
    send(s, path, body, &a);
    if (a.status != status || json_parse(buf_cstr(&a.body), a.body.len, NULL, &v, NULL) != OK) {
        fail_msg("%s %s: %d %s", path, body != NULL ? body : "", a.status, buf_cstr(&a.body));
    }
    wire_answer_release(&a);
    return v;
}

/* The member at a path of names and places, "choices/0/message". */
static const json *at(const json *v, const char *path) {
    char name[64];
    while (v != NULL && *path != '\0') {
        size_t n = strcspn(path, "/");
        str_copy(name, n + 1 < sizeof name ? n + 1 : sizeof name, path);
        v = json_is_array(v) ? json_at(v, (size_t)strtol(name, NULL, 10)) : json_get(v, name);
        path += n + (path[n] == '/');
    }
    return v;
}

static void expect(const json *v, const char *path, const char *want) {
    buf text = BUF_INIT;
    if (at(v, path) == NULL) {
        buf_puts(&text, "nothing");
    } else {
        json_print_compact(at(v, path), &text);
    }
    if (strcmp(buf_cstr(&text), want) != 0) {
        fail_msg("%s is %s, not %s", path, buf_cstr(&text), want);
    }
    buf_release(&text);
}

static void expect_keys(const json *v, const char *path, const char *want) {
    buf text = BUF_INIT;
    JSON_EACH(member, at(v, path)) {
        buf_printf(&text, "%s ", json_key(member));
    }
    if (strcmp(buf_cstr(&text), want) != 0) fail_msg("%s: %s", path, buf_cstr(&text));
    buf_release(&text);
}

static void expect_warning(
    const stub_server *s, const char *path, const char *body, const char *want) {
    wire_answer a;
    char text[256];
    send(s, path, body, &a);
    if (a.status != 200) fail_msg("%s: %d %s", body, a.status, buf_cstr(&a.body));
    wire_header(&a, "x-tandem-warning", text, sizeof text);
    if (want[0] == '\0' ? text[0] != '\0' : strstr(text, want) == NULL) {
        fail_msg("%s: the warning is '%s'", body, text);
    }
    wire_answer_release(&a);
}

/* ---- chat ---- */

static void chat_answers_have_every_field(void **state) {
    stub_server s;
    (void)state;
    start(&s, thought_pieces, 5);
    json *v = ask(&s, CHAT, "{" ASK ",\"thinking\":true}", 200);
    expect_keys(
        v, "", "id object created model system_fingerprint choices usage timings service_tier ");
    expect_keys(v, "choices/0", "index message logprobs finish_reason stop_reason ");
    expect_keys(v, "choices/0/message", "role content refusal reasoning_content reasoning ");
    expect_keys(v, "usage",
        "prompt_tokens completion_tokens total_tokens prompt_tokens_details "
        "completion_tokens_details prompt_cache_hit_tokens prompt_cache_miss_tokens ");
    expect(v, "object", "\"chat.completion\"");
    expect(v, "choices/0/message/reasoning", "\"Let me see.\"");
    expect(v, "choices/0/message/reasoning_content", "\"Let me see.\"");
    expect(v, "choices/0/message/content", "\"Hello\"");
    expect(v, "choices/0/message/refusal", "null");
    expect(v, "choices/0/logprobs", "null");
    expect(v, "choices/0/finish_reason", "\"stop\"");
    expect(v, "usage/completion_tokens", "5");
    expect(v, "usage/completion_tokens_details/reasoning_tokens", "3");
    expect(v, "usage/prompt_tokens_details/cached_tokens", "0");
    assert_true(json_is_number(at(v, "timings/predicted_per_second")));
    json_free(v);
    v = ask(&s, CHAT, "{" ASK "}", 200); /* thinking is off by default: no reasoning at all */
    expect_keys(v, "choices/0/message", "role content refusal ");
    json_free(v);
    v = ask(&s, CHAT, "{" ASK ",\"thinking\":true,\"logprobs\":true,\"top_logprobs\":1}", 200);
    assert_int_equal(json_count(at(v, "choices/0/logprobs/reasoning_content")), 3);
    assert_int_equal(json_count(at(v, "choices/0/logprobs/content")), 2);
    expect_keys(v, "choices/0/logprobs/content/0", "token logprob bytes top_logprobs ");
    json_free(v);
    stub_server_stop(&s);
}

/* One word for each chunk of a stream; a word that repeats stands once. */
static void chunk_words(const buf *body, bool has_usage, buf *out) {
    for (const char *p = buf_cstr(body); (p = strstr(p, "data: ")) != NULL; p += 6) {
        json *v = NULL;
        const char *end = strstr(p, "\n\n");
        assert_non_null(end);
        if (strncmp(p, "data: [DONE]", 12) == 0) {
            buf_puts(out, "done");
            assert_string_equal(end, "\n\n");
            continue;
        }
        assert_int_equal(json_parse(p + 6, (size_t)(end - p - 6), NULL, &v, NULL), OK);
        expect(v, "object", "\"chat.completion.chunk\"");
        if (json_count(json_get(v, "choices")) == 0) {
            assert_true(json_is_object(json_get(v, "usage")));
            buf_puts(out, "usage ");
        } else {
            assert_int_equal(json_is_null(json_get(v, "usage")), has_usage);
            assert_int_equal(json_get(v, "usage") != NULL, has_usage);
            const char *finish = json_str(at(v, "choices/0/finish_reason"));
            buf word = BUF_INIT;
            JSON_EACH(member, at(v, "choices/0/delta")) {
                buf_printf(&word, "%s+", json_key(member));
            }
            buf_printf(&word, "%s ", finish != NULL ? finish : "");
            if (!str_ends(buf_cstr(out), buf_cstr(&word))) buf_puts(out, buf_cstr(&word));
            buf_release(&word);
        }
        json_free(v);
    }
}

static void chat_streams_come_in_order(void **state) {
    static const struct {
        const char *more, *want;
    } cases[] = {
        {"", "role+content+ reasoning_content+reasoning+ content+ tool_calls+ tool_calls done"},
        {",\"stream_options\":{\"include_usage\":true}",
            "role+content+ reasoning_content+reasoning+ content+ tool_calls+ tool_calls usage done"},
    };
    stub_server s;
    char text[80], body[600];
    (void)state;
    start(&s, call_pieces, 6);
    for (int i = 0; i < 2; i++) {
        wire_answer a;
        buf words = BUF_INIT;
        (void)snprintf(body, sizeof body, "{" ASK "," TOOLS ",\"thinking\":true,\"stream\":true%s}",
            cases[i].more);
        send(&s, CHAT, body, &a);
        wire_header(&a, "Content-Type", text, sizeof text);
        assert_string_equal(text, "text/event-stream; charset=utf-8");
        wire_header(&a, "Cache-Control", text, sizeof text);
        assert_string_equal(text, "no-cache");
        chunk_words(&a.body, i == 1, &words);
        assert_string_equal(buf_cstr(&words), cases[i].want);
        assert_null(strstr(buf_cstr(&a.body), "event:"));
        buf_release(&words);
        wire_answer_release(&a);
    }
    stub_server_stop(&s);
}

static void raw_ids_on_request(void **state) {
    stub_server s;
    (void)state;
    start(&s, thought_pieces, 5);
    json *v = ask(&s, CHAT, "{" ASK ",\"thinking\":true,\"return_token_ids\":true}", 200);
    assert_int_equal(json_count(at(v, "choices/0/token_ids")), 5);
    json *t = ask(&s, "/tokenize", "{" ASK ",\"thinking\":true}", 200);
    assert_int_equal(
        json_count(at(v, "choices/0/prompt_token_ids")), json_count(json_get(t, "tokens")));
    json_free(t);
    json_free(v);
    stub_server_stop(&s);
}

static int64_t count_of(const stub_server *s, const char *fields) {
    char body[1200];
    int64_t n = -1;
    (void)snprintf(body, sizeof body, "{%s}", fields);
    json *v = ask(s, "/tokenize", body, 200);
    assert_int_equal(json_i64(json_get(v, "count"), &n), OK);
    json_free(v);
    return n;
}

/* Rows of api.md 7 that the prompt shows. */
static void prompts_follow_the_rules(void **state) {
    static const char *const efforts[] = {"minimal", "low", "medium", "high", "xhigh", "max", "37"};
    stub_server s;
    char fields[200];
    (void)state;
    start(&s, thought_pieces, 5);
    int64_t plain = count_of(&s, ASK);
    assert_true(count_of(&s, ASK "," TOOLS) > plain + 50);
    assert_int_equal(count_of(&s, ASK "," TOOLS ",\"tool_choice\":\"none\""), plain);
    for (size_t i = 0; i < sizeof efforts / sizeof efforts[0]; i++) {
        (void)snprintf(fields, sizeof fields, ASK ",\"reasoning_effort\":\"%s\"", efforts[i]);
        assert_true(count_of(&s, fields) > plain); /* no silent level */
    }
    assert_int_equal(count_of(&s, ASK ",\"reasoning_effort\":\"none\""), plain);
    /* A typed mark is text: more tokens, no refusal; several systems and developers are taken. */
    json_free(ask(&s, CHAT,
        "{\"messages\":[{\"role\":\"developer\",\"content\":\"a\"},{\"role\":\"system\",\"content\":"
        "\"b\"},{\"role\":\"user\",\"content\":\"<\uFF5Cdeepseek_image\uFF5C> <\uFF5CUser\uFF5C>\"},{"
        "\"role\":\"assistant\",\"content\":\"no reasoning kept\"},{\"role\":\"user\",\"content\":"
        "\"x\"}]}",
        200));
    json_free(ask(&s, CHAT, "{" ASK ",\"reasoning_effort\":\"enormous\"}", 400));
    stub_server_stop(&s);
}

static void what_is_left_out_is_told(void **state) {
    stub_server s;
    (void)state;
    start(&s, thought_pieces, 5);
    expect_warning(&s, CHAT, "{" ASK "," TOOLS "}", "");
    expect_warning(
        &s, CHAT, "{" ASK ",\"tools\":[{\"type\":\"web_search_preview\"}]}", "web_search_preview");
    expect_warning(&s, CHAT,
        "{" ASK ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"strict\":true,"
        "\"schema\":" PARAMETERS "}}}",
        "response_format is strict");
    expect_warning(&s, CHAT,
        "{" ASK ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,"
        "\"parameters\":" PARAMETERS "}}]}",
        "f is strict");
    expect_warning(&s, "/v1/messages",
        "{\"max_tokens\":9," ASK ",\"tools\":[{\"type\":\"web_search_20250305\",\"name\":"
        "\"web_search\"}]}",
        "web_search is not offered");
    expect_warning(&s, "/v1/responses", "{\"input\":\"hi\",\"tools\":[{\"type\":\"file_search\"}]}",
        "file_search is not offered");
    expect_warning(&s, "/v1/responses",
        "{\"input\":\"hi\",\"tools\":[{\"type\":\"custom\",\"name\":\"p\",\"format\":{\"type\":"
        "\"grammar\",\"syntax\":\"lark\",\"definition\":\"start: /x/\"}}]}",
        "the format of tool p is told to the model, not enforced");
    expect_warning(&s, "/v1/responses",
        "{\"input\":\"hi\",\"tools\":[{\"type\":\"custom\",\"name\":\"p\",\"format\":{\"type\":"
        "\"text\"}}]}",
        "");
    expect_warning(&s, "/v1/responses", "{\"input\":\"hi\",\"background\":true}",
        "background is not offered here");
    stub_server_stop(&s);
}

/* A tool that is not strict may name its types as it likes; what is wanted exactly must be known. */
static void foreign_types_allow_any_value(void **state) {
#define LOOSE(member)                                                                               \
    "{" ASK ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"," member               \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"str\"},\"b\":{\"type\":" \
    "[\"int\",\"null\"]},\"c\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}}]}"
    stub_server s;
    (void)state;
    start(&s, thought_pieces, 5);
    expect_warning(&s, CHAT, LOOSE(""), "f: the type str of a is none of JSON Schema");
    expect_warning(&s, "/v1/messages",
        "{\"max_tokens\":9," ASK
        ",\"tools\":[{\"name\":\"g\",\"input_schema\":{\"type\":\"object\",\"properties\":{\"a\":"
        "{\"type\":\"any\"}}}}]}",
        "g: the type any of a is none of JSON Schema");
    json *v = ask(&s, CHAT, LOOSE("\"strict\":true,"), 400);
    expect(v, "error/param", "\"tools[0].function.parameters/properties/a/type\"");
    json_free(v);
    stub_server_stop(&s);
}

static void empty_answers_are_counted(void **state) {
    stub_server s;
    wire_answer a;
    (void)state;
    start(&s, empty_pieces, 2);
    json *v = ask(&s, CHAT, "{" ASK "," TOOLS ",\"thinking\":true}", 200);
    expect(v, "choices/0/message/content", "\"\"");
    expect(v, "choices/0/finish_reason", "\"stop\"");
    json_free(v);
    send(&s, "/metrics", NULL, &a);
    assert_non_null(
        strstr(buf_cstr(&a.body), "tandem_tool_parse_recoveries_total{kind=\"no_answer\"} 1"));
    wire_answer_release(&a);
    stub_server_stop(&s);
}

/* ---- errors ---- */

static void errors_end_a_stream_without_done(void **state) {
    static const struct {
        const char *path, *body, *mark;
    } cases[] = {
        {CHAT, "{" ASK ",\"stream\":true}", "data: {\"error\":{"},
        {"/v1/completions", "{\"prompt\":\"a\",\"stream\":true}", "data: {\"error\":{"},
        {"/v1/messages", "{\"max_tokens\":9," ASK ",\"stream\":true}",
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\""},
        {"/v1/responses", "{\"input\":\"hi\",\"stream\":true}",
            "event: response.failed\ndata: {\"type\":\"response.failed\""},
    };
    stub_server s;
    (void)state;
    stub_server_options o = {.tokenizer = tok, .adjust = adjust};
    o.script = (stub_script){.pieces = &thought_pieces[3], .n_pieces = 2, .end = STUB_END_ERROR};
    stub_server_start(&s, &o);
    for (int i = 0; i < 4; i++) {
        wire_answer a;
        send(&s, cases[i].path, cases[i].body, &a);
        assert_int_equal(a.status, 200);
        const char *text = buf_cstr(&a.body);
        const char *found = strstr(text, cases[i].mark);
        if (found == NULL) fail_msg("%s", text);
        assert_null(strstr(text, "[DONE]"));
        assert_null(strstr(text, "message_stop"));
        assert_null(strstr(text, "response.completed"));
        assert_string_equal(strstr(found, "\n\n"), "\n\n"); /* the last event */
        wire_answer_release(&a);
    }
    stub_server_stop(&s);
}

static void the_window_has_edges(void **state) {
    stub_server s;
    buf ids = BUF_INIT;
    char body[800];
    (void)state;
    stub_server_options o = {.tokenizer = tok, .adjust = adjust};
    o.script =
        (stub_script){.pieces = thought_pieces, .n_pieces = 5, .n_times = 100, .max_context = 64};
    stub_server_start(&s, &o);
    for (int i = 0; i < 63; i++)
        buf_printf(&ids, i > 0 ? ",%d" : "%d", 50 + i);
    (void)snprintf(body, sizeof body, "{\"prompt\":[%s]}", buf_cstr(&ids));
    json *v = ask(&s, "/v1/completions", body, 200);
    expect(v, "usage/completion_tokens", "1");
    expect(v, "choices/0/finish_reason", "\"length\"");
    json_free(v);
    (void)snprintf(body, sizeof body, "{\"prompt\":[%s,7]}", buf_cstr(&ids));
    v = ask(&s, "/v1/completions", body, 400);
    expect(v, "error/code", "\"context_length_exceeded\"");
    expect(v, "error/param", "\"prompt\"");
    assert_non_null(strstr(json_str(at(v, "error/message")), "64"));
    json_free(v);
    (void)snprintf(body, sizeof body, "{\"prompt\":[%s],\"max_tokens\":2}", buf_cstr(&ids));
    v = ask(&s, "/v1/completions", body, 400);
    expect(v, "error/param", "\"max_tokens\"");
    json_free(v);
    stub_server_stop(&s);
    buf_release(&ids);
}

static void schemas_that_cannot_be_kept_are_named(void **state) {
    static const struct {
        const char *schema, *param;
    } cases[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"http://x/y\"}}}",
            "\"/properties/a/$ref\""},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)b\"}", "\"/pattern\""},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", NULL},
    };
    stub_server s;
    char body[600];
    (void)state;
    start(&s, thought_pieces, 5);
    for (int i = 0; i < 3; i++) {
        (void)snprintf(body, sizeof body,
            "{" ASK
            ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":%s}}}",
            cases[i].schema);
        json *v = ask(&s, CHAT, body, 400);
        expect(v, "error/code", "\"unsupported_schema\"");
        if (cases[i].param != NULL) expect(v, "error/param", cases[i].param);
        json_free(v);
    }
    stub_server_stop(&s);
}

static int64_t prompt_tokens(const stub_server *s, const char *body) {
    int64_t n = -1;
    json *v = ask(s, "/v1/completions", body, 200);
    json_i64(at(v, "usage/prompt_tokens"), &n);
    json_free(v);
    return n;
}

/* Mark, prefix, mark, suffix, mark, behind the beginning. */
static void the_middle_is_filled_in(void **state) {
    stub_server s;
    (void)state;
    start(&s, thought_pieces, 5);
    int64_t a = prompt_tokens(&s, "{\"prompt\":\"first words\",\"add_special_tokens\":false}");
    int64_t b = prompt_tokens(&s, "{\"prompt\":\"and the last\",\"add_special_tokens\":false}");
    if (tokenizer_added(tok, "<\uFF5Cfim\u2581begin\uFF5C>") < 0) {
        json *v = ask(&s, "/v1/completions", "{\"prompt\":\"a\",\"suffix\":\"b\"}", 400);
        expect(v, "error/param", "\"suffix\"");
        json_free(v);
    } else {
        assert_int_equal(
            prompt_tokens(&s, "{\"prompt\":\"first words\",\"suffix\":\"and the last\"}"),
            a + b + 4);
    }
    json_free(ask(&s, "/v1/completions", "{\"prompt\":\"a\",\"suffix\":7}", 400));
    json *v = ask(&s, "/v1/completions", "{\"prompt\":\"a\",\"max_tokens\":0}", 400);
    expect(v, "error/param", "\"max_tokens\"");
    json_free(v);
    json_free(ask(&s, CHAT, "{" ASK ",\"top_k\":-5,\"max_tokens\":null}", 200)); /* off */
    stub_server_stop(&s);
}

/* ---- models ---- */

static void models_and_their_aliases(void **state) {
    stub_server s;
    (void)state;
    has_wishes = true;
    wanted.is_demo = false;
    wanted.is_strict_model = true;
    start(&s, thought_pieces, 5);
    json *v = ask(&s, "/v1/models", NULL, 200);
    assert_int_equal(json_count(json_get(v, "data")), 3);
    expect_keys(v, "data/0",
        "id object created owned_by root parent max_model_len context_length permission ");
    expect(v, "data/0/owned_by", "\"deepseek-ai\"");
    expect(v, "data/1/id", "\"deepseek-flash\"");
    json_free(v);
    v = ask(&s, CHAT, "{" ASK ",\"model\":\"deepseek-v4.1-flash\"}", 200);
    expect(v, "model", "\"tandem-stub\"");
    json_free(v);
    v = ask(&s, CHAT, "{" ASK ",\"model\":\"gpt-4o\"}", 404);
    expect(v, "error/code", "\"model_not_found\"");
    expect(v, "error/param", "\"model\"");
    json_free(v);
    stub_server_stop(&s);
    has_wishes = false;
    start(&s, thought_pieces, 5);
    v = ask(&s, "/props", NULL, 200);
    expect(v, "effort_budgets/medium", "75");
    expect(v, "effort_budgets/low", "50");
    expect(v, "effort_budgets/max", "100");
    expect(v, "thinks_by_default", "false");
    json_free(v);
    v = ask(&s, "/version", NULL, 200);
    expect(v, "build", "\"test\"");
    json_free(v);
    stub_server_stop(&s);
}

/* ---- messages and responses ---- */

/* The names of all events, each once where it repeats. */
static void event_names(const buf *body, buf *out) {
    char last[64] = "";
    for (const char *p = buf_cstr(body); (p = strstr(p, "event: ")) != NULL; p += 7) {
        char name[64];
        size_t n = strcspn(p + 7, "\n");
        str_copy(name, n + 1 < sizeof name ? n + 1 : sizeof name, p + 7);
        if (strcmp(name, last) != 0) buf_printf(out, "%s ", name);
        str_copy(last, sizeof last, name);
    }
}

static void expect_events(
    const stub_server *s, const char *path, const char *body, const char *want) {
    wire_answer a;
    buf names = BUF_INIT;
    send(s, path, body, &a);
    event_names(&a.body, &names);
    assert_string_equal(buf_cstr(&names), want);
    buf_release(&names);
    wire_answer_release(&a);
}

static void messages_come_in_order(void **state) {
    stub_server s;
    (void)state;
    start(&s, call_pieces, 6);
    expect_events(&s, "/v1/messages?beta=true",
        "{\"max_tokens\":900000," ASK
        ",\"stream\":true,\"thinking\":{\"type\":\"adaptive\"},\"tools\":["
        "{\"name\":\"sh\",\"input_schema\":" PARAMETERS "}]}",
        "message_start "
        "content_block_start content_block_delta content_block_stop "
        "content_block_start content_block_delta content_block_stop "
        "content_block_start content_block_delta content_block_stop "
        "message_delta message_stop ");
    json *v = ask(&s, "/v1/messages",
        "{\"max_tokens\":100," ASK ",\"thinking\":{\"type\":\"enabled\",\"budget_tokens\":50},"
        "\"tools\":[{\"name\":\"sh\",\"input_schema\":" PARAMETERS "}]}",
        200);
    expect_keys(v, "", "id type role model content stop_reason stop_sequence usage ");
    expect_keys(v, "content/0", "type thinking signature ");
    expect_keys(v, "content/1", "type text ");
    expect_keys(v, "content/2", "type id name input ");
    expect_keys(v, "usage",
        "input_tokens cache_creation_input_tokens cache_read_input_tokens output_tokens ");
    expect(v, "stop_reason", "\"tool_use\"");
    json_free(v);
    v = ask(
        &s, "/v1/messages", "{\"max_tokens\":2," ASK ",\"thinking\":{\"type\":\"disabled\"}}", 200);
    expect(v, "content/0/type", "\"text\""); /* disabled is honoured: no thinking block */
    expect(v, "stop_reason", "\"max_tokens\"");
    json_free(v);
    v = ask(&s, "/v1/messages", "{\"max_tokens\":50," ASK ",\"stop_sequences\":[\"One\"]}", 200);
    expect(v, "stop_reason", "\"stop_sequence\"");
    expect(v, "stop_sequence", "\"One\"");
    json_free(v);
    stub_server_stop(&s);
}

static void responses_come_in_order(void **state) {
    stub_server s;
    (void)state;
    start(&s, call_pieces, 6);
    expect_events(&s, "/v1/responses",
        "{\"input\":\"hi\",\"stream\":true,\"reasoning\":{\"effort\":\"low\",\"summary\":\"auto\"},"
        "\"tools\":[{\"type\":\"function\",\"name\":\"sh\",\"parameters\":" PARAMETERS "}]}",
        "response.created response.in_progress "
        "response.output_item.added response.reasoning_text.delta response.reasoning_text.done "
        "response.reasoning_summary_part.added response.reasoning_summary_text.delta "
        "response.reasoning_summary_text.done response.reasoning_summary_part.done "
        "response.output_item.done "
        "response.output_item.added response.content_part.added response.output_text.delta "
        "response.output_text.done response.content_part.done response.output_item.done "
        "response.output_item.added response.function_call_arguments.delta "
        "response.function_call_arguments.done response.output_item.done "
        "response.completed ");
    expect_events(&s, "/v1/responses", "{\"input\":\"hi\",\"stream\":true,\"max_output_tokens\":3}",
        "response.created response.in_progress response.output_item.added "
        "response.content_part.added response.output_text.delta response.output_text.done "
        "response.content_part.done response.output_item.done response.incomplete ");
    json *v = ask(&s, "/v1/responses",
        "{\"input\":\"hi\",\"store\":true,\"reasoning\":{\"effort\":\"low\"},\"top_logprobs\":1,"
        "\"metadata\":{\"a\":\"b\"}}",
        200);
    expect(v, "store", "false");
    expect(v, "status", "\"completed\"");
    expect(v, "temperature", "1"); /* the defaults of chat.md 9 */
    expect(v, "top_p", "0.95");
    expect(v, "metadata", "{\"a\":\"b\"}");
    expect(v, "reasoning/effort", "\"low\"");
    expect(v, "output/0/type", "\"reasoning\"");
    expect(v, "output/0/encrypted_content", "null");
    assert_true(json_count(at(v, "output/1/content/0/logprobs")) > 0);
    expect_keys(v, "output/1/content/0/logprobs/0", "token logprob bytes top_logprobs ");
    json_free(v);
    v = ask(&s, "/v1/responses",
        "{\"input\":\"hi\",\"include\":[\"message.output_text.logprobs\"],\"max_output_tokens\":1}",
        200);
    expect(v, "status", "\"incomplete\"");
    expect(v, "incomplete_details/reason", "\"max_output_tokens\"");
    expect(v, "top_p", "1");
    assert_int_equal(json_count(at(v, "output/0/content/0/logprobs")), 1);
    json_free(v);
    stub_server_stop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chat_answers_have_every_field),
        cmocka_unit_test(chat_streams_come_in_order), cmocka_unit_test(raw_ids_on_request),
        cmocka_unit_test(prompts_follow_the_rules), cmocka_unit_test(what_is_left_out_is_told),
        cmocka_unit_test(foreign_types_allow_any_value),
        cmocka_unit_test(empty_answers_are_counted),
        cmocka_unit_test(errors_end_a_stream_without_done), cmocka_unit_test(the_window_has_edges),
        cmocka_unit_test(schemas_that_cannot_be_kept_are_named),
        cmocka_unit_test(the_middle_is_filled_in), cmocka_unit_test(models_and_their_aliases),
        cmocka_unit_test(messages_come_in_order), cmocka_unit_test(responses_come_in_order)};
    tok = stub_tokenizer_open();
    if (tok == NULL) {
        print_message("skipped: no demo tokenizer here\n");
        return 77;
    }
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(tok);
    return rc;
}
