/* The receiver's session: input, listeners, what it says to the head. */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/stream_receiver.h"

enum { TICK_MS = 100, FLUSH_MS = 1000, STATE_MS = 500, INPUT_MAX = 9 << 20 };

void receiver_stop(receiver *r, int rc, const err *e) {
    pthread_mutex_lock(&r->lock);
    if (r->stop_rc == OK) {
        r->stop_rc = rc;
        if (e != NULL) r->stop_err = *e;
    }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

bool receiver_is_stopped(receiver *r) {
    pthread_mutex_lock(&r->lock);
    bool is = r->stop_rc != OK;
    pthread_mutex_unlock(&r->lock);
    return is;
}

void receiver_say(receiver *r, const char *fmt, ...) {
    buf line = BUF_MAX(RANGES_MAX_BYTES * 2 + 128);
    err e = ERR_INIT;
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(&line, fmt, ap);
    va_end(ap);
    buf_putc(&line, '\n');
    int rc = fd_write_full(r->out_fd, line.data, line.len, &e);
    buf_release(&line);
    if (rc != OK) {
        err gone = ERR_INIT;
        err_set(&gone, ERR_CANCELLED, "the head is gone");
        receiver_stop(r, ERR_CANCELLED, &gone);
    }
}

static int read_input(int fd, buf *out, err *e) {
    char piece[65536];
    for (;;) {
        ssize_t n = read(fd, piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return err_errno(e, "reading what to receive");
        if (n == 0) break;
        if (buf_append(out, piece, (size_t)n) != OK)
            return err_set(e, ERR_LIMIT, "the input is too long");
    }
    explicit_bzero(piece, sizeof piece);
    return OK;
}

static void say_have(receiver *r, size_t i) {
    received *f = &r->files[i];
    buf text = BUF_MAX(RANGES_MAX_BYTES), hex = BUF_MAX(RANGES_MAX_BYTES * 2);
    static const char digits[] = "0123456789abcdef";
    if (f->state == SOUND) {
        receiver_say(r, "have %zu ok", i);
    } else if (ranges_encode(&f->r, &text) == OK) {
        for (size_t k = 0; k < text.len; k++) {
            buf_putc(&hex, digits[(unsigned char)text.data[k] >> 4]);
            buf_putc(&hex, digits[text.data[k] & 15]);
        }
        receiver_say(r, "have %zu %s", i, buf_cstr(&hex));
    }
    buf_release(&text);
    buf_release(&hex);
}

static int open_listeners(receiver *r, err *e) {
    for (int i = 0; i < r->s.n_listen; i++) {
        uint16_t port = 0;
        int rc = stream_listen(r->s.listen[i], &r->listeners[r->n_listeners], &port, e);
        if (rc != OK) return rc;
        r->n_listeners++;
        receiver_say(r, "port %s %u", r->s.listen[i], (unsigned)port);
    }
    return OK;
}

static bool is_peer(const receiver *r, int fd) {
    char from[STREAM_ADDRESS_MAX];
    stream_source(fd, from);
    for (int i = 0; i < r->s.n_peer; i++) {
        if (str_eq(from, r->s.peer[i])) return true;
    }
    LOG(LOG_WARN, "stream", "connection of a stranger refused", "from=%s", from);
    return false;
}

static void accept_one(receiver *r, int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    connection *c = NULL;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < RECEIVER_MAX_CONNECTIONS; i++) {
        connection *x = &r->connections[i];
        if (x->is_used && x->is_done) {
            pthread_join(x->thread, NULL);
            x->is_used = false;
        }
        if (!x->is_used) c = x;
    }
    bool is_fine = c != NULL && is_peer(r, fd);
    if (is_fine) {
        *c = (connection){.r = r, .fd = fd, .is_used = true};
        is_fine = pthread_create(&c->thread, NULL, receiver_serve, c) == 0;
        c->is_used = is_fine;
    }
    if (is_fine) {
        r->n_open++;
        r->last_seen_ms = clock_mono_ms();
    } else {
        close(fd);
    }
    pthread_mutex_unlock(&r->lock);
}

static void accept_some(receiver *r) {
    struct pollfd p[STREAM_MAX_RAILS];
    for (int i = 0; i < r->n_listeners; i++)
        p[i] = (struct pollfd){.fd = r->listeners[i], .events = POLLIN};
    if (poll(p, (nfds_t)r->n_listeners, TICK_MS) <= 0) return;
    for (int i = 0; i < r->n_listeners; i++) {
        if (p[i].revents != 0) accept_one(r, r->listeners[i]);
    }
}

/* False when the session is over. */
static bool look(receiver *r) {
    err e = ERR_INIT;
    uint64_t now = clock_mono_ms();
    pthread_mutex_lock(&r->lock);
    bool is_over = r->stop_rc != OK || receiver_is_finished_locked(r);
    bool is_lonely = r->n_open == 0 && now - r->last_seen_ms > (uint64_t)r->s.idle_ms;
    bool is_working = false;
    for (size_t i = 0; i < r->n_files; i++)
        is_working |= r->files[i].state == WHOLE || r->files[i].state == VERIFYING;
    uint64_t written = r->written_bytes, verified = r->verified_bytes;
    bool is_due = now - r->state_ms >= STATE_MS;
    if (is_due) r->state_ms = now;
    pthread_mutex_unlock(&r->lock);
    if (is_over) return false;
    if (is_lonely && !is_working) {
        err_set(&e, ERR_TIMEOUT, "the head has not connected for %lld s",
            (long long)(r->s.idle_ms / 1000));
        receiver_stop(r, ERR_TIMEOUT, &e);
        return false;
    }
    if (is_due)
        receiver_say(
            r, "state %llu %llu", (unsigned long long)written, (unsigned long long)verified);
    return true;
}

static void serve(receiver *r) {
    pthread_t verifiers[RECEIVER_VERIFIERS];
    int n = 0;
    uint64_t flushed_ms = clock_mono_ms();
    while (n < RECEIVER_VERIFIERS && pthread_create(&verifiers[n], NULL, receiver_verify, r) == 0)
        n++;
    while (look(r)) {
        accept_some(r);
        uint64_t now = clock_mono_ms();
        if (now - flushed_ms < FLUSH_MS) {
            /* A file whose last frame was written should not wait for the clock. */
            bool is_whole = false;
            pthread_mutex_lock(&r->lock);
            for (size_t i = 0; i < r->n_files; i++)
                is_whole |=
                    r->files[i].state == IN_WORK && r->files[i].n_written == r->files[i].r.n_units;
            pthread_mutex_unlock(&r->lock);
            if (!is_whole) continue;
        }
        err e = ERR_INIT;
        int rc = receiver_flush(r, &e);
        if (rc != OK) receiver_stop(r, rc, &e);
        flushed_ms = clock_mono_ms();
    }
    pthread_mutex_lock(&r->lock);
    pthread_cond_broadcast(&r->changed);
    for (int i = 0; i < RECEIVER_MAX_CONNECTIONS; i++) {
        if (r->connections[i].is_used && r->connections[i].fd >= 0)
            shutdown(r->connections[i].fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < RECEIVER_MAX_CONNECTIONS; i++) {
        if (r->connections[i].is_used) pthread_join(r->connections[i].thread, NULL);
    }
    for (int i = 0; i < n; i++)
        pthread_join(verifiers[i], NULL);
    err e = ERR_INIT;
    if (receiver_flush(r, &e) != OK) LOG(LOG_WARN, "stream", "last flush", "reason=%s", e.msg);
}

static int begin(receiver *r, int in_fd, err *e) {
    buf input = BUF_MAX(INPUT_MAX);
    int rc = read_input(in_fd, &input, e);
    if (rc == OK) rc = stream_setup_parse(&r->s, &r->m, buf_cstr(&input), input.len, e);
    if (input.data != NULL) explicit_bzero(input.data, input.cap);
    buf_release(&input);
    if (rc == OK) receiver_say(r, "tandem-stream 1");
    if (rc == OK) rc = receiver_prepare(r, e);
    if (rc == OK) rc = open_listeners(r, e);
    for (size_t i = 0; rc == OK && i < r->n_files; i++)
        say_have(r, i);
    if (rc == OK) receiver_say(r, "ready");
    return rc;
}

int stream_receive(int in_fd, int out_fd, err *e) {
    receiver *r = mem_alloc(sizeof *r);
    r->out_fd = out_fd;
    r->lock_fd = r->st.fd = -1;
    for (int i = 0; i < STREAM_MAX_STREAMS; i++)
        r->by_index[i] = -1;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    int rc = begin(r, in_fd, e);
    if (rc == OK) {
        r->last_seen_ms = clock_mono_ms();
        serve(r);
        rc = r->stop_rc;
        if (rc != OK && e != NULL) *e = r->stop_err;
    }
    if (rc == ERR_FULL)
        receiver_say(r, "full 0 %llu", (unsigned long long)store_free_bytes(&r->st));
    if (rc == OK) {
        receiver_say(r, "end");
    } else if (e != NULL) {
        receiver_say(r, "fail %s", e->msg);
    }
    for (int i = 0; i < r->n_listeners; i++)
        close(r->listeners[i]);
    receiver_release(r);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    mem_free(r);
    return rc;
}
