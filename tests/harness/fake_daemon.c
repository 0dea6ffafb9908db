#include "tests/harness/fake_daemon.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

#define MAX_CONNECTIONS 512

typedef struct connection {
    fake_daemon *daemon;
    pthread_t thread;
    int fd;
    bool is_used;
} connection;

struct fake_daemon {
    pthread_mutex_t lock;
    pthread_t thread;
    connection connections[MAX_CONNECTIONS];
    int n_connections, listen_fd, n_chats, n_gone;
    bool is_stopping, is_released;
    fake_reply reply;
    char *stats, *state, *body;
    char path[108];
};

static const char DEFAULT_STATE[] =
    "{\"version\":\"0.1\",\"build\":\"test\",\"pid\":1,"
    "\"model\":{\"id\":\"DeepSeek-V4.1-Flash-1017\","
    "\"dir\":\"/models/flash\",\"vocab\":129280,\"context\":262144,\"demo\":false},"
    "\"state\":\"ready\","
    "\"reason\":null,\"started_ms\":1,\"endpoint\":{\"on\":false,\"address\":null},"
    "\"ranks\":[{\"rank\":0,\"state\":\"up\"}],\"streams\":{\"limit\":4,\"queue_limit\":8},"
    "\"requests\":[]}";

static const char DEFAULT_STATS[] =
    "{\"time_ms\":1,\"uptime_s\":11520,\"state\":\"ready\",\"ranks\":[{\"rank\":0,\"step_ms\":26.1,"
    "\"step_ms_p95\":31.2,\"mem_process_bytes\":106837213184,"
    "\"mem_machine_used_bytes\":123587762585,"
    "\"mem_machine_total_bytes\":130673967104,\"cpu_percent\":94,\"gpu\":null}],"
    "\"tokens_per_s_now\":38.4,"
    "\"tokens_per_s_minute\":36.9,\"prefill_tokens_per_s_now\":0,\"kv\":{\"pages_used\":31,"
    "\"pages_kept\":12,\"pages_total\":100},\"cache\":{\"pages\":null,\"hit_tokens\":9600,\"miss_tokens\":400},"
    "\"draft\":{\"proposed\":1000,\"accepted\":710},\"requests\":{\"queued\":0,\"running\":1,"
    "\"done\":418,"
    "\"failed\":2,\"cancelled\":0}}";

static void fatal(const char *what) {
    perror(what);
    exit(1);
}

static bool is_stopping(fake_daemon *d) {
    pthread_mutex_lock(&d->lock);
    bool stop = d->is_stopping;
    pthread_mutex_unlock(&d->lock);
    return stop;
}

static bool send_all(int fd, const char *s, size_t n) {
    while (n > 0) {
        ssize_t done = send(fd, s, n, MSG_NOSIGNAL);
        if (done <= 0) {
            if (done < 0 && errno == EINTR) continue;
            return false;
        }
        s += done;
        n -= (size_t)done;
    }
    return true;
}

static bool send_text(int fd, const char *fmt, ...) {
    buf out = BUF_INIT;
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&out, fmt, ap);
    va_end(ap);
    bool ok = send_all(fd, buf_cstr(&out), out.len);
    buf_release(&out);
    return ok;
}

/* One chunk of a chunked answer. */
static bool send_chunk(int fd, const buf *b) {
    return send_text(fd, "%zx\r\n", b->len) && send_all(fd, buf_cstr(b), b->len) &&
           send_all(fd, "\r\n", 2);
}

static bool has_gone(int fd, int wait_ms) {
    struct pollfd p = {.fd = fd, .events = POLLIN | POLLRDHUP};
    if (poll(&p, 1, wait_ms) <= 0) return false;
    char byte;
    return (p.revents & (POLLHUP | POLLERR | POLLRDHUP)) != 0 || recv(fd, &byte, 1, MSG_PEEK) == 0;
}

