#include "engine/weights/exl3_pack.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "kernels/half.h"

enum { NAME_CAP = 512 };

static const st_tensor *find_part(const st_set *s, const char *prefix, const char *part) {
    char name[NAME_CAP];
    int n = snprintf(name, sizeof name, "%s%s%s", prefix, *prefix != '\0' ? "." : "", part);
    return n > 0 && (size_t)n < sizeof name ? st_find(s, name) : NULL;
}

bool exl3_module_exists(const st_set *s, const char *prefix) {
    return find_part(s, prefix, "trellis") != NULL;
}

static int wrong(const st_set *s, const st_tensor *t, const char *want, err *e) {
    char is[160];
    st_describe(t, is, sizeof is);
    return err_set(e, ERR_FORMAT,
        "tensor %s in %s is %s but %s; the file was not made by an EXL3 quantizer or is "
        "damaged, download it again",
        t->name, st_path(s, t->i_file), is, want);
}

static int missing(
    const st_set *s, const st_tensor *beside, const char *prefix, const char *part, err *e) {
    return err_set(e, ERR_NOT_FOUND,
        "tensor %s.%s is missing (its %s is in %s); download the complete checkpoint", prefix, part,
        beside->name, st_path(s, beside->i_file));
}

static int check_marker(const st_set *s, const st_tensor *t, uint32_t want, err *e) {
    uint32_t value;
    char text[64];
    if (t->dtype != ST_I32 && t->dtype != ST_U32) return wrong(s, t, "must be an I32 scalar", e);
    if (t->bytes != 4) return wrong(s, t, "must be a scalar", e);
    if (t->data == NULL) return OK;
    memcpy(&value, t->data, sizeof value);
    if (value == want) return OK;
    snprintf(text, sizeof text, "holds 0x%08x where 0x%08x is known", value, want);
    return wrong(s, t, text, e);
}

static int check_codebook(const st_set *s, const char *prefix, exl3_codebook *out, err *e) {
    const st_tensor *mul1 = find_part(s, prefix, "mul1");
    const st_tensor *mcg = find_part(s, prefix, "mcg");
    *out = mul1 != NULL ? EXL3_MUL1 : mcg != NULL ? EXL3_MCG : EXL3_3INST;
    if (mul1 != NULL && mcg != NULL) {
        return wrong(s, mcg, "stands beside mul1: a module has one codebook", e);
    }
    if (mul1 != NULL) return check_marker(s, mul1, EXL3_MUL1_MULTIPLIER, e);
    if (mcg != NULL) return check_marker(s, mcg, EXL3_MCG_MULTIPLIER, e);
    return OK;
}

static int check_trellis(const st_set *s, const st_tensor *t, exl3_matrix *m, err *e) {
    if (t->dtype != ST_I16) return wrong(s, t, "a trellis must be I16", e);
    if (t->n_dims != 3) return wrong(s, t, "a trellis must have three dimensions", e);
    if (t->dims[0] == 0 || t->dims[1] == 0 || t->dims[0] % 8 != 0 || t->dims[1] % 8 != 0) {
        return wrong(s, t,
            "both sizes of the matrix (16 times the first dimensions) must be multiples of 128", e);
    }
    if (t->dims[0] > EXL3_MAX_IN / 16 || t->dims[1] > (1u << 24) / 16) {
        return wrong(s, t, "the matrix is larger than any this program knows", e);
    }
    if (t->dims[2] % 8 != 0 || t->dims[2] > 8 * EXL3_MAX_K2 ||
        !exl3_rate_ok(m->codebook, (int)(t->dims[2] / 8))) {
        return wrong(s, t,
            "the last dimension must be 16 times a known number of bits (1 to 8; 1.5, "
            "2.5, 3.5 with mul1)",
            e);
    }
    m->in = (int)t->dims[0] * 16;
    m->out = (int)t->dims[1] * 16;
    m->k2 = (int)(t->dims[2] / 8);
    m->trellis = t->data;
    m->slice_stride = 0;
    return OK;
}

/* Turns a legacy sign field (bit i of word w: element 16 w + i, 1 = -1.0) into fp16 values. */
static uint16_t *signs_to_half(const st_tensor *t, int n) {
    uint16_t *out = mem_array((size_t)n, sizeof *out);
    const unsigned char *p = t->data;
    for (int i = 0; i < n; i++) {
        unsigned word = p[i / 16 * 2] | (unsigned)p[i / 16 * 2 + 1] << 8;
        out[i] = (word >> (i % 16) & 1u) != 0 ? 0xBC00 : 0x3C00;
    }
    return out;
}

static int check_vector(const st_set *s, const st_tensor *t, int n, err *e) {
    char want[96];
    uint64_t dims[1] = {(uint64_t)n};
    snprintf(want, sizeof want, "must be F16 [%d], one for each channel of the trellis", n);
    return t->dtype == ST_F16 && st_has_shape(t, 1, dims) ? OK : wrong(s, t, want, e);
}

static int check_signs(const st_set *s, const st_tensor *t, int n, err *e) {
    char want[96];
    uint64_t dims[1] = {(uint64_t)n / 16};
    snprintf(
        want, sizeof want, "must be I16 [%d], one bit for each channel of the trellis", n / 16);
    return t->dtype == ST_I16 && st_has_shape(t, 1, dims) ? OK : wrong(s, t, want, e);
}

