#include "engine/api/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "engine/api/api_internal.h"
#include "engine/api/http_head.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

/* Bytes the library asks of a stream at a time. */
#define STREAM_BLOCK_BYTES ((size_t)16 << 10)
/* How often a waiting route looks whether the server closes. */
#define CLOSING_LOOK_MS 200
/* A refused client is read for so long and so much, so that it can take its answer. */
#define LINGER_MS 1000
#define LINGER_BYTES ((size_t)64 << 10)

const char *http_header(const http_request *q, const char *name) {
    return MHD_lookup_connection_value(q->connection, MHD_HEADER_KIND, name);
}

const char *http_query(const http_request *q, const char *name) {
    return MHD_lookup_connection_value(q->connection, MHD_GET_ARGUMENT_KIND, name);
}

int http_query_number(
    const http_request *q, const char *name, int_range range, int64_t *out, api_error *e) {
    const char *text = http_query(q, name);
    int64_t value = 0;
    if (text == NULL) return OK;
    if (parse_i64(text, &value) != OK || value < range.min || value > range.max) {
        return api_bad(e, name, NULL, "%s must be a number from %lld to %lld", name,
            (long long)range.min, (long long)range.max);
    }
    *out = value;
    return OK;
}

/* An origin of the list gets its own name back; "*" stands for any. */
static const char *allowed_origin(const http_request *q) {
    const char *origin = http_header(q, "Origin");
    const char *list = q->api->options.cors_origins;
    if (origin == NULL || list == NULL) return NULL;
    size_t n = strlen(origin);
    if (strcspn(origin, "\r\n\t") != n) return NULL; /* it goes into a head of ours */
    while (*list != '\0') {
        size_t k = strcspn(list, ", ");
        if ((k == 1 && *list == '*') || (k == n && strncmp(list, origin, n) == 0)) return origin;
        list += k;
        list += strspn(list, ", ");
    }
    return NULL;
}

static void add_cors(const http_request *q, struct MHD_Response *r) {
    if (q->api->options.cors_origins == NULL) return;
    MHD_add_response_header(r, "Vary", "Origin");
    const char *origin = allowed_origin(q);
    if (origin == NULL) return;
    MHD_add_response_header(r, "Access-Control-Allow-Origin", origin);
    MHD_add_response_header(
        r, "Access-Control-Expose-Headers", "x-request-id, Retry-After, retry-after-ms");
}

unsigned http_seconds(int32_t ms) {
    return (unsigned)((ms + 999) / 1000);
}

/* A client that takes nothing for so long is gone. The library counts from the last byte, also the
 * time in which it waited for us; setting the time anew from none begins the count. */
static void begin_stall_time(const http_request *q) {
    MHD_set_connection_option(q->connection, MHD_CONNECTION_OPTION_TIMEOUT, 0u);
    MHD_set_connection_option(q->connection, MHD_CONNECTION_OPTION_TIMEOUT,
        http_seconds(q->api->options.stall_timeout_ms));
}

void http_leave_key(http_request *q) {
    if (q->has_left_key) return;
    q->has_left_key = true;
    keys_leave(q->key, q->n_prompt + q->n_completion);
}

static void answer(http_request *q, int status, struct MHD_Response *response) {
    CHECK(!q->has_answered);
    q->has_answered = true;
    q->status = status;
    if (q->producer.fill == NULL) http_leave_key(q);
    if (response == NULL) return;
    MHD_add_response_header(response, "x-request-id", q->id);
    if (q->warning[0] != '\0') MHD_add_response_header(response, "x-tandem-warning", q->warning);
    if (q->must_close) MHD_add_response_header(response, "Connection", "close");
    add_cors(q, response);
    begin_stall_time(q);
    q->late_answer = response;
    http_answer_late(q);
}

/* Between an interim answer and bytes that belong to the next request the library calls a route
 * before it takes the answer; it calls once more when it does. */
void http_answer_late(http_request *q) {
    if (q->late_answer == NULL) return;
    if (MHD_queue_response(q->connection, (unsigned)q->status, q->late_answer) != MHD_YES) return;
    MHD_destroy_response(q->late_answer);
    q->late_answer = NULL;
}

static struct MHD_Response *body_response(buf *body, const char *type) {
    size_t len = body->len;
    char *data = buf_take(body);
    struct MHD_Response *r =
        MHD_create_response_from_buffer_with_free_callback(len, data, mem_free);
    if (r == NULL) {
        mem_free(data);
        return NULL;
    }
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    return r;
}

void http_send(http_request *q, int status, const char *type, buf *body) {
    answer(q, status, body_response(body, type));
}

void http_send_json(http_request *q, int status, buf *body) {
    http_send(q, status, "application/json", body);
}

