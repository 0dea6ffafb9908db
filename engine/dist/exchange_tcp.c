/* Ranks as processes over TCP, a star around rank 0: every rank sends its part to rank 0 and gets
 * the others' back. With two ranks that is one full-duplex transfer. Each message carries its
 * number and size, so ranks that lost step notice. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/sha256.h"
#include "engine/base/thread.h"
#include "engine/dist/exchange_internal.h"

enum { TCP_SPINS = 200, HELLO_NONCE = 16, HELLO_VERSION = 1, HELLO_PATIENCE_MS = 2000 };

typedef struct tcp_exchange {
    exchange base;              /* first */
    int fd[EXCHANGE_MAX_WORLD]; /* rank 0: to every rank; others: fd[0] to rank 0 */
    uint8_t *out, *in;          /* message buffers: head and payload */
    uint32_t n_messages;
} tcp_exchange;

typedef struct message_head {
    uint32_t number, bytes;
} message_head;

/* ---- moving bytes ---- */

/* One direction of a transfer. */
typedef struct stream_part {
    uint8_t *data;
    size_t len, done;
} stream_part;

static int peer_gone(int rank, err *e) {
    return err_set(e, ERR_PEER, "rank %d closed the connection; look at its log", rank);
}

/* Sends or receives what goes without waiting. */
static int move_some(int fd, stream_part *p, bool is_send, err *e) {
    while (p->done < p->len) {
        ssize_t n = is_send
                        ? send(fd, p->data + p->done, p->len - p->done, MSG_DONTWAIT | MSG_NOSIGNAL)
                        : recv(fd, p->data + p->done, p->len - p->done, MSG_DONTWAIT);
        if (n > 0) {
            p->done += (size_t)n;
            continue;
        }
        if (n == 0 && !is_send) {
            return err_set(e, ERR_PEER, "closed");
        }
        if (errno == EINTR) {
            continue;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return OK;
        }
        if (errno == EPIPE || errno == ECONNRESET) {
            return err_set(e, ERR_PEER, "closed");
        }
        return err_errno(e, "exchange socket");
    }
    return OK;
}

/* Sends and receives at once until both are complete or the deadline passes. */
static int transfer(int fd, stream_part *out, stream_part *in, uint64_t deadline_ms, err *e) {
    int n_idle = 0;
    while (out->done < out->len || in->done < in->len) {
        size_t before = out->done + in->done;
        int rc = move_some(fd, out, true, e);
        if (rc == OK) {
            rc = move_some(fd, in, false, e);
        }
        if (rc != OK) {
            return rc;
        }
        if (out->done + in->done != before) {
            n_idle = 0;
            continue;
        }
        if (++n_idle < TCP_SPINS) {
            thread_relax();
            continue;
        }
        uint64_t now = clock_mono_ms();
        if (now >= deadline_ms) {
            return err_set(e, ERR_TIMEOUT, "no answer");
        }
        struct pollfd p = {.fd = fd};
        p.events =
            (short)((out->done < out->len ? POLLOUT : 0) | (in->done < in->len ? POLLIN : 0));
        int wait = deadline_ms - now > 1000 ? 1000 : (int)(deadline_ms - now);
        if (poll(&p, 1, wait) < 0 && errno != EINTR) {
            return err_errno(e, "waiting on the exchange");
        }
    }
    return OK;
}

static int name_peer(int rc, int rank, int timeout_ms, err *e) {
    if (rc == ERR_TIMEOUT) {
        return err_set(
            e, rc, "rank %d did not answer for %d ms; look at its log", rank, timeout_ms);
    }
    return rc == ERR_PEER ? peer_gone(rank, e) : rc;
}

/* ---- gather ---- */

static int talk(tcp_exchange *x, int peer, const size_t out_in[2], err *e) {
    stream_part out = {x->out, out_in[0], 0}, in = {x->in, out_in[1], 0};
    uint64_t deadline = clock_mono_ms() + (uint64_t)x->base.timeout_ms;
    int rc = transfer(x->fd[peer], &out, &in, deadline, e);
    return name_peer(rc, peer, x->base.timeout_ms, e);
}

