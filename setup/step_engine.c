/* Prompt form, Engine, Prepare, Start, Verify: from files to answers. */
#include <stdio.h>
#include <string.h>

#include "engine/base/file.h"
#include "engine/base/json.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/base/version.h"
#include "setup/job.h"
#include "setup/pair.h"
#include "setup/paths.h"
#include "setup/step_internal.h"
#include "setup/verify.h"

static void plan_command(step_view *v, const char *step, const char *node, const char *what,
    const char *command, const char *undo) {
    const plan_action a = {.step = (char *)step,
        .node = (char *)node,
        .what = (char *)what,
        .command = (char *)command,
        .undo = (char *)undo};
    plan_add(&v->plan, &a);
}

/* Runs one of our commands; its exit code 10 (warnings) is fine too. */
static int command(flow *f, buf *out, const char *const *words, err *e) {
    int rc = flow_self(f, out, words, e);
    return rc > 0 ? OK : rc;
}

/* --- Prompt form --- */

int step_prompt_inspect(flow *f, step_view *v, err *e) {
    manifest m;
    int rc = flow_manifest(f, &m, e);
    for (size_t i = 0; i < m.n_files && rc == OK; i++) {
        const manifest_file *x = &m.files[i];
        if (x->role != MANIFEST_TOKENIZER && x->role != MANIFEST_TEMPLATE) continue;
        bool is_there = flow_file_is_there(f, &m, x);
        step_row *r = view_row(v, "digest", is_there ? CHECK_STATUS_PASS : CHECK_STATUS_FAIL);
        view_fact(r, is_there ? "%s is as the manifest says" : "%s is not verified", x->path);
        if (!is_there) str_copy(r->remedy, sizeof r->remedy, "Run the step Download again.");
    }
    if (rc == OK)
        plan_command(v, "prompt", "head",
            "render and tokenize fixed conversations, compare with the reference; changes nothing",
            "tandem prepare --self-test", "");
    manifest_release(&m);
    return rc;
}

int step_prompt_apply(flow *f, const step_view *v, err *e) {
    (void)f;
    (void)v;
    (void)e;
    return OK;
}

int step_prompt_prove(flow *f, step_view *v, err *e) {
    static const char *const words[] = {"prepare", "--self-test", NULL};
    int rc = step_prompt_inspect(f, v, e);
    if (rc == OK && v->worst != CHECK_STATUS_FAIL) rc = command(f, NULL, words, e);
    if (rc != OK) return rc;
    plan_release(&v->plan);
    step_row *r = view_row(v, "self-test", CHECK_STATUS_PASS);
    view_fact(r, "every conversation is rendered as the reference does");
    view_done(v, "prompts are as the reference renders them");
    return OK;
}

/* --- Engine --- */

static int engine_path(flow *f, char out[700], err *e) {
    snprintf(out, 700, "%.680s", f->o.program);
    char *slash = strrchr(out, '/');
    if (slash != NULL) str_copy(slash + 1, 700 - (size_t)(slash + 1 - out), "tandemd");
    if (file_exists(out)) return OK;
    return err_set(e, ERR_NOT_FOUND, "tandemd is not beside this program (%s)", out);
}

static int arch_of(flow *f, int i, char out[40], err *e) {
    buf text = BUF_INIT;
    int rc = node_tool(f->plain[i], &text, e, "uname", "-m", NULL);
    if (rc == OK) snprintf(out, 40, "%.*s", (int)strcspn(buf_cstr(&text), "\r\n"), buf_cstr(&text));
    buf_release(&text);
    return rc;
}

int step_engine_inspect(flow *f, step_view *v, err *e) {
    char engine[700], arch[2][40] = {"", ""};
    buf version = BUF_INIT;
    int rc = engine_path(f, engine, e);
    if (rc == OK) rc = flow_connect(f, e);
    for (int i = 0; i < 2 && rc == OK; i++)
        rc = arch_of(f, i, arch[i], e);
    if (rc == OK) rc = node_tool(f->plain[0], &version, e, engine, "--version", NULL);
    if (rc == OK) {
        step_row *r = view_row(v, "engine on the head", CHECK_STATUS_PASS);
        view_fact(r, "%.*s", (int)strcspn(buf_cstr(&version), "\n"), buf_cstr(&version));
        bool is_same = str_eq(arch[0], arch[1]);
        r = view_row(v, "processors", is_same ? CHECK_STATUS_PASS : CHECK_STATUS_FAIL);
        str_copy(r->head, sizeof r->head, arch[0]);
        str_copy(r->worker, sizeof r->worker, arch[1]);
        view_fact(r, is_same ? "both machines are %s" : "the machines differ: %s, and %s", arch[0],
            arch[1]);
        if (!is_same) {
            str_copy(r->reason, sizeof r->reason, "The head copies its own engine to the worker.");
            str_copy(r->remedy, sizeof r->remedy, "Use two machines of the same kind.");
        }
        view_done(v, "build %s; the start copies it to the worker, by digest", version_build_id());
    }
    buf_release(&version);
    return rc;
}

