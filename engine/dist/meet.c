#include "engine/dist/meet.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/rand.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/dist/peer_io.h"

enum { HELLO_NONCE = 16, HELLO_VERSION = 2, HELLO_PATIENCE_MS = 2000, MEET_LOOK_MS = 50 };
enum { MEET_DEFAULT_MS = 30000, CONNECT_MS = 2000 };

/* Both sides send a hello with a nonce, then a proof over both hellos keyed with the secret. */
typedef struct hello {
    uint32_t version;
    int32_t rank, world, channel;
    meet_identity identity;
    uint8_t nonce[HELLO_NONCE];
} hello;

void meet_fds_init(meet_fds *f) {
    for (int c = 0; c < MEET_MAX_CHANNELS; c++) {
        for (int r = 0; r < MEET_MAX_WORLD; r++) {
            f->fd[c][r] = -1;
        }
    }
}

void meet_fds_close(meet_fds *f) {
    for (int c = 0; c < MEET_MAX_CHANNELS; c++) {
        for (int r = 0; r < MEET_MAX_WORLD; r++) {
            if (f->fd[c][r] >= 0) close(f->fd[c][r]);
        }
    }
    meet_fds_init(f);
}

/* ---- the handshake ---- */

static void prove(
    const meet_options *o, const hello *first, const hello *second, uint8_t out[SHA256_BYTES]) {
    hello both[2];
    memcpy(&both[0], first, sizeof(*first));
    memcpy(&both[1], second, sizeof(*second));
    sha256_hmac(o->secret, sizeof(o->secret), both, sizeof(both), out);
}

static int swap_bytes(int fd, void *out, void *in, size_t n, uint64_t deadline_ms, err *e) {
    peer_part a = {out, n, 0}, b = {in, n, 0};
    return peer_transfer(fd, &a, &b, deadline_ms, e);
}

static int differs(err *e, const hello *h, const char *what, uint64_t theirs, uint64_t mine) {
    return err_set(e, ERR_MISMATCH,
        "rank %d has %s (%016llx, this rank has %016llx); start all ranks with the same files and "
        "options",
        h->rank, what, (unsigned long long)theirs, (unsigned long long)mine);
}

/* The other side holds the secret, so what it says is true. */
static int check_hello(const meet_options *o, hello *h, err *e) {
    const meet_identity *mine = &o->identity, *theirs = &h->identity;
    h->identity.build[MEET_BUILD_MAX - 1] = '\0';
    if (theirs->start_id != mine->start_id) {
        return err_set(e, ERR_AUTH, "rank %d belongs to another start", h->rank);
    }
    if (strcmp(theirs->build, mine->build) != 0) {
        return err_set(e, ERR_MISMATCH,
            "rank %d runs another build (%s, this rank is %s); start all ranks from the same "
            "bundle",
            h->rank, theirs->build, mine->build);
    }
    if (h->world != o->world || h->rank < 0 || h->rank >= o->world || h->rank == o->rank ||
        (h->rank != 0 && o->rank != 0) || h->channel < 0 || h->channel >= o->n_channels) {
        return err_set(e, ERR_MISMATCH, "rank %d of %d met rank %d of %d", o->rank, o->world,
            h->rank, h->world);
    }
    if (theirs->model != mine->model) {
        return differs(e, h, "another model", theirs->model, mine->model);
    }
    if (theirs->settings != mine->settings) {
        return differs(e, h, "other settings", theirs->settings, mine->settings);
    }
    return OK;
}

static int shake_hands(
    int fd, const meet_options *o, hello *mine, uint64_t deadline_ms, hello *theirs, err *e) {
    uint8_t proof[SHA256_BYTES], answer[SHA256_BYTES], want[SHA256_BYTES];
    rand_secret(mine->nonce, sizeof(mine->nonce));
    int rc = swap_bytes(fd, mine, theirs, sizeof(*mine), deadline_ms, e);
    if (rc != OK) return rc;
    if (theirs->version != HELLO_VERSION) {
        return err_set(e, ERR_AUTH, "the other side is no rank of this program");
    }
    bool is_echo = memcmp(mine->nonce, theirs->nonce, sizeof(mine->nonce)) == 0;
    prove(o, mine, theirs, proof);
    prove(o, theirs, mine, want);
    rc = swap_bytes(fd, proof, answer, sizeof(proof), deadline_ms, e);
    if (rc == OK && (is_echo || !sha256_equal(answer, want))) {
        rc = err_set(e, ERR_AUTH, "the other side does not hold this start's secret");
    }
    return rc == OK ? check_hello(o, theirs, e) : rc;
}

