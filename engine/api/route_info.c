/* What the server is and how it does: models, health, ready, version, props, metrics. */
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/base/version.h"
#include "engine/text/chat.h"

static const char *const aliases[] = {"deepseek-flash", "deepseek-v4.1-flash"};
enum { N_ALIASES = sizeof aliases / sizeof aliases[0] };

bool model_name_is_known(const api *a, const char *name) {
    if (strcmp(name, a->options.model_id) == 0) return true;
    for (int i = 0; i < N_ALIASES; i++) {
        if (!a->options.is_demo && strcmp(name, aliases[i]) == 0) return true;
    }
    return false;
}

static void put_model(const api *a, const char *id, json_w *w) {
    json_w_object(w);
    json_w_kstr(w, "id", id);
    json_w_kstr(w, "object", "model");
    json_w_ku64(w, "created", a->started_ms / 1000);
    json_w_kstr(w, "owned_by", a->options.is_demo ? "tandem" : "deepseek-ai");
    json_w_kstr(w, "root", a->options.model_id);
    json_w_knull(w, "parent");
    json_w_ki64(w, "max_model_len", a->options.max_context);
    json_w_ki64(w, "context_length", a->options.max_context);
    json_w_key(w, "permission");
    json_w_array(w);
    json_w_close(w);
    json_w_close(w);
}

void route_models(http_request *q) {
    const api *a = q->api;
    buf body = BUF_INIT;
    json_w w;
    json_w_begin(&w, &body);
    json_w_object(&w);
    json_w_kstr(&w, "object", "list");
    json_w_key(&w, "data");
    json_w_array(&w);
    put_model(a, a->options.model_id, &w);
    for (int i = 0; i < N_ALIASES && !a->options.is_demo; i++) {
        put_model(a, aliases[i], &w);
    }
    json_w_close(&w);
    json_w_close(&w);
    json_w_end(&w);
    http_send_json(q, 200, &body);
}

void route_model(http_request *q) {
    const api *a = q->api;
    const char *id = q->path + strlen("/models/");
    buf body = BUF_INIT;
    api_error e;
    json_w w;
    if (!model_name_is_known(a, id)) {
        api_set(&e, 404, "invalid_request_error", "model_not_found", "this model is not served");
        http_fail(q, &e);
        return;
    }
    json_w_begin(&w, &body);
    put_model(a, id, &w);
    json_w_end(&w);
    http_send_json(q, 200, &body);
}

void route_health(http_request *q) {
    buf body = BUF_INIT;
    buf_puts(&body, "{\"status\":\"ok\"}");
    http_send_json(q, 200, &body);
}

const char *api_state_name(int state) {
    switch (state) {
    case RUN_STATE_READY:
        return "ready";
    case RUN_STATE_DRAINING:
        return "draining";
    default:
        return "failed";
    }
}

void api_stats(api *a, run_stats *out) {
    if (atomic_load(&a->is_loaded)) {
        run_stats_get(a->options.run, out);
        return;
    }
    *out = (run_stats){.tokens_per_s_minute = -1.0,
        .tokens_per_s_now = -1.0,
        .prefill_per_s_now = -1.0,
        .step_ms = -1.0,
        .step_ms_p95 = -1.0};
}

const char *api_state(api *a, const run_stats *s) {
    return atomic_load(&a->is_loaded) ? api_state_name(s->state) : "loading";
}

static const char *not_ready_reason(api *a, const run_stats *s) {
    if (!atomic_load(&a->is_loaded)) return "the model is being loaded";
    if (s->state == RUN_STATE_STALLED) return "a step is overdue";
    return s->state == RUN_STATE_DRAINING ? "the server is shutting down" : s->failure.msg;
}

void route_ready(http_request *q) {
    run_stats s;
    buf body = BUF_INIT;
    json_w w;
    bool is_loaded = atomic_load(&q->api->is_loaded) != 0;
    api_stats(q->api, &s);
    bool is_ready = is_loaded && s.state == RUN_STATE_READY;
    bool is_peer = s.state == RUN_STATE_FAILED && s.failure.code == ERR_PEER;
    json_w_begin(&w, &body);
    json_w_object(&w);
    json_w_kstr(&w, "status", is_peer ? "peer_lost" : api_state(q->api, &s));
    if (!is_ready) {
        json_w_kstr(&w, "reason", not_ready_reason(q->api, &s));
    }
    json_w_close(&w);
    json_w_end(&w);
    http_send_json(q, is_ready ? 200 : 503, &body);
}