void http_fail(http_request *q, const api_error *e) {
    buf body = BUF_INIT;
    char text[32];
    api_error_print(e, q->shape, q->id, &body);
    struct MHD_Response *r = body_response(&body, "application/json");
    if (r != NULL && e->retry_after_s > 0) {
        snprintf(text, sizeof text, "%d", e->retry_after_s);
        MHD_add_response_header(r, "Retry-After", text);
        snprintf(text, sizeof text, "%d", e->retry_after_s * 1000);
        MHD_add_response_header(r, "retry-after-ms", text);
    }
    if (r != NULL && e->status == 405) {
        MHD_add_response_header(r, "Allow", q->allow);
    }
    if (r != NULL && e->status == 401) {
        MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    }
    answer(q, api_error_status(e, q->shape), r);
}

/* Lets the client take the answer: bytes that nobody reads would make the system reset the
 * connection. */
static void linger(int fd) {
    char bytes[4096];
    uint64_t deadline = clock_mono_ms() + LINGER_MS;
    size_t n_read = 0;
    shutdown(fd, SHUT_WR);
    while (n_read < LINGER_BYTES) {
        uint64_t now = clock_mono_ms();
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (now >= deadline || poll(&p, 1, (int)(deadline - now)) <= 0) return;
        ssize_t n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n <= 0) return;
        n_read += (size_t)n;
    }
}

void http_refuse(http_request *q, const api_error *e) {
    buf body = BUF_INIT;
    buf head = BUF_INIT;
    int status = api_error_status(e, q->shape);
    q->has_answered = true;
    q->status = status;
    if (q->is_tls) {
        shutdown(q->fd, SHUT_RDWR);
        return;
    }
    api_error_print(e, q->shape, q->id, &body);
    buf_printf(&head,
        "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
        "x-request-id: %s\r\nConnection: close\r\n",
        status, MHD_get_reason_phrase_for((unsigned)status), body.len, q->id);
    const char *origin = allowed_origin(q);
    if (q->api->options.cors_origins != NULL) buf_puts(&head, "Vary: Origin\r\n");
    if (origin != NULL) buf_printf(&head, "Access-Control-Allow-Origin: %s\r\n", origin);
    buf_puts(&head, "\r\n");
    buf_append(&head, body.data, body.len);
    ssize_t n = send(q->fd, head.data, head.len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n == (ssize_t)head.len) linger(q->fd);
    shutdown(q->fd, SHUT_RDWR); /* what the library sends now goes nowhere */
    buf_release(&head);
    buf_release(&body);
}

static ssize_t stream_read(void *ctx, uint64_t pos, char *out, size_t max) {
    http_request *q = ctx;
    (void)pos;
    while (q->out.len == 0) {
        if (q->is_last) return MHD_CONTENT_READER_END_OF_STREAM;
        int rc = q->producer.fill(q->producer.ctx, q, &q->out);
        begin_stall_time(q);
        if (rc == HTTP_BROKEN) return MHD_CONTENT_READER_END_WITH_ERROR;
        q->is_last = rc == HTTP_LAST;
        if (q->is_last) http_leave_key(q);
    }
    size_t n = q->out.len < max ? q->out.len : max;
    memcpy(out, q->out.data, n);
    buf_consume(&q->out, n);
    return (ssize_t)n;
}

void http_stream(http_request *q, const char *type, http_producer producer) {
    q->producer = producer;
    struct MHD_Response *r = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, STREAM_BLOCK_BYTES, stream_read, q, NULL);
    if (r != NULL) {
        MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
        MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
        MHD_add_response_header(r, "X-Accel-Buffering", "no");
    }
    answer(q, 200, r);
}

void http_set_endless(http_request *q) {
    if (!q->is_busy) return;
    q->is_busy = false;
    atomic_fetch_sub(&q->api->n_busy, 1);
}

/* A half-closed client that waits for a whole answer is asked with an interim response whether it
 * still reads: one that has closed its socket answers with a reset. HTTP/1.0 knows no interim
 * responses, such a client is served. */
static void probe(http_request *q) {
    static const char interim[] = "HTTP/1.1 102 Processing\r\n\r\n";
    q->has_probed = true;
    if (q->is_http10) return;
    ssize_t n = send(q->fd, interim, sizeof interim - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)n; /* a failure shows in the next poll */
}

