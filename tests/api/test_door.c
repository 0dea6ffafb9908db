/* Who may come in and how far: TLS, limits of a key, time limits of requests, the request log. */
#include <curl/curl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/api/keys.h"
#include "engine/api/tls_files.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/str.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/tls_pair.h"
#include "tests/harness/wire.h"

enum { PATIENCE_MS = 60000, N_TIMES = 100 };

#define HELLO "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define CHAT "/v1/chat/completions"

static tokenizer *tok;
static const char *const pieces[] = {"one "};
static char dir[64];
static char place[6][100]; /* of files in dir */
enum { CERTIFICATE, KEY, KEYS, LOG_FILE, OTHER_CERTIFICATE, OTHER_KEY };
static _Atomic int is_held;
static api_options wanted; /* fields that a test sets */

static void adjust(api_options *o) {
    o->certificate_path = wanted.certificate_path;
    o->certificate_key_path = wanted.certificate_key_path;
    o->keys_path = wanted.keys_path;
    o->may_keys_come = wanted.may_keys_come;
    o->request_log_path = wanted.request_log_path;
    o->logs_prompts = wanted.logs_prompts;
    o->request_timeout_ms = wanted.request_timeout_ms;
    o->idle_timeout_ms = wanted.idle_timeout_ms;
}

static void start_slow(stub_server *s, int delay_ms) {
    stub_server_options o = {.tokenizer = tok, .adjust = adjust};
    o.script = (stub_script){.pieces = pieces,
        .n_pieces = 1,
        .n_times = N_TIMES,
        .delay_ms = delay_ms,
        .is_held = &is_held};
    is_held = 0;
    stub_server_start(s, &o);
}

static int setup(void **state) {
    static const char *const names[] = {"cert.pem", "key.pem", "keys", "log", "cert2", "key2"};
    (void)state;
    memset(&wanted, 0, sizeof wanted);
    snprintf(dir, sizeof dir, "/tmp/tandem-door-XXXXXX");
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(place[i], sizeof place[i], "%s/%s", dir, names[i]);
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof place / sizeof place[0]; i++) {
        unlink(place[i]);
    }
    return rmdir(dir);
}

/* ---- TLS ---- */

typedef struct tls_call {
    CURL *curl;
    CURLcode rc;
    long status;
    buf body;
    char url[64];
} tls_call;

static size_t take_bytes(char *data, size_t size, size_t n, void *ctx) {
    buf_append(ctx, data, size * n);
    return size * n;
}

