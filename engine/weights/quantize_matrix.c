#include "engine/weights/quantize_matrix.h"

#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/weights/quantize_internal.h"
#include "kernels/half.h"

enum { TILE = EXL3_TILE, PAIR_COLUMNS = 2 * EXL3_TILE };

int quantize_rate_new(exl3_codebook codebook, int k2, pool *p, quantize_rate **out, err *e) {
    quantize_rate *r = mem_alloc(sizeof *r);
    *out = r;
    r->n_works = pool_size(p);
    r->works = mem_array((size_t)r->n_works, sizeof(*r->works));
    r->code = trellis_code_new(codebook, k2);
    bool ok = r->code != NULL;
    for (int i = 0; i < r->n_works && ok; i++) {
        r->works[i] = trellis_work_new(k2);
        ok = r->works[i] != NULL;
    }
    if (ok) return OK;
    int rc = r->code == NULL
                 ? err_set(e, ERR_ARG, "%g bits do not exist for this codebook", k2 / 2.0)
                 : err_set(e, ERR_MEMORY, "no memory for the trellis search");
    quantize_rate_free(r);
    *out = NULL;
    return rc;
}

void quantize_rate_free(quantize_rate *r) {
    if (r == NULL) return;
    for (int i = 0; i < r->n_works; i++) {
        trellis_work_free(r->works[i]);
    }
    mem_free(r->works);
    trellis_code_free(r->code);
    mem_free(r);
}

void quantized_matrix_release(quantized_matrix *m) {
    mem_free(m->trellis);
    mem_free(m->suh);
    mem_free(m->svh);
    memset(m, 0, sizeof *m);
}

static int pad_128(int n) {
    return (n + EXL3_BLOCK - 1) / EXL3_BLOCK * EXL3_BLOCK;
}

/* Turns [out][in] into padded [in][out]. */
static int load_weights(quantize_job *j, err *e) {
    const quantize_matrix_args *a = j->args;
    for (int r = 0; r < a->out; r++) {
        for (int i = 0; i < a->in; i++) {
            float v = a->weight[(size_t)r * (size_t)a->in + (size_t)i];
            if (!isfinite(v)) {
                return err_set(
                    e, ERR_ARG, "the weight of output %d, input %d is not a finite number", r, i);
            }
            j->w[(size_t)i * (size_t)j->out + (size_t)r] = v;
        }
    }
    return OK;
}

/* One pass over a row of tiles (with feedback) or over all of them (without). */
typedef struct tile_pass {
    quantize_job *job;
    int i_row;     /* tile row, -1: items count over all rows */
    float *errors; /* [in][out] w - wq of the rows below, with feedback only */
} tile_pass;

/* x[16][32] += L[below, block]^T . errors[below, columns] */
static void add_feedback(const tile_pass *t, int row, int column, float x[TILE][PAIR_COLUMNS]) {
    const quantize_job *j = t->job;
    for (int below = row + TILE; below < j->in; below++) {
        const float *l = j->feedback + (size_t)below * (size_t)j->in + (size_t)row;
        const float *err_row = t->errors + (size_t)below * (size_t)j->out + (size_t)column;
        for (int r = 0; r < TILE; r++) {
            for (int c = 0; c < PAIR_COLUMNS; c++) {
                x[r][c] += l[r] * err_row[c];
            }
        }
    }
}

static void store_tile(quantize_job *j, int i, int k, const uint16_t *states) {
    float tile[EXL3_TILE_VALUES];
    int k2 = trellis_code_k2(j->rate->code);
    size_t tile_bytes = (size_t)TILE * (size_t)k2;
    size_t at = ((size_t)i * (size_t)(j->out / TILE) + (size_t)k) * tile_bytes;
    for (int p = 0; p < EXL3_TILE_VALUES; p++) {
        tile[p] = trellis_value(j->rate->code, states[p]);
    }
    quantize_scatter(j->wq, j->out, i, k, tile);
    exl3_tile_pack(states, k2, j->trellis + at);
}

static void quantize_pair(void *ctx, int i_item, int i_thread) {
    tile_pass *t = ctx;
    quantize_job *j = t->job;
    int pairs = j->out / PAIR_COLUMNS;
    int i = t->i_row >= 0 ? t->i_row : i_item / pairs;
    int k = i_item % pairs * 2;
    float block[TILE][PAIR_COLUMNS];
    float tiles[2][EXL3_TILE_VALUES];
    uint16_t states[2][EXL3_TILE_VALUES];
    const float *const x[2] = {tiles[0], tiles[1]};
    uint16_t *const s[2] = {states[0], states[1]};
    for (int r = 0; r < TILE; r++) {
        size_t at = (size_t)(i * TILE + r) * (size_t)j->out + (size_t)(k * TILE);
        memcpy(block[r], j->w + at, sizeof block[r]);
    }
    if (t->errors != NULL) {
        add_feedback(t, i * TILE, k * TILE, block);
    }
    quantize_gather(block[0], PAIR_COLUMNS, 0, 0, tiles[0]);
    quantize_gather(block[0], PAIR_COLUMNS, 0, 1, tiles[1]);
    trellis_search_pair(j->rate->code, j->rate->works[i_thread], j->args->mode, x, s);
    store_tile(j, i, k, states[0]);
    store_tile(j, i, k + 1, states[1]);
}

