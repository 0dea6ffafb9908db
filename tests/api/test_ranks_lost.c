/* A rank that is killed or stopped in each phase of two ranks' life: before they meet, while they
 * load, idle, reading a prompt, writing with drafts, saving to the disk cache, draining; and a cable
 * that is pulled between two network namespaces. Each time it is noticed, what was on its way ends
 * with an error, and the ranks serve again with right answers. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/file.h"
#include "tests/harness/rank_pair.h"

/* The bar is 2 s on a quiet machine; the time seen is printed. */
enum { LOST_MS = 120000, N_SAVES = 4 };

static const char question[] = "What is the capital of France?";
static const char *const none[] = {NULL};

static void expect_right_answer(void) {
    buf got = BUF_INIT;
    pair_reply(question, &got);
    assert_non_null(strstr(buf_cstr(&got), "Paris"));
    buf_release(&got);
}

/* After a loss: the pair starts again by itself and serves. */
static void expect_new_start(int i_start) {
    int pid[2];
    pair_find_ranks(i_start, pid);
    pair_wait_ready();
    expect_right_answer();
}

static void expect_error(wire *w) {
    buf got = BUF_INIT;
    pair_read_to_end(w, &got);
    if (strstr(buf_cstr(&got), "engine_failed") == NULL)
        fail_msg("no error in the stream: %.400s\n%s", buf_cstr(&got), pair_log());
    buf_release(&got);
}

/* ---- writing and idle ---- */

typedef struct loss {
    int rank, signal;
    const char *phase;
} loss;

static void notice(const loss *l, int pid[2]) {
    kill(pid[l->rank], l->signal);
    int took = pair_wait_not_ready(LOST_MS);
    print_message(
        "rank %d, signal %d, %s: noticed after %d ms\n", l->rank, l->signal, l->phase, took);
}

/* The reply verifies drafts when the rank is lost. */
static void lose_while_writing(int rank, int how) {
    int pid[2];
    wire w;
    pid_t pair = pair_start(none);
    pair_wait_ready();
    int i_start = pair_newest_ranks(pid);
    pair_ask_long(&w, 3000);
    uint64_t deadline = clock_mono_ms() + PAIR_READY_MS;
    while (!(pair_metric("tandem_draft_tokens_total") > 8.0)) {
        assert_true(clock_mono_ms() < deadline);
        sleep_ms(5);
    }
    notice(&(loss){rank, how, "writing with drafts"}, pid);
    if (rank == 1) expect_error(&w);
    wire_close(&w);
    expect_new_start(i_start + 1);
    pair_stop(pair);
}

static void worker_killed_while_writing(void **state) {
    (void)state;
    lose_while_writing(1, SIGKILL);
}

static void worker_stopped_while_writing(void **state) {
    (void)state;
    lose_while_writing(1, SIGSTOP);
}

static void head_killed_while_writing(void **state) {
    (void)state;
    lose_while_writing(0, SIGKILL);
}

static void worker_killed_while_idle(void **state) {
    (void)state;
    int pid[2];
    buf body = BUF_INIT;
    pid_t pair = pair_start(none);
    pair_wait_ready();
    int i_start = pair_newest_ranks(pid);
    notice(&(loss){1, SIGKILL, "idle"}, pid);
    expect_new_start(i_start + 1);
    /* Why the last one failed is still known. */
    assert_int_equal(pair_get("/tandem/v1/state", &body), 200);
    assert_non_null(strstr(buf_cstr(&body), "\"last_failure\":{"));
    assert_non_null(strstr(buf_cstr(&body), "rank 1"));
    buf_release(&body);
    pair_stop(pair);
}

/* ---- reading a prompt ---- */