int step_engine_apply(flow *f, const step_view *v, err *e) {
    (void)f;
    (void)v;
    (void)e;
    return OK;
}

int step_engine_prove(flow *f, step_view *v, err *e) {
    return step_engine_inspect(f, v, e);
}

/* --- Prepare --- */

/* True when the last preparation of this profile ended well and nothing it stands on changed. */
int step_prepare_inspect(flow *f, step_view *v, err *e) {
    int rc = flow_connect(f, e);
    const check_options none = {.settings = f->s};
    if (rc == OK) rc = flow_checks(f, v, "M1 M2 M3 M6", &none, e);
    if (rc == OK)
        plan_command(v, "prepare", "head",
            "build the prepared files of both ranks, each on its own machine", "tandem prepare",
            "tandem undo apply --data takes them away");
    return rc;
}

int step_prepare_apply(flow *f, const step_view *v, err *e) {
    (void)v;
    return flow_job(f, "prepare", "Prepare", e);
}

/* The job's own last word, for this very profile. */
int step_prepare_prove(flow *f, step_view *v, err *e) {
    buf text = BUF_INIT;
    json *s = NULL;
    int rc = job_status_read("prepare", &text, e);
    if (rc == OK) rc = json_parse(buf_cstr(&text), text.len, NULL, &s, e);
    bool is_done = str_eq(json_str(json_get(s, "state")), "done") &&
                   str_eq(json_str(json_get(s, "profile")), flow_answer(f, "PROFILE"));
    step_row *r = view_row(v, "prepared files", is_done ? CHECK_STATUS_PASS : CHECK_STATUS_FAIL);
    view_fact(r, is_done ? "written and verified on both machines" : "not complete");
    if (!is_done) str_copy(r->remedy, sizeof r->remedy, "Press Again: finished blocks are kept.");
    if (rc == OK) view_done(v, "both machines are prepared");
    json_free(s);
    buf_release(&text);
    return rc;
}

/* --- Start --- */

static pair_options pair_of(flow *f) {
    return (pair_options){.settings = f->s,
        .node = {f->plain[0], f->plain[1]},
        .checked = {f->rooted[0], f->rooted[1]},
        .stop = f->o.stop,
        .is_attended = true};
}

/* What the start would do, word for word; the start's own random words are left out. */
static int plan_start(flow *f, step_view *v, err *e) {
    buf text = BUF_INIT, part[2] = {BUF_INIT, BUF_INIT};
    const pair_options o = pair_of(f);
    int rc = pair_plan(&o, &text, e);
    for (const char *s = buf_cstr(&text); rc == OK && *s != '\0';) {
        size_t n = strcspn(s, "\n");
        bool is_worker = str_starts(s, "worker: ");
        /* What differs from one look to the next is no part of a plan: it is compared word for word. */
        bool is_fleeting =
            memmem(s, n, "start id", 8) != NULL || memmem(s, n, ":   memory:", 11) != NULL;
        if (!is_fleeting) rc = buf_append(&part[is_worker], s, n);
        if (rc == OK) rc = buf_putc(&part[is_worker], '\n');
        s += n + (s[n] == '\n');
    }
    if (rc == OK)
        plan_command(v, "start", "worker", "bring the engine, by digest, and start rank 1",
            buf_cstr(&part[1]), "tandem stop");
    if (rc == OK)
        plan_command(v, "start", "head", "start rank 0 and wait until both ranks are ready",
            buf_cstr(&part[0]), "tandem stop");
    buf_release(&text);
    buf_release(&part[0]);
    buf_release(&part[1]);
    return rc;
}

