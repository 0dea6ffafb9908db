#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/weights/safetensors_internal.h"

#define INDEX_NAME "model.safetensors.index.json"
enum { INDEX_MAX_BYTES = 256 << 20, MAX_WARNINGS = 40, MAX_NAMED_MISSING = 4 };

struct st_set {
    st_file *files;
    int n_files;
    size_t n_tensors, cap_slots;
    const st_tensor **list; /* [n_tensors] */
    uint32_t *slots;        /* [cap_slots], number in list + 1 */
    buf warnings;
    int n_warnings;
};

/* One entry of the index: tensor name and number of the shard it names. */
typedef struct index_entry {
    const char *tensor;
    int i_shard;
} index_entry;

typedef struct shard_index {
    char *text; /* decoded strings */
    index_entry *entries;
    size_t n_entries, cap_entries;
    const char **shards;
    int n_shards;
} shard_index;

static void warn(st_set *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void warn(st_set *s, const char *fmt, ...) {
    va_list ap;
    if (s->n_warnings++ >= MAX_WARNINGS) return;
    if (s->n_warnings > 1) {
        buf_putc(&s->warnings, '\n');
    }
    va_start(ap, fmt);
    buf_vprintf(&s->warnings, fmt, ap);
    va_end(ap);
}

static void index_release(shard_index *x) {
    mem_free(x->text);
    mem_free(x->entries);
    mem_free(x->shards);
    memset(x, 0, sizeof *x);
}

/* A shard must be a plain file name of the same folder: an index from outside may not reach
 * elsewhere. */
static bool is_plain_name(const char *name) {
    return *name != '\0' && *name != '.' && strchr(name, '/') == NULL &&
           str_ends(name, ".safetensors");
}

static int shard_number(shard_index *x, const char *name) {
    for (int i = x->n_shards - 1; i >= 0; i--) {
        if (strcmp(x->shards[i], name) == 0) return i;
    }
    if (x->n_shards == ST_MAX_FILES) return -1;
    x->shards[x->n_shards] = name;
    return x->n_shards++;
}

static bool scan_weight_map(shard_index *x, header_scan *s, char *at, size_t cap) {
    bool is_last = false;
    size_t len;
    if (!header_scan_take(s, '{')) return false;
    if (header_scan_peek(s) == '}') return header_scan_take(s, '}');
    while (!is_last) {
        if (x->n_entries == x->cap_entries) {
            x->cap_entries = x->cap_entries == 0 ? 256 : x->cap_entries * 2;
            x->entries = mem_realloc(x->entries, x->cap_entries * sizeof *x->entries);
        }
        index_entry *entry = &x->entries[x->n_entries];
        if (!header_scan_string(s, at, cap, &len)) return false;
        entry->tensor = at;
        at += len + 1;
        cap -= len + 1;
        if (!header_scan_take(s, ':') || !header_scan_string(s, at, cap, &len)) return false;
        if (!is_plain_name(at))
            return header_scan_fail(s, "a shard is not a plain .safetensors file name");
        entry->i_shard = shard_number(x, at);
        if (entry->i_shard < 0) return header_scan_fail(s, "too many shards");
        if (x->shards[entry->i_shard] == at) {
            at += len + 1;
            cap -= len + 1;
        }
        x->n_entries++;
        if (!header_scan_next(s, '}', &is_last)) return false;
    }
    return true;
}

static bool scan_index(shard_index *x, header_scan *s, size_t cap) {
    bool is_last = false;
    bool has_map = false;
    if (!header_scan_take(s, '{')) return false;
    while (!is_last) {
        char key[64];
        size_t len;
        if (!header_scan_string(s, key, sizeof key, &len) || !header_scan_take(s, ':'))
            return false;
        if (strcmp(key, "weight_map") == 0) {
            if (has_map) return header_scan_fail(s, "weight_map stands twice");
            has_map = true;
            if (!scan_weight_map(x, s, x->text, cap)) return false;
        } else if (!header_scan_skip(s)) {
            return false;
        }
        if (!header_scan_next(s, '}', &is_last)) return false;
    }
    if (!has_map) return header_scan_fail(s, "weight_map is missing");
    return header_scan_at_end(s) || header_scan_fail(s, "text after the object");
}

static int index_read(shard_index *x, const char *path, err *e) {
    buf text = BUF_MAX(INDEX_MAX_BYTES);
    header_scan s;
    int rc = file_read(path, &text, INDEX_MAX_BYTES, e);
    if (rc == OK) {
        x->text = mem_try_alloc(text.len + 1);
        x->shards = mem_array(ST_MAX_FILES, sizeof *x->shards);
        if (x->text == NULL) {
            rc = err_set(e, ERR_MEMORY, "%s: no memory for the index", path);
        }
    }
    if (rc == OK) {
        header_scan_init(&s, buf_cstr(&text), text.len);
        if (!scan_index(x, &s, text.len + 1)) {
            rc = err_set(e, ERR_FORMAT, "%s: wrong index at byte %zu: %s; download it again", path,
                header_scan_offset(&s), s.wrong != NULL ? s.wrong : "it cannot be read");
        }
    }
    buf_release(&text);
    return rc;
}

static int add_file(st_set *s, const char *path, st_mode mode, err *e) {
    if (s->n_files == ST_MAX_FILES)
        return err_set(e, ERR_LIMIT, "%s: more than %d weight files", path, ST_MAX_FILES);
    s->files = mem_realloc(s->files, ((size_t)s->n_files + 1) * sizeof *s->files);
    int rc = st_file_open(&s->files[s->n_files], path, mode, e);
    if (rc == OK) {
        s->n_files++;
    }
    return rc;
}

static size_t slot_of(const st_set *s, const char *name) {
    size_t at = (size_t)st_name_hash(name) & (s->cap_slots - 1);
    while (s->slots[at] != 0 && strcmp(s->list[s->slots[at] - 1]->name, name) != 0) {
        at = (at + 1) & (s->cap_slots - 1);
    }
    return at;
}

static int build_table(st_set *s, bool has_index, err *e) {
    size_t total = 0;
    for (int i = 0; i < s->n_files; i++) {
        total += s->files[i].header.n_tensors;
    }
    s->cap_slots = 16;
    while (s->cap_slots < total * 2) {
        s->cap_slots *= 2;
    }
    s->list = mem_array(total + 1, sizeof *s->list);
    s->slots = mem_array(s->cap_slots, sizeof *s->slots);
    for (int i = 0; i < s->n_files; i++) {
        st_header *h = &s->files[i].header;
        for (size_t j = 0; j < h->n_tensors; j++) {
            st_tensor *t = &h->tensors[j];
            size_t at = slot_of(s, t->name);
            t->i_file = i;
            if (s->slots[at] == 0) {
                s->list[s->n_tensors++] = t;
                s->slots[at] = (uint32_t)s->n_tensors;
            } else if (has_index) {
                warn(s, "%s: tensor %s also stands in %s; the index decides", s->files[i].path,
                    t->name, s->files[s->list[s->slots[at] - 1]->i_file].path);
            } else {
                return err_set(e, ERR_FORMAT,
                    "%s: tensor %s also stands in %s; remove the file that does not belong here",
                    s->files[i].path, t->name, s->files[s->list[s->slots[at] - 1]->i_file].path);
            }
        }
    }
    return OK;
}

static const st_tensor *find_in_file(const st_file *f, const char *name) {
    for (size_t i = 0; i < f->header.n_tensors; i++) {
        if (strcmp(f->header.tensors[i].name, name) == 0) return &f->header.tensors[i];
    }
    return NULL;
}

/* Each name of the index must be in the set, in the shard it names when two shards hold it. */
static int apply_index(st_set *s, const shard_index *x, err *e) {
    for (size_t i = 0; i < x->n_entries; i++) {
        const index_entry *entry = &x->entries[i];
        size_t at = slot_of(s, entry->tensor);
        const st_tensor *t = s->slots[at] != 0 ? s->list[s->slots[at] - 1] : NULL;
        if (t != NULL && t->i_file != entry->i_shard) {
            t = find_in_file(&s->files[entry->i_shard], entry->tensor);
            s->list[s->slots[at] - 1] = t != NULL ? t : s->list[s->slots[at] - 1];
        }
        if (t == NULL) {
            return err_set(e, ERR_FORMAT,
                "%s: the index says that it holds tensor %s, but it does not; download it again",
                s->files[entry->i_shard].path, entry->tensor);
        }
    }
    if (x->n_entries < s->n_tensors) {
        warn(s,
            "%s: the index leaves out %zu of %zu tensors that the shards hold; they are "
            "used all the same",
            INDEX_NAME, s->n_tensors - x->n_entries, s->n_tensors);
    }
    return OK;
}

typedef struct unnamed_walk {
    st_set *set;
    const shard_index *index;
} unnamed_walk;

static int warn_unnamed(void *ctx, const char *name, err *e) {
    unnamed_walk *u = ctx;
    (void)e;
    if (*name == '.' || !str_ends(name, ".safetensors")) return OK;
    for (int i = 0; i < u->index->n_shards; i++) {
        if (strcmp(u->index->shards[i], name) == 0) return OK;
    }
    warn(u->set, "%s: the index does not name this file; it is not used", name);
    return OK;
}

static int open_indexed(st_set *s, const char *dir, st_mode mode, err *e) {
    shard_index x = {0};
    buf path = BUF_INIT;
    path_join(&path, dir, INDEX_NAME);
    int rc = index_read(&x, buf_cstr(&path), e);
    for (int i = 0; rc == OK && i < x.n_shards; i++) {
        path_join(&path, dir, x.shards[i]);
        if (file_exists(buf_cstr(&path))) {
            rc = add_file(s, buf_cstr(&path), mode, e);
        } else {
            rc = err_set(e, ERR_NOT_FOUND,
                "%s: the index names this shard, but the file is not there; download it",
                buf_cstr(&path));
        }
    }
    if (rc == OK && x.n_shards == 0) {
        rc = err_set(e, ERR_FORMAT, "%s: the index names no shard", buf_cstr(&path));
    }
    if (rc == OK) {
        rc = build_table(s, true, e);
    }
    if (rc == OK) {
        rc = apply_index(s, &x, e);
    }
    if (rc == OK) {
        unnamed_walk u = {s, &x};
        rc = dir_each(dir, warn_unnamed, &u, e);
    }
    index_release(&x);
    buf_release(&path);
    return rc;
}

typedef struct folder_walk {
    st_set *set;
    const char *dir;
    st_mode mode;
    int n_of; /* NNNNN of "-of-NNNNN" in the names, 0 if none says so */
} folder_walk;

static int walk_entry(void *ctx, const char *name, err *e) {
    folder_walk *w = ctx;
    const char *of = strstr(name, "-of-");
    int rc;
    if (*name == '.' || !str_ends(name, ".safetensors")) return OK;
    if (of != NULL) {
        w->n_of = (int)strtol(of + 4, NULL, 10);
    }
    buf path = BUF_INIT;
    path_join(&path, w->dir, name);
    rc = add_file(w->set, buf_cstr(&path), w->mode, e);
    buf_release(&path);
    return rc;
}

/* The first shards of the row that are not there, by the form of the names that are. */
static void name_missing(const st_set *s, const folder_walk *w, buf *out) {
    const char *like = path_base(s->files[0].path), *of = strstr(like, "-of-");
    int n_digits = 0, n_named = 0;
    while (
        of != NULL && of - n_digits > like && of[-n_digits - 1] >= '0' && of[-n_digits - 1] <= '9')
        n_digits++;
    if (n_digits == 0) return;
    buf name = BUF_INIT, path = BUF_INIT;
    for (int i = 1; i <= w->n_of && n_named <= MAX_NAMED_MISSING; i++) {
        buf_reset(&name);
        buf_printf(&name, "%.*s%0*d%s", (int)(of - like) - n_digits, like, n_digits, i, of);
        path_join(&path, w->dir, buf_cstr(&name));
        if (file_exists(buf_cstr(&path))) continue;
        const char *before = n_named == 0 ? "; missing: " : ", ";
        buf_printf(out, "%s%s", before, n_named < MAX_NAMED_MISSING ? buf_cstr(&name) : "...");
        n_named++;
    }
    buf_release(&name);
    buf_release(&path);
}

static int open_folder(st_set *s, const char *dir, st_mode mode, err *e) {
    folder_walk w = {s, dir, mode, 0};
    buf path = BUF_INIT;
    path_join(&path, dir, INDEX_NAME);
    bool has_index = file_exists(buf_cstr(&path));
    buf_release(&path);
    if (has_index) return open_indexed(s, dir, mode, e);
    int rc = dir_each(dir, walk_entry, &w, e);
    if (rc != OK) return rc;
    if (s->n_files == 0)
        return err_set(e, ERR_NOT_FOUND,
            "%s: no .safetensors file in this folder; download the model first", dir);
    if (w.n_of > 0 && w.n_of != s->n_files) {
        buf names = BUF_INIT;
        name_missing(s, &w, &names);
        rc = err_set(e, ERR_NOT_FOUND,
            "%s: %d of %d weight files are there and there is no %s%s; download the rest", dir,
            s->n_files, w.n_of, INDEX_NAME, buf_cstr(&names));
        buf_release(&names);
        return rc;
    }
    if (w.n_of > 1) {
        warn(s, "%s: no %s; all %d shards are used", dir, INDEX_NAME, s->n_files);
    }
    return build_table(s, false, e);
}

int st_open(const char *path, st_mode mode, st_set **out, err *e) {
    st_set *s = mem_alloc(sizeof *s);
    int rc;
    s->warnings.max = BUF_DEFAULT_MAX;
    if (dir_exists(path)) {
        rc = open_folder(s, path, mode, e);
    } else {
        rc = add_file(s, path, mode, e);
        rc = rc == OK ? build_table(s, false, e) : rc;
    }
    if (rc != OK) {
        st_close(s);
        s = NULL;
    }
    *out = s;
    return rc;
}

int st_open_part(const char *path, st_mode mode, st_set **out, err *e) {
    err why = ERR_INIT;
    int rc = st_open(path, mode, out, &why);
    if (rc != ERR_NOT_FOUND || !dir_exists(path)) {
        if (rc != OK && e != NULL) *e = why;
        return rc;
    }
    st_set *s = mem_alloc(sizeof *s);
    s->warnings.max = BUF_DEFAULT_MAX;
    folder_walk w = {s, path, mode, 0};
    rc = dir_each(path, walk_entry, &w, e);
    if (rc == OK) {
        rc = build_table(s, false, e);
    }
    if (rc != OK) {
        st_close(s);
        s = NULL;
    }
    *out = s;
    return rc;
}

void st_close(st_set *s) {
    if (s == NULL) return;
    for (int i = 0; i < s->n_files; i++) {
        st_file_close(&s->files[i]);
    }
    mem_free(s->files);
    mem_free(s->list);
    mem_free(s->slots);
    buf_release(&s->warnings);
    mem_free(s);
}

size_t st_count(const st_set *s) {
    return s->n_tensors;
}

const st_tensor *st_at(const st_set *s, size_t i) {
    CHECK(i < s->n_tensors);
    return s->list[i];
}

const st_tensor *st_find(const st_set *s, const char *name) {
    size_t at = slot_of(s, name);
    return s->slots[at] != 0 ? s->list[s->slots[at] - 1] : NULL;
}

const char *st_path(const st_set *s, int i_file) {
    CHECK(i_file >= 0 && i_file < s->n_files);
    return s->files[i_file].path;
}

int st_n_files(const st_set *s) {
    return s->n_files;
}

const char *st_warnings(const st_set *s) {
    return buf_cstr(&s->warnings);
}

const char *st_metadata(const st_set *s, int i_file, const char *key) {
    CHECK(i_file >= 0 && i_file < s->n_files);
    const st_header *h = &s->files[i_file].header;
    for (size_t i = 0; i < h->n_pairs; i++) {
        if (strcmp(h->pairs[i].key, key) == 0) return h->pairs[i].value;
    }
    return NULL;
}

int st_read(const st_set *s, const st_tensor *t, uint64_t at, void *dst, uint64_t len, err *e) {
    if (at > t->bytes || len > t->bytes - at) {
        return err_set(e, ERR_ARG, "read of %llu bytes at %llu is outside tensor %s of %llu bytes",
            (unsigned long long)len, (unsigned long long)at, t->name, (unsigned long long)t->bytes);
    }
    return st_file_read(&s->files[t->i_file], t->offset + at, dst, len, e);
}
