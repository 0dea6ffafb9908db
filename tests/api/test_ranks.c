/* Two ranks as processes with a real model: they meet or are turned away, answer like one, are drained
 * and started again within bounds, and tell where their start is. What happens when one is lost:
 * test_ranks_lost.c. */
#include <fcntl.h>
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
#include "engine/base/json.h"
#include "engine/base/str.h"
#include "engine/dist/meet.h"
#include "tests/harness/rank_pair.h"

#define OTHER_SECRET                                                                               \
    "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff 0123456789abcdef\n"

static const char *const questions[] = {"What is the capital of France?", "Who are you?",
    "What is 12 plus 7?", "What is water?", "What is a dog?", "Count from one to ten.",
    "What is the capital of Italy?", "What is 5 times 6?"};
enum { N_QUESTIONS = sizeof questions / sizeof questions[0] };

static const char *const none[] = {NULL};

/* ---- tests ---- */

/* Greedy answers of two ranks are those of one. EXL3 halves scale their rows by their own maxima, so
 * a near tie may fall the other way: one answer of eight may differ (engine/model/NOTES.md). */
static void two_ranks_answer_like_one(void **state) {
    (void)state;
    buf one[N_QUESTIONS] = {0};
    buf two = BUF_INIT;
    int n_equal = 0;
    pair_clear_log();
    pid_t pid = pair_start_role(NULL, NULL, none);
    pair_wait_ready();
    for (int i = 0; i < N_QUESTIONS; i++) {
        pair_reply(questions[i], &one[i]);
    }
    pair_stop(pid);
    pid = pair_start(none);
    pair_wait_ready();
    for (int i = 0; i < N_QUESTIONS; i++) {
        pair_reply(questions[i], &two);
        bool is_equal = strcmp(buf_cstr(&two), buf_cstr(&one[i])) == 0;
        n_equal += is_equal;
        if (!is_equal) print_message("%s | %s\n", buf_cstr(&one[i]), buf_cstr(&two));
        buf_release(&one[i]);
    }
    assert_true(n_equal >= N_QUESTIONS - 1);
    assert_int_equal(pair_get("/tandem/v1/state", &two), 200);
    assert_non_null(strstr(buf_cstr(&two), "{\"rank\":1,\"state\":\"up\""));
    buf_release(&two);
    pair_stop(pid);
}

static void tries_are_bounded(void **state) {
    (void)state;
    static const char *const no_more[] = {"--restarts", "1", NULL};
    int pid[2];
    pid_t pair = pair_start(no_more);
    for (int i = 0; i < 2; i++) {
        pair_find_ranks(i, pid);
        kill(pid[1], SIGKILL);
    }
    assert_int_equal(pair_wait_exit(pair, PAIR_END_MS), 40);
    assert_non_null(strstr(pair_log(), "1 new starts"));
    assert_int_equal(pair_get("/ready", NULL), 0);
}

/* Asking the other rank to stop drains the whole engine. */
static void worker_asked_to_stop(void **state) {
    (void)state;
    int pid[2];
    pid_t pair = pair_start(none);
    pair_wait_ready();
    (void)pair_newest_ranks(pid);
    kill(pid[1], SIGTERM);
    assert_int_equal(pair_wait_exit(pair, PAIR_END_MS), 0);
}

typedef struct free_port {
    char meet[32];
    int fd;
} free_port;

/* A port that is free now; held until fd is closed. */
static void take_port(free_port *p) {
    int port = 0;
    err e = ERR_INIT;
    if (meet_listen("127.0.0.1", &port, &p->fd, &e) != OK) fail_msg("%s", e.msg);
    snprintf(p->meet, sizeof p->meet, "127.0.0.1:%d", port);
}

