#include "engine/model/engram_store_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/thread.h"
#include "engine/model/engram_cache.h"
#include "engine/model/engram_file.h"

enum { DISK_MAX_TABLES = 16, DISK_TRIES = 2, DISK_DEPTH = 256, DISK_RECORDS = 65536 };
enum { DISK_MAX_DEPTH = 1024, DISK_BATCH = 32 }; /* blocks that come or go under one lock */
enum { HINT = -1, NONE = -1 };

/* Somebody who wants one record out of a block that is being read. */
typedef struct disk_waiter {
    int32_t next;
    int32_t ticket; /* or HINT: only for the cache */
    uint32_t generation;
    int32_t i_record; /* of the request */
    int64_t row;
} disk_waiter;

/* One block to read. */
typedef struct disk_read {
    int32_t next;          /* in its bucket, or in the free list */
    int32_t before, after; /* in the queue while it has no buffer */
    bool is_hint;          /* nobody waits for it: read last */
    int32_t waiters;
    int32_t i_table;
    int32_t buffer; /* NONE while it is queued */
    int32_t n_tries;
    int64_t block;
} disk_read;

/* Reads that have no buffer yet, oldest first. */
typedef struct disk_queue {
    int32_t first, last;
} disk_queue;

/* A block that came: bytes, or -errno. */
typedef struct disk_arrival {
    int32_t i_read;
    int n;
    bool is_good;
} disk_arrival;

typedef struct disk_ticket {
    bool is_open;
    uint32_t generation; /* reads for an older one are nobody's any more */
    int n, n_left, n_failed;
    uint64_t begin_ns;
    uint8_t *out;
    uint8_t *has; /* [max_records] */
    err failure;
} disk_ticket;

typedef struct disk_table {
    int fd;
    engram_header h;
    const char *path;
    buf name;
} disk_table;

typedef struct disk_store {
    engram_store base; /* first */
    engram_disk_options o;
    disk_table tables[DISK_MAX_TABLES];
    size_t record_bytes;
    pthread_t thread;
    bool has_thread, has_ring;
    struct io_uring ring; /* reader thread */
    int wake_fd;
    uint64_t wake_value;
    uint8_t *buffers; /* [depth][ENGRAM_BLOCK] */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t arrived, work;
    bool is_stopping;
    engram_cache *cache;
    disk_ticket tickets[ENGRAM_MAX_TICKETS];
    disk_waiter *waiters;
    disk_read *reads;
    int32_t n_items; /* of waiters and of reads */
    int32_t free_waiter, free_read;
    int32_t n_hints;  /* waiters that only want the cache filled, at most max_records */
    int32_t *buckets; /* [n_buckets] */
    uint32_t n_buckets;
    disk_queue wanted, hinted;
    int32_t free_buffers[DISK_MAX_DEPTH], n_free_buffers;
    engram_store_stats stats;
    histogram read_seconds;
} disk_store;

void engram_record_poison(uint8_t *records, int n, int d) {
    size_t record = engram_record_bytes(d);
    for (int i = 0; i < n; i++, records += record) {
        memset(records, 0x7f, (size_t)d);              /* NaN of E4M3 */
        memset(records + d, 0xff, record - (size_t)d); /* NaN of UE8M0 */
    }
}

/* ---- reads: all with the lock held ---- */

static uint32_t bucket_of(const disk_store *s, int i_table, int64_t block) {
    return (uint32_t)(rand_mix((uint64_t)block << 4 | (uint64_t)(unsigned)i_table) &
                      (s->n_buckets - 1));
}

static int32_t find_read_locked(const disk_store *s, int i_table, int64_t block) {
    int32_t i = s->buckets[bucket_of(s, i_table, block)];
    while (i != NONE && (s->reads[i].i_table != i_table || s->reads[i].block != block)) {
        i = s->reads[i].next;
    }
    return i;
}

static void queue_add_locked(disk_store *s, int32_t i, bool is_hint) {
    disk_queue *q = is_hint ? &s->hinted : &s->wanted;
    disk_read *r = &s->reads[i];
    r->is_hint = is_hint;
    r->after = NONE;
    r->before = q->last;
    *(q->last != NONE ? &s->reads[q->last].after : &q->first) = i;
    q->last = i;
}

