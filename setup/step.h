/* The guided set-up: sixteen steps after a welcome from two boxes and a cable to a verified endpoint. Every step has
 * the same phases: inspect (reads only; fills a table and the plan of what would be changed), apply
 * (does exactly what the plan says, each change written to the undo journal before it is made) and
 * prove. What was proven stands in a journal of JSON lines, so that a program that was killed anywhere
 * goes on at the same step; what depends on something that changed since is stale.
 *
 * A flow and all it returns belong to one thread; the screen runs one in a thread of its own and
 * talks to it through flow_talk. Nothing here prints or asks by itself. */
#ifndef SETUP_STEP_H
#define SETUP_STEP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "setup/check.h"
#include "setup/plan.h"
#include "setup/settings.h"
#include "setup/ssh.h"

enum {
    STEP_WELCOME,
    STEP_FIND,
    STEP_TRUST,
    STEP_MACHINES,
    STEP_CABLE,
    STEP_NETWORK,
    STEP_MODEL,
    STEP_DOWNLOAD,
    STEP_COPY,
    STEP_PROMPT,
    STEP_ENGINE,
    STEP_PREPARE,
    STEP_START,
    STEP_VERIFY,
    STEP_CONNECT,
    STEP_KEEP,
    STEP_SUMMARY,
    STEP_COUNT,
    /* People count the steps from 0, the welcome, to this one: the one number that is shown. */
    STEP_LAST = STEP_COUNT - 1
};
_Static_assert(STEP_LAST == 16, "README, manual and the welcome say sixteen");

typedef enum step_state {
    STEP_IS_OPEN,    /* ".." */
    STEP_IS_WAITING, /* "--": another step first */
    STEP_IS_OK,      /* "ok": proven */
    STEP_IS_WARNED,  /* "ok" with warnings that were accepted */
    STEP_IS_STALE,   /* "st": what it depends on changed */
    STEP_IS_FAILED   /* "!!" */
} step_state;

/* A question of a step. Its answer is a setting or, for keys that are none, an answer only. */
typedef struct step_field {
    const char *key, *label;
    const char *why;     /* shown by '?' */
    const char *choices; /* words separated by blanks, NULL: free text */
    bool is_required;
} step_field;

typedef struct step_info {
    const char *id, *title;
    const char *about;        /* what it does, two sentences */
    const char *typical;      /* how long it takes */
    const char *button;       /* what apply is called: "Connect", "Start the download" */
    uint32_t needs;           /* bits of the steps that must be proven first */
    const step_field *fields; /* ends with key NULL; NULL: none */
} step_info;
const step_info *step_info_of(int i);
/* By id; -1 if unknown. */
int step_find(const char *id);

/* One line of a step's table. */
typedef struct step_row {
    char label[64], head[64], worker[64]; /* a row about the pair has only head filled */
    check_status status;
    char fact[480], reason[320], remedy[640];
} step_row;

/* A failure for people: what happened, why it matters, what to do next. */
typedef struct step_message {
    char what[640], why[400], next[800];
} step_message;

typedef struct step_view {
    step_row *rows;
    int n_rows;
    check_status worst;
    setup_plan plan; /* what apply would do; empty: nothing */
    bool is_done;    /* proven: nothing is left to do */
    char summary[320];
    step_message message; /* what[0] == '\0': none */
} step_view;
void step_view_init(step_view *v);
void step_view_release(step_view *v);

enum { FLOW_FILES = 8 };
typedef struct flow_progress {
    char title[96];
    uint64_t done_bytes, total_bytes; /* total 0: not known */
    double rate, eta_s;               /* eta below 0: not known */
    uint64_t n_ok, n_files;
    char note[200];
    char files[FLOW_FILES][80]; /* those in work: name, state, share */
    int n_shown;
} flow_progress;

/* The person. Members may be NULL: nobody is there. Called on the flow's thread. */
typedef struct flow_talk {
    void *ctx;
    void (*line)(void *ctx, const char *text); /* one line of what is being done */
    void (*progress)(void *ctx, const flow_progress *p);
    void (*row)(void *ctx, const step_row *row); /* a result as soon as it is there */
    bool (*host_key)(void *ctx, const remote_host_key *key);
    bool (*secret)(void *ctx, const char *prompt, ssh_secret *out);
    /* A line to be typed; false when refused. */
    bool (*typed)(void *ctx, const char *prompt, char *out, size_t cap);
    /* A secret that is seen this once: text goes to the person and nowhere else. */
    bool (*show_once)(void *ctx, const char *what, const char *text);
} flow_talk;

typedef struct flow_options {
    const char *program;                 /* path of tandem itself, for its own commands */
    const char *head_root, *worker_root; /* stored trees in place of the machines; NULL: none */
    const flow_talk *talk;               /* borrowed; NULL: nobody */
    const atomic_bool *stop;             /* ends the phase with ERR_CANCELLED */
    const atomic_bool *leave;            /* with stop: a background job goes on */
} flow_options;

typedef struct flow flow;
/* Reads settings, answers and journal. ERR_BUSY when another set-up runs (names its process), ERR_AUTH
 * as root unless TANDEM_ALLOW_ROOT=1. */
int flow_new(const flow_options *o, flow **out, err *e);
/* The same without the lock: only for looking. */
int flow_look(const flow_options *o, flow **out, err *e);
void flow_free(flow *f);

step_state flow_state(const flow *f, int i);
/* Why a step is stale or what it waits for; "" else. Valid until the next call. */
const char *flow_state_reason(const flow *f, int i);
/* The first step that is not proven, STEP_SUMMARY when all are. */
int flow_first_open(const flow *f);
/* True when nothing was ever proven. */
bool flow_is_new(const flow *f);

/* The answer of a field: what was given, else the setting, else what is proposed; "" none. */
const char *flow_answer(flow *f, const char *key);
/* Checks and keeps an answer (also on disk). */
int flow_answer_set(flow *f, const char *key, const char *value, err *e);
int flow_answer_check(const char *key, const char *value, err *e);
/* KEY=VALUE lines. Every key must be a setting or one of the answers that are none
 * (ACCEPT_HOST_KEY, ACCEPT_WARNINGS, API_KEY_LABEL, CONFIRM_ADDRESS, INSTALL_UNITS). */
int flow_answers_load(flow *f, const char *path, err *e);

/* The phases. Each fills v anew. When the result is not OK, v->message says it for people; a proof
 * that does not hold is no error: v->is_done is false and v->worst FAIL. */
int flow_inspect(flow *f, int i, step_view *v, err *e);
int flow_apply(flow *f, int i, step_view *v, err *e);
int flow_prove(flow *f, int i, step_view *v, err *e);
/* Go on in spite of warnings: written to the journal. ERR_ARG when something failed. */
int flow_accept(flow *f, int i, const step_view *v, err *e);
/* The first question of step i that needs an answer and has none; NULL: none. */
const step_field *flow_unanswered(flow *f, int i);
/* The plan of all steps, as far as it can be said now. */
int flow_plan_all(flow *f, setup_plan *out, err *e);

/* Sentences for an error of a step. Plain function. */
void step_explain(int i, const err *e, remote_fault fault, step_message *out);
const char *step_state_mark(step_state s);

#endif
