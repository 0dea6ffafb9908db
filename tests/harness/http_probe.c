#include "tests/harness/http_probe.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/api/api.h"
#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "tests/harness/stub_server.h"
#include "tests/harness/wire.h"

/* A server that says nothing for so long hangs; machines that run many tests at once are slow. */
#define PATIENCE_MS 120000
#define ANSWERS_MAX 200
#define CONTEXT_TOKENS 256

struct http_probe {
    tokenizer *tokenizer;
    stub_server server;
    wire kept; /* fd -1: none */
    int counts[6];
};

static const char *const routes[HTTP_PROBE_ROUTES] = {"/v1/chat/completions", "/v1/completions",
    "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/tokenize", "/detokenize",
    "/tandem/v1/cancel", "/v1/chat/completions?x"};

/* A call with its closing tag, text and thinking: what protocols must cut up. */
static const char *const said[] = {"Hel", "lo </think>", "{\"a\":", " 1}"};

static void with_limits(api_options *o) {
    o->max_body_bytes = (size_t)1 << 20;
    o->request_timeout_ms = 100000;
}

http_probe *http_probe_new(void) {
    tokenizer *t = stub_tokenizer_open();
    if (t == NULL) return NULL;
    http_probe *p = mem_alloc(sizeof *p);
    stub_server_options o = {.tokenizer = t, .keep_alive_ms = 1000, .adjust = with_limits};
    o.script =
        (stub_script){.pieces = said, .n_pieces = 4, .n_slots = 4, .max_context = CONTEXT_TOKENS};
    p->tokenizer = t;
    p->kept.fd = -1;
    stub_server_start(&p->server, &o);
    return p;
}

void http_probe_free(http_probe *p) {
    if (p == NULL) return;
    if (p->kept.fd >= 0) wire_close(&p->kept);
    stub_server_stop(&p->server);
    tokenizer_close(p->tokenizer);
    mem_free(p);
}

static bool is_wrong(buf *why, const char *what, const wire_answer *a) {
    buf_reset(why);
    buf_printf(why, "%s\n%.2000s\n%.2000s", what, buf_cstr(&a->head), buf_cstr(&a->body));
    return false;
}

/* Every line of the head is a field with a name, and no byte of a request came through raw. */
static bool head_is_sound(const wire_answer *a) {
    const char *line = buf_cstr(&a->head);
    if (strlen(line) != a->head.len || strncmp(line, "HTTP/1.", 7) != 0) return false;
    while ((line = strstr(line, "\r\n")) != NULL && line[2] != '\0') {
        line += 2;
        size_t n = strcspn(line, "\r\n");
        size_t colon = strcspn(line, ":");
        if (colon == 0 || colon >= n || memchr(line, ' ', colon) != NULL) return false;
        if (line[n] != '\r' || line[n + 1] != '\n') return false;
    }
    return true;
}

static bool error_is_sound(const wire_answer *a) {
    json *v = NULL;
    char type[64];
    wire_header(a, "Content-Type", type, sizeof type);
    if (!str_starts(type, "application/json")) return true; /* the library's own refusal */
    if (a->body.len == 0) return true;                      /* HEAD */
    bool is_sound = json_parse(a->body.data, a->body.len, NULL, &v, NULL) == OK &&
                    json_str(json_get(json_get(v, "error"), "message")) != NULL;
    json_free(v);
    return is_sound;
}

/* 505 without JSON is the library's word for a version that is not HTTP/1. */
static bool is_fault(const wire_answer *a) {
    char type[64];
    wire_header(a, "Content-Type", type, sizeof type);
    return a->status >= 500 && !(a->status == 505 && !str_starts(type, "application/json"));
}

static bool check_answer(http_probe *p, const wire_answer *a, buf *why) {
    p->counts[a->status / 100 % 6]++;
    if (!head_is_sound(a)) return is_wrong(why, "a malformed head", a);
    if (is_fault(a)) return is_wrong(why, "a fault of the server", a);
    if (a->status >= 400 && !error_is_sound(a)) return is_wrong(why, "a malformed error", a);
    if (a->status == 200 && !utf8_valid(buf_cstr(&a->body), a->body.len)) {
        return is_wrong(why, "an answer that is not UTF-8", a);
    }
    /* After the head an engine's fault is an event of the stream. What a client wrote is quoted. */
    if (strstr(buf_cstr(&a->body), "\"code\":\"internal_error\"") != NULL) {
        return is_wrong(why, "an internal error", a);
    }
    return true;
}

static bool read_answers(http_probe *p, wire *w, buf *why) {
    for (int i = 0; i < ANSWERS_MAX; i++) {
        wire_answer a;
        wire_read(w, &a, PATIENCE_MS);
        if (a.status == 0) {
            bool is_end = w->is_closed && (w->in.len == 0 || w->is_reset);
            if (!is_end) is_wrong(why, w->is_closed ? "not an answer" : "no end", &a);
            if (!is_end) buf_printf(why, "%.1000s", buf_cstr(&w->in));
            wire_answer_release(&a);
            return is_end;
        }
        bool is_good = check_answer(p, &a, why);
        /* A connection that the server ends early cuts the answer to bytes that cannot be read. */
        if (is_good && !a.is_complete && !w->is_closed) is_good = is_wrong(why, "cut short", &a);
        wire_answer_release(&a);
        if (!is_good) return false;
    }
    return true;
}

bool http_probe_bytes(http_probe *p, const void *data, size_t n, bool is_tcp, buf *why) {
    wire w;
    if (is_tcp) {
        wire_open_tcp(&w, p->server.port);
    } else {
        wire_open_unix(&w, p->server.socket_path);
    }
    if (w.fd < 0) {
        buf_puts(why, "the server takes no connection");
        return false;
    }
    w.may_lack_body = true;
    /* In two pieces at times: what is there first must not be taken for the whole. */
    size_t n_first = n % 3 == 0 ? n / 2 : n;
    wire_send(&w, data, n_first);
    wire_send(&w, (const char *)data + n_first, n - n_first);
    shutdown(w.fd, SHUT_WR);
    bool is_good = read_answers(p, &w, why);
    wire_close(&w);
    return is_good;
}

bool http_probe_body(http_probe *p, int i_route, const void *data, size_t n, buf *why) {
    wire_answer a;
    buf out = BUF_INIT;
    if (p->kept.fd < 0 || p->kept.is_closed) {
        if (p->kept.fd >= 0) wire_close(&p->kept);
        wire_open_unix(&p->kept, p->server.socket_path);
    }
    buf_printf(&out, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n",
        routes[i_route % HTTP_PROBE_ROUTES], n);
    buf_append(&out, data, n);
    wire_send(&p->kept, out.data, out.len);
    buf_release(&out);
    wire_read(&p->kept, &a, PATIENCE_MS);
    bool is_good = a.status != 0 && a.is_complete ? check_answer(p, &a, why)
                                                  : is_wrong(why, "no whole answer", &a);
    wire_answer_release(&a);
    return is_good;
}

void http_probe_counts(const http_probe *p, int out[6]) {
    memcpy(out, p->counts, sizeof p->counts);
}

bool http_probe_is_idle(http_probe *p) {
    uint64_t deadline = clock_mono_ms() + PATIENCE_MS;
    run_stats stats;
    for (;;) {
        run_stats_get(p->server.run, &stats);
        bool is_idle = stats.n_running + stats.n_waiting == 0 && api_busy(p->server.api) == 0;
        if (is_idle || clock_mono_ms() > deadline) return is_idle && stats.pages_used == 0;
        sleep_ms(5);
    }
}
