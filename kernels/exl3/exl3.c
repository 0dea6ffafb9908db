/*
 * Making a linear (repack) and running jobs: rotation of every row, then one work item per 128
 * outputs and 64 rows.
 */
#include "kernels/exl3/exl3.h"

#include <stdatomic.h>
#include <string.h>

#include "engine/base/mem.h"
#include "kernels/exl3/exl3_internal.h"
#include "kernels/half.h"

enum {
    ALIGNMENT = 64,
    /* A run shorter than this on one thread stays there: a fork and join costs a microsecond or
     * two, and far more when another process holds the worker's core. */
    INLINE_NS = 9000,
    INLINE_ROTATION = 8 * 1024, /* values */
    ROTATION_VALUES = 2 * 1024  /* about those of one work item */
};

/* About the time of a job on one Zen 3 core: 12 weights a nanosecond are decoded, 50 products of
 * more than one row made (tests/bench/bench_exl3). */
static size_t job_ns(const exl3_job *job) {
    size_t weights = (size_t)job->linear->in * (size_t)job->linear->out;
    return weights / 12 + weights / 50 * (size_t)(job->n_rows - 1);
}

static size_t align_up(size_t n) {
    return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* ---- the prepared matrix ---- */

/* Half-word h of a tile's stream: bits 16h .. 16h+15. The file swaps the halves of every
 * little-endian word. */
static uint32_t stream_half(const unsigned char *tile, int h) {
    const unsigned char *b = tile + 2 * (h ^ 1);
    return (uint32_t)b[0] | (uint32_t)b[1] << 8;
}

void exl3_pack_lanes(const void *tile, int k2, uint32_t *words) {
    const int n_words = exl3_lane_words(k2), n_halves = 8 * k2;
    const int lead = k2 % 2; /* odd rates: one half-word of the lane before */
    for (int lane = 0; lane < EXL3_LANES; lane++) {
        for (int i = 0; i < n_words; i++) {
            int h = lane * k2 - lead + 2 * i;
            words[i * EXL3_LANES + lane] =
                stream_half(tile, (h + n_halves) % n_halves) << 16 | stream_half(tile, h + 1);
        }
    }
}

typedef struct linear_layout {
    size_t weights_bytes, suh, svh, bias,
        total; /* weights lie after the header; then byte offsets */
} linear_layout;

size_t exl3_packed_bytes(int in, int out, int k2, exl3_codebook codebook) {
    size_t tiles = (size_t)(in / EXL3_TILE) * (size_t)(out / EXL3_TILE);
    size_t tile_bytes = codebook == EXL3_MUL1
                            ? (size_t)exl3_lane_words(k2) * EXL3_LANES * sizeof(uint32_t)
                            : EXL3_TILE_VALUES * sizeof(uint16_t);
    return tiles * tile_bytes;
}

static linear_layout layout_of(int in, int out, int k2, exl3_codebook codebook) {
    linear_layout l;
    l.weights_bytes = exl3_packed_bytes(in, out, k2, codebook);
    l.suh = align_up(sizeof(exl3_linear)) + align_up(l.weights_bytes);
    l.svh = l.suh + align_up((size_t)in * sizeof(float));
    l.bias = l.svh + align_up((size_t)out * sizeof(float));
    l.total = l.bias + align_up((size_t)out * sizeof(float)) + ALIGNMENT;
    return l;
}

size_t exl3_linear_bytes(int in, int out, int k2, exl3_codebook codebook) {
    return layout_of(in, out, k2, codebook).total;
}

static void pack_tile(const exl3_matrix *m, const char *tile, size_t i_tile, void *weights) {
    if (m->codebook == EXL3_MUL1) {
        size_t tile_words = (size_t)exl3_lane_words(m->k2) * EXL3_LANES;
        exl3_pack_lanes(tile, m->k2, (uint32_t *)weights + i_tile * tile_words);
        return;
    }
    uint16_t states[EXL3_TILE_VALUES];
    uint16_t *values = (uint16_t *)weights + i_tile * EXL3_TILE_VALUES;
    exl3_tile_states(tile, m->k2, states);
    for (int p = 0; p < EXL3_TILE_VALUES; p++)
        values[exl3_position_row(p) * EXL3_TILE + exl3_position_column(p)] =
            exl3_state_half(m->codebook, states[p]);
}

void exl3_pack_weights(const exl3_matrix *m, void *weights) {
    const size_t stride = m->slice_stride != 0 ? m->slice_stride : (size_t)m->out * (size_t)m->k2;
    const size_t n_slices = (size_t)(m->in / EXL3_TILE);
    for (size_t strip = 0; strip < (size_t)(m->out / EXL3_TILE); strip++) {
        for (size_t slice = 0; slice < n_slices; slice++) {
            const char *tile =
                (const char *)m->trellis + slice * stride + strip * 16 * (size_t)m->k2;
            pack_tile(m, tile, strip * n_slices + slice, weights);
        }
    }
}

void exl3_unpack_halves(const void *halves, int n, float *out) {
    for (int i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, (const char *)halves + 2 * (size_t)i, sizeof h);
        out[i] = half_to_float(h);
    }
}

