#include "setup/hub_store.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"

enum { COPY_BYTES = 1 << 20, OK_MAX = 4096 };

int store_open(store *s, const char *root, err *e) {
    s->fd = -1;
    s->root = NULL;
    if (root[0] != '/') return err_set(e, ERR_ARG, "the folder %s is not absolute", root);
    int rc = dir_make_all(root, 0755, e);
    if (rc != OK) return rc;
    s->fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->fd < 0) return err_errno(e, "opening %s", root);
    s->root = mem_strdup(root);
    return OK;
}

void store_close(store *s) {
    if (s->fd >= 0) close(s->fd);
    mem_free(s->root);
    s->fd = -1;
    s->root = NULL;
}

/* The folder that holds rel, opened part by part so that no link is followed; base = last part. */
static int open_folder(
    const store *s, const char *rel, bool make, int *folder, const char **base, err *e) {
    int rc = manifest_path_check(rel, e);
    if (rc != OK) return rc;
    int at = dup(s->fd);
    if (at < 0) return err_errno(e, "opening %s", s->root);
    if (at >= 0) fcntl(at, F_SETFD, FD_CLOEXEC);
    for (const char *slash; (slash = strchr(rel, '/')) != NULL; rel = slash + 1) {
        char part[MANIFEST_PATH_MAX + 1];
        size_t n = (size_t)(slash - rel);
        memcpy(part, rel, n);
        part[n] = '\0';
        if (make && mkdirat(at, part, 0755) != 0 && errno != EEXIST)
            rc = err_errno(e, "making the folder %s under %s", part, s->root);
        int next =
            rc == OK ? openat(at, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
        if (rc == OK && next < 0)
            rc = err_errno(e, "opening the folder %s under %s", part, s->root);
        close(at);
        if (rc != OK) return rc;
        at = next;
    }
    *folder = at;
    *base = rel;
    return OK;
}

int store_file(const store *s, const char *rel, int flags, int *fd, err *e) {
    int folder = -1;
    const char *base = NULL;
    int rc = open_folder(s, rel, (flags & O_CREAT) != 0, &folder, &base, e);
    if (rc != OK) return rc;
    *fd = openat(folder, base, flags | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (*fd < 0) rc = err_errno(e, "opening %s/%s", s->root, rel);
    close(folder);
    return rc;
}

int store_stat(const store *s, const char *rel, struct stat *st, err *e) {
    int folder = -1;
    const char *base = NULL;
    int rc = open_folder(s, rel, false, &folder, &base, e);
    if (rc != OK) return rc;
    if (fstatat(folder, base, st, AT_SYMLINK_NOFOLLOW) != 0) {
        rc = err_errno(e, "looking at %s/%s", s->root, rel);
    } else if (!S_ISREG(st->st_mode)) {
        rc = err_set(e, ERR_FORMAT, "%s/%s is no regular file", s->root, rel);
    }
    close(folder);
    return rc;
}

int store_read(const store *s, const char *rel, buf *out, size_t max, err *e) {
    struct stat st;
    int fd = -1;
    int rc = store_stat(s, rel, &st, e);
    buf_reset(out);
    if (rc == OK && (uint64_t)st.st_size > max)
        rc = err_set(e, ERR_LIMIT, "%s/%s is too long", s->root, rel);
    if (rc == OK) rc = store_file(s, rel, O_RDONLY, &fd, e);
    if (rc == OK) rc = buf_reserve(out, (size_t)st.st_size + 1);
    if (rc == OK) rc = fd_read_full(fd, out->data, (size_t)st.st_size, e);
    if (rc == OK) out->len = (size_t)st.st_size;
    if (rc == OK) out->data[out->len] = '\0';
    if (fd >= 0) close(fd);
    return rc;
}

int store_write(const store *s, const char *rel, const void *data, size_t len, err *e) {
    int folder = -1;
    const char *base = NULL;
    int rc = open_folder(s, rel, true, &folder, &base, e);
    if (rc != OK) return rc;
    char temporary[MANIFEST_PATH_MAX + 8];
    snprintf(temporary, sizeof temporary, "%s.new", base);
    int fd = openat(folder, temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (fd < 0) rc = err_errno(e, "writing %s/%s", s->root, rel);
    if (rc == OK) rc = fd_write_full(fd, data, len, e);
    if (rc == OK && fdatasync(fd) != 0) rc = err_errno(e, "flushing %s/%s", s->root, rel);
    if (fd >= 0) close(fd);
    if (rc == OK && renameat(folder, temporary, folder, base) != 0)
        rc = err_errno(e, "naming %s/%s", s->root, rel);
    if (rc == OK && fsync(folder) != 0) rc = err_errno(e, "flushing the folder of %s", rel);
    if (rc != OK && fd >= 0) unlinkat(folder, temporary, 0);
    close(folder);
    return rc;
}

int store_remove(const store *s, const char *rel, err *e) {
    int folder = -1;
    const char *base = NULL;
    int rc = open_folder(s, rel, false, &folder, &base, e);
    if (rc == ERR_NOT_FOUND) return OK;
    if (rc != OK) return rc;
    if (unlinkat(folder, base, 0) != 0 && errno != ENOENT)
        rc = err_errno(e, "removing %s/%s", s->root, rel);
    close(folder);
    return rc;
}

int store_rename(const store *s, const char *from, const char *to, err *e) {
    int folder = -1, target = -1;
    const char *base = NULL, *name = NULL;
    int rc = open_folder(s, from, false, &folder, &base, e);
    if (rc == OK) rc = open_folder(s, to, true, &target, &name, e);
    if (rc == OK && renameat2(folder, base, target, name, RENAME_NOREPLACE) != 0) {
        /* File systems without that flag: a link never replaces either. */
        if (errno == EINVAL && linkat(folder, base, target, name, 0) == 0) {
            unlinkat(folder, base, 0);
        } else {
            rc = err_errno(e, "renaming %s to %s under %s", from, to, s->root);
        }
    }
    if (rc == OK && fsync(target) != 0) rc = err_errno(e, "flushing the folder of %s", to);
    if (folder >= 0) close(folder);
    if (target >= 0) close(target);
    return rc;
}

static int copy_bytes(int from, int to, err *e) {
    if (ioctl(to, FICLONE, from) == 0) return OK;
    struct stat st;
    if (fstat(from, &st) != 0) return err_errno(e, "looking at the file to take");
    for (off_t at = 0; at < st.st_size;) {
        ssize_t n = sendfile(to, from, &at, COPY_BYTES);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return err_errno(e, "copying");
        if (n == 0) return err_set(e, ERR_FORMAT, "the file to take became shorter");
        posix_fadvise(from, 0, at, POSIX_FADV_DONTNEED);
    }
    return fdatasync(to) == 0 ? OK : err_errno(e, "flushing the copy");
}

int store_import(const store *s, const char *outside, const char *rel, bool *is_link, err *e) {
    int folder = -1, from = -1, to = -1;
    const char *base = NULL;
    int rc = open_folder(s, rel, true, &folder, &base, e);
    if (rc != OK) return rc;
    *is_link = linkat(AT_FDCWD, outside, folder, base, AT_SYMLINK_FOLLOW) == 0;
    if (*is_link) goto out;
    if (errno == EEXIST) {
        rc = err_errno(e, "taking over %s", outside);
        goto out;
    }
    from = open(outside, O_RDONLY | O_CLOEXEC);
    if (from < 0) rc = err_errno(e, "opening %s", outside);
    if (rc == OK) to = openat(folder, base, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (rc == OK && to < 0) rc = err_errno(e, "writing %s/%s", s->root, rel);
    if (rc == OK) rc = copy_bytes(from, to, e);
    if (rc != OK && to >= 0) unlinkat(folder, base, 0);
out:
    if (from >= 0) close(from);
    if (to >= 0) close(to);
    close(folder);
    return rc;
}

uint64_t store_free_bytes(const store *s) {
    struct statvfs v;
    if (fstatvfs(s->fd, &v) != 0) return 0;
    return (uint64_t)v.f_bavail * (uint64_t)v.f_frsize;
}

/* Digests. */

struct store_digest {
    EVP_MD_CTX *ctx;
    unsigned n;
};

store_digest *store_digest_new(manifest_digest kind, uint64_t size) {
    store_digest *d = mem_alloc(sizeof *d);
    if (kind == MANIFEST_SIZE_ONLY) return d;
    d->ctx = EVP_MD_CTX_new();
    CHECK(d->ctx != NULL);
    CHECK(
        EVP_DigestInit_ex(d->ctx, kind == MANIFEST_SHA256 ? EVP_sha256() : EVP_sha1(), NULL) == 1);
    if (kind == MANIFEST_GITBLOB) {
        char head[32];
        int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)size);
        EVP_DigestUpdate(d->ctx, head, (size_t)n + 1);
    }
    return d;
}

void store_digest_free(store_digest *d) {
    if (d == NULL) return;
    EVP_MD_CTX_free(d->ctx);
    mem_free(d);
}

void store_digest_update(store_digest *d, const void *data, size_t n) {
    if (d->ctx != NULL) CHECK(EVP_DigestUpdate(d->ctx, data, n) == 1);
}

void store_digest_finish(store_digest *d, char hex[65]) {
    static const char digits[] = "0123456789abcdef";
    unsigned char raw[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (d->ctx != NULL) CHECK(EVP_DigestFinal_ex(d->ctx, raw, &n) == 1 && n <= 32);
    for (unsigned i = 0; i < n; i++) {
        hex[2 * i] = digits[raw[i] >> 4];
        hex[2 * i + 1] = digits[raw[i] & 15];
    }
    hex[2 * n] = '\0';
}

/* Records. */

static int ok_text(const store *s, const char *rel, const manifest_file *f, buf *out, err *e) {
    struct stat st;
    int rc = store_stat(s, rel, &st, e);
    if (rc != OK) return rc;
    return buf_printf(out, "tandem-ok 1 %lld %lld.%09ld %llu %s %s", (long long)st.st_size,
        (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (unsigned long long)st.st_ino,
        f->kind == MANIFEST_GITBLOB  ? "gitblob"
        : f->kind == MANIFEST_SHA256 ? "sha256"
                                     : "size",
        f->kind == MANIFEST_SIZE_ONLY ? "-" : f->digest);
}

static void ok_name(const char *rel, buf *out) {
    buf_printf(out, "%s.ok", rel);
}

int store_ok_write(const store *s, const char *rel, const manifest_file *f, err *e) {
    buf text = BUF_INIT, name = BUF_INIT;
    char time[32];
    int rc = ok_text(s, rel, f, &text, e);
    ok_name(rel, &name);
    clock_format_utc(clock_wall_ms(), time);
    buf_printf(&text, " %s\n", time);
    if (rc == OK) rc = store_write(s, buf_cstr(&name), text.data, text.len, e);
    buf_release(&text);
    buf_release(&name);
    return rc;
}

bool store_ok_holds(const store *s, const char *rel, const manifest_file *f) {
    buf text = BUF_INIT, name = BUF_INIT, have = BUF_INIT;
    struct stat st;
    ok_name(rel, &name);
    bool holds = store_stat(s, rel, &st, NULL) == OK && (uint64_t)st.st_size == f->size &&
                 ok_text(s, rel, f, &text, NULL) == OK &&
                 store_read(s, buf_cstr(&name), &have, OK_MAX, NULL) == OK && have.len > text.len &&
                 memcmp(have.data, text.data, text.len) == 0 && have.data[text.len] == ' ';
    buf_release(&text);
    buf_release(&name);
    buf_release(&have);
    return holds;
}

void store_content_id(const manifest_file *f, uint8_t id[32]) {
    char text[128];
    int n = snprintf(
        text, sizeof text, "%llu %d %s", (unsigned long long)f->size, (int)f->kind, f->digest);
    sha256_of(text, (size_t)n, id);
}
