/* A constrained reply is the same with drafts and without, alone and beside others, with thinking
 * in front of it and without, and when the request bans what the grammar needs. The source scores
 * tokens at random and drafts the serial reply with mistakes, many of them outside of the grammar. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/run/grammar.h"
#include "engine/run/reply_guide.h"
#include "engine/run/run.h"
#include "tests/harness/grammar_walk.h"

enum { N_SLOTS = 4, BLOCK = 4, PAGE = 16, MAX_LEN = 800, N_PROMPT = 3, BUDGET = 9 };

typedef struct reply {
    int32_t tokens[MAX_LEN];
    int32_t n;
    int end;
    int64_t n_accepted;
} reply;

static tokenizer *tk;
static token_trie *trie;
static sample_bias *bans; /* of the end and of what begins an object; NULL: none */
static int32_t n_bans;
static reply known[N_SLOTS]; /* the serial replies, by the first token of the prompt */

typedef struct toy {
    run_source source;
    int32_t n_vocab;
    uint64_t hash[N_SLOTS][MAX_LEN + 1];
    int64_t len[N_SLOTS];
    int32_t who[N_SLOTS];
    float *logits;
    int32_t first[N_SLOTS];
    uint8_t is_finite[N_SLOTS * (BLOCK + 1)];
    int32_t draft_tokens[N_SLOTS * BLOCK];
    float draft_confidence[N_SLOTS * BLOCK];
} toy;

static void take_span(toy *t, const plan_span *span, int i_span, step_result *out) {
    int s = span->slot;
    t->first[i_span] = -1;
    assert_int_equal(span->pos, t->len[s]);
    if (span->pos == 0) t->who[s] = span->tokens[0];
    for (int32_t i = 0; i < span->n_rows; i++) {
        int64_t p = span->pos + i;
        t->hash[s][p + 1] = rand_keyed(t->hash[s][p], (uint64_t)p, (uint64_t)span->tokens[i]);
        bool wants = span->logits == PLAN_LOGITS_ALL ||
                     (span->logits == PLAN_LOGITS_LAST && i == span->n_rows - 1);
        if (!wants) continue;
        if (t->first[i_span] < 0) t->first[i_span] = out->n_logit_rows;
        float *row = t->logits + (size_t)out->n_logit_rows * (size_t)t->n_vocab;
        for (int32_t k = 0; k < t->n_vocab; k++) {
            row[k] = (float)(rand_keyed_uniform(t->hash[s][p + 1], 1, (uint64_t)k) * 6.0);
        }
        t->is_finite[out->n_logit_rows++] = 1;
    }
    t->len[s] += span->n_rows;
    out->n_rows += span->n_rows;
}

static int toy_step(void *self, const batch_plan *plan, step_result *out, err *e) {
    toy *t = self;
    (void)e;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < plan->n_spans; i++)
        take_span(t, &plan->spans[i], i, out);
    out->logits = t->logits;
    out->first_logit = t->first;
    out->is_finite = t->is_finite;
    return OK;
}

static int toy_draft(void *self, const draft_request *requests, int n, draft_result *out, err *e) {
    toy *t = self;
    (void)e;
    for (int i = 0; i < n; i++) {
        int s = requests[i].slot;
        const reply *r = &known[t->who[s] % N_SLOTS];
        for (int j = 0; j < BLOCK; j++) {
            int64_t at = t->len[s] - N_PROMPT + 1 + j; /* the newest token is not in yet */
            uint64_t h = rand_keyed(t->hash[s][t->len[s]], (uint64_t)j, 7);
            int32_t token = at >= 0 && at < r->n ? r->tokens[at] : 5;
            if (h % 4 == 0) token = (int32_t)(h / 4 % (uint64_t)t->n_vocab);
            t->draft_tokens[i * BLOCK + j] = token;
            t->draft_confidence[i * BLOCK + j] = 2.0f;
        }
    }
    *out = (draft_result){.n_requests = n,
        .block = BLOCK,
        .tokens = t->draft_tokens,
        .confidence = t->draft_confidence};
    return OK;
}

