/* tandem watch: one look of the watchdog; the start after a boot; maintenance. */
#include <poll.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/str.h"
#include "setup/watch.h"
#include "tui/cmd_pair.h"

enum { BOOT_WAIT_S = 900, BOOT_LOOK_MS = 5000, MINUTES_MAX = 7 * 24 * 60 };

static void put_line(const cmd_args *a, const char *action, const char *why) {
    if (!cmd_has(a, "json")) {
        cmd_printf("%s: ", action);
        cmd_put_text(why, strlen(why));
        cmd_puts("\n");
        return;
    }
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_kstr(&w, "action", action);
    json_w_kstr(&w, "reason", why);
    cmd_put_json(&w);
    buf_release(&out);
}

/* ---- a tick ---- */

static int code_of(const watch_result *r) {
    switch (r->action) {
    case WATCH_COUNTS:
        return EXIT_WARNINGS;
    case WATCH_GIVES_UP:
        return EXIT_REFUSED;
    case WATCH_HEALS:
        return r->heal_code == OK ? EXIT_OK : EXIT_NOT_READY;
    default:
        return EXIT_OK;
    }
}

static int tick(const cmd_args *a, cmd_nodes *n) {
    pair_options o = cmd_pair_options(n);
    watch_result r;
    err e = ERR_INIT;
    o.is_attended = false;
    if (watch_tick(&o, cmd_has(a, "dry-run"), &r, &e) != OK) return cmd_pair_fail(&e);
    put_line(a, watch_action_name(r.action), r.why);
    return cmd_has(a, "dry-run") ? EXIT_OK : code_of(&r);
}

/* ---- after a boot ---- */

static int open_again(const cmd_args *a, cmd_nodes *n, err *e) {
    cmd_nodes_close(n);
    return cmd_nodes_open(a, true, n, e);
}

/* Waits until all that a start needs is there. */
static int wait_ready(const cmd_args *a, cmd_nodes *n, err *e) {
    struct pollfd stop = {.fd = cmd_stop_fd(), .events = POLLIN};
    uint64_t end = clock_mono_ms() + (uint64_t)BOOT_WAIT_S * 1000;
    for (;;) {
        pair_options o = cmd_pair_options(n);
        int rc = watch_boot_ready(&o, e);
        if (rc != ERR_BUSY || clock_mono_ms() >= end) return rc;
        if (poll(&stop, 1, BOOT_LOOK_MS) > 0) return err_set(e, ERR_CANCELLED, "interrupted");
        rc = open_again(a, n, e);
        if (rc != OK) return rc;
    }
}

static int boot(const cmd_args *a, cmd_nodes *n) {
    pair_options o = cmd_pair_options(n);
    err e = ERR_INIT;
    int rc = watch_boot_wanted(&o, &e);
    if (rc == ERR_CANCELLED) {
        put_line(a, "no start", e.msg);
        return EXIT_OK;
    }
    if (rc != OK) return cmd_pair_fail(&e);
    if (cmd_has(a, "dry-run")) {
        rc = watch_boot_ready(&o, &e);
        put_line(a, "would start", rc == OK ? "all it needs is there" : e.msg);
        return EXIT_OK;
    }
    rc = wait_ready(a, n, &e);
    if (rc == OK) {
        pair_report report;
        o = cmd_pair_options(n);
        o.is_attended = false;
        rc = watch_boot_wanted(&o, &e); /* with the worker reachable now */
        if (rc == OK) rc = pair_start(&o, NULL, NULL, &report, &e);
    }
    if (rc == OK) {
        put_line(a, "started", "the pair is ready");
        return EXIT_OK;
    }
    watch_notify(n->settings, "boot", e.msg);
    return cmd_pair_fail(&e);
}

/* ---- maintenance ---- */

static int pause_watch(const cmd_args *a) {
    int64_t minutes = 0;
    err e = ERR_INIT;
    if (cmd_int_option(a, "pause", (cmd_range){0, MINUTES_MAX, 0}, &minutes, &e) != OK)
        return cmd_fail_usage(&e);
    uint64_t until = minutes > 0 ? clock_wall_ms() + (uint64_t)minutes * 60000 : 0;
    if (watch_pause(until, &e) != OK) return cmd_fail(&e);
    put_line(a, minutes > 0 ? "paused" : "goes on",
        minutes > 0 ? "nothing is judged and nothing started until the time is over"
                    : "the watchdog judges again");
    return EXIT_OK;
}

int cmd_watch(const cmd_args *a) {
    cmd_nodes n;
    err e = ERR_INIT;
    if (cmd_value(a, "pause") != NULL) return cmd_finish(pause_watch(a));
    if (cmd_nodes_open(a, true, &n, &e) != OK) return cmd_fail(&e);
    int code;
    (void)cmd_stop_fd();
    if (!pair_is_configured(n.settings)) {
        err_set(
            &e, ERR_ARG, "the pair is not set up, so there is nothing to watch; run tandem setup");
        code = cmd_fail(&e);
    } else {
        code = cmd_has(a, "boot") ? boot(a, &n) : tick(a, &n);
    }
    cmd_nodes_close(&n);
    return cmd_finish(code);
}
