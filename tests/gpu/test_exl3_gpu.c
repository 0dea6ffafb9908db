/* EXL3 on the GPU against the CPU back end: dense linears bit for bit over rates, shapes, rows and job lists; operands of
 * groups against those made row by row. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "kernels/exl3/exl3_one.h"
#include "kernels/half.h"
#include "kernels/vec/vec.h"
#include "tests/gpu/exl3_fixture.h"

enum { MAX_LIST = 16 };

typedef struct linear_case {
    int in, out, k2, n_rows;
} linear_case;

/* The y of one job against the CPU's bits; y is poisoned again behind it. */
static void compare_job(
    const linear_case *c, const fixture_matrix *m, const float *x, int stride, float *y) {
    size_t n_y = (size_t)(c->out * c->n_rows);
    float *got = mem_array(n_y, sizeof *got), *want = mem_array(n_y, sizeof *want);
    float *rows_in = mem_array((size_t)(c->in * c->n_rows), sizeof *rows_in);
    for (int r = 0; r < c->n_rows; r++)
        memcpy(rows_in + r * c->in, x + r * stride, sizeof(float) * (size_t)c->in);
    device_get(got, y, n_y * sizeof *got);
    device_ok(cudaMemset(y, 0xff, n_y * sizeof *got), "poison");
    fixture_matrix_rows(m, rows_in, c->n_rows, want);
    for (size_t k = 0; k < n_y; k++) {
        if (memcmp(&got[k], &want[k], sizeof *got) == 0) continue;
        fail_msg("%d -> %d, %d/2 bits, %d rows, value %zu: got %.9g, want %.9g", c->in, c->out,
            c->k2, c->n_rows, k, (double)got[k], (double)want[k]);
    }
    mem_free(got);
    mem_free(want);
    mem_free(rows_in);
}

/* Runs a list of dense jobs on the device and compares every row with the CPU's
 * bits. */
static void run_list(const linear_case *c, int n, int has_bias) {
    fixture_matrix m[MAX_LIST];
    exl3_gpu_job jobs[MAX_LIST] = {0};
    float *x[MAX_LIST], *device_x[MAX_LIST];
    fixture_list list;
    err e = ERR_INIT;
    int stride = 0;
    for (int i = 0; i < n; i++)
        stride = c[i].in > stride ? c[i].in : stride;
    for (int i = 0; i < n; i++) {
        const int shape[3] = {c[i].in, c[i].out, c[i].k2};
        fixture_matrix_init(&m[i], shape, has_bias, 7u * (unsigned)i + (unsigned)c[i].in);
        size_t bytes = sizeof(float) * (size_t)(stride * c[i].n_rows);
        x[i] = mem_alloc(bytes);
        fixture_values(x[i], (size_t)(stride * c[i].n_rows), (unsigned)(c[i].k2 + i));
        device_x[i] = device_new(bytes);
        device_put(device_x[i], x[i], bytes);
        jobs[i].matrix = m[i].device;
        jobs[i].n_rows = c[i].n_rows;
        jobs[i].x = device_x[i];
        jobs[i].x_stride = stride;
        jobs[i].y = device_new(sizeof(float) * (size_t)(c[i].out * c[i].n_rows));
        jobs[i].y_stride = c[i].out;
    }
    fixture_list_init(&list, jobs, n, 0);
    exl3_gpu_scratch scratch = {device_new(8 * list.n_sums), device_new(4 * list.n_counters)};
    exl3_gpu_rotate_args rotate = {list.device, NULL, n, list.max_rows};
    exl3_gpu_rows_args rows = {list.device, NULL, scratch, list.max_rows, list.max_stage_bytes, 0};
    exl3_gpu_own_list own = {.n_jobs = n, .n_units = list.n_units, .n_cost = list.n_cost};
    for (int i = 0; i < n && n <= EXL3_GPU_OWN_JOBS; i++)
        own.jobs[i] = list.jobs[i];
    /* Counters and sums must be left clean; in the last turn the list travels in
   * the launch. */
    for (int turn = 0; turn < (n <= EXL3_GPU_OWN_JOBS ? 4 : 3); turn++) {
        rows.has_early_list = turn >= 2;
        if (turn == 3) rows.list = NULL, rows.own = &own;
        assert_int_equal(exl3_gpu_rotate_run(&rotate, NULL, &e), OK);
        assert_int_equal(exl3_gpu_rows_run(&rows, NULL, &e), OK);
        device_ok(cudaDeviceSynchronize(), "dense list");
        for (int i = 0; i < n; i++)
            compare_job(&c[i], &m[i], x[i], stride, list.jobs[i].y);
    }
    /* Rows that nobody rotated, twice: what CTAs left each other is cleared. */
    for (int turn = 0; turn < 2 && rows.own != NULL; turn++) {
        int is_done = 0;
        assert_int_equal(exl3_one_run(&rows, 1, NULL, &is_done, &e), OK);
        device_ok(cudaDeviceSynchronize(), "one row");
        for (int i = 0; i < n && is_done; i++)
            compare_job(&c[i], &m[i], x[i], stride, list.jobs[i].y);
    }
    for (int i = 0; i < n; i++) {
        device_free(list.jobs[i].y);
        device_free(device_x[i]);
        mem_free(x[i]);
        fixture_matrix_release(&m[i]);
    }
    fixture_list_release(&list);
    device_free(scratch.sums);
    device_free(scratch.counters);
}

