/* The queue of ranges: large files first, units in order within a file, so that the digest can follow
 * the finished front. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "setup/hub_internal.h"

enum { IDLE_MS = 200 };

void hub_stop(hub *h, int rc, const err *e) {
    pthread_mutex_lock(&h->lock);
    if (h->stop_rc == OK) {
        h->stop_rc = rc;
        if (e != NULL) h->stop_err = *e;
    }
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

void hub_file_fail(hub *h, hub_file *f, int rc, const err *e) {
    LOG(LOG_ERROR, "hub", "file given up", "file=%s reason=%s", f->rel, e->msg);
    pthread_mutex_lock(&h->lock);
    f->state = HUB_FAILED;
    pthread_mutex_unlock(&h->lock);
    if (f->f->is_required) hub_stop(h, rc, e);
    hub_note_retry(h, e->msg);
}

void hub_file_discard_locked(hub *h, hub_file *f) {
    f->again_bytes += f->r.done_bytes;
    h->p.again_bytes += f->r.done_bytes;
    ranges_clear(&f->r);
    f->hashed = 0;
}

bool hub_is_finished_locked(const hub *h) {
    for (size_t i = 0; i < h->n_files; i++) {
        if (h->files[i].state != HUB_OK && h->files[i].state != HUB_FAILED) return false;
    }
    return true;
}

/* Any range of this file in work? */
static bool is_any_taken(const hub_file *f) {
    for (size_t i = 0; i < f->r.n_units; i++) {
        if (f->taken[i]) return true;
    }
    return false;
}

static bool claim_in_file(hub_file *f, hub_claim *c) {
    uint64_t start = 0, end = 0;
    if (f->is_sequential) {
        if (is_any_taken(f) || !ranges_missing(&f->r, 0, &start, &end)) return false;
        end = f->r.size;
    } else {
        uint64_t from = 0;
        for (;;) {
            if (!ranges_missing(&f->r, from, &start, &end)) return false;
            size_t i = (size_t)(start / f->r.unit);
            uint64_t unit_end = (uint64_t)i * f->r.unit + ranges_unit_bytes(&f->r, i);
            if (!f->taken[i]) {
                end = unit_end;
                break;
            }
            from = unit_end;
        }
    }
    memset(c, 0, sizeof *c);
    c->f = f;
    c->start = c->pos = c->marked = start;
    c->end = end;
    c->is_sequential = f->is_sequential;
    for (uint64_t at = start; at < end; at += f->r.unit - at % f->r.unit)
        f->taken[at / f->r.unit] = 1;
    return true;
}

static bool claim_locked(hub *h, hub_claim *c) {
    uint64_t now = clock_mono_ms();
    if (now < h->wait_until_ms) return false;
    for (size_t k = 0; k < h->n_files; k++) {
        hub_file *f = &h->files[h->order[k]];
        if (f->state != HUB_WAITING && f->state != HUB_LOADING) continue;
        if (f->not_before_ms > now || !claim_in_file(f, c)) continue;
        f->state = HUB_LOADING;
        return true;
    }
    return false;
}

static void wait_locked(hub *h) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += IDLE_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&h->changed, &h->lock, &until);
}

bool hub_claim_take(hub *h, int index, hub_claim *c) {
    bool has = false;
    pthread_mutex_lock(&h->lock);
    while (h->stop_rc == OK && !hub_is_finished_locked(h)) {
        has = index < h->n_allowed && claim_locked(h, c);
        if (has) break;
        wait_locked(h);
    }
    if (has) h->n_busy++;
    pthread_mutex_unlock(&h->lock);
    return has;
}

void hub_claim_give(hub *h, hub_claim *c) {
    hub_file *f = c->f;
    pthread_mutex_lock(&h->lock);
    for (uint64_t at = c->start; at < c->end; at += f->r.unit - at % f->r.unit)
        f->taken[at / f->r.unit] = 0;
    /* Not while another worker may still write the journal: it would come back after its removal. */
    if (f->state == HUB_LOADING && ranges_is_complete(&f->r) && !is_any_taken(f))
        f->state = HUB_VERIFYING;
    h->n_busy--;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

int hub_journal_write(hub *h, hub_file *f, err *e) {
    buf text = BUF_MAX(RANGES_MAX_BYTES);
    pthread_mutex_lock(&f->journal_lock);
    pthread_mutex_lock(&h->lock);
    int rc = ranges_encode(&f->r, &text);
    pthread_mutex_unlock(&h->lock);
    if (rc == OK) rc = store_write(&h->s, f->journal, text.data, text.len, e);
    pthread_mutex_unlock(&f->journal_lock);
    buf_release(&text);
    return rc;
}

int hub_claim_mark(hub *h, hub_claim *c, err *e) {
    hub_file *f = c->f;
    if (c->pos == c->marked) return OK;
    if (fdatasync(f->fd) != 0) return err_errno(e, "flushing %s", f->part);
    pthread_mutex_lock(&h->lock);
    ranges_mark(&f->r, c->marked, c->pos);
    f->unmarked_bytes -= c->pos - c->marked;
    h->last_progress_ms = clock_mono_ms();
    f->n_fails = 0;
    /* The hasher reads what follows the front from the page cache; all else must not fill it. */
    bool is_front = ranges_prefix(&f->r) >= c->pos;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
    if (!is_front)
        posix_fadvise(f->fd, (off_t)c->marked, (off_t)(c->pos - c->marked), POSIX_FADV_DONTNEED);
    c->marked = c->pos;
    return hub_journal_write(h, f, e);
}
