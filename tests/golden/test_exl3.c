/* EXL3 against vectors made by exllamav3 itself (GOLDEN_DIR/exl3): codebooks, decoding, packing,
 * rotation, layers, cuts for tensor parallelism, and the quantizer. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/buf.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/weights/exl3_pack.h"
#include "engine/weights/quantize_matrix.h"
#include "engine/weights/safetensors.h"
#include "kernels/exl3/exl3.h"
#include "kernels/half.h"
#include "tests/harness/vectors.h"

enum { N = EXL3_TILE_VALUES };

typedef struct layer_case {
    vectors *v;
    const char *file;
    const st_set *set;
    exl3_module module;
    int n_rows;
    float *x;     /* [n_rows][in] */
    float *y_ref; /* [n_rows][out] */
} layer_case;

static void verdict(
    vectors *v, const char *file, const char *what, bool ok, const char *want, const char *got) {
    char id[160];
    if (ok) {
        vectors_pass(v);
        return;
    }
    snprintf(id, sizeof id, "%s: %s", file, what);
    vectors_fail(v, id, want, got);
}

static void limit(vectors *v, const char *file, const char *what, double got, double most) {
    char want[64];
    char is[64];
    snprintf(want, sizeof want, "at most %.6g", most);
    snprintf(is, sizeof is, "%.6g", got);
    verdict(v, file, what, got <= most, want, is);
}

/* Compares 16-bit values; the first difference is named. */
static void equal_16(
    vectors *v, const char *file, const char *what, const void *want, const void *got, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint16_t a, b;
        char text[2][64];
        memcpy(&a, (const char *)want + 2 * i, sizeof a);
        memcpy(&b, (const char *)got + 2 * i, sizeof b);
        if (a == b) continue;
        snprintf(text[0], sizeof text[0], "0x%04x at %zu of %zu", a, i, n);
        snprintf(text[1], sizeof text[1], "0x%04x", b);
        verdict(v, file, what, false, text[0], text[1]);
        return;
    }
    vectors_pass(v);
}

static float *halves(const st_tensor *t) {
    size_t n = (size_t)st_elements(t);
    float *out = mem_array(n, sizeof *out);
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, (const char *)t->data + 2 * i, sizeof h);
        out[i] = half_to_float(h);
    }
    return out;
}

static float *floats(const st_tensor *t) {
    size_t n = (size_t)st_elements(t);
    float *out = mem_array(n, sizeof *out);
    memcpy(out, t->data, n * sizeof *out);
    return out;
}

/* max |a - b| / max |b| */
static double relative_error(const float *a, const float *b, size_t n) {
    double worst = 0.0;
    double most = 1e-30;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);
        worst = d > worst || isnan(d) ? d : worst;
        most = fabs((double)b[i]) > most ? fabs((double)b[i]) : most;
    }
    return worst / most;
}

static void check_decode(layer_case *c) {
    const exl3_matrix *m = &c->module.matrix;
    size_t n = (size_t)m->in * (size_t)m->out;
    const st_tensor *want = st_find(c->set, "w_inner");
    uint16_t *got = mem_array(n, sizeof *got);
    err e = ERR_INIT;
    int rc = exl3_decode_half(m, got, &e);
    if (rc != OK || want == NULL || st_elements(want) != n) {
        verdict(
            c->v, c->file, "w_inner", false, "a decoded matrix", rc != OK ? e.msg : "no w_inner");
    } else {
        equal_16(c->v, c->file, "w_inner", want->data, got, n);
    }
    mem_free(got);
}

static void check_repack(layer_case *c) {
    const exl3_matrix *m = &c->module.matrix;
    size_t tile_bytes = (size_t)EXL3_TILE * (size_t)m->k2;
    size_t n = exl3_trellis_bytes(m->in, m->out, m->k2);
    unsigned char *packed = mem_alloc(n);
    for (size_t at = 0; at < n; at += tile_bytes) {
        uint16_t states[N];
        exl3_tile_states((const char *)m->trellis + at, m->k2, states);
        exl3_tile_pack(states, m->k2, packed + at);
    }
    equal_16(c->v, c->file, "repacked trellis", m->trellis, packed, n / 2);
    mem_free(packed);
}

