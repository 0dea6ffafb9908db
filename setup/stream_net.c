/* Connections of the copy: sockets with deadlines and the proof at their beginning. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "engine/base/rand.h"
#include "engine/base/sha256.h"
#include "setup/stream_internal.h"

enum { GREET_MS = 5000, KEEP_SECONDS = 5 };

/* A literal address and a port. */
static int address(
    const char *text, uint16_t port, struct sockaddr_storage *out, socklen_t *len, err *e) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
        memcpy(out, &v4, sizeof v4);
        *len = sizeof v4;
    } else if (inet_pton(AF_INET6, text, &v6.sin6_addr) == 1) {
        memcpy(out, &v6, sizeof v6);
        *len = sizeof v6;
    } else {
        return err_set(e, ERR_ARG, "%s is no address", text);
    }
    return OK;
}

int stream_listen(const char *text, int *fd, uint16_t *port, err *e) {
    struct sockaddr_storage a;
    socklen_t len = 0;
    int rc = address(text, 0, &a, &len, e);
    if (rc != OK) return rc;
    *fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*fd < 0) return err_errno(e, "socket");
    if (bind(*fd, (struct sockaddr *)&a, len) != 0 || listen(*fd, 64) != 0 ||
        getsockname(*fd, (struct sockaddr *)&a, &len) != 0) {
        rc = err_errno(e, "listening on %s", text);
        close(*fd);
        return rc;
    }
    struct sockaddr_in in;
    memcpy(&in, &a, sizeof in); /* the port lies at the same place for both families */
    *port = ntohs(in.sin_port);
    return OK;
}

void stream_source(int fd, char out[STREAM_ADDRESS_MAX]) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    out[0] = '\0';
    if (getpeername(fd, (struct sockaddr *)&a, &len) != 0) return;
    if (a.ss_family == AF_INET) {
        struct sockaddr_in v4;
        memcpy(&v4, &a, sizeof v4);
        inet_ntop(AF_INET, &v4.sin_addr, out, STREAM_ADDRESS_MAX);
    } else {
        struct sockaddr_in6 v6;
        memcpy(&v6, &a, sizeof v6);
        inet_ntop(AF_INET6, &v6.sin6_addr, out, STREAM_ADDRESS_MAX);
    }
}

static int connect_within(int fd, const struct sockaddr_storage *to, socklen_t len, int ms) {
    int cause = 0;
    socklen_t n = sizeof cause;
    if (connect(fd, (const struct sockaddr *)to, len) == 0) return 0;
    if (errno != EINPROGRESS) return errno;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int ready = poll(&p, 1, ms);
    if (ready <= 0) return ETIMEDOUT;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &cause, &n);
    return cause;
}

int stream_connect(
    const char *from, const char *to, uint16_t port, int timeout_ms, int *fd, err *e) {
    struct sockaddr_storage source, target;
    socklen_t n_source = 0, n_target = 0;
    int rc = address(from, 0, &source, &n_source, e);
    if (rc == OK) rc = address(to, port, &target, &n_target, e);
    if (rc != OK) return rc;
    int s = socket(target.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0) return err_errno(e, "socket");
    /* The source address is bound, so each rail carries its own connections. */
    int cause = bind(s, (struct sockaddr *)&source, n_source) != 0 ? errno : 0;
    if (cause == 0) cause = connect_within(s, &target, n_target, timeout_ms);
    if (cause != 0) {
        close(s);
        errno = cause;
        return err_errno(e, "connecting %s to %s", from, to);
    }
    *fd = s;
    return OK;
}

void stream_tune(int fd, int timeout_ms) {
    int one = 1, seconds = KEEP_SECONDS, count = 3;
    unsigned user = (unsigned)timeout_ms;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &seconds, sizeof seconds);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, sizeof seconds);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    /* A pulled cable shows as unacknowledged data. */
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user, sizeof user);
    struct timeval t = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
}

static int wait_for(int fd, short events, int ms) {
    struct pollfd p = {.fd = fd, .events = events};
    int n = 0;
    do {
        n = poll(&p, 1, ms);
    } while (n < 0 && errno == EINTR);
    return n;
}

/* Milliseconds of SO_SNDTIMEO: the one deadline of a connection. */
static int deadline_of(int fd) {
    struct timeval t = {0};
    socklen_t n = sizeof t;
    getsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, &n);
    int ms = (int)(t.tv_sec * 1000 + t.tv_usec / 1000);
    return ms > 0 ? ms : -1;
}

static int send_some(int fd, struct iovec *v, int n, size_t *sent, err *e) {
    struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)n};
    for (;;) {
        ssize_t k = sendmsg(fd, &m, MSG_NOSIGNAL);
        if (k >= 0) {
            *sent = (size_t)k;
            return OK;
        }
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return err_errno(e, "sending");
        if (wait_for(fd, POLLOUT, deadline_of(fd)) <= 0)
            return err_set(e, ERR_TIMEOUT, "the other side takes no data");
    }
}

