#include "engine/run/sampler_internal.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "kernels/head/weight.h"
#include "kernels/vec/vec.h"

/* The largest noise the uniform can give is -log(-log(1 - 2^-53)), 36.74. A token further below the
 * best score can not win. */
#define SAMPLER_NOISE_MAX 37.0
/* Below this the division could overflow, and the pick is the greedy one for any real logits. */
#define SAMPLER_TEMPERATURE_MIN 1e-4f

/* A bias this low bans. */
#define SAMPLER_BAN (-100.0f)

sampler *sampler_new(int32_t n_vocab) {
    CHECK(n_vocab > 0 && n_vocab <= WEIGHT_MAX_VALUES);
    sampler *s = mem_alloc(sizeof *s);
    s->n_vocab = n_vocab;
    s->scaled = mem_array((size_t)n_vocab, sizeof *s->scaled);
    s->heap = mem_array((size_t)n_vocab, sizeof *s->heap);
    s->kept = mem_array((size_t)n_vocab, sizeof *s->kept);
    return s;
}

void sampler_free(sampler *s) {
    if (s == NULL) return;
    mem_free(s->scaled);
    mem_free(s->heap);
    mem_free(s->kept);
    mem_free(s);
}

void sample_params_init(sample_params *p) {
    *p = (sample_params){
        .temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f, .n_top = -1};
}

bool sample_params_penalize(const sample_params *p) {
    return p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f ||
           p->repetition_penalty != 1.0f;
}

bool sample_params_greedy(const sample_params *p) {
    return !(p->temperature >= SAMPLER_TEMPERATURE_MIN) || !(p->top_p > 0.0f);
}

shortlist_ask sample_params_ask(const sample_params *p, int64_t position) {
    shortlist_ask ask = {.seed = p->seed, .position = position};
    if (sample_params_greedy(p)) return ask;
    ask.inverse = 1.0f / p->temperature;
    ask.has_noise = p->top_k <= 0 && !(p->top_p < 1.0f) && !(p->min_p > 0.0f);
    return ask;
}

double sampler_noise(uint64_t seed, int64_t position, int32_t token) {
    return -log(-log(rand_keyed_uniform(seed, (uint64_t)position, (uint64_t)(uint32_t)token)));
}

/* Largest value of a row; independent of the number of lanes because max is associative. */
static float row_max(const float *v, int32_t n) {
    float lane[16];
    int32_t i = 0;
    for (int j = 0; j < 16; j++) {
        lane[j] = -INFINITY;
    }
    for (; i + 16 <= n; i += 16) {
        for (int j = 0; j < 16; j++) {
            lane[j] = v[i + j] > lane[j] ? v[i + j] : lane[j];
        }
    }
    for (; i < n; i++) {
        lane[0] = v[i] > lane[0] ? v[i] : lane[0];
    }
    for (int j = 1; j < 16; j++) {
        lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
    }
    return lane[0];
}

static int32_t row_argmax(const float *v, int32_t n) {
    float best = row_max(v, n);
    if (!(best > -INFINITY)) return -1;
    int32_t i = 0;
    while (v[i] != best) {
        i++;
    }
    return i;
}

static bool goes_before(const float *v, int32_t a, int32_t b) {
    return v[a] > v[b] || (v[a] == v[b] && a < b);
}