static void tls_begin(tls_call *c, const stub_server *s, const char *path, const char *body) {
    *c = (tls_call){.curl = curl_easy_init(), .body = BUF_INIT};
    snprintf(c->url, sizeof c->url, "https://127.0.0.1:%d%s", s->port, path);
    curl_easy_setopt(c->curl, CURLOPT_URL, c->url);
    curl_easy_setopt(c->curl, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(c->curl, CURLOPT_CAINFO, place[CERTIFICATE]);
    curl_easy_setopt(c->curl, CURLOPT_TIMEOUT_MS, (long)PATIENCE_MS);
    curl_easy_setopt(c->curl, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(c->curl, CURLOPT_WRITEDATA, &c->body);
    if (body != NULL) curl_easy_setopt(c->curl, CURLOPT_POSTFIELDS, body);
}

static void tls_perform(tls_call *c) {
    c->rc = curl_easy_perform(c->curl);
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &c->status);
}

static void tls_end(tls_call *c) {
    curl_easy_cleanup(c->curl);
    buf_release(&c->body);
}

static void with_tls(void) {
    tls_pair_write(place[CERTIFICATE], place[KEY], 30, NULL);
    wanted.certificate_path = place[CERTIFICATE];
    wanted.certificate_key_path = place[KEY];
}

static void tls_serves(void **state) {
    (void)state;
    tls_call c;
    wire w;
    stub_server s;
    with_tls();
    start_slow(&s, 0);
    for (int i = 0; i < 2; i++) {
        tls_begin(&c, &s, CHAT, i == 0 ? "{" HELLO "}" : "{" HELLO ",\"stream\":true}");
        tls_perform(&c);
        assert_int_equal(c.rc, CURLE_OK);
        assert_int_equal(c.status, 200);
        assert_non_null(strstr(buf_cstr(&c.body), i == 0 ? "one one one" : "data: [DONE]\n\n"));
        tls_end(&c);
    }
    /* A client that does not know the certificate goes away; the server stays. */
    tls_pair_write(place[OTHER_CERTIFICATE], place[OTHER_KEY], 30, NULL);
    tls_begin(&c, &s, "/health", NULL);
    curl_easy_setopt(c.curl, CURLOPT_CAINFO, place[OTHER_CERTIFICATE]);
    tls_perform(&c);
    assert_int_equal(c.rc, CURLE_PEER_FAILED_VERIFICATION);
    tls_end(&c);
    /* Plain words on that port get no answer of HTTP. */
    wire_open_tcp(&w, s.port);
    wire_request(&w, "GET", "/health", "", NULL);
    wire_receive(&w, PATIENCE_MS);
    assert_null(strstr(buf_cstr(&w.in), "HTTP/1.1 2"));
    wire_close(&w);
    tls_begin(&c, &s, "/health", NULL);
    tls_perform(&c);
    assert_int_equal(c.status, 200);
    tls_end(&c);
    stub_server_stop(&s);
}

/* What the library refuses by itself it answers wrongly, and past it nothing can be said here: the
 * connection ends without a word, and the next client is served. */
static void tls_clients_without_http_are_left(void **state) {
    (void)state;
    tls_call c;
    stub_server s;
    with_tls();
    start_slow(&s, 0);
    for (int i = 0; i < 2; i++) {
        struct curl_slist *wrong = curl_slist_append(NULL, "Content-Length: -5");
        tls_begin(&c, &s, CHAT, "{" HELLO "}");
        if (i == 0) curl_easy_setopt(c.curl, CURLOPT_HTTPHEADER, wrong);
        tls_perform(&c);
        assert_int_equal(c.status, i == 0 ? 0 : 200);
        assert_int_equal(c.rc == CURLE_OK, i == 1);
        tls_end(&c);
        curl_slist_free_all(wrong);
    }
    stub_server_stop(&s);
}

static void tls_handshakes_end_in_time(void **state) {
    (void)state;
    static const char hello[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    stub_server s;
    wire w;
    with_tls();
    wanted.idle_timeout_ms = 1000;
    start_slow(&s, 0);
    wire_open_tcp(&w, s.port);
    wire_send(&w, hello, sizeof hello - 1);
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    while (!w.is_closed && clock_mono_ms() < deadline) {
        if (!wire_send(&w, "a", 1)) break; /* each byte is in time, all of them are not */
        wire_receive(&w, 50);
    }
    assert_true(clock_mono_ms() < deadline);
    wire_close(&w);
    stub_server_stop(&s);
}

static _Atomic int leaves;

static int leave_when_told(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    (void)ctx, (void)a, (void)b, (void)c, (void)d;
    return leaves;
}

static void *perform_thread(void *ctx) {
    tls_perform(ctx);
    return NULL;
}

/* A client of TLS that goes away while its answer is made: the slot is free again. */
static void tls_clients_that_leave_free_the_slot(void **state) {
    (void)state;
    static const char *const bodies[] = {"{" HELLO "}", "{" HELLO ",\"stream\":true}"};
    stub_server s;
    run_stats stats;
    with_tls();
    start_slow(&s, 0);
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        tls_call c;
        is_held = 1;
        tls_begin(&c, &s, CHAT, bodies[i]);
        curl_easy_setopt(c.curl, CURLOPT_NOPROGRESS, 0L);
        curl_easy_setopt(c.curl, CURLOPT_XFERINFOFUNCTION, leave_when_told);
        leaves = 0;
        assert_int_equal(pthread_create(&thread, NULL, perform_thread, &c), 0);
        bool has_come = stub_server_wait(&s, 1);
        leaves = 1;
        pthread_join(thread, NULL);
        assert_true(has_come);
        assert_int_equal(c.rc, CURLE_ABORTED_BY_CALLBACK);
        tls_end(&c);
        uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
        while (api_busy(s.api) > 0 && clock_mono_ms() < deadline) {
            sleep_ms(2);
        }
        assert_int_equal(api_busy(s.api), 0); /* noticed while nothing came from the engine */
        is_held = 0;
        assert_true(stub_server_wait(&s, 0));
    }
    run_stats_get(s.run, &stats);
    assert_int_equal(stats.n_cancelled, 2);
    stub_server_stop(&s);
}

static void wrong_tls_files_are_named(void **state) {
    (void)state;
    const char *const c = place[CERTIFICATE];
    const char *const k = place[KEY];
    const struct {
        const char *certificate, *key, *says;
    } wrong[] = {
        {NULL, k, "both"},
        {c, NULL, "both"},
        {"/nonexistent/cert.pem", k, "/nonexistent/cert.pem"},
        {c, "/nonexistent/key.pem", "/nonexistent/key.pem"},
        {k, k, "holds no certificate"},
        {c, c, "holds no private key"},
        {c, place[OTHER_KEY], "does not belong to"},
    };
    tls_pair_write(c, k, 30, NULL);
    tls_pair_write(place[OTHER_CERTIFICATE], place[OTHER_KEY], 30, NULL);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        buf a = BUF_INIT;
        buf b = BUF_INIT;
        err e = ERR_INIT;
        const tls_files f = {wrong[i].certificate, wrong[i].key};
        assert_true(tls_files_read(&f, &a, &b, &e) < 0);
        if (strstr(e.msg, wrong[i].says) == NULL) fail_msg("case %zu says: %s", i, e.msg);
        buf_release(&a);
        buf_release(&b);
    }
    static const char *const says[] = {"has expired", "without a password", NULL};
    for (int i = 0; i < 3; i++) {
        buf a = BUF_INIT;
        buf b = BUF_INIT;
        err e = ERR_INIT;
        const tls_files f = {c, k};
        tls_pair_write(c, k, i == 0 ? -1 : 30, i == 1 ? "secret" : NULL);
        assert_int_equal(tls_files_read(&f, &a, &b, &e) == OK, says[i] == NULL);
        if (says[i] != NULL && strstr(e.msg, says[i]) == NULL) fail_msg("says: %s", e.msg);
        buf_release(&a);
        buf_release(&b);
    }
}

