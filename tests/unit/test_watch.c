/* The rules of the watchdog, each with its figures, without waiting. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "setup/watch.h"

#define MINUTE ((uint64_t)60 * 1000)
#define HOUR (60 * MINUTE)
#define NOW ((uint64_t)1796000000000)

static watch_rules rules = {.fails = 3,
    .min_heal_s = 1800,
    .fail_fast_heal_s = 120,
    .grace_s = 1800,
    .stall_s = 300,
    .probe_s = 600,
    .budget = 3,
    .window_s = 6 * 3600};
static char why[400];

/* A pair that has been serving for a day. */
static watch_facts healthy(void) {
    return (watch_facts){
        .now_ms = NOW, .state = PAIR_READY, .does_answer = true, .ready_ms = NOW - 24 * HOUR};
}

static watch_facts dead(void) {
    watch_facts f = healthy();
    f.state = PAIR_FAILED;
    f.does_answer = false;
    (void)snprintf(f.reason, sizeof f.reason, "rank 1 (worker): device lost");
    return f;
}

static watch_memory probed(void) {
    return (watch_memory){.probe_ms = NOW - MINUTE};
}

static void a_healthy_pair_is_left_alone(void **state) {
    (void)state;
    watch_facts f = healthy();
    watch_memory m = probed();
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_FINE);
    f.state = PAIR_SERVING;
    f.is_busy = true;
    f.progress = 7;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_FINE);
    assert_int_equal(m.n_bad, 0);
}

static void three_bad_looks_heal_once(void **state) {
    (void)state;
    watch_facts f = dead();
    watch_memory m = probed();
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_COUNTS);
    assert_non_null(strstr(why, "bad look 1 of 3"));
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_COUNTS);
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_HEALS);
    assert_int_equal(m.n_heals, 1);
    assert_int_equal(m.n_bad, 0);
    /* Down again ten minutes later: at most one in thirty minutes. */
    f.now_ms += 10 * MINUTE;
    for (int i = 0; i < 5; i++)
        assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_COUNTS);
    assert_non_null(strstr(why, "less than 1800 s ago"));
    f.now_ms += 21 * MINUTE;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_HEALS);
}

static void one_good_look_forgets_the_bad_ones(void **state) {
    (void)state;
    watch_facts bad = dead(), good = healthy();
    watch_memory m = probed();
    (void)watch_decide(&rules, &bad, &m, why);
    (void)watch_decide(&rules, &bad, &m, why);
    assert_int_equal(watch_decide(&rules, &good, &m, why), WATCH_FINE);
    assert_int_equal(watch_decide(&rules, &bad, &m, why), WATCH_COUNTS);
    assert_int_equal(m.n_bad, 1);
}

static void a_rank_that_ended_by_itself_heals_at_once(void **state) {
    (void)state;
    watch_facts f = dead();
    watch_memory m = probed();
    f.is_fail_fast = true;
    f.ready_ms = NOW - MINUTE; /* also within the grace of a start */
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_HEALS);
    f.now_ms += MINUTE;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_COUNTS);
    assert_non_null(strstr(why, "less than 120 s ago"));
    f.now_ms += MINUTE + 1000;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_HEALS);
}

/* Three within six hours, those of the keepers counted. */
static void the_budget_ends(void **state) {
    (void)state;
    watch_facts f = dead();
    watch_memory m = probed();
    f.is_fail_fast = true;
    f.n_heals = 2;
    f.heals_ms[0] = NOW - HOUR;
    f.heals_ms[1] = NOW - 2 * HOUR;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_HEALS);
    f.now_ms += 5 * MINUTE;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_GIVES_UP);
    assert_non_null(strstr(why, "3 new starts within 6 h"));
    assert_non_null(strstr(why, "device lost"));
    f.now_ms = NOW + 6 * HOUR; /* the oldest ones no longer count */
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_HEALS);
}

static void a_refusal_is_never_healed(void **state) {
    (void)state;
    watch_facts f = dead();
    watch_memory m = probed();
    f.is_refusal = f.is_fail_fast = true;
    for (int i = 0; i < 5; i++)
        assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_GIVES_UP);
    assert_int_equal(m.n_heals, 0);
}

