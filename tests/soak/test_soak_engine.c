/* The scheduler and its caches over a stand-in for the model under random mixed load, for SOAK_SECONDS
 * (default 20) and 1,000 requests at least: conversations that go on, branch and repeat, cancels,
 * readers that leave, bad rows, failing steps, a cache on disk that is opened anew. Every reply is
 * compared with one made alone without cache and drafts; memory and descriptors stay flat, no page is
 * lost. TANDEM_LONG=1: at least 10,000 requests. */
#include <dirent.h>
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/run/run.h"
#include "tests/harness/paged_toy.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SOAK_DEFAULT_S = 10 };
#else
enum { SOAK_DEFAULT_S = 20 };
#endif
enum { PAGE = 16, CONTEXT = 512, REPLY = 64, STREAMS = 12, HISTORY = 32, WAIT_MS = 120000 };

typedef struct ask {
    int32_t tokens[CONTEXT];
    int32_t n, max_tokens;
    float temperature, presence;
    uint64_t seed;
    uint8_t salt;
} ask;

typedef struct reply {
    int32_t tokens[REPLY];
    int n, end;
} reply;

typedef struct live {
    ticket *t;
    ask a;
    reply got;
    int cancel_at; /* tokens; 0: at once, -1: never */
    bool leaves;   /* frees without reading to the end */
} live;

typedef struct soak {
    paged_toy *toy, *lone_toy;
    run *run, *lone;
    rand_state rand;
    ask history[HISTORY];
    live lives[STREAMS];
    char dir[64];
    int64_t n_asked, n_compared, n_cancelled, n_failed, n_opened;
} soak;

static uint32_t below(soak *s, uint32_t n) {
    return rand_u32(&s->rand) % n;
}

static void open_engine(soak *s) {
    paged_toy_options to = {.n_slots = 4,
        .n_pages = 100,
        .page_tokens = PAGE,
        .max_context = CONTEXT,
        .max_rows = 48,
        .has_drafts = true};
    s->toy = paged_toy_new(&to);
    run_options o = {.source = paged_toy_source(s->toy),
        .cache_dir = s->dir,
        .cache_disk_bytes = 1 << 20,
        .mark_tokens = 4 * PAGE};
    assert_int_equal(run_open(&o, &s->run, NULL), OK);
    s->n_opened++;
}

static void close_engine(soak *s) {
    run_stats stats;
    run_stats_get(s->run, &stats);
    assert_int_equal(stats.pages_used, 0);
    assert_int_equal(stats.n_running + stats.n_waiting, 0);
    run_close(s->run);
    paged_toy_free(s->toy);
}

static void open_lone(soak *s) {
    paged_toy_options to = {.n_slots = 1,
        .n_pages = CONTEXT / PAGE + 1,
        .page_tokens = PAGE,
        .max_context = CONTEXT,
        .max_rows = 600};
    s->lone_toy = paged_toy_new(&to);
    run_options o = {.source = paged_toy_source(s->lone_toy), .no_cache = true, .no_drafts = true};
    assert_int_equal(run_open(&o, &s->lone, NULL), OK);
}

static ticket *submit(run *r, const ask *a) {
    static const int32_t stop = PAGED_TOY_EOS;
    ticket *t = NULL;
    err e = ERR_INIT;
    run_request q = {.id = "soak",
        .prompt = a->tokens,
        .n_prompt = a->n,
        .max_tokens = a->max_tokens,
        .stop_ids = &stop,
        .n_stop_ids = 1,
        .salt = {a->salt}};
    sample_params_init(&q.sampling);
    q.sampling.temperature = a->temperature;
    q.sampling.presence_penalty = a->presence;
    q.sampling.seed = a->seed;
    if (run_submit(r, &q, &t, &e) != OK) fail_msg("submit: %s", e.msg);
    return t;
}

