/* The hashers: each follows the finished front of one file at a time, then puts the file into place
 * or takes it apart again. The digest comes from the manifest and from nowhere else. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/base/thread.h"
#include "setup/hub_internal.h"

enum { PIECE_BYTES = 4 << 20, IDLE_MS = 100, MAX_MISMATCHES = 2 };

/* How far the digest may go now. */
static uint64_t limit_locked(const hub_file *f) {
    if (f->state == HUB_CHECKING) return f->f->size;
    return f->fd >= 0 || f->f->size == 0 ? ranges_prefix(&f->r) : 0;
}

static bool has_work_locked(const hub_file *f) {
    if (f->is_hashing) return false;
    if (f->state == HUB_CHECKING || f->state == HUB_VERIFYING) return true;
    return f->state == HUB_LOADING && f->hashed + PIECE_BYTES <= limit_locked(f);
}

static hub_file *pick(hub *h) {
    hub_file *found = NULL;
    pthread_mutex_lock(&h->lock);
    while (h->stop_rc == OK && !hub_is_finished_locked(h)) {
        for (size_t k = 0; k < h->n_files && found == NULL; k++) {
            hub_file *f = &h->files[h->order[k]];
            if (has_work_locked(f)) found = f;
        }
        if (found != NULL) break;
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += IDLE_MS * 1000000L;
        if (until.tv_nsec >= 1000000000L) until.tv_nsec -= 1000000000L, until.tv_sec++;
        pthread_cond_timedwait(&h->changed, &h->lock, &until);
    }
    if (found != NULL) {
        found->is_hashing = true;
        found->picked = found->state;
    }
    pthread_mutex_unlock(&h->lock);
    return found;
}

