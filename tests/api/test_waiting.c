/* What a client sees while it waits. Rows of the table of real servers' mistakes (api.md 7) that are
 * about transport, and where each is tested:
 *   20  one usage object, in the last chunk: usage_comes_once; test_chat_api; cases http-001, -002
 *   28  keep-alive in prefill, thinking and a withheld call: the three keep_alive tests; http-010
 *   29  offered tools do not turn streaming into buffering: offered_tools_do_not_buffer
 *   40  keep-alive is a comment or a ping, never text: the keep_alive tests compare the joined text
 * and of api.md 4: a client that has gone frees its slot on both kinds of socket, streamed or not:
 * clients_that_leave; over TLS: test_door; half-closed ones: test_chat_api. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "tests/harness/sse_message.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/wire.h"

enum { PATIENCE_MS = 120000, KEEP_ALIVE_MS = 50, ALL = 1000 };

#define CHAT "/v1/chat/completions"
#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"sh\",\"parameters\":{\"type\":"    \
    "\"object\",\"properties\":{\"c\":{\"type\":\"string\"}}}}}]"
#define M                                                                                          \
    "\xef\xbd\x9c"                                                                                 \
    "DSML"                                                                                         \
    "\xef\xbd\x9c"

static tokenizer *tok;
static _Atomic int is_held;
static _Atomic int n_allowed; /* steps; the first reads the prompt and gives the first piece */

static void start(stub_server *s, const char *const *pieces, int n) {
    stub_server_options o = {.tokenizer = tok, .keep_alive_ms = KEEP_ALIVE_MS};
    o.script = (stub_script){.pieces = pieces,
        .n_pieces = n,
        .is_held = &is_held,
        .max_rows = 4096,
        .n_allowed = &n_allowed};
    is_held = 0;
    n_allowed = ALL;
    stub_server_start(s, &o);
}

/* An answer that comes step by step: what stands in w.in so far is looked at between them. */
static void begin(const stub_server *s, wire *w, const char *path, const char *body) {
    n_allowed = 0;
    wire_open_unix(w, s->socket_path);
    wire_request(w, "POST", path, "", body);
}

static void allow(int n_steps) {
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    n_allowed = n_steps;
    while (n_allowed > 0 && clock_mono_ms() < deadline)
        sleep_ms(1);
    assert_int_equal(n_allowed, 0);
}

/* Steps until the prompt is read, which may take several, and the first piece is made. */
static void allow_first(const stub_server *s) {
    run_stats before, now;
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    run_stats_get(s->run, &before);
    do {
        uint64_t n_steps = 0;
        run_stats_get(s->run, &now);
        n_steps = now.n_steps;
        allow(1);
        while (now.n_steps == n_steps && clock_mono_ms() < deadline) {
            sleep_ms(1);
            run_stats_get(s->run, &now);
        }
    } while (now.n_generated == before.n_generated && clock_mono_ms() < deadline);
    assert_true(now.n_generated > before.n_generated);
}

static int count_of(const wire *w, const char *text) {
    int n = 0;
    for (const char *p = buf_cstr((buf *)(uintptr_t)&w->in); (p = strstr(p, text)) != NULL; p++)
        n++;
    return n;
}

/* The text has come, or has been held back (NULL); the engine says nothing, and lines of keep-alive
 * come. One may have been on its way. */
static void expect_waits(wire *w, const char *text, const char *mark) {
    if (text != NULL && !wire_await(w, text, 1, PATIENCE_MS)) fail_msg("never came: %s", text);
    if (!wire_await(w, mark, count_of(w, mark) + 2, PATIENCE_MS))
        fail_msg("no keep-alive: %s", buf_cstr(&w->in));
}

static void finish(wire *w, wire_answer *a) {
    n_allowed = ALL;
    wire_read(w, a, PATIENCE_MS);
    assert_int_equal(a->status, 200);
    assert_true(a->is_complete);
    wire_close(w);
}

static void ask(const stub_server *s, const char *path, const char *body, wire_answer *a) {
    wire w;
    wire_open_unix(&w, s->socket_path);
    wire_request(&w, "POST", path, "", body);
    wire_read(&w, a, PATIENCE_MS);
    assert_int_equal(a->status, 200);
    assert_true(a->is_complete);
    wire_close(&w);
}

/* How many keep-alive lines stand between the first line that holds from and the next that holds to. */
static int waits_between(const wire_answer *a, const char *mark, const char *from, const char *to) {
    const char *p = strstr(buf_cstr(&a->body), from);
    int n = 0;
    if (p == NULL) return -1;
    const char *end = strstr(p + 1, to);
    if (end == NULL) return -2;
    while ((p = strstr(p, mark)) != NULL && p < end) {
        n++;
        p++;
    }
    return n;
}

