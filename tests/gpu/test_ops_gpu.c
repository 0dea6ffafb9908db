/* Operators of the CUDA back end against the CPU's at the released sizes and at odd ones, which the
 * golden models are too small for. Inputs are random; a tolerance is relative to the largest value
 * of the result. Where rows are computed in other company the bits must not change. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "kernels/cuda_ops.h"
#include "kernels/indexer/indexer_gpu.h"
#include "tests/gpu/gpu_backend.h"
#include "tests/harness/logit_rows.h"

static kernel_context host, device;
static const kernels *cpu, *cuda;
static rand_state noise;

static float *random_floats(size_t n, float size) {
    float *p = mem_array(n, sizeof(*p));
    for (size_t i = 0; i < n; i++)
        p[i] = size * ((float)(int32_t)rand_u32(&noise) * 0x1p-31f +
                          (float)(int32_t)rand_u32(&noise) * 0x1p-31f);
    return p;
}

/* A copy in device memory. */
static void *sent(const void *p, size_t bytes) {
    void *d = cuda->mem_new(bytes);
    assert_non_null(d);
    cuda->copy(&device, d, p, bytes);
    return d;
}

static void check_device(void) {
    cuda->wait(&device);
    if (device.rc != OK) fail_msg("%s", device.error.msg);
}

/* Compares n device floats with the CPU's. */
static void compare(
    const char *what, const float *want, const float *from, size_t n, double limit) {
    float *got = mem_array(n, sizeof(*got));
    double size = 1e-30, worst = 0;
    size_t at = 0;
    cuda->fetch(&device, got, from, n * sizeof(*got));
    check_device();
    for (size_t i = 0; i < n; i++) {
        size = fmax(size, fabs((double)want[i]));
        double d = fabs((double)want[i] - (double)got[i]);
        if (!(d <= worst)) {
            worst = d;
            at = i;
        }
    }
    if (!(worst <= limit * size))
        fail_msg("%s: value %zu is %.9g, expected %.9g, off by %.3g of %.3g", what, at,
            (double)got[at], (double)want[at], worst, size);
    mem_free(got);
}

/* ---- norms and streams ---- */

static void test_streams(void **state) {
    (void)state;
    static const int shapes[][3] = {
        {1, 5120, 4}, {6, 5120, 4}, {37, 5120, 4}, {3, 64, 4}, {2, 128, 2}};
    for (size_t c = 0; c < sizeof(shapes) / sizeof(*shapes); c++) {
        int n = shapes[c][0], d = shapes[c][1], s = shapes[c][2], mix = s * (s + 2);
        size_t n_h = (size_t)(n * s * d);
        float *h = random_floats(n_h, 1), *fn = random_floats((size_t)(mix * s * d), 0.02f);
        float *base = random_floats((size_t)mix, 0.5f), *weight = random_floats((size_t)d, 1);
        float scale[3] = {1, 0.7f, 1.3f}, *y = random_floats((size_t)(n * d), 1);
        float *out = mem_array((size_t)(n * (2 * s + s * s)), sizeof(float));
        float *x = mem_array((size_t)(n * d), sizeof(float));
        mhc_mix_args mix_args = {
            h, {fn, base, scale}, out, out + n * s, out + 2 * n * s, n, s, d, 20, 1e-6f, 1e-20f};
        mhc_collapse_args collapse = {.h = h,
            .pre = out,
            .weight = weight,
            .x = x,
            .n_rows = n,
            .n_streams = s,
            .d = d,
            .norm_eps = 1e-20f};
        mhc_mix_args g = mix_args;
        g.h = sent(h, n_h * 4);
        g.w = (mhc_weights){sent(fn, (size_t)(mix * s * d) * 4), sent(base, (size_t)mix * 4),
            sent(scale, sizeof(scale))};
        float *g_out = sent(out, (size_t)(n * (2 * s + s * s)) * 4),
              *g_y = sent(y, (size_t)(n * d) * 4);
        g.pre = g_out, g.post = g_out + n * s, g.comb = g_out + 2 * n * s;
        cpu->mhc_mix(&host, &mix_args);
        cuda->mhc_mix(&device, &g);
        compare("mix", out, g_out, (size_t)(n * (2 * s + s * s)), 2e-5);
        cpu->mhc_collapse(&host, &collapse);
        mhc_collapse_args gc = collapse;
        gc.h = g.h, gc.pre = g_out, gc.weight = sent(weight, (size_t)d * 4);
        gc.x = sent(x, (size_t)(n * d) * 4);
        cuda->mhc_collapse(&device, &gc);
        compare("collapse", x, gc.x, (size_t)(n * d), 1e-4);
        mhc_expand_args e = {h, y, out + n * s, out + 2 * n * s, n, s, d};
        mhc_expand_args ge = {(float *)(uintptr_t)g.h, g_y, g.post, g.comb, n, s, d};
        cpu->mhc_expand(&host, &e);
        cuda->mhc_expand(&device, &ge);
        compare("expand", h, ge.h, n_h, 2e-5);
    }
}

/* ---- EXL3 of the other codebooks ---- */