static void worker_killed_while_reading(void **state) {
    (void)state;
    int pid[2];
    wire w;
    pid_t pair = pair_start(none);
    pair_wait_ready();
    int i_start = pair_newest_ranks(pid);
    double before = pair_metric("tandem_prompt_tokens_total");
    pair_ask_prompt(&w, 520, 1500); /* more than can be written meanwhile */
    uint64_t deadline = clock_mono_ms() + PAIR_READY_MS;
    while (pair_metric("tandem_prompt_tokens_total") <= before) {
        assert_true(clock_mono_ms() < deadline);
    }
    notice(&(loss){1, SIGKILL, "reading"}, pid);
    expect_error(&w);
    wire_close(&w);
    expect_new_start(i_start + 1);
    pair_stop(pair);
}

/* ---- starting ---- */

static void lose_while_starting(const char *after) {
    for (int rank = 0; rank < 2; rank++) {
        int pid[2];
        pid_t pair = pair_start(none);
        pair_find_ranks(0, pid);
        if (after != NULL) pair_await_log(after);
        kill(pid[rank], SIGKILL);
        expect_new_start(1);
        pair_stop(pair);
    }
}

static void killed_before_they_meet(void **state) {
    (void)state;
    lose_while_starting(NULL);
}

static void killed_while_loading(void **state) {
    (void)state;
    lose_while_starting("exchange tried");
}

/* ---- saving ---- */

/* Prefixes are on their way to disk when a rank dies; what is found there later is right. */
static void killed_while_saving(void **state) {
    (void)state;
    char dir[160];
    buf want = BUF_INIT, got = BUF_INIT;
    const char *words[] = {
        "--cache-dir", dir, "--cache-disk", "64", "--restarts", "20", "--check-ranks", "16", NULL};
    snprintf(dir, sizeof dir, "%s/cache", pair_dir());
    pid_t pair = pair_start(words);
    int i_start = 0;
    for (int i = 0; i < N_SAVES; i++, i_start++) {
        int pid[2];
        wire w;
        pair_find_ranks(i_start, pid);
        pair_wait_ready();
        i_start = pair_newest_ranks(pid);
        pair_ask_prompt(&w, 300 + 40 * i, 12);
        buf_reset(&got);
        pair_read_one(&w, &got);
        wire_close(&w);
        if (strncmp(buf_cstr(&got), "200 ", 4) != 0) fail_msg("no reply: %s", buf_cstr(&got));
        sleep_ms((uint64_t)(7 * i)); /* somewhere in the writing */
        kill(pid[i % 2], SIGKILL);
    }
    int pid[2];
    pair_find_ranks(i_start, pid);
    pair_wait_ready();
    for (int round = 0; round < 2; round++) { /* from the damaged cache, then without any */
        wire w;
        pair_ask_prompt(&w, 500, 12);
        buf *out = round == 0 ? &got : &want;
        buf_reset(out);
        pair_read_one(&w, out);
        wire_close(&w);
        pair_stop(pair);
        if (round == 0) {
            pair = pair_start((const char *const[]){"--no-cache", NULL});
            pair_wait_ready();
        }
    }
    const char *a = strstr(buf_cstr(&want), "\"content\":"),
               *b = strstr(buf_cstr(&got), "\"content\":");
    assert_non_null(a);
    assert_non_null(b);
    size_t n = strcspn(a, "}");
    assert_true(strncmp(a, b, n) == 0);
    buf_release(&want);
    buf_release(&got);
    (void)dir_remove_all(dir, NULL);
}

/* ---- draining ---- */

/* The engine was asked to stop: a loss ends the replies with an error and nothing starts again. */
static void killed_while_draining(void **state) {
    (void)state;
    int pid[2];
    wire w;
    pid_t pair = pair_start((const char *const[]){"--drain", "120", NULL});
    pair_wait_ready();
    int i_start = pair_newest_ranks(pid);
    pair_ask_long(&w, 3000);
    while (strstr(buf_cstr(&w.in), "\"content\":") == NULL) {
        assert_true(wire_receive(&w, PAIR_END_MS));
    }
    kill(pair, SIGTERM);
    pair_await_log("drain_s=120");
    (void)pair_wait_not_ready(LOST_MS);
    kill(pid[1], SIGKILL);
    expect_error(&w);
    wire_close(&w);
    assert_int_equal(pair_wait_exit(pair, PAIR_END_MS), 0);
    assert_int_equal(pair_newest_ranks(pid), i_start);
}

