/* Start and stop of the pair. */
#include "setup/pair.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/base/privilege.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "setup/check.h"
#include "setup/endpoint.h"
#include "setup/pair_internal.h"
#include "setup/paths.h"
#include "setup/verify_http.h"

enum { STOP_EXTRA_S = 40, LOST_LOOKS = 40, ANSWER_MAX_MS = 10000 };

static int begin(pair_run *p, const pair_options *o, pair_sink sink, void *ctx, err *e) {
    buf path = BUF_INIT;
    *p = (pair_run){.o = o, .sink = sink, .ctx = ctx, .lock_fd = -1};
    if (!pair_is_configured(o->settings))
        return err_set(e, ERR_ARG,
            "the pair is not set up (WORKER_SSH, HEAD_IP_A, WORKER_IP_A and "
            "WORKER_DATA); run tandem setup");
    int rc = paths_socket(&path, e);
    if (rc == OK && path.len >= sizeof p->socket)
        rc = err_set(e, ERR_LIMIT, "%s is too long for a socket", buf_cstr(&path));
    if (rc == OK) str_copy(p->socket, sizeof p->socket, buf_cstr(&path));
    buf_release(&path);
    return rc == OK ? pair_find_programs(p, e) : rc;
}

static bool is_stopped_by_person(const pair_run *p) {
    return p->o->stop != NULL && atomic_load(p->o->stop);
}

static const char *state_of(const pair_view *v, int node) {
    return v->node[node].state;
}

static bool is_over(const char *state) {
    return str_eq(state, "idle") || str_eq(state, "failed") || str_eq(state, "stopped");
}

static bool is_same_start(const pair_view *v) {
    const char *a = json_str(json_get(v->node[0].keeper, "start_id"));
    const char *b = json_str(json_get(v->node[1].keeper, "start_id"));
    return a != NULL && b != NULL && str_eq(a, b);
}

static bool runs(const pair_view *v, int node) {
    return v->node[node].has_keeper && !is_over(state_of(v, node));
}

/* ---- ending what is there ---- */

static void ask_both(pair_run *p, const char *verb) {
    for (int i = 0; i < PAIR_NODES; i++) {
        err e = ERR_INIT;
        if (p->o->node[i] != NULL) (void)pair_keeper_ask(p, i, verb, NULL, NULL, &e);
    }
}

static void sweep_both(pair_run *p) {
    for (int i = 0; i < PAIR_NODES; i++) {
        json *v = NULL;
        if (p->o->node[i] == NULL || pair_keeper_ask(p, i, "sweep", NULL, &v, NULL) != OK) continue;
        if (json_is_true(json_get(v, "ended")))
            pair_say(p, PAIR_WARN, i, "a rank without its keeper was ended on the %s",
                pair_node_name(i));
        json_free(v);
    }
}

/* Until neither keeper has anything in hand. */
static int wait_over(pair_run *p, int64_t seconds, err *e) {
    uint64_t end = clock_mono_ms() + (uint64_t)seconds * 1000;
    for (;;) {
        pair_view v;
        int rc = pair_look(p->o, &v, e);
        bool is_done = rc == OK && !runs(&v, 0) && !runs(&v, 1);
        if (rc == OK) pair_view_release(&v);
        if (rc != OK || is_done) return rc;
        if (clock_mono_ms() >= end)
            return err_set(e, ERR_TIMEOUT,
                "the ranks have not ended within %lld s; look with tandem status",
                (long long)seconds);
        sleep_ms(PAIR_LOOK_MS);
    }
}

static int end_both(pair_run *p, err *e) {
    ask_both(p, "stop");
    int rc = wait_over(p, settings_int(p->o->settings, "STOP_TIMEOUT") + STOP_EXTRA_S, e);
    sweep_both(p);
    return rc;
}

/* ---- before a start ---- */

