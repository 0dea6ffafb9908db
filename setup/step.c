/* The table of the steps and their phases. */
#include "setup/step.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "setup/step_internal.h"

#define BIT(i) (1u << (i))
#define LAST_FIELD                                                                                 \
    { NULL, NULL, NULL, NULL, false }

static const step_field FIND_FIELDS[] = {
    {"WORKER_SSH", "worker, as user@host or user@host:port",
        "The other Spark is reached by ssh. Use the address of its ordinary network port; its name "
        "works as well.",
        NULL, true},
    LAST_FIELD,
};
static const step_field MODEL_FIELDS[] = {
    {"PROFILE", "model profile",
        "A profile names the exact files of a model, each with its digest. Profiles that are not "
        "pinned yet are locked once: the hub is asked for commits and digests.",
        NULL, true},
    {"HEAD_DATA", "folder for the model on the head",
        "It must be on the internal disk: the engine reads hundreds of small rows for each token.",
        NULL, true},
    {"WORKER_DATA", "folder for the model on the worker",
        "The worker keeps a copy of its own; a folder over the network would be too slow.", NULL,
        true},
    LAST_FIELD,
};
static const step_field CONNECT_FIELDS[] = {
    {"API", "endpoint for other programs",
        "Off: only programs of this user on the head reach the engine, by its socket. On: other "
        "programs use the address below with a key.",
        "off on", true},
    {"API_BIND", "address of the endpoint",
        "127.0.0.1 is reached from the head only. For other machines give the address of one interface "
        "of the head, not 0.0.0.0, which is every network at once; it needs a key, and you type it "
        "again before it is used.",
        NULL, true},
    {"API_PORT", "port of the endpoint", "Any free port; 8888 unless something else has it.", NULL,
        true},
    {"API_KEY_LABEL", "label of a new API key",
        "A key of 32 random bytes is made under this label and shown once; only its digest is kept. "
        "Empty: none is made, unless other machines shall come in and there is no key yet.",
        NULL, false},
    LAST_FIELD,
};
static const step_field KEEP_FIELDS[] = {
    {"INSTALL_UNITS", "install user units of systemd",
        "The pair then starts with the head and is watched every minute. Without them it runs until "
        "the next restart.",
        "off on", true},
    {"WATCH", "watchdog that restarts a dead pair",
        "It acts after three bad minutes, at most once in half an hour, and never after you stopped "
        "the pair yourself.",
        "off on", true},
    LAST_FIELD,
};

