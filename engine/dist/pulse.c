#include "engine/dist/pulse.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/base/thread.h"

enum { BEAT_ALIVE = 1, BEAT_FAIL, BEAT_BYE };
#define BEAT_MAGIC 0x54445055u

typedef struct beat {
    uint32_t magic;
    int32_t kind, rank, code;
    rank_figures report;
    char text[PULSE_TEXT_MAX];
} beat;

typedef struct pulse_peer_state {
    int fd;
    bool has_report, is_over; /* is_over: lost, or it said goodbye */
    uint64_t heard_ms;
    size_t n_in;
    union {
        beat in;
        uint8_t bytes[sizeof(beat)];
    };
    rank_figures report;
    uint64_t report_ms;
} pulse_peer_state;

struct pulse {
    pulse_options o;
    pthread_t thread;
    pthread_mutex_t lock; /* guards sending, and the reports of the peers */
    int wake_fd;
    _Atomic int is_stopping;
    pulse_peer_state peers[MEET_MAX_WORLD];
};

static bool is_peer(const pulse *p, int r) {
    return p->o.rank == 0 ? r > 0 && r < p->o.world : r == 0;
}

/* Never waits: a beat that does not fit into a full socket is left out; the next one tells. */
static void send_locked(pulse *p, beat *b) {
    for (int r = 0; r < p->o.world; r++) {
        if (!is_peer(p, r) || p->peers[r].fd < 0) continue;
        ssize_t n = send(p->peers[r].fd, b, sizeof *b, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0 && (size_t)n < sizeof *b) {
            (void)shutdown(
                p->peers[r].fd, SHUT_WR); /* half a beat: the other side must not guess */
        }
    }
}

static void send_kind(pulse *p, int kind, const err *why) {
    beat b;
    memset(&b, 0, sizeof b);
    b.magic = BEAT_MAGIC;
    b.kind = kind;
    b.rank = p->o.rank;
    rank_figures_init(&b.report);
    if (p->o.fill != NULL) p->o.fill(p->o.ctx, &b.report);
    if (why != NULL) {
        b.code = why->code;
        str_copy(b.text, sizeof b.text, why->msg);
    }
    pthread_mutex_lock(&p->lock);
    send_locked(p, &b);
    pthread_mutex_unlock(&p->lock);
}

static void lose(pulse *p, int r, const err *why) {
    p->peers[r].is_over = true;
    if (!atomic_load(&p->is_stopping) && p->o.on_lost != NULL) p->o.on_lost(p->o.ctx, r, why);
}

static void take_beat(pulse *p, int r) {
    pulse_peer_state *s = &p->peers[r];
    err why = ERR_INIT;
    s->heard_ms = clock_mono_ms();
    if (s->in.magic != BEAT_MAGIC || s->in.rank != r) {
        err_set(&why, ERR_MISMATCH, "rank %d sent a heartbeat that is none", r);
        lose(p, r, &why);
        return;
    }
    s->in.text[PULSE_TEXT_MAX - 1] = '\0';
    if (s->in.kind == BEAT_FAIL) {
        err_set(&why, ERR_PEER, "rank %d has failed: %s", r, s->in.text);
        lose(p, r, &why);
    } else if (s->in.kind == BEAT_BYE) {
        s->is_over = true;
        if (p->o.on_bye != NULL) p->o.on_bye(p->o.ctx, r);
    } else {
        pthread_mutex_lock(&p->lock);
        s->report = s->in.report;
        rank_figures_check(&s->report);
        s->report_ms = s->heard_ms;
        s->has_report = true;
        pthread_mutex_unlock(&p->lock);
    }
}