static void test_codebooks(void **state) {
    (void)state;
    enum { IN = 384, OUT = 256, ROWS = 11 };
    static const exl3_codebook codebooks[] = {EXL3_MCG, EXL3_3INST};
    for (int c = 0; c < 4; c++) {
        const int k2 = c < 2 ? 6 : 10;
        const size_t bytes = exl3_trellis_bytes(IN, OUT, k2);
        uint32_t *trellis = mem_alloc(bytes);
        uint16_t suh[IN], svh[OUT];
        for (size_t i = 0; i < bytes / 4; i++)
            trellis[i] = rand_u32(&noise);
        for (int i = 0; i < IN; i++)
            suh[i] = (uint16_t)(0x2c00 + (rand_u32(&noise) & 0x83ff));
        for (int i = 0; i < OUT; i++)
            svh[i] = (uint16_t)(0x3c00 | (rand_u32(&noise) & 0x8000));
        exl3_matrix m = {trellis, suh, svh, NULL, 0, IN, OUT, k2, codebooks[c % 2]};
        float *x = random_floats(ROWS * IN, 1), *y = mem_array(ROWS * OUT, sizeof(float));
        linear_weight w = {.form = MATRIX_EXL3, .n_in = IN, .n_out = OUT};
        linear_job job = {.weight = &w, .x = x, .x_stride = IN, .y = y, .y_stride = OUT};
        err e = ERR_INIT;
        for (int rows = 1; rows <= ROWS; rows += ROWS - 1) {
            job.n_rows = rows, job.weight = &w, job.x = x, job.y = y;
            if (cpu->packed_new(&host, &m, &w.packed, &e) != OK) fail_msg("%s", e.msg);
            cpu->linear(&host, &(linear_args){&job, 1});
            cpu->packed_free(w.packed);
            float *g_y = sent(y, (size_t)(ROWS * OUT) * sizeof(float));
            job.x = sent(x, (size_t)(ROWS * IN) * sizeof(float)), job.y = g_y;
            if (cuda->packed_new(&device, &m, &w.packed, &e) != OK) fail_msg("%s", e.msg);
            cuda->linear(&device, &(linear_args){&job, 1});
            compare("codebook", y, g_y, (size_t)(rows * OUT), 1e-5);
            cuda->packed_free(w.packed);
        }
        mem_free(trellis);
    }
}

/* ---- plain linears ---- */

/* n rows together, then few of them alone: the same bits. Rows are read by a list where has_list. */
static void run_plain(int in, int out, int n, matrix_form form, bool has_list) {
    float *x = random_floats((size_t)(n * in), 1), *w = random_floats((size_t)(in * out), 0.1f);
    uint16_t *halves = mem_array((size_t)(in * out), 2);
    int32_t *list = mem_array((size_t)n, 4);
    for (int i = 0; i < in * out; i++) {
        uint32_t u;
        memcpy(&u, &w[i], 4);
        halves[i] = (uint16_t)(u >> 16);
    }
    for (int i = 0; i < n; i++)
        list[i] = (i * 7 + 3) % n;
    size_t bytes = (size_t)(in * out) * (form == MATRIX_BF16 ? 2 : 4);
    float *y = mem_array((size_t)(n * out), sizeof(float));
    linear_weight weight = {.form = form, .n_in = in, .n_out = out, .row_stride = (size_t)in};
    weight.data = form == MATRIX_BF16 ? (void *)halves : (void *)w;
    linear_job job = {.weight = &weight, .x = x, .x_stride = (size_t)in, .y = y, .n_rows = n};
    job.y_stride = (size_t)out;
    if (has_list) job.x_rows = list;
    cpu->linear(&host, &(linear_args){&job, 1});
    weight.data = sent(weight.data, bytes);
    job.x = sent(x, (size_t)(n * in) * 4);
    if (has_list) job.x_rows = sent(list, (size_t)n * 4);
    job.y = cuda->mem_new((size_t)(n * out) * 4);
    cuda->linear(&device, &(linear_args){&job, 1});
    compare("plain linear", y, job.y, (size_t)(n * out), 1e-5);
    float *together = mem_array((size_t)(n * out), 4), *alone = mem_array((size_t)(60 * out), 4);
    cuda->fetch(&device, together, job.y, (size_t)(n * out) * 4);
    static const int rows[] = {1, 3, 6, 60};
    for (int r = 0; r < 4 && rows[r] <= n; r++) {
        job.n_rows = rows[r];
        cuda->linear(&device, &(linear_args){&job, 1});
        cuda->fetch(&device, alone, job.y, (size_t)(rows[r] * out) * 4);
        check_device();
        assert_memory_equal(alone, together, (size_t)(rows[r] * out) * 4);
    }
    const void *sent_parts[] = {weight.data, job.x, job.y, has_list ? job.x_rows : NULL};
    for (int i = 0; i < 4; i++)
        if (sent_parts[i] != NULL) cuda->mem_free((void *)(uintptr_t)sent_parts[i]);
    mem_free(x), mem_free(w), mem_free(halves), mem_free(list), mem_free(y);
    mem_free(together), mem_free(alone);
}

static void test_plain(void **state) {
    (void)state;
    static const int shapes[][2] = {{5120, 384}, {80, 512}, {33, 7}, {5376, 1}};
    for (size_t c = 0; c < 4; c++)
        run_plain(shapes[c][0], shapes[c][1], 70, MATRIX_F32, false);
    run_plain(5120, 384, 70, MATRIX_BF16, true);
    /* Tiles: whole and broken ones, the smallest length, few outputs. */
    run_plain(5120, 384, 64, MATRIX_F32, false);
    run_plain(5120, 384, 259, MATRIX_BF16, true);
    run_plain(5120, 32, 200, MATRIX_BF16, false);
    run_plain(512, 65, 131, MATRIX_BF16, false);
    run_plain(1536, 640, 900, MATRIX_BF16, true);
    run_plain(2048, 17, 1000, MATRIX_F32, false);
}

/* ---- attention ---- */

enum { D = 512, WINDOW = 128, TOPK = 512, RING = 144, PAGE = 128 };

/* n rows of one stream that end at position last, with n_selected compressed rows of n_stored. */
typedef struct attn_case {
    int n_heads, n, n_selected, n_stored, is_block;
    int64_t first;
} attn_case;

