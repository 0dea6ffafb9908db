/* Connect, Keep running, Summary: what comes after the first answer. */
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "setup/paths.h"
#include "setup/step_internal.h"
#include "setup/verify_http.h"

/* --- Connect --- */

static bool is_endpoint_wanted(flow *f) {
    return str_eq(flow_answer(f, "API"), "on");
}

/* GET or POST at the engine's socket; the parsed answer, NULL when there is none. */
static int ask_engine(const char *path, const char *body, json **out, err *e) {
    buf socket = BUF_INIT;
    verify_answer a = {0};
    char text[280];
    int rc = paths_socket(&socket, e);
    const verify_options o = {.socket_path = buf_cstr(&socket), .timeout_ms = 20000};
    if (rc == OK) rc = verify_http(&o, path, body, NULL, &a, e);
    if (rc == OK && a.status != 200) {
        verify_error_text(&a, text, sizeof text);
        rc = err_set(e, a.status == 409 ? ERR_BUSY : ERR_IO, "%s", text);
    }
    if (rc == OK && out != NULL) rc = json_parse(a.body.data, a.body.len, NULL, out, e);
    verify_answer_release(&a);
    buf_release(&socket);
    return rc;
}

/* What the engine says about its endpoint: "127.0.0.1:8888" or "". */
static int endpoint_now(char out[100], char model[100], err *e) {
    json *v = NULL;
    out[0] = model[0] = '\0';
    int rc = ask_engine("/tandem/v1/state", NULL, &v, e);
    const json *p = json_get(v, "endpoint");
    const char *address = json_str(json_get(p, "address"));
    const char *id = json_str(json_get(json_get(v, "model"), "id"));
    if (json_is_true(json_get(p, "on")) && address != NULL) str_copy(out, 100, address);
    if (id != NULL) str_copy(model, 100, id);
    json_free(v);
    return rc;
}

static void wanted_address(flow *f, char out[100]) {
    char bind[64];
    str_copy(bind, sizeof bind, flow_answer(f, "API_BIND"));
    snprintf(out, 100, "%s:%s", bind, flow_answer(f, "API_PORT"));
}

int step_connect_inspect(flow *f, step_view *v, err *e) {
    char now[100], model[100], wanted[100], command[200];
    int rc = endpoint_now(now, model, e);
    if (rc != OK) return rc;
    wanted_address(f, wanted);
    flow_plan_settings(f, STEP_CONNECT, &v->plan);
    bool is_right = is_endpoint_wanted(f) ? str_eq(now, wanted) : now[0] == '\0';
    if (!is_right) {
        snprintf(command, sizeof command,
            is_endpoint_wanted(f) ? "POST /tandem/v1/endpoint on, %s"
                                  : "POST /tandem/v1/endpoint off",
            wanted);
        const plan_action a = {.step = (char *)"connect",
            .node = (char *)"head",
            .what = is_endpoint_wanted(f) ? (char *)"switch the endpoint of the running engine on"
                                          : (char *)"switch the endpoint of the running engine off",
            .command = command,
            .undo = (char *)"switched back by tandem restart with the settings before"};
        plan_add(&v->plan, &a);
    }
    step_row *r = view_row(v, "base URL", CHECK_STATUS_PASS);
    if (now[0] != '\0') {
        view_fact(r, "http://%s/v1", now);
    } else {
        view_fact(r, "off; programs of this user use the socket (tandem ask, tandem chat)");
    }
    r = view_row(v, "model", CHECK_STATUS_PASS);
    view_fact(r, "%s", model);
    r = view_row(v, "key", CHECK_STATUS_PASS);
    view_fact(r, "none is needed on 127.0.0.1; others: tandem api key new NAME (shown once)");
    if (now[0] != '\0') {
        r = view_row(v, "try", CHECK_STATUS_PASS);
        view_fact(r, "curl http://%s/v1/models", now);
    }
    view_done(
        v, now[0] != '\0' ? "programs connect to http://%s/v1" : "the endpoint is off%s", now);
    return OK;
}

int step_connect_apply(flow *f, const step_view *v, err *e) {
    char body[300], now[100], model[100], wanted[100];
    (void)v;
    int rc = endpoint_now(now, model, e);
    wanted_address(f, wanted);
    bool is_on = is_endpoint_wanted(f);
    bool is_right = is_on ? str_eq(now, wanted) : now[0] == '\0';
    if (rc == OK && !is_right) {
        char bind[64];
        str_copy(bind, sizeof bind, flow_answer(f, "API_BIND"));
        snprintf(body, sizeof body,
            is_on ? "{\"on\":true,\"bind\":\"%s\",\"port\":%s}" : "{\"on\":false}", bind,
            flow_answer(f, "API_PORT"));
        flow_say(f, "head: POST /tandem/v1/endpoint %s", body);
        rc = ask_engine("/tandem/v1/endpoint", body, NULL, e);
    }
    /* Only what works is kept in the file. */
    return rc == OK ? flow_apply_settings(f, STEP_CONNECT, e) : rc;
}

int step_connect_prove(flow *f, step_view *v, err *e) {
    int rc = step_connect_inspect(f, v, e);
    char now[100], model[100], url[128];
    if (rc != OK || v->plan.n > 0 || !is_endpoint_wanted(f)) return rc;
    rc = endpoint_now(now, model, e);
    if (rc != OK || now[0] == '\0') return rc;
    verify_answer a = {0};
    snprintf(url, sizeof url, "http://%s", now);
    const verify_options o = {.base_url = url, .timeout_ms = 20000};
    rc = verify_http(&o, "/health", NULL, NULL, &a, e);
    step_row *r = view_row(
        v, "answers there", rc == OK && a.status == 200 ? CHECK_STATUS_PASS : CHECK_STATUS_FAIL);
    view_fact(r, rc == OK ? "status %d" : "no answer", a.status);
    verify_answer_release(&a);
    return OK;
}

