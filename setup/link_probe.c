#include "setup/link_probe.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"

/* The first bytes of a connection after the proof. */
enum { KIND_PING = 1, KIND_DATA = 2, KIND_END = 3 };
enum {
    STREAMS = 8,
    DURATION_MS = 5000,
    PINGS = 200,
    WAIT_MS = 30000,
    CONNECT_MS = 5000,
    STEP_MS = 5000, /* longest silence in a session */
    BLOCK = 1 << 20,
    NONCE = 16
};

static int wait_fd(int fd, short events, int ms) {
    struct pollfd p = {.fd = fd, .events = events};
    int n;
    do {
        n = poll(&p, 1, ms);
    } while (n < 0 && errno == EINTR);
    return n;
}

static int take_full(int fd, void *p, size_t n, err *e) {
    for (size_t at = 0; at < n;) {
        if (wait_fd(fd, POLLIN, STEP_MS) <= 0) {
            return err_set(e, ERR_TIMEOUT, "the other side of the link test is silent");
        }
        ssize_t got = recv(fd, (char *)p + at, n - at, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return err_set(e, ERR_NET, "the other side of the link test is gone");
        at += (size_t)got;
    }
    return OK;
}

static int give_full(int fd, const void *p, size_t n, err *e) {
    for (size_t at = 0; at < n;) {
        if (wait_fd(fd, POLLOUT, STEP_MS) <= 0) {
            return err_set(e, ERR_TIMEOUT, "the other side of the link test takes nothing");
        }
        ssize_t sent = send(fd, (const char *)p + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (sent <= 0) return err_set(e, ERR_NET, "the other side of the link test is gone");
        at += (size_t)sent;
    }
    return OK;
}

static int socket_address(const char *text, int port, struct sockaddr_in *a, err *e) {
    *a = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, text, &a->sin_addr) == 1) return OK;
    return err_set(e, ERR_ARG, "\"%.40s\" is no IPv4 address", text);
}

/* The server sends a nonce; the client answers with its HMAC and what it wants. */
static int prove(int fd, const link_probe_options *o, uint8_t kind, err *e) {
    uint8_t nonce[NONCE + 1], answer[SHA256_BYTES + 1];
    int rc = take_full(fd, nonce, NONCE, e);
    if (rc != OK) return rc;
    nonce[NONCE] = kind;
    sha256_hmac(o->secret, sizeof o->secret, nonce, sizeof nonce, answer);
    answer[SHA256_BYTES] = kind;
    return give_full(fd, answer, sizeof answer, e);
}

static int check(int fd, const link_probe_options *o, uint8_t *kind, err *e) {
    uint8_t nonce[NONCE + 1], answer[SHA256_BYTES + 1], want[SHA256_BYTES];
    if (getrandom(nonce, NONCE, 0) != NONCE) return err_errno(e, "no random numbers");
    int rc = give_full(fd, nonce, NONCE, e);
    if (rc == OK) rc = take_full(fd, answer, sizeof answer, e);
    if (rc != OK) return rc;
    *kind = nonce[NONCE] = answer[SHA256_BYTES];
    sha256_hmac(o->secret, sizeof o->secret, nonce, sizeof nonce, want);
    if (sha256_equal(want, answer)) return OK;
    return err_set(e, ERR_AUTH, "a client of the link test does not know the secret");
}

/* Server. Every connection has a thread, since data streams run at the same time. */
typedef struct serving {
    const link_probe_options *o;
    atomic_int n_open;
    atomic_bool is_done, was_proved;
} serving;

typedef struct visitor {
    serving *s;
    int fd;
} visitor;

static void echo(int fd) {
    char byte;
    while (take_full(fd, &byte, 1, NULL) == OK && give_full(fd, &byte, 1, NULL) == OK)
        continue;
}

