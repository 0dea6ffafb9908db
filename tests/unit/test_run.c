#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/run/draft_policy.h"
#include "engine/run/pages.h"
#include "engine/run/planner.h"
#include "engine/run/run.h"

/* A model whose next-token scores are a function of all tokens before it: any mistake in positions,
 * pages, rollback or mixing changes what comes out. */
enum { N_VOCAB = 61, N_SLOTS = 4, MAX_LEN = 600, BLOCK = 4, PAGE = 16, EOS = 1, WAIT_MS = 120000 };

typedef struct toy {
    run_source source;
    uint64_t hash[N_SLOTS][MAX_LEN + 1];
    int64_t len[N_SLOTS], verified_from[N_SLOTS];
    int n_pages[N_SLOTS];
    float logits[N_SLOTS * (BLOCK + 1)][N_VOCAB];
    int32_t first[N_SLOTS];
    uint8_t is_finite[N_SLOTS * (BLOCK + 1)];
    int32_t draft_tokens[N_SLOTS * BLOCK];
    float draft_confidence[N_SLOTS * BLOCK];
    bool is_bad[N_SLOTS];  /* the prompt began with token 0: its decode rows are not finite */
    _Atomic int fail_code; /* the next step fails with it once */
    _Atomic int n_begun, n_allowed; /* steps; those from n_allowed on wait: a test asks meanwhile */
    _Atomic int n_steps, n_mixed, most_rows;
} toy;

/* n more steps can be made, the next one waits. */
static void hold_after(toy *t, int n) {
    atomic_store(&t->n_allowed, atomic_load(&t->n_begun) + n);
}

static void let_go(toy *t) {
    atomic_store(&t->n_allowed, INT_MAX);
}

static void scores(uint64_t hash, float *row) {
    for (int i = 0; i < N_VOCAB; i++) {
        row[i] = (float)(log(rand_keyed_uniform(hash, 0, (uint64_t)i)) * -2.0);
    }
}

static int32_t best_of(const float *row) {
    int32_t best = 0;
    for (int32_t i = 1; i < N_VOCAB; i++) {
        if (row[i] > row[best]) best = i;
    }
    return best;
}

static void take_span(toy *t, const plan_span *span, int i_span, step_result *out) {
    int s = span->slot;
    t->first[i_span] = -1;
    assert_int_equal(span->pos, t->len[s]);
    assert_true(span->pos + span->n_rows <= (int64_t)t->n_pages[s] * PAGE);
    if (span->pos == 0) t->is_bad[s] = span->tokens[0] == 0;
    t->verified_from[s] = span->kind == PLAN_VERIFY ? span->pos : -1;
    for (int32_t i = 0; i < span->n_rows; i++) {
        int64_t p = span->pos + i;
        t->hash[s][p + 1] = rand_keyed(t->hash[s][p], (uint64_t)p, (uint64_t)span->tokens[i]);
        bool wants = span->logits == PLAN_LOGITS_ALL ||
                     (span->logits == PLAN_LOGITS_LAST && i == span->n_rows - 1);
        if (!wants) continue;
        if (t->first[i_span] < 0) t->first[i_span] = out->n_logit_rows;
        t->is_finite[out->n_logit_rows] = !t->is_bad[s] || span->kind == PLAN_PROMPT;
        scores(t->hash[s][p + 1], t->logits[out->n_logit_rows++]);
    }
    t->len[s] += span->n_rows;
    out->n_rows += span->n_rows;
}

static int toy_step(void *self, const batch_plan *plan, step_result *out, err *e) {
    toy *t = self;
    bool has_prompt = false;
    bool has_decode = false;
    int i_step = atomic_fetch_add(&t->n_begun, 1);
    memset(out, 0, sizeof *out);
    while (i_step >= atomic_load(&t->n_allowed)) {
        sleep_ms(1);
    }
    int code = atomic_exchange(&t->fail_code, 0);
    if (code != 0) return err_set(e, code, "injected");
    for (int i = 0; i < plan->n_spans; i++) {
        take_span(t, &plan->spans[i], i, out);
        has_prompt |= plan->spans[i].kind == PLAN_PROMPT;
        has_decode |= plan->spans[i].kind != PLAN_PROMPT;
    }
    out->logits = t->logits[0];
    out->first_logit = t->first;
    out->is_finite = t->is_finite;
    atomic_fetch_add(&t->n_steps, 1);
    if (has_prompt && has_decode) atomic_fetch_add(&t->n_mixed, 1);
    if (out->n_rows > atomic_load(&t->most_rows)) atomic_store(&t->most_rows, out->n_rows);
    return OK;
}

