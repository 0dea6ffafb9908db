#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/err.h"
#include "engine/base/rand.h"
#include "engine/run/sampler.h"

#define N_VOCAB 300

static float row_values[N_VOCAB];

static void fill_row(uint64_t seed, float spread) {
    rand_state r;
    rand_init(&r, seed, 1);
    for (int i = 0; i < N_VOCAB; i++) {
        row_values[i] = (float)rand_normal(&r) * spread;
    }
}

static int32_t pick(sampler *s, const sample_params *p, int64_t position) {
    sample_row row = {.logits = row_values, .position = position};
    sample_pick out;
    assert_int_equal(sampler_pick(s, p, &row, &out), OK);
    return out.token;
}

/* The distribution the settings ask for, computed in the plainest way. */
static void reference(const sample_params *p, double *prob) {
    int order[N_VOCAB];
    double q[N_VOCAB];
    double sum = 0.0;
    for (int i = 0; i < N_VOCAB; i++) {
        order[i] = i;
        q[i] = exp((double)row_values[i] / (double)p->temperature);
        prob[i] = 0.0;
    }
    for (int i = 0; i < N_VOCAB; i++) {
        for (int j = i + 1; j < N_VOCAB; j++) {
            if (q[order[j]] > q[order[i]]) {
                int t = order[i];
                order[i] = order[j];
                order[j] = t;
            }
        }
    }
    int n = p->top_k > 0 && p->top_k < N_VOCAB ? p->top_k : N_VOCAB;
    for (int i = 0; i < n; i++) {
        sum += q[order[i]];
    }
    double kept = 0.0;
    double before = 0.0;
    for (int i = 0; i < n; i++) {
        bool is_in =
            before < (double)p->top_p * sum && q[order[i]] >= (double)p->min_p * q[order[0]];
        before += q[order[i]];
        if (!is_in) continue;
        prob[order[i]] = q[order[i]];
        kept += q[order[i]];
    }
    for (int i = 0; i < N_VOCAB; i++) {
        prob[i] /= kept;
    }
}

static void check_distribution(sample_params p) {
    enum { N_DRAWS = 40000 };
    static int seen[N_VOCAB];
    double prob[N_VOCAB];
    double chi = 0.0;
    int n_cells = 0;
    sampler *s = sampler_new(N_VOCAB);
    memset(seen, 0, sizeof seen);
    reference(&p, prob);
    for (int i = 0; i < N_DRAWS; i++) {
        seen[pick(s, &p, i)]++;
    }
    for (int i = 0; i < N_VOCAB; i++) {
        double want = prob[i] * N_DRAWS;
        if (prob[i] == 0.0) assert_int_equal(seen[i], 0);
        if (want < 5.0) continue;
        chi += (seen[i] - want) * (seen[i] - want) / want;
        n_cells++;
    }
    /* Mean n, deviation sqrt(2n): five deviations above is a wrong sampler, not bad luck. */
    assert_true(chi < n_cells + 5.0 * sqrt(2.0 * n_cells) + 10.0);
    sampler_free(s);
}

static void draws_follow_the_settings(void **state) {
    (void)state;
    fill_row(7, 2.0f);
    sample_params p;
    sample_params_init(&p);
    check_distribution(p);
    p.temperature = 0.6f;
    check_distribution(p);
    p.top_p = 0.9f;
    check_distribution(p);
    p.top_k = 12;
    check_distribution(p);
    p.top_p = 1.0f;
    p.min_p = 0.1f;
    check_distribution(p);
    p.top_k = 0;
    check_distribution(p);
    p.top_p = 0.97f;
    p.min_p = 0.02f;
    p.temperature = 1.7f;
    check_distribution(p);
}

/* What is ruled out early must never be what the full rule picks. */
static void the_pick_is_the_largest_score(void **state) {
    (void)state;
    sampler *s = sampler_new(N_VOCAB);
    sample_params p;
    sample_params_init(&p);
    for (uint64_t k = 0; k < 300; k++) {
        int32_t best = 0;
        fill_row(k, k % 3 == 0 ? 0.1f : 4.0f);
        p.seed = k * 31;
        for (int32_t i = 1; i < N_VOCAB; i++) {
            double a = (double)row_values[i] + sampler_noise(p.seed, (int64_t)k, i);
            double b = (double)row_values[best] + sampler_noise(p.seed, (int64_t)k, best);
            if (a > b) best = i;
        }
        assert_int_equal(pick(s, &p, (int64_t)k), best);
    }
    sampler_free(s);
}