static void run_attention(const attn_case *c) {
    size_t window_row = kv_row_bytes(KV_WINDOW, D), row = kv_row_bytes(KV_COMPRESSED, D);
    int n_pages = c->n_stored / PAGE + 1;
    size_t n_q = (size_t)(c->n * c->n_heads) * D;
    uint8_t *ring = mem_alloc(RING * window_row), *rows = mem_alloc((size_t)c->n * window_row);
    uint8_t *pages = mem_alloc((size_t)(n_pages * PAGE) * row);
    int32_t *table = mem_array((size_t)n_pages, 4);
    float *values = random_floats(D, 1), *q = random_floats(n_q, 1), *o = mem_array(n_q, 4);
    float *sink = random_floats((size_t)c->n_heads, 2);
    for (int i = 0; i < RING + c->n + n_pages * PAGE; i++) {
        for (int k = 0; k < D; k++)
            values[k] = (float)(int32_t)rand_u32(&noise) * 0x1p-31f;
        if (i < RING) kv_pack(KV_WINDOW, values, D, ring + (size_t)i * window_row);
        if (i < c->n) kv_pack(KV_WINDOW, values, D, rows + (size_t)i * window_row);
        if (i < n_pages * PAGE) kv_pack(KV_COMPRESSED, values, D, pages + (size_t)i * row);
    }
    for (int i = 0; i < n_pages; i++)
        table[i] = n_pages - 1 - i;
    int32_t *lists = mem_array((size_t)c->n * (TOPK + 4), 4);
    int64_t *places = mem_array((size_t)c->n * 2, 8);
    int32_t *selection = lists + 4 * c->n;
    for (int r = 0; r < c->n; r++) {
        lists[c->n + r] = 0, lists[2 * c->n + r] = c->n;
        lists[3 * c->n + r] = c->n_selected;
        places[r] = c->first + r, places[c->n + r] = c->first;
        for (int i = 0; i < c->n_selected; i++)
            selection[r * TOPK + i] = (int32_t)((int64_t)i * c->n_stored / c->n_selected);
    }
    attn_args a = {.q = q, .o = o, .sink = sink, .max_selected = TOPK, .n_heads = c->n_heads};
    a.window_format = KV_WINDOW, a.compressed_format = KV_COMPRESSED;
    a.d = D, a.window = WINDOW, a.scale = 0.044194174f, a.is_block = c->is_block;
    a.ring = (kv_ring){ring, 0, window_row, RING};
    a.rows = rows;
    a.pages = (kv_paged){pages, PAGE * row, row, table, n_pages, PAGE};
    a.batch = (batch_rows){c->n, lists, lists + c->n - c->n, places, lists, places + c->n,
        lists + 2 * c->n, c->first + c->n};
    a.selection = c->n_selected > 0 ? selection : NULL, a.n_selected = lists + 3 * c->n;
    cpu->attn(&host, &a);
    attn_args g = a;
    int32_t *g_lists = sent(lists, (size_t)c->n * (TOPK + 4) * 4);
    int64_t *g_places = sent(places, (size_t)c->n * 2 * 8);
    g.q = sent(q, n_q * 4), g.o = cuda->mem_new(n_q * 4);
    g.sink = sent(sink, (size_t)c->n_heads * 4), g.rows = sent(rows, (size_t)c->n * window_row);
    g.ring.base = sent(ring, RING * window_row);
    g.pages.base = sent(pages, (size_t)(n_pages * PAGE) * row);
    g.pages.table = sent(table, (size_t)n_pages * 4);
    g.batch = (batch_rows){c->n, g_lists, g_lists, g_places, g_lists, g_places + c->n,
        g_lists + 2 * c->n, c->first + c->n};
    g.selection = c->n_selected > 0 ? g_lists + 4 * c->n : NULL;
    g.n_selected = g_lists + 3 * c->n;
    cuda->attn(&device, &g);
    compare("attention", o, g.o, n_q, 2e-5);
    /* The first rows alone: the same bits, whichever kernel runs them. */
    int few = c->n < 3 || c->is_block ? c->n : 3;
    size_t n_few = (size_t)(few * c->n_heads) * D;
    float *together = mem_array(n_few, 4), *alone = mem_array(n_few, 4);
    cuda->fetch(&device, together, g.o, n_few * 4);
    g.batch.n = few;
    cuda->attn(&device, &g);
    cuda->fetch(&device, alone, g.o, n_few * 4);
    check_device();
    assert_memory_equal(alone, together, n_few * 4);
}