/* ---- limits of a key ---- */

static char key_line[128], other_line[128];

static void with_key(const key_limits *limits) {
    static const key_limits none = {0};
    char key[64];
    err e = ERR_INIT;
    key_make(key, sizeof key);
    snprintf(key_line, sizeof key_line, "Authorization: Bearer %s\r\n", key);
    assert_int_equal(keys_add(place[KEYS], "limited", key, limits, &e), OK);
    key_make(key, sizeof key);
    snprintf(other_line, sizeof other_line, "x-api-key: %s\r\n", key);
    assert_int_equal(keys_add(place[KEYS], "free", key, &none, &e), OK);
    wanted.keys_path = place[KEYS];
}

typedef struct call {
    wire w;
    wire_answer a;
    json *v; /* NULL: no JSON */
} call;

static void call_begin(call *c, const stub_server *s, const char *line, const char *body) {
    *c = (call){0};
    wire_open_tcp(&c->w, s->port);
    wire_request(&c->w, "POST", CHAT, line, body);
}

static void call_wait(call *c) {
    wire_read(&c->w, &c->a, PATIENCE_MS);
    if (json_parse(buf_cstr(&c->a.body), c->a.body.len, NULL, &c->v, NULL) != OK) c->v = NULL;
}

static void call_end(call *c) {
    json_free(c->v);
    wire_answer_release(&c->a);
    wire_close(&c->w);
}

static void call_do(call *c, const stub_server *s, const char *line, const char *body) {
    call_begin(c, s, line, body);
    call_wait(c);
}

static int64_t header_number(const call *c, const char *name) {
    char text[32];
    int64_t n = -1;
    wire_header(&c->a, name, text, sizeof text);
    return parse_i64(text, &n) == OK ? n : -1;
}

static const char *text_of(const json *v, const char *key, const char *under) {
    const char *s = json_str(json_get(json_get(v, key), under));
    return s != NULL ? s : "";
}