/* Drafts follow the greedy path, with a mistake now and then. */
static int toy_draft(void *self, const draft_request *requests, int n, draft_result *out, err *e) {
    toy *t = self;
    float row[N_VOCAB];
    (void)e;
    for (int i = 0; i < n; i++) {
        int s = requests[i].slot;
        int64_t p = t->len[s];
        uint64_t h = rand_keyed(t->hash[s][p], (uint64_t)p, (uint64_t)requests[i].token);
        for (int j = 0; j < BLOCK; j++) {
            scores(h, row);
            int32_t token = best_of(row);
            if (h % 5 == 0) token = (token + 1) % N_VOCAB;
            t->draft_tokens[i * BLOCK + j] = token;
            t->draft_confidence[i * BLOCK + j] = 2.0f;
            h = rand_keyed(h, (uint64_t)(p + 1 + j), (uint64_t)token);
        }
    }
    *out = (draft_result){.n_requests = n,
        .block = BLOCK,
        .tokens = t->draft_tokens,
        .confidence = t->draft_confidence};
    return OK;
}

static int toy_commit(void *self, int slot, int64_t new_len, err *e) {
    toy *t = self;
    (void)e;
    assert_true(t->verified_from[slot] >= 0 && new_len > t->verified_from[slot]);
    assert_true(new_len <= t->len[slot]);
    t->len[slot] = new_len;
    return OK;
}

static int toy_pages(void *self, int slot, const int32_t *pages, int n, err *e) {
    toy *t = self;
    (void)pages;
    (void)e;
    t->n_pages[slot] = n;
    return OK;
}

static void toy_reset(void *self, int slot) {
    toy *t = self;
    t->len[slot] = 0;
    t->n_pages[slot] = 0;
    t->hash[slot][0] = 12345;
}

static toy *toy_new(int n_slots, int max_rows, bool has_drafts) {
    toy *t = mem_alloc(sizeof *t);
    let_go(t);
    t->source = (run_source){.self = t,
        .info = {.n_vocab = N_VOCAB,
            .n_slots = n_slots,
            .n_pages = N_SLOTS * (MAX_LEN / PAGE),
            .page_tokens = PAGE,
            .max_rows = max_rows,
            .max_logit_rows = n_slots * (BLOCK + 1),
            .block = has_drafts ? BLOCK : 0,
            .max_context = MAX_LEN - PAGE},
        .step = toy_step,
        .draft = toy_draft,
        .commit = toy_commit,
        .slot_pages = toy_pages,
        .slot_reset = toy_reset};
    return t;
}

typedef struct job {
    int32_t prompt[200];
    int32_t n_prompt, max_tokens;
    float temperature;
    uint64_t seed;
    float presence;
} job;

static job make_job(uint32_t i) {
    job j = {.n_prompt = (int32_t)(5 + i * 37 % 150),
        .max_tokens = (int32_t)(20 + i * 13 % 90),
        .temperature = i % 3 == 0 ? 0.0f : 0.8f,
        .seed = i * 7 + 1,
        .presence = i % 4 == 1 ? 0.5f : 0.0f};
    for (int32_t k = 0; k < j.n_prompt; k++) {
        j.prompt[k] = (int32_t)(rand_keyed(i, (uint64_t)k, 3) % (N_VOCAB - 2)) + 2;
    }
    return j;
}

