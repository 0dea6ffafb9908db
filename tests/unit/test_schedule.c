/* Who is served when, on a stand-in for the model with a clock of its own, so that times mean what the
 * plans cost and not what the machine does meanwhile. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/run/run.h"
#include "tests/harness/paged_toy.h"

enum { PAGE = 128, WAIT_MS = 120000 };
#define MS 1000000.0

typedef struct side {
    paged_toy *toy;
    run *run;
} side;

static void open_side(side *s, int32_t n_slots, int32_t n_pages, int64_t context) {
    paged_toy_options o = {.n_slots = n_slots,
        .n_pages = n_pages,
        .page_tokens = PAGE,
        .max_rows = 512,
        .max_context = context,
        .cost = {.step_ns = 5000000,
            .row_ns = 1000000,
            .prompt_row_ns = 400000,
            .prompt_row_ns_at_64k = 1200000}};
    s->toy = paged_toy_new(&o);
    run_options ro = {.source = paged_toy_source(s->toy),
        .now_ns = paged_toy_now,
        .now_ctx = s->toy,
        .no_cache = true};
    err e = ERR_INIT;
    if (run_open(&ro, &s->run, &e) != OK) fail_msg("%s", e.msg);
}

static void close_side(side *s) {
    run_close(s->run);
    paged_toy_free(s->toy);
}

typedef struct wish {
    uint64_t seed;
    int32_t n_prompt, max_tokens;
    int priority;
} wish;

static ticket *submit(side *s, const wish *w) {
    int32_t *prompt = mem_array((size_t)w->n_prompt, sizeof *prompt);
    ticket *t = NULL;
    err e = ERR_INIT;
    for (int32_t i = 0; i < w->n_prompt; i++) {
        prompt[i] = 2 + (int32_t)(rand_keyed(w->seed, (uint64_t)i, 1) % (PAGED_TOY_VOCAB - 2));
    }
    run_request q = {.id = "wish",
        .prompt = prompt,
        .n_prompt = w->n_prompt,
        .max_tokens = w->max_tokens,
        .priority = w->priority};
    sample_params_init(&q.sampling);
    q.sampling.temperature = 0.0f;
    if (run_submit(s->run, &q, &t, &e) != OK) fail_msg("%s", e.msg);
    mem_free(prompt);
    return t;
}

/* Reads the rest of a reply; gives the ticket back. */
static run_progress finish(ticket *t, int32_t *tokens, int end) {
    run_event ev = {0};
    run_progress p;
    int n = 0;
    while (ticket_next(t, &ev, WAIT_MS) == OK && ev.kind == RUN_EVENT_TOKEN) {
        if (tokens != NULL) tokens[n] = ev.pick.token;
        n++;
    }
    assert_int_equal(ev.kind, RUN_EVENT_END);
    assert_int_equal(ev.end, end);
    ticket_progress(t, &p);
    ticket_free(t);
    return p;
}

/* Until the first token came. */
static void await_token(ticket *t) {
    run_event ev;
    assert_int_equal(ticket_next(t, &ev, WAIT_MS), OK);
    assert_int_equal(ev.kind, RUN_EVENT_TOKEN);
}

/* A short prompt asked while a very long one is read: its first token comes within a few steps. */
static void a_short_prompt_is_not_stuck_behind_a_long_one(void **state) {
    (void)state;
    side s;
    open_side(&s, 3, 700, 65536);
    paged_toy_hold_after(s.toy, 3);
    ticket *running = submit(&s, &(wish){1, 10, 200, 0});
    await_token(running);
    ticket *long_one = submit(&s, &(wish){2, 60000, 2, 0});
    paged_toy_hold_after(s.toy, 4);
    run_progress p;
    do {
        sleep_ms(1);
        ticket_progress(long_one, &p);
    } while (p.n_prefilled == 0);
    ticket *short_one = submit(&s, &(wish){3, 30, 2, 0});
    paged_toy_hold_after(s.toy, 8);
    run_progress small = finish(short_one, NULL, RUN_END_LENGTH);
    ticket_progress(long_one, &p);
    assert_true(p.first_ns == 0 || p.first_ns > small.last_ns);
    double first_ms = (double)(small.first_ns - small.submit_ns) / MS;
    if (first_ms > 600.0) fail_msg("first token after %g ms", first_ms);
    ticket_cancel(long_one);
    paged_toy_let_go(s.toy);
    (void)finish(long_one, NULL, RUN_END_CANCELLED);
    (void)finish(running, NULL, RUN_END_LENGTH);
    assert_true((double)paged_toy_longest_gap(s.toy) / MS < 160.0);
    close_side(&s);
}

/* One stream at a time: whoever is in the background starts after all others, however early it came. */
static void background_comes_last(void **state) {
    (void)state;
    side s;
    open_side(&s, 1, 64, 4096);
    paged_toy_hold_after(s.toy, 3);
    ticket *busy = submit(&s, &(wish){1, 10, 600, 0});
    await_token(busy);
    ticket *background[2], *normal[3];
    for (int i = 0; i < 2; i++) {
        background[i] = submit(&s, &(wish){10 + (uint64_t)i, 10, 3, RUN_PRIORITY_BACKGROUND});
    }
    for (int i = 0; i < 3; i++) {
        normal[i] = submit(&s, &(wish){20 + (uint64_t)i, 10, 3, RUN_PRIORITY_NORMAL});
    }
    paged_toy_let_go(s.toy);
    (void)finish(busy, NULL, RUN_END_LENGTH);
    uint64_t before = 0;
    for (int i = 0; i < 3; i++) {
        run_progress p = finish(normal[i], NULL, RUN_END_LENGTH);
        assert_true(p.start_ns > before);
        before = p.start_ns;
    }
    for (int i = 0; i < 2; i++) {
        run_progress p = finish(background[i], NULL, RUN_END_LENGTH);
        assert_true(p.start_ns > before);
        before = p.start_ns;
    }
    close_side(&s);
}

