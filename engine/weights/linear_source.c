#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/weights/checkpoint.h"
#include "kernels/half.h"

enum { SCALE_BLOCK = 32 };

float fp8_e4m3_value(uint8_t code) {
    int exponent = code >> 3 & 15;
    int mantissa = code & 7;
    float v;
    if (exponent == 15 && mantissa == 7) return NAN;
    v = exponent == 0 ? ldexpf((float)mantissa, -9) : ldexpf((float)(8 + mantissa), exponent - 10);
    return (code & 0x80) != 0 ? -v : v;
}

float fp4_e2m1_value(unsigned code) {
    static const float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    float v = magnitudes[code & 7u];
    return (code & 8u) != 0 ? -v : v;
}

float e8m0_value(uint8_t code) {
    if (code == 255) return NAN;
    return ldexpf(1.0f, (int)code - 127);
}

static void float_row(const linear_source *s, const uint8_t *row, float *out) {
    for (int i = 0; i < s->in; i++) {
        uint16_t h;
        if (s->dtype == ST_F32) {
            memcpy(out + i, row + (size_t)i * 4, sizeof *out);
            continue;
        }
        memcpy(&h, row + (size_t)i * 2, sizeof h);
        out[i] = s->dtype == ST_F16 ? half_to_float(h) : bf16_to_float(h);
    }
}

static void fp8_row(const linear_source *s, const uint8_t *row, const uint8_t *scale, float *out) {
    for (int i = 0; i < s->in; i++) {
        out[i] = fp8_e4m3_value(row[i]) * e8m0_value(scale[i / SCALE_BLOCK]);
    }
}

static void fp4_row(const linear_source *s, const uint8_t *row, const uint8_t *scale, float *out) {
    for (int i = 0; i < s->in; i++) {
        unsigned code = (unsigned)row[i / 2] >> (i % 2 * 4);
        out[i] = fp4_e2m1_value(code) * e8m0_value(scale[i / SCALE_BLOCK]);
    }
}

void linear_source_rows(const linear_source *s, int row0, int n, float *out) {
    CHECK(s->kind != LINEAR_EXL3 && row0 >= 0 && n >= 0 && row0 + n <= s->out);
    for (int r = row0; r < row0 + n; r++, out += s->in) {
        const uint8_t *row = s->weight + (size_t)r * s->weight_stride;
        if (s->kind == LINEAR_FLOAT) {
            float_row(s, row, out);
        } else if (s->kind == LINEAR_FP8) {
            fp8_row(s, row, s->scale + (size_t)(r / SCALE_BLOCK) * s->scale_stride, out);
        } else {
            fp4_row(s, row, s->scale + (size_t)r * s->scale_stride, out);
        }
    }
}

void linear_source_bf16(const linear_source *s, int row0, int n, uint16_t *out) {
    float *row = mem_array((size_t)s->in, sizeof *row);
    for (int r = 0; r < n; r++, out += s->in) {
        linear_source_rows(s, row0 + r, 1, row);
        for (int i = 0; i < s->in; i++) {
            out[i] = bf16_from_float(row[i]);
        }
    }
    mem_free(row);
}

int linear_source_floats(const linear_source *s, float *out, err *e) {
    if (s->kind != LINEAR_EXL3) {
        linear_source_rows(s, 0, s->out, out);
        return OK;
    }
    size_t n_in = (size_t)s->exl3.in;
    size_t n_out = (size_t)s->exl3.out;
    float *full = mem_try_alloc(n_in * n_out * sizeof *full);
    if (full == NULL)
        return err_set(e, ERR_MEMORY, "no memory to decode a matrix of %zu x %zu", n_in, n_out);
    int rc = exl3_decode_full(&s->exl3, full, e);
    for (int r = 0; rc == OK && r < s->out; r++) {
        for (int i = 0; i < s->in; i++) {
            out[(size_t)r * (size_t)s->in + (size_t)i] = full[(size_t)i * n_out + (size_t)r];
        }
    }
    mem_free(full);
    return rc;
}

static int slice_exl3(const linear_source *s, const tp_part *p, linear_source *out, err *e) {
    int in_range[2] = {p->in0, p->in1 == s->in ? s->exl3.in : p->in1};
    int out_range[2] = {p->out0, p->out1 == s->out ? s->exl3.out : p->out1};
    return exl3_matrix_slice(&s->exl3, in_range, out_range, &out->exl3, e);
}