static void heap_sift(const float *v, int32_t *heap, int32_t n, int32_t i) {
    int32_t id = heap[i];
    for (;;) {
        int32_t child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && goes_before(v, heap[child + 1], heap[child])) {
            child++;
        }
        if (!goes_before(v, heap[child], id)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = id;
}

static void heap_make(const float *v, int32_t *heap, int32_t n) {
    for (int32_t i = n / 2 - 1; i >= 0; i--) {
        heap_sift(v, heap, n, i);
    }
}

static int32_t heap_pop(const float *v, int32_t *heap, int32_t *n) {
    int32_t top = heap[0];
    *n -= 1;
    if (*n > 0) {
        heap[0] = heap[*n];
        heap_sift(v, heap, *n, 0);
    }
    return top;
}

/* Collects ids with value at or above limit; returns how many. */
static int32_t collect(const float *v, int32_t n, float limit, int32_t *out) {
    int32_t k = 0;
    for (int32_t i = 0; i < n; i++) {
        out[k] = i;
        k += v[i] >= limit && v[i] > -INFINITY;
    }
    return k;
}

static void apply_penalties(float *v, int32_t n, const sample_params *p, const sample_counts *c) {
    for (int32_t i = 0; i < n; i++) {
        uint16_t times = c->generated[i];
        if (p->repetition_penalty != 1.0f && (times > 0 || c->in_prompt[i])) {
            v[i] = v[i] > 0.0f ? v[i] / p->repetition_penalty : v[i] * p->repetition_penalty;
        }
        if (times > 0) {
            v[i] -= p->presence_penalty + p->frequency_penalty * (float)times;
        }
    }
}

static void apply_bans(float *v, int32_t n, const int32_t *banned, int32_t n_banned) {
    for (int32_t i = 0; i < n_banned; i++) {
        if (banned[i] >= 0 && banned[i] < n) {
            v[banned[i]] = -INFINITY;
        }
    }
}

static void apply_mask(float *v, int32_t n, const uint64_t *mask) {
    for (int32_t i = 0; i < n; i++) {
        if ((mask[i >> 6] >> (i & 63) & 1) == 0) {
            v[i] = -INFINITY;
        }
    }
}

/* Copies the row into s->scaled with mask, bias and penalties applied, in that order;
 * temperature is not yet applied. ban is added where a bias bans. */
static void shape_row(sampler *s, const sample_params *p, const sample_row *row, float ban) {
    memcpy(s->scaled, row->logits, (size_t)s->n_vocab * sizeof *s->scaled);
    apply_bans(s->scaled, s->n_vocab, row->banned, row->n_banned);
    if (row->mask != NULL) {
        apply_mask(s->scaled, s->n_vocab, row->mask);
    }
    for (int32_t i = 0; i < p->n_bias; i++) {
        int32_t t = p->bias[i].token;
        if (t < 0 || t >= s->n_vocab) continue;
        s->scaled[t] += p->bias[i].bias <= SAMPLER_BAN ? ban : p->bias[i].bias;
    }
    if (row->counts != NULL && sample_params_penalize(p)) {
        apply_penalties(s->scaled, s->n_vocab, p, row->counts);
    }
}

bool sampler_is_banned(const sample_row *row, int32_t token) {
    if (row->mask != NULL && (row->mask[token >> 6] >> (token & 63) & 1) == 0) return true;
    for (int32_t i = 0; i < row->n_banned; i++) {
        if (row->banned[i] == token) return true;
    }
    return false;
}

/* Upper bound of a token's noise from the bits of its hash h alone: with v = 1 - u the noise is at
 * most -log(v), and v is at least 2^-(z + 1) when ~h has z leading zeros. */
static double noise_bound(uint64_t h) {
    uint64_t v = ~h;
    int zeros = v != 0 ? __builtin_clzll(v) : 64;
    return (double)(zeros + 1) * 0.69314719;
}

/* It begins with the likeliest token, so that almost every other is ruled out before its noise is
 * computed. */
int32_t sampler_noisy_argmax(
    const float *v, const int32_t *ids, int32_t n, const sample_params *p, int64_t position) {
    int32_t pick = ids != NULL ? (n > 0 ? ids[0] : -1) : row_argmax(v, n);
    if (pick < 0) return -1;
    double best = (double)v[pick] + sampler_noise(p->seed, position, pick);
    for (int32_t i = 0; i < n; i++) {
        int32_t id = ids != NULL ? ids[i] : i;
        if (!(v[id] > -INFINITY) || (double)v[id] + SAMPLER_NOISE_MAX < best) continue;
        uint64_t h = rand_keyed(p->seed, (uint64_t)position, (uint64_t)(uint32_t)id);
        if ((double)v[id] + noise_bound(h) < best) continue;
        double score = (double)v[id] + sampler_noise(p->seed, position, id);
        if (score > best || (score == best && id < pick)) {
            best = score;
            pick = id;
        }
    }
    return pick;
}

/* Pops the k_max best of n candidates into kept; their mass. -1: the candidates do not hold them. */
static double pop_best(sampler *s, const sample_rest *rest, int32_t k_max, int32_t *n) {
    const float *v = s->scaled;
    uint64_t mass = 0;
    for (int32_t i = 0; i < k_max; i++) {
        s->kept[i] = heap_pop(v, s->heap, n);
        if (!(v[s->kept[i]] > rest->limit)) return -1.0;
        mass += weight_of(v[s->kept[i]] - rest->max);
    }
    return (double)mass;
}

int32_t sampler_cut(sampler *s, const sample_params *p, const sample_rest *rest, int32_t n) {
    const float *v = s->scaled;
    bool has_top_p = p->top_p < 1.0f, has_all = rest->limit == -INFINITY;
    int32_t k_max = p->top_k > 0 && p->top_k < n ? p->top_k : n, n_popped = 0;
    double low = rest->mass_low, high = rest->mass_high;
    float floor_value = p->min_p > 0.0f ? rest->max + logf(p->min_p) : -INFINITY;
    heap_make(v, s->heap, n);
    if (has_top_p && p->top_k > 0) {
        if (k_max < p->top_k && !has_all) return -1;
        low = high = pop_best(s, rest, k_max, &n);
        if (low < 0.0) return -1;
        n_popped = k_max;
    }
    uint64_t sum = 0;
    for (int32_t i = 0; i < k_max; i++) {
        int32_t id = i < n_popped ? s->kept[i] : heap_pop(v, s->heap, &n);
        if (!(v[id] > rest->limit)) return floor_value > rest->limit && i > 0 ? i : -1;
        if (i > 0 && v[id] < floor_value) return i;
        s->kept[i] = id;
        sum += weight_of(v[id] - rest->max);
        if (!has_top_p || (double)sum < (double)p->top_p * low) continue;
        return (double)sum >= (double)p->top_p * high ? i + 1 : -1;
    }
    bool is_whole = has_all || k_max == p->top_k || floor_value > rest->limit;
    return is_whole && k_max > 0 ? k_max : -1;
}

/* The same over the whole row: deeper and deeper below its largest value until it is enough. */
static int32_t cut_row(sampler *s, const sample_params *p, float max) {
    bool needs_mass = p->top_p < 1.0f && p->top_k <= 0;
    double mass = needs_mass ? (double)vec()->weigh(s->scaled, max, s->n_vocab) : 0.0;
    sample_rest rest = {.max = max, .mass_low = mass, .mass_high = mass};
    for (float depth = 8.0f;; depth *= 2.0f) {
        rest.limit = depth > 1000.0f ? -INFINITY : max - depth;
        int32_t n = collect(s->scaled, s->n_vocab, rest.limit, s->heap);
        int32_t n_kept = sampler_cut(s, p, &rest, n);
        if (n_kept > 0 || rest.limit == -INFINITY) return n_kept;
    }
}

static int32_t pick_sampled(sampler *s, const sample_params *p, const sample_row *row) {
    float inverse = sample_params_ask(p, row->position).inverse;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        s->scaled[i] *= inverse;
    }
    if (p->top_k <= 0 && p->top_p >= 1.0f) {
        if (p->min_p <= 0.0f)
            return sampler_noisy_argmax(s->scaled, NULL, s->n_vocab, p, row->position);
        float floor_value = row_max(s->scaled, s->n_vocab) + logf(p->min_p);
        int32_t n = collect(s->scaled, s->n_vocab, floor_value, s->kept);
        return sampler_noisy_argmax(s->scaled, s->kept, n, p, row->position);
    }
    float max = row_max(s->scaled, s->n_vocab);
    if (!(max > -INFINITY)) return -1;
    int32_t n = cut_row(s, p, max);
    return sampler_noisy_argmax(s->scaled, s->kept, n, p, row->position);
}