static void hear(pulse *p, int r) {
    pulse_peer_state *s = &p->peers[r];
    err why = ERR_INIT;
    while (!s->is_over) {
        ssize_t n = recv(s->fd, s->bytes + s->n_in, sizeof s->bytes - s->n_in, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (n <= 0) {
            err_set(&why, ERR_PEER, "rank %d is gone: its process ended or the link broke", r);
            lose(p, r, &why);
            return;
        }
        s->n_in += (size_t)n;
        if (s->n_in == sizeof s->bytes) {
            s->n_in = 0;
            take_beat(p, r);
        }
    }
}

static void check_silence(pulse *p, int r) {
    pulse_peer_state *s = &p->peers[r];
    err why = ERR_INIT;
    uint64_t silent = clock_mono_ms() - s->heard_ms;
    if (s->is_over || silent < (uint64_t)p->o.lost_ms) return;
    err_set(&why, ERR_PEER,
        "rank %d has been silent for %llu ms: its process stands still, or the link or interface "
        "between the ranks is down",
        r, (unsigned long long)silent);
    lose(p, r, &why);
}

static void *pulse_thread(void *arg) {
    pulse *p = arg;
    uint64_t due = 0, looked = clock_mono_ms();
    thread_set_name("pulse");
    while (!atomic_load(&p->is_stopping)) {
        struct pollfd polls[MEET_MAX_WORLD + 1];
        int n = 0;
        uint64_t now = clock_mono_ms();
        /* A rank that stood still itself must not blame the others for the time it slept. */
        for (int r = 0; r < p->o.world && now - looked > (uint64_t)p->o.lost_ms / 2; r++) {
            p->peers[r].heard_ms = now;
        }
        looked = now;
        if (now >= due) {
            send_kind(p, BEAT_ALIVE, NULL);
            due = now + PULSE_MS;
        }
        polls[n++] = (struct pollfd){.fd = p->wake_fd, .events = POLLIN};
        for (int r = 0; r < p->o.world; r++) {
            if (!is_peer(p, r)) continue;
            hear(p, r);
            check_silence(p, r);
            polls[n++] =
                (struct pollfd){.fd = p->peers[r].is_over ? -1 : p->peers[r].fd, .events = POLLIN};
        }
        (void)poll(polls, (nfds_t)n, PULSE_MS / 2);
    }
    return NULL;
}

int pulse_open(const pulse_options *options, pulse **out, err *e) {
    pulse *p = mem_alloc(sizeof *p);
    *out = NULL;
    p->o = *options;
    if (p->o.lost_ms <= 0) p->o.lost_ms = PULSE_LOST_MS;
    pthread_mutex_init(&p->lock, NULL);
    for (int r = 0; r < MEET_MAX_WORLD; r++) {
        p->peers[r].fd = r < p->o.world && is_peer(p, r) ? options->fds[r] : -1;
        p->peers[r].heard_ms = clock_mono_ms();
    }
    p->o.fds = NULL;
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (p->wake_fd >= 0 && pthread_create(&p->thread, NULL, pulse_thread, p) == 0) {
        *out = p;
        return OK;
    }
    int rc = err_errno(e, "starting the heartbeats");
    for (int r = 0; r < MEET_MAX_WORLD; r++) {
        if (p->peers[r].fd >= 0) close(p->peers[r].fd);
    }
    if (p->wake_fd >= 0) close(p->wake_fd);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
    return rc;
}

void pulse_close(pulse *p) {
    if (p == NULL) return;
    uint64_t one = 1;
    atomic_store(&p->is_stopping, 1);
    ssize_t n = write(p->wake_fd, &one, sizeof one);
    (void)n;
    pthread_join(p->thread, NULL);
    for (int r = 0; r < MEET_MAX_WORLD; r++) {
        if (p->peers[r].fd >= 0) close(p->peers[r].fd);
    }
    close(p->wake_fd);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

bool pulse_peer(pulse *p, int rank, rank_figures *out, double *age_s) {
    bool has = false;
    rank_figures_init(out);
    if (age_s != NULL) *age_s = -1.0;
    if (p == NULL || rank < 0 || rank >= MEET_MAX_WORLD) return false;
    pthread_mutex_lock(&p->lock);
    uint64_t now = clock_mono_ms();
    has = p->peers[rank].has_report;
    if (has) *out = p->peers[rank].report;
    if (has && age_s != NULL) *age_s = (double)(now - p->peers[rank].report_ms) / 1e3;
    pthread_mutex_unlock(&p->lock);
    return has;
}

void pulse_fail(pulse *p, const err *why) {
    if (p != NULL) send_kind(p, BEAT_FAIL, why);
}

void pulse_bye(pulse *p) {
    if (p != NULL) send_kind(p, BEAT_BYE, NULL);
}
