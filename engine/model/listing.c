/* Lists the weights of a rank for a pack, and makes their bytes: what binding.c binds, written to a
 * file in the same order. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/sha256.h"
#include "engine/model/loading_internal.h"
#include "engine/model/rank_pack.h"

/* Where the bytes of one tensor come from. */
typedef struct recipe {
    linear_source s;  /* of a matrix */
    char *factors[2]; /* of a vector; the second may be NULL */
} recipe;

struct listing {
    const model *m;
    exl3_layout layout;
    pack_list *list;
    recipe *recipes; /* one per tensor of the list */
    size_t cap;
};

static recipe *add(listing *l, const pack_entry *t, err *e) {
    size_t i = pack_list_count(l->list);
    if (pack_list_add(l->list, t, e) != OK) {
        return NULL;
    }
    if (i == l->cap) {
        l->cap = l->cap == 0 ? 1024 : l->cap * 2;
        l->recipes = mem_realloc(l->recipes, l->cap * sizeof(*l->recipes));
    }
    l->recipes[i] = (recipe){0};
    return &l->recipes[i];
}

int listing_floats(listing *l, const char *name, const char *const factors[2], size_t n, err *e) {
    pack_entry t = {.name = name, .kind = PACK_FLOATS, .n_in = (int32_t)n, .n_out = 1};
    recipe *r = add(l, &t, e);
    if (r == NULL) {
        return e->code;
    }
    r->factors[0] = mem_strdup(factors != NULL ? factors[0] : name);
    r->factors[1] = factors != NULL ? mem_strdup(factors[1]) : NULL;
    return OK;
}

int listing_matrix(listing *l, const char *name, const linear_source *s, err *e) {
    matrix_form form = binding_form(s);
    pack_entry t = {.name = name,
        .kind = form == MATRIX_EXL3   ? PACK_EXL3
                : form == MATRIX_BF16 ? PACK_BF16
                                      : PACK_F32,
        .n_in = s->in,
        .n_out = s->out};
    int rc = form == MATRIX_EXL3 ? exl3_image_of(&s->exl3, l->layout, &t.exl3, e) : OK;
    if (rc != OK) {
        return rc;
    }
    recipe *r = add(l, &t, e);
    if (r == NULL) {
        return e->code;
    }
    r->s = *s;
    return OK;
}

/* With the model that was made for it. */
static void listing_close(listing *l, model *m) {
    for (size_t i = 0; l->list != NULL && i < pack_list_count(l->list); i++) {
        mem_free(l->recipes[i].factors[0]);
        mem_free(l->recipes[i].factors[1]);
    }
    mem_free(l->recipes);
    pack_list_free(l->list);
    model_drop_weights(m);
    checkpoint_close(m->ck);
    mem_free(m);
}

/* ---- bytes ---- */

static int make_floats(const listing *l, const recipe *r, size_t n, float *out, err *e) {
    int rc = checkpoint_floats(l->m->ck, r->factors[0], out, n, e);
    if (rc != OK || r->factors[1] == NULL) {
        return rc;
    }
    float *other = mem_array(n, sizeof(float));
    rc = checkpoint_floats(l->m->ck, r->factors[1], other, n, e);
    for (size_t i = 0; i < n && rc == OK; i++) {
        out[i] *= other[i];
    }
    mem_free(other);
    return rc;
}

static int make_whole(const listing *l, size_t i, void *out, err *e) {
    const pack_entry *t = pack_list_at(l->list, i);
    const recipe *r = &l->recipes[i];
    if (t->kind == PACK_FLOATS) {
        return make_floats(l, r, (size_t)t->n_in, out, e);
    }
    if (t->kind == PACK_EXL3) {
        return exl3_image_write(&r->s.exl3, &t->exl3, out, e);
    }
    return linear_source_floats(&r->s, out, e);
}

static void make_row(const pack_entry *t, const recipe *r, int row, void *out) {
    if (t->kind == PACK_BF16) {
        linear_source_bf16(&r->s, row, 1, out);
    } else {
        linear_source_rows(&r->s, row, 1, out);
    }
}

/* Bytes [at, at + n) of a matrix of whole rows, row by row. */
static void make_rows(const pack_entry *t, const recipe *r, const uint64_t at_n[2], uint8_t *out) {
    uint64_t width = t->bytes / (uint64_t)t->n_out, end = at_n[0] + at_n[1];
    void *row = mem_alloc((size_t)width);
    for (uint64_t at = at_n[0]; at < end;) {
        uint64_t i = at / width, from = at - i * width;
        uint64_t n = width - from < end - at ? width - from : end - at;
        make_row(t, r, (int)i, row);
        memcpy(out, (uint8_t *)row + from, (size_t)n);
        at += n;
        out += n;
    }
    mem_free(row);
}

