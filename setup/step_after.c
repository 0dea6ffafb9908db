/* Keep running, Summary: what comes after the first answer. */
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "setup/paths.h"
#include "setup/step_internal.h"

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
