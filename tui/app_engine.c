/* The engine as the screen sees it: attach, start, stop, and the streams of state and samples. */
#include <string.h>

#include "engine/base/str.h"
#include "tui/app_internal.h"

#define STATS_MS 500
#define STATE_MS 5000
#define PROBE_MS 2000

static void set_state(app *a, engine_state s, const char *reason) {
    engine_state before = a->gauges.state;
    gauges_set_state(&a->gauges, s, reason, a->now_ms);
    a->is_dirty = true;
    if (s == ENGINE_READY && before != ENGINE_READY) chat_send_queued(&a->chat, a->now_ms);
}

bool app_engine_is_ready(const app *a) {
    return a->gauges.state == ENGINE_READY;
}

static void on_state(void *ctx, const client_event *ev) {
    app *a = ctx;
    if (ev->kind != CLIENT_END) return;
    a->state_call = NULL;
    engine_state before = a->gauges.state;
    if (ev->error == NULL &&
        gauges_take_state(&a->gauges, ev->text, ev->len, a->now_ms, NULL) == OK) {
        if (before != ENGINE_READY && app_engine_is_ready(a)) chat_send_queued(&a->chat, a->now_ms);
    }
    a->is_dirty = true;
}

static void ask_state(app *a) {
    a->state_due_ms = a->now_ms + STATE_MS;
    if (a->state_call != NULL) return;
    const client_request q = {.path = "/tandem/v1/state", .limits = {2000, 5000, 10000}};
    client_request_start(a->engine, &q, (client_sink){on_state, a}, &a->state_call, NULL);
}

static void on_lost(app *a, const client_event *ev) {
    bool was_wanted = a->is_stop_wanted;
    a->is_stop_wanted = false;
    set_state(a, was_wanted ? ENGINE_ABSENT : ENGINE_DOWN,
        ev->error != NULL && !was_wanted ? ev->error->msg : NULL);
    a->gauges.has_sample = false;
    a->probe_due_ms = a->now_ms + PROBE_MS;
    if (a->wants_start_again) {
        a->wants_start_again = false;
        app_start_engine(a, true);
    }
}

static void on_stats(void *ctx, const client_event *ev) {
    app *a = ctx;
    switch (ev->kind) {
    case CLIENT_OPEN:
        if (ev->status == 200) ask_state(a);
        break;
    case CLIENT_STATS: {
        engine_state before = a->gauges.state;
        if (gauges_take_stats(&a->gauges, ev->text, ev->len, a->now_ms, NULL) != OK) break;
        /* A sample proves that an engine is there, also one that does not name its state. */
        if (a->gauges.state == before && before != ENGINE_READY && before != ENGINE_STARTING &&
            before != ENGINE_DRAINING && before != ENGINE_FAILED) {
            set_state(a, ENGINE_READY, NULL);
        } else if (before != ENGINE_READY && app_engine_is_ready(a))
            chat_send_queued(&a->chat, a->now_ms);
        alerts_update(&a->alerts, &a->gauges, a->now_ms);
        a->is_dirty = true;
        break;
    }
    case CLIENT_LOST:
        on_lost(a, ev);
        break;
    case CLIENT_END:
        a->stats = NULL;
        break;
    default:
        break;
    }
}

static void attach(app *a) {
    if (a->stats == NULL)
        client_stats(a->engine, STATS_MS, (client_sink){on_stats, a}, &a->stats, NULL);
    ask_state(a);
}

void app_start_engine(app *a, bool may_start) {
    err e = ERR_INIT;
    launch_options o = {
        .socket_path = a->socket_path, .model_dir = a->options->model_dir, .may_start = may_start};
    if (may_start && a->options->is_pair) {
        a->pair_word[0] = '\0';
        if (app_pair_run(a, "start")) set_state(a, ENGINE_STARTING, NULL);
        return;
    }
    if (a->start != NULL) launch_close(a->start);
    a->start = NULL;
    if (launch_open(&o, &a->start, &e) != OK)
        set_state(a, ENGINE_FAILED, e.msg);
    else if (may_start)
        set_state(a, ENGINE_STARTING, NULL);
}

