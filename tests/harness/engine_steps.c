#include "tests/harness/engine_steps.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/model/model.h"
#include "engine/run/control.h"
#include "engine/run/run.h"
#include "tests/harness/paged_toy.h"

enum { PAGE = 16, CONTEXT = 512, REPLY = 60, WAIT_MS = 120000, BEGIN_TOKEN = 2, MAX_STREAMS = 16 };

typedef struct reply {
    int32_t tokens[REPLY];
    int32_t n, end;
} reply;

typedef struct side {
    paged_toy *toy;
    run *run;
} side;

static void open_side(side *s, const paged_toy_options *o, bool no_drafts, bool no_cache) {
    err e = ERR_INIT;
    s->toy = paged_toy_new(o);
    run_options ro = {.source = paged_toy_source(s->toy),
        .now_ns = paged_toy_now,
        .now_ctx = s->toy,
        .no_drafts = no_drafts,
        .no_cache = no_cache};
    if (run_open(&ro, &s->run, &e) != OK) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
}

static void close_side(side *s) {
    run_close(s->run);
    paged_toy_free(s->toy);
}

/* By the toy's clock drafts pay, whatever the machine does besides. */
static paged_toy_options toy_options(int32_t n_slots, int32_t max_rows, int32_t draft_len) {
    return (paged_toy_options){.n_slots = n_slots,
        .n_pages = n_slots * CONTEXT / PAGE,
        .page_tokens = PAGE,
        .max_rows = max_rows,
        .max_context = CONTEXT,
        .has_drafts = draft_len > 0,
        .block = draft_len,
        .cost = {.step_ns = 5000000, .row_ns = 50000, .prompt_row_ns = 10000}};
}

static ticket *submit(run *r, uint64_t seed) {
    static const int32_t stop = PAGED_TOY_EOS, begin = BEGIN_TOKEN;
    int32_t prompt[200];
    err e = ERR_INIT;
    ticket *t = NULL;
    int32_t n = 5 + (int32_t)(rand_keyed(seed, 1, 1) % 150);
    prompt[0] = BEGIN_TOKEN;
    for (int32_t i = 1; i < n; i++) {
        uint64_t key = i < 40 ? seed % 3 : seed; /* few first words: prompts share prefixes */
        prompt[i] = 3 + (int32_t)(rand_keyed(key, (uint64_t)i, 2) % (PAGED_TOY_VOCAB - 3));
    }
    run_request q = {.id = "step",
        .prompt = prompt,
        .n_prompt = n,
        .max_tokens = 10 + (int32_t)(seed % (REPLY - 10)),
        .stop_ids = &stop,
        .n_stop_ids = 1,
        .banned = &begin,
        .n_banned = 1};
    sample_params_init(&q.sampling);
    q.sampling.temperature = 0.0f;
    if (run_submit(r, &q, &t, &e) != OK) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
    return t;
}

/* Cancels after n_most tokens; below 0: never. */
static reply collect(ticket *t, int32_t n_most, step_facts *f) {
    reply out = {.n = 0};
    run_event ev = {0};
    uint64_t before = clock_mono_ns();
    if (n_most == 0) ticket_cancel(t);
    while (ticket_next(t, &ev, WAIT_MS) == OK && ev.kind == RUN_EVENT_TOKEN) {
        uint64_t now = clock_mono_ns();
        double wait = (double)(now - before) / 1e9;
        before = now;
        f->longest_wait_s = wait > f->longest_wait_s ? wait : f->longest_wait_s;
        f->has_begin_token |= ev.pick.token == BEGIN_TOKEN;
        out.tokens[out.n++] = ev.pick.token;
        if (out.n == n_most) ticket_cancel(t);
    }
    out.end = ev.end;
    ticket_free(t);
    return out;
}

static bool same(const reply *a, const reply *b) {
    return a->n == b->n && a->end == b->end &&
           memcmp(a->tokens, b->tokens, (size_t)a->n * sizeof(int32_t)) == 0;
}

/* ---- drafts ---- */

