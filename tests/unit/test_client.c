/* The client against a scripted server on a Unix socket: one answer per connection, in order. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/json.h"
#include "engine/base/str.h"
#include "tui/client.h"

/* For what comes at once when the other thread gets the processor. */
enum { WAIT_MS = 120000 };

typedef struct answer {
    const char *head;   /* sent first */
    const char *pieces; /* then cut into pieces of `step` bytes */
    size_t step;
    bool is_held; /* keep the connection open, noticing a close by the client */
} answer;

typedef struct server {
    pthread_t thread;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    char dir[64];
    int listen_fd, stop_pipe[2];
    const answer *answers;
    int n_answers;
    buf requests; /* all that was received, read after the thread ended */
    int n_client_closed;
} server;

static void send_all(int fd, const char *p, size_t n) {
    while (n > 0) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent <= 0) return;
        p += sent;
        n -= (size_t)sent;
    }
}

/* Reads the head and, by its Content-Length, the body. */
static void read_request(int fd, buf *out) {
    size_t from = out->len, need = 0;
    char part[4096];
    ssize_t n;
    while ((n = recv(fd, part, sizeof part, 0)) > 0) {
        buf_append(out, part, (size_t)n);
        const char *end = strstr(out->data + from, "\r\n\r\n");
        if (end == NULL) continue;
        const char *length = strstr(out->data + from, "Content-Length: ");
        need =
            (size_t)(end + 4 - out->data) + (length != NULL ? strtoul(length + 16, NULL, 10) : 0);
        if (out->len >= need) return;
    }
}

static void serve(server *s, int fd, const answer *a) {
    read_request(fd, &s->requests);
    send_all(fd, a->head, strlen(a->head));
    size_t n = strlen(a->pieces);
    for (size_t at = 0; at < n; at += a->step) {
        send_all(fd, a->pieces + at, n - at < a->step ? n - at : a->step);
    }
    if (a->is_held) {
        struct pollfd fds[2] = {
            {.fd = fd, .events = POLLIN}, {.fd = s->stop_pipe[0], .events = POLLIN}};
        char byte;
        if (poll(fds, 2, WAIT_MS) > 0 && fds[0].revents != 0 && recv(fd, &byte, 1, 0) <= 0) {
            s->n_client_closed++;
        }
    }
    close(fd);
}

static void *server_main(void *ctx) {
    server *s = ctx;
    for (int i = 0; i < s->n_answers; i++) {
        struct pollfd fds[2] = {
            {.fd = s->listen_fd, .events = POLLIN}, {.fd = s->stop_pipe[0], .events = POLLIN}};
        if (poll(fds, 2, WAIT_MS) <= 0 || fds[1].revents != 0) break;
        int fd = accept(s->listen_fd, NULL, NULL);
        if (fd >= 0) serve(s, fd, &s->answers[i]);
    }
    return NULL;
}

static void server_listen(server *s) {
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    str_copy(a.sun_path, sizeof a.sun_path, s->path);
    s->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s->listen_fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s->listen_fd, 8), 0);
}