static const step_info INFO[STEP_COUNT] = {
    [STEP_WELCOME] = {"welcome", "Welcome",
        "Sixteen steps lead from two boxes and a cable to a verified endpoint. Each shows what it "
        "would change before it changes it; you can stop anywhere and go on later.",
        "1 min", "Begin", 0, NULL},
    [STEP_FIND] = {"find", "Find",
        "Finds the other Spark. Nothing is sent to it but a greeting of ssh.", "1 min",
        "Use this address", 0, FIND_FIELDS},
    [STEP_TRUST] = {"trust", "Trust",
        "Makes sure that the other machine is the one you mean, and lets the head log in with a key "
        "that is used for nothing else.",
        "2 min", "Connect", BIT(STEP_FIND), NULL},
    [STEP_MACHINES] = {"machines", "Machines",
        "Both machines are checked side by side. Nothing is changed.", "1 min", "Check again",
        BIT(STEP_TRUST), NULL},
    [STEP_CABLE] = {"cable", "Cable",
        "Finds the port with the cable on both machines and gives both halves of it an address and "
        "large frames. A machine that cannot be reached afterwards goes back by itself.",
        "2 min", "Set up the network", BIT(STEP_TRUST), NULL},
    [STEP_NETWORK] = {"network", "Network",
        "Proves the cable with traffic: rate over TCP on both halves at once, RDMA where it is.",
        "1-2 min", "Measure", BIT(STEP_CABLE), NULL},
    [STEP_MODEL] = {"model", "Model",
        "Chooses the model and the folders for it, and compares the need with the disks.",
        "1-5 min", "Make the folders", BIT(STEP_TRUST), MODEL_FIELDS},
    [STEP_DOWNLOAD] = {"download", "Download",
        "Loads the files to the head. It goes on when you leave; finished parts are kept and every "
        "file is compared with its digest.",
        "1-9 h", "Download", BIT(STEP_MODEL), NULL},
    [STEP_COPY] = {"copy", "Copy",
        "Copies the files to the worker over both halves of the cable. The worker compares each "
        "file with its digest itself.",
        "5-20 min", "Copy", BIT(STEP_DOWNLOAD) | BIT(STEP_CABLE), NULL},
    [STEP_PROMPT] = {"prompt", "Prompt form",
        "Renders and tokenizes fixed conversations and compares them with the reference. A wrong "
        "prompt would make every answer a little worse, silently.",
        "seconds", "Test", BIT(STEP_DOWNLOAD), NULL},
    [STEP_ENGINE] = {"engine", "Engine",
        "The same engine must run on both machines. The head copies its own to the worker.",
        "1 min", "Copy the engine", BIT(STEP_MODEL), NULL},
    [STEP_PREPARE] = {"prepare", "Prepare",
        "Cuts and lays out the weights for each machine, so that later starts take minutes.",
        "10-15 min", "Prepare", BIT(STEP_COPY) | BIT(STEP_PROMPT) | BIT(STEP_ENGINE), NULL},
    [STEP_START] = {"start", "Start",
        "Starts one rank on each machine. When one of them fails both are stopped again.",
        "1-4 min", "Start", BIT(STEP_PREPARE), NULL},
    [STEP_VERIFY] = {"verify", "Verify", "Sends real requests and judges each answer.", "20 s",
        "Verify", BIT(STEP_START), NULL},
    [STEP_CONNECT] = {"connect", "Connect",
        "How other programs reach the model: address, key, name of the model.", "1 min",
        "Set the endpoint", BIT(STEP_VERIFY), CONNECT_FIELDS},
    [STEP_KEEP] = {"keep", "Keep running",
        "Starts the pair with the machine and watches it, if you want that.", "1 min", "Install",
        BIT(STEP_VERIFY), KEEP_FIELDS},
    [STEP_SUMMARY] = {"summary", "Summary",
        "What was set up, what was changed, and how to take it back.", "-", "Write the report",
        BIT(STEP_VERIFY), NULL},
};

const step_run STEP_RUNS[STEP_COUNT] = {
    [STEP_WELCOME] = {step_welcome_inspect, NULL, NULL, ""},
    [STEP_FIND] = {step_find_inspect, step_find_apply, NULL, "WORKER_SSH WORKER_JUMP"},
    [STEP_TRUST] = {step_trust_inspect, step_trust_apply, step_trust_prove,
        "WORKER_SSH WORKER_JUMP WORKER_KEY"},
    [STEP_MACHINES] = {step_machines_inspect, NULL, NULL, "WORKER_SSH boot"},
    [STEP_CABLE] = {step_cable_inspect, step_cable_apply, step_cable_prove,
        "WORKER_SSH HEAD_IF_A HEAD_IF_B WORKER_IF_A WORKER_IF_B HEAD_IP_A HEAD_IP_B WORKER_IP_A "
        "WORKER_IP_B"},
    [STEP_NETWORK] = {step_network_inspect, step_network_apply, step_network_prove,
        "HEAD_IP_A HEAD_IP_B WORKER_IP_A WORKER_IP_B boot"},
    [STEP_MODEL] = {step_model_inspect, step_model_apply, step_model_prove,
        "PROFILE HEAD_DATA WORKER_DATA"},
    [STEP_DOWNLOAD] = {step_download_inspect, step_download_apply, step_download_prove,
        "PROFILE HEAD_DATA"},
    [STEP_COPY] = {step_copy_inspect, step_copy_apply, step_copy_prove,
        "PROFILE WORKER_DATA WORKER_SSH SYNC_MODE"},
    [STEP_PROMPT] = {step_prompt_inspect, step_prompt_apply, step_prompt_prove, "PROFILE build"},
    [STEP_ENGINE] = {step_engine_inspect, step_engine_apply, step_engine_prove,
        "WORKER_SSH WORKER_DATA build"},
    [STEP_PREPARE] = {step_prepare_inspect, step_prepare_apply, step_prepare_prove,
        "PROFILE HEAD_DATA WORKER_DATA build"},
    [STEP_START] = {step_start_inspect, step_start_apply, step_start_prove,
        "PROFILE CONTEXT PARALLEL build boot"},
    [STEP_VERIFY] = {step_verify_inspect, step_verify_apply, step_verify_prove,
        "PROFILE CONTEXT PARALLEL build"},
    [STEP_CONNECT] = {step_connect_inspect, step_connect_apply, step_connect_prove,
        "API API_BIND API_PORT API_KEY_FILE"},
    [STEP_KEEP] = {step_keep_inspect, step_keep_apply, step_keep_prove, "WATCH INSTALL_UNITS"},
    [STEP_SUMMARY] = {step_summary_inspect, step_summary_apply, step_summary_prove, ""},
};

