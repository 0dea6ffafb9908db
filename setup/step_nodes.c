/* The machines of a flow, and running our own commands. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/json.h"
#include "engine/base/str.h"
#include "setup/job.h"
#include "setup/link_prove.h"
#include "setup/step_internal.h"

enum { JOB_LOOK_MS = 200, JOB_END_MS = 20000, LINE_MAX_BYTES = 1000, N_WORDS = 24 };

void flow_say(flow *f, const char *fmt, ...) {
    char line[LINE_MAX_BYTES];
    if (f->o.talk == NULL || f->o.talk->line == NULL) return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    f->o.talk->line(f->o.talk->ctx, line);
}

bool flow_is_stopped(const flow *f) {
    return f->o.stop != NULL && atomic_load(f->o.stop);
}

int flow_undo_add(flow *f, undo_entry *x, err *e) {
    return undo_add(f->undo_path, x, e);
}

/* --- sessions --- */

remote_options flow_worker_options(const flow *f, const remote_ask *ask) {
    const char *jump = settings_get(f->s, "WORKER_JUMP"), *key = settings_get(f->s, "WORKER_KEY");
    return (remote_options){.target = settings_get(f->s, "WORKER_SSH"),
        .jump = jump[0] != '\0' ? jump : NULL,
        .key_file = key[0] != '\0' ? key : NULL,
        .node = "worker",
        .ask = ask};
}

void flow_disconnect(flow *f) {
    node_access_close(f->plain[1]);
    node_access_close(f->rooted[1]);
    f->plain[1] = f->rooted[1] = NULL;
}

int flow_connect(flow *f, err *e) {
    remote *session = NULL, *second = NULL;
    if (f->plain[1] != NULL) {
        remote *old = node_access_session(f->plain[1]);
        if (old != NULL && remote_alive(old, NULL) == OK) return OK;
        flow_disconnect(f);
    }
    if (!settings_is_set(f->s, "WORKER_SSH"))
        return err_set(e, ERR_ARG, "the address of the worker is not known (step Find)");
    remote_options o = flow_worker_options(f, NULL);
    int rc = remote_open(&o, &session, &f->fault, e);
    if (rc == OK && f->o.worker_root != NULL) rc = remote_again(session, &second, e);
    if (rc != OK) {
        remote_close(session);
        return rc;
    }
    f->plain[1] = node_access_ssh("worker", session, NULL);
    if (second != NULL) f->rooted[1] = node_access_ssh("worker", second, f->o.worker_root);
    return OK;
}

node_access *flow_checked(flow *f, int i_node) {
    return f->rooted[i_node] != NULL ? f->rooted[i_node] : f->plain[i_node];
}

int flow_worker_home(flow *f, err *e) {
    buf out = BUF_INIT;
    if (f->worker_home[0] == '/') return OK;
    int rc = flow_connect(f, e);
    if (rc == OK) rc = node_tool(f->plain[1], &out, e, "printenv", "HOME", NULL);
    if (rc == OK)
        snprintf(f->worker_home, sizeof f->worker_home, "%.*s",
            (int)strcspn(buf_cstr(&out), "\r\n"), buf_cstr(&out));
    if (rc == OK && f->worker_home[0] != '/')
        rc = err_set(e, ERR_FORMAT, "the home folder on the worker is not known");
    buf_release(&out);
    return rc;
}

static bool sudo_secret(void *ctx, const char *node, ssh_secret *out) {
    const flow *f = ctx;
    char prompt[160];
    if (f->o.talk == NULL || f->o.talk->secret == NULL) return false;
    snprintf(prompt, sizeof prompt, "Password of sudo on %s", node);
    return f->o.talk->secret(f->o.talk->ctx, prompt, out);
}

const node_sudo *flow_sudo(flow *f) {
    /* The plan was accepted with every command in it, so nobody is asked again. */
    static _Thread_local node_sudo sudo;
    sudo = (node_sudo){f, sudo_secret, NULL};
    return &sudo;
}

/* --- our own commands --- */

typedef struct running {
    flow *f;
    buf *out;
    char line[2][LINE_MAX_BYTES]; /* unfinished lines of both streams */
    size_t n[2];
    char last[LINE_MAX_BYTES]; /* the last sentence on standard error */
} running;

static void end_line(running *r, int k) {
    r->line[k][r->n[k]] = '\0';
    if (r->n[k] > 0) {
        if (k == 1) str_copy(r->last, sizeof r->last, r->line[k]);
        if (k == 1 || r->out == NULL) flow_say(r->f, "%s", r->line[k]);
    }
    r->n[k] = 0;
}

