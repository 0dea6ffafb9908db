/* The control paths under /tandem/v1: Unix socket only. */
#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/fields.h"
#include "engine/api/process.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/base/version.h"

#define STATS_INTERVAL_MIN_MS 100
#define STATS_INTERVAL_MAX_MS 60000
#define STATS_INTERVAL_MS 500

/* A number, or null while it is unknown. */
static void put_known(json_w *w, const char *key, double value, int decimals) {
    json_w_key(w, key);
    if (value < 0.0) {
        json_w_null(w);
    } else {
        json_w_fixed(w, value, decimals);
    }
}

static void put_model(api *a, json_w *w) {
    bool is_loaded = atomic_load(&a->is_loaded) != 0;
    json_w_key(w, "model");
    json_w_object(w);
    json_w_kstr(w, "id", a->options.model_id);
    json_w_kstr(w, "dir", a->options.model_dir);
    json_w_key(w, "vocab");
    if (is_loaded) {
        json_w_i64(w, a->n_base);
    } else {
        json_w_null(w);
    }
    json_w_key(w, "context");
    if (is_loaded) {
        json_w_i64(w, a->options.max_context);
    } else {
        json_w_null(w);
    }
    json_w_kbool(w, "demo", a->options.is_demo);
    json_w_close(w);
}

static void put_endpoint(api *a, json_w *w) {
    char text[96];
    pthread_mutex_lock(&a->endpoint_lock);
    bool is_on = a->endpoint_daemon != NULL;
    snprintf(text, sizeof text, "%s:%d", a->endpoint_address, a->endpoint_port);
    pthread_mutex_unlock(&a->endpoint_lock);
    json_w_key(w, "endpoint");
    json_w_object(w);
    json_w_kbool(w, "on", is_on);
    json_w_kstr(w, "address", is_on ? text : NULL);
    json_w_close(w);
}

static void put_request(void *ctx, const run_progress *p) {
    static const char *const phases[] = {"queued", "prefill", "decode", "done"};
    json_w *w = ctx;
    if (p->phase == RUN_PHASE_DONE) return;
    uint64_t now = clock_mono_ns();
    double seconds = p->first_ns != 0 ? (double)(p->last_ns - p->first_ns) / 1e9 : 0.0;
    json_w_object(w);
    json_w_kstr(w, "id", p->id);
    json_w_kstr(w, "phase", phases[p->phase]);
    json_w_ki64(w, "prompt_tokens", p->n_prompt);
    json_w_ki64(w, "prefilled_tokens", p->n_prefilled);
    json_w_ki64(w, "done_tokens", p->n_generated);
    json_w_ki64(w, "max_tokens", p->max_tokens);
    json_w_ki64(w, "cached_tokens", p->n_cached);
    put_known(w, "tokens_per_s", seconds > 0.0 ? (double)(p->n_generated - 1) / seconds : -1.0, 2);
    json_w_ku64(w, "since_ms", (now - p->submit_ns) / 1000000u);
    json_w_close(w);
}

enum { RANKS_MAX = 16 };

/* The ranks of this engine; at least rank 0. */
static int list_ranks(api *a, api_rank *out) {
    int n = 0;
    if (atomic_load(&a->is_loaded) && a->ranks != NULL) n = a->ranks(a->ranks_ctx, out, RANKS_MAX);
    if (n > 0) return n;
    out[0] = (api_rank){.rank = 0, .state = "up", .exchange_ms = -1.0};
    return 1;
}

static void put_ranks(api *a, json_w *w) {
    api_rank ranks[RANKS_MAX];
    int n = list_ranks(a, ranks);
    json_w_key(w, "ranks");
    json_w_array(w);
    for (int i = 0; i < n; i++) {
        json_w_object(w);
        json_w_ki64(w, "rank", ranks[i].rank);
        json_w_kstr(w, "state", ranks[i].state);
        json_w_close(w);
    }
    json_w_close(w);
}

void route_state(http_request *q) {
    api *a = q->api;
    run_stats s;
    buf body = BUF_INIT;
    json_w w;
    api_stats(a, &s);
    json_w_begin(&w, &body);
    json_w_object(&w);
    json_w_kstr(&w, "version", TANDEM_VERSION);
    json_w_kstr(&w, "build", a->options.build);
    json_w_ki64(&w, "pid", process_id());
    put_model(a, &w);
    json_w_kstr(&w, "state", api_state(a, &s));
    json_w_kstr(&w, "reason", s.state == RUN_STATE_FAILED ? s.failure.msg : NULL);
    json_w_ku64(&w, "started_ms", a->started_ms);
    put_endpoint(a, &w);
    put_ranks(a, &w);
    json_w_key(&w, "streams");
    json_w_object(&w);
    json_w_ki64(&w, "limit", s.n_slots);
    json_w_ki64(&w, "queue_limit", s.queue_cap);
    json_w_close(&w);
    json_w_key(&w, "requests");
    json_w_array(&w);
    if (atomic_load(&a->is_loaded)) {
        run_each(a->options.run, put_request, &w);
    }
    json_w_close(&w);
    json_w_close(&w);
    json_w_end(&w);
    http_send_json(q, 200, &body);
}