const step_info *step_info_of(int i) {
    CHECK(i >= 0 && i < STEP_COUNT);
    return &INFO[i];
}

int step_find(const char *id) {
    for (int i = 0; i < STEP_COUNT; i++) {
        if (str_eq_nocase(id, INFO[i].id)) return i;
    }
    return -1;
}

const char *step_state_mark(step_state s) {
    static const char *const marks[] = {"..", "--", "ok", "ok", "st", "!!"};
    return marks[s];
}

/* --- views --- */

void step_view_init(step_view *v) {
    *v = (step_view){0};
}

void step_view_release(step_view *v) {
    mem_free(v->rows);
    plan_release(&v->plan);
    *v = (step_view){0};
}

step_row *view_row(step_view *v, const char *label, check_status status) {
    v->rows = mem_realloc(v->rows, (size_t)(v->n_rows + 1) * sizeof *v->rows);
    step_row *r = &v->rows[v->n_rows++];
    *r = (step_row){.status = status};
    str_copy(r->label, sizeof r->label, label);
    v->worst = check_worse(v->worst, status);
    return r;
}

void view_fact(step_row *r, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->fact, sizeof r->fact, fmt, ap);
    va_end(ap);
    if (r->head[0] == '\0') str_copy(r->head, sizeof r->head, r->fact);
}

void view_done(step_view *v, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(v->summary, sizeof v->summary, fmt, ap);
    va_end(ap);
    v->is_done = true;
}

void view_tell(flow *f, const step_row *r) {
    if (f->o.talk != NULL && f->o.talk->row != NULL) f->o.talk->row(f->o.talk->ctx, r);
}

void view_message(step_view *v, const char *what, const char *why, const char *next) {
    str_copy(v->message.what, sizeof v->message.what, what);
    str_copy(v->message.why, sizeof v->message.why, why);
    str_copy(v->message.next, sizeof v->message.next, next);
}

/* --- phases --- */

/* The first missing step, or -1. */
static int waits_for(const flow *f, int i) {
    for (int k = 0; k < STEP_COUNT; k++) {
        step_state s = f->state[k];
        if ((INFO[i].needs & BIT(k)) && s != STEP_IS_OK && s != STEP_IS_WARNED) return k;
    }
    return -1;
}

step_state flow_state(const flow *f, int i) {
    step_state s = f->state[i];
    bool is_settled = s == STEP_IS_OK || s == STEP_IS_WARNED;
    return !is_settled && waits_for(f, i) >= 0 ? STEP_IS_WAITING : s;
}

const char *flow_state_reason(const flow *f, int i) {
    flow *m = (flow *)f; /* only the text's own place */
    int k = waits_for(f, i);
    if (f->state[i] == STEP_IS_STALE) return f->reason[i];
    if (flow_state(f, i) != STEP_IS_WAITING || k < 0) return "";
    snprintf(m->waits, sizeof m->waits, "waits for step %d, %s", k, INFO[k].title);
    return f->waits;
}

int flow_first_open(const flow *f) {
    for (int i = 0; i < STEP_COUNT; i++) {
        if (f->state[i] != STEP_IS_OK && f->state[i] != STEP_IS_WARNED) return i;
    }
    return STEP_SUMMARY;
}

bool flow_is_new(const flow *f) {
    return f->is_new;
}