static int refuse_port(pair_run *p, int node, int port, const char *what, err *e) {
    char number[16];
    snprintf(number, sizeof number, "%d", port);
    const char *argv[] = {p->program[node], "port", number, NULL};
    remote_result r;
    json *v = NULL;
    int rc = OK;
    remote_result_init(&r);
    node_command c = {.argv = argv, .timeout_ms = PAIR_CALL_MS};
    if (node_run(p->o->node[node], &c, &r, NULL) == OK && r.exit_code == 0)
        (void)json_parse(r.out.data, strcspn(buf_cstr(&r.out), "\n"), NULL, &v, NULL);
    if (json_is_true(json_get(v, "listening"))) {
        const char *name = json_str(json_get(v, "name")), *user = json_str(json_get(v, "user"));
        int64_t pid = 0;
        (void)json_i64(json_get(v, "pid"), &pid);
        rc = err_set(e, ERR_EXISTS,
            "port %d on the %s, which is %s, is used by %s (process %lld, user %s); stop it, or set "
            "another port (%s)",
            port, pair_node_name(node), what, name != NULL ? name : "a process that cannot be seen",
            (long long)pid, user != NULL ? user : "unknown",
            str_eq(what, "the endpoint") ? "API_PORT" : "MASTER_PORT");
    }
    json_free(v);
    remote_result_release(&r);
    return rc;
}

static int check_ports(pair_run *p, err *e) {
    const settings *s = p->o->settings;
    int master = (int)settings_int(s, "MASTER_PORT");
    int rc = settings_check_ports(s, e);
    if (rc == OK) rc = refuse_port(p, PAIR_HEAD, master, "where the ranks meet", e);
    if (rc == OK) rc = refuse_port(p, PAIR_HEAD, master + 1, "where the keepers meet", e);
    if (rc == OK && settings_is_on(s, "API"))
        rc = refuse_port(p, PAIR_HEAD, (int)settings_int(s, "API_PORT"), "the endpoint", e);
    return rc;
}

typedef struct first_fail {
    pair_run *p;
    char text[640];
} first_fail;

static int take_check(void *ctx, const check_row *row, const check_result *r) {
    first_fail *f = ctx;
    if (r->status == CHECK_STATUS_FAIL && f->text[0] == '\0') {
        buf text = BUF_INIT;
        buf_printf(
            &text, "check %s on %s: %s %s %s", row->id, r->node, r->fact, r->reason, r->remedy);
        str_copy(f->text, sizeof f->text, buf_cstr(&text));
        buf_release(&text);
    } else if (r->status == CHECK_STATUS_WARN) {
        pair_say(
            f->p, PAIR_WARN, -1, "check %s on %s: %s %s", row->id, r->node, r->fact, r->remedy);
    }
    return OK;
}

/* The subset of setup.md 10.2 that only means something on the real machines with the real model. */
static int check_machines(pair_run *p, err *e) {
    static const char *const ids[] = {
        "V7", "V1", "V3", "K1", "M1", "M3", "M4", "D5", "P6", "N-gid", "N-mtu", "N-half"};
    enum { FOR_ALL = 1 }; /* the first ones hold for the demo model, too */
    bool is_real = settings_is_set(p->o->settings, "PROFILE");
    check_options o = {
        .node = {p->o->node[0], p->o->node[1]}, .settings = p->o->settings, .engine = p->daemon[0]};
    for (int i = 0; i < PAIR_NODES; i++) {
        if (p->o->checked[i] != NULL) o.node[i] = p->o->checked[i];
    }
    check_context *c = check_context_new(&o);
    first_fail f = {.p = p};
    size_t n = is_real ? sizeof ids / sizeof ids[0] : FOR_ALL;
    int rc = OK;
    for (size_t i = 0; i < n && rc == OK && f.text[0] == '\0'; i++) {
        check_status worst;
        if (check_find(ids[i]) != NULL) rc = check_run(c, ids[i], -1, take_check, &f, &worst, e);
    }
    check_context_free(c);
    if (rc == OK && f.text[0] != '\0') rc = err_set(e, ERR_EXISTS, "%s", f.text);
    return rc;
}

