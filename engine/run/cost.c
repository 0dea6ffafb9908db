#include "engine/run/cost.h"

#include <math.h>

/* Older steps fade with this factor: about the last 50 steps count. */
#define COST_DECAY 0.98
#define DRAFT_AVERAGE 0.1
/* A step that took longer counts at once, one that was shorter bit by bit: the gap is a promise. */
#define SLICE_RISE 0.8
#define SLICE_FALL 0.3
/* Of a step's time, the least that its prompt rows are charged, whatever the others should take. */
#define SLICE_SHARE 0.25
#define CONTEXT_FIRST 1024 /* positions of the first range */
/* When drafts do not pay their own time on average, a stream goes so many steps without before it tries
 * again; then the first one decides, and pauses grow. */
#define DRAFT_SKIP 16
#define DRAFT_SKIP_MOST 128
#define GAIN_RATE 0.2
#define GAIN_FIRST 1.1
#define BIAS_RATE 0.2
#define BIAS_MOST 6.0
#define BIAS_FORGIVE 0.98

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

void draft_policy_reset(draft_policy *p, double bias) {
    *p = (draft_policy){.bias = bias, .gain = GAIN_FIRST};
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

/* Chance that a draft is kept if the ones before it are. */
static double chance_of(const draft_policy *p, float confidence) {
    return 1.0 / (1.0 + exp(-((double)confidence + p->bias)));
}

/* One step of logistic regression for each chance that was had: those kept and the one that was
 * not. */
void draft_policy_learn(draft_policy *p, const float *confidence, int32_t n_kept, int32_t n_draft) {
    for (int32_t i = 0; i < n_draft && i <= n_kept; i++) {
        double outcome = i < n_kept ? 1.0 : 0.0;
        p->bias += BIAS_RATE * (outcome - chance_of(p, confidence[i]));
    }
    if (p->bias > BIAS_MOST) p->bias = BIAS_MOST;
    if (p->bias < -BIAS_MOST) p->bias = -BIAS_MOST;
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
        survival *= chance_of(p, confidence[k - 1]);
        expected += survival;
        double rate = expected / (c->draft_ns + step_cost_of(c, n_other + 1 + k));
        if (rate > best_rate) {
            best_rate = rate;
            best = k;
        }
    }
    if (best == 0) p->bias *= BIAS_FORGIVE; /* nothing is learnt without trying */
    p->gain += GAIN_RATE * (best_rate * plain - p->gain);
    if (p->gain < 1.0) {
        p->gain = 1.0;
        p->skip = p->skip == 0 ? DRAFT_SKIP : p->skip < DRAFT_SKIP_MOST ? 2 * p->skip : p->skip;
        p->skip_left = p->skip;
    } else if (p->gain >= GAIN_FIRST) {
        p->skip = 0;
    }
    return best;
}
