#include "setup/hub.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/hub_internal.h"

enum { TICK_MS = 250, FIRST_CONNECTIONS = 4, GIVE_UP_MS = 15 * 60 * 1000 };

/* Preparing. */

static int check_options(const hub_options *o, err *e) {
    if (o->endpoint == NULL ||
        (!hub_url_is_https(o->endpoint) && !hub_url_is_loopback(o->endpoint)))
        return err_set(e, ERR_ARG, "the hub must be reached over https: %s",
            o->endpoint != NULL ? o->endpoint : "(none)");
    if (o->connections < 1 || o->connections > HUB_MAX_WORKERS)
        return err_set(e, ERR_ARG, "connections must be 1 to %d", HUB_MAX_WORKERS);
    return OK;
}

static char *with_suffix(const char *rel, const char *suffix) {
    buf b = BUF_INIT;
    buf_printf(&b, "%s%s", rel, suffix);
    return buf_take(&b);
}

/* What an earlier run, or another program that wrote from the front, left. */
static int load_part(hub *h, hub_file *f, err *e) {
    struct stat st;
    buf text = BUF_MAX(RANGES_MAX_BYTES);
    err why = ERR_INIT;
    if (store_stat(&h->s, f->part, &st, NULL) != OK) return OK;
    int rc = store_read(&h->s, f->journal, &text, RANGES_MAX_BYTES, &why);
    if (rc == OK) rc = ranges_decode(&f->r, text.data, text.len, &why);
    if (rc == ERR_NOT_FOUND && (uint64_t)st.st_size < f->f->size) {
        ranges_mark(&f->r, 0, (uint64_t)st.st_size);
    } else if (rc != OK) {
        LOG(LOG_WARN, "hub", "part not usable", "file=%s reason=%s", f->part, why.msg);
    }
    buf_release(&text);
    (void)e;
    return OK;
}

static int prepare_file(hub *h, hub_file *f, const manifest_file *mf, err *e) {
    uint8_t id[RANGES_ID_BYTES];
    struct stat st;
    buf rel = BUF_INIT;
    const char *why = manifest_denied(h->m, mf->digest);
    f->f = mf;
    f->fd = -1;
    pthread_mutex_init(&f->journal_lock, NULL);
    manifest_place(h->m, mf, &rel);
    f->rel = buf_take(&rel);
    f->part = with_suffix(f->rel, ".part");
    f->journal = with_suffix(f->rel, ".ranges");
    if (why != NULL) return err_set(e, ERR_MISMATCH, "%s: %s", mf->path, why);
    store_content_id(mf, id);
    int rc = ranges_init(&f->r, mf->size, h->o.unit_bytes, id, e);
    if (rc != OK) return rc;
    f->taken = mem_alloc(f->r.n_units + 1);
    if (store_ok_holds(&h->s, f->rel, mf)) {
        f->state = HUB_OK;
        return store_remove(&h->s, f->journal, e); /* left when an end came just before this */
    }
    rc = store_stat(&h->s, f->rel, &st, NULL);
    if (rc == OK && (uint64_t)st.st_size == mf->size) {
        f->check_path = mem_strdup(f->rel);
    } else if (rc == OK) {
        return err_set(e, ERR_EXISTS,
            "%s/%s is there with another size than the manifest says; move "
            "it away first",
            h->s.root, f->rel);
    } else {
        f->check_path = hub_candidate(h, f);
    }
    f->state = f->check_path != NULL ? HUB_CHECKING : HUB_WAITING;
    rc = load_part(h, f, e);
    if (rc == OK && f->state == HUB_WAITING && ranges_is_complete(&f->r)) f->state = HUB_VERIFYING;
    return rc;
}

/* Bytes of disk that the file still takes. */
static uint64_t needed_bytes(const hub *h, const hub_file *f) {
    struct stat st;
    if (f->state == HUB_OK || f->state == HUB_CHECKING) return 0;
    uint64_t have = f->r.done_bytes;
    if (store_stat(&h->s, f->part, &st, NULL) == OK && (uint64_t)st.st_blocks * 512 > have)
        have = (uint64_t)st.st_blocks * 512;
    return f->f->size > have ? f->f->size - have : 0;
}

