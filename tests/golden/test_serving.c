/* The scheduler over the built-in model: what the engine promises about its answers, bit for bit with
 * their log probabilities. Alone = in company, any size of slices, drafted = serial, cached = fresh.
 * The names of failing cases are printed; the last line counts them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"
#include "engine/model/model.h"
#include "engine/run/run.h"
#include "tests/harness/vectors.h"

enum { SLOTS = 4, CONTEXT = 1024, PAGE = 128, REPLY = 10, N_CROWD = 12 };

typedef struct ask {
    int32_t tokens[CONTEXT];
    int32_t n, max_tokens;
    float temperature, presence;
    uint64_t seed;
} ask;

typedef struct reply {
    int32_t tokens[REPLY];
    float logprobs[REPLY];
    int n, end;
    int32_t n_cached;
} reply;

static vectors v;
static char folder[512];

static void verdict(const char *what, int32_t n, bool is_fine, const char *got) {
    char id[128];
    snprintf(id, sizeof id, "%s, %d tokens", what, n);
    if (is_fine) {
        vectors_pass(&v);
    } else {
        vectors_fail(&v, id, "the same tokens and log probabilities", got);
    }
}

static void die(const char *what, const err *e) {
    fprintf(stderr, "%s: %s\n", what, e->msg);
    exit(1);
}

static model *open_model(int n_slots, int max_rows) {
    err e = ERR_INIT;
    model *m = NULL;
    model_options o = {.dir = folder,
        .n_slots = n_slots,
        .n_pages = n_slots * (CONTEXT / PAGE) + 8,
        .page_tokens = PAGE,
        .max_rows = max_rows,
        .max_context = CONTEXT};
    if (model_open(&o, &m, &e) != OK) die(folder, &e);
    return m;
}

static run *open_run(const run_source *source, run_options o) {
    err e = ERR_INIT;
    run *r = NULL;
    o.source = source;
    if (run_open(&o, &r, &e) != OK) die("run_open", &e);
    return r;
}

/* Text-like ids: words that come again. */
static void fill(ask *a, int32_t n, uint64_t seed) {
    memset(a, 0, sizeof *a);
    a->n = n;
    a->max_tokens = REPLY;
    for (int32_t i = 0; i < n; i++) {
        uint64_t word = rand_keyed(seed, (uint64_t)i, 1) % 200;
        a->tokens[i] = (int32_t)(100 + rand_keyed(9, word, 2) % 3000);
    }
}

static ticket *submit(run *r, const ask *a) {
    err e = ERR_INIT;
    ticket *t = NULL;
    run_request q = {
        .id = "ask", .prompt = a->tokens, .n_prompt = a->n, .max_tokens = a->max_tokens};
    sample_params_init(&q.sampling);
    q.sampling.temperature = a->temperature;
    q.sampling.presence_penalty = a->presence;
    q.sampling.seed = a->seed;
    q.sampling.n_top = 0;
    if (run_submit(r, &q, &t, &e) != OK) die("run_submit", &e);
    return t;
}

static reply collect(ticket *t) {
    reply out = {.n = 0};
    run_event ev = {0};
    run_progress p;
    while (ticket_next(t, &ev, 60000) == OK && ev.kind == RUN_EVENT_TOKEN) {
        out.logprobs[out.n] = ev.pick.logprob;
        out.tokens[out.n++] = ev.pick.token;
    }
    out.end = ev.end;
    ticket_progress(t, &p);
    out.n_cached = p.n_cached;
    ticket_free(t);
    return out;
}

static reply answer(run *r, const ask *a) {
    return collect(submit(r, a));
}

static bool same(const reply *a, const reply *b) {
    return a->n == b->n && a->end == b->end &&
           memcmp(a->tokens, b->tokens, (size_t)a->n * sizeof a->tokens[0]) == 0 &&
           memcmp(a->logprobs, b->logprobs, (size_t)a->n * sizeof a->logprobs[0]) == 0;
}

