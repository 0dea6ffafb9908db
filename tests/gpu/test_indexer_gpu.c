/* Index scores and the exact pick of the CUDA back end against the CPU's: scores may differ in their last
 * bits, so picks may change places at their border; what is picked from given scores is exact, and a row's
 * picks are the same in any company. */
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
#include "kernels/indexer/indexer_gpu.h"
#include "tests/gpu/ops_fixture.h"

enum { TOPK = 512, PAGE = 128 };

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

/* test_indexer_gpu [PATTERN]: the tests whose names match, for a sanitizer that takes long. */
int main(int argc, char **argv) {
    int rc = ops_fixture_open();
    if (rc != 0) return rc;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_indexer), cmocka_unit_test(test_pick)};
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
