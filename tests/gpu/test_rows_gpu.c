/* Row work and hyper-connections of the CUDA back end: many rows take other kernels than few, and a
 * row's bits must be the same alone and in any company. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "kernels/cuda_ops.h"
#include "tests/gpu/gpu_backend.h"

static kernel_context device;
static const kernels *cuda;
static rand_state noise;

static float *random_floats(size_t n, float size) {
    float *p = mem_array(n, sizeof(*p));
    for (size_t i = 0; i < n; i++)
        p[i] = size * ((float)(int32_t)rand_u32(&noise) * 0x1p-31f +
                          (float)(int32_t)rand_u32(&noise) * 0x1p-31f);
    return p;
}

/* Device memory of random floats. */
static float *random_sent(size_t n, float size) {
    float *p = random_floats(n, size), *d = cuda->mem_new(n * sizeof(*p));
    assert_non_null(d);
    cuda->copy(&device, d, p, n * sizeof(*p));
    mem_free(p);
    return d;
}

/* A second buffer with the same bytes. */
static void *twin(const void *from, size_t bytes) {
    void *p = mem_alloc(bytes), *d = cuda->mem_new(bytes);
    assert_non_null(d);
    cuda->fetch(&device, p, from, bytes);
    cuda->wait(&device);
    cuda->copy(&device, d, p, bytes);
    cuda->wait(&device);
    mem_free(p);
    return d;
}

/* Rows of together and alone, n bytes each, that were computed in both ways. */
static void compare_rows(
    const char *what, const void *together, const void *alone, size_t bytes, int n_rows, int row) {
    uint8_t *a = mem_alloc(bytes), *b = mem_alloc(bytes);
    cuda->fetch(&device, a, (const uint8_t *)together + (size_t)row * bytes, bytes);
    cuda->fetch(&device, b, (const uint8_t *)alone + (size_t)row * bytes, bytes);
    cuda->wait(&device);
    if (device.rc != OK) fail_msg("%s", device.error.msg);
    for (size_t i = 0; i < bytes; i++) {
        if (a[i] != b[i])
            fail_msg("%s: byte %zu of row %d of %d is %02x, alone %02x", what, i, row, n_rows, a[i],
                b[i]);
    }
    mem_free(a);
    mem_free(b);
}

/* Rows to compute alone, each once (some are made in place): both ends, a tile's, and pairs'. */
static int picked_rows(int n_rows, int out[8]) {
    const int want[8] = {0, 1, 7, 8, 127, 128, n_rows - 2, n_rows - 1};
    int n = 0;
    for (int i = 0; i < 8; i++)
        if (want[i] < n_rows && (n == 0 || want[i] > out[n - 1])) out[n++] = want[i];
    return n;
}

/* A random EXL3 matrix of 3 bits. */
static linear_weight random_weight(int in, int out) {
    const size_t bytes = exl3_trellis_bytes(in, out, 6);
    uint32_t *trellis = mem_alloc(bytes);
    uint16_t *suh = mem_array((size_t)in, 2), *svh = mem_array((size_t)out, 2);
    for (size_t i = 0; i < bytes / 4; i++)
        trellis[i] = rand_u32(&noise);
    for (int i = 0; i < in; i++)
        suh[i] = (uint16_t)(0x2c00 + (rand_u32(&noise) & 0x83ff));
    for (int i = 0; i < out; i++)
        svh[i] = (uint16_t)(0x3c00 | (rand_u32(&noise) & 0x8000));
    const exl3_matrix m = {trellis, suh, svh, NULL, 0, in, out, 6, EXL3_MUL1};
    linear_weight w = {.form = MATRIX_EXL3, .n_in = in, .n_out = out};
    err e = ERR_INIT;
    if (cuda->packed_new(&device, &m, &w.packed, &e) != OK) fail_msg("%s", e.msg);
    cuda->wait(&device);
    mem_free(trellis);
    mem_free(suh);
    mem_free(svh);
    return w;
}

/* ---- streams, their mix, norm and the linear behind ---- */

enum { STREAMS = 4, COMB = STREAMS * STREAMS, LINEAR_OUT = 128 };

