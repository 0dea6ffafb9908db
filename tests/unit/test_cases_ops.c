/* Runs cases/ops: those that the engine of one machine decides. The others need a second rank, GPU
 * readings or the dashboard and are named as skipped. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/run/memory.h"
#include "engine/run/run.h"
#include "tests/harness/stub_source.h"
#include "tests/harness/vectors.h"

static uint64_t gib(const json *v) {
    double value = 0.0;
    json_double(v, &value);
    return (uint64_t)(value * (double)((uint64_t)1 << 30));
}

static void memory_plan_case(vectors *v, const char *id, const json *c) {
    const json *plan = json_get(c, "plan");
    const json *expect = json_get(c, "expect");
    const char *words = json_str(json_get(expect, "message_contains"));
    memory_plan p = {.weight_bytes = gib(json_get(plan, "weights_gib")),
        .cache_bytes = gib(json_get(plan, "cache_gib")),
        .work_bytes = gib(json_get(plan, "work_gib")),
        .reserve_bytes = gib(json_get(c, "reserve_gib"))};
    err e = ERR_INIT;
    bool starts = memory_plan_check(&p, gib(json_get(c, "available_gib")), &e) == OK;
    bool is_ok = starts == json_is_true(json_get(expect, "start"));
    if (is_ok && words != NULL) is_ok = strstr(e.msg, words) != NULL;
    if (is_ok) {
        vectors_pass(v);
    } else {
        vectors_fail(v, id, words != NULL ? words : "it starts", starts ? "it starts" : e.msg);
    }
}

static void memory_guard_case(vectors *v, const char *id, const json *c) {
    const json *expect = json_get(c, "expect");
    memory_guard g = {.reserve_bytes = gib(json_get(c, "reserve_gib"))};
    uint64_t from = gib(json_get(expect, "new_prefill_refused_from"));
    char got[64] = "";
    JSON_EACH(item, json_get(c, "available_gib_over_time")) {
        bool is_refused = !memory_guard_allows(&g, gib(item));
        if (is_refused != (gib(item) <= from)) {
            snprintf(got, sizeof got, "%s at %s GiB", is_refused ? "refused" : "taken",
                json_number_text(item));
        }
    }
    if (got[0] == '\0') {
        vectors_pass(v);
    } else {
        vectors_fail(v, id, "refused from the given point on", got);
    }
}

/* A long prompt read in chunks: progress must move with every chunk, never back. */
static void progress_case(vectors *v, const char *id, const json *c) {
    static const char *const pieces[] = {"x"};
    int64_t n_prompt = 0;
    int64_t chunk = 0;
    int64_t least = 0;
    json_i64(json_get(c, "prompt_tokens"), &n_prompt);
    json_i64(json_get(c, "chunk"), &chunk);
    json_i64(json_get(json_get(c, "expect"), "updates_min"), &least);
    stub_script script = {.pieces = pieces,
        .n_pieces = 1,
        .prefill_ms = 600,
        .n_base = 10,
        .eos_id = 1,
        .max_context = n_prompt + 100,
        .max_rows = (int32_t)chunk};
    stub *s = stub_new(&script);
    run_options o = {.source = stub_source(s)};
    run *r = NULL;
    ticket *t = NULL;
    run_progress p;
    run_event ev;
    err e = ERR_INIT;
    int32_t *prompt = mem_array((size_t)n_prompt, sizeof *prompt);
    run_request q = {.prompt = prompt, .n_prompt = (int32_t)n_prompt, .max_tokens = 1};
    int n_updates = 0;
    int32_t last = 0;
    bool is_monotone = true;
    sample_params_init(&q.sampling);
    if (run_open(&o, &r, &e) != OK || run_submit(r, &q, &t, &e) != OK) {
        vectors_fail(v, id, "a start", e.msg);
        exit(1);
    }
    while (ticket_next(t, &ev, 1) != OK || ev.kind != RUN_EVENT_END) {
        ticket_progress(t, &p);
        is_monotone &= p.n_prefilled >= last;
        n_updates += p.n_prefilled > last;
        last = p.n_prefilled;
    }
    if (is_monotone && n_updates >= least) {
        vectors_pass(v);
    } else {
        char want[64];
        char got[64];
        snprintf(want, sizeof want, "%lld rising updates", (long long)least);
        snprintf(got, sizeof got, "%d updates, %s", n_updates, is_monotone ? "rising" : "falling");
        vectors_fail(v, id, want, got);
    }
    ticket_free(t);
    run_close(r);
    stub_free(s);
    mem_free(prompt);
}

static int run_file(void *ctx, const char *name, err *e) {
    vectors *v = ctx;
    char dir[512];
    (void)e;
    if (!str_ends(name, ".json")) return OK;
    snprintf(dir, sizeof dir, "%s/ops", vectors_cases_dir());
    json *c = vectors_load(dir, name);
    const char *id = json_str(json_get(c, "id"));
    const char *kind = json_str(json_get(c, "kind"));
    if (str_eq(kind, "memory_plan")) {
        memory_plan_case(v, id, c);
    } else if (str_eq(kind, "memory_guard")) {
        memory_guard_case(v, id, c);
    } else if (str_eq(kind, "progress")) {
        progress_case(v, id, c);
    } else {
        vectors_skip(v, id, "needs a second rank, GPU readings or the dashboard");
    }
    json_free(c);
    return OK;
}

int main(void) {
    vectors v = {0};
    char dir[512];
    err e = ERR_INIT;
    snprintf(dir, sizeof dir, "%s/ops", vectors_cases_dir());
    if (dir_each(dir, run_file, &v, &e) != OK) {
        vectors_fail(&v, "cases/ops", "a folder of cases", e.msg);
    }
    return vectors_end(&v);
}
