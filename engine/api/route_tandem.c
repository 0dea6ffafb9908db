/* The control paths under /tandem/v1: Unix socket only. */
#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/fields.h"
#include "engine/api/process.h"
#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/version.h"

void api_put_known(json_w *w, const char *key, double value, int decimals) {
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
    api_put_known(w, "vocab", is_loaded ? a->n_base : -1.0, 0);
    api_put_known(w, "context", is_loaded ? (double)a->options.max_context : -1.0, 0);
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
    json_w_kbool(w, "keys", a->keys != NULL && keys_count(a->keys));
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
    api_put_known(
        w, "tokens_per_s", seconds > 0.0 ? (double)(p->n_generated - 1) / seconds : -1.0, 2);
    json_w_ku64(w, "since_ms", (now - p->submit_ns) / 1000000u);
    json_w_close(w);
}

static void put_ranks(json_w *w, const api_rank *ranks, int n) {
    json_w_key(w, "ranks");
    json_w_array(w);
    for (int i = 0; i < n; i++) {
        const rank_figures *f = &ranks[i].f;
        json_w_object(w);
        json_w_ki64(w, "rank", ranks[i].rank);
        json_w_kstr(w, "state", ranks[i].state);
        json_w_kstr(w, "phase", rank_phase_name(f->phase));
        json_w_key(w, "progress");
        json_w_fixed(w, rank_phase_progress(f->phase, f->loaded), 3);
        if (f->pid > 0) json_w_ki64(w, "pid", f->pid);
        api_put_known(w, "age_s", ranks[i].age_s, 3);
        json_w_close(w);
    }
    json_w_close(w);
}

static void put_plan(json_w *w, const api_start *t) {
    const memory_plan *p = &t->plan;
    json_w_key(w, "memory_plan");
    if (p->weight_bytes == 0) {
        json_w_null(w);
        return;
    }
    json_w_object(w);
    json_w_ku64(w, "weights_bytes", p->weight_bytes);
    json_w_ku64(w, "cache_bytes", p->cache_bytes);
    json_w_ku64(w, "work_bytes", p->work_bytes);
    json_w_ku64(w, "reserve_bytes", p->reserve_bytes);
    json_w_ku64(w, "available_bytes", t->available_bytes);
    json_w_close(w);
}

static void put_start(json_w *w, const api_start *t) {
    char hash[24];
    json_w_kstr(w, "start_id", t->id[0] != '\0' ? t->id : NULL);
    json_w_kstr(w, "phase", rank_phase_name(t->phase));
    json_w_key(w, "progress");
    json_w_fixed(w, t->progress, 3);
    json_w_ku64(w, "phase_since_ms", t->since_ms);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)t->settings_hash);
    json_w_kstr(w, "settings_hash", t->settings_hash != 0 ? hash : NULL);
    put_plan(w, t);
    json_w_key(w, "last_failure");
    if (t->last_failure.code == OK) {
        json_w_null(w);
        return;
    }
    json_w_object(w);
    json_w_kstr(w, "code", err_name(t->last_failure.code));
    json_w_kstr(w, "message", t->last_failure.msg);
    json_w_ku64(w, "time_ms", t->last_failure_ms);
    json_w_close(w);
}

void route_state(http_request *q) {
    api *a = q->api;
    run_stats s;
    api_rank ranks[API_MAX_RANKS];
    api_start start;
    buf body = BUF_INIT;
    json_w w;
    api_stats(a, &s);
    api_start_get(a, &start);
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
    put_start(&w, &start);
    put_ranks(&w, ranks, api_ranks(a, &s, ranks));
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

/* An empty body is fine: the server's own limit holds. */
static int read_deadline(http_request *q, int64_t *seconds, api_error *e) {
    json *body = NULL;
    *seconds = -1;
    if (q->body.len == 0) return OK;
    int rc = http_body_json(q, &body, e);
    if (rc == OK) rc = field_int(body, "deadline_s", (int_range){0, 3600}, seconds, e);
    json_free(body);
    return rc;
}

void route_shutdown(http_request *q) {
    const api_options *o = &q->api->options;
    api_error e;
    int64_t seconds = -1;
    int rc = read_deadline(q, &seconds, &e);
    if (rc == OK && o->on_shutdown == NULL) {
        rc = api_set(
            &e, 403, "invalid_request_error", NULL, "this server can not be stopped by request");
    }
    if (rc != OK) {
        http_fail(q, &e);
        return;
    }
    if (seconds >= 0 && o->on_deadline != NULL) o->on_deadline(o->on_shutdown_ctx, seconds);
    send_ok(q);
    o->on_shutdown(o->on_shutdown_ctx);
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
    int64_t since = 0;
    if (http_query_number(q, "since", (int_range){0, INT64_MAX}, &since, &e) != OK) {
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
    uint64_t newest = request_log_print(q->api->requests, (uint64_t)since, &list);
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
