#include "engine/dist/peer_io.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "engine/base/clock.h"
#include "engine/base/thread.h"

enum { PEER_SPINS = 200 };

static bool is_closed(int code) {
    return code == EPIPE || code == ECONNRESET || code == ENOTCONN || code == ESHUTDOWN;
}

/* Sends or receives what goes without waiting. */
static int move_some(int fd, peer_part *p, bool is_send, err *e) {
    while (p->done < p->len) {
        char *at = (char *)p->data + p->done;
        ssize_t n = is_send ? send(fd, at, p->len - p->done, MSG_DONTWAIT | MSG_NOSIGNAL)
                            : recv(fd, at, p->len - p->done, MSG_DONTWAIT);
        if (n > 0) {
            p->done += (size_t)n;
            continue;
        }
        if (n == 0 && !is_send) return err_set(e, ERR_PEER, "the other side closed");
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == EWOULDBLOCK) return OK;
        if (is_closed(errno)) return err_set(e, ERR_PEER, "the other side closed");
        return err_errno(e, "connection between the ranks");
    }
    return OK;
}

int peer_transfer(int fd, peer_part *out, peer_part *in, uint64_t deadline_ms, err *e) {
    int n_idle = 0;
    while (out->done < out->len || in->done < in->len) {
        size_t before = out->done + in->done;
        int rc = move_some(fd, out, true, e);
        if (rc == OK) rc = move_some(fd, in, false, e);
        if (rc != OK) return rc;
        if (out->done + in->done != before) {
            n_idle = 0;
            continue;
        }
        if (++n_idle < PEER_SPINS) {
            thread_relax();
            continue;
        }
        uint64_t now = clock_mono_ms();
        if (now >= deadline_ms) return err_set(e, ERR_TIMEOUT, "no answer");
        struct pollfd p = {.fd = fd};
        p.events =
            (short)((out->done < out->len ? POLLOUT : 0) | (in->done < in->len ? POLLIN : 0));
        int wait = deadline_ms - now > 1000 ? 1000 : (int)(deadline_ms - now);
        if (poll(&p, 1, wait) < 0 && errno != EINTR) {
            return err_errno(e, "waiting for another rank");
        }
    }
    return OK;
}

int peer_send(int fd, const void *data, size_t n, uint64_t deadline_ms, err *e) {
    peer_part out = {(void *)(uintptr_t)data, n, 0}, in = {NULL, 0, 0};
    return peer_transfer(fd, &out, &in, deadline_ms, e);
}

int peer_receive(int fd, void *data, size_t n, uint64_t deadline_ms, err *e) {
    peer_part out = {NULL, 0, 0}, in = {data, n, 0};
    return peer_transfer(fd, &out, &in, deadline_ms, e);
}

void peer_tune(int fd) {
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}
