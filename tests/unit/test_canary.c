/* The first reply before ready: a good engine passes; one whose drafted answer differs, whose rows
 * are not finite or whose step fails does not become ready. And a step that hangs makes a ready
 * engine not ready until it ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/run/canary.h"
#include "engine/run/run.h"
#include "tests/harness/paged_toy.h"

enum { WAIT_MS = 120000 };

static const int32_t prompt[] = {3, 9, 27, 5, 40, 12, 7};
static const int32_t bad_prompt[] = {PAGED_TOY_BAD, 9, 27};
enum { N_PROMPT = sizeof prompt / sizeof prompt[0] };

static paged_toy *make_toy(void) {
    return paged_toy_new(&(paged_toy_options){.n_slots = 2,
        .n_pages = 32,
        .page_tokens = 8,
        .max_rows = 16,
        .max_context = 120,
        .has_drafts = true});
}

static void a_good_engine_passes(void **state) {
    (void)state;
    paged_toy *t = make_toy();
    err e = ERR_INIT;
    if (run_canary(paged_toy_source(t), prompt, N_PROMPT, &e) != OK) fail_msg("%s", e.msg);
    paged_toy_free(t);
}

static const run_source *inner;

/* Rows that verify drafts come out differently: every token is shifted by one. */
static int spoilt_step(void *self, const batch_plan *plan, step_result *out, err *e) {
    static float rows[64][PAGED_TOY_VOCAB];
    int rc = inner->step(self, plan, out, e);
    bool is_verify = rc == OK && plan->spans[0].kind == PLAN_VERIFY;
    for (int32_t r = 0; is_verify && r < out->n_logit_rows; r++) {
        const float *from = out->logits + (size_t)r * PAGED_TOY_VOCAB;
        for (int i = 0; i < PAGED_TOY_VOCAB; i++) {
            rows[r][(i + 1) % PAGED_TOY_VOCAB] = from[i];
        }
    }
    if (is_verify) out->logits = rows[0];
    return rc;
}

static void drafts_that_change_the_answer_are_found(void **state) {
    (void)state;
    paged_toy *t = make_toy();
    err e = ERR_INIT;
    inner = paged_toy_source(t);
    run_source spoilt = *inner;
    spoilt.step = spoilt_step;
    assert_int_equal(run_canary(&spoilt, prompt, N_PROMPT, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.msg, "with and without drafts"));
    paged_toy_free(t);
}

static void values_that_are_not_finite_are_found(void **state) {
    (void)state;
    paged_toy *t = make_toy();
    err e = ERR_INIT;
    assert_int_not_equal(run_canary(paged_toy_source(t), bad_prompt, 3, &e), OK);
    assert_non_null(strstr(e.msg, "not finite"));
    paged_toy_free(t);
}

static void a_step_that_fails_is_found(void **state) {
    (void)state;
    paged_toy *t = make_toy();
    err e = ERR_INIT;
    paged_toy_fail(t, ERR_DEVICE);
    assert_int_not_equal(run_canary(paged_toy_source(t), prompt, N_PROMPT, &e), OK);
    assert_non_null(strstr(e.msg, "injected"));
    paged_toy_free(t);
}

static int state_now(run *r) {
    run_stats s;
    run_stats_get(r, &s);
    return s.state;
}

static void await_state(run *r, int wanted) {
    uint64_t until = clock_mono_ms() + WAIT_MS;
    while (state_now(r) != wanted && clock_mono_ms() < until) {
        sleep_ms(2);
    }
    assert_int_equal(state_now(r), wanted);
}

static void a_hanging_step_is_not_ready(void **state) {
    (void)state;
    paged_toy *t = make_toy();
    err e = ERR_INIT;
    run *r = NULL;
    ticket *k = NULL;
    run_options o = {.source = paged_toy_source(t), .step_limit_ms = 50};
    run_request q = {.id = "q", .prompt = prompt, .n_prompt = N_PROMPT, .max_tokens = 1};
    sample_params_init(&q.sampling);
    assert_int_equal(run_open(&o, &r, &e), OK);
    assert_int_equal(state_now(r), RUN_STATE_READY); /* idle is ready */
    paged_toy_hold_after(t, 0);
    assert_int_equal(run_submit(r, &q, &k, &e), OK);
    await_state(r, RUN_STATE_STALLED);
    paged_toy_let_go(t);
    run_event ev = {0};
    while (ev.kind != RUN_EVENT_END) {
        assert_int_equal(ticket_next(k, &ev, WAIT_MS), OK);
    }
    assert_int_equal(ev.end, RUN_END_LENGTH); /* it ended well after all */
    await_state(r, RUN_STATE_READY);
    ticket_free(k);
    run_close(r);
    paged_toy_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_good_engine_passes),
        cmocka_unit_test(drafts_that_change_the_answer_are_found),
        cmocka_unit_test(values_that_are_not_finite_are_found),
        cmocka_unit_test(a_step_that_fails_is_found),
        cmocka_unit_test(a_hanging_step_is_not_ready)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