static void fill_hello(const meet_options *o, int channel, hello *h) {
    memset(h, 0, sizeof(*h));
    h->version = HELLO_VERSION;
    h->rank = o->rank;
    h->world = o->world;
    h->channel = channel;
    h->identity.start_id = o->identity.start_id;
    h->identity.settings = o->identity.settings;
    h->identity.model = o->identity.model;
    str_copy(h->identity.build, sizeof(h->identity.build), o->identity.build);
}

/* ---- addresses ---- */

static int find_address(const char *host, int port, struct addrinfo **out, err *e) {
    char text[16];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    const char *name = host == NULL || host[0] == '\0' ? "127.0.0.1" : host;
    snprintf(text, sizeof(text), "%d", port);
    int rc = getaddrinfo(name, text, &hints, out);
    if (rc == 0) return OK;
    return err_set(e, ERR_NET, "address %s of rank 0: %s", name, gai_strerror(rc));
}

static int port_of(int fd) {
    struct sockaddr_storage a;
    socklen_t n = sizeof(a);
    char text[16] = "";
    int64_t port = 0;
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0 ||
        getnameinfo((struct sockaddr *)&a, n, NULL, 0, text, sizeof(text), NI_NUMERICSERV) != 0) {
        return 0;
    }
    return parse_i64(text, &port) == OK ? (int)port : 0;
}

int meet_listen(const char *host, int *port, int *fd, err *e) {
    struct addrinfo *a = NULL;
    int one = 1;
    *fd = -1;
    int rc = find_address(host, *port, &a, e);
    if (rc != OK) return rc;
    int s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s >= 0) {
        (void)setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    }
    if (s < 0 || bind(s, a->ai_addr, a->ai_addrlen) != 0 || listen(s, MEET_MAX_WORLD * 4) != 0) {
        rc = err_errno(e, "rank 0 cannot listen for the other ranks on %s port %d",
            host == NULL || host[0] == '\0' ? "127.0.0.1" : host, *port);
        if (s >= 0) close(s);
    } else {
        *port = port_of(s);
        *fd = s;
    }
    freeaddrinfo(a);
    return rc;
}

/* ---- rank 0 ---- */

static int give_up(err *e) {
    return err_set(e, ERR_CANCELLED, "stopped while waiting for the other ranks");
}

/* Waits for a connection: OK with one there, ERR_TIMEOUT, ERR_CANCELLED. */
static int await(const meet_options *o, int listener, uint64_t deadline_ms, err *e) {
    struct pollfd p[2] = {{.fd = listener, .events = POLLIN}, {.fd = o->stop_fd, .events = POLLIN}};
    for (;;) {
        uint64_t now = clock_mono_ms();
        if (now >= deadline_ms) {
            return err_set(e, ERR_TIMEOUT,
                "not all of %d ranks came within %d ms; look at the logs of the others", o->world,
                o->timeout_ms);
        }
        int n = poll(p, 2, (int)(deadline_ms - now));
        if (n < 0 && errno != EINTR) return err_errno(e, "waiting for the other ranks");
        if (n > 0 && p[1].revents != 0) return give_up(e);
        if (n > 0) return OK;
    }
}

static int take_rank(const meet_options *o, int fd, uint64_t deadline_ms, meet_fds *f, err *e) {
    hello mine, theirs;
    uint64_t patience = clock_mono_ms() + HELLO_PATIENCE_MS;
    fill_hello(o, 0, &mine);
    peer_tune(fd);
    int rc = shake_hands(fd, o, &mine, patience < deadline_ms ? patience : deadline_ms, &theirs, e);
    if (rc == OK && f->fd[theirs.channel][theirs.rank] >= 0) {
        rc = err_set(e, ERR_MISMATCH, "two processes claim to be rank %d", theirs.rank);
    }
    if (rc == OK) {
        f->fd[theirs.channel][theirs.rank] = fd;
        return OK;
    }
    close(fd);
    /* A stranger on the port must not end the start. */
    if (rc != ERR_AUTH && rc != ERR_PEER && rc != ERR_TIMEOUT) return rc;
    LOG(LOG_WARN, "meet", "a connection was turned away", "message=\"%s\"", e->msg);
    return OK;
}

