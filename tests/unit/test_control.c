/* Calls of rank 0 that another rank makes as well: a whole scheduler over two sources that stay
 * equal bit for bit, streams of calls or states that differ, malformed messages, lost and stopped
 * ranks. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/run/control.h"
#include "engine/run/control_wire.h"
#include "engine/run/run.h"
#include "tests/harness/paged_toy.h"

enum { WAIT_MS = 120000, SLOTS = 4, PAGES = 96, PAGE = 8 };

/* Rank 0 and rank 1 as two threads of this process. */
typedef struct duo {
    paged_toy *toy[2];
    run_source spoilt; /* rank 1's, with one function replaced */
    exchange *x[2];
    int fd[2];
    control *control;
    run_source source; /* of both */
    pthread_t thread;
    int rc; /* of rank 1 */
    err why;
    _Atomic int n_stops, n_steps, is_over;
    int stop_pipe[2];
} duo;

static void on_stop(void *ctx) {
    atomic_fetch_add(&((duo *)ctx)->n_stops, 1);
}

static void on_step(void *ctx, uint64_t step_ns, uint64_t exchange_ns) {
    (void)step_ns;
    (void)exchange_ns;
    atomic_fetch_add(&((duo *)ctx)->n_steps, 1);
}

static void *follow(void *arg) {
    duo *d = arg;
    control_follow_options o = {.source = &d->spoilt,
        .exchange = d->x[1],
        .fd = d->fd[1],
        .stop_fd = d->stop_pipe[0],
        .on_stop = on_stop,
        .on_step = on_step,
        .ctx = d};
    d->rc = control_follow(&o, &d->why);
    atomic_store(&d->is_over, 1);
    if (d->rc != OK) exchange_abort(d->x[1], &d->why);
    return NULL;
}

static void open_duo(duo *d, int check_every) {
    err e = ERR_INIT;
    paged_toy_options o = {.n_slots = SLOTS,
        .n_pages = PAGES,
        .page_tokens = PAGE,
        .max_rows = 24,
        .max_context = 160,
        .has_drafts = true};
    memset(d, 0, sizeof *d);
    d->toy[0] = paged_toy_new(&o);
    d->toy[1] = paged_toy_new(&o);
    d->spoilt = *paged_toy_source(d->toy[1]);
    assert_int_equal(exchange_local_open(2, 0, WAIT_MS, d->x, &e), OK);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, d->fd), 0);
    assert_int_equal(pipe(d->stop_pipe), 0);
    control_options c = {.source = paged_toy_source(d->toy[0]),
        .exchange = d->x[0],
        .fds = d->fd,
        .world = 2,
        .timeout_ms = WAIT_MS,
        .check_every = check_every};
    assert_int_equal(control_open(&c, &d->control, &d->source, &e), OK);
}

static void start(duo *d) {
    assert_int_equal(pthread_create(&d->thread, NULL, follow, d), 0);
}

/* Ends rank 0's side, then rank 1's; what rank 1 ended with. */
static int close_duo(duo *d) {
    control_close(d->control);
    pthread_join(d->thread, NULL);
    exchange_close(d->x[0]);
    exchange_close(d->x[1]);
    close(d->fd[1]);
    close(d->stop_pipe[0]);
    close(d->stop_pipe[1]);
    paged_toy_free(d->toy[0]);
    paged_toy_free(d->toy[1]);
    return d->rc;
}

static uint64_t own_hash(const run_source *s) {
    uint64_t hash = 0;
    assert_int_equal(s->state_hash(s->self, &hash, NULL), OK);
    return hash;
}

/* ---- a scheduler over both ---- */

typedef struct reply {
    int32_t tokens[64];
    int n, end;
} reply;

static ticket *ask(run *r, uint64_t seed) {
    int32_t prompt[60];
    int32_t n = 5 + (int32_t)(rand_keyed(seed, 1, 1) % 50);
    ticket *t = NULL;
    err e = ERR_INIT;
    for (int32_t i = 0; i < n; i++) {
        /* Few first words: prompts share prefixes. */
        uint64_t key = i < 20 ? seed % 3 : seed;
        prompt[i] = 2 + (int32_t)(rand_keyed(key, (uint64_t)i, 2) % (PAGED_TOY_VOCAB - 2));
    }
    run_request q = {.id = "q", .prompt = prompt, .n_prompt = n, .max_tokens = 40};
    sample_params_init(&q.sampling);
    q.sampling.temperature = seed % 2 == 0 ? 0.0f : 0.9f;
    q.sampling.seed = seed;
    if (run_submit(r, &q, &t, &e) != OK) fail_msg("%s", e.msg);
    return t;
}

