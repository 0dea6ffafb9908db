/* What the engine promises about its answers (test_serving.c) holds for two ranks as two processes
 * over TCP as well: on loopback, and in two network namespaces where this machine allows them. Bit
 * for bit with log probabilities: alone = in company, any slices, drafted = serial, cached = fresh,
 * after a restart from disk = fresh; and both ranks hold equal bytes in every slot and page. Against
 * one rank: within the tolerance of engine/model/NOTES.md. The last line counts the comparisons. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/err.h"
#include "engine/base/file.h"
#include "engine/dist/meet.h"
#include "engine/dist/probe.h"
#include "engine/run/control.h"
#include "tests/harness/serving_probe.h"
#include "tests/harness/two_nets.h"

/* One reply in this many may leave the one of a single rank at a near tie; before that its log
 * probabilities agree to LOGPROB_NEAR, but for one in NEAR_TIES, where a router or a value on the
 * border of two codes fell differently. */
enum { DIVERGING = 4, NEAR_TIES = 20 };
#define LOGPROB_NEAR 0.05f

static vectors v;

typedef struct duo {
    pid_t child;
    exchange *x;
    model *m;
    run_source own, source;
    control *control;
} duo;

typedef struct place {
    const two_nets *nets; /* NULL: loopback */
    char address[32];
    int port, listen_fd;
} place;

static void stop_with(const char *what, const err *e) {
    fprintf(stderr, "%s: %s\n", what, e->msg);
    exit(1);
}

static meet_options meeting(const place *p, int rank) {
    meet_options m = {.rank = rank,
        .world = 2,
        .host = p->address,
        .port = p->port,
        .listen_fd = rank == 0 ? p->listen_fd : -1,
        .n_channels = MEET_PULSE,
        .timeout_ms = 60000,
        .stop_fd = -1};
    memset(m.secret, 7, sizeof m.secret);
    m.identity.start_id = 99;
    snprintf(m.identity.build, sizeof m.identity.build, "test");
    return m;
}

/* Meets, tries the exchange, loads. */
static void join(const place *p, int rank, int rows, duo *d, meet_fds *fds) {
    err e = ERR_INIT;
    double us = 0.0;
    meet_options m = meeting(p, rank);
    exchange_tcp_options x = {.rank = rank, .world = 2, .timeout_ms = 60000};
    if (meet_all(&m, fds, &e) != OK) stop_with("meeting", &e);
    if (exchange_tcp_adopt(&x, fds->fd[MEET_EXCHANGE], &d->x, &e) != OK) stop_with("exchange", &e);
    if (exchange_probe(d->x, &us, &e) != OK) stop_with("probe", &e);
    model_options o = probe_model_options(PROBE_SLOTS, rows);
    o.rank = rank;
    o.world = 2;
    o.exchange = d->x;
    o.n_threads = 1;
    d->m = probe_open_model(&o);
    source_from_model(d->m, &d->own);
}

/* The other process. */
static _Noreturn void be_rank_1(const place *p, int rows) {
    duo d = {0};
    meet_fds fds;
    err e = ERR_INIT;
    if (p->nets != NULL) two_nets_enter(p->nets, 1);
    close(p->listen_fd);
    join(p, 1, rows, &d, &fds);
    control_follow_options f = {
        .source = &d.own, .exchange = d.x, .fd = fds.fd[MEET_PLANS][0], .stop_fd = -1};
    int rc = control_follow(&f, &e);
    if (rc != OK) fprintf(stderr, "rank 1: %s\n", e.msg);
    model_close(d.m);
    exchange_close(d.x);
    exit(rc == OK ? 0 : 1);
}

static void open_duo(place *p, int rows, duo *d) {
    meet_fds fds;
    err e = ERR_INIT;
    p->port = 0;
    if (p->nets != NULL) two_nets_enter(p->nets, 0);
    if (meet_listen(p->address, &p->port, &p->listen_fd, &e) != OK) stop_with("listening", &e);
    fflush(NULL);
    d->child = fork();
    if (d->child == 0) be_rank_1(p, rows);
    join(p, 0, rows, d, &fds);
    if (p->nets != NULL) two_nets_enter(p->nets, -1);
    control_options c = {
        .source = &d->own, .exchange = d->x, .fds = &fds.fd[MEET_PLANS][1], .world = 2};
    if (control_open(&c, &d->control, &d->source, &e) != OK) stop_with("control", &e);
}

static void say(const char *id, bool is_fine, const char *wanted, const char *got) {
    if (is_fine) {
        vectors_pass(&v);
    } else {
        vectors_fail(&v, id, wanted, got);
    }
}

/* Every byte of every slot and page is the same on both. */
static void check_state(duo *d, const char *when) {
    uint64_t hash = 0;
    err e = ERR_INIT;
    int rc = d->source.state_hash(d->source.self, &hash, &e);
    char id[80];
    snprintf(id, sizeof id, "state of both ranks after %s", when);
    say(id, rc == OK, "equal bytes", e.msg);
}

static void close_duo(duo *d) {
    int status = -1;
    control_close(d->control);
    model_close(d->m);
    exchange_close(d->x);
    waitpid(d->child, &status, 0);
    say("the end of rank 1", status == 0, "exit 0", "another end");
}