static void queue_remove_locked(disk_store *s, int32_t i) {
    disk_read *r = &s->reads[i];
    disk_queue *q = r->is_hint ? &s->hinted : &s->wanted;
    *(r->before != NONE ? &s->reads[r->before].after : &q->first) = r->after;
    *(r->after != NONE ? &s->reads[r->after].before : &q->last) = r->before;
}

static int32_t new_read_locked(disk_store *s, int i_table, int64_t block, bool is_hint) {
    int32_t i = s->free_read;
    if (i == NONE) return NONE;
    disk_read *r = &s->reads[i];
    uint32_t b = bucket_of(s, i_table, block);
    s->free_read = r->next;
    *r = (disk_read){
        .next = s->buckets[b], .waiters = NONE, .i_table = i_table, .buffer = NONE, .block = block};
    s->buckets[b] = i;
    queue_add_locked(s, i, is_hint);
    return i;
}

static void free_read_locked(disk_store *s, int32_t i) {
    disk_read *r = &s->reads[i];
    int32_t *at = &s->buckets[bucket_of(s, r->i_table, r->block)];
    while (*at != i) {
        at = &s->reads[*at].next;
    }
    *at = r->next;
    if (r->buffer != NONE) s->free_buffers[s->n_free_buffers++] = r->buffer;
    r->next = s->free_read;
    s->free_read = i;
}

/* False when there is no room for one more. */
static bool want_locked(disk_store *s, int i_table, const disk_waiter *want) {
    const engram_header *h = &s->tables[i_table].h;
    int64_t block = (want->row - h->first_row) / h->records_per_block;
    int32_t w = s->free_waiter;
    int32_t i = find_read_locked(s, i_table, block);
    bool is_hint = want->ticket == HINT;
    if (w == NONE) return false;
    if (i == NONE) {
        i = new_read_locked(s, i_table, block, is_hint);
    } else if (!is_hint && s->reads[i].is_hint && s->reads[i].buffer == NONE) {
        queue_remove_locked(s, i); /* now somebody waits for it */
        queue_add_locked(s, i, false);
    }
    if (i == NONE) return false;
    s->n_hints += is_hint;
    s->free_waiter = s->waiters[w].next;
    s->waiters[w] = *want;
    s->waiters[w].next = s->reads[i].waiters;
    s->reads[i].waiters = w;
    return true;
}

static void fail_record_locked(disk_store *s, disk_ticket *t, int i, const err *why) {
    engram_record_poison(t->out + (size_t)i * s->record_bytes, 1, s->base.d);
    if (t->n_failed++ == 0) t->failure = *why;
    s->stats.n_errors++;
}

static void end_request_locked(disk_store *s, const disk_ticket *t) {
    double seconds = (double)(clock_mono_ns() - t->begin_ns) / 1e9;
    histogram_add(&s->read_seconds, &ENGRAM_READ_SECONDS, seconds);
    pthread_cond_broadcast(&s->arrived);
}

/* Gives a block (NULL: it failed, why) to all who want records of it. */
static void deliver_locked(disk_store *s, int32_t i_read, const uint8_t *block, const err *why) {
    disk_read *r = &s->reads[i_read];
    const engram_header *h = &s->tables[r->i_table].h;
    for (int32_t w = r->waiters, next; w != NONE; w = next) {
        disk_waiter *want = &s->waiters[w];
        int64_t at = want->row - h->first_row - r->block * h->records_per_block;
        const uint8_t *record = block == NULL ? NULL : block + (size_t)at * s->record_bytes;
        next = want->next;
        if (record != NULL) engram_cache_put(s->cache, r->i_table, want->row, record);
        disk_ticket *t = want->ticket == HINT ? NULL : &s->tickets[want->ticket];
        if (t != NULL && t->is_open && t->generation == want->generation) {
            t->has[want->i_record] = 1;
            if (record != NULL) {
                memcpy(t->out + (size_t)want->i_record * s->record_bytes, record, s->record_bytes);
            } else {
                fail_record_locked(s, t, want->i_record, why);
            }
            if (--t->n_left == 0) end_request_locked(s, t);
        }
        s->n_hints -= want->ticket == HINT;
        s->stats.n_ahead += want->ticket == HINT && record != NULL;
        want->next = s->free_waiter;
        s->free_waiter = w;
    }
    free_read_locked(s, i_read);
}

