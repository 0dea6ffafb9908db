#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/weights/safetensors_internal.h"

static const struct {
    const char *name;
    uint8_t bytes;
} dtypes[ST_N_DTYPES] = {
    [ST_BOOL] = {"BOOL", 1},
    [ST_U8] = {"U8", 1},
    [ST_I8] = {"I8", 1},
    [ST_F8_E4M3] = {"F8_E4M3", 1},
    [ST_F8_E5M2] = {"F8_E5M2", 1},
    [ST_F8_E8M0] = {"F8_E8M0", 1},
    [ST_I16] = {"I16", 2},
    [ST_U16] = {"U16", 2},
    [ST_F16] = {"F16", 2},
    [ST_BF16] = {"BF16", 2},
    [ST_I32] = {"I32", 4},
    [ST_U32] = {"U32", 4},
    [ST_F32] = {"F32", 4},
    [ST_I64] = {"I64", 8},
    [ST_U64] = {"U64", 8},
    [ST_F64] = {"F64", 8},
};

const char *st_dtype_name(st_dtype d) {
    return d < ST_N_DTYPES ? dtypes[d].name : "?";
}

size_t st_dtype_bytes(st_dtype d) {
    return d < ST_N_DTYPES ? dtypes[d].bytes : 0;
}

static bool dtype_by_name(const char *name, st_dtype *out) {
    for (int i = 0; i < ST_N_DTYPES; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = (st_dtype)i;
            return true;
        }
    }
    return false;
}

uint64_t st_name_hash(const char *name) {
    uint64_t h = 1469598103934665603u;
    for (; *name != '\0'; name++) {
        h = (h ^ (unsigned char)*name) * 1099511628211u;
    }
    return h ^ (h >> 29);
}

void st_header_release(st_header *h) {
    mem_free(h->names);
    mem_free(h->tensors);
    mem_free(h->pairs);
    memset(h, 0, sizeof *h);
}

/* Takes a string into the name block; decoded text is never longer than the header, so the block
 * cannot run over. */
static const char *keep_string(st_header *h, header_scan *s) {
    size_t len;
    char *at = h->names + h->names_len;
    if (!header_scan_string(s, at, h->names_cap - h->names_len, &len)) return NULL;
    h->names_len += len + 1;
    return at;
}

static st_tensor *add_tensor(st_header *h) {
    if (h->n_tensors == h->cap_tensors) {
        h->cap_tensors = h->cap_tensors == 0 ? 64 : h->cap_tensors * 2;
        h->tensors = mem_realloc(h->tensors, h->cap_tensors * sizeof *h->tensors);
    }
    st_tensor *t = &h->tensors[h->n_tensors++];
    memset(t, 0, sizeof *t);
    return t;
}

static bool scan_metadata(st_header *h, header_scan *s) {
    bool is_last = false;
    if (!header_scan_take(s, '{')) return false;
    if (header_scan_peek(s) == '}') return header_scan_take(s, '}');
    while (!is_last) {
        st_pair p;
        p.key = keep_string(h, s);
        if (p.key == NULL || !header_scan_take(s, ':')) return false;
        if (header_scan_peek(s) != '"')
            return header_scan_fail(s, "a __metadata__ value is not a string");
        p.value = keep_string(h, s);
        if (p.value == NULL || !header_scan_next(s, '}', &is_last)) return false;
        if (h->n_pairs == h->cap_pairs) {
            h->cap_pairs = h->cap_pairs == 0 ? 16 : h->cap_pairs * 2;
            h->pairs = mem_realloc(h->pairs, h->cap_pairs * sizeof *h->pairs);
        }
        h->pairs[h->n_pairs++] = p;
    }
    return true;
}

static bool scan_shape(header_scan *s, st_tensor *t) {
    bool is_last = false;
    if (!header_scan_take(s, '[')) return false;
    if (header_scan_peek(s) == ']') return header_scan_take(s, ']');
    while (!is_last) {
        if (t->n_dims == ST_MAX_DIMS)
            return header_scan_fail(s, "a shape has more than 8 dimensions");
        if (!header_scan_u64(s, &t->dims[t->n_dims++]) || !header_scan_next(s, ']', &is_last))
            return false;
    }
    return true;
}

