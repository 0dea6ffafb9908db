/* The connection between the two keepers: the meeting of the ranks' own rendezvous (secret, start
 * id, settings), then one JSON line a message. */
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/dist/meet.h"
#include "setup/keeper_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BEAT_MS = 1000, LOST_MS = 15000, INBOX = 16, SEND_MS = 5000 };

struct keeper_link {
    pthread_t thread;
    meet_options meet;
    char host[128];
    int stop_fd, wake_fd; /* eventfds; wake_fd is borrowed */
    pthread_mutex_t lock; /* guards what follows */
    int fd;               /* -1 until the meeting is done */
    bool is_up, has_failed;
    err why;
    keeper_message inbox[INBOX];
    size_t n_inbox;
};

static const char *const WORDS[KEEPER_WORDS] = {"state", "go", "stop", "fail", "beat"};

static void wake(keeper_link *l) {
    uint64_t one = 1;
    ssize_t n = write(l->wake_fd, &one, sizeof one);
    (void)n;
}

static void fail(keeper_link *l, const err *why) {
    pthread_mutex_lock(&l->lock);
    if (!l->has_failed) l->why = *why;
    l->has_failed = true;
    l->is_up = false;
    pthread_mutex_unlock(&l->lock);
    wake(l);
}

/* ---- messages ---- */

static void print_message(const keeper_message *m, buf *out) {
    json_w w;
    json_w_begin(&w, out);
    json_w_object(&w);
    json_w_kstr(&w, "word", WORDS[m->word]);
    json_w_kstr(&w, "state", keeper_state_name(m->state));
    json_w_ki64(&w, "generation", m->generation);
    json_w_ki64(&w, "code", m->code);
    json_w_kbool(&w, "hang", m->is_hang);
    json_w_kstr(&w, "text", m->text);
    json_w_close(&w);
    (void)json_w_end(&w);
    buf_putc(out, '\n');
}

static int parse_message(const char *line, size_t n, keeper_message *m, err *e) {
    json *v = NULL;
    json_limits limits = {.max_bytes = KEEPER_LINE_MAX, .max_depth = 4};
    int64_t generation = 0, code = 0;
    int rc = json_parse(line, n, &limits, &v, e);
    if (rc != OK) return rc;
    const char *word = json_str(json_get(v, "word")), *text = json_str(json_get(v, "text"));
    const char *state = json_str(json_get(v, "state"));
    *m = (keeper_message){.word = KEEPER_WORDS};
    for (int i = 0; word != NULL && i < KEEPER_WORDS; i++) {
        if (str_eq(WORDS[i], word)) m->word = (keeper_word)i;
    }
    m->state = keeper_state_of(state);
    (void)json_i64(json_get(v, "generation"), &generation);
    (void)json_i64(json_get(v, "code"), &code);
    m->generation = (int)generation;
    m->code = (int)code;
    m->is_hang = json_is_true(json_get(v, "hang"));
    str_copy(m->text, sizeof m->text, text != NULL ? text : "");
    json_free(v);
    if (m->word == KEEPER_WORDS)
        return err_set(e, ERR_FORMAT, "the other keeper said no known word");
    return OK;
}

static void put_inbox(keeper_link *l, const keeper_message *m) {
    if (m->word == KEEPER_WORD_BEAT) return;
    pthread_mutex_lock(&l->lock);
    /* The newest matter most; sixteen are never waiting while the main thread lives. */
    if (l->n_inbox == INBOX) memmove(l->inbox, l->inbox + 1, (--l->n_inbox) * sizeof *m);
    l->inbox[l->n_inbox++] = *m;
    pthread_mutex_unlock(&l->lock);
    wake(l);
}

static int take_lines(keeper_link *l, buf *in, err *e) {
    for (char *end = NULL; in->len > 0 && (end = memchr(in->data, '\n', in->len)) != NULL;) {
        keeper_message m;
        size_t n = (size_t)(end - in->data);
        int rc = parse_message(in->data, n, &m, e);
        if (rc != OK) return rc;
        buf_consume(in, n + 1);
        put_inbox(l, &m);
    }
    return in->len < KEEPER_LINE_MAX
               ? OK
               : err_set(e, ERR_FORMAT, "the other keeper's line does not end");
}

/* Reads until the connection is lost, silent for too long, or we are told to stop. */
static int listen_on(keeper_link *l, int fd, err *e) {
    buf in = BUF_MAX(4 * KEEPER_LINE_MAX);
    struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = l->stop_fd, .events = POLLIN}};
    uint64_t heard_ms = clock_mono_ms(), said_ms = 0;
    int rc = OK;
    while (rc == OK) {
        uint64_t now = clock_mono_ms();
        if (now - said_ms >= BEAT_MS) {
            keeper_link_say(l, &(keeper_message){.word = KEEPER_WORD_BEAT});
            said_ms = now;
        }
        int n = poll(p, 2, BEAT_MS / 4);
        if (p[1].revents != 0) break;
        if (n > 0 && p[0].revents != 0) {
            char part[1024];
            ssize_t got = recv(fd, part, sizeof part, 0);
            if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
            if (got <= 0) {
                rc = err_set(e, ERR_PEER, "the connection to the other keeper ended");
                break;
            }
            heard_ms = clock_mono_ms();
            rc = buf_append(&in, part, (size_t)got);
            if (rc == OK) rc = take_lines(l, &in, e);
        } else if (clock_mono_ms() - heard_ms > LOST_MS) {
            rc = err_set(
                e, ERR_TIMEOUT, "the other keeper has been silent for %d s", LOST_MS / 1000);
        }
    }
    buf_release(&in);
    return rc;
}

