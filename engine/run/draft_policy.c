#include "engine/run/draft_policy.h"

#include <math.h>

/* When drafts do not pay their own time on average, a stream goes so many steps without before it tries
 * again; then the first one decides, and pauses grow. */
#define DRAFT_SKIP 16
#define DRAFT_SKIP_MOST 128
#define GAIN_RATE 0.2
#define GAIN_FIRST 1.1
#define BIAS_RATE 0.1
#define BIAS_MOST 6.0
#define BIAS_FORGIVE 0.98
/* The first range holds all logits below its end, the last one all above its beginning. */
#define RANGE_FIRST (-4)
/* So many drafts, kept as the logits say, are what a range begins with. */
#define RANGE_PRIOR 3.0
/* About the last 200 drafts of a range count. */
#define RANGE_DECAY 0.995

static double chance_of_logit(double logit) {
    return 1.0 / (1.0 + exp(-logit));
}

void draft_history_reset(draft_history *h) {
    for (int i = 0; i < DRAFT_RANGES; i++) {
        h->n_tried[i] = RANGE_PRIOR;
        h->n_kept[i] = RANGE_PRIOR * chance_of_logit(RANGE_FIRST + i + 0.5);
    }
}

void draft_policy_reset(draft_policy *p, draft_history *history) {
    *p = (draft_policy){.history = history, .gain = GAIN_FIRST};
}

bool draft_policy_wants(draft_policy *p) {
    if (p->skip_left == 0) return true;
    p->skip_left--;
    return false;
}

static int range_of(float confidence) {
    if (!(confidence >= (float)RANGE_FIRST)) return 0;
    if (confidence >= (float)(RANGE_FIRST + DRAFT_RANGES)) return DRAFT_RANGES - 1;
    return (int)floorf(confidence) - RANGE_FIRST;
}

/* Chance that a draft is kept if the ones before it are: as it went with drafts of such confidence, moved
 * by what this stream has learnt. */
static double chance_of(const draft_policy *p, float confidence) {
    int i = range_of(confidence);
    double odds = p->history->n_kept[i] / (p->history->n_tried[i] - p->history->n_kept[i]);
    return chance_of_logit(log(odds) + p->bias);
}

/* For each chance that was had: those kept and the one that was not. */
void draft_policy_learn(draft_policy *p, const float *confidence, int32_t n_kept, int32_t n_draft) {
    draft_history *h = p->history;
    for (int32_t i = 0; i < n_draft && i <= n_kept; i++) {
        int range = range_of(confidence[i]);
        double outcome = i < n_kept ? 1.0 : 0.0;
        p->bias += BIAS_RATE * (outcome - chance_of(p, confidence[i]));
        h->n_tried[range] = h->n_tried[range] * RANGE_DECAY + 1.0;
        h->n_kept[range] = h->n_kept[range] * RANGE_DECAY + outcome;
    }
    if (p->bias > BIAS_MOST) p->bias = BIAS_MOST;
    if (p->bias < -BIAS_MOST) p->bias = -BIAS_MOST;
}

static void note_gain(draft_policy *p, double gain) {
    p->gain += GAIN_RATE * (gain - p->gain);
    if (p->gain < 1.0) {
        p->gain = 1.0;
        p->skip = p->skip == 0 ? DRAFT_SKIP : p->skip < DRAFT_SKIP_MOST ? 2 * p->skip : p->skip;
        p->skip_left = p->skip;
    } else if (p->gain >= GAIN_FIRST) {
        p->skip = 0;
    }
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
    note_gain(p, best_rate * plain);
    return best;
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
