#include "tests/harness/paged_toy.h"

#include <limits.h>
#include <math.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/run/run.h"

enum { WINDOW = 8, ROLLBACK = 16, RING = WINDOW + ROLLBACK, NO_TOKEN = -7 };

typedef struct toy_slot {
    int64_t len, final_len, high, floor;
    int32_t *table;
    int n_pages;
    int32_t ring[RING];
    bool is_bad;
    int64_t i_step; /* the last one with a row of its own reply; 0: none */
} toy_slot;

typedef struct toy_snapshot {
    int64_t len;
    int32_t window[WINDOW];
    int32_t is_bad;
} toy_snapshot;

struct paged_toy {
    paged_toy_options o;
    run_source source;
    toy_slot slots[RUN_MAX_SLOTS];
    int32_t *pages; /* [n_pages][page_tokens] */
    float *logits;
    int32_t *draft_tokens;
    float *draft_confidence;
    int32_t first[RUN_MAX_SLOTS];
    uint8_t *is_finite;
    int n_logits_cap;
    _Atomic int fail_code, slow_ms;
    _Atomic int n_begun, n_allowed; /* steps; those from n_allowed on wait */
    _Atomic int64_t n_prompt_rows, n_prefetched;
    int64_t i_step;
    _Atomic uint64_t now_ns, longest_gap_ns;
    int32_t block;
};

static int32_t *place(paged_toy *t, const toy_slot *s, int64_t pos) {
    int64_t page = s->table[pos / t->o.page_tokens];
    return &t->pages[page * t->o.page_tokens + pos % t->o.page_tokens];
}

