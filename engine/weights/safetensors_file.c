#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/weights/safetensors_internal.h"

enum { PREFIX_BYTES = 8, DIRECT_ALIGN = 4096, BOUNCE_BYTES = 1 << 20 };

void st_describe(const st_tensor *t, char *out, size_t cap) {
    int n = snprintf(out, cap, "%s [", st_dtype_name(t->dtype));
    for (int i = 0; i < t->n_dims && n >= 0 && (size_t)n < cap; i++) {
        n += snprintf(
            out + n, cap - (size_t)n, "%s%llu", i > 0 ? ", " : "", (unsigned long long)t->dims[i]);
    }
    if (n >= 0 && (size_t)n < cap) {
        snprintf(out + n, cap - (size_t)n, "]");
    }
}

uint64_t st_elements(const st_tensor *t) {
    return t->bytes / st_dtype_bytes(t->dtype);
}

bool st_has_shape(const st_tensor *t, int n_dims, const uint64_t *dims) {
    return t->n_dims == n_dims &&
           (n_dims == 0 || memcmp(t->dims, dims, (size_t)n_dims * sizeof *dims) == 0);
}

static uint64_t load_le64(const unsigned char *p) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) {
        v = v << 8 | p[i];
    }
    return v;
}

/* Opens and sizes the file and learns the length of the header, checked against the size before
 * anything is allocated. */
static int open_and_measure(st_file *f, uint64_t *header_bytes, err *e) {
    unsigned char prefix[PREFIX_BYTES];
    struct stat st;
    f->fd_plain = open(f->path, O_RDONLY | O_CLOEXEC);
    if (f->fd_plain < 0) return err_errno(e, "%s: cannot open", f->path);
    if (fstat(f->fd_plain, &st) != 0) return err_errno(e, "%s: cannot stat", f->path);
    if (!S_ISREG(st.st_mode)) return err_set(e, ERR_FORMAT, "%s: not a regular file", f->path);
    f->bytes = (uint64_t)st.st_size;
    if (f->bytes < PREFIX_BYTES) {
        return err_set(e, ERR_FORMAT,
            "%s: only %llu bytes, shorter than a safetensors prefix; download it again", f->path,
            (unsigned long long)f->bytes);
    }
    int rc = fd_read_at(f->fd_plain, prefix, sizeof prefix, 0, e);
    if (rc != OK) return err_add(e, rc, "%s", f->path);
    *header_bytes = load_le64(prefix);
    if (*header_bytes > f->bytes - PREFIX_BYTES || *header_bytes > ST_MAX_HEADER_BYTES) {
        return err_set(e, ERR_FORMAT,
            "%s: the header is said to have %llu bytes, but the file has %llu and the "
            "limit is %llu; not a safetensors file, or cut short",
            f->path, (unsigned long long)*header_bytes, (unsigned long long)f->bytes,
            (unsigned long long)ST_MAX_HEADER_BYTES);
    }
    return OK;
}

static int read_header(st_file *f, uint64_t header_bytes, err *e) {
    char *text = mem_try_alloc((size_t)header_bytes + 1);
    if (text == NULL)
        return err_set(e, ERR_MEMORY, "%s: no memory for a header of %llu bytes", f->path,
            (unsigned long long)header_bytes);
    int rc = fd_read_at(f->fd_plain, text, (size_t)header_bytes, PREFIX_BYTES, e);
    if (rc != OK) {
        err_add(e, rc, "%s", f->path);
    } else {
        f->data_start = PREFIX_BYTES + header_bytes;
        rc = st_header_parse(
            &f->header, text, (size_t)header_bytes, f->bytes - f->data_start, f->path, e);
    }
    mem_free(text);
    return rc;
}

static int map_file(st_file *f, err *e) {
    f->map = mmap(NULL, (size_t)f->bytes, PROT_READ, MAP_SHARED, f->fd_plain, 0);
    if (f->map == MAP_FAILED) {
        f->map = NULL;
        return err_errno(e, "%s: cannot map", f->path);
    }
    close(f->fd_plain);
    f->fd_plain = -1;
    return OK;
}

