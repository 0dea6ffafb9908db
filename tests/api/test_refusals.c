/* Requests that the HTTP library refuses by itself, and targets that it changes before anybody sees
 * them: one answer of ours, framed once, then the end of the connection. */
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
#include "tests/harness/stub_server.h"
#include "tests/harness/wire.h"

enum { PATIENCE_MS = 60000 };

#define CHAT "POST /v1/chat/completions HTTP/1.1\r\n"
#define HOST "Host: x\r\n"

static tokenizer *tok;
static const char *const pieces[] = {"one "};

static void with_origins(api_options *o) {
    o->cors_origins = "http://a.example";
}

static void start(stub_server *s) {
    stub_server_options o = {.tokenizer = tok, .adjust = with_origins};
    o.script = (stub_script){.pieces = pieces, .n_pieces = 1};
    stub_server_start(s, &o);
}

/* All that comes until the server closes. */
static void send_raw(wire *w, const stub_server *s, bool is_tcp, const char *bytes, size_t n) {
    if (is_tcp) {
        wire_open_tcp(w, s->port);
    } else {
        wire_open_unix(w, s->socket_path);
    }
    assert_true(wire_send(w, bytes, n));
}

static int count(const buf *text, const char *word) {
    int n = 0;
    for (const char *p = buf_cstr((buf *)(uintptr_t)text); (p = strstr(p, word)) != NULL; p++) {
        n++;
    }
    return n;
}

typedef struct wrong_request {
    const char *bytes;
    int status;
    bool is_anthropic;
    size_t n; /* 0: up to the first NUL byte */
} wrong_request;

static void want_one_refusal(const stub_server *s, bool is_tcp, const wrong_request *r) {
    wire w;
    wire_answer a;
    json *v = NULL;
    char id[64];
    send_raw(&w, s, is_tcp, r->bytes, r->n > 0 ? r->n : strlen(r->bytes));
    while (!w.is_closed && wire_receive(&w, PATIENCE_MS)) {
    }
    if (!w.is_closed || w.is_reset) fail_msg("no clean end after: %.60s", r->bytes);
    if (count(&w.in, "HTTP/1.1 ") != 1) fail_msg("%.60s: %s", r->bytes, buf_cstr(&w.in));
    wire_read(&w, &a, PATIENCE_MS);
    if (a.status != r->status) fail_msg("%.60s: %s", r->bytes, buf_cstr(&a.head));
    assert_true(a.is_complete);
    assert_int_equal(w.in.len, 0);
    wire_header(&a, "x-request-id", id, sizeof id);
    assert_true(id[0] != '\0');
    wire_header(&a, "Vary", id, sizeof id);
    assert_string_equal(id, "Origin");
    assert_int_equal(json_parse(buf_cstr(&a.body), a.body.len, NULL, &v, NULL), OK);
    const json *e = json_get(v, "error");
    assert_string_equal(json_str(json_get(e, "type")), "invalid_request_error");
    assert_true(strlen(json_str(json_get(e, "message"))) > 0);
    assert_int_equal(json_get(v, "request_id") != NULL, r->is_anthropic);
    json_free(v);
    wire_answer_release(&a);
    wire_close(&w);
}

static void refusals_are_framed_once(void **state) {
    (void)state;
    static const wrong_request all[] = {
        {CHAT HOST "Content-Length: -5\r\n\r\n{}", 400, false, 0},
        {CHAT HOST "Content-Length: x\r\n\r\n", 400, false, 0},
        {CHAT HOST "Content-Length: 0x10\r\n\r\n", 400, false, 0},
        {CHAT HOST "Content-Length:\r\n\r\n", 400, false, 0},
        {CHAT HOST "Content-Length: 99999999999999999999\r\n\r\n", 413, false, 0},
        {CHAT "Content-Length: 2\r\nConnection: close\r\n\r\n{}", 400, false, 0},
        {"GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n", 400, false, 0},
        {"POST /v1/messages HTTP/1.1\r\n" HOST "Content-Length: -1\r\n\r\n", 400, true, 0},
        {CHAT HOST "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n", 400, false, 0},
        {CHAT HOST "Transfer-Encoding: chunked\r\n\r\n2\r\n{}xx", 400, false, 0},
        {CHAT HOST "Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400, false, 0},
        {CHAT HOST "no colon\r\n\r\n", 400, false, 0},
        {CHAT HOST "Content-Length : 2\r\n\r\n{}", 400, false, 0},
        {CHAT HOST "x\xff: 2\r\n\r\n", 400, false, 0},
        {CHAT HOST "Content-Length:\r\n 2\r\n\r\n{}", 400, false, 0},
        {CHAT HOST "Transfer-Encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n", 400, false, 0},
        {CHAT HOST "Content-Length: 1\r\n 0\r\n\r\n0123456789", 400, false, 0},
        {"GET /v1/models HTTP/1.2\r\n" HOST "\r\n", 400, false, 0},
    };
    stub_server s;
    start(&s);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        want_one_refusal(&s, false, &all[i]);
        want_one_refusal(&s, true, &all[i]);
    }
    stub_server_stop(&s);
}