static void note_errors(quantize_job *j, float *errors, int row, int n_rows) {
    size_t at = (size_t)row * (size_t)j->out;
    for (size_t i = at; i < at + (size_t)n_rows * (size_t)j->out; i++) {
        errors[i] = j->w[i] - j->wq[i];
    }
}

/* 12.3: from the last row of tiles to the first, so that what is known of the error below flows
 * in. */
static int quantize_tiles(quantize_job *j, float *errors, err *e) {
    tile_pass t = {j, -1, j->feedback != NULL ? errors : NULL};
    int pairs = j->out / PAIR_COLUMNS;
    for (int i = j->in / TILE - 1; i >= 0; i--) {
        if (quantize_is_cancelled(j)) return err_set(e, ERR_CANCELLED, "stopped");
        t.i_row = i;
        pool_run(j->pool, pairs, quantize_pair, &t);
        note_errors(j, errors, i * TILE, TILE);
    }
    return OK;
}

static void store_result(quantize_job *j, const float *errors, quantized_matrix *out) {
    size_t n = (size_t)j->in * (size_t)j->out;
    double error = 0.0;
    double all = 0.0;
    *out = (quantized_matrix){.in = j->in,
        .out = j->out,
        .k2 = trellis_code_k2(j->rate->code),
        .codebook = trellis_code_codebook(j->rate->code),
        .scale = j->scale,
        .is_calibrated = j->hessian != NULL};
    out->proxy_error = quantize_proxy(j, errors);
    for (size_t i = 0; i < n; i++) {
        error += (double)errors[i] * (double)errors[i];
        all += (double)j->w[i] * (double)j->w[i];
    }
    out->square_error = all > 0.0 ? error / all : 0.0;
    out->trellis = j->trellis;
    j->trellis = NULL;
    out->suh = mem_array((size_t)j->in, sizeof *out->suh);
    out->svh = mem_array((size_t)j->out, sizeof *out->svh);
    for (int i = 0; i < j->in; i++) {
        out->suh[i] = half_from_float(j->su[i]);
    }
    for (int i = 0; i < j->out; i++) {
        out->svh[i] = half_from_float(j->sv[i]);
    }
}

static int job_init(quantize_job *j, err *e) {
    const quantize_matrix_args *a = j->args;
    if (a->in < 1 || a->out < 1 || a->in > EXL3_MAX_IN) {
        return err_set(e, ERR_ARG, "a matrix of %d x %d cannot be quantized", a->in, a->out);
    }
    j->in = pad_128(a->in);
    j->out = pad_128(a->out);
    size_t n = (size_t)j->in * (size_t)j->out;
    j->w = mem_try_alloc(n * sizeof *j->w);
    j->wq = mem_try_alloc(n * sizeof *j->wq);
    j->trellis = mem_try_alloc(exl3_trellis_bytes(j->in, j->out, trellis_code_k2(j->rate->code)));
    j->su = mem_array((size_t)j->in, sizeof *j->su);
    j->sv = mem_array((size_t)j->out, sizeof *j->sv);
    if (j->w == NULL || j->wq == NULL || j->trellis == NULL) {
        return err_set(e, ERR_MEMORY, "no memory to quantize a matrix of %d x %d", a->in, a->out);
    }
    return OK;
}

static void job_release(quantize_job *j) {
    mem_free(j->w);
    mem_free(j->wq);
    mem_free(j->trellis);
    mem_free(j->su);
    mem_free(j->sv);
    mem_free(j->hessian);
    mem_free(j->feedback);
}

int quantize_matrix(
    const quantize_matrix_args *a, const quantize_rate *r, pool *p, quantized_matrix *out, err *e) {
    quantize_job j = {.args = a, .rate = r, .pool = p};
    float *errors = NULL;
    CHECK(pool_size(p) <= r->n_works);
    memset(out, 0, sizeof *out);
    int rc = job_init(&j, e);
    if (rc != OK) goto out;
    errors = mem_try_alloc((size_t)j.in * (size_t)j.out * sizeof *errors);
    if (errors == NULL) {
        rc = err_set(e, ERR_MEMORY, "no memory to quantize a matrix of %d x %d", a->in, a->out);
        goto out;
    }
    rc = load_weights(&j, e);
    if (rc != OK) goto out;
    rc = quantize_hessian_init(&j, e);
    if (rc != OK) goto out;
    quantize_regularize(&j);
    rc = quantize_hessian_factor(&j, e);
    if (rc != OK) goto out;
    quantize_find_scale(&j);
    rc = quantize_tiles(&j, errors, e);
    if (rc != OK) goto out;
    store_result(&j, errors, out);
out:
    job_release(&j);
    mem_free(errors);
    return rc;
}
