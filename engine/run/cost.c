#include "engine/run/cost.h"

/* Older steps fade with this factor: about the last 50 steps count. */
#define COST_DECAY 0.98
#define DRAFT_AVERAGE 0.1
/* A step that took longer counts at once, one that was shorter bit by bit: the gap is a promise. */
#define SLICE_RISE 0.8
#define SLICE_FALL 0.3
/* Of a step's time, the least that its prompt rows are charged, whatever the others should take. */
#define SLICE_SHARE 0.25
#define CONTEXT_FIRST 1024 /* positions of the first range */

void step_cost_reset(step_cost *c) {
    *c = (step_cost){0};
}

void step_cost_add(step_cost *c, int32_t n_rows, uint64_t ns) {
    double x = (double)n_rows;
    double y = (double)ns;
    c->w = c->w * COST_DECAY + 1.0;
    c->x = c->x * COST_DECAY + x;
    c->y = c->y * COST_DECAY + y;
    c->xx = c->xx * COST_DECAY + x * x;
    c->xy = c->xy * COST_DECAY + x * y;
}

void step_cost_add_draft(step_cost *c, uint64_t ns) {
    c->draft_ns =
        c->draft_ns > 0.0 ? c->draft_ns + DRAFT_AVERAGE * ((double)ns - c->draft_ns) : (double)ns;
}

/* Slope and base of the fit; with no spread in the rows all of the time is base and half of it
 * per row is assumed shared. */
static void fit(const step_cost *c, double *base, double *per_row) {
    double mean_x = c->x / c->w;
    double mean_y = c->y / c->w;
    double spread = c->xx / c->w - mean_x * mean_x;
    if (spread > 0.25) {
        double slope = (c->xy / c->w - mean_x * mean_y) / spread;
        double most = mean_y / mean_x;
        *per_row = slope < 0.0 ? 0.0 : slope > most ? most : slope;
    } else {
        *per_row = 0.5 * mean_y / mean_x;
    }
    *base = mean_y - *per_row * mean_x;
}

double step_cost_of(const step_cost *c, int32_t n_rows) {
    if (!(c->w > 0.0)) return 0.0;
    double base;
    double per_row;
    fit(c, &base, &per_row);
    return base + per_row * (double)n_rows;
}

static int range_of(int64_t context) {
    int i = 0;
    while (i < COST_CONTEXTS - 1 && context >= (int64_t)CONTEXT_FIRST << i) {
        i++;
    }
    return i;
}

void step_cost_add_slice(step_cost *c, const slice_cost *s) {
    double *row = &c->prompt_row_ns[range_of(s->context)];
    double ns = (double)s->ns;
    double other = s->n_other > 0 ? step_cost_of(c, s->n_other) : 0.0;
    double rest = ns - other > ns * SLICE_SHARE ? ns - other : ns * SLICE_SHARE;
    double row_ns = rest / (double)s->n_prompt;
    double share = row_ns > *row ? SLICE_RISE : SLICE_FALL;
    if (!(*row > 0.0)) share = 1.0;
    *row += share * (row_ns - *row);
}

/* Of the range itself; else the nearest shorter one, doubled for each range between; else the
 * nearest longer one. 0: nothing is known. */
static double prompt_row_of(const step_cost *c, int range) {
    double factor = 1.0;
    for (int i = range; i >= 0; i--, factor *= 2.0) {
        if (c->prompt_row_ns[i] > 0.0) return c->prompt_row_ns[i] * factor;
    }
    for (int i = range + 1; i < COST_CONTEXTS; i++) {
        if (c->prompt_row_ns[i] > 0.0) return c->prompt_row_ns[i];
    }
    return 0.0;
}

int32_t step_cost_slice(const step_cost *c, const slice_limits *l) {
    int32_t floor_rows = l->floor_rows < l->max_rows ? l->floor_rows : l->max_rows;
    double row_ns = prompt_row_of(c, range_of(l->context));
    double other = l->n_other > 0 ? step_cost_of(c, l->n_other) : 0.0;
    if (!(row_ns > 0.0)) return floor_rows;
    double rows = (l->limit_ns - other) / row_ns;
    if (rows < (double)floor_rows) return floor_rows;
    return rows > (double)l->max_rows ? l->max_rows : (int32_t)rows;
}