/* Counts what comes until the other side stops sending, and says how much and in which time. */
static void swallow(int fd) {
    char *block = mem_alloc(BLOCK);
    uint64_t report[2] = {0, 0}, begin = 0, last = 0;
    for (;;) {
        if (wait_fd(fd, POLLIN, STEP_MS) <= 0) break;
        ssize_t n = recv(fd, block, BLOCK, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        last = clock_mono_ns();
        if (begin == 0) begin = last;
        report[0] += (uint64_t)n;
    }
    report[1] = last - begin;
    (void)give_full(fd, report, sizeof report, NULL);
    mem_free(block);
}

static void *visit(void *ctx) {
    visitor *v = ctx;
    uint8_t kind = 0;
    if (check(v->fd, v->s->o, &kind, NULL) == OK) {
        atomic_store(&v->s->was_proved, true);
        if (kind == KIND_PING) echo(v->fd);
        if (kind == KIND_DATA) swallow(v->fd);
        if (kind == KIND_END) atomic_store(&v->s->is_done, true);
    }
    close(v->fd);
    atomic_fetch_sub(&v->s->n_open, 1);
    mem_free(v);
    return NULL;
}

static void welcome(serving *s, int fd) {
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    visitor *v = mem_alloc(sizeof *v);
    *v = (visitor){s, fd};
    pthread_t thread;
    atomic_fetch_add(&s->n_open, 1);
    if (atomic_load(&s->n_open) <= LINK_PROBE_STREAMS_MAX + 4 &&
        pthread_create(&thread, NULL, visit, v) == 0) {
        pthread_detach(thread);
        return;
    }
    atomic_fetch_sub(&s->n_open, 1);
    close(fd);
    mem_free(v);
}

static int listen_on(const link_probe_options *o, int *port, err *e) {
    struct sockaddr_in a;
    int rc = socket_address(o->address, o->port, &a, e);
    if (rc != OK) return rc;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    socklen_t n = sizeof a;
    if (fd < 0) return err_errno(e, "no socket for the link test");
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, LINK_PROBE_STREAMS_MAX) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &n) != 0) {
        rc = err_errno(e, "the link test cannot listen on %s port %d", o->address, o->port);
        close(fd);
        return rc;
    }
    *port = ntohs(a.sin_port);
    return fd;
}

int link_probe_serve(
    const link_probe_options *o, void (*ready)(void *ctx, int port), void *ctx, err *e) {
    serving s = {.o = o};
    int port = 0, fd = listen_on(o, &port, e);
    if (fd < 0) return fd;
    if (ready != NULL) ready(ctx, port);
    uint64_t limit = (uint64_t)(o->wait_ms > 0 ? o->wait_ms : WAIT_MS), quiet = clock_mono_ms();
    while (!atomic_load(&s.is_done) && clock_mono_ms() - quiet < limit) {
        if (atomic_load(&s.n_open) > 0) quiet = clock_mono_ms();
        if (wait_fd(fd, POLLIN, 50) <= 0) continue;
        int visitor_fd = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (visitor_fd >= 0) welcome(&s, visitor_fd);
    }
    close(fd);
    while (atomic_load(&s.n_open) > 0)
        sleep_ms(5);
    if (atomic_load(&s.is_done)) return OK;
    if (atomic_load(&s.was_proved)) return err_set(e, ERR_NET, "the link test was broken off");
    return err_set(e, ERR_TIMEOUT, "nobody came for the link test on %s", o->address);
}

/* Client. */