/* Rank 0 of two gets the port as it is: closed first, it could be somebody else's by then. */
static pid_t start_head(const free_port *p) {
    char fd[16];
    const char *head[] = {"--ranks", "2", "--meet", p->meet, "--meet-fd", fd, NULL};
    snprintf(fd, sizeof fd, "%d", p->fd);
    assert_int_equal(fcntl(p->fd, F_SETFD, 0), 0);
    pid_t pid = pair_start_role(NULL, PAIR_SECRET, head);
    close(p->fd);
    return pid;
}

static void strangers_are_turned_away(void **state) {
    (void)state;
    free_port p;
    take_port(&p);
    const char *worker[] = {"--meet", p.meet, NULL};
    pair_clear_log();
    pid_t first = start_head(&p);
    pid_t stranger = pair_start_role("rank", OTHER_SECRET, worker);
    assert_int_equal(pair_wait_exit(stranger, PAIR_END_MS), 20);
    assert_non_null(strstr(pair_log(), "does not hold this start's secret"));
    pid_t second = pair_start_role("rank", PAIR_SECRET, worker);
    pair_wait_ready();
    kill(first, SIGTERM);
    assert_int_equal(pair_wait_exit(first, PAIR_END_MS), 0);
    assert_int_equal(pair_wait_exit(second, PAIR_END_MS), 0);
}

static void nonsense_for_a_secret(void **state) {
    (void)state;
    static const char *const lines[] = {"", "x\n", "00 11\n"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        pair_clear_log();
        pid_t pid = pair_start_role("rank", lines[i], none);
        assert_int_equal(pair_wait_exit(pid, PAIR_END_MS), 20);
        assert_non_null(strstr(pair_log(), "secret"));
    }
}

static int copy_file(void *ctx, const char *name, err *e) {
    const char *to = ctx;
    buf from = BUF_INIT, out = BUF_INIT, data = BUF_INIT;
    path_join(&from, pair_model(), name);
    path_join(&out, to, name);
    int rc = file_read(buf_cstr(&from), &data, 1 << 26, e);
    if (rc == OK && strcmp(name, "tokenizer.json") == 0) buf_putc(&data, '\n');
    if (rc == OK) rc = file_write_atomic(buf_cstr(&out), data.data, data.len, 0600, e);
    buf_release(&from);
    buf_release(&out);
    buf_release(&data);
    return rc;
}

static void another_model_is_named(void **state) {
    (void)state;
    free_port p;
    char other[128], kept[512];
    err e = ERR_INIT;
    snprintf(other, sizeof other, "%s/other", pair_dir());
    assert_int_equal(dir_make_all(other, 0700, &e), OK);
    if (dir_each(pair_model(), copy_file, other, &e) != OK) fail_msg("%s", e.msg);
    take_port(&p);
    const char *worker[] = {"--meet", p.meet, NULL};
    pair_clear_log();
    pid_t first = start_head(&p);
    str_copy(kept, sizeof kept, pair_model());
    pair_use_model(other);
    pid_t second = pair_start_role("rank", PAIR_SECRET, worker);
    pair_use_model(kept);
    assert_int_equal(pair_wait_exit(second, PAIR_END_MS), 20);
    assert_int_equal(pair_wait_exit(first, PAIR_END_MS), 20);
    assert_non_null(strstr(pair_log(), "rank 1 has another model"));
    assert_non_null(strstr(pair_log(), "rank 0 has another model"));
}

static void a_taken_port_is_named(void **state) {
    (void)state;
    free_port p;
    take_port(&p);
    const char *head[] = {"--ranks", "2", "--meet", p.meet, NULL};
    pair_clear_log();
    pid_t first = pair_start_role(NULL, PAIR_SECRET, head);
    assert_int_not_equal(pair_wait_exit(first, PAIR_END_MS), 0);
    assert_non_null(strstr(pair_log(), "cannot listen"));
    close(p.fd);
}

