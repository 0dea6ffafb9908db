/* Rates, limits and what the owner sees. */
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/str.h"
#include "setup/hub_internal.h"

enum { SAMPLE_MS = 250, NOW_MS = 5000, MINUTE_MS = 60000, GROW_MS = 4000, STALL_SHOWN_MS = 20000 };

/* A bucket that holds a quarter of a second. */
void hub_throttle(hub *h, size_t n) {
    for (;;) {
        pthread_mutex_lock(&h->lock);
        double limit = (double)h->rate_limit;
        uint64_t now = clock_mono_ms();
        if (limit > 0 && h->bucket_ms != 0) {
            h->bucket += limit * (double)(now - h->bucket_ms) / 1000.0;
            if (h->bucket > limit / 4) h->bucket = limit / 4;
        }
        h->bucket_ms = now;
        bool may = limit <= 0 || h->bucket >= 0 || h->stop_rc != OK;
        if (may) h->bucket -= limit > 0 ? (double)n : h->bucket;
        pthread_mutex_unlock(&h->lock);
        if (may) return;
        sleep_ms(20);
    }
}

void hub_count_bytes(hub *h, hub_file *f, size_t n) {
    pthread_mutex_lock(&h->lock);
    f->fresh_bytes += n;
    f->unmarked_bytes += n;
    h->p.fetched_bytes += n;
    h->last_progress_ms = clock_mono_ms();
    pthread_mutex_unlock(&h->lock);
}

void hub_note_retry(hub *h, const char *reason) {
    pthread_mutex_lock(&h->lock);
    h->p.n_retries++;
    str_copy(h->p.last_reason, sizeof h->p.last_reason, reason);
    pthread_mutex_unlock(&h->lock);
    LOG(LOG_WARN, "hub", "again", "reason=%s", reason);
}

/* Bytes a second over the last ms. */
static double rate_over(const hub *h, uint64_t ms) {
    if (h->n_samples < 2) return 0;
    size_t newest = (h->n_samples - 1) % HUB_RATE_SAMPLES;
    size_t kept = h->n_samples < HUB_RATE_SAMPLES ? h->n_samples : HUB_RATE_SAMPLES;
    size_t oldest = newest;
    for (size_t k = 1; k < kept; k++) {
        size_t i = (h->n_samples - 1 - k) % HUB_RATE_SAMPLES;
        oldest = i;
        if (h->samples[newest].ms - h->samples[i].ms >= ms) break;
    }
    uint64_t span = h->samples[newest].ms - h->samples[oldest].ms;
    if (span == 0) return 0;
    return (double)(h->samples[newest].bytes - h->samples[oldest].bytes) * 1000.0 / (double)span;
}

/* One more connection while that pays; a hub that complains halves them (hub_load.c). */
static void grow_locked(hub *h, uint64_t now) {
    if (now - h->grown_ms < GROW_MS || h->n_allowed >= h->o.connections || h->rate_limit != 0)
        return;
    double rate = rate_over(h, GROW_MS);
    h->grown_ms = now;
    if (h->n_busy < h->n_allowed || rate < h->grown_rate * 1.05) return;
    h->grown_rate = rate;
    h->n_allowed++;
}

void hub_rate_tick_locked(hub *h) {
    uint64_t now = clock_mono_ms();
    size_t last = (h->n_samples + HUB_RATE_SAMPLES - 1) % HUB_RATE_SAMPLES;
    if (h->n_samples > 0 && now - h->samples[last].ms < SAMPLE_MS) return;
    h->samples[h->n_samples % HUB_RATE_SAMPLES].ms = now;
    h->samples[h->n_samples % HUB_RATE_SAMPLES].bytes = h->p.fetched_bytes;
    h->n_samples++;
    for (size_t i = 0; i < h->n_files; i++) {
        hub_file *f = &h->files[i];
        if (now - f->last_ms < 1000) continue;
        f->rate = (double)(f->fresh_bytes - f->last_fresh) * 1000.0 / (double)(now - f->last_ms);
        f->last_fresh = f->fresh_bytes;
        f->last_ms = now;
    }
    grow_locked(h, now);
}

static uint64_t file_done_locked(const hub_file *f) {
    if (f->state == HUB_OK) return f->f->size;
    uint64_t done = f->r.done_bytes + f->unmarked_bytes;
    return f->state == HUB_CHECKING ? 0 : done < f->f->size ? done : f->f->size;
}

