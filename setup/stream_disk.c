/* File access of the copy: O_DIRECT on both ends, so that hundreds of gigabytes do not push a running
 * service out of memory; the page cache where the file system does not do it, dropped behind us. */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "setup/stream_internal.h"

enum { ALIGN = 4096, DEPTH = 8 };

static size_t rounded(size_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

void *disk_buffer_new(size_t n) {
    void *p = mmap(NULL, rounded(n), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    /* Touching 32 frames of 8 MiB page by page takes half a second. */
    (void)madvise(p, rounded(n), MADV_HUGEPAGE);
    return p;
}

void disk_buffer_free(void *buffer, size_t n) {
    if (buffer != NULL) munmap(buffer, rounded(n));
}

int disk_open(const store *s, const char *rel, int flags, disk_file *f, err *e) {
    int rc = store_file(s, rel, flags, &f->fd, e);
    if (rc != OK) return rc;
    int now = fcntl(f->fd, F_GETFL);
    f->is_direct = now >= 0 && fcntl(f->fd, F_SETFL, now | O_DIRECT) == 0;
    if (!f->is_direct) posix_fadvise(f->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    return OK;
}

void disk_close(disk_file *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

int disk_read(const disk_file *f, void *buffer, size_t n, uint64_t offset, err *e) {
    if (!f->is_direct) {
        int rc = fd_read_at(f->fd, buffer, n, offset, e);
        posix_fadvise(f->fd, (off_t)offset, (off_t)n, POSIX_FADV_DONTNEED);
        return rc;
    }
    for (size_t at = 0; at < n;) {
        ssize_t k = pread(f->fd, (char *)buffer + at, rounded(n - at), (off_t)(offset + at));
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return err_errno(e, "reading");
        if (k == 0) return err_set(e, ERR_FORMAT, "the file became shorter");
        at += (size_t)k;
        /* After a short read in the middle the next one would not be aligned. */
        if (at < n && at % ALIGN != 0) return err_set(e, ERR_FORMAT, "the file became shorter");
    }
    return OK;
}

static void drop(const disk_file *f, size_t n, uint64_t offset) {
    if (f->is_direct) return;
    sync_file_range(f->fd, (off_t)offset, (off_t)n,
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    posix_fadvise(f->fd, (off_t)offset, (off_t)n, POSIX_FADV_DONTNEED);
}

int disk_write(const disk_file *f, void *buffer, size_t n, uint64_t offset, err *e) {
    size_t whole = f->is_direct ? rounded(n) : n;
    if (whole > n) memset((char *)buffer + n, 0, whole - n);
    int rc = fd_write_at(f->fd, buffer, whole, offset, e);
    if (rc == OK) drop(f, n, offset);
    return rc;
}

/* The queue. */

typedef struct pending {
    disk_file f;
    void *buffer;
    size_t n;
    uint64_t offset;
    int tag;
    bool is_used;
} pending;

struct disk_queue {
    struct io_uring ring;
    bool has_ring;
    pending slots[DEPTH];
    int n_used;
    int done_tags[DEPTH]; /* without a ring: writes that are done already */
    int n_done;
};

disk_queue *disk_queue_new(void) {
    disk_queue *q = mem_alloc(sizeof *q);
    /* Containers often forbid it; then writes are done at once. */
    q->has_ring = io_uring_queue_init(DEPTH, &q->ring, 0) == 0;
    return q;
}

void disk_queue_free(disk_queue *q) {
    if (q == NULL) return;
    int tag = 0;
    while (disk_queue_wait(q, &tag, NULL) != ERR_NOT_FOUND)
        continue;
    if (q->has_ring) io_uring_queue_exit(&q->ring);
    mem_free(q);
}

int disk_queue_write(
    disk_queue *q, const disk_file *f, void *buffer, size_t n, uint64_t offset, int tag, err *e) {
    CHECK(q->n_used + q->n_done < DEPTH);
    struct io_uring_sqe *entry = q->has_ring && f->is_direct ? io_uring_get_sqe(&q->ring) : NULL;
    if (entry == NULL) {
        int rc = disk_write(f, buffer, n, offset, e);
        if (rc == OK) q->done_tags[q->n_done++] = tag;
        return rc;
    }
    pending *p = q->slots;
    while (p->is_used)
        p++;
    size_t whole = rounded(n);
    memset((char *)buffer + n, 0, whole - n);
    *p = (pending){*f, buffer, n, offset, tag, true};
    io_uring_prep_write(entry, f->fd, buffer, (unsigned)whole, offset);
    io_uring_sqe_set_data(entry, p);
    q->n_used++;
    int k = io_uring_submit(&q->ring);
    if (k == 1) return OK;
    p->is_used = false;
    q->n_used--;
    errno = k < 0 ? -k : EIO;
    return err_errno(e, "starting a write");
}

int disk_queue_wait(disk_queue *q, int *tag, err *e) {
    if (q->n_done > 0) {
        *tag = q->done_tags[--q->n_done];
        return OK;
    }
    if (q->n_used == 0) return ERR_NOT_FOUND;
    struct io_uring_cqe *done = NULL;
    int k = 0;
    do {
        k = io_uring_wait_cqe(&q->ring, &done);
    } while (k == -EINTR);
    if (k != 0) {
        q->n_used = 0;
        errno = -k;
        return err_errno(e, "waiting for a write");
    }
    pending *p = io_uring_cqe_get_data(done);
    int n = done->res;
    io_uring_cqe_seen(&q->ring, done);
    *tag = p->tag;
    p->is_used = false;
    q->n_used--;
    if (n >= 0 && (size_t)n == rounded(p->n)) return OK;
    /* Short or failed: the plain way says why, or finishes it. */
    return disk_write(&p->f, p->buffer, p->n, p->offset, e);
}
