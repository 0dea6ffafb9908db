#include "engine/weights/trellis_search.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/weights/trellis_internal.h"
#include "kernels/half.h"

enum {
    N_STATES = 1 << STATE_BITS,
    N_POS = EXL3_TILE_VALUES,
    HALF_START = 128, /* where exllamav3 begins its first pass */
    SECOND_CUT = 96,  /* position where the second round of a path is cut */
    TWO_STARTS_K2 = 4,
    PAD = 32,         /* floats between cost arrays: room to read over the end */
    SECOND_TILE = 512 /* floats that shift the second tile's arrays to other cache sets */
};

struct trellis_code {
    exl3_codebook codebook;
    int k2;
    float *by_state;   /* [65536] */
    float *by_edge[2]; /* for the two numbers of leaving bits, layout of trellis_step */
    int n_bits[2];     /* new bits at even and odd positions */
};

struct trellis_work {
    int k2;
    size_t stride;   /* floats of one cost array */
    float *memory;   /* holds all of the following */
    float *costs[2]; /* [N_POS][stride] for each tile: costs after each step */
    float *start[2]; /* [stride] costs before the first step */
};

static atomic_bool plain_only;

void trellis_force_plain(bool is_plain) {
    atomic_store(&plain_only, is_plain);
}

static bool use_avx2(void) {
#if defined(__x86_64__)
    return !atomic_load(&plain_only) && trellis_has_avx2();
#else
    return false;
#endif
}

const char *trellis_variant(void) {
    return use_avx2() ? "avx2" : "plain";
}

static float *values_by_edge(const float *by_state, int n_out) {
    float *out = mem_aligned(64, (size_t)N_STATES * sizeof *out);
    int n_q = 1 << n_out;
    if (out == NULL) return NULL;
    for (int s = 0; s < N_STATES; s++) {
        int o = s & ((1 << (STATE_BITS - n_out)) - 1);
        int q = s >> (STATE_BITS - n_out);
        out[(o / LANES * n_q + q) * LANES + o % LANES] = by_state[s];
    }
    return out;
}

trellis_code *trellis_code_new(exl3_codebook codebook, int k2) {
    if (!exl3_rate_ok(codebook, k2)) return NULL;
    trellis_code *c = mem_alloc(sizeof *c);
    c->codebook = codebook;
    c->k2 = k2;
    c->n_bits[0] = k2 / 2;
    c->n_bits[1] = k2 - k2 / 2;
    c->by_state = mem_array(N_STATES, sizeof *c->by_state);
    for (int s = 0; s < N_STATES; s++) {
        c->by_state[s] = half_to_float(exl3_state_half(codebook, (uint16_t)s));
    }
    for (int i = 0; i < 2; i++) {
        c->by_edge[i] = values_by_edge(c->by_state, c->n_bits[i]);
        CHECK(c->by_edge[i] != NULL);
    }
    return c;
}

void trellis_code_free(trellis_code *c) {
    if (c == NULL) return;
    mem_free(c->by_state);
    mem_aligned_free(c->by_edge[0]);
    mem_aligned_free(c->by_edge[1]);
    mem_free(c);
}

int trellis_code_k2(const trellis_code *c) {
    return c->k2;
}

exl3_codebook trellis_code_codebook(const trellis_code *c) {
    return c->codebook;
}

float trellis_value(const trellis_code *c, uint16_t state) {
    return c->by_state[state];
}

trellis_work *trellis_work_new(int k2) {
    trellis_work *w = mem_alloc(sizeof *w);
    int bits = k2 / 2;
    w->k2 = k2;
    w->stride = ((size_t)N_STATES >> bits) + ((size_t)GAP_FLOATS << (k2 - bits)) + PAD;
    size_t per_tile = w->stride * (N_POS + 1) + SECOND_TILE;
    w->memory = mem_aligned(4096, 2 * per_tile * sizeof *w->memory);
    if (w->memory == NULL) {
        mem_free(w);
        return NULL;
    }
    for (int t = 0; t < 2; t++) {
        w->start[t] = w->memory + (size_t)t * per_tile;
        w->costs[t] = w->start[t] + w->stride;
    }
    return w;
}

void trellis_work_free(trellis_work *w) {
    if (w == NULL) return;
    mem_aligned_free(w->memory);
    mem_free(w);
}

double trellis_error(const trellis_code *c, const float *x, const uint16_t *states) {
    double sum = 0.0;
    for (int p = 0; p < N_POS; p++) {
        double d = (double)c->by_state[states[p]] - (double)x[p];
        sum += d * d;
    }
    return sum;
}

/* One search over steps of consecutive positions, beginning at first (cyclic). */
typedef struct search_run {
    const trellis_code *c;
    trellis_work *w;
    trellis_mode mode;
    const float *x[2];
    int first, n_steps;
} search_run;

/* part_shift with which the costs before position p are read. */
static int part_shift(const trellis_code *c, int p) {
    return STATE_BITS - c->n_bits[p & 1] - c->n_bits[(p + 1) & 1];
}

