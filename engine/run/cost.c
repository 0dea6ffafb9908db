#include "engine/run/cost.h"

#include <math.h>

/* Older steps fade with this factor: about the last 50 steps count. */
#define COST_DECAY 0.98
#define DRAFT_AVERAGE 0.1
/* A step that took longer counts at once, one that was shorter bit by bit: the gap is a promise. */
#define MIXED_RISE 0.8
#define MIXED_FALL 0.3
/* So many drafts in a row that do not pay their own time, and the stream goes that many steps
 * without before it tries again. */
#define DRAFT_LOSSES 4
#define DRAFT_SKIP 16

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

void step_cost_add_mixed(step_cost *c, int32_t n_rows, uint64_t ns) {
    double row_ns = (double)ns / (double)n_rows;
    double share = row_ns > c->mixed_row_ns ? MIXED_RISE : MIXED_FALL;
    if (!(c->mixed_row_ns > 0.0)) share = 1.0;
    c->mixed_row_ns += share * (row_ns - c->mixed_row_ns);
}

int32_t step_cost_rows(const step_cost *c, double limit_ns, int32_t floor_rows, int32_t max_rows) {
    /* Once there were such steps their time per row says it: it falls as slices grow, so repeating
     * this settles where a step takes the limit. Before, the fit is the best guess. */
    double base = 0.0;
    double per_row = c->mixed_row_ns;
    if (!(per_row > 0.0)) {
        if (!(c->w > 0.0)) return floor_rows > max_rows ? max_rows : floor_rows;
        fit(c, &base, &per_row);
    }
    if (!(per_row > 0.0)) return max_rows;
    double rows = (limit_ns - base) / per_row;
    if (rows < (double)floor_rows) return floor_rows;
    return rows > (double)max_rows ? max_rows : (int32_t)rows;
}

void draft_policy_reset(draft_policy *p) {
    *p = (draft_policy){0};
}

bool draft_policy_wants(draft_policy *p) {
    if (p->skip_left == 0) return true;
    p->skip_left--;
    return false;
}

int32_t draft_copy_choose(const step_cost *c, double rate, int32_t n, int32_t n_other) {
    double survival = 1.0;
    double expected = 1.0;
    double best_rate = 0.0;
    int32_t best = 0;
    for (int32_t k = 0; k <= n; k++) {
        double ns = step_cost_of(c, n_other + 1 + k);
        if (!(ns > 0.0)) return n;
        if (expected / ns > best_rate) {
            best_rate = expected / ns;
            best = k;
        }
        survival *= rate;
        expected += survival;
    }
    return best;
}

int32_t draft_policy_choose(
    draft_policy *p, const step_cost *c, const float *confidence, int32_t n, int32_t n_other) {
    double plain = step_cost_of(c, n_other + 1);
    if (!(plain > 0.0)) return n;
    double survival = 1.0;
    double expected = 1.0;
    double best_rate = 1.0 / (c->draft_ns + plain);
    int32_t best = 0;
    for (int32_t k = 1; k <= n; k++) {
        survival *= 1.0 / (1.0 + exp(-(double)confidence[k - 1]));
        expected += survival;
        double rate = expected / (c->draft_ns + step_cost_of(c, n_other + 1 + k));
        if (rate > best_rate) {
            best_rate = rate;
            best = k;
        }
    }
    if (best_rate * plain >= 1.0) {
        p->n_losses = 0;
    } else if (++p->n_losses >= DRAFT_LOSSES) {
        p->n_losses = 0;
        p->skip_left = DRAFT_SKIP;
    }
    return best;
}
