#include "tui/cmd_pair.h"

#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/paths.h"

enum { FROZEN_MAX = 1 << 20 };

bool cmd_pair_applies(const cmd_args *a) {
    settings *s = settings_new();
    bool is_alone =
        cmd_has(a, "local") || cmd_value(a, "socket") != NULL || cmd_value(a, "model") != NULL;
    bool applies = !is_alone && settings_load(s, NULL) == OK && pair_is_configured(s);
    settings_free(s);
    return applies;
}

pair_options cmd_pair_options(const cmd_nodes *n) {
    return (pair_options){.settings = n->settings,
        .node = {n->node[0], n->node[1]},
        .missing = n->missing[1],
        .stop = cmd_stop_flag(),
        .is_attended = true};
}

int cmd_pair_fail(const err *e) {
    switch (e->code) {
    case ERR_NET:
    case ERR_TIMEOUT: {
        (void)cmd_fail(e);
        return e->code == ERR_NET ? EXIT_NODE_UNREACHABLE : EXIT_NOT_READY;
    }
    case ERR_PEER:
        (void)cmd_fail(e);
        return EXIT_NOT_READY;
    default:
        return cmd_fail(e);
    }
}

/* ---- what happens, for people ---- */

typedef struct teller {
    bool is_quiet;
    uint64_t begun_ms;
} teller;

static void put_part(const pair_event *ev, int node) {
    cmd_printf("%s %s", node == PAIR_HEAD ? "head" : "worker",
        ev->phases[node] != NULL && ev->phases[node][0] != '\0' ? ev->phases[node] : "-");
    if (ev->parts[node] >= 0) cmd_printf(" %.0f %%", ev->parts[node] * 100.0);
}

static void on_event(void *ctx, const pair_event *ev) {
    const teller *t = ctx;
    char time[32];
    if (ev->kind == PAIR_WARN) {
        cmd_note("%s", ev->text);
        return;
    }
    if (t->is_quiet) return;
    cmd_printf("%8s  ", cmd_time_text((double)(clock_mono_ms() - t->begun_ms) / 1000.0, time));
    if (ev->kind == PAIR_PHASE) {
        put_part(ev, PAIR_HEAD);
        cmd_puts(", ");
        put_part(ev, PAIR_WORKER);
    } else {
        cmd_put_text(ev->text, strlen(ev->text));
    }
    cmd_puts("\n");
    cmd_flush();
}

/* ---- start ---- */

static void put_report_json(const pair_report *r) {
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_kstr(&w, "state", "ready");
    json_w_kstr(&w, "start_id", r->start_id);
    json_w_kstr(&w, "settings", r->settings[0] != '\0' ? r->settings : NULL);
    json_w_kstr(&w, "model", r->model);
    json_w_kstr(&w, "build", r->build);
    json_w_kbool(&w, "demo", r->is_demo);
    json_w_kbool(&w, "was_running", r->was_running);
    json_w_ki64(&w, "context", r->context);
    json_w_ki64(&w, "streams", r->slots);
    json_w_key(&w, "waited_s");
    json_w_fixed(&w, (double)r->waited_ms / 1000.0, 3);
    json_w_key(&w, "verify");
    if (r->has_verify) {
        json_w_object(&w);
        json_w_ki64(&w, "passed", r->verify.n_pass);
        json_w_ki64(&w, "warnings", r->verify.n_warn);
        json_w_ki64(&w, "failed", r->verify.n_fail);
        json_w_ki64(&w, "skipped", r->verify.n_skip);
        json_w_close(&w);
    } else {
        json_w_null(&w);
    }
    json_w_kstr(&w, "verify_failed", r->verify_failed ? r->verify_text : NULL);
    cmd_put_json(&w);
    buf_release(&out);
}

static void put_report_text(const pair_report *r) {
    char time[32], count[32];
    cmd_printf("the pair is ready%s: model %s%s, start id %s, %s\n",
        r->was_running ? " (it was running already)" : "", r->model, r->is_demo ? " (DEMO)" : "",
        r->start_id, cmd_time_text((double)r->waited_ms / 1000.0, time));
    cmd_printf("granted: window of %s tokens, %lld streams\n", cmd_count_text(r->context, count),
        (long long)r->slots);
    if (r->has_verify)
        cmd_printf("verify: %d passed, %d with warnings, %d failed, %d skipped\n", r->verify.n_pass,
            r->verify.n_warn, r->verify.n_fail, r->verify.n_skip);
}