static void test_attention(void **state) {
    (void)state;
    static const attn_case cases[] = {{32, 1, 512, 3000, 0, 9000}, {64, 1, 512, 3000, 0, 9000},
        {32, 6, 512, 700, 0, 1400}, {32, 150, 512, 900, 0, 1000}, {32, 9, 0, 128, 0, 0},
        {32, 5, 0, 128, 1, 300}, {16, 200, 37, 64, 0, 74}, {8, 3, 65, 100, 0, 200},
        {32, 140, 0, 128, 0, 0}, {64, 70, 64, 200, 0, 300}, {96, 50, 65, 100, 0, 200}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        run_attention(&cases[i]);
}

/* ---- indexer ---- */

/* Rows of values whose blocks of 32 are alike; some have a block of another size, by a little or by far. */
static float *indexer_values(size_t n_rows, size_t d) {
    float *v = random_floats(n_rows * d, 1);
    for (size_t r = 0; r < n_rows; r++) {
        float *block = v + r * d + r / 3 % 4 * 32, size = r % 37 == 5  ? 300.0f
                                                          : r % 3 == 0 ? 5.0f
                                                                       : 1.0f;
        for (int i = 0; i < 32; i++)
            block[i] *= size;
    }
    return v;
}

/* The rows of a run one by one: the same picks. */
static void check_indexer_alone(
    const indexer_args *together, const int32_t *got, const int32_t *n_got) {
    int32_t *mine = mem_array((size_t)together->topk, 4), n_mine = 0;
    for (int r = 0; r < together->batch.n; r += 3) {
        size_t at = (size_t)r;
        indexer_args a = *together;
        a.packed += at * (size_t)a.n_heads * a.packed_bytes;
        a.q += at * (size_t)(a.n_heads * a.d), a.w += at * (size_t)a.n_heads;
        a.batch.n = 1, a.batch.slot += at, a.batch.pos += at;
        a.blocks += at * (size_t)a.max_blocks, a.n_blocks += at;
        a.selection += at * (size_t)a.topk, a.n_selected += at;
        cuda->indexer(&device, &a);
        cuda->fetch(&device, mine, a.selection, (size_t)a.topk * 4);
        cuda->fetch(&device, &n_mine, a.n_selected, 4);
        check_device();
        assert_int_equal(n_mine, n_got[r]);
        assert_memory_equal(mine, got + at * (size_t)a.topk, (size_t)n_mine * 4);
    }
    mem_free(mine);
}

static void run_indexer(int n, int n_keys, int topk, int max_blocks, bool is_packed) {
    enum { HEADS = 32, KEY = 128, BLOCK = 8 };
    size_t row = kv_row_bytes(KV_KEY, KEY);
    int n_pages = n_keys / PAGE + 1;
    uint8_t *pages = mem_alloc((size_t)(n_pages * PAGE) * row);
    float *q = indexer_values((size_t)(n * HEADS), KEY), *w = random_floats((size_t)(n * HEADS), 1);
    uint8_t *packed = mem_alloc((size_t)(n * HEADS) * row);
    for (int i = 0; i < n * HEADS; i++) {
        kv_pack(KV_KEY, q + i * KEY, KEY, packed + (size_t)i * row);
        kv_unpack(KV_KEY, packed + (size_t)i * row, KEY, q + i * KEY);
    }
    int32_t *lists = mem_array((size_t)n * (size_t)(3 + topk + max_blocks) + (size_t)n_pages, 4);
    int64_t *pos = mem_array((size_t)n, 8);
    float *score = mem_array((size_t)n_keys * (size_t)n * 2 + 64, 4);
    float *values = indexer_values((size_t)(n_pages * PAGE), KEY);
    for (int i = 0; i < n_pages * PAGE; i++)
        kv_pack(KV_KEY, values + (size_t)i * KEY, KEY, pages + (size_t)i * row);
    mem_free(values);
    for (int i = 0; i < n; i++)
        pos[i] = n_keys - n + i;
    for (int i = 0; i < n_pages; i++)
        lists[i] = i;
    int32_t *slot = lists + n_pages, *counts = slot + n, *selection = counts + 2 * n;
    indexer_args a = {.q = q, .w = w, .key_format = KV_KEY, .ratio = 1, .n_heads = HEADS, .d = KEY};
    a.keys = (kv_paged){pages, PAGE * row, row, lists, n_pages, PAGE};
    a.batch = (batch_rows){.n = n, .slot = slot, .pos = pos, .pos_bound = n_keys};
    a.topk = topk, a.w_scale = 1.0f / 64, a.max_blocks = max_blocks, a.block = BLOCK;
    a.selection = selection, a.n_selected = counts, a.n_blocks = counts + n;
    a.blocks = selection + n * topk, a.score = score, a.score_rows = n, a.score_cap = n_keys;
    indexer_args g = a;
    size_t n_lists = (size_t)n * (size_t)(3 + topk + max_blocks) + (size_t)n_pages;
    int32_t *g_lists = sent(lists, n_lists * 4), *got = mem_array(n_lists, 4);
    g.q = sent(q, (size_t)(n * HEADS * KEY) * 4), g.w = sent(w, (size_t)(n * HEADS) * 4);
    if (is_packed) g.packed = sent(packed, (size_t)(n * HEADS) * row), g.packed_bytes = row;
    g.keys.base = sent(pages, (size_t)(n_pages * PAGE) * row), g.keys.table = g_lists;
    g.batch.slot = g_lists + n_pages, g.batch.pos = sent(pos, (size_t)n * 8);
    g.selection = g_lists + (selection - lists), g.n_selected = g_lists + (counts - lists);
    g.n_blocks = g.n_selected + n, g.blocks = g.selection + n * topk;
    g.score = cuda->mem_new(((size_t)n_keys * (size_t)n * 2 + 64) * 4);
    for (int turn = 0; turn < 2; turn++) {
        a.builds_candidates = g.builds_candidates = turn == 0;
        a.uses_candidates = g.uses_candidates = turn == 1;
        cpu->indexer(&host, &a);
        cuda->indexer(&device, &g);
        cuda->fetch(&device, got, g_lists, n_lists * 4);
        check_device();
        int n_other = 0;
        for (int r = 0; r < n; r++) {
            assert_int_equal(got[counts - lists + r], counts[r]);
            const int32_t *mine = got + (selection - lists) + r * topk,
                          *want = selection + r * topk;
            for (int i = 0, k = 0; i < counts[r]; i++) {
                while (k < counts[r] && mine[k] < want[i])
                    k++;
                n_other += k == counts[r] || mine[k] != want[i];
                assert_true(i == 0 || mine[i] > mine[i - 1]);
            }
        }
        /* Scores that differ in the last bits may change places at the border of the pick. */
        if (n_other > n * topk / 200) fail_msg("%d of %d picks differ", n_other, n * topk);
        if (is_packed) check_indexer_alone(&g, got + (selection - lists), got + (counts - lists));
    }
}

static void test_indexer(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        run_indexer(3, 5000, 512, 2048, i == 1);
        run_indexer(2, 5000, 512, 100, i == 1);
        run_indexer(40, 700, 512, 64, i == 1);
        run_indexer(19, 1111, 64, 16, i == 1);
        run_indexer(1, 90, 16, 5, i == 1);
        run_indexer(21, 2100, 64, 140, i == 1); /* by position */
        run_indexer(17, 2100, 64, 100, i == 1); /* by candidates */
    }
    run_indexer(1100, 2100, 64, 140, true); /* more keys for a block of threads */
}

/* ---- exact pick ---- */

typedef enum pick_kind { PICK_RANDOM, PICK_TIES, PICK_WILD, PICK_LOST } pick_kind;

typedef struct pick_case {
    int n, n_keys, ratio, max_blocks, bound; /* bound: of keys, what the launch knows */
    pick_kind kind;
} pick_case;

enum { PICK_HEADS = 32, PICK_KEY = 128, PICK_BLOCK = 8 };

typedef struct pick_run {
    const pick_case *c;
    indexer_args a; /* device memory */
    int32_t *lists; /* host copy of slot, table, n_selected, n_blocks, selection, blocks */
    int32_t *g_lists;
    size_t n_lists, at_counts, at_selection, at_blocks;
    int64_t *pos;
    float *tap; /* scores as the device used them: [n][bound] */
} pick_run;

/* Packed keys: any codes, scales around 1. Ties: seven keys only. Wild: some, lost: nearly all have an
 * infinite scale, so that scores are infinite or not numbers. */