/* What a failed row says becomes the message, unless the step had a better one. */
static void message_of_rows(step_view *v) {
    for (int i = 0; i < v->n_rows && v->message.what[0] == '\0'; i++) {
        const step_row *r = &v->rows[i];
        if (r->status == CHECK_STATUS_FAIL) view_message(v, r->fact, r->reason, r->remedy);
    }
}

/* The end of every phase: state and journal follow from what it said. */
static int settle(flow *f, int i, step_view *v, int rc, err *e) {
    bool is_fine = v->worst == CHECK_STATUS_PASS || v->worst == CHECK_STATUS_SKIP;
    if (rc != OK) {
        if (v->message.what[0] == '\0') step_explain(i, e, f->fault, &v->message);
        if (rc == ERR_CANCELLED) return rc;
        f->state[i] = STEP_IS_FAILED;
        (void)flow_journal_add(f, i, "failed", v->message.what, NULL);
        return rc;
    }
    if (v->worst == CHECK_STATUS_FAIL) {
        message_of_rows(v);
        v->is_done = false;
        f->state[i] = STEP_IS_FAILED;
        return flow_journal_add(f, i, "failed", v->message.what, e);
    }
    if (!v->is_done || v->plan.n > 0) {
        v->is_done = false;
        if (f->state[i] != STEP_IS_STALE) f->state[i] = STEP_IS_OPEN;
        return OK;
    }
    if (!is_fine) {
        if (f->state[i] != STEP_IS_WARNED) f->state[i] = STEP_IS_OPEN;
        return OK;
    }
    f->state[i] = STEP_IS_OK;
    return flow_journal_add(f, i, "proven", v->summary, e);
}

static int refuse_waiting(flow *f, int i, step_view *v, err *e) {
    if (flow_state(f, i) != STEP_IS_WAITING) return OK;
    int rc = err_set(e, ERR_BUSY, "%s %s", INFO[i].title, flow_state_reason(f, i));
    view_message(v, e->msg, "Its work stands on what that step proves.", "Do that step first.");
    return rc;
}

int flow_inspect(flow *f, int i, step_view *v, err *e) {
    step_view_release(v);
    int rc = refuse_waiting(f, i, v, e);
    if (rc != OK) return rc;
    f->fault = REMOTE_FINE;
    rc = STEP_RUNS[i].inspect(f, v, e);
    return settle(f, i, v, rc, e);
}

int flow_prove(flow *f, int i, step_view *v, err *e) {
    step_view_release(v);
    int rc = refuse_waiting(f, i, v, e);
    if (rc != OK) return rc;
    f->fault = REMOTE_FINE;
    rc = STEP_RUNS[i].prove != NULL ? STEP_RUNS[i].prove(f, v, e) : STEP_RUNS[i].inspect(f, v, e);
    return settle(f, i, v, rc, e);
}

/* What would be done now must be what was shown, word for word. */
static int compare_plan(flow *f, int i, const step_view *shown, err *e) {
    step_view now;
    step_view_init(&now);
    int rc = STEP_RUNS[i].inspect(f, &now, e);
    for (size_t k = 0; k < now.plan.n && rc == OK; k++) {
        if (!plan_holds(&shown->plan, &now.plan.actions[k]))
            rc = err_set(e, ERR_MISMATCH,
                "what would be changed is not what was shown any more (%.200s); look at it again",
                now.plan.actions[k].what);
    }
    step_view_release(&now);
    return rc;
}

/* Looks again, does what was planned and proves it. */
int flow_apply(flow *f, int i, step_view *v, err *e) {
    int rc = refuse_waiting(f, i, v, e);
    if (rc != OK) return rc;
    f->fault = REMOTE_FINE;
    if (STEP_RUNS[i].apply != NULL) {
        rc = compare_plan(f, i, v, e);
        if (rc == OK) rc = flow_journal_add(f, i, "begun", "", e);
        if (rc == OK) rc = STEP_RUNS[i].apply(f, v, e);
    }
    if (rc != OK) {
        step_view_release(v);
        return settle(f, i, v, rc, e);
    }
    return flow_prove(f, i, v, e);
}

