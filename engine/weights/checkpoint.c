#include "engine/weights/checkpoint.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/weights/exl3_pack.h"
#include "engine/weights/safetensors_internal.h"
#include "kernels/half.h"

enum { NAME_CAP = 256, MAX_NAMED_MISSING = 4, MAX_WARNINGS = 40 };

/* A linear under the name it is asked for. The module owns vectors that had to be expanded (legacy
 * signs, float bias); it is empty for plain linears. */
typedef struct known_linear {
    char *name;
    linear_source source;
    exl3_module module;
} known_linear;

struct checkpoint {
    model_config config;
    st_set *set;
    st_set *engram_set; /* other folder that holds the tables, or NULL */
    known_linear *linears;
    size_t n_linears, cap_linears;
    uint32_t *slots; /* [cap_slots], number in linears + 1 */
    size_t cap_slots;
    int n_exl3, n_plain;
    buf warnings;
    int n_warnings;
};

typedef struct check_run {
    checkpoint *k;
    const checkpoint_options *o;
    int n_missing, n_checked;
    buf missing;
} check_run;

static void warn(checkpoint *k, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void warn(checkpoint *k, const char *fmt, ...) {
    va_list ap;
    if (k->n_warnings++ >= MAX_WARNINGS) return;
    if (k->warnings.len > 0) {
        buf_putc(&k->warnings, '\n');
    }
    va_start(ap, fmt);
    buf_vprintf(&k->warnings, fmt, ap);
    va_end(ap);
}

static const st_tensor *find_suffix(const st_set *s, const char *name, const char *suffix) {
    char full[NAME_CAP];
    int n = snprintf(full, sizeof full, "%s%s", name, suffix);
    return n > 0 && (size_t)n < sizeof full ? st_find(s, full) : NULL;
}

static int wrong_tensor(const checkpoint *k, const st_tensor *t, const char *want, err *e) {
    char is[160];
    st_describe(t, is, sizeof is);
    return err_set(e, ERR_FORMAT,
        "tensor %s in %s is %s but %s; config.json and weights are not of the same "
        "model, download both again",
        t->name, st_path(k->set, t->i_file), is, want);
}

static bool is_float(st_dtype d) {
    return d == ST_BF16 || d == ST_F16 || d == ST_F32;
}

static int check_scale(const checkpoint *k, const st_tensor *weight, const char *name,
    const uint64_t dims[2], err *e) {
    char want[96];
    const st_tensor *t = find_suffix(k->set, name, ".scale");
    if (t == NULL) {
        return err_set(e, ERR_NOT_FOUND,
            "tensor %s.scale is missing (%s is in %s); download the complete checkpoint", name,
            weight->name, st_path(k->set, weight->i_file));
    }
    snprintf(want, sizeof want, "must be F8_E8M0 [%llu, %llu]", (unsigned long long)dims[0],
        (unsigned long long)dims[1]);
    if ((t->dtype != ST_F8_E8M0 && t->dtype != ST_U8) || !st_has_shape(t, 2, dims))
        return wrong_tensor(k, t, want, e);
    return OK;
}

/* Describes how P.weight of official shape [out, in] is stored. */
static int plain_linear(const checkpoint *k, const st_tensor *t, const char *name,
    const uint64_t dims[2], linear_source *out, err *e) {
    char want[160];
    uint64_t pairs[2] = {dims[0], dims[1] / 2};
    uint64_t fp8_scale[2] = {(dims[0] + 31) / 32, (dims[1] + 31) / 32};
    uint64_t fp4_scale[2] = {dims[0], (dims[1] + 31) / 32};
    *out = (linear_source){
        .in = (int)dims[1], .out = (int)dims[0], .dtype = t->dtype, .weight = t->data};
    snprintf(want, sizeof want,
        "must be BF16, F16, F32 or F8_E4M3 [%llu, %llu] or FP4 pairs I8 [%llu, %llu]",
        (unsigned long long)dims[0], (unsigned long long)dims[1], (unsigned long long)pairs[0],
        (unsigned long long)pairs[1]);
    int rc = OK;
    if (is_float(t->dtype) && st_has_shape(t, 2, dims)) {
        out->kind = LINEAR_FLOAT;
        out->weight_stride = (size_t)dims[1] * st_dtype_bytes(t->dtype);
        return OK;
    }
    if (t->dtype == ST_F8_E4M3 && st_has_shape(t, 2, dims)) {
        out->kind = LINEAR_FP8;
        out->weight_stride = (size_t)dims[1];
        out->scale_stride = (size_t)fp8_scale[1];
        rc = check_scale(k, t, name, fp8_scale, e);
    } else if ((t->dtype == ST_I8 || t->dtype == ST_U8) && dims[1] % 2 == 0 &&
               st_has_shape(t, 2, pairs)) {
        out->kind = LINEAR_FP4;
        out->weight_stride = (size_t)pairs[1];
        out->scale_stride = (size_t)fp4_scale[1];
        rc = check_scale(k, t, name, fp4_scale, e);
    } else {
        return wrong_tensor(k, t, want, e);
    }
    if (rc == OK) {
        out->scale = find_suffix(k->set, name, ".scale")->data;
    }
    return rc;
}

static int round_up_128(uint64_t n) {
    return (int)((n + 127) / 128 * 128);
}

static void add_linear(
    checkpoint *k, const char *name, const linear_source *s, const exl3_module *m) {
    if (k->n_linears == k->cap_linears) {
        k->cap_linears = k->cap_linears == 0 ? 256 : k->cap_linears * 2;
        k->linears = mem_realloc(k->linears, k->cap_linears * sizeof *k->linears);
    }
    known_linear *l = &k->linears[k->n_linears++];
    memset(l, 0, sizeof *l);
    l->name = mem_strdup(name);
    l->source = *s;
    if (m != NULL) {
        l->module = *m;
    }
}

static int exl3_linear_source(checkpoint *k, const char *name, const uint64_t dims[2], err *e) {
    exl3_module m;
    char want[96];
    int rc = exl3_module_find(k->set, name, &m, e);
    if (rc != OK) return rc;
    linear_source s = {
        .kind = LINEAR_EXL3, .in = (int)dims[1], .out = (int)dims[0], .exl3 = m.matrix};
    if (m.matrix.in == round_up_128(dims[1]) && m.matrix.out == round_up_128(dims[0])) {
        add_linear(k, name, &s, &m);
        return OK;
    }
    snprintf(want, sizeof want, "the configuration needs [%d, %d, 16 x bits]",
        round_up_128(dims[1]) / 16, round_up_128(dims[0]) / 16);
    rc = wrong_tensor(k, m.trellis, want, e);
    exl3_module_release(&m);
    return rc;
}

/* The official wo_a holds the groups as row blocks; each becomes a linear of its own. */
static int add_wo_a_slices(checkpoint *k, const char *name, const linear_source *whole, err *e) {
    int groups = k->config.o_groups;
    int rc = OK;
    for (int g = 0; g < groups && rc == OK; g++) {
        char slice[NAME_CAP];
        linear_source s;
        tp_part part = {
            0, whole->in, whole->out / groups * g, whole->out / groups * (g + 1), false, false};
        snprintf(slice, sizeof slice, "%s.slice.%d", name, g);
        rc = linear_source_slice(whole, &part, &s, e);
        if (rc == OK) {
            add_linear(k, slice, &s, NULL);
        }
    }
    return err_add(e, rc, "%s", name);
}

static void note_missing(check_run *r, const char *name) {
    if (r->n_missing++ < MAX_NAMED_MISSING) {
        buf_printf(&r->missing, "%s%s", r->missing.len > 0 ? ", " : "", name);
    }
}

static int check_linear(check_run *r, const char *name, const uint64_t dims[2], err *e) {
    checkpoint *k = r->k;
    linear_source s;
    const st_tensor *weight = find_suffix(k->set, name, ".weight");
    if (exl3_module_exists(k->set, name)) {
        if (weight != NULL) {
            warn(k, "%s in %s stands beside %s.trellis and is not used", weight->name,
                st_path(k->set, weight->i_file), name);
        }
        k->n_exl3++;
        return exl3_linear_source(k, name, dims, e);
    }
    if (weight == NULL) {
        note_missing(r, name);
        return OK;
    }
    k->n_plain++;
    int rc = plain_linear(k, weight, name, dims, &s, e);
    if (rc != OK) return rc;
    if (str_ends(name, "attn.wo_a")) return add_wo_a_slices(k, name, &s, e);
    add_linear(k, name, &s, NULL);
    return OK;
}

/* wo_a: one official matrix, or one EXL3 matrix for each output group. */
static int check_wo_a(check_run *r, const weight_spec *w, err *e) {
    char name[NAME_CAP];
    int groups = r->k->config.o_groups;
    uint64_t dims[2] = {w->dims[0] / (uint64_t)groups, w->dims[1]};
    int rc = OK;
    if (find_suffix(r->k->set, w->name, ".weight") != NULL)
        return check_linear(r, w->name, w->dims, e);
    for (int g = 0; g < groups && rc == OK; g++) {
        snprintf(name, sizeof name, "%s.slice.%d", w->name, g);
        rc = check_linear(r, name, dims, e);
    }
    return rc;
}

static int check_plain(check_run *r, const weight_spec *w, err *e) {
    const st_tensor *t = st_find(r->k->set, w->name);
    char want[128];
    if (t == NULL) {
        if (w->role == WEIGHT_PLAIN) {
            note_missing(r, w->name);
        }
        return OK;
    }
    snprintf(want, sizeof want, "must be BF16, F16 or F32 [%llu%s%.0llu]",
        (unsigned long long)w->dims[0], w->n_dims > 1 ? ", " : "", (unsigned long long)w->dims[1]);
    return is_float(t->dtype) && st_has_shape(t, w->n_dims, w->dims)
               ? OK
               : wrong_tensor(r->k, t, want, e);
}

static int check_table(check_run *r, const weight_spec *w, err *e) {
    checkpoint *k = r->k;
    uint64_t scales[2] = {w->dims[0], w->dims[1] / 32};
    const st_set *s = find_suffix(k->set, w->name, ".weight") != NULL || k->engram_set == NULL
                          ? k->set
                          : k->engram_set;
    const st_tensor *t = find_suffix(s, w->name, ".weight");
    const st_tensor *q = find_suffix(s, w->name, ".scale");
    if (t == NULL || q == NULL) {
        if (!r->o->without_engram) {
            note_missing(r, w->name);
        }
        return OK;
    }
    bool ok = t->dtype == ST_F8_E4M3 && st_has_shape(t, 2, w->dims) &&
              (q->dtype == ST_F8_E8M0 || q->dtype == ST_U8) && st_has_shape(q, 2, scales);
    if (ok) return OK;
    return err_set(e, ERR_FORMAT,
        "table %s in %s must be F8_E4M3 [%llu, %llu] with one F8_E8M0 scale for 32 "
        "columns; download it again",
        w->name, st_path(s, t->i_file), (unsigned long long)w->dims[0],
        (unsigned long long)w->dims[1]);
}

static int check_spec(void *ctx, const weight_spec *w, err *e) {
    check_run *r = ctx;
    if (w->is_stage && r->o->without_stages) return OK;
    if (r->o->only_tables && w->role != WEIGHT_TABLE) return OK;
    r->n_checked++;
    if (w->role == WEIGHT_TABLE) return check_table(r, w, e);
    if (w->role != WEIGHT_LINEAR) return check_plain(r, w, e);
    return str_ends(w->name, "attn.wo_a") ? check_wo_a(r, w, e)
                                          : check_linear(r, w->name, w->dims, e);
}

static int check_all(checkpoint *k, const char *dir, const checkpoint_options *o, err *e) {
    check_run r = {k, o, 0, 0, BUF_INIT};
    int rc = weight_specs_each(&k->config, check_spec, &r, e);
    if (rc == OK && r.n_missing > 0) {
        rc = err_set(e, ERR_NOT_FOUND,
            "%s: incomplete checkpoint: %d of %d weights are missing: %s%s; download the "
            "rest, or use the folder of the complete model",
            dir, r.n_missing, r.n_checked, buf_cstr(&r.missing),
            r.n_missing > MAX_NAMED_MISSING ? ", ..." : "");
    }
    buf_release(&r.missing);
    return rc;
}

static size_t slot_of(const checkpoint *k, const char *name) {
    size_t at = (size_t)st_name_hash(name) & (k->cap_slots - 1);
    while (k->slots[at] != 0 && strcmp(k->linears[k->slots[at] - 1].name, name) != 0) {
        at = (at + 1) & (k->cap_slots - 1);
    }
    return at;
}

static void build_table(checkpoint *k) {
    k->cap_slots = 16;
    while (k->cap_slots < k->n_linears * 2) {
        k->cap_slots *= 2;
    }
    k->slots = mem_array(k->cap_slots, sizeof *k->slots);
    for (size_t i = 0; i < k->n_linears; i++) {
        k->slots[slot_of(k, k->linears[i].name)] = (uint32_t)i + 1;
    }
}

void checkpoint_engram_dir(const char *dir, buf *out) {
    buf models = BUF_INIT, data = BUF_INIT;
    char *plain = mem_strdup(dir);
    for (size_t n = strlen(plain); n > 1 && plain[n - 1] == '/';)
        plain[--n] = '\0';
    buf_reset(out);
    if (path_dir(&models, plain) == OK && strcmp(path_base(buf_cstr(&models)), "models") == 0 &&
        path_dir(&data, buf_cstr(&models)) == OK) {
        buf_printf(out, "%s/engram/%s", buf_cstr(&data), path_base(plain));
        if (!dir_exists(buf_cstr(out))) buf_reset(out);
    }
    mem_free(plain);
    buf_release(&models);
    buf_release(&data);
}

int checkpoint_open(
    const char *dir, const model_config *c, const checkpoint_options *o, checkpoint **out, err *e) {
    static const checkpoint_options defaults = {0};
    checkpoint *k = mem_alloc(sizeof *k);
    k->config = *c;
    k->warnings.max = BUF_DEFAULT_MAX;
    o = o != NULL ? o : &defaults;
    int rc = o->only_tables ? st_open_part(dir, ST_MAPPED, &k->set, e)
                            : st_open(dir, ST_MAPPED, &k->set, e);
    if (rc == OK && o->engram_dir != NULL) {
        rc = st_open_part(o->engram_dir, ST_MAPPED, &k->engram_set, e);
    }
    if (rc == OK) {
        if (*st_warnings(k->set) != '\0') {
            warn(k, "%s", st_warnings(k->set));
        }
        rc = check_all(k, dir, o, e);
    }
    build_table(k);
    if (rc != OK) {
        checkpoint_close(k);
        k = NULL;
    }
    *out = k;
    return rc;
}

void checkpoint_close(checkpoint *k) {
    if (k == NULL) return;
    for (size_t i = 0; i < k->n_linears; i++) {
        mem_free(k->linears[i].name);
        exl3_module_release(&k->linears[i].module);
    }
    mem_free(k->linears);
    mem_free(k->slots);
    st_close(k->set);
    st_close(k->engram_set);
    buf_release(&k->warnings);
    mem_free(k);
}

const st_set *checkpoint_set(const checkpoint *k) {
    return k->set;
}

const char *checkpoint_warnings(const checkpoint *k) {
    return buf_cstr(&k->warnings);
}

void checkpoint_count(const checkpoint *k, int *n_exl3, int *n_plain) {
    *n_exl3 = k->n_exl3;
    *n_plain = k->n_plain;
}

bool checkpoint_has(const checkpoint *k, const char *name) {
    return st_find(k->set, name) != NULL;
}

int checkpoint_linear(const checkpoint *k, const char *name, linear_source *out, err *e) {
    uint32_t at = k->slots[slot_of(k, name)];
    if (at == 0) return err_set(e, ERR_NOT_FOUND, "the checkpoint has no linear %s", name);
    *out = k->linears[at - 1].source;
    return OK;
}

int checkpoint_linear_part(const checkpoint *k, const char *name, const int rank_world[2],
    linear_source *out, tp_part *part, err *e) {
    linear_source whole;
    int rc = checkpoint_linear(k, name, &whole, e);
    if (rc != OK) return rc;
    int in_out[2] = {whole.in, whole.out};
    rc = tp_part_of(&k->config, name, rank_world, in_out, part, e);
    if (rc != OK || part->is_absent) return rc;
    rc = linear_source_slice(&whole, part, out, e);
    return err_add(e, rc, "%s on rank %d of %d", name, rank_world[0], rank_world[1]);
}

int checkpoint_floats(const checkpoint *k, const char *name, float *out, size_t n, err *e) {
    const st_tensor *t = st_find(k->set, name);
    if (t == NULL) return err_set(e, ERR_NOT_FOUND, "tensor %s is missing", name);
    if (!is_float(t->dtype) || st_elements(t) != n) {
        char want[64];
        snprintf(want, sizeof want, "%zu floats were expected", n);
        return wrong_tensor(k, t, want, e);
    }
    linear_source s = {
        .kind = LINEAR_FLOAT, .in = (int)n, .out = 1, .dtype = t->dtype, .weight = t->data};
    for (size_t at = 0; at < n; at += (size_t)s.in) {
        s.in = n - at < (1u << 20) ? (int)(n - at) : 1 << 20;
        s.weight = (const uint8_t *)t->data + at * st_dtype_bytes(t->dtype);
        linear_source_rows(&s, 0, 1, out + at);
    }
    return OK;
}

int checkpoint_engram(const checkpoint *k, int i_engram, const uint8_t **values,
    const uint8_t **scales, int64_t *n_rows, err *e) {
    char name[64];
    CHECK(i_engram >= 0 && i_engram < k->config.n_engram);
    snprintf(name, sizeof name, "layers.%d.engram.embed", k->config.engram[i_engram].layer);
    const st_set *s = find_suffix(k->set, name, ".weight") != NULL || k->engram_set == NULL
                          ? k->set
                          : k->engram_set;
    const st_tensor *t = find_suffix(s, name, ".weight");
    const st_tensor *q = find_suffix(s, name, ".scale");
    if (t == NULL || q == NULL) {
        return err_set(e, ERR_NOT_FOUND,
            "table %s is not in this checkpoint; it is in the last shards of the original release",
            name);
    }
    *values = t->data;
    *scales = q->data;
    *n_rows = (int64_t)t->dims[0];
    return OK;
}