static void end_start(app *a) {
    launch_close(a->start);
    a->start = NULL;
}

/* Moves a start on and shows what it knows. */
static void step_start(app *a) {
    launch_report r;
    launch_step(a->start);
    launch_get_report(a->start, &r);
    if (r.model_id[0] != '\0') str_copy(a->gauges.model_id, sizeof a->gauges.model_id, r.model_id);
    if (r.is_demo) a->gauges.is_demo = true;
    switch (r.phase) {
    case LAUNCH_READY:
        end_start(a);
        a->pair_word[0] = '\0';
        set_state(a, ENGINE_READY, NULL);
        if (r.is_other_model)
            app_hint(a, "--model is not used: the engine that runs has %s (%s)", r.model_id,
                r.model_dir);
        attach(a);
        break;
    case LAUNCH_ABSENT:
        end_start(a);
        if (a->pair_word[0] != '\0')
            set_state(a, ENGINE_FAILED, a->pair_word);
        else if (a->gauges.state != ENGINE_DOWN)
            set_state(a, ENGINE_ABSENT, NULL);
        a->probe_due_ms = a->now_ms + PROBE_MS;
        break;
    case LAUNCH_FAILED:
        set_state(a, ENGINE_FAILED, r.error != NULL ? r.error->msg : "the start failed");
        if (r.error != NULL) app_hint(a, "%s", r.error->msg);
        end_start(a);
        a->probe_due_ms = a->now_ms + 5 * PROBE_MS;
        break;
    case LAUNCH_STARTING:
        if (a->gauges.state != ENGINE_STARTING) set_state(a, ENGINE_STARTING, NULL);
        break;
    default:
        break;
    }
}

void app_engine_tick(app *a) {
    app_pair_step(a);
    if (a->start != NULL) step_start(a);
    bool is_away = a->gauges.state == ENGINE_ABSENT || a->gauges.state == ENGINE_FAILED;
    if (is_away && a->start == NULL && a->now_ms >= a->probe_due_ms) {
        a->probe_due_ms = a->now_ms + PROBE_MS;
        /* The stats stream comes back by itself; without one, look whether somebody started an
         * engine. */
        if (a->stats == NULL) {
            launch_options o = {.socket_path = a->socket_path, .may_start = false};
            launch_open(&o, &a->start, NULL);
        }
    }
    if (a->stats != NULL && a->now_ms >= a->state_due_ms && app_engine_is_ready(a)) ask_state(a);
}

int app_engine_wait_ms(const app *a) {
    int wait = a->start != NULL ? launch_timeout_ms(a->start) : app_pair_is_at_work(a) ? 200 : 1000;
    return wait < 0 || wait > 1000 ? 1000 : wait;
}

static void on_stop(void *ctx, const client_event *ev) {
    app *a = ctx;
    if (ev->kind != CLIENT_END || ev->error == NULL) return;
    /* The connection may end before the answer: that is the engine ending. */
    if (ev->status != 0) {
        a->is_stop_wanted = false;
        app_hint(a, "the engine did not stop: %s", ev->error->msg);
    }
}

void app_stop_engine(app *a, bool then_start) {
    client_call *call;
    err e = ERR_INIT;
    const client_request q = {
        .path = "/tandem/v1/shutdown", .body = "{}", .limits = {2000, 10000, 30000}};
    bool is_away = a->gauges.state == ENGINE_ABSENT || a->gauges.state == ENGINE_DOWN;
    /* Of a pair the other machine's rank may still be there. */
    if (is_away && !a->options->is_pair) {
        if (then_start)
            app_start_engine(a, true);
        else
            app_hint(a, "no engine is running");
        return;
    }
    if (a->options->is_pair) { /* rank 0 alone would be started again by its keeper */
        a->pair_word[0] = '\0';
        if (app_pair_run(a, then_start ? "restart" : "stop")) a->is_stop_wanted = !is_away;
        return;
    }
    a->is_stop_wanted = true;
    a->wants_start_again = then_start;
    if (client_request_start(a->engine, &q, (client_sink){on_stop, a}, &call, &e) != OK)
        app_hint(a, "%s", e.msg);
    else
        set_state(a, ENGINE_DRAINING, NULL);
}