static ticket *submit(run *r, const job *j) {
    const int32_t stop = EOS;
    err e = ERR_INIT;
    ticket *t = NULL;
    run_request q = {.id = "job",
        .prompt = j->prompt,
        .n_prompt = j->n_prompt,
        .max_tokens = j->max_tokens,
        .stop_ids = &stop,
        .n_stop_ids = 1};
    sample_params_init(&q.sampling);
    q.sampling.temperature = j->temperature;
    q.sampling.seed = j->seed;
    q.sampling.presence_penalty = j->presence;
    if (run_submit(r, &q, &t, &e) != OK) fail_msg("submit: %s", e.msg);
    return t;
}

typedef struct text {
    int32_t tokens[200];
    int n, end;
} text;

static text collect(ticket *t) {
    text out = {.n = 0};
    run_event ev;
    for (;;) {
        assert_int_equal(ticket_next(t, &ev, WAIT_MS), OK);
        if (ev.kind == RUN_EVENT_END) break;
        out.tokens[out.n++] = ev.pick.token;
    }
    out.end = ev.end;
    return out;
}

static void assert_same(const text *a, const text *b) {
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->end, b->end);
    assert_memory_equal(a->tokens, b->tokens, (size_t)a->n * sizeof a->tokens[0]);
}

enum { N_JOBS = 12 };

static void solo(text *out) {
    toy *t = toy_new(1, 600, false);
    run_options o = {.source = &t->source};
    run *r;
    assert_int_equal(run_open(&o, &r, NULL), OK);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        job j = make_job(i);
        ticket *k = submit(r, &j);
        out[i] = collect(k);
        ticket_free(k);
    }
    run_close(r);
    mem_free(t);
}

/* Alone = in company, any chunk size, drafted = serial: every reply of a crowd equals its own
 * solo run. */
static void crowd_equals_solo(int max_rows, bool has_drafts) {
    static text want[N_JOBS];
    toy *t = toy_new(N_SLOTS, max_rows, has_drafts);
    run_options o = {.source = &t->source};
    run_stats stats;
    ticket *k[N_JOBS];
    run *r;
    solo(want);
    assert_int_equal(run_open(&o, &r, NULL), OK);
    hold_after(t, 0);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        job j = make_job(i);
        k[i] = submit(r, &j);
        if (i == N_SLOTS) let_go(t); /* one more than can run: it is read beside the others */
        if (i > N_SLOTS && i % 3 == 0) sleep_ms(1);
    }
    for (int i = 0; i < N_JOBS; i++) {
        text got = collect(k[i]);
        assert_same(&want[i], &got);
        ticket_free(k[i]);
    }
    run_stats_get(r, &stats);
    assert_int_equal(stats.n_done, N_JOBS);
    assert_int_equal(stats.n_running + stats.n_waiting, 0);
    assert_int_equal(stats.pages_used, 0);
    assert_true(atomic_load(&t->n_mixed) > 0);
    assert_true(atomic_load(&t->most_rows) <= max_rows);
    if (has_drafts) assert_true(stats.n_accepted > 0 && stats.n_accepted < stats.n_drafted);
    run_close(r);
    mem_free(t);
}

static void batched_equals_alone(void **state) {
    (void)state;
    crowd_equals_solo(64, false);
}

static void any_chunk_size_is_equal(void **state) {
    (void)state;
    crowd_equals_solo(7, false);
    crowd_equals_solo(600, false);
}

static void drafted_equals_serial(void **state) {
    (void)state;
    crowd_equals_solo(64, true);
    crowd_equals_solo(9, true);
}

static void a_bad_row_ends_only_its_stream(void **state) {
    (void)state;
    static text want[N_JOBS];
    toy *t = toy_new(N_SLOTS, 64, true);
    run_options o = {.source = &t->source};
    run_stats stats;
    run *r;
    ticket *k[N_JOBS];
    solo(want);
    assert_int_equal(run_open(&o, &r, NULL), OK);
    for (uint32_t i = 0; i < N_JOBS; i++) {
        job j = make_job(i);
        if (i % 3 == 1) j.prompt[0] = 0; /* other prompts never hold token 0 */
        k[i] = submit(r, &j);
    }
    for (int i = 0; i < N_JOBS; i++) {
        text got = collect(k[i]);
        if (i % 3 == 1) {
            assert_int_equal(got.end, RUN_END_ERROR);
            assert_int_equal(got.n, 1);
            assert_non_null(strstr(ticket_error(k[i])->msg, "not finite"));
        } else {
            assert_same(&want[i], &got);
        }
        ticket_free(k[i]);
    }
    run_stats_get(r, &stats);
    assert_int_equal(stats.n_failed, 4);
    assert_int_equal(stats.state, RUN_STATE_READY);
    assert_int_equal(stats.pages_used, 0);
    run_close(r);
    mem_free(t);
}