/* The plan is priced on every machine: the one that is short of memory says by how much. */
static void a_rank_without_memory_refuses(void **state) {
    (void)state;
    free_port p;
    take_port(&p);
    char status[160];
    buf text = BUF_INIT;
    snprintf(status, sizeof status, "%s/rank1.json", pair_dir());
    const char *worker[] = {"--meet", p.meet, "--reserve", "1048576", "--status", status, NULL};
    pair_clear_log();
    pid_t first = start_head(&p);
    pid_t second = pair_start_role("rank", PAIR_SECRET, worker);
    assert_int_equal(pair_wait_exit(second, PAIR_END_MS), 20);
    assert_int_equal(pair_wait_exit(first, PAIR_END_MS), 40);
    assert_non_null(strstr(pair_log(), "rank 1 has failed"));
    assert_non_null(strstr(pair_log(), "MiB short"));
    /* The reason is kept where its keeper looks. */
    assert_int_equal(file_read(status, &text, 65536, NULL), OK);
    assert_non_null(strstr(buf_cstr(&text), "\"phase\":\"failed\""));
    assert_non_null(strstr(buf_cstr(&text), "MiB short"));
    assert_non_null(strstr(buf_cstr(&text), "\"start_id\":\"0123456789abcdef\""));
    buf_release(&text);
}

/* ---- draining ---- */

/* SIGTERM while a reply is written: it is written to its end, nobody new comes in, /ready says why. */
static void a_running_reply_is_drained(void **state) {
    (void)state;
    static const char *const patient[] = {"--drain", "240", NULL};
    wire w, other;
    wire_answer a;
    buf got = BUF_INIT, ready = BUF_INIT;
    pid_t pair = pair_start(patient);
    pair_wait_ready();
    pair_ask_long(&w, 120);
    while (strstr(buf_cstr(&w.in), "\"content\":") == NULL) {
        assert_true(wire_receive(&w, PAIR_END_MS));
    }
    kill(pair, SIGTERM);
    (void)pair_wait_not_ready(PAIR_END_MS);
    if (pair_get("/ready", &ready) == 503) assert_non_null(strstr(buf_cstr(&ready), "draining"));
    wire_open_unix(&other, pair_socket());
    if (other.fd >= 0) {
        wire_request(&other, "POST", "/v1/chat/completions", "",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}");
        wire_read(&other, &a, PAIR_END_MS);
        assert_true(a.status == 503 || a.status == 0); /* 0: it ended meanwhile */
        wire_answer_release(&a);
        wire_close(&other);
    }
    buf_append(&got, w.in.data, w.in.len);
    pair_read_to_end(&w, &got);
    assert_non_null(strstr(buf_cstr(&got), "\"finish_reason\":\"length\""));
    assert_non_null(strstr(buf_cstr(&got), "[DONE]"));
    assert_int_equal(pair_wait_exit(pair, PAIR_END_MS), 0);
    wire_close(&w);
    buf_release(&got);
    buf_release(&ready);
}

/* ---- where a start is ---- */