static uint8_t *random_keys(int n, pick_kind kind, size_t row) {
    uint8_t *keys = mem_alloc((size_t)n * row);
    for (int i = 0; i < n; i++) {
        uint8_t *key = keys + (size_t)i * row;
        uint32_t any = rand_u32(&noise);
        for (int b = 0; b < PICK_KEY / 2; b++)
            key[b] = (uint8_t)(rand_u32(&noise) >> 24);
        for (int b = 0; b < PICK_KEY / 32; b++)
            key[PICK_KEY / 2 + b] = (uint8_t)(126 + (any >> 2 * b & 1));
        if (kind == PICK_TIES && i >= 7) memcpy(key, keys + (size_t)(any % 7) * row, row);
        if (kind == PICK_WILD && any % 5 == 0) key[PICK_KEY / 2] = 255;
        if (kind == PICK_LOST && any % 2000 != 0) key[PICK_KEY / 2] = 255;
    }
    return keys;
}

/* Rows at the last positions; the first of several has fewer than a pick. Weights of a row have one sign
 * in wild cases: their infinite scores too. */
static void pick_open(pick_run *r, const pick_case *c) {
    size_t row = kv_row_bytes(KV_KEY, PICK_KEY), n = (size_t)c->n;
    int n_pages = c->n_keys / PAGE + 1;
    uint8_t *keys = random_keys(n_pages * PAGE, c->kind, row),
            *queries = random_keys(c->n * PICK_HEADS, PICK_RANDOM, row);
    float *w = random_floats(n * PICK_HEADS, 1);
    for (int i = 0; i < c->n * PICK_HEADS && c->kind >= PICK_WILD; i++)
        w[i] = i / PICK_HEADS % 2 == 0 ? -fabsf(w[i]) : fabsf(w[i]);
    *r = (pick_run){.c = c, .at_counts = n + (size_t)n_pages};
    r->at_selection = r->at_counts + 2 * n;
    r->at_blocks = r->at_selection + n * TOPK;
    r->n_lists = r->at_blocks + n * (size_t)c->max_blocks;
    r->lists = mem_array(r->n_lists, 4);
    r->pos = mem_array(n, 8);
    r->tap = mem_array(n * (size_t)c->bound, 4);
    for (int i = 0; i < n_pages; i++)
        r->lists[c->n + i] = i;
    for (int i = 0; i < c->n; i++)
        r->pos[i] = (int64_t)(c->n_keys - c->n + i + 1) * c->ratio - 1;
    if (c->n > 1 && c->kind < PICK_WILD) r->pos[0] = 200;
    int32_t *g = r->g_lists = sent(r->lists, r->n_lists * 4);
    indexer_args *a = &r->a;
    *a = (indexer_args){.packed = sent(queries, n * PICK_HEADS * row), .packed_bytes = row};
    a->w = sent(w, n * PICK_HEADS * 4), a->w_scale = 1.0f / 64, a->key_format = KV_KEY;
    a->batch = (batch_rows){.n = c->n, .slot = g, .pos = sent(r->pos, n * 8)};
    a->batch.pos_bound = (int64_t)c->bound * c->ratio;
    a->keys =
        (kv_paged){sent(keys, (size_t)(n_pages * PAGE) * row), PAGE * row, row, g + n, 0, PAGE};
    a->keys.table_stride = n_pages;
    a->ratio = c->ratio, a->n_heads = PICK_HEADS, a->d = PICK_KEY, a->topk = TOPK;
    a->max_blocks = c->max_blocks, a->block = PICK_BLOCK;
    a->n_selected = g + r->at_counts, a->n_blocks = a->n_selected + n;
    a->selection = g + r->at_selection, a->blocks = g + r->at_blocks;
    a->score_rows = c->n, a->score_cap = c->bound;
    a->score = cuda->mem_new(2 * n * (size_t)c->bound * 4);
    a->score_tap = cuda->mem_new(n * (size_t)c->bound * 4);
    assert_non_null(a->score);
    assert_non_null(a->score_tap);
    mem_free(keys);
    mem_free(queries);
    mem_free(w);
}

static void pick_close(pick_run *r) {
    const void *device_parts[] = {r->a.packed, r->a.w, r->a.batch.pos, r->a.keys.base, r->a.score,
        r->a.score_tap, r->g_lists};
    for (size_t i = 0; i < sizeof(device_parts) / sizeof(*device_parts); i++)
        cuda->mem_free((void *)(uintptr_t)device_parts[i]);
    mem_free(r->lists);
    mem_free(r->pos);
    mem_free(r->tap);
}

static void fetch_lists(pick_run *r) {
    cuda->fetch(&device, r->lists, r->g_lists, r->n_lists * 4);
    check_device();
}

static bool same_score(float x, float y) {
    return memcmp(&x, &y, sizeof(x)) == 0 || (isnan(x) && isnan(y));
}

static void same_picks(const pick_run *r, const char *what, int row, const int32_t *got, int n_got,
    const int32_t *want, int n_want) {
    const pick_case *c = r->c;
    if (n_got != n_want)
        fail_msg("%d rows of %d keys, bound %d, kind %d: row %d has %d %s, expected %d", c->n,
            c->n_keys, c->bound, (int)c->kind, row, n_got, what, n_want);
    for (int i = 0; i < n_got; i++)
        if (got[i] != want[i])
            fail_msg("%d rows of %d keys, bound %d, kind %d: row %d, %s %d is %d, expected %d",
                c->n, c->n_keys, c->bound, (int)c->kind, row, what, i, got[i], want[i]);
}

/* The blocks that the CPU keeps by these scores. */
static int want_blocks(const float *score, int64_t n_vis, int max_blocks, int32_t *out) {
    int n = (int)((n_vis + PICK_BLOCK - 1) / PICK_BLOCK);
    float *best = mem_array((size_t)n, sizeof(*best));
    for (int b = 0; b < n; b++)
        best[b] = b == n - 1 ? INFINITY : -INFINITY;
    for (int64_t i = 0; i < n_vis; i++)
        if (score[i] > best[i / PICK_BLOCK]) best[i / PICK_BLOCK] = score[i];
    int kept = n;
    for (int b = 0; b < n && n <= max_blocks; b++)
        out[b] = b;
    if (n > max_blocks) kept = indexer_pick(best, n, max_blocks, out);
    mem_free(best);
    return kept;
}