static const json *choice_of(const call *c) {
    return json_at(json_get(c->v, "choices"), 0);
}

static const char *finish_of(const call *c) {
    const char *s = json_str(json_get(choice_of(c), "finish_reason"));
    return s != NULL ? s : "";
}

static int64_t usage_of(const call *c, const char *name) {
    int64_t n = -1;
    return json_i64(json_get(json_get(c->v, "usage"), name), &n) == OK ? n : -1;
}

static int status_with(const stub_server *s, const char *line) {
    call c;
    call_do(&c, s, line, "{" HELLO "}");
    int status = c.a.status;
    call_end(&c);
    return status;
}

/* Nobody gets a second request in behind a head that hides how long its body is, or its end. */
static void strangers_hide_no_request(const stub_server *s) {
    static const char *const all[] = {
        "POST " CHAT " HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n 36\r\n\r\n"
        "GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST " CHAT " HTTP/1.1\r\nHost: x\r\n: foo\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        wire w;
        wire_open_tcp(&w, s->port);
        wire_send(&w, all[i], strlen(all[i]));
        while (!w.is_closed && wire_receive(&w, PATIENCE_MS)) {
        }
        assert_true(w.is_closed);
        assert_non_null(strstr(buf_cstr(&w.in), "HTTP/1.1 400"));
        assert_null(strstr(buf_cstr(&w.in), "HTTP/1.1 200"));
        wire_close(&w);
    }
}

static int status_of_remote(const stub_server *s) {
    err e = ERR_INIT;
    return api_endpoint_confirmed(s->api, "0.0.0.0", 0, "0.0.0.0", &e);
}

/* The usual key file: nobody has to start the engine again after the first key. */
static void a_key_file_may_come_later(void **state) {
    (void)state;
    stub_server s;
    char blank_line[160];
    wanted.keys_path = place[KEYS];
    wanted.may_keys_come = true;
    start_slow(&s, 0);
    assert_int_equal(status_with(&s, ""), 200);
    assert_int_equal(status_with(&s, "x-api-key: any\r\n"), 200);
    assert_int_equal(status_of_remote(&s), ERR_AUTH);
    with_key(&(key_limits){0});
    assert_int_equal(status_with(&s, ""), 401);
    assert_int_equal(status_with(&s, key_line), 200);
    assert_int_equal(status_of_remote(&s), ERR_BUSY); /* allowed, but for the other address */
    assert_int_equal(chmod(place[KEYS], 0644), 0);
    assert_int_equal(status_with(&s, key_line), 401);
    assert_int_equal(chmod(place[KEYS], 0600), 0);
    assert_int_equal(status_with(&s, key_line), 200);
    snprintf(blank_line, sizeof blank_line, "%.*s \t\r\n", (int)strcspn(key_line, "\r"), key_line);
    assert_int_equal(status_with(&s, blank_line), 200);
    strangers_hide_no_request(&s);
    assert_int_equal(unlink(place[KEYS]), 0);
    assert_int_equal(status_with(&s, key_line), 401);
    assert_int_equal(status_with(&s, ""), 401);
    stub_server_stop(&s);
}

static void limit_of_requests_in_flight(void **state) {
    (void)state;
    stub_server s;
    call first, second;
    with_key(&(key_limits){.requests = 1});
    start_slow(&s, 0);
    is_held = 1;
    call_begin(&first, &s, key_line, "{" HELLO "}");
    assert_true(stub_server_wait(&s, 1));
    call_do(&second, &s, key_line, "{" HELLO "}");
    assert_int_equal(second.a.status, 429);
    assert_string_equal(text_of(second.v, "error", "type"), "rate_limit_error");
    assert_int_equal(header_number(&second, "Retry-After"), 1);
    assert_int_equal(header_number(&second, "retry-after-ms"), 1000);
    call_end(&second);
    call_begin(&second, &s, other_line, "{" HELLO "}"); /* another key is not held up */
    assert_true(stub_server_wait(&s, 2));
    is_held = 0;
    call_wait(&second);
    assert_int_equal(second.a.status, 200);
    call_end(&second);
    call_wait(&first);
    assert_int_equal(first.a.status, 200);
    call_end(&first);
    call_do(&first, &s, key_line, "{" HELLO "}");
    assert_int_equal(first.a.status, 200);
    call_end(&first);
    stub_server_stop(&s);
}