static bool scan_offsets(header_scan *s, uint64_t *begin, uint64_t *end) {
    bool is_last;
    if (!header_scan_take(s, '[')) return header_scan_fail(s, "data_offsets is not a list");
    if (!header_scan_u64(s, begin) || !header_scan_next(s, ']', &is_last)) return false;
    if (is_last) return header_scan_fail(s, "data_offsets needs two numbers");
    if (!header_scan_u64(s, end) || !header_scan_next(s, ']', &is_last)) return false;
    return is_last || header_scan_fail(s, "data_offsets needs two numbers");
}

static bool scan_dtype(header_scan *s, st_dtype *out) {
    char name[32];
    size_t len;
    if (!header_scan_string(s, name, sizeof name, &len)) return false;
    return dtype_by_name(name, out) || header_scan_fail(s, "unknown dtype");
}

/* One tensor object: dtype, shape and data_offsets, each once, nothing else. */
static bool scan_tensor(header_scan *s, st_tensor *t) {
    enum { HAS_DTYPE = 1, HAS_SHAPE = 2, HAS_OFFSETS = 4, HAS_ALL = 7 };
    unsigned has = 0;
    bool is_last = false;
    uint64_t end = 0;
    if (!header_scan_take(s, '{')) return false;
    if (header_scan_peek(s) == '}')
        return header_scan_fail(s, "dtype, shape and data_offsets are missing");
    while (!is_last) {
        char key[32];
        size_t len;
        unsigned bit;
        bool ok;
        if (!header_scan_string(s, key, sizeof key, &len) || !header_scan_take(s, ':'))
            return false;
        if (strcmp(key, "dtype") == 0) {
            bit = HAS_DTYPE;
            ok = scan_dtype(s, &t->dtype);
        } else if (strcmp(key, "shape") == 0) {
            bit = HAS_SHAPE;
            ok = (has & bit) != 0 || scan_shape(s, t);
        } else if (strcmp(key, "data_offsets") == 0) {
            bit = HAS_OFFSETS;
            ok = scan_offsets(s, &t->offset, &end);
        } else {
            return header_scan_fail(s, "unknown key in a tensor");
        }
        if ((has & bit) != 0) return header_scan_fail(s, "a key stands twice in a tensor");
        has |= bit;
        if (!ok || !header_scan_next(s, '}', &is_last)) return false;
    }
    if (has != HAS_ALL) return header_scan_fail(s, "dtype, shape or data_offsets is missing");
    if (end < t->offset) return header_scan_fail(s, "data_offsets end before they begin");
    t->bytes = end - t->offset;
    return true;
}

static bool scan_header(st_header *h, header_scan *s, bool *has_metadata) {
    bool is_last = false;
    if (s->at >= s->end || *s->at != '{')
        return header_scan_fail(s, "the header is not a JSON object");
    s->at++;
    if (header_scan_peek(s) == '}') {
        s->at++;
        return header_scan_at_end(s) || header_scan_fail(s, "text after the header object");
    }
    while (!is_last) {
        const char *name = keep_string(h, s);
        if (name == NULL || !header_scan_take(s, ':')) return false;
        if (strcmp(name, "__metadata__") == 0) {
            if (*has_metadata) return header_scan_fail(s, "__metadata__ stands twice");
            *has_metadata = true;
            if (!scan_metadata(h, s)) return false;
        } else {
            st_tensor *t = add_tensor(h);
            t->name = name;
            if (!scan_tensor(s, t)) return false;
        }
        if (!header_scan_next(s, '}', &is_last)) return false;
    }
    return header_scan_at_end(s) || header_scan_fail(s, "text after the header object");
}

