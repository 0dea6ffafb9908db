/* The writer thread of the disk cache: appends records to the current segment, makes them durable,
 * then names them in the manifest. Removes segments that are too many or too old. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/thread.h"
#include "engine/run/disk_internal.h"

#define CLEAN_EVERY_S 60
/* Each start begins a segment: many short ones must not use up the places. */
#define SEGMENTS_KEPT (DISK_SEGMENTS / 2)
#define IDLE_MS 1000
/* Records wait for each other, so that one wait for the disk serves many: until nothing came for a
 * moment, or for this long at most. */
#define QUIET_MS 10
#define GROUP_MS 100
#define NEWS_WAIT_MS 1

/* News must arrive: they carry places and entries. The step thread polls once a step. */
static void tell(disk_cache *d, const disk_news *n) {
    while (!spsc_push(d->news, n)) {
        if (atomic_load(&d->is_closing)) return;
        d->o.wake(d->o.wake_ctx);
        sleep_ms(NEWS_WAIT_MS);
    }
}

/* A new file with its head. The descriptor, or -1. */
static int make_file(disk_cache *d, const char *path, const char *magic, err *e) {
    disk_head head;
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        err_errno(e, "making %s", path);
        return -1;
    }
    disk_head_fill(d, &head, magic, d->next_number);
    if (fd_write_at(fd, &head, sizeof head, 0, e) == OK) return fd;
    close(fd);
    unlink(path);
    return -1;
}

/* Segment and manifest of the next number; both or none. */
static int make_pair(disk_cache *d, int *segment_fd, int *manifest_fd, err *e) {
    buf segment = BUF_INIT;
    buf manifest = BUF_INIT;
    disk_segment_path(d, d->next_number, &segment);
    disk_manifest_path(d, d->next_number, &manifest);
    *manifest_fd = -1;
    *segment_fd = make_file(d, buf_cstr(&segment), "TNDMSEG1", e);
    if (*segment_fd >= 0) *manifest_fd = make_file(d, buf_cstr(&manifest), "TNDMMAN1", e);
    bool is_made = *manifest_fd >= 0 && dir_sync(d->dir, e) == OK;
    if (!is_made && *segment_fd >= 0) {
        close(*segment_fd);
        unlink(buf_cstr(&segment));
    }
    if (!is_made && *manifest_fd >= 0) {
        close(*manifest_fd);
        unlink(buf_cstr(&manifest));
    }
    buf_release(&segment);
    buf_release(&manifest);
    return is_made ? OK : ERR_IO;
}

static int32_t segment_new(disk_cache *d, err *e) {
    int fd;
    int manifest_fd;
    int32_t i = 0;
    while (i < DISK_SEGMENTS && d->segments[i].number != 0) {
        i++;
    }
    if (i == DISK_SEGMENTS) {
        err_set(e, ERR_FULL, "%d segments are in use", DISK_SEGMENTS);
        return -1;
    }
    if (make_pair(d, &fd, &manifest_fd, e) != OK) return -1;
    if (d->manifest_fd >= 0) close(d->manifest_fd);
    d->manifest_fd = manifest_fd;
    disk_segment *s = &d->segments[i];
    atomic_store(&s->fd, fd);
    atomic_store(&s->bytes, sizeof(disk_head));
    atomic_store(&s->manifest_bytes, sizeof(disk_head));
    atomic_store(&s->hole_bytes, 0);
    s->n_live = s->n_gone = 0;
    atomic_store(&s->last_used_s, clock_wall_ms() / 1000);
    atomic_store(&s->number, d->next_number++);
    return i;
}

/* ---- groups ---- */

/* The group is not written: what it left behind is cut off. */
static void fail_group(disk_cache *d, const err *why) {
    atomic_fetch_add_explicit(&d->n_errors, 1, memory_order_relaxed);
    LOG(LOG_ERROR, "cache", "disk cache not written, pausing", "message=\"%s\"", why->msg);
    if (d->i_current >= 0) {
        disk_segment *s = &d->segments[d->i_current];
        if (ftruncate(s->fd, (off_t)d->group_start) == 0) atomic_store(&s->bytes, d->group_start);
    }
    d->n_group = 0;
    d->has_failed = true;
    tell(d, &(disk_news){.kind = DISK_NEWS_FAILED});
}

int disk_flush_group(disk_cache *d, err *e) {
    if (d->n_group == 0) return OK;
    size_t bytes = (size_t)d->n_group * sizeof(disk_line);
    disk_segment *s = &d->segments[d->i_current];
    if (fdatasync(s->fd) != 0) return err_errno(e, "writing a cache segment");
    uint64_t at = atomic_load(&s->manifest_bytes);
    int rc = fd_write_at(d->manifest_fd, d->group, bytes, at, e);
    if (rc == OK && fdatasync(d->manifest_fd) != 0) rc = err_errno(e, "writing the manifest");
    if (rc != OK) {
        int cut = ftruncate(d->manifest_fd, (off_t)at);
        (void)cut; /* a torn end is skipped when it is read */
        return rc;
    }
    atomic_store(&s->manifest_bytes, at + bytes);
    for (int32_t i = 0; i < d->n_group; i++) {
        tell(d, &(disk_news){.kind = DISK_NEWS_ENTRY, .line = d->group[i]});
    }
    s->n_live += d->n_group;
    d->n_group = 0;
    d->group_start = atomic_load(&s->bytes);
    return OK;
}