int exl3_linear_new(const exl3_matrix *m, exl3_linear **out, err *e) {
    *out = NULL;
    int rc = exl3_matrix_check(m, e);
    if (rc != OK) return rc;
    linear_layout at = layout_of(m->in, m->out, m->k2, m->codebook);
    char *raw = mem_aligned(ALIGNMENT, at.total);
    if (raw == NULL)
        return err_set(e, ERR_MEMORY, "no memory for an EXL3 matrix of %zu bytes", at.total);
    exl3_linear *l = (exl3_linear *)(void *)raw;
    void *weights = raw + align_up(sizeof *l);
    exl3_pack_weights(m, weights);
    float *suh = (float *)(void *)(raw + at.suh), *svh = (float *)(void *)(raw + at.svh);
    float *bias = (float *)(void *)(raw + at.bias);
    exl3_unpack_halves(m->suh, m->in, suh);
    exl3_unpack_halves(m->svh, m->out, svh);
    if (m->bias != NULL) exl3_unpack_halves(m->bias, m->out, bias);
    *l = (exl3_linear){.in = m->in,
        .out = m->out,
        .k2 = m->k2,
        .n_words = exl3_lane_words(m->k2),
        .codebook = m->codebook,
        .suh = suh,
        .svh = svh,
        .bias = m->bias != NULL ? bias : NULL};
    if (m->codebook == EXL3_MUL1)
        l->packed = weights;
    else
        l->values = weights;
    *out = l;
    return OK;
}

void exl3_linear_free(exl3_linear *l) {
    mem_aligned_free(l);
}

int exl3_linear_in(const exl3_linear *l) {
    return l->in;
}

int exl3_linear_out(const exl3_linear *l) {
    return l->out;
}

/* ---- variants ---- */

static const exl3_kernel *const variants[] = {
    &exl3_kernel_plain,
#if defined(__x86_64__)
    &exl3_kernel_avx2,
    &exl3_kernel_avx_vnni,
    &exl3_kernel_avx512_vnni,
#elif defined(__aarch64__)
    &exl3_kernel_neon,
#endif
};
enum { N_VARIANTS = sizeof variants / sizeof variants[0] };

static atomic_int chosen = -1; /* index into variants; -1 = not yet asked */

static int best_variant(void) {
    int best = 0;
    for (int i = 1; i < N_VARIANTS; i++)
        if (variants[i]->is_usable()) best = i;
    return best;
}

int exl3_variant_count(void) {
    return N_VARIANTS;
}

const char *exl3_variant_name(int i) {
    return i >= 0 && i < N_VARIANTS ? variants[i]->name : "?";
}

