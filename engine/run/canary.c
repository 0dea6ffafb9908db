#include "engine/run/canary.h"

#include <string.h>

#include "engine/run/run.h"

enum { CANARY_TOKENS = 8, CANARY_WAIT_MS = 120000 };

static int collect(ticket *t, int32_t *tokens, err *e) {
    run_event ev = {0};
    for (int n = 0; ev.kind != RUN_EVENT_END;) {
        if (ticket_next(t, &ev, CANARY_WAIT_MS) != OK) {
            return err_set(
                e, ERR_TIMEOUT, "the first reply did not come in %d s", CANARY_WAIT_MS / 1000);
        }
        if (ev.kind == RUN_EVENT_TOKEN) tokens[n++] = ev.pick.token;
    }
    if (ev.end == RUN_END_LENGTH) return OK;
    *e = *ticket_error(t);
    return err_add(e, e->code != OK ? e->code : ERR_INTERNAL, "the first reply failed");
}

static int reply(
    const run_source *source, const run_request *q, bool no_drafts, int32_t *tokens, err *e) {
    run_options o = {.source = source, .no_drafts = no_drafts, .no_cache = true};
    run *r = NULL;
    ticket *t = NULL;
    int rc = run_open(&o, &r, e);
    if (rc == OK) rc = run_submit(r, q, &t, e);
    if (rc == OK) rc = collect(t, tokens, e);
    ticket_free(t);
    run_close(r);
    return rc;
}

int run_canary(const run_source *source, const int32_t *prompt, int32_t n_prompt, err *e) {
    int32_t drafted[CANARY_TOKENS] = {0};
    int32_t serial[CANARY_TOKENS] = {0};
    run_request q = {
        .id = "canary", .prompt = prompt, .n_prompt = n_prompt, .max_tokens = CANARY_TOKENS};
    sample_params_init(&q.sampling);
    q.sampling.temperature = 0.0f;
    int rc = reply(source, &q, false, drafted, e);
    if (rc == OK) rc = reply(source, &q, true, serial, e);
    if (rc != OK || memcmp(drafted, serial, sizeof drafted) == 0) return rc;
    return err_set(e, ERR_MISMATCH,
        "the first reply differs with and without drafts; the engine or"
        " the model files are damaged");
}