/* A client that leaves gives its place back. */
static void limit_is_given_back_by_those_who_leave(void **state) {
    (void)state;
    stub_server s;
    call c;
    with_key(&(key_limits){.requests = 1});
    start_slow(&s, 0);
    is_held = 1;
    call_begin(&c, &s, key_line, "{" HELLO ",\"stream\":true}");
    assert_true(stub_server_wait(&s, 1));
    call_end(&c);
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    int status = 429;
    is_held = 0;
    while (status == 429 && clock_mono_ms() < deadline) {
        call_do(&c, &s, key_line, "{" HELLO "}");
        status = c.a.status;
        call_end(&c);
    }
    assert_int_equal(status, 200);
    stub_server_stop(&s);
}

static void limit_of_tokens_in_an_hour(void **state) {
    (void)state;
    stub_server s;
    call c;
    with_key(&(key_limits){.tokens = 50});
    start_slow(&s, 0);
    call_do(&c, &s, key_line, "{" HELLO "}");
    assert_int_equal(c.a.status, 200);
    assert_int_equal(usage_of(&c, "completion_tokens"), N_TIMES);
    call_end(&c);
    call_do(&c, &s, key_line, "{" HELLO "}");
    assert_int_equal(c.a.status, 429);
    assert_string_equal(text_of(c.v, "error", "type"), "rate_limit_error");
    assert_string_equal(text_of(c.v, "error", "code"), "queue_full");
    int64_t wait_s = header_number(&c, "Retry-After");
    assert_true(wait_s > 3000 && wait_s <= 3600);
    assert_int_equal(header_number(&c, "retry-after-ms"), wait_s * 1000);
    call_end(&c);
    call_do(&c, &s, other_line, "{" HELLO "}");
    assert_int_equal(c.a.status, 200);
    call_end(&c);
    stub_server_stop(&s);
}

static void limit_of_duration(void **state) {
    (void)state;
    stub_server s;
    call c;
    int64_t n = 0;
    /* Where a reply has not begun within the limit, it gets a longer one. */
    for (int seconds = 1; n == 0 && seconds < 100; seconds *= 4) {
        (void)unlink(place[KEYS]);
        with_key(&(key_limits){.seconds = seconds});
        start_slow(&s, 50 * seconds);
        call_do(&c, &s, key_line, "{" HELLO "}");
        if (c.a.status == 200) {
            assert_string_equal(finish_of(&c), "length");
            n = usage_of(&c, "completion_tokens");
            assert_true(n < N_TIMES);
        }
        call_end(&c);
        assert_true(stub_server_wait(&s, 0));
        stub_server_stop(&s);
    }
    assert_true(n > 0);
}

static void limit_of_context(void **state) {
    (void)state;
    stub_server s;
    call c;
    buf body = BUF_INIT;
    with_key(&(key_limits){.context = 40});
    start_slow(&s, 0);
    call_do(&c, &s, key_line, "{" HELLO "}");
    assert_int_equal(c.a.status, 200);
    assert_string_equal(finish_of(&c), "length");
    assert_int_equal(usage_of(&c, "total_tokens"), 40);
    call_end(&c);
    buf_puts(&body, "{\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (int i = 0; i < 100; i++) {
        buf_puts(&body, "word and ");
    }
    buf_puts(&body, "\"}]}");
    call_do(&c, &s, key_line, buf_cstr(&body));
    assert_int_equal(c.a.status, 400);
    assert_string_equal(text_of(c.v, "error", "code"), "context_length_exceeded");
    assert_non_null(strstr(text_of(c.v, "error", "message"), "40"));
    call_end(&c);
    call_do(&c, &s, other_line, buf_cstr(&body));
    assert_int_equal(c.a.status, 200);
    call_end(&c);
    buf_release(&body);
    stub_server_stop(&s);
}

/* ---- time ---- */

