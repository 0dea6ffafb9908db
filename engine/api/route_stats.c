/* The stats stream: one object per interval with everything that the dashboard shows. What is not
 * known is null. Every rank's figures carry the time of their sample and their age. */
#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"

#define STATS_INTERVAL_MIN_MS 100
#define STATS_INTERVAL_MAX_MS 60000
#define STATS_INTERVAL_MS 500

/* What the last object of this stream said, for rates. */
typedef struct rank_past {
    uint64_t time_ms; /* of the sample */
    double link_bytes, wait_s, wait_share, link_per_s;
} rank_past;

typedef struct stats_stream {
    uint64_t interval_ms, due_ms;
    uint64_t last_ms, last_tokens, last_prompt, last_steps;
    rank_past past[API_MAX_RANKS];
} stats_stream;

/* ---- one rank ---- */

static double link_bytes(const rank_figures *f) {
    double sum = 0.0;
    for (int i = 0; i < f->n_rails; i++) {
        if (f->rails[i].bytes > 0.0) sum += f->rails[i].bytes;
    }
    return f->n_rails > 0 ? sum : -1.0;
}

/* Rates over the time between two samples; a counter that fell means a restart, and no rate. */
static void take_rates(rank_past *p, const rank_figures *f) {
    double bytes = link_bytes(f), wait = f->exchange_wait_s;
    if (f->time_ms == p->time_ms) return;
    double seconds = ((double)f->time_ms - (double)p->time_ms) / 1e3;
    bool has_past = p->time_ms != 0 && seconds > 0.0;
    bool has_bytes = has_past && bytes >= p->link_bytes && p->link_bytes >= 0.0;
    bool has_wait = has_past && wait >= p->wait_s && p->wait_s >= 0.0;
    p->link_per_s = has_bytes ? (bytes - p->link_bytes) / seconds : -1.0;
    p->wait_share = has_wait ? (wait - p->wait_s) / seconds : -1.0;
    if (p->wait_share > 1.0) p->wait_share = 1.0;
    p->time_ms = f->time_ms;
    p->link_bytes = bytes;
    p->wait_s = wait;
}

static void put_gpu(json_w *w, const rank_figures *f) {
    json_w_key(w, "gpu");
    if (f->gpu_percent < 0.0 && f->gpu_mhz < 0.0) {
        json_w_null(w);
        return;
    }
    json_w_object(w);
    api_put_known(w, "percent", f->gpu_percent, 0);
    api_put_known(w, "mhz", f->gpu_mhz, 0);
    api_put_known(w, "watt", f->gpu_watt, 1);
    api_put_known(w, "celsius", f->gpu_celsius, 0);
    json_w_key(w, "throttled");
    if (f->gpu_throttles < 0.0) {
        json_w_null(w);
    } else {
        json_w_bool(w, f->gpu_throttles > 0.0);
    }
    json_w_close(w);
}

static void put_memory(json_w *w, const rank_figures *f) {
    api_put_known(w, "mem_process_bytes", f->process_bytes, 0);
    api_put_known(w, "mem_machine_used_bytes", f->machine_used_bytes, 0);
    api_put_known(w, "mem_machine_total_bytes", f->machine_total_bytes, 0);
    api_put_known(w, "mem_machine_available_bytes", f->machine_available_bytes, 0);
    api_put_known(w, "mem_weights_bytes", f->weight_bytes, 0);
    api_put_known(w, "mem_cache_bytes", f->cache_bytes, 0);
    api_put_known(w, "mem_work_bytes", f->work_bytes, 0);
    api_put_known(w, "mem_engram_bytes", f->engram_bytes, 0);
    api_put_known(w, "mem_pressure", f->pressure, 2);
}

static void put_rank(json_w *w, const api_rank *r, rank_past *past) {
    const rank_figures *f = &r->f;
    take_rates(past, f);
    json_w_object(w);
    json_w_ki64(w, "rank", r->rank);
    json_w_kstr(w, "state", r->state);
    json_w_kstr(w, "phase", rank_phase_name(f->phase));
    json_w_ku64(w, "time_ms", f->time_ms);
    api_put_known(w, "age_s", r->age_s, 3);
    api_put_known(w, "steps", f->n_steps, 0);
    api_put_known(w, "step_ms", f->step_ms, 3);
    api_put_known(w, "step_ms_p95", f->step_ms_p95, 3);
    api_put_known(w, "exchange_ms", f->exchange_ms, 3);
    api_put_known(w, "exchange_share", past->wait_share, 4);
    api_put_known(w, "probe_us", f->probe_us, 1);
    api_put_known(w, "link_bytes_per_s", past->link_per_s, 0);
    put_memory(w, f);
    api_put_known(w, "cpu_percent", f->cpu_percent, 1);
    put_gpu(w, f);
    json_w_close(w);
}

