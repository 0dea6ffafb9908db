/* Decides which rows the next step computes: every running stream's decode or verify rows first,
 * then slices of prompts in what is left of the row budget, short prompts first but never at the
 * cost of the oldest one. Pure functions over plain data, so every rank and every test gets the
 * same plan from the same views. */
#ifndef TANDEM_RUN_PLANNER_H
#define TANDEM_RUN_PLANNER_H

#include <stdbool.h>
#include <stdint.h>

/* One stream as the planner sees it. */
typedef struct plan_view {
    int32_t n_todo;     /* known tokens not yet computed; 1 for a running stream */
    int32_t n_most;     /* of them in one step; 0: no limit */
    int32_t n_draft;    /* drafts to verify behind the newest token; 0 while a prompt is read */
    uint64_t order;     /* arrival; lower is older */
    bool is_prompt;     /* its todo rows belong to the prompt */
    bool is_background; /* prompt rows after everybody else's; a few if it is the oldest */
    bool is_paused;     /* its ring is full: no rows now */
    bool needs_logits;  /* of every prompt row */
    int32_t n_rows;     /* out: rows in the next step, drafts included; 0: none */
} plan_view;

typedef struct plan_limits {
    int32_t max_rows;       /* of one step */
    int32_t max_logit_rows; /* of one step; each running or finishing stream needs at least one */
    int32_t prompt_rows;    /* prompt rows of one step while some stream decodes */
} plan_limits;

/* Fills n_rows of each view; returns the rows of the step. */
int32_t plan_rows(plan_view *views, int32_t n, const plan_limits *limits);

#endif
