#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/weights/quantize_internal.h"

/* The scale search of exl3.md 12.2 step 7. Errors are those of free paths, which cost a third of a
 * full search and rank the scales alike: closing a path adds the same share at each scale. */
enum { MAX_SAMPLE = 32, COARSE_SAMPLE = 8, N_COARSE = 10, N_FINE = 5, DIAGONAL_WIDTH = 3 };

typedef struct sample {
    quantize_job *job;
    float (*tiles)[EXL3_TILE_VALUES];
    int n_tiles; /* even */
    float g;
    double *errors; /* [n_tiles] */
} sample;

static double tile_square(const float *tile) {
    double sum = 0.0;
    for (int p = 0; p < EXL3_TILE_VALUES; p++) {
        sum += (double)tile[p] * (double)tile[p];
    }
    return sum;
}

/* The tiles of largest and smallest rms, then a wrapped diagonal three tiles wide, thinned out. */
static void choose_tiles(quantize_job *j, sample *s) {
    int rows = j->in / EXL3_TILE;
    int columns = j->out / EXL3_TILE;
    int n_diagonal = (rows > columns ? rows : columns) * DIAGONAL_WIDTH;
    int n_want = n_diagonal < MAX_SAMPLE - 2 ? n_diagonal : MAX_SAMPLE - 2;
    double low = INFINITY;
    double high = -1.0;
    for (int i = 0; i < rows; i++) {
        for (int k = 0; k < columns; k++) {
            float tile[EXL3_TILE_VALUES];
            quantize_gather(j->w, j->out, i, k, tile);
            double square = tile_square(tile);
            if (square < low) {
                low = square;
                memcpy(s->tiles[0], tile, sizeof tile);
            }
            if (square > high) {
                high = square;
                memcpy(s->tiles[1], tile, sizeof tile);
            }
        }
    }
    for (int t = 0; t < n_want; t++) {
        int at = (int)((int64_t)t * n_diagonal / n_want);
        int step = at / DIAGONAL_WIDTH;
        quantize_gather(
            j->w, j->out, step % rows, (step + at % DIAGONAL_WIDTH) % columns, s->tiles[2 + t]);
    }
    s->n_tiles = (2 + n_want) / 2 * 2;
}

static void measure_pair(void *ctx, int i_pair, int i_thread) {
    sample *s = ctx;
    const quantize_rate *r = s->job->rate;
    float scaled[2][EXL3_TILE_VALUES];
    const float *const x[2] = {scaled[0], scaled[1]};
    for (int i = 0; i < 2 * EXL3_TILE_VALUES; i++) {
        int t = i / EXL3_TILE_VALUES;
        scaled[t][i % EXL3_TILE_VALUES] = s->tiles[2 * i_pair + t][i % EXL3_TILE_VALUES] * s->g;
    }
    trellis_free_error_pair(r->code, r->works[i_thread], x, s->errors + (size_t)i_pair * 2);
}

/* Mean square error of the sample at scale g, in units of the unscaled weights. */
static double error_at(sample *s, double g, int n_tiles) {
    double sum = 0.0;
    n_tiles = n_tiles < s->n_tiles ? n_tiles : s->n_tiles;
    s->g = (float)g;
    pool_run(s->job->pool, n_tiles / 2, measure_pair, s);
    for (int t = 0; t < n_tiles; t++) {
        sum += s->errors[t];
    }
    return sum / (g * g) / n_tiles;
}

/* Lowest point of the parabola through three points at distance step, kept between them. */
static double parabola_minimum(double g, double step, const double e[3]) {
    double bend = e[0] - 2.0 * e[1] + e[2];
    double shift = bend > 0.0 ? 0.5 * (e[0] - e[2]) / bend : 0.0;
    shift = shift < -1.0 ? -1.0 : shift > 1.0 ? 1.0 : shift;
    return g + shift * step;
}

static double search_scale(sample *s) {
    const double coarse_step = 0.2;
    const double fine_step = 0.075;
    double best = INFINITY;
    double g = 1.0;
    double errors[N_FINE];
    int at = 0;
    for (int i = 0; i < N_COARSE; i++) {
        double here = 0.1 + coarse_step * i;
        double e = error_at(s, here, COARSE_SAMPLE);
        if (e < best) {
            best = e;
            g = here;
        }
    }
    for (int i = 0; i < N_FINE; i++) {
        double here = g + fine_step * (i - N_FINE / 2);
        errors[i] = here > 0.01 ? error_at(s, here, MAX_SAMPLE) : INFINITY;
        at = errors[i] < errors[at] ? i : at;
    }
    g += fine_step * (at - N_FINE / 2);
    if (at == 0 || at == N_FINE - 1 || !isfinite(errors[at - 1])) return g;
    return parabola_minimum(g, fine_step, errors + at - 1);
}

void quantize_find_scale(quantize_job *j) {
    sample s = {j, NULL, 0, 1.0f, NULL};
    s.tiles = mem_array(MAX_SAMPLE, sizeof *s.tiles);
    s.errors = mem_array(MAX_SAMPLE, sizeof *s.errors);
    choose_tiles(j, &s);
    j->scale = search_scale(&s);
    for (size_t i = 0; i < (size_t)j->in * (size_t)j->out; i++) {
        j->w[i] *= (float)j->scale;
    }
    for (int i = 0; i < j->in; i++) {
        j->su[i] /= (float)j->scale;
    }
    mem_free(s.tiles);
    mem_free(s.errors);
}
