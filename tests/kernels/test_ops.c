/* Plain operators against values that others computed or against slow straightforward forms. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "kernels/kernels.h"
#include "tests/harness/logit_rows.h"

static void near(double got, double want, double relative) {
    if (!(fabs(got - want) <= relative * fabs(want))) {
        fail_msg("%.9g, expected %.9g", got, want);
    }
}

/* model.md 7. */
static void test_rope_frequencies(void **state) {
    (void)state;
    float a[32], b[32];
    rope_yarn yarn = {16, 32, 1, 65536};
    rope_frequencies(10000, 64, NULL, a);
    rope_frequencies(160000, 64, &yarn, b);
    near((double)a[1], 0.74989421, 2e-7);
    near((double)a[16], 0.01, 2e-7);
    near((double)a[31], 1.3335214e-4, 2e-7);
    static const struct {
        int i;
        double want;
    } table[] = {{0, 1}, {1, 0.68765602}, {14, 5.2868563e-3}, {15, 3.6355386e-3}, {16, 2.265625e-3},
        {17, 1.3968013e-3}, {20, 2.9697778e-4}, {24, 1.953125e-5}, {25, 5.3723127e-6},
        {31, 5.6805290e-7}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        near((double)b[table[i].i], table[i].want, 3e-7);
    }
}

static void test_rope_inverse(void **state) {
    (void)state;
    float frequency[32], table[64], x[128], y[128];
    int64_t pos = 1000003;
    kernel_context k = {0};
    rope_frequencies(10000, 64, NULL, frequency);
    rope_table_run(&k, &(rope_table_args){frequency, &pos, table, 1, 64});
    for (int i = 0; i < 128; i++) {
        x[i] = y[i] = (float)(i - 60) / 7.0f;
    }
    rope_run(&k, &(rope_args){y, 128, table, 1, 1, 128, 64, false});
    assert_memory_equal(x, y, 64 * sizeof(float));
    assert_true(fabsf(x[70] - y[70]) > 0.01f);
    rope_run(&k, &(rope_args){y, 128, table, 1, 1, 128, 64, true});
    for (int i = 0; i < 128; i++) {
        assert_true(fabsf(x[i] - y[i]) < 1e-5f);
    }
}

/* model.md 13.1 and 19.3: ties, saturation, floors, borders of a power of two. */
static void test_small_floats(void **state) {
    (void)state;
    static const struct {
        float x, want;
    } e2m1[] = {{0.25f, 0}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2}, {2.5f, 2}, {3.5f, 4}, {5, 4},
        {5.01f, 6}, {-0.75f, -1}, {0.26f, 0.5f}, {100, 6}};
    for (size_t i = 0; i < sizeof(e2m1) / sizeof(e2m1[0]); i++) {
        assert_true(e2m1_to_float(e2m1_from_float(e2m1[i].x)) == e2m1[i].want);
    }
    for (int code = 0; code < 256; code++) {
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(e4m3_to_float((uint8_t)code)));
        } else {
            assert_int_equal(e4m3_from_float(e4m3_to_float((uint8_t)code)), code);
        }
    }
    assert_int_equal(e4m3_from_float(1e9f), 0x7e);
    assert_int_equal(
        e4m3_from_float(1.0625f), e4m3_from_float(1.0f)); /* halfway to 1.125: the even code */
    assert_int_equal(
        e4m3_from_float(1.1875f), e4m3_from_float(1.25f)); /* halfway from 1.125: the even code */
    assert_true(ue8m0_to_float(127) == 1.0f && ue8m0_to_float(0) == 0x1p-127f);
}

static void test_row_scales(void **state) {
    (void)state;
    float x[32] = {0};
    uint8_t row[64];
    kv_pack(KV_WINDOW, x, 32, row);
    assert_true(ue8m0_to_float(row[32]) == 0x1p-22f);
    kv_pack(KV_COMPRESSED, x, 32, row);
    assert_true(e4m3_to_float(row[16]) == 0x1p-9f);
    for (int e = -3; e <= 3; e++) {
        float most = ldexpf(448.0f, e);
        x[5] = most;
        kv_pack(KV_WINDOW, x, 32, row);
        assert_true(ue8m0_to_float(row[32]) == ldexpf(1.0f, e));
        x[5] = nextafterf(most, INFINITY);
        kv_pack(KV_WINDOW, x, 32, row);
        /* Multiplying by the fp32 reciprocal may round one ulp above back onto the power of two. */
        float s = ue8m0_to_float(row[32]);
        assert_true(s == ldexpf(1.0f, e) || s == ldexpf(2.0f, e));
    }
}