static int by_offset(const void *a, const void *b) {
    const st_tensor *x = a;
    const st_tensor *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The bytes a shape needs must be the bytes the offsets give; the product may not wrap. */
static int check_size(const st_tensor *t, const char *path, err *e) {
    uint64_t need = st_dtype_bytes(t->dtype);
    bool is_empty = false;
    for (int i = 0; i < t->n_dims; i++) {
        is_empty |= t->dims[i] == 0;
    }
    for (int i = 0; i < t->n_dims && !is_empty; i++) {
        if (__builtin_mul_overflow(need, t->dims[i], &need)) {
            return err_set(e, ERR_FORMAT,
                "%s: the shape of tensor %s is larger than any file can be", path, t->name);
        }
    }
    need = is_empty ? 0 : need;
    if (need != t->bytes) {
        char what[160];
        st_describe(t, what, sizeof what);
        return err_set(e, ERR_FORMAT,
            "%s: tensor %s is %s and needs %llu bytes, but its data_offsets give %llu", path,
            t->name, what, (unsigned long long)need, (unsigned long long)t->bytes);
    }
    return OK;
}

static int check_layout(const st_header *h, uint64_t data_bytes, const char *path, err *e) {
    uint64_t at = 0;
    for (size_t i = 0; i < h->n_tensors; i++) {
        const st_tensor *t = &h->tensors[i];
        int rc = check_size(t, path, e);
        if (rc != OK) return rc;
        if (t->offset > data_bytes || t->bytes > data_bytes - t->offset) {
            return err_set(e, ERR_FORMAT,
                "%s: tensor %s ends at byte %llu of the data, but the file holds only "
                "%llu bytes of it; the file is cut "
                "short, download it again",
                path, t->name, (unsigned long long)(t->offset + t->bytes),
                (unsigned long long)data_bytes);
        }
        if (t->offset < at) {
            return err_set(e, ERR_FORMAT, "%s: tensor %s overlaps tensor %s", path, t->name,
                h->tensors[i - 1].name);
        }
        if (t->offset > at) {
            return err_set(e, ERR_FORMAT, "%s: %llu bytes before tensor %s belong to no tensor",
                path, (unsigned long long)(t->offset - at), t->name);
        }
        at = t->offset + t->bytes;
    }
    if (at != data_bytes) {
        return err_set(e, ERR_FORMAT, "%s: %llu bytes after the last tensor belong to no tensor",
            path, (unsigned long long)(data_bytes - at));
    }
    return OK;
}

/* An open-addressing table of names finds a name that stands twice. */
static int check_names(const st_header *h, const char *path, err *e) {
    size_t cap = 16;
    int rc = OK;
    while (cap < h->n_tensors * 2) {
        cap *= 2;
    }
    uint32_t *slot = mem_array(cap, sizeof *slot);
    for (size_t i = 0; i < h->n_tensors && rc == OK; i++) {
        size_t at = (size_t)st_name_hash(h->tensors[i].name) & (cap - 1);
        while (slot[at] != 0 && strcmp(h->tensors[slot[at] - 1].name, h->tensors[i].name) != 0) {
            at = (at + 1) & (cap - 1);
        }
        if (slot[at] != 0) {
            rc = err_set(e, ERR_FORMAT, "%s: tensor %s stands twice in the header", path,
                h->tensors[i].name);
        }
        slot[at] = (uint32_t)i + 1;
    }
    mem_free(slot);
    return rc;
}

int st_header_parse(
    st_header *h, const char *text, size_t len, uint64_t data_bytes, const char *path, err *e) {
    header_scan s;
    bool has_metadata = false;
    memset(h, 0, sizeof *h);
    h->names_cap = len + 1;
    h->names = mem_try_alloc(h->names_cap);
    if (h->names == NULL)
        return err_set(e, ERR_MEMORY, "%s: no memory for a header of %zu bytes", path, len);
    header_scan_init(&s, text, len);
    if (!scan_header(h, &s, &has_metadata)) {
        const char *wrong = s.wrong != NULL ? s.wrong : "it cannot be read";
        const char *last = h->n_tensors > 0 ? h->tensors[h->n_tensors - 1].name : "";
        int rc = err_set(e, ERR_FORMAT, "%s: wrong safetensors header at byte %zu%s%s: %s", path,
            header_scan_offset(&s) + 8, *last != '\0' ? " in or after tensor " : "", last, wrong);
        st_header_release(h);
        return rc;
    }
    if (h->n_tensors > 1) qsort(h->tensors, h->n_tensors, sizeof *h->tensors, by_offset);
    int rc = check_names(h, path, e);
    if (rc == OK) {
        rc = check_layout(h, data_bytes, path, e);
    }
    if (rc != OK) {
        st_header_release(h);
    }
    return rc;
}

int st_check_header(const char *text, size_t len, uint64_t data_bytes, const char *path, err *e) {
    st_header h;
    int rc = st_header_parse(&h, text, len, data_bytes, path, e);
    if (rc == OK) {
        st_header_release(&h);
    }
    return rc;
}