typedef struct streams {
    float *h, *y, *post, *comb, *pre;                  /* [rows].. */
    float *mix_pre, *mix_post, *mix_comb, *x, *linear; /* results */
    mhc_weights w;
    float *norm;
    linear_weight matrix;
    int d;
} streams;

static void streams_run(const streams *b, int first, int n) {
    const size_t f = (size_t)first, d = (size_t)b->d;
    float *h = b->h + f * STREAMS * d, *x = b->x + f * d;
    cuda->mhc_expand(&device, &(mhc_expand_args){h, b->y + f * d, b->post + f * STREAMS,
                                  b->comb + f * COMB, n, STREAMS, b->d});
    cuda->mhc_mix(
        &device, &(mhc_mix_args){h, b->w, b->mix_pre + f * STREAMS, b->mix_post + f * STREAMS,
                     b->mix_comb + f * COMB, n, STREAMS, b->d, 20, 1e-6f, 1e-20f});
    cuda->mhc_collapse(&device, &(mhc_collapse_args){.h = h,
                                    .pre = b->pre + f * STREAMS,
                                    .weight = b->norm,
                                    .x = x,
                                    .n_rows = n,
                                    .n_streams = STREAMS,
                                    .d = b->d,
                                    .norm_eps = 1e-20f});
    const linear_job job = {.weight = &b->matrix,
        .x = x,
        .x_stride = d,
        .y = b->linear + f * LINEAR_OUT,
        .y_stride = LINEAR_OUT,
        .n_rows = n};
    cuda->linear(&device, &(linear_args){&job, 1});
    cuda->wait(&device);
    if (device.rc != OK) fail_msg("%s", device.error.msg);
}

static streams streams_new(int n_rows, int d) {
    const size_t n = (size_t)n_rows, width = (size_t)d, mix = STREAMS * (2 + STREAMS);
    return (streams){.h = random_sent(n * STREAMS * width, 1),
        .y = random_sent(n * width, 1),
        .post = random_sent(n * STREAMS, 1),
        .comb = random_sent(n * COMB, 0.4f),
        .pre = random_sent(n * STREAMS, 1),
        .mix_pre = random_sent(n * STREAMS, 1),
        .mix_post = random_sent(n * STREAMS, 1),
        .mix_comb = random_sent(n * COMB, 1),
        .x = random_sent(n * width, 1),
        .linear = random_sent(n * LINEAR_OUT, 1),
        .w = {random_sent(mix * STREAMS * width, 0.02f), random_sent(mix, 0.5f), random_sent(3, 1)},
        .norm = random_sent(width, 1),
        .matrix = random_weight(d, LINEAR_OUT),
        .d = d};
}

static void check_streams(int n_rows, int d) {
    const size_t n = (size_t)n_rows, width = (size_t)d * sizeof(float);
    const size_t row = STREAMS * sizeof(float), out = LINEAR_OUT * sizeof(float);
    const streams a = streams_new(n_rows, d);
    streams b = a; /* what is written: twice */
    b.h = twin(a.h, n * STREAMS * width), b.x = twin(a.x, n * width);
    b.mix_pre = twin(a.mix_pre, n * row), b.mix_post = twin(a.mix_post, n * row);
    b.mix_comb = twin(a.mix_comb, n * row * STREAMS), b.linear = twin(a.linear, n * out);
    streams_run(&a, 0, n_rows);
    int rows[8];
    const int n_picked = picked_rows(n_rows, rows);
    for (int i = 0; i < n_picked; i++) {
        const int r = rows[i];
        streams_run(&b, r, 1);
        compare_rows("streams", a.h, b.h, STREAMS * width, n_rows, r);
        compare_rows("pre of the mix", a.mix_pre, b.mix_pre, row, n_rows, r);
        compare_rows("post of the mix", a.mix_post, b.mix_post, row, n_rows, r);
        compare_rows("comb of the mix", a.mix_comb, b.mix_comb, row * STREAMS, n_rows, r);
        compare_rows("collapse", a.x, b.x, width, n_rows, r);
        compare_rows("linear", a.linear, b.linear, out, n_rows, r);
    }
    float *const all[] = {a.h, a.y, a.post, a.comb, a.pre, a.mix_pre, a.mix_post, a.mix_comb, a.x,
        a.linear, a.norm, b.h, b.x, b.mix_pre, b.mix_post, b.mix_comb, b.linear,
        (float *)(uintptr_t)a.w.fn, (float *)(uintptr_t)a.w.base, (float *)(uintptr_t)a.w.scale};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        cuda->mem_free(all[i]);
    cuda->packed_free(a.matrix.packed);
}

