/* tandem status. */
#include <poll.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/str.h"
#include "tui/cmd_internal.h"
#include "tui/cmd_pair.h"
#include "tui/cmd_status_text.h"

enum { RETRY_LOOKS = 10 };

static const char *text_at(const json *v, const char *key, const char *fallback) {
    const char *text = json_str(json_get(v, key));
    return text != NULL ? text : fallback;
}

static void put_model(const json *state, buf *out) {
    const json *model = json_get(state, "model");
    int64_t context = 0;
    buf_puts(out, text_at(model, "id", "unknown"));
    if (json_is_true(json_get(model, "demo"))) buf_puts(out, " (the built-in DEMO)");
    if (json_i64(json_get(model, "context"), &context) == OK) {
        buf_printf(out, ", window %lld tokens", (long long)context);
    }
}

static void put_uptime(const json *state, buf *out) {
    int64_t started = 0;
    char time[32];
    if (json_i64(json_get(state, "started_ms"), &started) != OK || started <= 0) return;
    int64_t now = (int64_t)clock_wall_ms();
    if (now > started) {
        buf_printf(out, " for %s", cmd_time_text((double)(now - started) / 1000.0, time));
    }
}

void status_paragraph(const json *state, buf *out) {
    const char *reason = json_str(json_get(state, "reason"));
    buf_printf(out, "engine %s", text_at(state, "state", "unknown"));
    put_uptime(state, out);
    if (reason != NULL) buf_printf(out, " (%s)", reason);
    buf_puts(out, "; model ");
    put_model(state, out);
    int64_t limit = 0;
    size_t n = json_count(json_get(state, "requests"));
    buf_printf(out, "; %zu request%s", n, n == 1 ? "" : "s");
    if (json_i64(json_get(json_get(state, "streams"), "limit"), &limit) == OK) {
        buf_printf(out, " of %lld streams", (long long)limit);
    }
}

/* The first object of the stats stream: what the state does not hold. */
typedef struct first_stats {
    client *c;
    client_call *call;
    buf text;
} first_stats;

static void on_stats(void *ctx, const client_event *ev) {
    first_stats *f = ctx;
    if (ev->kind == CLIENT_STATS && f->text.len == 0) buf_append(&f->text, ev->text, ev->len);
    if (ev->kind == CLIENT_STATS || ev->kind == CLIENT_LOST) client_cancel(f->c, f->call);
}

static json *get_stats(client *c) {
    first_stats f = {.c = c, .text = BUF_INIT};
    json *v = NULL;
    if (client_stats(c, 500, (client_sink){on_stats, &f}, &f.call, NULL) == OK) {
        if (client_wait(c, f.call, -1, 3000, NULL) == OK) {
            if (f.text.len > 0) json_parse(buf_cstr(&f.text), f.text.len, NULL, &v, NULL);
        } else {
            client_cancel(c, f.call);
            client_pump(c);
        }
    }
    buf_release(&f.text);
    return v;
}

/* Human form. */

static void put_number(const char *label, const json *v, const char *fmt) {
    double d = 0;
    cmd_printf("%s", label);
    if (json_double(v, &d) == OK) {
        cmd_printf(fmt, d);
    } else {
        cmd_puts("-");
    }
}

static void put_memory(const char *label, const json *v) {
    double d = 0;
    char text[32];
    cmd_printf("%s%s", label, json_double(v, &d) == OK ? cmd_bytes_text(d, text) : "-");
}

static void put_requests(const json *state) {
    JSON_EACH(r, json_get(state, "requests")) {
        int64_t prompt = 0, done = 0;
        json_i64(json_get(r, "prompt_tokens"), &prompt);
        json_i64(json_get(r, "done_tokens"), &done);
        cmd_printf("request   %s %s, %lld prompt tokens, %lld written", text_at(r, "id", "?"),
            text_at(r, "phase", "?"), (long long)prompt, (long long)done);
        put_number(", ", json_get(r, "tokens_per_s"), "%.1f t/s");
        cmd_puts("\n");
    }
}

