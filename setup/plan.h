/* What a step of the set-up would change: an ordered list of actions, each with the machine, the exact
 * command or file difference, why, and how it is taken back. The plan of all steps has an id made from
 * every word of it, so that a run without questions does exactly what was shown and nothing else. A
 * plan owns its texts; one thread. */
#ifndef SETUP_PLAN_H
#define SETUP_PLAN_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/json.h"

enum { PLAN_ID_BYTES = 17 };

typedef struct plan_action {
    char *step;    /* "network" */
    char *node;    /* "head" or "worker" */
    char *what;    /* one sentence: what happens and why */
    char *command; /* as a person would type it, or a difference of a file; several lines */
    char *undo;    /* how it is taken back, "" when nothing has to be */
    bool is_root;  /* with the rights of root */
    bool is_later; /* cannot be shown yet: what it depends on is not there; what says so */
} plan_action;

typedef struct setup_plan {
    plan_action *actions;
    size_t n;
} setup_plan;

void plan_init(setup_plan *p);
void plan_release(setup_plan *p);
/* Copies all texts of a. */
void plan_add(setup_plan *p, const plan_action *a);
/* Copies the actions of from to the end. */
void plan_append(setup_plan *p, const setup_plan *from);
/* "%016x" of everything that would be done. An empty plan has an id too. */
void plan_id(const setup_plan *p, char out[PLAN_ID_BYTES]);
/* True when whole holds an action that is the same in every word. */
bool plan_holds(const setup_plan *whole, const plan_action *a);
/* For people: each action with its step, commands indented. */
int plan_print(const setup_plan *p, buf *out);
/* An array of objects. */
void plan_json(const setup_plan *p, json_w *w);

#endif