/* The lists of a row against the CPU's pick from the scores of the tap. */
static void check_pick(const pick_run *r, int row, bool has_built) {
    const pick_case *c = r->c;
    const float *tap = r->tap + (size_t)row * (size_t)c->bound;
    const int64_t n_vis = (r->pos[row] + 1) / c->ratio;
    const int32_t *counts = r->lists + r->at_counts;
    int most = TOPK > c->max_blocks ? TOPK : c->max_blocks;
    int32_t *want = mem_array((size_t)most, 4);
    int n = indexer_pick(tap, n_vis, TOPK, want);
    same_picks(
        r, "picks", row, r->lists + r->at_selection + (size_t)row * TOPK, counts[row], want, n);
    if (has_built) {
        n = want_blocks(tap, n_vis, c->max_blocks, want);
        same_picks(r, "blocks", row, r->lists + r->at_blocks + (size_t)row * (size_t)c->max_blocks,
            counts[c->n + row], want, n);
    }
    mem_free(want);
}

/* Scores of a pass that uses the kept blocks: those of before inside of them, else -inf. */
static void check_masked(const pick_run *r, int row, const float *before, const int32_t *kept) {
    const pick_case *c = r->c;
    const float *tap = r->tap + (size_t)row * (size_t)c->bound;
    int n_kept = r->lists[r->at_counts + (size_t)(c->n + row)];
    for (int64_t i = 0, at = 0; i < (r->pos[row] + 1) / c->ratio; i++) {
        while (at < n_kept && kept[at] < i / PICK_BLOCK)
            at++;
        bool is_kept = at < n_kept && kept[at] == i / PICK_BLOCK;
        if (!same_score(tap[i], is_kept ? before[i] : -INFINITY))
            fail_msg("%d rows of %d keys: row %d, score %lld is %g, was %g, kept %d", c->n,
                c->n_keys, row, (long long)i, (double)tap[i], (double)before[i], is_kept);
    }
}

/* Any number of CTAs, without a tap: the lists that the last run left. */
static void check_parts(pick_run *r, bool has_built) {
    int32_t *want = mem_array(r->n_lists, 4);
    float *tap = r->a.score_tap;
    memcpy(want, r->lists, r->n_lists * 4);
    r->a.score_tap = NULL;
    for (int parts = 1; parts <= 8; parts *= 2) {
        indexer_cuda_parts(&device, &r->a, INDEXER_DO_SCORES | INDEXER_DO_PICK, parts);
        fetch_lists(r);
        for (int i = 0; i < r->c->n; i++) {
            size_t at = r->at_selection + (size_t)(i * TOPK), count = r->at_counts + (size_t)i,
                   blocks = r->at_blocks + (size_t)(i * r->c->max_blocks),
                   n_blocks = count + (size_t)r->c->n;
            same_picks(
                r, "picks by parts", i, r->lists + at, r->lists[count], want + at, want[count]);
            if (has_built)
                same_picks(r, "blocks by parts", i, r->lists + blocks, r->lists[n_blocks],
                    want + blocks, want[n_blocks]);
        }
    }
    r->a.score_tap = tap;
    mem_free(want);
}

/* The last row alone has the scores that it had among others. */
static void check_alone(pick_run *r) {
    size_t last = (size_t)(r->c->n - 1), n_cap = (size_t)r->c->bound;
    indexer_args a = r->a;
    float *tap = mem_array(n_cap, 4);
    a.batch.n = 1, a.batch.slot += last, a.batch.pos += last;
    a.packed += last * PICK_HEADS * a.packed_bytes, a.w += last * PICK_HEADS;
    a.builds_candidates = a.uses_candidates = false;
    cuda->indexer(&device, &a);
    cuda->fetch(&device, tap, a.score_tap, n_cap * 4);
    check_device();
    for (size_t i = 0; i < n_cap; i++)
        if (!same_score(tap[i], r->tap[last * n_cap + i]))
            fail_msg("%d rows of %d keys: score %zu of the last row alone is %g, together %g",
                r->c->n, r->c->n_keys, i, (double)tap[i], (double)r->tap[last * n_cap + i]);
    mem_free(tap);
}

static void run_pick_case(const pick_case *c) {
    pick_run r;
    pick_open(&r, c);
    size_t n_tap = (size_t)c->n * (size_t)c->bound;
    float *before = mem_array(n_tap, 4);
    for (int turn = 0; turn < 2; turn++) {
        r.a.builds_candidates = turn == 0;
        r.a.uses_candidates = turn == 1;
        cuda->indexer(&device, &r.a);
        cuda->fetch(&device, r.tap, r.a.score_tap, n_tap * 4);
        fetch_lists(&r);
        for (int i = 0; i < c->n; i++) {
            check_pick(&r, i, turn == 0);
            if (turn == 1)
                check_masked(&r, i, before + (size_t)i * (size_t)c->bound,
                    r.lists + r.at_blocks + (size_t)(i * c->max_blocks));
        }
        memcpy(before, r.tap, n_tap * 4);
        check_parts(&r, turn == 0);
        if (turn == 0) check_alone(&r);
        /* The row alone wrote its lists over those of row 0. */
        if (turn == 0) cuda->indexer(&device, &r.a);
    }
    mem_free(before);
    pick_close(&r);
}

