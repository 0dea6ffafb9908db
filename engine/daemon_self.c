/* What a process of tandemd knows of itself: where its start is, its figures, and the file in which
 * others find both, also after it has failed. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/api/node_sample.h"
#include "engine/base/buf.h"
#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "engine/daemon_internal.h"

/* Progress of loading is written at most so often. */
#define FILE_WRITE_MS 1000
#define FILE_MAX_BYTES 16384

struct daemon_self {
    int rank, world;
    node_sampler *node;
    step_times steps, exchanges;
    pthread_mutex_t lock; /* guards what follows */
    char path[512];       /* "": no file */
    char model_dir[512], model_id[128];
    api_start start; /* last_failure: of an earlier process, or of this one */
    bool has_failed; /* this one */
    double loaded;
    double probe_us;
    const model *model;       /* borrowed; NULL before and after */
    const exchange *exchange; /* the same */
    memory_plan parts;
    double engram_bytes;
    uint64_t written_ms;
};

/* ---- the file ---- */

static void put_failure(json_w *w, const daemon_self *s) {
    const api_start *t = &s->start;
    json_w_key(w, "failure");
    if (t->last_failure.code == OK) {
        json_w_null(w);
        return;
    }
    json_w_object(w);
    json_w_kstr(w, "code", err_name(t->last_failure.code));
    json_w_kstr(w, "message", t->last_failure.msg);
    json_w_ku64(w, "time_ms", t->last_failure_ms);
    json_w_kbool(w, "is_earlier", !s->has_failed);
    json_w_close(w);
}

static void write_file_locked(daemon_self *s) {
    buf text = BUF_INIT;
    json_w w;
    err e = ERR_INIT;
    s->written_ms = clock_mono_ms();
    if (s->path[0] == '\0') return;
    json_w_begin(&w, &text);
    json_w_object(&w);
    json_w_ki64(&w, "pid", getpid());
    json_w_ki64(&w, "rank", s->rank);
    json_w_ki64(&w, "ranks", s->world);
    json_w_kstr(&w, "start_id", s->start.id[0] != '\0' ? s->start.id : NULL);
    json_w_kstr(&w, "phase", rank_phase_name(s->start.phase));
    json_w_key(&w, "progress");
    json_w_fixed(&w, rank_phase_progress(s->start.phase, s->loaded), 3);
    json_w_ku64(&w, "since_ms", s->start.since_ms);
    json_w_ku64(&w, "time_ms", clock_wall_ms());
    json_w_kstr(&w, "version", TANDEM_VERSION);
    json_w_kstr(&w, "build", version_build_id());
    json_w_kstr(&w, "model", s->model_id[0] != '\0' ? s->model_id : NULL);
    json_w_kstr(&w, "model_dir", s->model_dir);
    put_failure(&w, s);
    json_w_close(&w);
    json_w_end(&w);
    buf_putc(&text, '\n');
    if (file_write_atomic(s->path, text.data, text.len, 0600, &e) != OK)
        LOG(LOG_WARN, "daemon", "status file not written", "message=\"%s\"", e.msg);
    buf_release(&text);
}

/* Why an earlier process on this file ended. */
static void read_failure_locked(daemon_self *s) {
    buf text = BUF_INIT;
    json *v = NULL;
    uint64_t time_ms = 0;
    if (file_read(s->path, &text, FILE_MAX_BYTES, NULL) == OK)
        (void)json_parse(buf_cstr(&text), text.len, NULL, &v, NULL);
    const json *failure = json_get(v, "failure");
    const char *message = json_str(json_get(failure, "message"));
    if (message != NULL && json_u64(json_get(failure, "time_ms"), &time_ms) == OK) {
        err_set(&s->start.last_failure, ERR_PEER, "%s", message);
        s->start.last_failure_ms = time_ms;
    }
    json_free(v);
    buf_release(&text);
}

/* ---- life ---- */

