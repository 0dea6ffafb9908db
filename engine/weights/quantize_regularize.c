#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/weights/quantize_internal.h"

enum { BLOCK = EXL3_BLOCK };
static const float DEAD_RMS = 1e-30f;
static const float DEAD_SCALE = 0.1f;

void quantize_gather(const float *from, int out, int i, int k, float tile[EXL3_TILE_VALUES]) {
    for (int p = 0; p < EXL3_TILE_VALUES; p++) {
        size_t row = (size_t)(i * EXL3_TILE + exl3_position_row(p));
        tile[p] = from[row * (size_t)out + (size_t)(k * EXL3_TILE + exl3_position_column(p))];
    }
}

void quantize_scatter(float *to, int out, int i, int k, const float tile[EXL3_TILE_VALUES]) {
    for (int p = 0; p < EXL3_TILE_VALUES; p++) {
        size_t row = (size_t)(i * EXL3_TILE + exl3_position_row(p));
        to[row * (size_t)out + (size_t)(k * EXL3_TILE + exl3_position_column(p))] = tile[p];
    }
}

static void draw_signs(float *v, int n, uint64_t seed, uint64_t stream) {
    rand_state r;
    rand_init(&r, seed, stream);
    for (int i = 0; i < n; i++) {
        v[i] = (rand_u32(&r) >> 31) != 0 ? -1.0f : 1.0f;
    }
}

/* Whether scales of the outputs help: when few inputs dominate the Hessian they do not. */
static bool wants_out_scales(const quantize_job *j) {
    quantize_scales choice = j->args->out_scales;
    if (choice != QUANTIZE_SCALES_AUTO || j->hessian == NULL)
        return choice != QUANTIZE_SCALES_NEVER;
    int n_top = (j->in + 49) / 50;
    double sum = 0.0;
    double top_sum = 0.0;
    double *d = mem_array((size_t)j->in, sizeof *d);
    for (int i = 0; i < j->in; i++) {
        d[i] = sqrt(j->hessian[(size_t)i * (size_t)j->in + (size_t)i]);
        sum += d[i];
    }
    for (int t = 0; t < n_top; t++) {
        int at = 0;
        for (int i = 1; i < j->in; i++) {
            at = d[i] > d[at] ? i : at;
        }
        top_sum += d[at];
        d[at] = -1.0;
    }
    mem_free(d);
    return top_sum < 0.15 * sum;
}

/* Root mean square of each column, in double. */
static void column_rms(const quantize_job *j, float *rms) {
    double *sum = mem_array((size_t)j->out, sizeof *sum);
    for (int r = 0; r < j->in; r++) {
        const float *row = j->w + (size_t)r * (size_t)j->out;
        for (int c = 0; c < j->out; c++) {
            sum[c] += (double)row[c] * (double)row[c];
        }
    }
    for (int c = 0; c < j->out; c++) {
        rms[c] = (float)sqrt(sum[c] / j->in);
    }
    mem_free(sum);
}

/* Step 3. Dead columns get a zero in sv after the division. */
static void scale_outputs(quantize_job *j) {
    float *rms = mem_array((size_t)j->out, sizeof *rms);
    bool has_scales = wants_out_scales(j);
    double mean = 0.0;
    column_rms(j, rms);
    for (int c = 0; c < j->out; c++) {
        mean += (double)rms[c] / j->out;
    }
    for (int c = 0; c < j->out; c++) {
        bool is_dead = rms[c] < DEAD_RMS;
        float scale =
            is_dead || mean < (double)DEAD_RMS ? DEAD_SCALE : (float)((double)rms[c] / mean);
        j->sv[c] *= has_scales ? scale : 1.0f;
        for (int r = 0; r < j->in; r++) {
            j->w[(size_t)r * (size_t)j->out + (size_t)c] /= j->sv[c];
        }
        if (is_dead) {
            j->sv[c] = 0.0f;
        }
    }
    mem_free(rms);
}

/* Step 4 and 5: rotate each row over the outputs, then take out its rms. */
static void rotate_and_scale_row(void *ctx, int r, int i_thread) {
    quantize_job *j = ctx;
    float *row = j->w + (size_t)r * (size_t)j->out;
    double sum = 0.0;
    (void)i_thread;
    for (int c = 0; c < j->out; c += BLOCK) {
        exl3_hadamard_128(row + c);
    }
    for (int c = 0; c < j->out; c++) {
        sum += (double)row[c] * (double)row[c];
    }
    float rms = (float)sqrt(sum / j->out);
    j->su[r] *= (rms < DEAD_RMS ? DEAD_SCALE : rms) / -QUANTIZE_RMS;
    for (int c = 0; c < j->out; c++) {
        row[c] /= j->su[r];
    }
}

/* Step 6: rotate each column over a block of 128 inputs. */
static void rotate_columns(void *ctx, int i_block, int i_thread) {
    quantize_job *j = ctx;
    float column[BLOCK];
    (void)i_thread;
    for (int c = 0; c < j->out; c++) {
        float *first = j->w + (size_t)i_block * BLOCK * (size_t)j->out + (size_t)c;
        for (int r = 0; r < BLOCK; r++) {
            column[r] = first[(size_t)r * (size_t)j->out];
        }
        exl3_hadamard_128(column);
        for (int r = 0; r < BLOCK; r++) {
            first[(size_t)r * (size_t)j->out] = column[r];
        }
    }
}

void quantize_regularize(quantize_job *j) {
    draw_signs(j->su, j->in, j->args->seed, 1);
    draw_signs(j->sv, j->out, j->args->seed, 2);
    scale_outputs(j);
    pool_run(j->pool, j->in, rotate_and_scale_row, j);
    pool_run(j->pool, j->in / BLOCK, rotate_columns, j);
}