/* The rotation with the roundings of exllamav3: product to fp16, butterflies in fp32, fp16. */
static void check_rotation(layer_case *c) {
    const exl3_matrix *m = &c->module.matrix;
    const st_tensor *want = st_find(c->set, "x_rot");
    size_t n = (size_t)c->n_rows * (size_t)m->in;
    if (want == NULL) return;
    uint16_t *got = mem_array(n, sizeof *got);
    float *row = mem_array((size_t)m->in, sizeof *row);
    for (int r = 0; r < c->n_rows; r++) {
        for (int i = 0; i < m->in; i++) {
            uint16_t suh;
            memcpy(&suh, (const char *)m->suh + 2 * (size_t)i, sizeof suh);
            float x = c->x[(size_t)r * (size_t)m->in + (size_t)i];
            row[i] = half_to_float(half_from_double((double)x * (double)half_to_float(suh)));
        }
        for (int b = 0; b < m->in; b += EXL3_BLOCK) {
            exl3_hadamard_128(row + b);
        }
        for (int i = 0; i < m->in; i++) {
            got[(size_t)r * (size_t)m->in + (size_t)i] = half_from_float(row[i]);
        }
    }
    equal_16(c->v, c->file, "x_rot", want->data, got, n);
    mem_free(got);
    mem_free(row);
}

/* Runs x through the product's linear; y gets [n_rows][out]. */
static void run_linear(
    const exl3_matrix *m, const float *x, int n_rows, size_t x_stride, float *y) {
    exl3_linear *l = NULL;
    err e = ERR_INIT;
    if (exl3_linear_new(m, &l, &e) != OK) {
        for (size_t i = 0; i < (size_t)n_rows * (size_t)m->out; i++) {
            y[i] = NAN;
        }
        return;
    }
    void *scratch = mem_aligned(64, exl3_scratch_bytes(1, n_rows, m->in));
    exl3_job job = {.linear = l,
        .x = x,
        .x_stride = x_stride,
        .y = y,
        .y_stride = (size_t)m->out,
        .n_rows = n_rows};
    exl3_linear_run(&job, NULL, scratch);
    mem_aligned_free(scratch);
    exl3_linear_free(l);
}

static void check_layer(layer_case *c) {
    const exl3_matrix *m = &c->module.matrix;
    exl3_matrix without_bias = *m;
    size_t n = (size_t)c->n_rows * (size_t)m->out;
    const st_tensor *with_bias = st_find(c->set, "y_ref_bias");
    float *y = mem_array(n, sizeof *y);
    err e = ERR_INIT;
    without_bias.bias = NULL;
    if (exl3_linear_reference(&without_bias, c->x, c->n_rows, y, &e) != OK) {
        verdict(c->v, c->file, "fp32 layer", false, "an output", e.msg);
    } else {
        limit(c->v, c->file, "y_ref, fp32 layer", relative_error(y, c->y_ref, n), 1e-5);
    }
    run_linear(&without_bias, c->x, c->n_rows, (size_t)m->in, y);
    limit(c->v, c->file, "y_ref, integer layer", relative_error(y, c->y_ref, n), 1e-3);
    if (with_bias != NULL) {
        float *want = floats(with_bias);
        verdict(c->v, c->file, "bias", m->bias != NULL, "a bias", "none");
        run_linear(m, c->x, c->n_rows, (size_t)m->in, y);
        limit(c->v, c->file, "y_ref_bias", relative_error(y, want, n), 1e-3);
        mem_free(want);
    }
    mem_free(y);
}

static void check_full(layer_case *c) {
    const exl3_matrix *m = &c->module.matrix;
    const st_tensor *row = st_find(c->set, "w_full_f32_row0");
    const st_tensor *column = st_find(c->set, "w_full_f32_col0");
    err e = ERR_INIT;
    if (row == NULL || column == NULL) return;
    float *full = mem_array((size_t)m->in * (size_t)m->out, sizeof *full);
    float *first = mem_array((size_t)m->in, sizeof *first);
    float *want_row = floats(row);
    float *want_column = floats(column);
    int rc = exl3_decode_full(m, full, &e);
    for (int i = 0; i < m->in; i++) {
        first[i] = full[(size_t)i * (size_t)m->out];
    }
    verdict(c->v, c->file, "full decode", rc == OK, "a decoded matrix", e.msg);
    limit(c->v, c->file, "first row of W", relative_error(full, want_row, (size_t)m->out), 1e-5);
    limit(c->v, c->file, "first column of W", relative_error(first, want_column, (size_t)m->in),
        1e-5);
    mem_free(full);
    mem_free(first);
    mem_free(want_row);
    mem_free(want_column);
}