static int position(const search_run *r, int i_step) {
    return (r->first + i_step) % N_POS;
}

static const float *costs_before(const search_run *r, int t, int i_step) {
    return i_step == 0 ? r->w->start[t] : r->w->costs[t] + (size_t)(i_step - 1) * r->w->stride;
}

static void run_step(const search_run *r, int i_step) {
    int p = position(r, i_step);
    trellis_step s = {r->c->by_edge[(p + 1) & 1], r->c->n_bits[p & 1], r->c->n_bits[(p + 1) & 1],
        part_shift(r->c, p + 1), {NULL, NULL}, {NULL, NULL}, {r->x[0][p], r->x[1][p]}};
    for (int t = 0; t < 2; t++) {
        s.in[t] = costs_before(r, t, i_step);
        s.out[t] = r->w->costs[t] + (size_t)i_step * r->w->stride;
    }
#if defined(__x86_64__)
    if (use_avx2()) {
        r->mode == TRELLIS_HALF ? trellis_step_half_avx2(&s) : trellis_step_avx2(&s);
        return;
    }
#endif
    r->mode == TRELLIS_HALF ? trellis_step_half_plain(&s) : trellis_step_plain(&s);
}

static void run_steps(const search_run *r) {
    for (int i = 0; i < r->n_steps; i++) {
        run_step(r, i);
    }
}

/* Repeats the choice that step i_step made for out-edge o: the lowest q of the lowest cost. */
static uint16_t chosen_state(const search_run *r, int t, int i_step, int o) {
    int p = position(r, i_step);
    int n_in = r->c->n_bits[p & 1];
    int n_out = r->c->n_bits[(p + 1) & 1];
    const float *in = costs_before(r, t, i_step);
    int shift = part_shift(r->c, p);
    float best = INFINITY;
    int best_state = o;
    for (int q = 0; q < 1 << n_out; q++) {
        int s = q << (STATE_BITS - n_out) | o;
        float value = r->c->by_state[s];
        float before = in[trellis_edge_at(s >> n_in, shift)];
        float cost = r->mode == TRELLIS_HALF ? trellis_candidate_half(before, value, r->x[t][p])
                                             : trellis_candidate(before, value, r->x[t][p]);
        if (cost < best) {
            best = cost;
            best_state = s;
        }
    }
    return (uint16_t)best_state;
}

/* Follows the choices back from out-edge o of the last step; returns the in-edge of step i_stop and
 * stores the states of the steps from i_stop on when states is not NULL. */
static int trace_back(const search_run *r, int t, int o, int i_stop, uint16_t *states) {
    for (int i = r->n_steps - 1; i >= i_stop; i--) {
        int p = position(r, i);
        uint16_t s = chosen_state(r, t, i, o);
        if (states != NULL) {
            states[p] = s;
        }
        o = s >> r->c->n_bits[p & 1];
    }
    return o;
}

static int lowest(const float *costs, int n, int shift) {
    int at = 0;
    for (int i = 1; i < n; i++) {
        at = costs[trellis_edge_at(i, shift)] < costs[trellis_edge_at(at, shift)] ? i : at;
    }
    return at;
}

static bool is_lower(const float *costs, int shift, int a, int b) {
    return costs[trellis_edge_at(a, shift)] < costs[trellis_edge_at(b, shift)];
}

/* The order in which exllamav3's blocks of 1024 threads compare: lowest edge of each residue mod
 * 1024, then a halving tree inside each 32 residues, then across the 32 groups. An upper entry wins
 * only when it is strictly smaller. */
static int lowest_by_tree(const float *costs, int n, int shift) {
    enum { N_THREADS = 1024, WARP = 32 };
    int at[N_THREADS];
    int n_live = n < N_THREADS ? n : N_THREADS;
    for (int i = 0; i < n_live; i++) {
        at[i] = i;
        for (int j = i + N_THREADS; j < n; j += N_THREADS) {
            at[i] = is_lower(costs, shift, j, at[i]) ? j : at[i];
        }
    }
    for (int level = 0; level < 2; level++) {
        int gap = level == 0 ? 1 : WARP;
        for (int offset = WARP / 2; offset > 0; offset /= 2) {
            for (int i = 0; i < n_live; i++) {
                int other = i + offset * gap;
                bool is_in = i / gap % WARP < offset && other < n_live;
                if (is_in && is_lower(costs, shift, at[other], at[i])) {
                    at[i] = at[other];
                }
            }
        }
    }
    return at[0];
}

static void fill(float *p, size_t n, float value) {
    for (size_t i = 0; i < n; i++) {
        p[i] = value;
    }
}

/* Pass 1 of exllamav3: the in-edge of position 0 on a path from position 128 round to 127 that is
 * free at both ends. It reads the costs before the last step; see exl3.md 12.4. */