void step_spec_compare(int32_t draft_len, int32_t n_prompts, step_facts *f) {
    side serial;
    paged_toy_options plain = toy_options(1, 600, 0);
    reply *want = mem_array((size_t)n_prompts, sizeof *want);
    open_side(&serial, &plain, true, true);
    for (int32_t i = 0; i < n_prompts; i++) {
        want[i] = collect(submit(serial.run, (uint64_t)i), -1, f);
    }
    close_side(&serial);
    f->identical_tokens = true;
    for (int32_t n_right = 0; n_right <= draft_len; n_right++) {
        side drafted;
        run_stats stats;
        paged_toy_options o = toy_options(1, 600, draft_len);
        o.n_right = n_right + 1;
        open_side(&drafted, &o, false, true);
        for (int32_t i = 0; i < n_prompts; i++) {
            reply got = collect(submit(drafted.run, (uint64_t)i), -1, f);
            if (same(&want[i], &got)) continue;
            f->identical_tokens = false;
            snprintf(f->detail, sizeof f->detail, "prompt %d, %d of %d drafts right", i, n_right,
                draft_len);
        }
        run_stats_get(drafted.run, &stats);
        bool is_forced = n_right == 0 || stats.accepted_at[n_right - 1] > 0;
        if (!is_forced) snprintf(f->detail, sizeof f->detail, "never %d drafts kept", n_right);
        f->identical_tokens &= is_forced;
        close_side(&drafted);
    }
    mem_free(want);
}

void step_spec_load(int32_t n_streams, int32_t draft_len, uint64_t ms, step_facts *f) {
    uint64_t seed = 0;
    f->all_finished = true;
    for (int32_t d = -1; d <= 1; d++) {
        side s;
        ticket *t[MAX_STREAMS];
        int32_t most = draft_len < RUN_DRAFT_MAX ? draft_len : RUN_DRAFT_MAX;
        paged_toy_options o = toy_options(n_streams, n_streams * (most + 1) + d, draft_len);
        o.n_right = draft_len + 1;
        open_side(&s, &o, false, false);
        uint64_t end = clock_mono_ms() + ms / 3;
        do {
            for (int32_t i = 0; i < n_streams; i++) {
                t[i] = submit(s.run, seed++);
            }
            for (int32_t i = 0; i < n_streams; i++) {
                reply got = collect(t[i], -1, f);
                f->all_finished &= got.end == RUN_END_STOP || got.end == RUN_END_LENGTH;
            }
        } while (clock_mono_ms() < end);
        close_side(&s);
    }
}

void step_spec_stats(int32_t n_prompts, int32_t draft_len, step_facts *f) {
    side s;
    run_stats stats;
    paged_toy_options o = toy_options(1, 600, draft_len);
    open_side(&s, &o, false, true);
    for (int32_t i = 0; i < n_prompts; i++) {
        (void)collect(submit(s.run, (uint64_t)i), -1, f);
    }
    run_stats_get(s.run, &stats);
    f->is_reported = f->is_monotone = true;
    for (int32_t i = 0; i < draft_len; i++) {
        f->is_reported &= stats.accepted_at[i] > 0;
        f->is_monotone &= i == 0 || stats.accepted_at[i] <= stats.accepted_at[i - 1];
    }
    close_side(&s);
}

/* ---- load ---- */

void step_chaos(int32_t n_streams, double abort_probability, uint64_t ms, step_facts *f) {
    enum { N_ASKS = 40 };
    static reply want[N_ASKS];
    side lone, s;
    rand_state random;
    paged_toy_options plain = toy_options(1, 600, 0), o = toy_options(n_streams, 48, 4);
    rand_init(&random, 28, 1);
    open_side(&lone, &plain, true, true);
    for (uint64_t i = 0; i < N_ASKS; i++) {
        want[i] = collect(submit(lone.run, i), -1, f);
    }
    close_side(&lone);
    f->digests_equal = true;
    open_side(&s, &o, false, false);
    for (uint64_t end = clock_mono_ms() + ms; clock_mono_ms() < end;) {
        ticket *t[MAX_STREAMS];
        uint64_t which[MAX_STREAMS];
        for (int32_t i = 0; i < n_streams; i++) {
            which[i] = rand_u64(&random) % N_ASKS;
            t[i] = submit(s.run, which[i]);
        }
        for (int32_t i = 0; i < n_streams; i++) {
            bool is_aborted = (double)(rand_u32(&random) % 1000) < abort_probability * 1000.0;
            int32_t n_most = is_aborted ? (int32_t)(rand_u32(&random) % 20) : -1;
            reply got = collect(t[i], n_most, f);
            const reply *w = &want[which[i]];
            bool is_prefix = got.end == RUN_END_CANCELLED && got.n <= w->n &&
                             memcmp(got.tokens, w->tokens, (size_t)got.n * sizeof(int32_t)) == 0;
            if (same(&got, w) || (is_aborted && is_prefix)) continue;
            f->digests_equal = false;
            snprintf(f->detail, sizeof f->detail, "ask %d ended with %d after %d tokens of %d",
                (int)which[i], got.end, got.n, w->n);
        }
    }
    close_side(&s);
}

