/* Heartbeats: figures that arrive, goodbyes, failures, silence, closed and foreign connections; what
 * comes from outside is made harmless. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "engine/dist/probe.h"
#include "engine/dist/pulse.h"

/* PATIENT: the peer is not silent, its thread may have to wait for the processor. */
enum { WAIT_MS = 120000, PATIENT = 120000, SHORT = 1000 };

typedef struct side {
    pulse *pulse;
    _Atomic int n_lost, n_bye;
    int rank_lost;
    err why;
    double loaded;
} side;

static void fill(void *ctx, rank_figures *out) {
    side *s = ctx;
    out->phase = RANK_LOADING;
    out->pid = 77;
    out->loaded = s->loaded;
    out->n_rails = 1;
    strncpy(out->rails[0].name, "tcp", FIGURES_NAME - 1);
}

static void on_lost(void *ctx, int rank, const err *why) {
    side *s = ctx;
    s->rank_lost = rank;
    s->why = *why;
    atomic_fetch_add(&s->n_lost, 1);
}

static void on_bye(void *ctx, int rank) {
    side *s = ctx;
    (void)rank;
    atomic_fetch_add(&s->n_bye, 1);
}

/* Rank 0 or 1 of two on this descriptor. */
static void open_side(side *s, int rank, int fd, int lost_ms) {
    int fds[2] = {-1, -1};
    memset(s, 0, sizeof *s);
    s->loaded = 0.25 + rank;
    fds[rank == 0 ? 1 : 0] = fd;
    pulse_options o = {.rank = rank,
        .world = 2,
        .fds = fds,
        .lost_ms = lost_ms,
        .fill = fill,
        .on_lost = on_lost,
        .on_bye = on_bye,
        .ctx = s};
    assert_int_equal(pulse_open(&o, &s->pulse, NULL), OK);
}

static void make_pair(int fd[2]) {
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
}