static void half_start_edges(search_run *r, int edge[2]) {
    r->first = HALF_START;
    r->n_steps = N_POS;
    for (int t = 0; t < 2; t++) {
        fill(r->w->start[t], r->w->stride, 0.0f);
    }
    run_steps(r);
    for (int t = 0; t < 2; t++) {
        int last = position(r, N_POS - 1);
        int n_edges = N_STATES >> r->c->n_bits[last & 1];
        int shift = part_shift(r->c, last);
        int o = lowest_by_tree(costs_before(r, t, N_POS - 1), n_edges, shift);
        edge[t] = trace_back(r, t, o, N_POS - HALF_START, NULL);
    }
}

/* Finds the best path over n_steps positions from first on that begins and ends in the given
 * edges. */
static void solve_fixed(search_run *r, int first, int n_steps, const int begin[2], const int end[2],
    uint16_t *const states[2]) {
    r->first = first;
    r->n_steps = n_steps;
    for (int t = 0; t < 2; t++) {
        fill(r->w->start[t], r->w->stride, INFINITY);
        r->w->start[t][trellis_edge_at(begin[t], part_shift(r->c, first))] = 0.0f;
    }
    run_steps(r);
    for (int t = 0; t < 2; t++) {
        trace_back(r, t, end[t], 0, states[t]);
    }
}

static void search_half(search_run *r, uint16_t *const states[2]) {
    float rounded[2][N_POS];
    int edge[2];
    for (int i = 0; i < 2 * N_POS; i++) {
        rounded[i / N_POS][i % N_POS] = half_to_float(half_from_float(r->x[i / N_POS][i % N_POS]));
    }
    r->x[0] = rounded[0];
    r->x[1] = rounded[1];
    half_start_edges(r, edge);
    solve_fixed(r, 0, N_POS, edge, edge, states);
}

/* Goes once more round the tile, from first on, between the edge that the present path has there.
 * As the present path is one of the candidates the error cannot grow. */
static void solve_again(search_run *r, int first, uint16_t *const states[2]) {
    int edge[2];
    for (int t = 0; t < 2; t++) {
        edge[t] = states[t][first] >> r->c->n_bits[first & 1];
    }
    solve_fixed(r, first, N_POS, edge, edge, states);
}

/* The in-edge that position 0 has on a free path over a window round it; then a whole round between
 * this edge and itself, and one more that is cut elsewhere. */
static void search_from_window(search_run *r, int half_window, uint16_t *const states[2]) {
    int edge[2];
    r->first = N_POS - half_window;
    r->n_steps = 2 * half_window;
    for (int t = 0; t < 2; t++) {
        fill(r->w->start[t], r->w->stride, 0.0f);
    }
    run_steps(r);
    for (int t = 0; t < 2; t++) {
        int after = position(r, r->n_steps);
        int n_edges = N_STATES >> r->c->n_bits[after & 1];
        int o = lowest(costs_before(r, t, r->n_steps), n_edges, part_shift(r->c, after));
        edge[t] = trace_back(r, t, o, half_window, NULL);
    }
    solve_fixed(r, 0, N_POS, edge, edge, states);
    solve_again(r, SECOND_CUT, states);
}

/* At 2 bits and less paths merge late and the first start is often not the best one: a second,
 * from a shorter window, is tried and the better result kept. */
static void search_float(search_run *r, uint16_t *const states[2]) {
    uint16_t other[2][N_POS];
    uint16_t *const others[2] = {other[0], other[1]};
    search_from_window(r, N_POS / 2, states);
    if (r->c->k2 > TWO_STARTS_K2) return;
    search_from_window(r, N_POS / 4, others);
    for (int t = 0; t < 2; t++) {
        if (trellis_error(r->c, r->x[t], other[t]) < trellis_error(r->c, r->x[t], states[t])) {
            memcpy(states[t], other[t], sizeof other[t]);
        }
    }
}

void trellis_search_pair(const trellis_code *c, trellis_work *w, trellis_mode mode,
    const float *const x[2], uint16_t *const states[2]) {
    CHECK(w->k2 <= c->k2);
    search_run r = {c, w, mode, {x[0], x[1]}, 0, 0};
    if (mode == TRELLIS_HALF) {
        search_half(&r, states);
    } else {
        search_float(&r, states);
    }
}

void trellis_free_error_pair(
    const trellis_code *c, trellis_work *w, const float *const x[2], double error[2]) {
    CHECK(w->k2 <= c->k2);
    search_run r = {c, w, TRELLIS_FLOAT, {x[0], x[1]}, 0, N_POS};
    for (int t = 0; t < 2; t++) {
        fill(w->start[t], w->stride, 0.0f);
    }
    run_steps(&r);
    for (int t = 0; t < 2; t++) {
        const float *end = costs_before(&r, t, N_POS);
        int shift = part_shift(c, 0);
        error[t] =
            (double)end[trellis_edge_at(lowest(end, N_STATES >> c->n_bits[0], shift), shift)];
    }
}