/* The nearest value of a format by search over its codes; a tie goes to the even code. */
static float nearest(float v, float (*value)(uint8_t code), int n_codes) {
    int best = 0;
    float a = fabsf(v);
    for (int c = 1; c < n_codes; c++) {
        float d = fabsf(value((uint8_t)c) - a), e = fabsf(value((uint8_t)best) - a);
        if (d < e || (d == e && c % 2 == 0)) {
            best = c;
        }
    }
    return copysignf(value((uint8_t)best), v);
}

static float clamped(float v, float limit) {
    return v > limit ? limit : v < -limit ? -limit : v;
}

/* The fake quantizers of model.md 13.1 written down as they stand there. */
static void fake_quant(kv_format f, const float *x, int d, float *y) {
    int block = f == KV_COMPRESSED ? 16 : 32;
    for (int b = 0; b < d; b += block) {
        float a = f == KV_WINDOW ? 1e-4f : f == KV_COMPRESSED ? 6 * 0x1p-9f : 6 * 0x1p-126f;
        for (int i = b; i < b + block; i++) {
            a = fmaxf(a, fabsf(x[i]));
        }
        float s = f == KV_COMPRESSED
                      ? nearest(a / 6, e4m3_to_float, 127)
                      : exp2f(ceilf(log2f(a * (f == KV_WINDOW ? 1.0f / 448 : 1.0f / 6))));
        for (int i = b; i < b + block; i++) {
            y[i] = f == KV_WINDOW ? nearest(clamped(x[i] / s, 448), e4m3_to_float, 127) * s
                                  : nearest(clamped(x[i] / s, 6), e2m1_to_float, 8) * s;
        }
    }
}

/* The packed cache holds exactly the fake-quantized values: a cache of those as floats would give the same bits. */
static void test_packing(void **state) {
    (void)state;
    rand_state r;
    rand_init(&r, 3, 1);
    for (int n = 0; n < 200; n++) {
        float x[128], y[128], z[128];
        uint8_t row[512];
        float size = expf((float)(n % 20) / 3.0f - 4.0f);
        for (int i = 0; i < 128; i++) {
            x[i] = (float)rand_normal(&r) * size;
        }
        for (int f = KV_WINDOW; f <= KV_KEY; f++) {
            kv_pack((kv_format)f, x, 128, row);
            kv_unpack((kv_format)f, row, 128, y);
            fake_quant((kv_format)f, x, 128, z);
            for (int i = 0; i < 128; i++) {
                assert_true(y[i] == z[i]);
            }
        }
    }
}

static void test_mhc_neutral(void **state) {
    (void)state;
    float h[4 * 32], fn[24 * 128] = {0}, base[24] = {0}, scale[3] = {1, 1, 1};
    float pre[4], post[4], comb[16];
    kernel_context k = {0};
    for (int i = 0; i < 128; i++) {
        h[i] = (float)(i % 7) - 3.0f;
    }
    mhc_mix_run(
        &k, &(mhc_mix_args){h, {fn, base, scale}, pre, post, comb, 1, 4, 32, 20, 1e-6f, 1e-20f});
    for (int i = 0; i < 4; i++) {
        near((double)pre[i], 0.500001, 1e-6);
        near((double)post[i], 1.0, 1e-6);
    }
    for (int i = 0; i < 16; i++) {
        near((double)comb[i], 0.25, 1e-5);
    }
}

