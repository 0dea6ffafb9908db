/*
 * Speed of the forward pass: prefill and decode tokens per second of one model folder (argument, or
 * DEMO_MODEL, or templates/demo-model), with the time of each part. Best of several rounds. The
 * text is arbitrary tokens; decode takes the most likely token.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "engine/model/model.h"

enum { PROMPT = 512, REPLY = 128, CHUNK = 256, PAGE = 128, PAGES = 16, ROUNDS = 5 };

static const char *const part_names[STEP_N_PARTS] = {
    "embed", "engram", "attention", "experts", "head", "draft feed", "exchange"};

typedef struct bench_run {
    uint64_t ns, part_ns[STEP_N_PARTS];
    int n_tokens;
} bench_run;

static int32_t most_likely(const float *logits, int n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        if (logits[i] > logits[best]) {
            best = i;
        }
    }
    return best;
}

static int step(model *m, const plan_span *span, bench_run *r, step_result *out, err *e) {
    batch_plan plan = {.id = 1, .n_spans = 1, .spans = span};
    uint64_t start = clock_mono_ns();
    int rc = model_step(m, &plan, out, e);
    r->ns += clock_mono_ns() - start;
    r->n_tokens += span->n_rows;
    for (int i = 0; i < STEP_N_PARTS && rc == OK; i++) {
        r->part_ns[i] += out->part_ns[i];
    }
    return rc;
}

static int one_round(model *m, bench_run *prefill, bench_run *decode, err *e) {
    model_info info;
    model_get_info(m, &info);
    int n_vocab = info.config->n_vocab;
    int32_t tokens[PROMPT], pages[PAGES];
    for (int i = 0; i < PROMPT; i++) {
        tokens[i] = 3 + (i * 7919 + i / 5) % (n_vocab - 64);
    }
    for (int i = 0; i < PAGES; i++) {
        pages[i] = i;
    }
    model_slot_reset(m, 0);
    int rc = model_slot_pages(m, 0, pages, PAGES, e);
    step_result out = {0};
    for (int i = 0; i < PROMPT && rc == OK; i += CHUNK) {
        plan_span span = {.n_rows = CHUNK,
            .pos = i,
            .tokens = tokens + i,
            .logits = PLAN_LOGITS_LAST,
            .kind = PLAN_PROMPT};
        rc = step(m, &span, prefill, &out, e);
    }
    for (int i = 0; i < REPLY && rc == OK; i++) {
        int32_t token = most_likely(out.logits, n_vocab);
        plan_span span = {.n_rows = 1,
            .pos = PROMPT + i,
            .tokens = &token,
            .logits = PLAN_LOGITS_LAST,
            .kind = PLAN_DECODE};
        rc = step(m, &span, decode, &out, e);
    }
    return rc;
}

static void report(const char *what, const bench_run *r, int n_threads, const char *arithmetic) {
    double us = (double)r->ns / 1000.0 / r->n_tokens;
    printf("model %-8s %s, %d threads: %8.1f tokens/s  %7.1f us a token:", what, arithmetic,
        n_threads, 1e6 / us, us);
    for (int i = 0; i < STEP_N_PARTS; i++) {
        if (r->part_ns[i] > 0) {
            printf(" %s %.1f", part_names[i], (double)r->part_ns[i] / 1000.0 / r->n_tokens);
        }
    }
    printf("\n");
}

int main(int argc, char **argv) {
    const char *dir = argc > 1 ? argv[1] : getenv("DEMO_MODEL");
    int last_thread_count = argc > 2 ? 1 : 2;
    err e = ERR_INIT;
    for (int n_threads = 1; n_threads <= last_thread_count; n_threads++) {
        model_options options = {.dir = dir != NULL ? dir : "templates/demo-model",
            .n_threads = n_threads,
            .n_slots = 1,
            .n_pages = PAGES,
            .page_tokens = PAGE,
            .max_rows = CHUNK};
        model *m = NULL;
        if (model_open(&options, &m, &e) != OK) {
            printf("model skipped: %s\n", e.msg);
            return 0;
        }
        model_info info;
        model_get_info(m, &info);
        bench_run prefill = {.ns = UINT64_MAX}, decode = {.ns = UINT64_MAX};
        for (int i = 0; i < ROUNDS; i++) {
            bench_run p = {0}, d = {0};
            if (one_round(m, &p, &d, &e) != OK) {
                printf("model failed: %s\n", e.msg);
                break;
            }
            if (p.ns < prefill.ns) {
                prefill = p;
            }
            if (d.ns < decode.ns) {
                decode = d;
            }
        }
        if (prefill.n_tokens > 0) {
            report("prefill", &prefill, n_threads, info.arithmetic);
        }
        if (decode.n_tokens > 0) {
            report("decode", &decode, n_threads, info.arithmetic);
        }
        model_close(m);
    }
    return 0;
}