/* ---- the reader thread ---- */

static uint8_t *buffer_of(const disk_store *s, const disk_read *r) {
    return s->buffers + (size_t)r->buffer * ENGRAM_BLOCK;
}

static off_t offset_of(const disk_read *r) {
    return (off_t)(1 + r->block) * ENGRAM_BLOCK;
}

/* Looks at a block that came. False: it is to be read once more. */
static bool check_block(disk_store *s, disk_arrival *a) {
    disk_read *r = &s->reads[a->i_read];
    if (s->o.test_delay_ms > 0) sleep_ms((uint64_t)s->o.test_delay_ms);
    a->is_good = a->n == ENGRAM_BLOCK && engram_block_good(buffer_of(s, r), r->block);
    return a->is_good || ++r->n_tries >= DISK_TRIES;
}

static void say_why(const disk_store *s, const disk_arrival *a, err *why) {
    const disk_read *r = &s->reads[a->i_read];
    const char *path = s->tables[r->i_table].path;
    if (a->n < 0) {
        errno = -a->n;
        err_errno(why, "reading block %lld of %s", (long long)r->block, path);
        why->code = ERR_IO;
    } else {
        err_set(why, ERR_FORMAT, "block %lld of %s is damaged; pack the table again",
            (long long)r->block, path);
    }
}

static void deliver(disk_store *s, const disk_arrival *arrivals, int n) {
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n; i++) {
        const disk_arrival *a = &arrivals[i];
        err why = ERR_INIT;
        if (!a->is_good) say_why(s, a, &why);
        deliver_locked(s, a->i_read, a->is_good ? buffer_of(s, &s->reads[a->i_read]) : NULL, &why);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Takes reads out of the queues and gives them buffers, those that are waited for first. */
static int next_reads(disk_store *s, int32_t *out, int cap) {
    int n = 0;
    pthread_mutex_lock(&s->lock);
    while (n < cap && s->n_free_buffers > 0 && !s->is_stopping) {
        int32_t i = s->wanted.first != NONE ? s->wanted.first : s->hinted.first;
        if (i == NONE) break;
        queue_remove_locked(s, i);
        s->reads[i].buffer = s->free_buffers[--s->n_free_buffers];
        out[n++] = i;
    }
    pthread_mutex_unlock(&s->lock);
    return n;
}

static void submit_read(disk_store *s, int32_t i) {
    disk_read *r = &s->reads[i];
    struct io_uring_sqe *sqe = io_uring_get_sqe(&s->ring);
    CHECK(sqe != NULL); /* the ring has room for all buffers and the wake-up */
    io_uring_prep_read(
        sqe, s->tables[r->i_table].fd, buffer_of(s, r), ENGRAM_BLOCK, (uint64_t)offset_of(r));
    io_uring_sqe_set_data64(sqe, (uint64_t)i + 1);
}

static void arm_wake(disk_store *s) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&s->ring);
    CHECK(sqe != NULL);
    io_uring_prep_read(sqe, s->wake_fd, &s->wake_value, sizeof s->wake_value, 0);
    io_uring_sqe_set_data64(sqe, 0);
}

static bool is_stopping(disk_store *s) {
    pthread_mutex_lock(&s->lock);
    bool is = s->is_stopping;
    pthread_mutex_unlock(&s->lock);
    return is;
}

/* What has come, at most DISK_BATCH blocks; returns how many are done. */
static int take_completions(disk_store *s) {
    disk_arrival arrivals[DISK_BATCH];
    struct io_uring_cqe *cqe;
    int n = 0;
    while (n < DISK_BATCH && io_uring_peek_cqe(&s->ring, &cqe) == 0) {
        uint64_t who = io_uring_cqe_get_data64(cqe);
        arrivals[n] = (disk_arrival){(int32_t)who - 1, cqe->res, false};
        io_uring_cqe_seen(&s->ring, cqe);
        if (who == 0) {
            arm_wake(s);
        } else if (check_block(s, &arrivals[n])) {
            n++;
        } else {
            submit_read(s, arrivals[n].i_read);
        }
    }
    if (n > 0) deliver(s, arrivals, n);
    return n;
}

