/* Gives each weight of this rank its bytes: from the checkpoint, where EXL3 matrices are repacked,
 * BF16 and F32 ones are used where they are mapped and the other forms are converted; or from a rank
 * pack, where everything lies ready in one piece of memory. */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/clock.h"
#include "engine/model/loading_internal.h"
#include "engine/model/rank_pack.h"
#include "kernels/half.h"

enum { TELL_MS = 100 };

/* How much is loaded; how much there is nobody knows before the end. */
static void tell(loader *l) {
    const model_options *o = &l->m->options;
    uint64_t now = clock_mono_ms();
    if (l->rc != OK || o->load_tick == NULL || l->m->is_dry || now - l->told_ms < TELL_MS) {
        return;
    }
    l->told_ms = now;
    l->rc = o->load_tick(o->load_ctx, l->m->weight_bytes, 0);
    if (l->rc != OK) {
        (void)err_set(l->e, l->rc, "loading was stopped");
    }
}

/* ---- memory of the back end ---- */

/* Brings loaded bytes to memory of the back end; stops the loading when that fails. */
static void send(loader *l, void *to, const void *from, size_t bytes) {
    model *m = l->m;
    if (l->rc != OK || to == from) {
        return;
    }
    m->ops->copy(&m->k, to, from, bytes);
    l->rc = m->k.rc;
    if (l->rc != OK && l->e != NULL) {
        *l->e = m->k.error;
    }
}

/* Host memory to prepare bytes in that go to `to`: itself where the host can write there. */
static void *stage(const loader *l, void *to, size_t bytes) {
    return l->m->ops->is_host ? to : mem_alloc(bytes);
}

static void unstage(loader *l, void *to, void *staged, size_t bytes) {
    send(l, to, staged, bytes);
    if (staged != to) {
        l->m->ops->wait(&l->m->k);
        mem_free(staged);
    }
}

static void keep_packed(model *m, const void *p) {
    if (m->n_packed == m->cap_packed) {
        m->cap_packed = m->cap_packed == 0 ? 256 : m->cap_packed * 2;
        m->packed = mem_realloc(m->packed, m->cap_packed * sizeof(*m->packed));
    }
    m->packed[m->n_packed++] = p;
}

/* ---- from a pack ---- */

/* The tensor of this name, in the form and size it must have; sets l->rc otherwise. */
static const pack_entry *find_entry(loader *l, const char *name, const int in_out[2]) {
    const pack_entry *t = pack_find(l->m->pack, name);
    if (t != NULL && (in_out == NULL || (t->n_in == in_out[0] && t->n_out == in_out[1]))) {
        return t;
    }
    l->rc = err_set(l->e, ERR_FORMAT, "%s: tensor %s is %s; run `tandem prepare` to make it again",
        pack_file(l->m->pack), name, t == NULL ? "missing" : "of another size than the model's");
    return NULL;
}

static const float *packed_floats(loader *l, const char *name, size_t n) {
    const pack_entry *t = find_entry(l, name, (const int[2]){(int)n, 1});
    if (t == NULL || l->m->is_dry) {
        return NULL;
    }
    if (t->kind != PACK_FLOATS) {
        l->rc =
            err_set(l->e, ERR_FORMAT, "%s: tensor %s is no vector", pack_file(l->m->pack), name);
        return NULL;
    }
    return (const float *)(const void *)(l->m->pack_area + t->offset);
}

static void packed_matrix(loader *l, const char *name, const int in_out[2], linear_weight *out) {
    static const matrix_form forms[PACK_N_KINDS] = {
        MATRIX_NONE, MATRIX_BF16, MATRIX_F32, MATRIX_EXL3};
    model *m = l->m;
    const pack_entry *t = find_entry(l, name, in_out);
    if (t == NULL) {
        return;
    }
    *out = (linear_weight){.form = forms[t->kind], .n_in = t->n_in, .n_out = t->n_out};
    if (m->is_dry) {
        return;
    }
    if (t->kind == PACK_EXL3) {
        const void *p = NULL;
        l->rc = m->ops->packed_view(&m->k, &t->exl3, m->pack_area + t->offset, &p, l->e);
        if (l->rc == OK) {
            keep_packed(m, p);
            out->packed = p;
        }
        return;
    }
    out->data = m->pack_area + t->offset;
    out->row_stride = (size_t)t->n_in;
}

/* ---- from the checkpoint ---- */

static const float *new_floats(loader *l, size_t n, float **staged) {
    void *p = NULL;
    if (l->rc == OK) {
        l->rc = model_new_memory(l->m, n * sizeof(float), &p, l->e);
    }
    *staged = p != NULL ? stage(l, p, n * sizeof(float)) : NULL;
    return p;
}

static int read_product(const loader *l, const char *const factors[2], float *out, size_t n) {
    float *other = mem_array(n, sizeof(float));
    int rc = checkpoint_floats(l->m->ck, factors[0], out, n, l->e);
    if (rc == OK) rc = checkpoint_floats(l->m->ck, factors[1], other, n, l->e);
    for (size_t i = 0; i < n; i++) {
        out[i] *= other[i];
    }
    mem_free(other);
    return rc;
}

const float *loader_product(loader *l, const char *name, const char *const factors[2], size_t n) {
    model *m = l->m;
    float *staged = NULL;
    if (l->rc != OK) {
        return NULL;
    }
    if (m->pack != NULL) {
        return packed_floats(l, name, n);
    }
    if (m->listing != NULL) {
        l->rc = listing_floats(m->listing, name, factors, n, l->e);
        return NULL;
    }
    const float *p = new_floats(l, n, &staged);
    if (staged == NULL) {
        return NULL;
    }
    l->rc = factors == NULL ? checkpoint_floats(m->ck, name, staged, n, l->e)
                            : read_product(l, factors, staged, n);
    unstage(l, (void *)(uintptr_t)p, staged, n * sizeof(float));
    return l->rc == OK ? p : NULL;
}