/* A group never spans segments. */
static int need_segment(disk_cache *d, size_t bytes, err *e) {
    if (d->i_current >= 0) {
        uint64_t size = atomic_load(&d->segments[d->i_current].bytes);
        if (size + bytes <= d->segment_max || size == sizeof(disk_head)) return OK;
        int rc = disk_flush_group(d, e);
        if (rc != OK) return rc;
    }
    int32_t i = segment_new(d, e);
    if (i < 0) return ERR_IO;
    d->i_current = i;
    d->group_start = sizeof(disk_head);
    return OK;
}

static int append(disk_cache *d, const disk_job *job, err *e) {
    char *record = disk_slot(d, job->i_slot);
    size_t bytes = sizeof(disk_line) + (size_t)job->line.len;
    disk_line line = job->line;
    int rc = need_segment(d, bytes, e);
    if (rc != OK) return rc;
    disk_segment *s = &d->segments[d->i_current];
    uint64_t at = atomic_load(&s->bytes);
    line.segment = atomic_load(&s->number);
    line.offset = at + sizeof line;
    line.content_crc = crc32c(0, record + sizeof line, (size_t)line.len);
    disk_line_seal(&line);
    memcpy(record, &line, sizeof line);
    rc = fd_write_at(s->fd, record, bytes, at, e);
    if (rc != OK) return rc;
    atomic_store(&s->bytes, at + bytes);
    atomic_store(&s->last_used_s, clock_wall_ms() / 1000);
    atomic_fetch_add_explicit(&d->n_written, bytes, memory_order_relaxed);
    if (d->n_group == 0) d->group_ms = clock_mono_ms();
    d->group[d->n_group++] = line;
    return d->n_group == DISK_GROUP ? disk_flush_group(d, e) : OK;
}

/* ---- making room ---- */

static void stamp(disk_cache *d, disk_segment *s) {
    struct stat st;
    uint64_t used = atomic_load(&s->last_used_s);
    if (fstat(s->fd, &st) != 0 || (uint64_t)st.st_mtime >= used) return;
    struct timespec times[2] = {{.tv_sec = (time_t)used}, {.tv_sec = (time_t)used}};
    if (futimens(s->fd, times) != 0) {
        atomic_fetch_add_explicit(&d->n_errors, 1, memory_order_relaxed);
    }
}

void disk_end_segment(disk_cache *d) {
    if (d->manifest_fd >= 0) close(d->manifest_fd);
    d->manifest_fd = -1;
    d->i_current = -1;
}

/* The manifest first: without it nothing of the segment counts. */
static int remove_files(const disk_cache *d, uint64_t number, err *e) {
    buf manifest = BUF_INIT, segment = BUF_INIT;
    disk_manifest_path(d, number, &manifest);
    disk_segment_path(d, number, &segment);
    int rc = OK;
    const char *paths[] = {buf_cstr(&manifest), buf_cstr(&segment)};
    for (int i = 0; i < 2 && rc == OK; i++) {
        if (unlink(paths[i]) != 0 && errno != ENOENT) rc = err_errno(e, "removing %s", paths[i]);
    }
    buf_release(&manifest);
    buf_release(&segment);
    return rc;
}

bool disk_drop_segment(disk_cache *d, int32_t i, const char *why) {
    err refused = ERR_INIT;
    uint64_t number = atomic_load(&d->segments[i].number);
    if (remove_files(d, number, &refused) != OK) {
        atomic_fetch_add_explicit(&d->n_errors, 1, memory_order_relaxed);
        LOG(LOG_ERROR, "cache", "a segment could not be given up", "why=%s message=\"%s\"", why,
            refused.msg);
        return false;
    }
    LOG(LOG_INFO, "cache", "segment given up", "number=%llu why=%s", (unsigned long long)number,
        why);
    /* The step thread closes it: it may be reading. */
    tell(d, &(disk_news){.kind = DISK_NEWS_DROPPED, .line = {.segment = number}});
    atomic_store(&d->segments[i].bytes, 0);
    return true;
}

static int32_t oldest_segment(disk_cache *d, uint64_t *total, int32_t *n) {
    int32_t oldest = -1;
    *total = 0;
    *n = 0;
    for (int32_t i = 0; i < DISK_SEGMENTS; i++) {
        disk_segment *s = &d->segments[i];
        if (atomic_load(&s->number) == 0 || atomic_load(&s->bytes) == 0) continue;
        *total += disk_segment_size(s);
        *n += 1;
        if (i == d->i_current) continue;
        if (oldest < 0 ||
            atomic_load(&s->last_used_s) < atomic_load(&d->segments[oldest].last_used_s)) {
            oldest = i;
        }
    }
    return oldest;
}