static int slow_pick(const float *score, int n, int topk, int32_t *out) {
    static uint8_t taken[4096];
    memset(taken, 0, sizeof(taken));
    for (int k = 0; k < topk; k++) {
        int best = -1;
        for (int i = 0; i < n; i++) {
            bool is_open = !taken[i] && score[i] > -INFINITY;
            if (is_open && (best < 0 || score[i] > score[best])) {
                best = i;
            }
        }
        if (best < 0) {
            break;
        }
        taken[best] = 1;
    }
    int n_out = 0;
    for (int i = 0; i < n; i++) {
        if (taken[i]) {
            out[n_out++] = i;
        }
    }
    return n_out;
}

static void test_pick(void **state) {
    (void)state;
    rand_state r;
    rand_init(&r, 11, 1);
    for (int round = 0; round < 400; round++) {
        float score[300];
        int32_t a[300], b[300];
        int n = (int)(rand_u32(&r) % 300), topk = 1 + (int)(rand_u32(&r) % 60);
        for (int i = 0; i < n; i++) {
            /* Few distinct values: many ties; some -inf, both zeros. */
            uint32_t v = rand_u32(&r) % 12;
            score[i] = v == 0   ? -INFINITY
                       : v == 1 ? -0.0f
                                : ((float)v - 6.0f) / (round % 2 == 0 ? 1.0f : 1e20f);
        }
        int n_a = indexer_pick(score, n, topk, a), n_b = slow_pick(score, n, topk, b);
        assert_int_equal(n_a, n_b);
        assert_memory_equal(a, b, (size_t)n_a * sizeof(int32_t));
    }
}

static void test_router(void **state) {
    (void)state;
    float logits[4] = {0.0f, 1.0f, 30.0f, 1.0f}, bias[4] = {5.0f, 0, 0, 0}, work[8], weight[3];
    int32_t expert[3];
    kernel_context k = {0};
    router_run(&k, &(router_args){logits, bias, expert, weight, work, 1, 4, 3, 1.0f, 1.5f});
    double s0 = sqrt(log(2.0)), s1 = sqrt(log1p(exp(1.0))), s2 = sqrt(30.0), sum = s0 + s1 + s2;
    /* Biased scores 5.83, 1.15, 5.48, 1.15: expert 0 by its bias, 2, then the lower of the equal ones. */
    assert_int_equal(expert[0], 0);
    assert_int_equal(expert[1], 2);
    assert_int_equal(expert[2], 1);
    near((double)weight[0], 1.5 * s0 / sum, 1e-6);
    near((double)weight[1], 1.5 * s2 / sum, 1e-6);
    logits[0] = logits[1] = logits[2] = logits[3] = NAN;
    router_run(&k, &(router_args){logits, bias, expert, weight, work, 1, 4, 3, 1.0f, 1.5f});
    assert_true(expert[0] != expert[1] && expert[1] != expert[2] && expert[0] != expert[2]);
}

static void test_finite(void **state) {
    (void)state;
    float x[3][16] = {{0}};
    uint8_t ok[3];
    kernel_context k = {0};
    x[0][7] = 3e38f;
    x[1][3] = NAN;
    x[2][15] = -INFINITY;
    finite_run(&k, &(finite_args){&x[0][0], ok, 3, 16});
    assert_int_equal(ok[0], 1);
    assert_int_equal(ok[1], 0);
    assert_int_equal(ok[2], 0);
}

/* An operator does nothing once the context holds an error. */
static void test_sticky_error(void **state) {
    (void)state;
    float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, w[8] = {1, 1, 1, 1, 1, 1, 1, 1}, y[8] = {0};
    kernel_context k = {.rc = ERR_PEER};
    rmsnorm_run(&k, &(rmsnorm_args){x, 8, w, y, 8, 1, 8, 1e-20f});
    assert_true(y[0] == 0.0f);
    k.rc = OK;
    rmsnorm_run(&k, &(rmsnorm_args){x, 8, w, y, 8, 1, 8, 1e-20f});
    near((double)y[0], 1.0 / sqrt(204.0 / 8.0), 1e-6);
}