int stream_send_two(int fd, const void *a, size_t na, const void *b, size_t nb, err *e) {
    struct iovec v[2] = {{(void *)a, na}, {(void *)b, nb}};
    int i = 0;
    while (i < 2) {
        size_t sent = 0;
        int rc = send_some(fd, v + i, 2 - i, &sent, e);
        if (rc != OK) return rc;
        while (i < 2 && sent >= v[i].iov_len)
            sent -= v[i++].iov_len;
        if (i == 2) break;
        v[i].iov_base = (char *)v[i].iov_base + sent;
        v[i].iov_len -= sent;
    }
    return OK;
}

int stream_send_all(int fd, const void *data, size_t n, err *e) {
    return stream_send_two(fd, data, n, "", 0, e);
}

int stream_recv_all(int fd, void *data, size_t n, err *e) {
    char *p = data;
    while (n > 0) {
        ssize_t k = recv(fd, p, n, 0);
        if (k > 0) {
            p += k;
            n -= (size_t)k;
            continue;
        }
        if (k == 0) return err_set(e, ERR_CANCELLED, "the other side closed the connection");
        if (errno == EINTR) continue;
        if (errno != EAGAIN) return err_errno(e, "receiving");
        if (wait_for(fd, POLLIN, deadline_of(fd)) <= 0)
            return err_set(e, ERR_TIMEOUT, "the other side sends no data");
    }
    return OK;
}

/* The proofs: each side shows that it knows the secret over both nonces, in its own words, so that a
 * proof cannot be sent back. */

static void proof(const uint8_t *secret, const char *word, const uint8_t *nonces, uint32_t index,
    uint8_t out[SHA256_BYTES]) {
    uint8_t text[16 + 2 * FRAME_NONCE_BYTES + 4];
    memset(text, 0, sizeof text);
    memcpy(text, word, strlen(word));
    memcpy(text + 16, nonces, 2 * FRAME_NONCE_BYTES);
    for (int i = 0; i < 4; i++)
        text[16 + 2 * FRAME_NONCE_BYTES + i] = (uint8_t)(index >> (8 * i));
    sha256_hmac(secret, STREAM_SECRET_BYTES, text, sizeof text, out);
}

/* nonce of the sender, number, proof */
enum { HELLO_BYTES = FRAME_NONCE_BYTES + 4 + SHA256_BYTES };

int stream_greet_sender(int fd, const uint8_t *secret, uint32_t index, err *e) {
    uint8_t nonces[2 * FRAME_NONCE_BYTES], hello[HELLO_BYTES], theirs[SHA256_BYTES],
        ours[SHA256_BYTES];
    stream_tune(fd, GREET_MS);
    int rc = stream_recv_all(fd, nonces, FRAME_NONCE_BYTES, e);
    if (rc != OK) return rc;
    rand_secret(nonces + FRAME_NONCE_BYTES, FRAME_NONCE_BYTES);
    memcpy(hello, nonces + FRAME_NONCE_BYTES, FRAME_NONCE_BYTES);
    for (int i = 0; i < 4; i++)
        hello[FRAME_NONCE_BYTES + i] = (uint8_t)(index >> (8 * i));
    proof(secret, "tandem sender", nonces, index, hello + FRAME_NONCE_BYTES + 4);
    rc = stream_send_all(fd, hello, sizeof hello, e);
    if (rc == OK) rc = stream_recv_all(fd, theirs, sizeof theirs, e);
    if (rc != OK) return rc;
    proof(secret, "tandem receive", nonces, index, ours);
    return sha256_equal(theirs, ours)
               ? OK
               : err_set(e, ERR_AUTH, "the receiver does not know the secret of this copy");
}

int stream_greet_receiver(int fd, const uint8_t *secret, uint32_t *index, err *e) {
    uint8_t nonces[2 * FRAME_NONCE_BYTES], hello[HELLO_BYTES], ours[SHA256_BYTES];
    stream_tune(fd, GREET_MS);
    rand_secret(nonces, FRAME_NONCE_BYTES);
    int rc = stream_send_all(fd, nonces, FRAME_NONCE_BYTES, e);
    if (rc == OK) rc = stream_recv_all(fd, hello, sizeof hello, e);
    if (rc != OK) return rc;
    memcpy(nonces + FRAME_NONCE_BYTES, hello, FRAME_NONCE_BYTES);
    *index = 0;
    for (int i = 0; i < 4; i++)
        *index |= (uint32_t)hello[FRAME_NONCE_BYTES + i] << (8 * i);
    proof(secret, "tandem sender", nonces, *index, ours);
    if (!sha256_equal(ours, hello + FRAME_NONCE_BYTES + 4))
        return err_set(e, ERR_AUTH, "a connection without the secret of this copy");
    if (*index >= STREAM_MAX_STREAMS) return err_set(e, ERR_FORMAT, "stream number out of range");
    proof(secret, "tandem receive", nonces, *index, ours);
    return stream_send_all(fd, ours, sizeof ours, e);
}