static void request_timeout_keeps_what_exists(void **state) {
    (void)state;
    stub_server s;
    call c;
    int n_kept = 0;
    /* Where nothing exists within the limit, it gets a longer one. */
    for (int ms = 1000; n_kept < 2 && ms < 100000; ms *= 4) {
        wanted.request_timeout_ms = ms;
        start_slow(&s, ms / 20);
        call_do(&c, &s, "", "{" HELLO "}");
        n_kept = c.a.status == 200;
        if (n_kept > 0) {
            assert_string_equal(finish_of(&c), "length");
            assert_true(usage_of(&c, "completion_tokens") > 0);
        }
        call_end(&c);
        call_do(&c, &s, "", "{" HELLO ",\"stream\":true}");
        if (strstr(buf_cstr(&c.a.body), "\"code\":\"timeout\"") == NULL) {
            n_kept++;
            assert_non_null(strstr(buf_cstr(&c.a.body), "\"finish_reason\":\"length\""));
            assert_non_null(strstr(buf_cstr(&c.a.body), "data: [DONE]\n\n"));
        }
        call_end(&c);
        assert_true(stub_server_wait(&s, 0));
        stub_server_stop(&s);
    }
    assert_int_equal(n_kept, 2);
}

static void request_timeout_without_a_token(void **state) {
    (void)state;
    stub_server s;
    call c;
    wanted.request_timeout_ms = 300;
    start_slow(&s, 0);
    is_held = 1;
    call_do(&c, &s, "", "{" HELLO "}");
    assert_int_equal(c.a.status, 503);
    assert_string_equal(text_of(c.v, "error", "code"), "timeout");
    assert_true(header_number(&c, "Retry-After") > 0);
    call_end(&c);
    call_do(&c, &s, "", "{" HELLO ",\"stream\":true}");
    assert_int_equal(c.a.status, 200);
    assert_non_null(strstr(buf_cstr(&c.a.body), "\"code\":\"timeout\""));
    assert_null(strstr(buf_cstr(&c.a.body), "[DONE]"));
    call_end(&c);
    is_held = 0;
    assert_true(stub_server_wait(&s, 0));
    stub_server_stop(&s);
}

/* ---- the log of requests ---- */

/* Waits for n lines: a request is written when its answer has gone out. */
static void read_log(buf *out, int n) {
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    int n_lines = 0;
    err e = ERR_INIT;
    while (n_lines < n && clock_mono_ms() < deadline) {
        buf_reset(out);
        n_lines = 0;
        if (file_read(place[LOG_FILE], out, 1 << 20, &e) != OK) continue;
        for (size_t i = 0; i < out->len; i++) {
            n_lines += out->data[i] == '\n';
        }
        sleep_ms(2);
    }
    assert_int_equal(n_lines, n);
}