static void run_ring(disk_store *s) {
    int32_t reads[DISK_BATCH];
    int n_flying = 0;
    arm_wake(s);
    while (n_flying > 0 || !is_stopping(s)) {
        for (int n; (n = next_reads(s, reads, DISK_BATCH)) > 0; n_flying += n) {
            for (int i = 0; i < n; i++) {
                submit_read(s, reads[i]);
            }
        }
        int rc = io_uring_submit_and_wait(&s->ring, 1);
        if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY) {
            LOG(LOG_ERROR, "engram", "reading stopped", "code=%d", rc);
            return;
        }
        n_flying -= take_completions(s);
    }
}

static void run_plain(disk_store *s) {
    for (;;) {
        int32_t i;
        pthread_mutex_lock(&s->lock);
        while (!s->is_stopping && s->wanted.first == NONE && s->hinted.first == NONE) {
            pthread_cond_wait(&s->work, &s->lock);
        }
        bool is_over = s->is_stopping;
        pthread_mutex_unlock(&s->lock);
        if (is_over) return;
        if (next_reads(s, &i, 1) == 0) continue;
        disk_read *r = &s->reads[i];
        disk_arrival a = {.i_read = i};
        do {
            ssize_t n =
                pread(s->tables[r->i_table].fd, buffer_of(s, r), ENGRAM_BLOCK, offset_of(r));
            a.n = n < 0 ? -errno : (int)n;
        } while (!check_block(s, &a));
        deliver(s, &a, 1);
    }
}

static void *reader_thread(void *arg) {
    disk_store *s = arg;
    thread_set_name("engram");
    if (s->has_ring) {
        run_ring(s);
    } else {
        run_plain(s);
    }
    return NULL;
}

static void wake(disk_store *s) {
    uint64_t one = 1;
    if (s->has_ring) {
        ssize_t n = write(s->wake_fd, &one, sizeof one);
        (void)n;
    } else {
        pthread_cond_signal(&s->work);
    }
}

/* ---- requests ---- */

static int check_rows(disk_store *s, int i_table, const int64_t *rows, int n, err *e) {
    const engram_header *h = &s->tables[i_table].h;
    if (n > s->o.max_records) {
        return err_set(
            e, ERR_ARG, "%d Engram records at once; %d are possible", n, s->o.max_records);
    }
    for (int i = 0; i < n; i++) {
        if (rows[i] < h->first_row || rows[i] - h->first_row >= h->n_rows) {
            return err_set(e, ERR_ARG, "%s holds rows %lld to %lld, row %lld was asked for",
                s->tables[i_table].path, (long long)h->first_row,
                (long long)(h->first_row + h->n_rows - 1), (long long)rows[i]);
        }
    }
    return OK;
}

static int open_ticket_locked(disk_store *s) {
    int i = 0;
    while (i < s->o.n_tickets && s->tickets[i].is_open) {
        i++;
    }
    return i;
}

