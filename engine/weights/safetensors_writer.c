#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/weights/safetensors.h"

enum { DATA_ALIGN = 4096, TENSOR_ALIGN = 64 };

typedef struct writer_tensor {
    char *name;
    st_dtype dtype;
    int n_dims;
    uint64_t dims[ST_MAX_DIMS];
    uint64_t offset; /* from the start of the data */
    uint64_t bytes;
    _Atomic uint64_t written;
} writer_tensor;

struct st_writer {
    char *path;
    char *temp;
    int fd;
    uint64_t data_start;
    writer_tensor **tensors;
    int n_tensors, cap_tensors;
    buf metadata; /* "key":"value",... */
};

st_writer *st_writer_new(const char *path) {
    st_writer *w = mem_alloc(sizeof *w);
    size_t cap = strlen(path) + 32;
    w->path = mem_strdup(path);
    w->temp = mem_alloc(cap);
    snprintf(w->temp, cap, "%s.part.%ld", path, (long)getpid());
    w->fd = -1;
    w->metadata.max = BUF_DEFAULT_MAX;
    return w;
}

void st_writer_free(st_writer *w) {
    if (w == NULL) return;
    if (w->fd >= 0) {
        close(w->fd);
        unlink(w->temp);
    }
    for (int i = 0; i < w->n_tensors; i++) {
        mem_free(w->tensors[i]->name);
        mem_free(w->tensors[i]);
    }
    mem_free(w->tensors);
    mem_free(w->path);
    mem_free(w->temp);
    buf_release(&w->metadata);
    mem_free(w);
}

/* Appends a JSON string. */
static void put_string(buf *out, const char *s) {
    buf_putc(out, '"');
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') {
            buf_printf(out, "\\%c", c);
        } else if (c < 0x20) {
            buf_printf(out, "\\u%04x", c);
        } else {
            buf_putc(out, *s);
        }
    }
    buf_putc(out, '"');
}

int st_writer_add(
    st_writer *w, const char *name, st_dtype dtype, int n_dims, const uint64_t *dims, err *e) {
    CHECK(w->fd < 0 && n_dims >= 0 && n_dims <= ST_MAX_DIMS);
    uint64_t bytes = st_dtype_bytes(dtype);
    for (int i = 0; i < n_dims; i++) {
        if (__builtin_mul_overflow(bytes, dims[i], &bytes)) {
            return err_set(e, ERR_LIMIT, "%s: tensor %s is too large", w->path, name);
        }
    }
    if (!utf8_valid(name, strlen(name)) || *name == '\0' || strcmp(name, "__metadata__") == 0) {
        return err_set(e, ERR_ARG, "%s: not a tensor name: %s", w->path, name);
    }
    if (w->n_tensors == w->cap_tensors) {
        w->cap_tensors = w->cap_tensors == 0 ? 64 : w->cap_tensors * 2;
        w->tensors = mem_realloc(w->tensors, (size_t)w->cap_tensors * sizeof(*w->tensors));
    }
    writer_tensor *t = mem_alloc(sizeof *t);
    t->name = mem_strdup(name);
    t->dtype = dtype;
    t->n_dims = n_dims;
    if (n_dims > 0) {
        memcpy(t->dims, dims, (size_t)n_dims * sizeof *dims);
    }
    t->bytes = bytes;
    w->tensors[w->n_tensors] = t;
    return w->n_tensors++;
}

void st_writer_metadata(st_writer *w, const char *key, const char *value) {
    if (w->metadata.len > 0) {
        buf_putc(&w->metadata, ',');
    }
    put_string(&w->metadata, key);
    buf_putc(&w->metadata, ':');
    put_string(&w->metadata, value);
}

/* The largest power of two up to TENSOR_ALIGN that divides the size. */
static uint64_t natural_align(const writer_tensor *t) {
    uint64_t align = TENSOR_ALIGN;
    while (t->bytes % align != 0) {
        align /= 2;
    }
    return align;
}

/* Gives offsets without gaps (the format has none): sizes that keep the alignment of what follows
 * come first, so every tensor is aligned to what its own size divides by. */
static void lay_out(st_writer *w) {
    uint64_t at = 0;
    for (uint64_t align = TENSOR_ALIGN; align > 0; align /= 2) {
        for (int i = 0; i < w->n_tensors; i++) {
            writer_tensor *t = w->tensors[i];
            if (natural_align(t) == align) {
                t->offset = at;
                at += t->bytes;
            }
        }
    }
}

