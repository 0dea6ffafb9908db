/* tandem service: the user's systemd units of both machines. */
#include <string.h>

#include "engine/base/str.h"
#include "setup/service.h"
#include "tui/cmd_pair.h"

static void on_line(void *ctx, int node, bool is_warning, const char *text) {
    const bool *is_quiet = ctx;
    const char *name = node == PAIR_HEAD ? "head" : "worker";
    if (is_warning) {
        cmd_note("%s: %s", name, text);
    } else if (!*is_quiet) {
        cmd_printf("%s: ", name);
        cmd_put_text(text, strlen(text));
        cmd_puts("\n");
    }
}

static int fail(const err *e) {
    return e->code == ERR_UNSUPPORTED ? cmd_fail(e) : cmd_pair_fail(e);
}

static int put_plan(const cmd_args *a, const pair_options *o, bool is_removal) {
    buf text = BUF_INIT;
    err e = ERR_INIT;
    int rc = service_plan(o, is_removal, &text, &e);
    if (rc == OK && cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_key(&w, "plan");
        json_w_array(&w);
        for (const char *at = buf_cstr(&text); *at != '\0'; at += strcspn(at, "\n") + 1)
            json_w_strn(&w, at, strcspn(at, "\n"));
        json_w_close(&w);
        cmd_put_json(&w);
        buf_release(&out);
    } else if (rc == OK) {
        cmd_put_text(buf_cstr(&text), text.len);
    }
    buf_release(&text);
    return rc == OK ? EXIT_OK : fail(&e);
}

static void put_state(const pair_options *o) {
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    service_write(o, &w);
    cmd_put_json(&w);
    buf_release(&out);
}

static int change(const cmd_args *a, bool is_removal) {
    cmd_nodes n;
    err e = ERR_INIT;
    bool is_quiet = cmd_has(a, "json");
    if (cmd_nodes_open(a, true, &n, &e) != OK) return cmd_fail(&e);
    pair_options o = cmd_pair_options(&n);
    int code = EXIT_OK;
    if (cmd_has(a, "dry-run")) {
        code = put_plan(a, &o, is_removal);
    } else {
        int rc = is_removal ? service_remove(&o, on_line, &is_quiet, &e)
                            : service_install(&o, on_line, &is_quiet, &e);
        if (rc != OK) code = fail(&e);
        if (rc == OK && is_quiet) put_state(&o);
    }
    cmd_nodes_close(&n);
    return cmd_finish(code);
}

int cmd_service_install(const cmd_args *a) {
    return change(a, false);
}

int cmd_service_remove(const cmd_args *a) {
    return change(a, true);
}

/* The units as install would write them, and how they stand. */
static int show_units(const cmd_args *a, const pair_options *o, err *e) {
    int rc = OK;
    if (cmd_has(a, "json")) {
        put_state(o);
        return OK;
    }
    for (int i = 0; i < PAIR_NODES && rc == OK; i++) {
        for (const char *const *name = service_units(i); *name != NULL && rc == OK; name++) {
            buf text = BUF_INIT;
            rc = service_unit_text(o, i, *name, &text, e);
            if (rc == OK) {
                cmd_printf(
                    "# %s: ~/.config/systemd/user/%s\n", i == PAIR_HEAD ? "head" : "worker", *name);
                cmd_put_text(buf_cstr(&text), text.len);
                cmd_puts("\n");
            }
            buf_release(&text);
        }
    }
    return rc;
}

int cmd_service_show(const cmd_args *a) {
    cmd_nodes n;
    err e = ERR_INIT;
    if (cmd_nodes_open(a, cmd_has(a, "json"), &n, &e) != OK) return cmd_fail(&e);
    pair_options o = cmd_pair_options(&n);
    int code = EXIT_OK;
    if (!pair_is_configured(n.settings)) {
        err_set(&e, ERR_ARG, "the pair is not set up; run tandem setup");
        code = cmd_fail(&e);
    } else if (show_units(a, &o, &e) != OK) {
        code = cmd_fail(&e);
    }
    cmd_nodes_close(&n);
    return cmd_finish(code);
}