static void a_failed_step_and_a_lost_peer(void **state) {
    (void)state;
    toy *t = toy_new(N_SLOTS, 64, false);
    run_options o = {.source = &t->source};
    run_stats stats;
    err e = ERR_INIT;
    run *r;
    job j = make_job(2);
    assert_int_equal(run_open(&o, &r, NULL), OK);
    atomic_store(&t->fail_code, ERR_INTERNAL);
    ticket *a = submit(r, &j);
    assert_int_equal(collect(a).end, RUN_END_ERROR);
    ticket_free(a);
    ticket *b = submit(r, &j);
    assert_int_not_equal(collect(b).end, RUN_END_ERROR);
    ticket_free(b);
    atomic_store(&t->fail_code, ERR_PEER);
    ticket *c = submit(r, &j);
    assert_int_equal(collect(c).end, RUN_END_ERROR);
    ticket_free(c);
    run_stats_get(r, &stats);
    assert_int_equal(stats.state, RUN_STATE_FAILED);
    run_request q = {.prompt = j.prompt, .n_prompt = 1, .max_tokens = 1};
    assert_int_equal(run_submit(r, &q, &a, &e), ERR_DEVICE);
    run_close(r);
    mem_free(t);
}

static void cancel_frees_slot_and_pages(void **state) {
    (void)state;
    toy *t = toy_new(2, 64, false);
    run_options o = {.source = &t->source};
    run_stats stats;
    run *r;
    job j = make_job(0);
    j.max_tokens = 150;
    assert_int_equal(run_open(&o, &r, NULL), OK);
    hold_after(t, 3);
    ticket *k[5];
    for (int i = 0; i < 5; i++) {
        k[i] = submit(r, &j);
    }
    run_event ev;
    assert_int_equal(ticket_next(k[0], &ev, WAIT_MS), OK);
    assert_int_equal(run_cancel_id(r, "none such"), ERR_NOT_FOUND);
    for (int i = 0; i < 5; i++) {
        ticket_cancel(k[i]);
    }
    let_go(t);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(collect(k[i]).end, RUN_END_CANCELLED);
        ticket_free(k[i]);
    }
    run_stats_get(r, &stats);
    assert_int_equal(stats.n_running + stats.n_waiting + stats.pages_used, 0);
    assert_int_equal(stats.n_cancelled, 5);
    run_close(r);
    mem_free(t);
}

/* Until so many run, wait and are done. */
static void await_counts(run *r, int32_t n_running, int32_t n_waiting, uint64_t n_done) {
    uint64_t deadline = clock_mono_ms() + WAIT_MS;
    run_stats s;
    do {
        sleep_ms(1);
        run_stats_get(r, &s);
        if (s.n_running == n_running && s.n_waiting == n_waiting && s.n_done == n_done) return;
    } while (clock_mono_ms() < deadline);
    fail_msg("%d run, %d wait, %llu are done", (int)s.n_running, (int)s.n_waiting,
        (unsigned long long)s.n_done);
}

