/* How long running replies stand still while a long document is read: the time from the end of one step
 * to the end of the next, of steps that hold rows of running replies. One thread computes and its
 * processor time is what counts, also for the engine's own planning, so that other work on the machine
 * does not. bench_gap TOKENS (default 12000). Model: the built-in one with a longer window. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/model/model.h"
#include "engine/run/run.h"
#include "tests/harness/long_demo.h"

enum { WINDOW = 65536, PAGE = 128, N_STREAMS = 3, MAX_GAPS = 1 << 20 };

static struct {
    run_source inner;
    uint64_t last_ns; /* end of the last step with rows of replies; 0: none before */
    double *gaps;     /* [MAX_GAPS] ms, of steps that also read the document */
    int n_gaps;
    double *plain; /* of the others */
    int n_plain;
} watch;

static uint64_t processor_time(void *ctx) {
    struct timespec t;
    (void)ctx;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int watched_step(void *self, const batch_plan *plan, step_result *out, err *e) {
    bool reads = false;
    bool replies = false;
    for (int i = 0; i < plan->n_spans; i++) {
        reads |= plan->spans[i].kind == PLAN_PROMPT;
        replies |= plan->spans[i].kind != PLAN_PROMPT;
    }
    int rc = watch.inner.step(self, plan, out, e);
    uint64_t now = processor_time(NULL);
    double ms = (double)(now - watch.last_ns) / 1e6;
    if (replies && watch.last_ns != 0 && reads && watch.n_gaps < MAX_GAPS) {
        watch.gaps[watch.n_gaps++] = ms;
    } else if (replies && watch.last_ns != 0 && !reads && watch.n_plain < MAX_GAPS) {
        watch.plain[watch.n_plain++] = ms;
    }
    watch.last_ns = replies ? now : 0;
    return rc;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void die(const char *what, const err *e) {
    fprintf(stderr, "bench_gap: %s: %s\n", what, e->msg);
    exit(1);
}

static ticket *submit(run *r, int32_t n, uint64_t seed, int32_t max_tokens) {
    int32_t *prompt = mem_array((size_t)n, sizeof *prompt);
    ticket *t = NULL;
    err e = ERR_INIT;
    for (int32_t i = 0; i < n; i++) {
        prompt[i] = (int32_t)(100 + rand_keyed(seed, (uint64_t)i, 1) % 3500);
    }
    run_request q = {.id = "gap", .prompt = prompt, .n_prompt = n, .max_tokens = max_tokens};
    sample_params_init(&q.sampling);
    q.sampling.temperature = 0.0f;
    if (run_submit(r, &q, &t, &e) != OK) die("asking", &e);
    mem_free(prompt);
    return t;
}

static void print(const char *name, double *gaps, int n) {
    if (n == 0) return;
    qsort(gaps, (size_t)n, sizeof *gaps, by_value);
    printf(
        "token_gap while=%s streams=%d gaps=%d p50_ms=%.1f p95_ms=%.1f p99_ms=%.1f max_ms=%.1f\n",
        name, N_STREAMS, n, gaps[n / 2], gaps[n * 95 / 100], gaps[n * 99 / 100], gaps[n - 1]);
}

static void measure(run *r, int32_t n) {
    ticket *t[N_STREAMS];
    run_event ev = {0};
    for (int i = 0; i < N_STREAMS; i++) {
        t[i] = submit(r, 40, 10 + (uint64_t)i, 20000);
    }
    ticket *document = submit(r, n, 3, 1);
    uint64_t start = processor_time(NULL);
    while (ev.kind != RUN_EVENT_END) {
        (void)ticket_next(document, &ev, 1);
        for (int i = 0; i < N_STREAMS; i++) {
            run_event drop;
            while (ticket_next(t[i], &drop, 0) == OK) {
            }
        }
    }
    double seconds = (double)(processor_time(NULL) - start) / 1e9;
    printf("token_gap_document tokens=%d cpu_seconds=%.1f aim_ms=150\n", n, seconds);
    for (int i = 0; i < N_STREAMS; i++) {
        ticket_free(t[i]);
    }
    ticket_free(document);
}

int main(int argc, char **argv) {
    char folder[256];
    int32_t n = argc > 1 ? (int32_t)strtol(argv[1], NULL, 10) : 12000;
    model *m = NULL;
    run *r = NULL;
    err e = ERR_INIT;
    if (n < 100 || n > WINDOW - 100) n = 12000;
    if (!long_demo_make(WINDOW, folder)) {
        puts("token_gap skipped: there is no built-in model here");
        return 0;
    }
    model_options mo = {.dir = folder,
        .n_threads = 1,
        .n_slots = N_STREAMS + 1,
        .n_pages = (N_STREAMS + 1) * WINDOW / PAGE,
        .page_tokens = PAGE,
        .max_rows = 256,
        .max_context = WINDOW};
    if (model_open(&mo, &m, &e) != OK) die(folder, &e);
    watch.gaps = mem_array(MAX_GAPS, sizeof(double));
    watch.plain = mem_array(MAX_GAPS, sizeof(double));
    source_from_model(m, &watch.inner);
    run_source source = watch.inner;
    source.step = watched_step;
    run_options o = {.source = &source, .now_ns = processor_time};
    if (run_open(&o, &r, &e) != OK) die("run_open", &e);
    measure(r, n);
    run_close(r);
    print("reading", watch.gaps, watch.n_gaps);
    print("alone", watch.plain, watch.n_plain);
    model_close(m);
    mem_free(watch.gaps);
    mem_free(watch.plain);
    long_demo_remove(folder);
    return 0;
}
