/* 200 idle connections, 50 slow clients and 20 streams at once, on both kinds of socket: the streams
 * are whole, the slow ones end by their deadlines, the idle ones still serve. */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "tests/harness/sse_message.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/wire.h"

enum {
    N_IDLE = 200,
    N_SENDERS = 25,
    N_READERS = 25,
    N_STREAMS = 20,
    N_TIMES = 600, /* of four pieces: a stream is longer than the buffers of a Unix socket */
    PATIENCE_MS = 180000
};

/* Long enough for the quick ones on a machine that does many other things. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define DEADLINE_MS 40000
#else
#define DEADLINE_MS 20000
#endif
#define BODY(more) "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]" more "}"
#define HEAD "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"

static tokenizer *tok;
static const char *const pieces[] = {"Hel", "lo", " wor", "ld "};
static _Atomic int is_held;

static void with_deadlines(api_options *o) {
    o->head_timeout_ms = DEADLINE_MS;
    o->body_timeout_ms = DEADLINE_MS / 10; /* ten times that in all */
    o->stall_timeout_ms = DEADLINE_MS;
    o->idle_timeout_ms = PATIENCE_MS * 2;
}

/* ---- the streams ---- */

typedef struct streamer {
    pthread_t thread;
    wire w;
    buf reference; /* the content */
    char fault[200];
} streamer;

static void *read_stream(void *ctx) {
    streamer *s = ctx;
    sse_message m = {0};
    wire_answer a;
    const char *why = "";
    wire_read(&s->w, &a, PATIENCE_MS);
    sse_read_stream(&a.body, &m);
    if (a.status != 200 || !a.is_complete) {
        snprintf(s->fault, sizeof s->fault, "status %d, whole: %d", a.status, a.is_complete);
    } else if (m.n_bad_lines > 0 || !sse_check_rule(&m, "ends_with_done", &why)) {
        snprintf(s->fault, sizeof s->fault, "malformed: %s", why);
    } else if (strcmp(buf_cstr(&m.content), buf_cstr(&s->reference)) != 0) {
        snprintf(s->fault, sizeof s->fault, "%zu bytes of text, not %zu", m.content.len,
            s->reference.len);
    }
    sse_message_release(&m);
    wire_answer_release(&a);
    return NULL;
}

static void open_wire(wire *w, const stub_server *s, int i) {
    if (i % 2 == 0) {
        wire_open_unix(w, s->socket_path);
    } else {
        wire_open_tcp(w, s->port);
    }
    assert_true(w->fd >= 0);
}

/* ---- the slow ---- */

/* Some do not get to the end of the head, the others not to the end of the body. */
static void begin_sending(wire *w, int i) {
    static const char *const starts[] = {HEAD "x-slow: ", HEAD "Content-Length: 999\r\n\r\n{",
        HEAD "Transfer-Encoding: chunked\r\n\r\n3e7\r\n{"};
    wire_send(w, starts[i % 3], strlen(starts[i % 3]));
}

/* Bytes keep dripping; each is heard of before its limit of silence, and still all of them end. */
static void drip_to_the_end(wire *w, int n) {
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    int n_open = n;
    while (n_open > 0 && clock_mono_ms() < deadline) {
        n_open = 0;
        for (int i = 0; i < n; i++) {
            if (w[i].is_closed) continue;
            if (!wire_send(&w[i], " ", 1)) w[i].is_closed = true;
            wire_receive(&w[i], 0);
            n_open += !w[i].is_closed;
        }
        sleep_ms(50);
    }
    assert_int_equal(n_open, 0);
}

/* Nothing was read so far. What was on its way comes, but never the end of the answer. */
static void read_the_rest(wire *w) {
    struct pollfd p = {.fd = w->fd, .events = POLLRDHUP};
    assert_int_equal(poll(&p, 1, PATIENCE_MS), 1); /* the server closes while nothing is read */
    while (!w->is_closed) {
        wire_receive(w, 100);
    }
    assert_non_null(strstr(buf_cstr(&w->in), "HTTP/1.1 200"));
    assert_null(strstr(buf_cstr(&w->in), "[DONE]"));
}