/* ---- two ranks ---- */

typedef struct pair_of_ranks {
    paged_toy *toy[2];
    run_source spoilt; /* of rank 1 */
    exchange *x[2];
    int fd[2], stop_pipe[2];
    int32_t n_steps, drop_at;
    _Atomic uint64_t dropped_ns, told_ns;
    int rc; /* rank 1 ended with */
} pair_of_ranks;

/* From that step on, the first time that a prompt is read: a row of a draft that is not kept would
 * change nothing. */
static int step_without_a_row(void *self, const batch_plan *plan, step_result *out, err *e) {
    pair_of_ranks *p = self;
    plan_span spans[RUN_MAX_SLOTS];
    batch_plan shorter = *plan;
    int32_t last = plan->n_spans - 1;
    if (++p->n_steps < p->drop_at || atomic_load(&p->dropped_ns) != 0 ||
        plan->spans[last].kind != PLAN_PROMPT || plan->spans[last].n_rows < 2) {
        return paged_toy_source(p->toy[1])->step(p->toy[1], plan, out, e);
    }
    memcpy(spans, plan->spans, (size_t)plan->n_spans * sizeof *spans);
    spans[last].n_rows--;
    shorter.spans = spans;
    atomic_store(&p->dropped_ns, clock_mono_ns());
    return paged_toy_source(p->toy[1])->step(p->toy[1], &shorter, out, e);
}

/* The other calls go to the toy as they are. */
static int commit_1(void *self, int slot, int64_t new_len, err *e) {
    pair_of_ranks *p = self;
    return paged_toy_source(p->toy[1])->commit(p->toy[1], slot, new_len, e);
}

static int draft_1(void *self, const draft_request *q, int n, draft_result *out, err *e) {
    pair_of_ranks *p = self;
    return paged_toy_source(p->toy[1])->draft(p->toy[1], q, n, out, e);
}

static int pages_1(void *self, int slot, const int32_t *pages, int n, err *e) {
    pair_of_ranks *p = self;
    return paged_toy_source(p->toy[1])->slot_pages(p->toy[1], slot, pages, n, e);
}

static void reset_1(void *self, int slot) {
    pair_of_ranks *p = self;
    paged_toy_source(p->toy[1])->slot_reset(p->toy[1], slot);
}

static void *follow(void *arg) {
    pair_of_ranks *p = arg;
    err why = ERR_INIT;
    control_follow_options o = {
        .source = &p->spoilt, .exchange = p->x[1], .fd = p->fd[1], .stop_fd = p->stop_pipe[0]};
    p->rc = control_follow(&o, &why);
    atomic_store(&p->told_ns, clock_mono_ns());
    if (p->rc != OK) exchange_abort(p->x[1], &why);
    return NULL;
}

static void open_pair(pair_of_ranks *p, control **c, run_source *source) {
    paged_toy_options o = toy_options(2, 24, 4);
    err e = ERR_INIT;
    p->toy[0] = paged_toy_new(&o);
    p->toy[1] = paged_toy_new(&o);
    p->spoilt = (run_source){.self = p,
        .info = paged_toy_source(p->toy[1])->info,
        .step = step_without_a_row,
        .draft = draft_1,
        .commit = commit_1,
        .slot_pages = pages_1,
        .slot_reset = reset_1};
    run_source plain = *paged_toy_source(p->toy[0]);
    static run_source first;
    first = (run_source){.self = plain.self,
        .info = plain.info,
        .step = plain.step,
        .draft = plain.draft,
        .commit = plain.commit,
        .slot_pages = plain.slot_pages,
        .slot_reset = plain.slot_reset};
    control_options co = {
        .source = &first, .exchange = NULL, .fds = p->fd, .world = 2, .timeout_ms = WAIT_MS};
    int rc = exchange_local_open(2, 0, WAIT_MS, p->x, &e);
    co.exchange = p->x[0];
    if (rc != OK || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, p->fd) != 0 ||
        pipe(p->stop_pipe) != 0 || control_open(&co, c, source, &e) != OK) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
}

