#include "engine/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"

int fd_read_full(int fd, void *p, size_t n, err *e) {
    char *at = p;
    while (n > 0) {
        ssize_t got = read(fd, at, n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_errno(e, "cannot read");
        if (got == 0) return err_set(e, ERR_FORMAT, "the data ends %zu bytes too early", n);
        at += got;
        n -= (size_t)got;
    }
    return OK;
}

int fd_read_at(int fd, void *p, size_t n, uint64_t offset, err *e) {
    char *at = p;
    while (n > 0) {
        ssize_t got = pread(fd, at, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return err_errno(e, "cannot read at byte %llu", (unsigned long long)offset);
        if (got == 0) {
            return err_set(e, ERR_FORMAT, "the file ends at byte %llu, %zu bytes too early",
                (unsigned long long)offset, n);
        }
        at += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return OK;
}

int fd_write_full(int fd, const void *p, size_t n, err *e) {
    const char *at = p;
    while (n > 0) {
        ssize_t put = write(fd, at, n);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return err_errno(e, "cannot write");
        at += put;
        n -= (size_t)put;
    }
    return OK;
}

int fd_write_at(int fd, const void *p, size_t n, uint64_t offset, err *e) {
    const char *at = p;
    while (n > 0) {
        ssize_t put = pwrite(fd, at, n, (off_t)offset);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return err_errno(e, "cannot write at byte %llu", (unsigned long long)offset);
        at += put;
        n -= (size_t)put;
        offset += (uint64_t)put;
    }
    return OK;
}

enum { DYING_MS = 2000 };

int fd_lock(int fd) {
    uint64_t end = clock_mono_ms() + DYING_MS;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (clock_mono_ms() >= end) return ERR_BUSY;
        sleep_ms(20);
    }
    return OK;
}

/* Room to read into next; once full to the limit, one probe byte tells whether more would come. */
static int read_some(int fd, buf *b, size_t max, bool *at_end, err *e) {
    char probe;
    char *to = &probe;
    size_t want = max - b->len;
    if (want > 0) {
        if (want > 1 << 20) want = 1 << 20;
        int rc = buf_reserve(b, want);
        if (rc != OK) return err_set(e, rc, "no memory for %zu bytes", b->len + want);
        to = b->data + b->len;
    }
    ssize_t got = read(fd, to, want > 0 ? want : 1);
    if (got < 0 && errno == EINTR) return OK;
    if (got < 0) return err_errno(e, "cannot read");
    if (got > 0 && want == 0)
        return err_set(e, ERR_LIMIT, "larger than the limit of %zu bytes", max);
    *at_end = got == 0;
    b->len += (size_t)got;
    return OK;
}

int file_read(const char *path, buf *b, size_t max, err *e) {
    buf_reset(b);
    size_t limit = b->max;
    b->max = max == 0 ? 1 : max;
    int rc = OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) {
        rc = err_errno(e, "cannot open %s", path);
        goto out;
    }
    if (S_ISDIR(st.st_mode)) {
        rc = err_set(e, ERR_ARG, "%s is a folder, not a file", path);
        goto out;
    }
    if (S_ISREG(st.st_mode) && (uint64_t)st.st_size <= max)
        (void)buf_reserve(b, (size_t)st.st_size);
    bool at_end = false;
    while (rc == OK && !at_end)
        rc = read_some(fd, b, max, &at_end, e);
    rc = err_add(e, rc, "%s", path);
    if (b->data != NULL) b->data[b->len] = '\0';
out:
    if (fd >= 0) (void)close(fd);
    b->max = limit;
    if (rc != OK) buf_reset(b);
    if (rc != OK) err_place(e, "%s", path);
    return rc;
}

int dir_sync(const char *path, err *e) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return err_errno(e, "cannot open the folder %s", path);
    int rc = OK;
    /* Some file systems do not know fsync of a folder; then there is nothing to wait for. */
    if (fsync(fd) != 0 && errno != EINVAL && errno != EROFS) {
        rc = err_errno(e, "cannot flush the folder %s", path);
    }
    (void)close(fd);
    return rc;
}

static int write_and_flush(int fd, const void *data, size_t len, mode_t mode, err *e) {
    if (fchmod(fd, mode) != 0) return err_errno(e, "cannot set the mode");
    int rc = fd_write_full(fd, data, len, e);
    if (rc == OK && fsync(fd) != 0) rc = err_errno(e, "cannot flush");
    return rc;
}

int file_write_atomic(const char *path, const void *data, size_t len, mode_t mode, err *e) {
    buf temp = BUF_INIT;
    buf dir = BUF_INIT;
    int fd = -1;
    int rc = buf_printf(&temp, "%s.tmp.XXXXXX", path);
    if (rc == OK) rc = path_dir(&dir, path);
    if (rc != OK) {
        rc = err_set(e, rc, "the path is too long");
        goto out;
    }
    fd = mkostemp(temp.data, O_CLOEXEC);
    if (fd < 0) {
        rc = err_errno(e, "cannot make a file in %s", dir.data);
        goto out;
    }
    rc = write_and_flush(fd, data, len, mode, e);
    if (close(fd) != 0 && rc == OK) rc = err_errno(e, "cannot close");
    if (rc == OK && rename(temp.data, path) != 0) rc = err_errno(e, "cannot rename");
    if (rc != OK) (void)unlink(temp.data);
    if (rc == OK) rc = dir_sync(dir.data, e);
out:
    buf_release(&temp);
    buf_release(&dir);
    if (rc != OK) err_place(e, "%s", path);
    return err_add(e, rc, "writing %s", path);
}

bool file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

bool dir_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int file_size(const char *path, uint64_t *out, err *e) {
    struct stat st;
    if (stat(path, &st) != 0) return err_errno(e, "cannot look at %s", path);
    *out = (uint64_t)st.st_size;
    return OK;
}

int file_remove(const char *path, err *e) {
    if (unlink(path) == 0 || errno == ENOENT) return OK;
    return err_errno(e, "cannot remove %s", path);
}

int path_join(buf *out, const char *a, const char *b) {
    buf_reset(out);
    if (b[0] == '/' || a[0] == '\0') return buf_puts(out, b);
    int rc = buf_puts(out, a);
    if (rc == OK && out->data[out->len - 1] != '/') rc = buf_putc(out, '/');
    return rc == OK ? buf_puts(out, b) : rc;
}

const char *path_base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash == NULL ? path : slash + 1;
}

int path_dir(buf *out, const char *path) {
    size_t n = strlen(path);
    buf_reset(out);
    while (n > 1 && path[n - 1] == '/')
        n--; /* slashes at the end do not count */
    while (n > 0 && path[n - 1] != '/')
        n--;
    while (n > 1 && path[n - 1] == '/')
        n--;
    return n == 0 ? buf_puts(out, ".") : buf_append(out, path, n);
}

void path_real(buf *path) {
    char *real = realpath(buf_cstr(path), NULL);
    if (real == NULL) return;
    buf_reset(path);
    (void)buf_puts(path, real);
    free(real);
}