static void greedy_takes_the_lowest_of_equals(void **state) {
    (void)state;
    sampler *s = sampler_new(N_VOCAB);
    sample_params p;
    sample_params_init(&p);
    fill_row(3, 1.0f);
    row_values[40] = row_values[200] = 9.0f;
    p.temperature = 0.0f;
    assert_int_equal(pick(s, &p, 5), 40);
    p.temperature = 1.0f;
    p.top_p = 0.0f;
    assert_int_equal(pick(s, &p, 5), 40);
    sampler_free(s);
}

static void the_same_key_gives_the_same_token(void **state) {
    (void)state;
    sampler *a = sampler_new(N_VOCAB);
    sampler *b = sampler_new(N_VOCAB);
    sample_params p;
    sample_params_init(&p);
    p.seed = 99;
    fill_row(11, 1.0f);
    int n_moved = 0;
    for (int i = 0; i < 100; i++) {
        pick(b, &p, 1000 + i); /* what else a sampler did must not matter */
        assert_int_equal(pick(a, &p, i), pick(b, &p, i));
        sample_params other = p;
        other.seed = 100;
        n_moved += pick(a, &p, i) != pick(a, &other, i);
    }
    assert_true(n_moved > 50);
    sampler_free(a);
    sampler_free(b);
}

static void bans_mask_bias_and_penalties_act(void **state) {
    (void)state;
    sampler *s = sampler_new(N_VOCAB);
    sample_params p;
    sample_pick out;
    sample_params_init(&p);
    p.temperature = 0.0f;
    fill_row(5, 1.0f);
    row_values[10] = 20.0f;
    row_values[11] = 19.0f;
    row_values[12] = 18.0f;
    int32_t banned[] = {10};
    uint64_t mask[(N_VOCAB + 63) / 64] = {1ull << 12};
    sample_row row = {.logits = row_values, .banned = banned, .n_banned = 1};
    assert_int_equal(sampler_pick(s, &p, &row, &out), OK);
    assert_int_equal(out.token, 11);
    row.mask = mask;
    assert_int_equal(sampler_pick(s, &p, &row, &out), OK);
    assert_int_equal(out.token, 12);
    mask[0] = 1ull << 10;
    assert_int_equal(sampler_pick(s, &p, &row, &out), ERR_INTERNAL);
    row.mask = NULL;
    sample_bias bias[] = {{12, 5.0f}, {11, -100.0f}};
    p.bias = bias;
    p.n_bias = 2;
    assert_int_equal(sampler_pick(s, &p, &row, &out), OK);
    assert_int_equal(out.token, 12);
    p.n_bias = 0;
    static uint16_t generated[N_VOCAB];
    static uint8_t in_prompt[N_VOCAB];
    sample_counts counts = {generated, in_prompt};
    row.counts = &counts;
    row.n_banned = 0;
    generated[10] = 2;
    p.frequency_penalty = 0.6f;
    assert_int_equal(sampler_pick(s, &p, &row, &out), OK);
    assert_int_equal(out.token, 11);
    p.frequency_penalty = 0.0f;
    p.repetition_penalty = 1.5f;
    in_prompt[11] = 1;
    assert_int_equal(sampler_pick(s, &p, &row, &out), OK);
    assert_int_equal(out.token, 12);
    sampler_free(s);
}

static void log_probabilities_are_of_the_raw_row(void **state) {
    (void)state;
    sampler *s = sampler_new(N_VOCAB);
    sample_params p;
    sample_pick out;
    double sum = 0.0;
    sample_params_init(&p);
    fill_row(23, 3.0f);
    p.temperature = 0.3f;
    p.top_k = 3;
    p.n_top = SAMPLER_TOP_MAX;
    sample_row row = {.logits = row_values, .position = 4};
    assert_int_equal(sampler_pick(s, &p, &row, &out), OK);
    for (int i = 0; i < N_VOCAB; i++) {
        sum += exp((double)row_values[i]);
    }
    assert_int_equal(out.n_top, SAMPLER_TOP_MAX);
    for (int i = 0; i < out.n_top; i++) {
        double want = (double)row_values[out.top_token[i]] - log(sum);
        assert_true(fabs((double)out.top_logprob[i] - want) < 1e-4);
        if (i > 0) assert_true(out.top_logprob[i] <= out.top_logprob[i - 1]);
    }
    assert_true(fabs((double)out.logprob - ((double)row_values[out.token] - log(sum))) < 1e-4);
    sampler_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_settings),
        cmocka_unit_test(the_pick_is_the_largest_score),
        cmocka_unit_test(greedy_takes_the_lowest_of_equals),
        cmocka_unit_test(the_same_key_gives_the_same_token),
        cmocka_unit_test(bans_mask_bias_and_penalties_act),
        cmocka_unit_test(log_probabilities_are_of_the_raw_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
