#include "tests/harness/hub_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"

enum { MAX_CONNECTIONS = 256, HEAD_MAX = 16384, PIECE = 1 << 18 };

typedef struct connection {
    hub_server *s;
    int fd, address;
    pthread_t thread;
    bool is_used, is_done;
} connection;

struct hub_server {
    hub_decide decide;
    void *ctx;
    int fds[2];
    char urls[2][64];
    pthread_t acceptor;
    int stop_pipe[2];
    pthread_mutex_t lock;        /* guards what follows */
    pthread_mutex_t decide_lock; /* one decision at a time */
    connection connections[MAX_CONNECTIONS];
    hub_counts counts;
    bool is_stopping;
};

void hub_server_noise(uint64_t seed, uint64_t offset, void *out, size_t n) {
    unsigned char *p = out;
    for (size_t i = 0; i < n;) {
        uint64_t at = offset + i;
        uint64_t word = rand_mix(seed * 0x9E3779B97F4A7C15u + (at >> 3) + 1);
        for (size_t k = at & 7; k < 8 && i < n; k++, i++)
            p[i] = (unsigned char)(word >> (8 * k));
    }
}

void hub_server_file(
    const hub_seen *r, uint64_t size, hub_source source, void *ctx, hub_answer *a) {
    a->source = source;
    a->source_ctx = ctx;
    if (!r->has_range) {
        a->status = 200;
        a->length = a->send_bytes = size;
        return;
    }
    if (r->first >= size) {
        a->status = 416;
        a->length = a->send_bytes = 0;
        return;
    }
    uint64_t last = r->last < size ? r->last : size - 1;
    a->status = 206;
    a->start = r->first;
    a->length = a->send_bytes = last - r->first + 1;
    buf_printf(&a->headers, "Content-Range: bytes %llu-%llu/%llu\r\n", (unsigned long long)r->first,
        (unsigned long long)last, (unsigned long long)size);
}

/* One connection. */

static bool read_head(int fd, char *head, size_t *have, size_t *used) {
    for (;;) {
        head[*have] = '\0';
        char *end = strstr(head, "\r\n\r\n");
        if (end != NULL) {
            *used = (size_t)(end - head) + 4;
            return true;
        }
        if (*have + 1 >= HEAD_MAX) return false;
        ssize_t n = recv(fd, head + *have, HEAD_MAX - 1 - *have, 0);
        if (n <= 0) return false;
        *have += (size_t)n;
    }
}

static void header(const char *head, const char *name, char *out, size_t cap) {
    size_t n = strlen(name);
    out[0] = '\0';
    for (const char *at = strstr(head, "\r\n"); at != NULL; at = strstr(at + 2, "\r\n")) {
        if (strncasecmp(at + 2, name, n) != 0 || at[2 + n] != ':') continue;
        const char *v = at + 3 + n;
        while (*v == ' ')
            v++;
        size_t len = strcspn(v, "\r");
        snprintf(out, cap, "%.*s", (int)len, v);
        return;
    }
}

static bool parse(const char *head, hub_seen *r) {
    if (sscanf(head, "%7s %2047s", r->method, r->path) != 2) return false;
    header(head, "Range", r->range, sizeof r->range);
    header(head, "Authorization", r->authorization, sizeof r->authorization);
    header(head, "Accept-Encoding", r->accept_encoding, sizeof r->accept_encoding);
    unsigned long long a, b;
    if (sscanf(r->range, "bytes=%llu-%llu", &a, &b) == 2) {
        r->has_range = true;
        r->first = a;
        r->last = b;
    } else if (sscanf(r->range, "bytes=%llu-", &a) == 1) {
        r->has_range = true;
        r->first = a;
        r->last = UINT64_MAX;
    }
    return true;
}

