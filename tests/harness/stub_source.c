#include "tests/harness/stub_source.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/run/run.h"

#define STUB_MAX_ROWS 16
#define STUB_LOGIT_LOW (-1e6f)
#define STUB_LOGIT_HIGH 40.0f
/* Wishes so far apart that no temperature mixes them. */
#define STUB_LOGIT_FIRST 8000.0f
#define STUB_LOGIT_STEP 400.0f
/* Wishes that stand at the same time. */
#define STUB_AHEAD 16

struct stub {
    stub_script script;
    run_source source;
    int32_t n_prompt[RUN_MAX_SLOTS];
    float *logits; /* [n_slots][n_vocab] */
    int32_t first_logit[RUN_MAX_SLOTS];
    stub_list wishes[RUN_MAX_SLOTS];
    int32_t cursor[RUN_MAX_SLOTS]; /* into wishes */
    uint8_t is_finite[RUN_MAX_SLOTS];
    _Atomic int most_spans;
};

static void begin(void *self, int slot, const int32_t *prompt, int32_t n_prompt) {
    stub *s = self;
    s->n_prompt[slot] = n_prompt;
    s->cursor[slot] = 0;
    s->wishes[slot] = (stub_list){s->script.preferred, s->script.n_preferred};
    if (s->script.choose != NULL) {
        s->wishes[slot] = s->script.choose(s->script.choose_ctx, prompt, n_prompt);
    }
}

static void reset(void *self, int slot) {
    (void)self;
    (void)slot;
}

static int pages(void *self, int slot, const int32_t *list, int n, err *e) {
    (void)self;
    (void)slot;
    (void)list;
    (void)n;
    (void)e;
    return OK;
}

static int commit(void *self, int slot, int64_t new_len, err *e) {
    (void)self;
    (void)slot;
    (void)new_len;
    (void)e;
    return OK;
}

/* The token at a place of the script; inside the prompt its first; -1 behind its end. */
static int32_t token_at(const stub *s, int64_t i) {
    if (i < 0) i = 0;
    int64_t n_times = s->script.n_times > 0 ? s->script.n_times : 1;
    if (i >= n_times * s->script.n_pieces) return -1;
    return s->script.n_base + (int32_t)(i % s->script.n_pieces);
}

/* A token was taken: the wishes before it are over. */
static void follow(stub *s, const plan_span *span) {
    int32_t *cursor = &s->cursor[span->slot];
    if (span->kind == PLAN_PROMPT) return;
    const stub_list *wishes = &s->wishes[span->slot];
    for (int32_t i = *cursor; i < wishes->n && i < *cursor + STUB_AHEAD; i++) {
        if (wishes->tokens[i] != span->tokens[0]) continue;
        *cursor = i + 1;
        return;
    }
}

static void fill_preferred(stub *s, int32_t i_row, int slot) {
    float *row = s->logits + (size_t)i_row * (size_t)s->source.info.n_vocab;
    s->is_finite[i_row] = 1;
    for (int32_t i = 0; i < s->source.info.n_vocab; i++) {
        row[i] = STUB_LOGIT_LOW;
    }
    row[s->script.eos_id] = 1.0f;
    for (int32_t k = STUB_AHEAD; k-- > 0;) {
        int32_t i = s->cursor[slot] + k;
        if (i < s->wishes[slot].n)
            row[s->wishes[slot].tokens[i]] = STUB_LOGIT_FIRST - STUB_LOGIT_STEP * (float)k;
    }
}

static int fill_row(stub *s, int32_t i_row, int64_t i_token, err *e) {
    float *row = s->logits + (size_t)i_row * (size_t)s->source.info.n_vocab;
    int32_t token = token_at(s, i_token);
    s->is_finite[i_row] = 1;
    if (token < 0 && s->script.end == STUB_END_ERROR) s->is_finite[i_row] = 0;
    if (token < 0 && s->script.end == STUB_END_PEER_LOST) {
        return err_set(e, ERR_PEER, "rank 1 does not answer");
    }
    for (int32_t i = 0; i < s->source.info.n_vocab; i++) {
        row[i] = STUB_LOGIT_LOW;
    }
    row[token >= 0 ? token : s->script.eos_id] = STUB_LOGIT_HIGH;
    return OK;
}

