/* Memory of the engine over the built-in model: after it is open no step allocates, and a thousand
 * mixed requests (ten thousand with TANDEM_LONG=1) leave it where it was: streams of every kind of
 * sampling beside each other, drafts, a cache in memory and on disk, cancels, readers that leave. And
 * requests are refused before the machine runs out of memory. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"
#include "engine/model/model.h"
#include "engine/run/memory.h"
#include "engine/run/run.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#endif
#endif
#ifndef IS_SANITIZED
#define IS_SANITIZED 0
#endif

enum { SLOTS = 4, CONTEXT = 512, PAGE = 128, STREAMS = 6, GROWN_KIB = 1024 };

/* ---- the allocator, counted ---- */

enum { THREAD_UNKNOWN, THREAD_ASKS, THREAD_STEPS, THREAD_HELPS, THREAD_WRITES };

static _Thread_local int thread_kind;
static _Atomic int is_watching;   /* the engine is open */
static _Atomic int is_in_step;    /* the model computes: its helpers are watched too */
static _Atomic int64_t n_in_step; /* allocations that were seen */

#if !IS_SANITIZED && defined(__GLIBC__) /* else nothing is counted */
/* By its name: the thread that writes to disk may allocate, helpers of the model may not. */
static int kind_of_thread(void) {
    char name[17] = "";
    if (thread_kind != THREAD_UNKNOWN) return thread_kind;
    prctl(PR_GET_NAME, name);
    thread_kind = strncmp(name, "cache-writer", 12) == 0 ? THREAD_WRITES : THREAD_HELPS;
    if (strcmp(name, "step") == 0) thread_kind = THREAD_STEPS;
    return thread_kind;
}

static void count_allocation(void) {
    if (!atomic_load_explicit(&is_watching, memory_order_relaxed)) return;
    int kind = kind_of_thread();
    bool is_helper = kind == THREAD_HELPS && atomic_load(&is_in_step);
    if (kind == THREAD_STEPS || is_helper) atomic_fetch_add(&n_in_step, 1);
}

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

void *malloc(size_t n) {
    count_allocation();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size) {
    count_allocation();
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n) {
    count_allocation();
    return __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n) {
    count_allocation();
    return __libc_memalign(align, n);
}

int posix_memalign(void **out, size_t align, size_t n) {
    count_allocation();
    *out = __libc_memalign(align, n);
    return *out != NULL ? 0 : 12;
}
#endif

/* ---- the engine ---- */

static char folder[512], cache_dir[64];
static run_source inner;

static int watched_step(void *self, const batch_plan *plan, step_result *out, err *e) {
    thread_kind = THREAD_STEPS;
    atomic_store(&is_in_step, 1);
    int rc = inner.step(self, plan, out, e);
    atomic_store(&is_in_step, 0);
    return rc;
}

static model *open_model(run_source *source) {
    model *m = NULL;
    err e = ERR_INIT;
    model_options o = {.dir = folder,
        .n_threads = 2,
        .n_slots = SLOTS,
        .n_pages = SLOTS * CONTEXT / PAGE + 4,
        .page_tokens = PAGE,
        .max_rows = 64,
        .max_context = CONTEXT};
    if (model_open(&o, &m, &e) != OK) fail_msg("%s", e.msg);
    source_from_model(m, &inner);
    *source = inner;
    source->step = watched_step;
    return m;
}

typedef struct asked {
    ticket *t;
    int32_t cancel_at, n;
} asked;

static int32_t below(rand_state *r, uint32_t n) {
    return (int32_t)(rand_u32(r) % n);
}

