#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "engine/base/ring.h"
#include "engine/base/thread.h"

typedef struct tally {
    atomic_int hits[1000];
    atomic_int bad_thread;
    int n_threads;
} tally;

static void hit(void *ctx, int i_item, int i_thread) {
    tally *t = ctx;
    atomic_fetch_add(&t->hits[i_item], 1);
    if (i_thread < 0 || i_thread >= t->n_threads) atomic_store(&t->bad_thread, 1);
}

static void pool_runs_each_item_once(void **state) {
    (void)state;
    for (int n_threads = 1; n_threads <= 5; n_threads++) {
        pool *p = pool_new(n_threads);
        tally *t = mem_alloc(sizeof *t);
        t->n_threads = pool_size(p);
        int expected[1000] = {0};
        for (int round = 0; round < 2000; round++) {
            int n = (round * 7) % 19;
            if (round % 500 == 0) n = 1000;
            if (round % 400 == 399) sleep_ms(1); /* let the workers fall asleep */
            pool_run(p, n, hit, t);
            /* Results must be here at once, not later. */
            for (int i = 0; i < n; i++) {
                expected[i]++;
                if (atomic_load_explicit(&t->hits[i], memory_order_relaxed) != expected[i]) {
                    fail_msg("round %d item %d: expected %d got %d", round, i, expected[i],
                        atomic_load(&t->hits[i]));
                }
            }
        }
        assert_int_equal(atomic_load(&t->bad_thread), 0);
        mem_free(t);
        pool_free(p);
    }
    assert_int_equal(pool_size(NULL), 1);
    pool_free(NULL);
}

static void add_plain(void *ctx, int i_item, int i_thread) {
    (void)i_thread;
    long *cells = ctx;
    cells[i_item] += i_item; /* not atomic on purpose: pool_run must order it */
}

static void pool_orders_memory(void **state) {
    (void)state;
    pool *p = pool_new(4);
    long cells[64] = {0};
    for (int round = 0; round < 5000; round++)
        pool_run(p, 64, add_plain, cells);
    for (int i = 0; i < 64; i++)
        assert_int_equal(cells[i], 5000L * i);
    pool_free(p);
}

static void pool_works_without_a_pool(void **state) {
    (void)state;
    long cells[4] = {0};
    pool_run(NULL, 4, add_plain, cells);
    assert_int_equal(cells[3], 3);
    pool_run(NULL, 0, add_plain, NULL);
}

enum { N_ITEMS = 20000 };

static void *push_many(void *arg) {
    queue *q = arg;
    for (intptr_t i = 1; i <= N_ITEMS; i++) {
        if (queue_push(q, (void *)i, -1) != OK) return (void *)1;
    }
    return NULL;
}

static void *pop_many(void *arg) {
    queue *q = arg;
    intptr_t sum = 0;
    void *item;
    while (queue_pop(q, &item, -1) == OK)
        sum += (intptr_t)item;
    return (void *)sum;
}

static void queue_hands_over_everything(void **state) {
    (void)state;
    queue *q = queue_new(7);
    pthread_t push[2];
    pthread_t pop[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&push[i], NULL, push_many, q), 0);
        assert_int_equal(pthread_create(&pop[i], NULL, pop_many, q), 0);
    }
    void *result;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(push[i], &result), 0);
        assert_null(result);
    }
    queue_close(q);
    intptr_t sum = 0;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(pop[i], &result), 0);
        sum += (intptr_t)result;
    }
    assert_int_equal(sum, 2 * ((intptr_t)N_ITEMS * (N_ITEMS + 1) / 2));
    queue_free(q);
}

static void queue_says_full_empty_and_closed(void **state) {
    (void)state;
    queue *q = queue_new(2);
    void *item = NULL;
    assert_int_equal(queue_pop(q, &item, 0), ERR_TIMEOUT);
    assert_int_equal(queue_pop(q, &item, 5), ERR_TIMEOUT);
    assert_int_equal(queue_push(q, "a", 0), OK);
    assert_int_equal(queue_push(q, "b", 0), OK);
    assert_int_equal(queue_push(q, "c", 0), ERR_TIMEOUT);
    assert_int_equal(queue_push(q, "c", 5), ERR_TIMEOUT);
    assert_int_equal(queue_len(q), 2);
    queue_close(q);
    assert_int_equal(queue_push(q, "c", -1), ERR_CANCELLED);
    assert_int_equal(queue_pop(q, &item, -1), OK);
    assert_string_equal(item, "a");
    assert_int_equal(queue_pop(q, &item, 0), OK);
    assert_string_equal(item, "b");
    assert_int_equal(queue_pop(q, &item, -1), ERR_CANCELLED);
    queue_free(q);
    queue_free(NULL);
}