static bool send_all(int fd, const void *data, size_t n) {
    const char *p = data;
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

static bool send_source(connection *c, const hub_answer *a) {
    char *piece = mem_alloc(PIECE);
    bool is_fine = true;
    uint64_t begun = clock_mono_ms();
    for (uint64_t at = 0; is_fine && at < a->send_bytes;) {
        size_t n = a->send_bytes - at < PIECE ? (size_t)(a->send_bytes - at) : PIECE;
        if (a->bytes_per_s > 0 && n > a->bytes_per_s / 10 + 1)
            n = (size_t)(a->bytes_per_s / 10 + 1);
        uint64_t offset = a->start + at;
        a->source(a->source_ctx, offset, piece, n);
        int64_t bad = a->corrupt_at - (int64_t)offset;
        if (a->corrupt_at >= 0 && bad >= 0 && bad < (int64_t)n) piece[bad] ^= 1;
        is_fine = send_all(c->fd, piece, n);
        at += n;
        pthread_mutex_lock(&c->s->lock);
        c->s->counts.sent_bytes += n;
        is_fine = is_fine && !c->s->is_stopping;
        pthread_mutex_unlock(&c->s->lock);
        while (a->bytes_per_s > 0 && at * 1000 / a->bytes_per_s > clock_mono_ms() - begun)
            sleep_ms(5);
    }
    mem_free(piece);
    return is_fine;
}

static void hold(connection *c) {
    for (;;) {
        struct pollfd p = {.fd = c->fd, .events = POLLRDHUP};
        if (poll(&p, 1, 50) > 0) return;
        pthread_mutex_lock(&c->s->lock);
        bool is_over = c->s->is_stopping;
        pthread_mutex_unlock(&c->s->lock);
        if (is_over) return;
    }
}

/* Sends an answer; true when the connection may be used again. */
static bool answer(connection *c, const hub_seen *r, hub_answer *a) {
    buf head = BUF_INIT;
    uint64_t length = a->body != NULL ? a->body_len : a->length;
    buf_printf(&head, "HTTP/1.1 %d X\r\n", a->status);
    if (a->headers.len > 0) buf_append(&head, a->headers.data, a->headers.len);
    bool says = a->headers.data != NULL && strcasestr(a->headers.data, "Content-Length:") != NULL;
    if (!says) buf_printf(&head, "Content-Length: %llu\r\n", (unsigned long long)length);
    buf_puts(&head, "\r\n");
    bool is_fine = send_all(c->fd, head.data, head.len);
    bool is_head = strcmp(r->method, "HEAD") == 0;
    if (is_fine && !is_head && a->body != NULL) is_fine = send_all(c->fd, a->body, a->body_len);
    if (is_fine && !is_head && a->body == NULL && a->source != NULL) is_fine = send_source(c, a);
    buf_release(&head);
    if (a->then == HUB_THEN_STALL) hold(c);
    if (a->then == HUB_THEN_RESET) {
        sleep_ms(100); /* what was sent arrives first */
        struct linger l = {.l_onoff = 1, .l_linger = 0};
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    }
    return is_fine && a->then == HUB_THEN_GO_ON && !says;
}

static void count(hub_server *s, const hub_seen *r) {
    pthread_mutex_lock(&s->lock);
    s->counts.n_requests++;
    if (r->address == 1) s->counts.n_cdn++;
    if (!r->has_range && strstr(r->path, "/api/") == NULL) s->counts.n_without_range++;
    if (r->authorization[0] != '\0' && r->address == 0) s->counts.n_auth_hub++;
    if (r->authorization[0] != '\0' && r->address == 1) s->counts.n_auth_cdn++;
    snprintf(s->counts.accept_encoding, sizeof s->counts.accept_encoding, "%s", r->accept_encoding);
    pthread_mutex_unlock(&s->lock);
}

static void *serve(void *arg) {
    connection *c = arg;
    char *head = mem_alloc(HEAD_MAX);
    size_t have = 0, used = 0;
    bool goes_on = true;
    while (goes_on && read_head(c->fd, head, &have, &used)) {
        hub_seen r = {.address = c->address};
        hub_answer a = {.status = 404, .corrupt_at = -1, .headers = BUF_INIT};
        char next = head[used];
        head[used] = '\0';
        if (!parse(head, &r)) break;
        head[used] = next;
        count(c->s, &r);
        pthread_mutex_lock(&c->s->decide_lock);
        c->s->decide(c->s->ctx, &r, &a);
        pthread_mutex_unlock(&c->s->decide_lock);
        goes_on = answer(c, &r, &a);
        buf_release(&a.headers);
        memmove(head, head + used, have - used);
        have -= used;
    }
    mem_free(head);
    pthread_mutex_lock(&c->s->lock);
    close(c->fd);
    c->fd = -1;
    c->is_done = true;
    pthread_mutex_unlock(&c->s->lock);
    return NULL;
}

/* The server. */

static void begin_connection(hub_server *s, int fd, int address) {
    pthread_mutex_lock(&s->lock);
    connection *free_slot = NULL;
    for (int i = 0; i < MAX_CONNECTIONS; i++) {
        connection *c = &s->connections[i];
        if (c->is_used && c->is_done) {
            pthread_join(c->thread, NULL);
            c->is_used = false;
        }
        if (!c->is_used) free_slot = c;
    }
    if (free_slot != NULL) {
        *free_slot = (connection){.s = s, .fd = fd, .address = address, .is_used = true};
        if (pthread_create(&free_slot->thread, NULL, serve, free_slot) != 0) abort();
    } else {
        close(fd);
    }
    pthread_mutex_unlock(&s->lock);
}

static void *accept_all(void *arg) {
    hub_server *s = arg;
    for (;;) {
        struct pollfd p[3] = {{.fd = s->stop_pipe[0], .events = POLLIN},
            {.fd = s->fds[0], .events = POLLIN}, {.fd = s->fds[1], .events = POLLIN}};
        if (poll(p, 3, -1) < 0 && errno != EINTR) return NULL;
        if (p[0].revents != 0) return NULL;
        for (int i = 0; i < 2; i++) {
            int fd = p[1 + i].revents != 0 ? accept4(s->fds[i], NULL, NULL, SOCK_CLOEXEC) : -1;
            if (fd >= 0) begin_connection(s, fd, i);
        }
    }
}

static int listen_on(const char *address, unsigned *port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)};
    socklen_t n = sizeof a;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    inet_pton(AF_INET, address, &a.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (fd < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, 64) != 0) abort();
    getsockname(fd, (struct sockaddr *)&a, &n);
    *port = ntohs(a.sin_port);
    return fd;
}

