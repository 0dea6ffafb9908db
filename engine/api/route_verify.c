/* POST /tandem/v1/verify: the engine proves on itself what it promises, between other requests. Level
 * 1: a reply asked again, from the cache, is the same. Level 2: the same reply beside three others
 * is, too. */
#include <string.h>

#include "engine/api/api_internal.h"
#include "engine/api/fields.h"
#include "engine/base/clock.h"
#include "engine/base/rand.h"

enum { REPLY_TOKENS = 24, CROWD = 3, WAIT_MS = 120000 };

typedef struct reply {
    int32_t tokens[REPLY_TOKENS];
    int n, end;
} reply;

typedef struct checker {
    api *a;
    token_list prompt;
    uint8_t salt[RUN_SALT_BYTES]; /* of this check alone, so that the first reply is computed */
} checker;

static int make_prompt(checker *c, err *e) {
    static const char question[] = "Tell me a story about a dog.";
    const control_ids *ids = &c->a->controls;
    const int32_t heads[] = {ids->bos, ids->user}, tails[] = {ids->assistant, ids->think_close};
    for (int i = 0; i < 2; i++) {
        if (heads[i] >= 0) token_list_push(&c->prompt, heads[i]);
    }
    text_span span = {.text = question, .len = sizeof question - 1};
    int rc = tokenizer_encode(c->a->options.tokenizer, span, &c->prompt, e);
    for (int i = 0; i < 2; i++) {
        if (tails[i] >= 0) token_list_push(&c->prompt, tails[i]);
    }
    return rc;
}

static int submit(const checker *c, float temperature, uint64_t seed, ticket **out, err *e) {
    run_request q = {.id = "verify",
        .prompt = c->prompt.ids,
        .n_prompt = (int32_t)c->prompt.len,
        .max_tokens = REPLY_TOKENS,
        .stop_ids = &c->a->controls.eos,
        .n_stop_ids = c->a->controls.eos >= 0};
    sample_params_init(&q.sampling);
    q.sampling.temperature = temperature;
    q.sampling.seed = seed;
    memcpy(q.salt, c->salt, sizeof q.salt);
    return run_submit(c->a->options.run, &q, out, e);
}

static int collect(ticket *t, reply *out, err *e) {
    run_event ev = {0};
    int rc = OK;
    *out = (reply){.n = 0};
    while (rc == OK && ev.kind != RUN_EVENT_END) {
        rc = ticket_next(t, &ev, WAIT_MS);
        if (rc == OK && ev.kind == RUN_EVENT_TOKEN && out->n < REPLY_TOKENS)
            out->tokens[out->n++] = ev.pick.token;
    }
    out->end = ev.end;
    if (rc != OK) err_set(e, rc, "no token came for %d seconds", WAIT_MS / 1000);
    if (rc == OK && ev.end == RUN_END_ERROR) {
        *e = *ticket_error(t);
        rc = e->code;
    }
    ticket_free(t);
    return rc;
}

static int ask_once(const checker *c, reply *out, err *e) {
    ticket *t = NULL;
    int rc = submit(c, 0.0f, 1, &t, e);
    return rc == OK ? collect(t, out, e) : rc;
}

static int ask_in_company(const checker *c, reply *out, err *e) {
    ticket *others[CROWD] = {NULL};
    ticket *t = NULL;
    reply ignored;
    err other = ERR_INIT;
    for (int i = 0; i < CROWD; i++) {
        if (submit(c, 1.0f, (uint64_t)i + 2, &others[i], &other) != OK) others[i] = NULL;
    }
    int rc = submit(c, 0.0f, 1, &t, e);
    if (rc == OK) rc = collect(t, out, e);
    for (int i = 0; i < CROWD; i++) {
        if (others[i] != NULL) collect(others[i], &ignored, &other);
    }
    return rc;
}

static bool is_same(const reply *a, const reply *b) {
    return a->n == b->n && a->end == b->end &&
           memcmp(a->tokens, b->tokens, (size_t)a->n * sizeof a->tokens[0]) == 0;
}

static int run_checks(checker *c, int64_t level, json_w *w, bool *is_fine, err *e) {
    static const char *const names[] = {"cached = fresh", "in company = alone"};
    static int (*const asks[])(const checker *c, reply *out, err *e) = {ask_once, ask_in_company};
    reply first, next;
    int rc = make_prompt(c, e);
    if (rc == OK) rc = ask_once(c, &first, e);
    *is_fine = true;
    json_w_key(w, "checks");
    json_w_array(w);
    for (int64_t i = 0; i < level && rc == OK; i++) {
        rc = asks[i](c, &next, e);
        if (rc != OK) break;
        bool is_equal = is_same(&first, &next);
        *is_fine &= is_equal;
        json_w_object(w);
        json_w_kstr(w, "name", names[i]);
        json_w_kbool(w, "ok", is_equal);
        json_w_close(w);
    }
    json_w_close(w);
    return rc;
}

void route_verify(http_request *q) {
    api_error e;
    err why = ERR_INIT;
    json *body = NULL;
    buf text = BUF_INIT;
    json_w w;
    int64_t level = 1;
    bool is_fine = false;
    uint64_t start = clock_mono_ms();
    checker c = {.a = q->api};
    int rc = http_body_json(q, &body, &e);
    if (rc == OK) rc = field_int(body, "level", (int_range){1, 2}, &level, &e);
    json_free(body);
    if (rc != OK) {
        http_fail(q, &e);
        return;
    }
    rand_secret(c.salt, sizeof c.salt);
    json_w_begin(&w, &text);
    json_w_object(&w);
    json_w_ki64(&w, "level", level);
    rc = run_checks(&c, level, &w, &is_fine, &why);
    json_w_kbool(&w, "ok", is_fine && rc == OK);
    json_w_ku64(&w, "ms", clock_mono_ms() - start);
    json_w_close(&w);
    json_w_end(&w);
    token_list_release(&c.prompt);
    if (rc == OK) {
        http_send_json(q, 200, &text);
        return;
    }
    buf_release(&text);
    api_from_err(&e, &why);
    http_fail(q, &e);
}
