/* Ranks as processes over TCP, a star around rank 0: every rank sends its part to rank 0 and gets
 * the others' back. With two ranks that is one full-duplex transfer. Each message carries its
 * number and size, so ranks that lost step notice. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/dist/exchange_internal.h"
#include "engine/dist/meet.h"
#include "engine/dist/peer_io.h"

typedef struct tcp_exchange {
    exchange base;              /* first */
    int fd[EXCHANGE_MAX_WORLD]; /* rank 0: to every rank; others: fd[0] to rank 0 */
    uint8_t *out, *in;          /* message buffers: head and payload */
    uint32_t n_messages;
} tcp_exchange;

typedef struct message_head {
    uint32_t number, bytes;
} message_head;

static int peer_gone(int rank, err *e) {
    return err_set(e, ERR_PEER, "rank %d closed the connection; look at its log", rank);
}

static int name_peer(int rc, int rank, int timeout_ms, err *e) {
    if (rc == ERR_TIMEOUT) {
        return err_set(
            e, rc, "rank %d did not answer for %d ms; look at its log", rank, timeout_ms);
    }
    return rc == ERR_PEER ? peer_gone(rank, e) : rc;
}

/* ---- gather ---- */

static int trade(tcp_exchange *x, int peer, const size_t out_in[2], err *e) {
    peer_part out = {x->out, out_in[0], 0}, in = {x->in, out_in[1], 0};
    uint64_t deadline = clock_mono_ms() + (uint64_t)x->base.timeout_ms;
    int rc = peer_transfer(x->fd[peer], &out, &in, deadline, e);
    atomic_fetch_add_explicit(&x->base.n_bytes, out.done + in.done, memory_order_relaxed);
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
        rc = trade(x, r, (size_t[2]){head + bytes, head + bytes}, e);
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
        rc = trade(x, r, (size_t[2]){len, 0}, e);
    }
    return rc;
}

static int gather_leaf(tcp_exchange *x, size_t bytes, char *all, err *e) {
    size_t head = sizeof(message_head);
    int rc = trade(x, 0, (size_t[2]){head + bytes, head + bytes}, e);
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
    rc = trade(x, 0, (size_t[2]){0, (size_t)(x->base.world - 2) * bytes}, e);
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

/* Waits of another thread on the sockets end at once. */
static void tcp_abort(exchange *base) {
    tcp_exchange *x = (tcp_exchange *)(void *)base;
    for (int r = 0; r < EXCHANGE_MAX_WORLD; r++) {
        if (x->fd[r] >= 0) {
            (void)shutdown(x->fd[r], SHUT_RDWR);
        }
    }
}

static const exchange_ops tcp_ops = {.gather = tcp_gather, .abort = tcp_abort, .close = tcp_close};

/* ---- opening ---- */

int exchange_tcp_adopt(const exchange_tcp_options *o, const int *fds, exchange **out, err *e) {
    tcp_exchange *x = mem_alloc(sizeof(*x));
    *out = NULL;
    for (int r = 0; r < EXCHANGE_MAX_WORLD; r++) {
        x->fd[r] = fds[r];
    }
    int rc = exchange_init(&x->base, &tcp_ops, (int[2]){o->rank, o->world}, o->max_bytes, e);
    x->base.ops = &tcp_ops;
    x->base.timeout_ms = o->timeout_ms > 0 ? o->timeout_ms : EXCHANGE_DEFAULT_TIMEOUT_MS;
    size_t room =
        sizeof(message_head) + (size_t)(o->world > 2 ? o->world - 2 : 1) * x->base.max_bytes;
    if (rc == OK) {
        x->out = mem_aligned(64, room);
        x->in = mem_aligned(64, room);
        if (x->out == NULL || x->in == NULL) {
            rc = err_set(e, ERR_MEMORY, "no memory for the exchange");
        }
    }
    if (rc != OK) {
        tcp_close(&x->base);
        return err_add(e, rc, "exchange of rank %d", o->rank);
    }
    *out = &x->base;
    return OK;
}

int exchange_tcp_open(const exchange_tcp_options *o, exchange **out, err *e) {
    meet_fds fds;
    meet_options m = {.rank = o->rank,
        .world = o->world,
        .host = o->host,
        .port = o->port,
        .listen_fd = o->listen_fd,
        .identity.settings = o->identity,
        .n_channels = 1,
        .timeout_ms = o->open_timeout_ms,
        .stop_fd = -1};
    *out = NULL;
    memcpy(m.secret, o->secret, sizeof(m.secret));
    int rc = meet_all(&m, &fds, e);
    return rc == OK ? exchange_tcp_adopt(o, fds.fd[MEET_EXCHANGE], out, e) : rc;
}