static int fill(void *ctx, size_t i, const uint64_t at_n[2], void *out, err *e) {
    const listing *l = ctx;
    const pack_entry *t = pack_list_at(l->list, i);
    bool has_rows =
        (t->kind == PACK_BF16 || t->kind == PACK_F32) && l->recipes[i].s.kind != LINEAR_EXL3;
    if (has_rows) {
        make_rows(t, &l->recipes[i], at_n, out);
        return OK;
    }
    if (at_n[0] == 0 && at_n[1] == t->bytes) {
        return make_whole(l, i, out, e);
    }
    uint8_t *whole = mem_aligned(64, (size_t)t->bytes);
    if (whole == NULL) {
        return err_set(e, ERR_MEMORY, "no memory for %llu MiB", (unsigned long long)t->bytes >> 20);
    }
    int rc = make_whole(l, i, whole, e);
    memcpy(out, whole + at_n[0], (size_t)at_n[1]);
    mem_aligned_free(whole);
    return rc;
}

/* ---- the page cache ---- */

/* Where the mapped bytes of a matrix lie. */
static size_t mapped_range(const linear_source *s, const void **begin) {
    if (s->kind == LINEAR_EXL3) {
        size_t stride = s->exl3.slice_stride != 0 ? s->exl3.slice_stride
                                                  : (size_t)s->exl3.out * (size_t)s->exl3.k2;
        *begin = s->exl3.trellis;
        return (size_t)(s->exl3.in / EXL3_TILE - 1) * stride +
               (size_t)s->exl3.out * (size_t)s->exl3.k2;
    }
    *begin = s->weight;
    return s->weight == NULL ? 0 : (size_t)s->out * s->weight_stride;
}

/* Whole pages inside the range only, so that neighbours keep theirs. */
static void advise(const listing *l, const size_t from_to[2], int advice) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (size_t i = from_to[0]; i < from_to[1]; i++) {
        const void *begin = NULL;
        size_t n = mapped_range(&l->recipes[i].s, &begin);
        uintptr_t at = ((uintptr_t)begin + page - 1) / page * page;
        uintptr_t end = ((uintptr_t)begin + n) / page * page;
        if (n > 0 && end > at) {
            (void)madvise((void *)at, end - at, advice);
        }
    }
}

static void soon(void *ctx, size_t from, size_t to) {
    advise(ctx, (const size_t[2]){from, to}, MADV_WILLNEED);
}

static void done(void *ctx, size_t from, size_t to) {
    advise(ctx, (const size_t[2]){from, to}, MADV_PAGEOUT);
}

/* ---- making ---- */

static int file_digest(const char *dir, const char *name, uint8_t out[32], err *e) {
    buf path = BUF_INIT;
    path_join(&path, dir, name);
    int rc = sha256_file(buf_cstr(&path), out, e);
    buf_release(&path);
    return rc;
}

int rank_pack_identity(const rank_pack_options *o, pack_identity *out, err *e) {
    *out = (pack_identity){.layout = o->layout,
        .rank = o->rank,
        .world = o->world > 0 ? o->world : 1,
        .has_drafts = !o->without_drafts};
    int rc = file_digest(o->model_dir, "config.json", out->config, e);
    if (rc == OK && weights_has_shards(o->model_dir)) {
        rc = weights_digest(o->model_dir, out->source, e);
    }
    return rc;
}

/* Opens the checkpoint and lists what the rank keeps of it. */
static int list_all(const rank_pack_options *o, model *m, listing *l, err *e) {
    checkpoint_options co = {.without_engram = true, .without_stages = o->without_drafts};
    model_options mo = {.dir = o->model_dir,
        .rank = o->rank,
        .world = o->world > 0 ? o->world : 1,
        .without_drafts = o->without_drafts};
    m->is_dry = true;
    int rc = model_prepare(m, &mo, e);
    if (rc == OK) {
        rc = checkpoint_open(o->model_dir, &m->config, &co, &m->ck, e);
    }
    *l = (listing){.m = m, .layout = o->layout, .list = pack_list_new()};
    m->listing = l;
    return rc == OK ? model_load_weights(m, e) : rc;
}

int rank_pack_make(const rank_pack_options *o, buf *path, pack_make_progress *progress, err *e) {
    model *m = mem_alloc(sizeof(*m));
    listing l = {0};
    buf own = BUF_INIT;
    buf *file = path != NULL ? path : &own;
    pack_make_options po = {.build = o->build,
        .block_bytes = o->block_bytes,
        .n_threads = o->n_threads,
        .checks = o->checks,
        .progress = o->progress,
        .ctx = o->ctx};
    int rank_world[2] = {o->rank, o->world > 0 ? o->world : 1};
    int rc = pack_path(file, o->out_dir, o->layout, rank_world);
    po.path = buf_cstr(file);
    if (rc == OK) {
        rc = rank_pack_identity(o, &po.id, e);
    }
    if (rc == OK) {
        rc = list_all(o, m, &l, e);
    }
    po.id.has_drafts = model_has_drafts(m);
    pack_source source = {.ctx = &l, .fill = fill, .soon = soon, .done = done};
    if (rc == OK) {
        rc = pack_make(l.list, &source, &po, progress, e);
    }
    listing_close(&l, m);
    buf_release(&own);
    return rc;
}

int rank_pack_size(const rank_pack_options *o, uint64_t *bytes, err *e) {
    model *m = mem_alloc(sizeof(*m));
    listing l;
    int rc = list_all(o, m, &l, e);
    *bytes = rc == OK ? pack_list_data_bytes(l.list) : 0;
    listing_close(&l, m);
    return rc;
}
