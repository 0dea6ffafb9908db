/* Picks from a short list where it proves what the whole row would give. */
#include <math.h>

#include "engine/run/sampler_internal.h"

/* Above this the slack of list_limit may drown in rounding. */
#define LIST_MAX 65536.0f
/* Of a changed base of the weights: relative error of two weights and of the exponential. */
#define LIST_ERROR 1.0001

/* Every token that is not listed has at most this raw logit: it lies whole bins below the largest, less
 * a quarter of one for the rounding of the depth. */
static float list_limit(const shortlist *l) {
    return l->max - ((float)l->n_bins * 0.0625f - 0.015625f);
}

static int32_t pick_greedy(const sample_row *row) {
    const shortlist *l = row->list;
    int32_t best = -1;
    float value = 0.0f;
    if (!sampler_is_banned(row, l->token)) return l->token;
    for (int32_t i = 0; i < l->n; i++) {
        const shortlist_entry *e = &l->entries[i];
        if ((best >= 0 && !(e->logit > value)) || sampler_is_banned(row, e->token)) continue;
        best = e->token;
        value = e->logit;
    }
    return best;
}

/* Nothing but noise decides: the best of the tokens that it can lift, if that is out of reach of the
 * others. */
static int32_t pick_noisy(const sample_params *p, const sample_row *row) {
    const shortlist *l = row->list;
    double best = -INFINITY;
    int32_t pick = -1;
    if (l->ask.has_noise == 0 || l->ask.seed != p->seed || l->ask.position != row->position)
        return -1;
    if (l->n_noisy > SHORTLIST_NOISY) return -1;
    for (int32_t i = 0; i < l->n_noisy; i++) {
        const shortlist_entry *e = &l->noisy[i];
        if (sampler_is_banned(row, e->token)) continue;
        double noise = sampler_noise(p->seed, row->position, e->token);
        double score = (double)(e->logit * l->ask.inverse) + noise;
        if (score > best) {
            best = score;
            pick = e->token;
        }
    }
    double reach = (double)(l->max * l->ask.inverse) + (double)l->noisy_low;
    return best >= reach ? pick : -1;
}

/* Listed tokens that are allowed go to the heap; the others are known by their mass. Number of
 * candidates. */
static int32_t fill_candidates(sampler *s, const sample_row *row, sample_rest *rest) {
    const shortlist *l = row->list;
    float inverse = l->ask.inverse, top = l->max * inverse;
    uint64_t allowed = 0, listed = 0;
    int32_t n = 0;
    rest->max = -INFINITY;
    for (int32_t i = 0; i < l->n; i++) {
        const shortlist_entry *e = &l->entries[i];
        float value = e->logit * inverse;
        listed += weight_of(value - top);
        if (sampler_is_banned(row, e->token)) continue;
        s->scaled[e->token] = value;
        s->heap[n++] = e->token;
        rest->max = value > rest->max ? value : rest->max;
    }
    for (int32_t i = 0; i < n; i++) {
        allowed += weight_of(s->scaled[s->heap[i]] - rest->max);
    }
    uint64_t others = l->mass - listed;
    rest->limit = list_limit(l) * inverse;
    rest->mass_low = (double)(row->mask != NULL || row->n_banned > 0 ? allowed : allowed + others);
    rest->mass_high = (double)(allowed + others);
    if (rest->max < top) {
        double more = ((double)others + (double)s->n_vocab) * exp((double)top - (double)rest->max);
        rest->mass_high = (double)allowed + more * LIST_ERROR;
    }
    return n;
}

/* With min-p alone nothing needs an order. */
static int32_t keep_above(sampler *s, float floor_value, const sample_rest *rest, int32_t n) {
    int32_t n_kept = 0;
    if (!(floor_value > rest->limit)) return -1;
    for (int32_t i = 0; i < n; i++) {
        int32_t id = s->heap[i];
        s->kept[n_kept] = id;
        n_kept += s->scaled[id] >= floor_value;
    }
    return n_kept;
}

int32_t sampler_list_pick(sampler *s, const sample_params *p, const sample_row *row) {
    const shortlist *l = row->list;
    sample_rest rest;
    if (l->token < 0) return -1;
    if (sample_params_greedy(p)) return pick_greedy(row);
    if (l->ask.inverse != sample_params_ask(p, row->position).inverse) return -1;
    bool has_cut = p->top_k > 0 || p->top_p < 1.0f;
    if (!has_cut && !(p->min_p > 0.0f)) return pick_noisy(p, row);
    if (!(fabsf(l->max) < LIST_MAX)) return -1;
    int32_t n = fill_candidates(s, row, &rest);
    if (n == 0) return -1;
    n = has_cut ? sampler_cut(s, p, &rest, n) : keep_above(s, rest.max + logf(p->min_p), &rest, n);
    return n > 0 ? sampler_noisy_argmax(s->scaled, s->kept, n, p, row->position) : -1;
}

/* Raw logits of the listed tokens go to scaled; true if that of token is among them. */
static bool fill_raw(sampler *s, const shortlist *l, int32_t token) {
    bool is_found = token == l->token;
    if (is_found) s->scaled[token] = l->max;
    for (int32_t i = 0; i < l->n_noisy && i < SHORTLIST_NOISY; i++) {
        s->scaled[l->noisy[i].token] = l->noisy[i].logit;
        is_found |= l->noisy[i].token == token;
    }
    for (int32_t i = 0; i < l->n; i++) {
        s->scaled[l->entries[i].token] = l->entries[i].logit;
        s->heap[i] = l->entries[i].token;
        is_found |= l->entries[i].token == token;
    }
    return is_found;
}

bool sampler_list_logprobs(
    sampler *s, const sample_params *p, const shortlist *l, sample_pick *out) {
    sample_mass m = {l->max, sampler_top_wanted(p), l->mass_raw};
    if (l->token < 0 || l->n < m.want || !fill_raw(s, l, out->token)) return false;
    sampler_fill_logprobs(s, &m, s->scaled, l->n, out);
    return true;
}
