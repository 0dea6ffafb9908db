/* The receiver's files: what is there, flushing and journal, verifying, putting into place. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/stream_receiver.h"

enum { LOCK_MS = 25000, PIECE_BYTES = 4 << 20 };
#define SMALL_REST ((uint64_t)64 << 20)

/* One session at a time in a root; an older one ends soon after its head is gone. */
static int take_lock(receiver *r, err *e) {
    r->lock_fd =
        openat(r->st.fd, ".tandem-receive.lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (r->lock_fd < 0) return err_errno(e, "lock file in %s", r->st.root);
    uint64_t begun = clock_mono_ms();
    while (flock(r->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) return err_errno(e, "locking %s", r->st.root);
        if (clock_mono_ms() - begun > LOCK_MS)
            return err_set(e, ERR_BUSY, "another copy into %s is running", r->st.root);
        sleep_ms(100);
    }
    return OK;
}

static char *joined(const char *a, const char *b) {
    buf text = BUF_INIT;
    buf_printf(&text, "%s%s", a, b);
    return buf_take(&text);
}

/* Reads the file from f->hashed to its end into the digest and compares. */
static int hash_rest(receiver *r, received *f, const disk_file *d, bool *is_right, err *e) {
    char hex[65];
    char *piece = mem_aligned(4096, PIECE_BYTES);
    if (piece == NULL) return err_set(e, ERR_MEMORY, "no memory");
    int rc = OK;
    uint64_t at = f->hashed;
    while (rc == OK && at < f->f->size && !receiver_is_stopped(r)) {
        /* The front may end anywhere on the frame grid, which is on the page grid as well. */
        size_t n = f->f->size - at < PIECE_BYTES ? (size_t)(f->f->size - at) : PIECE_BYTES;
        rc = disk_read(d, piece, n, at, e);
        if (rc == OK) store_digest_update(f->hash, piece, n);
        at += n;
    }
    mem_aligned_free(piece);
    if (rc == OK && at < f->f->size) rc = err_set(e, ERR_CANCELLED, "stopped");
    if (rc != OK) return rc;
    store_digest_finish(f->hash, hex);
    *is_right = str_eq(hex, f->f->digest);
    return OK;
}

static void fresh_hash(received *f) {
    store_digest_free(f->hash);
    f->hash = store_digest_new(f->f->kind, f->f->size);
    f->hashed = 0;
}

static int set_aside(receiver *r, const char *rel, err *e) {
    buf bad = BUF_INIT;
    buf_printf(&bad, "%s.bad-%llu", rel, (unsigned long long)clock_wall_ms());
    int rc = store_rename(&r->st, rel, buf_cstr(&bad), e);
    buf_release(&bad);
    return rc;
}

/* A file under its final name without a record: hashed before the session begins. */
static int check_final(receiver *r, received *f, err *e) {
    struct stat st;
    disk_file d = {.fd = -1};
    bool is_right = false;
    if (store_ok_holds(&r->st, f->rel, f->f)) {
        f->state = SOUND;
        return store_remove(&r->st, f->journal, e);
    }
    int rc = store_stat(&r->st, f->rel, &st, NULL);
    if (rc == ERR_NOT_FOUND) return OK;
    if (rc != OK) return err_set(e, rc, "%s/%s is no regular file", r->st.root, f->rel);
    if ((uint64_t)st.st_size == f->f->size) {
        rc = disk_open(&r->st, f->rel, O_RDONLY, &d, e);
        fresh_hash(f);
        if (rc == OK) rc = hash_rest(r, f, &d, &is_right, e);
        disk_close(&d);
        fresh_hash(f);
    }
    if (rc == OK && is_right) rc = store_ok_write(&r->st, f->rel, f->f, e);
    if (rc == OK && is_right) {
        /* An earlier session ended between the name and the record: its journal is over as well. */
        f->state = SOUND;
        return store_remove(&r->st, f->journal, e);
    }
    return rc == OK ? set_aside(r, f->rel, e) : rc;
}

static int load_journal(receiver *r, received *f) {
    struct stat st;
    buf text = BUF_MAX(RANGES_MAX_BYTES);
    err why = ERR_INIT;
    if (f->state == IN_WORK && store_stat(&r->st, f->part, &st, NULL) == OK &&
        store_read(&r->st, f->journal, &text, RANGES_MAX_BYTES, NULL) == OK &&
        ranges_decode(&f->r, text.data, text.len, &why) == OK) {
        for (size_t i = 0; i < f->r.n_units; i++) {
            f->written[i] = f->r.done[i] == ranges_unit_bytes(&f->r, i);
            f->n_written += f->written[i];
        }
        f->n_flushed = f->n_written;
    }
    f->is_hash_behind = f->n_written > 0;
    if (f->state == IN_WORK && f->n_flushed == f->r.n_units) f->state = WHOLE;
    buf_release(&text);
    return OK;
}

static int prepare_file(receiver *r, received *f, const manifest_file *mf, err *e) {
    uint8_t id[RANGES_ID_BYTES];
    buf rel = BUF_INIT;
    f->f = mf;
    f->d.fd = -1;
    manifest_place(&r->m, mf, &rel);
    f->rel = buf_take(&rel);
    f->part = joined(f->rel, ".part");
    f->journal = joined(f->rel, ".ranges");
    store_content_id(mf, id);
    int rc = ranges_init(&f->r, mf->size, r->s.frame_bytes, id, e);
    if (rc != OK) return rc;
    f->written = mem_alloc(f->r.n_units + 1);
    f->waiting = mem_array(MAX_WAITING, sizeof *f->waiting);
    fresh_hash(f);
    rc = check_final(r, f, e);
    return rc == OK ? load_journal(r, f) : rc;
}

static int check_space(receiver *r, err *e) {
    uint64_t need = 0, have = store_free_bytes(&r->st);
    for (size_t i = 0; i < r->n_files; i++) {
        struct stat st;
        const received *f = &r->files[i];
        if (f->state == SOUND) continue;
        uint64_t there = 0;
        if (store_stat(&r->st, f->part, &st, NULL) == OK) there = (uint64_t)st.st_blocks * 512;
        need += f->f->size > there ? f->f->size - there : 0;
    }
    uint64_t reserve = need <= SMALL_REST ? 0 : r->s.reserve_bytes;
    if (need + reserve <= have) return OK;
    receiver_say(r, "full %llu %llu", (unsigned long long)need, (unsigned long long)have);
    return err_set(e, ERR_FULL, "not enough space under %s: needs %.3f GB, free %.3f GB",
        r->st.root, (double)need / 1e9, (double)have / 1e9);
}

int receiver_prepare(receiver *r, err *e) {
    int rc = store_open(&r->st, r->s.root, e);
    if (rc == OK) rc = take_lock(r, e);
    r->files = mem_array(r->m.n_files + 1, sizeof *r->files);
    for (size_t i = 0; rc == OK && i < r->m.n_files; i++) {
        if (r->m.files[i].is_head_only) continue;
        rc = prepare_file(r, &r->files[r->n_files++], &r->m.files[i], e);
    }
    return rc == OK ? check_space(r, e) : rc;
}

void receiver_release(receiver *r) {
    for (size_t i = 0; i < r->n_files; i++) {
        received *f = &r->files[i];
        mem_free(f->rel);
        mem_free(f->part);
        mem_free(f->journal);
        mem_free(f->written);
        mem_free(f->waiting);
        ranges_release(&f->r);
        store_digest_free(f->hash);
        disk_close(&f->d);
    }
    mem_free(r->files);
    manifest_release(&r->m);
    if (r->lock_fd >= 0) close(r->lock_fd);
    store_close(&r->st);
    explicit_bzero(&r->s, sizeof r->s);
}

int receiver_open_locked(receiver *r, received *f, err *e) {
    buf text = BUF_MAX(RANGES_MAX_BYTES);
    if (f->d.fd >= 0) return OK;
    int rc = disk_open(&r->st, f->part, O_RDWR | O_CREAT, &f->d, e);
    if (rc == OK && f->f->size > 0 && fallocate(f->d.fd, 0, 0, (off_t)f->f->size) != 0 &&
        errno != EOPNOTSUPP)
        rc = err_errno(e, "no space for %s", f->rel);
    if (rc == OK) rc = ranges_encode(&f->r, &text);
    if (rc == OK) rc = store_write(&r->st, f->journal, text.data, text.len, e);
    buf_release(&text);
    if (rc != OK) disk_close(&f->d);
    return rc;
}

/* Flushing: units written before the flush began are marked after it. */
static int flush_file(receiver *r, received *f, err *e) {
    buf text = BUF_MAX(RANGES_MAX_BYTES);
    uint8_t *before = mem_alloc(f->r.n_units + 1);
    int rc = OK;
    pthread_mutex_lock(&r->lock);
    bool is_due = f->state == IN_WORK && f->n_written > f->n_flushed && f->d.fd >= 0;
    if (is_due) memcpy(before, f->written, f->r.n_units);
    pthread_mutex_unlock(&r->lock);
    if (is_due && fdatasync(f->d.fd) != 0) rc = err_errno(e, "flushing %s", f->part);
    if (is_due && rc == OK) {
        pthread_mutex_lock(&r->lock);
        f->n_flushed = 0;
        for (size_t i = 0; i < f->r.n_units; i++) {
            uint64_t at = (uint64_t)i * f->r.unit;
            if (before[i]) ranges_mark(&f->r, at, at + ranges_unit_bytes(&f->r, i));
            f->n_flushed += before[i];
        }
        rc = ranges_encode(&f->r, &text);
        pthread_mutex_unlock(&r->lock);
        if (rc == OK) rc = store_write(&r->st, f->journal, text.data, text.len, e);
    }
    pthread_mutex_lock(&r->lock);
    if (rc == OK && f->state == IN_WORK && f->n_flushed == f->r.n_units) {
        f->state = WHOLE;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    mem_free(before);
    buf_release(&text);
    return rc;
}

int receiver_flush(receiver *r, err *e) {
    int rc = OK;
    for (size_t i = 0; rc == OK && i < r->n_files; i++)
        rc = flush_file(r, &r->files[i], e);
    return rc;
}

bool receiver_is_finished_locked(const receiver *r) {
    for (size_t i = 0; i < r->n_files; i++) {
        if (r->files[i].state != SOUND) return false;
    }
    return true;
}

/* Verifying. */

static int put_into_place(receiver *r, received *f, err *e) {
    if (ftruncate(f->d.fd, (off_t)f->f->size) != 0 || fsync(f->d.fd) != 0)
        return err_errno(e, "finishing %s", f->part);
    if (fchmod(f->d.fd, 0444) != 0) LOG(LOG_DEBUG, "stream", "mode not set", "file=%s", f->part);
    disk_close(&f->d);
    int rc = store_rename(&r->st, f->part, f->rel, e);
    if (rc == OK) rc = store_ok_write(&r->st, f->rel, f->f, e);
    return rc == OK ? store_remove(&r->st, f->journal, e) : rc;
}

static int take_apart(receiver *r, received *f, size_t i, err *e) {
    disk_close(&f->d);
    int rc = set_aside(r, f->part, e);
    if (rc == OK) rc = store_remove(&r->st, f->journal, e);
    receiver_say(r, "bad %zu", i);
    return rc == OK ? err_set(e, ERR_MISMATCH,
                          "%s arrived, but its digest is not the manifest's: "
                          "the file of the head was changed, or a disk or memory is faulty",
                          f->rel)
                    : rc;
}

static int verify(receiver *r, received *f, size_t i, err *e) {
    bool is_right = false;
    pthread_mutex_lock(&r->lock);
    /* A frame that came twice may still have the turn. */
    while (f->is_turn_taken)
        pthread_cond_wait(&r->changed, &r->lock);
    receiver_hash_behind_locked(f);
    int rc = receiver_open_locked(r, f, e);
    pthread_mutex_unlock(&r->lock);
    if (rc == OK) rc = hash_rest(r, f, &f->d, &is_right, e);
    if (rc == OK) rc = is_right ? put_into_place(r, f, e) : take_apart(r, f, i, e);
    pthread_mutex_lock(&r->lock);
    f->state = rc == OK ? SOUND : BROKEN;
    if (rc == OK) r->verified_bytes += f->f->size;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    if (rc == OK) receiver_say(r, "done %zu", i);
    return rc;
}

void *receiver_verify(void *arg) {
    receiver *r = arg;
    pthread_mutex_lock(&r->lock);
    while (r->stop_rc == OK && !receiver_is_finished_locked(r)) {
        size_t i = 0;
        while (i < r->n_files && r->files[i].state != WHOLE)
            i++;
        if (i == r->n_files) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_sec++;
            pthread_cond_timedwait(&r->changed, &r->lock, &until);
            continue;
        }
        err e = ERR_INIT;
        r->files[i].state = VERIFYING;
        pthread_mutex_unlock(&r->lock);
        int rc = verify(r, &r->files[i], i, &e);
        if (rc != OK) receiver_stop(r, rc, &e);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}
