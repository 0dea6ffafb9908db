/* tandem start, stop, restart: the engine as a background process. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/str.h"
#include "setup/settings.h"
#include "tui/cmd_internal.h"
#include "tui/cmd_pair.h"

static void say(void *ctx, const launch_report *r) {
    (void)ctx;
    if (r->phase != LAUNCH_STARTING || !isatty(2)) return;
    cmd_note("%s%s%s", r->was_running ? "the engine is running" : "starting the engine",
        r->state[0] != '\0' ? ", state " : "", r->state);
}

static int seconds_option(
    const cmd_args *a, const char *name, int fallback_ms, int *out_ms, err *e) {
    const char *text = cmd_value(a, name);
    double seconds = 0;
    *out_ms = fallback_ms;
    if (text == NULL) return OK;
    if (parse_double(text, &seconds) != OK || seconds < 0.1 || seconds > 86400) {
        return err_set(
            e, ERR_ARG, "--%s is \"%.20s\"; it must be seconds from 0.1 to 86400", name, text);
    }
    *out_ms = (int)(seconds * 1000);
    return OK;
}

static int threads_option(const cmd_args *a, const char *out[3], err *e) {
    const char *text = cmd_value(a, "threads");
    int64_t n = 0;
    if (text == NULL) return OK;
    if (parse_i64(text, &n) != OK || n < 1 || n > 1024) {
        return err_set(e, ERR_ARG, "--threads is \"%.20s\"; it must be from 1 to 1024", text);
    }
    out[0] = "--threads";
    out[1] = text;
    return OK;
}

static void put_report(const cmd_args *a, const launch_report *r) {
    char time[32];
    if (cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_kstr(&w, "state", r->state);
        json_w_kstr(&w, "model", r->model_id);
        json_w_kbool(&w, "demo", r->is_demo);
        json_w_kbool(&w, "was_running", r->was_running);
        json_w_key(&w, "waited_s");
        json_w_fixed(&w, (double)r->waited_ms / 1000.0, 3);
        json_w_kstr(&w, "log", r->log_path);
        cmd_put_json(&w);
        buf_release(&out);
        return;
    }
    cmd_printf("engine ready%s: model %s%s, %s\n",
        r->was_running ? " (it was running already)" : "", r->model_id, r->is_demo ? " (DEMO)" : "",
        cmd_time_text((double)r->waited_ms / 1000.0, time));
}

int cmd_start(const cmd_args *a) {
    buf socket = BUF_INIT;
    launch *l = NULL;
    launch_report r = {0};
    const char *extra[3] = {NULL, NULL, NULL};
    err e = ERR_INIT;
    int deadline_ms = 0, code = EXIT_OK;
    if (cmd_pair_applies(a)) return cmd_pair_start(a);
    int rc = seconds_option(a, "timeout", 0, &deadline_ms, &e);
    if (rc == OK) rc = threads_option(a, extra, &e);
    if (rc != OK) return cmd_fail_usage(&e);
    rc = cmd_socket(a, &socket, &e);
    launch_options o = {.socket_path = buf_cstr(&socket),
        .model_dir = cmd_value(a, "model"),
        .extra_args = extra,
        .deadline_ms = deadline_ms,
        .may_start = true,
        .is_alone = true};
    if (rc == OK) rc = launch_open(&o, &l, &e);
    if (rc == OK) rc = launch_run(l, cmd_stop_fd(), say, NULL, &e);
    if (rc == OK) {
        launch_get_report(l, &r);
        put_report(a, &r);
    } else {
        code = cmd_fail_engine(&e);
    }
    launch_close(l);
    buf_release(&socket);
    return cmd_finish(code);
}

static int stop_engine(const cmd_args *a, err *e) {
    buf socket = BUF_INIT;
    settings *s = settings_new();
    int deadline_ms = 0;
    int rc = settings_load(s, e);
    /* The daemon has this long for its replies; a little more for its own end. */
    int fallback_ms = rc == OK ? (int)settings_int(s, "STOP_TIMEOUT") * 1000 + 5000 : 0;
    if (rc == OK) rc = seconds_option(a, "timeout", fallback_ms, &deadline_ms, e);
    if (rc == OK) rc = cmd_socket(a, &socket, e);
    if (rc == OK) rc = launch_stop(buf_cstr(&socket), deadline_ms, e);
    settings_free(s);
    buf_release(&socket);
    return rc;
}

int cmd_stop(const cmd_args *a) {
    err e = ERR_INIT;
    if (cmd_pair_applies(a)) return cmd_pair_stop(a);
    int rc = stop_engine(a, &e);
    if (rc != OK && rc != ERR_NOT_FOUND) return cmd_fail(&e);
    if (cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_kbool(&w, "was_running", rc == OK);
        json_w_kstr(&w, "state", "stopped");
        cmd_put_json(&w);
        buf_release(&out);
    } else {
        cmd_puts(rc == OK ? "engine stopped\n" : "no engine was running\n");
    }
    return cmd_finish(EXIT_OK);
}

int cmd_restart(const cmd_args *a) {
    err e = ERR_INIT;
    if (cmd_pair_applies(a)) return cmd_pair_restart(a);
    int rc = stop_engine(a, &e);
    if (rc != OK && rc != ERR_NOT_FOUND) return cmd_fail(&e);
    return cmd_start(a);
}
