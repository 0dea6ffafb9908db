/* Drafted = serial over the built-in model, whatever becomes of the drafts: the model drafts, then the
 * first 0 to 5 of each block are made right and the next one wrong, for replies at temperature 0 and
 * above, with penalties, bias, bans, stop tokens and a guide that limits what may come by what came.
 * The drafted replies are sampled from short lists of the rows, as a device gives them, the serial ones
 * from whole rows. Tokens, log probabilities and the reason of the end are compared bit for bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/model/model.h"
#include "engine/run/run.h"
#include "kernels/kernels.h"
#include "tests/harness/vectors.h"

enum { PAGE = 128, CONTEXT = 512, REPLY = 40, N_ASKS = 8, MAX_PROMPT = 150, MASK_WORDS = 2048 };

typedef struct reply {
    int32_t tokens[REPLY];
    float logprobs[REPLY];
    int32_t n, end;
} reply;

/* Drafts that are right for a while: what the serial reply was is known. */
typedef struct forced {
    run_source source; /* the model's, with its drafts changed */
    run_source inner;
    const reply *serial;
    int32_t n_prompt;
    int32_t n_right;
    int32_t tokens[16];
    float confidence[16];
    shortlist *lists; /* [max_logit_rows] of the last step */
    const float *rows;
    int32_t n_listed, n_fetched;
} forced;

static vectors v;
static forced f;
static int32_t n_vocab;

/* Lists in place of rows. */
static int step(void *self, const batch_plan *plan, step_result *out, err *e) {
    kernel_context k = {0};
    (void)self;
    int rc = f.inner.step(f.inner.self, plan, out, e);
    if (rc != OK || plan->form != PLAN_FORM_LISTED) return rc;
    kernels_cpu()->shortlist(
        &k, &(shortlist_args){out->logits, plan->asks, f.lists, out->n_logit_rows, n_vocab});
    f.rows = out->logits;
    f.n_listed += out->n_logit_rows;
    out->logits = NULL;
    out->lists = f.lists;
    return OK;
}

static int logit_row(void *self, int i, const float **row, err *e) {
    (void)self;
    (void)e;
    f.n_fetched++;
    *row = f.rows + (size_t)i * (size_t)n_vocab;
    return OK;
}

static int commit(void *self, int slot, int64_t new_len, err *e) {
    (void)self;
    return f.inner.commit(f.inner.self, slot, new_len, e);
}

static int slot_pages(void *self, int slot, const int32_t *pages, int n, err *e) {
    (void)self;
    return f.inner.slot_pages(f.inner.self, slot, pages, n, e);
}

static void slot_reset(void *self, int slot) {
    (void)self;
    f.inner.slot_reset(f.inner.self, slot);
}

/* The block of the model, then the serial reply up to n_right, then something else. */
static int draft(void *self, const draft_request *q, int n, draft_result *out, err *e) {
    (void)self;
    int rc = f.inner.draft(f.inner.self, q, n, out, e);
    if (rc != OK) return rc;
    int32_t at = (int32_t)(model_slot_len(f.inner.self, q->slot) - f.n_prompt) + 1;
    for (int32_t i = 0; i < out->block; i++) {
        bool is_known = at + i < f.serial->n;
        int32_t right = is_known ? f.serial->tokens[at + i] : out->tokens[i];
        f.tokens[i] = i < f.n_right ? right : (right + 1) % n_vocab;
        f.confidence[i] = 12.0f;
    }
    out->tokens = f.tokens;
    out->confidence = f.confidence;
    return OK;
}

/* ---- what is asked ---- */

/* After a token of one kind only tokens of the next may come: a grammar in small. */
typedef struct guide_state {
    uint64_t mask[MASK_WORDS];
    int32_t last;
} guide_state;

static int guide_before(void *ctx, run_guide_view *view) {
    guide_state *s = ctx;
    memset(s->mask, 0, sizeof s->mask);
    for (int32_t i = 0; i < n_vocab && i < MASK_WORDS * 64; i++) {
        if (i % 5 == (s->last + 1) % 5 || i % 7 == 0) s->mask[i / 64] |= (uint64_t)1 << (i % 64);
    }
    view->mask = s->mask;
    return OK;
}

static void guide_after(void *ctx, int32_t token) {
    ((guide_state *)ctx)->last = token;
}

static int32_t make_prompt(int i, int32_t *prompt) {
    int32_t n = 10 + i * 17;
    for (int32_t k = 0; k < n; k++) {
        uint64_t word = rand_keyed((uint64_t)i, (uint64_t)k, 1) % 60;
        prompt[k] = (int32_t)(100 + rand_keyed(9, word, 2) % 3000);
    }
    return n;
}