static void let_go(hub *h, hub_file *f) {
    pthread_mutex_lock(&h->lock);
    f->is_hashing = false;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

/* Reads on up to the limit; OK also when the limit moved meanwhile or the run ends. */
static int advance(hub *h, hub_file *f, int fd, err *e) {
    char *piece = mem_alloc(PIECE_BYTES);
    int rc = OK;
    for (;;) {
        pthread_mutex_lock(&h->lock);
        uint64_t limit = limit_locked(f), at = f->hashed;
        bool is_stopped = h->stop_rc != OK;
        if (at > limit) at = f->hashed = 0;
        pthread_mutex_unlock(&h->lock);
        if (at == 0) {
            store_digest_free(f->hash);
            f->hash = store_digest_new(f->f->kind, f->f->size);
        }
        if (is_stopped || at >= limit || f->f->kind == MANIFEST_SIZE_ONLY) break;
        size_t n = limit - at < PIECE_BYTES ? (size_t)(limit - at) : PIECE_BYTES;
        rc = fd_read_at(fd, piece, n, at, e);
        if (rc != OK) break;
        store_digest_update(f->hash, piece, n);
        posix_fadvise(fd, (off_t)at, (off_t)n, POSIX_FADV_DONTNEED);
        pthread_mutex_lock(&h->lock);
        if (f->hashed == at) f->hashed = at + n;
        h->last_progress_ms = clock_mono_ms();
        pthread_mutex_unlock(&h->lock);
    }
    mem_free(piece);
    return rc;
}

static bool is_hashed(hub *h, const hub_file *f) {
    pthread_mutex_lock(&h->lock);
    bool is = f->hash != NULL && h->stop_rc == OK &&
              (f->hashed == f->f->size || f->f->kind == MANIFEST_SIZE_ONLY);
    pthread_mutex_unlock(&h->lock);
    return is;
}

/* Aside with a file that is not what it should be; it is kept. */
static int set_aside(hub *h, const char *rel, err *e) {
    buf bad = BUF_INIT;
    buf_printf(&bad, "%s.bad-%llu", rel, (unsigned long long)clock_wall_ms());
    int rc = store_rename(&h->s, rel, buf_cstr(&bad), e);
    buf_release(&bad);
    return rc;
}

static void set_state(hub *h, hub_file *f, hub_file_state state) {
    pthread_mutex_lock(&h->lock);
    f->state = state;
    f->hashed = 0;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

static void finish_ok(hub *h, hub_file *f) {
    err e = ERR_INIT;
    int rc = store_ok_write(&h->s, f->rel, f->f, &e);
    if (rc == OK) rc = store_remove(&h->s, f->journal, &e);
    if (rc != OK) {
        hub_file_fail(h, f, rc, &e);
        return;
    }
    set_state(h, f, HUB_OK);
    LOG(LOG_INFO, "hub", "verified", "file=%s digest=%s", f->rel, f->f->digest);
}

/* Checked files. */

static void next_candidate(hub *h, hub_file *f) {
    mem_free(f->check_path);
    f->check_path = hub_candidate(h, f);
    set_state(h, f, f->check_path != NULL ? HUB_CHECKING : HUB_WAITING);
}

static void checked(hub *h, hub_file *f, bool is_right) {
    err e = ERR_INIT;
    bool is_own = str_eq(f->check_path, f->rel), is_link = false;
    if (is_right && is_own) {
        finish_ok(h, f);
    } else if (is_right) {
        int rc = store_import(&h->s, f->check_path, f->rel, &is_link, &e);
        LOG(LOG_INFO, "hub", "taken over", "file=%s from=%s how=%s", f->rel, f->check_path,
            rc != OK  ? e.msg
            : is_link ? "link"
                      : "copy");
        if (rc != OK) {
            next_candidate(h, f);
        } else if (is_link) {
            finish_ok(h, f);
        } else {
            /* The copy is read as well: what was hashed is not yet what was written. */
            mem_free(f->check_path);
            f->check_path = mem_strdup(f->rel);
            set_state(h, f, HUB_CHECKING);
        }
    } else {
        LOG(LOG_WARN, "hub", "not the file it seems to be", "file=%s", f->check_path);
        int rc = is_own ? set_aside(h, f->rel, &e) : OK;
        if (rc != OK) {
            hub_file_fail(h, f, rc, &e);
        } else {
            next_candidate(h, f);
        }
    }
}

/* Loaded files. */

static int put_into_place(hub *h, hub_file *f, err *e) {
    if (fsync(f->fd) != 0) return err_errno(e, "flushing %s", f->part);
    if (fchmod(f->fd, 0444) != 0) LOG(LOG_DEBUG, "hub", "mode not set", "file=%s", f->part);
    close(f->fd);
    f->fd = -1;
    return store_rename(&h->s, f->part, f->rel, e);
}

static void mismatch(hub *h, hub_file *f, const char *hex) {
    err e = ERR_INIT;
    const char *why = manifest_denied(h->m, hex);
    if (why != NULL) {
        err_set(&e, ERR_MISMATCH, "%s: %s", f->f->path, why);
        hub_file_fail(h, f, ERR_MISMATCH, &e);
        return;
    }
    if (!f->is_reread) {
        f->is_reread = true; /* a read error is ruled out first */
        set_state(h, f, HUB_VERIFYING);
        return;
    }
    f->is_reread = false;
    f->n_mismatch++;
    err_set(&e, ERR_MISMATCH,
        "%s: the bytes arrived but are wrong: a proxy, the mirror, the disk or "
        "the memory changed them",
        f->f->path);
    LOG(LOG_ERROR, "hub", "digest differs", "file=%s expected=%s got=%s", f->rel, f->f->digest,
        hex);
    close(f->fd);
    f->fd = -1;
    int rc = set_aside(h, f->part, &e);
    pthread_mutex_lock(&h->lock);
    hub_file_discard_locked(h, f);
    f->is_reserved = false;
    mem_free(f->location);
    f->location = NULL;
    pthread_mutex_unlock(&h->lock);
    if (rc == OK) rc = hub_journal_write(h, f, &e);
    if (rc != OK || f->n_mismatch >= MAX_MISMATCHES) {
        hub_file_fail(h, f, rc != OK ? rc : ERR_MISMATCH, &e);
        return;
    }
    hub_note_retry(h, e.msg);
    set_state(h, f, HUB_WAITING);
}

static void complete(hub *h, hub_file *f) {
    char hex[65];
    err e = ERR_INIT;
    store_digest_finish(f->hash, hex);
    store_digest_free(f->hash);
    f->hash = NULL;
    bool is_right = f->f->kind == MANIFEST_SIZE_ONLY || str_eq(hex, f->f->digest);
    if (f->picked == HUB_CHECKING) {
        checked(h, f, is_right);
    } else if (!is_right) {
        mismatch(h, f, hex);
    } else {
        int rc = put_into_place(h, f, &e);
        if (rc != OK) {
            hub_file_fail(h, f, rc, &e);
        } else {
            finish_ok(h, f);
        }
    }
}

/* Descriptor to read from; *is_own when it must be closed. */
static int open_for(hub *h, hub_file *f, int *fd, bool *is_own, err *e) {
    *is_own = f->picked == HUB_CHECKING;
    if (!*is_own) {
        int rc = hub_file_open(h, f, e);
        *fd = f->fd;
        return rc;
    }
    if (str_eq(f->check_path, f->rel)) return store_file(&h->s, f->rel, O_RDONLY, fd, e);
    *fd = open(f->check_path, O_RDONLY | O_CLOEXEC);
    return *fd >= 0 ? OK : err_errno(e, "opening %s", f->check_path);
}

static void work_on(hub *h, hub_file *f) {
    err e = ERR_INIT;
    int fd = -1;
    bool is_own = false;
    int rc = open_for(h, f, &fd, &is_own, &e);
    if (rc == OK) posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    if (rc == OK) rc = advance(h, f, fd, &e);
    bool is_done = rc == OK && is_hashed(h, f) && f->picked != HUB_LOADING;
    if (is_own && fd >= 0) close(fd);
    if (rc != OK && f->picked == HUB_CHECKING && !str_eq(f->check_path, f->rel)) {
        next_candidate(h, f); /* somebody else's file went away */
    } else if (rc != OK) {
        hub_file_fail(h, f, rc, &e);
    } else if (is_done) {
        complete(h, f);
    }
}

void *hub_hash_main(void *arg) {
    hub *h = arg;
    thread_set_name("hub-hash");
    for (hub_file *f; (f = pick(h)) != NULL;) {
        work_on(h, f);
        let_go(h, f);
    }
    return NULL;
}
