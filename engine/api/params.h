/* The fields that every generating route shares: limits, sampling, stops, log probabilities, tools.
 * Routes with other names for them fill the struct themselves. */
#ifndef TANDEM_API_PARAMS_H
#define TANDEM_API_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/api/api_error.h"
#include "engine/api/warning.h"
#include "engine/base/json.h"
#include "engine/run/grammar.h"
#include "engine/run/run.h"

#define PARAMS_STOPS_MAX 16
#define PARAMS_N_MAX 8
#define PARAMS_TOOLS_MAX 512

#define PARAMS_CALLABLE_MAX 128

typedef struct api api;
typedef struct gen_params gen_params;

typedef enum constraint_kind {
    CONSTRAINT_NONE,
    CONSTRAINT_OBJECT, /* any JSON object */
    CONSTRAINT_SCHEMA,
    CONSTRAINT_REGEX,
    CONSTRAINT_CHOICE,
    CONSTRAINT_EBNF
} constraint_kind;

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
    bool is_legacy;          /* they came as functions */
    bool must_call, is_single_call;
    const char *callable[PARAMS_CALLABLE_MAX]; /* only these may be called; none: all. Borrowed */
    size_t n_callable;
    constraint_kind constraint; /* of the answer */
    const json *constraint_value;
    bool is_strict;
    const char *constraint_field;
    bool keeps_room, guards_loops;
    bool has_echo;
    bool takes_zero;  /* max_tokens may be 0 */
    bool scores_only; /* it is: nothing is generated */
    bool scores_prompt;
    bool returns_ids;         /* the raw token ids stand in the answer */
    bool clips_to_window;     /* a limit over the window is lowered, not refused */
    const char *prompt_field; /* named when the prompt is too long; NULL: messages */
    grammar *value, *calls;   /* compiled by params_compile; held */
    int priority;
    uint8_t salt[RUN_SALT_BYTES]; /* prefixes are shared between requests of equal salt only */
    sample_bias *bias;            /* owned; sampling.bias points to it */
    char warning[WARNING_CAP];    /* what was asked for and left out; "": nothing */
};

/* Reads a chat completions body (messages and thinking are chat.h's). On failure e is filled and
 * ERR_ARG returned; params_release is due either way. */
int params_read(const api *a, const json *body, gen_params *out, api_error *e);
/* The same for the raw interface: no tools, log probabilities are the route's. */
int params_read_text(const api *a, const json *body, gen_params *out, api_error *e);
void params_release(gen_params *p);
/* Takes a key's label into the salt. */
void params_separate(gen_params *p, const char *label);
/* Compiles what the answer and the calls may be, or finds it among what was compiled before.
 * has_tools: tools stand in the prompt. */
int params_compile(api *a, gen_params *p, bool has_tools, api_error *e);
/* Fills what the client left open: temperature and top_p (the server's defaults, else by mode as
 * chat.md 9 says), a random seed. */
void params_default(const api *a, gen_params *p, bool is_thinking);

#endif