static int report(const cmd_args *a, const pair_report *r) {
    if (cmd_has(a, "json")) {
        put_report_json(r);
    } else {
        put_report_text(r);
    }
    bool is_less = r->slots > 0 && r->slots < r->wanted_slots;
    if (is_less)
        cmd_note("%lld streams were granted, %lld were asked for (PARALLEL)", (long long)r->slots,
            (long long)r->wanted_slots);
    if (r->verify_failed)
        cmd_note("verify did not pass: %s; look into it with tandem verify", r->verify_text);
    return is_less || r->verify_failed || r->verify.n_warn > 0 ? EXIT_WARNINGS : EXIT_OK;
}

static int dry_run(const cmd_args *a, const pair_options *o) {
    buf plan = BUF_INIT;
    err e = ERR_INIT;
    int rc = pair_plan(o, &plan, &e);
    if (rc == OK && cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_key(&w, "plan");
        json_w_array(&w);
        for (const char *at = buf_cstr(&plan); *at != '\0'; at += strcspn(at, "\n") + 1)
            json_w_strn(&w, at, strcspn(at, "\n"));
        json_w_close(&w);
        cmd_put_json(&w);
        buf_release(&out);
    } else if (rc == OK) {
        cmd_put_text(buf_cstr(&plan), plan.len);
    }
    buf_release(&plan);
    return rc == OK ? EXIT_OK : cmd_pair_fail(&e);
}

/* --threads N is passed on to both ranks. */
static int extra_words(const cmd_args *a, const char *out[3], err *e) {
    const char *text = cmd_value(a, "threads");
    int64_t n = 0;
    int rc = cmd_int_option(a, "threads", (cmd_range){1, 256, 1}, &n, e);
    if (rc != OK || text == NULL) return rc;
    out[0] = "--threads";
    out[1] = text;
    return OK;
}

static int start_on(const cmd_args *a, const cmd_nodes *n) {
    const char *extra[3] = {NULL, NULL, NULL};
    err e = ERR_INIT;
    pair_report r;
    if (extra_words(a, extra, &e) != OK) return cmd_fail_usage(&e);
    pair_options o = cmd_pair_options(n);
    o.extra = extra;
    if (cmd_has(a, "dry-run")) return dry_run(a, &o);
    teller t = {.is_quiet = cmd_has(a, "json"), .begun_ms = clock_mono_ms()};
    (void)cmd_stop_fd(); /* from now on Ctrl-C is a flag */
    int rc = pair_start(&o, on_event, &t, &r, &e);
    return rc == OK ? report(a, &r) : cmd_pair_fail(&e);
}

int cmd_pair_start(const cmd_args *a) {
    cmd_nodes n;
    err e = ERR_INIT;
    if (cmd_nodes_open(a, true, &n, &e) != OK) return cmd_fail(&e);
    int code = start_on(a, &n);
    cmd_nodes_close(&n);
    return cmd_finish(code);
}

/* ---- stop ---- */

static void put_stopped(const cmd_args *a, const pair_stopped *s) {
    if (cmd_has(a, "json")) {
        buf out = BUF_INIT;
        json_w w;
        cmd_begin_json(&w, &out);
        json_w_kstr(&w, "state", "stopped");
        json_w_kbool(&w, "was_running", s->was_running);
        json_w_kbool(&w, "worker_seen", s->is_worker_seen);
        cmd_put_json(&w);
        buf_release(&out);
        return;
    }
    cmd_puts(s->was_running ? "both ranks have ended\n" : "nothing was running\n");
}

static int stop_on(const cmd_args *a, const cmd_nodes *n) {
    pair_options o = cmd_pair_options(n);
    teller t = {.is_quiet = cmd_has(a, "json"), .begun_ms = clock_mono_ms()};
    pair_stopped s;
    err e = ERR_INIT;
    (void)cmd_stop_fd();
    if (pair_stop(&o, on_event, &t, &s, &e) != OK) return cmd_pair_fail(&e);
    put_stopped(a, &s);
    if (s.is_worker_seen) return EXIT_OK;
    cmd_note("the worker could not be asked (%s); its rank ends by itself without the head's",
        n->missing[1]);
    return EXIT_NODE_UNREACHABLE;
}

int cmd_pair_stop(const cmd_args *a) {
    cmd_nodes n;
    err e = ERR_INIT;
    if (cmd_nodes_open(a, true, &n, &e) != OK) return cmd_fail(&e);
    int code = stop_on(a, &n);
    cmd_nodes_close(&n);
    return cmd_finish(code);
}

/* ---- restart ---- */

static bool has_line(const char *text, const char *line) {
    for (const char *at = text; (at = strstr(at, line)) != NULL; at++) {
        if (at == text || at[-1] == '\n') return true;
    }
    return false;
}

