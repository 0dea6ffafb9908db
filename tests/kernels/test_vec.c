/* Every variant of the vector loops against the plain one, bit for bit, over lengths with and
 * without tails; the plain one against libm and against the scalar codes of kernels/kv. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "kernels/half.h"
#include "kernels/head/weight.h"
#include "kernels/kv/kv.h"
#include "kernels/vec/vec.h"

enum { MAX_N = 700, MAX_ROWS = 9 };

static float values[MAX_ROWS][MAX_N];

static void fill(uint32_t seed, float size) {
    for (int r = 0; r < MAX_ROWS; r++) {
        for (int i = 0; i < MAX_N; i++) {
            seed = seed * 1664525u + 1013904223u;
            values[r][i] = size * ((float)(seed >> 8) * 0x1p-23f - 1.0f);
        }
    }
}

static const int lengths[] = {1, 7, 8, 15, 16, 17, 32, 33, 48, 100, 128, 512, 577, 700};
enum { N_LENGTHS = sizeof lengths / sizeof lengths[0] };

static void assert_same(
    const char *what, int n, const float *got, const float *expected, int count) {
    for (int i = 0; i < count; i++) {
        if (float_bits(got[i]) != float_bits(expected[i])) {
            fail_msg("%s, length %d, value %d: %.9g, expected %.9g", what, n, i, (double)got[i],
                (double)expected[i]);
        }
    }
}

/* Runs one function of v on `values` and appends what it made to out. */
typedef size_t (*probe)(const vec_ops *v, int n, float *out);

static size_t probe_sums(const vec_ops *v, int n, float *out) {
    const float *rows[VEC_MAX_ROWS] = {values[1], values[2], values[3], values[4]};
    uint16_t half[MAX_N];
    for (int i = 0; i < n; i++) {
        half[i] = bf16_from_float(values[0][i]);
    }
    out[0] = v->dot(values[0], values[1], n);
    out[1] = v->sum_squares(values[2], n);
    out[2] = v->max_abs(values[3], n);
    v->dot_rows(values[0], rows, 4, n, out + 3);
    v->dot_rows(values[0], rows, 3, n, out + 7);
    v->dot_rows_bf16(half, rows, 4, n, out + 10);
    v->dot_rows_bf16(half, rows, 2, n, out + 14);
    return 16;
}

static size_t probe_exp_sum(const vec_ops *v, int n, float *out) {
    memcpy(out, values[0], (size_t)n * sizeof *out);
    out[n] = v->scale_max(out, 0.7f, -1e30f, n);
    out[n + 1] = v->exp_sum(out, out[n], n);
    return (size_t)n + 2;
}

static size_t probe_swiglu(const vec_ops *v, int n, float *out) {
    memcpy(out, values[0], (size_t)n * sizeof *out);
    v->swiglu(out, values[1], 10.0f, 0.37f, n);
    return (size_t)n;
}

static size_t probe_rows(const vec_ops *v, int n, float *out) {
    const float *x[3] = {out, values[1], values[2]};
    const float w[MAX_ROWS] = {0.5f, -2.0f, 3.0f, 0.1f, 7.0f, -0.3f, 1.5f, 0.9f, -1.0f};
    float packed[MAX_ROWS * MAX_N];
    for (int r = 0; r < MAX_ROWS; r++) {
        memcpy(packed + r * n, values[r], (size_t)n * sizeof(float));
    }
    memcpy(out, values[3], (size_t)n * sizeof *out);
    v->axpy(out, values[4], 0.3f, n);
    const int32_t index[4] = {7, 0, 3, 3};
    v->sum_rows(out, packed, NULL, w, MAX_ROWS, n);
    v->sum_rows(out, packed, index, w, 4, n);
    v->combine(out, x, w, 3, n);
    v->scale(out + n, out, values[5], 1.1f, n);
    return 2 * (size_t)n;
}