void sampler_fill_logprobs(
    sampler *s, const sample_mass *m, const float *v, int32_t n, sample_pick *out) {
    double lse = (double)m->max + log(ldexp((double)m->mass, -WEIGHT_ONE_BITS));
    out->logprob = (float)((double)v[out->token] - lse);
    heap_make(v, s->heap, n);
    for (out->n_top = 0; out->n_top < m->want && n > 0; out->n_top++) {
        int32_t id = heap_pop(v, s->heap, &n);
        out->top_token[out->n_top] = id;
        out->top_logprob[out->n_top] = (float)((double)v[id] - lse);
    }
}

int32_t sampler_top_wanted(const sample_params *p) {
    return p->n_top > SAMPLER_TOP_MAX ? SAMPLER_TOP_MAX : p->n_top < 0 ? 0 : p->n_top;
}

static void row_logprobs(
    sampler *s, const sample_params *p, const float *logits, sample_pick *out) {
    sample_mass m = {.max = row_max(logits, s->n_vocab), .want = sampler_top_wanted(p)};
    m.mass = vec()->weigh(logits, m.max, s->n_vocab);
    int32_t n = 0;
    for (float depth = 8.0f; n < m.want; depth *= 2.0f) {
        float limit = depth > 1000.0f ? -INFINITY : m.max - depth;
        n = collect(logits, s->n_vocab, limit, s->heap);
        if (limit == -INFINITY) break;
    }
    sampler_fill_logprobs(s, &m, logits, n, out);
}