void step_drop_row(int32_t at_step, step_facts *f) {
    pair_of_ranks *p = mem_alloc(sizeof *p);
    control *c = NULL;
    run_source source;
    run *r = NULL;
    pthread_t thread;
    run_stats stats = {0};
    step_facts ignored = {0};
    p->drop_at = at_step;
    open_pair(p, &c, &source);
    pthread_create(&thread, NULL, follow, p);
    run_options o = {.source = &source, .no_cache = true};
    if (run_open(&o, &r, NULL) != OK) exit(1);
    uint64_t deadline = clock_mono_ms() + WAIT_MS;
    for (uint64_t i = 0; stats.state != RUN_STATE_FAILED && clock_mono_ms() < deadline; i++) {
        err e = ERR_INIT;
        static const int32_t prompt[3] = {5, 6, 7};
        ticket *t = NULL;
        run_request q = {.prompt = prompt, .n_prompt = 3, .max_tokens = 40};
        sample_params_init(&q.sampling);
        q.sampling.seed = i;
        if (run_submit(r, &q, &t, &e) == OK) (void)collect(t, -1, &ignored);
        run_stats_get(r, &stats);
    }
    uint64_t now = clock_mono_ns();
    run_close(r);
    control_close(c);
    pthread_join(thread, NULL);
    uint64_t dropped = atomic_load(&p->dropped_ns), told = atomic_load(&p->told_ns);
    f->both_report = stats.state == RUN_STATE_FAILED && p->rc == ERR_MISMATCH && dropped != 0;
    f->error_after_s = f->both_report ? (double)((now > told ? now : told) - dropped) / 1e9 : -1.0;
    snprintf(f->detail, sizeof f->detail, "rank 0: %.120s", stats.failure.msg);
    exchange_close(p->x[0]);
    exchange_close(p->x[1]);
    close(p->fd[1]);
    close(p->stop_pipe[0]);
    close(p->stop_pipe[1]);
    paged_toy_free(p->toy[0]);
    paged_toy_free(p->toy[1]);
    mem_free(p);
}

/* ---- rollback in the built-in model ---- */

enum { MODEL_PAGE = 128, MODEL_CONTEXT = 512, GONE = 3, AFTER = 5 };

static model *open_demo(void) {
    const char *weights = getenv("DEMO_WEIGHTS");
    const char *dir = dir_exists("templates/demo-model") ? "templates/demo-model" : weights;
    model_options o = {.dir = dir,
        .n_slots = 2,
        .n_pages = 2 * MODEL_CONTEXT / MODEL_PAGE,
        .page_tokens = MODEL_PAGE,
        .max_rows = 256,
        .max_context = MODEL_CONTEXT};
    model *m = NULL;
    return dir != NULL && model_open(&o, &m, NULL) == OK ? m : NULL;
}

static int32_t token_at(int64_t pos) {
    return 100 + (int32_t)(rand_keyed(25, (uint64_t)pos, 1) % 3000);
}

typedef struct walker {
    model *m;
    int slot;
    float *logits; /* of the last row of the last step */
    err why;
    int rc;
} walker;

/* Steps [pos, pos + n); wrong: tokens that do not belong there. */
static void walk(walker *w, int64_t pos, int32_t n, plan_kind kind, bool wrong) {
    int32_t tokens[256];
    step_result result;
    model_info info;
    for (int32_t i = 0; i < n; i++) {
        tokens[i] = token_at(pos + i) + (wrong && i >= n - GONE ? 7 : 0);
    }
    plan_span span = {w->slot, n, pos, tokens,
        (uint8_t)(kind == PLAN_VERIFY ? PLAN_LOGITS_ALL : PLAN_LOGITS_LAST), (uint8_t)kind};
    batch_plan plan = {.id = 1, .n_spans = 1, .spans = &span};
    if (w->rc != OK) return;
    w->rc = model_step(w->m, &plan, &result, &w->why);
    if (w->rc != OK) return;
    model_get_info(w->m, &info);
    size_t n_vocab = (size_t)info.config->n_vocab;
    memcpy(w->logits, result.logits + (size_t)(result.n_logit_rows - 1) * n_vocab,
        n_vocab * sizeof(float));
}