static void a_full_queue_refuses_and_a_late_reader_loses_nothing(void **state) {
    (void)state;
    toy *t = toy_new(1, 64, false);
    run_options o = {.source = &t->source, .queue_cap = 2};
    err e = ERR_INIT;
    run *r;
    ticket *k[3];
    ticket *over;
    assert_int_equal(run_open(&o, &r, NULL), OK);
    job j = {
        .n_prompt = 4, .max_tokens = 500, .prompt = {5, 6, 7, 8}, .temperature = 0.9f, .seed = 4};
    run_request q = {.prompt = j.prompt, .n_prompt = 4, .max_tokens = 500};
    sample_params_init(&q.sampling);
    q.sampling.seed = 4;
    hold_after(t, 0);
    for (int i = 0; i < 3; i++) { /* also while the first one goes from waiting to running */
        assert_int_equal(run_submit(r, &q, &k[i], &e), OK);
    }
    assert_int_equal(run_submit(r, &q, &over, &e), ERR_FULL);
    await_counts(r, 1, 2, 0);
    let_go(t);
    await_counts(r, 0, 0, 3); /* nobody has read yet */
    static int32_t seen[3][500];
    for (int i = 0; i < 3; i++) {
        run_event ev = {0};
        int n = 0;
        while (ticket_next(k[i], &ev, WAIT_MS) == OK && ev.kind == RUN_EVENT_TOKEN) {
            seen[i][n++] = ev.pick.token;
        }
        assert_int_equal(n, 500);
        assert_int_equal(ev.end, RUN_END_LENGTH);
        ticket_free(k[i]);
    }
    assert_memory_equal(seen[0], seen[1], sizeof seen[0]);
    assert_memory_equal(seen[0], seen[2], sizeof seen[0]);
    run_close(r);
    mem_free(t);
}

static void sizes_are_checked(void **state) {
    (void)state;
    toy *t = toy_new(1, 64, false);
    run_options o = {.source = &t->source};
    err e = ERR_INIT;
    run *r;
    ticket *k;
    static int32_t prompt[MAX_LEN];
    assert_int_equal(run_open(&o, &r, NULL), OK);
    run_request q = {.prompt = prompt, .n_prompt = MAX_LEN - PAGE, .max_tokens = 1};
    sample_params_init(&q.sampling);
    assert_int_equal(run_submit(r, &q, &k, &e), ERR_LIMIT);
    q.n_prompt--;
    q.max_tokens = 100;
    assert_int_equal(run_submit(r, &q, &k, &e), OK);
    assert_int_equal(collect(k).n, 1); /* clipped to the one place that is left */
    ticket_free(k);
    q.n_prompt = 0;
    assert_int_equal(run_submit(r, &q, &k, &e), ERR_ARG);
    q.n_prompt = 1;
    prompt[0] = N_VOCAB;
    assert_int_equal(run_submit(r, &q, &k, &e), ERR_ARG);
    run_drain(r);
    prompt[0] = 1;
    assert_int_equal(run_submit(r, &q, &k, &e), ERR_CANCELLED);
    run_close(r);
    mem_free(t);
}

/* A guide that forces one token at one place. */
typedef struct force_guide {
    int32_t token;
    int left; /* tokens before it; < 0: it has come */
} force_guide;

static int force_before(void *ctx, run_guide_view *view) {
    const force_guide *g = ctx;
    if (g->left == 0) view->forced = g->token;
    return OK;
}

static void force_after(void *ctx, int32_t token) {
    force_guide *g = ctx;
    (void)token;
    if (g->left >= 0) g->left--;
}

static run_guide force_guide_new(int32_t token, int at) {
    force_guide *g = mem_alloc(sizeof *g);
    *g = (force_guide){token, at};
    return (run_guide){.ctx = g, .before = force_before, .after = force_after, .release = mem_free};
}

static void a_guide_forces_a_token(void **state) {
    (void)state;
    toy *t = toy_new(2, 64, true);
    run_options o = {.source = &t->source};
    run *r;
    assert_int_equal(run_open(&o, &r, NULL), OK);
    for (int place = 0; place < 9; place += 4) {
        job j = make_job(3);
        ticket *k;
        run_guide guide = force_guide_new(60, place);
        run_request q = {
            .prompt = j.prompt, .n_prompt = j.n_prompt, .max_tokens = 30, .guide = &guide};
        sample_params_init(&q.sampling);
        const int32_t never = 60;
        sample_bias bias = {never, -50.0f};
        q.sampling.bias = &bias;
        q.sampling.n_bias = 1;
        assert_int_equal(run_submit(r, &q, &k, NULL), OK);
        text got = collect(k);
        assert_int_equal(got.n, 30);
        for (int i = 0; i < got.n; i++) {
            assert_int_equal(got.tokens[i] == 60, i == place);
        }
        ticket_free(k);
    }
    run_close(r);
    mem_free(t);
}