/* State and the status file tell phases in order, both ranks, the plan; the file goes at the end. */
static void a_start_tells_where_it_is(void **state) {
    (void)state;
    buf body = BUF_INIT;
    char path[160];
    json *v = NULL;
    double last = 0.0, now = 0.0;
    bool was_loading = false;
    free_port p;
    uint64_t deadline = clock_mono_ms() + PAIR_READY_MS;
    snprintf(path, sizeof path, "%s.json", pair_socket());
    take_port(&p);
    const char *worker[] = {"--meet", p.meet, NULL};
    pair_clear_log();
    pid_t first = start_head(&p), second = -1;
    while (pair_get("/ready", &body) != 200) {
        assert_true(clock_mono_ms() < deadline);
        if (body.len == 0 || json_parse(buf_cstr(&body), body.len, NULL, &v, NULL) != OK) continue;
        assert_int_equal(json_double(json_get(v, "progress"), &now), OK);
        assert_true(now >= last && now <= 1.0);
        was_loading |= str_eq(json_str(json_get(v, "status")), "loading");
        /* Not before: the start shall not be over before it was seen. */
        if (was_loading && second < 0) second = pair_start_role("rank", PAIR_SECRET, worker);
        last = now;
        json_free(v);
        buf_reset(&body);
        sleep_ms(3);
    }
    assert_true(was_loading);
    assert_int_equal(pair_get("/tandem/v1/state", &body), 200);
    assert_int_equal(json_parse(buf_cstr(&body), body.len, NULL, &v, NULL), OK);
    assert_string_equal(json_str(json_get(v, "phase")), "ready");
    assert_int_equal(strlen(json_str(json_get(v, "start_id"))), 16);
    assert_int_equal(strlen(json_str(json_get(v, "settings_hash"))), 16);
    assert_true(json_is_object(json_get(v, "memory_plan")));
    for (size_t i = 0; i < 2; i++) {
        const json *r = json_at(json_get(v, "ranks"), i);
        assert_string_equal(json_str(json_get(r, "state")), "up");
        assert_string_equal(json_str(json_get(r, "phase")), "ready");
    }
    json_free(v);
    buf_reset(&body);
    assert_int_equal(file_read(path, &body, 65536, NULL), OK);
    assert_non_null(strstr(buf_cstr(&body), "\"phase\":\"ready\""));
    assert_non_null(strstr(buf_cstr(&body), "\"failure\":null"));
    pair_stop(first);
    assert_int_equal(pair_wait_exit(second, PAIR_END_MS), 0);
    assert_false(file_exists(path));
    buf_release(&body);
}

/* A step that takes too long makes the engine not ready, and it is ready again after it. */
static void an_overdue_step_is_not_ready(void **state) {
    (void)state;
    static const char *const strict[] = {"--step-limit", "1", "--no-cache", NULL};
    buf body = BUF_INIT;
    bool was_overdue = false;
    uint64_t deadline = clock_mono_ms() + PAIR_READY_MS;
    pid_t pair = pair_start(strict);
    pair_wait_ready();
    /* The steps of one prompt may be over before this process has looked: then it asks again. */
    while (!was_overdue) {
        wire w;
        wire_answer a;
        if (clock_mono_ms() > deadline) fail_msg("never overdue: %s", buf_cstr(&body));
        pair_ask_prompt(&w, 520, 2);
        while (!was_overdue && strstr(buf_cstr(&w.in), "\"usage\"") == NULL && !w.is_closed) {
            was_overdue =
                pair_get("/ready", &body) != 200 && strstr(buf_cstr(&body), "overdue") != NULL;
            (void)wire_receive(&w, 0);
        }
        wire_read(&w, &a, PAIR_END_MS);
        if (strstr(buf_cstr(&a.body), "\"usage\"") == NULL)
            fail_msg("no reply: %d %s", a.status, buf_cstr(&a.body));
        wire_answer_release(&a);
        wire_close(&w);
    }
    pair_wait_ready();
    buf_release(&body);
    pair_stop(pair);
}

#define RANKS_TEST(f) cmocka_unit_test_teardown(f, pair_kill_rest)

int main(void) {
    const struct CMUnitTest tests[] = {RANKS_TEST(two_ranks_answer_like_one),
        RANKS_TEST(a_start_tells_where_it_is), RANKS_TEST(a_running_reply_is_drained),
        RANKS_TEST(an_overdue_step_is_not_ready), RANKS_TEST(tries_are_bounded),
        RANKS_TEST(worker_asked_to_stop), RANKS_TEST(strangers_are_turned_away),
        RANKS_TEST(nonsense_for_a_secret), RANKS_TEST(another_model_is_named),
        RANKS_TEST(a_taken_port_is_named), RANKS_TEST(a_rank_without_memory_refuses)};
    if (!pair_init()) return 77;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    pair_end();
    return rc;
}
