/* The prefix cache under the scheduler: cached = fresh, who shares with whom, who is given up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/run/run.h"
#include "tests/harness/paged_toy.h"

enum { PAGE = 16, CONTEXT = 1024, REPLY_MAX = 64, WAIT_MS = 120000 };

typedef struct side {
    paged_toy *toy;
    run *run;
} side;

static void open_side(side *s, paged_toy_options to, run_options ro) {
    to.page_tokens = PAGE;
    to.max_context = CONTEXT;
    if (to.max_rows == 0) to.max_rows = 64;
    s->toy = paged_toy_new(&to);
    ro.source = paged_toy_source(s->toy);
    if (ro.mark_tokens == 0) ro.mark_tokens = 4 * PAGE;
    assert_int_equal(run_open(&ro, &s->run, NULL), OK);
}

static void close_side(side *s) {
    run_close(s->run);
    paged_toy_free(s->toy);
}

/* One slot, no cache, no drafts: what everything is compared with. */
static void open_fresh(side *s) {
    open_side(s, (paged_toy_options){.n_slots = 1, .n_pages = CONTEXT / PAGE},
        (run_options){.no_cache = true});
}

typedef struct ask {
    int32_t tokens[CONTEXT];
    int32_t n, max_tokens;
    float temperature;
    uint64_t seed;
    uint8_t salt;
} ask;

typedef struct reply {
    int32_t tokens[REPLY_MAX];
    int n, end;
    int32_t n_cached;
} reply;

static void fill(ask *a, int32_t n, uint64_t seed) {
    a->n = n;
    for (int32_t i = 0; i < n; i++) {
        a->tokens[i] = (int32_t)(rand_keyed(seed, (uint64_t)i, 3) % (PAGED_TOY_VOCAB - 2)) + 2;
    }
    a->max_tokens = 12;
}

static ticket *submit(run *r, const ask *a) {
    const int32_t stop = PAGED_TOY_EOS;
    err e = ERR_INIT;
    ticket *t = NULL;
    run_request q = {.id = "ask",
        .prompt = a->tokens,
        .n_prompt = a->n,
        .max_tokens = a->max_tokens,
        .stop_ids = &stop,
        .n_stop_ids = 1};
    sample_params_init(&q.sampling);
    q.sampling.temperature = a->temperature;
    q.sampling.seed = a->seed;
    q.salt[3] = a->salt;
    if (run_submit(r, &q, &t, &e) != OK) fail_msg("submit: %s", e.msg);
    return t;
}