static void it_stands_down(void **state) {
    (void)state;
    watch_memory m = probed();
    watch_facts f = dead();
    f.is_marked_stopped = true;
    f.state = PAIR_STOPPED;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_STANDS_DOWN);
    f = dead();
    f.state = PAIR_STARTING;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_STANDS_DOWN);
    f = dead();
    f.is_held = true;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_STANDS_DOWN);
    f = dead();
    f.lease_until_ms = NOW + MINUTE;
    f.is_fail_fast = true;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_STANDS_DOWN);
    f = dead();
    f.ready_ms = NOW - 29 * MINUTE;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_STANDS_DOWN);
    f.ready_ms = NOW - 31 * MINUTE;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_COUNTS);
    f = dead();
    f.state = PAIR_DATA_READY;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_STANDS_DOWN);
    assert_int_equal(m.n_heals, 0);
}

static void answering_is_not_enough(void **state) {
    (void)state;
    watch_facts f = healthy();
    watch_memory m = {0};
    /* Idle and not tried for ten minutes: a few tokens are asked for. */
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_PROBES);
    f.has_probe = true;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_COUNTS);
    assert_non_null(strstr(why, "few tokens"));
    f.has_probe_passed = true;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_FINE);
    f.has_probe = false;
    f.now_ms += 9 * MINUTE;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_FINE);
    f.now_ms += 2 * MINUTE;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_PROBES);
    f.is_busy = true; /* not while somebody works */
    f.progress = 1;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_FINE);
}

static void requests_that_do_not_move_are_bad(void **state) {
    (void)state;
    watch_facts f = healthy();
    watch_memory m = probed();
    f.state = PAIR_SERVING;
    f.is_busy = true;
    f.progress = 1234;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_FINE);
    f.now_ms += 4 * MINUTE;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_FINE);
    f.now_ms += MINUTE;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_COUNTS);
    assert_non_null(strstr(why, "nothing has moved for 300 s"));
    f.progress = 1235;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_FINE);
    f.does_answer = false;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_COUNTS);
}

/* A clock that went back must not make heals of the future count for ever. */
static void times_of_the_future_do_not_count(void **state) {
    (void)state;
    watch_facts f = dead();
    watch_memory m = probed();
    f.is_fail_fast = true;
    m.n_heals = 3;
    for (int i = 0; i < 3; i++)
        m.heals_ms[i] = NOW + (uint64_t)(i + 1) * HOUR;
    assert_int_equal(watch_decide(&rules, &f, &m, why), WATCH_HEALS);
}

/* More heals than the memory holds: the oldest go. */
static void the_memory_is_bounded(void **state) {
    (void)state;
    watch_rules loose = rules;
    watch_memory m = probed();
    loose.budget = 1000;
    loose.fail_fast_heal_s = 0;
    for (int i = 0; i < 3 * WATCH_HEALS_MAX; i++) {
        watch_facts f = dead();
        f.is_fail_fast = true;
        f.now_ms = NOW + (uint64_t)i * MINUTE;
        assert_int_equal(watch_decide(&loose, &f, &m, why), WATCH_HEALS);
    }
    assert_int_equal(m.n_heals, WATCH_HEALS_MAX);
    assert_int_equal(m.heals_ms[m.n_heals - 1], NOW + (3 * WATCH_HEALS_MAX - 1) * MINUTE);
}

static void the_settings_are_the_rules(void **state) {
    (void)state;
    settings *s = settings_new();
    watch_rules r;
    watch_rules_of(s, &r);
    assert_int_equal(r.fails, 3);
    assert_int_equal(r.min_heal_s, 1800);
    assert_int_equal(r.fail_fast_heal_s, 120);
    assert_int_equal(r.grace_s, 1800);
    assert_int_equal(r.budget, 3);
    assert_int_equal(r.window_s, 6 * 3600);
    settings_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_healthy_pair_is_left_alone),
        cmocka_unit_test(three_bad_looks_heal_once),
        cmocka_unit_test(one_good_look_forgets_the_bad_ones),
        cmocka_unit_test(a_rank_that_ended_by_itself_heals_at_once),
        cmocka_unit_test(the_budget_ends),
        cmocka_unit_test(a_refusal_is_never_healed),
        cmocka_unit_test(it_stands_down),
        cmocka_unit_test(answering_is_not_enough),
        cmocka_unit_test(requests_that_do_not_move_are_bad),
        cmocka_unit_test(times_of_the_future_do_not_count),
        cmocka_unit_test(the_memory_is_bounded),
        cmocka_unit_test(the_settings_are_the_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