static void test_streams_alone(void **state) {
    (void)state;
    static const int cases[][2] = {{2, 128}, {3, 1536}, {5, 4096}, {6, 5120}, {8, 5120}, {9, 5120},
        {37, 5120}, {131, 5120}, {130, 4096}, {1030, 128}, {1029, 1536}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            device.is_bf16 = is_bf16 != 0;
            check_streams(cases[i][0], cases[i][1]);
        }
    device.is_bf16 = false;
}

/* ---- short rows: norm, rope, packing, and three linears of rows made in place or not ---- */

enum {
    Q = 1280,
    LINEARS = 3,
    D_ROPE = 64,
    N_KINDS = 4,
    PACKED_BYTES = 2049 /* odd: rows need not be aligned */
};
static const struct {
    kv_format format;
    int d;
} kinds[N_KINDS] = {{KV_WINDOW, 512}, {KV_KEY, 128}, {KV_COMPRESSED, 512}, {KV_WINDOW, 96}};

typedef struct short_rows {
    float *q, *u, *kv, *linear[LINEARS], *table, *norm; /* u: q behind its norm */
    uint8_t *packed;
    linear_weight matrix[LINEARS];
} short_rows;

static void short_run(const short_rows *b, int kind, int first, int n) {
    const size_t f = (size_t)first, d = (size_t)kinds[kind].d;
    float *q = b->q + f * Q, *u = b->u + f * Q, *kv = b->kv + f * d;
    cuda->rmsnorm(&device, &(rmsnorm_args){q, Q, b->norm, u, Q, n, Q, 1e-6f});
    cuda->rmsnorm(&device, &(rmsnorm_args){kv, d, b->norm, kv, d, n, (int)d, 1e-6f});
    cuda->rope(&device, &(rope_args){kv, d, b->table + f * D_ROPE, n, 1, (int)d, D_ROPE, false});
    cuda->kv_pack(&device, &(kv_pack_args){kinds[kind].format, kv, d, b->packed + f * PACKED_BYTES,
                               PACKED_BYTES, n, (int)d});
    linear_job jobs[LINEARS];
    for (int i = 0; i < LINEARS; i++)
        jobs[i] = (linear_job){.weight = &b->matrix[i],
            .x = u,
            .x_stride = Q,
            .y = b->linear[i] + f * LINEAR_OUT,
            .y_stride = LINEAR_OUT,
            .n_rows = n};
    cuda->linear(&device, &(linear_args){jobs, LINEARS});
    cuda->wait(&device);
    if (device.rc != OK) fail_msg("%s", device.error.msg);
}