/* A request that needs most of the pages waits for them and lets small ones pass, but not for ever. */
static void a_large_request_gets_its_pages(void **state) {
    (void)state;
    enum { N_SMALL = 60 };
    side s;
    open_side(&s, 2, 20, 20 * PAGE);
    paged_toy_hold_after(s.toy, 3);
    /* Takes six pages and time for dozens of small ones. */
    ticket *busy = submit(&s, &(wish){1, 10, 5 * PAGE, 0});
    await_token(busy);
    ticket *large = submit(&s, &(wish){2, 18 * PAGE, 4, 0});
    ticket *small[N_SMALL];
    for (int i = 0; i < N_SMALL; i++) {
        small[i] = submit(&s, &(wish){100 + (uint64_t)i, 10, 8, 0});
    }
    paged_toy_let_go(s.toy);
    int n_before = 0;
    (void)finish(busy, NULL, RUN_END_LENGTH);
    run_progress p = finish(large, NULL, RUN_END_LENGTH);
    for (int i = 0; i < N_SMALL; i++) {
        n_before += finish(small[i], NULL, RUN_END_LENGTH).start_ns < p.start_ns;
    }
    assert_in_range(n_before, 1, 20); /* some passed, most waited */
    close_side(&s);
}

/* After a cancel at most the step that was already on its way is made. */
static void a_cancel_takes_one_step_at_most(void **state) {
    (void)state;
    side s;
    open_side(&s, 1, 64, 8192);
    for (int phase = 0; phase < 2; phase++) {
        /* while the prompt is read; while the reply is made */
        paged_toy_hold_after(s.toy, 3);
        ticket *t = submit(&s, &(wish){(uint64_t)phase, phase == 0 ? 6000 : 10, 200, 0});
        if (phase == 0) {
            while (paged_toy_begun(s.toy) < 2) {
                sleep_ms(1);
            }
        } else {
            await_token(t);
        }
        ticket_cancel(t);
        int before = paged_toy_begun(s.toy);
        paged_toy_let_go(s.toy);
        (void)finish(t, NULL, RUN_END_CANCELLED);
        assert_true(paged_toy_begun(s.toy) <= before + 1);
    }
    run_stats stats;
    run_stats_get(s.run, &stats);
    assert_int_equal(stats.pages_used, 0);
    close_side(&s);
}

/* As many streams as there can be: each reply as alone. */
static void thirty_two_streams_equal_one(void **state) {
    (void)state;
    enum { N = 40, TOKENS = 40 };
    static int32_t alone[N][TOKENS], together[N][TOKENS];
    side s;
    open_side(&s, 1, 8, 8 * PAGE);
    for (int i = 0; i < N; i++) {
        (void)finish(
            submit(&s, &(wish){(uint64_t)i, 5 + i * 7, TOKENS, 0}), alone[i], RUN_END_LENGTH);
    }
    close_side(&s);
    ticket *t[N];
    open_side(&s, RUN_MAX_SLOTS, RUN_MAX_SLOTS * 8, 8 * PAGE);
    paged_toy_hold_after(s.toy, 0);
    for (int i = 0; i < N; i++) {
        t[i] = submit(&s, &(wish){(uint64_t)i, 5 + i * 7, TOKENS, 0});
    }
    paged_toy_let_go(s.toy);
    for (int i = 0; i < N; i++) {
        (void)finish(t[i], together[i], RUN_END_LENGTH);
    }
    assert_memory_equal(alone, together, sizeof alone);
    close_side(&s);
}

/* A reader that takes nothing holds up its own stream, and only when it is thousands of events behind;
 * then nothing is lost. */
static void a_reader_far_behind_waits_alone(void **state) {
    (void)state;
    enum { MANY = 17000, MOST_BEHIND = 16384, SURELY = 16000 };
    static int32_t tokens[MANY];
    side s;
    run_progress p;
    int32_t before;
    open_side(&s, 2, 2 * 160, 160 * PAGE);
    ticket *unread = submit(&s, &(wish){1, 10, MANY, 0});
    do {
        sleep_ms(1);
        ticket_progress(unread, &p);
    } while (p.n_generated < SURELY);
    do { /* until it stands still while another one is served */
        before = p.n_generated;
        (void)finish(submit(&s, &(wish){2, 10, 8, 0}), NULL, RUN_END_LENGTH);
        ticket_progress(unread, &p);
    } while (p.n_generated > before);
    assert_in_range(p.n_generated, SURELY, MOST_BEHIND);
    memset(tokens, 0xff, sizeof tokens);
    p = finish(unread, tokens, RUN_END_LENGTH);
    assert_int_equal(p.n_generated, MANY);
    assert_true(tokens[0] >= 0 && tokens[MANY - 1] >= 0);
    close_side(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_short_prompt_is_not_stuck_behind_a_long_one),
        cmocka_unit_test(background_comes_last), cmocka_unit_test(a_large_request_gets_its_pages),
        cmocka_unit_test(a_cancel_takes_one_step_at_most),
        cmocka_unit_test(a_reader_far_behind_waits_alone),
        cmocka_unit_test(thirty_two_streams_equal_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
