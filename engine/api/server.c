#include <microhttpd.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/api/api_internal.h"
#include "engine/api/http_head.h"
#include "engine/api/process.h"
#include "engine/api/watch.h"
#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/base/thread.h"

#define HEADER_MEMORY_BYTES ((size_t)48 << 10)
#define THREAD_STACK_BYTES ((size_t)512 << 10)
/* A refused body up to this size is read, so that the client can take its answer. */
#define REFUSED_BODY_BYTES ((uint64_t)64 << 10)
/* A body may take so many times the time that it may pause. */
#define BODY_PAUSES 10
/* The connections of a server that stops have so long to end. */
#define STOP_MS 10000
/* In the metrics: the client went away before there was an answer. */
#define STATUS_CLIENT_GONE 499
#define CONNECTIONS_DEFAULT 512u
/* What a body of this size leaves behind in the allocator is worth giving back. */
#define LARGE_BODY_BYTES ((size_t)1 << 20)

typedef struct listener {
    api *a;
    bool is_local;
    bool is_tls;
    watch *watch;
    struct MHD_Daemon *daemon;
} listener;

/* This thread's connection, from its first line on. The library's log is the only place that tells
 * of a request which it refuses by itself, and does not say whose it is. */
static _Thread_local struct {
    const listener *l;
    struct MHD_Connection *c;
    http_request *q;    /* NULL between two requests */
    const char *target; /* of this request, in the library's buffer */
    size_t n_target;
} current;

/* What the raw head of a request says that the library lets pass. */
typedef struct head_look {
    int n_length, n_encoding, n_host;
    const char *encoding, *length;
    bool has_control, has_odd_name;
} head_look;

/* The library joins a folded line to the name of its header and not to the value: one that says how
 * long the body is would not be seen, and the body would count as the next request. */
static bool is_folded_length(const char *name) {
    return strncasecmp(name, "Content-Length", 14) == 0 ||
           strncasecmp(name, "Transfer-Encoding", 17) == 0;
}

static bool has_control_byte(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f) return true;
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
    } else {
        h->has_odd_name |= !http_head_is_name(key, n_key) || is_folded_length(key);
    }
    h->has_control |= value != NULL && has_control_byte(value, n_value);
    return MHD_YES;
}