static bool send_event(int fd, const char *fmt, ...) {
    buf out = BUF_INIT;
    va_list ap;
    buf_puts(&out, "data: ");
    va_start(ap, fmt);
    buf_vprintf(&out, fmt, ap);
    va_end(ap);
    buf_puts(&out, "\n\n");
    bool ok = send_chunk(fd, &out);
    buf_release(&out);
    return ok;
}

static bool send_delta(int fd, const char *field, const char *text) {
    buf quoted = BUF_INIT;
    json_quote(&quoted, text, strlen(text));
    bool ok = send_event(fd,
        "{\"id\":\"chatcmpl-test\",\"choices\":[{\"index\":0,\"delta\":{\"%s\":%s},"
        "\"finish_reason\":null}]}",
        field, buf_cstr(&quoted));
    buf_release(&quoted);
    return ok;
}

/* Waits, watching for a client that goes away. False when it has. */
static bool wait_piece(fake_daemon *d, int fd, int ms) {
    uint64_t end = clock_mono_ms() + (uint64_t)ms;
    do {
        uint64_t now = clock_mono_ms();
        int left = end > now ? (int)(end - now) : 0;
        if (has_gone(fd, left < 20 ? left : 20)) return false;
        if (is_stopping(d)) return false;
    } while (clock_mono_ms() < end);
    return true;
}

static bool wait_release(fake_daemon *d, int fd) {
    while (true) {
        pthread_mutex_lock(&d->lock);
        bool is_released = d->is_released;
        pthread_mutex_unlock(&d->lock);
        if (is_released) return true;
        if (!wait_piece(d, fd, 10)) return false;
    }
}

static bool send_prefill(fake_daemon *d, int fd, const fake_reply *r) {
    for (int done = 0; done < r->prefill_total; done += r->prefill_total / 4) {
        buf out = BUF_INIT;
        buf_printf(&out, ": prefill %d/%d\n\n", done, r->prefill_total);
        bool ok = send_chunk(fd, &out);
        buf_release(&out);
        if (!ok || !wait_piece(d, fd, 5)) return false;
    }
    return send_event(fd,
        "{\"id\":\"chatcmpl-test\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\","
        "\"content\":\"\"},\"finish_reason\":null}]}");
}

static bool send_pieces(fake_daemon *d, int fd, const fake_reply *r) {
    int n = r->n_pieces * (r->n_times > 0 ? r->n_times : 1);
    for (int i = 0; i < n; i++) {
        if (r->hold_after > 0 && i == r->hold_after && !wait_release(d, fd)) return false;
        const char *field = i < r->n_think ? "reasoning_content" : "content";
        if (!send_delta(fd, field, r->pieces[i % r->n_pieces])) return false;
        if (r->delay_ms > 0 && !wait_piece(d, fd, r->delay_ms)) return false;
    }
    return r->hold_after != n || wait_release(d, fd);
}

static bool send_end(int fd, const fake_reply *r) {
    int n = r->completion_tokens > 0 ? r->completion_tokens
                                     : r->n_pieces * (r->n_times > 0 ? r->n_times : 1);
    if (r->finish != NULL && str_eq(r->finish, "drop")) return false;
    if (r->finish != NULL && str_eq(r->finish, "error")) {
        send_event(fd,
            "{\"error\":{\"message\":\"rank 1 was killed (signal 9)\",\"type\":\"server_error\","
            "\"param\":null,\"code\":\"engine_failed\"}}");
        send_all(fd, "0\r\n\r\n", 5);
        return true;
    }
    return send_event(fd,
               "{\"id\":\"chatcmpl-test\",\"choices\":[{\"index\":0,\"delta\":{},"
               "\"finish_reason\":\"%s\"}]}",
               r->finish != NULL ? r->finish : "stop") &&
           send_event(fd,
               "{\"id\":\"chatcmpl-test\",\"choices\":[],\"usage\":{\"prompt_tokens\":120,"
               "\"completion_tokens\":%d,\"total_tokens\":%d,"
               "\"prompt_tokens_details\":{\"cached_tokens\":100},"
               "\"completion_tokens_details\":{\"reasoning_tokens\":%d}},"
               "\"timings\":{\"prompt_n\":20,"
               "\"prompt_ms\":10.0,\"predicted_n\":%d,\"predicted_ms\":1000.0,"
               "\"predicted_per_second\":38.4,\"draft_n\":100,\"draft_n_accepted\":71}}",
               n, n + 120, r->n_think, n) &&
           send_event(fd, "[DONE]") && send_all(fd, "0\r\n\r\n", 5);
}