static void test_every_rate(void **state) {
    (void)state;
    for (int k2 = 2; k2 <= 16; k2++) {
        if (!exl3_rate_ok(EXL3_MUL1, k2)) continue;
        for (int rows = 1; rows <= 8; rows++) {
            linear_case c = {256, 384, k2, rows};
            run_list(&c, 1, rows % 2);
        }
    }
}

static void test_shapes(void **state) {
    (void)state;
    static const linear_case cases[] = {{128, 128, 6, 1}, {128, 128, 4, 8}, {5120, 2304, 6, 1},
        {2304, 5120, 6, 3}, {5120, 1280, 12, 2}, {5120, 512, 10, 5}, {1280, 4096, 10, 1},
        {4096, 1024, 10, 8}, {16384, 128, 6, 4}, {15360, 256, 8, 7}, {128, 16384, 16, 6},
        {640, 128, 3, 8}, {1152, 5120, 4, 1}, {2304, 5120, 6, 1}, {1280, 16384, 10, 1},
        {5120, 128, 16, 1}, {4096, 5120, 10, 1}, {128, 384, 8, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_list(&cases[i], 1, 0);
}

static void test_lists(void **state) {
    (void)state;
    static const linear_case mixed[] = {{1024, 1280, 10, 1}, {1024, 512, 12, 1}, {512, 128, 16, 1},
        {1024, 512, 10, 1}, {128, 128, 6, 1}};
    static const linear_case uneven[] = {{512, 256, 6, 1}, {512, 256, 6, 8}, {512, 256, 4, 3},
        {256, 512, 8, 5}, {128, 2048, 5, 2}, {2048, 128, 6, 4}, {128, 128, 6, 6}, {128, 128, 6, 7},
        {256, 128, 12, 1}, {128, 128, 10, 2}, {128, 128, 4, 1}, {384, 128, 6, 1}, {128, 384, 6, 2},
        {128, 128, 14, 3}, {128, 128, 7, 1}, {128, 256, 6, 1}};
    static const linear_case groups[] = {
        {4096, 1024, 10, 1}, {4096, 1024, 10, 1}, {4096, 1024, 10, 1}, {4096, 1024, 10, 1}};
    static const linear_case inputs[] = {{5120, 1280, 10, 1}, {5120, 512, 12, 1}};
    static const linear_case narrow[] = {{128, 1280, 6, 1}, {256, 640, 8, 1}, {128, 128, 4, 1}};
    run_list(mixed, 5, 0);
    run_list(groups, 4, 1);
    run_list(inputs, 2, 1);
    run_list(narrow, 3, 0);
    run_list(uneven, 16, 1);
}

/* A gemm job with its buffers, its matrix and its input; y poisoned. */
static exl3_gpu_job gemm_job(const linear_case *c, fixture_matrix *m, float **x, int i) {
    const int shape[3] = {c->in, c->out, c->k2}, cap = (c->n_rows + 7) / 8 * 8;
    const size_t n_x = (size_t)c->in * (size_t)c->n_rows;
    const size_t y_bytes = sizeof(float) * (size_t)c->out * (size_t)c->n_rows;
    fixture_matrix_init(m, shape, i % 2, 31u * (unsigned)i + (unsigned)c->in);
    *x = mem_array(n_x, sizeof(float));
    fixture_values(*x, n_x, (unsigned)(c->k2 + i));
    float *device_x = device_new(n_x * sizeof(float));
    device_put(device_x, *x, n_x * sizeof(float));
    exl3_gpu_job job = {.matrix = m->device,
        .x = device_x,
        .x_stride = c->in,
        .operand = device_new(4 * exl3_gpu_gemm_operand_words(c->in, cap)),
        .scale = device_new(sizeof(exl3_gpu_scale) * (size_t)cap),
        .y = device_new(y_bytes),
        .y_stride = c->out,
        .n_rows = c->n_rows,
        .row_cap = cap};
    device_ok(cudaMemset(job.y, 0xff, y_bytes), "poison");
    return job;
}

/* Compares with the CPU's bits and gives all back. */
static void gemm_job_check(
    const linear_case *c, const exl3_gpu_job *job, fixture_matrix *m, float *x) {
    compare_job(c, m, x, c->in, job->y);
    mem_free(x);
    device_free((void *)(uintptr_t)job->x);
    device_free(job->operand);
    device_free(job->scale);
    device_free(job->y);
    fixture_matrix_release(m);
}

static void gemm_fit(exl3_gpu_gemm_args *a, const linear_case *c) {
    a->max_out = c->out > a->max_out ? c->out : a->max_out;
    a->max_k2 = c->k2 > a->max_k2 ? c->k2 : a->max_k2;
}

/* Many rows: the list travels in the launch. */
static void run_gemm(const linear_case *c, int n, int tile_rows) {
    fixture_matrix m[EXL3_GPU_OWN_JOBS];
    exl3_gpu_own_list list = {.n_jobs = n};
    exl3_gpu_gemm_args a = {.own = &list, .tile_rows = tile_rows};
    float *x[EXL3_GPU_OWN_JOBS];
    err e = ERR_INIT;
    for (int i = 0; i < n; i++) {
        list.jobs[i] = gemm_job(&c[i], &m[i], &x[i], i);
        int tiles = (c[i].n_rows + tile_rows - 1) / tile_rows;
        a.max_tiles = tiles > a.max_tiles ? tiles : a.max_tiles;
        gemm_fit(&a, &c[i]);
    }
    assert_int_equal(exl3_gpu_gemm_rotate_run(&a, NULL, &e), OK);
    assert_int_equal(exl3_gpu_gemm_run(&a, NULL, &e), OK);
    device_ok(cudaDeviceSynchronize(), "gemm");
    for (int i = 0; i < n; i++)
        gemm_job_check(&c[i], &list.jobs[i], &m[i], x[i]);
}

static void run_many_rows(int tile_rows) {
    for (int k2 = 2; k2 <= 16; k2++) {
        if (!exl3_rate_ok(EXL3_MUL1, k2)) continue;
        linear_case c = {256, 256, k2, 7 + 5 * k2};
        run_gemm(&c, 1, tile_rows);
    }
    static const linear_case cases[] = {{128, 128, 6, 1}, {128, 128, 6, 9}, {5120, 2304, 6, 64},
        {2304, 5120, 6, 65}, {16384, 128, 6, 129}, {15360, 128, 8, 16}, {128, 4096, 10, 33},
        {5120, 512, 12, 200}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_gemm(&cases[i], 1, tile_rows);
    static const linear_case mixed[] = {
        {512, 256, 6, 70}, {256, 384, 10, 9}, {128, 128, 16, 130}, {640, 128, 3, 64}};
    run_gemm(mixed, 4, tile_rows);
}

static void test_many_rows(void **state) {
    (void)state;
    struct cudaDeviceProp p;
    device_ok(cudaGetDeviceProperties(&p, 0), "properties");
    run_many_rows(EXL3_GPU_SHORT_ROWS);
    run_many_rows(EXL3_GPU_TILE_ROWS);
    if (p.major != 9) return;
    run_many_rows(EXL3_GPU_WIDE_ROWS);
    run_many_rows(EXL3_GPU_WIDEST_ROWS);
}

/* Tiles of a list, laid out for tiles of tile_rows rows: what is left of a job goes to the product of
 * short tiles, which may run beside the other. */
static void run_tiles(const linear_case *c, int n, int tile_rows) {
    enum { MOST = 8, MOST_TILES = 32 };
    fixture_matrix m[MOST];
    exl3_gpu_job jobs[MOST] = {0};
    float *x[MOST];
    exl3_gpu_tile tiles[3][MOST_TILES]; /* all, long, short */
    int32_t n_tiles[3] = {0};
    exl3_gpu_gemm_args a = {.tile_rows = tile_rows};
    err e = ERR_INIT;
    for (int i = 0; i < n; i++) {
        jobs[i] = gemm_job(&c[i], &m[i], &x[i], i);
        gemm_fit(&a, &c[i]);
        for (int row = 0; row < c[i].n_rows; row += tile_rows) {
            const int list = c[i].n_rows - row > EXL3_GPU_SHORT_ROWS ? 1 : 2;
            tiles[0][n_tiles[0]++] = tiles[list][n_tiles[list]++] = (exl3_gpu_tile){i, row};
        }
    }
    exl3_gpu_job *device_jobs = device_new(sizeof jobs);
    exl3_gpu_tile *device_tiles = device_new(sizeof tiles);
    int32_t *device_n = device_new(sizeof n_tiles);
    device_put(device_jobs, jobs, sizeof jobs);
    device_put(device_tiles, tiles, sizeof tiles);
    device_put(device_n, n_tiles, sizeof n_tiles);
    a.jobs = device_jobs;
    for (int list = 0; list < 3; list++) {
        a.tiles = device_tiles + list * MOST_TILES;
        a.n_tiles = device_n + list;
        a.max_tiles = n_tiles[list] + 1;
        a.tile_rows = list < 2 ? tile_rows : EXL3_GPU_SHORT_ROWS;
        a.is_beside = list == 2;
        assert_int_equal(
            list == 0 ? exl3_gpu_gemm_rotate_run(&a, NULL, &e) : exl3_gpu_gemm_run(&a, NULL, &e),
            OK);
    }
    device_ok(cudaDeviceSynchronize(), "tiles");
    for (int i = 0; i < n; i++)
        gemm_job_check(&c[i], &jobs[i], &m[i], x[i]);
    device_free(device_jobs);
    device_free(device_tiles);
    device_free(device_n);
}

static void test_tiles(void **state) {
    (void)state;
    struct cudaDeviceProp p;
    device_ok(cudaGetDeviceProperties(&p, 0), "properties");
    static const linear_case cases[] = {{512, 256, 6, 129}, {512, 256, 6, 160},
        {1152, 384, 10, 161}, {256, 128, 6, 5}, {128, 384, 4, 300}, {5120, 256, 6, 130},
        {384, 128, 16, 97}};
    run_tiles(cases, 7, EXL3_GPU_TILE_ROWS);
    if (p.major != 9) return;
    run_tiles(cases, 7, EXL3_GPU_WIDE_ROWS);
    run_tiles(cases, 7, EXL3_GPU_WIDEST_ROWS);
}

static void test_not_finite(void **state) {
    (void)state;
    const int shape[3] = {256, 128, 6};
    fixture_matrix m;
    err e = ERR_INIT;
    fixture_matrix_init(&m, shape, 0, 5);
    float x[3 * 256], y[3 * 128], want[128];
    fixture_values(x, 3 * 256, 9);
    fixture_matrix_rows(&m, x, 1, want);
    x[256 + 17] = NAN;
    x[512 + 200] = -INFINITY;
    float *device_x = device_new(sizeof x);
    device_put(device_x, x, sizeof x);
    exl3_gpu_job job = {.matrix = m.device,
        .x = device_x,
        .x_stride = 256,
        .n_rows = 3,
        .y = device_new(sizeof y),
        .y_stride = 128};
    fixture_list list;
    fixture_list_init(&list, &job, 1, 0);
    exl3_gpu_scratch scratch = {device_new(8 * list.n_sums), device_new(4 * list.n_counters)};
    exl3_gpu_rotate_args rotate = {list.device, NULL, 1, 3};
    exl3_gpu_rows_args rows = {list.device, NULL, scratch, 3, list.max_stage_bytes, 0};
    assert_int_equal(exl3_gpu_rotate_run(&rotate, NULL, &e), OK);
    assert_int_equal(exl3_gpu_rows_run(&rows, NULL, &e), OK);
    device_get(y, job.y, sizeof y);
    assert_memory_equal(y, want, sizeof want);
    for (int i = 128; i < 384; i++)
        assert_true(isnan(y[i]));
    device_free(job.y);
    device_free(device_x);
    fixture_list_release(&list);
    device_free(scratch.sums);
    device_free(scratch.counters);
    fixture_matrix_release(&m);
}

/* ---- groups ---- */

enum { GROUP_JOBS = 3, GROUP_SOURCES = 40, GROUP_LIMIT = 3, GROUP_PAIRS = 256 };

/* Three experts as a plan lays them out: in inputs, rows of each. */
typedef struct group_case {
    int in, tile_rows, is_down, is_bf16, n_rows[GROUP_JOBS];
} group_case;

typedef struct group_run {
    const group_case *c;
    fixture_matrix m[2 * GROUP_JOBS];
    exl3_gpu_own_list list, want; /* the same jobs with other operands */
    exl3_gpu_tile groups[GROUP_PAIRS];
    int n_groups, n_pairs, n_jobs;
    size_t n_x;
    float *x, *up, *act, *weight; /* host */
    void *device[64];
    int n_device;
} group_run;

static void *group_sent(group_run *r, const void *from, size_t bytes) {
    void *p = device_new(bytes);
    if (from != NULL) device_put(p, from, bytes);
    r->device[r->n_device++] = p;
    return p;
}

/* Input or gate, and up, with rows that are not finite, zero, large and small; what down makes of them. */
static void group_values(group_run *r) {
    const group_case *c = r->c;
    const size_t in = (size_t)c->in;
    r->n_x = (size_t)(c->is_down ? r->n_pairs : GROUP_SOURCES) * in;
    r->x = mem_array(r->n_x, sizeof(float));
    r->up = mem_array(r->n_x, sizeof(float));
    r->act = mem_array(r->n_x, sizeof(float));
    r->weight = mem_array((size_t)r->n_pairs, sizeof(float));
    fixture_values(r->x, r->n_x, (unsigned)c->in);
    fixture_values(r->up, r->n_x, (unsigned)c->in + 1);
    fixture_values(r->weight, (size_t)r->n_pairs, 3);
    r->x[2 * in + 17] = NAN;
    if (!c->is_down) r->x[4 * in + in - 1] = -INFINITY;
    memset(r->x + 5 * in, 0, in * sizeof(float));
    for (size_t i = 6 * in; i < 8 * in; i++)
        r->x[i] *= i < 7 * in ? 1e30f : 1e-34f;
    memcpy(r->act, r->x, r->n_x * sizeof(float));
    for (int p = 0; c->is_down && p < r->n_pairs; p++) {
        float *row = r->act + (size_t)p * in;
        vec()->swiglu(row, r->up + (size_t)p * in, GROUP_LIMIT, r->weight[p], c->in);
        for (size_t i = 0; c->is_bf16 && i < in; i++)
            row[i] = bf16_round(row[i]);
    }
}

/* Job i of both lists; pair: of its first row. */
static void group_job(
    group_run *r, int i, int pair, const float *x, const float *act, const int32_t *x_rows) {
    const group_case *c = r->c;
    const int n_rows = c->n_rows[c->is_down ? i : i / 2], cap = (n_rows + 7) / 8 * 8;
    const int shape[3] = {c->in, 128, 6};
    const size_t bytes = 4 * exl3_gpu_gemm_operand_words(c->in, cap);
    const size_t scale_bytes = sizeof(exl3_gpu_scale) * (size_t)cap;
    fixture_matrix_init(&r->m[i], shape, 0, (unsigned)i + 5);
    exl3_gpu_job job = {.matrix = r->m[i].device,
        .x = c->is_down ? x + (size_t)pair * (size_t)c->in : x,
        .x_rows = c->is_down ? NULL : x_rows + pair,
        .x_stride = c->in,
        .operand = group_sent(r, NULL, bytes),
        .scale = group_sent(r, NULL, scale_bytes),
        .n_rows = n_rows,
        .row_cap = cap,
        .first_pair = pair};
    r->list.jobs[i] = job;
    if (c->is_down) job.x = act + (size_t)pair * (size_t)c->in;
    job.operand = group_sent(r, NULL, bytes);
    job.scale = group_sent(r, NULL, scale_bytes);
    r->want.jobs[i] = job;
}

static void group_run_init(group_run *r, const group_case *c) {
    int32_t rows[GROUP_PAIRS];
    *r = (group_run){.c = c, .n_jobs = c->is_down ? GROUP_JOBS : 2 * GROUP_JOBS};
    for (int j = 0; j < GROUP_JOBS; j++) {
        for (int row = 0; row < c->n_rows[j]; row += 8)
            r->groups[r->n_groups++] = (exl3_gpu_tile){j, row};
        r->n_pairs += c->n_rows[j];
    }
    for (int i = 0; i < r->n_pairs; i++)
        rows[i] = (i * 7 + 2) % GROUP_SOURCES;
    group_values(r);
    const float *x = group_sent(r, r->x, r->n_x * sizeof(float));
    const float *act = group_sent(r, r->act, r->n_x * sizeof(float));
    const int32_t *x_rows = group_sent(r, rows, (size_t)r->n_pairs * sizeof(int32_t));
    r->list.n_jobs = r->want.n_jobs = r->n_jobs;
    for (int i = 0, pair = 0; i < r->n_jobs; i++) {
        group_job(r, i, pair, x, act, x_rows);
        if (c->is_down || i % 2 == 1) pair += r->list.jobs[i].n_rows;
    }
}

/* Compares job i with the other form's and clears it. */
static void group_compare(const group_run *r, int i, int n_sms) {
    const exl3_gpu_job *a = &r->list.jobs[i], *b = &r->want.jobs[i];
    const size_t n = exl3_gpu_gemm_operand_words(r->c->in, a->row_cap);
    const size_t scale_bytes = sizeof(exl3_gpu_scale) * (size_t)a->row_cap;
    uint32_t *got = mem_array(n, 4), *want = mem_array(n, 4);
    exl3_gpu_scale got_scale[GROUP_PAIRS], want_scale[GROUP_PAIRS];
    device_get(got, a->operand, n * 4);
    device_get(want, b->operand, n * 4);
    device_get(got_scale, a->scale, scale_bytes);
    device_get(want_scale, b->scale, scale_bytes);
    for (size_t k = 0; k < n; k++) {
        if (got[k] == want[k]) continue;
        fail_msg("groups of %d inputs, tiles of %d, down %d, %d SMs: job %d, word %zu of %zu: "
                 "got %08x, want %08x",
            r->c->in, r->c->tile_rows, r->c->is_down, n_sms, i, k, n, got[k], want[k]);
    }
    for (int k = 0; k < a->n_rows; k++) {
        if (memcmp(&got_scale[k], &want_scale[k], sizeof *got_scale) == 0) continue;
        fail_msg("groups of %d inputs, down %d, %d SMs: job %d, row %d: scale %.9g and %.9g, "
                 "sum %d and %d",
            r->c->in, r->c->is_down, n_sms, i, k, (double)got_scale[k].scale,
            (double)want_scale[k].scale, got_scale[k].sum, want_scale[k].sum);
    }
    device_ok(cudaMemset(a->operand, 0, n * 4), "clear");
    device_ok(cudaMemset(a->scale, 0xff, scale_bytes), "poison");
    mem_free(got);
    mem_free(want);
}

static void run_groups(const group_case *c) {
    static group_run r;
    static const int sms[] = {1, 3, 48};
    err e = ERR_INIT;
    group_run_init(&r, c);
    exl3_gpu_gemm_args rows = {
        .own = &r.want, .max_out = 128, .max_k2 = 6, .tile_rows = c->tile_rows, .max_tiles = 8};
    assert_int_equal(exl3_gpu_gemm_rotate_run(&rows, NULL, &e), OK);
    exl3_gpu_groups_args a = {.jobs = group_sent(&r, r.list.jobs, sizeof r.list.jobs),
        .groups = group_sent(&r, r.groups, sizeof r.groups),
        .n_groups = group_sent(&r, &r.n_groups, sizeof r.n_groups),
        .in = c->in,
        .tile_rows = c->tile_rows,
        .limit = GROUP_LIMIT,
        .is_bf16 = c->is_bf16};
    if (c->is_down) {
        a.up = group_sent(&r, r.up, r.n_x * sizeof(float));
        a.weight = group_sent(&r, r.weight, (size_t)r.n_pairs * sizeof(float));
    }
    for (size_t k = 0; k < sizeof sms / sizeof *sms; k++) {
        a.n_sms = sms[k];
        assert_int_equal(exl3_gpu_groups_run(&a, NULL, &e), OK);
        device_ok(cudaDeviceSynchronize(), "groups");
        for (int i = 0; i < r.n_jobs; i++)
            group_compare(&r, i, sms[k]);
    }
    for (int i = 0; i < r.n_device; i++)
        device_free(r.device[i]);
    for (int i = 0; i < r.n_jobs; i++)
        fixture_matrix_release(&r.m[i]);
    mem_free(r.x);
    mem_free(r.up);
    mem_free(r.act);
    mem_free(r.weight);
}

/* Operands and scales of groups against those made row by row. */
static void test_groups(void **state) {
    (void)state;
    static const group_case cases[] = {{128, 32, 0, 0, {1, 9, 64}}, {640, 64, 0, 0, {8, 33, 5}},
        {5120, 128, 0, 0, {130, 3, 17}}, {1152, 96, 0, 0, {97, 12, 7}}, {128, 32, 1, 0, {9, 64, 1}},
        {1152, 128, 1, 1, {130, 3, 17}}, {1280, 64, 1, 0, {8, 70, 9}},
        {1408, 96, 1, 1, {12, 97, 4}}, {2304, 128, 1, 1, {6, 5, 150}},
        {2560, 32, 1, 0, {33, 4, 2}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_groups(&cases[i]);
    assert_true(exl3_gpu_groups_fit(5120, 0) && exl3_gpu_groups_fit(2560, 1));
    assert_false(exl3_gpu_groups_fit(5248, 0) || exl3_gpu_groups_fit(2688, 1));
    assert_false(exl3_gpu_groups_fit(192, 0));
}

static void test_arguments(void **state) {
    (void)state;
    err e = ERR_INIT;
    exl3_gpu_rows_args rows = {.max_rows = 9, .max_stage_bytes = 1024};
    assert_int_equal(exl3_gpu_rows_run(&rows, NULL, &e), ERR_ARG);
    exl3_gpu_rotate_args rotate = {.n_jobs = EXL3_GPU_MAX_JOBS + 1, .max_rows = 1};
    assert_int_equal(exl3_gpu_rotate_run(&rotate, NULL, &e), ERR_ARG);
    assert_true(strlen(e.msg) > 0);
}

int main(void) {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        print_message("skipped: no GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_every_rate), cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_lists), cmocka_unit_test(test_many_rows),
        cmocka_unit_test(test_tiles), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_groups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