static reply collect(ticket *t) {
    reply out = {.n = 0};
    run_event ev;
    run_progress p;
    for (;;) {
        assert_int_equal(ticket_next(t, &ev, WAIT_MS), OK);
        if (ev.kind == RUN_EVENT_END) break;
        assert_true(out.n < REPLY_MAX);
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

static void assert_same(const reply *want, const reply *got) {
    assert_int_equal(want->n, got->n);
    assert_int_equal(want->end, got->end);
    assert_memory_equal(want->tokens, got->tokens, (size_t)want->n * sizeof want->tokens[0]);
}

static void cached_equals_fresh_around_page_borders(void **state) {
    (void)state;
    side fresh;
    side cached;
    ask a = {0};
    open_fresh(&fresh);
    open_side(&cached, (paged_toy_options){.n_slots = 2, .n_pages = 128, .has_drafts = true},
        (run_options){0});
    for (int32_t page = 0; page <= 20; page += page < 5 ? 1 : 5) {
        for (int32_t off = -2; off <= 2; off++) {
            int32_t n = page * PAGE + off;
            if (n < 1) continue;
            fill(&a, n, (uint64_t)(n * 7));
            reply want = answer(fresh.run, &a);
            for (int round = 0; round < 3; round++) {
                reply got = answer(cached.run, &a);
                assert_same(&want, &got);
                assert_int_equal(got.n_cached, round > 0 && n > 16 ? n - 1 : 0);
            }
        }
    }
    close_side(&fresh);
    close_side(&cached);
}

static void the_next_turn_reads_only_what_is_new(void **state) {
    (void)state;
    side fresh;
    side cached;
    ask a = {0};
    open_fresh(&fresh);
    open_side(&cached, (paged_toy_options){.n_slots = 2, .n_pages = 128, .has_drafts = true},
        (run_options){0});
    fill(&a, 40, 5);
    int32_t known = 0;
    for (uint64_t turn = 0; turn < 12; turn++) {
        ask more = {0};
        a.temperature = turn % 2 == 0 ? 0.0f : 0.9f;
        a.seed = turn;
        a.max_tokens = (int32_t)(5 + turn * 3);
        reply want = answer(fresh.run, &a);
        reply got = answer(cached.run, &a);
        assert_same(&want, &got);
        assert_int_equal(got.n_cached, known);
        memcpy(a.tokens + a.n, got.tokens, (size_t)got.n * sizeof got.tokens[0]);
        /* Ended by a stop token: the whole reply was computed; by the limit: all but its last. */
        known = a.n + got.n - (got.end == RUN_END_LENGTH);
        a.n += got.n;
        fill(&more, 9, 100 + turn);
        memcpy(a.tokens + a.n, more.tokens, 9 * sizeof more.tokens[0]);
        a.n += 9;
    }
    close_side(&fresh);
    close_side(&cached);
}

/* Random conversations that branch, are edited and repeated, several at once, in pools that are too
 * small to keep them all. */
static void crowd(int32_t n_pages, uint64_t ram, bool has_constant_hash) {
    enum { N_ASKS = 240, BATCH = 8 };
    side fresh;
    side cached;
    static ask asks[BATCH], old[16];
    rand_state rs;
    rand_init(&rs, (uint64_t)n_pages, 2);
    open_fresh(&fresh);
    open_side(&cached, (paged_toy_options){.n_slots = 4, .n_pages = n_pages, .has_drafts = true},
        (run_options){.cache_ram_bytes = ram, .has_constant_hash = has_constant_hash});
    for (int i = 0; i < 16; i++) {
        fill(&old[i], 60 + i * 5, (uint64_t)(i / 4));
    }
    int64_t n_cached = 0;
    for (int n = 0; n < N_ASKS; n += BATCH) {
        ticket *t[BATCH];
        for (int i = 0; i < BATCH; i++) {
            ask *a = &asks[i];
            *a = old[rand_u32(&rs) % 16];
            if (rand_u32(&rs) % 3 == 0) a->n = 1 + (int32_t)(rand_u32(&rs) % (uint32_t)a->n);
            if (rand_u32(&rs) % 3 == 0) a->tokens[rand_u32(&rs) % (uint32_t)a->n] = 5;
            a->max_tokens = 1 + (int32_t)(rand_u32(&rs) % 40);
            a->temperature = rand_u32(&rs) % 2 == 0 ? 0.0f : 0.8f;
            a->seed = rand_u32(&rs);
            t[i] = submit(cached.run, a);
            if (rand_u32(&rs) % 4 == 0) sleep_ms(1);
        }
        for (int i = 0; i < BATCH; i++) {
            reply got = collect(t[i]);
            reply want = answer(fresh.run, &asks[i]);
            assert_same(&want, &got);
            n_cached += got.n_cached;
            if (asks[i].n + got.n > 300) continue;
            ask *next = &old[rand_u32(&rs) % 16];
            *next = asks[i];
            memcpy(next->tokens + next->n, got.tokens, (size_t)got.n * sizeof got.tokens[0]);
            next->n += got.n;
        }
    }
    run_stats stats;
    run_stats_get(cached.run, &stats);
    assert_int_equal(stats.pages_used, 0);
    assert_true(n_cached > 0);
    close_side(&fresh);
    close_side(&cached);
}

static void cached_equals_fresh_in_a_crowd(void **state) {
    (void)state;
    crowd(400, 0, false);
    crowd(64, 0, false);
    crowd(30, 400, false);
}

static void equal_hashes_never_mix_prompts(void **state) {
    (void)state;
    crowd(200, 0, true);
}

static void salts_separate(void **state) {
    (void)state;
    side cached;
    ask a = {0};
    open_side(&cached, (paged_toy_options){.n_slots = 1, .n_pages = 64}, (run_options){0});
    fill(&a, 70, 1);
    answer(cached.run, &a);
    a.salt = 9;
    assert_int_equal(answer(cached.run, &a).n_cached, 0);
    assert_int_equal(answer(cached.run, &a).n_cached, 69);
    a.salt = 0;
    assert_int_equal(answer(cached.run, &a).n_cached, 69);
    close_side(&cached);
}

static void a_branch_point_gets_a_mark(void **state) {
    (void)state;
    side cached;
    ask a = {0};
    open_side(&cached, (paged_toy_options){.n_slots = 1, .n_pages = 128},
        (run_options){.mark_tokens = 1024});
    for (uint64_t i = 0; i < 3; i++) {
        fill(&a, 200, 1); /* a common head of 100 tokens, six whole pages */
        for (int32_t k = 100; k < 200; k++) {
            a.tokens[k] = (int32_t)(2 + (k * (int32_t)(i + 3)) % 50);
        }
        reply got = answer(cached.run, &a);
        assert_int_equal(got.n_cached, i == 2 ? 96 : 0);
    }
    close_side(&cached);
}

/* Two long conversations take turns while small questions come in between, in a pool that holds
 * little more than both. */
static void long_sessions_outlive_helpers(void **state) {
    (void)state;
    side cached;
    static ask sessions[2], helper;
    int32_t known[2] = {0, 0};
    open_side(&cached, (paged_toy_options){.n_slots = 2, .n_pages = 80}, (run_options){0});
    for (uint64_t i = 0; i < 2; i++) {
        fill(&sessions[i], 350, 50 + i);
    }
    for (uint64_t turn = 0; turn < 4; turn++) {
        for (uint64_t i = 0; i < 2; i++) {
            ask *a = &sessions[i];
            reply got = answer(cached.run, a);
            assert_int_equal(got.n_cached, known[i]);
            memcpy(a->tokens + a->n, got.tokens, (size_t)got.n * sizeof got.tokens[0]);
            known[i] = a->n + got.n - (got.end == RUN_END_LENGTH);
            a->n += got.n;
            a->tokens[a->n++] = 7;
            for (uint64_t h = 0; h < 20; h++) {
                fill(&helper, 40, 1000 + turn * 100 + i * 50 + h);
                answer(cached.run, &helper);
            }
        }
    }
    close_side(&cached);
}

static void equal_prompts_share_one_reading(void **state) {
    (void)state;
    side cached;
    ask a = {0};
    ticket *t[4];
    open_side(&cached, (paged_toy_options){.n_slots = 4, .n_pages = 128}, (run_options){0});
    paged_toy_hold_after(cached.toy, 0);
    fill(&a, 300, 8);
    a.temperature = 0.9f;
    for (uint64_t i = 0; i < 4; i++) {
        a.seed = i;
        t[i] = submit(cached.run, &a);
    }
    paged_toy_let_go(cached.toy);
    for (int i = 0; i < 4; i++) {
        collect(t[i]);
    }
    assert_int_equal(paged_toy_prompt_rows(cached.toy), 300 + 3);
    close_side(&cached);
}

static void a_cancelled_prompt_is_not_lost(void **state) {
    (void)state;
    side fresh;
    side cached;
    ask a = {0};
    open_fresh(&fresh);
    open_side(&cached, (paged_toy_options){.n_slots = 1, .n_pages = 64, .max_rows = 16},
        (run_options){0});
    paged_toy_hold_after(cached.toy, 20);
    fill(&a, 600, 4);
    ticket *t = submit(cached.run, &a);
    run_progress p = {0};
    while (p.n_prefilled < 200) {
        sleep_ms(1);
        ticket_progress(t, &p);
    }
    ticket_cancel(t);
    paged_toy_let_go(cached.toy);
    assert_int_equal(collect(t).end, RUN_END_CANCELLED);
    reply got = answer(cached.run, &a);
    reply want = answer(fresh.run, &a);
    assert_same(&want, &got);
    assert_true(got.n_cached >= 200);
    close_side(&fresh);
    close_side(&cached);
}

static void what_failed_is_never_found(void **state) {
    (void)state;
    side cached;
    ask a = {0};
    open_side(&cached, (paged_toy_options){.n_slots = 1, .n_pages = 64}, (run_options){0});
    fill(&a, 100, 4);
    a.tokens[0] = PAGED_TOY_BAD;
    for (int i = 0; i < 2; i++) {
        reply got = answer(cached.run, &a);
        assert_int_equal(got.end, RUN_END_ERROR);
        assert_int_equal(got.n_cached, 0);
    }
    fill(&a, 100, 4);
    paged_toy_fail(cached.toy, ERR_INTERNAL);
    assert_int_equal(answer(cached.run, &a).end, RUN_END_ERROR);
    reply got = answer(cached.run, &a);
    assert_int_not_equal(got.end, RUN_END_ERROR);
    assert_int_equal(got.n_cached, 0);
    close_side(&cached);
}

/* The same prompt again where nothing is free: the page that would be copied is held itself, so there is
 * none to copy it to. */
static void full_pools_copy_nothing(void **state) {
    (void)state;
    side fresh;
    ask a = {0};
    open_fresh(&fresh);
    for (int32_t n_pages = 2; n_pages <= 8; n_pages++) {
        side full;
        open_side(&full, (paged_toy_options){.n_slots = 2, .n_pages = n_pages, .has_drafts = true},
            (run_options){0});
        for (int round = 0; round < 8; round++) {
            fill(&a, n_pages * PAGE - 6 - round / 4, (uint64_t)n_pages);
            a.max_tokens = 1 + round % 4;
            reply want = answer(fresh.run, &a);
            reply got = answer(full.run, &a);
            assert_same(&want, &got);
        }
        close_side(&full);
    }
    close_side(&fresh);
}

/* As above, but another stream holds what is not the prefix's. */
static void a_neighbour_leaves_no_page_to_copy_to(void **state) {
    (void)state;
    side fresh;
    side full;
    ask a = {0};
    ask other = {0};
    open_fresh(&fresh);
    open_side(&full, (paged_toy_options){.n_slots = 2, .n_pages = 6}, (run_options){0});
    fill(&a, 25, 1);
    fill(&other, 49, 2);
    other.max_tokens = 15;
    a.max_tokens = 1;
    (void)answer(full.run, &a);
    paged_toy_hold_after(full.toy, 0);
    ticket *t = submit(full.run, &other);
    a.max_tokens = 6;
    ticket *again = submit(full.run, &a);
    paged_toy_let_go(full.toy);
    reply want = answer(fresh.run, &a);
    reply got = collect(again);
    assert_same(&want, &got);
    want = answer(fresh.run, &other);
    got = collect(t);
    assert_same(&want, &got);
    close_side(&full);
    close_side(&fresh);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_equals_fresh_around_page_borders),
        cmocka_unit_test(the_next_turn_reads_only_what_is_new),
        cmocka_unit_test(cached_equals_fresh_in_a_crowd),
        cmocka_unit_test(equal_hashes_never_mix_prompts),
        cmocka_unit_test(salts_separate),
        cmocka_unit_test(a_branch_point_gets_a_mark),
        cmocka_unit_test(long_sessions_outlive_helpers),
        cmocka_unit_test(equal_prompts_share_one_reading),
        cmocka_unit_test(a_cancelled_prompt_is_not_lost),
        cmocka_unit_test(what_failed_is_never_found),
        cmocka_unit_test(full_pools_copy_nothing),
        cmocka_unit_test(a_neighbour_leaves_no_page_to_copy_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