static void new_ask(soak *s, ask *a) {
    *a = s->history[below(s, HISTORY)];
    if (a->n == 0 || below(s, 6) == 0) {
        a->n = 1 + (int32_t)below(s, 200);
        for (int32_t i = 0; i < a->n; i++) {
            a->tokens[i] = 2 + (int32_t)below(s, PAGED_TOY_VOCAB - 2);
        }
        if (below(s, 10) == 0) a->tokens[0] = PAGED_TOY_BAD;
    }
    if (below(s, 4) == 0) a->n = 1 + (int32_t)below(s, (uint32_t)a->n);
    if (below(s, 5) == 0) a->tokens[below(s, (uint32_t)a->n)] = 9;
    a->max_tokens = 1 + (int32_t)below(s, REPLY - 1);
    a->temperature = below(s, 2) == 0 ? 0.0f : 0.9f;
    a->presence = below(s, 5) == 0 ? 0.7f : 0.0f;
    a->seed = rand_u64(&s->rand);
    a->salt = below(s, 8) == 0;
}

static void begin(soak *s, live *l) {
    new_ask(s, &l->a);
    l->got = (reply){0};
    l->cancel_at = below(s, 5) > 0 ? -1 : below(s, 3) == 0 ? 0 : (int)below(s, 20);
    l->leaves = below(s, 20) == 0;
    l->t = submit(s->run, &l->a);
    if (l->cancel_at == 0) ticket_cancel(l->t);
    s->n_asked++;
}

/* A bad request is refused and changes nothing. */
static void ask_badly(soak *s) {
    ticket *t = NULL;
    int32_t token = PAGED_TOY_VOCAB;
    run_request q = {.prompt = &token, .n_prompt = below(s, 2) == 0 ? 1 : 0, .max_tokens = 1};
    sample_params_init(&q.sampling);
    assert_int_equal(run_submit(s->run, &q, &t, NULL), ERR_ARG);
}

/* What came must be the beginning of the lone reply; the whole of it if it ended by itself. */
static void compare(soak *s, live *l) {
    reply want = {0};
    run_event ev = {0};
    ticket *t = submit(s->lone, &l->a);
    while (ticket_next(t, &ev, WAIT_MS) == OK && ev.kind == RUN_EVENT_TOKEN) {
        want.tokens[want.n++] = ev.pick.token;
    }
    ticket_free(t);
    if (l->got.n > want.n ||
        memcmp(want.tokens, l->got.tokens, (size_t)l->got.n * sizeof(int32_t)) != 0) {
        fail_msg("request %lld: another reply than alone", (long long)s->n_asked);
    }
    bool is_whole = l->got.end == RUN_END_STOP || l->got.end == RUN_END_LENGTH;
    if (is_whole) assert_int_equal(l->got.n, want.n);
    s->n_compared += is_whole;
    s->n_cancelled += l->got.end == RUN_END_CANCELLED;
    s->n_failed += l->got.end == RUN_END_ERROR;
    if (!is_whole || l->a.n + want.n + 8 > CONTEXT - REPLY) return;
    ask *next = &s->history[below(s, HISTORY)];
    *next = l->a;
    memcpy(next->tokens + next->n, want.tokens, (size_t)want.n * sizeof(int32_t));
    next->n += want.n;
}

static void pump(soak *s, live *l) {
    run_event ev;
    while (l->t != NULL && ticket_next(l->t, &ev, 0) == OK) {
        if (ev.kind == RUN_EVENT_TOKEN) {
            l->got.tokens[l->got.n++] = ev.pick.token;
            if (l->got.n == l->cancel_at) ticket_cancel(l->t);
        } else {
            l->got.end = ev.end;
        }
        bool has_left = l->leaves && l->got.n > 3;
        if (ev.kind != RUN_EVENT_END && !has_left) continue;
        ticket_free(l->t);
        l->t = NULL;
        compare(s, l);
    }
}

static void drain(soak *s) {
    bool has_any = true;
    while (has_any) {
        has_any = false;
        for (int i = 0; i < STREAMS; i++) {
            pump(s, &s->lives[i]);
            has_any |= s->lives[i].t != NULL;
        }
    }
    /* Those that left may still be ending. */
    run_stats stats;
    do {
        run_stats_get(s->run, &stats);
    } while (stats.n_running + stats.n_waiting > 0);
}

static int64_t rss_kib(void) {
    buf b = BUF_INIT;
    assert_int_equal(file_read("/proc/self/status", &b, 65536, NULL), OK);
    const char *at = strstr(buf_cstr(&b), "VmRSS:");
    int64_t n = at != NULL ? strtoll(at + 6, NULL, 10) : 0;
    buf_release(&b);
    return n;
}