static int check_head(const tcp_exchange *x, int peer, size_t bytes, err *e) {
    message_head h;
    memcpy(&h, x->in, sizeof(h));
    if (h.number == x->n_messages && h.bytes == (uint32_t)bytes) {
        return OK;
    }
    return err_set(e, ERR_MISMATCH,
        "rank %d is at exchange %u with %u bytes, this rank at %u with %zu; the ranks ran "
        "different plans",
        peer, h.number, h.bytes, x->n_messages, bytes);
}

/* Rank 0: takes every rank's part while giving its own, then passes the parts of the others on. */
static int gather_root(tcp_exchange *x, size_t bytes, char *all, err *e) {
    size_t head = sizeof(message_head);
    int rc = OK;
    for (int r = 1; r < x->base.world && rc == OK; r++) {
        rc = talk(x, r, (size_t[2]){head + bytes, head + bytes}, e);
        if (rc == OK) {
            rc = check_head(x, r, bytes, e);
        }
        if (rc == OK) {
            memcpy(all + (size_t)r * bytes, x->in + head, bytes);
        }
    }
    for (int r = 1; r < x->base.world && rc == OK && x->base.world > 2; r++) {
        size_t len = 0;
        for (int other = 1; other < x->base.world; other++) {
            if (other == r) {
                continue;
            }
            memcpy(x->out + len, all + (size_t)other * bytes, bytes);
            len += bytes;
        }
        rc = talk(x, r, (size_t[2]){len, 0}, e);
    }
    return rc;
}

static int gather_leaf(tcp_exchange *x, size_t bytes, char *all, err *e) {
    size_t head = sizeof(message_head);
    int rc = talk(x, 0, (size_t[2]){head + bytes, head + bytes}, e);
    if (rc == OK) {
        rc = check_head(x, 0, bytes, e);
    }
    if (rc != OK) {
        return rc;
    }
    memcpy(all, x->in + head, bytes);
    if (x->base.world == 2) {
        return OK;
    }
    rc = talk(x, 0, (size_t[2]){0, (size_t)(x->base.world - 2) * bytes}, e);
    const uint8_t *at = x->in;
    for (int r = 1; r < x->base.world && rc == OK; r++) {
        if (r == x->base.rank) {
            continue;
        }
        memcpy(all + (size_t)r * bytes, at, bytes);
        at += bytes;
    }
    return rc;
}

static int tcp_gather(exchange *base, const void *mine, size_t bytes, void *all, err *e) {
    tcp_exchange *x = (tcp_exchange *)(void *)base;
    x->n_messages++;
    message_head head = {x->n_messages, (uint32_t)bytes};
    memcpy(x->out, &head, sizeof(head));
    memcpy(x->out + sizeof(head), mine, bytes);
    char *own = (char *)all + (size_t)base->rank * bytes;
    if (own != mine) {
        memmove(own, mine, bytes);
    }
    return base->rank == 0 ? gather_root(x, bytes, all, e) : gather_leaf(x, bytes, all, e);
}

static void tcp_close(exchange *base) {
    tcp_exchange *x = (tcp_exchange *)(void *)base;
    for (int r = 0; r < EXCHANGE_MAX_WORLD; r++) {
        if (x->fd[r] >= 0) {
            close(x->fd[r]);
        }
    }
    mem_aligned_free(x->out);
    mem_aligned_free(x->in);
    exchange_release(base);
    mem_free(x);
}

static const exchange_ops tcp_ops = {.gather = tcp_gather, .close = tcp_close};

/* ---- meeting ---- */

/* Both sides send a hello with a nonce, then a proof over both hellos keyed with the secret. */
typedef struct hello {
    uint32_t version;
    int32_t rank, world;
    uint32_t reserved;
    uint64_t identity;
    uint8_t nonce[HELLO_NONCE];
} hello;