void route_version(http_request *q) {
    buf body = BUF_INIT;
    json_w w;
    json_w_begin(&w, &body);
    json_w_object(&w);
    json_w_kstr(&w, "version", TANDEM_VERSION);
    json_w_kstr(&w, "build", q->api->options.build);
    json_w_close(&w);
    json_w_end(&w);
    http_send_json(q, 200, &body);
}

void route_props(http_request *q) {
    const api *a = q->api;
    buf body = BUF_INIT;
    json_w w;
    json_w_begin(&w, &body);
    json_w_object(&w);
    json_w_kstr(&w, "model", a->options.model_id);
    json_w_ki64(&w, "max_context", a->options.max_context);
    json_w_ki64(&w, "slots", a->options.n_slots);
    json_w_kbool(&w, "thinks_by_default", a->options.thinks_by_default);
    float temperature = a->options.default_temperature;
    json_w_kdouble(&w, "default_temperature", temperature >= 0.0f ? (double)temperature : 1.0);
    json_w_key(&w, "effort_budgets");
    json_w_object(&w);
    static const char *const names[] = {
        "minimal", "low", "medium", "high", "xhigh", "max", "ultra"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_w_ki64(&w, names[i], chat_effort_budget(names[i]));
    }
    json_w_close(&w);
    json_w_close(&w);
    json_w_end(&w);
    http_send_json(q, 200, &body);
}

static void put_value(
    buf *out, const char *name, const char *kind, const char *help, double value) {
    buf_printf(out, "# HELP tandem_%s %s\n# TYPE tandem_%s %s\ntandem_%s %.17g\n", name, help, name,
        kind, name, value);
}

static void put_run_metrics(const api *a, buf *out) {
    run_stats s;
    run_stats_get(a->options.run, &s);
    double pages = s.pages_total > 0 ? (double)s.pages_used / (double)s.pages_total : 0.0;
    put_value(out, "requests_running", "gauge", "Requests in a slot.", (double)s.n_running);
    put_value(out, "requests_waiting", "gauge", "Requests in the queue.", (double)s.n_waiting);
    put_value(out, "prompt_tokens_total", "counter", "Prompt tokens computed.",
        (double)s.n_prompt_tokens);
    put_value(out, "prompt_tokens_cached_total", "counter", "Prompt tokens taken from the cache.",
        (double)s.n_cached_tokens);
    put_value(
        out, "generation_tokens_total", "counter", "Tokens generated.", (double)s.n_generated);
    put_value(out, "draft_tokens_total", "counter", "Draft tokens verified.", (double)s.n_drafted);
    put_value(
        out, "draft_tokens_accepted_total", "counter", "Draft tokens kept.", (double)s.n_accepted);
    put_value(out, "steps_total", "counter", "Forward steps.", (double)s.n_steps);
    put_value(out, "kv_pages", "gauge", "Pages of the KV pool.", (double)s.pages_total);
    put_value(out, "kv_pages_used", "gauge", "Pages in use.", (double)s.pages_used);
    put_value(out, "kv_cache_usage_ratio", "gauge", "Share of the pages in use.", pages);
    put_value(out, "kv_cache_evictions_total", "counter", "Cached pages given up for others.",
        (double)s.n_evicted);
    put_value(out, "process_start_time_seconds", "gauge", "Start of the server, Unix time.",
        (double)a->started_ms / 1e3);
    buf_puts(out,
        "# HELP tandem_draft_tokens_accepted_by_position_total Draft tokens kept, by place"
        " in the block.\n# TYPE tandem_draft_tokens_accepted_by_position_total counter\n");
    for (int i = 0; i < RUN_DRAFT_MAX && s.accepted_at[i] > 0; i++) {
        buf_printf(out, "tandem_draft_tokens_accepted_by_position_total{position=\"%d\"} %llu\n",
            i + 1, (unsigned long long)s.accepted_at[i]);
    }
    buf_puts(out, "# HELP tandem_build_info The build.\n# TYPE tandem_build_info gauge\n");
    buf_puts(out, "tandem_build_info{");
    buf labels = BUF_INIT;
    metric_label(&labels, "version", a->options.build);
    buf_append(out, labels.data, labels.len);
    buf_release(&labels);
    buf_puts(out, "} 1\n");
}

void route_metrics(http_request *q) {
    buf body = BUF_INIT;
    metrics_print(q->api->metrics.all, &body);
    put_run_metrics(q->api, &body);
    http_send(q, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}