static int take_output(void *ctx, bool is_error, const void *data, size_t n) {
    running *r = ctx;
    int k = is_error ? 1 : 0;
    const char *s = data;
    if (!is_error && r->out != NULL && buf_append(r->out, data, n) != OK) return ERR_LIMIT;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\n' || s[i] == '\r') {
            end_line(r, k);
        } else if (r->n[k] + 1 < LINE_MAX_BYTES) {
            r->line[k][r->n[k]++] = s[i];
        }
    }
    return OK;
}

int flow_self(flow *f, buf *out, const char *const *words, err *e) {
    const char *argv[N_WORDS + 2] = {f->o.program};
    running r = {.f = f, .out = out};
    remote_result result;
    buf text = BUF_INIT;
    int n = 0;
    for (; words[n] != NULL && n < N_WORDS; n++) {
        argv[n + 1] = words[n];
        buf_printf(&text, " %s", words[n]);
    }
    flow_say(f, "head: tandem%s", buf_cstr(&text));
    buf_release(&text);
    remote_result_init(&result);
    node_command c = {
        .argv = argv, .timeout_ms = -1, .sink = take_output, .sink_ctx = &r, .stop = f->o.stop};
    int rc = node_run(f->plain[0], &c, &result, e);
    end_line(&r, 0);
    end_line(&r, 1);
    int code = result.exit_code;
    remote_result_release(&result);
    if (rc != OK) return rc;
    if (code == 0 || code == 10) return code;
    const char *why = str_starts(r.last, "tandem: ") ? r.last + 8 : r.last;
    if (why[0] == '\0') why = "the command ended without a word";
    err_set(e, code == 40 ? ERR_NET : code == 41 ? ERR_BUSY : ERR_IO, "%s", why);
    return e != NULL ? e->code : ERR_IO;
}

/* --- background jobs --- */

static uint64_t number(const json *v, const char *key) {
    uint64_t n = 0;
    json_u64(json_get(v, key), &n);
    return n;
}

/* Files in work, one line each; a stalled one is said with what is done about it. */
static void take_files(flow_progress *p, const json *v) {
    JSON_EACH(x, json_get(v, "files")) {
        const char *path = json_str(json_get(x, "path")), *state = json_str(json_get(x, "state"));
        uint64_t size = number(x, "size"), done = number(x, "done_bytes");
        if (path == NULL || state == NULL || p->n_shown == FLOW_FILES) continue;
        if (str_eq(state, "stalled"))
            snprintf(p->note, sizeof p->note,
                "stalled: no bytes of %.60s; the connection is replaced, what arrived is kept",
                path);
        if (str_eq(state, "ok") || str_eq(state, "waiting")) continue;
        snprintf(p->files[p->n_shown++], sizeof p->files[0], "%-36.36s %-9.12s %3d %%", path, state,
            size > 0 ? (int)(done * 100 / size) : 100);
    }
}

static void show_job(flow *f, const char *title, const json *v) {
    flow_progress p = {.eta_s = -1};
    if (f->o.talk == NULL || f->o.talk->progress == NULL) return;
    str_copy(p.title, sizeof p.title, title);
    p.done_bytes = number(v, "done_bytes");
    p.total_bytes = number(v, "total_bytes");
    p.n_ok = number(v, "n_ok");
    p.n_files = number(v, "n_files");
    json_double(json_get(v, "rate_now"), &p.rate);
    json_double(json_get(v, "eta_s"), &p.eta_s);
    const char *reason = json_str(json_get(v, "last_reason"));
    uint64_t n_retries = number(v, "retries"), wait_ms = number(v, "wait_ms");
    take_files(&p, v);
    bool is_said = p.note[0] != '\0';
    if (!is_said && wait_ms > 0)
        snprintf(p.note, sizeof p.note, "the hub asks to wait %d s", (int)((wait_ms + 999) / 1000));
    else if (!is_said && n_retries > 0 && reason != NULL && reason[0] != '\0')
        snprintf(p.note, sizeof p.note, "%d tries again, the last: %.110s", (int)n_retries, reason);
    f->o.talk->progress(f->o.talk->ctx, &p);
}

/* The state a job ended in becomes an error, "done" none. */
static int judge_job(const char *name, const json *v, err *e) {
    const char *state = json_str(json_get(v, "state")), *why = json_str(json_get(v, "message"));
    if (str_eq(state, "done")) return OK;
    if (why == NULL || why[0] == '\0') why = "its process ended without a word";
    if (str_eq(state, "full")) return err_set(e, ERR_FULL, "%s", why);
    if (str_eq(state, "paused")) return err_set(e, ERR_TIMEOUT, "%s", why);
    if (str_eq(state, "cancelled")) return err_set(e, ERR_CANCELLED, "the %s was stopped", name);
    if (str_eq(state, "running"))
        return err_set(e, ERR_IO, "the process of the %s was killed; what it wrote is sound", name);
    return err_set(e, ERR_IO, "%s", why);
}

