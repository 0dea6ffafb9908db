#include <microhttpd.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/api/api_internal.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/base/thread.h"

#define HEADER_MEMORY_BYTES ((size_t)48 << 10)
#define THREAD_STACK_BYTES ((size_t)512 << 10)
#define IDLE_TIMEOUT_S 75u
/* In the metrics: the client went away before there was an answer. */
#define STATUS_CLIENT_GONE 499
#define CONNECTIONS_DEFAULT 512u

typedef struct listener {
    api *a;
    bool is_local;
    struct MHD_Daemon *daemon;
} listener;

/* What the raw head of a request says that the library lets pass. */
typedef struct head_look {
    int n_length, n_encoding, n_host;
    const char *encoding, *length;
    bool has_control;
} head_look;

static bool has_control_byte(const char *s, size_t n, char lowest) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if ((c < (unsigned char)lowest && c != '\t') || c == 0x7f) return true;
    }
    return false;
}

static enum MHD_Result look_at_header(void *ctx, enum MHD_ValueKind kind, const char *key,
    size_t n_key, const char *value, size_t n_value) {
    head_look *h = ctx;
    (void)kind;
    if (str_eq_nocase(key, "Content-Length")) {
        h->n_length++;
        h->length = value;
    } else if (str_eq_nocase(key, "Transfer-Encoding")) {
        h->n_encoding++;
        h->encoding = value;
    } else if (str_eq_nocase(key, "Host")) {
        h->n_host++;
    }
    h->has_control |= has_control_byte(key, n_key, 0x21);
    h->has_control |= value != NULL && has_control_byte(value, n_value, 0x20);
    return MHD_YES;
}

/* Refusals decided by the head alone, before the body is read. */
static int check_head(http_request *q, size_t max_body, api_error *e) {
    head_look h = {0};
    uint64_t length = 0;
    MHD_get_connection_values_n(q->connection, MHD_HEADER_KIND, look_at_header, &h);
    if (h.has_control) return api_bad(e, NULL, NULL, "a header holds a control character");
    if (h.n_host > 1) return api_bad(e, NULL, NULL, "more than one Host header");
    if (h.n_length > 0 && h.n_encoding > 0) {
        return api_bad(e, NULL, NULL, "both Content-Length and Transfer-Encoding are given");
    }
    if (h.n_length > 1) return api_bad(e, NULL, NULL, "more than one Content-Length");
    if (h.n_encoding > 0 && (h.n_encoding > 1 || !str_eq_nocase(h.encoding, "chunked"))) {
        return api_bad(e, NULL, NULL, "the Transfer-Encoding is not understood; use chunked");
    }
    if (h.n_length == 1) {
        int rc = parse_u64(h.length, &length);
        if (rc == ERR_FORMAT) return api_bad(e, NULL, NULL, "Content-Length is not a number");
        if (rc != OK || length > max_body) {
            return api_set(e, 413, "invalid_request_error", NULL, "the body is too large");
        }
    }
    const char *encoding = http_header(q, "Content-Encoding");
    if (encoding != NULL && !str_eq_nocase(encoding, "identity")) {
        return api_set(e, 415, "invalid_request_error", NULL, "send the body without compression");
    }
    return OK;
}

/* The path without query, trailing slash and a leading /v1. */
static char *normal_path(const char *url) {
    char *path = mem_strdup(url);
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') {
        path[--n] = '\0';
    }
    if (str_starts(path, "/v1/")) {
        memmove(path, path + 3, n - 2);
    }
    return path;
}

static void name_request(http_request *q) {
    const char *given = http_header(q, "x-request-id");
    size_t n = given != NULL ? strlen(given) : 0;
    bool is_usable = n > 0 && n <= 128;
    for (size_t i = 0; i < n && is_usable; i++) {
        is_usable = given[i] > 0x20 && given[i] < 0x7f;
    }
    if (is_usable) {
        str_copy(q->id, sizeof q->id, given);
    } else {
        api_new_id("req_", q->id);
    }
}

static http_request *request_new(const listener *l, struct MHD_Connection *c, const char *url,
    const char *method, const char *version) {
    http_request *q = mem_alloc(sizeof *q);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    q->api = l->a;
    q->connection = c;
    q->fd = info != NULL ? info->connect_fd : -1;
    q->is_local = l->is_local;
    q->is_http10 = strcmp(version, "HTTP/1.0") == 0;
    q->method = method;
    q->path = normal_path(url);
    q->body.max = l->a->options.max_body_bytes;
    q->start_ns = clock_mono_ns();
    name_request(q);
    return q;
}

