/* The writer's part of forgetting. A record that is to go gets a line behind its own in the manifest, so
 * that no restart brings it back; then, for all of a segment together, the bytes are punched out of it,
 * its manifest is written anew without the names, and what stood at its end is cut off. A segment
 * in which nothing counts any more is removed. A process that is killed between them does the rest at
 * its next start. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/run/disk_internal.h"

#define ZERO_BYTES 65536
#define MANIFEST_MAX ((size_t)1 << 30)

/* ---- one record ---- */

static int wipe_bytes(int fd, uint64_t at, uint64_t len, err *e) {
    static const char zeros[ZERO_BYTES];
    int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    int rc = OK;
    if (fallocate(fd, how, (off_t)at, (off_t)len) == 0) return OK;
    for (uint64_t done = 0; done < len && rc == OK; done += ZERO_BYTES) {
        uint64_t n = len - done < ZERO_BYTES ? len - done : ZERO_BYTES;
        rc = fd_write_at(fd, zeros, (size_t)n, at + done, e);
    }
    return rc;
}

static int take_away(disk_cache *d, disk_segment *s, const disk_line *line, err *e) {
    buf path = BUF_INIT;
    disk_line gone = *line;
    gone.type = DISK_FORGOTTEN;
    gone.extra = line->type;
    disk_line_seal(&gone);
    disk_manifest_path(d, line->segment, &path);
    int fd = open(buf_cstr(&path), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    int rc = fd >= 0 ? OK : err_errno(e, "opening %s", buf_cstr(&path));
    uint64_t at = atomic_load(&s->manifest_bytes);
    if (rc == OK) rc = fd_write_at(fd, &gone, sizeof gone, at, e);
    if (rc == OK) atomic_store(&s->manifest_bytes, at + sizeof gone);
    if (fd >= 0) close(fd);
    buf_release(&path);
    return rc;
}

static int wipe_record(const disk_segment *s, const disk_line *line, err *e) {
    return wipe_bytes(
        atomic_load(&s->fd), line->offset - sizeof *line, sizeof *line + line->len, e);
}

static disk_segment *segment_of(disk_cache *d, uint64_t number) {
    for (int i = 0; i < DISK_SEGMENTS; i++) {
        disk_segment *s = &d->segments[i];
        if (atomic_load(&s->number) == number && atomic_load(&s->bytes) != 0) return s;
    }
    return NULL;
}

int disk_forget_now(disk_cache *d, const disk_line *line, err *e) {
    disk_segment *s = segment_of(d, line->segment);
    if (s == NULL) return OK; /* it went by itself */
    s->n_live--;
    s->n_gone++;
    if (take_away(d, s, line, NULL) == OK) return OK;
    /* No room for a line, say: without its bytes the record is a miss, and they make room. */
    int rc = wipe_record(s, line, e);
    if (rc == OK) rc = take_away(d, s, line, e);
    if (rc != OK) (void)buf_append(&d->left, line, sizeof *line);
    return rc;
}

/* ---- a segment ---- */

static int compare_offsets(const void *a, const void *b) {
    const uint64_t *x = a;
    const uint64_t *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* A manifest without what was taken away. */
typedef struct rest {
    buf text;
    uint64_t end; /* in: of the segment; out: of the last record that counts */
    int32_t n_live;
    uint64_t *gone; /* [n_gone] offsets of the records that were taken away, in order; owned */
    size_t n_gone;
} rest;

static disk_line line_at(const buf *text, size_t at) {
    disk_line line;
    memcpy(&line, text->data + at, sizeof line);
    return line;
}

/* Fills gone, and wipes the bytes: of what the manifest says, and of what it could not be told. */
static int wipe_gone(disk_cache *d, disk_segment *s, const buf *text, rest *out, err *e) {
    int rc = OK;
    size_t n = 0;
    out->gone = mem_array((text->len + d->left.len) / sizeof(disk_line) + 1, sizeof *out->gone);
    for (size_t at = sizeof(disk_head); at + sizeof(disk_line) <= text->len && rc == OK;
         at += sizeof(disk_line)) {
        disk_line line = line_at(text, at);
        if (line.type != DISK_FORGOTTEN || !disk_line_fits(d, &line)) continue;
        out->gone[n++] = line.offset;
        rc = wipe_record(s, &line, e);
    }
    for (size_t at = 0; at < d->left.len && rc == OK; at += sizeof(disk_line)) {
        disk_line line = line_at(&d->left, at);
        if (line.segment != atomic_load(&s->number)) continue;
        out->gone[n++] = line.offset;
        rc = wipe_record(s, &line, e);
    }
    out->n_gone = n;
    qsort(out->gone, n, sizeof *out->gone, compare_offsets);
    return rc;
}

static bool is_gone(const rest *r, uint64_t offset) {
    return bsearch(&offset, r->gone, r->n_gone, sizeof *r->gone, compare_offsets) != NULL;
}

static int keep_rest(const disk_cache *d, const buf *text, rest *out) {
    uint64_t bytes = out->end;
    int rc = buf_append(&out->text, text->data, sizeof(disk_head));
    out->end = sizeof(disk_head);
    for (size_t at = sizeof(disk_head); at + sizeof(disk_line) <= text->len && rc == OK;
         at += sizeof(disk_line)) {
        disk_line line = line_at(text, at);
        bool counts = line.type != DISK_FORGOTTEN && disk_line_fits(d, &line) &&
                      line.offset + line.len <= bytes && !is_gone(out, line.offset);
        if (!counts) continue;
        rc = buf_append(&out->text, &line, sizeof line);
        out->n_live++;
        if (line.offset + line.len > out->end) out->end = line.offset + line.len;
    }
    return rc;
}

/* The new manifest is there; what is behind the last record goes. */
static int cut_end(disk_segment *s, const rest *r, err *e) {
    int fd = atomic_load(&s->fd);
    time_t used = (time_t)atomic_load(&s->last_used_s);
    struct timespec times[2] = {{.tv_sec = used}, {.tv_sec = used}};
    atomic_store(&s->manifest_bytes, r->text.len);
    s->n_live = r->n_live;
    s->n_gone = 0;
    if (ftruncate(fd, (off_t)r->end) != 0) return err_errno(e, "cutting a cache segment");
    atomic_store(&s->bytes, r->end);
    disk_segment_measure(s);
    /* It was not used: its age is that of its last use. */
    return futimens(fd, times) == 0 ? OK : err_errno(e, "dating a cache segment");
}

static int write_rest(disk_cache *d, int32_t i, const char *path, const rest *r, err *e) {
    disk_segment *s = &d->segments[i];
    int rc = file_write_atomic(path, r->text.data, r->text.len, 0600, e);
    if (rc == OK) rc = cut_end(s, r, e);
    if (i != d->i_current) return rc;
    d->group_start = atomic_load(&s->bytes);
    close(d->manifest_fd);
    d->manifest_fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (rc == OK && d->manifest_fd < 0) rc = err_errno(e, "opening %s", path);
    if (rc != OK) disk_end_segment(d); /* the next record begins another one */
    return rc;
}

static int tidy_segment(disk_cache *d, int32_t i, err *e) {
    disk_segment *s = &d->segments[i];
    buf path = BUF_INIT;
    buf text = BUF_MAX(MANIFEST_MAX);
    rest r = {.text = BUF_MAX(MANIFEST_MAX), .end = atomic_load(&s->bytes)};
    disk_manifest_path(d, atomic_load(&s->number), &path);
    int rc = file_read(buf_cstr(&path), &text, text.max, e);
    if (rc != OK) goto out;
    if (text.len > atomic_load(&s->manifest_bytes)) text.len = atomic_load(&s->manifest_bytes);
    if (text.len < sizeof(disk_head)) {
        rc = err_set(e, ERR_FORMAT, "%s is cut", buf_cstr(&path));
        goto out;
    }
    rc = wipe_gone(d, s, &text, &r, e);
    if (rc == OK && fdatasync(atomic_load(&s->fd)) != 0)
        rc = err_errno(e, "overwriting cache records");
    if (rc == OK) rc = keep_rest(d, &text, &r);
    if (rc == OK) rc = write_rest(d, i, buf_cstr(&path), &r, e);
out:
    mem_free(r.gone);
    buf_release(&r.text);
    buf_release(&text);
    buf_release(&path);
    return rc;
}

/* Nothing in it counts: neither it nor its manifest is needed. */
static bool remove_segment(disk_cache *d, int32_t i) {
    if (i == d->i_current) disk_end_segment(d);
    if (!disk_drop_segment(d, i, "forgotten")) return false;
    d->segments[i].n_gone = 0;
    return true;
}

/* What went stays no longer among those that are left, and the rest is counted. */
static void count_left(disk_cache *d) {
    int32_t n = 0;
    size_t kept = 0;
    for (int32_t i = 0; i < DISK_SEGMENTS; i++) {
        const disk_segment *s = &d->segments[i];
        if (atomic_load(&s->number) != 0 && atomic_load(&s->bytes) != 0) n += s->n_gone;
    }
    for (size_t at = 0; at < d->left.len; at += sizeof(disk_line)) {
        disk_line line = line_at(&d->left, at);
        const disk_segment *s = segment_of(d, line.segment);
        if (s == NULL || s->n_gone == 0) continue;
        memcpy(d->left.data + kept, &line, sizeof line);
        kept += sizeof line;
    }
    d->left.len = kept;
    atomic_store(&d->n_left, n);
}

void disk_tidy(disk_cache *d) {
    bool has_removed = false;
    for (int32_t i = 0; i < DISK_SEGMENTS; i++) {
        disk_segment *s = &d->segments[i];
        err why = ERR_INIT;
        if (atomic_load(&s->number) == 0 || atomic_load(&s->bytes) == 0 || s->n_gone == 0) continue;
        int rc = i == d->i_current ? disk_flush_group(d, &why) : OK;
        if (rc == OK && s->n_live <= 0) {
            has_removed |= remove_segment(d, i);
            continue;
        }
        if (rc == OK) rc = tidy_segment(d, i, &why);
        if (rc == OK) continue;
        atomic_fetch_add_explicit(&d->n_errors, 1, memory_order_relaxed);
        LOG(LOG_ERROR, "cache", "what was forgotten may still be on disk", "message=\"%s\"",
            why.msg);
    }
    count_left(d);
    if (has_removed && dir_sync(d->dir, NULL) != OK) atomic_fetch_add(&d->n_errors, 1);
}
