/* Exchanges between threads and between processes over loopback. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/dist/exchange.h"
#include "engine/dist/meet.h"

/* Time that a rank gets for what it does at once when it gets the processor. */
enum { N = 3000, WAIT_MS = 120000 };

/* What every rank does; 0 when all answers are right. */
static int talk(exchange *x) {
    static const int worlds_sum[] = {0, 1, 3, 6, 10};
    int world = exchange_world(x), rank = exchange_rank(x);
    err e = ERR_INIT;
    for (int round = 0; round < 20; round++) {
        float rows[N];
        for (int i = 0; i < N; i++) {
            rows[i] = (float)((rank + 1) * (i + round));
        }
        if (exchange_sum_rows(x, rows, N, NULL, &e) != OK) {
            return 1;
        }
        for (int i = 0; i < N; i++) {
            if (rows[i] != (float)(worlds_sum[world] * (i + round))) {
                return 2;
            }
        }
        int32_t mine[700], *all = mem_array((size_t)(700 * world), 4);
        for (int i = 0; i < 700; i++) {
            mine[i] = rank * 1000 + i;
        }
        if (exchange_gather(x, mine, sizeof(mine), all, NULL, &e) != OK) {
            return 3;
        }
        for (int r = 0; r < world; r++) {
            if (all[r * 700 + 699] != r * 1000 + 699 || all[r * 700] != r * 1000) {
                return 4;
            }
        }
        mem_free(all);
        float value[2] = {rank == 1 ? 5.0f : 1.0f, 7.0f};
        int32_t index[2] = {rank * 10, 100 - rank};
        if (exchange_max_pair(x, value, index, 2, NULL, &e) != OK) {
            return 5;
        }
        if (index[0] != 10 || index[1] != 100 - (world - 1) || value[0] != 5.0f) {
            return 6;
        }
        char text[5000];
        memset(text, rank == 1 ? 'b' : 'a', sizeof(text));
        if (exchange_bcast(x, text, sizeof(text), 1, &e) != OK) {
            return 7;
        }
        if (text[0] != 'b' || text[4999] != 'b') {
            return 8;
        }
        if (exchange_check(x, 42, "plan", &e) != OK) {
            return 9;
        }
    }
    if (exchange_check(x, (uint64_t)(rank == 0), "plan", &e) != ERR_MISMATCH) {
        return 10;
    }
    return 0;
}

static void *talk_thread(void *x) {
    int rc = talk(x);
    exchange_close(x);
    return (void *)(intptr_t)rc;
}

static void test_local(void **state) {
    (void)state;
    for (int world = 2; world <= 4; world++) {
        exchange *x[4];
        pthread_t t[4];
        err e = ERR_INIT;
        assert_int_equal(exchange_local_open(world, 1024, WAIT_MS, x, &e), OK);
        for (int r = 0; r < world; r++) {
            pthread_create(&t[r], NULL, talk_thread, x[r]);
        }
        for (int r = 0; r < world; r++) {
            void *rc = NULL;
            pthread_join(t[r], &rc);
            assert_int_equal((intptr_t)rc, 0);
        }
    }
}

static void test_local_lost_peer(void **state) {
    (void)state;
    exchange *x[2];
    err e = ERR_INIT;
    float v[4] = {0};
    assert_int_equal(exchange_local_open(2, 1024, 100, x, &e), OK);
    assert_int_equal(exchange_sum_rows(x[0], v, 4, NULL, &e), ERR_TIMEOUT);
    assert_int_not_equal(exchange_sum_rows(x[0], v, 4, NULL, &e), OK);
    exchange_close(x[0]);
    assert_int_equal(exchange_sum_rows(x[1], v, 4, NULL, &e), ERR_PEER);
    exchange_close(x[1]);
}

static void *sum_thread(void *x) {
    float v[4] = {0};
    err e = ERR_INIT;
    return (void *)(intptr_t)exchange_sum_rows(x, v, 4, NULL, &e);
}

/* Whoever gives up ends the waits of all. */
static void test_local_abort(void **state) {
    (void)state;
    enum { WORLD = 3 }; /* the last one never comes */
    exchange *x[WORLD];
    pthread_t t[2];
    void *rc[2] = {NULL, NULL};
    err e = ERR_INIT, why = {.code = ERR_CANCELLED, .msg = "given up"};
    assert_int_equal(exchange_local_open(WORLD, 1024, WAIT_MS, x, &e), OK);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(pthread_create(&t[r], NULL, sum_thread, x[r]), 0);
    }
    exchange_abort(x[1], &why);
    for (int r = 0; r < 2; r++) {
        pthread_join(t[r], &rc[r]);
    }
    assert_int_equal((intptr_t)rc[0], ERR_PEER);
    assert_int_equal((intptr_t)rc[1], ERR_CANCELLED);
    for (int r = 0; r < WORLD; r++) {
        exchange_close(x[r]);
    }
}

