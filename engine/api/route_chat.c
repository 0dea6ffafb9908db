#include "engine/api/api_internal.h"
#include "engine/api/fields.h"
#include "engine/api/job.h"
#include "engine/base/str.h"

/* Prompt and reply must fit the window; *max_tokens becomes the limit of the reply. */
int api_check_window(
    const api *a, size_t n_prompt, const gen_params *p, int32_t *max_tokens, api_error *e) {
    int64_t window = a->options.max_context;
    if ((int64_t)n_prompt >= window) {
        return api_bad(e, p->prompt_field != NULL ? p->prompt_field : "messages",
            "context_length_exceeded",
            "the prompt has %zu tokens; the window of %lld tokens must hold prompt and reply",
            n_prompt, (long long)window);
    }
    int64_t left = window - (int64_t)n_prompt;
    if (p->max_tokens > left && !p->clips_to_window) {
        return api_bad(e, p->max_tokens_field, "context_length_exceeded",
            "the prompt has %zu tokens and %s is %lld; together they exceed the window of %lld"
            " tokens",
            n_prompt, p->max_tokens_field, (long long)p->max_tokens, (long long)window);
    }
    *max_tokens = (int32_t)(p->max_tokens > 0 && p->max_tokens < left ? p->max_tokens : left);
    return OK;
}

int job_prepare_chat(job *j, http_request *q, api_error *e) {
    const json *body = j->chat != NULL ? j->chat : j->body;
    bool clips = j->params.clips_to_window;
    int rc = params_read(j->a, body, &j->params, e);
    j->params.clips_to_window = clips;
    if (rc == OK) rc = job_check_model(j, e);
    if (rc == OK) rc = job_render(j, e);
    if (rc != OK) return rc;
    params_default(j->a, &j->params, j->prompt.is_thinking);
    rc = api_check_window(j->a, j->prompts[0].len, &j->params, &j->max_tokens, e);
    if (rc == OK) rc = http_check_limits(q, j->prompts[0].len, &j->max_tokens, e);
    return rc == OK ? params_compile(j->a, &j->params, j->prompt.has_tools, e) : rc;
}

void route_chat(http_request *q) {
    api_error e;
    job *j = job_new(q->api, &form_chat);
    int rc = http_body_json(q, &j->body, &e);
    if (rc == OK) rc = job_prepare_chat(j, q, &e);
    if (rc == OK) {
        job_run(j, q);
    } else {
        job_refuse(j, q, &e);
    }
}