static void server_init(server *s, const answer *answers, int n) {
    *s = (server){.answers = answers, .n_answers = n, .requests = BUF_INIT, .listen_fd = -1};
    str_copy(s->dir, sizeof s->dir, "/tmp/tandem-client-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    buf path = BUF_INIT;
    buf_printf(&path, "%s/engine.sock", s->dir);
    str_copy(s->path, sizeof s->path, buf_cstr(&path));
    buf_release(&path);
    assert_int_equal(pipe(s->stop_pipe), 0);
    if (n > 0) {
        server_listen(s);
        assert_int_equal(pthread_create(&s->thread, NULL, server_main, s), 0);
    }
}

static void server_end(server *s) {
    if (s->n_answers > 0) {
        assert_int_equal(write(s->stop_pipe[1], "x", 1), 1);
        pthread_join(s->thread, NULL);
        close(s->listen_fd);
    }
    close(s->stop_pipe[0]);
    close(s->stop_pipe[1]);
    unlink(s->path);
    rmdir(s->dir);
    buf_release(&s->requests);
}

/* What a call told. */
typedef struct heard {
    buf text; /* reply text */
    int n_open, n_end, n_stats, n_lost, n_progress;
    int64_t done, total;
    int status, retry_after_s;
    err error;
    client *c;          /* to cancel on the first text */
    client_call **call; /* NULL: do not cancel */
} heard;

static void on_event(void *ctx, const client_event *ev) {
    heard *h = ctx;
    switch (ev->kind) {
    case CLIENT_OPEN:
        h->n_open++;
        break;
    case CLIENT_CHAT:
        if (ev->chat->kind == CHAT_EVENT_CONTENT) {
            buf_append(&h->text, ev->chat->text, ev->chat->len);
            if (h->call != NULL) client_cancel(h->c, *h->call);
        }
        break;
    case CLIENT_PROGRESS:
        h->n_progress++;
        if (ev->total >= 0) {
            h->done = ev->done;
            h->total = ev->total;
        }
        break;
    case CLIENT_STATS:
        h->n_stats++;
        buf_append(&h->text, ev->text, ev->len);
        break;
    case CLIENT_LOST:
        h->n_lost++;
        h->error = *ev->error;
        break;
    case CLIENT_END:
        h->n_end++;
        h->status = ev->status;
        h->retry_after_s = ev->retry_after_s;
        h->error = ev->error != NULL ? *ev->error : (err)ERR_INIT;
        if (ev->reply == NULL) buf_append(&h->text, ev->text, ev->len);
        break;
    }
}

#define STREAM_HEAD                                                                                \
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nConnection: close\r\n\r\n"
#define DELTA(text)                                                                                \
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"" text                              \
    "\"},\"finish_reason\":null}]}\n\n"
#define FINISH "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
#define DONE "data: [DONE]\n\n"

static const chat_message HELLO[] = {{.role = "user", .content = "Hello"}};

static void chat_once(server *s, heard *h, client_limits limits) {
    client *c = NULL;
    client_call *call = NULL;
    err e = ERR_INIT;
    assert_int_equal(client_open(s->path, &c, &e), OK);
    h->c = c;
    if (h->call != NULL) h->call = &call;
    chat_request r = {.messages = HELLO, .n_messages = 1, .limits = limits};
    assert_int_equal(client_chat(c, &r, (client_sink){on_event, h}, &call, &e), OK);
    assert_int_equal(client_wait(c, call, -1, 2 * WAIT_MS, &e), OK);
    assert_int_equal(client_n_calls(c), 0);
    assert_int_equal(h->n_end, 1);
    client_close(c);
}

static void streams_a_reply_in_any_pieces(void **state) {
    (void)state;
    for (size_t step = 1; step < 40; step += 6) {
        const answer a = {STREAM_HEAD,
            ": keep-alive\n\n: prefill 12/40\n\n" DELTA("Hi \\u20ac") DELTA(" there") FINISH DONE,
            step, false};
        server s;
        heard h = {.text = BUF_INIT};
        server_init(&s, &a, 1);
        chat_once(&s, &h, (client_limits){0});
        assert_string_equal(buf_cstr(&h.text), "Hi \xE2\x82\xAC there");
        assert_int_equal(h.error.code, OK);
        assert_int_equal(h.n_open, 1);
        assert_int_equal(h.n_progress, 2);
        assert_int_equal(h.done, 12);
        assert_int_equal(h.total, 40);
        server_end(&s);
        buf_release(&h.text);
    }
}

static void ends_soon_after_the_end_marker(void **state) {
    (void)state;
    const answer a = {STREAM_HEAD, DELTA("x") FINISH DONE, 999, true};
    server s;
    heard h = {.text = BUF_INIT};
    server_init(&s, &a, 1);
    chat_once(&s, &h, (client_limits){0});
    assert_int_equal(h.error.code, OK);
    server_end(&s);
    assert_int_equal(s.n_client_closed, 1);
    buf_release(&h.text);
}

static void an_engine_that_dies_keeps_the_text(void **state) {
    (void)state;
    const answer a = {STREAM_HEAD, DELTA("half a "), 999, false};
    const answer chunked = {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                            "Transfer-Encoding: chunked\r\n\r\n",
        "57\r\n" DELTA("half a ") "\r\n", 999, false};
    const answer *both[] = {&a, &chunked};
    for (int i = 0; i < 2; i++) {
        server s;
        heard h = {.text = BUF_INIT};
        server_init(&s, both[i], 1);
        chat_once(&s, &h, (client_limits){0});
        assert_int_equal(h.error.code, ERR_NET);
        assert_string_equal(buf_cstr(&h.text), "half a ");
        server_end(&s);
        buf_release(&h.text);
    }
}

static void no_engine_is_said_with_the_remedy(void **state) {
    (void)state;
    server s;
    heard h = {.text = BUF_INIT};
    server_init(&s, NULL, 0);
    chat_once(&s, &h, (client_limits){0});
    assert_int_equal(h.error.code, ERR_NOT_FOUND);
    assert_non_null(strstr(h.error.msg, "tandem start"));
    server_end(&s);
}

static void a_refusal_keeps_status_and_sentence(void **state) {
    (void)state;
    const answer a = {"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 76\r\n\r\n",
        "{\"error\":{\"message\":\"still loading\",\"type\":\"server_error\",\"code\":\"loading\"}}",
        5, false};
    assert_int_equal(strlen(a.pieces), 76);
    server s;
    heard h = {.text = BUF_INIT};
    server_init(&s, &a, 1);
    chat_once(&s, &h, (client_limits){0});
    assert_int_equal(h.status, 503);
    assert_int_equal(h.retry_after_s, 7);
    assert_int_equal(h.error.code, ERR_BUSY);
    assert_string_equal(h.error.msg, "still loading");
    assert_int_equal(h.n_open, 0);
    server_end(&s);
    buf_release(&h.text);
}

static void cancel_inside_a_callback_closes_the_connection(void **state) {
    (void)state;
    const answer a = {STREAM_HEAD, DELTA("first"), 999, true};
    server s;
    client_call *unused = NULL;
    heard h = {.text = BUF_INIT, .call = &unused};
    server_init(&s, &a, 1);
    chat_once(&s, &h, (client_limits){0});
    assert_int_equal(h.error.code, ERR_CANCELLED);
    server_end(&s);
    assert_int_equal(s.n_client_closed, 1);
    buf_release(&h.text);
}

static void silence_and_total_time_have_limits(void **state) {
    (void)state;
    const answer a = {STREAM_HEAD, DELTA("x"), 999, true};
    /* The text has to come before the limit: one that was too short for this machine is doubled. */
    for (int limit_ms = 100, n_right = 0; n_right < 2; limit_ms *= 2) {
        server s;
        heard h = {.text = BUF_INIT};
        client_limits limits = {0};
        *(n_right == 0 ? &limits.stall_ms : &limits.total_ms) = limit_ms;
        server_init(&s, &a, 1);
        chat_once(&s, &h, limits);
        assert_int_equal(h.error.code, ERR_TIMEOUT);
        if (h.text.len > 0 || limit_ms > WAIT_MS) {
            assert_string_equal(buf_cstr(&h.text), "x");
            n_right++;
        }
        server_end(&s);
        buf_release(&h.text);
    }
}

static void the_stats_stream_comes_back(void **state) {
    (void)state;
    const answer answers[] = {{STREAM_HEAD, "data: {\"n\":1}\n\ndata: {\"n\":2}\n\n", 3, false},
        {STREAM_HEAD, "data: {\"n\":3}\n\n", 999, true}};
    server s;
    heard h = {.text = BUF_INIT};
    client *c = NULL;
    client_call *call = NULL;
    err e = ERR_INIT;
    server_init(&s, answers, 2);
    assert_int_equal(client_open(s.path, &c, &e), OK);
    /* Silence is judged by the interval: here the server may take its time. */
    assert_int_equal(client_stats(c, WAIT_MS, (client_sink){on_event, &h}, &call, &e), OK);
    uint64_t deadline = clock_mono_ms() + WAIT_MS;
    while (h.n_stats < 3 && clock_mono_ms() < deadline)
        client_wait(c, call, -1, 20, NULL);
    assert_string_equal(buf_cstr(&h.text), "{\"n\":1}{\"n\":2}{\"n\":3}");
    assert_int_equal(h.n_lost, 1);
    assert_int_equal(h.n_open, 2);
    client_cancel(c, call);
    client_pump(c);
    assert_int_equal(h.n_end, 1);
    assert_int_equal(h.error.code, ERR_CANCELLED);
    assert_false(client_is_live(c, call));
    client_close(c);
    server_end(&s);
    buf_release(&h.text);
}

static void fetches_a_body_and_survives_a_100(void **state) {
    (void)state;
    const answer a = {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n",
        "{\"ok\":true}", 4, false};
    server s;
    client *c = NULL;
    buf body = BUF_INIT;
    err e = ERR_INIT;
    int status = 0;
    server_init(&s, &a, 1);
    assert_int_equal(client_open(s.path, &c, &e), OK);
    client_request r = {.path = "/tandem/v1/cancel", .body = "{\"id\":\"x\"}"};
    assert_int_equal(client_fetch(c, &r, &body, &status, &e), OK);
    assert_int_equal(status, 200);
    assert_string_equal(buf_cstr(&body), "{\"ok\":true}");
    client_close(c);
    server_end(&s);
    buf_release(&body);
}

static void a_waiting_command_can_be_stopped(void **state) {
    (void)state;
    const answer a = {STREAM_HEAD, DELTA("x"), 999, true};
    server s;
    heard h = {.text = BUF_INIT};
    client *c = NULL;
    client_call *call = NULL;
    err e = ERR_INIT;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "!", 1), 1);
    server_init(&s, &a, 1);
    assert_int_equal(client_open(s.path, &c, &e), OK);
    chat_request r = {.messages = HELLO, .n_messages = 1};
    assert_int_equal(client_chat(c, &r, (client_sink){on_event, &h}, &call, &e), OK);
    assert_int_equal(client_wait(c, call, ends[0], WAIT_MS, &e), ERR_CANCELLED);
    assert_true(client_is_live(c, call));
    client_close(c);
    server_end(&s);
    close(ends[0]);
    close(ends[1]);
    buf_release(&h.text);
}