/* Lines of one text that the other has not. */
static void put_missing(const char *mark, const char *from, const char *in) {
    for (const char *at = from; *at != '\0';) {
        size_t n = strcspn(at, "\n");
        char *line = mem_strndup(at, n + (at[n] == '\n'));
        bool is_setting = n > 0 && *at != '#';
        if (is_setting && !has_line(in, line)) {
            cmd_puts(mark);
            cmd_put_text(at, n);
            cmd_puts("\n");
        }
        mem_free(line);
        at += n + (at[n] == '\n');
    }
}

/* What changed in the settings since the start that runs now. */
static void put_changes(const cmd_nodes *n, const pair_options *o) {
    pair_view v;
    buf path = BUF_INIT, before = BUF_INIT, now = BUF_INIT;
    if (pair_look(o, &v, NULL) != OK) return;
    bool is_known = v.start_id[0] != '\0' && paths_logs(&path, NULL) == OK &&
                    buf_printf(&path, "/start-%s.conf", v.start_id) == OK &&
                    file_exists(buf_cstr(&path)) &&
                    file_read(buf_cstr(&path), &before, FROZEN_MAX, NULL) == OK;
    pair_view_release(&v);
    if (is_known) {
        settings_frozen(n->settings, false, &now);
        put_missing("- ", buf_cstr(&before), buf_cstr(&now));
        put_missing("+ ", buf_cstr(&now), buf_cstr(&before));
    }
    buf_release(&path);
    buf_release(&before);
    buf_release(&now);
}

int cmd_pair_restart(const cmd_args *a) {
    cmd_nodes n;
    err e = ERR_INIT;
    int code = EXIT_OK;
    if (cmd_nodes_open(a, true, &n, &e) != OK) return cmd_fail(&e);
    pair_options o = cmd_pair_options(&n);
    pair_stopped s;
    teller t = {.is_quiet = cmd_has(a, "json"), .begun_ms = clock_mono_ms()};
    (void)cmd_stop_fd();
    if (!t.is_quiet) put_changes(&n, &o);
    if (cmd_has(a, "dry-run")) {
        code = start_on(a, &n);
    } else if (n.node[1] == NULL) {
        /* Half of it would not come back: better not begin. */
        err_set(
            &e, ERR_NET, "the worker cannot be reached, so nothing was stopped: %s", n.missing[1]);
        code = cmd_pair_fail(&e);
    } else if (pair_stop(&o, on_event, &t, &s, &e) != OK) {
        code = cmd_pair_fail(&e);
    } else {
        code = start_on(a, &n);
    }
    cmd_nodes_close(&n);
    return cmd_finish(code);
}

/* ---- status ---- */

static void put_node(const pair_node_view *n, const char *name) {
    char bytes[32];
    uint64_t available = 0;
    double progress = 0;
    const json *k = n->keeper;
    const char *phase = json_str(json_get(k, "phase"));
    cmd_printf("%-9s %s", name, n->is_reachable ? n->state : "not reachable");
    if (n->has_keeper && str_eq(n->state, "loading") && phase != NULL) {
        cmd_printf(", %s", phase);
        if (json_double(json_get(k, "progress"), &progress) == OK)
            cmd_printf(" %.0f %%", progress * 100.0);
    }
    if (n->was_killed) cmd_puts(" (its keeper was killed)");
    if (n->has_keeper && json_u64(json_get(k, "available_bytes"), &available) == OK)
        cmd_printf(", memory available %s", cmd_bytes_text((double)available, bytes));
    cmd_puts("\n");
    const char *message = json_str(json_get(json_get(k, "first_error"), "message"));
    if (message != NULL) {
        cmd_puts("          first error: ");
        cmd_put_text(message, strlen(message));
        cmd_puts("\n");
    }
    if (n->missing[0] != '\0') {
        cmd_puts("          ");
        cmd_put_text(n->missing, strlen(n->missing));
        cmd_puts("\n");
    }
}

void cmd_pair_put(const pair_view *v) {
    cmd_printf("pair      %s", pair_state_name(v->state));
    if (v->start_id[0] != '\0') cmd_printf(", start id %s", v->start_id);
    if (v->generation > 0) cmd_printf(", started again %d times", v->generation);
    cmd_puts("\n");
    if (v->reason[0] != '\0') {
        cmd_puts("          ");
        cmd_put_text(v->reason, strlen(v->reason));
        cmd_puts("\n");
    }
    if (v->holder[0] != '\0') cmd_printf("          held by %s\n", v->holder);
    put_node(&v->node[0], "head");
    put_node(&v->node[1], "worker");
}