static void *produce(void *arg) {
    spsc *s = arg;
    for (uint64_t i = 0; i < N_ITEMS;) {
        if (spsc_push(s, &i)) {
            i++;
        } else {
            thread_relax();
        }
    }
    spsc_close(s);
    return NULL;
}

static void spsc_keeps_order(void **state) {
    (void)state;
    spsc *s = spsc_new(5, sizeof(uint64_t));
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, produce, s), 0);
    uint64_t item = 0;
    uint64_t n = 0;
    int rc;
    while ((rc = spsc_pop(s, &item, -1)) == OK)
        assert_int_equal(item, n++);
    assert_int_equal(rc, ERR_CANCELLED);
    assert_int_equal(n, N_ITEMS);
    assert_int_equal(pthread_join(t, NULL), 0);
    assert_false(spsc_push(s, &item));
    spsc_free(s);
}

static void spsc_waits_and_gives_up(void **state) {
    (void)state;
    spsc *s = spsc_new(1, 1);
    char c = 'x';
    assert_int_equal(spsc_pop(s, &c, 0), ERR_TIMEOUT);
    assert_int_equal(spsc_pop(s, &c, 3), ERR_TIMEOUT);
    assert_true(spsc_push(s, "q"));
    assert_false(spsc_push(s, "r"));
    assert_int_equal(spsc_len(s), 1);
    assert_int_equal(spsc_pop(s, &c, -1), OK);
    assert_int_equal(c, 'q');
    spsc_free(s);
}

static void ring_keeps_the_newest(void **state) {
    (void)state;
    ring *r = ring_new(4);
    sample out[10];
    assert_int_equal(ring_read(r, out, 10), 0);
    for (int i = 1; i <= 10; i++)
        ring_push(r, (uint64_t)i * 10, i);
    assert_int_equal(ring_read(r, out, 10), 4);
    assert_int_equal(out[0].time_ms, 70);
    assert_true(out[3].value == 10);
    assert_int_equal(ring_read(r, out, 2), 2);
    assert_true(out[0].value == 9);
    size_t n = 0;
    assert_true(ring_sum_since(r, 80, &n) == 19);
    assert_int_equal(n, 2);
    assert_true(ring_sum_since(r, 0, &n) == 34);
    assert_int_equal(n, 4);
    ring_free(r);
}

static void *write_samples(void *arg) {
    for (int i = 1; i <= 200000; i++)
        ring_push(arg, (uint64_t)i, i);
    return NULL;
}

static void ring_never_shows_half_a_sample(void **state) {
    (void)state;
    ring *r = ring_new(16);
    pthread_t t;
    assert_int_equal(pthread_create(&t, NULL, write_samples, r), 0);
    uint64_t newest = 0;
    while (newest < 200000) {
        sample out[16];
        size_t n = ring_read(r, out, 16);
        for (size_t i = 0; i < n; i++) {
            if (out[i].value != (double)out[i].time_ms) fail_msg("torn sample");
            if (i > 0 && out[i].time_ms != out[i - 1].time_ms + 1) fail_msg("a gap");
        }
        if (n > 0) newest = out[n - 1].time_ms;
    }
    assert_int_equal(pthread_join(t, NULL), 0);
    ring_free(r);
}

static void clocks_move(void **state) {
    (void)state;
    uint64_t a = clock_mono_ns();
    sleep_ms(2);
    assert_true(clock_mono_ns() - a >= 2000000u);
    assert_true(clock_wall_ms() > 1500000000000u);
    char text[32];
    clock_format_utc(1767225599123u, text);
    assert_string_equal(text, "2025-12-31T23:59:59.123Z");
    assert_true(thread_cpu_count() >= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pool_runs_each_item_once),
        cmocka_unit_test(pool_orders_memory),
        cmocka_unit_test(pool_works_without_a_pool),
        cmocka_unit_test(queue_hands_over_everything),
        cmocka_unit_test(queue_says_full_empty_and_closed),
        cmocka_unit_test(spsc_keeps_order),
        cmocka_unit_test(spsc_waits_and_gives_up),
        cmocka_unit_test(ring_keeps_the_newest),
        cmocka_unit_test(ring_never_shows_half_a_sample),
        cmocka_unit_test(clocks_move),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