/* The rows of a span that give logits: its last, or all of them. */
static int fill_rows(stub *s, const plan_span *span, int32_t *n_logits, err *e) {
    int32_t from = span->logits == PLAN_LOGITS_ALL ? 0 : span->n_rows - 1;
    bool has_wishes = s->script.preferred != NULL || s->script.choose != NULL;
    if (has_wishes) follow(s, span);
    for (int32_t i = from; i < span->n_rows; i++) {
        int64_t i_token = span->pos + i + 1 - s->n_prompt[span->slot];
        int32_t i_row = (*n_logits)++;
        int rc = OK;
        if (has_wishes) {
            fill_preferred(s, i_row, span->slot);
        } else {
            rc = fill_row(s, i_row, i_token, e);
        }
        if (rc != OK) return rc;
    }
    return OK;
}

static void take_time(const stub *s, const plan_span *span) {
    int32_t n = s->n_prompt[span->slot];
    int32_t ms = s->script.delay_ms;
    if (span->kind == PLAN_PROMPT) {
        ms = (int32_t)((int64_t)s->script.prefill_ms * span->n_rows / n);
    }
    if (ms > 0) sleep_ms((uint64_t)ms); /* a sleep of nothing still costs a timer */
}

static int step(void *self, const batch_plan *plan, step_result *out, err *e) {
    stub *s = self;
    int32_t n_logits = 0;
    bool has_slept = false;
    memset(out, 0, sizeof *out);
    while (s->script.is_held != NULL && *s->script.is_held != 0) {
        sleep_ms(1);
    }
    if (s->script.n_allowed != NULL) {
        while (*s->script.n_allowed <= 0)
            sleep_ms(1);
        --*s->script.n_allowed;
    }
    if (plan->n_spans > s->most_spans) s->most_spans = plan->n_spans;
    for (int32_t i = 0; i < plan->n_spans; i++) {
        const plan_span *span = &plan->spans[i];
        s->first_logit[i] = -1;
        if (!has_slept || span->kind == PLAN_PROMPT) take_time(s, span);
        has_slept = true;
        out->n_rows += span->n_rows;
        if (span->logits == PLAN_LOGITS_NONE) continue;
        s->first_logit[i] = n_logits;
        int rc = fill_rows(s, span, &n_logits, e);
        if (rc != OK) return rc;
    }
    out->n_logit_rows = n_logits;
    out->logits = s->logits;
    out->first_logit = s->first_logit;
    out->is_finite = s->is_finite;
    return OK;
}

stub *stub_new(const stub_script *script) {
    stub *s = mem_alloc(sizeof *s);
    s->script = *script;
    int32_t n_slots = script->n_slots > 0 ? script->n_slots : 4;
    int64_t context = script->max_context > 0 ? script->max_context : 8192;
    int32_t n_vocab = script->n_base + script->n_pieces;
    s->source = (run_source){.self = s,
        .info = {.n_vocab = n_vocab,
            .n_slots = n_slots,
            .n_pages = n_slots * (int32_t)(context / 64 + 1),
            .page_tokens = 64,
            .max_rows = script->max_rows > 0 ? script->max_rows : STUB_MAX_ROWS,
            .max_logit_rows = n_slots,
            .max_context = context},
        .step = step,
        .commit = commit,
        .slot_pages = pages,
        .slot_reset = reset,
        .slot_begin = begin};
    s->logits = mem_array((size_t)n_slots * (size_t)n_vocab, sizeof *s->logits);
    return s;
}

void stub_free(stub *s) {
    if (s == NULL) return;
    mem_free(s->logits);
    mem_free(s);
}

int stub_most_spans(const stub *s) {
    return s->most_spans;
}

const run_source *stub_source(const stub *s) {
    return &s->source;
}