/* Refusals decided by the head alone, before the body is read. */
static int check_head(http_request *q, size_t max_body, api_error *e) {
    head_look h = {0};
    uint64_t length = 0;
    MHD_get_connection_values_n(q->connection, MHD_HEADER_KIND, look_at_header, &h);
    if (h.has_control) return api_bad(e, NULL, NULL, "a header holds a control character");
    if (h.has_odd_name) return api_bad(e, NULL, NULL, "a header has a name that is none");
    if (q->has_odd_target) return api_bad(e, NULL, NULL, "the path holds a blank or a NUL byte");
    if (h.n_host == 0 && !q->is_http10) return api_bad(e, NULL, NULL, "the Host header is missing");
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

/* A client of proxies sends the whole URL, and the path is what follows the host. */
static const char *skip_origin(const char *url) {
    size_t n = 0;
    if (strncasecmp(url, "http://", 7) == 0) n = 7;
    if (strncasecmp(url, "https://", 8) == 0) n = 8;
    if (n == 0) return url;
    const char *slash = strchr(url + n, '/');
    return slash != NULL ? slash : "/";
}

/* The path without host, query, trailing slash and a leading /v1. */
static char *normal_path(const char *url) {
    url = skip_origin(url);
    size_t n = strcspn(url, "?");
    char *path = mem_strndup(url, n);
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

/* The target is as the client wrote it: behind this point %00 is an end and %20 a blank. */
static bool is_odd_target(const char *target) {
    size_t n = strcspn(target, "?");
    for (size_t i = 0; i + 2 < n; i++) {
        if (strncmp(target + i, "%00", 3) == 0) return true;
    }
    return strchr(target, ' ') != NULL;
}

static http_request *request_new(const listener *l, struct MHD_Connection *c, const char *target) {
    http_request *q = mem_alloc(sizeof *q);
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    q->api = l->a;
    q->connection = c;
    q->fd = info != NULL ? info->connect_fd : -1;
    q->is_local = l->is_local;
    q->is_tls = l->is_tls;
    q->method = "";
    q->path = normal_path(target);
    q->has_odd_target = is_odd_target(target);
    q->body.max = l->a->options.max_body_bytes;
    q->start_ns = clock_mono_ns();
    return q;
}

/* Bytes that found no room. */
static size_t take_body(http_request *q, const char *data, size_t n) {
    if (!q->has_answered && q->n_dropped == 0 && buf_append(&q->body, data, n) == OK) return 0;
    buf_release(&q->body);
    return n;
}

static watched *watched_of(struct MHD_Connection *c) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info != NULL ? info->socket_context : NULL;
}

/* A refusal that does not depend on the body. It waits for a small body, because a client that is
 * still sending would lose the answer to a reset. */
static void refuse_head(http_request *q, const api_error *e) {
    const char *text = http_header(q, "Content-Length");
    uint64_t length = 0;
    bool is_small = text != NULL && parse_u64(text, &length) == OK && length <= REFUSED_BODY_BYTES;
    if (is_small && length > 0 && http_header(q, "Expect") == NULL) {
        q->refusal = *e;
    } else {
        http_fail(q, e);
    }
}

typedef struct request_line {
    const char *url, *method, *version;
} request_line;

/* Later versions of the library refuse by themselves what is looked for here. */
static bool is_head_sound(const http_request *q, const request_line *line) {
    if (!str_starts(MHD_get_version(), "0.")) return true;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(q->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (info == NULL || current.q != q) return false;
    http_head_line raw = {line->method, current.target, current.n_target, line->version};
    return http_head_is_sound(&raw, info->header_size);
}

/* The library takes an empty name for the end of a trailer too. */
static enum MHD_Result look_at_trailer(void *ctx, enum MHD_ValueKind kind, const char *key,
    size_t n_key, const char *value, size_t n_value) {
    http_request *q = ctx;
    (void)kind;
    q->must_close = true;
    q->has_odd_trailer |= !http_head_is_name(key, n_key);
    q->has_odd_trailer |= value != NULL && has_control_byte(value, n_value);
    return MHD_YES;
}

/* The head is whole. */
static void begin_request(const listener *l, http_request *q, const request_line *line) {
    api_error e, wrong;
    const api_options *o = &l->a->options;
    q->has_begun = true;
    q->is_http10 = strcmp(line->version, "HTTP/1.0") == 0;
    q->method = line->method;
    mem_free(q->path);
    q->path = normal_path(line->url);
    name_request(q);
    watch_set(l->watch, watched_of(q->connection), (uint64_t)o->body_timeout_ms * BODY_PAUSES);
    MHD_set_connection_option(
        q->connection, MHD_CONNECTION_OPTION_TIMEOUT, http_seconds(o->body_timeout_ms));
    if (!is_head_sound(q, line)) {
        /* Of strangers too, and not a 401: which request they made is not sure. */
        q->must_close = true;
        api_name_route(q);
        api_bad(&e, NULL, NULL,
            "the head holds a NUL byte, a header without a name, a folded line, or a line that "
            "does not end with CR LF");
        http_fail(q, &e);
        return;
    }
    if (!q->is_http10 && strcmp(line->version, "HTTP/1.1") != 0) {
        /* Not 505: clients would try again what can never succeed. */
        api_bad(&e, NULL, NULL, "use HTTP/1.1");
        http_fail(q, &e);
        return;
    }
    int rc = api_admit(q, &e);
    /* Also of those who may not come in: what follows their head could count as a request. */
    q->must_close = check_head(q, q->body.max, &wrong) != OK;
    if (rc != OK) {
        refuse_head(q, &e);
    } else if (q->must_close) {
        http_fail(q, &wrong);
    }
}

static void finish_body(const listener *l, http_request *q) {
    api_error e;
    watch_set(l->watch, watched_of(q->connection), 0);
    if (q->has_answered) {
        http_answer_late(q);
        return;
    }
    MHD_get_connection_values_n(q->connection, MHD_FOOTER_KIND, look_at_trailer, q);
    if (q->refusal.status != 0) {
        http_fail(q, &q->refusal);
    } else if (q->has_odd_trailer) {
        api_bad(&e, NULL, NULL, "a trailer has a name that is none or holds a control character");
        http_fail(q, &e);
    } else if (q->n_dropped > 0) {
        api_set(&e, 413, "invalid_request_error", NULL, "the body is too large");
        http_fail(q, &e);
    } else {
        log_request(q->id);
        q->n_body = q->body.len;
        if (l->a->options.logs_prompts && q->body.len > 0) {
            q->text = mem_strndup(q->body.data, q->body.len);
        }
        q->is_busy = true;
        atomic_fetch_add(&l->a->n_busy, 1);
        api_dispatch(q);
        log_request(NULL);
    }
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *c, const char *url,
    const char *method, const char *version, const char *data, size_t *n_data, void **state) {
    const listener *l = ctx;
    http_request *q = *state;
    (void)c;
    if (q == NULL) return MHD_NO; /* its first line was not seen: cannot be */
    if (!q->has_begun) {
        begin_request(l, q, &(request_line){url, method, version});
        return MHD_YES;
    }
    if (*n_data > 0) {
        /* Once the body is too large the rest is read and dropped, within reason, so that the
         * client gets its answer: the library can not answer in the middle of a body. */
        q->n_dropped += take_body(q, data, *n_data);
        *n_data = 0;
        return q->n_dropped > l->a->options.max_body_bytes ? MHD_NO : MHD_YES;
    }
    finish_body(l, q);
    return MHD_YES;
}

static void record(const http_request *q, double seconds) {
    request_record r = {.id = q->id,
        .method = q->method,
        .path = q->path,
        .key = q->key != NULL ? key_user_label(q->key) : NULL,
        .status = q->status,
        .finish = q->finish,
        .n_prompt = q->n_prompt,
        .n_cached = q->n_cached,
        .n_completion = q->n_completion,
        .n_bytes = (int64_t)q->n_body,
        .ms = seconds * 1e3,
        .text = q->text,
        .text_len = q->text != NULL ? strlen(q->text) : 0};
    /* Watching the server is no request of a client. */
    if (!str_starts(q->path, "/tandem/")) request_log_add(q->api->requests, &r);
}

static void request_free(http_request *q) {
    if (q->producer.release != NULL) {
        q->producer.release(q->producer.ctx);
    }
    if (q->late_answer != NULL) MHD_destroy_response(q->late_answer);
    http_leave_key(q);
    bool was_large = q->n_body >= LARGE_BODY_BYTES;
    buf_release(&q->body);
    buf_release(&q->out);
    mem_free(q->text);
    mem_free(q->path);
    mem_free(q);
    if (was_large) process_return_memory();
}

/* For the metrics and the list of requests. */
static void count_request(http_request *q) {
    double seconds = (double)(clock_mono_ns() - q->start_ns) / 1e9;
    api_metrics *m = &q->api->metrics;
    if (q->status == 0) q->status = STATUS_CLIENT_GONE;
    api_metrics_request(m, q->route != NULL ? q->route : "other", q->status, q->finish);
    metric_observe(m->request, seconds);
    record(q, seconds);
}

static void on_completed(
    void *ctx, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode code) {
    const listener *l = ctx;
    http_request *q = *state;
    (void)code;
    current.q = NULL;
    if (q == NULL) return;
    watch_set(l->watch, watched_of(c), (uint64_t)l->a->options.idle_timeout_ms);
    MHD_set_connection_option(
        c, MHD_CONNECTION_OPTION_TIMEOUT, http_seconds(l->a->options.idle_timeout_ms));
    http_set_endless(q);
    if (q->has_begun || q->status != 0) count_request(q);
    request_free(q);
    *state = NULL;
}

static void on_connection(
    void *ctx, struct MHD_Connection *c, void **own, enum MHD_ConnectionNotificationCode code) {
    const listener *l = ctx;
    int one = 1;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        watch_leave(l->watch, *own);
        *own = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (info == NULL) return;
    if (!l->is_local) setsockopt(info->connect_fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    *own = watch_enter(l->watch, info->connect_fd);
    watch_set(l->watch, *own, (uint64_t)l->a->options.idle_timeout_ms);
}

/* The first line of a request is there, and the request begins. */
static void *on_line(void *ctx, const char *target, struct MHD_Connection *c) {
    const listener *l = ctx;
    watch_set(l->watch, watched_of(c), (uint64_t)l->a->options.head_timeout_ms);
    current.l = l;
    current.c = c;
    current.target = target;
    current.n_target = target != NULL ? strlen(target) : 0;
    current.q = request_new(l, c, target != NULL ? target : "");
    return current.q;
}

/* What the library refuses by itself (a length that is no number, a broken chunk, a head without
 * end) it would answer with a page of HTML, and in some cases with two heads before it. It says so
 * in its log first, on the thread of the connection: that is where our answer takes the place of
 * its own. */
static void on_refusal(int status) {
    api_error e;
    if (current.c == NULL) return; /* the first line of all was none: the library's page it is */
    http_request *q = current.q != NULL ? current.q : request_new(current.l, current.c, "");
    if (!q->has_answered) {
        api_name_route(q);
        name_request(q);
        bool is_chunked = http_header(q, "Transfer-Encoding") != NULL;
        api_bad(&e, NULL, NULL,
            "the request is no valid HTTP/1.1: see its lengths, chunks and headers");
        if (status == 413 && !is_chunked)
            api_set(&e, 413, "invalid_request_error", NULL, "the body is too large");
        if (status == 414 || status == 431)
            api_set(&e, 431, "invalid_request_error", NULL, "the head of the request is too large");
        http_refuse(q, &e);
    }
    if (current.q == NULL) {
        count_request(q);
        request_free(q);
    }
}

static void on_log(void *ctx, const char *format, va_list ap) {
    static const char refusal[] = "Error processing request";
    char text[256];
    va_list values;
    (void)ctx;
    va_copy(values, ap);
    vsnprintf(text, sizeof text, format, ap);
    text[strcspn(text, "\n")] = '\0';
    LOG(LOG_DEBUG, "api", "http library", "message=\"%s\"", text);
    if (str_starts(format, refusal)) on_refusal(va_arg(values, int));
    va_end(values);
}

static void on_panic(void *ctx, const char *file, unsigned line, const char *reason) {
    (void)ctx;
    crash_now(file, (int)line, "http library: %s", reason != NULL ? reason : "no reason given");
}

/* Deadlines are kept to a quarter of the shortest. */
static uint32_t look_ms(const api_options *o) {
    int32_t shortest =
        o->head_timeout_ms < o->idle_timeout_ms ? o->head_timeout_ms : o->idle_timeout_ms;
    if (o->body_timeout_ms < shortest) shortest = o->body_timeout_ms;
    return shortest < 4000 ? (uint32_t)shortest / 4 + 1 : 1000;
}

static struct MHD_Daemon *start_library(listener *l, int listen_fd, unsigned n_max) {
    const api *a = l->a;
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD |
                     MHD_USE_POLL | MHD_USE_ITC | MHD_USE_ERROR_LOG;
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)buf_cstr(&a->certificate)},
        {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)buf_cstr(&a->certificate_key)},
        {MHD_OPTION_END, 0, NULL}};
    if (l->is_tls) {
        flags |= MHD_USE_TLS;
    } else {
        tls[0] = tls[2];
    }
    return MHD_start_daemon(flags, 0, NULL, NULL, on_request, l, MHD_OPTION_EXTERNAL_LOGGER, on_log,
        NULL, MHD_OPTION_LISTEN_SOCKET, listen_fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, l,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, l, MHD_OPTION_URI_LOG_CALLBACK, on_line, l,
        MHD_OPTION_CONNECTION_LIMIT, n_max, MHD_OPTION_CONNECTION_TIMEOUT,
        http_seconds(a->options.idle_timeout_ms), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        HEADER_MEMORY_BYTES, MHD_OPTION_THREAD_STACK_SIZE, THREAD_STACK_BYTES,
        MHD_OPTION_STRICT_FOR_CLIENT, 0, MHD_OPTION_ARRAY, tls, MHD_OPTION_END);
}

