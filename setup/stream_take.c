/* One connection of the receiver: frames in, acknowledgements out. A few buffers, so that writing and
 * hashing go on while the next frame arrives. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/crc32c.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "setup/stream_receiver.h"

enum { N_SLOTS = 3, DATA_TIMEOUT_MS = 10000, TURN_MS = 5000 };

typedef struct slot {
    void *buffer;
    frame f;
    bool is_busy;    /* being written */
    bool is_waiting; /* for the digest; under receiver.lock */
} slot;

typedef struct taker {
    receiver *r;
    int fd;
    disk_queue *q;
    slot slots[N_SLOTS];
    int n_busy;
} taker;

static int send_ack(taker *t, uint32_t sequence, ack_state state, err *e) {
    uint8_t ack[FRAME_ACK_BYTES];
    ack_encode(sequence, state, ack);
    return stream_send_all(t->fd, ack, sizeof ack, e);
}

static void mark_written(receiver *r, const frame *f) {
    received *file = &r->files[f->file];
    size_t unit = (size_t)(f->offset / file->r.unit);
    pthread_mutex_lock(&r->lock);
    if (!file->written[unit]) {
        file->written[unit] = 1;
        file->n_written++;
        r->written_bytes += f->length;
    }
    pthread_mutex_unlock(&r->lock);
}

static void say_failed(taker *t, const slot *s, int rc) {
    err ignored = ERR_INIT;
    send_ack(t, s->f.sequence, rc == ERR_FULL ? ACK_FULL : ACK_FAILED, &ignored);
}

/* Waits for one write and acknowledges it. */
static int reap(taker *t, err *e) {
    int tag = 0;
    int rc = disk_queue_wait(t->q, &tag, e);
    if (rc == ERR_NOT_FOUND) return err_set(e, ERR_INTERNAL, "no write is under way");
    slot *s = &t->slots[tag];
    s->is_busy = false;
    t->n_busy--;
    if (rc != OK) {
        say_failed(t, s, rc);
        receiver_stop(t->r, rc, e);
        return rc;
    }
    mark_written(t->r, &s->f);
    return send_ack(t, s->f.sequence, ACK_OK, e);
}

/* The digest follows the frames in order while they are still in memory. A frame that is early waits
 * in its buffer; whoever brings the next one in order hashes all that follow it, so that no turn is
 * handed from thread to thread. */

void receiver_hash_behind_locked(received *f) {
    f->is_hash_behind = true;
    for (int i = 0; i < f->n_waiting; i++)
        *f->waiting[i].is_waiting = false;
    f->n_waiting = 0;
}

static bool next_waiting_locked(received *f, waiting_frame *out) {
    for (int i = 0; i < f->n_waiting; i++) {
        if (f->waiting[i].offset > f->hashed) continue;
        *out = f->waiting[i];
        f->waiting[i] = f->waiting[--f->n_waiting];
        return true;
    }
    return false;
}

static void hash_in_order(receiver *r, slot *s) {
    received *f = &r->files[s->f.file];
    waiting_frame w;
    pthread_mutex_lock(&r->lock);
    if (f->n_waiting == MAX_WAITING) receiver_hash_behind_locked(f);
    if (!f->is_hash_behind) {
        s->is_waiting = true;
        f->waiting[f->n_waiting++] =
            (waiting_frame){s->f.offset, s->f.length, s->buffer, &s->is_waiting};
    }
    while (!f->is_turn_taken && next_waiting_locked(f, &w)) {
        /* One that came twice was hashed already. */
        if (w.offset == f->hashed) {
            f->is_turn_taken = true;
            pthread_mutex_unlock(&r->lock);
            store_digest_update(f->hash, w.data, w.length);
            pthread_mutex_lock(&r->lock);
            f->hashed += w.length;
            f->is_turn_taken = false;
        }
        *w.is_waiting = false;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
}

/* All buffers wait for a frame that some other connection has, or has lost with itself. */
static void wait_for_turn(taker *t) {
    receiver *r = t->r;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += TURN_MS / 1000;
    bool is_late = false, is_stuck = true;
    pthread_mutex_lock(&r->lock);
    while (!is_late && r->stop_rc == OK) {
        is_stuck = true;
        for (int i = 0; i < N_SLOTS; i++)
            is_stuck = is_stuck && (t->slots[i].is_waiting || t->slots[i].is_busy);
        if (!is_stuck) break;
        is_late = pthread_cond_timedwait(&r->changed, &r->lock, &until) == ETIMEDOUT;
    }
    for (int i = 0; i < N_SLOTS && is_stuck; i++) {
        received *f = &r->files[t->slots[i].f.file];
        if (t->slots[i].is_waiting && !f->is_turn_taken) receiver_hash_behind_locked(f);
    }
    pthread_mutex_unlock(&r->lock);
}

/* Before its buffers go: nothing of this connection may be left in a list. */
static void leave_lists(taker *t) {
    receiver *r = t->r;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < N_SLOTS; i++) {
        received *f = t->slots[i].is_waiting ? &r->files[t->slots[i].f.file] : NULL;
        while (f != NULL && t->slots[i].is_waiting && f->is_turn_taken)
            pthread_cond_wait(&r->changed, &r->lock);
        if (f != NULL && t->slots[i].is_waiting) receiver_hash_behind_locked(f);
    }
    pthread_mutex_unlock(&r->lock);
}