static void close_ends_what_runs(void **state) {
    (void)state;
    toy *t = toy_new(1, 64, false);
    run_options o = {.source = &t->source};
    run *r;
    job j = make_job(1);
    j.max_tokens = 180;
    assert_int_equal(run_open(&o, &r, NULL), OK);
    hold_after(t, 0);
    ticket *a = submit(r, &j);
    ticket *b = submit(r, &j);
    run_drain(r);
    run_abort_all(r);
    let_go(t);
    assert_int_equal(collect(a).end, RUN_END_ERROR);
    assert_int_equal(collect(b).end, RUN_END_ERROR);
    ticket_free(a);
    ticket_free(b);
    run_close(r);
    mem_free(t);
}

static void plans_serve_short_prompts_and_starve_nobody(void **state) {
    (void)state;
    plan_limits limits = {.max_rows = 100, .max_logit_rows = 20, .prompt_rows = 40};
    plan_view v[4] = {
        {.n_todo = 1, .n_draft = 3, .order = 4},
        {.n_todo = 5000, .is_prompt = true, .order = 1},
        {.n_todo = 12, .is_prompt = true, .order = 2},
        {.n_todo = 10, .is_prompt = true, .order = 3},
    };
    assert_int_equal(plan_rows(v, 4, &limits), 44);
    assert_int_equal(v[0].n_rows, 4);
    assert_int_equal(v[2].n_rows, 12);
    assert_int_equal(v[3].n_rows, 10);
    assert_int_equal(v[1].n_rows, 18);
    v[2].n_todo = v[3].n_todo = 300; /* a line of others must leave the oldest its quarter */
    plan_rows(v, 4, &limits);
    assert_true(v[1].n_rows >= 10);
    assert_int_equal(v[1].n_rows + v[2].n_rows + v[3].n_rows, 40);
    v[0].is_paused = true; /* nobody decodes: the whole step is for prompts */
    assert_int_equal(plan_rows(v, 4, &limits), 100);
    assert_int_equal(v[0].n_rows, 0);
    v[1].is_background = true;
    v[2].n_todo = v[3].n_todo = 50;
    plan_rows(v, 4, &limits);
    assert_int_equal(v[1].n_rows, 13); /* an eighth: it was stuck behind new ones for minutes */
    assert_int_equal(v[2].n_rows + v[3].n_rows, 87);
    v[1].order = 9; /* not the oldest any more: nothing is left for it */
    plan_rows(v, 4, &limits);
    assert_int_equal(v[1].n_rows, 0);
    limits.max_logit_rows = 1;
    v[2].n_todo = 10;
    v[3].n_todo = 10;
    plan_rows(v, 4, &limits);
    assert_int_equal(v[2].n_rows + v[3].n_rows, 19); /* one of them must not finish: no logit row */
}

static void costs_steer_slices_and_drafts(void **state) {
    (void)state;
    step_cost c;
    draft_policy p;
    draft_history h;
    const float sure[] = {6.0f, 6.0f, 6.0f, 6.0f};
    const float lost[] = {-6.0f, -6.0f, -6.0f, -6.0f};
    step_cost_reset(&c);
    draft_history_reset(&h);
    draft_policy_reset(&p, &h);
    for (int i = 0; i < 50; i++) {
        int32_t n = 1 + i % 20;
        step_cost_add(&c, n, (uint64_t)(5000000 + 1000000 * n));
    }
    assert_true(fabs(step_cost_of(&c, 10) - 15e6) < 1e3);
    step_cost_add_draft(&c, 1000000);
    assert_int_equal(draft_policy_choose(&p, &c, sure, 4, 0), 4);
    int n_tries = 0;
    for (; n_tries < 20 && draft_policy_wants(&p); n_tries++) {
        assert_int_equal(draft_policy_choose(&p, &c, lost, 4, 0), 0);
    }
    assert_in_range(n_tries, 1, 10); /* it did not pay for a while: a pause */
    for (int i = 1; i < 16; i++) {
        assert_false(draft_policy_wants(&p));
    }
    assert_true(draft_policy_wants(&p)); /* then one more try decides */
    assert_int_equal(draft_policy_choose(&p, &c, lost, 4, 0), 0);
    assert_false(draft_policy_wants(&p));
}