static void check_short(int kind, int n_rows) {
    const size_t n = (size_t)n_rows, d = (size_t)kinds[kind].d;
    const size_t out = LINEAR_OUT * sizeof(float);
    const bool is_in_place = kind % 2 == 0 && n_rows > 8; /* else they are made with few others */
    float *q = random_sent(n * Q, 1);
    const short_rows a = {.q = q,
        .u = is_in_place ? q : random_sent(n * Q, 1),
        .kv = random_sent(n * d, 1),
        .linear = {random_sent(n * LINEAR_OUT, 1), random_sent(n * LINEAR_OUT, 1),
            random_sent(n * LINEAR_OUT, 1)},
        .table = random_sent(n * D_ROPE, 0.7f),
        .norm = random_sent(Q, 1),
        .packed = (uint8_t *)random_sent(n * PACKED_BYTES / 4 + 1, 1),
        .matrix = {random_weight(Q, LINEAR_OUT), random_weight(Q, LINEAR_OUT),
            random_weight(Q, LINEAR_OUT)}};
    short_rows b = a;
    b.q = twin(a.q, n * Q * 4), b.kv = twin(a.kv, n * d * 4);
    b.u = is_in_place ? b.q : twin(a.u, n * Q * 4);
    b.packed = twin(a.packed, n * PACKED_BYTES);
    for (int i = 0; i < LINEARS; i++)
        b.linear[i] = twin(a.linear[i], n * out);
    short_run(&a, kind, 0, n_rows);
    int rows[8];
    const int n_picked = picked_rows(n_rows, rows);
    for (int i = 0; i < n_picked; i++) {
        const int r = rows[i];
        short_run(&b, kind, r, 1);
        compare_rows("norm", a.u, b.u, Q * sizeof(float), n_rows, r);
        compare_rows("norm and rope", a.kv, b.kv, d * sizeof(float), n_rows, r);
        compare_rows("packed row", a.packed, b.packed, PACKED_BYTES, n_rows, r);
        compare_rows("first linear", a.linear[0], b.linear[0], out, n_rows, r);
        compare_rows("second linear", a.linear[1], b.linear[1], out, n_rows, r);
        compare_rows("third linear", a.linear[2], b.linear[2], out, n_rows, r);
    }
    void *const all[] = {a.q, a.kv, a.linear[0], a.linear[1], a.table, a.norm, a.packed, b.q, b.kv,
        b.linear[0], b.linear[1], a.linear[2], b.linear[2], b.packed};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        cuda->mem_free(all[i]);
    if (!is_in_place) cuda->mem_free(a.u), cuda->mem_free(b.u);
    for (int i = 0; i < LINEARS; i++)
        cuda->packed_free(a.matrix[i].packed);
}

static void test_short_alone(void **state) {
    (void)state;
    for (int kind = 0; kind < N_KINDS; kind++)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            device.is_bf16 = is_bf16 != 0;
            check_short(kind, 2);
            check_short(kind, 6);
            check_short(kind, 8);
            check_short(kind, 17); /* nine jobs: the last row is one of its own */
            check_short(kind, 129);
            check_short(kind, 1030);
        }
    device.is_bf16 = false;
}

/* ---- attention of few rows: sums, rotation, ring and linears together and one after the other, and of a row of
 * several together and alone; every row is a stream of its own ---- */

enum { HEAD = 512, HEADS = 32, GROUPS = 4, IN = HEADS * HEAD / GROUPS, RING = 144, STORED = 640 };
enum { HEADS_ROWS = 8, SELECTED = 512 };
/* Where lists begin. */
enum { AT_SLOT = 0, AT_SPAN = 8, AT_LEN = 16, AT_SELECTED = 24, AT_PAGE = 32, AT_SELECTION = 40 };

typedef struct head_rows {
    float *q, *o, *y, *sink, *table;
    uint8_t *ring, *row, *pages;
    int32_t *lists; /* of rows: slot, span row, span length, rows selected, page, selection */
    int64_t *pos;   /* of rows and their spans */
    linear_weight matrix[GROUPS];
    bool has_selection;
} head_rows;

static uint8_t *packed_sent(kv_format format, int n) {
    const size_t bytes = kv_row_bytes(format, HEAD);
    float *x = random_sent((size_t)n * HEAD, 1);
    uint8_t *rows = cuda->mem_new((size_t)n * bytes);
    cuda->kv_pack(&device, &(kv_pack_args){format, x, HEAD, rows, bytes, n, HEAD});
    cuda->wait(&device);
    cuda->mem_free(x);
    return rows;
}

static void *sent(const void *from, size_t bytes) {
    void *d = cuda->mem_new(bytes);
    cuda->copy(&device, d, from, bytes);
    cuda->wait(&device);
    return d;
}

