/* Reaching the other machine's ssh server, with a clear name for each way it can fail. */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/str.h"
#include "setup/ssh_internal.h"

enum { KEEP_ALIVE_S = 15, KEEP_ALIVE_TRIES = 3 };

static int bad_target(const char *text, err *e) {
    return err_set(e, ERR_ARG, "\"%.80s\" is no user@host or user@host:port", text);
}

/* Names become parts of messages and of hash input: letters, digits and a few marks only. */
static bool is_word(const char *s, size_t n) {
    if (n == 0 || s[0] == '-') return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        bool is_fine = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       c == '.' || c == '_' || c == '-' || c == ':' || c == '%';
        if (!is_fine) return false;
    }
    return true;
}

int remote_target_parse(const char *text, remote_target *out, err *e) {
    *out = (remote_target){.port = 22};
    const char *host = strrchr(text, '@');
    if (host != NULL) {
        size_t n = (size_t)(host - text);
        if (n >= sizeof out->user || !is_word(text, n)) return bad_target(text, e);
        memcpy(out->user, text, n);
        host++;
    } else {
        host = text;
    }
    const char *end = host + strlen(host), *colon = strchr(host, ':');
    if (host[0] == '[') {
        end = strchr(host, ']');
        if (end == NULL) return bad_target(text, e);
        colon = end[1] == ':' ? end + 1 : NULL;
        if (end[1] != '\0' && colon == NULL) return bad_target(text, e);
        host++;
    } else if (colon != NULL && strchr(colon + 1, ':') == NULL) {
        end = colon;
    } else {
        colon = NULL; /* none, or an IPv6 address without brackets */
    }
    int64_t port = 22;
    if (colon != NULL && (parse_i64(colon + 1, &port) != OK || port < 1 || port > 65535)) {
        return bad_target(text, e);
    }
    size_t n = (size_t)(end - host);
    if (n >= sizeof out->host || !is_word(host, n)) return bad_target(text, e);
    memcpy(out->host, host, n);
    out->port = (int)port;
    return OK;
}

/* Looks once past the deadline too: what came while this process stood still has come. */
static int wait_for(int fd, short events, uint64_t deadline_ms) {
    for (;;) {
        uint64_t now = clock_mono_ms();
        struct pollfd p = {.fd = fd, .events = events};
        int n = poll(&p, 1, now < deadline_ms ? (int)(deadline_ms - now) : 0);
        if (n >= 0 || errno != EINTR) return n;
    }
}

static void tune(int fd) {
    int on = 1, idle = KEEP_ALIVE_S, tries = KEEP_ALIVE_TRIES;
    unsigned lost_ms = KEEP_ALIVE_S * KEEP_ALIVE_TRIES * 1000;
    /* A kernel that lacks one of these only notices a dead peer later. */
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof tries);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &lost_ms, sizeof lost_ms);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/* Connects to one address; returns the descriptor or -errno. */
static int connect_one(const struct addrinfo *a, uint64_t deadline_ms) {
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (fd < 0) return -errno;
    int problem = 0;
    if (connect(fd, a->ai_addr, a->ai_addrlen) != 0) {
        problem = errno;
        if (problem == EINPROGRESS) {
            socklen_t n = sizeof problem;
            if (wait_for(fd, POLLOUT, deadline_ms) <= 0)
                problem = ETIMEDOUT;
            else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &problem, &n) != 0)
                problem = errno;
        }
    }
    if (problem != 0) {
        close(fd);
        return -problem;
    }
    tune(fd);
    return fd;
}

static int explain(int problem, const remote_target *t, const char *node, remote_fault *f, err *e) {
    if (problem == ECONNREFUSED) {
        *f = REMOTE_REFUSED;
        return err_set(e, ERR_NET,
            "%s (%s) answers but refuses port %d: no ssh server runs there, or it uses another port; "
            "on that machine run: sudo systemctl enable --now ssh",
            node, t->host, t->port);
    }
    *f = REMOTE_UNREACHABLE;
    if (problem == ETIMEDOUT) {
        return err_set(e, ERR_TIMEOUT,
            "%s (%s) does not answer on port %d: it is switched off, the cable or address is wrong, "
            "or a firewall drops the connection",
            node, t->host, t->port);
    }
    return err_set(e, ERR_NET, "%s (%s) cannot be reached on port %d: %s", node, t->host, t->port,
        strerror(problem));
}

int remote_wait_greeting(
    int fd, uint64_t deadline_ms, const char *node, remote_fault *fault, err *e) {
    char start[5];
    size_t n = 0;
    while (n < 4) {
        bool is_late = n > 0 && clock_mono_ms() >= deadline_ms;
        if (is_late || wait_for(fd, POLLIN, deadline_ms) <= 0) {
            *fault = REMOTE_BANNER;
            return err_set(e, ERR_TIMEOUT,
                "%s accepts the connection but its ssh server sends no greeting: that is what a "
                "machine out of memory looks like. Wait up to 25 minutes; if it stays so, switch "
                "it off and on",
                node);
        }
        ssize_t got = recv(fd, start, 4, MSG_PEEK);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (got <= 0) {
            *fault = REMOTE_NOT_SSH;
            return err_set(e, ERR_NET,
                "%s closes the connection before its ssh greeting; its log says why (too many "
                "sessions, or its address is blocked)",
                node);
        }
        if ((size_t)got == n) sleep_ms(10);
        n = (size_t)got;
    }
    start[4] = '\0';
    if (str_starts(start, "SSH-")) return OK;
    /* A server may send other lines first; only plain text is taken for such lines. */
    for (size_t i = 0; i < 4; i++) {
        if ((unsigned char)start[i] < 0x20 && start[i] != '\r' && start[i] != '\n') {
            *fault = REMOTE_NOT_SSH;
            return err_set(e, ERR_NET, "what answers at %s is no ssh server", node);
        }
    }
    if (str_starts(start, "HTTP")) {
        *fault = REMOTE_NOT_SSH;
        return err_set(e, ERR_NET, "what answers at %s is a web server, not ssh", node);
    }
    return OK;
}

int remote_tcp_connect(
    const remote_target *t, int ms, const char *node, remote_fault *fault, err *e) {
    uint64_t deadline = clock_mono_ms() + (uint64_t)ms;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *all = NULL;
    char port[8] = "";
    buf text = BUF_INIT;
    if (buf_printf(&text, "%d", t->port) == OK) str_copy(port, sizeof port, buf_cstr(&text));
    buf_release(&text);
    int rc = getaddrinfo(t->host, port, &hints, &all);
    if (rc != 0) {
        *fault = REMOTE_NO_NAME;
        return err_set(
            e, ERR_NET, "the name %s of %s has no address: %s", t->host, node, gai_strerror(rc));
    }
    int fd = -ETIMEDOUT;
    for (const struct addrinfo *a = all; a != NULL && fd < 0; a = a->ai_next)
        fd = connect_one(a, deadline);
    freeaddrinfo(all);
    if (fd < 0) return explain(-fd, t, node, fault, e);
    rc = remote_wait_greeting(fd, deadline, node, fault, e);
    if (rc != OK) {
        close(fd);
        return rc;
    }
    return fd;
}