static int dial(const link_probe_options *o, uint8_t kind, err *e) {
    struct sockaddr_in to, from;
    int rc = socket_address(o->address, o->port, &to, e), on = 1;
    if (rc == OK && o->source != NULL) rc = socket_address(o->source, 0, &from, e);
    if (rc != OK) return rc;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return err_errno(e, "no socket for the link test");
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int problem = 0;
    if (o->source != NULL && bind(fd, (struct sockaddr *)&from, sizeof from) != 0) problem = errno;
    if (problem == 0 && connect(fd, (struct sockaddr *)&to, sizeof to) != 0) problem = errno;
    if (problem == EINPROGRESS) {
        socklen_t n = sizeof problem;
        problem = wait_fd(fd, POLLOUT, CONNECT_MS) <= 0 ? ETIMEDOUT : 0;
        if (problem == 0) (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &n);
    }
    if (problem != 0) {
        rc = err_set(e, problem == ETIMEDOUT ? ERR_TIMEOUT : ERR_NET,
            "the link test cannot reach %s port %d: %s", o->address, o->port, strerror(problem));
    } else {
        rc = prove(fd, o, kind, e);
    }
    if (rc == OK) return fd;
    close(fd);
    return rc;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure_pings(const link_probe_options *o, link_probe_result *out, err *e) {
    int n = o->pings > 0 ? o->pings : PINGS, fd = dial(o, KIND_PING, e), rc = OK;
    if (fd < 0) return fd;
    double *ms = mem_array((size_t)n, sizeof *ms);
    char byte = 0;
    for (int i = 0; i < n && rc == OK; i++) {
        uint64_t begin = clock_mono_ns();
        rc = give_full(fd, &byte, 1, e);
        if (rc == OK) rc = take_full(fd, &byte, 1, e);
        ms[i] = (double)(clock_mono_ns() - begin) / 1e6;
        if (rc == OK) out->pings++;
    }
    out->lost = n - out->pings;
    if (out->pings > 0) {
        qsort(ms, (size_t)out->pings, sizeof *ms, by_size);
        out->median_ms = ms[out->pings / 2];
        out->worst_ms = ms[out->pings - 1];
    }
    mem_free(ms);
    close(fd);
    return rc;
}

typedef struct stream {
    const link_probe_options *o;
    atomic_int *n_ready;
    int n_all;
    pthread_t thread;
    uint64_t report[2]; /* bytes, nanoseconds */
    int rc;
    err e;
} stream;

static void *send_stream(void *ctx) {
    stream *s = ctx;
    int fd = dial(s->o, KIND_DATA, &s->e);
    s->rc = fd < 0 ? fd : OK;
    /* All begin together, also after a failure, so that nobody waits for ever. */
    atomic_fetch_add(s->n_ready, 1);
    while (atomic_load(s->n_ready) < s->n_all)
        sleep_ms(1);
    if (s->rc != OK) return NULL;
    char *block = mem_alloc(BLOCK);
    uint64_t end =
        clock_mono_ms() + (uint64_t)(s->o->duration_ms > 0 ? s->o->duration_ms : DURATION_MS);
    while (s->rc == OK && clock_mono_ms() < end)
        s->rc = give_full(fd, block, BLOCK, &s->e);
    (void)shutdown(fd, SHUT_WR);
    if (s->rc == OK) s->rc = take_full(fd, s->report, sizeof s->report, &s->e);
    close(fd);
    mem_free(block);
    return NULL;
}

static int measure_rate(const link_probe_options *o, link_probe_result *out, err *e) {
    stream all[LINK_PROBE_STREAMS_MAX];
    int n = o->streams > 0 ? o->streams : STREAMS, started = 0, rc = OK;
    atomic_int n_ready = 0;
    if (n > LINK_PROBE_STREAMS_MAX) n = LINK_PROBE_STREAMS_MAX;
    memset(all, 0, sizeof all);
    for (; started < n; started++) {
        all[started] = (stream){.o = o, .n_ready = &n_ready, .n_all = n};
        if (pthread_create(&all[started].thread, NULL, send_stream, &all[started]) != 0) break;
    }
    if (started < n) {
        rc = err_set(e, ERR_MEMORY, "no threads for the link test");
        atomic_store(&n_ready, n);
    }
    uint64_t longest = 0;
    for (int i = 0; i < started; i++) {
        pthread_join(all[i].thread, NULL);
        if (rc == OK && all[i].rc != OK) rc = err_set(e, all[i].rc, "%s", all[i].e.msg);
        out->bytes += all[i].report[0];
        if (all[i].report[1] > longest) longest = all[i].report[1];
    }
    if (rc == OK && longest > 0) out->gbps = (double)out->bytes * 8.0 / (double)longest;
    return rc;
}

int link_probe_run(const link_probe_options *o, link_probe_result *out, err *e) {
    *out = (link_probe_result){0};
    int rc = measure_pings(o, out, e);
    if (rc == OK) rc = measure_rate(o, out, e);
    int fd = dial(o, KIND_END, rc == OK ? e : NULL);
    if (fd >= 0) close(fd);
    return rc == OK && fd < 0 ? fd : rc;
}