static head_rows heads_new(int n, int n_selected) {
    static int32_t lists[AT_SELECTION + HEADS_ROWS * SELECTED];
    int64_t pos[HEADS_ROWS];
    const size_t rows = (size_t)n;
    memset(lists, 0, sizeof(lists));
    for (int r = 0; r < n; r++) {
        lists[AT_SLOT + r] = lists[AT_SPAN + r] = r;
        lists[AT_LEN + r] = 1;
        /* Rows with fewer tiles than others. */
        lists[AT_SELECTED + r] = r % 2 == 0 ? n_selected : n_selected / 3;
        for (int i = 0; i < SELECTED; i++)
            lists[AT_SELECTION + r * SELECTED + i] = i;
        pos[r] = 9000 + 10 * r;
    }
    head_rows h = {.q = random_sent(rows * HEADS * HEAD, 1),
        .o = random_sent(rows * HEADS * HEAD, 1),
        .y = random_sent(rows * GROUPS * LINEAR_OUT, 1),
        .sink = random_sent(HEADS, 2),
        .table = random_sent(rows * D_ROPE, 0.7f),
        .ring = packed_sent(KV_WINDOW, n * RING),
        .row = packed_sent(KV_WINDOW, n),
        .pages = packed_sent(KV_COMPRESSED, STORED),
        .lists = sent(lists, sizeof(lists)),
        .pos = sent(pos, sizeof(pos)),
        .has_selection = n_selected > 0};
    for (int g = 0; g < GROUPS; g++)
        h.matrix[g] = random_weight(IN, LINEAR_OUT);
    return h;
}

/* Rows [first, first + n). What is held back is launched by a wait. */
static void heads_run(const head_rows *h, int first, int n, bool is_apart) {
    const size_t bytes = kv_row_bytes(KV_WINDOW, HEAD), of_page = kv_row_bytes(KV_COMPRESSED, HEAD);
    const size_t f = (size_t)first, width = HEADS * HEAD, out = GROUPS * LINEAR_OUT;
    float *o = h->o + f * width;
    uint8_t *row = h->row + f * bytes;
    const int32_t *lists = h->lists + first;
    const batch_rows batch = {n, lists + AT_SLOT, lists + AT_SLOT, h->pos + first,
        h->lists + AT_SPAN, h->pos + first, lists + AT_LEN, 9100};
    const kv_ring ring = {h->ring, RING * bytes, bytes, RING};
    attn_args a = {
        .q = h->q + f * width, .o = o, .sink = h->sink, .batch = batch, .ring = ring, .rows = row};
    a.window_format = KV_WINDOW, a.compressed_format = KV_COMPRESSED;
    a.max_selected = SELECTED, a.n_heads = HEADS, a.d = HEAD, a.window = 128;
    a.scale = 0.044194174f;
    a.pages = (kv_paged){h->pages, STORED * of_page, of_page, h->lists + AT_PAGE, 1, STORED};
    a.selection = h->has_selection ? h->lists + AT_SELECTION + f * SELECTED : NULL;
    a.n_selected = lists + AT_SELECTED;
    cuda->attn(&device, &a);
    if (is_apart) cuda->wait(&device);
    cuda->rope(
        &device, &(rope_args){o, width, h->table + f * D_ROPE, n, HEADS, HEAD, D_ROPE, true});
    if (is_apart) cuda->wait(&device);
    cuda->kv_ring_write(&device, &(kv_ring_write_args){ring, row, batch});
    if (is_apart) cuda->wait(&device);
    linear_job jobs[GROUPS];
    for (int g = 0; g < GROUPS; g++)
        jobs[g] = (linear_job){.weight = &h->matrix[g],
            .x = o + g * IN,
            .x_stride = width,
            .y = h->y + f * out + g * LINEAR_OUT,
            .y_stride = out,
            .n_rows = n};
    cuda->linear(&device, &(linear_args){jobs, GROUPS});
    cuda->wait(&device);
    if (device.rc != OK) fail_msg("%s", device.error.msg);
}

static void check_heads(int n, int n_selected) {
    const size_t rows = (size_t)n, ring = RING * kv_row_bytes(KV_WINDOW, HEAD);
    const size_t width = HEADS * HEAD * sizeof(float), out = GROUPS * LINEAR_OUT * sizeof(float);
    const head_rows a = heads_new(n, n_selected);
    head_rows b = a;
    b.o = random_sent(rows * HEADS * HEAD, 1), b.y = random_sent(rows * GROUPS * LINEAR_OUT, 1);
    b.ring = twin(a.ring, rows * ring);
    heads_run(&a, 0, n, n == 1);
    for (int r = 0; r < n; r++) {
        heads_run(&b, r, 1, false);
        compare_rows("heads", a.o, b.o, width, n, r);
        compare_rows("linears of heads", a.y, b.y, out, n, r);
        compare_rows("ring", a.ring, b.ring, ring, n, r);
    }
    void *const all[] = {
        a.q, a.o, a.y, a.sink, a.table, a.ring, a.row, a.pages, a.lists, a.pos, b.o, b.y, b.ring};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        cuda->mem_free(all[i]);
    for (int g = 0; g < GROUPS; g++)
        cuda->packed_free(a.matrix[g].packed);
}