/* Prompts of lengths around page borders, each asked again and gone on with. */
static void check_cached(const run_source *source) {
    static const int32_t lengths[] = {17, 64, 127, 128, 129, 255, 256, 257, 385};
    enum { N = sizeof lengths / sizeof lengths[0] };
    static ask first[N], next[N];
    static reply want[N], want_next[N];
    run *r = open_run(source, (run_options){.no_cache = true, .no_drafts = true});
    for (int i = 0; i < N; i++) {
        fill(&first[i], lengths[i], (uint64_t)i);
        first[i].temperature = i % 2 == 0 ? 0.0f : 0.8f;
        want[i] = answer(r, &first[i]);
        next[i] = first[i];
        memcpy(next[i].tokens + next[i].n, want[i].tokens, (size_t)want[i].n * sizeof(int32_t));
        next[i].n += want[i].n;
        next[i].tokens[next[i].n++] = 400 + i;
        want_next[i] = answer(r, &next[i]);
    }
    run_close(r);
    r = open_run(source, (run_options){.mark_tokens = 2 * PAGE});
    for (int i = 0; i < N; i++) {
        reply fresh = answer(r, &first[i]);
        reply again = answer(r, &first[i]);
        reply turn = answer(r, &next[i]);
        verdict("first time", lengths[i], same(&want[i], &fresh), "another reply");
        verdict("asked again", lengths[i],
            same(&want[i], &again) && again.n_cached == lengths[i] - 1,
            "another reply, or not from the cache");
        verdict("next turn", lengths[i],
            same(&want_next[i], &turn) && turn.n_cached >= next[i].n - 2,
            "another reply, or not from the cache");
    }
    run_close(r);
}

static void make_crowd(ask *asks) {
    for (int i = 0; i < N_CROWD; i++) {
        fill(&asks[i], 20 + i * 13, (uint64_t)(i / 3)); /* every three share a beginning */
        asks[i].temperature = i % 3 == 0 ? 0.0f : 0.9f;
        asks[i].presence = i % 4 == 1 ? 0.6f : 0.0f;
        asks[i].seed = (uint64_t)i;
    }
}

/* Twelve streams, one by one and staggered, with and without drafts and the cache. */
static void check_crowd(const run_source *source, const ask *asks, const reply *want, int rows) {
    for (int mode = 0; mode<4; mode += rows> 100 ? 1 : 2) {
        ticket *t[N_CROWD];
        char what[64];
        run *r =
            open_run(source, (run_options){.no_cache = (mode & 1) != 0, .no_drafts = mode > 1});
        snprintf(what, sizeof what, "slices of %d%s%s", rows, mode & 1 ? "" : ", cached",
            mode > 1 ? "" : ", drafted");
        for (int i = 0; i < N_CROWD; i++) {
            t[i] = submit(r, &asks[i]);
            sleep_ms(i % 4 == 0 ? 8 : 0);
        }
        for (int i = 0; i < N_CROWD; i++) {
            reply got = collect(t[i]);
            verdict(what, asks[i].n, same(&want[i], &got), "another reply");
        }
        run_close(r);
    }
}

static bool find_model(void) {
    const char *weights = getenv("DEMO_WEIGHTS");
    const char *top = getenv("TANDEM_SOURCE_DIR");
    snprintf(folder, sizeof folder, "%s/templates/demo-model", top != NULL ? top : ".");
    char config[600];
    snprintf(config, sizeof config, "%s/config.json", folder);
    if (file_exists(config)) return true;
    if (weights == NULL) return false;
    str_copy(folder, sizeof folder, weights);
    return true;
}

int main(void) {
    static const int sizes[] = {256, 23};
    static ask asks[N_CROWD];
    static reply want[N_CROWD];
    run_source source;
#ifdef __SANITIZE_THREAD__
    vectors_skip(&v, "all", "too slow here; the toys of test_reuse and test_run cover the threads");
    return vectors_end(&v);
#endif
    if (!find_model()) {
        vectors_skip(&v, "all", "no demo model here");
        return vectors_end(&v);
    }
    make_crowd(asks);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        model *m = open_model(SLOTS, sizes[i]);
        source_from_model(m, &source);
        if (i == 0) {
            check_cached(&source);
            run *r = open_run(&source, (run_options){.no_cache = true, .no_drafts = true});
            for (int k = 0; k < N_CROWD; k++) {
                want[k] = answer(r, &asks[k]);
            }
            run_close(r);
        }
        check_crowd(&source, asks, want, sizes[i]);
        model_close(m);
    }
    return vectors_end(&v);
}