int exl3_variant_usable(int i) {
    return i >= 0 && i < N_VARIANTS && variants[i]->is_usable();
}

int exl3_select(int i) {
    if (i == -1) i = best_variant();
    if (!exl3_variant_usable(i)) return ERR_UNSUPPORTED;
    atomic_store(&chosen, i);
    return OK;
}

int exl3_variant_in_use(void) {
    int i = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (i < 0) {
        i = best_variant();
        atomic_store_explicit(&chosen, i, memory_order_relaxed);
    }
    return i;
}

/* ---- running ---- */

typedef struct run_job {
    const exl3_job *job;
    int first_row, first_item; /* rows and work items of the jobs before */
    int n_blocks;              /* 128-output blocks */
} run_job;

typedef struct run_state {
    const exl3_kernel *kernel;
    run_job *jobs;
    exl3_row *rows;
    int n_jobs, n_rows, n_items;
    int rotation_rows; /* rows of one item of the rotation */
} run_state;

static size_t row_bytes(int in) {
    return align_up((size_t)in * (sizeof(float) + sizeof(int16_t)) +
                    (size_t)(in / EXL3_BLOCK) * sizeof(int32_t));
}

size_t exl3_scratch_bytes(int n_jobs, int n_rows, int max_in) {
    return align_up((size_t)n_jobs * sizeof(run_job)) +
           (size_t)n_rows * (sizeof(exl3_row) + row_bytes(max_in)) + ALIGNMENT;
}

/* Lays the rows of all jobs out in scratch; returns the estimated nanoseconds. */
static size_t plan_run(const exl3_run_args *a, char *scratch, run_state *s) {
    size_t work = 0;
    s->jobs = (run_job *)(void *)scratch;
    s->n_jobs = a->n_jobs;
    s->n_rows = s->n_items = 0;
    for (int i = 0; i < a->n_jobs; i++) {
        const exl3_job *job = &a->jobs[i];
        run_job *r = &s->jobs[i];
        *r = (run_job){job, s->n_rows, s->n_items, job->linear->out / EXL3_BLOCK};
        s->n_rows += job->n_rows;
        s->n_items += r->n_blocks * ((job->n_rows + EXL3_ROW_BLOCK - 1) / EXL3_ROW_BLOCK);
        if (job->n_rows > 0) work += job_ns(job);
    }
    char *at = scratch + align_up((size_t)a->n_jobs * sizeof(run_job));
    s->rows = (exl3_row *)(void *)at;
    at += align_up((size_t)s->n_rows * sizeof(exl3_row));
    for (int i = 0; i < a->n_jobs; i++) {
        const size_t in = (size_t)a->jobs[i].linear->in;
        for (int r = 0; r < a->jobs[i].n_rows; r++) {
            exl3_row *row = &s->rows[s->jobs[i].first_row + r];
            row->t = (float *)(void *)at;
            row->a = (int16_t *)(void *)(at + in * sizeof(float));
            row->block_sums = (int32_t *)(void *)(at + in * (sizeof(float) + sizeof(int16_t)));
            at += row_bytes((int)in);
        }
    }
    return work;
}

/* The last job whose first row (or item) is not above i; jobs without rows never own one. */
static const run_job *job_of(const run_state *s, int i, bool is_row) {
    int low = 0, high = s->n_jobs - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        int first = is_row ? s->jobs[middle].first_row : s->jobs[middle].first_item;
        if (first <= i)
            low = middle;
        else
            high = middle - 1;
    }
    return &s->jobs[low];
}

static void rotate_row(const run_state *s, const run_job *r, int i_row) {
    const exl3_job *job = r->job;
    int i = i_row - r->first_row;
    size_t source = job->x_rows != NULL ? (size_t)job->x_rows[i] : (size_t)i;
    s->kernel->rotate(
        job->x + source * job->x_stride, job->linear->suh, job->linear->in, &s->rows[i_row]);
}