int linear_source_slice(const linear_source *s, const tp_part *part, linear_source *out, err *e) {
    bool ok = part->in0 >= 0 && part->in0 < part->in1 && part->in1 <= s->in && part->out0 >= 0 &&
              part->out0 < part->out1 && part->out1 <= s->out;
    if (!ok) {
        return err_set(e, ERR_ARG,
            "a part of inputs %d..%d and outputs %d..%d does not lie in a linear of %d x %d",
            part->in0, part->in1, part->out0, part->out1, s->in, s->out);
    }
    linear_source r = *s;
    r.in = part->in1 - part->in0;
    r.out = part->out1 - part->out0;
    if (s->kind == LINEAR_EXL3) {
        int rc = slice_exl3(s, part, &r, e);
        if (rc != OK) return rc;
    } else if (s->kind == LINEAR_FLOAT) {
        r.weight +=
            (size_t)part->out0 * s->weight_stride + (size_t)part->in0 * st_dtype_bytes(s->dtype);
    } else {
        bool is_fp8 = s->kind == LINEAR_FP8;
        if (part->in0 % SCALE_BLOCK != 0 || (is_fp8 && part->out0 % SCALE_BLOCK != 0)) {
            return err_set(e, ERR_UNSUPPORTED,
                "a part that begins at input %d, output %d does not fall on a scale block of 32",
                part->in0, part->out0);
        }
        r.weight += (size_t)part->out0 * s->weight_stride + (size_t)part->in0 / (is_fp8 ? 1 : 2);
        r.scale += (size_t)(is_fp8 ? part->out0 / SCALE_BLOCK : part->out0) * s->scale_stride +
                   (size_t)(part->in0 / SCALE_BLOCK);
    }
    *out = r;
    return OK;
}

/* The last parts of the name, without block and number: "attn.wq_b", "ffn.experts.w1". */
static bool name_has(const char *name, const char *part) {
    return strstr(name, part) != NULL;
}

static int cut(const char *name, int size, const int rank_world[2], int range[2], err *e) {
    if (size % rank_world[1] != 0) {
        return err_set(e, ERR_UNSUPPORTED, "%s: %d channels do not divide over %d ranks", name,
            size, rank_world[1]);
    }
    range[0] = size / rank_world[1] * rank_world[0];
    range[1] = range[0] + size / rank_world[1];
    return OK;
}

static int cut_wo_a(
    const model_config *c, const char *name, const int rank_world[2], tp_part *out, err *e) {
    const char *slice = strstr(name, ".slice.");
    int groups[2] = {0, 0};
    int g = slice != NULL ? slice[7] - '0' : 0;
    if (slice != NULL && slice[8] >= '0' && slice[8] <= '9') {
        g = g * 10 + slice[8] - '0';
    }
    int rc = cut(name, c->o_groups, rank_world, groups, e);
    if (rc == OK) {
        out->is_absent = g < groups[0] || g >= groups[1];
    }
    return rc;
}

int tp_part_of(const model_config *c, const char *name, const int rank_world[2],
    const int in_out[2], tp_part *out, err *e) {
    int range[2] = {0, 0};
    int rc = OK;
    CHECK(rank_world[1] >= 1 && rank_world[0] >= 0 && rank_world[0] < rank_world[1]);
    *out = (tp_part){0, in_out[0], 0, in_out[1], false, false};
    if (rank_world[1] == 1) return OK;
    if (name_has(name, "attn.wo_a.slice.")) return cut_wo_a(c, name, rank_world, out, e);
    bool is_indexer = name_has(name, "indexer.") || name_has(name, "compressor.");
    bool by_out = strcmp(name, "head") == 0 || (name_has(name, "attn.wq_b") && !is_indexer) ||
                  (name_has(name, "ffn.") && (name_has(name, ".w1") || name_has(name, ".w3")));
    bool by_in = name_has(name, "attn.wo_b") || (name_has(name, "ffn.") && name_has(name, ".w2")) ||
                 name_has(name, "engram.wkv");
    if (by_out || by_in) {
        rc = cut(name, in_out[by_out ? 1 : 0], rank_world, range, e);
    }
    if (rc == OK && by_out) {
        out->out0 = range[0];
        out->out1 = range[1];
    } else if (rc == OK && by_in) {
        out->in0 = range[0];
        out->in1 = range[1];
        out->is_partial_sum = true;
    }
    return rc;
}
