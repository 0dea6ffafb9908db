/* The fields that every generating route shares: limits, sampling, stops, log probabilities, tools.
 * Routes with other names for them fill the struct themselves. */
#ifndef TANDEM_API_PARAMS_H
#define TANDEM_API_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/api/api_error.h"
#include "engine/base/json.h"
#include "engine/run/run.h"

#define PARAMS_STOPS_MAX 16
#define PARAMS_N_MAX 8
#define PARAMS_TOOLS_MAX 512

typedef struct api api;
typedef struct gen_params gen_params;

struct gen_params {
    bool is_stream, has_usage_chunk, has_continuous_usage;
    int64_t max_tokens;           /* 0: the rest of the window */
    const char *max_tokens_field; /* the name it was given by; NULL: not given */
    sample_params sampling;
    bool has_temperature, has_top_p; /* given by the client */
    bool has_seed;
    int64_t n;
    const char *stops[PARAMS_STOPS_MAX]; /* borrowed from the body */
    size_t n_stops;
    int32_t stop_ids[RUN_STOP_MAX];
    int32_t n_stop_ids;
    bool ignores_eos;
    bool has_logprobs;
    int64_t thinking_budget; /* -1: none */
    const json *tools;       /* NULL: none offered, or tool_choice none */
    int priority;
    sample_bias *bias; /* owned; sampling.bias points to it */
};

/* Reads a chat completions body (messages and thinking are chat.h's). On failure e is filled and
 * ERR_ARG returned; params_release is due either way. */
int params_read(const api *a, const json *body, gen_params *out, api_error *e);
void params_release(gen_params *p);
/* Fills what the client left open: temperature and top_p (the server's defaults, else by mode as
 * chat.md 9 says), a random seed. */
void params_default(const api *a, gen_params *p, bool is_thinking);

#endif
