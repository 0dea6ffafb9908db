/* A rank that does as rank 0 says: meets it, takes its settings, loads its part of the model and
 * makes its calls until the engine ends. It serves nothing and decides nothing. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include <sys/socket.h>

#include "engine/api/process.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "engine/daemon_internal.h"
#include "engine/dist/pulse.h"

enum { STEP_RING = 256, EXCHANGE_WAIT_MS = 60000, STEP_MEAN = 16 };

typedef struct worker {
    const daemon_options *o;
    meet_fds fds;
    exchange *exchange;
    pulse *pulse;
    model *model;
    engram_store *store;
    run_source source;
    _Atomic int phase; /* pulse_phase */
    _Atomic uint64_t layout, n_steps;
    _Atomic uint32_t step_us[STEP_RING], exchange_us[STEP_RING];
    process_sampler sampler; /* pulse thread */
    pthread_mutex_t lock;    /* guards is_lost and lost */
    bool is_lost;
    err lost;
} worker;

/* ---- what this rank says about itself ---- */

static void fill_times(worker *w, pulse_report_data *out) {
    uint64_t n = atomic_load(&w->n_steps);
    uint32_t count = n < STEP_RING ? (uint32_t)n : STEP_RING;
    uint32_t us[STEP_RING];
    double step_sum = 0.0, exchange_sum = 0.0;
    uint32_t mean = count < STEP_MEAN ? count : STEP_MEAN;
    out->n_steps = n;
    out->step_ms = out->step_ms_p95 = out->exchange_ms = -1.0;
    if (count == 0) return;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = (uint32_t)((n - 1 - i) % STEP_RING);
        uint32_t value = atomic_load_explicit(&w->step_us[at], memory_order_relaxed);
        step_sum += i < mean ? value : 0.0;
        exchange_sum +=
            i < mean ? atomic_load_explicit(&w->exchange_us[at], memory_order_relaxed) : 0.0;
        uint32_t j = i;
        for (; j > 0 && us[j - 1] > value; j--) {
            us[j] = us[j - 1];
        }
        us[j] = value;
    }
    out->step_ms = step_sum / mean / 1e3;
    out->exchange_ms = exchange_sum / mean / 1e3;
    out->step_ms_p95 = us[(count - 1) * 95 / 100] / 1e3;
}

static void fill_report(void *ctx, pulse_report_data *out) {
    worker *w = ctx;
    process_sample p;
    process_sampler_take(&w->sampler, &p);
    out->phase = atomic_load(&w->phase);
    out->pid = (int32_t)getpid();
    out->layout = atomic_load(&w->layout);
    out->process_bytes = p.process_bytes;
    out->machine_used_bytes = p.machine_used_bytes;
    out->machine_total_bytes = p.machine_total_bytes;
    out->cpu_percent = p.cpu_percent;
    fill_times(w, out);
}

static uint32_t as_us(uint64_t ns) {
    return ns / 1000 > UINT32_MAX ? UINT32_MAX : (uint32_t)(ns / 1000);
}

static void on_step(void *ctx, uint64_t step_ns, uint64_t exchange_ns) {
    worker *w = ctx;
    uint64_t n = atomic_load_explicit(&w->n_steps, memory_order_relaxed);
    atomic_store_explicit(&w->step_us[n % STEP_RING], as_us(step_ns), memory_order_relaxed);
    atomic_store_explicit(&w->exchange_us[n % STEP_RING], as_us(exchange_ns), memory_order_relaxed);
    atomic_store(&w->n_steps, n + 1);
}

/* ---- rank 0 is lost ---- */

static void on_lost(void *ctx, int rank, const err *why) {
    worker *w = ctx;
    LOG(LOG_ERROR, "rank", "rank 0 is lost", "peer=%d message=\"%s\"", rank, why->msg);
    if (atomic_load(&w->phase) < PULSE_READY) daemon_fail_fast(why);
    pthread_mutex_lock(&w->lock);
    w->is_lost = true;
    w->lost = *why;
    pthread_mutex_unlock(&w->lock);
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
    atomic_store(&w->phase, PULSE_LEAVING);
}

/* ---- life ---- */