static reply collect(ticket *t) {
    reply out = {.n = 0};
    run_event ev = {0};
    while (ticket_next(t, &ev, WAIT_MS) == OK && ev.kind == RUN_EVENT_TOKEN) {
        out.tokens[out.n++] = ev.pick.token;
    }
    out.end = ev.end;
    ticket_free(t);
    return out;
}

static void serve(const run_source *source, const char *cache_dir, reply *out, int n) {
    run_options o = {.source = source,
        .mark_tokens = 16,
        .cache_dir = cache_dir,
        .cache_disk_bytes = cache_dir != NULL ? 8 << 20 : 0};
    run *r = NULL;
    err e = ERR_INIT;
    ticket *t[8];
    if (run_open(&o, &r, &e) != OK) fail_msg("%s", e.msg);
    for (int at = 0; at < n; at += 8) {
        for (int i = 0; i < 8 && at + i < n; i++) {
            t[i] = ask(r, (uint64_t)(at + i));
        }
        for (int i = 0; i < 8 && at + i < n; i++) {
            out[at + i] = collect(t[i]);
        }
    }
    run_close(r);
}

/* With drafts, a cache in memory and on disk, cancelled rows, four streams at once: the two sources
 * hold the same bytes and the answers are those of one source. */
static void two_sources_stay_equal(void **state) {
    (void)state;
    enum { N = 32 };
    static reply one[N], two[N], again[N];
    char dir[] = "/tmp/tandem-control.XXXXXX";
    duo d;
    assert_non_null(mkdtemp(dir));
    paged_toy_options o = {.n_slots = SLOTS,
        .n_pages = PAGES,
        .page_tokens = PAGE,
        .max_rows = 24,
        .max_context = 160,
        .has_drafts = true};
    paged_toy *alone = paged_toy_new(&o);
    err e = ERR_INIT;
    serve(paged_toy_source(alone), NULL, one, N);
    paged_toy_free(alone);
    open_duo(&d, 3);
    start(&d);
    serve(&d.source, dir, two, N);
    uint64_t hash = 0;
    if (d.source.state_hash(d.source.self, &hash, &e) != OK) fail_msg("%s", e.msg);
    assert_true(own_hash(paged_toy_source(d.toy[0])) == own_hash(paged_toy_source(d.toy[1])));
    serve(&d.source, dir, again, N); /* what the disk remembers */
    if (d.source.state_hash(d.source.self, &hash, &e) != OK) fail_msg("%s", e.msg);
    assert_true(atomic_load(&d.n_steps) > N);
    assert_true(paged_toy_prefetched(d.toy[0]) > 0);
    assert_int_equal(paged_toy_prefetched(d.toy[0]), paged_toy_prefetched(d.toy[1]));
    for (int i = 0; i < N; i++) {
        assert_int_equal(one[i].n, two[i].n);
        assert_memory_equal(one[i].tokens, two[i].tokens, sizeof one[i].tokens);
        assert_memory_equal(one[i].tokens, again[i].tokens, sizeof one[i].tokens);
    }
    assert_int_equal(close_duo(&d), OK);
    (void)dir_remove_all(dir, NULL);
}

/* ---- what differs ---- */

/* One prompt row, one decode row; the first error of rank 0. */
static int two_steps(duo *d, err *e) {
    static const int32_t page[] = {3}, tokens[] = {5, 6, 7};
    step_result result;
    plan_span span = {.slot = 1, .n_rows = 2, .tokens = tokens, .logits = PLAN_LOGITS_LAST};
    batch_plan plan = {.id = 1, .n_spans = 1, .spans = &span};
    const run_source *s = &d->source;
    s->slot_reset(s->self, 1);
    int rc = s->slot_pages(s->self, 1, page, 1, e);
    if (rc == OK) rc = s->step(s->self, &plan, &result, e);
    span = (plan_span){.slot = 1, .n_rows = 1, .pos = 2, .tokens = tokens + 2, .kind = PLAN_DECODE};
    plan.id = 2;
    if (rc == OK) rc = s->step(s->self, &plan, &result, e);
    return rc;
}

static void expect_mismatch(duo *d) {
    err e = ERR_INIT;
    assert_int_equal(two_steps(d, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.msg, "the stream of calls differs"));
    /* Nothing works any more, and says the same. */
    err again = ERR_INIT;
    assert_int_equal(d->source.commit(d->source.self, 0, 0, &again), ERR_MISMATCH);
    assert_string_equal(e.msg, again.msg);
    assert_int_equal(close_duo(d), ERR_MISMATCH);
    assert_non_null(strstr(d->why.msg, "the stream of calls differs"));
}