/* Twelve texts, cut anywhere: prefixes come again and branch. */
static void ask(run *r, rand_state *random, asked *a) {
    int32_t prompt[160];
    err e = ERR_INIT;
    int32_t n = 1 + below(random, below(random, 8) == 0 ? 160 : 24);
    uint64_t text = (uint64_t)below(random, 12);
    for (int32_t i = 0; i < n; i++) {
        prompt[i] = 100 + (int32_t)(rand_keyed(text, (uint64_t)i, 3) % 3000);
    }
    const sample_bias bias = {300, -100.0f};
    run_request q = {
        .id = "ask", .prompt = prompt, .n_prompt = n, .max_tokens = 1 + below(random, 8)};
    sample_params_init(&q.sampling);
    q.sampling.temperature = below(random, 2) == 0 ? 0.0f : 0.8f;
    q.sampling.seed = (uint64_t)below(random, 1000);
    q.sampling.presence_penalty = below(random, 4) == 0 ? 0.5f : 0.0f;
    q.sampling.n_top = below(random, 5) == 0 ? 3 : 0;
    q.sampling.bias = &bias;
    q.sampling.n_bias = below(random, 4) == 0;
    q.salt[0] = below(random, 6) == 0;
    q.priority = below(random, 6) == 0 ? RUN_PRIORITY_BACKGROUND : RUN_PRIORITY_NORMAL;
    if (run_submit(r, &q, &a->t, &e) != OK) fail_msg("%s", e.msg);
    a->cancel_at = below(random, 8) == 0 ? below(random, 6) : -1;
    a->n = 0;
    if (a->cancel_at == 0) ticket_cancel(a->t);
}

/* True if it is over. */
static bool take(asked *a) {
    run_event ev;
    if (ticket_next(a->t, &ev, 120000) != OK) fail_msg("no token in two minutes");
    a->n++;
    if (a->n == a->cancel_at) ticket_cancel(a->t);
    bool leaves = a->cancel_at == 5 && a->n == 3;
    if (ev.kind != RUN_EVENT_END && !leaves) return false;
    ticket_free(a->t);
    a->t = NULL;
    return true;
}

static void serve(run *r, rand_state *random, int64_t n) {
    asked all[STREAMS] = {0};
    for (int64_t i = 0; i < n;) {
        for (int k = 0; k < STREAMS; k++) {
            if (all[k].t == NULL) {
                ask(r, random, &all[k]);
                i++;
            }
        }
        for (int k = 0; k < STREAMS; k++) {
            (void)take(&all[k]);
        }
    }
    for (int k = 0; k < STREAMS; k++) {
        while (all[k].t != NULL && !take(&all[k])) {
        }
    }
}

static int64_t rss_kib(void) {
    buf b = BUF_INIT;
    malloc_trim(0);
    assert_int_equal(file_read("/proc/self/status", &b, 65536, NULL), OK);
    const char *at = strstr(buf_cstr(&b), "VmRSS:");
    int64_t n = at != NULL ? strtoll(at + 6, NULL, 10) : 0;
    buf_release(&b);
    return n;
}

static void no_step_allocates_and_memory_is_flat(void **state) {
    (void)state;
    run_source source;
    run *r = NULL;
    err e = ERR_INIT;
    rand_state random;
    run_stats stats;
    /* Under sanitizers nothing is counted, and a request takes seconds. */
    int64_t n = IS_SANITIZED ? 200 : getenv("TANDEM_LONG") != NULL ? 10000 : 1000;
    rand_init(&random, 5, 1);
    model *m = open_model(&source);
    run_options o = {.source = &source,
        .cache_dir = cache_dir,
        .cache_disk_bytes = 32u << 20,
        .cache_ram_bytes = 8u << 20,
        .mark_tokens = PAGE};
    if (run_open(&o, &r, &e) != OK) fail_msg("%s", e.msg);
    thread_kind = THREAD_ASKS;
    atomic_store(&is_watching, 1);
    serve(r, &random, n / 10);
    int64_t before = rss_kib();
    serve(r, &random, n);
    int64_t grown = rss_kib() - before;
    atomic_store(&is_watching, 0);
    do {
        sleep_ms(1);
        run_stats_get(r, &stats);
    } while (stats.n_running + stats.n_waiting > 0);
    print_message("%lld steps, %lld rows, %lld tokens cached, %lld of %lld drafts kept,"
                  " %lld written to disk; %lld allocations in steps, RSS %+lld KiB\n",
        (long long)stats.n_steps, (long long)stats.n_rows, (long long)stats.n_cached_tokens,
        (long long)stats.n_accepted, (long long)stats.n_drafted, (long long)stats.disk.n_records,
        (long long)n_in_step, (long long)grown);
    assert_int_equal(stats.pages_used, 0);
    assert_true(stats.n_cached_tokens > 0 && stats.n_accepted > 0 && stats.disk.n_records > 0);
    assert_true(stats.n_cancelled > 0);
    assert_int_equal(atomic_load(&n_in_step), 0);
    if (!IS_SANITIZED) assert_true(grown < GROWN_KIB);
    run_close(r);
    model_close(m);
}