/* All that the row at pos depends on. */
static uint64_t row_hash(paged_toy *t, const toy_slot *s, int64_t pos) {
    uint64_t h = 88172645463325252u;
    for (int64_t p = 0; p <= pos; p++) {
        h = (h ^ (uint64_t)(uint32_t)*place(t, s, p)) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    for (int64_t p = pos - WINDOW + 1; p <= pos; p++) {
        if (p >= 0) h = rand_keyed(h, (uint64_t)p, (uint64_t)(uint32_t)s->ring[p % RING]);
    }
    return h;
}

static void scores(uint64_t hash, float *row) {
    for (int i = 0; i < PAGED_TOY_VOCAB; i++) {
        row[i] = (float)(log(rand_keyed_uniform(hash, 0, (uint64_t)i)) * -2.0);
    }
}

static int put_token(paged_toy *t, toy_slot *s, int32_t token, err *e) {
    if (s->len >= (int64_t)s->n_pages * t->o.page_tokens) {
        return err_set(e, ERR_ARG, "no page for position %lld", (long long)s->len);
    }
    if (s->len == 0) s->is_bad = token == PAGED_TOY_BAD;
    *place(t, s, s->len) = token;
    s->ring[s->len % RING] = token;
    s->len++;
    if (s->high < s->len) s->high = s->len;
    return OK;
}

static int take_span(paged_toy *t, const plan_span *span, int i_span, step_result *out, err *e) {
    toy_slot *s = &t->slots[span->slot];
    t->first[i_span] = -1;
    if (span->pos != s->len || s->final_len != s->len) {
        return err_set(e, ERR_ARG, "slot %d is at %lld, not %lld", span->slot, (long long)s->len,
            (long long)span->pos);
    }
    for (int32_t i = 0; i < span->n_rows; i++) {
        int rc = put_token(t, s, span->tokens[i], e);
        if (rc != OK) return rc;
        bool wants = span->logits == PLAN_LOGITS_ALL ||
                     (span->logits == PLAN_LOGITS_LAST && i == span->n_rows - 1);
        if (!wants) continue;
        CHECK(out->n_logit_rows < t->n_logits_cap);
        if (t->first[i_span] < 0) t->first[i_span] = out->n_logit_rows;
        t->is_finite[out->n_logit_rows] = !s->is_bad || span->kind == PLAN_PROMPT;
        scores(
            row_hash(t, s, s->len - 1), t->logits + (size_t)out->n_logit_rows++ * PAGED_TOY_VOCAB);
    }
    if (span->kind != PLAN_VERIFY) s->final_len = s->len;
    if (span->kind == PLAN_PROMPT) atomic_fetch_add(&t->n_prompt_rows, span->n_rows);
    out->n_rows += span->n_rows;
    return OK;
}

/* The clock goes on; how long running streams had to wait. */
static void pass_time(paged_toy *t, const batch_plan *plan) {
    const toy_cost *c = &t->o.cost;
    double ns = (double)c->step_ns;
    for (int i = 0; i < plan->n_spans; i++) {
        const plan_span *s = &plan->spans[i];
        double deep = ((double)c->prompt_row_ns_at_64k - (double)c->prompt_row_ns) / 65536.0;
        bool is_prompt = s->kind == PLAN_PROMPT;
        double row =
            is_prompt ? (double)c->prompt_row_ns + deep * (double)s->pos : (double)c->row_ns;
        ns += row * s->n_rows;
    }
    uint64_t before = atomic_load(&t->now_ns);
    atomic_store(&t->now_ns, before + (uint64_t)ns);
    t->i_step++;
    for (int i = 0; i < plan->n_spans; i++) {
        toy_slot *s = &t->slots[plan->spans[i].slot];
        if (plan->spans[i].kind == PLAN_PROMPT) continue;
        if (s->i_step == t->i_step - 1 && (uint64_t)ns > atomic_load(&t->longest_gap_ns)) {
            atomic_store(&t->longest_gap_ns, (uint64_t)ns);
        }
        s->i_step = t->i_step;
    }
}

static int toy_step(void *self, const batch_plan *plan, step_result *out, err *e) {
    paged_toy *t = self;
    int i_step = atomic_fetch_add(&t->n_begun, 1);
    while (i_step >= atomic_load(&t->n_allowed)) {
        sleep_ms(1);
    }
    int code = atomic_exchange(&t->fail_code, 0);
    int ms = atomic_load(&t->slow_ms);
    memset(out, 0, sizeof *out);
    if (ms > 0) sleep_ms((uint64_t)ms);
    if (code != 0) return err_set(e, code, "injected");
    for (int i = 0; i < plan->n_spans; i++) {
        int rc = take_span(t, &plan->spans[i], i, out, e);
        if (rc != OK) return rc;
    }
    pass_time(t, plan);
    out->logits = t->logits;
    out->first_logit = t->first;
    out->is_finite = t->is_finite;
    return OK;
}

/* The greedy path by stepping a private copy of the newest window, with a mistake now and then. */
static int toy_draft(void *self, const draft_request *requests, int n, draft_result *out, err *e) {
    paged_toy *t = self;
    float row[PAGED_TOY_VOCAB];
    for (int i = 0; i < n; i++) {
        toy_slot *s = &t->slots[requests[i].slot];
        toy_slot kept = *s;
        int32_t token = requests[i].token;
        for (int j = 0; j < t->block; j++) {
            bool is_wrong = t->o.n_right > 0 && j == t->o.n_right - 1;
            bool fits = s->len < (int64_t)s->n_pages * t->o.page_tokens;
            if (fits && put_token(t, s, token, e) == OK) {
                uint64_t h = row_hash(t, s, s->len - 1);
                scores(h, row);
                token = 0;
                for (int32_t k = 1; k < PAGED_TOY_VOCAB; k++) {
                    if (row[k] > row[token]) token = k;
                }
                is_wrong |= t->o.n_right == 0 && h % 5 == 0;
                if (is_wrong) token = (token + 1) % PAGED_TOY_VOCAB;
            }
            t->draft_tokens[i * t->block + j] = token;
            t->draft_confidence[i * t->block + j] = t->o.n_right > 0 ? 12.0f : 2.0f;
        }
        *s = kept;
    }
    *out = (draft_result){.n_requests = n,
        .block = t->block,
        .tokens = t->draft_tokens,
        .confidence = t->draft_confidence};
    return OK;
}

static int toy_commit(void *self, int slot, int64_t new_len, err *e) {
    paged_toy *t = self;
    toy_slot *s = &t->slots[slot];
    if (new_len < s->final_len || new_len > s->len) return err_set(e, ERR_ARG, "commit");
    s->len = new_len;
    s->final_len = new_len;
    return OK;
}

static int toy_pages(void *self, int slot, const int32_t *pages, int n, err *e) {
    paged_toy *t = self;
    (void)e;
    memcpy(t->slots[slot].table, pages, (size_t)n * sizeof *pages);
    t->slots[slot].n_pages = n;
    return OK;
}

static void toy_reset(void *self, int slot) {
    paged_toy *t = self;
    int32_t *table = t->slots[slot].table;
    t->slots[slot] = (toy_slot){.table = table};
    for (int i = 0; i < RING; i++) {
        t->slots[slot].ring[i] = NO_TOKEN;
    }
}

static int toy_save(void *self, int slot, int64_t len, void *blob, err *e) {
    paged_toy *t = self;
    toy_slot *s = &t->slots[slot];
    toy_snapshot shot = {.len = len, .is_bad = s->is_bad};
    if (s->final_len != s->len || len > s->len || len < s->floor || len < s->high - ROLLBACK) {
        return err_set(e, ERR_ARG, "save at %lld of %lld", (long long)len, (long long)s->len);
    }
    for (int i = 0; i < WINDOW; i++) {
        int64_t p = len - WINDOW + i;
        shot.window[i] = p >= 0 ? s->ring[p % RING] : NO_TOKEN;
    }
    memcpy(blob, &shot, sizeof shot);
    return OK;
}

static int toy_load(void *self, int slot, const void *blob, err *e) {
    paged_toy *t = self;
    toy_slot *s = &t->slots[slot];
    toy_snapshot shot;
    memcpy(&shot, blob, sizeof shot);
    if (shot.len < 0 || shot.len > t->o.max_context) return err_set(e, ERR_MISMATCH, "snapshot");
    s->len = s->final_len = s->high = s->floor = shot.len;
    s->is_bad = shot.is_bad != 0;
    for (int i = 0; i < WINDOW; i++) {
        int64_t p = shot.len - WINDOW + i;
        if (p >= 0) s->ring[p % RING] = shot.window[i];
    }
    return OK;
}

static size_t page_bytes(const paged_toy *t) {
    return (size_t)t->o.page_tokens * sizeof(int32_t);
}

static int32_t *page_at(paged_toy *t, int page) {
    return t->pages + (size_t)page * (size_t)t->o.page_tokens;
}

static int toy_page_copy(void *self, int dst, int src, err *e) {
    (void)e;
    memcpy(page_at(self, dst), page_at(self, src), page_bytes(self));
    return OK;
}

static int toy_page_read(void *self, int page, void *out, err *e) {
    (void)e;
    memcpy(out, page_at(self, page), page_bytes(self));
    return OK;
}

static int toy_page_write(void *self, int page, const void *data, err *e) {
    (void)e;
    memcpy(page_at(self, page), data, page_bytes(self));
    return OK;
}

/* Nothing is read ahead; what is said must be possible. */
static void toy_prefetch(void *self, const int32_t *tokens, int32_t n_before, int32_t n) {
    CHECK(n_before >= 0 && n >= 1 && tokens != NULL);
    atomic_fetch_add(&((paged_toy *)self)->n_prefetched, n);
}

static int toy_state_hash(void *self, uint64_t *hash, err *e) {
    paged_toy *t = self;
    (void)e;
    uint64_t h = 1;
    for (int i = 0; i < t->o.n_slots; i++) {
        const toy_slot *s = &t->slots[i];
        h = rand_keyed(h, (uint64_t)s->len, (uint64_t)s->final_len);
        for (int k = 0; k < RING; k++) {
            h = rand_keyed(h, (uint64_t)k, (uint64_t)(uint32_t)s->ring[k]);
        }
    }
    for (int32_t i = 0; i < t->o.n_pages * t->o.page_tokens; i++) {
        h = rand_keyed(h, (uint64_t)(uint32_t)t->pages[i], (uint64_t)i);
    }
    *hash = h;
    return OK;
}

paged_toy *paged_toy_new(const paged_toy_options *o) {
    paged_toy *t = mem_alloc(sizeof *t);
    t->o = *o;
    paged_toy_let_go(t);
    t->block = o->block > 0 ? o->block : PAGED_TOY_BLOCK;
    t->n_logits_cap = o->n_slots * (t->block + 1 + RUN_DRAFT_MAX);
    t->pages = mem_array((size_t)(o->n_pages * o->page_tokens), sizeof *t->pages);
    t->logits = mem_array((size_t)t->n_logits_cap * PAGED_TOY_VOCAB, sizeof *t->logits);
    t->is_finite = mem_array((size_t)t->n_logits_cap, 1);
    t->draft_tokens = mem_array((size_t)(o->n_slots * t->block), sizeof(int32_t));
    t->draft_confidence = mem_array((size_t)(o->n_slots * t->block), sizeof(float));
    for (int i = 0; i < o->n_slots; i++) {
        t->slots[i].table = mem_array((size_t)o->n_pages + 1, sizeof(int32_t));
    }
    t->source = (run_source){.self = t,
        .info = {.n_vocab = PAGED_TOY_VOCAB,
            .n_slots = o->n_slots,
            .n_pages = o->n_pages,
            .page_tokens = o->page_tokens,
            .max_rows = o->max_rows,
            .max_logit_rows = t->n_logits_cap,
            .block = o->has_drafts ? t->block : 0,
            .max_context = o->max_context,
            .snapshot_bytes = sizeof(toy_snapshot),
            .page_bytes = page_bytes(t),
            .layout_hash = 0x746f79u,
            .max_rollback = ROLLBACK},
        .step = toy_step,
        .draft = toy_draft,
        .commit = toy_commit,
        .slot_pages = toy_pages,
        .slot_reset = toy_reset,
        .slot_save = toy_save,
        .slot_load = toy_load,
        .page_copy = toy_page_copy,
        .page_read = toy_page_read,
        .page_write = toy_page_write,
        .prefetch = toy_prefetch,
        .state_hash = toy_state_hash};
    return t;
}

void paged_toy_free(paged_toy *t) {
    if (t == NULL) return;
    for (int i = 0; i < t->o.n_slots; i++) {
        mem_free(t->slots[i].table);
    }
    mem_free(t->pages);
    mem_free(t->logits);
    mem_free(t->is_finite);
    mem_free(t->draft_tokens);
    mem_free(t->draft_confidence);
    mem_free(t);
}

const run_source *paged_toy_source(const paged_toy *t) {
    return &t->source;
}

void paged_toy_fail(paged_toy *t, int code) {
    atomic_store(&t->fail_code, code);
}

void paged_toy_slow(paged_toy *t, int ms_per_step) {
    atomic_store(&t->slow_ms, ms_per_step);
}

void paged_toy_hold_after(paged_toy *t, int n) {
    atomic_store(&t->n_allowed, atomic_load(&t->n_begun) + n);
}

void paged_toy_let_go(paged_toy *t) {
    atomic_store(&t->n_allowed, INT_MAX);
}

int paged_toy_begun(const paged_toy *t) {
    return atomic_load(&t->n_begun);
}

uint64_t paged_toy_now(void *toy) {
    return 1 + atomic_load(&((paged_toy *)toy)->now_ns); /* 0 would mean: not yet */
}

uint64_t paged_toy_longest_gap(const paged_toy *t) {
    return atomic_load(&t->longest_gap_ns);
}

int64_t paged_toy_prompt_rows(const paged_toy *t) {
    return atomic_load(&t->n_prompt_rows);
}

int64_t paged_toy_prefetched(const paged_toy *t) {
    return atomic_load(&((paged_toy *)(uintptr_t)t)->n_prefetched);
}
