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
    if (!is_loaded) {
        api_start start;
        api_start_get(q->api, &start);
        json_w_kstr(&w, "phase", rank_phase_name(start.phase));
        json_w_key(&w, "progress");
        json_w_fixed(&w, start.progress, 3);
    }
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