/* The counter counts: one allocation in a step is seen. */
static int wasteful_step(void *self, const batch_plan *plan, step_result *out, err *e) {
    void *volatile p = malloc(100);
    free(p);
    return inner.step(self, plan, out, e);
}

static void an_allocation_in_a_step_is_seen(void **state) {
    (void)state;
    run_source source;
    run *r = NULL;
    rand_state random;
    rand_init(&random, 6, 1);
    if (IS_SANITIZED) skip();
    model *m = open_model(&source);
    source.step = wasteful_step;
    run_options o = {.source = &source, .no_cache = true};
    assert_int_equal(run_open(&o, &r, NULL), OK);
    thread_kind = THREAD_ASKS;
    atomic_store(&n_in_step, 0);
    atomic_store(&is_watching, 1);
    serve(r, &random, 1);
    atomic_store(&is_watching, 0);
    assert_true(atomic_load(&n_in_step) > 0);
    run_close(r);
    model_close(m);
}

/* With more kept in reserve than there is, new requests are refused, those that run go on. */
static void requests_are_refused_before_memory_runs_out(void **state) {
    (void)state;
    run_source source;
    run *r = NULL;
    ticket *t = NULL;
    err e = ERR_INIT;
    run_stats stats;
    const int32_t prompt[3] = {200, 201, 202};
    model *m = open_model(&source);
    run_request q = {.prompt = prompt, .n_prompt = 3, .max_tokens = 4};
    sample_params_init(&q.sampling);
    run_options o = {.source = &source, .reserve_bytes = (uint64_t)1 << 60};
    assert_int_equal(run_open(&o, &r, NULL), OK);
    assert_int_equal(run_submit(r, &q, &t, &e), ERR_FULL);
    assert_null(t);
    assert_non_null(strstr(e.msg, "short of memory"));
    run_stats_get(r, &stats);
    assert_int_equal(stats.n_refused, 1);
    assert_int_equal(stats.n_waiting, 0);
    run_close(r);
    o.reserve_bytes = 1;
    assert_int_equal(run_open(&o, &r, NULL), OK);
    assert_int_equal(run_submit(r, &q, &t, &e), OK);
    asked a = {.t = t, .cancel_at = -1};
    while (!take(&a)) {
    }
    run_close(r);
    model_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_step_allocates_and_memory_is_flat),
        cmocka_unit_test(an_allocation_in_a_step_is_seen),
        cmocka_unit_test(requests_are_refused_before_memory_runs_out)};
    const char *weights = getenv("DEMO_WEIGHTS");
    str_copy(folder, sizeof folder, "templates/demo-model");
    if (!dir_exists(folder) && weights != NULL) str_copy(folder, sizeof folder, weights);
    if (!dir_exists(folder)) return 77;
    str_copy(cache_dir, sizeof cache_dir, "/tmp/tandem-memory.XXXXXX");
    if (mkdtemp(cache_dir) == NULL) return 1;
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    (void)dir_remove_all(cache_dir, NULL);
    return rc;
}