/* Each head holds a second one behind what the library takes for its end, or a value that it would
 * cut: one answer, and nothing of the rest is read as a request. */
static void heads_are_what_they_seem(void **state) {
    (void)state;
#define GET "GET /health HTTP/1.1\r\n"
#define NEXT "GET /v1/models HTTP/1.1\r\nHost: y\r\n\r\n"
#define LAST "Content-Length: 2\r\n\r\n{}"
#define WRONG(text)                                                                                \
    { text, 400, false, sizeof(text) - 1 }
    static const wrong_request all[] = {
        WRONG(GET HOST ": foo\r\n" NEXT),
        WRONG(GET HOST ":\r\n" NEXT),
        WRONG(GET ": foo\r\n" HOST "\r\n" NEXT),
        WRONG(GET HOST "a: b\r\n:foo\r\n\r\n" NEXT),
        WRONG(GET HOST ": foo\n" NEXT),
        WRONG(CHAT HOST ": foo\r\n" LAST),
        WRONG(CHAT HOST "Content-Length: 2\r\n: foo\r\nx: y\r\n\r\n{}"),
        WRONG(GET HOST "\0: foo\r\n" NEXT),
        WRONG(GET HOST "\0\r\n" NEXT),
        WRONG(GET HOST "x-api-key: KEY\0zzz\r\n\r\n"),
        WRONG(GET HOST "X: a\0\r\n\r\n"),
        WRONG(GET HOST "X: a\0\0\r\ny: z\r\n\r\n"),
        WRONG(GET HOST "X:\0 b\r\n\r\n"),
        WRONG(GET HOST "X\0y: b\r\n\r\n"),
        WRONG(GET HOST "X: a\r\n b\r\n\r\n"),
        WRONG(GET HOST "X: a\ny: b\r\n\r\n"),
        WRONG(GET HOST "X: a\n\n" NEXT),
        WRONG("GET /health\0junk HTTP/1.1\r\n" HOST "\r\n"),
        WRONG("GET /health\0 HTTP/1.1\r\n" HOST "\r\n"),
        WRONG("GET /health?a=\0b HTTP/1.1\r\n" HOST "\r\n"),
        WRONG("GET\0x /health HTTP/1.1\r\n" HOST "\r\n"),
        WRONG(CHAT HOST "Content-Length: 2\0\r\n\r\n{}"),
        WRONG(CHAT HOST "Content-Length: 2\0x\r\n\r\n{}"),
        WRONG(CHAT HOST "Transfer-Encoding: chunked\0x\r\n\r\n0\r\n\r\n"),
        WRONG(CHAT HOST "Transfer-Encoding: chunked\r\n\r\n0\r\n: foo\r\n\r\n" NEXT),
        WRONG(CHAT HOST "Transfer-Encoding: chunked\r\n\r\n0\r\na: b\r\n: foo\r\n" NEXT),
    };
    stub_server s;
    start(&s);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        want_one_refusal(&s, false, &all[i]);
        want_one_refusal(&s, true, &all[i]);
    }
    stub_server_stop(&s);
}

/* Blanks that the standard allows change nothing, also when the head comes in pieces. */
static void sound_heads_are_taken(void **state) {
    (void)state;
    static const char *const all[] = {
        GET HOST "\r\n",
        "\r\n\r\n" GET HOST "\r\n",
        "GET  /health HTTP/1.1\r\n" HOST "\r\n",
        "GET /health?a=%41&b&c=%00 HTTP/1.1\r\n" HOST "\r\n",
        GET "Host:x\r\nx-empty:\r\nx-blank: \r\ncookie: a=\"b\"; c\r\n\r\n",
        GET HOST "x: a:b \t\r\ny:\t a b\r\n\r\n",
    };
    stub_server s;
    start(&s);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        wire w;
        wire_answer a;
        wire_open_tcp(&w, s.port);
        for (int round = 0; round < 3; round++) {
            size_t n = round == 1 ? strlen(all[i]) / 2 : 0;
            wire_send(&w, all[i], n);
            wire_send(&w, all[i] + n, strlen(all[i]) - n);
            wire_read(&w, &a, PATIENCE_MS);
            if (a.status != 200) fail_msg("%s: %d", all[i], a.status);
            wire_answer_release(&a);
        }
        wire_close(&w);
    }
    stub_server_stop(&s);
}