/* ---- the whole ---- */

/* Rates since the last object of this stream; the first has none and takes the last whole second. */
static void put_rates(json_w *w, stats_stream *t, const run_stats *s) {
    uint64_t now = clock_mono_ms();
    double tokens = s->tokens_per_s_now, prompt = s->prefill_per_s_now, steps = -1.0;
    if (t->last_ms != 0 && now > t->last_ms) {
        double seconds = (double)(now - t->last_ms) / 1e3;
        tokens = (double)(s->n_generated - t->last_tokens) / seconds;
        prompt = (double)(s->n_prompt_tokens - t->last_prompt) / seconds;
        steps = (double)(s->n_steps - t->last_steps) / seconds;
    }
    t->last_ms = now;
    t->last_tokens = s->n_generated;
    t->last_prompt = s->n_prompt_tokens;
    t->last_steps = s->n_steps;
    api_put_known(w, "tokens_per_s_now", tokens, 2);
    api_put_known(w, "tokens_per_s_minute", s->tokens_per_s_minute, 2);
    api_put_known(w, "prefill_tokens_per_s_now", prompt, 2);
    api_put_known(w, "steps_per_s_now", steps, 2);
}

static void put_cache(json_w *w, const run_stats *s) {
    json_w_key(w, "kv");
    json_w_object(w);
    json_w_ki64(w, "pages_used", s->pages_used);
    json_w_ki64(w, "pages_kept", s->pages_kept);
    json_w_ki64(w, "pages_total", s->pages_total);
    json_w_close(w);
    json_w_key(w, "cache");
    json_w_object(w);
    json_w_ki64(w, "pages", s->pages_cached);
    json_w_ki64(w, "marks", s->n_marks);
    json_w_ku64(w, "evictions", s->n_evicted);
    json_w_ku64(w, "hit_tokens", s->n_cached_tokens);
    json_w_ku64(w, "disk_hit_tokens", s->n_disk_tokens);
    json_w_ku64(w, "miss_tokens", s->n_prompt_tokens);
    api_put_known(w, "disk_bytes", s->has_disk ? (double)s->disk.bytes : -1.0, 0);
    api_put_known(
        w, "disk_errors", s->has_disk ? (double)(s->disk.n_errors + s->disk.n_dropped) : -1.0, 0);
    json_w_close(w);
}

static void put_counts(json_w *w, const char *key, const uint64_t counts[RUN_DRAFT_MAX], int n) {
    json_w_key(w, key);
    json_w_array(w);
    for (int i = 0; i < n; i++) {
        json_w_u64(w, counts[i]);
    }
    json_w_close(w);
}

static void put_drafts(json_w *w, const run_stats *s) {
    int n = 0;
    while (n < RUN_DRAFT_MAX && s->drafted_at[n] > 0) {
        n++;
    }
    json_w_key(w, "draft");
    json_w_object(w);
    json_w_ku64(w, "proposed", s->n_drafted);
    json_w_ku64(w, "accepted", s->n_accepted);
    put_counts(w, "proposed_at", s->drafted_at, n);
    put_counts(w, "accepted_at", s->accepted_at, n);
    json_w_close(w);
}

static void put_requests(json_w *w, const run_stats *s) {
    json_w_key(w, "requests");
    json_w_object(w);
    json_w_ki64(w, "queued", s->n_waiting);
    json_w_ki64(w, "running", s->n_running);
    json_w_ku64(w, "done", s->n_done);
    json_w_ku64(w, "failed", s->n_failed);
    json_w_ku64(w, "cancelled", s->n_cancelled);
    json_w_ku64(w, "refused", s->n_refused);
    json_w_close(w);
    json_w_key(w, "steps");
    json_w_object(w);
    json_w_ku64(w, "n", s->n_steps);
    json_w_ku64(w, "rows", s->n_rows);
    json_w_close(w);
}