void hub_progress_get(hub *h, hub_progress *out) {
    uint64_t free_bytes = h->o.disk.free_bytes != NULL ? h->o.disk.free_bytes(h->o.disk.ctx)
                                                       : store_free_bytes(&h->s);
    pthread_mutex_lock(&h->lock);
    uint64_t now = clock_mono_ms();
    *out = h->p;
    out->free_bytes = free_bytes;
    out->n_files = h->n_files;
    out->total_bytes = out->done_bytes = out->verified_bytes = 0;
    out->n_ok = 0;
    for (size_t i = 0; i < h->n_files; i++) {
        const hub_file *f = &h->files[i];
        out->total_bytes += f->f->size;
        out->done_bytes += file_done_locked(f);
        if (f->state != HUB_OK) continue;
        out->n_ok++;
        out->verified_bytes += f->f->size;
    }
    out->rate_now = rate_over(h, NOW_MS);
    out->rate_minute = rate_over(h, MINUTE_MS);
    out->rate_mean =
        now > h->begun_ms ? (double)h->p.fetched_bytes * 1000.0 / (double)(now - h->begun_ms) : 0;
    double rate = out->rate_minute > 0 ? out->rate_minute : out->rate_mean;
    /* While nothing comes at all there is no time to say. */
    if (out->rate_now <= 0) rate = 0;
    out->eta_s = rate > 0 ? (double)(out->total_bytes - out->done_bytes) / rate : -1;
    out->n_connections = h->n_allowed;
    out->n_busy = h->n_busy;
    out->wait_ms = now < h->wait_until_ms ? (int64_t)(h->wait_until_ms - now) : 0;
    pthread_mutex_unlock(&h->lock);
}

size_t hub_n_files(const hub *h) {
    return h->n_files;
}

void hub_file_progress_get(hub *h, size_t i, hub_file_progress *out) {
    pthread_mutex_lock(&h->lock);
    const hub_file *f = &h->files[i];
    out->file = f->f;
    out->state = f->state;
    out->done_bytes = file_done_locked(f);
    out->hashed_bytes = f->state == HUB_OK ? f->f->size : f->hashed;
    out->again_bytes = f->again_bytes;
    out->rate = f->rate;
    out->is_stalled = f->state == HUB_LOADING && h->n_busy > 0 &&
                      clock_mono_ms() - h->last_progress_ms > STALL_SHOWN_MS;
    pthread_mutex_unlock(&h->lock);
}

const char *hub_file_state_name(hub_file_state s) {
    static const char *const names[HUB_FILE_STATES] = {
        "waiting", "checking", "loading", "verifying", "ok", "failed"};
    return s < HUB_FILE_STATES ? names[s] : "";
}

void hub_set_rate(hub *h, uint64_t bytes_per_s) {
    pthread_mutex_lock(&h->lock);
    h->rate_limit = bytes_per_s;
    h->bucket = 0;
    pthread_mutex_unlock(&h->lock);
}

void hub_set_connections(hub *h, int n) {
    pthread_mutex_lock(&h->lock);
    if (n >= 1 && n <= HUB_MAX_WORKERS) h->n_allowed = n;
    pthread_cond_broadcast(&h->changed);
    pthread_mutex_unlock(&h->lock);
}

static void files_json(hub *h, json_w *w) {
    json_w_key(w, "files");
    json_w_array(w);
    for (size_t i = 0; i < h->n_files; i++) {
        hub_file_progress f;
        hub_file_progress_get(h, i, &f);
        json_w_object(w);
        json_w_kstr(w, "path", f.file->path);
        json_w_kstr(w, "role", manifest_role_name(f.file->role));
        json_w_ku64(w, "size", f.file->size);
        json_w_kstr(w, "state", f.is_stalled ? "stalled" : hub_file_state_name(f.state));
        json_w_ku64(w, "done_bytes", f.done_bytes);
        json_w_ku64(w, "hashed_bytes", f.hashed_bytes);
        json_w_ku64(w, "again_bytes", f.again_bytes);
        json_w_key(w, "rate");
        json_w_fixed(w, f.rate, 0);
        json_w_close(w);
    }
    json_w_close(w);
}

void hub_progress_json(hub *h, json_w *w) {
    hub_progress p;
    hub_progress_get(h, &p);
    json_w_ku64(w, "total_bytes", p.total_bytes);
    json_w_ku64(w, "done_bytes", p.done_bytes);
    json_w_ku64(w, "fetched_bytes", p.fetched_bytes);
    json_w_ku64(w, "again_bytes", p.again_bytes);
    json_w_ku64(w, "verified_bytes", p.verified_bytes);
    json_w_ku64(w, "free_bytes", p.free_bytes);
    json_w_ku64(w, "n_files", p.n_files);
    json_w_ku64(w, "n_ok", p.n_ok);
    json_w_key(w, "rate_now");
    json_w_fixed(w, p.rate_now, 0);
    json_w_key(w, "rate_minute");
    json_w_fixed(w, p.rate_minute, 0);
    json_w_key(w, "rate_mean");
    json_w_fixed(w, p.rate_mean, 0);
    json_w_key(w, "eta_s");
    if (p.eta_s < 0) {
        json_w_null(w);
    } else {
        json_w_fixed(w, p.eta_s, 0);
    }
    json_w_ki64(w, "connections", p.n_connections);
    json_w_ki64(w, "busy", p.n_busy);
    json_w_ku64(w, "requests", p.n_requests);
    json_w_ku64(w, "resolves", p.n_resolves);
    json_w_ku64(w, "retries", p.n_retries);
    json_w_kstr(w, "last_reason", p.last_reason[0] != '\0' ? p.last_reason : NULL);
    json_w_key(w, "resolves_left");
    if (p.resolves_left < 0) {
        json_w_null(w);
    } else {
        json_w_i64(w, p.resolves_left);
    }
    json_w_ki64(w, "wait_ms", p.wait_ms);
    files_json(h, w);
}