/* Bytes that found no room. */
static size_t take_body(http_request *q, const char *data, size_t n) {
    if (!q->has_answered && q->n_dropped == 0 && buf_append(&q->body, data, n) == OK) return 0;
    buf_release(&q->body);
    return n;
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *c, const char *url,
    const char *method, const char *version, const char *data, size_t *n_data, void **state) {
    const listener *l = ctx;
    http_request *q = *state;
    api_error e;
    if (q == NULL) {
        q = request_new(l, c, url, method, version);
        *state = q;
        if (!q->is_http10 && strcmp(version, "HTTP/1.1") != 0) {
            api_set(&e, 505, "invalid_request_error", NULL, "use HTTP/1.1");
            http_fail(q, &e);
        } else if (check_head(q, q->body.max, &e) != OK) {
            http_fail(q, &e);
        }
        return MHD_YES;
    }
    if (*n_data > 0) {
        /* Once the body is too large the rest is read and dropped, within reason, so that the
         * client gets its answer: the library can not answer in the middle of a body. */
        q->n_dropped += take_body(q, data, *n_data);
        *n_data = 0;
        return q->n_dropped > l->a->options.max_body_bytes ? MHD_NO : MHD_YES;
    }
    if (!q->has_answered && q->n_dropped > 0) {
        api_set(&e, 413, "invalid_request_error", NULL, "the body is too large");
        http_fail(q, &e);
    }
    if (!q->has_answered) {
        log_request(q->id);
        q->is_busy = true;
        atomic_fetch_add(&l->a->n_busy, 1);
        api_dispatch(q);
        log_request(NULL);
    }
    return MHD_YES;
}

static void on_completed(
    void *ctx, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode code) {
    http_request *q = *state;
    (void)ctx;
    (void)c;
    (void)code;
    if (q == NULL) return;
    http_set_endless(q);
    if (q->producer.release != NULL) {
        q->producer.release(q->producer.ctx);
    }
    api_metrics *m = &q->api->metrics;
    if (q->status == 0) q->status = STATUS_CLIENT_GONE;
    api_metrics_request(m, q->route != NULL ? q->route : "other", q->status, q->finish);
    metric_observe(m->request, (double)(clock_mono_ns() - q->start_ns) / 1e9);
    buf_release(&q->body);
    buf_release(&q->out);
    mem_free(q->path);
    mem_free(q);
    *state = NULL;
}

static void on_log(void *ctx, const char *format, va_list ap) {
    char text[256];
    (void)ctx;
    vsnprintf(text, sizeof text, format, ap);
    text[strcspn(text, "\n")] = '\0';
    LOG(LOG_DEBUG, "api", "http library", "message=\"%s\"", text);
}

static void on_panic(void *ctx, const char *file, unsigned line, const char *reason) {
    (void)ctx;
    crash_now(file, (int)line, "http library: %s", reason != NULL ? reason : "no reason given");
}

void *server_start(api *a, int listen_fd, bool is_local, err *e) {
    listener *l = mem_alloc(sizeof *l);
    unsigned n_max =
        a->options.max_connections > 0 ? (unsigned)a->options.max_connections : CONNECTIONS_DEFAULT;
    l->a = a;
    l->is_local = is_local;
    MHD_set_panic_func(on_panic, NULL);
    l->daemon = MHD_start_daemon(MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                                     MHD_USE_POLL | MHD_USE_ITC | MHD_USE_ERROR_LOG,
        0, NULL, NULL, on_request, l, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, listen_fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
        MHD_OPTION_CONNECTION_LIMIT, n_max, MHD_OPTION_CONNECTION_TIMEOUT, IDLE_TIMEOUT_S,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, HEADER_MEMORY_BYTES, MHD_OPTION_THREAD_STACK_SIZE,
        THREAD_STACK_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_END);
    if (l->daemon == NULL) {
        close(listen_fd);
        mem_free(l);
        err_set(e, ERR_IO, "the HTTP library could not start (%u connections)", n_max);
        return NULL;
    }
    return l;
}

void server_quiesce(void *daemon) {
    listener *l = daemon;
    MHD_socket fd = MHD_quiesce_daemon(l->daemon);
    if (fd != MHD_INVALID_SOCKET) {
        close(fd);
    }
}

void server_stop(void *daemon) {
    listener *l = daemon;
    if (l == NULL) return;
    MHD_stop_daemon(l->daemon);
    mem_free(l);
}
