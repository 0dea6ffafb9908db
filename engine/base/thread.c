#include "engine/base/thread.h"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"

#define SPIN_NS 60000      /* how long a worker stays awake after a job: one decode layer or so */
#define SPIN_CHECK 64      /* look at the clock every so many turns */
#define CLOSED 0xFFFFFFFFu /* item number that no job reaches */

/* The ticket holds the job's number (high half) and the next item (low half). A worker takes an item
 * by compare-and-swap on the whole ticket, so an item of an ended job cannot be taken: the job's
 * fields are only written while the ticket says CLOSED, and the swap fails if the ticket moved
 * between reading the fields and taking the item. */
struct pool {
    _Atomic uint64_t ticket;
    _Atomic(pool_fn) fn;
    _Atomic(void *) ctx;
    atomic_int n_items;
    _Alignas(64) atomic_int n_done;
    _Alignas(64) _Atomic uint32_t wake; /* futex of sleeping workers; changes with every job */
    atomic_int n_sleeping;
    _Alignas(64) atomic_int caller_sleeps; /* futex of the caller */
    atomic_bool is_stopping;
    bool is_running; /* touched by the owner only */
    int n_threads;
    pthread_t *threads;
    struct worker *workers;
};

struct worker {
    pool *p;
    int i_thread;
};

void thread_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

int thread_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : (int)n;
}

void thread_set_name(const char *name) {
    char cut[16];
    (void)str_copy(cut, sizeof cut, name);
    (void)pthread_setname_np(pthread_self(), cut);
}

static void futex_wait(void *word, uint32_t expected) {
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(void *word, int n) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Takes and runs items until the job has none left. */
static void pool_work(pool *p, int i_thread) {
    for (;;) {
        uint64_t ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
        pool_fn fn = atomic_load_explicit(&p->fn, memory_order_acquire);
        void *ctx = atomic_load_explicit(&p->ctx, memory_order_acquire);
        int n_items = atomic_load_explicit(&p->n_items, memory_order_acquire);
        uint32_t item = (uint32_t)ticket;
        if (item >= (uint32_t)n_items) return;
        if (!atomic_compare_exchange_strong(&p->ticket, &ticket, ticket + 1)) continue;
        fn(ctx, (int)item, i_thread);
        if (atomic_fetch_add(&p->n_done, 1) + 1 == n_items && atomic_load(&p->caller_sleeps) != 0) {
            atomic_store(&p->caller_sleeps, 0);
            futex_wake(&p->caller_sleeps, 1);
        }
    }
}

/* Spins until the wake word changes or the spin time is over. */
static bool spin_for_job(pool *p, uint32_t seen) {
    uint64_t until = clock_mono_ns() + SPIN_NS;
    do {
        for (int i = 0; i < SPIN_CHECK; i++) {
            if (atomic_load_explicit(&p->wake, memory_order_acquire) != seen) return true;
            thread_relax();
        }
    } while (clock_mono_ns() < until);
    return false;
}

static void *pool_main(void *arg) {
    struct worker *w = arg;
    pool *p = w->p;
    char name[16];
    (void)snprintf(name, sizeof name, "pool-%d", w->i_thread);
    thread_set_name(name);
    for (;;) {
        uint32_t seen = atomic_load(&p->wake);
        if (atomic_load(&p->is_stopping)) return NULL;
        pool_work(p, w->i_thread);
        if (spin_for_job(p, seen)) continue;
        atomic_fetch_add(&p->n_sleeping, 1);
        /* The kernel compares again, so a job that came in between is not slept through. */
        futex_wait(&p->wake, seen);
        atomic_fetch_sub(&p->n_sleeping, 1);
    }
}

pool *pool_new(int n_threads) {
    if (n_threads <= 0) n_threads = thread_cpu_count();
    pool *p = mem_aligned(64, (sizeof(pool) + 63) / 64 * 64);
    CHECK(p != NULL);
    atomic_store(&p->ticket, (uint64_t)CLOSED);
    p->threads = mem_array((size_t)n_threads, sizeof *p->threads);
    p->workers = mem_array((size_t)n_threads, sizeof *p->workers);
    p->n_threads = 1;
    for (int i = 1; i < n_threads; i++) {
        p->workers[i] = (struct worker){p, i};
        if (pthread_create(&p->threads[i], NULL, pool_main, &p->workers[i]) != 0) break;
        p->n_threads++;
    }
    return p;
}

void pool_free(pool *p) {
    if (p == NULL) return;
    CHECK(!p->is_running);
    atomic_store(&p->is_stopping, true);
    atomic_fetch_add(&p->wake, 1);
    futex_wake(&p->wake, p->n_threads);
    for (int i = 1; i < p->n_threads; i++)
        (void)pthread_join(p->threads[i], NULL);
    mem_free(p->threads);
    mem_free(p->workers);
    mem_aligned_free(p);
}

int pool_size(const pool *p) {
    return p == NULL ? 1 : p->n_threads;
}

/* Waits until the workers have finished what they took. */
static void pool_wait(pool *p, int n_items) {
    uint64_t until = clock_mono_ns() + 10 * SPIN_NS;
    for (;;) {
        for (int i = 0; i < SPIN_CHECK; i++) {
            if (atomic_load_explicit(&p->n_done, memory_order_acquire) == n_items) return;
            thread_relax();
        }
        if (clock_mono_ns() < until) continue;
        /* Sequentially consistent on both sides: either we see the last item done here, or the
         * worker that finishes it sees us asleep. */
        atomic_store(&p->caller_sleeps, 1);
        if (atomic_load(&p->n_done) != n_items) futex_wait(&p->caller_sleeps, 1);
        atomic_store(&p->caller_sleeps, 0);
    }
}

void pool_run(pool *p, int n_items, pool_fn fn, void *ctx) {
    if (n_items <= 0) return;
    if (p == NULL || p->n_threads == 1 || n_items == 1) {
        for (int i = 0; i < n_items; i++)
            fn(ctx, i, 0);
        return;
    }
    CHECK_MSG(!p->is_running, "pool_run from inside a job");
    p->is_running = true;
    uint64_t number = (atomic_load(&p->ticket) >> 32) + 1;
    atomic_store(&p->ticket, number << 32 | CLOSED);
    atomic_store_explicit(&p->fn, fn, memory_order_release);
    atomic_store_explicit(&p->ctx, ctx, memory_order_release);
    atomic_store_explicit(&p->n_items, n_items, memory_order_release);
    atomic_store(&p->n_done, 0);
    atomic_store(&p->ticket, (number + 1) << 32);
    atomic_fetch_add(&p->wake, 1);
    if (atomic_load(&p->n_sleeping) > 0) futex_wake(&p->wake, p->n_threads);
    pool_work(p, 0);
    pool_wait(p, n_items);
    p->is_running = false;
}