int flow_accept(flow *f, int i, const step_view *v, err *e) {
    if (v->worst == CHECK_STATUS_FAIL || v->plan.n > 0 || !v->is_done)
        return err_set(e, ERR_ARG, "only warnings can be accepted; %s is not done", INFO[i].title);
    f->state[i] = STEP_IS_WARNED;
    return flow_journal_add(f, i, "accepted", v->summary, e);
}

/* Steps that cannot be looked at yet stand in the plan as such. */
static void plan_later(flow *f, int i, setup_plan *out, const char *why) {
    char what[200];
    snprintf(what, sizeof what, "%s; its changes are shown when that is done", why);
    const plan_action a = {.step = (char *)INFO[i].id,
        .node = (char *)"head",
        .what = what,
        .command = (char *)"",
        .undo = (char *)"",
        .is_later = true};
    (void)f;
    plan_add(out, &a);
}

/* What a step will run is known before it can be looked at, when it depends on no machine. */
static bool foresee(flow *f, int i, setup_plan *out) {
    static const struct {
        int step;
        const char *node, *what, *command;
    } known[] = {
        {STEP_NETWORK, "head", "make traffic on both rails; nothing is changed",
            "tandem link prove"},
        {STEP_DOWNLOAD, "head", "load the files that are missing", "tandem download"},
        {STEP_COPY, "worker", "copy the files that are missing", "tandem copy"},
        {STEP_PROMPT, "head", "compare prompts with the reference", "tandem prepare --self-test"},
        {STEP_PREPARE, "head", "build the prepared files of both ranks", "tandem prepare"},
        {STEP_VERIFY, "head", "send real requests to the pair", "tandem verify"},
    };
    if (i == STEP_MODEL) {
        step_model_foresee(f, out);
        return true;
    }
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) {
        if (known[k].step != i) continue;
        const plan_action a = {.step = (char *)INFO[i].id,
            .node = (char *)known[k].node,
            .what = (char *)known[k].what,
            .command = (char *)known[k].command,
            .undo = (char *)""};
        plan_add(out, &a);
        return true;
    }
    return false;
}

const step_field *flow_unanswered(flow *f, int i) {
    const step_field *x = INFO[i].fields;
    for (; x != NULL && x->key != NULL; x++) {
        if (x->is_required && flow_answer(f, x->key)[0] == '\0') return x;
    }
    return NULL;
}

/* A step that cannot go without an answer says which one. */
static void plan_answer(int i, const step_field *x, setup_plan *out) {
    char what[300];
    snprintf(what, sizeof what,
        "needs an answer: %s (%s), from a file given to --answers; its changes are shown then",
        x->key, x->label);
    const plan_action a = {.step = (char *)INFO[i].id,
        .node = (char *)"head",
        .what = what,
        .command = (char *)"",
        .undo = (char *)"",
        .is_later = true};
    plan_add(out, &a);
}

int flow_plan_all(flow *f, setup_plan *out, err *e) {
    for (int i = 0; i < STEP_COUNT; i++) {
        step_view v;
        err why = ERR_INIT;
        step_state before = f->state[i];
        if (before == STEP_IS_OK || before == STEP_IS_WARNED) continue;
        if (f->o.stop != NULL && atomic_load(f->o.stop))
            return err_set(e, ERR_CANCELLED, "stopped");
        if (flow_state(f, i) == STEP_IS_WAITING) {
            if (!foresee(f, i, out)) plan_later(f, i, out, flow_state_reason(f, i));
            continue;
        }
        step_view_init(&v);
        f->fault = REMOTE_FINE;
        int rc = STEP_RUNS[i].inspect(f, &v, &why);
        plan_append(out, &v.plan);
        if (rc != OK) plan_later(f, i, out, why.msg);
        const step_field *missing = flow_unanswered(f, i);
        if (rc == OK && missing != NULL) plan_answer(i, missing, out);
        /* What follows may be planned as if this step were done when it needs nothing. */
        if (rc == OK && v.plan.n == 0 && v.is_done && v.worst != CHECK_STATUS_FAIL)
            f->state[i] = STEP_IS_OK;
        step_view_release(&v);
    }
    return OK;
}