static size_t probe_codes(const vec_ops *v, int n, float *out) {
    uint8_t codes[MAX_N];
    float scale[MAX_N];
    n = n / 16 * 16;
    for (int i = 0; i < n; i++) {
        codes[i] = (uint8_t)(i * 37 + n);
    }
    for (int i = 0; i < n; i++) {
        scale[i] = values[0][i];
    }
    v->from_e4m3(out, codes, scale, 16, n);
    v->from_e2m1(out + n, codes, scale, 16, n);
    return 2 * (size_t)n;
}

static void test_variants(void **unused) {
    (void)unused;
    const struct {
        const char *name;
        probe run;
    } probes[] = {{"sums", probe_sums}, {"exp_sum", probe_exp_sum}, {"swiglu", probe_swiglu},
        {"rows", probe_rows}, {"codes", probe_codes}};
    fill(3, 12.0f);
    for (int i = 1; vec_variant(i) != NULL; i++) {
        for (size_t p = 0; p < sizeof probes / sizeof probes[0]; p++) {
            for (int l = 0; l < N_LENGTHS; l++) {
                static float expected[2 * MAX_N + 32], got[2 * MAX_N + 32];
                size_t n = probes[p].run(vec_variant(0), lengths[l], expected);
                assert_int_equal(probes[p].run(vec_variant(i), lengths[l], got), n);
                assert_same(probes[p].name, lengths[l], got, expected, (int)n);
            }
        }
    }
}

/* sum_rows is axpy row by row, combine is scale and axpy, dot_rows is dot. */
static void test_same_as_simple(void **unused) {
    (void)unused;
    const vec_ops *v = vec();
    fill(5, 2.0f);
    for (int l = 0; l < N_LENGTHS; l++) {
        int n = lengths[l];
        static float packed[3 * MAX_N], a[MAX_N], b[MAX_N];
        const float w[3] = {0.7f, -1.3f, 2.1f};
        for (int r = 0; r < 3; r++) {
            memcpy(packed + r * n, values[r], (size_t)n * sizeof(float));
        }
        memcpy(a, values[4], sizeof a);
        memcpy(b, values[4], sizeof b);
        const int32_t index[3] = {2, 0, 2};
        v->sum_rows(a, packed, NULL, w, 3, n);
        v->sum_rows(a, packed, index, w, 3, n);
        for (int r = 0; r < 3; r++) {
            v->axpy(b, values[r], w[r], n);
        }
        for (int r = 0; r < 3; r++) {
            v->axpy(b, values[index[r]], w[r], n);
        }
        assert_same("sum_rows", n, a, b, n);
        const float *x[3] = {values[0], values[1], values[2]};
        v->combine(a, x, w, 3, n);
        v->scale(b, values[0], NULL, w[0], n);
        v->axpy(b, values[1], w[1], n);
        v->axpy(b, values[2], w[2], n);
        assert_same("combine", n, a, b, n);
        float y[4], one;
        const float *rows[4] = {values[1], values[2], values[3], values[4]};
        v->dot_rows(values[0], rows, 4, n, y);
        for (int r = 0; r < 4; r++) {
            one = v->dot(values[0], rows[r], n);
            assert_same("dot_rows", n, y + r, &one, 1);
        }
    }
}

static float exp_of(float x) {
    (void)vec()->exp_sum(&x, 0.0f, 1);
    return x;
}

static void test_exp(void **unused) {
    (void)unused;
    double worst = 0.0;
    for (float x = -87.0f; x < 88.7f; x += 0.00317f) {
        double exact = exp((double)x), ulp = exact * 0x1p-23;
        double off = fabs((double)exp_of(x) - exact) / ulp;
        worst = off > worst ? off : worst;
    }
    if (!(worst <= 2.0)) {
        fail_msg("exp is off by %.2f ulp, expected at most 2", worst);
    }
    assert_true(exp_of(0.0f) == 1.0f);
    assert_true(exp_of(-104.0f) == 0.0f);
    assert_true(exp_of(-INFINITY) == 0.0f);
    assert_true(exp_of(89.0f) == INFINITY);
    assert_true(exp_of(INFINITY) == INFINITY);
    assert_true(isnan(exp_of(NAN)));
    for (float x = -103.0f; x < -87.0f; x += 0.0173f) {
        assert_true(fabs((double)exp_of(x) - exp((double)x)) <= 0x1p-148);
    }
}

