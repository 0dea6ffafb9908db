/* Time to the first token of a second question about a long document, and of the same after the
 * engine was opened anew in the same process, both as shares of the cold time. Model: the built-in one
 * with a longer window. bench_cache TOKENS, default 16000. The same with the real daemon:
 * bench_documents. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/model/model.h"
#include "engine/run/run.h"
#include "tests/harness/long_demo.h"

enum { WINDOW = 81920, PAGE = 128 };

static char folder[256], cache_dir[300];
static int32_t tokens[WINDOW];

static void die(const char *what, const err *e) {
    fprintf(stderr, "%s: %s\n", what, e->msg);
    exit(1);
}

static model *open_model(int64_t context, int n_slots) {
    err e = ERR_INIT;
    model *m = NULL;
    model_options o = {.dir = folder,
        .n_slots = n_slots,
        .n_pages = (int)(n_slots * (context / PAGE)) + 8,
        .page_tokens = PAGE,
        .max_rows = 256,
        .max_context = context};
    if (model_open(&o, &m, &e) != OK) die(folder, &e);
    return m;
}

typedef struct timing {
    double first_ms, all_ms;
    run_progress p;
} timing;

static timing ask(run *r, int32_t n, int32_t max_tokens) {
    err e = ERR_INIT;
    ticket *t;
    run_event ev = {0};
    timing out = {0};
    run_request q = {.id = "bench", .prompt = tokens, .n_prompt = n, .max_tokens = max_tokens};
    sample_params_init(&q.sampling);
    q.sampling.temperature = 0.0f;
    uint64_t start = clock_mono_ns();
    if (run_submit(r, &q, &t, &e) != OK) die("run_submit", &e);
    while (ticket_next(t, &ev, -1) == OK && ev.kind == RUN_EVENT_TOKEN) {
        if (out.first_ms <= 0.0) out.first_ms = (double)(clock_mono_ns() - start) / 1e6;
    }
    out.all_ms = (double)(clock_mono_ns() - start) / 1e6;
    ticket_progress(t, &out.p);
    ticket_free(t);
    return out;
}

static run *open_run(const run_source *source, run_options o) {
    err e = ERR_INIT;
    run *r;
    o.source = source;
    if (run_open(&o, &r, &e) != OK) die("run_open", &e);
    return r;
}

static void document(int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        uint64_t word = rand_keyed(3, (uint64_t)i, 1) % 900;
        tokens[i] = (int32_t)(100 + rand_keyed(9, word, 2) % 3500);
    }
}

/* A question behind the document: sixteen tokens of its own. */
static int32_t question(int32_t n, int32_t which) {
    for (int32_t i = 0; i < 16; i++) {
        tokens[n + i] = 300 + which * 40 + i;
    }
    return n + 16;
}

static void bench_document(int32_t n) {
    run_source source;
    model *m = open_model(WINDOW, 1);
    source_from_model(m, &source);
    run_options o = {.cache_dir = cache_dir, .cache_disk_bytes = (uint64_t)4 << 30};
    run *r = open_run(&source, o);
    document(n);
    timing cold = ask(r, question(n, 0), 8);
    timing second = ask(r, question(n, 1), 8);
    run_close(r);
    uint64_t start = clock_mono_ns();
    r = open_run(&source, o);
    double open_ms = (double)(clock_mono_ns() - start) / 1e6;
    timing restarted = ask(r, question(n, 2), 8);
    run_close(r);
    model_close(m);
    printf("document of %d tokens: cold %.0f ms; second question %.1f ms (%d cached), %.2f %%;"
           " after a restart %.1f ms (%d cached; opening the disk cache %.1f ms), %.2f %%\n",
        n, cold.first_ms, second.first_ms, second.p.n_cached, second.first_ms / cold.first_ms * 100,
        restarted.first_ms, restarted.p.n_cached, open_ms,
        restarted.first_ms / cold.first_ms * 100);
}

int main(int argc, char **argv) {
    int32_t n = argc > 1 ? (int32_t)strtol(argv[1], NULL, 10) : 16000;
    if (n < PAGE || n > WINDOW - 64) n = 16000;
    if (!long_demo_make(WINDOW, folder)) {
        puts("no demo model here");
        return 77;
    }
    snprintf(cache_dir, sizeof cache_dir, "/tmp/tandem-bench-cache-%d", (int)getpid());
    bench_document(n);
    dir_remove_all(cache_dir, NULL);
    long_demo_remove(folder);
    return 0;
}