daemon_self *daemon_self_new(const daemon_options *o, int rank, const char *model_id) {
    daemon_self *s = mem_alloc(sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    s->rank = rank;
    s->world = daemon_world(o);
    s->node = node_sampler_new("/sys");
    s->loaded = s->probe_us = s->engram_bytes = -1.0;
    s->start.since_ms = clock_wall_ms();
    str_copy(s->model_dir, sizeof s->model_dir, buf_cstr(&o->model_dir));
    str_copy(s->model_id, sizeof s->model_id, model_id != NULL ? model_id : "");
    if (o->status_path.len > 0) daemon_self_file(s, buf_cstr(&o->status_path));
    return s;
}

void daemon_self_file(daemon_self *s, const char *path) {
    pthread_mutex_lock(&s->lock);
    if (s->path[0] == '\0') {
        str_copy(s->path, sizeof s->path, path);
        read_failure_locked(s);
        write_file_locked(s);
    }
    pthread_mutex_unlock(&s->lock);
}

void daemon_self_free(daemon_self *s) {
    if (s == NULL) return;
    node_sampler_free(s->node);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

/* ---- where the start is ---- */

void daemon_self_start_id(daemon_self *s, uint64_t id) {
    pthread_mutex_lock(&s->lock);
    snprintf(s->start.id, sizeof s->start.id, "%016llx", (unsigned long long)id);
    pthread_mutex_unlock(&s->lock);
}

void daemon_self_phase(daemon_self *s, int phase) {
    pthread_mutex_lock(&s->lock);
    if (!s->has_failed && s->start.phase != phase) {
        s->start.phase = phase;
        s->start.since_ms = clock_wall_ms();
        write_file_locked(s);
    }
    pthread_mutex_unlock(&s->lock);
}

int daemon_self_loaded(void *self, uint64_t done, uint64_t total) {
    daemon_self *s = self;
    pthread_mutex_lock(&s->lock);
    double all = total > 0 ? (double)total : (double)s->parts.weight_bytes - s->engram_bytes;
    s->loaded = all > 0.0 ? (double)done / all : -1.0;
    if (clock_mono_ms() - s->written_ms >= FILE_WRITE_MS) write_file_locked(s);
    pthread_mutex_unlock(&s->lock);
    return OK;
}

void daemon_self_fail(daemon_self *s, const err *why) {
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    if (!s->has_failed) { /* what came first is the reason */
        s->has_failed = true;
        s->start.phase = RANK_FAILED;
        s->start.since_ms = s->start.last_failure_ms = clock_wall_ms();
        s->start.last_failure = *why;
        write_file_locked(s);
    }
    pthread_mutex_unlock(&s->lock);
}

void daemon_self_stopped(daemon_self *s) {
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    if (!s->has_failed && s->path[0] != '\0') (void)unlink(s->path);
    pthread_mutex_unlock(&s->lock);
}

/* ---- what it holds ---- */

void daemon_self_plan(
    daemon_self *s, const memory_plan *plan, uint64_t engram_bytes, uint64_t available) {
    pthread_mutex_lock(&s->lock);
    s->start.plan = *plan;
    s->start.available_bytes = available;
    s->parts = *plan;
    s->engram_bytes = (double)engram_bytes;
    pthread_mutex_unlock(&s->lock);
}

void daemon_self_settings(daemon_self *s, uint64_t hash) {
    pthread_mutex_lock(&s->lock);
    s->start.settings_hash = hash;
    pthread_mutex_unlock(&s->lock);
}

void daemon_self_model(daemon_self *s, const model *m) {
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    s->model = m;
    pthread_mutex_unlock(&s->lock);
}

void daemon_self_exchange(daemon_self *s, const exchange *x, double probe_us) {
    if (s == NULL) return;
    pthread_mutex_lock(&s->lock);
    s->exchange = x;
    s->probe_us = probe_us;
    pthread_mutex_unlock(&s->lock);
}

void daemon_self_step(daemon_self *s, uint64_t step_ns, uint64_t exchange_ns) {
    step_times_add(&s->steps, step_ns);
    step_times_add(&s->exchanges, exchange_ns);
}

/* ---- what others read ---- */

static void fill_exchange_locked(const daemon_self *s, rank_figures *out) {
    uint64_t ns = 0, n = 0;
    out->probe_us = s->probe_us;
    if (s->exchange == NULL) return;
    exchange_usage(s->exchange, &ns, &n);
    out->exchange_wait_s = (double)ns / 1e9;
    if (exchange_is_device(s->exchange) != 0 || out->n_rails >= FIGURES_RAILS) return;
    rank_rail *r = &out->rails[out->n_rails++];
    *r = (rank_rail){.name = "tcp", .bytes = (double)exchange_bytes(s->exchange)};
}

void daemon_self_fill(void *self, rank_figures *out) {
    daemon_self *s = self;
    model_info info;
    engram_store_stats engram;
    rank_figures_init(out);
    node_sampler_take(s->node, out);
    out->n_steps = (double)atomic_load(&s->steps.n);
    step_times_read(&s->steps, &out->step_ms, &out->step_ms_p95);
    step_times_read(&s->exchanges, &out->exchange_ms, NULL);
    pthread_mutex_lock(&s->lock);
    out->phase = s->start.phase;
    out->loaded = s->loaded;
    if (s->parts.weight_bytes > 0) {
        out->weight_bytes = (double)s->parts.weight_bytes - s->engram_bytes;
        out->cache_bytes = (double)s->parts.cache_bytes;
        out->work_bytes = (double)s->parts.work_bytes;
        out->engram_bytes = s->engram_bytes;
    }
    if (s->model != NULL) {
        model_get_info(s->model, &info);
        model_engram_stats(s->model, &engram);
        out->layout = info.layout_hash;
        out->engram_rows = (double)engram.n_rows;
        out->engram_errors = (double)engram.n_errors;
    }
    fill_exchange_locked(s, out);
    pthread_mutex_unlock(&s->lock);
}

void daemon_self_start(const daemon_self *self, api_start *out) {
    daemon_self *s = (daemon_self *)(uintptr_t)self; /* the lock */
    pthread_mutex_lock(&s->lock);
    *out = s->start;
    out->progress = rank_phase_progress(s->start.phase, s->loaded);
    pthread_mutex_unlock(&s->lock);
}

void daemon_self_engram(const daemon_self *self, engram_store_stats *out) {
    daemon_self *s = (daemon_self *)(uintptr_t)self;
    *out = (engram_store_stats){0};
    pthread_mutex_lock(&s->lock);
    if (s->model != NULL) model_engram_stats(s->model, out);
    pthread_mutex_unlock(&s->lock);
}