static int by_name(const void *a, const void *b) {
    const writer_tensor *const *x = a;
    const writer_tensor *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int check_unique(const st_writer *w, err *e) {
    writer_tensor **sorted = mem_array((size_t)w->n_tensors + 1, sizeof(*sorted));
    int rc = OK;
    memcpy(sorted, w->tensors, (size_t)w->n_tensors * sizeof(*sorted));
    qsort(sorted, (size_t)w->n_tensors, sizeof(*sorted), by_name);
    for (int i = 1; i < w->n_tensors && rc == OK; i++) {
        if (strcmp(sorted[i]->name, sorted[i - 1]->name) == 0) {
            rc = err_set(
                e, ERR_EXISTS, "%s: tensor %s was declared twice", w->path, sorted[i]->name);
        }
    }
    mem_free(sorted);
    return rc;
}

static void put_header(const st_writer *w, buf *out) {
    buf_putc(out, '{');
    if (w->metadata.len > 0) {
        buf_printf(
            out, "\"__metadata__\":{%s}%s", buf_cstr(&w->metadata), w->n_tensors > 0 ? "," : "");
    }
    for (int i = 0; i < w->n_tensors; i++) {
        const writer_tensor *t = w->tensors[i];
        put_string(out, t->name);
        buf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", st_dtype_name(t->dtype));
        for (int d = 0; d < t->n_dims; d++) {
            buf_printf(out, "%s%llu", d > 0 ? "," : "", (unsigned long long)t->dims[d]);
        }
        buf_printf(out, "],\"data_offsets\":[%llu,%llu]}%s", (unsigned long long)t->offset,
            (unsigned long long)(t->offset + t->bytes), i + 1 < w->n_tensors ? "," : "");
    }
    buf_putc(out, '}');
    while ((out->len + 8) % DATA_ALIGN != 0) {
        if (buf_putc(out, ' ') != OK) break;
    }
}

int st_writer_begin(st_writer *w, err *e) {
    buf header = BUF_MAX(ST_MAX_HEADER_BYTES);
    unsigned char prefix[8];
    int rc = check_unique(w, e);
    if (rc != OK) return rc;
    lay_out(w);
    put_header(w, &header);
    if ((header.len + 8) % DATA_ALIGN != 0) {
        rc = err_set(
            e, ERR_LIMIT, "%s: the header of %d tensors is too large", w->path, w->n_tensors);
        goto out;
    }
    for (int i = 0; i < 8; i++) {
        prefix[i] = (unsigned char)((uint64_t)header.len >> (8 * i));
    }
    w->data_start = header.len + 8;
    w->fd = open(w->temp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (w->fd < 0) {
        rc = err_errno(e, "%s: cannot create", w->temp);
        goto out;
    }
    rc = fd_write_at(w->fd, prefix, sizeof prefix, 0, e);
    if (rc == OK) {
        rc = fd_write_at(w->fd, header.data, header.len, sizeof prefix, e);
    }
    err_add(e, rc, "%s", w->temp);
out:
    buf_release(&header);
    return rc;
}

int st_writer_put(st_writer *w, int i, uint64_t at, const void *data, uint64_t len, err *e) {
    CHECK(w->fd >= 0 && i >= 0 && i < w->n_tensors);
    writer_tensor *t = w->tensors[i];
    if (at > t->bytes || len > t->bytes - at) {
        return err_set(e, ERR_ARG,
            "%s: write of %llu bytes at %llu is outside tensor %s of %llu bytes", w->path,
            (unsigned long long)len, (unsigned long long)at, t->name, (unsigned long long)t->bytes);
    }
    if (len == 0) return OK;
    int rc = fd_write_at(w->fd, data, (size_t)len, w->data_start + t->offset + at, e);
    if (rc == OK) {
        atomic_fetch_add(&t->written, len);
    }
    return err_add(e, rc, "%s", w->temp);
}

int st_writer_finish(st_writer *w, err *e) {
    buf dir = BUF_INIT;
    int rc = OK;
    CHECK(w->fd >= 0);
    for (int i = 0; i < w->n_tensors; i++) {
        const writer_tensor *t = w->tensors[i];
        if (atomic_load(&t->written) != t->bytes) {
            return err_set(e, ERR_INTERNAL, "%s: tensor %s got %llu of %llu bytes", w->path,
                t->name, (unsigned long long)atomic_load(&t->written),
                (unsigned long long)t->bytes);
        }
    }
    if (fsync(w->fd) != 0) return err_errno(e, "%s: cannot sync", w->temp);
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0 || rename(w->temp, w->path) != 0) {
        rc = err_errno(e, "%s: cannot put it in place", w->path);
        unlink(w->temp);
        return rc;
    }
    path_dir(&dir, w->path);
    rc = dir_sync(buf_cstr(&dir), e);
    buf_release(&dir);
    return rc;
}