#define AWAIT(cond)                                                                                \
    do {                                                                                           \
        uint64_t until = clock_mono_ms() + WAIT_MS;                                                \
        while (!(cond) && clock_mono_ms() < until) {                                               \
            sleep_ms(2);                                                                           \
        }                                                                                          \
        if (!(cond)) fail_msg("%s never held", #cond);                                             \
    } while (0)

static void figures_arrive_with_their_age(void **state) {
    (void)state;
    int fd[2];
    side a, b;
    rank_figures f;
    double age = 0.0;
    make_pair(fd);
    open_side(&a, 0, fd[0], PATIENT);
    assert_false(pulse_peer(a.pulse, 1, &f, &age));
    assert_true(age < 0.0 && f.step_ms < 0.0);
    open_side(&b, 1, fd[1], PATIENT);
    AWAIT(pulse_peer(a.pulse, 1, &f, &age) && pulse_peer(b.pulse, 0, &f, NULL));
    assert_true(f.loaded == 0.25 && f.pid == 77 && f.phase == RANK_LOADING);
    assert_true(f.step_ms < 0.0); /* what nobody filled is unknown, not 0 */
    assert_true(pulse_peer(a.pulse, 1, &f, &age) && f.loaded == 1.25 && age >= 0.0);
    assert_string_equal(f.rails[0].name, "tcp");
    assert_false(pulse_peer(a.pulse, 7, &f, &age));
    assert_false(pulse_peer(NULL, 1, &f, &age));
    pulse_close(b.pulse);
    AWAIT(atomic_load(&a.n_lost) == 1);
    assert_non_null(strstr(a.why.msg, "rank 1 is gone"));
    pulse_close(a.pulse);
}

static void a_goodbye_is_no_loss(void **state) {
    (void)state;
    int fd[2];
    side a, b;
    make_pair(fd);
    open_side(&a, 0, fd[0], PATIENT);
    open_side(&b, 1, fd[1], PATIENT);
    pulse_bye(b.pulse);
    pulse_close(b.pulse);
    AWAIT(atomic_load(&a.n_bye) == 1);
    pulse_close(a.pulse);
    assert_int_equal(atomic_load(&a.n_lost), 0);
}

static void a_failure_says_why(void **state) {
    (void)state;
    int fd[2];
    side a, b;
    err why = ERR_INIT;
    make_pair(fd);
    open_side(&a, 0, fd[0], PATIENT);
    open_side(&b, 1, fd[1], PATIENT);
    err_set(&why, ERR_MEMORY, "12 MiB short");
    pulse_fail(b.pulse, &why);
    pulse_close(b.pulse);
    AWAIT(atomic_load(&a.n_lost) == 1);
    assert_int_equal(a.rank_lost, 1);
    assert_int_equal(a.why.code, ERR_PEER);
    assert_non_null(strstr(a.why.msg, "rank 1 has failed: 12 MiB short"));
    pulse_close(a.pulse);
    assert_int_equal(atomic_load(&a.n_lost), 1); /* the closing after it is not a second loss */
}

/* The connection stands, nothing comes. */
static void silence_is_a_loss(void **state) {
    (void)state;
    int fd[2];
    side a;
    make_pair(fd);
    open_side(&a, 0, fd[0], SHORT);
    AWAIT(atomic_load(&a.n_lost) == 1);
    assert_non_null(strstr(a.why.msg, "silent"));
    assert_non_null(strstr(a.why.msg, "link"));
    assert_non_null(strstr(a.why.msg, "interface"));
    pulse_close(a.pulse);
    close(fd[1]);
}

/* A peer whose socket is full does not hold the other up, and half a beat is never believed. */
static void a_full_socket_holds_nobody_up(void **state) {
    (void)state;
    int fd[2], small = 4096;
    side a;
    make_pair(fd);
    (void)setsockopt(fd[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    open_side(&a, 0, fd[0], PATIENT);
    for (int i = 0; i < 200; i++) {
        pulse_fail(a.pulse, &(err){.code = ERR_IO, .msg = "again"}); /* never waits */
    }
    pulse_close(a.pulse);
    close(fd[1]);
}

static void strange_bytes_are_a_loss(void **state) {
    (void)state;
    int fd[2];
    side a;
    uint8_t junk[4096];
    memset(junk, 0x5a, sizeof junk);
    make_pair(fd);
    open_side(&a, 0, fd[0], PATIENT);
    assert_int_equal(send(fd[1], junk, sizeof junk, 0), sizeof junk);
    AWAIT(atomic_load(&a.n_lost) == 1);
    assert_int_equal(a.why.code, ERR_MISMATCH);
    pulse_close(a.pulse);
    close(fd[1]);
}

static void figures_from_outside_are_made_harmless(void **state) {
    (void)state;
    rank_figures f;
    memset(&f, 0xff, sizeof f);
    rank_figures_check(&f);
    assert_true(f.phase == RANK_STARTING && f.n_rails == 0 && f.step_ms == -1.0);
    assert_true(f.gpu_watt == -1.0 && f.engram_errors == -1.0 && f.loaded == -1.0);
    assert_int_equal(f.rails[1].name[FIGURES_NAME - 1], '\0');
    rank_figures_init(&f);
    f.step_ms = (double)INFINITY;
    f.n_rails = 3;
    f.phase = RANK_N_PHASES;
    rank_figures_check(&f);
    assert_true(f.step_ms == -1.0 && f.n_rails == 0 && f.phase == RANK_STARTING);
}

static void progress_never_falls(void **state) {
    (void)state;
    double last = -1.0;
    for (int phase = RANK_STARTING; phase <= RANK_READY; phase++) {
        for (int i = -1; i <= 10; i++) {
            double now = rank_phase_progress(phase, i / 10.0);
            if (phase != RANK_LOADING && i > -1) continue;
            assert_true(now >= last && now <= 1.0);
            last = now;
        }
        assert_true(strlen(rank_phase_name(phase)) > 3);
    }
    assert_true(last == 1.0);
    assert_string_equal(rank_phase_name(99), "starting");
}

/* ---- trying an exchange ---- */

typedef struct probe_side {
    exchange *x;
    double us;
    int rc;
    err why;
} probe_side;

static void *probe(void *arg) {
    probe_side *s = arg;
    s->rc = exchange_probe(s->x, &s->us, &s->why);
    return NULL;
}

static void an_exchange_is_tried(void **state) {
    (void)state;
    exchange *x[3];
    probe_side sides[3];
    pthread_t threads[3];
    assert_int_equal(exchange_local_open(3, 0, WAIT_MS, x, NULL), OK);
    for (int r = 0; r < 3; r++) {
        sides[r] = (probe_side){.x = x[r]};
        assert_int_equal(pthread_create(&threads[r], NULL, probe, &sides[r]), 0);
    }
    for (int r = 0; r < 3; r++) {
        pthread_join(threads[r], NULL);
        assert_int_equal(sides[r].rc, OK);
        assert_true(sides[r].us > 0.0);
    }
    /* One of them is gone. */
    exchange_close(x[2]);
    assert_int_equal(pthread_create(&threads[1], NULL, probe, &sides[1]), 0);
    (void)probe(&sides[0]);
    pthread_join(threads[1], NULL);
    assert_int_equal(sides[0].rc, ERR_PEER);
    assert_non_null(strstr(sides[0].why.msg, "probing the exchange"));
    exchange_close(x[0]);
    exchange_close(x[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(figures_arrive_with_their_age),
        cmocka_unit_test(a_goodbye_is_no_loss), cmocka_unit_test(a_failure_says_why),
        cmocka_unit_test(silence_is_a_loss), cmocka_unit_test(a_full_socket_holds_nobody_up),
        cmocka_unit_test(strange_bytes_are_a_loss),
        cmocka_unit_test(figures_from_outside_are_made_harmless),
        cmocka_unit_test(progress_never_falls), cmocka_unit_test(an_exchange_is_tried)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
