/* Attention and indexer: a row of a batch has the bits of the row alone, whether the rows of a tile
 * select the same positions, overlapping ones (unpacked together) or too many different ones, over
 * one slot or several, with and without threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "kernels/attn/attn.h"
#include "kernels/half.h"
#include "kernels/indexer/indexer.h"

enum {
    N_ROWS = 21,
    FIRST = 300, /* position of the first row of both slots */
    D = 64,
    HEADS = 3,
    WINDOW = 16,
    RING = 64,
    PAGE = 32,
    N_PAGES = 11,
    N_KEYS = 321,
    MAX_SELECTED = 64
};

typedef struct world {
    uint8_t ring[2 * RING * 66], step[N_ROWS * 66], pages[2 * N_PAGES * PAGE * 36];
    int32_t table[2 * N_PAGES];
    float q[N_ROWS * HEADS * D], w[N_ROWS * HEADS], sink[HEADS];
    int32_t slot[N_ROWS], span_row[N_ROWS], span_len[N_ROWS], token[N_ROWS];
    int64_t pos[N_ROWS], span_pos[N_ROWS];
    int32_t selection[N_ROWS * MAX_SELECTED], n_selected[N_ROWS];
} world;

static world it;
static uint32_t seed;

static uint32_t next(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static float uniform(void) {
    return (float)next() * 0x1p-23f - 1.0f;
}

/* Rows 0..12 belong to slot 0, the others to slot 1; both continue at FIRST. */
static void build(void) {
    const int split = 13;
    float row[D];
    seed = 77;
    for (int i = 0; i < N_ROWS; i++) {
        int start = i < split ? 0 : split;
        it.slot[i] = i < split ? 0 : 1;
        it.span_row[i] = start;
        it.span_len[i] = i < split ? split : N_ROWS - split;
        it.span_pos[i] = FIRST;
        it.pos[i] = FIRST + i - start;
    }
    for (int i = 0; i < N_ROWS * HEADS * D; i++) {
        it.q[i] = 2.0f * uniform();
    }
    for (int i = 0; i < N_ROWS * HEADS; i++) {
        it.w[i] = uniform();
    }
    for (int i = 0; i < HEADS; i++) {
        it.sink[i] = uniform();
    }
    kv_ring ring = {it.ring, RING * 66, 66, RING};
    kv_paged pages = {it.pages, PAGE * 36, 36, it.table, N_PAGES, PAGE};
    for (int i = 0; i < 2 * N_PAGES; i++) {
        it.table[i] = (i * 7 + 3) % (2 * N_PAGES);
    }
    for (int s = 0; s < 2; s++) {
        for (int p = FIRST - RING + N_ROWS; p < FIRST + N_ROWS; p++) {
            for (int c = 0; c < D; c++) {
                row[c] = uniform();
            }
            kv_pack(KV_WINDOW, row, D, kv_ring_row(&ring, s, p));
        }
        for (int p = 0; p < N_KEYS; p++) {
            for (int c = 0; c < D; c++) {
                row[c] = uniform();
            }
            kv_pack(KV_COMPRESSED, row, D, kv_paged_row(&pages, s, p));
        }
    }
    for (int i = 0; i < N_ROWS; i++) {
        memcpy(it.step + i * 66, kv_ring_row(&ring, it.slot[i], it.pos[i]), 66);
    }
}

/* Row i selects n of the first `range` positions, ascending. */
static void select_rows(int n, int range) {
    for (int i = 0; i < N_ROWS; i++) {
        int left = n;
        for (int p = 0; p < range && left > 0; p++) {
            if (n == range || (int)(next() % (uint32_t)(range - p)) < left) {
                it.selection[i * MAX_SELECTED + n - left--] = p;
            }
        }
        it.n_selected[i] = n;
    }
}

static batch_rows rows_from(
    int first, int n, const int32_t *span_row, const int64_t *span_pos, const int32_t *span_len) {
    return (batch_rows){.n = n,
        .token = it.token + first,
        .slot = it.slot + first,
        .pos = it.pos + first,
        .span_row = span_row,
        .span_pos = span_pos,
        .span_len = span_len};
}

static attn_args attn_of(int max_selected) {
    return (attn_args){.q = it.q,
        .sink = it.sink,
        .window_format = KV_WINDOW,
        .compressed_format = KV_COMPRESSED,
        .ring = {it.ring, RING * 66, 66, RING},
        .rows = it.step,
        .pages = {it.pages, PAGE * 36, 36, it.table, N_PAGES, PAGE},
        .selection = it.selection,
        .n_selected = it.n_selected,
        .max_selected = max_selected,
        .n_heads = HEADS,
        .d = D,
        .window = WINDOW,
        .scale = 0.125f};
}

static void assert_rows(const char *what, const float *got, const float *expected, int n) {
    for (int i = 0; i < n; i++) {
        if (float_bits(got[i]) != float_bits(expected[i])) {
            fail_msg(
                "%s, value %d: %.9g, expected %.9g", what, i, (double)got[i], (double)expected[i]);
        }
    }
}

static void context_init(kernel_context *k, pool *workers) {
    memset(k, 0, sizeof *k);
    k->workers = workers;
    k->thread_scratch_bytes = (size_t)1 << 20;
    for (int t = 0; t < pool_size(workers); t++) {
        k->thread_scratch[t] = mem_aligned(64, k->thread_scratch_bytes);
    }
}

static void context_release(kernel_context *k) {
    for (int t = 0; t < pool_size(k->workers); t++) {
        mem_aligned_free(k->thread_scratch[t]);
    }
}

static void check_attn(const char *what, int max_selected) {
    static float alone[N_ROWS * HEADS * D], together[N_ROWS * HEADS * D];
    kernel_context k;
    context_init(&k, NULL);
    for (int i = 0; i < N_ROWS; i++) {
        attn_args a = attn_of(max_selected);
        const int32_t zero = 0, one = 1;
        a.batch = rows_from(i, 1, &zero, it.pos + i, &one);
        a.q += i * HEADS * D;
        a.o = alone + i * HEADS * D;
        a.rows = it.step + i * 66;
        a.selection += i * max_selected;
        a.n_selected += i;
        attn_run(&k, &a);
    }
    context_release(&k);
    for (int threads = 1; threads <= 3; threads += 2) {
        pool *workers = pool_new(threads);
        context_init(&k, workers);
        attn_args a = attn_of(max_selected);
        a.batch = rows_from(0, N_ROWS, it.span_row, it.span_pos, it.span_len);
        a.o = together;
        attn_run(&k, &a);
        assert_int_equal(k.rc, OK);
        assert_rows(what, together, alone, N_ROWS * HEADS * D);
        context_release(&k);
        pool_free(workers);
    }
}

static void test_attention(void **unused) {
    (void)unused;
    build();
    select_rows(MAX_SELECTED, MAX_SELECTED);
    check_attn("all in order", MAX_SELECTED);
    select_rows(MAX_SELECTED, 100);
    check_attn("overlapping selections", MAX_SELECTED);
    select_rows(MAX_SELECTED, 300);
    check_attn("too many different positions", MAX_SELECTED);
    select_rows(1, 300);
    check_attn("one position a row", MAX_SELECTED);
    memset(it.n_selected, 0, sizeof it.n_selected);
    check_attn("nothing selected", MAX_SELECTED);
}

static void check_indexer(bool uses_candidates, int topk) {
    enum { CAP = 512, BLOCK = 8, MAX_BLOCKS = 20 };
    static float score[N_ROWS * CAP], tap[N_ROWS * CAP], alone_tap[N_ROWS * CAP];
    static int32_t alone[N_ROWS * MAX_SELECTED], n_alone[N_ROWS];
    static int32_t blocks[N_ROWS * MAX_BLOCKS], n_blocks[N_ROWS];
    indexer_args a = {.q = it.q,
        .w = it.w,
        .key_format = KV_COMPRESSED,
        .keys = {it.pages, PAGE * 36, 36, it.table, N_PAGES, PAGE},
        .ratio = 1,
        .n_heads = HEADS,
        .d = D,
        .topk = topk,
        .w_scale = 0.3f,
        .uses_candidates = uses_candidates,
        .blocks = blocks,
        .n_blocks = n_blocks,
        .max_blocks = MAX_BLOCKS,
        .block = BLOCK,
        .score = score,
        .score_rows = N_ROWS,
        .score_cap = CAP};
    for (int i = 0; i < N_ROWS; i++) {
        n_blocks[i] = MAX_BLOCKS;
        for (int b = 0; b < MAX_BLOCKS; b++) {
            blocks[i * MAX_BLOCKS + b] = 2 * b + i % 2;
        }
    }
    kernel_context k;
    context_init(&k, NULL);
    const int32_t zero = 0, one = 1;
    for (int i = 0; i < N_ROWS; i++) {
        indexer_args r = a;
        r.batch = rows_from(i, 1, &zero, it.pos + i, &one);
        r.q += i * HEADS * D, r.w += i * HEADS;
        r.blocks += i * MAX_BLOCKS, r.n_blocks += i;
        r.selection = alone + i * topk, r.n_selected = n_alone + i;
        r.score_tap = alone_tap + i * CAP;
        indexer_run(&k, &r);
    }
    context_release(&k);
    pool *workers = pool_new(3);
    context_init(&k, workers);
    a.batch = rows_from(0, N_ROWS, it.span_row, it.span_pos, it.span_len);
    a.selection = it.selection, a.n_selected = it.n_selected, a.score_tap = tap;
    for (a.score_rows = N_ROWS; a.score_rows > 0; a.score_rows -= 8) { /* 21, 13 and 5 at a time */
        indexer_run(&k, &a);
        assert_int_equal(k.rc, OK);
        assert_rows("scores", tap, alone_tap, N_ROWS * CAP);
        assert_memory_equal(it.n_selected, n_alone, sizeof n_alone);
        assert_memory_equal(it.selection, alone, (size_t)(N_ROWS * topk) * sizeof *alone);
    }
    context_release(&k);
    pool_free(workers);
}

static void test_indexer(void **unused) {
    (void)unused;
    build();
    check_indexer(false, 40);
    check_indexer(true, 40);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention), cmocka_unit_test(test_indexer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