static void keep_alive_in_thinking(void **state) {
    (void)state;
    static const char *const pieces[] = {"Let me ", "think", "</think>", "The ", "answer"};
    wire w;
    wire_answer a;
    sse_message m = {0};
    stub_server s;
    start(&s, pieces, 5);
    begin(&s, &w, CHAT, "{" ASK ",\"stream\":true,\"thinking\":{\"type\":\"enabled\"}}");
    allow_first(&s);
    expect_waits(&w, "Let me ", "\n: ");
    allow(1);
    expect_waits(&w, "\"think\"", "\n: ");
    allow(2);
    expect_waits(&w, "The ", "\n: ");
    finish(&w, &a);
    assert_true(waits_between(&a, "\n: ", "Let me ", "think") > 0);
    assert_true(waits_between(&a, "\n: ", "\"think\"", "The ") > 0);
    assert_true(waits_between(&a, "\n: ", "The ", "answer") > 0);
    sse_read_stream(&a.body, &m);
    assert_string_equal(buf_cstr(&m.reasoning), "Let me think");
    assert_string_equal(buf_cstr(&m.content), "The answer");
    sse_message_release(&m);
    wire_answer_release(&a);
    begin(&s, &w, "/v1/messages",
        "{" ASK ",\"stream\":true,\"max_tokens\":50,\"thinking\":{\"type\":\"enabled\","
        "\"budget_tokens\":40}}");
    allow_first(&s);
    expect_waits(&w, "Let me ", "event: ping");
    allow(3);
    expect_waits(&w, "The ", "event: ping");
    finish(&w, &a);
    assert_true(waits_between(&a, "event: ping", "Let me ", "think") > 0);
    assert_true(waits_between(&a, "event: ping", "The ", "answer") > 0);
    wire_answer_release(&a);
    stub_server_stop(&s);
}

static void keep_alive_in_a_withheld_call(void **state) {
    (void)state;
    static const char *const pieces[] = {"Look: ", "<" M " ca", "lls>\n", "<" M " inv", "oke na",
        "me=\"s", "h\">\n<" M " parameter name=\"c\" string=\"true\">l", "s</" M " parameter>\n",
        "</" M " invoke>\n</" M " calls>"};
    wire w;
    wire_answer a;
    sse_message m = {0};
    stub_server s;
    start(&s, pieces, 9);
    begin(&s, &w, CHAT, "{" ASK "," TOOLS ",\"stream\":true}");
    /* Five pieces are held back until the name of the call is whole. */
    allow_first(&s);
    expect_waits(&w, "Look", "\n: ");
    for (int i = 0; i < 5; i++) {
        allow(1);
        expect_waits(&w, NULL, "\n: ");
    }
    finish(&w, &a);
    assert_true(waits_between(&a, "\n: ", "Look", "tool_calls") >= 12);
    sse_read_stream(&a.body, &m);
    assert_int_equal(m.n_calls, 1);
    assert_string_equal(buf_cstr(&m.calls[0].name), "sh");
    assert_string_equal(buf_cstr(&m.calls[0].arguments), "{\"c\": \"ls\"}");
    assert_null(strchr(buf_cstr(&m.content), '<'));
    sse_message_release(&m);
    wire_answer_release(&a);
    /* Messages hold the whole call back. */
    begin(&s, &w, "/v1/messages",
        "{" ASK ",\"stream\":true,\"max_tokens\":50,\"tools\":[{\"name\":\"sh\",\"input_schema\":{"
        "\"type\":\"object\",\"properties\":{\"c\":{\"type\":\"string\"}}}}]}");
    allow_first(&s);
    expect_waits(&w, "Look", "event: ping");
    for (int i = 0; i < 7; i++) {
        allow(1);
        expect_waits(&w, NULL, "event: ping");
    }
    finish(&w, &a);
    assert_true(waits_between(&a, "event: ping", "Look", "tool_use") >= 16);
    assert_non_null(strstr(buf_cstr(&a.body), "\"partial_json\":\"{\\\"c\\\": \\\"ls\\\"}\""));
    wire_answer_release(&a);
    stub_server_stop(&s);
}

static void keep_alive_in_prefill(void **state) {
    (void)state;
    static const char *const pieces[] = {"one ", "two"};
    /* Also on /v1/messages: a ping may not come before message_start, whose figures are not known. */
    static const char *const routes[] = {CHAT, "/v1/completions", "/v1/responses", "/v1/messages"};
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        wire w;
        wire_answer a;
        stub_server s;
        start(&s, pieces, 2);
        begin(&s, &w, routes[i],
            "{" ASK ",\"prompt\":\"hi\",\"input\":\"hi\",\"stream\":true,\"max_tokens\":9}");
        expect_waits(&w, NULL, ": prefill ");
        finish(&w, &a);
        const char *wait = strstr(buf_cstr(&a.body), ": prefill ");
        const char *word = strstr(buf_cstr(&a.body), "one ");
        if (wait == NULL || word == NULL || wait > word) {
            fail_msg("%s: %s", routes[i], buf_cstr(&a.body));
        }
        wire_answer_release(&a);
        stub_server_stop(&s);
    }
}

