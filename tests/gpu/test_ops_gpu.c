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
#include "kernels/cuda_ops.h"
#include "tests/gpu/ops_fixture.h"
#include "tests/harness/logit_rows.h"

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
    int rc = ops_fixture_open();
    if (rc != 0) return rc;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_streams),
        cmocka_unit_test(test_codebooks), cmocka_unit_test(test_plain),
        cmocka_unit_test(test_attention), cmocka_unit_test(test_router),
        cmocka_unit_test(test_prompt_experts), cmocka_unit_test(test_shortlist)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