/* ---- two ranks against one ---- */

static void check_against_one(const reply *one, const reply *two, int n) {
    int n_diverging = 0, n_rows = 0, n_far = 0;
    char got[96];
    for (int i = 0; i < n; i++) {
        int k = 0;
        for (; k < one[i].n && k < two[i].n && one[i].tokens[k] == two[i].tokens[k]; k++) {
            n_rows++;
            n_far += !(fabsf(one[i].logprobs[k] - two[i].logprobs[k]) <= LOGPROB_NEAR);
        }
        n_diverging += k < one[i].n || k < two[i].n;
    }
    snprintf(got, sizeof got, "%d of %d replies leave it, %d of %d rows before are not near",
        n_diverging, n, n_far, n_rows);
    printf("two ranks against one: %s\n", got);
    bool is_near = n_diverging * DIVERGING <= n && n_far * NEAR_TIES <= n_rows && n_rows > 20;
    say("two ranks against one", is_near, "few near ties", got);
}

/* ---- a restart ---- */

static reply ask_with_disk(duo *d, const char *dir, const ask *a) {
    run *r = probe_open_run(&d->source,
        (run_options){.cache_dir = dir, .cache_disk_bytes = 64 << 20, .mark_tokens = PROBE_PAGE});
    reply out = probe_answer(r, a);
    run_close(r);
    return out;
}

static void check_restart(place *p, const char *dir) {
    static ask a;
    reply fresh, again;
    duo d;
    probe_fill(&a, 5 * PROBE_PAGE + 20, 77);
    a.temperature = 0.7f;
    open_duo(p, 256, &d);
    run *r = probe_open_run(&d.source, (run_options){.no_cache = true, .no_drafts = true});
    fresh = probe_answer(r, &a);
    run_close(r);
    (void)ask_with_disk(&d, dir, &a);
    close_duo(&d);
    open_duo(p, 256, &d); /* other processes, nothing but the disk remembers */
    again = ask_with_disk(&d, dir, &a);
    bool is_same = probe_same(&fresh, &again) && again.n_cached == a.n - 1;
    probe_verdict(&v, "after a restart", a.n, is_same ? NULL : "another reply, or not from disk");
    check_state(&d, "a restart");
    close_duo(&d);
}

/* ---- all of it ---- */

static void solo(const run_source *source, const ask *asks, reply *out) {
    run *r = probe_open_run(source, (run_options){.no_cache = true, .no_drafts = true});
    for (int k = 0; k < PROBE_CROWD; k++) {
        out[k] = probe_answer(r, &asks[k]);
    }
    run_close(r);
}

static void check_place(place *p, const ask *asks, const reply *one, const char *dir) {
    static reply want[PROBE_CROWD];
    static const int sizes[] = {256, 23};
    /* The same processes over a cable: less of it, unless there is time. */
    bool is_short = p->nets != NULL && getenv("TANDEM_LONG") == NULL;
    for (int i = 0; i < (is_short ? 1 : 2); i++) {
        duo d;
        open_duo(p, sizes[i], &d);
        if (i == 0) {
            solo(&d.source, asks, want);
            check_against_one(one, want, PROBE_CROWD);
            if (!is_short) probe_check_cached(&v, &d.source);
            check_state(&d, "cached turns");
        }
        probe_check_crowd(&v, &d.source, asks, want, i == 0 && !is_short);
        check_state(&d, "a crowd");
        close_duo(&d);
    }
    check_restart(p, dir);
}

static void run_all(const ask *asks, const reply *one) {
    char dir[64] = "/tmp/tandem-serving.XXXXXX", sub[96];
    two_nets nets;
    place loopback = {.address = "127.0.0.1"};
    if (mkdtemp(dir) == NULL) exit(1);
    snprintf(sub, sizeof sub, "%s/loopback", dir);
    check_place(&loopback, asks, one, sub);
    if (two_nets_open(&nets)) {
        place cable = {.nets = &nets};
        snprintf(cable.address, sizeof cable.address, "%s", nets.address[0]);
        snprintf(sub, sizeof sub, "%s/cable", dir);
        check_place(&cable, asks, one, sub);
        two_nets_close(&nets);
    } else {
        vectors_skip(&v, "two network namespaces", "not permitted here");
    }
    (void)dir_remove_all(dir, NULL);
}

int main(void) {
    static ask asks[PROBE_CROWD];
    static reply one[PROBE_CROWD];
    run_source source;
#ifdef __SANITIZE_THREAD__
    vectors_skip(&v, "all", "too slow here; test_control.c covers the threads");
    return vectors_end(&v);
#endif
    if (!probe_find_model()) {
        vectors_skip(&v, "all", "no demo model here");
        return vectors_end(&v);
    }
    probe_make_crowd(asks);
    model_options o = probe_model_options(PROBE_SLOTS, 256);
    model *m = probe_open_model(&o);
    source_from_model(m, &source);
    solo(&source, asks, one);
    model_close(m);
    run_all(asks, one);
    return vectors_end(&v);
}
