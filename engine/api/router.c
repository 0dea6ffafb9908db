#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/base/str.h"

#define LOADING_RETRY_S 1

typedef struct route {
    const char *path; /* without /v1; a final * matches one more part */
    const char *method;
    void (*run)(http_request *q);
    unsigned flags;
} route;

enum {
    LOCAL = 1,      /* never on TCP */
    LOADING = 2,    /* does not need the model */
    OPEN = 4,       /* without a key */
    METRICS = 8,    /* without a key if the option says so */
    ANTHROPIC = 16, /* errors in that shape */
};

static const route routes[] = {
    {"/chat/completions", "POST", route_chat, 0},
    {"/completions", "POST", route_completions, 0},
    {"/responses", "POST", route_responses, 0},
    {"/messages", "POST", route_messages, ANTHROPIC},
    {"/messages/count_tokens", "POST", route_count_tokens, ANTHROPIC},
    {"/models", "GET", route_models, 0},
    {"/models/*", "GET", route_model, 0},
    {"/health", "GET", route_health, LOADING | OPEN},
    {"/ready", "GET", route_ready, LOADING | OPEN},
    {"/version", "GET", route_version, LOADING},
    {"/props", "GET", route_props, 0},
    {"/metrics", "GET", route_metrics, METRICS},
    {"/tokenize", "POST", route_tokenize, 0},
    {"/detokenize", "POST", route_detokenize, 0},
    {"/tandem/v1/state", "GET", route_state, LOCAL | LOADING},
    {"/tandem/v1/stats", "GET", route_stats, LOCAL},
    {"/tandem/v1/requests", "GET", route_requests, LOCAL | LOADING},
    {"/tandem/v1/cancel", "POST", route_cancel, LOCAL},
    {"/tandem/v1/shutdown", "POST", route_shutdown, LOCAL | LOADING},
    {"/tandem/v1/stop", "POST", route_shutdown, LOCAL | LOADING},
    {"/tandem/v1/endpoint", "POST", route_endpoint, LOCAL | LOADING},
    {"/tandem/v1/replies/*", "GET", route_reply, LOCAL},
    {"/tandem/v1/cache", "GET", route_cache, LOCAL},
    {"/tandem/v1/cache", "DELETE", route_cache_wipe, LOCAL},
    {"/tandem/v1/cache/*", "DELETE", route_cache_drop, LOCAL},
    {"/tandem/v1/log", "GET", route_log, LOCAL | LOADING},
    {"/tandem/v1/verify", "POST", route_verify, LOCAL},
};
enum { N_ROUTES = sizeof routes / sizeof routes[0] };

static bool path_matches(const char *pattern, const char *path) {
    size_t n = strlen(pattern);
    if (pattern[n - 1] != '*') return strcmp(pattern, path) == 0;
    return strncmp(pattern, path, n - 1) == 0 && path[n - 1] != '\0' &&
           strchr(path + n - 1, '/') == NULL;
}

static bool method_matches(const char *wanted, const char *method) {
    return strcmp(wanted, method) == 0 ||
           (strcmp(wanted, "GET") == 0 && strcmp(method, "HEAD") == 0);
}

static void fail_loading(http_request *q) {
    api_error e;
    api_set(&e, 503, "server_error", "loading", "the model is being loaded; try again shortly");
    e.retry_after_s = LOADING_RETRY_S;
    http_fail(q, &e);
}

static bool needs_key(const http_request *q, const route *r) {
    if ((r->flags & OPEN) != 0) return false;
    return (r->flags & METRICS) == 0 || !q->api->options.opens_metrics;
}

static void run_route(http_request *q, const route *r) {
    if ((r->flags & LOADING) != 0 || atomic_load(&q->api->is_loaded)) {
        r->run(q);
    } else {
        fail_loading(q);
    }
}

static const route *find_route(const http_request *q, const route **near_miss) {
    *near_miss = NULL;
    for (int i = 0; i < N_ROUTES; i++) {
        const route *r = &routes[i];
        bool is_hidden = (r->flags & LOCAL) != 0 && !q->is_local;
        if (is_hidden || !path_matches(r->path, q->path)) continue;
        *near_miss = r;
        if (method_matches(r->method, q->method)) return r;
    }
    return NULL;
}

static const route *name_route(http_request *q) {
    const route *near_miss;
    find_route(q, &near_miss);
    if (near_miss == NULL) return NULL;
    q->route = near_miss->path;
    if ((near_miss->flags & ANTHROPIC) != 0) q->shape = API_SHAPE_ANTHROPIC;
    return near_miss;
}

void api_name_route(http_request *q) {
    (void)name_route(q);
}

int api_admit(http_request *q, api_error *e) {
    const route *r = name_route(q);
    bool is_open = r != NULL && (!needs_key(q, r) || strcmp(q->method, "OPTIONS") == 0);
    if (is_open) return OK;
    return http_enter(q, e); /* strangers learn nothing about paths */
}

/* All methods of a path, in the order of the table. */
static void list_methods(const http_request *q, char *out, size_t cap) {
    size_t n = 0;
    for (int i = 0; i < N_ROUTES && n < cap; i++) {
        const route *r = &routes[i];
        bool is_hidden = (r->flags & LOCAL) != 0 && !q->is_local;
        if (is_hidden || !path_matches(r->path, q->path)) continue;
        n += (size_t)snprintf(out + n, cap - n, "%s%s", n > 0 ? ", " : "", r->method);
    }
}

void api_dispatch(http_request *q) {
    const route *near_miss;
    const route *r = find_route(q, &near_miss);
    api_error e;
    if (r != NULL) {
        run_route(q, r);
        return;
    }
    if (near_miss != NULL) {
        char methods[16] = "";
        list_methods(q, methods, sizeof methods);
        snprintf(q->allow, sizeof q->allow, "%s, OPTIONS", methods);
        if (strcmp(q->method, "OPTIONS") == 0) {
            http_options(q, q->allow);
            return;
        }
        api_set(&e, 405, "invalid_request_error", NULL, "");
        snprintf(e.message, sizeof e.message, "%.100s takes %s only", q->path, methods);
    } else {
        api_set(&e, 404, "invalid_request_error", NULL, "");
        snprintf(e.message, sizeof e.message, "there is no %.200s here", q->path);
    }
    http_fail(q, &e);
}
