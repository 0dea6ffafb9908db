/* POST /v1/responses. */
#include "engine/api/api_internal.h"
#include "engine/api/body_responses.h"
#include "engine/api/job.h"

static bool knows(void *ctx, const char *id) {
    return replay_knows(ctx, id);
}

void route_responses(http_request *q) {
    api_error e;
    known_calls known = {.knows = knows, .ctx = q->api->replay};
    job *j = job_new(q->api, &form_responses);
    int rc = http_body_json(q, &j->body, &e);
    if (rc == OK) rc = responses_to_chat(j->body, &known, &j->places, &j->chat, &e);
    if (rc == OK) rc = job_prepare_chat(j, q, &e);
    if (rc == OK) {
        responses_warn(j->body, j->params.warning);
        job_run(j, q);
    } else {
        job_refuse(j, q, &e);
    }
}
