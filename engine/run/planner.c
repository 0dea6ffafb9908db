#include "engine/run/planner.h"

#include <stddef.h>

static int32_t min_i32(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* Decode rows, then drafts as far as rows and logit rows reach, the same number of streams
 * served before depth. */
static void give_decode_rows(
    plan_view *views, int32_t n, int32_t *rows_left, int32_t *logits_left) {
    for (int32_t i = 0; i < n; i++) {
        views[i].n_rows = 0;
        if (views[i].is_prompt || views[i].is_paused || views[i].n_todo <= 0) continue;
        if (*rows_left < 1 || *logits_left < 1) continue;
        views[i].n_rows = 1;
        *rows_left -= 1;
        *logits_left -= 1;
    }
    for (int32_t i = 0; i < n; i++) {
        if (views[i].is_prompt || views[i].n_rows == 0) continue;
        int32_t extra = min_i32(views[i].n_draft, min_i32(*rows_left, *logits_left));
        views[i].n_rows += extra;
        *rows_left -= extra;
        *logits_left -= extra;
    }
}

/* The prompt to serve next: foreground before background, then the least left to do, then the
 * oldest; by_age: the oldest of all. NULL if none is left. */
static plan_view *next_prompt(plan_view *views, int32_t n, bool by_age) {
    plan_view *best = NULL;
    for (int32_t i = 0; i < n; i++) {
        plan_view *v = &views[i];
        if (!v->is_prompt || v->is_paused || v->n_rows > 0 || v->n_todo <= 0) continue;
        if (best != NULL) {
            if (!by_age && v->is_background != best->is_background) {
                if (v->is_background) continue;
            } else {
                bool is_later = by_age || v->n_todo == best->n_todo ? v->order > best->order
                                                                    : v->n_todo > best->n_todo;
                if (is_later) continue;
            }
        }
        best = v;
    }
    return best;
}

static bool give_slice(plan_view *v, int32_t want, int32_t *rows_left, int32_t *logits_left) {
    if (want >= v->n_todo && *logits_left < 1) {
        want = v->n_todo - 1; /* no room for the logits of its last row: stop one short */
    }
    if (v->n_most > 0) want = min_i32(want, v->n_most);
    if (v->needs_logits) want = min_i32(want, *logits_left);
    v->n_rows = min_i32(want, v->n_todo);
    *rows_left -= v->n_rows;
    if (v->needs_logits) {
        *logits_left -= v->n_rows;
    } else if (v->n_rows == v->n_todo) {
        *logits_left -= 1;
    }
    return v->n_rows > 0;
}

int32_t plan_rows(plan_view *views, int32_t n, const plan_limits *limits) {
    int32_t rows_left = limits->max_rows;
    int32_t logits_left = limits->max_logit_rows;
    give_decode_rows(views, n, &rows_left, &logits_left);
    int32_t n_decode = limits->max_rows - rows_left;
    int32_t prompt_left = n_decode > 0 ? min_i32(rows_left, limits->prompt_rows) : rows_left;
    int32_t given = prompt_left;
    /* A quarter for the oldest prompt, so that a line of short ones can not hold it for ever; an eighth
     * if it is in the background: it holds a slot and must leave it some day. */
    plan_view *oldest = next_prompt(views, n, true);
    int32_t parts = oldest != NULL && oldest->is_background ? 8 : 4;
    int32_t floor_rows =
        oldest != NULL ? min_i32(oldest->n_todo, (prompt_left + parts - 1) / parts) : 0;
    for (plan_view *v; prompt_left > 0 && (v = next_prompt(views, n, false)) != NULL;) {
        int32_t want = v == oldest ? prompt_left : prompt_left - floor_rows;
        if (v == oldest) {
            floor_rows = 0;
        } else if (want <= 0) {
            v = oldest;
            want = prompt_left;
            floor_rows = 0;
        }
        if (!give_slice(v, want, &prompt_left, &logits_left)) break;
    }
    return n_decode + given - prompt_left;
}