static int disk_begin(engram_store *base, int i_table, const int64_t *rows, int n, uint8_t *out,
    int *ticket, err *e) {
    disk_store *s = (disk_store *)(void *)base;
    err no_room = ERR_INIT;
    int rc = check_rows(s, i_table, rows, n, e);
    if (rc != OK) return rc;
    err_set(&no_room, ERR_IO, "too many Engram reads wait; the disk does not answer");
    pthread_mutex_lock(&s->lock);
    int i_ticket = open_ticket_locked(s);
    if (i_ticket == s->o.n_tickets) {
        pthread_mutex_unlock(&s->lock);
        return err_set(e, ERR_BUSY, "more than %d Engram requests at a time", s->o.n_tickets);
    }
    disk_ticket *t = &s->tickets[i_ticket];
    t->is_open = true;
    t->generation++;
    t->n = n;
    t->n_left = t->n_failed = 0;
    t->begin_ns = clock_mono_ns();
    t->out = out;
    for (int i = 0; i < n; i++) {
        const uint8_t *record = engram_cache_get(s->cache, i_table, rows[i]);
        disk_waiter want = {
            .ticket = i_ticket, .generation = t->generation, .i_record = i, .row = rows[i]};
        t->has[i] = 1;
        if (record != NULL) {
            memcpy(out + (size_t)i * s->record_bytes, record, s->record_bytes);
            s->stats.n_cached++;
        } else if (want_locked(s, i_table, &want)) {
            t->has[i] = 0;
            t->n_left++;
        } else {
            fail_record_locked(s, t, i, &no_room);
        }
    }
    s->stats.n_rows += (uint64_t)n;
    bool has_work = t->n_left > 0;
    if (!has_work) end_request_locked(s, t);
    pthread_mutex_unlock(&s->lock);
    if (has_work) wake(s);
    *ticket = i_ticket;
    return OK;
}

static void give_up_locked(disk_store *s, disk_ticket *t) {
    err late = ERR_INIT;
    err_set(&late, ERR_TIMEOUT, "%d Engram records did not come in time; the disk is too slow",
        t->n_left);
    t->generation++;
    for (int i = 0; i < t->n; i++) {
        if (!t->has[i]) fail_record_locked(s, t, i, &late);
    }
    t->n_left = 0;
}

static int disk_wait(engram_store *base, int ticket, uint64_t deadline_ns, err *e) {
    disk_store *s = (disk_store *)(void *)base;
    disk_ticket *t = &s->tickets[ticket];
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
        .tv_nsec = (long)(deadline_ns % 1000000000u)};
    uint64_t start = clock_mono_ns();
    int rc = OK;
    pthread_mutex_lock(&s->lock);
    CHECK(t->is_open);
    while (t->n_left > 0 && rc == 0) {
        rc = pthread_cond_timedwait(&s->arrived, &s->lock, &until);
    }
    if (t->n_left > 0) give_up_locked(s, t);
    t->is_open = false;
    s->stats.wait_ns += clock_mono_ns() - start;
    rc = t->n_failed > 0 ? t->failure.code : OK;
    if (rc != OK && e != NULL) *e = t->failure;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static void disk_hint(engram_store *base, int i_table, const int64_t *rows, int n) {
    disk_store *s = (disk_store *)(void *)base;
    if (s->cache == NULL || check_rows(s, i_table, rows, n, NULL) != OK) return;
    bool has_work = false;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < n && s->n_hints < s->o.max_records; i++) {
        disk_waiter want = {.ticket = HINT, .row = rows[i]};
        if (engram_cache_get(s->cache, i_table, rows[i]) == NULL) {
            has_work |= want_locked(s, i_table, &want);
        } else {
            s->stats.n_ahead++;
        }
    }
    pthread_mutex_unlock(&s->lock);
    if (has_work) wake(s);
}

static void disk_stats(const engram_store *base, engram_store_stats *out) {
    disk_store *s = (disk_store *)(uintptr_t)base;
    pthread_mutex_lock(&s->lock);
    *out = s->stats;
    histogram_read(&s->read_seconds, &ENGRAM_READ_SECONDS, &out->read_seconds);
    pthread_mutex_unlock(&s->lock);
}

/* ---- life ---- */

