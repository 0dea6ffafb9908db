/* A request for text on its way: prepared prompts, the replies being made for them, and the words
 * that its protocol wants around them. The routes prepare a job; job_run answers with it, whole or
 * streamed.
 * Threads: the connection's. */
#ifndef TANDEM_API_JOB_H
#define TANDEM_API_JOB_H

#include "engine/api/body_write.h"
#include "engine/api/generation.h"
#include "engine/api/http.h"
#include "engine/api/items.h"

/* Replies of one job that run at the same time. */
#define JOB_OPEN_MAX 8

typedef struct job job;

typedef struct job_choice {
    generation *gen; /* NULL: not begun yet */
    bool has_finished;
    items said;
    buf logprobs, reasoning_logprobs; /* JSON objects, comma separated */
    void *own;                        /* of the protocol; freed with mem_free */
} job_choice;

/* One protocol. Streamed answers write to job.out; print makes the whole answer. */
typedef struct job_form {
    const char *id_prefix, *call_prefix;
    void (*begin)(job *j); /* streamed: before the first event */
    void (*event)(job *j, const gen_event *event);
    void (*take)(job *j, const gen_event *event); /* whole */
    void (*finish)(job *j, int i_choice);         /* streamed: the last words of a choice */
    void (*end)(job *j);                          /* streamed: the last words of all */
    void (*fail)(job *j, const api_error *e);     /* streamed: one error; nothing may follow */
    void (*wait)(job *j, const run_progress *p);  /* streamed: nothing has come for a while */
    void (*print)(job *j, buf *out);
} job_form;

struct job {
    api *a;
    const job_form *form;
    json *body;         /* as sent */
    json *chat;         /* the same as a chat body; NULL: body is one */
    body_places places; /* where the parts of chat stood in body */
    gen_params params;
    chat_prompt prompt;
    token_list *prompts; /* [n_prompts] */
    int n_prompts;
    int32_t max_tokens;
    bool is_raw; /* no chat protocol: text as generated */
    char id[64];
    uint64_t created_s;
    job_choice *choices; /* [n_choices], choice i of prompt i / params.n */
    int n_choices, n_begun;
    int n_sequence; /* of events, for protocols that number them */
    buf *out;       /* streamed: where events go now */
    buf head;       /* streamed: the text every chunk begins with */
    api_error failure;
    bool has_failed;
    uint64_t last_write_ms, deadline_ms; /* 0: none */
};

job *job_new(api *a, const job_form *form);
/* Frees everything, cancelling what runs. */
void job_free(job *j);
/* Renders chat messages (j->chat or j->body) into the one prompt. */
int job_render(job *j, api_error *e);
/* Parameters, prompt, window, limits and grammars of a chat body (j->chat or j->body). */
int job_prepare_chat(job *j, http_request *q, api_error *e);
/* Begins the replies of the prepared prompts and answers q. Takes the job. */
void job_run(job *j, http_request *q);
/* Answers with a refusal. Takes the job. */
void job_refuse(job *j, http_request *q, const api_error *e);
/* Checks the model name of the body. */
int job_check_model(const job *j, api_error *e);

/* Results of all choices; out holds n_choices. */
void job_results(const job *j, gen_result *out);
/* The text of a choice's log probabilities so far, appended and forgotten. */
void job_collect_logprobs(job *j, const gen_event *event, buf *content, buf *reasoning);
/* Appends one token as {"token","logprob","bytes" without the closing brace. */
void job_put_token(const api *a, int32_t id, float logprob, buf *out);
/* The usual keep-alive comment. */
void job_wait_comment(job *j, const run_progress *p);
/* `event: NAME\ndata: ` for protocols with named events; the caller adds data and two newlines. */
void job_open_event(job *j, const char *name);

/* The usage object of all choices, prompts counted once each. */
int usage_print(const job *j, buf *out);
/* The timings object of one choice. */
int timings_print(const gen_result *result, buf *out);
/* Sums for protocols with other words. */
typedef struct usage_sum {
    int64_t n_prompt, n_cached, n_completion, n_reasoning;
} usage_sum;
void usage_count(const job *j, usage_sum *out);

extern const job_form form_chat, form_text, form_messages, form_responses;

#endif
