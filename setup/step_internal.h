/* What the files of the steps share. */
#ifndef SETUP_STEP_INTERNAL_H
#define SETUP_STEP_INTERNAL_H

#include "setup/manifest.h"
#include "setup/node_access.h"
#include "setup/step.h"
#include "setup/undo.h"

typedef struct flow_kept {
    char *key, *value;
} flow_kept;

struct flow {
    flow_options o;
    settings *s;       /* with the answers over them */
    settings *on_disk; /* without */
    flow_kept *answers;
    size_t n_answers;
    char settings_path[512], state_dir[512], journal_path[560], answers_path[560], undo_path[560];
    int lock_fd;
    step_state state[STEP_COUNT];
    char reason[STEP_COUNT][160]; /* of stale ones */
    bool is_new;
    node_access *plain[2];  /* the machines themselves; [1] NULL: no session */
    node_access *rooted[2]; /* stored trees in their place, or NULL */
    remote_fault fault;
    char worker_home[256];
    char answer[600];    /* of flow_answer */
    char waits[160];     /* of flow_state_reason */
    char boot[64];       /* of the head */
    ssh_secret *new_key; /* an API key made in this run, for its proof; or NULL */
};

/* --- step_journal.c --- */
int flow_journal_load(flow *f, err *e);
/* word: "proven", "accepted", "failed", "begun". */
int flow_journal_add(flow *f, int i, const char *word, const char *evidence, err *e);

/* --- step_answers.c --- */
int flow_answers_open(flow *f, err *e);
void flow_answers_close(flow *f);
/* Plan actions for the answers of a step that differ from the settings file. */
void flow_plan_settings(flow *f, int i, setup_plan *p);
/* Writes them, with undo. */
int flow_apply_settings(flow *f, int i, err *e);
int flow_setting_write(flow *f, const char *step, const char *key, const char *value, err *e);

/* --- step_nodes.c --- */
/* The session to the worker; opens it when there is none or it is gone. */
int flow_connect(flow *f, err *e);
void flow_disconnect(flow *f);
/* What checks look at: the stored tree when there is one. */
node_access *flow_checked(flow *f, int i_node);
remote_options flow_worker_options(const flow *f, const remote_ask *ask);
/* The home folder on the worker. */
int flow_worker_home(flow *f, err *e);
/* Runs tandem itself; every line is told. The exit code, or an error whose message is the command's
 * own last sentence. Words end with NULL. out (may be NULL) gets standard output. */
int flow_self(flow *f, buf *out, const char *const *words, err *e);
/* Starts a background job and follows it to its end. */
int flow_job(flow *f, const char *name, const char *title, err *e);
void flow_say(flow *f, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool flow_is_stopped(const flow *f);
const node_sudo *flow_sudo(flow *f);
int flow_undo_add(flow *f, undo_entry *x, err *e);

/* --- helpers for views (step.c) --- */
step_row *view_row(step_view *v, const char *label, check_status status);
void view_fact(step_row *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void view_done(step_view *v, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Hands a finished row to whoever watches. */
void view_tell(flow *f, const step_row *r);
/* Runs check rows of these ids ("V1 V2 ...") and adds a line for each. */
int flow_checks(flow *f, step_view *v, const char *ids, const check_options *more, err *e);
void view_message(step_view *v, const char *what, const char *why, const char *next);

typedef struct step_run {
    int (*inspect)(flow *f, step_view *v, err *e);
    int (*apply)(flow *f, const step_view *v, err *e); /* NULL: nothing to do */
    int (*prove)(flow *f, step_view *v, err *e);       /* NULL: inspecting proves */
    const char *inputs; /* settings whose change makes it stale; "boot" and "build" too */
} step_run;
extern const step_run STEP_RUNS[STEP_COUNT];

/* What the step Model will do, said before the worker can be asked. */
void step_model_foresee(flow *f, setup_plan *p);
/* The manifest of the chosen profile. */
int flow_manifest(flow *f, manifest *m, err *e);
bool flow_file_is_there(flow *f, const manifest *m, const manifest_file *file);

#define STEP_PHASES(name)                                                                          \
    int step_##name##_inspect(flow *f, step_view *v, err *e);                                      \
    int step_##name##_apply(flow *f, const step_view *v, err *e);                                  \
    int step_##name##_prove(flow *f, step_view *v, err *e)
STEP_PHASES(welcome);
STEP_PHASES(find);
STEP_PHASES(trust);
STEP_PHASES(machines);
STEP_PHASES(cable);
STEP_PHASES(network);
STEP_PHASES(model);
STEP_PHASES(download);
STEP_PHASES(copy);
STEP_PHASES(prompt);
STEP_PHASES(engine);
STEP_PHASES(prepare);
STEP_PHASES(start);
STEP_PHASES(verify);
STEP_PHASES(connect);
STEP_PHASES(keep);
STEP_PHASES(summary);

#endif