static void log_without_prompts(void **state) {
    (void)state;
    stub_server s;
    call c;
    buf text = BUF_INIT;
    struct stat st;
    with_key(&(key_limits){0});
    wanted.request_log_path = place[LOG_FILE];
    start_slow(&s, 0);
    call_do(&c, &s, key_line,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a secret of mine\"}],\"max_tokens\":3}");
    assert_int_equal(c.a.status, 200);
    call_end(&c);
    read_log(&text, 1); /* else the lines of two connections may change places */
    call_do(&c, &s, "Authorization: Bearer sk-tandem-nobodyknowsthiskeyatall\r\n", "{" HELLO "}");
    assert_int_equal(c.a.status, 401);
    call_end(&c);
    read_log(&text, 2);
    assert_int_equal(stat(place[LOG_FILE], &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_null(strstr(buf_cstr(&text), "secret of mine"));
    assert_null(strstr(buf_cstr(&text), "sk-tandem"));
    json *v = NULL;
    assert_int_equal(
        json_parse(buf_cstr(&text), strcspn(buf_cstr(&text), "\n"), NULL, &v, NULL), OK);
    assert_string_equal(json_str(json_get(v, "key")), "limited");
    assert_string_equal(json_str(json_get(v, "path")), "/chat/completions");
    assert_string_equal(json_str(json_get(v, "finish_reason")), "length");
    int64_t n = 0;
    assert_int_equal(json_i64(json_get(v, "completion_tokens"), &n), OK);
    assert_int_equal(n, 3);
    json_free(v);
    buf_release(&text);
    stub_server_stop(&s);
}

static void log_with_prompts_hides_keys(void **state) {
    (void)state;
    stub_server s;
    call c;
    buf text = BUF_INIT;
    wanted.request_log_path = place[LOG_FILE];
    wanted.logs_prompts = true;
    start_slow(&s, 0);
    call_do(&c, &s, "Authorization: Bearer sk-tandem-anyoldkeythatisnotaskedfor1\r\n",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"my words; "
        "sk-tandem-0123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghi\"}]}");
    assert_int_equal(c.a.status, 200);
    call_end(&c);
    read_log(&text, 1);
    assert_non_null(strstr(buf_cstr(&text), "my words"));
    assert_null(strstr(buf_cstr(&text), "0123456789ABCDEFGH"));
    assert_null(strstr(buf_cstr(&text), "anyoldkey"));
    json *v = NULL;
    assert_int_equal(json_parse(buf_cstr(&text), text.len - 1, NULL, &v, NULL), OK);
    json_free(v);
    buf_release(&text);
    stub_server_stop(&s);
}

/* ---- addresses ---- */

static void other_machines_only_on_purpose(void **state) {
    (void)state;
    stub_server s;
    err e = ERR_INIT;
    start_slow(&s, 0);
    api_endpoint(s.api, false, NULL, 0, NULL);
    assert_int_equal(api_endpoint_confirmed(s.api, "0.0.0.0", 0, "0.0.0.0", &e), ERR_AUTH);
    assert_non_null(strstr(e.msg, "key file"));
    stub_server_stop(&s);
    with_key(&(key_limits){0});
    start_slow(&s, 0);
    api_endpoint(s.api, false, NULL, 0, NULL);
    assert_int_equal(api_endpoint_confirmed(s.api, "0.0.0.0", 0, NULL, &e), ERR_AUTH);
    assert_int_equal(api_endpoint_confirmed(s.api, "0.0.0.0", 0, "127.0.0.1", &e), ERR_AUTH);
    assert_int_equal(api_endpoint_port(s.api), 0);
    assert_int_equal(api_endpoint_confirmed(s.api, "0.0.0.0", 0, "0.0.0.0", &e), OK);
    assert_true(api_endpoint_port(s.api) > 0);
    stub_server_stop(&s);
}

/* A key in either header opens; of two, a wrong one does not become right by the other. */
static void two_headers_with_keys(void **state) {
    (void)state;
    stub_server s;
    char both[300];
    call c;
    with_key(&(key_limits){0});
    start_slow(&s, 0);
    snprintf(both, sizeof both, "%s%s", key_line, other_line);
    call_do(&c, &s, both, "{" HELLO "}");
    assert_int_equal(c.a.status, 200);
    call_end(&c);
    snprintf(both, sizeof both, "Authorization: Bearer sk-wrong-wrong-wrong\r\n%s", other_line);
    call_do(&c, &s, both, "{" HELLO "}");
    assert_int_equal(c.a.status, 401);
    call_end(&c);
    stub_server_stop(&s);
}

#define ONE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        ONE(tls_serves),
        ONE(tls_clients_without_http_are_left),
        ONE(tls_handshakes_end_in_time),
        ONE(tls_clients_that_leave_free_the_slot),
        ONE(wrong_tls_files_are_named),
        ONE(a_key_file_may_come_later),
        ONE(limit_of_requests_in_flight),
        ONE(limit_is_given_back_by_those_who_leave),
        ONE(limit_of_tokens_in_an_hour),
        ONE(limit_of_duration),
        ONE(limit_of_context),
        ONE(request_timeout_keeps_what_exists),
        ONE(request_timeout_without_a_token),
        ONE(log_without_prompts),
        ONE(log_with_prompts_hides_keys),
        ONE(other_machines_only_on_purpose),
        ONE(two_headers_with_keys),
    };
    curl_global_init(CURL_GLOBAL_DEFAULT);
    setenv("TANDEM_ALLOW_ROOT", "1", 1); /* other machines are not let in by root otherwise */
    tok = stub_tokenizer_need();
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(tok);
    curl_global_cleanup();
    return rc;
}