/* The settings of this start stay beside its logs, on both machines. */
static int freeze(pair_run *p, err *e) {
    buf logs = BUF_INIT, shared = BUF_INIT, out = BUF_INIT, path = BUF_INIT;
    char name[40];
    static const char script[] =
        "umask 077; d=\"${XDG_STATE_HOME:-$HOME/.local/state}/tandem/logs\"; mkdir -p \"$d\" && "
        "rm -f -- \"$d/$1\" && cat >\"$d/$1\"";
    snprintf(name, sizeof name, "start-%s", p->start_id);
    int rc = paths_logs(&logs, e);
    if (rc == OK) rc = paths_make_private(buf_cstr(&logs), e);
    if (rc == OK) rc = settings_freeze(p->o->settings, buf_cstr(&logs), name, p->settings, e);
    if (rc == OK) {
        settings_frozen(p->o->settings, true, &shared);
        buf_printf(&path, "%s.conf", name);
        const char *argv[] = {"sh", "-c", script, "sh", buf_cstr(&path), NULL};
        remote_result r;
        remote_result_init(&r);
        node_command c = {.argv = argv,
            .input = shared.data != NULL ? shared.data : "",
            .n_input = shared.len,
            .timeout_ms = PAIR_CALL_MS};
        rc = node_run(p->o->node[1], &c, &r, e);
        if (rc == OK && r.exit_code != 0)
            rc = err_set(
                e, ERR_IO, "the settings cannot be kept on the worker: %.200s", buf_cstr(&r.err));
        remote_result_release(&r);
    }
    buf_release(&logs);
    buf_release(&shared);
    buf_release(&out);
    buf_release(&path);
    return rc;
}

static void new_start_id(pair_run *p) {
    rand_secret(&p->start_number, sizeof p->start_number);
    snprintf(p->start_id, sizeof p->start_id, "%016llx", (unsigned long long)p->start_number);
}

/* What an earlier command or a dead keeper left. *attach: a start is in hand, whole; follow it. */
static int mend(pair_run *p, pair_report *out, bool *attach, err *e) {
    pair_view v;
    int rc = pair_look(p->o, &v, e);
    if (rc != OK) return rc;
    bool a = runs(&v, 0), b = runs(&v, 1);
    *attach = a && b && is_same_start(&v);
    out->was_running =
        *attach && str_eq(state_of(&v, 0), "ready") && str_eq(state_of(&v, 1), "ready");
    if (*attach) str_copy(p->start_id, sizeof p->start_id, v.start_id);
    bool is_half = (a || b) && !*attach;
    if (is_half)
        pair_say(p, PAIR_WARN, -1,
            "half a start was left (head: %s, worker: %s); both are stopped before a new one",
            state_of(&v, 0), state_of(&v, 1));
    for (int i = 0; i < PAIR_NODES; i++) {
        if (v.node[i].was_killed)
            pair_say(p, PAIR_WARN, i, "the keeper of the %s was killed while it was %s",
                pair_node_name(i), state_of(&v, i));
    }
    pair_view_release(&v);
    if (is_half) return end_both(p, e);
    if (!*attach) sweep_both(p);
    return OK;
}

/* ---- following ---- */

typedef struct seen {
    char phase[PAIR_NODES][40];
    double progress[PAIR_NODES];
    int n_lost;
    bool has_said_lost;
} seen;

static void read_phase(const pair_view *v, int node, char out[40], double *progress) {
    const char *phase = json_str(json_get(v->node[node].keeper, "phase"));
    const char *state = state_of(v, node);
    *progress = -1;
    bool is_rank = str_eq(state, "loading") && phase != NULL;
    str_copy(out, 40, is_rank ? phase : state);
    if (is_rank) (void)json_double(json_get(v->node[node].keeper, "progress"), progress);
}

static void tell_phases(pair_run *p, const pair_view *v, seen *s) {
    pair_event ev = {.kind = PAIR_PHASE, .node = -1, .progress = -1};
    bool has_changed = false;
    for (int i = 0; i < PAIR_NODES; i++) {
        char phase[40];
        double progress;
        read_phase(v, i, phase, &progress);
        bool is_new = !str_eq(phase, s->phase[i]) || progress > s->progress[i] + 0.005;
        has_changed |= is_new;
        if (is_new) {
            str_copy(s->phase[i], sizeof s->phase[i], phase);
            s->progress[i] = progress;
            ev.node = i;
            ev.text = s->phase[i];
            ev.progress = progress;
        }
        ev.phases[i] = s->phase[i];
        ev.parts[i] = s->progress[i];
    }
    if (has_changed && p->sink != NULL) p->sink(p->ctx, &ev);
}

