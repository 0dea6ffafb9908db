/* A chat completion on its way: the prepared request, its choices and the words that api.md 3 wants
 * around them. Used by the chat route for whole and streamed answers.
 * Threads: the connection's. */
#ifndef TANDEM_API_CHAT_REPLY_H
#define TANDEM_API_CHAT_REPLY_H

#include "engine/api/generation.h"
#include "engine/api/http.h"

/* What one choice has said so far; filled for whole answers only. */
typedef struct chat_choice {
    generation *gen;
    buf reasoning, content;
    buf calls;     /* finished and running calls as JSON objects, comma separated */
    buf arguments; /* of the running call */
    char call_id[64];
    buf call_name;
    int n_calls;
    bool has_open_call;
    buf logprobs, reasoning_logprobs; /* JSON objects, comma separated */
} chat_choice;

typedef struct chat_reply {
    api *a;
    json *body;
    gen_params params;
    chat_prompt prompt;
    token_list tokens;
    char id[64];
    uint64_t created_s;
    int n_choices;
    chat_choice choices[PARAMS_N_MAX];
    buf *out; /* streamed: where events go now */
    buf head; /* streamed: the text every chunk begins with */
    bool has_finished[PARAMS_N_MAX];
    uint64_t last_write_ms;
} chat_reply;

/* Frees everything, cancelling what runs. */
void chat_reply_free(chat_reply *r);

/* Sinks for gen_request. ctx is the chat_reply. */
void chat_reply_event(void *ctx, const gen_event *event);
void chat_whole_event(void *ctx, const gen_event *event);

/* The whole answer; all choices must be done without failure. */
int chat_whole_print(chat_reply *r, buf *out);
/* The text every chunk begins with; before the first event. */
void chat_reply_begin(chat_reply *r);
/* The last chunk of one choice. */
void chat_reply_finish(chat_reply *r, int i_choice);
/* Usage chunk if asked for, and the end mark. */
void chat_reply_end(chat_reply *r);
/* One error event; nothing may follow. */
void chat_reply_fail(chat_reply *r, const err *cause);

/* The usage object of all choices. */
int usage_print(const gen_result *results, int n, buf *out);
/* The timings object of one choice. */
int timings_print(const gen_result *result, buf *out);

#endif