static void put_engram(const api *a, json_w *w, const api_rank *ranks, int n) {
    engram_store_stats s = {0};
    double rows = 0.0, errors = 0.0;
    for (int i = 0; i < n; i++) {
        rows += ranks[i].f.engram_rows > 0.0 ? ranks[i].f.engram_rows : 0.0;
        errors += ranks[i].f.engram_errors > 0.0 ? ranks[i].f.engram_errors : 0.0;
    }
    if (a->options.engram != NULL) a->options.engram(a->options.ranks_ctx, &s);
    double n_reads = (double)s.read_seconds.n;
    json_w_key(w, "engram");
    json_w_object(w);
    api_put_known(w, "rows", rows, 0);
    api_put_known(w, "errors", errors, 0);
    api_put_known(w, "read_ms_mean", n_reads > 0.0 ? 1e3 * s.read_seconds.sum / n_reads : -1.0, 3);
    json_w_close(w);
}

static void put_last_reply(api *a, json_w *w) {
    api_reply r;
    api_metrics_last(&a->metrics, &r);
    json_w_key(w, "last_reply");
    if (r.time_ms == 0) {
        json_w_null(w);
        return;
    }
    json_w_object(w);
    json_w_ku64(w, "time_ms", r.time_ms);
    api_put_known(w, "first_token_ms", r.first_token_ms, 1);
    api_put_known(w, "queue_ms", r.queue_ms, 1);
    api_put_known(w, "prefill_per_s", r.prefill_per_s, 1);
    api_put_known(w, "tokens_per_s", r.tokens_per_s, 2);
    json_w_ki64(w, "prompt_tokens", r.n_prompt);
    json_w_ki64(w, "cached_tokens", r.n_cached);
    json_w_ki64(w, "tokens", r.n_generated);
    json_w_ki64(w, "drafted", r.n_drafted);
    json_w_ki64(w, "accepted", r.n_accepted);
    json_w_close(w);
}

static void put_stats(api *a, stats_stream *t, buf *out) {
    run_stats s;
    api_rank ranks[API_MAX_RANKS];
    json_w w;
    run_stats_get(a->options.run, &s);
    int n = api_ranks(a, &s, ranks);
    buf_puts(out, "data: ");
    json_w_begin(&w, out);
    json_w_object(&w);
    json_w_ku64(&w, "time_ms", clock_wall_ms());
    json_w_key(&w, "uptime_s");
    json_w_fixed(&w, (double)s.uptime_ms / 1e3, 3);
    json_w_kstr(&w, "state", api_state_name(s.state));
    if (s.state == RUN_STATE_STALLED) json_w_kstr(&w, "reason", "a step is overdue");
    if (s.state == RUN_STATE_FAILED) json_w_kstr(&w, "reason", s.failure.msg);
    json_w_key(&w, "ranks");
    json_w_array(&w);
    for (int i = 0; i < n; i++) {
        put_rank(&w, &ranks[i], &t->past[i]);
    }
    json_w_close(&w);
    put_rates(&w, t, &s);
    put_cache(&w, &s);
    put_drafts(&w, &s);
    put_requests(&w, &s);
    put_engram(a, &w, ranks, n);
    put_last_reply(a, &w);
    json_w_close(&w);
    json_w_end(&w);
    buf_puts(out, "\n\n");
}

static int fill_stats(void *ctx, http_request *q, buf *out) {
    stats_stream *t = ctx;
    uint64_t now = clock_mono_ms();
    while (now < t->due_ms) {
        int rc = http_wait(q, NULL, 0, (int)(t->due_ms - now), true);
        if (rc == HTTP_GONE) return HTTP_BROKEN;
        now = clock_mono_ms();
    }
    t->due_ms = now + t->interval_ms;
    put_stats(q->api, t, out);
    return HTTP_MORE;
}

void route_stats(http_request *q) {
    api_error e;
    int64_t interval = STATS_INTERVAL_MS;
    const int_range range = {STATS_INTERVAL_MIN_MS, STATS_INTERVAL_MAX_MS};
    if (http_query_number(q, "interval_ms", range, &interval, &e) != OK) {
        http_fail(q, &e);
        return;
    }
    stats_stream *t = mem_alloc(sizeof *t);
    t->interval_ms = (uint64_t)interval;
    for (int i = 0; i < API_MAX_RANKS; i++) {
        t->past[i] = (rank_past){0, -1.0, -1.0, -1.0, -1.0};
    }
    http_set_endless(q);
    http_stream(q, "text/event-stream; charset=utf-8",
        (http_producer){.fill = fill_stats, .release = mem_free, .ctx = t});
}