/* One of the two channel vectors: parts[0] is the modern name, parts[1] the legacy one. */
static int find_vector(const st_set *s, const char *prefix, const char *const parts[2],
    const exl3_module *m, bool is_input, const st_tensor **tensor, uint16_t **owned,
    const void **data, err *e) {
    int n = is_input ? m->matrix.in : m->matrix.out;
    const st_tensor *t = find_part(s, prefix, parts[0]);
    *tensor = t;
    if (t != NULL) {
        *data = t->data;
        return check_vector(s, t, n, e);
    }
    t = find_part(s, prefix, parts[1]);
    if (t == NULL) return missing(s, m->trellis, prefix, parts[0], e);
    *tensor = t;
    int rc = check_signs(s, t, n, e);
    if (rc == OK && t->data != NULL) {
        *owned = signs_to_half(t, n);
        *data = *owned;
    }
    return rc;
}

/* When both vectors are missing, both are named. */
static int check_vectors(const st_set *s, const char *prefix, const st_tensor *trellis, err *e) {
    bool has_input = find_part(s, prefix, "suh") != NULL || find_part(s, prefix, "su") != NULL;
    bool has_output = find_part(s, prefix, "svh") != NULL || find_part(s, prefix, "sv") != NULL;
    if (has_input || has_output) return OK;
    return err_set(e, ERR_NOT_FOUND,
        "tensors %s.suh and %s.svh are missing (their %s is in %s); download the complete "
        "checkpoint",
        prefix, prefix, trellis->name, st_path(s, trellis->i_file));
}

static int find_bias(const st_set *s, const char *prefix, exl3_module *m, err *e) {
    const st_tensor *t = find_part(s, prefix, "bias");
    uint64_t dims[1] = {(uint64_t)m->matrix.out};
    m->bias = t;
    if (t == NULL) return OK;
    if (t->dtype == ST_F16) {
        m->matrix.bias = t->data;
        return check_vector(s, t, m->matrix.out, e);
    }
    if (t->dtype != ST_F32 || !st_has_shape(t, 1, dims)) {
        return wrong(s, t, "a bias must be F16 or F32, one for each output", e);
    }
    if (t->data == NULL) return OK;
    m->owned_bias = mem_array((size_t)m->matrix.out, sizeof *m->owned_bias);
    for (int i = 0; i < m->matrix.out; i++) {
        float f;
        memcpy(&f, (const char *)t->data + (size_t)i * 4, sizeof f);
        m->owned_bias[i] = half_from_float(f);
    }
    m->matrix.bias = m->owned_bias;
    return OK;
}

int exl3_module_find(const st_set *s, const char *prefix, exl3_module *out, err *e) {
    static const char *const inputs[2] = {"suh", "su"};
    static const char *const outputs[2] = {"svh", "sv"};
    memset(out, 0, sizeof *out);
    out->trellis = find_part(s, prefix, "trellis");
    if (out->trellis == NULL)
        return err_set(e, ERR_NOT_FOUND, "tensor %s.trellis is missing", prefix);
    int rc = check_codebook(s, prefix, &out->matrix.codebook, e);
    if (rc == OK) {
        rc = check_trellis(s, out->trellis, &out->matrix, e);
    }
    if (rc == OK) {
        rc = check_vectors(s, prefix, out->trellis, e);
    }
    if (rc == OK) {
        rc = find_vector(
            s, prefix, inputs, out, true, &out->suh, &out->owned_suh, &out->matrix.suh, e);
    }
    if (rc == OK) {
        rc = find_vector(
            s, prefix, outputs, out, false, &out->svh, &out->owned_svh, &out->matrix.svh, e);
    }
    if (rc == OK) {
        rc = find_bias(s, prefix, out, e);
    }
    if (rc != OK) {
        exl3_module_release(out);
    }
    return rc;
}

void exl3_module_release(exl3_module *m) {
    mem_free(m->owned_suh);
    mem_free(m->owned_svh);
    mem_free(m->owned_bias);
    memset(m, 0, sizeof *m);
}

int exl3_pack_check(const st_set *s, err *e) {
    static const char *const parts[] = {".suh", ".svh", ".su", ".sv", ".mul1", ".mcg"};
    for (size_t i = 0; i < st_count(s); i++) {
        const st_tensor *t = st_at(s, i);
        char prefix[NAME_CAP];
        const char *dot = strrchr(t->name, '.');
        if (dot == NULL || (size_t)(dot - t->name) >= sizeof prefix) continue;
        memcpy(prefix, t->name, (size_t)(dot - t->name));
        prefix[dot - t->name] = '\0';
        if (strcmp(dot, ".trellis") == 0) {
            exl3_module m;
            int rc = exl3_module_find(s, prefix, &m, e);
            if (rc != OK) return rc;
            exl3_module_release(&m);
            continue;
        }
        for (size_t j = 0; j < sizeof parts / sizeof *parts; j++) {
            if (strcmp(dot, parts[j]) == 0 && !exl3_module_exists(s, prefix))
                return missing(s, t, prefix, "trellis", e);
        }
    }
    return OK;
}

int exl3_split_check(const char *name, int size, int ways, err *e) {
    if (ways > 0 && size % ways == 0 && size / ways % EXL3_BLOCK == 0) return OK;
    return err_set(e, ERR_UNSUPPORTED,
        "%s: %d channels cannot be cut into %d equal parts that are multiples of 128", name, size,
        ways);
}