static void check_idle(wire *w) {
    wire_answer a;
    for (int i = 0; i < N_IDLE; i++) {
        wire_request(&w[i], "GET", "/health", "", NULL);
        wire_read(&w[i], &a, PATIENCE_MS);
        assert_int_equal(a.status, 200);
        wire_answer_release(&a);
        wire_close(&w[i]);
    }
}

static void start_server(stub_server *s) {
    stub_server_options o = {.tokenizer = tok, .queue_cap = 64, .adjust = with_deadlines};
    o.script = (stub_script){.pieces = pieces,
        .n_pieces = 4,
        .n_times = N_TIMES,
        .n_slots = N_STREAMS,
        .max_rows = 64,
        .is_held = &is_held};
    stub_server_start(s, &o);
}

/* The whole answer of a server that does nothing else. */
static void make_reference(const stub_server *s, buf *out) {
    wire w;
    wire_answer a;
    sse_message m = {0};
    json *v = NULL;
    open_wire(&w, s, 0);
    wire_request(&w, "POST", "/v1/chat/completions", "", BODY(""));
    wire_read(&w, &a, PATIENCE_MS);
    assert_int_equal(a.status, 200);
    assert_int_equal(json_parse(buf_cstr(&a.body), a.body.len, NULL, &v, NULL), OK);
    sse_read_whole(v, &m);
    buf_append(out, m.content.data, m.content.len);
    assert_true(out->len > 1000);
    json_free(v);
    sse_message_release(&m);
    wire_answer_release(&a);
    wire_close(&w);
}

static void they_do_not_disturb_each_other(void **state) {
    (void)state;
    static wire idle[N_IDLE], senders[N_SENDERS], readers[N_READERS];
    static streamer streams[N_STREAMS];
    buf reference = BUF_INIT;
    stub_server s;
    start_server(&s);
    make_reference(&s, &reference);
    int n_before = stub_most_spans(s.source);
    is_held = 1; /* the first step waits until all are there */
    for (int i = 0; i < N_IDLE; i++) {
        open_wire(&idle[i], &s, i);
    }
    /* More of them than slots, and first: none may hold one for as long as it stalls. */
    for (int i = 0; i < N_READERS; i++) {
        open_wire(&readers[i], &s, 0);
        wire_request(&readers[i], "POST", "/v1/chat/completions", "", BODY(",\"stream\":true"));
    }
    assert_true(stub_server_wait(&s, N_READERS));
    for (int i = 0; i < N_STREAMS; i++) {
        streams[i].reference = reference;
        open_wire(&streams[i].w, &s, i);
        wire_request(&streams[i].w, "POST", "/v1/chat/completions", "", BODY(",\"stream\":true"));
        assert_int_equal(pthread_create(&streams[i].thread, NULL, read_stream, &streams[i]), 0);
    }
    assert_true(stub_server_wait(&s, N_READERS + N_STREAMS));
    for (int i = 0; i < N_SENDERS; i++) {
        open_wire(&senders[i], &s, i);
        begin_sending(&senders[i], i);
    }
    is_held = 0;
    for (int i = 0; i < N_STREAMS; i++) {
        pthread_join(streams[i].thread, NULL);
        if (streams[i].fault[0] != '\0') fail_msg("stream %d: %s", i, streams[i].fault);
        wire_close(&streams[i].w);
    }
    assert_true(n_before < N_STREAMS && stub_most_spans(s.source) >= N_STREAMS);
    drip_to_the_end(senders, N_SENDERS);
    for (int i = 0; i < N_SENDERS; i++) {
        wire_close(&senders[i]);
    }
    for (int i = 0; i < N_READERS; i++) {
        read_the_rest(&readers[i]);
        wire_close(&readers[i]);
    }
    check_idle(idle);
    stub_server_stop(&s);
    buf_release(&reference);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(they_do_not_disturb_each_other)};
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files); /* both ends of 270 connections are ours */
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    tok = stub_tokenizer_need();
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    tokenizer_close(tok);
    return rc;
}
