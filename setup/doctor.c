/* Gathering what the rules look at. */
#include "setup/doctor.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/pair_internal.h"

enum { LOG_BYTES = 32 << 10, TEXTS_MAX = 512 << 10 };

typedef struct gathering {
    doctor_sink sink;
    void *ctx;
    doctor_report *out;
    check_result *results;
    size_t n;
} gathering;

static int take_check(void *ctx, const check_row *row, const check_result *r) {
    gathering *g = ctx;
    int *const counts[] = {[CHECK_STATUS_PASS] = &g->out->n_pass,
        [CHECK_STATUS_WARN] = &g->out->n_warn,
        [CHECK_STATUS_FAIL] = &g->out->n_fail,
        [CHECK_STATUS_SKIP] = &g->out->n_skip,
        [CHECK_STATUS_UNKNOWN] = &g->out->n_unknown};
    (*counts[r->status])++;
    if (g->n < DOCTOR_CHECKS_MAX) g->results[g->n++] = *r;
    if (g->sink != NULL) g->sink(g->ctx, row, r);
    return OK;
}

static void put_line(buf *texts, const char *who, const char *text) {
    if (text != NULL && text[0] != '\0') buf_printf(texts, "%s: %s\n", who, text);
}

/* Lines of a log that speak of something wrong; the rest would only cost time. */
static void put_log(buf *texts, const char *who, const buf *log) {
    static const char *const marks[] = {
        " error ", " warn ", "tandemd: ", "NCCL", "NET/", "Xid", "NVRM"};
    const char *at = log->len > 0 ? buf_cstr(log) : "";
    while (*at != '\0') {
        size_t n = strcspn(at, "\n");
        char *line = mem_strndup(at, n);
        bool is_wanted = false;
        for (size_t i = 0; i < sizeof marks / sizeof marks[0] && !is_wanted; i++)
            is_wanted = strstr(line, marks[i]) != NULL;
        if (is_wanted) put_line(texts, who, line);
        mem_free(line);
        at += n + (at[n] == '\n');
    }
}

/* The end of the rank's log of the newest start. */
static void gather_log(const pair_options *o, const pair_view *v, int node, buf *texts) {
    const char *path = json_str(json_get(v->node[node].keeper, "log"));
    char bytes[16];
    buf out = BUF_INIT;
    snprintf(bytes, sizeof bytes, "%d", LOG_BYTES);
    if (path != NULL && o->node[node] != NULL &&
        node_tool(o->node[node], &out, NULL, "tail", "-c", bytes, "--", path, NULL) == OK)
        put_log(texts, pair_node_name(node), &out);
    buf_release(&out);
}

static void gather_node(const pair_view *v, int node, buf *texts) {
    const json *k = v->node[node].keeper;
    const char *name = pair_node_name(node);
    put_line(texts, name, json_str(json_get(json_get(k, "first_error"), "message")));
    put_line(texts, name, json_str(json_get(json_get(k, "last_error"), "message")));
    put_line(texts, name, json_str(json_get(k, "reason")));
    put_line(texts, name, v->node[node].missing);
    if (v->node[node].was_killed) put_line(texts, name, "its keeper was killed");
}

static void say_symptom(const pair_view *v, doctor_report *out) {
    static const char *const quiet[] = {"ready", "serving", "stopped", "prepared", "data-ready",
        "configured", "absent", "starting"};
    const char *state = pair_state_name(v->state);
    bool is_quiet = false;
    for (size_t i = 0; i < sizeof quiet / sizeof quiet[0]; i++)
        is_quiet |= str_eq(quiet[i], state);
    if (is_quiet && v->node[PAIR_WORKER].missing[0] == '\0') return;
    snprintf(out->symptom, sizeof out->symptom, "the pair is %s%s%.700s", state,
        v->reason[0] != '\0' ? ": " : "", v->reason);
    if (v->reason[0] == '\0' && v->node[PAIR_WORKER].missing[0] != '\0')
        snprintf(out->symptom, sizeof out->symptom, "the worker cannot be asked: %.700s",
            v->node[PAIR_WORKER].missing);
}

/* All that is not heavy; what only makes sense with a link plan says so itself. */
static int run_all(const doctor_options *o, gathering *g, err *e) {
    check_options c = *o->check;
    check_status worst;
    c.is_heavy = false;
    check_context *context = check_context_new(&c);
    int rc = check_run(context, NULL, -1, take_check, g, &worst, e);
    check_context_free(context);
    return rc;
}

int doctor_run(const doctor_options *o, doctor_sink sink, void *ctx, doctor_report *out, err *e) {
    pair_view view;
    buf texts = BUF_MAX(TEXTS_MAX);
    *out = (doctor_report){0};
    gathering g = {sink, ctx, out, mem_array(DOCTOR_CHECKS_MAX, sizeof(check_result)), 0};
    int rc = pair_look(&o->pair, &view, e);
    if (rc == OK) {
        say_symptom(&view, out);
        put_line(&texts, "pair", view.reason);
        for (int i = 0; i < PAIR_NODES; i++)
            gather_node(&view, i, &texts);
        /* Of a pair that runs well, old lines in a log are no symptom. */
        for (int i = 0; i < PAIR_NODES && out->symptom[0] != '\0'; i++)
            gather_log(&o->pair, &view, i, &texts);
        rc = run_all(o, &g, e);
    }
    if (rc == OK) {
        doctor_evidence evidence = {
            g.results, g.n, out->symptom[0] != '\0' ? buf_cstr(&texts) : "", view.state};
        doctor_judge(&evidence, out);
    }
    pair_view_release(&view);
    mem_free(g.results);
    buf_release(&texts);
    return rc;
}
