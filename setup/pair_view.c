/* What the pair is doing, seen from the head. */
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/str.h"
#include "setup/keeper_sweep.h"
#include "setup/pair_internal.h"
#include "setup/paths.h"
#include "setup/verify_http.h"

enum { STATE_MS = 3000 };

static const char *const STATES[PAIR_STATES] = {"absent", "configured", "data-partial",
    "data-ready", "prepared", "starting", "ready", "serving", "degraded", "stopping", "stopped",
    "failed", "foreign"};

const char *pair_state_name(pair_state s) {
    return s >= 0 && s < PAIR_STATES ? STATES[s] : "unknown";
}

/* ---- asking ---- */

/* The head's own keeper needs no process to be asked. */
static int ask_head(json **out, err *e) {
    buf text = BUF_INIT;
    int rc = keeper_status_text(&text, e);
    if (rc == OK) rc = json_parse(buf_cstr(&text), text.len, NULL, out, e);
    buf_release(&text);
    return rc;
}

/* A worker whose programs were never brought there has no keeper either. */
static int ask_worker(const pair_options *o, json **out, err *e) {
    pair_run p = {.o = o, .lock_fd = -1};
    int rc = pair_find_programs(&p, e);
    if (rc != OK) return rc;
    rc = pair_keeper_ask(&p, PAIR_WORKER, "status", NULL, out, e);
    if (rc == ERR_NOT_FOUND) {
        static const char none[] = "{\"running\":false,\"state\":\"idle\"}";
        return json_parse(none, sizeof none - 1, NULL, out, e);
    }
    return rc;
}

static void fill_node(const pair_options *o, int node, pair_node_view *n) {
    err e = ERR_INIT;
    int rc = OK;
    n->state = "unknown";
    if (node == PAIR_WORKER && o->node[1] == NULL) {
        str_copy(n->missing, sizeof n->missing, o->missing != NULL ? o->missing : "");
        return;
    }
    rc = node == PAIR_HEAD ? ask_head(&n->keeper, &e) : ask_worker(o, &n->keeper, &e);
    n->is_reachable = rc == OK || (rc != ERR_NET && rc != ERR_TIMEOUT);
    if (rc != OK) {
        str_copy(n->missing, sizeof n->missing, e.msg);
        return;
    }
    const char *state = json_str(json_get(n->keeper, "state"));
    n->state = state != NULL ? state : "unknown";
    n->has_keeper = json_is_true(json_get(n->keeper, "running"));
    bool is_over =
        str_eq(n->state, "idle") || str_eq(n->state, "failed") || str_eq(n->state, "stopped");
    n->was_killed = json_is_null(json_get(n->keeper, "running")) && !is_over;
}

/* ---- judging ---- */

static bool is_active(const pair_node_view *n) {
    return n->has_keeper &&
           !(str_eq(n->state, "idle") || str_eq(n->state, "failed") || str_eq(n->state, "stopped"));
}

static bool is_at(const pair_node_view *n, const char *state) {
    return n->has_keeper && str_eq(n->state, state);
}

/* Requests in hand; -1 when the engine does not tell. */
static int64_t requests(void) {
    buf path = BUF_INIT;
    verify_answer a;
    json *v = NULL;
    int64_t n = -1;
    if (paths_socket(&path, NULL) != OK) return -1;
    verify_options o = {.socket_path = buf_cstr(&path), .timeout_ms = STATE_MS};
    if (verify_http(&o, "/tandem/v1/state", NULL, NULL, &a, NULL) == OK && a.status == 200 &&
        json_parse(a.body.data, a.body.len, NULL, &v, NULL) == OK &&
        json_is_array(json_get(v, "requests")))
        n = (int64_t)json_count(json_get(v, "requests"));
    json_free(v);
    verify_answer_release(&a);
    buf_release(&path);
    return n;
}

static void judge_running(pair_view *v) {
    const pair_node_view *h = &v->node[0], *w = &v->node[1];
    bool is_head_ready = is_at(h, "ready"), is_worker_ready = is_at(w, "ready");
    if (is_head_ready && is_worker_ready) {
        v->state = requests() > 0 ? PAIR_SERVING : PAIR_READY;
    } else if (is_head_ready && !w->is_reachable) {
        v->state = PAIR_DEGRADED;
        snprintf(v->reason, sizeof v->reason, "the head serves; the worker cannot be asked: %.500s",
            w->missing);
    } else if (is_at(h, "ending") || is_at(w, "ending")) {
        v->state = PAIR_STOPPING;
    } else if (is_active(h) != is_active(w) && w->is_reachable) {
        v->state = is_active(h) && !is_head_ready ? PAIR_STARTING : PAIR_DEGRADED;
        snprintf(v->reason, sizeof v->reason,
            "only the %s has a start in hand; it gives up by itself, or is mended by tandem start",
            is_active(h) ? "head" : "worker");
    } else {
        v->state = PAIR_STARTING;
    }
}

static bool port_is_taken(const settings *s, char *why, size_t cap) {
    buf text = BUF_INIT;
    json *v = NULL;
    int port = (int)settings_int(s, "MASTER_PORT");
    bool is = port_owner(port, &text, NULL) == OK &&
              json_parse(buf_cstr(&text), text.len, NULL, &v, NULL) == OK &&
              json_is_true(json_get(v, "listening"));
    if (is) {
        const char *name = json_str(json_get(v, "name")), *user = json_str(json_get(v, "user"));
        int64_t pid = 0;
        (void)json_i64(json_get(v, "pid"), &pid);
        snprintf(why, cap, "port %d is used by %s (process %lld, user %s)", port,
            name != NULL ? name : "a process that cannot be seen", (long long)pid,
            user != NULL ? user : "unknown");
    }
    json_free(v);
    buf_release(&text);
    return is;
}