static int count_missing(const meet_options *o, const meet_fds *f) {
    int n = 0;
    for (int c = 0; c < o->n_channels; c++) {
        for (int r = 1; r < o->world; r++) {
            n += f->fd[c][r] < 0;
        }
    }
    return n;
}

static int meet_as_root(const meet_options *o, uint64_t deadline_ms, meet_fds *f, err *e) {
    int listener = o->listen_fd, port = o->port, rc = OK;
    err local = ERR_INIT;
    if (listener < 0) rc = meet_listen(o->host, &port, &listener, &local);
    while (rc == OK && count_missing(o, f) > 0) {
        rc = await(o, listener, deadline_ms, &local);
        int fd = rc == OK ? accept4(listener, NULL, NULL, SOCK_CLOEXEC) : -1;
        if (rc == OK && fd < 0 && errno != EINTR && errno != ECONNABORTED) {
            rc = err_errno(&local, "accepting a rank");
        }
        if (fd >= 0) rc = take_rank(o, fd, deadline_ms, f, &local);
    }
    if (listener >= 0) close(listener);
    if (rc != OK && e != NULL) *e = local;
    return rc;
}

/* ---- the others ---- */

static bool is_stopped(const meet_options *o) {
    struct pollfd p = {.fd = o->stop_fd, .events = POLLIN};
    return o->stop_fd >= 0 && poll(&p, 1, MEET_LOOK_MS) > 0;
}

/* A connection, or -1 with errno; never waits longer than CONNECT_MS. */
static int try_connect(const struct addrinfo *a) {
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    int failure = connect(fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (failure == EINPROGRESS) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        socklen_t n = sizeof(failure);
        if (poll(&p, 1, CONNECT_MS) <= 0) {
            failure = ETIMEDOUT;
        } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &n) != 0) {
            failure = errno;
        }
    }
    if (failure == 0) return fd;
    close(fd);
    errno = failure;
    return -1;
}

static int connect_channel(
    const meet_options *o, const struct addrinfo *a, uint64_t deadline_ms, int *fd, err *e) {
    for (;;) {
        *fd = try_connect(a);
        if (*fd >= 0) return OK;
        int saved = errno;
        if (clock_mono_ms() >= deadline_ms) {
            errno = saved;
            return err_errno(e, "rank 0 at %s port %d cannot be reached",
                o->host == NULL || o->host[0] == '\0' ? "127.0.0.1" : o->host, o->port);
        }
        if (is_stopped(o)) return give_up(e);
        if (o->stop_fd < 0) sleep_ms(MEET_LOOK_MS);
    }
}

static int meet_as_leaf(const meet_options *o, uint64_t deadline_ms, meet_fds *f, err *e) {
    struct addrinfo *a = NULL;
    hello mine, theirs;
    int rc = find_address(o->host, o->port, &a, e);
    for (int c = 0; c < o->n_channels && rc == OK; c++) {
        int *fd = &f->fd[c][0];
        rc = connect_channel(o, a, deadline_ms, fd, e);
        if (rc != OK) break;
        fill_hello(o, c, &mine);
        peer_tune(*fd);
        rc = shake_hands(*fd, o, &mine, deadline_ms, &theirs, e);
    }
    if (a != NULL) freeaddrinfo(a);
    return rc;
}

int meet_all(const meet_options *options, meet_fds *out, err *e) {
    meet_options o = *options;
    meet_fds_init(out);
    if (o.world < 1 || o.world > MEET_MAX_WORLD || o.rank < 0 || o.rank >= o.world) {
        return err_set(e, ERR_ARG, "rank %d of %d; worlds of 1 to %d are possible", o.rank, o.world,
            MEET_MAX_WORLD);
    }
    if (o.timeout_ms <= 0) o.timeout_ms = MEET_DEFAULT_MS;
    if (o.n_channels <= 0) o.n_channels = 1;
    uint64_t deadline = clock_mono_ms() + (uint64_t)o.timeout_ms;
    int rc = o.rank == 0 ? meet_as_root(&o, deadline, out, e) : meet_as_leaf(&o, deadline, out, e);
    if (rc != OK) meet_fds_close(out);
    return err_add(e, rc, "meeting of rank %d", o.rank);
}