/* Of the exact value at most 2e-7, and one unit of what the shift drops. */
static void test_weight(void **unused) {
    (void)unused;
    assert_true(weight_of(0.0f) == WEIGHT_ONE && weight_of(-0.0f) == WEIGHT_ONE);
    assert_true(weight_of(-31.0f) == 0 && weight_of(-1e30f) == 0);
    assert_true(weight_of(-INFINITY) == 0 && weight_of(NAN) == 0);
    uint64_t before = WEIGHT_ONE;
    for (float x = 0.0f; x > -50.0f; x -= 0.000731f) {
        double exact = ldexp(exp((double)x), WEIGHT_ONE_BITS), got = (double)weight_of(x);
        if (!(fabs(got - exact) <= 2e-7 * exact + 1.0)) {
            fail_msg("weight of %.9g: %.17g, expected %.17g", (double)x, got, exact);
        }
        assert_true(weight_of(x) <= before);
        before = weight_of(x);
    }
}

static void test_weigh(void **unused) {
    (void)unused;
    fill(11, 30.0f);
    values[0][5] = -INFINITY;
    values[0][6] = NAN;
    for (int i = 0; vec_variant(i) != NULL; i++) {
        for (int l = 0; l < N_LENGTHS; l++) {
            uint64_t sum = 0, got = vec_variant(i)->weigh(values[0], 30.0f, lengths[l]);
            for (int k = 0; k < lengths[l]; k++) {
                sum += weight_of(values[0][k] - 30.0f);
            }
            if (got != sum) {
                fail_msg("%s, length %d: %llu, expected %llu", vec_variant(i)->name, lengths[l],
                    (unsigned long long)got, (unsigned long long)sum);
            }
        }
    }
}

static void test_swiglu(void **unused) {
    (void)unused;
    fill(9, 15.0f);
    float gate[MAX_N];
    memcpy(gate, values[0], sizeof gate);
    vec()->swiglu(gate, values[1], 10.0f, 0.5f, MAX_N);
    for (int i = 0; i < MAX_N; i++) {
        double g = fmin((double)values[0][i], 10.0),
               u = fmax(fmin((double)values[1][i], 10.0), -10.0);
        double expected = 0.5 * (g / (1.0 + exp(-g)) * u);
        if (!(fabs((double)gate[i] - expected) <= 1e-6 * fabs(expected) + 1e-30)) {
            fail_msg("swiglu value %d: %.9g, expected %.9g", i, (double)gate[i], expected);
        }
    }
}

static void test_codes(void **unused) {
    (void)unused;
    uint8_t codes[256];
    float scale[32], y[512];
    for (int i = 0; i < 256; i++) {
        codes[i] = (uint8_t)i;
    }
    for (int i = 0; i < 32; i++) {
        scale[i] = ue8m0_to_float((uint8_t)(120 + i));
    }
    vec()->from_e4m3(y, codes, scale, 32, 256);
    for (int i = 0; i < 256; i++) {
        float expected = e4m3_to_float((uint8_t)i) * scale[i / 32];
        if (isnan(expected)) {
            assert_true(isnan(y[i]));
        } else {
            assert_same("e4m3", 256, y + i, &expected, 1);
        }
    }
    vec()->from_e2m1(y, codes, scale, 16, 512);
    for (int i = 0; i < 512; i++) {
        uint8_t code = i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
        float expected = e2m1_to_float(code) * scale[i / 16];
        assert_same("e2m1", 512, y + i, &expected, 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_variants),
        cmocka_unit_test(test_same_as_simple),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_weight),
        cmocka_unit_test(test_weigh),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