static void test_heads(void **state) {
    (void)state;
    static const int cases[][2] = {
        {1, 0}, {1, 1}, {1, 65}, {1, 512}, {2, 0}, {2, 65}, {6, 512}, {8, 65}};
    for (int i = 0; i < 8; i++)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            device.is_bf16 = is_bf16 != 0;
            check_heads(cases[i][0], cases[i][1]);
        }
    device.is_bf16 = false;
}

/* ---- router of few rows: mix, norm, linear and choice together and one after the other ---- */

typedef struct gate_case {
    int d, n_experts, n_used;
    bool has_ties;
    int n_rows;
} gate_case;

typedef struct gate_rows {
    float *logits, *weight, *bias;
    int32_t *expert;
    linear_weight matrix;
} gate_rows;

static void gate_apart(bool is_apart) {
    if (is_apart) cuda->wait(&device);
}

static void gate_run_rows(const streams *b, const gate_rows *g, const gate_case *c, bool is_apart) {
    cuda->mhc_expand(
        &device, &(mhc_expand_args){b->h, b->y, b->post, b->comb, c->n_rows, STREAMS, b->d});
    gate_apart(is_apart);
    cuda->mhc_mix(&device, &(mhc_mix_args){b->h, b->w, b->mix_pre, b->mix_post, b->mix_comb,
                               c->n_rows, STREAMS, b->d, 20, 1e-6f, 1e-20f});
    gate_apart(is_apart);
    cuda->mhc_collapse(&device, &(mhc_collapse_args){.h = b->h,
                                    .pre = b->pre,
                                    .weight = b->norm,
                                    .x = b->x,
                                    .n_rows = c->n_rows,
                                    .n_streams = STREAMS,
                                    .d = b->d,
                                    .norm_eps = 1e-20f});
    gate_apart(is_apart);
    const linear_job job = {.weight = &g->matrix,
        .x = b->x,
        .x_stride = (size_t)b->d,
        .y = g->logits,
        .y_stride = (size_t)c->n_experts,
        .n_rows = c->n_rows,
        .keeps_f32 = true};
    cuda->linear(&device, &(linear_args){&job, 1});
    gate_apart(is_apart);
    cuda->router(&device, &(router_args){g->logits, g->bias, g->expert, g->weight, NULL, c->n_rows,
                              c->n_experts, c->n_used, 1.3f, 1.5f});
    cuda->wait(&device);
    if (device.rc != OK) fail_msg("%s", device.error.msg);
}

static linear_weight random_plain(const gate_case *c) {
    const size_t n = (size_t)c->d * (size_t)c->n_experts;
    uint16_t *w = mem_array(n, 2);
    for (size_t i = 0; i < n; i++)
        w[i] = (uint16_t)((0x3c00 + (rand_u32(&noise) & 0x83ff)) & 0xffff);
    for (size_t i = 0; c->has_ties && i < n; i++)
        w[i] = w[i % (size_t)c->d];
    linear_weight m = {.form = MATRIX_BF16, .n_in = c->d, .n_out = c->n_experts};
    m.row_stride = (size_t)c->d, m.data = sent(w, n * 2);
    mem_free(w);
    return m;
}