int st_file_open(st_file *f, const char *path, st_mode mode, err *e) {
    uint64_t header_bytes = 0;
    memset(f, 0, sizeof *f);
    f->fd = -1;
    f->path = mem_strdup(path);
    int rc = open_and_measure(f, &header_bytes, e);
    if (rc == OK) {
        rc = read_header(f, header_bytes, e);
    }
    if (rc == OK && mode == ST_MAPPED) {
        rc = map_file(f, e);
    } else if (rc == OK) {
        f->fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT);
        f->is_direct = f->fd >= 0;
    }
    for (size_t i = 0; rc == OK && i < f->header.n_tensors; i++) {
        st_tensor *t = &f->header.tensors[i];
        t->offset += f->data_start;
        t->data = f->map != NULL ? (const char *)f->map + t->offset : NULL;
    }
    if (rc != OK) {
        st_file_close(f);
    }
    return rc;
}

void st_file_close(st_file *f) {
    if (f->map != NULL) {
        munmap(f->map, (size_t)f->bytes);
    }
    if (f->fd >= 0) {
        close(f->fd);
    }
    if (f->fd_plain >= 0) {
        close(f->fd_plain);
    }
    st_header_release(&f->header);
    mem_free(f->path);
    memset(f, 0, sizeof *f);
    f->fd = -1;
    f->fd_plain = -1;
}

/* Reads an aligned piece; the end of the file may cut it. *got is what came. */
static int read_piece(
    const st_file *f, void *bounce, uint64_t at, size_t want, size_t *got, err *e) {
    size_t have = 0;
    while (have < want) {
        ssize_t n = pread(f->fd, (char *)bounce + have, want - have, (off_t)(at + have));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return err_errno(e, "%s: cannot read at byte %llu", f->path, (unsigned long long)at);
        have += (size_t)n;
        if (n == 0 || have % DIRECT_ALIGN != 0) break;
    }
    *got = have;
    return OK;
}

static int read_direct(const st_file *f, uint64_t offset, char *dst, uint64_t len, err *e) {
    char *bounce = mem_aligned(DIRECT_ALIGN, BOUNCE_BYTES);
    int rc =
        bounce != NULL ? OK : err_set(e, ERR_MEMORY, "%s: no memory for a read buffer", f->path);
    while (rc == OK && len > 0) {
        uint64_t at = offset / DIRECT_ALIGN * DIRECT_ALIGN;
        size_t skip = (size_t)(offset - at);
        size_t want = BOUNCE_BYTES;
        size_t got = 0;
        if (skip + len < want) {
            want = (size_t)(skip + len + DIRECT_ALIGN - 1) / DIRECT_ALIGN * DIRECT_ALIGN;
        }
        rc = read_piece(f, bounce, at, want, &got, e);
        if (rc == OK && got <= skip) {
            rc = err_set(e, ERR_IO, "%s: became shorter while it was read", f->path);
        }
        if (rc != OK) break;
        size_t take = got - skip < len ? got - skip : (size_t)len;
        memcpy(dst, bounce + skip, take);
        dst += take;
        offset += take;
        len -= take;
    }
    mem_aligned_free(bounce);
    return rc;
}

int st_file_read(const st_file *f, uint64_t offset, void *dst, uint64_t len, err *e) {
    if (len == 0) return OK;
    if (f->map != NULL) {
        memcpy(dst, (const char *)f->map + offset, (size_t)len);
        return OK;
    }
    if (f->is_direct) return read_direct(f, offset, dst, len, e);
    int rc = fd_read_at(f->fd_plain, dst, (size_t)len, offset, e);
    return err_add(e, rc, "%s", f->path);
}

void st_prefetch(const st_tensor *t, uint64_t at, uint64_t len) {
    if (t->data == NULL || at > t->bytes || len > t->bytes - at) return;
    uintptr_t first = ((uintptr_t)t->data + at) / DIRECT_ALIGN * DIRECT_ALIGN;
    madvise((void *)first, (size_t)((uintptr_t)t->data + at + len - first), MADV_WILLNEED);
}