static void *run(void *arg) {
    keeper_link *l = arg;
    meet_fds fds;
    err e = ERR_INIT;
    meet_fds_init(&fds);
    int rc = meet_all(&l->meet, &fds, &e);
    explicit_bzero(l->meet.secret, sizeof l->meet.secret);
    if (rc != OK) {
        fail(l, &e);
        return NULL;
    }
    int fd = fds.fd[0][l->meet.rank == 0 ? 1 : 0];
    fds.fd[0][l->meet.rank == 0 ? 1 : 0] = -1;
    meet_fds_close(&fds);
    struct timeval limit = {.tv_sec = SEND_MS / 1000};
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    pthread_mutex_lock(&l->lock);
    l->fd = fd;
    l->is_up = true;
    pthread_mutex_unlock(&l->lock);
    wake(l);
    rc = listen_on(l, fd, &e);
    if (rc != OK) fail(l, &e);
    return NULL;
}

/* ---- the main thread's side ---- */

keeper_link *keeper_link_open(const keeper_order *o, int wake_fd) {
    static const char label[] = "keepers of this start";
    uint8_t settings[SHA256_BYTES] = {0};
    keeper_link *l = mem_alloc(sizeof *l);
    l->fd = -1;
    l->wake_fd = wake_fd;
    l->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&l->lock, NULL);
    str_copy(l->host, sizeof l->host, o->link_host);
    l->meet = (meet_options){.rank = o->rank,
        .world = 2,
        .host = l->host,
        .port = o->link_port,
        .listen_fd = -1,
        .identity = {.start_id = o->start_id},
        .n_channels = 1,
        .timeout_ms = (int)(o->peer_s * 1000),
        .stop_fd = l->stop_fd};
    sha256_hmac(o->secret, SHA256_BYTES, label, sizeof label - 1, l->meet.secret);
    if (sha256_parse(o->settings, settings) == OK)
        memcpy(&l->meet.identity.settings, settings, sizeof l->meet.identity.settings);
    str_copy(l->meet.identity.build, sizeof l->meet.identity.build, "keeper 1");
    if (pthread_create(&l->thread, NULL, run, l) != 0) {
        err e = ERR_INIT;
        err_set(&e, ERR_MEMORY, "no thread for the connection to the other keeper");
        fail(l, &e);
        l->thread = pthread_self();
    }
    return l;
}

void keeper_link_close(keeper_link *l) {
    if (l == NULL) return;
    uint64_t one = 1;
    ssize_t n = write(l->stop_fd, &one, sizeof one);
    (void)n;
    if (!pthread_equal(l->thread, pthread_self())) pthread_join(l->thread, NULL);
    if (l->fd >= 0) close(l->fd);
    close(l->stop_fd);
    pthread_mutex_destroy(&l->lock);
    explicit_bzero(&l->meet, sizeof l->meet);
    mem_free(l);
}

bool keeper_link_is_up(keeper_link *l) {
    if (l == NULL) return false;
    pthread_mutex_lock(&l->lock);
    bool is = l->is_up;
    pthread_mutex_unlock(&l->lock);
    return is;
}

bool keeper_link_has_failed(keeper_link *l, err *why) {
    if (l == NULL) return false;
    pthread_mutex_lock(&l->lock);
    bool has = l->has_failed;
    if (has) *why = l->why;
    pthread_mutex_unlock(&l->lock);
    return has;
}

bool keeper_link_take(keeper_link *l, keeper_message *out) {
    if (l == NULL) return false;
    pthread_mutex_lock(&l->lock);
    bool is_there = l->n_inbox > 0;
    if (is_there) {
        *out = l->inbox[0];
        memmove(l->inbox, l->inbox + 1, (--l->n_inbox) * sizeof *out);
    }
    pthread_mutex_unlock(&l->lock);
    return is_there;
}

void keeper_link_say(keeper_link *l, const keeper_message *m) {
    if (l == NULL) return;
    buf line = BUF_INIT;
    print_message(m, &line);
    pthread_mutex_lock(&l->lock);
    /* Lines are shorter than a socket's buffer; a peer that reads nothing for seconds is lost. */
    ssize_t n = l->is_up ? send(l->fd, line.data, line.len, MSG_NOSIGNAL) : (ssize_t)line.len;
    pthread_mutex_unlock(&l->lock);
    if (n != (ssize_t)line.len) {
        err e = ERR_INIT;
        err_set(&e, ERR_PEER, "the connection to the other keeper takes nothing");
        fail(l, &e);
    }
    buf_release(&line);
}