static void make_room(disk_cache *d) {
    uint64_t total;
    int32_t i;
    int32_t n;
    while ((i = oldest_segment(d, &total, &n)) >= 0 &&
           (total > d->o.budget_bytes || n > SEGMENTS_KEPT)) {
        if (atomic_load(&d->n_loading) > 0) return; /* again after the next group */
        if (!disk_drop_segment(d, i, "budget")) return;
    }
}

static void clean(disk_cache *d) {
    uint64_t now = clock_wall_ms() / 1000;
    uint64_t limit = (uint64_t)d->o.age_hours * 3600;
    if (now - d->cleaned_s < CLEAN_EVERY_S) return;
    d->cleaned_s = now;
    for (int32_t i = 0; i < DISK_SEGMENTS; i++) {
        disk_segment *s = &d->segments[i];
        if (atomic_load(&s->number) == 0 || atomic_load(&s->bytes) == 0) continue;
        stamp(d, s);
        bool is_old = limit > 0 && now > atomic_load(&s->last_used_s) + limit;
        if (is_old && i != d->i_current && atomic_load(&d->n_loading) == 0) {
            (void)disk_drop_segment(d, i, "age");
        }
    }
    disk_tidy(d); /* what could not be done when it was due */
}

/* ---- the thread ---- */

static void do_forget(disk_cache *d, const disk_job *job) {
    err why = ERR_INIT;
    if (disk_forget_now(d, &job->line, &why) != OK) {
        atomic_fetch_add_explicit(&d->n_errors, 1, memory_order_relaxed);
        LOG(LOG_ERROR, "cache", "a record may still be on disk", "message=\"%s\"", why.msg);
    }
}

/* Also what was written and is in no manifest yet. */
static void do_wipe(disk_cache *d) {
    d->n_group = 0;
    disk_end_segment(d);
    for (int32_t i = 0; i < DISK_SEGMENTS; i++) {
        disk_segment *s = &d->segments[i];
        if (atomic_load(&s->number) == 0 || atomic_load(&s->bytes) == 0) continue;
        if (disk_drop_segment(d, i, "wipe")) continue;
        s->n_gone += s->n_live > 0 ? s->n_live : 1;
        s->n_live = 0;
    }
    if (dir_sync(d->dir, NULL) != OK) atomic_fetch_add(&d->n_errors, 1);
    disk_tidy(d);
}

/* What is not the content of a place. */
static void do_order(disk_cache *d, const disk_job *job) {
    if (job->i_slot == DISK_JOB_WIPE) {
        do_wipe(d);
    } else if (job->i_slot == DISK_JOB_TIDY) {
        disk_tidy(d);
    } else {
        do_forget(d, job);
    }
    atomic_fetch_sub(&d->n_forgets, 1);
}

static void do_job(disk_cache *d, const disk_job *job) {
    err why = ERR_INIT;
    if (job->i_slot < 0) {
        do_order(d, job);
        return;
    }
    if (!d->has_failed) {
        int rc = append(d, job, &why);
        bool is_due = clock_mono_ms() - d->group_ms > GROUP_MS;
        if (rc == OK && job->ends_group && is_due) rc = disk_flush_group(d, &why);
        if (rc != OK) fail_group(d, &why);
    }
    d->n_taken++;
    tell(d, &(disk_news){.kind = DISK_NEWS_SLOT, .i_slot = job->i_slot});
    d->o.wake(d->o.wake_ctx);
    if (!job->ends_group) return;
    d->has_failed = false;
    make_room(d);
}

/* All that was given so far is told, or lost. */
static void settle(disk_cache *d) {
    if (d->n_group > 0 || atomic_load(&d->n_settled) == d->n_taken) return;
    atomic_store(&d->n_settled, d->n_taken);
    d->o.wake(d->o.wake_ctx);
}

void *disk_writer(void *arg) {
    disk_cache *d = arg;
    disk_job job;
    thread_set_name("cache-writer");
    disk_tidy(d); /* what was forgotten when it was opened, and by a process that was killed then */
    for (;;) {
        err why = ERR_INIT;
        int rc = spsc_pop(d->jobs, &job, d->n_group > 0 ? QUIET_MS : IDLE_MS);
        if (rc == OK) do_job(d, &job);
        if (rc == ERR_CANCELLED) break;
        if (rc == ERR_TIMEOUT && disk_flush_group(d, &why) != OK) fail_group(d, &why);
        settle(d);
        clean(d);
    }
    err why = ERR_INIT;
    if (!d->has_failed && disk_flush_group(d, &why) != OK) fail_group(d, &why);
    settle(d);
    d->cleaned_s = 0;
    for (int32_t i = 0; i < DISK_SEGMENTS; i++) {
        if (d->segments[i].number != 0 && d->segments[i].bytes != 0) stamp(d, &d->segments[i]);
    }
    return NULL;
}