static void put_stats(const json *stats) {
    if (stats == NULL) return;
    put_number("rate      now ", json_get(stats, "tokens_per_s_now"), "%.1f t/s");
    put_number(", minute ", json_get(stats, "tokens_per_s_minute"), "%.1f t/s");
    put_number(", prefill ", json_get(stats, "prefill_tokens_per_s_now"), "%.0f t/s");
    cmd_puts("\n");
    put_number("kv        ", json_get(json_get(stats, "kv"), "pages_used"), "%.0f");
    put_number(" of ", json_get(json_get(stats, "kv"), "pages_total"), "%.0f pages used");
    put_number(", ", json_get(json_get(stats, "kv"), "pages_kept"), "%.0f kept for later prompts");
    cmd_puts("\n");
    JSON_EACH(r, json_get(stats, "ranks")) {
        put_number("rank ", json_get(r, "rank"), "%.0f");
        put_number("    step ", json_get(r, "step_ms"), "%.2f ms");
        put_memory(", memory ", json_get(r, "mem_process_bytes"));
        put_memory(" (machine ", json_get(r, "mem_machine_used_bytes"));
        put_memory(" of ", json_get(r, "mem_machine_total_bytes"));
        put_number("), CPU ", json_get(r, "cpu_percent"), "%.0f %%");
        cmd_puts("\n");
    }
    put_number("served    ", json_get(json_get(stats, "requests"), "done"), "%.0f");
    put_number(", failed ", json_get(json_get(stats, "requests"), "failed"), "%.0f");
    put_number(", waiting ", json_get(json_get(stats, "requests"), "queued"), "%.0f");
    cmd_puts("\n");
}

static void put_human(const json *state, const json *stats, const char *socket) {
    buf line = BUF_INIT;
    const json *endpoint = json_get(state, "endpoint");
    buf_printf(&line, "engine    %s", text_at(state, "state", "unknown"));
    put_uptime(state, &line);
    const char *reason = json_str(json_get(state, "reason"));
    if (reason != NULL) buf_printf(&line, ": %s", reason);
    buf_puts(&line, "\nmodel     ");
    put_model(state, &line);
    buf_printf(&line, "\nversion   %s, build %s\n", text_at(state, "version", "?"),
        text_at(state, "build", "?"));
    buf_printf(&line, "socket    %s\nendpoint  %s\n", socket,
        json_is_true(json_get(endpoint, "on")) ? text_at(endpoint, "address", "on") : "off");
    cmd_put_text(buf_cstr(&line), line.len);
    put_requests(state);
    put_stats(stats);
    buf_release(&line);
}

/* The pair as a member of the object: its state, then versions and provenance. */
static void put_pair_json(const cmd_nodes *n, const pair_view *view, json_w *w) {
    if (view == NULL) return;
    pair_options o = cmd_pair_options(n);
    json_w_key(w, "pair");
    json_w_object(w);
    pair_view_write(view, w);
    pair_figures_write(&o, w);
    pair_proofs_write(&o, w);
    pair_versions_write(&o, w);
    json_w_close(w);
}

typedef struct status_pair {
    cmd_nodes *nodes; /* NULL: no pair */
    pair_view *view;
} status_pair;

static void put_one(const cmd_args *a, const json *state, const json *stats, const char *socket,
    const status_pair *pair) {
    if (!cmd_has(a, "json")) {
        put_human(state, stats, socket);
        if (pair->view != NULL) cmd_pair_put(pair->view);
        return;
    }
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_kstr(&w, "socket", socket);
    json_w_key(&w, "engine");
    json_w_value(&w, state);
    json_w_key(&w, "stats");
    json_w_value(&w, stats);
    put_pair_json(pair->nodes, pair->view, &w);
    cmd_put_json(&w);
    buf_release(&out);
}

