/* The tile quantizer: every path it returns is a tail-biting trellis path, AVX2 and plain C agree,
 * and no other cut of the same tile is better by much. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/weights/trellis_search.h"

enum { N = EXL3_TILE_VALUES };

/* Roughly normal numbers of standard deviation 0.8. */
static void fill_normal(float *x, int n, uint32_t seed) {
    for (int i = 0; i < n; i++) {
        double sum = 0.0;
        for (int j = 0; j < 12; j++) {
            seed = seed * 1664525u + 1013904223u;
            sum += (double)(seed >> 8) / (double)(1u << 24);
        }
        x[i] = (float)((sum - 6.0) * 0.8);
    }
}

static void search(const trellis_code *c, trellis_mode mode, float x[2][N], uint16_t s[2][N]) {
    trellis_work *w = trellis_work_new(trellis_code_k2(c));
    const float *const in[2] = {x[0], x[1]};
    uint16_t *const out[2] = {s[0], s[1]};
    assert_non_null(w);
    trellis_search_pair(c, w, mode, in, out);
    trellis_work_free(w);
}

/* Packing keeps only the new bits; getting the same states back proves that they overlap. */
static void assert_is_path(const uint16_t *states, int k2) {
    unsigned char tile[16 * EXL3_MAX_K2];
    uint16_t again[N];
    exl3_tile_pack(states, k2, tile);
    exl3_tile_states(tile, k2, again);
    assert_memory_equal(again, states, sizeof again);
}

static void test_paths_close(void **state) {
    static const int rates[] = {2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16};
    (void)state;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        float x[2][N];
        uint16_t s[2][N];
        trellis_code *c = trellis_code_new(EXL3_MUL1, rates[i]);
        assert_non_null(c);
        fill_normal(x[0], 2 * N, (uint32_t)i + 1);
        search(c, TRELLIS_FLOAT, x, s);
        assert_is_path(s[0], rates[i]);
        assert_is_path(s[1], rates[i]);
        /* Rate-distortion bound for a normal source and what this code loses against it. */
        double bound = 0.64 * pow(2.0, -(double)rates[i]);
        double mse = (trellis_error(c, x[0], s[0]) + trellis_error(c, x[1], s[1])) / (2 * N);
        if (mse > bound * 1.6 + 2e-5) fail_msg("k2 %d: error %g, bound %g", rates[i], mse, bound);
        trellis_code_free(c);
    }
}

static void test_plain_equals_simd(void **state) {
    static const int rates[] = {5, 6, 8, 16};
    (void)state;
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        float x[2][N];
        uint16_t fast[2][N], slow[2][N];
        trellis_code *c = trellis_code_new(EXL3_MUL1, rates[i]);
        fill_normal(x[0], 2 * N, (uint32_t)i + 77);
        x[1][9] = 1e4f;
        x[1][10] = -1e-6f;
        search(c, TRELLIS_FLOAT, x, fast);
        trellis_force_plain(true);
        search(c, TRELLIS_FLOAT, x, slow);
        trellis_force_plain(false);
        assert_memory_equal(fast, slow, sizeof fast);
        trellis_code_free(c);
    }
}

static void test_half_plain_equals_simd(void **state) {
    float x[2][N];
    uint16_t fast[2][N], slow[2][N];
    trellis_code *c = trellis_code_new(EXL3_MCG, 16);
    (void)state;
    fill_normal(x[0], 2 * N, 5);
    search(c, TRELLIS_HALF, x, fast);
    trellis_force_plain(true);
    search(c, TRELLIS_HALF, x, slow);
    trellis_force_plain(false);
    assert_memory_equal(fast, slow, sizeof fast);
    trellis_code_free(c);
}

/* A tile that a path decodes to exactly is found again without error. */
static void test_exact_tile(void **state) {
    float x[2][N];
    uint16_t s[2][N], found[2][N];
    unsigned char tile[16 * 6];
    trellis_code *c = trellis_code_new(EXL3_MUL1, 6);
    (void)state;
    for (int t = 0; t < 2; t++) {
        for (size_t i = 0; i < sizeof tile; i++) {
            tile[i] = (unsigned char)((i * 37 + (size_t)t * 11) ^ (i * i));
        }
        exl3_tile_states(tile, 6, s[t]);
        for (int p = 0; p < N; p++) {
            x[t][p] = trellis_value(c, s[t][p]);
        }
    }
    search(c, TRELLIS_FLOAT, x, found);
    assert_true(trellis_error(c, x[0], found[0]) == 0.0);
    assert_true(trellis_error(c, x[1], found[1]) == 0.0);
    trellis_code_free(c);
}

static void test_unknown_rate(void **state) {
    (void)state;
    assert_null(trellis_code_new(EXL3_MCG, 5));
    assert_null(trellis_code_new(EXL3_MUL1, 18));
    assert_null(trellis_code_new(EXL3_MUL1, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths_close),
        cmocka_unit_test(test_plain_equals_simd),
        cmocka_unit_test(test_half_plain_equals_simd),
        cmocka_unit_test(test_exact_tile),
        cmocka_unit_test(test_unknown_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
