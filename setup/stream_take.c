/* One connection of the receiver: frames in, acknowledgements out. Two buffers, so that a write goes
 * on while the next frame arrives. */
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

enum { N_SLOTS = 2, DATA_TIMEOUT_MS = 10000, TURN_MS = 1000 };

typedef struct slot {
    void *buffer;
    frame f;
    bool is_busy;
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

/* The digest follows the frames in order while they are still in memory: a frame waits a short time
 * for its turn. When a turn is lost with its connection, the rest is read from the disk at the end. */
static void hash_in_turn(receiver *r, const frame *f, const void *data) {
    received *file = &r->files[f->file];
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += TURN_MS / 1000;
    pthread_mutex_lock(&r->lock);
    while (!file->is_hash_behind && r->stop_rc == OK &&
           (file->hashed < f->offset || file->is_turn_taken)) {
        if (pthread_cond_timedwait(&r->changed, &r->lock, &until) == ETIMEDOUT &&
            !file->is_turn_taken && file->hashed < f->offset)
            file->is_hash_behind = true;
    }
    bool is_mine = !file->is_hash_behind && r->stop_rc == OK && file->hashed == f->offset;
    if (is_mine) file->is_turn_taken = true;
    pthread_mutex_unlock(&r->lock);
    if (!is_mine) return;
    store_digest_update(file->hash, data, f->length);
    pthread_mutex_lock(&r->lock);
    file->hashed += f->length;
    file->is_turn_taken = false;
    pthread_cond_broadcast(&r->changed);
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
    hash_in_turn(r, &s->f, s->buffer);
    return OK;
}

static bool is_readable(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static slot *free_slot(taker *t) {
    for (int i = 0; i < N_SLOTS; i++) {
        if (!t->slots[i].is_busy) return &t->slots[i];
    }
    return NULL;
}

static int take_all(taker *t, err *e) {
    uint8_t head[FRAME_HEAD_BYTES];
    for (;;) {
        int rc = OK;
        /* A write without a ring is done already: its acknowledgement goes out now. */
        while (rc == OK && t->n_busy > 0 && (free_slot(t) == NULL || !is_readable(t->fd)))
            rc = reap(t, e);
        slot *s = free_slot(t);
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
            t.slots[i].buffer = mem_aligned(4096, r->s.frame_bytes);
        rc = t.slots[0].buffer != NULL && t.slots[1].buffer != NULL
                 ? take_all(&t, &e)
                 : err_set(&e, ERR_MEMORY, "no memory for frames");
        disk_queue_free(t.q);
    }
    if (rc != OK) LOG(LOG_INFO, "stream", "connection ended", "reason=%s", e.msg);
    for (int i = 0; i < N_SLOTS; i++)
        mem_aligned_free(t.slots[i].buffer);
    unregister(r, c, index < STREAM_MAX_STREAMS && rc != ERR_AUTH ? index : UINT32_MAX);
    return NULL;
}