static int meet(worker *w, err *e) {
    const daemon_options *o = w->o;
    meet_options m = {.rank = (int)o->rank,
        .world = (int)(o->n_ranks > 1 ? o->n_ranks : 2),
        .host = o->meet_address,
        .port = (int)o->meet_port,
        .listen_fd = -1,
        .n_channels = MEET_MAX_CHANNELS,
        .timeout_ms = (int)(o->meet_s * 1000),
        .stop_fd = daemon_stop_fd()};
    int rc = ranks_read_start(&m, e);
    if (rc == OK) rc = ranks_model_digest(buf_cstr(&o->model_dir), &m.identity.model, e);
    str_copy(m.identity.build, sizeof m.identity.build, version_build_id());
    if (rc == OK) rc = meet_all(&m, &w->fds, e);
    memset(m.secret, 0, sizeof m.secret);
    return rc;
}

static int start_parts(worker *w, err *e) {
    int world = (int)(w->o->n_ranks > 1 ? w->o->n_ranks : 2);
    exchange_tcp_options x = {
        .rank = (int)w->o->rank, .world = world, .timeout_ms = EXCHANGE_WAIT_MS};
    pulse_options p = {.rank = (int)w->o->rank,
        .world = world,
        .fds = w->fds.fd[MEET_PULSE],
        .fill = fill_report,
        .on_lost = on_lost,
        .on_bye = on_bye,
        .ctx = w};
    int rc = exchange_tcp_adopt(&x, w->fds.fd[MEET_EXCHANGE], &w->exchange, e);
    w->fds.fd[MEET_EXCHANGE][0] = -1;
    if (rc != OK) return rc;
    process_sampler_init(&w->sampler);
    rc = pulse_open(&p, &w->pulse, e);
    w->fds.fd[MEET_PULSE][0] = -1;
    return rc;
}

static int load(worker *w, const control_settings *s, err *e) {
    const daemon_options *o = w->o;
    int world = (int)(o->n_ranks > 1 ? o->n_ranks : 2);
    model_info info;
    int rc = daemon_engram(o, (int)o->rank, world, &w->store, e);
    if (rc != OK) return rc;
    model_options mo = {.dir = buf_cstr(&o->model_dir),
        .backend = o->backend.len > 0 ? buf_cstr(&o->backend) : NULL,
        .rank = (int)o->rank,
        .world = world,
        .exchange = w->exchange,
        .n_threads = (int)o->n_threads,
        .n_slots = s->n_slots,
        .n_pages = s->n_pages,
        .page_tokens = s->page_tokens,
        .max_rows = s->max_rows,
        .max_logit_rows = s->max_logit_rows,
        .max_rollback = s->max_rollback,
        .max_context = s->max_context,
        .without_drafts = s->without_drafts != 0,
        .store = w->store};
    rc = model_open(&mo, &w->model, e);
    if (rc != OK) return rc;
    source_from_model(w->model, &w->source);
    model_get_info(w->model, &info);
    atomic_store(&w->layout, info.layout_hash);
    atomic_store(&w->phase, PULSE_READY);
    LOG(LOG_INFO, "rank", "model loaded", "dir=%s", buf_cstr(&o->model_dir));
    return OK;
}

/* What really happened, when a wait ended because rank 0 was lost. */
static int first_cause(worker *w, int rc, err *e) {
    pthread_mutex_lock(&w->lock);
    if (rc != OK && w->is_lost) {
        *e = w->lost;
        rc = e->code;
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}

int daemon_rank(const daemon_options *o, err *e) {
    worker *w = mem_alloc(sizeof *w);
    control_settings settings;
    w->o = o;
    meet_fds_init(&w->fds);
    pthread_mutex_init(&w->lock, NULL);
    atomic_store(&w->phase, PULSE_LOADING);
    int rc = meet(w, e);
    if (rc == OK) {
        rc = control_take_settings(w->fds.fd[MEET_PLANS][0], daemon_stop_fd(), &settings, e);
    }
    if (rc == OK) rc = start_parts(w, e);
    if (rc == OK) rc = load(w, &settings, e);
    control_follow_options f = {.source = &w->source,
        .exchange = w->exchange,
        .fd = w->fds.fd[MEET_PLANS][0],
        .stop_fd = daemon_stop_fd(),
        .on_stop = on_stop,
        .on_step = on_step,
        .ctx = w};
    if (rc == OK) rc = control_follow(&f, e);
    rc = first_cause(w, rc, e);
    if (rc == OK) {
        pulse_bye(w->pulse);
    } else {
        pulse_fail(w->pulse, e);
    }
    pulse_close(w->pulse);
    model_close(w->model);
    engram_store_close(w->store);
    exchange_close(w->exchange);
    meet_fds_close(&w->fds);
    pthread_mutex_destroy(&w->lock);
    mem_free(w);
    return rc;
}