static int toy_commit(void *self, int slot, int64_t new_len, err *e) {
    (void)e;
    ((toy *)self)->len[slot] = new_len;
    return OK;
}

static int toy_pages(void *self, int slot, const int32_t *pages, int n, err *e) {
    (void)self;
    (void)slot;
    (void)pages;
    (void)n;
    (void)e;
    return OK;
}

static void toy_reset(void *self, int slot) {
    toy *t = self;
    t->len[slot] = 0;
    t->hash[slot][0] = 99;
}

static toy *toy_new(int n_slots, bool has_drafts) {
    toy *t = mem_alloc(sizeof *t);
    t->n_vocab = tokenizer_size(tk);
    t->logits = mem_array((size_t)(N_SLOTS * (BLOCK + 1)) * (size_t)t->n_vocab, sizeof(float));
    t->source = (run_source){.self = t,
        .info = {.n_vocab = t->n_vocab,
            .n_slots = n_slots,
            .n_pages = N_SLOTS * (MAX_LEN / PAGE),
            .page_tokens = PAGE,
            .max_rows = 64,
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

static ticket *submit(run *r, grammar *g, int who, bool thinks) {
    const int32_t stop = tokenizer_controls(tk).eos;
    const int32_t prompt[N_PROMPT] = {N_SLOTS * 3 + who, 20, 21};
    err e = ERR_INIT;
    ticket *t = NULL;
    run_guide guide;
    reply_guide_options o = {.tokenizer = tk,
        .run = r,
        .starts_in_reasoning = thinks,
        .value = g,
        .ignores_eos = bans != NULL,
        .thinking_budget = thinks ? BUDGET : -1,
        .max_tokens = 600};
    if (reply_guide_new(&o, &guide, &e) != OK) fail_msg("%s", e.msg);
    run_request q = {.id = "job",
        .prompt = prompt,
        .n_prompt = N_PROMPT,
        .max_tokens = 600,
        .stop_ids = &stop,
        .n_stop_ids = bans != NULL ? 0 : 1,
        .guide = &guide};
    sample_params_init(&q.sampling);
    q.sampling.bias = bans;
    q.sampling.n_bias = n_bans;
    q.sampling.seed = (uint64_t)who + 1;
    q.sampling.temperature = who == 0 ? 0.0f : 1.0f;
    if (run_submit(r, &q, &t, &e) != OK) fail_msg("submit: %s", e.msg);
    return t;
}

static void collect(ticket *t, reply *out) {
    run_event ev;
    run_progress p;
    out->n = 0;
    for (;;) {
        assert_int_equal(ticket_next(t, &ev, 60000), OK);
        if (ev.kind == RUN_EVENT_END) break;
        out->tokens[out->n++] = ev.pick.token;
    }
    out->end = ev.end;
    ticket_progress(t, &p);
    out->n_accepted = p.n_accepted;
    ticket_free(t);
}

/* A clock by which all steps take as long: drafts pay, whatever the machine does besides. */
static uint64_t even_ns(void *ctx) {
    return atomic_fetch_add((_Atomic uint64_t *)ctx, 1000) + 1000;
}

/* All replies, one after the other (n_slots 1) or side by side. */
static void run_all(grammar *g, int n_slots, bool has_drafts, bool thinks, reply *out) {
    toy *t = toy_new(n_slots, has_drafts);
    _Atomic uint64_t clock_ns = 0;
    run_options o = {.source = &t->source, .now_ns = even_ns, .now_ctx = &clock_ns};
    run *r = NULL;
    err e = ERR_INIT;
    ticket *tickets[N_SLOTS];
    if (run_open(&o, &r, &e) != OK) fail_msg("%s", e.msg);
    for (int i = 0; i < N_SLOTS; i++)
        tickets[i] = submit(r, g, i, thinks);
    for (int i = 0; i < N_SLOTS; i++)
        collect(tickets[i], &out[i]);
    run_close(r);
    mem_free(t->logits);
    mem_free(t);
}

/* The text behind the thinking is a whole sentence of the grammar. */
static void check_text(grammar *g, const reply *r, bool thinks) {
    int32_t from = 0;
    int32_t close = tokenizer_controls(tk).think_close;
    buf text = BUF_INIT;
    if (thinks) {
        while (from < r->n && r->tokens[from] != close)
            from++;
        assert_in_range(from, 0, BUDGET);
        from++;
    }
    assert_int_equal(r->end, RUN_END_STOP);
    assert_int_equal(
        tokenizer_decode_bytes(tk, r->tokens + from, (size_t)(r->n - from), &text), OK);
    if (!walk_accepts_bytes(g, tk, buf_cstr(&text), text.len)) fail_msg("%s", buf_cstr(&text));
    buf_release(&text);
}

static void drafts_change_nothing(bool thinks) {
    static const char text[] =
        "{\"type\":\"object\",\"properties\":{\"kind\":{\"enum\":[\"alpha\",\"beta\",\"gamma\"]},"
        "\"n\":{\"type\":\"integer\",\"minimum\":-50,\"maximum\":5000},\"list\":{\"type\":\"array\","
        "\"items\":{\"type\":\"string\",\"maxLength\":9},\"minItems\":2,\"maxItems\":4,"
        "\"uniqueItems\":true}},\"required\":[\"kind\",\"n\",\"list\"],\"additionalProperties\":"
        "false}";
    static reply drafted[N_SLOTS], beside[N_SLOTS];
    json *schema = NULL;
    grammar *g = NULL;
    err e = ERR_INIT;
    int64_t n_accepted = 0;
    assert_int_equal(json_parse(text, sizeof text - 1, NULL, &schema, &e), OK);
    assert_int_equal(grammar_from_schema(trie, schema, &(schema_options){0}, &g, &e), OK);
    run_all(g, 1, false, thinks, known);
    run_all(g, 1, true, thinks, drafted);
    run_all(g, N_SLOTS, true, thinks, beside);
    for (int i = 0; i < N_SLOTS; i++) {
        check_text(g, &known[i], thinks);
        assert_int_equal(drafted[i].n, known[i].n);
        assert_int_equal(beside[i].n, known[i].n);
        size_t n_bytes = (size_t)known[i].n * sizeof known[i].tokens[0];
        assert_memory_equal(drafted[i].tokens, known[i].tokens, n_bytes);
        assert_memory_equal(beside[i].tokens, known[i].tokens, n_bytes);
        n_accepted += drafted[i].n_accepted;
    }
    assert_true(n_accepted > 10); /* drafts were really taken */
    grammar_put(g);
    json_free(schema);
}

static void drafted_equals_serial(void **state) {
    (void)state;
    drafts_change_nothing(false);
}

static void drafted_equals_serial_behind_thinking(void **state) {
    (void)state;
    drafts_change_nothing(true);
}

/* The end is no stop id, and banned like each opening brace: the grammar needs both. */
static void drafted_equals_serial_under_bans(void **state) {
    int32_t n = tokenizer_size(tk);
    (void)state;
    bans = mem_array((size_t)n, sizeof *bans);
    for (int32_t id = 0; id < n; id++) {
        size_t len = 0;
        const char *bytes = tokenizer_bytes(tk, id, &len);
        if (id != tokenizer_controls(tk).eos && (len == 0 || bytes[0] != '{')) continue;
        bans[n_bans++] = (sample_bias){.token = id, .bias = -100.0f};
    }
    drafts_change_nothing(false);
    mem_free(bans);
    bans = NULL;
    n_bans = 0;
}

static int open_all(void **state) {
    err e = ERR_INIT;
    (void)state;
    return walk_tokenizer(&tk, &trie, &e);
}

static int close_all(void **state) {
    (void)state;
    token_trie_free(trie);
    tokenizer_close(tk);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(drafted_equals_serial),
        cmocka_unit_test(drafted_equals_serial_behind_thinking),
        cmocka_unit_test(drafted_equals_serial_under_bans)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
