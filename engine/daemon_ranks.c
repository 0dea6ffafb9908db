/* Rank 0's side of several ranks: meeting, heartbeats, and what happens when one is lost. */
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/daemon_internal.h"
#include "engine/dist/pulse.h"

enum { JOIN_LOOK_MS = 20 };

struct ranks {
    int world, check_every;
    int64_t timeout_ms;
    daemon_self *self;
    meet_fds fds;
    pulse *pulse;
    exchange *exchange;
    pthread_mutex_t lock; /* guards what follows */
    control *control;
    run *run;
    bool is_lost, is_closing;
    err lost;
};

/* ---- a lost rank ---- */

static void on_lost(void *ctx, int rank, const err *why) {
    ranks *r = ctx;
    pthread_mutex_lock(&r->lock);
    bool is_first = !r->is_lost, is_loading = r->run == NULL && !r->is_closing;
    if (is_first) {
        r->is_lost = true;
        r->lost = *why;
    }
    if (r->run != NULL) run_fail(r->run, &r->lost);
    if (r->control != NULL) {
        control_abort(r->control, &r->lost);
    } else if (r->exchange != NULL) {
        exchange_abort(r->exchange, &r->lost);
    }
    pthread_mutex_unlock(&r->lock);
    LOG(LOG_ERROR, "ranks", "a rank is lost", "peer=%d message=\"%s\"", rank, why->msg);
    if (is_loading) daemon_fail_fast(r->self, why);
}

static void on_bye(void *ctx, int rank) {
    err why = ERR_INIT;
    err_set(&why, ERR_PEER, "rank %d ended", rank);
    on_lost(ctx, rank, &why);
}

bool ranks_have_failed(ranks *r, err *why) {
    if (r == NULL) return false;
    pthread_mutex_lock(&r->lock);
    bool is_lost = r->is_lost;
    if (is_lost) *why = r->lost;
    pthread_mutex_unlock(&r->lock);
    return is_lost;
}

bool ranks_want_stop(ranks *r) {
    rank_figures report;
    bool wants = false;
    for (int i = 1; r != NULL && i < r->world; i++) {
        wants |= pulse_peer(r->pulse, i, &report, NULL) && report.phase == RANK_LEAVING;
    }
    return wants;
}

/* ---- opening ---- */

static void say_figures(void *ctx, rank_figures *out) {
    daemon_self_fill(((ranks *)ctx)->self, out);
}

static int start_pulse(ranks *r, err *e) {
    pulse_options p = {.rank = 0,
        .world = r->world,
        .fds = r->fds.fd[MEET_PULSE],
        .fill = say_figures,
        .on_lost = on_lost,
        .on_bye = on_bye,
        .ctx = r};
    int rc = pulse_open(&p, &r->pulse, e);
    for (int i = 0; i < MEET_MAX_WORLD; i++) {
        r->fds.fd[MEET_PULSE][i] = -1; /* taken */
    }
    return rc;
}

