/* Picks from short lists: the same token and the same bits of the log probabilities as from the whole
 * row, for rows and settings of all kinds; and the usual ones are settled by the list alone. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/run/sampler.h"
#include "kernels/kernels.h"
#include "tests/harness/logit_rows.h"

enum { MAX_VOCAB = 20000, MAX_BANNED = 6 };

static float logits[MAX_VOCAB];
static uint64_t mask[MAX_VOCAB / 64 + 1];
static int n_fetched;

static int fetch(void *ctx, const float **row) {
    n_fetched++;
    *row = logits;
    return ctx == NULL ? OK : *(int *)ctx;
}

static void make_list(int32_t n, const shortlist_ask *ask, shortlist *out) {
    kernel_context k = {0};
    shortlist_run(&k, &(shortlist_args){logits, ask, out, 1, n});
}

static float choose(rand_state *r, const float *values, uint32_t n) {
    return values[rand_below(r, n)];
}

static sample_params random_params(rand_state *r) {
    static const float temperatures[] = {1.0f, 1.0f, 0.7f, 0.0f, 0.05f, 1.8f};
    static const float top_ps[] = {1.0f, 0.95f, 0.95f, 0.5f, 0.999f, 0.05f};
    static const float min_ps[] = {0.0f, 0.0f, 0.05f, 0.9f, 1e-6f};
    static const float top_ks[] = {0.0f, 0.0f, 1.0f, 20.0f, 100.0f, 3000.0f};
    static const float tops[] = {-1.0f, 0.0f, 1.0f, 5.0f, 20.0f};
    sample_params p;
    sample_params_init(&p);
    p.temperature = choose(r, temperatures, 6);
    p.top_p = choose(r, top_ps, 6);
    p.min_p = choose(r, min_ps, 5);
    p.top_k = (int32_t)choose(r, top_ks, 6);
    p.n_top = (int32_t)choose(r, tops, 5);
    p.seed = rand_u64(r);
    return p;
}

/* The k-th largest of the row by plain search, so that bans hit what matters. */
static int32_t a_likely_token(rand_state *r, int32_t n) {
    float limit = INFINITY;
    int32_t best = 0;
    for (uint32_t k = rand_below(r, 4) + 1; k > 0; k--) {
        float most = -INFINITY;
        for (int32_t i = 0; i < n; i++) {
            if (!(logits[i] < limit && logits[i] > most)) continue;
            most = logits[i];
            best = i;
        }
        limit = most;
    }
    return best;
}

/* Bans, a mask of any density, or neither. */
static void add_limits(rand_state *r, int32_t n, int32_t *banned, sample_row *row) {
    uint32_t what = rand_below(r, 5), share = 1u << rand_below(r, 8);
    row->banned = banned;
    for (row->n_banned = 0; what % 2 == 1 && row->n_banned < MAX_BANNED; row->n_banned++) {
        bool is_any = rand_below(r, 2) == 0;
        banned[row->n_banned] = is_any ? (int32_t)rand_below(r, (uint32_t)n) : a_likely_token(r, n);
    }
    if (what < 3) return;
    memset(mask, 0, sizeof mask);
    for (int32_t i = 0; i < n; i++) {
        mask[i >> 6] |= (uint64_t)(rand_below(r, share) == 0) << (i & 63);
    }
    row->mask = mask;
}

static void assert_same_pick(
    const char *where, int rc, int want_rc, const sample_pick *got, const sample_pick *want) {
    if (rc != want_rc) fail_msg("%s: %d, expected %d", where, rc, want_rc);
    if (rc != OK) return;
    if (got->token != want->token || got->logprob != want->logprob || got->n_top != want->n_top) {
        fail_msg("%s: token %d of %.9g with %d more, expected %d of %.9g with %d", where,
            got->token, (double)got->logprob, got->n_top, want->token, (double)want->logprob,
            want->n_top);
    }
    for (int32_t i = 0; i < want->n_top; i++) {
        if (got->top_token[i] == want->top_token[i] && got->top_logprob[i] == want->top_logprob[i])
            continue;
        fail_msg("%s: place %d has token %d of %.9g, expected %d of %.9g", where, i,
            got->top_token[i], (double)got->top_logprob[i], want->top_token[i],
            (double)want->top_logprob[i]);
    }
}

static void a_list_never_changes_the_pick(void **state) {
    (void)state;
    static const int32_t sizes[] = {1, 5, 300, 3000, MAX_VOCAB};
    static shortlist list;
    int n_settled[LOGITS_KINDS] = {0}, n_turns = 6000;
    rand_state r;
    rand_init(&r, 77, 1);
    for (int turn = 0; turn < n_turns; turn++) {
        int kind = turn % LOGITS_KINDS;
        int32_t n = sizes[turn / LOGITS_KINDS % 5], banned[MAX_BANNED];
        sampler *s = sampler_new(n);
        sample_params p = random_params(&r);
        sample_row row = {.position = rand_below(&r, 1000), .fetch = fetch};
        sample_pick got, want;
        logit_row_fill(logits, n, kind, (uint64_t)turn);
        add_limits(&r, n, banned, &row);
        shortlist_ask ask = sample_params_ask(&p, row.position);
        make_list(n, &ask, &list);
        row.list = &list;
        n_fetched = 0;
        int rc = sampler_pick(s, &p, &row, &got);
        n_settled[kind] += n_fetched == 0;
        row.list = NULL;
        row.logits = logits;
        int want_rc = sampler_pick(s, &p, &row, &want);
        char where[96];
        snprintf(where, sizeof where, "turn %d, %d logits, %s", turn, n, logit_kind_names[kind]);
        assert_same_pick(where, rc, want_rc, &got, &want);
        sampler_free(s);
    }
    for (int kind = 0; kind < LOGITS_NOTHING; kind++) {
        if (n_settled[kind] < 100) {
            fail_msg("%s: only %d of %d settled by the list", logit_kind_names[kind],
                n_settled[kind], n_turns / LOGITS_KINDS);
        }
    }
}

