/* One reply being made: a ticket of engine/run whose tokens are turned into events of reasoning,
 * content and tool calls, with stop strings applied and everything counted. Routes differ only in
 * how they write the events down.
 * Threads: the thread of the connection. The sink is called from generation_pump; text is borrowed
 * for the call and whole UTF-8. */
#ifndef TANDEM_API_GENERATION_H
#define TANDEM_API_GENERATION_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/api/params.h"
#include "engine/text/chat.h"
#include "engine/text/reply.h"

typedef struct generation generation;

/* One token of a delta whose log probabilities were asked for. */
typedef struct gen_logprob {
    sample_pick pick;
    bool is_reasoning;
} gen_logprob;

typedef enum gen_event_kind {
    GEN_STARTED, /* the prompt is read; comes once, before everything else */
    GEN_REASONING,
    GEN_CONTENT,
    GEN_CALL, /* text: the name */
    GEN_ARGUMENTS,
    GEN_CALL_END,  /* text: the exact text of the call */
    GEN_CALL_DROP, /* the call must not be used */
    GEN_SCORE,     /* no text: log probability of the next prompt token; before GEN_STARTED */
    GEN_LOGPROBS   /* no text: log probabilities that no delta carried */
} gen_event_kind;

typedef struct gen_event {
    gen_event_kind kind;
    int i_choice;
    const char *text;
    size_t len;
    int i_call; /* counts the calls that began */
    const char *call_id;
    const gen_logprob *logprobs; /* [n_logprobs] of the tokens behind this delta */
    size_t n_logprobs;
} gen_event;
typedef void (*gen_sink)(void *ctx, const gen_event *event);

typedef struct gen_request {
    api *a;
    const char *id;           /* shown in lists of running requests */
    const gen_params *params; /* borrowed until the generation is freed */
    const token_list *prompt;
    bool starts_in_reasoning;
    bool has_tools;     /* else the tool marker is banned and calls are swallowed */
    int32_t max_tokens; /* >= 1 */
    bool is_raw;        /* no chat protocol: everything is content, as generated */
    int i_choice;
    int i_seed;              /* added to the seed */
    const char *call_prefix; /* of the ids of calls */
    gen_sink sink;
    void *sink_ctx;
} gen_request;

/* Queues the reply. On failure e says how to answer. */
int generation_start(const gen_request *q, generation **out, api_error *e);
/* Cancels if it still runs. */
void generation_free(generation *g);

/* Takes what is there without waiting and feeds the sink; true if there was anything. */
bool generation_pump(generation *g);
/* A descriptor to wait on, and whether it must not be waited on because something is there. */
int generation_fd(const generation *g);
bool generation_arm(generation *g);
bool generation_is_done(const generation *g);
/* The time is over: ends with what there is, as if the limit were reached. */
void generation_expire(generation *g);

typedef struct gen_result {
    const char *finish_reason; /* "stop", "length", "tool_calls"; NULL while it runs or on error */
    int i_stop;                /* stop string that matched; -1: none */
    int32_t stop_id;           /* stop token given by the client; -1: none */
    bool is_cancelled;
    bool is_looping;    /* ended by the loop guard */
    const err *failure; /* NULL: none */
    int32_t n_completion, n_reasoning;
    const int32_t *ids; /* [n_ids] as drawn, when they were asked for; borrowed */
    size_t n_ids;
    run_progress progress;
} gen_result;
void generation_result(const generation *g, gen_result *out);
/* Prompt tokens read and in all, for progress lines. */
void generation_progress(const generation *g, run_progress *out);
/* Observes times and counts into the metrics; once, when done. */
void generation_measure(const generation *g);

#endif