/* ---- two network namespaces ---- */

static bool open_nets(two_nets *nets) {
    if (two_nets_open(nets)) return true;
    print_message("no network namespaces here\n");
    return false;
}

static void start_two(const two_nets *nets, pid_t pid[2]) {
    pair_clear_log();
    pid[0] = pair_start_in(nets, 0, none);
    pid[1] = pair_start_in(nets, 1, none);
    pair_wait_ready();
    expect_right_answer();
}

/* Both ends say that they lost the other, each with an exit code for a new start. */
static void expect_both_ended(const pid_t pid[2]) {
    assert_int_equal(pair_wait_exit(pid[0], PAIR_END_MS), 40);
    assert_int_equal(pair_wait_exit(pid[1], PAIR_END_MS), 40);
}

static void cable_pulled(void **state) {
    (void)state;
    two_nets nets;
    pid_t pid[2];
    wire w;
    buf ready = BUF_INIT;
    if (!open_nets(&nets)) skip();
    for (int is_idle = 0; is_idle < 2; is_idle++) {
        start_two(&nets, pid);
        if (!is_idle) pair_ask_long(&w, 3000);
        while (!is_idle && strstr(buf_cstr(&w.in), "\"content\":") == NULL) {
            assert_true(wire_receive(&w, PAIR_END_MS));
        }
        two_nets_cut(&nets, true);
        int took = pair_wait_not_ready(LOST_MS);
        print_message(
            "cable pulled, %s: noticed after %d ms\n", is_idle ? "idle" : "writing", took);
        if (pair_get("/ready", &ready) == 503) {
            assert_non_null(strstr(buf_cstr(&ready), "peer_lost"));
            assert_non_null(strstr(buf_cstr(&ready), "link or interface"));
        }
        if (!is_idle) expect_error(&w);
        if (!is_idle) wire_close(&w);
        expect_both_ended(pid);
        assert_non_null(strstr(pair_log(), "link or interface"));
        two_nets_cut(&nets, false);
    }
    start_two(&nets, pid); /* the cable is in again */
    kill(-pid[0], SIGTERM);
    assert_int_equal(pair_wait_exit(pid[0], PAIR_END_MS), 0);
    assert_int_equal(pair_wait_exit(pid[1], PAIR_END_MS), 0);
    two_nets_close(&nets);
    buf_release(&ready);
}

static void worker_killed_behind_a_cable(void **state) {
    (void)state;
    two_nets nets;
    pid_t pid[2];
    wire w;
    if (!open_nets(&nets)) skip();
    start_two(&nets, pid);
    pair_ask_long(&w, 3000);
    while (strstr(buf_cstr(&w.in), "\"content\":") == NULL) {
        assert_true(wire_receive(&w, PAIR_END_MS));
    }
    kill(-pid[1], SIGKILL);
    print_message("killed behind a cable: noticed after %d ms\n", pair_wait_not_ready(LOST_MS));
    expect_error(&w);
    wire_close(&w);
    assert_int_equal(pair_wait_exit(pid[0], PAIR_END_MS), 40);
    two_nets_close(&nets);
}

#define RANKS_TEST(f) cmocka_unit_test_teardown(f, pair_kill_rest)

int main(void) {
    const struct CMUnitTest tests[] = {RANKS_TEST(worker_killed_while_writing),
        RANKS_TEST(worker_stopped_while_writing), RANKS_TEST(head_killed_while_writing),
        RANKS_TEST(worker_killed_while_idle), RANKS_TEST(worker_killed_while_reading),
        RANKS_TEST(killed_before_they_meet), RANKS_TEST(killed_while_loading),
        RANKS_TEST(killed_while_saving), RANKS_TEST(killed_while_draining),
        RANKS_TEST(cable_pulled), RANKS_TEST(worker_killed_behind_a_cable)};
    if (!pair_init()) return 77;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    pair_end();
    return rc;
}