/* Rank 0 listens on a port that is free. */
static void listen_anywhere(exchange_tcp_options *o) {
    err e = ERR_INIT;
    o->port = 0;
    if (meet_listen("127.0.0.1", &o->port, &o->listen_fd, &e) != OK) fail_msg("%s", e.msg);
}

/* Rank r of a world in a process of its own; the exit status is talk's answer. */
static pid_t start_rank(const exchange_tcp_options *base, int rank) {
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    exchange_tcp_options o = *base;
    exchange *x = NULL;
    err e = ERR_INIT;
    o.rank = rank;
    if (rank > 0) close(o.listen_fd);
    int rc = exchange_tcp_open(&o, &x, &e);
    rc = rc == OK ? talk(x) : 100;
    exchange_close(x);
    _exit(rc);
}

static void test_tcp(void **state) {
    (void)state;
    for (int world = 2; world <= 4; world++) {
        exchange_tcp_options o = {.world = world,
            .secret = {1, 2, 3},
            .identity = 9,
            .max_bytes = 1024,
            .open_timeout_ms = WAIT_MS,
            .timeout_ms = WAIT_MS};
        pid_t pid[4];
        listen_anywhere(&o);
        for (int r = 0; r < world; r++) {
            pid[r] = start_rank(&o, r);
        }
        close(o.listen_fd); /* rank 0 has its own */
        for (int r = 0; r < world; r++) {
            int status = -1;
            assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
            assert_true(WIFEXITED(status));
            assert_int_equal(WEXITSTATUS(status), 0);
        }
    }
}

/* The wrong secret is turned away and rank 0 goes on waiting; another build is named. */
static void test_tcp_refusals(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        /* Where nobody is let in the wait ends by its time alone. */
        exchange_tcp_options o = {.world = 2,
            .secret = {1},
            .identity = 9,
            .open_timeout_ms = kind == 0 ? 1500 : WAIT_MS};
        listen_anywhere(&o);
        pid_t pid = fork();
        if (pid == 0) {
            exchange_tcp_options other = o;
            exchange *x = NULL;
            err e = ERR_INIT;
            other.rank = 1;
            close(o.listen_fd);
            if (kind == 0) {
                other.secret[0] = 2;
            } else {
                other.identity = 10;
            }
            _exit(-exchange_tcp_open(&other, &x, &e));
        }
        exchange *x = NULL;
        err e = ERR_INIT;
        int status = 0;
        assert_int_equal(exchange_tcp_open(&o, &x, &e), kind == 0 ? ERR_TIMEOUT : ERR_MISMATCH);
        assert_null(x);
        waitpid(pid, &status, 0);
        assert_int_not_equal(WEXITSTATUS(status), 0);
    }
}

static void test_tcp_lost_peer(void **state) {
    (void)state;
    exchange_tcp_options o = {.world = 2, .open_timeout_ms = WAIT_MS, .timeout_ms = WAIT_MS};
    listen_anywhere(&o);
    pid_t pid = fork();
    if (pid == 0) {
        exchange *x = NULL;
        err e = ERR_INIT;
        float v[4] = {0};
        o.rank = 1;
        close(o.listen_fd);
        if (exchange_tcp_open(&o, &x, &e) == OK) {
            (void)exchange_sum_rows(x, v, 4, NULL, &e);
        }
        _exit(0);
    }
    exchange *x = NULL;
    err e = ERR_INIT;
    float v[4] = {0};
    assert_int_equal(exchange_tcp_open(&o, &x, &e), OK);
    assert_int_equal(exchange_sum_rows(x, v, 4, NULL, &e), OK);
    assert_int_equal(exchange_sum_rows(x, v, 4, NULL, &e), ERR_PEER);
    assert_non_null(strstr(e.msg, "rank 1"));
    exchange_close(x);
    waitpid(pid, NULL, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_local),
        cmocka_unit_test(test_local_lost_peer), cmocka_unit_test(test_local_abort),
        cmocka_unit_test(test_tcp), cmocka_unit_test(test_tcp_refusals),
        cmocka_unit_test(test_tcp_lost_peer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