/* The state at len of a slot that read the same tokens, straight or with rows that were taken back. */
static void reach(walker *w, int64_t len, bool goes_back, void *blob, size_t size) {
    int32_t pages[MODEL_CONTEXT / MODEL_PAGE];
    int32_t n_kept = len > 2 ? 2 : 1;
    for (int32_t i = 0; i < MODEL_CONTEXT / MODEL_PAGE; i++) {
        pages[i] = w->slot * (MODEL_CONTEXT / MODEL_PAGE) + i;
    }
    model_slot_reset(w->m, w->slot);
    w->rc = model_slot_pages(w->m, w->slot, pages, MODEL_CONTEXT / MODEL_PAGE, &w->why);
    int64_t start = len - n_kept;
    for (int64_t at = 0; at < start; at += 200) {
        walk(w, at, (int32_t)(start - at < 200 ? start - at : 200), PLAN_PROMPT, false);
    }
    if (goes_back) {
        walk(w, start, n_kept + GONE, PLAN_VERIFY, true);
        if (w->rc == OK) w->rc = model_commit(w->m, w->slot, len, &w->why);
    } else {
        for (int64_t at = start; at < len; at++) {
            walk(w, at, 1, PLAN_DECODE, false);
        }
    }
    if (w->rc == OK) w->rc = model_slot_save(w->m, w->slot, blob, size, &w->why);
}

static bool equal_at(model *m, int64_t len, step_facts *f) {
    model_info info;
    model_get_info(m, &info);
    size_t row = (size_t)info.config->n_vocab * sizeof(float);
    uint8_t *blobs = mem_alloc(2 * info.snapshot_bytes);
    float *logits = mem_alloc(2 * row);
    bool is_equal = true;
    walker w[2] = {{.m = m, .slot = 0, .logits = logits},
        {.m = m, .slot = 1, .logits = logits + info.config->n_vocab}};
    for (int i = 0; i < 2; i++) {
        reach(&w[i], len, i == 1, blobs + (size_t)i * info.snapshot_bytes, info.snapshot_bytes);
    }
    is_equal = memcmp(blobs, blobs + info.snapshot_bytes, info.snapshot_bytes) == 0;
    if (!is_equal) snprintf(f->detail, sizeof f->detail, "saved state at %lld", (long long)len);
    for (int32_t i = 0; i < AFTER; i++) { /* the pages tell in what comes after */
        walk(&w[0], len + i, 1, PLAN_DECODE, false);
        walk(&w[1], len + i, 1, PLAN_DECODE, false);
        if (w[0].rc == OK && w[1].rc == OK && memcmp(logits, w[1].logits, row) == 0) continue;
        is_equal = false;
        snprintf(f->detail, sizeof f->detail, "row %d behind %lld: %.100s", i, (long long)len,
            w[1].why.msg);
    }
    mem_free(blobs);
    mem_free(logits);
    return is_equal;
}

bool step_rollback(const int64_t *mod, int n_mod, step_facts *f) {
    model *m = open_demo();
    if (m == NULL) return false;
    f->state_identical = true;
    for (int i = 0; i < n_mod; i++) {
        for (int64_t k = 1; k <= 2; k++) {
            for (int64_t offset = -1; offset <= 1; offset++) {
                f->state_identical &= equal_at(m, k * mod[i] + offset, f);
            }
        }
    }
    model_close(m);
    return true;
}

bool step_compare(const char *op, double a, double b, bool *is_known) {
    const struct {
        const char *name;
        bool is_so;
    } all[] = {{"equal", a == b}, {"not_equal", a != b}, {"gt", a > b}, {"gte", a >= b},
        {"lt", a < b}, {"lte", a <= b}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(op, all[i].name) == 0) return all[i].is_so;
    }
    *is_known = false;
    return false;
}