hub_server *hub_server_new(hub_decide decide, void *ctx) {
    static const char *const addresses[] = {"127.0.0.1", "127.0.0.2"};
    hub_server *s = mem_alloc(sizeof *s);
    s->decide = decide;
    s->ctx = ctx;
    pthread_mutex_init(&s->lock, NULL);
    pthread_mutex_init(&s->decide_lock, NULL);
    for (int i = 0; i < 2; i++) {
        unsigned port = 0;
        s->fds[i] = listen_on(addresses[i], &port);
        snprintf(s->urls[i], sizeof s->urls[i], "http://%s:%u", addresses[i], port);
    }
    if (pipe(s->stop_pipe) != 0) abort();
    if (pthread_create(&s->acceptor, NULL, accept_all, s) != 0) abort();
    return s;
}

void hub_server_free(hub_server *s) {
    if (write(s->stop_pipe[1], "x", 1) != 1) abort();
    pthread_join(s->acceptor, NULL);
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    for (int i = 0; i < MAX_CONNECTIONS; i++) {
        connection *c = &s->connections[i];
        if (c->is_used && !c->is_done) shutdown(c->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < MAX_CONNECTIONS; i++) {
        if (s->connections[i].is_used) pthread_join(s->connections[i].thread, NULL);
    }
    close(s->fds[0]);
    close(s->fds[1]);
    close(s->stop_pipe[0]);
    close(s->stop_pipe[1]);
    pthread_mutex_destroy(&s->lock);
    pthread_mutex_destroy(&s->decide_lock);
    mem_free(s);
}

void hub_server_pause(hub_server *s) {
    pthread_mutex_lock(&s->decide_lock);
}

void hub_server_go_on(hub_server *s) {
    pthread_mutex_unlock(&s->decide_lock);
}

const char *hub_server_url(const hub_server *s, int address) {
    return s->urls[address];
}

void hub_server_counts(hub_server *s, hub_counts *out) {
    pthread_mutex_lock(&s->lock);
    *out = s->counts;
    pthread_mutex_unlock(&s->lock);
}