/* Drafts that say they are sure and are not kept are believed less, and the other way round. */
static void confidence_is_corrected(void **state) {
    (void)state;
    step_cost c;
    draft_policy p;
    draft_history h;
    const float sure[] = {3.0f, 3.0f, 3.0f, 3.0f};
    const float shy[] = {-3.0f, -3.0f, -3.0f, -3.0f};
    step_cost_reset(&c);
    for (int i = 0; i < 50; i++) {
        int32_t n = 1 + i % 6;
        step_cost_add(&c, n, (uint64_t)(5000000 + 1000000 * n));
    }
    step_cost_add_draft(&c, 1000000);
    draft_history_reset(&h);
    draft_policy_reset(&p, &h);
    assert_int_equal(draft_policy_choose(&p, &c, sure, 4, 0), 4);
    assert_int_equal(draft_policy_choose(&p, &c, shy, 4, 0), 0);
    for (int i = 0; i < 60; i++) {
        draft_policy_learn(&p, sure, 0, 4);
    }
    assert_int_equal(draft_policy_choose(&p, &c, sure, 4, 0), 0);
    draft_policy_reset(&p, &h); /* the next stream knows it */
    assert_int_equal(draft_policy_choose(&p, &c, sure, 4, 0), 0);
    draft_history_reset(&h);
    draft_policy_reset(&p, &h);
    for (int i = 0; i < 60; i++) {
        draft_policy_learn(&p, shy, 4, 4);
    }
    assert_int_equal(draft_policy_choose(&p, &c, shy, 4, 0), 4);
}

/* What a step costs on a machine that is thought up: a base, rows of running streams, prompt rows that
 * cost more the longer the context is; now and then a hiccup. */
typedef struct machine {
    double base_ms, row_ms, prompt_ms, prompt_ms_at_64k, hiccup_ms;
} machine;

static double machine_ms(const machine *m, int32_t n_other, int32_t n_prompt, int64_t context) {
    double deep = (double)context / 65536.0;
    return m->base_ms + m->row_ms * n_other +
           (m->prompt_ms + (m->prompt_ms_at_64k - m->prompt_ms) * deep) * n_prompt;
}

/* Three streams decode while a prompt is read, from first to last, on this machine. Returns the time
 * without hiccups of the longest step; *efficiency: rows read, of those that would have just fitted. */
static double longest_step_ms(
    const machine *m, const slice_limits *l, int32_t first, int32_t last, double *efficiency) {
    step_cost c;
    double most = 0.0;
    double read = 0.0;
    double could = 0.0;
    slice_limits now = *l;
    step_cost_reset(&c);
    for (int i = 0; i < 20; i++) {
        int32_t n = 1 + i % 6;
        step_cost_add(&c, n, (uint64_t)(1e6 * (m->base_ms + m->row_ms * n)));
    }
    int32_t n;
    for (int32_t at = first, i = 0; at < last; at += n, i++) {
        now.context = at;
        n = step_cost_slice(&c, &now);
        double ms = machine_ms(m, now.n_other, n, at);
        double extra = i % 40 == 39 ? m->hiccup_ms : 0.0;
        most = ms > most ? ms : most;
        read += n;
        could += fmin(now.max_rows,
            fmax(now.floor_rows, (now.limit_ns / 1e6 - ms) / ((ms - m->base_ms) / n) + n));
        slice_cost s = {now.n_other, n, at + n, (uint64_t)(1e6 * (ms + extra))};
        step_cost_add_slice(&c, &s);
    }
    *efficiency = read / could;
    return most;
}