static void check_gate(const gate_case *c) {
    const int n = c->n_rows;
    const size_t d = (size_t)c->d * sizeof(float), row = STREAMS * sizeof(float);
    const size_t e = (size_t)c->n_experts, u = (size_t)c->n_used, rows = (size_t)n;
    const streams a = streams_new(n, c->d);
    streams b = a;
    b.h = twin(a.h, rows * STREAMS * d), b.x = twin(a.x, rows * d);
    b.mix_pre = twin(a.mix_pre, rows * row);
    b.mix_post = twin(a.mix_post, rows * row), b.mix_comb = twin(a.mix_comb, rows * row * STREAMS);
    float *bias = mem_array(e, sizeof(float));
    for (size_t i = 0; i < e; i++)
        bias[i] = c->has_ties ? 0.5f : (float)(int32_t)rand_u32(&noise) * 0x1p-34f;
    const gate_rows g = {random_sent(e * rows, 1), random_sent(u * rows, 1), sent(bias, e * 4),
        (int32_t *)random_sent(u * rows, 1), random_plain(c)};
    gate_rows f = g;
    f.logits = random_sent(e * rows, 1), f.weight = random_sent(u * rows, 1);
    f.expert = (int32_t *)random_sent(u * rows, 1);
    gate_run_rows(&a, &g, c, true);
    gate_run_rows(&b, &f, c, false);
    compare_rows("x", a.x, b.x, rows * d, n, 0);
    compare_rows("logits", g.logits, f.logits, rows * e * 4, n, 0);
    compare_rows("experts", g.expert, f.expert, rows * u * 4, n, 0);
    compare_rows("weights", g.weight, f.weight, rows * u * 4, n, 0);
    compare_rows("pre", a.mix_pre, b.mix_pre, rows * row, n, 0);
    compare_rows("post", a.mix_post, b.mix_post, rows * row, n, 0);
    compare_rows("comb", a.mix_comb, b.mix_comb, rows * row * STREAMS, n, 0);
    mem_free(bias);
}

static void test_gate(void **state) {
    (void)state;
    static const gate_case cases[] = {{5120, 384, 6, false, 1}, {5120, 384, 6, true, 1},
        {5120, 128, 3, false, 1}, {4096, 512, 32, false, 1}, {128, 2, 1, false, 1},
        {1536, 34, 8, true, 1}, {5120, 33, 2, false, 1}, {5376, 384, 6, false, 1},
        {5120, 384, 6, false, 2}, {5120, 384, 6, true, 6}, {5120, 384, 6, false, 8},
        {4096, 512, 32, false, 4}, {128, 2, 1, false, 5}, {1536, 34, 8, true, 3},
        {1536, 8, 2, false, 8}, {5120, 2, 1, false, 4}, {5120, 33, 2, false, 6},
        {5376, 384, 6, false, 8}, {5120, 128, 3, false, 9}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            device.is_bf16 = is_bf16 != 0;
            check_gate(&cases[i]);
        }
    device.is_bf16 = false;
}

/* ---- packing by itself ---- */

/* Rows of d values in row_bytes each, against the CPU's. */
static void check_pack(kv_format format, int d, size_t row_bytes, size_t x_offset) {
    enum { ROWS = 37 };
    const size_t n_x = (size_t)(ROWS * d), n_rows = ROWS * row_bytes;
    float *x = random_floats(n_x, 3);
    uint8_t *want = mem_alloc(n_rows), *got = mem_alloc(n_rows);
    memset(want, 0x5a, n_rows);
    x[5] = 0, x[d] = 1e30f;
    float *g_x = (float *)cuda->mem_new((n_x + 4) * sizeof(float)) + x_offset;
    uint8_t *g_rows = cuda->mem_new(n_rows);
    cuda->copy(&device, g_x, x, n_x * sizeof(float));
    cuda->copy(&device, g_rows, want, n_rows);
    for (int i = 0; i < ROWS; i++)
        kv_pack(format, x + i * d, d, want + (size_t)i * row_bytes);
    cuda->kv_pack(&device, &(kv_pack_args){format, g_x, (size_t)d, g_rows, row_bytes, ROWS, d});
    cuda->fetch(&device, got, g_rows, n_rows);
    cuda->wait(&device);
    if (device.rc != OK) fail_msg("%s", device.error.msg);
    for (size_t i = 0; i < n_rows; i++) {
        if (got[i] != want[i])
            fail_msg("format %d, %d values: byte %zu of row %zu is %02x, expected %02x", format, d,
                i % row_bytes, i / row_bytes, got[i], want[i]);
    }
    cuda->mem_free(g_x - x_offset);
    cuda->mem_free(g_rows);
    mem_free(x), mem_free(want), mem_free(got);
}

/* ---- index queries ---- */