static int check_space(hub *h, err *e) {
    uint64_t need = 0;
    for (size_t i = 0; i < h->n_files; i++)
        need += needed_bytes(h, &h->files[i]);
    uint64_t have = h->o.disk.free_bytes != NULL ? h->o.disk.free_bytes(h->o.disk.ctx)
                                                 : store_free_bytes(&h->s);
    uint64_t usable = need <= HUB_SMALL_REST     ? have
                      : have > HUB_RESERVE_BYTES ? have - HUB_RESERVE_BYTES
                                                 : 0;
    if (need <= usable) return OK;
    return err_set(e, ERR_FULL,
        "not enough space under %s: needs %.1f GB (%.1f GiB), free %.1f GB (%.1f GiB), of which 5 GB "
        "are never used; %.1f GB are missing",
        h->s.root, (double)need / 1e9, (double)need / 1073741824.0, (double)have / 1e9,
        (double)have / 1073741824.0, (double)(need - usable) / 1e9);
}

static const hub *sorted; /* only for compare, under sort_lock */
static pthread_mutex_t sort_lock = PTHREAD_MUTEX_INITIALIZER;

static int compare(const void *a, const void *b) {
    size_t x = *(const size_t *)a, y = *(const size_t *)b;
    uint64_t sx = sorted->files[x].f->size, sy = sorted->files[y].f->size;
    if (sx != sy) return sx > sy ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void sort_files(hub *h) {
    h->order = mem_array(h->n_files + 1, sizeof *h->order);
    for (size_t i = 0; i < h->n_files; i++)
        h->order[i] = i;
    pthread_mutex_lock(&sort_lock);
    sorted = h;
    if (h->n_files > 0) qsort(h->order, h->n_files, sizeof *h->order, compare);
    pthread_mutex_unlock(&sort_lock);
}

hub *hub_new(const manifest *m, const hub_options *options, err *e) {
    if (check_options(options, e) != OK) return NULL;
    hub *h = mem_alloc(sizeof *h);
    pthread_condattr_t attr;
    h->m = m;
    h->o = *options;
    if (h->o.unit_bytes == 0) h->o.unit_bytes = HUB_DEFAULT_UNIT;
    if (h->o.give_up_ms <= 0) h->o.give_up_ms = GIVE_UP_MS;
    h->rate_limit = h->o.rate_limit;
    h->p.resolves_left = -1;
    h->n_allowed = h->o.connections < FIRST_CONNECTIONS ? h->o.connections : FIRST_CONNECTIONS;
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&h->changed, &attr);
    pthread_condattr_destroy(&attr);
    int rc = store_open(&h->s, options->root, e);
    h->files = mem_array(m->n_files + 1, sizeof *h->files);
    for (size_t i = 0; rc == OK && i < m->n_files; i++) {
        h->n_files++;
        rc = prepare_file(h, &h->files[i], &m->files[i], e);
    }
    if (rc == OK) rc = check_space(h, e);
    if (rc == OK) {
        sort_files(h);
        return h;
    }
    hub_free(h);
    return NULL;
}

void hub_free(hub *h) {
    if (h == NULL) return;
    for (size_t i = 0; i < h->n_files; i++) {
        hub_file *f = &h->files[i];
        if (f->fd >= 0) close(f->fd);
        mem_free(f->rel);
        mem_free(f->part);
        mem_free(f->journal);
        mem_free(f->location);
        mem_free(f->check_path);
        mem_free(f->taken);
        ranges_release(&f->r);
        store_digest_free(f->hash);
        pthread_mutex_destroy(&f->journal_lock);
    }
    mem_free(h->files);
    mem_free(h->order);
    store_close(&h->s);
    pthread_mutex_destroy(&h->lock);
    pthread_cond_destroy(&h->changed);
    mem_free(h);
}

/* Space for all that is missing, which also proves that it is there. */
static int reserve(hub *h, hub_file *f, err *e) {
    uint64_t start = 0, end = 0;
    for (uint64_t from = 0; ranges_missing(&f->r, from, &start, &end); from = end) {
        if (h->o.disk.reserve != NULL) {
            int rc = h->o.disk.reserve(h->o.disk.ctx, f->fd, start, end - start, e);
            if (rc != OK) return rc;
        } else if (fallocate(f->fd, 0, (off_t)start, (off_t)(end - start)) != 0) {
            if (errno == EOPNOTSUPP || errno == ENOSYS) break;
            return err_errno(e, "no space for %s: %.1f GB are missing", f->f->path,
                (double)(f->r.size - f->r.done_bytes) / 1e9);
        }
        if (end == f->r.size) break;
    }
    if (ftruncate(f->fd, (off_t)f->r.size) != 0) return err_errno(e, "sizing %s", f->part);
    return OK;
}