static void disk_close(engram_store *base) {
    disk_store *s = (disk_store *)(void *)base;
    pthread_mutex_lock(&s->lock);
    s->is_stopping = true;
    pthread_cond_broadcast(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (s->has_thread) {
        wake(s);
        pthread_join(s->thread, NULL);
    }
    if (s->has_ring) io_uring_queue_exit(&s->ring);
    if (s->wake_fd >= 0) close(s->wake_fd);
    for (int i = 0; i < s->base.n_tables; i++) {
        if (s->tables[i].fd >= 0) close(s->tables[i].fd);
        buf_release(&s->tables[i].name);
    }
    for (int i = 0; i < ENGRAM_MAX_TICKETS; i++) {
        mem_free(s->tickets[i].has);
    }
    engram_cache_free(s->cache);
    mem_aligned_free(s->buffers);
    mem_free(s->waiters);
    mem_free(s->reads);
    mem_free(s->buckets);
    pthread_cond_destroy(&s->arrived);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

static const engram_store_ops disk_ops = {disk_begin, disk_wait, disk_hint, disk_stats, disk_close};

static int open_table(disk_store *s, int i, const char *path, err *e) {
    disk_table *t = &s->tables[i];
    buf_puts(&t->name, path);
    t->path = buf_cstr(&t->name);
    uint8_t *block = mem_aligned(ENGRAM_BLOCK, ENGRAM_BLOCK);
    t->fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
    /* Some file systems in memory have no direct reads. */
    if (t->fd < 0 && errno == EINVAL) t->fd = open(path, O_RDONLY | O_CLOEXEC);
    int rc = t->fd < 0 ? err_errno(e, "opening the Engram table %s", path) : OK;
    if (rc == OK) rc = fd_read_at(t->fd, block, ENGRAM_BLOCK, 0, e);
    if (rc == OK) rc = engram_header_read(&t->h, block, path, e);
    mem_aligned_free(block);
    if (rc != OK) return rc;
    if (t->h.n_done != t->h.n_blocks) {
        return err_set(e, ERR_FORMAT, "%s was not written to its end; pack it again", path);
    }
    if (t->h.d == s->base.d) return OK;
    return err_set(
        e, ERR_MISMATCH, "%s has rows of %d values, the model %d", path, t->h.d, s->base.d);
}

static int make_lists(disk_store *s, err *e) {
    s->n_items = s->o.max_records * (s->o.n_tickets + 1) + s->o.depth;
    s->n_buckets = 1;
    while (s->n_buckets < (uint32_t)s->n_items) {
        s->n_buckets *= 2;
    }
    size_t n = (size_t)s->n_items;
    s->waiters = mem_try_alloc(n * sizeof *s->waiters);
    s->reads = mem_try_alloc(n * sizeof *s->reads);
    s->buckets = mem_try_alloc(s->n_buckets * sizeof *s->buckets);
    s->buffers = mem_aligned(ENGRAM_BLOCK, (size_t)s->o.depth * ENGRAM_BLOCK);
    for (int i = 0; i < s->o.n_tickets; i++) {
        s->tickets[i].has = mem_alloc((size_t)s->o.max_records);
    }
    if (s->waiters == NULL || s->reads == NULL || s->buckets == NULL || s->buffers == NULL) {
        return err_set(e, ERR_MEMORY, "no memory for the Engram reads");
    }
    for (int32_t i = 0; i < s->n_items; i++) {
        s->waiters[i].next = s->reads[i].next = i + 1 < s->n_items ? i + 1 : NONE;
    }
    for (uint32_t i = 0; i < s->n_buckets; i++) {
        s->buckets[i] = NONE;
    }
    for (int i = 0; i < s->o.depth; i++) {
        s->free_buffers[s->n_free_buffers++] = i;
    }
    return OK;
}

static int start_reader(disk_store *s, err *e) {
    s->wake_fd = eventfd(0, EFD_CLOEXEC);
    if (s->wake_fd < 0) return err_errno(e, "making a wake-up for the Engram reader");
    int rc = s->o.without_ring ? -ENOSYS
                               : io_uring_queue_init((unsigned)s->o.depth * 2 + 2, &s->ring, 0);
    s->has_ring = rc == 0;
    if (!s->has_ring && !s->o.without_ring) {
        LOG(LOG_WARN, "engram", "no io_uring here; rows are read one at a time", "code=%d", rc);
    }
    if (pthread_create(&s->thread, NULL, reader_thread, s) != 0) {
        return err_errno(e, "starting the Engram reader");
    }
    s->has_thread = true;
    return OK;
}

static void init_locks(disk_store *s) {
    pthread_condattr_t a;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_cond_init(&s->arrived, &a);
    pthread_cond_init(&s->work, &a);
    pthread_condattr_destroy(&a);
}

int engram_store_disk_open(const engram_disk_options *options, engram_store **out, err *e) {
    disk_store *s = mem_alloc(sizeof *s);
    *out = NULL;
    s->o = *options;
    if (s->o.max_records <= 0) s->o.max_records = DISK_RECORDS;
    if (s->o.n_tickets <= 0 || s->o.n_tickets > ENGRAM_MAX_TICKETS) s->o.n_tickets = 4;
    if (s->o.depth <= 0 || s->o.depth > DISK_MAX_DEPTH) s->o.depth = DISK_DEPTH;
    CHECK(options->n_tables > 0 && options->n_tables <= DISK_MAX_TABLES);
    s->base = (engram_store){&disk_ops, options->n_tables, options->d};
    s->record_bytes = engram_record_bytes(options->d);
    s->wake_fd = s->free_waiter = s->free_read = NONE;
    s->wanted = s->hinted = (disk_queue){NONE, NONE};
    init_locks(s);
    for (int i = 0; i < options->n_tables; i++) {
        s->tables[i].fd = -1;
    }
    int rc = OK;
    for (int i = 0; i < options->n_tables && rc == OK; i++) {
        rc = open_table(s, i, options->paths[i], e);
    }
    if (rc == OK) rc = make_lists(s, e);
    if (rc == OK) {
        s->free_waiter = s->free_read = 0;
        s->cache = engram_cache_new(s->o.cache_bytes, s->record_bytes);
        rc = start_reader(s, e);
    }
    if (rc != OK) {
        disk_close(&s->base);
        return rc;
    }
    *out = &s->base;
    return OK;
}

/* The file of a layer: the rank's own half if it is there, else the whole table. */
static int find_file(buf *path, const char *dir, int layer, const int rank_world[2], err *e) {
    const int whole[2] = {0, 1};
    engram_file_path(path, dir, layer, rank_world);
    if (file_exists(buf_cstr(path))) return OK;
    engram_file_path(path, dir, layer, whole);
    if (file_exists(buf_cstr(path))) return OK;
    return err_set(e, ERR_NOT_FOUND,
        "there is no packed Engram table %s; make it with: tandem model engram", buf_cstr(path));
}

static int check_range(
    const disk_store *s, const model_config *c, int i, const int part[2], err *e) {
    const engram_header *h = &s->tables[i].h;
    int64_t range[2];
    engram_rank_rows(c, i, part, range);
    bool is_inside = h->first_row <= range[0] && range[0] + range[1] <= h->first_row + h->n_rows;
    if (is_inside && h->layer == c->engram[i].layer && h->table_rows == c->engram[i].n_rows) {
        return OK;
    }
    return err_set(e, ERR_MISMATCH,
        "%s is of layer %d with %lld rows; the model needs layer %d with %lld", s->tables[i].path,
        h->layer, (long long)h->table_rows, c->engram[i].layer, (long long)c->engram[i].n_rows);
}

int engram_store_dir_open(const char *dir, const model_config *c, const int rank_world[2],
    const engram_disk_options *options, engram_store **out, err *e) {
    buf names[DISK_MAX_TABLES] = {0};
    const char *paths[DISK_MAX_TABLES];
    engram_disk_options o = *options;
    int rc = OK;
    CHECK(c->n_engram > 0 && c->n_engram <= DISK_MAX_TABLES);
    for (int i = 0; i < c->n_engram && rc == OK; i++) {
        rc = find_file(&names[i], dir, c->engram[i].layer, rank_world, e);
        paths[i] = buf_cstr(&names[i]);
    }
    o.paths = paths;
    o.n_tables = c->n_engram;
    o.d = c->d_engram;
    *out = NULL;
    if (rc == OK) rc = engram_store_disk_open(&o, out, e);
    for (int i = 0; i < c->n_engram && rc == OK; i++) {
        rc = check_range((const disk_store *)(const void *)*out, c, i, rank_world, e);
    }
    if (rc != OK) {
        engram_store_close(*out);
        *out = NULL;
    }
    for (int i = 0; i < c->n_engram; i++) {
        buf_release(&names[i]);
    }
    return rc;
}