static void test_pick(void **state) {
    (void)state;
    static const pick_case cases[] = {{1, 70000, 1, 2048, 70000, PICK_RANDOM},
        {6, 70000, 2, 2048, 131072, PICK_TIES}, {3, 70000, 1, 2048, 70016, PICK_WILD},
        {2, 70001, 1, 2048, 262144, PICK_LOST}, {1, 300000, 1, 2048, 300000, PICK_RANDOM},
        {6, 300000, 1, 2048, 524288, PICK_RANDOM}, {2, 300000, 2, 2048, 300000, PICK_TIES},
        {2, 299999, 1, 2048, 300001, PICK_WILD}, {20, 20000, 1, 2048, 20000, PICK_WILD},
        {40, 3000, 1, 37, 3001, PICK_TIES}, {150, 5000, 2, 64, 5000, PICK_RANDOM},
        {1, 4096, 1, 100, 4096, PICK_RANDOM}, {1, 4097, 1, 100, 4097, PICK_TIES},
        {1, 16384, 1, 2048, 16384, PICK_RANDOM}, {1, 16385, 1, 2048, 16392, PICK_RANDOM},
        {1, 131072, 1, 2048, 131072, PICK_TIES}, {1, 131073, 1, 2048, 131073, PICK_RANDOM},
        {2, 600, 1, 16, 700, PICK_LOST}, {1, 513, 1, 2048, 600, PICK_RANDOM}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        run_pick_case(&cases[i]);
}

/* ---- router ---- */

static void test_router(void **state) {
    (void)state;
    static const int shapes[][3] = {{5, 384, 6}, {70, 384, 6}, {3, 8, 2}, {2, 33, 1}};
    for (int c = 0; c < 4; c++) {
        int n = shapes[c][0], experts = shapes[c][1], used = shapes[c][2];
        size_t n_z = (size_t)(n * experts), n_out = (size_t)(n * used);
        float *z = random_floats(n_z, 3), *bias = random_floats((size_t)experts, 0.2f);
        for (int i = 0; i < experts; i += 7)
            z[i] = z[0]; /* ties */
        for (int i = 0; i < experts; i += 7)
            bias[i] = bias[0];
        float *weight = mem_array(n_out, 4), *work = mem_array(2 * n_z, 4);
        int32_t *expert = mem_array(n_out, 4), *got = mem_array(n_out, 4);
        router_args a = {z, bias, expert, weight, work, n, experts, used, 1.0f, 1.5f}, g = a;
        cpu->router(&host, &a);
        g.logits = sent(z, n_z * 4), g.bias = sent(bias, (size_t)experts * 4);
        g.expert = cuda->mem_new(n_out * 4), g.weight = cuda->mem_new(n_out * 4);
        cuda->router(&device, &g);
        compare("routing weights", weight, g.weight, n_out, 1e-5);
        cuda->fetch(&device, got, g.expert, n_out * 4);
        check_device();
        assert_memory_equal(got, expert, n_out * 4);
    }
}

/* ---- short lists ---- */

static void same_entries(const char *where, const char *what, int n, const shortlist_entry *got,
    const shortlist_entry *want) {
    for (int i = 0; i < n; i++) {
        if (memcmp(&got[i], &want[i], sizeof(*got)) == 0) continue;
        fail_msg("%s, %s %d: token %d of %.9g, expected %d of %.9g", where, what, i, got[i].token,
            (double)got[i].logit, want[i].token, (double)want[i].logit);
    }
}

static void same_list(const char *where, const shortlist *got, const shortlist *want) {
    if (got->token != want->token || memcmp(&got->max, &want->max, sizeof(float)) != 0)
        fail_msg("%s: token %d of %.9g, expected %d of %.9g", where, got->token, (double)got->max,
            want->token, (double)want->max);
    if (got->mass_raw != want->mass_raw || got->mass != want->mass)
        fail_msg("%s: mass %llx, raw %llx, expected %llx, %llx", where,
            (unsigned long long)got->mass, (unsigned long long)got->mass_raw,
            (unsigned long long)want->mass, (unsigned long long)want->mass_raw);
    if (got->n != want->n || got->n_bins != want->n_bins)
        fail_msg("%s: %d tokens of %d bins, expected %d of %d", where, got->n, got->n_bins, want->n,
            want->n_bins);
    if (got->n_noisy != want->n_noisy ||
        memcmp(&got->noisy_low, &want->noisy_low, sizeof(float)) != 0)
        fail_msg("%s: %d noisy tokens above %.9g, expected %d above %.9g", where, got->n_noisy,
            (double)got->noisy_low, want->n_noisy, (double)want->noisy_low);
    if (memcmp(&got->ask, &want->ask, sizeof(got->ask)) != 0) fail_msg("%s: ask", where);
    same_entries(where, "entry", want->n, got->entries, want->entries);
    same_entries(where, "noisy token",
        want->n_noisy < SHORTLIST_NOISY ? want->n_noisy : SHORTLIST_NOISY, got->noisy, want->noisy);
}

/* Rows of all kinds in one launch. */
static void run_shortlist(int n, uint64_t seed) {
    enum { ROWS = 3 * LOGITS_KINDS };
    static const float inverses[] = {1.0f, 0.0f, 1.0f / 0.7f, 20.0f, 0.5f};
    size_t n_x = (size_t)ROWS * (size_t)n;
    float *x = mem_array(n_x, sizeof(*x));
    shortlist_ask asks[ROWS];
    shortlist *want = mem_array(ROWS, sizeof(*want)), *got = mem_array(ROWS, sizeof(*got));
    for (int r = 0; r < ROWS; r++) {
        logit_row_fill(x + (size_t)r * (size_t)n, n, r % LOGITS_KINDS, seed + (uint64_t)r);
        asks[r] = (shortlist_ask){.seed = seed * 77 + (uint64_t)r,
            .position = (int64_t)seed + r,
            .inverse = inverses[r % 5],
            .has_noise = r % 3 != 0};
    }
    x[n / 2] = NAN;
    shortlist_args a = {x, asks, want, ROWS, n};
    cpu->shortlist(&host, &a);
    a = (shortlist_args){
        sent(x, n_x * 4), sent(asks, sizeof(asks)), cuda->mem_new(ROWS * sizeof(*want)), ROWS, n};
    for (int turn = 0; turn < 2; turn++) {
        cuda->shortlist(&device, &a);
        cuda->fetch(&device, got, a.out, ROWS * sizeof(*got));
        check_device();
        for (int r = 0; r < ROWS; r++) {
            char where[96];
            snprintf(where, sizeof(where), "turn %d, %d logits, row %d (%s)", turn, n, r,
                logit_kind_names[r % LOGITS_KINDS]);
            same_list(where, &got[r], &want[r]);
        }
    }
    mem_free(x);
    mem_free(want);
    mem_free(got);
}

/* ---- packed experts of a prompt ---- */

enum { MOE_D = 256, MOE_FF = 384, MOE_EXPERTS = 4, MOE_USED = 2, MOE_ROWS = 300 };

/* A packed matrix for both back ends. */
static void random_packed(int in, int out, int k2, linear_weight *h, linear_weight *d) {
    const size_t bytes = exl3_trellis_bytes(in, out, k2);
    uint32_t *trellis = mem_alloc(bytes);
    uint16_t suh[MOE_FF], svh[MOE_FF]; /* the larger of both sizes */
    err e = ERR_INIT;
    for (size_t i = 0; i < bytes / 4; i++)
        trellis[i] = rand_u32(&noise);
    for (int i = 0; i < MOE_FF; i++) {
        suh[i] = (uint16_t)(0x2c00 + (rand_u32(&noise) & 0x83ff));
        svh[i] = (uint16_t)(0x3c00 | (rand_u32(&noise) & 0x8000));
    }
    exl3_matrix m = {trellis, suh, svh, NULL, 0, in, out, k2, EXL3_MUL1};
    *h = *d = (linear_weight){.form = MATRIX_EXL3, .n_in = in, .n_out = out};
    if (cpu->packed_new(&host, &m, &h->packed, &e) != OK) fail_msg("%s", e.msg);
    if (cuda->packed_new(&device, &m, &d->packed, &e) != OK) fail_msg("%s", e.msg);
    mem_free(trellis);
}

/* Rows first .. first + n - 1 of a on the device, into out. */
static void device_moe(const moe_args *a, int first, int n, float *out) {
    moe_args b = *a;
    b.n_rows = n;
    b.x += (size_t)first * MOE_D;
    b.expert += first * MOE_USED;
    b.weight += first * MOE_USED;
    b.out = out;
    cuda->moe(&device, &b);
}

/* Tiles of 32 and of 128 rows, with 1 to 127 rows left of an expert: mean rows of an expert below 16
 * and more. A row has the same bits in any company. */
static void test_prompt_experts(void **state) {
    (void)state;
    static const int sizes[] = {20, 130, 161, 200, 233, 300};
    expert_weights h[MOE_EXPERTS + 1], d[MOE_EXPERTS + 1];
    int32_t pick[MOE_ROWS * MOE_USED];
    float *weight = random_floats(MOE_ROWS * MOE_USED, 1), *x = random_floats(MOE_ROWS * MOE_D, 1);
    float *want = mem_array(MOE_ROWS * MOE_D, sizeof(*want));
    err e = ERR_INIT;
    for (int i = 0; i <= MOE_EXPERTS; i++) {
        const int k2 = i == MOE_EXPERTS ? 10 : 6;
        random_packed(MOE_D, MOE_FF, k2, &h[i].w1, &d[i].w1);
        random_packed(MOE_D, MOE_FF, k2, &h[i].w3, &d[i].w3);
        random_packed(MOE_FF, MOE_D, k2, &h[i].w2, &d[i].w2);
    }
    for (int r = 0; r < MOE_ROWS; r++) { /* uneven: the last two share a half */
        pick[2 * r] = r % 2;
        pick[2 * r + 1] = r % 16 == 5 ? 3 : 2;
    }
    const size_t bytes = cuda->moe_work_bytes(MOE_ROWS, MOE_EXPERTS, MOE_USED, MOE_D, MOE_FF);
    void *zeros = mem_array(bytes, 1);
    memset(zeros, 0, bytes);
    moe_args a = {x, pick, weight, h, &h[MOE_EXPERTS], want, 0, MOE_EXPERTS, MOE_USED, MOE_D,
        MOE_FF, 7.f,
        mem_aligned(64, cpu->moe_work_bytes(MOE_ROWS, MOE_EXPERTS, MOE_USED, MOE_D, MOE_FF)), NULL};
    moe_args g = a;
    g.x = sent(x, MOE_ROWS * MOE_D * sizeof(*x));
    g.expert = sent(pick, sizeof(pick));
    g.weight = sent(weight, MOE_ROWS * MOE_USED * sizeof(*weight));
    g.experts = d, g.shared = &d[MOE_EXPERTS];
    g.work = sent(zeros, bytes);
    void *table = NULL;
    if (cuda->expert_table(&device, d, MOE_EXPERTS, g.shared, &table, &e) != OK)
        fail_msg("%s", e.msg);
    g.table = table;
    float *out = cuda->mem_new(MOE_ROWS * MOE_D * sizeof(*out)), *alone = cuda->mem_new(MOE_D * 4);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        a.n_rows = sizes[i];
        cpu->moe(&host, &a);
        device_moe(&g, 0, sizes[i], out);
        compare("experts", want, out, (size_t)(sizes[i] * MOE_D), 1e-4);
        float batched[MOE_D], single[MOE_D];
        device_moe(&g, sizes[i] - 1, 1, alone);
        cuda->fetch(&device, batched, out + (sizes[i] - 1) * MOE_D, sizeof(batched));
        cuda->fetch(&device, single, alone, sizeof(single));
        check_device();
        assert_memory_equal(batched, single, sizeof(single));
    }
}