/* A head without end, and a first request that is fine before the wrong one. */
static void refusals_at_other_places(void **state) {
    (void)state;
    stub_server s;
    wire w;
    wire_answer a;
    buf head = BUF_INIT;
    start(&s);
    buf_puts(&head, "GET /v1/models HTTP/1.1\r\n" HOST);
    for (int i = 0; i < 4000; i++) {
        buf_printf(&head, "x-%d: 0123456789012345\r\n", i);
    }
    buf_puts(&head, "\r\n");
    wire_open_unix(&w, s.socket_path);
    wire_send(&w, head.data, head.len); /* the rest finds nobody */
    wire_read(&w, &a, PATIENCE_MS);
    assert_int_equal(a.status, 431);
    assert_non_null(strstr(buf_cstr(&a.body), "\"error\""));
    wire_answer_release(&a);
    wire_close(&w);
    static const char two[] =
        "GET /v1/models HTTP/1.1\r\n" HOST "\r\n" CHAT HOST "Content-Length: -5\r\n\r\n";
    send_raw(&w, &s, true, two, strlen(two));
    wire_read(&w, &a, PATIENCE_MS);
    assert_int_equal(a.status, 200);
    assert_true(a.is_complete);
    wire_answer_release(&a);
    wire_read(&w, &a, PATIENCE_MS);
    assert_int_equal(a.status, 400);
    assert_true(a.is_complete);
    wire_answer_release(&a);
    assert_true(wire_wait_closed(&w, PATIENCE_MS));
    wire_close(&w);
    static const char then_none[] = "GET /v1/models HTTP/1.1\r\n" HOST "\r\nGET /x\r\n\r\n";
    send_raw(&w, &s, true, then_none, strlen(then_none));
    wire_read(&w, &a, PATIENCE_MS);
    assert_int_equal(a.status, 200);
    wire_answer_release(&a);
    wire_read(&w, &a, PATIENCE_MS);
    assert_int_equal(a.status, 400);
    assert_non_null(strstr(buf_cstr(&a.body), "\"error\""));
    wire_answer_release(&a);
    assert_true(wire_wait_closed(&w, PATIENCE_MS));
    wire_close(&w);
    buf_release(&head);
    stub_server_stop(&s);
}

/* The library reads a null pointer when it refuses a request while it is being stopped. */
static void refusals_while_the_server_stops(void **state) {
    (void)state;
    enum { N_ROUNDS = 20, N_CLIENTS = 16 };
    static const char bad[] = CHAT HOST "Content-Length: -5\r\n\r\n";
    for (int i = 0; i < N_ROUNDS; i++) {
        stub_server s;
        wire w[N_CLIENTS];
        start(&s);
        for (int k = 0; k < N_CLIENTS; k++) {
            wire_open_unix(&w[k], s.socket_path);
            wire_send(&w[k], bad, strlen(bad));
        }
        stub_server_stop(&s);
        for (int k = 0; k < N_CLIENTS; k++) {
            assert_true(wire_wait_closed(&w[k], PATIENCE_MS));
            wire_close(&w[k]);
        }
    }
}

static void targets_are_understood(void **state) {
    (void)state;
    static const struct {
        const char *target;
        int status;
    } all[] = {
        {"http://127.0.0.1/v1/models", 200},
        {"HTTP://other.example:80/v1/models?x=%00", 200},
        {"https://x/v1/models/", 200},
        {"http://x", 404},
        {"/v1/models?a=%00", 200},
        {"/v1/models/", 200},
        {"/v1/models%00", 400},
        {"/v1/models/stub%00", 400},
        {"/models/x%00y", 400},
        {"/v1/models/a b", 400},
        {"/v1/models?a b", 400},
        {"//v1/models", 404},
        {"/v1/v1/models", 404},
        {"/v1", 404},
        {"/", 404},
        {"*", 404},
    };
    stub_server s;
    start(&s);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        wire w;
        wire_answer a;
        wire_open_tcp(&w, s.port);
        wire_request(&w, "GET", all[i].target, "", NULL);
        wire_read(&w, &a, PATIENCE_MS);
        if (a.status != all[i].status) fail_msg("%s: %d", all[i].target, a.status);
        assert_true(a.is_complete);
        wire_answer_release(&a);
        wire_close(&w);
    }
    stub_server_stop(&s);
}

static void methods_of_the_cache_are_told(void **state) {
    (void)state;
    stub_server s;
    wire w;
    wire_answer a;
    char allow[64];
    start(&s);
    wire_open_unix(&w, s.socket_path);
    wire_request(&w, "POST", "/tandem/v1/cache", "", "{}");
    wire_read(&w, &a, PATIENCE_MS);
    assert_int_equal(a.status, 405);
    wire_header(&a, "Allow", allow, sizeof allow);
    assert_string_equal(allow, "GET, DELETE, OPTIONS");
    assert_non_null(strstr(buf_cstr(&a.body), "takes GET, DELETE only"));
    wire_answer_release(&a);
    wire_close(&w);
    stub_server_stop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals_are_framed_once),
        cmocka_unit_test(heads_are_what_they_seem),
        cmocka_unit_test(sound_heads_are_taken),
        cmocka_unit_test(methods_of_the_cache_are_told),
        cmocka_unit_test(refusals_at_other_places),
        cmocka_unit_test(refusals_while_the_server_stops),
        cmocka_unit_test(targets_are_understood),
    };
    tok = stub_tokenizer_need();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(tok);
    return failed;
}