/* Rotated, packed and read back, against the CPU's bits. */
static void check_queries(kv_format format, int d, int d_rope, bool is_bf16) {
    enum { ROWS = 3, QUERIES = 5 };
    const size_t n_x = (size_t)(ROWS * QUERIES * d), n_table = (size_t)(ROWS * d_rope);
    const size_t row = kv_row_bytes(format, d), n_packed = ROWS * QUERIES * row;
    float *x = random_floats(n_x, 3), *table = random_floats(n_table, 1);
    float *back = mem_array(n_x, sizeof(float));
    uint8_t *want = mem_alloc(n_packed), *got = mem_alloc(n_packed);
    x[5] = 0, x[d] = 1e30f;
    kernel_context plain = {.is_bf16 = is_bf16};
    index_queries_args a = {
        NULL, NULL, format, cuda->mem_new(n_packed), row, ROWS, QUERIES, d, d_rope};
    float *g_x = cuda->mem_new(n_x * sizeof(float)),
          *g_table = cuda->mem_new(n_table * sizeof(float));
    cuda->copy(&device, g_x, x, n_x * sizeof(float));
    cuda->copy(&device, g_table, table, n_table * sizeof(float));
    a.x = g_x, a.table = g_table;
    device.is_bf16 = is_bf16;
    cuda->index_queries(&device, &a);
    cuda->fetch(&device, got, a.packed, n_packed);
    cuda->fetch(&device, back, g_x, n_x * sizeof(float));
    cuda->wait(&device);
    device.is_bf16 = false;
    if (device.rc != OK) fail_msg("%s", device.error.msg);
    cuda->mem_free(a.packed);
    a.x = x, a.table = table, a.packed = want;
    kernels_cpu()->index_queries(&plain, &a);
    for (size_t i = 0; i < n_packed; i++) {
        if (got[i] != want[i])
            fail_msg(
                "queries of format %d, %d of %d rotated: byte %zu of row %zu is %02x, expected "
                "%02x",
                format, d_rope, d, i % row, i / row, got[i], want[i]);
    }
    for (size_t i = 0; i < n_x; i++) {
        if (memcmp(&back[i], &x[i], sizeof(float)) != 0)
            fail_msg("queries of format %d, %d of %d rotated: value %zu is %.9g, expected %.9g",
                format, d_rope, d, i, (double)back[i], (double)x[i]);
    }
    cuda->mem_free(g_x), cuda->mem_free(g_table);
    mem_free(x), mem_free(table), mem_free(back), mem_free(want), mem_free(got);
}

static void test_queries(void **state) {
    (void)state;
    for (int f = KV_FLOAT; f <= KV_KEY; f++)
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            check_queries((kv_format)f, 32, 6, is_bf16 != 0);
            check_queries((kv_format)f, 96, 32, is_bf16 != 0);
            check_queries((kv_format)f, 128, 64, is_bf16 != 0);
            check_queries((kv_format)f, 256, 256, is_bf16 != 0);
        }
}

static void test_pack(void **state) {
    (void)state;
    static const kv_format formats[] = {KV_FLOAT, KV_WINDOW, KV_COMPRESSED, KV_KEY};
    static const int widths[] = {32, 96, 128, 512};
    for (int f = 0; f < 4; f++)
        for (int w = 0; w < 4; w++)
            for (size_t offset = 0; offset < 2; offset++) {
                const size_t bytes = kv_row_bytes(formats[f], widths[w]);
                check_pack(formats[f], widths[w], bytes, offset);
                if (formats[f] != KV_FLOAT) check_pack(formats[f], widths[w], bytes + 1, offset);
            }
}

int main(void) {
    if (!gpu_backend_use()) return 77;
    err e = ERR_INIT;
    cuda = kernels_find("cuda");
    rand_init(&noise, 5, 1);
    if (cuda->open(&device, &e) != OK) {
        print_message("%s\n", e.msg);
        return 1;
    }
    device.scratch_bytes = (size_t)128 << 20;
    device.scratch = cuda->mem_new(device.scratch_bytes);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_streams_alone),
        cmocka_unit_test(test_short_alone), cmocka_unit_test(test_heads),
        cmocka_unit_test(test_gate), cmocka_unit_test(test_pack), cmocka_unit_test(test_queries)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
