#include "tests/harness/serving_probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"

static char folder[512];
static const char differs[] = "another reply";
static const char uncached[] = "another reply, or not from the cache";

void probe_verdict(vectors *v, const char *what, int32_t n, const char *problem) {
    char id[128];
    snprintf(id, sizeof id, "%s, %d tokens", what, n);
    if (problem == NULL) {
        vectors_pass(v);
    } else {
        vectors_fail(v, id, "the same tokens and log probabilities", problem);
    }
}

static void die(const char *what, const err *e) {
    fprintf(stderr, "%s: %s\n", what, e->msg);
    exit(1);
}

model_options probe_model_options(int n_slots, int max_rows) {
    return (model_options){.dir = folder,
        .n_slots = n_slots,
        .n_pages = n_slots * (PROBE_CONTEXT / PROBE_PAGE) + 8,
        .page_tokens = PROBE_PAGE,
        .max_rows = max_rows,
        .max_context = PROBE_CONTEXT};
}

model *probe_open_model(const model_options *o) {
    err e = ERR_INIT;
    model *m = NULL;
    if (model_open(o, &m, &e) != OK) die(o->dir, &e);
    return m;
}

run *probe_open_run(const run_source *source, run_options o) {
    err e = ERR_INIT;
    run *r = NULL;
    o.source = source;
    if (run_open(&o, &r, &e) != OK) die("run_open", &e);
    return r;
}

/* Text-like ids: words that come again. */
void probe_fill(ask *a, int32_t n, uint64_t seed) {
    memset(a, 0, sizeof *a);
    a->n = n;
    a->max_tokens = PROBE_REPLY;
    for (int32_t i = 0; i < n; i++) {
        uint64_t word = rand_keyed(seed, (uint64_t)i, 1) % 200;
        a->tokens[i] = (int32_t)(100 + rand_keyed(9, word, 2) % 3000);
    }
}

ticket *probe_submit(run *r, const ask *a) {
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

reply probe_collect(ticket *t) {
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

reply probe_answer(run *r, const ask *a) {
    return probe_collect(probe_submit(r, a));
}

bool probe_same(const reply *a, const reply *b) {
    return a->n == b->n && a->end == b->end &&
           memcmp(a->tokens, b->tokens, (size_t)a->n * sizeof a->tokens[0]) == 0 &&
           memcmp(a->logprobs, b->logprobs, (size_t)a->n * sizeof a->logprobs[0]) == 0;
}

/* Prompts of lengths around page borders, each asked again and gone on with. */
void probe_check_cached(vectors *v, const run_source *source) {
    static const int32_t lengths[] = {17, 64, 127, 128, 129, 255, 256, 257, 385};
    enum { N = sizeof lengths / sizeof lengths[0] };
    static ask first[N], next[N];
    static reply want[N], want_next[N];
    run *r = probe_open_run(source, (run_options){.no_cache = true, .no_drafts = true});
    for (int i = 0; i < N; i++) {
        probe_fill(&first[i], lengths[i], (uint64_t)i);
        first[i].temperature = i % 2 == 0 ? 0.0f : 0.8f;
        want[i] = probe_answer(r, &first[i]);
        next[i] = first[i];
        memcpy(next[i].tokens + next[i].n, want[i].tokens, (size_t)want[i].n * sizeof(int32_t));
        next[i].n += want[i].n;
        next[i].tokens[next[i].n++] = 400 + i;
        want_next[i] = probe_answer(r, &next[i]);
    }
    run_close(r);
    r = probe_open_run(source, (run_options){.mark_tokens = 2 * PROBE_PAGE});
    for (int i = 0; i < N; i++) {
        reply fresh = probe_answer(r, &first[i]);
        reply again = probe_answer(r, &first[i]);
        reply turn = probe_answer(r, &next[i]);
        probe_verdict(v, "first time", lengths[i], probe_same(&want[i], &fresh) ? NULL : differs);
        bool is_hit = probe_same(&want[i], &again) && again.n_cached == lengths[i] - 1;
        probe_verdict(v, "asked again", lengths[i], is_hit ? NULL : uncached);
        is_hit = probe_same(&want_next[i], &turn) && turn.n_cached >= next[i].n - 2;
        probe_verdict(v, "next turn", lengths[i], is_hit ? NULL : uncached);
    }
    run_close(r);
}

void probe_make_crowd(ask *asks) {
    for (int i = 0; i < PROBE_CROWD; i++) {
        probe_fill(&asks[i], 20 + i * 13, (uint64_t)(i / 3)); /* every three share a beginning */
        asks[i].temperature = i % 3 == 0 ? 0.0f : 0.9f;
        asks[i].presence = i % 4 == 1 ? 0.6f : 0.0f;
        asks[i].seed = (uint64_t)i;
    }
}

/* Twelve streams, one by one and staggered, with and without drafts and the cache. */
void probe_check_crowd(
    vectors *v, const run_source *source, const ask *asks, const reply *want, bool all_modes) {
    int rows = source->info.max_rows;
    for (int mode = 0; mode < 4; mode += all_modes ? 1 : 2) {
        ticket *t[PROBE_CROWD];
        char what[64];
        run *r = probe_open_run(
            source, (run_options){.no_cache = (mode & 1) != 0, .no_drafts = mode > 1});
        snprintf(what, sizeof what, "slices of %d%s%s", rows, mode & 1 ? "" : ", cached",
            mode > 1 ? "" : ", drafted");
        for (int i = 0; i < PROBE_CROWD; i++) {
            t[i] = probe_submit(r, &asks[i]);
            sleep_ms(i % 4 == 0 ? 8 : 0);
        }
        for (int i = 0; i < PROBE_CROWD; i++) {
            reply got = probe_collect(t[i]);
            probe_verdict(v, what, asks[i].n, probe_same(&want[i], &got) ? NULL : differs);
        }
        run_close(r);
    }
}

bool probe_find_model(void) {
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