static const char STREAM_HEAD[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    "Transfer-Encoding: chunked\r\n\r\n";

static bool serve_chat(fake_daemon *d, int fd, const char *body, size_t n) {
    pthread_mutex_lock(&d->lock);
    fake_reply r = d->reply;
    d->n_chats++;
    d->is_released = false;
    mem_free(d->body);
    d->body = mem_strndup(body, n);
    pthread_mutex_unlock(&d->lock);
    bool ok = send_all(fd, STREAM_HEAD, sizeof STREAM_HEAD - 1) && send_prefill(d, fd, &r) &&
              send_pieces(d, fd, &r);
    if (!ok) {
        pthread_mutex_lock(&d->lock);
        d->n_gone++;
        pthread_mutex_unlock(&d->lock);
        return false;
    }
    return send_end(fd, &r);
}

static bool serve_stats(fake_daemon *d, int fd) {
    if (!send_all(fd, STREAM_HEAD, sizeof STREAM_HEAD - 1)) return false;
    while (true) {
        pthread_mutex_lock(&d->lock);
        char *text = mem_strdup(d->stats);
        pthread_mutex_unlock(&d->lock);
        bool ok = str_eq(text, "null") || send_event(fd, "%s", text);
        mem_free(text);
        if (!ok || !wait_piece(d, fd, 100)) return false;
    }
}

static bool send_json(int fd, int status, const char *text) {
    return send_text(fd,
        "HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", status,
        strlen(text), text);
}

static bool serve(fake_daemon *d, int fd, const char *head, const char *body, size_t n) {
    if (strstr(head, " /v1/chat/completions") != NULL) return serve_chat(d, fd, body, n);
    if (strstr(head, " /tandem/v1/stats") != NULL) return serve_stats(d, fd);
    if (strstr(head, " /tandem/v1/shutdown") != NULL) return send_json(fd, 200, "{\"ok\":true}");
    if (strstr(head, " /ready") != NULL || strstr(head, " /health") != NULL) {
        return send_json(fd, 200, "{\"status\":\"ok\"}");
    }
    if (strstr(head, " /tandem/v1/state") == NULL) {
        return send_json(fd, 404,
            "{\"error\":{\"message\":\"not found\",\"type\":\"invalid_request_error\","
            "\"param\":null,\"code\":null}}");
    }
    pthread_mutex_lock(&d->lock);
    char *text = mem_strdup(d->state);
    pthread_mutex_unlock(&d->lock);
    bool ok = send_json(fd, 200, text);
    mem_free(text);
    return ok;
}

/* Bytes of the body that the head announces. */
static size_t body_length(const char *head) {
    const char *s = strcasestr(head, "content-length:");
    return s != NULL ? (size_t)strtoul(s + 15, NULL, 10) : 0;
}

static void *run_connection(void *ctx) {
    connection *k = ctx;
    buf in = BUF_INIT;
    while (!is_stopping(k->daemon)) {
        const char *end = in.len > 0 ? strstr(buf_cstr(&in), "\r\n\r\n") : NULL;
        if (end == NULL || in.len < (size_t)(end + 4 - in.data) + body_length(in.data)) {
            char bytes[16384];
            struct pollfd p = {.fd = k->fd, .events = POLLIN};
            if (poll(&p, 1, 50) <= 0) continue;
            ssize_t n = recv(k->fd, bytes, sizeof bytes, 0);
            if (n <= 0) break;
            buf_append(&in, bytes, (size_t)n);
            continue;
        }
        size_t head = (size_t)(end + 4 - in.data), n = body_length(in.data);
        char *line = mem_strndup(in.data, strcspn(in.data, "\r"));
        bool ok = serve(k->daemon, k->fd, line, in.data + head, n);
        mem_free(line);
        buf_consume(&in, head + n);
        if (!ok) break;
    }
    buf_release(&in);
    shutdown(k->fd, SHUT_RDWR);
    return NULL;
}

static void *run_listener(void *ctx) {
    fake_daemon *d = ctx;
    while (!is_stopping(d)) {
        struct pollfd p = {.fd = d->listen_fd, .events = POLLIN};
        if (poll(&p, 1, 50) <= 0) continue;
        int fd = accept(d->listen_fd, NULL, NULL);
        if (fd < 0) continue;
        pthread_mutex_lock(&d->lock);
        connection *k =
            d->n_connections < MAX_CONNECTIONS ? &d->connections[d->n_connections++] : NULL;
        pthread_mutex_unlock(&d->lock);
        if (k == NULL) {
            close(fd);
            continue;
        }
        *k = (connection){.daemon = d, .fd = fd, .is_used = true};
        if (pthread_create(&k->thread, NULL, run_connection, k) != 0) fatal("pthread_create");
    }
    return NULL;
}

fake_daemon *fake_daemon_start(const char *dir) {
    fake_daemon *d = mem_alloc(sizeof *d);
    pthread_mutex_init(&d->lock, NULL);
    snprintf(d->path, sizeof d->path, "%s/engine.sock", dir);
    d->stats = mem_strdup(DEFAULT_STATS);
    d->state = mem_strdup(DEFAULT_STATE);
    unlink(d->path);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    str_copy(a.sun_path, sizeof a.sun_path, d->path);
    d->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (d->listen_fd < 0 || bind(d->listen_fd, (const struct sockaddr *)&a, sizeof a) != 0)
        fatal("bind");
    if (listen(d->listen_fd, 16) != 0) fatal("listen");
    if (pthread_create(&d->thread, NULL, run_listener, d) != 0) fatal("pthread_create");
    return d;
}

void fake_daemon_stop(fake_daemon *d) {
    pthread_mutex_lock(&d->lock);
    d->is_stopping = true;
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    close(d->listen_fd);
    for (int i = 0; i < d->n_connections; i++) {
        shutdown(d->connections[i].fd, SHUT_RDWR);
        pthread_join(d->connections[i].thread, NULL);
        close(d->connections[i].fd);
    }
    unlink(d->path);
    mem_free(d->stats);
    mem_free(d->state);
    mem_free(d->body);
    pthread_mutex_destroy(&d->lock);
    mem_free(d);
}

static void replace(fake_daemon *d, char **slot, const char *text) {
    pthread_mutex_lock(&d->lock);
    mem_free(*slot);
    *slot = mem_strdup(text);
    pthread_mutex_unlock(&d->lock);
}

void fake_daemon_script(fake_daemon *d, const fake_reply *reply) {
    pthread_mutex_lock(&d->lock);
    d->reply = *reply;
    pthread_mutex_unlock(&d->lock);
}

void fake_daemon_stats(fake_daemon *d, const char *text) {
    replace(d, &d->stats, text);
}

void fake_daemon_state(fake_daemon *d, const char *text) {
    replace(d, &d->state, text);
}

void fake_daemon_release(fake_daemon *d) {
    pthread_mutex_lock(&d->lock);
    d->is_released = true;
    pthread_mutex_unlock(&d->lock);
}

static int read_count(fake_daemon *d, const int *n) {
    pthread_mutex_lock(&d->lock);
    int value = *n;
    pthread_mutex_unlock(&d->lock);
    return value;
}

int fake_daemon_n_chats(fake_daemon *d) {
    return read_count(d, &d->n_chats);
}

int fake_daemon_n_gone(fake_daemon *d) {
    return read_count(d, &d->n_gone);
}

char *fake_daemon_last_body(fake_daemon *d) {
    pthread_mutex_lock(&d->lock);
    char *copy = strdup(d->body != NULL ? d->body : "");
    pthread_mutex_unlock(&d->lock);
    return copy;
}