static int refuse_pages(void *self, int slot, const int32_t *pages, int n, err *e) {
    (void)self;
    (void)slot;
    (void)pages;
    (void)n;
    return err_set(e, ERR_ARG, "not here");
}

static void a_result_that_differs_stops_both(void **state) {
    (void)state;
    duo d;
    open_duo(&d, 0);
    d.spoilt.slot_pages = refuse_pages;
    start(&d);
    expect_mismatch(&d);
}

/* Rank 1 believes that it made a call which rank 0 never sent: its stream is another. */
static void a_call_that_differs_stops_both(void **state) {
    (void)state;
    duo d;
    open_duo(&d, 0);
    call_head head = {CALL_MAGIC, CALL_COMMIT, CALL_NUMBERS_BYTES, 1};
    int64_t numbers[2] = {0, 0};
    assert_int_equal(send(d.fd[0], &head, sizeof head, 0), sizeof head);
    assert_int_equal(send(d.fd[0], numbers, sizeof numbers, 0), sizeof numbers);
    start(&d);
    err e = ERR_INIT;
    int rc = two_steps(&d, &e);
    assert_true(rc == ERR_PEER || rc == ERR_TIMEOUT || rc == ERR_MISMATCH);
    assert_int_equal(close_duo(&d), ERR_MISMATCH);
    assert_non_null(strstr(d.why.msg, "malformed"));
}

static int save_otherwise(void *self, int slot, int64_t len, void *blob, err *e) {
    (void)self;
    (void)slot;
    (void)len;
    (void)e;
    memset(blob, 1, sizeof(int64_t));
    return OK;
}

/* A saved state that is not the same on both ranks is never handed out. */
static void a_state_that_differs_is_not_saved(void **state) {
    (void)state;
    duo d;
    err e = ERR_INIT;
    open_duo(&d, 0);
    d.spoilt.slot_save = save_otherwise;
    start(&d);
    assert_int_equal(two_steps(&d, &e), OK);
    uint8_t *blob = mem_alloc(d.source.info.snapshot_bytes);
    assert_int_equal(d.source.slot_save(d.source.self, 1, 3, blob, &e), ERR_MISMATCH);
    mem_free(blob);
    assert_int_equal(close_duo(&d), ERR_MISMATCH);
}

static void a_page_that_differs_is_not_read(void **state) {
    (void)state;
    duo d;
    err e = ERR_INIT;
    open_duo(&d, 0);
    int32_t page[PAGE] = {9};
    const run_source *other = paged_toy_source(d.toy[1]);
    assert_int_equal(other->page_write(other->self, 2, page, NULL), OK);
    start(&d);
    assert_int_equal(d.source.page_read(d.source.self, 2, page, &e), ERR_MISMATCH);
    assert_int_equal(close_duo(&d), ERR_MISMATCH);
}

/* The check of everything finds what no call has touched. */
static void drifted_memory_is_found_by_the_check(void **state) {
    (void)state;
    duo d;
    err e = ERR_INIT;
    open_duo(&d, 2);
    int32_t page[PAGE] = {9};
    const run_source *other = paged_toy_source(d.toy[1]);
    assert_int_equal(other->page_write(other->self, PAGES - 1, page, NULL), OK);
    start(&d);
    assert_int_equal(two_steps(&d, &e), ERR_MISMATCH);
    assert_int_equal(close_duo(&d), ERR_MISMATCH);
}

/* ---- errors that are the same, or one rank's alone ---- */

static void equal_refusals_go_on(void **state) {
    (void)state;
    duo d;
    err e = ERR_INIT;
    open_duo(&d, 0);
    start(&d);
    assert_int_equal(d.source.commit(d.source.self, 0, 5, &e), ERR_ARG);
    assert_int_equal(two_steps(&d, &e), OK);
    assert_int_equal(close_duo(&d), OK);
}

static void a_foreign_blob_is_refused_by_both(void **state) {
    (void)state;
    duo d;
    err e = ERR_INIT;
    open_duo(&d, 0);
    start(&d);
    uint8_t *blob = mem_alloc(d.source.info.snapshot_bytes);
    memset(blob, 0xff, d.source.info.snapshot_bytes);
    assert_int_equal(d.source.slot_load(d.source.self, 0, blob, &e), ERR_MISMATCH);
    mem_free(blob);
    assert_int_equal(two_steps(&d, &e), OK);
    assert_int_equal(close_duo(&d), OK);
}