/* What is in use, and what the process holds when the allocator has given back all it can. */
typedef struct memory {
    int64_t used_kib, rss_kib;
} memory;

static memory read_memory(void) {
    memory m;
    struct mallinfo2 info = mallinfo2();
    (void)malloc_trim(0);
    m.used_kib = (int64_t)((info.uordblks + info.hblkhd) >> 10);
    m.rss_kib = rss_kib();
    return m;
}

/* Open descriptors but those of cache segments, which come and go. */
static int count_fds(const soak *s) {
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    for (struct dirent *f; d != NULL && (f = readdir(d)) != NULL;) {
        char path[300];
        char target[300] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%.200s", f->d_name);
        ssize_t len = readlink(path, target, sizeof target - 1);
        target[len > 0 ? len : 0] = '\0';
        n += strncmp(target, s->dir, strlen(s->dir)) != 0;
    }
    if (d != NULL) closedir(d);
    return n;
}

/* The same when the disk writer is at rest: what it has open for a moment does not count. */
static int settled_fds(const soak *s) {
    int least = count_fds(s);
    for (int i = 0; i < 100; i++) {
        sleep_ms(5);
        int n = count_fds(s);
        if (n < least) least = n;
    }
    return least;
}

static void one_round(soak *s) {
    for (int i = 0; i < STREAMS; i++) {
        if (s->lives[i].t == NULL && below(s, 3) == 0) begin(s, &s->lives[i]);
        pump(s, &s->lives[i]);
    }
    if (below(s, 50) == 0) ask_badly(s);
    if (below(s, 400) == 0) paged_toy_fail(s->toy, ERR_INTERNAL);
    /* Quick: whole replies wait to be read. Slow: cancels come in the middle of them. */
    if (below(s, 100) == 0) paged_toy_slow(s->toy, (int)below(s, 2));
    if (below(s, 2000) != 0) return;
    drain(s);
    close_engine(s);
    open_engine(s);
}

static void random_load_gives_right_answers(void **state) {
    (void)state;
    const char *seconds = getenv("SOAK_SECONDS");
    uint64_t limit_ms = (seconds != NULL ? strtoull(seconds, NULL, 10) : SOAK_DEFAULT_S) * 1000;
    int64_t at_least = getenv("TANDEM_LONG") != NULL ? 10000 : 1000;
    soak *s = mem_alloc(sizeof *s);
    rand_init(&s->rand, 99, 1);
    snprintf(s->dir, sizeof s->dir, "/tmp/tandem-soak-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    /* As tandemd does: with an arena for each of the threads that come and go pages stay behind. */
    (void)mallopt(M_ARENA_MAX, 1);
    open_engine(s);
    open_lone(s);
    uint64_t start = clock_mono_ms();
    memory before = {0, 0};
    int n_fds = 0;
    while (clock_mono_ms() - start < limit_ms || s->n_asked < at_least || s->n_cancelled == 0) {
        one_round(s);
        if (before.rss_kib == 0 && s->n_asked >= at_least / 2) {
            drain(s);
            close_engine(s);
            open_engine(s); /* both readings with an engine as fresh */
            before = read_memory();
            n_fds = settled_fds(s);
        }
    }
    drain(s);
    close_engine(s);
    open_engine(s);
    memory after = read_memory();
    int64_t grown = after.rss_kib - before.rss_kib;
    int64_t more = after.used_kib - before.used_kib;
    printf(
        "%lld asked, %lld compared whole, %lld cancelled, %lld failed, %lld starts, RSS %+lld KiB, "
        "in use %+lld KiB\n",
        (long long)s->n_asked, (long long)s->n_compared, (long long)s->n_cancelled,
        (long long)s->n_failed, (long long)s->n_opened, (long long)grown, (long long)more);
    assert_true(s->n_compared > s->n_asked / 3);
    assert_true(s->n_cancelled > 0 && s->n_failed > 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(more < 1024);
    assert_true(grown < 2048);
#endif
    assert_true(settled_fds(s) <= n_fds);
    close_engine(s);
    run_close(s->lone);
    paged_toy_free(s->lone_toy);
    dir_remove_all(s->dir, NULL);
    mem_free(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_load_gives_right_answers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
