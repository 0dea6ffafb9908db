/* POST /v1/messages and /v1/messages/count_tokens. */
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/body_messages.h"
#include "engine/api/job.h"

static int translate(job *j, http_request *q, bool needs_limit, api_error *e) {
    messages_options o = {
        .needs_limit = needs_limit, .thinks_by_default = j->a->options.thinks_by_default};
    int rc = http_body_json(q, &j->body, e);
    return rc == OK ? messages_to_chat(j->body, &o, &j->places, &j->chat, e) : rc;
}

void route_messages(http_request *q) {
    api_error e;
    job *j = job_new(q->api, &form_messages);
    j->params.clips_to_window = true;
    int rc = translate(j, q, true, &e);
    if (rc == OK) rc = job_prepare_chat(j, q, &e);
    if (rc == OK) {
        messages_warn(j->body, j->params.warning);
        job_run(j, q);
    } else {
        job_refuse(j, q, &e);
    }
}

void route_count_tokens(http_request *q) {
    api_error e;
    job *j = job_new(q->api, &form_messages);
    int rc = translate(j, q, false, &e);
    if (rc == OK) rc = params_read(j->a, j->chat, &j->params, &e);
    if (rc == OK) rc = job_render(j, &e);
    if (rc != OK) {
        job_refuse(j, q, &e);
        return;
    }
    buf body = BUF_INIT;
    buf_printf(&body, "{\"input_tokens\":%zu}", j->prompts[0].len);
    http_send_json(q, 200, &body);
    job_free(j);
}