/* Before the model is loaded: a link that does not carry data is found now. */
static int open_exchange(ranks *r, const daemon_options *o, err *e) {
    exchange *x = NULL;
    daemon_self_phase(r->self, RANK_PROBING);
    int rc = daemon_exchange(o, r->self, &r->fds, &x, e);
    pthread_mutex_lock(&r->lock);
    r->exchange = x;
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int ranks_open(
    const daemon_options *o, daemon_self *self, const control_settings *s, ranks **out, err *e) {
    ranks *r = mem_alloc(sizeof *r);
    r->world = daemon_world(o);
    r->timeout_ms = o->meet_s * 1000;
    r->check_every = (int)o->check_every;
    r->self = self;
    meet_fds_init(&r->fds);
    pthread_mutex_init(&r->lock, NULL);
    LOG(LOG_INFO, "ranks", "waiting for the other ranks", "ranks=%d address=%s port=%lld", r->world,
        o->meet_address, (long long)o->meet_port);
    int rc = daemon_meet(o, self, &r->fds, e);
    if (rc == OK) rc = control_send_settings(&r->fds.fd[MEET_PLANS][1], r->world - 1, s, e);
    if (rc == OK) rc = start_pulse(r, e);
    if (rc == OK) rc = open_exchange(r, o, e);
    if (rc != OK) {
        ranks_leave(r, e);
        ranks_close(r);
        return rc;
    }
    LOG(LOG_INFO, "ranks", "all ranks are there", "ranks=%d", r->world);
    *out = r;
    return OK;
}

exchange *ranks_exchange(const ranks *r) {
    return r->exchange;
}

/* Waits until rank i says that it has come to phase. */
static int await_phase(ranks *r, int i, int phase, rank_figures *report, err *e) {
    uint64_t deadline = clock_mono_ms() + (uint64_t)r->timeout_ms;
    struct pollfd stop = {.fd = daemon_stop_fd(), .events = POLLIN};
    while (!pulse_peer(r->pulse, i, report, NULL) || report->phase < phase) {
        if (ranks_have_failed(r, e)) return e->code;
        if (clock_mono_ms() >= deadline) {
            return err_set(e, ERR_TIMEOUT, "rank %d has not loaded its model in %lld s", i,
                (long long)r->timeout_ms / 1000);
        }
        if (poll(&stop, 1, JOIN_LOOK_MS) > 0) {
            return err_set(e, ERR_CANCELLED, "stopped while rank %d was loading", i);
        }
    }
    return OK;
}

int ranks_await_models(void *ctx, err *e) {
    ranks *r = ctx;
    rank_figures report;
    int rc = OK;
    for (int i = 1; i < r->world && rc == OK; i++) {
        rc = await_phase(r, i, RANK_CANARY, &report, e);
    }
    return rc;
}

/* Waits until rank i says that its model stands. */
static int await_loaded(ranks *r, int i, uint64_t layout, err *e) {
    rank_figures report = {0};
    int rc = await_phase(r, i, RANK_READY, &report, e);
    if (rc != OK) return rc;
    if (report.layout == layout) return OK;
    return err_set(e, ERR_MISMATCH,
        "rank %d lays out its cache differently (%016llx, rank 0 %016llx); start all ranks from "
        "the same bundle",
        i, (unsigned long long)report.layout, (unsigned long long)layout);
}

int ranks_join(ranks *r, model *m, const run_source *own, run_source *out, err *e) {
    model_info info;
    control *c = NULL;
    int rc = OK;
    model_get_info(m, &info);
    for (int i = 1; i < r->world && rc == OK; i++) {
        rc = await_loaded(r, i, info.layout_hash, e);
    }
    control_options o = {.source = own,
        .exchange = r->exchange,
        .fds = &r->fds.fd[MEET_PLANS][1],
        .world = r->world,
        .check_every = r->check_every};
    if (rc == OK) rc = control_open(&o, &c, out, e);
    if (rc != OK) return rc;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < MEET_MAX_WORLD; i++) {
        r->fds.fd[MEET_PLANS][i] = -1;
    }
    r->control = c;
    pthread_mutex_unlock(&r->lock);
    return OK;
}

int ranks_watch(ranks *r, run *served, err *e) {
    int rc = OK;
    if (r == NULL) return OK;
    pthread_mutex_lock(&r->lock);
    r->run = served;
    r->is_closing = served == NULL;
    if (r->is_lost && !r->is_closing) {
        *e = r->lost;
        rc = e->code;
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int ranks_describe(ranks *r, api_rank *out, int cap) {
    err ignored = ERR_INIT;
    if (r == NULL) return 1;
    bool is_lost = ranks_have_failed(r, &ignored);
    int count = r->world < cap ? r->world : cap;
    for (int i = 1; i < count; i++) {
        out[i] = (api_rank){.rank = i, .state = "loading"};
        bool is_known = pulse_peer(r->pulse, i, &out[i].f, &out[i].age_s);
        int phase = is_known ? out[i].f.phase : RANK_STARTING;
        if (phase == RANK_READY) out[i].state = "up";
        if (phase == RANK_LEAVING) out[i].state = "leaving";
        if (is_lost) out[i].state = "lost";
    }
    return count;
}

double ranks_exchange_ms(ranks *r) {
    if (r == NULL) return -1.0;
    pthread_mutex_lock(&r->lock);
    double ms = r->control != NULL ? control_exchange_ms(r->control) : -1.0;
    pthread_mutex_unlock(&r->lock);
    return ms;
}

void ranks_leave(ranks *r, const err *why) {
    if (r == NULL) return;
    if (why != NULL) {
        pulse_fail(r->pulse, why);
    } else {
        pulse_bye(r->pulse);
    }
    pulse_close(r->pulse); /* its callbacks use what is closed next */
    daemon_self_exchange(r->self, NULL, -1.0);
    control_close(r->control);
    /* No heart beats any more: what a GPU waits for from another rank must not hold up the end. */
    bool has_gpu = r->exchange != NULL && exchange_is_device(r->exchange);
    if (why != NULL && has_gpu) exchange_abort(r->exchange, why);
    r->pulse = NULL;
    r->control = NULL;
}

void ranks_close(ranks *r) {
    if (r == NULL) return;
    exchange_close(r->exchange);
    meet_fds_close(&r->fds);
    pthread_mutex_destroy(&r->lock);
    mem_free(r);
}