static int start_failed(const pair_view *v, err *e) {
    int64_t code = 0;
    for (int i = 0; i < PAIR_NODES; i++) {
        const json *k = v->node[i].keeper;
        const char *reason = json_str(json_get(k, "reason"));
        (void)json_i64(json_get(json_get(k, "first_error"), "code"), &code);
        if (reason != NULL) return err_set(e, ERR_PEER, "%s", reason);
    }
    return err_set(e, ERR_PEER, "the start was stopped");
}

/* One look: 1 ready, 0 not yet, below 0 failed. */
static int look_once(pair_run *p, seen *s, err *e) {
    pair_view v;
    int rc = pair_look(p->o, &v, e);
    if (rc != OK) return rc;
    bool is_worker_seen = v.node[1].is_reachable;
    bool is_head_ready = str_eq(state_of(&v, 0), "ready");
    rc = 0;
    if (is_worker_seen) tell_phases(p, &v, s);
    if (!runs(&v, 0)) {
        rc = v.node[0].was_killed
                 ? err_set(e, ERR_PEER, "the keeper of the head was killed during the start")
                 : start_failed(&v, e);
    } else if (is_worker_seen && !runs(&v, 1)) {
        /* The head hears of it at once by its own connection; what it says is more. */
        rc = ++s->n_lost > LOST_LOOKS ? start_failed(&v, e) : 0;
    } else if (!is_worker_seen && !s->has_said_lost) {
        s->has_said_lost = true;
        pair_say(p, PAIR_WARN, PAIR_WORKER,
            "the worker cannot be asked any more (%s); the keepers go on without ssh",
            v.node[1].missing);
    } else if (is_head_ready && is_worker_seen && str_eq(state_of(&v, 1), "ready") &&
               is_same_start(&v)) {
        rc = 1;
    }
    pair_view_release(&v);
    return rc;
}

static int follow(pair_run *p, err *e) {
    const settings *s = p->o->settings;
    seen looked = {.progress = {-1, -1}};
    uint64_t wait = (uint64_t)(settings_int(s, "READY_TIMEOUT") + 700) * 1000;
    uint64_t end = clock_mono_ms() + wait;
    while (clock_mono_ms() < end) {
        int rc = look_once(p, &looked, e);
        if (rc != 0) return rc == 1 ? OK : rc;
        if (is_stopped_by_person(p))
            return err_set(e, ERR_CANCELLED,
                "you left; the start goes on: tandem status shows it, tandem stop ends it");
        sleep_ms(PAIR_LOOK_MS);
    }
    return err_set(
        e, ERR_TIMEOUT, "the pair was not ready within %llu s", (unsigned long long)(wait / 1000));
}

/* ---- after it is ready ---- */

static json *get_json(const pair_run *p, const char *path) {
    verify_options o = {.socket_path = p->socket, .timeout_ms = ANSWER_MAX_MS};
    verify_answer a;
    json *v = NULL;
    if (verify_http(&o, path, NULL, NULL, &a, NULL) == OK && a.status == 200)
        (void)json_parse(a.body.data, a.body.len, NULL, &v, NULL);
    verify_answer_release(&a);
    return v;
}

static void fill_report(pair_run *p, pair_report *out) {
    json *v = get_json(p, "/tandem/v1/state");
    const json *model = json_get(v, "model");
    const char *id = json_str(json_get(model, "id"));
    str_copy(out->start_id, sizeof out->start_id, p->start_id);
    str_copy(out->settings, sizeof out->settings, p->settings);
    str_copy(out->model, sizeof out->model, id != NULL ? id : "unknown");
    str_copy(out->build, sizeof out->build, version_build_id());
    out->is_demo = json_is_true(json_get(model, "demo"));
    (void)json_i64(json_get(model, "context"), &out->context);
    (void)json_i64(json_get(json_get(v, "streams"), "limit"), &out->slots);
    out->wanted_slots = settings_int(p->o->settings, "PARALLEL");
    json_free(v);
}

static void on_verify_line(void *ctx, const verify_line *l) {
    pair_report *out = ctx;
    if (l->verdict != VERIFY_FAIL || out->verify_text[0] != '\0') return;
    snprintf(out->verify_text, sizeof out->verify_text, "%s: %s", l->id, l->reason);
}