static void slices_stay_within_the_gap(void **state) {
    (void)state;
    static const machine machines[] = {
        {5.0, 1.0, 0.4, 1.2, 0.0},    /* a quiet processor */
        {5.0, 1.0, 0.4, 1.2, 400.0},  /* one with hiccups */
        {40.0, 8.0, 4.0, 12.0, 80.0}, /* a loaded one */
        {20.0, 3.0, 0.35, 0.5, 5.0},  /* a GPU */
    };
    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        const machine *m = &machines[i];
        slice_limits l = {.limit_ns = 105e6, .n_other = 3, .floor_rows = 8, .max_rows = 256};
        double floor_ms = machine_ms(m, 3, 8, 65536);
        double bar = 150.0 > floor_ms ? 150.0 : floor_ms;
        double efficiency;
        double ms = longest_step_ms(m, &l, 0, 65536, &efficiency);
        if (ms > bar) fail_msg("machine %zu: a step of %g ms, %g allowed", i, ms, bar);
        if (efficiency < 0.5) fail_msg("machine %zu: %g of the rows that fit", i, efficiency);
        /* The first prompt that is read goes on far from the start: it was cached. */
        ms = longest_step_ms(m, &l, 60000, 65536, &efficiency);
        if (ms > bar) fail_msg("machine %zu: %g ms far from the start", i, ms);
    }
}

static void a_context_never_seen_is_expected_to_cost_more(void **state) {
    (void)state;
    step_cost c;
    step_cost_reset(&c);
    slice_limits l = {.limit_ns = 100e6, .floor_rows = 8, .max_rows = 1000};
    assert_int_equal(step_cost_slice(&c, &l), 8); /* nothing known: begin small */
    step_cost_add_slice(&c, &(slice_cost){0, 100, 500, 50000000});
    assert_int_equal(step_cost_slice(&c, &l), 200);
    l.context = 1500; /* the next range: as if twice as dear */
    assert_int_equal(step_cost_slice(&c, &l), 100);
    l.context = 5000;
    assert_int_equal(step_cost_slice(&c, &l), 25);
    step_cost_add_slice(&c, &(slice_cost){0, 25, 5000, 15000000});
    assert_int_equal(step_cost_slice(&c, &l), 166);
    l.context = 1500;
    assert_int_equal(step_cost_slice(&c, &l), 100);
    l.max_rows = 5;
    assert_int_equal(step_cost_slice(&c, &l), 5);
}

static void pages_are_counted(void **state) {
    (void)state;
    page_pool *p = page_pool_new(3);
    assert_true(page_pool_reserve(p, 2));
    assert_false(page_pool_reserve(p, 2));
    int32_t a = page_pool_take(p);
    page_pool_get(p, a);
    page_pool_put(p, a);
    assert_int_equal(page_pool_used(p), 1);
    page_pool_unreserve(p, 1);
    assert_true(page_pool_reserve(p, 2));
    assert_false(page_pool_reserve(p, 1));
    page_pool_put(p, a);
    assert_true(page_pool_reserve(p, 1));
    assert_int_equal(page_pool_used(p), 0);
    page_pool_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batched_equals_alone),
        cmocka_unit_test(any_chunk_size_is_equal),
        cmocka_unit_test(drafted_equals_serial),
        cmocka_unit_test(a_bad_row_ends_only_its_stream),
        cmocka_unit_test(a_failed_step_and_a_lost_peer),
        cmocka_unit_test(cancel_frees_slot_and_pages),
        cmocka_unit_test(a_full_queue_refuses_and_a_late_reader_loses_nothing),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(a_guide_forces_a_token),
        cmocka_unit_test(close_ends_what_runs),
        cmocka_unit_test(plans_serve_short_prompts_and_starve_nobody),
        cmocka_unit_test(costs_steer_slices_and_drafts),
        cmocka_unit_test(confidence_is_corrected),
        cmocka_unit_test(slices_stay_within_the_gap),
        cmocka_unit_test(a_context_never_seen_is_expected_to_cost_more),
        cmocka_unit_test(pages_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