typedef struct stats_stream {
    uint64_t interval_ms, due_ms;
    process_sampler process;
    uint64_t last_ms, last_tokens, last_prompt;
} stats_stream;

static void put_rank_figures(json_w *w, const api_rank *r) {
    json_w_object(w);
    json_w_ki64(w, "rank", r->rank);
    put_known(w, "step_ms", r->step_ms, 3);
    put_known(w, "step_ms_p95", r->step_ms_p95, 3);
    put_known(w, "exchange_ms", r->exchange_ms, 3);
    put_known(w, "mem_process_bytes", r->process_bytes, 0);
    put_known(w, "mem_machine_used_bytes", r->machine_used_bytes, 0);
    put_known(w, "mem_machine_total_bytes", r->machine_total_bytes, 0);
    put_known(w, "cpu_percent", r->cpu_percent, 1);
    json_w_knull(w, "gpu");
    json_w_close(w);
}

static void put_stats_ranks(api *a, json_w *w, stats_stream *t, const run_stats *s) {
    api_rank ranks[RANKS_MAX];
    process_sample p;
    int n = list_ranks(a, ranks);
    process_sampler_take(&t->process, &p);
    ranks[0].step_ms = s->step_ms;
    ranks[0].step_ms_p95 = s->step_ms_p95;
    ranks[0].process_bytes = p.process_bytes;
    ranks[0].machine_used_bytes = p.machine_used_bytes;
    ranks[0].machine_total_bytes = p.machine_total_bytes;
    ranks[0].cpu_percent = p.cpu_percent;
    json_w_key(w, "ranks");
    json_w_array(w);
    for (int i = 0; i < n; i++) {
        put_rank_figures(w, &ranks[i]);
    }
    json_w_close(w);
}

/* Rates since the last object of this stream; the first has none and takes the last whole
 * second. */
static void put_rates(json_w *w, stats_stream *t, const run_stats *s) {
    uint64_t now = clock_mono_ms();
    double tokens = s->tokens_per_s_now;
    double prompt = s->prefill_per_s_now;
    if (t->last_ms != 0 && now > t->last_ms) {
        double seconds = (double)(now - t->last_ms) / 1e3;
        tokens = (double)(s->n_generated - t->last_tokens) / seconds;
        prompt = (double)(s->n_prompt_tokens - t->last_prompt) / seconds;
    }
    t->last_ms = now;
    t->last_tokens = s->n_generated;
    t->last_prompt = s->n_prompt_tokens;
    put_known(w, "tokens_per_s_now", tokens, 2);
    put_known(w, "tokens_per_s_minute", s->tokens_per_s_minute, 2);
    put_known(w, "prefill_tokens_per_s_now", prompt, 2);
}

static void put_counts(json_w *w, const run_stats *s) {
    json_w_key(w, "kv");
    json_w_object(w);
    json_w_ki64(w, "pages_used", s->pages_used);
    json_w_ki64(w, "pages_total", s->pages_total);
    json_w_close(w);
    json_w_key(w, "cache");
    json_w_object(w);
    json_w_ki64(w, "pages", s->pages_cached);
    json_w_ku64(w, "hit_tokens", s->n_cached_tokens);
    json_w_ku64(w, "miss_tokens", s->n_prompt_tokens);
    json_w_close(w);
    json_w_key(w, "draft");
    json_w_object(w);
    json_w_ku64(w, "proposed", s->n_drafted);
    json_w_ku64(w, "accepted", s->n_accepted);
    json_w_close(w);
    json_w_key(w, "requests");
    json_w_object(w);
    json_w_ki64(w, "queued", s->n_waiting);
    json_w_ki64(w, "running", s->n_running);
    json_w_ku64(w, "done", s->n_done);
    json_w_ku64(w, "failed", s->n_failed);
    json_w_ku64(w, "cancelled", s->n_cancelled);
    json_w_close(w);
}