static void an_error_of_one_rank_ends_the_service(void **state) {
    (void)state;
    duo d;
    err e = ERR_INIT;
    open_duo(&d, 0);
    paged_toy_fail(d.toy[0], ERR_IO);
    start(&d);
    assert_int_equal(two_steps(&d, &e), ERR_DEVICE);
    assert_int_not_equal(two_steps(&d, &e), OK);
    (void)close_duo(&d);
}

/* ---- lost, stopped, aborted ---- */

static void a_lost_rank_is_named(void **state) {
    (void)state;
    duo d;
    err e = ERR_INIT;
    open_duo(&d, 0);
    d.spoilt.slot_pages = refuse_pages;
    shutdown(d.fd[1], SHUT_RDWR);
    start(&d);
    assert_int_equal(two_steps(&d, &e), ERR_PEER);
    assert_non_null(strstr(e.msg, "rank 1"));
    assert_int_equal(close_duo(&d), ERR_PEER);
    assert_non_null(strstr(d.why.msg, "rank 0"));
}

static void an_abort_ends_the_wait(void **state) {
    (void)state;
    duo d;
    err e = ERR_INIT, why = ERR_INIT;
    open_duo(&d, 0);
    err_set(&why, ERR_PEER, "rank 1 is lost");
    control_abort(d.control, &why);
    assert_int_equal(two_steps(&d, &e), ERR_PEER);
    start(&d);
    assert_int_not_equal(close_duo(&d), OK);
}

static void a_wish_to_stop_is_said_once(void **state) {
    (void)state;
    duo d;
    err e = ERR_INIT;
    open_duo(&d, 0);
    start(&d);
    assert_int_equal(write(d.stop_pipe[1], "xx", 2), 2);
    for (int i = 0; i < WAIT_MS && atomic_load(&d.n_stops) == 0; i++) {
        sleep_ms(1);
    }
    assert_int_equal(two_steps(&d, &e), OK); /* it goes on until rank 0 ends */
    assert_int_equal(atomic_load(&d.n_stops), 1);
    assert_int_equal(close_duo(&d), OK);
    assert_int_equal(atomic_load(&d.n_steps), 2);
}

/* ---- malformed messages ---- */

typedef struct message {
    call_head head;
    int64_t numbers[2];
} message;

/* What rank 1 says to these bytes followed by the end of the connection. */
static int answer_to(const void *bytes, size_t n, err *why) {
    duo d;
    open_duo(&d, 0);
    assert_int_equal(send(d.fd[0], bytes, n, 0), (ssize_t)n);
    shutdown(d.fd[0], SHUT_WR);
    start(&d);
    pthread_join(d.thread, NULL);
    *why = d.why;
    int rc = d.rc;
    assert_int_equal(pthread_create(&d.thread, NULL, follow, &d), 0); /* at the end: no bytes */
    (void)close_duo(&d);
    return rc;
}

static void malformed_messages_are_refused(void **state) {
    (void)state;
    const message good = {{CALL_MAGIC, CALL_RESET, CALL_NUMBERS_BYTES, 1}, {0, 0}};
    err why = ERR_INIT;
    assert_int_equal(answer_to(&good, sizeof good, &why), ERR_PEER); /* made, then the end */
    const struct {
        call_head head;
        int64_t numbers[2];
        int rc;
    } bad[] = {{{0, CALL_RESET, CALL_NUMBERS_BYTES, 1}, {0, 0}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_RESET, CALL_NUMBERS_BYTES, 2}, {0, 0}, ERR_MISMATCH},
        {{CALL_MAGIC, 99, CALL_NUMBERS_BYTES, 1}, {0, 0}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_RESET, (uint64_t)1 << 62, 1}, {0, 0}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_RESET, 8, 1}, {0, 0}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_RESET, CALL_NUMBERS_BYTES, 1}, {SLOTS, 0}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_RESET, CALL_NUMBERS_BYTES, 1}, {-1, 0}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_RESET, CALL_NUMBERS_BYTES, 1}, {(int64_t)1 << 40, 0}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_COPY, CALL_NUMBERS_BYTES, 1}, {0, SLOTS}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_PAGES, CALL_NUMBERS_BYTES, 1}, {0, 3}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_LOAD, CALL_NUMBERS_BYTES, 1}, {0, 0}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_PAGE_WRITE, CALL_NUMBERS_BYTES, 1}, {0, 0}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_PAGE_READ, CALL_NUMBERS_BYTES, 1}, {PAGES, 0}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_PAGE_COPY, CALL_NUMBERS_BYTES, 1}, {PAGES, 0}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_SAVE, CALL_NUMBERS_BYTES, 1}, {SLOTS, 0}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_PREFETCH, CALL_NUMBERS_BYTES, 1}, {0, 2}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_SETTINGS, CALL_NUMBERS_BYTES, 1}, {0, 0}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_STEP, CALL_NUMBERS_BYTES, 1}, {1, 1}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_DRAFT, CALL_NUMBERS_BYTES, 1}, {-5, 0}, ERR_MISMATCH},
        {{CALL_MAGIC, CALL_RESET, 4000, 1}, {0, 0}, ERR_PEER /* it is cut */},
        {{CALL_MAGIC, CALL_END, CALL_NUMBERS_BYTES, 1}, {0, 0}, OK}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        message m = {bad[i].head, {bad[i].numbers[0], bad[i].numbers[1]}};
        if (bad[i].head.n_bytes == 4000) m.head.n_bytes = 40;
        int rc = answer_to(&m, sizeof m, &why);
        if (rc != bad[i].rc) fail_msg("message %zu: %d (%s)", i, rc, why.msg);
    }
}