/* The default request, greedy, top-k and pure temperature, with a ban and log probabilities, over rows as
 * models give them: no row is fetched, but for a few. */
static void usual_rows_are_settled(void **state) {
    (void)state;
    static shortlist list;
    sampler *s = sampler_new(MAX_VOCAB);
    sample_pick pick;
    int32_t banned[1] = {17};
    n_fetched = 0;
    for (int turn = 0; turn < 400; turn++) {
        sample_params p;
        sample_params_init(&p);
        p.seed = (uint64_t)turn;
        p.n_top = turn % 3 == 0 ? 20 : -1;
        p.top_p = turn % 4 == 0 ? 1.0f : 0.95f;
        p.top_k = turn % 4 == 1 ? 20 : 0;
        p.temperature = turn % 4 == 2 ? 0.0f : 1.0f;
        logit_row_fill(logits, MAX_VOCAB, LOGITS_PEAKY, (uint64_t)turn);
        sample_row row = {.position = turn,
            .list = &list,
            .fetch = fetch,
            .banned = banned,
            .n_banned = turn % 2};
        shortlist_ask ask = sample_params_ask(&p, turn);
        make_list(MAX_VOCAB, &ask, &list);
        assert_int_equal(sampler_pick(s, &p, &row, &pick), OK);
    }
    if (n_fetched > 12) fail_msg("%d of 400 rows were fetched", n_fetched);
    sampler_free(s);
}

/* What a list cannot serve goes to the row; a row that does not come is an error. */
static void other_rows_are_fetched(void **state) {
    (void)state;
    static shortlist list;
    static uint16_t generated[300];
    static uint8_t in_prompt[300];
    sampler *s = sampler_new(300);
    sample_counts counts = {generated, in_prompt};
    sample_bias bias[] = {{3, 100.0f}};
    sample_params p;
    sample_pick pick;
    sample_params_init(&p);
    p.temperature = 0.0f;
    logit_row_fill(logits, 300, LOGITS_SURE, 4);
    shortlist_ask ask = sample_params_ask(&p, 9);
    make_list(300, &ask, &list);
    sample_row row = {.list = &list, .fetch = fetch, .position = 9};
    n_fetched = 0;
    assert_int_equal(sampler_pick(s, &p, &row, &pick), OK);
    assert_true(n_fetched == 0 && pick.token == list.token);
    p.bias = bias;
    p.n_bias = 1;
    assert_int_equal(sampler_pick(s, &p, &row, &pick), OK);
    assert_true(n_fetched == 1 && pick.token == 3);
    p.n_bias = 0;
    generated[list.token] = 5;
    p.frequency_penalty = 50.0f;
    row.counts = &counts;
    assert_int_equal(sampler_pick(s, &p, &row, &pick), OK);
    assert_true(n_fetched == 2 && pick.token != list.token);
    /* Asked for another position or temperature. */
    p.frequency_penalty = 0.0f;
    p.temperature = 1.0f;
    assert_int_equal(sampler_pick(s, &p, &row, &pick), OK);
    assert_int_equal(n_fetched, 3);
    ask = sample_params_ask(&p, 8);
    make_list(300, &ask, &list);
    assert_int_equal(sampler_pick(s, &p, &row, &pick), OK);
    assert_int_equal(n_fetched, 4);
    int failure = ERR_DEVICE;
    row.ctx = &failure;
    assert_int_equal(sampler_pick(s, &p, &row, &pick), ERR_DEVICE);
    sampler_free(s);
}

/* A forced token's log probability, listed or not. */
static void forced_tokens_have_log_probabilities(void **state) {
    (void)state;
    static shortlist list;
    sampler *s = sampler_new(3000);
    sample_params p;
    sample_params_init(&p);
    p.n_top = 5;
    logit_row_fill(logits, 3000, LOGITS_PEAKY, 8);
    shortlist_ask ask = sample_params_ask(&p, 1);
    make_list(3000, &ask, &list);
    n_fetched = 0;
    for (int32_t token = 0; token < 3000; token += 7) {
        sample_pick got, want;
        sample_row row = {.list = &list, .fetch = fetch};
        assert_int_equal(sampler_force(s, &p, &row, token, &got), OK);
        row = (sample_row){.logits = logits};
        assert_int_equal(sampler_force(s, &p, &row, token, &want), OK);
        assert_same_pick("forced", OK, OK, &got, &want);
    }
    sample_row row = {.list = &list, .fetch = fetch};
    sample_pick got;
    n_fetched = 0;
    assert_int_equal(sampler_force(s, &p, &row, list.token, &got), OK);
    assert_int_equal(n_fetched, 0);
    sampler_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_never_changes_the_pick),
        cmocka_unit_test(usual_rows_are_settled),
        cmocka_unit_test(other_rows_are_fetched),
        cmocka_unit_test(forced_tokens_have_log_probabilities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