static void put_stats(api *a, stats_stream *t, buf *out) {
    run_stats s;
    json_w w;
    run_stats_get(a->options.run, &s);
    buf_puts(out, "data: ");
    json_w_begin(&w, out);
    json_w_object(&w);
    json_w_ku64(&w, "time_ms", clock_wall_ms());
    json_w_key(&w, "uptime_s");
    json_w_fixed(&w, (double)s.uptime_ms / 1e3, 3);
    json_w_kstr(&w, "state", api_state_name(s.state));
    put_stats_ranks(a, &w, t, &s);
    put_rates(&w, t, &s);
    put_counts(&w, &s);
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
    const char *text = http_query(q, "interval_ms");
    if (text != NULL && (parse_i64(text, &interval) != OK || interval < STATS_INTERVAL_MIN_MS ||
                            interval > STATS_INTERVAL_MAX_MS)) {
        api_bad(&e, "interval_ms", NULL, "interval_ms must be from %d to %d", STATS_INTERVAL_MIN_MS,
            STATS_INTERVAL_MAX_MS);
        http_fail(q, &e);
        return;
    }
    stats_stream *t = mem_alloc(sizeof *t);
    t->interval_ms = (uint64_t)interval;
    process_sampler_init(&t->process);
    http_set_endless(q);
    http_stream(q, "text/event-stream; charset=utf-8",
        (http_producer){.fill = fill_stats, .release = mem_free, .ctx = t});
}

static void send_ok(http_request *q) {
    buf body = BUF_INIT;
    buf_puts(&body, "{\"ok\":true}");
    http_send_json(q, 200, &body);
}

void route_cancel(http_request *q) {
    api_error e;
    json *body = NULL;
    const char *id = NULL;
    int rc = http_body_json(q, &body, &e);
    if (rc == OK) rc = field_str(body, "id", &id, &e);
    if (rc == OK && id == NULL) rc = api_bad(&e, "id", NULL, "id is missing");
    if (rc == OK && run_cancel_id(q->api->options.run, id) != OK) {
        rc = api_set(&e, 404, "invalid_request_error", NULL, "no request of this id runs");
    }
    if (rc == OK) {
        send_ok(q);
    } else {
        http_fail(q, &e);
    }
    json_free(body);
}

void route_shutdown(http_request *q) {
    api_error e;
    if (q->api->options.on_shutdown == NULL) {
        api_set(
            &e, 403, "invalid_request_error", NULL, "this server can not be stopped by request");
        http_fail(q, &e);
        return;
    }
    send_ok(q);
    q->api->options.on_shutdown(q->api->options.on_shutdown_ctx);
}

typedef struct endpoint_wish {
    const char *address, *confirmed;
    int port;
} endpoint_wish;

static int switch_endpoint(api *a, bool is_on, const endpoint_wish *w, err *e) {
    if (!is_on) return api_endpoint(a, false, NULL, 0, e);
    return api_endpoint_confirmed(a, w->address, w->port, w->confirmed, e);
}

void route_requests(http_request *q) {
    api_error e;
    uint64_t since = 0;
    const char *text = http_query(q, "since");
    if (text != NULL && parse_u64(text, &since) != OK) {
        api_bad(&e, "since", NULL, "since must be a number");
        http_fail(q, &e);
        return;
    }
    buf body = BUF_INIT;
    json_w w;
    json_w_begin(&w, &body);
    json_w_object(&w);
    json_w_key(&w, "running");
    json_w_array(&w);
    if (atomic_load(&q->api->is_loaded)) run_each(q->api->options.run, put_request, &w);
    json_w_close(&w);
    json_w_key(&w, "done");
    buf list = BUF_INIT;
    uint64_t newest = request_log_print(q->api->requests, since, &list);
    json_w_raw(&w, buf_cstr(&list), list.len);
    buf_release(&list);
    json_w_ku64(&w, "newest", newest);
    json_w_close(&w);
    json_w_end(&w);
    http_send_json(q, 200, &body);
}

void route_endpoint(http_request *q) {
    api_error e;
    err why = ERR_INIT;
    json *body = NULL;
    bool is_on = true;
    const char *address = "127.0.0.1";
    const char *confirmed = NULL;
    int64_t port = API_PORT_DEFAULT;
    int rc = http_body_json(q, &body, &e);
    if (rc == OK && field_get(body, "on") == NULL) {
        rc = api_bad(&e, "on", NULL, "on is missing; it is true or false");
    }
    if (rc == OK) rc = field_bool(body, "on", &is_on, &e);
    if (rc == OK) rc = field_str(body, "bind", &address, &e);
    if (rc == OK) rc = field_str(body, "confirm", &confirmed, &e);
    if (rc == OK) rc = field_int(body, "port", (int_range){0, 65535}, &port, &e);
    if (rc == OK && switch_endpoint(q->api, is_on, &(endpoint_wish){address, confirmed, (int)port},
                        &why) != OK) {
        rc = why.code == ERR_BUSY ? api_set(&e, 409, "invalid_request_error", NULL, why.msg)
                                  : api_bad(&e, "bind", NULL, "%s", why.msg);
    }
    if (rc == OK) {
        buf answer = BUF_INIT;
        json_w w;
        json_w_begin(&w, &answer);
        json_w_object(&w);
        put_endpoint(q->api, &w);
        json_w_close(&w);
        json_w_end(&w);
        http_send_json(q, 200, &answer);
    } else {
        http_fail(q, &e);
    }
    json_free(body);
}
