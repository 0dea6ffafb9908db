/* A connection through another machine: the jump session belongs to one thread, which carries bytes
 * between its channel and one end of a pair of sockets; the other end is the second session's. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/mem.h"
#include "setup/ssh_internal.h"

enum { PIECE = 32 << 10, IDLE_MS = 200 };

struct remote_jump {
    remote *through; /* owned; used by the thread alone once it runs */
    ssh_channel channel;
    int fd; /* our end of the pair */
    pthread_t thread;
    atomic_bool is_stopping;
};

static bool write_all(int fd, const char *p, size_t n) {
    while (n > 0) {
        ssize_t w = send(fd, p, n, MSG_NOSIGNAL);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return false;
        p += w;
        n -= (size_t)w;
    }
    return true;
}

/* False when the way is over. */
static bool carry_in(remote_jump *j, char *piece, bool *did) {
    int n = ssh_channel_read_nonblocking(j->channel, piece, PIECE, 0);
    if (n == SSH_ERROR || n == SSH_EOF) return false;
    if (n > 0) {
        *did = true;
        return write_all(j->fd, piece, (size_t)n);
    }
    return ssh_channel_is_eof(j->channel) == 0 && ssh_channel_is_open(j->channel) != 0;
}

static bool carry_out(remote_jump *j, char *piece, bool *did) {
    uint32_t window = ssh_channel_window_size(j->channel);
    if (window == 0) return true;
    size_t cap = window < PIECE ? window : PIECE;
    ssize_t n = recv(j->fd, piece, cap, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) return false;
    *did = true;
    uint32_t sent = 0;
    while (sent < (uint32_t)n) {
        int w = ssh_channel_write(j->channel, piece + sent, (uint32_t)n - sent);
        if (w <= 0) return false;
        sent += (uint32_t)w;
    }
    return true;
}

static void *carry(void *ctx) {
    remote_jump *j = ctx;
    char *piece = mem_alloc(PIECE);
    while (!atomic_load(&j->is_stopping)) {
        bool did = false;
        if (!carry_in(j, piece, &did) || !carry_out(j, piece, &did)) break;
        if (did) continue;
        struct pollfd p[2] = {{.fd = ssh_get_fd(j->through->session), .events = POLLIN},
            {.fd = j->fd, .events = POLLIN}};
        (void)poll(p, 2, IDLE_MS);
    }
    mem_free(piece);
    (void)shutdown(j->fd, SHUT_RDWR);
    return NULL;
}

int remote_jump_open(remote *through, const remote_target *to, remote_jump **out, int *fd, err *e) {
    remote_jump *j = mem_alloc(sizeof *j);
    j->through = through;
    int pair[2] = {-1, -1}, rc = OK;
    j->channel = ssh_channel_new(through->session);
    if (j->channel == NULL ||
        ssh_channel_open_forward(j->channel, to->host, to->port, "127.0.0.1", 0) != SSH_OK) {
        rc = err_set(e, ERR_NET, "%s cannot reach %s port %d: %.200s", through->node, to->host,
            to->port, ssh_get_error(through->session));
    } else if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        rc = err_errno(e, "no pair of sockets");
    }
    j->fd = pair[0];
    int problem = rc == OK ? pthread_create(&j->thread, NULL, carry, j) : 0;
    if (problem != 0) rc = err_set(e, ERR_MEMORY, "no thread for the jump host");
    if (rc != OK) {
        if (pair[0] >= 0) close(pair[0]);
        if (pair[1] >= 0) close(pair[1]);
        if (j->channel != NULL) ssh_channel_free(j->channel);
        remote_close(through);
        mem_free(j);
        return rc;
    }
    *out = j;
    *fd = pair[1];
    return OK;
}

void remote_jump_close(remote_jump *j) {
    if (j == NULL) return;
    atomic_store(&j->is_stopping, true);
    (void)shutdown(j->fd, SHUT_RDWR);
    pthread_join(j->thread, NULL);
    close(j->fd);
    ssh_channel_free(j->channel);
    remote_close(j->through);
    mem_free(j);
}