static void plans_survive_the_wire(void **state) {
    (void)state;
    int32_t tokens[6] = {1, 2, 3, 4, 5, 6}, room[6];
    plan_span spans[2] = {{0, 4, 10, tokens, PLAN_LOGITS_ALL, PLAN_VERIFY},
        {3, 2, 1LL << 33, tokens + 4, PLAN_LOGITS_LAST, PLAN_PROMPT}};
    plan_span out_spans[RUN_MAX_SLOTS];
    batch_plan plan = {.id = 77, .n_spans = 2, .spans = spans, .form = PLAN_FORM_LISTED}, out;
    uint8_t bytes[256];
    size_t n = call_plan_write(&plan, bytes);
    assert_int_equal(n, call_plan_bytes(&plan));
    call_reader r = {bytes, bytes + n, true};
    assert_true(call_plan_read(&r, &out, out_spans, room, 6));
    assert_true(out.form == PLAN_FORM_LISTED && out.asks == NULL);
    assert_true(out.id == 77 && out.n_spans == 2 && out.spans[1].pos == 1LL << 33);
    assert_memory_equal(out.spans[1].tokens, tokens + 4, 2 * sizeof *tokens);
    /* Every cut, and one row more than there may be. */
    for (size_t cut = 0; cut < n; cut++) {
        r = (call_reader){bytes, bytes + cut, true};
        assert_false(call_plan_read(&r, &out, out_spans, room, 6));
    }
    r = (call_reader){bytes, bytes + n, true};
    assert_false(call_plan_read(&r, &out, out_spans, room, 5));
}

static void settings_are_told(void **state) {
    (void)state;
    int fd[2], stop[2];
    err e = ERR_INIT;
    control_settings told = {.n_slots = 3, .max_context = 1LL << 20}, got = {0};
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    assert_int_equal(pipe(stop), 0);
    assert_int_equal(control_send_settings(&fd[0], 1, &told, &e), OK);
    assert_int_equal(control_take_settings(fd[1], stop[0], &got, &e), OK);
    assert_memory_equal(&told, &got, sizeof told);
    uint8_t junk[sizeof(call_head) + sizeof told] = {1, 2, 3};
    assert_int_equal(send(fd[0], junk, sizeof junk, 0), sizeof junk);
    assert_int_equal(control_take_settings(fd[1], stop[0], &got, &e), ERR_MISMATCH);
    assert_int_equal(write(stop[1], "x", 1), 1);
    assert_int_equal(control_take_settings(fd[1], stop[0], &got, &e), ERR_CANCELLED);
    close(fd[0]);
    close(fd[1]);
    close(stop[0]);
    close(stop[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_sources_stay_equal),
        cmocka_unit_test(a_result_that_differs_stops_both),
        cmocka_unit_test(a_call_that_differs_stops_both),
        cmocka_unit_test(a_state_that_differs_is_not_saved),
        cmocka_unit_test(a_page_that_differs_is_not_read),
        cmocka_unit_test(drifted_memory_is_found_by_the_check),
        cmocka_unit_test(equal_refusals_go_on), cmocka_unit_test(a_foreign_blob_is_refused_by_both),
        cmocka_unit_test(an_error_of_one_rank_ends_the_service),
        cmocka_unit_test(a_lost_rank_is_named), cmocka_unit_test(an_abort_ends_the_wait),
        cmocka_unit_test(a_wish_to_stop_is_said_once),
        cmocka_unit_test(malformed_messages_are_refused), cmocka_unit_test(plans_survive_the_wire),
        cmocka_unit_test(settings_are_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