static void prove(const exchange_tcp_options *o, const hello *first, const hello *second,
    uint8_t out[SHA256_BYTES]) {
    hello both[2] = {*first, *second};
    sha256_hmac(o->secret, sizeof(o->secret), both, sizeof(both), out);
}

static int swap_bytes(int fd, void *out, void *in, size_t n, uint64_t deadline_ms, err *e) {
    stream_part a = {out, n, 0}, b = {in, n, 0};
    return transfer(fd, &a, &b, deadline_ms, e);
}

static int check_hello(const exchange_tcp_options *o, const hello *h, err *e) {
    if (h->version != HELLO_VERSION || h->identity != o->identity) {
        return err_set(e, ERR_MISMATCH,
            "rank %d runs another build or other settings (%016llx, this is %016llx); "
            "start all ranks from the same bundle",
            h->rank, (unsigned long long)h->identity, (unsigned long long)o->identity);
    }
    if (h->world != o->world || h->rank < 0 || h->rank >= o->world || h->rank == o->rank) {
        return err_set(e, ERR_MISMATCH, "rank %d of %d met rank %d of %d", o->rank, o->world,
            h->rank, h->world);
    }
    return OK;
}

/* Returns the peer's rank through *peer. */
static int shake_hands(
    int fd, const exchange_tcp_options *o, uint64_t deadline_ms, int *peer, err *e) {
    hello mine = {HELLO_VERSION, o->rank, o->world, 0, o->identity, {0}}, theirs;
    uint8_t proof[SHA256_BYTES], answer[SHA256_BYTES], want[SHA256_BYTES];
    rand_secret(mine.nonce, sizeof(mine.nonce));
    int rc = swap_bytes(fd, &mine, &theirs, sizeof(mine), deadline_ms, e);
    if (rc != OK) {
        return rc;
    }
    bool is_echo = memcmp(mine.nonce, theirs.nonce, sizeof(mine.nonce)) == 0;
    prove(o, &mine, &theirs, proof);
    prove(o, &theirs, &mine, want);
    rc = swap_bytes(fd, proof, answer, sizeof(proof), deadline_ms, e);
    if (rc == OK && (is_echo || !sha256_equal(answer, want))) {
        rc = err_set(e, ERR_AUTH, "the other side does not hold this start's secret");
    }
    *peer = theirs.rank;
    return rc == OK ? check_hello(o, &theirs, e) : rc;
}

static void tune_socket(int fd) {
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

static int parse_address(const exchange_tcp_options *o, struct addrinfo **out, err *e) {
    char port[16];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    const char *host = o->host == NULL || o->host[0] == '\0' ? "127.0.0.1" : o->host;
    snprintf(port, sizeof(port), "%d", o->port);
    int rc = getaddrinfo(host, port, &hints, out);
    if (rc == 0) {
        return OK;
    }
    return err_set(e, ERR_NET, "address %s of rank 0: %s", host, gai_strerror(rc));
}

static int listen_socket(const exchange_tcp_options *o, int *fd, err *e) {
    struct addrinfo *a = NULL;
    int one = 1;
    int rc = parse_address(o, &a, e);
    if (rc != OK) {
        return rc;
    }
    *fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd >= 0) {
        (void)setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    }
    if (*fd < 0 || bind(*fd, a->ai_addr, a->ai_addrlen) != 0 ||
        listen(*fd, EXCHANGE_MAX_WORLD) != 0) {
        rc = err_errno(e, "rank 0 cannot listen on port %d", o->port);
    }
    freeaddrinfo(a);
    return rc;
}