static void test_shortlist(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 7, 8, 9, 33, 300, 1000, 1025, 8191, 8193, 40007, 129280};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
        for (uint64_t seed = 1; seed <= 3; seed++)
            run_shortlist(sizes[i], seed * 1000);
}

/* test_ops_gpu [PATTERN]: the tests whose names match, for a sanitizer that takes long. */
int main(int argc, char **argv) {
    if (!gpu_backend_use()) return 77;
    err e = ERR_INIT;
    cpu = kernels_find(NULL);
    cuda = kernels_find("cuda");
    rand_init(&noise, 3, 1);
    if (cuda->open(&device, &e) != OK) {
        print_message("%s\n", e.msg);
        return 1;
    }
    size_t bytes = (size_t)64 << 20;
    device.scratch = cuda->mem_new(bytes);
    device.scratch_bytes = bytes;
    host.scratch = mem_aligned(64, bytes);
    host.scratch_bytes = bytes;
    host.thread_scratch[0] = mem_aligned(64, bytes);
    host.thread_scratch_bytes = bytes;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_streams),
        cmocka_unit_test(test_codebooks), cmocka_unit_test(test_plain),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_indexer),
        cmocka_unit_test(test_pick), cmocka_unit_test(test_router),
        cmocka_unit_test(test_prompt_experts), cmocka_unit_test(test_shortlist)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