/* --- Keep running --- */

static bool are_units_wanted(flow *f) {
    return str_eq(flow_answer(f, "INSTALL_UNITS"), "on");
}

int step_keep_inspect(flow *f, step_view *v, err *e) {
    buf text = BUF_INIT;
    static const char *const show[] = {"service", "show", NULL};
    flow_plan_settings(f, STEP_KEEP, &v->plan);
    step_row *r = view_row(v, "watchdog", CHECK_STATUS_PASS);
    view_fact(r, "%s", flow_answer(f, "WATCH"));
    int rc = OK;
    if (are_units_wanted(f)) {
        rc = flow_self(f, &text, show, e);
        if (rc > 0) rc = OK;
        const plan_action a = {.step = (char *)"keep",
            .node = (char *)"head",
            .what = (char *)"install the user units of both machines",
            .command = (char *)buf_cstr(&text),
            .undo = (char *)"tandem service remove"};
        if (rc == OK) plan_add(&v->plan, &a);
        r = view_row(v, "units", CHECK_STATUS_PASS);
        view_fact(r, "tandem service install writes what is shown under Commands");
    } else {
        r = view_row(v, "units", CHECK_STATUS_SKIP);
        view_fact(r, "not wanted: the pair runs until the next restart of a machine");
        view_done(v, "the pair runs until it is stopped");
    }
    buf_release(&text);
    return rc;
}

int step_keep_apply(flow *f, const step_view *v, err *e) {
    static const char *const install[] = {"service", "install", NULL};
    (void)v;
    int rc = flow_apply_settings(f, STEP_KEEP, e);
    if (rc != OK || !are_units_wanted(f)) return rc;
    undo_entry x = {.kind = UNDO_COMMAND,
        .step = (char *)"keep",
        .what = (char *)"user units of systemd",
        .path = (char *)"",
        .text = (char *)"service remove"};
    rc = flow_undo_add(f, &x, e);
    if (rc == OK) rc = flow_self(f, NULL, install, e);
    return rc > 0 ? OK : rc;
}

int step_keep_prove(flow *f, step_view *v, err *e) {
    int rc = step_keep_inspect(f, v, e);
    if (rc != OK || !are_units_wanted(f)) return rc;
    /* The units were installed without an error; what is left in the plan is only what was shown. */
    plan_release(&v->plan);
    view_done(v, "the units are installed");
    return OK;
}

/* --- Summary --- */

static int report_path(buf *out, err *e) {
    int rc = paths_state(out, e);
    return rc == OK ? buf_puts(out, "/setup/report.txt") : rc;
}

int step_summary_inspect(flow *f, step_view *v, err *e) {
    undo_list l;
    int n_left = 0;
    int rc = undo_load(&l, f->undo_path, e);
    if (rc != OK) return rc;
    for (int i = 1; i < STEP_SUMMARY; i++) {
        step_state s = f->state[i];
        step_row *r = view_row(v, step_info_of(i)->title,
            s == STEP_IS_OK       ? CHECK_STATUS_PASS
            : s == STEP_IS_WARNED ? CHECK_STATUS_WARN
            : s == STEP_IS_FAILED ? CHECK_STATUS_WARN
                                  : CHECK_STATUS_SKIP);
        view_fact(r, s == STEP_IS_OK       ? "proven"
                     : s == STEP_IS_WARNED ? "proven, warnings accepted"
                     : s == STEP_IS_STALE  ? "stale"
                     : s == STEP_IS_FAILED ? "failed"
                                           : "open");
    }
    for (size_t i = 0; i < l.n; i++)
        n_left += !l.entries[i].is_undone;
    step_row *r = view_row(v, "changes", CHECK_STATUS_PASS);
    view_fact(r, "%d changes can be taken back: tandem undo list, tandem undo apply", n_left);
    undo_list_release(&l);
    v->worst = CHECK_STATUS_PASS;
    buf path = BUF_INIT;
    rc = report_path(&path, e);
    if (rc == OK && file_exists(buf_cstr(&path))) {
        view_done(v, "the report is in %s", buf_cstr(&path));
    } else if (rc == OK) {
        const plan_action a = {.step = (char *)"summary",
            .node = (char *)"head",
            .what = (char *)"write the report of what was set up",
            .command = (char *)"STATE/setup/report.txt",
            .undo = (char *)""};
        plan_add(&v->plan, &a);
        str_copy(v->summary, sizeof v->summary, "everything is set up");
    }
    buf_release(&path);
    return rc;
}

int step_summary_apply(flow *f, const step_view *v, err *e) {
    buf path = BUF_INIT, text = BUF_INIT;
    char time[32];
    clock_format_utc(clock_wall_ms(), time);
    int rc = report_path(&path, e);
    if (rc == OK)
        rc = buf_printf(&text, "Set-up of two machines by tandem %s (build %s), %s\n\n",
            TANDEM_VERSION, version_build_id(), time);
    for (int i = 0; i < v->n_rows && rc == OK; i++)
        rc = buf_printf(&text, "%-14s %s\n", v->rows[i].label, v->rows[i].fact);
    if (rc == OK) rc = buf_printf(&text, "\nSettings:\n");
    if (rc == OK) settings_frozen(f->s, false, &text);
    if (rc == OK) rc = file_write_atomic(buf_cstr(&path), buf_cstr(&text), text.len, 0600, e);
    buf_release(&path);
    buf_release(&text);
    return rc;
}

int step_summary_prove(flow *f, step_view *v, err *e) {
    return step_summary_inspect(f, v, e);
}