/* Stop means: pause it in order, unless it shall go on. */
static int leave_job(flow *f, const char *name, err *e) {
    bool goes_on = f->o.leave != NULL && atomic_load(f->o.leave);
    if (!goes_on && job_send(name, (job_command){JOB_PAUSE, 0}, NULL) == OK) {
        for (uint64_t until = clock_mono_ms() + JOB_END_MS;
             job_is_running(name) && clock_mono_ms() < until;)
            sleep_ms(50);
    }
    return err_set(e, ERR_CANCELLED,
        goes_on ? "the %s goes on in the background" : "the %s is paused; what arrived is kept",
        name);
}

int flow_job(flow *f, const char *name, const char *title, err *e) {
    const char *const words[] = {name, "--background", NULL};
    int rc = flow_self(f, NULL, words, e);
    if (rc < 0) return rc;
    for (;;) {
        buf text = BUF_INIT;
        json *v = NULL;
        bool is_over = !job_is_running(name); /* before reading: the last status must be seen */
        rc = job_status_read(name, &text, e);
        /* It has only begun and wrote nothing yet. */
        if (rc == ERR_NOT_FOUND && !is_over) rc = OK;
        if (rc == OK && text.len > 0) rc = json_parse(buf_cstr(&text), text.len, NULL, &v, e);
        if (rc == OK) show_job(f, title, v);
        if (rc == OK && is_over) rc = judge_job(name, v, e);
        json_free(v);
        buf_release(&text);
        if (rc != OK || is_over) return rc;
        if (flow_is_stopped(f)) return leave_job(f, name, e);
        sleep_ms(JOB_LOOK_MS);
    }
}

/* --- checks as rows --- */

typedef struct gathering {
    flow *f;
    step_view *v;
} gathering;

static int take_result(void *ctx, const check_row *row, const check_result *r) {
    gathering *g = ctx;
    step_row *x = g->v->n_rows > 0 ? &g->v->rows[g->v->n_rows - 1] : NULL;
    bool is_worker = str_eq(r->node, "worker");
    /* Both machines' results of one check are one line; the worse one speaks. */
    bool is_second = x != NULL && is_worker && str_starts(x->label, row->id) &&
                     x->worker[0] == '\0' && x->label[strlen(row->id)] == ' ';
    if (!is_second) {
        char label[64];
        snprintf(label, sizeof label, "%s %s", row->id, row->title);
        x = view_row(g->v, label, CHECK_STATUS_PASS);
    }
    str_copy(is_worker ? x->worker : x->head, sizeof x->head, r->fact);
    if (is_worker && x->head[0] == '\0') str_copy(x->head, sizeof x->head, "-");
    if (x->fact[0] == '\0' || check_worse(x->status, r->status) != x->status) {
        snprintf(x->fact, sizeof x->fact, "%s: %.440s", r->node, r->fact);
        str_copy(x->reason, sizeof x->reason, r->reason[0] != '\0' ? r->reason : row->why);
        str_copy(x->remedy, sizeof x->remedy, r->remedy);
    }
    x->status = check_worse(x->status, r->status);
    g->v->worst = check_worse(g->v->worst, r->status);
    view_tell(g->f, x);
    return flow_is_stopped(g->f) ? ERR_CANCELLED : OK;
}

int flow_checks(flow *f, step_view *v, const char *ids, const check_options *more, err *e) {
    char id[24], engine[700];
    gathering g = {f, v};
    snprintf(engine, sizeof engine, "%s", f->o.program);
    char *slash = strrchr(engine, '/');
    if (slash != NULL) str_copy(slash + 1, sizeof engine - (size_t)(slash + 1 - engine), "tandemd");
    check_options o = *more;
    o.node[0] = flow_checked(f, 0);
    o.node[1] = flow_checked(f, 1);
    o.settings = f->s;
    o.engine = engine;
    for (int i = 0; i < 2; i++) {
        if (o.node[i] != NULL) node_forget(o.node[i]);
    }
    check_context *c = check_context_new(&o);
    int rc = OK;
    for (const char *s = ids; rc == OK && *s != '\0';) {
        size_t n = strcspn(s, " ");
        check_status worst = CHECK_STATUS_PASS;
        snprintf(id, sizeof id, "%.*s", (int)n, s);
        rc = check_run(c, id, -1, take_result, &g, &worst, e);
        s += n + (s[n] == ' ');
    }
    check_context_free(c);
    if (rc == ERR_CANCELLED) return err_set(e, rc, "stopped");
    return rc;
}