int step_start_inspect(flow *f, step_view *v, err *e) {
    pair_view look = {0};
    int rc = flow_connect(f, e);
    const pair_options o = pair_of(f);
    if (rc == OK) rc = pair_look(&o, &look, e);
    if (rc != OK) return rc;
    bool is_up = look.state == PAIR_READY || look.state == PAIR_SERVING;
    step_row *r = view_row(v, "the pair", CHECK_STATUS_PASS);
    view_fact(r, "%s%s%.400s", pair_state_name(look.state), look.reason[0] != '\0' ? ": " : "",
        look.reason);
    if (look.state == PAIR_FOREIGN) {
        r->status = v->worst = CHECK_STATUS_FAIL;
        str_copy(r->reason, sizeof r->reason, "Two programs cannot listen on one port.");
        str_copy(r->remedy, sizeof r->remedy,
            "Stop the program that is named or choose another port (tandem config set MASTER_PORT "
            "N), then press Again.");
    }
    if (look.state == PAIR_FAILED || look.state == PAIR_DEGRADED)
        view_message(v, r->fact, "The pair answers only while both ranks run.",
            "Start it again; both sides are stopped first.");
    if (is_up) {
        view_done(v, "both ranks are ready");
    } else {
        rc = plan_start(f, v, e);
    }
    pair_view_release(&look);
    return rc;
}

static void say_event(void *ctx, const pair_event *ev) {
    flow *f = ctx;
    if (ev->kind != PAIR_PHASE) {
        flow_say(f, "%s: %s", ev->node == 1 ? "worker" : ev->node == 0 ? "head" : "both", ev->text);
        return;
    }
    flow_say(f, "head %s, worker %s", ev->phases[0] != NULL ? ev->phases[0] : "-",
        ev->phases[1] != NULL ? ev->phases[1] : "-");
}

int step_start_apply(flow *f, const step_view *v, err *e) {
    undo_entry x = {.kind = UNDO_COMMAND,
        .step = (char *)"start",
        .what = (char *)"the pair was started",
        .path = (char *)"",
        .text = (char *)"stop"};
    (void)v;
    pair_report report;
    int rc = flow_undo_add(f, &x, e);
    if (rc == OK) rc = flow_connect(f, e);
    const pair_options o = pair_of(f);
    flow_say(f, "head: tandem start");
    return rc == OK ? pair_start(&o, say_event, f, &report, e) : rc;
}

int step_start_prove(flow *f, step_view *v, err *e) {
    int rc = step_start_inspect(f, v, e);
    if (rc == OK && !v->is_done) {
        step_row *r = &v->rows[v->n_rows - 1];
        r->status = v->worst = CHECK_STATUS_FAIL;
        str_copy(r->reason, sizeof r->reason, "Only a pair that is ready answers.");
        str_copy(r->remedy, sizeof r->remedy,
            "Read the first error of each machine: tandem logs --node head, tandem logs --node "
            "worker.");
    }
    return rc;
}

/* --- Verify --- */

typedef struct verifying {
    flow *f;
    step_view *v;
} verifying;

static void take_verdict(void *ctx, const verify_line *l) {
    static const check_status of[] = {
        CHECK_STATUS_PASS, CHECK_STATUS_WARN, CHECK_STATUS_FAIL, CHECK_STATUS_SKIP};
    const verifying *x = ctx;
    step_row *r = view_row(x->v, l->id, of[l->verdict]);
    view_fact(r, "%s: got %.200s", l->request, l->got);
    snprintf(r->head, sizeof r->head, "%.60s", l->got);
    str_copy(r->reason, sizeof r->reason, l->reason);
    if (l->verdict == VERIFY_FAIL)
        snprintf(r->remedy, sizeof r->remedy,
            "Expected: %.200s. Look into the logs (tandem logs), start the pair again, then verify "
            "again.",
            l->expected);
    view_tell(x->f, r);
}

int step_verify_inspect(flow *f, step_view *v, err *e) {
    (void)f;
    (void)e;
    plan_command(v, "verify", "head", "send six real requests to the pair; nothing is changed",
        "tandem verify", "");
    return OK;
}

int step_verify_apply(flow *f, const step_view *v, err *e) {
    (void)f;
    (void)v;
    (void)e;
    return OK;
}

int step_verify_prove(flow *f, step_view *v, err *e) {
    buf socket = BUF_INIT;
    verify_summary s = {0};
    verifying x = {f, v};
    int rc = paths_socket(&socket, e);
    const verify_options o = {.socket_path = buf_cstr(&socket), .level = 1, .stop = f->o.stop};
    flow_say(f, "head: tandem verify");
    if (rc == OK) rc = verify_run(&o, take_verdict, &x, &s, e);
    if (rc == OK)
        view_done(v, "%s: %d passed, %d with warnings, %d failed, %d skipped", s.model, s.n_pass,
            s.n_warn, s.n_fail, s.n_skip);
    buf_release(&socket);
    return rc;
}
