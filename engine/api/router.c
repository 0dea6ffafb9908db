#include <stdio.h>
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/base/str.h"

#define LOADING_RETRY_S 1

typedef struct route {
    const char *path; /* without /v1; a final * matches one more part */
    const char *method;
    void (*run)(http_request *q);
    bool is_local_only;
    bool works_loading; /* does not need the model */
} route;

static const route routes[] = {
    {"/chat/completions", "POST", route_chat, false, false},
    {"/models", "GET", route_models, false, false},
    {"/models/*", "GET", route_model, false, false},
    {"/health", "GET", route_health, false, true},
    {"/ready", "GET", route_ready, false, true},
    {"/version", "GET", route_version, false, true},
    {"/props", "GET", route_props, false, false},
    {"/metrics", "GET", route_metrics, false, false},
    {"/tokenize", "POST", route_tokenize, false, false},
    {"/detokenize", "POST", route_detokenize, false, false},
    {"/tandem/v1/state", "GET", route_state, true, true},
    {"/tandem/v1/stats", "GET", route_stats, true, false},
    {"/tandem/v1/cancel", "POST", route_cancel, true, false},
    {"/tandem/v1/shutdown", "POST", route_shutdown, true, true},
    {"/tandem/v1/stop", "POST", route_shutdown, true, true},
    {"/tandem/v1/endpoint", "POST", route_endpoint, true, true},
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

void api_dispatch(http_request *q) {
    const route *near_miss = NULL;
    api_error e;
    for (int i = 0; i < N_ROUTES; i++) {
        const route *r = &routes[i];
        if (!path_matches(r->path, q->path) || (r->is_local_only && !q->is_local)) continue;
        if (method_matches(r->method, q->method)) {
            q->route = r->path;
            if (r->works_loading || atomic_load(&q->api->is_loaded)) {
                r->run(q);
            } else {
                fail_loading(q);
            }
            return;
        }
        near_miss = r;
    }
    if (near_miss == NULL) {
        api_set(&e, 404, "invalid_request_error", NULL, "");
        snprintf(e.message, sizeof e.message, "there is no %.200s here", q->path);
    } else {
        q->route = near_miss->path;
        str_copy(q->allow, sizeof q->allow, near_miss->method);
        api_set(&e, 405, "invalid_request_error", NULL, "");
        snprintf(e.message, sizeof e.message, "%.100s takes %s only", q->path, near_miss->method);
    }
    http_fail(q, &e);
}
