#include "tests/harness/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/str.h"

static void opened(wire *w, int fd, const struct sockaddr *sa, socklen_t n) {
    *w = (wire){.fd = fd, .in = BUF_INIT};
    if (fd >= 0 && connect(fd, sa, n) != 0) {
        close(fd);
        w->fd = -1;
    }
    w->last_byte_ms = clock_mono_ms();
}

void wire_open_unix(wire *w, const char *path) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    str_copy(sa.sun_path, sizeof sa.sun_path, path);
    opened(w, socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), (struct sockaddr *)&sa, sizeof sa);
}

void wire_open_tcp(wire *w, int port) {
    struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    opened(w, socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), (struct sockaddr *)&sa, sizeof sa);
}

void wire_close(wire *w) {
    if (w->fd >= 0) close(w->fd);
    w->fd = -1;
    buf_release(&w->in);
}

bool wire_send(wire *w, const char *data, size_t n) {
    while (n > 0 && !w->is_closed) {
        ssize_t k = send(w->fd, data, n, MSG_NOSIGNAL);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return false;
        data += k;
        n -= (size_t)k;
    }
    return n == 0;
}

bool wire_request(
    wire *w, const char *method, const char *path, const char *headers, const char *body) {
    buf out = BUF_INIT;
    buf_printf(&out, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s", method, path, headers);
    if (body != NULL) buf_printf(&out, "Content-Length: %zu\r\n", strlen(body));
    buf_puts(&out, "\r\n");
    if (body != NULL) buf_puts(&out, body);
    bool is_sent = wire_send(w, out.data, out.len);
    buf_release(&out);
    return is_sent;
}

bool wire_receive(wire *w, int timeout_ms) {
    char data[16384];
    struct pollfd p = {.fd = w->fd, .events = POLLIN};
    if (w->is_closed || poll(&p, 1, timeout_ms) <= 0) return false;
    ssize_t n = recv(w->fd, data, sizeof data, 0);
    if (n <= 0) {
        w->is_closed = n == 0 || errno != EINTR;
        w->is_reset = n < 0 && w->is_closed;
        return false;
    }
    uint64_t now = clock_mono_ms();
    if (now - w->last_byte_ms > w->max_silence_ms) w->max_silence_ms = now - w->last_byte_ms;
    w->last_byte_ms = now;
    return buf_append(&w->in, data, (size_t)n) == OK;
}

bool wire_await(wire *w, const char *text, int n, int timeout_ms) {
    uint64_t deadline = clock_mono_ms() + (uint64_t)timeout_ms;
    for (;;) {
        int n_seen = 0;
        for (const char *p = buf_cstr(&w->in); (p = strstr(p, text)) != NULL; p++)
            n_seen++;
        if (n_seen >= n) return true;
        if (w->is_closed || clock_mono_ms() >= deadline) return false;
        wire_receive(w, 100);
    }
}

bool wire_wait_closed(wire *w, int timeout_ms) {
    uint64_t deadline = clock_mono_ms() + (uint64_t)timeout_ms;
    while (!w->is_closed && clock_mono_ms() < deadline) {
        wire_receive(w, (int)(deadline - clock_mono_ms()));
        buf_reset(&w->in);
    }
    return w->is_closed;
}

/* Waits until text stands in w->in behind offset; its place, or -1. */
static long wait_for(wire *w, size_t offset, const char *text, uint64_t deadline) {
    for (;;) {
        const char *start = buf_cstr(&w->in);
        const char *hit = w->in.len > offset ? strstr(start + offset, text) : NULL;
        if (hit != NULL) return hit - start;
        uint64_t now = clock_mono_ms();
        if (w->is_closed || now >= deadline) return -1;
        wire_receive(w, (int)(deadline - now));
    }
}

static bool want_bytes(wire *w, size_t n, uint64_t deadline) {
    while (w->in.len < n && !w->is_closed && clock_mono_ms() < deadline) {
        wire_receive(w, (int)(deadline - clock_mono_ms()));
    }
    return w->in.len >= n;
}

void wire_header(const wire_answer *a, const char *name, char *out, size_t cap) {
    const char *p = buf_cstr(&a->head);
    size_t n = strlen(name);
    out[0] = '\0';
    while ((p = strchr(p, '\n')) != NULL) {
        p++;
        if (strncasecmp(p, name, n) != 0 || p[n] != ':') continue;
        p += n + 1;
        while (*p == ' ')
            p++;
        size_t len = strcspn(p, "\r\n");
        str_copy(out, cap < len + 1 ? cap : len + 1, p);
        return;
    }
}

static void read_chunks(wire *w, wire_answer *a, uint64_t deadline) {
    for (;;) {
        long end = wait_for(w, 0, "\r\n", deadline);
        if (end < 0) return;
        size_t n = (size_t)strtoul(buf_cstr(&w->in), NULL, 16);
        if (!want_bytes(w, (size_t)end + 2 + n + 2, deadline)) return;
        buf_append(&a->body, w->in.data + end + 2, n);
        buf_consume(&w->in, (size_t)end + 2 + n + 2);
        if (n == 0) {
            a->is_complete = true;
            return;
        }
    }
}

/* The answer to HEAD: the next one begins at once, or nothing follows. */
static bool lacks_body(wire *w, uint64_t deadline) {
    want_bytes(w, 7, deadline);
    return w->in.len == 0 || strncmp(buf_cstr(&w->in), "HTTP/1.", 7) == 0;
}

static void read_body(wire *w, wire_answer *a, uint64_t deadline) {
    char text[64];
    wire_header(a, "Transfer-Encoding", text, sizeof text);
    a->is_chunked = text[0] != '\0';
    if (w->may_lack_body && lacks_body(w, deadline)) {
        a->is_complete = true;
        return;
    }
    if (a->is_chunked) {
        read_chunks(w, a, deadline);
        return;
    }
    wire_header(a, "Content-Length", text, sizeof text);
    size_t n = (size_t)strtoul(text, NULL, 10);
    if (text[0] == '\0' && a->status != 204) {
        while (!w->is_closed && clock_mono_ms() < deadline) {
            wire_receive(w, (int)(deadline - clock_mono_ms()));
        }
        n = w->in.len;
    }
    a->is_complete = want_bytes(w, n, deadline);
    size_t got = w->in.len < n ? w->in.len : n;
    buf_append(&a->body, buf_cstr(&w->in), got);
    buf_consume(&w->in, got);
}

void wire_read(wire *w, wire_answer *a, int timeout_ms) {
    uint64_t start = clock_mono_ms();
    uint64_t deadline = start + (uint64_t)timeout_ms;
    *a = (wire_answer){.head = BUF_INIT, .body = BUF_INIT};
    for (;;) {
        long end = wait_for(w, 0, "\r\n\r\n", deadline);
        if (end < 0) return;
        buf_reset(&a->head);
        buf_append(&a->head, w->in.data, (size_t)end + 2);
        buf_consume(&w->in, (size_t)end + 4);
        const char *space = strchr(buf_cstr(&a->head), ' ');
        int status = space != NULL ? (int)strtol(space, NULL, 10) : 0;
        if (status >= 100 && status < 200) {
            a->n_interim++;
            continue;
        }
        a->status = status;
        a->head_ms = clock_mono_ms() - start;
        read_body(w, a, deadline);
        return;
    }
}

void wire_answer_release(wire_answer *a) {
    buf_release(&a->head);
    buf_release(&a->body);
}