/* Cuts the layer in two: halves of the outputs stand side by side, halves of the inputs add up. */
static void check_cut(layer_case *c, bool by_out) {
    const exl3_matrix *m = &c->module.matrix;
    int size = by_out ? m->out : m->in;
    int cut = size / EXL3_BLOCK / 2 * EXL3_BLOCK;
    if (cut == 0) return;
    size_t n = (size_t)c->n_rows * (size_t)m->out;
    float *sum = mem_array(n, sizeof *sum);
    float *y = mem_array(n, sizeof *y);
    err e = ERR_INIT;
    for (int half = 0; half < 2; half++) {
        int in_range[2] = {0, m->in};
        int out_range[2] = {0, m->out};
        int *range = by_out ? out_range : in_range;
        exl3_matrix part;
        range[0] = half == 0 ? 0 : cut;
        range[1] = half == 0 ? cut : size;
        if (exl3_matrix_slice(m, in_range, out_range, &part, &e) != OK) {
            verdict(c->v, c->file, "cut", false, "a slice", e.msg);
            break;
        }
        part.bias = NULL;
        run_linear(&part, c->x + (by_out ? 0 : range[0]), c->n_rows, (size_t)m->in, y);
        for (int r = 0; r < c->n_rows; r++) {
            for (int o = 0; o < part.out; o++) {
                sum[(size_t)r * (size_t)m->out + (size_t)(o + out_range[0])] +=
                    y[(size_t)r * (size_t)part.out + (size_t)o];
            }
        }
    }
    limit(c->v, c->file, by_out ? "cut by outputs" : "cut by inputs",
        relative_error(sum, c->y_ref, n), 1e-3);
    mem_free(sum);
    mem_free(y);
}

static void check_quantizer(layer_case *c) {
    const exl3_matrix *m = &c->module.matrix;
    const st_tensor *weight = st_find(c->set, "weight");
    const st_tensor *hessian = st_find(c->set, "hessian_sum");
    const char *reference = st_metadata(c->set, 0, "proxy_err");
    const char *rows = st_metadata(c->set, 0, "hessian_rows");
    err e = ERR_INIT;
    if (weight == NULL || hessian == NULL || reference == NULL || rows == NULL) return;
    float *w = halves(weight);
    float *official = mem_array((size_t)m->in * (size_t)m->out, sizeof *official);
    for (int i = 0; i < m->in * m->out; i++) {
        official[(size_t)(i % m->out) * (size_t)m->in + (size_t)(i / m->out)] = w[i];
    }
    quantize_matrix_args a = {.weight = official,
        .in = m->in,
        .out = m->out,
        .hessian_sum = hessian->data,
        .hessian_rows = strtol(rows, NULL, 10),
        .seed = 1};
    quantized_matrix q = {0};
    quantize_rate *rate = NULL;
    pool *p = pool_new(0);
    int rc = quantize_rate_new(m->codebook, m->k2, p, &rate, &e);
    rc = rc == OK ? quantize_matrix(&a, rate, p, &q, &e) : rc;
    verdict(c->v, c->file, "quantizing", rc == OK, "a result", e.msg);
    if (rc == OK) {
        printf("%s: proxy error %.6f, reference %s\n", c->file, q.proxy_error, reference);
        limit(c->v, c->file, "proxy error", q.proxy_error, 1.05 * strtod(reference, NULL));
    }
    quantized_matrix_release(&q);
    quantize_rate_free(rate);
    pool_free(p);
    mem_free(w);
    mem_free(official);
}

static void check_layer_file(vectors *v, const char *file, const st_set *s) {
    layer_case c = {.v = v, .file = file, .set = s};
    err e = ERR_INIT;
    const char *bits = st_metadata(s, 0, "K");
    const st_tensor *x = st_find(s, "x");
    const st_tensor *y = st_find(s, "y_ref");
    int rc = exl3_module_find(s, "", &c.module, &e);
    verdict(
        v, file, "module", rc == OK && x != NULL && y != NULL, "a module with x and y_ref", e.msg);
    if (rc != OK || x == NULL || y == NULL) return;
    if (bits != NULL) {
        limit(v, file, "bits", fabs(strtod(bits, NULL) - c.module.matrix.k2 / 2.0), 0.0);
    }
    c.n_rows = (int)x->dims[0];
    c.x = halves(x);
    c.y_ref = floats(y);
    check_decode(&c);
    check_repack(&c);
    check_rotation(&c);
    check_layer(&c);
    check_full(&c);
    check_cut(&c, true);
    check_cut(&c, false);
    check_quantizer(&c);
    mem_free(c.x);
    mem_free(c.y_ref);
    exl3_module_release(&c.module);
}