static void offered_tools_do_not_buffer(void **state) {
    (void)state;
    static const char *const pieces[] = {"a ", "<b ", "c < ", "d ", "e"};
    static const char *const seen[] = {"\"a \"", "\"<b \"", "\"c < \"", "\"d \"", "\"e\""};
    wire w;
    wire_answer a;
    sse_message m = {0};
    stub_server s;
    start(&s, pieces, 5);
    begin(&s, &w, CHAT, "{" ASK "," TOOLS ",\"stream\":true}");
    for (int i = 0; i < 5; i++) { /* each is there before the next is made */
        i == 0 ? allow_first(&s) : allow(1);
        if (!wire_await(&w, seen[i], 1, PATIENCE_MS)) fail_msg("never came: %s", seen[i]);
    }
    finish(&w, &a);
    sse_read_stream(&a.body, &m);
    assert_string_equal(buf_cstr(&m.content), "a <b c < d e");
    int n_deltas = 0;
    for (int i = 0; i < m.n_chunks; i++) {
        const json *choice = json_at(json_get(m.chunks[i], "choices"), 0);
        const char *text = json_str(json_get(json_get(choice, "delta"), "content"));
        n_deltas += text != NULL && text[0] != '\0';
    }
    assert_true(n_deltas >= 5);
    sse_message_release(&m);
    wire_answer_release(&a);
    stub_server_stop(&s);
}

static void usage_comes_once(void **state) {
    (void)state;
    static const char *const pieces[] = {"a ", "b"};
    static const char *const bodies[] = {"{" ASK ",\"stream\":true}",
        "{" ASK ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}"};
    stub_server s;
    start(&s, pieces, 2);
    for (int i = 0; i < 2; i++) {
        wire_answer a;
        sse_message m = {0};
        int n_usage = 0;
        ask(&s, CHAT, bodies[i], &a);
        sse_read_stream(&a.body, &m);
        for (int k = 0; k < m.n_chunks; k++) {
            bool has = json_is_object(json_get(m.chunks[k], "usage"));
            n_usage += has;
            if (has) assert_int_equal(k, m.n_chunks - 1);
        }
        assert_int_equal(n_usage, i);
        sse_message_release(&m);
        wire_answer_release(&a);
    }
    stub_server_stop(&s);
}

static void stall_soon(api_options *o) {
    o->stall_timeout_ms = 1000;
    o->body_timeout_ms = 1000;
    o->idle_timeout_ms = 1000;
}

/* Time in which the engine says nothing does not count against the client: neither before a whole
 * answer nor within a stream. */
static void long_silence_is_not_a_stall(void **state) {
    (void)state;
    static const char *const pieces[] = {"a ", "b"};
    static const char *const bodies[] = {"{" ASK "}", "{" ASK ",\"stream\":true}"};
    stub_server s;
    stub_server_options o = {.tokenizer = tok, .keep_alive_ms = PATIENCE_MS, .adjust = stall_soon};
    o.script = (stub_script){.pieces = pieces, .n_pieces = 2, .delay_ms = 2500};
    stub_server_start(&s, &o);
    for (int i = 0; i < 2; i++) {
        wire_answer a;
        ask(&s, CHAT, bodies[i], &a);
        assert_non_null(strstr(buf_cstr(&a.body), i == 0 ? "\"a b\"" : "data: [DONE]"));
        wire_answer_release(&a);
    }
    stub_server_stop(&s);
}

/* A client that has gone is noticed while the engine says nothing, and its slot is free. */
static void clients_that_leave(void **state) {
    (void)state;
    static const char *const pieces[] = {"a ", "b"};
    static const char *const bodies[] = {"{" ASK "}", "{" ASK ",\"stream\":true}"};
    run_stats stats;
    stub_server s;
    start(&s, pieces, 2);
    for (int i = 0; i < 4; i++) {
        wire w;
        is_held = 1;
        if (i % 2 == 0) {
            wire_open_unix(&w, s.socket_path);
        } else {
            wire_open_tcp(&w, s.port);
        }
        wire_request(&w, "POST", CHAT, "", bodies[i / 2]);
        assert_true(stub_server_wait(&s, 1));
        wire_close(&w);
        uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
        while (api_busy(s.api) > 0 && clock_mono_ms() < deadline) {
            sleep_ms(1);
        }
        assert_int_equal(api_busy(s.api), 0);
        is_held = 0;
        assert_true(stub_server_wait(&s, 0));
    }
    run_stats_get(s.run, &stats);
    assert_int_equal(stats.n_cancelled, 4);
    assert_int_equal(stats.pages_used, 0);
    stub_server_stop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keep_alive_in_thinking),
        cmocka_unit_test(keep_alive_in_a_withheld_call),
        cmocka_unit_test(keep_alive_in_prefill),
        cmocka_unit_test(offered_tools_do_not_buffer),
        cmocka_unit_test(usage_comes_once),
        cmocka_unit_test(long_silence_is_not_a_stall),
        cmocka_unit_test(clients_that_leave),
    };
    tok = stub_tokenizer_need();
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(tok);
    return rc;
}
