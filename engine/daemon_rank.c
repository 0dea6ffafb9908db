/* A rank that does as rank 0 says: meets it, takes its settings, loads its part of the model and
 * makes its calls until the engine ends. It serves nothing and decides nothing. */
#include <poll.h>
#include <pthread.h>
#include <string.h>

#include <sys/socket.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/daemon_internal.h"
#include "engine/dist/pulse.h"

enum { MODEL_LOOK_MS = 20 };

typedef struct worker {
    const daemon_options *o;
    daemon_part part;
    meet_fds fds;
    exchange *exchange;
    pulse *pulse;
    run_source source;
    pthread_mutex_t lock; /* guards what follows */
    bool is_following;    /* the model stands */
    bool is_lost;
    err lost;
} worker;

static void on_step(void *ctx, uint64_t step_ns, uint64_t exchange_ns) {
    daemon_self_step(((worker *)ctx)->part.self, step_ns, exchange_ns);
}

static void fill_figures(void *ctx, rank_figures *out) {
    daemon_self_fill(((worker *)ctx)->part.self, out);
}

/* ---- rank 0 is lost ---- */

static void on_lost(void *ctx, int rank, const err *why) {
    worker *w = ctx;
    LOG(LOG_ERROR, "rank", "rank 0 is lost", "peer=%d message=\"%s\"", rank, why->msg);
    pthread_mutex_lock(&w->lock);
    bool is_following = w->is_following;
    w->is_lost = true;
    w->lost = *why;
    pthread_mutex_unlock(&w->lock);
    if (!is_following) daemon_fail_fast(w->part.self, why);
    exchange_abort(w->exchange, why);
    (void)shutdown(w->fds.fd[MEET_PLANS][0], SHUT_RDWR);
}

/* The END call ends this rank; rank 0 said both. */
static void on_bye(void *ctx, int rank) {
    (void)ctx;
    LOG(LOG_INFO, "rank", "the engine ends", "peer=%d", rank);
}

/* Rank 0 sees this phase in the next heartbeat, lets its replies end and then ends the engine. */
static void on_stop(void *ctx) {
    worker *w = ctx;
    LOG(LOG_INFO, "rank", "asked to stop", "waits=\"for rank 0 to drain\"");
    daemon_self_phase(w->part.self, RANK_LEAVING);
}

/* ---- life ---- */

static int start_pulse(worker *w, err *e) {
    pulse_options p = {.rank = (int)w->o->rank,
        .world = daemon_world(w->o),
        .fds = w->fds.fd[MEET_PULSE],
        .fill = fill_figures,
        .on_lost = on_lost,
        .on_bye = on_bye,
        .ctx = w};
    int rc = pulse_open(&p, &w->pulse, e);
    w->fds.fd[MEET_PULSE][0] = -1; /* taken */
    return rc;
}

static int open_exchange(worker *w, err *e) {
    daemon_self_phase(w->part.self, RANK_PROBING);
    return daemon_exchange(w->o, w->part.self, &w->fds, &w->exchange, e);
}

/* Until rank 0's model stands, too. A rank 0 that is lost meanwhile ends this process. */
static int await_models(void *ctx, err *e) {
    worker *w = ctx;
    rank_figures report;
    uint64_t deadline = clock_mono_ms() + (uint64_t)w->o->meet_s * 1000u;
    struct pollfd stop = {.fd = daemon_stop_fd(), .events = POLLIN};
    while (!pulse_peer(w->pulse, 0, &report, NULL) || report.phase < RANK_CANARY) {
        if (clock_mono_ms() >= deadline) {
            return err_set(e, ERR_TIMEOUT, "rank 0 has not loaded its model in %lld s",
                (long long)w->o->meet_s);
        }
        if (poll(&stop, 1, MODEL_LOOK_MS) > 0) {
            return err_set(e, ERR_CANCELLED, "stopped while rank 0 was loading");
        }
    }
    return OK;
}

static int load(worker *w, const control_settings *s, err *e) {
    int rc = daemon_check_memory(&w->part, s, e);
    if (rc == OK) rc = daemon_open_model(&w->part, s, w->exchange, e);
    if (rc != OK) return rc;
    source_from_model(w->part.model, &w->source);
    pthread_mutex_lock(&w->lock);
    w->is_following = true;
    pthread_mutex_unlock(&w->lock);
    daemon_self_phase(w->part.self, RANK_READY);
    return OK;
}

static int follow(worker *w, err *e) {
    control_follow_options f = {.source = &w->source,
        .exchange = w->exchange,
        .fd = w->fds.fd[MEET_PLANS][0],
        .stop_fd = daemon_stop_fd(),
        .on_stop = on_stop,
        .on_step = on_step,
        .ctx = w};
    int rc = control_follow(&f, e);
    pthread_mutex_lock(&w->lock);
    if (rc != OK && w->is_lost) *e = w->lost; /* what really happened */
    pthread_mutex_unlock(&w->lock);
    /* Whatever broke a running engine, a new start may help. */
    return rc == OK ? OK : ERR_PEER;
}

static void close_all(worker *w, int rc, const err *why) {
    if (rc == OK) {
        pulse_bye(w->pulse);
    } else {
        daemon_self_fail(w->part.self, why);
        pulse_fail(w->pulse, why);
    }
    pulse_close(w->pulse);
    daemon_self_exchange(w->part.self, NULL, -1.0);
    /* As on rank 0: nothing on the GPU waits for it any more. */
    bool has_gpu = w->exchange != NULL && exchange_is_device(w->exchange);
    if (rc != OK && has_gpu) exchange_abort(w->exchange, why);
    daemon_close_model(&w->part);
    exchange_close(w->exchange);
    meet_fds_close(&w->fds);
    pthread_mutex_destroy(&w->lock);
}

int daemon_rank(const daemon_options *o, daemon_self *self, err *e) {
    worker *w = mem_alloc(sizeof *w);
    control_settings settings;
    w->o = o;
    w->part = (daemon_part){.options = o,
        .self = self,
        .rank = (int)o->rank,
        .await_models = await_models,
        .await_ctx = w};
    meet_fds_init(&w->fds);
    pthread_mutex_init(&w->lock, NULL);
    int rc = daemon_meet(o, self, &w->fds, e);
    if (rc == OK)
        rc = control_take_settings(w->fds.fd[MEET_PLANS][0], daemon_stop_fd(), &settings, e);
    if (rc == OK) rc = start_pulse(w, e);
    if (rc == OK) rc = open_exchange(w, e);
    if (rc == OK) rc = load(w, &settings, e);
    if (rc == OK) rc = follow(w, e);
    close_all(w, rc, e);
    mem_free(w);
    return rc;
}