int hub_file_open(hub *h, hub_file *f, err *e) {
    int rc = OK;
    pthread_mutex_lock(&f->journal_lock);
    if (f->fd < 0) {
        int fd = -1;
        rc = store_file(&h->s, f->part, O_RDWR | O_CREAT, &fd, e);
        /* The journal comes first: a part of full size without one would look finished to nobody,
         * but a short one would look like a front that another program wrote. */
        buf text = BUF_MAX(RANGES_MAX_BYTES);
        pthread_mutex_lock(&h->lock);
        f->fd = fd;
        bool must_reserve = rc == OK && !f->is_reserved;
        f->is_reserved = true;
        if (rc == OK) rc = ranges_encode(&f->r, &text);
        pthread_mutex_unlock(&h->lock);
        if (rc == OK) rc = store_write(&h->s, f->journal, text.data, text.len, e);
        if (rc == OK && must_reserve) rc = reserve(h, f, e);
        buf_release(&text);
    }
    pthread_mutex_unlock(&f->journal_lock);
    return rc;
}

/* Running. */

typedef struct run {
    pthread_t loaders[HUB_MAX_WORKERS], hashers[HUB_HASHERS];
    hub_worker workers[HUB_MAX_WORKERS];
    int n_loaders, n_hashers;
} run;

static int start_threads(hub *h, run *r, err *e) {
    for (int i = 0; i < HUB_HASHERS; i++) {
        if (pthread_create(&r->hashers[i], NULL, hub_hash_main, h) != 0)
            return err_set(e, ERR_MEMORY, "no thread could be started");
        r->n_hashers++;
    }
    for (int i = 0; i < h->o.connections; i++) {
        r->workers[i] = (hub_worker){.h = h, .index = i, .http = hub_http_new(&h->o.limits)};
        if (pthread_create(&r->loaders[i], NULL, hub_load_main, &r->workers[i]) != 0) {
            hub_http_free(r->workers[i].http);
            return err_set(e, ERR_MEMORY, "no thread could be started");
        }
        r->n_loaders++;
    }
    return OK;
}

static void end_threads(run *r) {
    for (int i = 0; i < r->n_loaders; i++) {
        pthread_join(r->loaders[i], NULL);
        hub_http_free(r->workers[i].http);
    }
    for (int i = 0; i < r->n_hashers; i++)
        pthread_join(r->hashers[i], NULL);
}

/* True when it is over. */
static bool watch(hub *h) {
    pthread_mutex_lock(&h->lock);
    hub_rate_tick_locked(h);
    uint64_t now = clock_mono_ms();
    bool is_over = h->stop_rc != OK || hub_is_finished_locked(h);
    bool is_stuck = !is_over && now > h->last_progress_ms &&
                    now - h->last_progress_ms > (uint64_t)h->o.give_up_ms;
    char reason[256];
    str_copy(reason, sizeof reason, h->p.last_reason);
    pthread_mutex_unlock(&h->lock);
    if (is_stuck) {
        err e = ERR_INIT;
        err_set(&e, ERR_TIMEOUT, "nothing arrived for %lld s; last: %s",
            (long long)(h->o.give_up_ms / 1000), reason);
        hub_stop(h, ERR_TIMEOUT, &e);
    }
    return is_over;
}

static void wait_tick(hub *h) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += TICK_MS * 1000000L;
    if (until.tv_nsec >= 1000000000L) until.tv_nsec -= 1000000000L, until.tv_sec++;
    pthread_mutex_lock(&h->lock);
    if (h->stop_rc == OK && !hub_is_finished_locked(h))
        pthread_cond_timedwait(&h->changed, &h->lock, &until);
    pthread_mutex_unlock(&h->lock);
}

int hub_run(hub *h, hub_tick tick, void *ctx, err *e) {
    run *r = mem_alloc(sizeof *r);
    h->begun_ms = h->last_progress_ms = h->grown_ms = clock_mono_ms();
    int rc = start_threads(h, r, e);
    if (rc != OK) hub_stop(h, rc, e);
    uint64_t next_tick = 0;
    while (!watch(h)) {
        if (tick != NULL && clock_mono_ms() >= next_tick) {
            next_tick = clock_mono_ms() + TICK_MS;
            err why = ERR_INIT;
            int told = tick(ctx, h);
            if (told != OK) {
                err_set(&why, told, "stopped on request; what arrived is kept");
                hub_stop(h, told, &why);
            }
        }
        wait_tick(h);
    }
    end_threads(r);
    mem_free(r);
    if (tick != NULL) tick(ctx, h);
    if (h->stop_rc == OK) return OK;
    if (e != NULL) *e = h->stop_err;
    return h->stop_rc;
}