/* How far the files are, from the head's own disk. */
static pair_state data_state(const settings *s) {
    buf dir = BUF_INIT, path = BUF_INIT;
    pair_state state = PAIR_CONFIGURED;
    if (pair_is_demo(s)) return PAIR_DATA_READY;
    pair_options o = {.settings = s};
    if (pair_model_dir(&o, PAIR_HEAD, &dir, NULL) == OK && dir_exists(buf_cstr(&dir))) {
        state = PAIR_DATA_PARTIAL;
        path_join(&path, buf_cstr(&dir), "model.safetensors.index.json");
        bool has_index = file_exists(buf_cstr(&path));
        path_join(&path, buf_cstr(&dir), "model.safetensors");
        if (has_index || file_exists(buf_cstr(&path))) state = PAIR_DATA_READY;
    }
    buf_reset(&path);
    buf_printf(&path, "%s/prepared/%s", settings_get(s, "HEAD_DATA"), settings_get(s, "PROFILE"));
    if (state == PAIR_DATA_READY && settings_is_set(s, "PROFILE") && dir_exists(buf_cstr(&path)))
        state = PAIR_PREPARED;
    buf_release(&dir);
    buf_release(&path);
    return state;
}

static void judge_resting(const settings *s, pair_view *v) {
    for (int i = 0; i < PAIR_NODES; i++) {
        if (!v->node[i].was_killed) continue;
        v->state = PAIR_FAILED;
        snprintf(v->reason, sizeof v->reason,
            "the keeper of the %s was killed while it was %s; tandem start mends it",
            pair_node_name(i), v->node[i].state);
        return;
    }
    for (int i = 0; i < PAIR_NODES; i++) {
        const char *reason = json_str(json_get(v->node[i].keeper, "reason"));
        if (!str_eq(v->node[i].state, "failed")) continue;
        v->state = PAIR_FAILED;
        str_copy(v->reason, sizeof v->reason, reason != NULL ? reason : "for no known reason");
        return;
    }
    if (port_is_taken(s, v->reason, sizeof v->reason)) {
        v->state = PAIR_FOREIGN;
    } else if (str_eq(v->node[0].state, "stopped") || v->is_marked_stopped) {
        v->state = PAIR_STOPPED;
    } else {
        v->state = data_state(s);
    }
}

int pair_look(const pair_options *o, pair_view *out, err *e) {
    char boot[64];
    (void)e;
    *out = (pair_view){0};
    for (int i = 0; i < PAIR_NODES; i++)
        out->node[i].state = "unknown";
    if (!pair_is_configured(o->settings)) return OK;
    for (int i = 0; i < PAIR_NODES; i++)
        fill_node(o, i, &out->node[i]);
    const char *id = json_str(json_get(out->node[0].keeper, "start_id"));
    int64_t generation = 0;
    if (id == NULL) id = json_str(json_get(out->node[1].keeper, "start_id"));
    (void)json_i64(json_get(out->node[0].keeper, "generation"), &generation);
    str_copy(out->start_id, sizeof out->start_id, id != NULL ? id : "");
    out->generation = (int)generation;
    out->is_marked_stopped = pair_is_marked_stopped(boot);
    pair_lock_holder(out->holder, sizeof out->holder);
    if (is_active(&out->node[0]) || is_active(&out->node[1])) {
        judge_running(out);
    } else {
        judge_resting(o->settings, out);
    }
    return OK;
}

void pair_view_release(pair_view *v) {
    for (int i = 0; i < PAIR_NODES; i++)
        json_free(v->node[i].keeper);
    *v = (pair_view){0};
}

/* ---- writing ---- */

static void copy_member(json_w *w, const json *v, const char *key) {
    json_w_key(w, key);
    json_w_value(w, json_get(v, key));
}

static void write_node(json_w *w, const pair_node_view *n, int node) {
    static const char *const keys[] = {"rank", "pid", "build", "start_id", "settings", "generation",
        "linked", "rank_pid", "phase", "progress", "quiet_ms", "since_ms", "ready_ms", "log",
        "reason", "first_error", "last_error", "restarts_ms", "available_bytes"};
    json_w_object(w);
    json_w_kstr(w, "node", pair_node_name(node));
    json_w_kbool(w, "reachable", n->is_reachable);
    json_w_kstr(w, "missing", n->missing[0] != '\0' ? n->missing : NULL);
    json_w_kbool(w, "keeper", n->has_keeper);
    json_w_kbool(w, "killed", n->was_killed);
    json_w_kstr(w, "state", n->state);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        copy_member(w, n->keeper, keys[i]);
    json_w_close(w);
}

void pair_view_write(const pair_view *v, json_w *w) {
    json_w_kstr(w, "state", pair_state_name(v->state));
    json_w_kstr(w, "reason", v->reason[0] != '\0' ? v->reason : NULL);
    json_w_kstr(w, "start_id", v->start_id[0] != '\0' ? v->start_id : NULL);
    json_w_ki64(w, "generation", v->generation);
    json_w_kbool(w, "stopped_on_purpose", v->is_marked_stopped);
    json_w_kstr(w, "held_by", v->holder[0] != '\0' ? v->holder : NULL);
    json_w_key(w, "nodes");
    json_w_array(w);
    for (int i = 0; i < PAIR_NODES; i++)
        write_node(w, &v->node[i], i);
    json_w_close(w);
}
