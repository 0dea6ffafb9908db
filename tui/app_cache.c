/* The cache of prompts from the chat: what it holds, and forgetting it after a yes. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/json.h"
#include "engine/base/str.h"
#include "setup/paths.h"
#include "tui/app_internal.h"
#include "tui/launch_process.h"

static int64_t number(const json *v, const char *key) {
    int64_t n = 0;
    return json_i64(json_get(v, key), &n) == OK && n > 0 ? n : 0;
}

static void say_held(app *a, const json *v) {
    char bytes[16];
    const json *disk = json_get(v, "disk");
    int64_t n = number(v, "n_entries");
    app_hint(a,
        n == 1
            ? "%lld beginning of a prompt is kept, %s of it on the disk; /cache wipe forgets it"
            : "%lld beginnings of prompts are kept, %s of them on the disk; /cache wipe forgets all",
        (long long)n, part_bytes((double)number(disk, "bytes"), bytes));
}

static void say_gone(app *a, const json *v) {
    char bytes[16];
    int64_t n_kept = number(v, "kept");
    app_hint(a, "forgotten: %lld, and %s on the disk%s%s", (long long)number(v, "entries"),
        part_bytes((double)number(v, "disk_bytes"), bytes),
        n_kept > 0 ? "; requests that run keep what they use" : "",
        a->options->is_pair ? "; the worker follows (logs/screen-cache.log)" : "");
}

typedef void (*cache_words)(app *a, const json *v);

static void take(app *a, const client_event *ev, cache_words say) {
    json *v = NULL;
    err e = ERR_INIT;
    if (ev->kind != CLIENT_END) return;
    if (ev->error != NULL) {
        app_hint(a, "%s", ev->error->msg);
    } else if (json_parse(ev->text, ev->len, NULL, &v, &e) != OK) {
        app_hint(a, "%s", e.msg);
    } else {
        say(a, v);
    }
    json_free(v);
}

static void on_list(void *ctx, const client_event *ev) {
    take(ctx, ev, say_held);
}

static void on_wiped(void *ctx, const client_event *ev) {
    take(ctx, ev, say_gone);
}

static void ask(app *a, bool is_delete, client_sink sink) {
    client_call *call;
    err e = ERR_INIT;
    const client_request q = {
        .path = "/tandem/v1/cache", .limits = {2000, 30000, 30000}, .is_delete = is_delete};
    if (client_request_start(a->engine, &q, sink, &call, &e) != OK) app_hint(a, "%s", e.msg);
}

/* The disks of both machines, in a process of its own: ssh may take its time. */
static void wipe_disks(app *a) {
    char self[PATH_MAX];
    buf log = BUF_INIT;
    err e = ERR_INIT;
    launch_process p = {.pidfd = -1};
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    int rc = n > 0 ? paths_logs(&log, &e) : err_errno(&e, "finding this program");
    if (rc == OK) self[n] = '\0';
    if (rc == OK) rc = paths_make_private(buf_cstr(&log), &e);
    if (rc == OK) rc = buf_puts(&log, "/screen-cache.log");
    const char *argv[] = {self, "cache", "wipe", "--yes", NULL};
    if (rc == OK) rc = launch_process_start(&p, argv, buf_cstr(&log), &e);
    if (rc != OK) app_hint(a, "%s", e.msg);
    launch_process_release(&p);
    buf_release(&log);
}

void app_wipe_cache(app *a) {
    ask(a, true, (client_sink){on_wiped, a});
    if (a->options->is_pair) wipe_disks(a);
}

void app_cache_command(app *a, const char *args) {
    if (args[0] == '\0') {
        ask(a, false, (client_sink){on_list, a});
    } else if (str_eq(args, "wipe")) {
        app_ask(a, ACTION_CACHE_WIPE,
            a->options->is_pair ? "Forget everything kept of earlier prompts, on both machines?"
                                : "Forget everything kept of earlier prompts?");
    } else {
        app_hint(a, "write it as: /cache or /cache wipe");
    }
}