static void check_codebooks(vectors *v, const char *file, const st_set *s) {
    static const char *const names[] = {"3inst", "mcg", "mul1"};
    static const exl3_codebook codebooks[] = {EXL3_3INST, EXL3_MCG, EXL3_MUL1};
    static uint16_t table[65536];
    for (size_t i = 0; i < 3; i++) {
        const st_tensor *t = st_find(s, names[i]);
        if (t == NULL || t->bytes != sizeof table) {
            verdict(v, file, names[i], false, "65536 values", "another tensor or none");
            continue;
        }
        exl3_codebook_table(codebooks[i], table);
        equal_16(v, file, names[i], t->data, table, 65536);
    }
}

static void search_tiles(
    const trellis_code *c, trellis_mode mode, const float *tiles, int n, uint16_t *states) {
    trellis_work *w = trellis_work_new(trellis_code_k2(c));
    for (int t = 0; t < n; t += 2) {
        int other = t + 1 < n ? t + 1 : t;
        const float *const x[2] = {tiles + t * N, tiles + other * N};
        uint16_t *const out[2] = {states + t * N, states + other * N};
        trellis_search_pair(c, w, mode, x, out);
    }
    trellis_work_free(w);
}

static void check_tile_rate(vectors *v, const char *file, const st_set *s, int k, exl3_codebook b) {
    static const char *const names[] = {"3inst", "mcg", "mul1"};
    char name[32];
    char what[64];
    const st_tensor *tiles = st_find(s, "tiles");
    snprintf(name, sizeof name, "idx_k%d_%s", k, names[b]);
    const st_tensor *want = st_find(s, name);
    snprintf(name, sizeof name, "mse_k%d_%s", k, names[b]);
    const st_tensor *mse = st_find(s, name);
    if (tiles == NULL || want == NULL || mse == NULL) return;
    int n = (int)tiles->dims[0];
    float *x = floats(tiles);
    float *most = floats(mse);
    uint16_t *states = mem_array((size_t)n * N, sizeof *states);
    trellis_code *c = trellis_code_new(b, 2 * k);
    search_tiles(c, TRELLIS_HALF, x, n, states);
    snprintf(what, sizeof what, "states at %d bits, %s", k, names[b]);
    equal_16(v, file, what, want->data, states, (size_t)n * N);
    search_tiles(c, TRELLIS_FLOAT, x, n, states);
    for (int t = 0; t < n; t++) {
        snprintf(what, sizeof what, "error of tile %d at %d bits, %s", t, k, names[b]);
        limit(
            v, file, what, trellis_error(c, x + t * N, states + t * N) / N, 1.01 * (double)most[t]);
    }
    trellis_code_free(c);
    mem_free(x);
    mem_free(most);
    mem_free(states);
}

static void check_tiles(vectors *v, const char *file, const st_set *s) {
    for (int k = 1; k <= 8; k++) {
        for (int b = EXL3_3INST; b <= EXL3_MUL1; b++) {
            check_tile_rate(v, file, s, k, (exl3_codebook)b);
        }
    }
}

typedef struct folder {
    vectors *v;
    const char *path;
} folder;

static int check_file(void *ctx, const char *name, err *unused) {
    folder *f = ctx;
    buf path = BUF_INIT;
    st_set *s = NULL;
    err e = ERR_INIT;
    (void)unused;
    if (!str_ends(name, ".safetensors")) return OK;
    path_join(&path, f->path, name);
    if (st_open(buf_cstr(&path), ST_MAPPED, &s, &e) != OK) {
        verdict(f->v, name, "reading", false, "a safetensors file", e.msg);
    } else if (st_find(s, "trellis") != NULL) {
        check_layer_file(f->v, name, s);
    } else if (st_find(s, "tiles") != NULL) {
        check_tiles(f->v, name, s);
    } else if (st_find(s, "mul1") != NULL) {
        check_codebooks(f->v, name, s);
    } else {
        vectors_skip(f->v, name, "holds none of the known vectors");
    }
    st_close(s);
    buf_release(&path);
    return OK;
}

int main(void) {
    vectors v = {0, 0, 0};
    buf path = BUF_INIT;
    err e = ERR_INIT;
    path_join(&path, vectors_golden_dir(), "exl3");
    if (!dir_exists(buf_cstr(&path))) {
        vectors_skip(&v, "exl3", "the folder is not there");
    } else {
        folder f = {&v, buf_cstr(&path)};
        if (dir_each(f.path, check_file, &f, &e) != OK) {
            vectors_fail(&v, "exl3", "a readable folder", e.msg);
        }
    }
    buf_release(&path);
    return vectors_end(&v);
}
