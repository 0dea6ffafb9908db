/* What is on disk when the cache is opened: the manifest of each segment is read line by line. A torn
 * end is what a killed process leaves and is passed over; damage anywhere else means that nothing
 * can be trusted, and the folder is emptied. Old segments get no new records. Pages that no state needs,
 * which a killed process leaves, are forgotten: what is on disk belongs to something that is listed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/run/disk_internal.h"

#define SEGMENT_PREFIX "segment-"
#define MANIFEST_PREFIX "manifest-"

static int remove_file(void *ctx, const char *name, err *e) {
    disk_cache *d = ctx;
    (void)e;
    if (strncmp(name, SEGMENT_PREFIX, strlen(SEGMENT_PREFIX)) != 0 &&
        strncmp(name, MANIFEST_PREFIX, strlen(MANIFEST_PREFIX)) != 0)
        return OK;
    char path[DISK_PATH + 300];
    snprintf(path, sizeof path, "%s/%s", d->dir, name);
    unlink(path);
    return OK;
}

/* The number in a name that is ours to the last digit; 0: it is not. */
static uint64_t number_of(const char *name, const char *prefix) {
    size_t n = strlen(prefix);
    char *end = NULL;
    if (strncmp(name, prefix, n) != 0 || name[n] < '0' || name[n] > '9') return 0;
    uint64_t number = strtoull(name + n, &end, 10);
    return *end == '\0' ? number : 0;
}

void disk_manifest_path(const disk_cache *d, uint64_t number, buf *out) {
    buf_reset(out);
    buf_printf(out, "%s/manifest-%010llu", d->dir, (unsigned long long)number);
}

void disk_segment_measure(disk_segment *s) {
    struct stat st;
    if (fstat(atomic_load(&s->fd), &st) != 0) return;
    uint64_t size = (uint64_t)st.st_size, there = (uint64_t)st.st_blocks * 512;
    atomic_store(&s->hole_bytes, size > there ? size - there : 0);
}

static int open_segment(disk_cache *d, int i, uint64_t number, const char *path) {
    struct stat st;
    disk_head head;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    bool is_fine = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
                   st.st_size >= (off_t)sizeof head &&
                   fd_read_at(fd, &head, sizeof head, 0, NULL) == OK &&
                   disk_head_fits(d, &head, "TNDMSEG1", number);
    if (!is_fine) {
        if (fd >= 0) close(fd);
        disk_dropped(d, "the segment is cut, damaged or foreign", path);
        return ERR_FORMAT;
    }
    disk_segment *s = &d->segments[i];
    s->fd = fd;
    s->number = number;
    s->bytes = (uint64_t)st.st_size;
    disk_segment_measure(s);
    s->last_used_s = (uint64_t)st.st_mtime;
    return OK;
}

/* Opens the segments that are there; those that can not be used go away. */
static int find_segment(void *ctx, const char *name, err *e) {
    disk_cache *d = ctx;
    char path[DISK_PATH + 300];
    (void)e;
    uint64_t number = number_of(name, SEGMENT_PREFIX);
    uint64_t of_manifest = number_of(name, MANIFEST_PREFIX);
    uint64_t most = number > of_manifest ? number : of_manifest;
    if (most >= d->next_number) d->next_number = most + 1;
    if (strncmp(name, SEGMENT_PREFIX, strlen(SEGMENT_PREFIX)) != 0) return OK;
    snprintf(path, sizeof path, "%s/%s", d->dir, name);
    int i = 0;
    while (i < DISK_SEGMENTS && d->segments[i].number != 0) {
        i++;
    }
    if (number > 0 && i < DISK_SEGMENTS && open_segment(d, i, number, path) == OK) return OK;
    unlink(path);
    return OK;
}