/* What a short list must say of a row, found in the plainest way. */
static void check_shortlist(const float *x, int n, const shortlist_ask *ask, const shortlist *l) {
    uint64_t mass = 0, mass_raw = 0;
    int32_t best = -1, at = 0;
    for (int32_t i = 0; i < n; i++) {
        if (x[i] > -INFINITY && (best < 0 || x[i] > x[best])) best = i;
    }
    assert_int_equal(l->token, best);
    if (best < 0) {
        assert_true(l->mass_raw == 0 && l->mass == 0 && l->n == 0 && l->n_noisy == 0);
        return;
    }
    assert_true(l->max == x[best] && l->n <= SHORTLIST_CAP && l->ask.position == ask->position);
    for (int32_t i = 0; i < n; i++) {
        if (!(x[i] > -INFINITY)) continue;
        mass_raw += weight_of(x[i] - l->max);
        mass += ask->inverse > 0 ? weight_of(x[i] * ask->inverse - l->max * ask->inverse) : 0;
        if (shortlist_bin(l->max, x[i]) >= l->n_bins) continue;
        assert_true(at < l->n && l->entries[at].token == i && l->entries[at].logit == x[i]);
        at++;
    }
    assert_int_equal(at, l->n);
    assert_true(mass == l->mass && mass_raw == l->mass_raw);
}

/* The largest score is one of the noisy tokens', and no other token gets above the bound. */
static void check_noisy(const float *x, int n, const shortlist_ask *ask, const shortlist *l) {
    double best = -INFINITY, top = (double)(l->max * ask->inverse);
    int32_t pick = -1, at = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!(x[i] > -INFINITY)) continue;
        double u = rand_keyed_uniform(ask->seed, (uint64_t)ask->position, (uint64_t)(uint32_t)i);
        double score = (double)(x[i] * ask->inverse) - log(-log(u));
        bool is_listed = at < l->n_noisy && at < SHORTLIST_NOISY && l->noisy[at].token == i;
        at += is_listed;
        if (!is_listed && l->n_noisy <= SHORTLIST_NOISY && !(score < top + (double)l->noisy_low)) {
            fail_msg("token %d scores %.9g, not listed above %.9g", i, score - top,
                (double)l->noisy_low);
        }
        if (score > best) {
            best = score;
            pick = i;
        }
    }
    assert_true(l->n_noisy > 0 && best >= top + (double)l->noisy_low);
    for (int32_t i = 0; i < l->n_noisy && l->n_noisy <= SHORTLIST_NOISY; i++) {
        if (l->noisy[i].token == pick) return;
    }
    assert_true(l->n_noisy > SHORTLIST_NOISY);
}

static void test_shortlist(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 9, 300, 5003, 129280};
    static const float inverses[] = {1.0f, 1.0f / 0.6f, 10.0f, 0.4f, 0.0f};
    static shortlist list;
    kernel_context k = {0};
    int n_checked = 0;
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        float *x = mem_array((size_t)sizes[s], sizeof *x);
        for (int turn = 0; turn < 5 * LOGITS_KINDS; turn++) {
            int kind = turn % LOGITS_KINDS;
            shortlist_ask ask = {.seed = 3, .position = turn, .has_noise = turn % 5 < 4};
            ask.inverse = inverses[turn % 5];
            logit_row_fill(x, sizes[s], kind, (uint64_t)turn);
            shortlist_run(&k, &(shortlist_args){x, &ask, &list, 1, sizes[s]});
            check_shortlist(x, sizes[s], &ask, &list);
            if (!ask.has_noise || kind == LOGITS_NOTHING || list.token < 0) continue;
            check_noisy(x, sizes[s], &ask, &list);
            n_checked += list.n_noisy <= SHORTLIST_NOISY;
        }
        mem_free(x);
    }
    /* Seldom more tokens can win than fit. */
    assert_true(n_checked > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rope_frequencies),
        cmocka_unit_test(test_rope_inverse), cmocka_unit_test(test_small_floats),
        cmocka_unit_test(test_row_scales), cmocka_unit_test(test_packing),
        cmocka_unit_test(test_mhc_neutral), cmocka_unit_test(test_pick),
        cmocka_unit_test(test_router), cmocka_unit_test(test_finite),
        cmocka_unit_test(test_sticky_error), cmocka_unit_test(test_shortlist)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