static int look(http_request *q, const struct pollfd *p, int n_fds, bool is_streaming) {
    if (atomic_load(&q->api->is_closing)) return HTTP_GONE;
    if ((p[n_fds].revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) return HTTP_GONE;
    if ((p[n_fds].revents & POLLRDHUP) != 0 && !q->has_probed) {
        /* TLS ends both directions at once, and nothing of our own can be sent to make sure. */
        if (q->is_tls) return HTTP_GONE;
        if (is_streaming) {
            q->has_probed = true;
            return HTTP_HALF_CLOSED;
        }
        probe(q);
    }
    for (int i = 0; i < n_fds; i++) {
        if (p[i].revents != 0) return HTTP_WAKE;
    }
    return HTTP_TIMEOUT;
}

int http_wait(http_request *q, const int *fds, int n_fds, int timeout_ms, bool is_streaming) {
    struct pollfd p[9];
    uint64_t deadline = clock_mono_ms() + (timeout_ms > 0 ? (uint64_t)timeout_ms : 0);
    CHECK(n_fds <= 8);
    for (;;) {
        uint64_t now = clock_mono_ms();
        uint64_t left = deadline > now ? deadline - now : 0;
        bool is_last = left <= CLOSING_LOOK_MS && timeout_ms >= 0;
        for (int i = 0; i < n_fds; i++) {
            p[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
        }
        /* After the probe a half-closed socket would be readable for ever: only errors count. */
        short events = q->has_probed ? 0 : POLLRDHUP;
        p[n_fds] = (struct pollfd){.fd = q->fd, .events = events};
        int rc = poll(p, (nfds_t)n_fds + 1, is_last ? (int)left : CLOSING_LOOK_MS);
        if (rc < 0 && errno != EINTR) return HTTP_GONE;
        if (rc < 0) continue;
        int found = look(q, p, n_fds, is_streaming);
        if (found != HTTP_TIMEOUT || is_last) return found;
    }
}

void http_options(http_request *q, const char *methods) {
    struct MHD_Response *r = MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT);
    if (r != NULL) {
        const char *wanted = http_header(q, "Access-Control-Request-Headers");
        MHD_add_response_header(r, "Allow", methods);
        if (allowed_origin(q) != NULL) {
            MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
            MHD_add_response_header(r, "Access-Control-Allow-Headers",
                wanted != NULL && wanted[0] != '\0' ? wanted : "authorization, content-type");
            MHD_add_response_header(r, "Access-Control-Max-Age", "600");
        }
    }
    answer(q, 204, r);
}

/* The key a client shows, with the blanks that the library leaves behind it; NULL: none. */
static const char *given_key(const http_request *q) {
    const char *line = http_header(q, "Authorization");
    if (line != NULL && strncasecmp(line, "Bearer ", 7) == 0) {
        line += 7;
        return line + strspn(line, " ");
    }
    return http_header(q, "x-api-key");
}

int http_enter(http_request *q, api_error *e) {
    keys *k = q->api->keys;
    err why = ERR_INIT;
    int retry_s = 0;
    if (k == NULL || q->is_local) return OK;
    const char *given = given_key(q);
    char *key = given != NULL ? mem_strndup(given, http_head_value_len(given)) : NULL;
    int rc = keys_enter(k, key, &q->key, &retry_s, &why);
    mem_free(key);
    if (rc == OK) return OK;
    if (rc == ERR_FULL) {
        api_set(e, 429, "rate_limit_error", "queue_full", why.msg);
        e->retry_after_s = retry_s;
        return rc;
    }
    return api_set(e, 401, "authentication_error", "invalid_api_key",
        given != NULL ? "the key is not known here"
                      : "a key is needed: Authorization: Bearer KEY, or x-api-key: KEY");
}

int http_check_limits(http_request *q, size_t n_prompt, int32_t *max_tokens, api_error *e) {
    if (q->key == NULL) return OK;
    int64_t most = key_user_limits(q->key)->context;
    if (most == 0) return OK;
    if ((int64_t)n_prompt >= most) {
        return api_bad(e, "messages", "context_length_exceeded",
            "the prompt has %zu tokens; this key may use %lld for prompt and reply", n_prompt,
            (long long)most);
    }
    int64_t left = most - (int64_t)n_prompt;
    if (*max_tokens > left) *max_tokens = (int32_t)left;
    return OK;
}

int http_body_json(http_request *q, json **out, api_error *e) {
    err why = ERR_INIT;
    if (q->body.len == 0) return api_bad(e, NULL, NULL, "the body is empty; send a JSON object");
    int rc = json_parse(q->body.data, q->body.len, NULL, out, &why);
    if (rc != OK) return api_bad(e, NULL, NULL, "the body is not valid JSON: %s", why.msg);
    if (!json_is_object(*out)) {
        const char *kind = json_kind(*out);
        json_free(*out);
        *out = NULL;
        return api_bad(e, NULL, NULL, "the body must be a JSON object, not a JSON %s", kind);
    }
    return OK;
}
