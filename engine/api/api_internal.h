/* Shared inside engine/api. The struct is read-only after api_open except for the endpoint (under
 * endpoint_lock) and the atomics. */
#ifndef TANDEM_API_INTERNAL_H
#define TANDEM_API_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/api/api.h"
#include "engine/api/api_metrics.h"
#include "engine/api/http.h"
#include "engine/api/keys.h"
#include "engine/api/node_sample.h"
#include "engine/api/replay.h"
#include "engine/api/request_log.h"

struct api {
    api_options options;
    control_ids controls;
    int32_t n_base; /* size of the tokenizer */
    char fingerprint[48];
    uint64_t started_ms;   /* wall clock */
    _Atomic int is_loaded; /* before: run, tokenizer and what depends on them are not there */
    node_sampler *node;    /* this process and machine */
    _Atomic int n_busy;    /* requests given to a route and not answered to the end */
    _Atomic int is_closing;
    void *local_daemon; /* the library's server on the Unix socket */
    pthread_mutex_t endpoint_lock;
    void *endpoint_daemon; /* NULL: off */
    char endpoint_address[64];
    int endpoint_port;
    api_metrics metrics;
    keys *keys; /* NULL: none */
    replay *replay;
    request_log *requests;
    struct constraint_store *constraints;
    struct replies *replies;
    buf certificate, certificate_key; /* PEM texts; empty: no TLS */
    bool holds_secret;                /* secret.h, for the key of TLS */
};

/* The bytes of a token; *is_literal when markers in them must be recognised by their text. */
const char *api_token_bytes(const api *a, int32_t id, size_t *len, bool *is_literal);
/* 24 random characters of [0-9A-Za-z] behind prefix; out holds 64. */
void api_new_id(const char *prefix, char out[64]);

/* The served id, or an alias that stands for it. */
bool model_name_is_known(const api *a, const char *name);
struct gen_params;
/* Prompt and reply must fit the window; *max_tokens becomes the limit of the reply. */
int api_check_window(
    const api *a, size_t n_prompt, const struct gen_params *p, int32_t *max_tokens, api_error *e);

/* Finds the route of q and runs it; answers 404 and 405 itself. */
void api_dispatch(http_request *q);
/* Sets the name of the route and the shape of errors by the path alone. */
void api_name_route(http_request *q);
/* Decides by the head alone whether a request may come in; sets the route's name and the shape of
 * its errors. */
int api_admit(http_request *q, api_error *e);

/* Routes, one file each. */
void route_chat(http_request *q);
void route_completions(http_request *q);
void route_responses(http_request *q);
void route_messages(http_request *q);
void route_count_tokens(http_request *q);
void route_requests(http_request *q);
void route_models(http_request *q);
void route_model(http_request *q);
void route_health(http_request *q);
void route_ready(http_request *q);
void route_version(http_request *q);
void route_props(http_request *q);
void route_metrics(http_request *q);
void route_tokenize(http_request *q);
void route_detokenize(http_request *q);
void route_state(http_request *q);
void route_stats(http_request *q);
void route_cancel(http_request *q);
void route_shutdown(http_request *q);
void route_endpoint(http_request *q);
void route_reply(http_request *q);
void route_cache(http_request *q);
void route_cache_drop(http_request *q);
void route_cache_wipe(http_request *q);
void route_log(http_request *q);
void route_verify(http_request *q);

const char *api_state_name(int state);
/* A member that is a number, or null while it is unknown: below 0. */
void api_put_known(json_w *w, const char *key, double value, int decimals);
/* run_stats_get, or all zero with unknown rates while the model is loading. */
void api_stats(api *a, run_stats *out);
enum { API_MAX_RANKS = 16 };
/* The ranks of this engine with their newest figures, at least rank 0; how many. */
int api_ranks(api *a, const run_stats *s, api_rank out[API_MAX_RANKS]);
/* The phase and progress of the start; ready when nobody says otherwise. */
void api_start_get(api *a, api_start *out);
/* "loading" or api_state_name. */
const char *api_state(api *a, const run_stats *s);

/* server.c */
void *server_start(api *a, int listen_fd, bool is_local, err *e);
void server_stop(void *daemon);
void server_quiesce(void *daemon);

#endif
