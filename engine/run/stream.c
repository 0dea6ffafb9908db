#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/run_internal.h"

/* A waiting request that lacks pages lets at most so many younger ones pass. */
#define ADMIT_PASS_MAX 16
/* Before anything was copied: most matches go on for a while. */
#define COPY_RATE_FIRST 0.8

static int32_t pages_for(const run *r, int32_t n_tokens) {
    return (n_tokens + r->info.page_tokens - 1) / r->info.page_tokens;
}

void ticket_end(run *r, ticket *t, int end, int32_t token, const err *why) {
    run_event event = {.kind = RUN_EVENT_END, .end = end, .pick = {.token = token}};
    if (why != NULL) {
        t->failure = *why;
    }
    _Atomic uint64_t *counter = end == RUN_END_ERROR ? &r->n_failed : &r->n_done;
    counter = end == RUN_END_CANCELLED ? &r->n_cancelled : counter;
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
    atomic_store_explicit(&t->last_ns, run_now(r), memory_order_relaxed);
    atomic_store(&t->phase, RUN_PHASE_DONE);
    atomic_fetch_sub(&r->n_inside, 1); /* who reads of the end may ask again */
    ticket_push(t, &event);
    ticket_leave(t);
}

static void give_back_pages(run *r, stream *s) {
    for (int32_t i = 0; i < s->n_pages; i++) {
        page_pool_put(r->pool, s->pages[i]);
    }
    page_pool_unreserve(r->pool, s->n_reserved_pages);
    s->n_pages = 0;
    s->n_reserved_pages = 0;
}

void stream_end(run *r, stream *s, int end, int32_t token, const err *why) {
    int slot = (int)(s - r->streams);
    ticket *t = s->t;
    reuse_end(r, s, end, why);
    r->source->slot_reset(r->source->self, slot);
    give_back_pages(r, s);
    s->t = NULL;
    atomic_fetch_sub(&r->n_running, 1);
    ticket_end(r, t, end, token, why);
}

int32_t stream_take_page(run *r, stream *s) {
    CHECK(s->n_reserved_pages > 0);
    while (page_pool_lacks_free(r->pool)) {
        bool has_given = r->prefixes != NULL && prefix_evict(r->prefixes);
        CHECK(has_given); /* a reservation is covered by free and idle pages */
    }
    s->n_reserved_pages--;
    return page_pool_take(r->pool);
}

int stream_grow(run *r, stream *s, int32_t n, err *e) {
    int32_t need = pages_for(r, n);
    if (need <= s->n_pages) return OK;
    CHECK(need - s->n_pages <= s->n_reserved_pages);
    while (s->n_pages < need) {
        s->pages[s->n_pages++] = stream_take_page(r, s);
    }
    return r->source->slot_pages(r->source->self, (int)(s - r->streams), s->pages, s->n_pages, e);
}

static void start_stream(run *r, stream *s, ticket *t, int32_t n_reserved) {
    int slot = (int)(s - r->streams);
    s->t = t;
    s->n_known = t->n_prompt;
    s->n_done = 0;
    s->n_pages = 0;
    s->n_reserved_pages = n_reserved;
    s->n_draft = 0;
    s->is_open = false;
    draft_policy_reset(&s->policy, &r->draft_history[!sample_params_greedy(&t->sampling)]);
    copy_draft_reset(s->copies);
    s->copy_rate = COPY_RATE_FIRST;
    s->is_copy = false;
    r->source->slot_reset(r->source->self, slot);
    if (r->source->slot_begin != NULL) {
        r->source->slot_begin(r->source->self, slot, t->tokens, t->n_prompt);
    }
    reuse_start(r, s);
    atomic_store_explicit(&t->start_ns, run_now(r), memory_order_relaxed);
    atomic_store_explicit(&t->phase, RUN_PHASE_PREFILL, memory_order_relaxed);
    /* In this order, so that running + waiting never looks smaller than it is. */
    atomic_fetch_add(&r->n_running, 1);
    atomic_fetch_sub(&r->n_waiting, 1);
}

static stream *free_stream(run *r) {
    for (int32_t i = 0; i < r->info.n_slots; i++) {
        if (r->streams[i].t == NULL) return &r->streams[i];
    }
    return NULL;
}

static void take_intake(run *r) {
    ticket *newest = atomic_exchange(&r->intake, NULL);
    ticket *oldest = NULL;
    while (newest != NULL) {
        ticket *next = newest->next_intake;
        newest->next_intake = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest != NULL) {
        ticket *next = oldest->next_intake;
        CHECK(r->n_wait_list < r->waiting_cap);
        r->waiting[r->n_wait_list++] = oldest;
        oldest = next;
    }
}

static void remove_waiting(run *r, int32_t i) {
    r->n_wait_list--;
    memmove(&r->waiting[i], &r->waiting[i + 1], (size_t)(r->n_wait_list - i) * sizeof *r->waiting);
}

/* Index of the first waiting request of a priority whose pages can be reserved; -1 if none may
 * start now. */
static int32_t pick_waiting(run *r, int priority, int32_t *n_reserved) {
    for (int32_t i = 0; i < r->n_wait_list; i++) {
        ticket *t = r->waiting[i];
        if (t->priority != priority || reuse_should_wait(r, t)) continue;
        int32_t need = pages_for(r, t->n_prompt + t->max_tokens);
        if (page_pool_reserve(r->pool, need)) {
            *n_reserved = need;
            return i;
        }
        if (t->n_passed >= ADMIT_PASS_MAX) return -1;
    }
    return -1;
}

void run_admit(run *r) {
    take_intake(r);
    for (stream *s; r->n_wait_list > 0 && (s = free_stream(r)) != NULL;) {
        int32_t n_reserved = 0;
        int32_t i = pick_waiting(r, RUN_PRIORITY_NORMAL, &n_reserved);
        if (i < 0) {
            i = pick_waiting(r, RUN_PRIORITY_BACKGROUND, &n_reserved);
        }
        if (i < 0) return;
        ticket *t = r->waiting[i];
        for (int32_t j = 0; j < i; j++) {
            r->waiting[j]->n_passed += r->waiting[j]->priority == t->priority;
        }
        remove_waiting(r, i);
        start_stream(r, s, t, n_reserved);
    }
}

void run_cancel_sweep(run *r, bool is_aborting) {
    static const err shutting_down = {.code = ERR_CANCELLED, .msg = "the server is shutting down"};
    bool has_failed = atomic_load(&r->has_failed) != 0;
    r->has_swept_failure = has_failed;
    const err *why = is_aborting ? &shutting_down : has_failed ? &r->failure : NULL;
    take_intake(r);
    for (int32_t i = 0; i < r->n_wait_list; i++) {
        ticket *t = r->waiting[i];
        bool is_cancelled = atomic_load_explicit(&t->is_cancelled, memory_order_relaxed) != 0;
        if (!is_cancelled && why == NULL) continue;
        remove_waiting(r, i--);
        atomic_fetch_sub(&r->n_waiting, 1);
        ticket_end(
            r, t, is_cancelled ? RUN_END_CANCELLED : RUN_END_ERROR, -1, is_cancelled ? NULL : why);
    }
    for (int32_t i = 0; i < r->info.n_slots; i++) {
        stream *s = &r->streams[i];
        if (s->t == NULL) continue;
        bool is_cancelled = atomic_load_explicit(&s->t->is_cancelled, memory_order_relaxed) != 0;
        if (is_cancelled) {
            stream_end(r, s, RUN_END_CANCELLED, -1, NULL);
        } else if (why != NULL) {
            stream_end(r, s, RUN_END_ERROR, -1, why);
        }
    }
}