const float *loader_floats(loader *l, const char *name, size_t n) {
    return loader_product(l, name, NULL, n);
}

static void load_packed(loader *l, const linear_source *s, linear_weight *out) {
    model *m = l->m;
    out->form = MATRIX_EXL3;
    m->weight_bytes += exl3_linear_bytes(s->exl3.in, s->exl3.out, s->exl3.k2, s->exl3.codebook);
    if (m->is_dry) {
        return;
    }
    const void *p = NULL;
    l->rc = m->ops->packed_new(&m->k, &s->exl3, &p, l->e);
    if (l->rc != OK) {
        return;
    }
    keep_packed(m, p);
    out->packed = p;
}

/* Whether the rows can be read where they lie. */
static bool is_mappable(const linear_source *s) {
    size_t size = s->dtype == ST_BF16 ? 2 : 4;
    return s->kind == LINEAR_FLOAT && (s->dtype == ST_BF16 || s->dtype == ST_F32) &&
           (uintptr_t)s->weight % size == 0 && s->weight_stride % size == 0;
}

matrix_form binding_form(const linear_source *s) {
    if (s->kind == LINEAR_EXL3 && s->exl3.in == s->in && s->exl3.out == s->out) {
        return MATRIX_EXL3;
    }
    bool is_exact_bf16 = s->kind == LINEAR_FP8 || s->kind == LINEAR_FP4 ||
                         (s->kind == LINEAR_FLOAT && s->dtype == ST_BF16);
    return is_exact_bf16 ? MATRIX_BF16 : MATRIX_F32;
}

static void convert_rows(loader *l, const linear_source *s, linear_weight *out) {
    bool is_bf16 = s->kind != LINEAR_EXL3 && binding_form(s) == MATRIX_BF16;
    size_t n_in = (size_t)s->in, n_out = (size_t)s->out;
    size_t bytes = n_in * n_out * (is_bf16 ? 2 : 4);
    void *p = NULL;
    out->form = is_bf16 ? MATRIX_BF16 : MATRIX_F32;
    out->row_stride = n_in;
    l->rc = model_new_memory(l->m, bytes, &p, l->e);
    if (l->rc != OK || p == NULL) {
        return;
    }
    out->data = p;
    void *staged = stage(l, p, bytes);
    if (is_bf16) {
        linear_source_bf16(s, 0, s->out, staged);
    } else {
        l->rc = linear_source_floats(s, staged, l->e);
    }
    unstage(l, p, staged, bytes);
}

static void bind_source(loader *l, const linear_source *s, linear_weight *out) {
    *out = (linear_weight){.n_in = s->in, .n_out = s->out};
    if (binding_form(s) == MATRIX_EXL3 && !l->m->options.has_float_exl3) {
        load_packed(l, s, out);
    } else if (l->m->ops->is_host && is_mappable(s)) {
        size_t size = s->dtype == ST_BF16 ? 2 : 4;
        out->form = s->dtype == ST_BF16 ? MATRIX_BF16 : MATRIX_F32;
        out->data = s->weight;
        out->row_stride = s->weight_stride / size;
        l->m->weight_bytes += (size_t)s->out * s->weight_stride;
    } else {
        convert_rows(l, s, out);
    }
}

static void list_or_bind(loader *l, const char *name, const linear_source *s, linear_weight *out) {
    if (l->m->listing == NULL) {
        bind_source(l, s, out);
    } else {
        l->rc = listing_matrix(l->m->listing, name, s, l->e);
    }
    l->rc = err_add(l->e, l->rc, "%s", name);
    tell(l);
}

void loader_linear(loader *l, const char *name, linear_weight *out) {
    linear_source s;
    tp_part part;
    int rank_world[2] = {l->m->rank, l->m->world};
    if (l->rc != OK) {
        return;
    }
    if (l->m->pack != NULL) {
        packed_matrix(l, name, NULL, out);
        return;
    }
    l->rc = checkpoint_linear_part(l->m->ck, name, rank_world, &s, &part, l->e);
    if (l->rc != OK) {
        return;
    }
    CHECK_MSG(!part.is_absent, "%s is absent on rank %d", name, l->m->rank);
    if (part.is_partial_sum && l->m->rank > 0) {
        s.exl3.bias = NULL;
    }
    list_or_bind(l, name, &s, out);
}

void loader_table(loader *l, const char *name, const int rows_cols[2], linear_weight *out) {
    if (l->rc != OK) {
        return;
    }
    if (l->m->pack != NULL) {
        packed_matrix(l, name, (const int[2]){rows_cols[1], rows_cols[0]}, out);
        return;
    }
    const st_tensor *t = st_find(checkpoint_set(l->m->ck), name);
    uint64_t want = (uint64_t)rows_cols[0] * (uint64_t)rows_cols[1];
    if (t == NULL || st_elements(t) != want ||
        (t->dtype != ST_BF16 && t->dtype != ST_F16 && t->dtype != ST_F32)) {
        l->rc = err_set(l->e, ERR_FORMAT, "tensor %s is missing or not a float tensor of %d x %d",
            name, rows_cols[0], rows_cols[1]);
        return;
    }
    linear_source s = {.kind = LINEAR_FLOAT,
        .in = rows_cols[1],
        .out = rows_cols[0],
        .dtype = t->dtype,
        .weight = t->data,
        .weight_stride = (size_t)rows_cols[1] * st_dtype_bytes(t->dtype)};
    list_or_bind(l, name, &s, out);
}