/* Lines of the manifest of one segment into the index. False: damaged in the middle. */
static bool read_lines(disk_cache *d, disk_segment *s, const buf *text, int32_t *n_lines) {
    disk_line line;
    for (size_t at = sizeof(disk_head); at < text->len; at += sizeof line) {
        size_t left = text->len - at;
        memcpy(&line, text->data + at, left < sizeof line ? left : sizeof line);
        if (left < sizeof line || !disk_line_fits(d, &line) || line.segment != s->number) {
            if (left > sizeof line) return false;
            disk_dropped(d, "the end of its manifest is torn", "record");
            s->manifest_bytes = at; /* the next line goes over it */
            return true;
        }
        if (line.type == DISK_FORGOTTEN) {
            *n_lines -= disk_forget_line(d, &line);
            s->n_gone++;
        } else if (line.len > s->bytes || line.offset > s->bytes - line.len) {
            disk_dropped(d, "the segment is shorter than its manifest says", "record");
        } else {
            *n_lines += disk_index_add(d, &line);
        }
    }
    return true;
}

static void remove_segment(disk_cache *d, disk_segment *s) {
    buf path = BUF_INIT;
    disk_segment_path(d, s->number, &path);
    unlink(buf_cstr(&path));
    disk_manifest_path(d, s->number, &path);
    unlink(buf_cstr(&path));
    buf_release(&path);
    close(s->fd);
    s->fd = -1;
    s->number = 0;
    s->bytes = 0;
}

/* False: damaged. */
static bool read_manifest(disk_cache *d, disk_segment *s) {
    buf path = BUF_INIT;
    buf text = BUF_MAX((size_t)1 << 30);
    disk_head head = {0};
    int32_t n_lines = 0;
    bool is_fine = true;
    disk_manifest_path(d, s->number, &path);
    if (file_read(buf_cstr(&path), &text, text.max, NULL) == OK) {
        s->manifest_bytes = text.len;
        if (text.len >= sizeof head) memcpy(&head, text.data, sizeof head);
        is_fine =
            disk_head_fits(d, &head, "TNDMMAN1", s->number) && read_lines(d, s, &text, &n_lines);
    }
    s->n_live = n_lines;
    if (is_fine && n_lines == 0) remove_segment(d, s); /* a rest of a killed writer */
    buf_release(&text);
    buf_release(&path);
    return is_fine;
}

static int empty(disk_cache *d, err *e) {
    disk_dropped(d, "a manifest is cut, damaged or foreign; all is given up", d->dir);
    for (int i = 0; i < DISK_SEGMENTS; i++) {
        if (d->segments[i].number != 0) remove_segment(d, &d->segments[i]);
    }
    disk_index_clear(d);
    return dir_each(d->dir, remove_file, d, e);
}

/* Manifests whose segment is gone, and what is left of one that was being written anew. */
static int remove_orphan(void *ctx, const char *name, err *e) {
    disk_cache *d = ctx;
    (void)e;
    if (strncmp(name, MANIFEST_PREFIX, strlen(MANIFEST_PREFIX)) != 0) return OK;
    uint64_t number = number_of(name, MANIFEST_PREFIX);
    for (int i = 0; i < DISK_SEGMENTS; i++) {
        if (d->segments[i].number == number && number != 0) return OK;
    }
    return remove_file(ctx, name, e);
}

int disk_manifest_open(disk_cache *d, err *e) {
    d->next_number = 1;
    int rc = dir_each(d->dir, find_segment, d, e);
    if (rc != OK) return rc;
    for (int i = 0; i < DISK_SEGMENTS; i++) {
        if (d->segments[i].number == 0 || read_manifest(d, &d->segments[i])) continue;
        rc = empty(d, e);
        break;
    }
    if (rc == OK) rc = dir_each(d->dir, remove_orphan, d, e);
    if (rc != OK) return rc;
    disk_forget_orphans(d);
    LOG(LOG_INFO, "cache", "disk cache opened", "dir=%s records=%llu", d->dir,
        (unsigned long long)d->n_records);
    return OK;
}