/* The whole row, wherever it is. */
static int take_row(const sample_row *row, const float **logits) {
    *logits = row->logits;
    return *logits != NULL ? OK : row->fetch(row->ctx, logits);
}

/* Log probabilities of out->token, where they are wanted. */
static int add_logprobs(
    sampler *s, const sample_params *p, const sample_row *row, sample_pick *out) {
    const float *logits;
    if (p->n_top < 0) return OK;
    if (row->list != NULL && sampler_list_logprobs(s, p, row->list, out)) return OK;
    int rc = take_row(row, &logits);
    if (rc == OK) row_logprobs(s, p, logits, out);
    return rc;
}

int sampler_force(
    sampler *s, const sample_params *p, const sample_row *row, int32_t token, sample_pick *out) {
    *out = (sample_pick){.token = token};
    return add_logprobs(s, p, row, out);
}

/* A row on the way to its pick: logits is there. */
static int32_t pick_shaped(sampler *s, const sample_params *p, const sample_row *row, float ban) {
    shape_row(s, p, row, ban);
    return sample_params_greedy(p) ? row_argmax(s->scaled, s->n_vocab) : pick_sampled(s, p, row);
}

static bool is_shaped(const sample_params *p, const sample_row *row) {
    return p->n_bias > 0 || (row->counts != NULL && sample_params_penalize(p));
}

static int32_t pick_from_row(sampler *s, const sample_params *p, const sample_row *row) {
    int32_t token = -1;
    if (sample_params_greedy(p) && !is_shaped(p, row)) {
        token = row_argmax(row->logits, s->n_vocab);
    }
    if (token < 0 || sampler_is_banned(row, token)) {
        token = pick_shaped(s, p, row, -INFINITY);
    }
    return token < 0 && p->n_bias > 0 ? pick_shaped(s, p, row, SAMPLER_BAN) : token;
}

int sampler_pick(sampler *s, const sample_params *p, const sample_row *row, sample_pick *out) {
    sample_row whole = *row;
    out->n_top = 0;
    out->logprob = 0.0f;
    out->token = -1;
    if (row->list != NULL && !is_shaped(p, row)) out->token = sampler_list_pick(s, p, row);
    if (out->token < 0) {
        int rc = take_row(row, &whole.logits);
        if (rc != OK) return rc;
        out->token = pick_from_row(s, p, &whole);
    }
    return out->token < 0 ? ERR_INTERNAL : add_logprobs(s, p, &whole, out);
}