/* A few rows an item: a row alone takes a tenth of a microsecond, less than handing it out. */
static void rotate_item(void *ctx, int i_item, int i_thread) {
    (void)i_thread;
    const run_state *s = ctx;
    int first = i_item * s->rotation_rows;
    int end = first + s->rotation_rows < s->n_rows ? first + s->rotation_rows : s->n_rows;
    for (int i = first; i < end; i++)
        rotate_row(s, job_of(s, i, true), i);
}

/* The fp32 form of the other codebooks. */
static void value_block(const exl3_linear *l, const exl3_row *row, int block, float *y) {
    const size_t strip = (size_t)l->in * EXL3_TILE;
    for (int i = 0; i < EXL3_BLOCK / EXL3_TILE; i++)
        exl3_dot_values(
            l->values + (size_t)(block * 8 + i) * strip, l->in, row->t, y + i * EXL3_TILE);
}

static void block_item(void *ctx, int i_item, int i_thread) {
    (void)i_thread;
    const run_state *s = ctx;
    const run_job *r = job_of(s, i_item, false);
    const exl3_job *job = r->job;
    const exl3_linear *l = job->linear;
    int block = (i_item - r->first_item) % r->n_blocks,
        first = (i_item - r->first_item) / r->n_blocks * EXL3_ROW_BLOCK;
    int n_rows = job->n_rows - first < EXL3_ROW_BLOCK ? job->n_rows - first : EXL3_ROW_BLOCK;
    const exl3_row *rows = s->rows + r->first_row + first;
    float *y = job->y + (size_t)first * job->y_stride + (size_t)block * EXL3_BLOCK;
    const float *svh = l->svh + block * EXL3_BLOCK,
                *bias = l->bias != NULL ? l->bias + block * EXL3_BLOCK : NULL;
    if (l->codebook != EXL3_MUL1) {
        for (int i = 0; i < n_rows; i++) {
            value_block(l, rows + i, block, y + (size_t)i * job->y_stride);
            exl3_finish_rotated(y + (size_t)i * job->y_stride, svh, bias);
        }
        return;
    }
    const size_t strip_words = (size_t)(l->in / EXL3_TILE) * (size_t)l->n_words * EXL3_LANES;
    for (int i = 0; i < EXL3_BLOCK / EXL3_TILE; i++) {
        exl3_strip strip = {
            l->packed + (size_t)(block * 8 + i) * strip_words, l->in, l->k2, l->n_words};
        s->kernel->dot(&strip, rows, n_rows, y + i * EXL3_TILE, job->y_stride);
    }
    for (int i = 0; i < n_rows; i++)
        s->kernel->finish(y + (size_t)i * job->y_stride, rows + i, svh, bias);
}

void exl3_grouped_run(const exl3_run_args *a, void *scratch) {
    run_state s = {.kernel = variants[exl3_variant_in_use()]};
    CHECK((uintptr_t)scratch % ALIGNMENT == 0);
    size_t work = plan_run(a, scratch, &s);
    if (s.n_rows == 0) return;
    size_t values = 0;
    for (int i = 0; i < a->n_jobs; i++)
        values += (size_t)a->jobs[i].n_rows * (size_t)a->jobs[i].linear->in;
    s.rotation_rows = 1 + (int)((size_t)ROTATION_VALUES * (size_t)s.n_rows / values);
    int n_rotations = (s.n_rows + s.rotation_rows - 1) / s.rotation_rows;
    pool_run(values < INLINE_ROTATION ? NULL : a->pool, n_rotations, rotate_item, &s);
    pool_run(work < INLINE_NS ? NULL : a->pool, s.n_items, block_item, &s);
}

void exl3_linear_run(const exl3_job *job, pool *p, void *scratch) {
    exl3_run_args a = {job, 1, p};
    exl3_grouped_run(&a, scratch);
}