void *server_start(api *a, int listen_fd, bool is_local, err *e) {
    listener *l = mem_alloc(sizeof *l);
    unsigned n_max =
        a->options.max_connections > 0 ? (unsigned)a->options.max_connections : CONNECTIONS_DEFAULT;
    l->a = a;
    l->is_local = is_local;
    l->is_tls = !is_local && a->certificate.len > 0;
    MHD_set_panic_func(on_panic, NULL);
    l->watch = watch_new(look_ms(&a->options));
    if (l->watch != NULL) l->daemon = start_library(l, listen_fd, n_max);
    if (l->daemon == NULL) {
        close(listen_fd);
        watch_free(l->watch);
        mem_free(l);
        err_set(e, ERR_IO, "the HTTP library could not start (%u connections%s)", n_max,
            a->certificate.len > 0 ? "; is the certificate in order?" : "");
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
    /* A library that is being stopped reads a pointer that is not set when it has to refuse a
     * request at that moment; so it has no connections by then. */
    server_quiesce(l);
    if (!watch_shut_all(l->watch, STOP_MS))
        LOG(LOG_WARN, "api", "connections did not end", "listener=%s",
            l->is_local ? "socket" : "endpoint");
    MHD_stop_daemon(l->daemon);
    watch_free(l->watch);
    mem_free(l);
}