static void put_absent(
    const cmd_args *a, const char *socket, const err *e, const status_pair *pair) {
    if (!cmd_has(a, "json")) {
        cmd_printf("engine    not running (%s)\nsocket    %s\n", e->msg, socket);
        if (pair->view != NULL) cmd_pair_put(pair->view);
        return;
    }
    buf out = BUF_INIT;
    json_w w;
    cmd_begin_json(&w, &out);
    json_w_kstr(&w, "socket", socket);
    json_w_knull(&w, "engine");
    json_w_knull(&w, "stats");
    json_w_kstr(&w, "error", e->msg);
    put_pair_json(pair->nodes, pair->view, &w);
    cmd_put_json(&w);
    buf_release(&out);
}

static int show_once(const cmd_args *a, client *c, const status_pair *pair) {
    json *state = NULL;
    err e = ERR_INIT;
    const char *socket = client_socket_path(c);
    if (cmd_get_json(c, "/tandem/v1/state", &state, &e) != OK) {
        put_absent(a, socket, &e, pair);
        return EXIT_NOT_READY;
    }
    json *stats = get_stats(c);
    put_one(a, state, stats, socket, pair);
    bool is_ready = str_eq(json_str(json_get(state, "state")), "ready");
    json_free(stats);
    json_free(state);
    return is_ready ? EXIT_OK : EXIT_NOT_READY;
}

/* One look at the engine and, where there is one, at the pair. */
static int look(const cmd_args *a, client *c, cmd_nodes *nodes) {
    pair_view view;
    status_pair pair = {.nodes = nodes};
    if (nodes == NULL) return show_once(a, c, &pair);
    pair_options o = cmd_pair_options(nodes);
    if (pair_look(&o, &view, NULL) == OK) pair.view = &view;
    int code = show_once(a, c, &pair);
    bool is_whole = view.state == PAIR_READY || view.state == PAIR_SERVING;
    if (!is_whole) code = EXIT_NOT_READY;
    if (!view.node[PAIR_WORKER].is_reachable) code = EXIT_NODE_UNREACHABLE;
    if (pair.view != NULL) pair_view_release(&view);
    return code;
}

/* The session to the worker stays open between two looks; a lost one is tried again now and then. */
static int watch(const cmd_args *a, client *c, cmd_nodes *nodes) {
    struct pollfd stop = {.fd = cmd_stop_fd(), .events = POLLIN};
    int code = EXIT_OK, n_lost = 0;
    err e = ERR_INIT;
    do {
        code = look(a, c, nodes);
        if (!cmd_has(a, "json")) cmd_puts("\n");
        cmd_flush();
        n_lost = code == EXIT_NODE_UNREACHABLE ? n_lost + 1 : 0;
        if (nodes != NULL && n_lost % RETRY_LOOKS == 1) {
            cmd_nodes_close(nodes);
            if (cmd_nodes_open(a, true, nodes, &e) != OK) return cmd_fail(&e);
        }
        if (cmd_output_failed()) return cmd_finish(code);
    } while (poll(&stop, 1, 1000) == 0);
    return code;
}

int cmd_status(const cmd_args *a) {
    buf socket = BUF_INIT;
    client *c = NULL;
    cmd_nodes nodes = {0};
    err e = ERR_INIT;
    int code = EXIT_OK;
    bool is_pair = cmd_pair_applies(a);
    int rc = cmd_socket(a, &socket, &e);
    if (rc == OK) rc = client_open(buf_cstr(&socket), &c, &e);
    if (rc == OK && is_pair) rc = cmd_nodes_open(a, true, &nodes, &e);
    if (rc != OK) {
        code = cmd_fail(&e);
    } else if (cmd_has(a, "watch")) {
        code = watch(a, c, is_pair ? &nodes : NULL);
    } else {
        code = look(a, c, is_pair ? &nodes : NULL);
    }
    if (is_pair) cmd_nodes_close(&nodes);
    client_close(c);
    buf_release(&socket);
    return cmd_finish(code);
}