static reply answer(run *r, int i) {
    int32_t prompt[MAX_PROMPT];
    int32_t stops[40];
    const sample_bias bias[2] = {{300, 4.0f}, {301, -100.0f}};
    const int32_t banned[2] = {500, 501};
    reply out = {0};
    run_event ev = {0};
    ticket *t = NULL;
    err e = ERR_INIT;
    guide_state *state = mem_alloc(sizeof *state);
    const run_guide guide = {state, guide_before, guide_after, mem_free};
    run_request q = {.id = "draft", .prompt = prompt, .max_tokens = REPLY, .stop_ids = stops};
    q.n_prompt = make_prompt(i, prompt);
    sample_params_init(&q.sampling);
    q.sampling.temperature = i % 2 == 0 ? 0.0f : 0.9f;
    q.sampling.top_p = i % 4 == 3 ? 0.9f : 1.0f;
    q.sampling.seed = 40 + (uint64_t)i;
    q.sampling.n_top = 0;
    if (i == 2 || i == 3) {
        q.sampling.presence_penalty = 0.8f;
        q.sampling.repetition_penalty = 1.2f;
        q.sampling.bias = bias;
        q.sampling.n_bias = 2;
        q.banned = banned;
        q.n_banned = 2;
    }
    for (int32_t k = 0; k < 40; k++) {
        stops[k] = 100 + k * 71;
    }
    q.n_stop_ids = i == 4 || i == 5 ? 40 : 0;
    q.guide = i >= 6 ? &guide : NULL;
    if (run_submit(r, &q, &t, &e) != OK) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
    if (q.guide == NULL) mem_free(state);
    while (ticket_next(t, &ev, 120000) == OK && ev.kind == RUN_EVENT_TOKEN) {
        out.logprobs[out.n] = ev.pick.logprob;
        out.tokens[out.n++] = ev.pick.token;
    }
    out.end = ev.end;
    ticket_free(t);
    return out;
}

static bool same(const reply *a, const reply *b) {
    return a->n == b->n && a->end == b->end &&
           memcmp(a->tokens, b->tokens, (size_t)a->n * sizeof(int32_t)) == 0 &&
           memcmp(a->logprobs, b->logprobs, (size_t)a->n * sizeof(float)) == 0;
}

static run *open_run(const run_source *source, bool no_drafts) {
    run *r = NULL;
    err e = ERR_INIT;
    run_options o = {.source = source, .no_cache = true, .no_drafts = no_drafts};
    if (run_open(&o, &r, &e) == OK) return r;
    fprintf(stderr, "%s\n", e.msg);
    exit(1);
}

static void check(const reply *want, int n_right) {
    run *r = open_run(&f.source, false);
    run_stats stats;
    char id[64], got[160];
    f.n_right = n_right;
    for (int i = 0; i < N_ASKS; i++) {
        int32_t prompt[MAX_PROMPT];
        f.serial = &want[i];
        f.n_prompt = make_prompt(i, prompt);
        reply a = answer(r, i);
        snprintf(id, sizeof id, "ask %d, %d drafts of a block right", i, n_right);
        snprintf(got, sizeof got, "%d tokens, end %d", a.n, a.end);
        if (same(&a, &want[i])) {
            vectors_pass(&v);
        } else {
            vectors_fail(&v, id, "the serial reply", got);
        }
    }
    run_stats_get(r, &stats);
    bool is_forced = n_right == 0 || stats.accepted_at[n_right - 1] > 0;
    snprintf(got, sizeof got, "%llu of %llu kept", (unsigned long long)stats.n_accepted,
        (unsigned long long)stats.n_drafted);
    if (stats.n_drafted > 0 && is_forced) {
        vectors_pass(&v);
    } else {
        vectors_fail(&v, id, "so many drafts of a block kept", got);
    }
    run_close(r);
}

int main(void) {
    static reply want[N_ASKS];
    const char *weights = getenv("DEMO_WEIGHTS");
    const char *dir = dir_exists("templates/demo-model") ? "templates/demo-model" : weights;
    model *m = NULL;
    err e = ERR_INIT;
    if (dir == NULL) {
        vectors_skip(&v, "all", "no built-in model here");
        return vectors_end(&v);
    }
    model_options o = {.dir = dir,
        .n_slots = 1,
        .n_pages = CONTEXT / PAGE,
        .page_tokens = PAGE,
        .max_rows = 64,
        .max_context = CONTEXT};
    if (model_open(&o, &m, &e) != OK) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    source_from_model(m, &f.inner);
    n_vocab = f.inner.info.n_vocab;
    f.lists = mem_array((size_t)f.inner.info.max_logit_rows, sizeof *f.lists);
    f.source = (run_source){.self = &f,
        .info = f.inner.info,
        .step = step,
        .draft = draft,
        .logit_row = logit_row,
        .commit = commit,
        .slot_pages = slot_pages,
        .slot_reset = slot_reset};
    run *r = open_run(&f.inner, true);
    for (int i = 0; i < N_ASKS; i++) {
        want[i] = answer(r, i);
    }
    run_close(r);
    for (int n_right = 0; n_right <= f.inner.info.block; n_right++) {
        check(want, n_right);
    }
    printf("%d of %d listed rows were fetched\n", f.n_fetched, f.n_listed);
    if (f.n_listed == 0 || f.n_fetched > f.n_listed * 3 / 4) {
        vectors_fail(&v, "lists", "most serve", "most do not");
    }
    mem_free(f.lists);
    model_close(m);
    return vectors_end(&v);
}