/* *is_new is false for a frame that came before, over a connection that broke. */
static int check_frame(receiver *r, const frame *f, bool *is_new, err *e) {
    if (f->file >= r->n_files)
        return err_set(e, ERR_FORMAT, "a frame of a file that is not listed");
    received *file = &r->files[f->file];
    int rc = frame_check(f, &file->r, e);
    if (rc != OK) return rc;
    pthread_mutex_lock(&r->lock);
    *is_new = file->state == IN_WORK;
    if (*is_new) rc = receiver_open_locked(r, file, e);
    pthread_mutex_unlock(&r->lock);
    if (rc != OK) receiver_stop(r, rc, e);
    return rc;
}

static int take_frame(taker *t, slot *s, err *e) {
    receiver *r = t->r;
    bool is_new = false;
    int rc = check_frame(r, &s->f, &is_new, e);
    if (rc != OK) {
        say_failed(t, s, rc);
        return rc;
    }
    rc = stream_recv_all(t->fd, s->buffer, s->f.length, e);
    if (rc != OK) return rc;
    if (crc32c(0, s->buffer, s->f.length) != s->f.crc) {
        LOG(LOG_WARN, "stream", "frame damaged on the way", "file=%u", s->f.file);
        return send_ack(t, s->f.sequence, ACK_BAD, e);
    }
    if (!is_new) return send_ack(t, s->f.sequence, ACK_OK, e);
    rc = disk_queue_write(
        t->q, &r->files[s->f.file].d, s->buffer, s->f.length, s->f.offset, (int)(s - t->slots), e);
    if (rc != OK) {
        say_failed(t, s, rc);
        receiver_stop(r, rc, e);
        return rc;
    }
    s->is_busy = true;
    t->n_busy++;
    hash_in_order(r, s);
    return OK;
}

static bool is_readable(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static slot *free_slot(taker *t) {
    slot *found = NULL;
    pthread_mutex_lock(&t->r->lock);
    for (int i = 0; i < N_SLOTS; i++) {
        if (!t->slots[i].is_busy && !t->slots[i].is_waiting) found = &t->slots[i];
    }
    pthread_mutex_unlock(&t->r->lock);
    return found;
}

/* Acknowledges what is written, and waits until a buffer is free. */
static int make_room(taker *t, slot **out, err *e) {
    for (;;) {
        *out = free_slot(t);
        if (t->n_busy > 0 && (*out == NULL || !is_readable(t->fd))) {
            int rc = reap(t, e);
            if (rc != OK) return rc;
        } else if (*out != NULL) {
            return OK;
        } else if (receiver_is_stopped(t->r)) {
            return err_set(e, ERR_CANCELLED, "stopped");
        } else {
            wait_for_turn(t);
        }
    }
}

static int take_all(taker *t, err *e) {
    uint8_t head[FRAME_HEAD_BYTES];
    for (;;) {
        slot *s = NULL;
        int rc = make_room(t, &s, e);
        if (rc == OK) rc = stream_recv_all(t->fd, head, sizeof head, e);
        if (rc == OK) rc = frame_decode(&s->f, head, e);
        if (rc != OK) return rc;
        if (s->f.kind == FRAME_BYE) {
            while (rc == OK && t->n_busy > 0)
                rc = reap(t, e);
            return rc;
        }
        rc = take_frame(t, s, e);
        if (rc != OK) return rc;
    }
}

/* Taking the place of an older connection of the same stream, which may hang on a dead rail. */
static void register_stream(receiver *r, uint32_t index, int fd) {
    pthread_mutex_lock(&r->lock);
    if (r->by_index[index] >= 0) shutdown(r->by_index[index], SHUT_RDWR);
    r->by_index[index] = fd;
    pthread_mutex_unlock(&r->lock);
}

static void unregister(receiver *r, connection *c, uint32_t index) {
    pthread_mutex_lock(&r->lock);
    if (index < STREAM_MAX_STREAMS && r->by_index[index] == c->fd) r->by_index[index] = -1;
    close(c->fd);
    c->fd = -1;
    c->is_done = true;
    r->n_open--;
    r->last_seen_ms = clock_mono_ms();
    pthread_mutex_unlock(&r->lock);
}

void *receiver_serve(void *arg) {
    connection *c = arg;
    receiver *r = c->r;
    taker t = {.r = r, .fd = c->fd};
    uint32_t index = UINT32_MAX;
    err e = ERR_INIT;
    thread_set_name("stream-in");
    int rc = stream_greet_receiver(c->fd, r->s.secret, &index, &e);
    if (rc == OK) {
        stream_tune(c->fd, DATA_TIMEOUT_MS);
        register_stream(r, index, c->fd);
        t.q = disk_queue_new();
        for (int i = 0; i < N_SLOTS; i++)
            t.slots[i].buffer = disk_buffer_new(r->s.frame_bytes);
        bool has_buffers = true;
        for (int i = 0; i < N_SLOTS; i++)
            has_buffers = has_buffers && t.slots[i].buffer != NULL;
        rc = has_buffers ? take_all(&t, &e) : err_set(&e, ERR_MEMORY, "no memory for frames");
        disk_queue_free(t.q);
        leave_lists(&t);
    }
    if (rc != OK) LOG(LOG_INFO, "stream", "connection ended", "reason=%s", e.msg);
    for (int i = 0; i < N_SLOTS; i++)
        disk_buffer_free(t.slots[i].buffer, r->s.frame_bytes);
    unregister(r, c, index < STREAM_MAX_STREAMS && rc != ERR_AUTH ? index : UINT32_MAX);
    return NULL;
}