static void writes_the_request_body(void **state) {
    (void)state;
    const chat_message messages[] = {{.role = "system", .content = "Be \"short\"."},
        {.role = "user", .content = "Hi"},
        {.role = "assistant", .content = "He", .reasoning = "hm", .tool_calls_json = "[1]"}};
    chat_request r = {.messages = messages, .n_messages = 3};
    r.options = (chat_options){.set = CHAT_TEMPERATURE | CHAT_SEED | CHAT_MAX_TOKENS,
        .temperature = 0.25,
        .seed = INT64_MAX,
        .max_tokens = 9,
        .thinking = CHAT_THINKING_ON,
        .effort = "low",
        .stops = {"END"},
        .n_stops = 1,
        .is_continuation = true};
    buf out = BUF_INIT;
    assert_int_equal(client_chat_body(&r, &out, NULL), OK);
    assert_string_equal(buf_cstr(&out),
        "{\"model\":\"tandem\",\"messages\":[{\"role\":\"system\",\"content\":\"Be \\\"short\\\".\"},"
        "{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"He\","
        "\"reasoning_content\":\"hm\",\"tool_calls\":[1]}],\"stream\":true,\"stream_options\":"
        "{\"include_usage\":true},\"temperature\":0.25,\"seed\":9223372036854775807,"
        "\"max_tokens\":9,\"stop\":[\"END\"],\"chat_template_kwargs\":{\"enable_thinking\":true},"
        "\"reasoning_effort\":\"low\",\"continue_final_message\":true}");
    buf_reset(&out);
    r = (chat_request){.messages = HELLO, .n_messages = 1};
    assert_int_equal(client_chat_body(&r, &out, NULL), OK);
    assert_null(strstr(buf_cstr(&out), "thinking"));
    assert_null(strstr(buf_cstr(&out), "temperature"));
    buf_release(&out);
}

static void a_long_socket_path_is_refused(void **state) {
    (void)state;
    char path[300];
    memset(path, 'a', sizeof path - 1);
    path[0] = '/';
    path[sizeof path - 1] = '\0';
    client *c = NULL;
    err e = ERR_INIT;
    assert_int_equal(client_open(path, &c, &e), ERR_ARG);
    assert_null(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_a_reply_in_any_pieces),
        cmocka_unit_test(ends_soon_after_the_end_marker),
        cmocka_unit_test(an_engine_that_dies_keeps_the_text),
        cmocka_unit_test(no_engine_is_said_with_the_remedy),
        cmocka_unit_test(a_refusal_keeps_status_and_sentence),
        cmocka_unit_test(cancel_inside_a_callback_closes_the_connection),
        cmocka_unit_test(silence_and_total_time_have_limits),
        cmocka_unit_test(the_stats_stream_comes_back),
        cmocka_unit_test(fetches_a_body_and_survives_a_100),
        cmocka_unit_test(a_waiting_command_can_be_stopped),
        cmocka_unit_test(writes_the_request_body),
        cmocka_unit_test(a_long_socket_path_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