/* Level 1, unless switched off; strict: a failure ends both ranks. */
static int verify(pair_run *p, pair_report *out, err *e) {
    const char *mode = settings_get(p->o->settings, "VERIFY_ON_START");
    if (str_eq(mode, "off")) return OK;
    verify_options o = {.socket_path = p->socket, .level = 1, .stop = p->o->stop};
    pair_say(p, PAIR_NOTE, -1, "six real requests (verify, level 1)");
    int rc = verify_run(&o, on_verify_line, out, &out->verify, e);
    if (rc == ERR_CANCELLED) return rc;
    out->has_verify = rc == OK;
    if (rc == OK) pair_verify_keep(&out->verify, 1, out->verify_text);
    out->verify_failed = rc != OK || out->verify.n_fail > 0;
    if (rc != OK) str_copy(out->verify_text, sizeof out->verify_text, e != NULL ? e->msg : "");
    if (!out->verify_failed || !str_eq(mode, "strict")) return OK;
    err ignored = ERR_INIT;
    if (pair_lock_take(p, "start", &ignored) == OK) (void)end_both(p, &ignored);
    return err_set(e, ERR_PEER,
        "verify failed (%s) and VERIFY_ON_START is strict, so both ranks were stopped; their logs "
        "are kept",
        out->verify_text);
}

static int give_orders(pair_run *p, err *e) {
    int rc = pair_orders(p, e);
    for (int i = PAIR_NODES - 1; i >= 0 && rc == OK; i--)
        rc = pair_keeper_up(p, i, e);
    /* The worker first: its keeper looks for the head's until that has its order, too. */
    for (int i = PAIR_NODES - 1; i >= 0 && rc == OK; i--)
        rc = pair_keeper_order(p, i, e);
    if (rc != OK) {
        err ignored = ERR_INIT;
        (void)end_both(p, &ignored);
    }
    return rc;
}

static int prepare_start(pair_run *p, pair_report *out, bool *attach, err *e) {
    int rc = mend(p, out, attach, e);
    if (rc != OK || *attach) return rc;
    new_start_id(p);
    pair_lock_note(p, "start", "bringing the engine to the worker");
    rc = pair_place(p, e);
    if (rc == OK) rc = check_ports(p, e);
    if (rc == OK) rc = check_machines(p, e);
    if (rc == OK) rc = freeze(p, e);
    if (rc == OK) rc = pair_mark_stopped(false, e);
    pair_lock_note(p, "start", "giving the orders");
    return rc == OK ? give_orders(p, e) : rc;
}

static int need_worker(const pair_options *o, err *e) {
    if (o->node[1] != NULL) return OK;
    return err_set(e, ERR_NET, "the worker cannot be reached, and a pair needs both: %s",
        o->missing != NULL ? o->missing : "");
}

int pair_start(const pair_options *o, pair_sink sink, void *ctx, pair_report *out, err *e) {
    pair_run p;
    bool attach = false;
    uint64_t begun = clock_mono_ms();
    *out = (pair_report){0};
    int rc = begin(&p, o, sink, ctx, e);
    if (rc == OK) rc = privilege_refuse_root("the pair", e);
    if (rc == OK) rc = endpoint_check_settings(o->settings, e);
    if (rc == OK) rc = need_worker(o, e);
    if (rc == OK && !o->is_attended) rc = pair_versions_same(o, e);
    if (rc == OK) rc = pair_lock_take(&p, "start", e);
    if (rc == OK) rc = prepare_start(&p, out, &attach, e);
    if (rc == OK && attach && !out->was_running)
        pair_say(&p, PAIR_NOTE, -1, "a start is in hand (start id %s); it is followed", p.start_id);
    /* From here on only the keepers change anything: a stop may come in at any time. */
    pair_lock_drop(&p);
    if (rc == OK) rc = follow(&p, e);
    if (rc == OK) fill_report(&p, out);
    if (rc == OK && !out->was_running) {
        pair_versions_keep(o);
        rc = verify(&p, out, e);
    }
    out->waited_ms = clock_mono_ms() - begun;
    pair_run_release(&p);
    return rc;
}

/* ---- stop ---- */

static uint64_t available_of(const pair_view *v, int node) {
    uint64_t bytes = 0;
    (void)json_u64(json_get(v->node[node].keeper, "available_bytes"), &bytes);
    return v->node[node].has_keeper ? bytes : 0;
}