static int accept_one(
    tcp_exchange *x, const exchange_tcp_options *o, int listener, uint64_t deadline_ms, err *e) {
    struct pollfd p = {.fd = listener, .events = POLLIN};
    uint64_t now = clock_mono_ms();
    int ready = now >= deadline_ms ? 0 : poll(&p, 1, (int)(deadline_ms - now));
    if (ready == 0) {
        return err_set(e, ERR_TIMEOUT,
            "not all of %d ranks came within %d ms; look at the logs of the others", o->world,
            o->open_timeout_ms);
    }
    int fd = ready < 0 ? -1 : accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) {
        return errno == EINTR ? OK : err_errno(e, "accepting a rank");
    }
    int peer = -1;
    tune_socket(fd);
    uint64_t patience = clock_mono_ms() + HELLO_PATIENCE_MS;
    int rc = shake_hands(fd, o, patience < deadline_ms ? patience : deadline_ms, &peer, e);
    if (rc == OK && x->fd[peer] >= 0) {
        rc = err_set(e, ERR_MISMATCH, "two processes claim to be rank %d", peer);
    }
    if (rc != OK) {
        close(fd);
        /* A stranger on the port must not end the start. */
        return rc == ERR_AUTH || rc == ERR_PEER || rc == ERR_TIMEOUT ? OK : rc;
    }
    x->fd[peer] = fd;
    return OK;
}

static int meet_as_root(
    tcp_exchange *x, const exchange_tcp_options *o, uint64_t deadline_ms, err *e) {
    int listener = o->listen_fd, rc = OK;
    if (listener < 0) {
        rc = listen_socket(o, &listener, e);
    }
    for (int missing = o->world - 1; missing > 0 && rc == OK;) {
        rc = accept_one(x, o, listener, deadline_ms, e);
        missing = 0;
        for (int r = 1; r < o->world; r++) {
            missing += x->fd[r] < 0;
        }
    }
    if (listener >= 0) {
        close(listener);
    }
    return rc;
}

static int meet_as_leaf(
    tcp_exchange *x, const exchange_tcp_options *o, uint64_t deadline_ms, err *e) {
    struct addrinfo *a = NULL;
    int rc = parse_address(o, &a, e);
    if (rc != OK) {
        return rc;
    }
    while (x->fd[0] < 0) {
        int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0) {
            x->fd[0] = fd;
            break;
        }
        int saved = errno;
        if (fd >= 0) {
            close(fd);
        }
        if (clock_mono_ms() >= deadline_ms) {
            errno = saved;
            rc = err_errno(e, "rank 0 at port %d cannot be reached", o->port);
            break;
        }
        sleep_ms(50);
    }
    freeaddrinfo(a);
    if (rc != OK) {
        return rc;
    }
    int peer = -1;
    tune_socket(x->fd[0]);
    return shake_hands(x->fd[0], o, deadline_ms, &peer, e);
}

int exchange_tcp_open(const exchange_tcp_options *options, exchange **out, err *e) {
    exchange_tcp_options o = *options;
    tcp_exchange *x = mem_alloc(sizeof(*x));
    *out = NULL;
    if (o.open_timeout_ms <= 0) {
        o.open_timeout_ms = 30000;
    }
    for (int r = 0; r < EXCHANGE_MAX_WORLD; r++) {
        x->fd[r] = -1;
    }
    int rc = exchange_init(&x->base, &tcp_ops, (int[2]){o.rank, o.world}, o.max_bytes, e);
    x->base.ops = &tcp_ops;
    x->base.timeout_ms = o.timeout_ms > 0 ? o.timeout_ms : EXCHANGE_DEFAULT_TIMEOUT_MS;
    size_t room =
        sizeof(message_head) + (size_t)(o.world > 2 ? o.world - 2 : 1) * x->base.max_bytes;
    if (rc == OK) {
        x->out = mem_aligned(64, room);
        x->in = mem_aligned(64, room);
        if (x->out == NULL || x->in == NULL) {
            rc = err_set(e, ERR_MEMORY, "no memory for the exchange");
        }
    }
    uint64_t deadline = clock_mono_ms() + (uint64_t)o.open_timeout_ms;
    if (rc == OK) {
        rc = o.rank == 0 ? meet_as_root(x, &o, deadline, e) : meet_as_leaf(x, &o, deadline, e);
    }
    if (rc != OK) {
        tcp_close(&x->base);
        return err_add(e, rc, "exchange of rank %d", o.rank);
    }
    *out = &x->base;
    return OK;
}
