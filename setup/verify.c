#include "setup/verify.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/str.h"
#include "setup/verify_internal.h"

const char *verify_verdict_name(verify_verdict v) {
    static const char *const names[] = {"PASS", "WARN", "FAIL", "SKIP"};
    return names[v];
}

int verify_judge(verify_line *l, verify_verdict verdict, const char *reason) {
    l->verdict = verdict;
    str_copy(l->reason, sizeof l->reason, reason != NULL ? reason : "");
    return OK;
}

/* The first characters as one line. */
void verify_got(verify_line *l, const char *text) {
    str_copy(l->got, sizeof l->got, text);
    for (char *c = l->got; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ') *c = ' ';
    }
}

int verify_chat(
    const verify_run_state *s, const char *body, bool is_stream, verify_line *l, verify_reply *r) {
    verify_answer a;
    err e = ERR_INIT;
    verify_reply_init(r);
    int rc = verify_http(s->options, "/v1/chat/completions", body, NULL, &a, &e);
    if (rc == OK && a.status != 200) {
        char text[280];
        verify_error_text(&a, text, sizeof text);
        verify_got(l, text);
        /* A refusal that says so is an engine without the feature; anything else is a fault. */
        bool is_missing = a.status == 400 && (strstr(text, "by this build") != NULL);
        verify_judge(l, is_missing ? VERIFY_SKIP : VERIFY_FAIL,
            is_missing ? "the engine does not offer this" : "the request was refused");
        rc = ERR_UNSUPPORTED;
    } else if (rc == OK) {
        rc = is_stream ? verify_reply_stream(&a, r, &e) : verify_reply_whole(&a, r, &e);
        verify_got(l, r->content.len > 0 ? buf_cstr(&r->content) : buf_cstr(&r->call_arguments));
        l->first_ms = is_stream ? a.first_ms : a.total_ms;
        if (r->completion_tokens > 1 && a.total_ms > 0)
            l->tokens_per_s = (double)r->completion_tokens * 1e3 / a.total_ms;
        if (rc != OK) verify_judge(l, VERIFY_FAIL, e.msg);
    } else {
        verify_judge(l, VERIFY_FAIL, e.msg);
    }
    verify_answer_release(&a);
    return rc;
}

/* Whether anything answers, and which model it is. */
static int look(verify_run_state *s, err *e) {
    verify_answer a;
    int rc = verify_http(s->options, "/v1/models", NULL, NULL, &a, e);
    if (rc == OK && (a.status == 401 || a.status == 403))
        rc = err_set(e, ERR_AUTH,
            "the endpoint refuses the key (status %d); give the right one with --key-file",
            a.status);
    if (rc == OK && a.status != 200) {
        char text[280];
        verify_error_text(&a, text, sizeof text);
        rc = err_set(e, ERR_NET, "the endpoint is not ready: %s", text);
    }
    if (rc == ERR_NET && a.status == 0)
        rc = err_add(e, rc,
            "no endpoint answers; start the engine with: tandem start, and switch its endpoint on");
    json *v = NULL;
    if (rc == OK) rc = json_parse(a.body.data, a.body.len, NULL, &v, e);
    const char *id = json_str(json_get(json_at(json_get(v, "data"), 0), "id"));
    if (id != NULL) str_copy(s->summary->model, sizeof s->summary->model, id);
    s->summary->is_demo = strcmp(s->summary->model, "tandem-demo") == 0;
    json_free(v);
    verify_answer_release(&a);
    return rc;
}

static void count(verify_summary *out, verify_verdict v) {
    int *const counts[] = {&out->n_pass, &out->n_warn, &out->n_fail, &out->n_skip};
    (*counts[v])++;
}

static bool is_stopped(const verify_options *o) {
    return o->stop != NULL && atomic_load(o->stop);
}

int verify_run(const verify_options *o, verify_sink sink, void *ctx, verify_summary *out, err *e) {
    *out = (verify_summary){0};
    verify_run_state s = {.options = o, .summary = out, .first_text = BUF_INIT};
    int rc = look(&s, e);
    bool is_cut = false;
    for (int level = 1; rc == OK && !is_cut && level <= o->level && level <= 3; level++) {
        size_t n = 0;
        const verify_check *checks = level == 1   ? verify_level_1(&n)
                                     : level == 2 ? verify_level_2(&n)
                                                  : verify_level_3(&n);
        for (size_t i = 0; i < n && rc == OK; i++) {
            if (is_stopped(o)) {
                rc = err_set(e, ERR_CANCELLED, "verify was stopped");
                break;
            }
            verify_line line = {.level = level,
                .id = checks[i].id,
                .request = checks[i].request,
                .expected = checks[i].expected,
                .first_ms = -1,
                .tokens_per_s = -1};
            checks[i].run(&s, &line);
            /* Its request was cut off: that says nothing about the endpoint. */
            is_cut = is_stopped(o) && line.verdict == VERIFY_FAIL;
            if (is_cut) break;
            count(out, line.verdict);
            sink(ctx, &line);
        }
    }
    if (rc == ERR_CANCELLED || is_cut || (rc != OK && is_stopped(o)))
        rc = err_set(e, ERR_CANCELLED, "verify was stopped");
    buf_release(&s.first_text);
    return rc;
}