int pair_stop(const pair_options *o, pair_sink sink, void *ctx, pair_stopped *out, err *e) {
    pair_run p;
    pair_view v;
    *out = (pair_stopped){.is_worker_seen = o->node[1] != NULL};
    int rc = begin(&p, o, sink, ctx, e);
    if (rc == OK) rc = pair_lock_take(&p, "stop", e);
    if (rc == OK) rc = pair_mark_stopped(true, e);
    if (rc == OK) rc = pair_look(o, &v, e);
    if (rc == OK) {
        out->was_running = runs(&v, 0) || runs(&v, 1);
        out->is_worker_seen = v.node[1].is_reachable;
        pair_view_release(&v);
        rc = end_both(&p, e);
    }
    if (rc == OK && pair_look(o, &v, NULL) == OK) {
        for (int i = 0; i < PAIR_NODES; i++)
            out->available_bytes[i] = available_of(&v, i);
        pair_view_release(&v);
    }
    pair_run_release(&p);
    return rc;
}

/* ---- dry run ---- */

static void put_order(const pair_run *p, int node, buf *out) {
    const keeper_order *o = &p->order[node];
    buf_printf(out, "%s: %s keeper start (the order on standard input)\n", pair_node_name(node),
        p->program[node]);
    buf_printf(out, "%s:   runs", pair_node_name(node));
    for (int i = 0; i < o->n_words; i++)
        buf_printf(out, " %s", o->words[i]);
    buf_printf(out, "\n");
    for (int i = 0; i < o->n_env; i++)
        buf_printf(out, "%s:   with %s\n", pair_node_name(node), o->env[i]);
    if (o->gate_mib > 0)
        buf_printf(out, "%s:   when %lld MiB of memory are available\n", pair_node_name(node),
            (long long)o->gate_mib);
}

/* What memory the rank would take there, in the engine's own words. On a worker that has no engine yet
 * it is about what the head needs. */
static void put_memory(const pair_run *p, int node, buf *out) {
    const keeper_order *o = &p->order[node];
    const char *argv[KEEPER_WORDS_MAX + 2];
    int n = 0;
    remote_result r;
    err e = ERR_INIT;
    if (!node_exists(p->o->node[node], p->daemon[node])) return;
    for (int i = 0; i < o->n_words; i++) {
        if (str_eq(o->words[i], "--status"))
            i++; /* a place that the keeper would choose */
        else
            argv[n++] = o->words[i];
    }
    argv[n++] = "--plan";
    argv[n] = NULL;
    node_command k = {.argv = argv, .timeout_ms = 60000, .max_out = 65536, .stop = p->o->stop};
    remote_result_init(&r);
    /* An engine of an older build does not know the question; a start replaces it. */
    if (node_run(p->o->node[node], &k, &r, &e) == OK && r.exit_code != 2) {
        const buf *words = r.exit_code == 0 ? &r.out : &r.err;
        const char *text = buf_cstr(words);
        int len = (int)strcspn(text, "\n");
        buf_printf(out, "%s:   memory: %s%.*s\n", pair_node_name(node),
            r.exit_code == 0 ? "" : "refused: ", len, text);
    }
    remote_result_release(&r);
}

int pair_plan(const pair_options *o, buf *out, err *e) {
    pair_run p;
    int rc = begin(&p, o, NULL, NULL, e);
    if (rc == OK) rc = need_worker(o, e);
    if (rc == OK) {
        new_start_id(&p);
        settings_digest(o->settings, p.settings);
        rc = pair_orders(&p, e);
    }
    if (rc == OK) {
        buf_printf(out,
            "worker: copy what differs of the engine to %s/.tandem (bin, lib, share; by digest)\n",
            settings_get(o->settings, "WORKER_DATA"));
        buf_printf(out, "head: ports %lld and %lld on %s must be free\n",
            (long long)settings_int(o->settings, "MASTER_PORT"),
            (long long)settings_int(o->settings, "MASTER_PORT") + 1,
            settings_get(o->settings, "HEAD_IP_A"));
        for (int i = PAIR_NODES - 1; i >= 0; i--) {
            buf_printf(out, "%s: %s keep --detach\n", pair_node_name(i), p.program[i]);
            put_order(&p, i, out);
            put_memory(&p, i, out);
        }
        buf_printf(
            out, "head: verify on start: %s\n", settings_get(o->settings, "VERIFY_ON_START"));
    }
    pair_run_release(&p);
    return rc;
}
