/* The hash constants of the Engram layers: multipliers as numpy's default_rng draws them, table
 * sizes from the primes above engram_vocab_size. Both are derived and checked, never read. */
#include "engine/model/config.h"
#include "engine/model/config_internal.h"

typedef unsigned __int128 u128;

typedef struct pcg64 {
    u128 state, inc;
} pcg64;

/* ---- numpy's SeedSequence (pool of four words) ---- */

enum { SEED_POOL = 4 };

static uint32_t seed_hash(uint32_t value, uint32_t *k) {
    value ^= *k;
    *k *= 0x931e8875u;
    value *= *k;
    return value ^ (value >> 16);
}

static uint32_t seed_mix(uint32_t x, uint32_t y) {
    uint32_t r = 0xca01f9ddu * x - 0x4973f715u * y;
    return r ^ (r >> 16);
}

static void seed_pool(uint64_t seed, uint32_t pool[SEED_POOL]) {
    uint32_t entropy[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    int n_words = entropy[1] != 0 ? 2 : 1;
    uint32_t k = 0x43b0d7e5u;
    for (int i = 0; i < SEED_POOL; i++) {
        pool[i] = seed_hash(i < n_words ? entropy[i] : 0, &k);
    }
    for (int src = 0; src < SEED_POOL; src++) {
        for (int dst = 0; dst < SEED_POOL; dst++) {
            if (src != dst) {
                pool[dst] = seed_mix(pool[dst], seed_hash(pool[src], &k));
            }
        }
    }
}

static void seed_state(const uint32_t pool[SEED_POOL], uint64_t out[4]) {
    uint32_t k = 0x8b51f9ddu;
    uint32_t words[8];
    for (int i = 0; i < 8; i++) {
        uint32_t v = pool[i % SEED_POOL] ^ k;
        k *= 0x58f38dedu;
        v *= k;
        words[i] = v ^ (v >> 16);
    }
    for (int i = 0; i < 4; i++) {
        out[i] = (uint64_t)words[2 * i] | (uint64_t)words[2 * i + 1] << 32;
    }
}

/* ---- PCG64, output XSL-RR ---- */

static void pcg64_step(pcg64 *g) {
    const u128 mult = (u128)2549297995355413924u << 64 | 4865540595714422341u;
    g->state = g->state * mult + g->inc;
}

static void pcg64_seed(pcg64 *g, uint64_t seed) {
    uint32_t pool[SEED_POOL];
    uint64_t v[4];
    seed_pool(seed, pool);
    seed_state(pool, v);
    g->state = 0;
    g->inc = ((u128)v[2] << 64 | v[3]) << 1 | 1;
    pcg64_step(g);
    g->state += (u128)v[0] << 64 | v[1];
    pcg64_step(g);
}

static uint64_t pcg64_next(pcg64 *g) {
    pcg64_step(g);
    uint64_t x = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    unsigned rot = (unsigned)(g->state >> 122);
    return x >> rot | x << ((64 - rot) & 63);
}

/* Lemire's bounded draw, as numpy does it for bounds above 2^32. */
static uint64_t pcg64_below(pcg64 *g, uint64_t bound) {
    u128 m = (u128)pcg64_next(g) * bound;
    if ((uint64_t)m < bound) {
        uint64_t threshold = (0 - bound) % bound;
        while ((uint64_t)m < threshold) {
            m = (u128)pcg64_next(g) * bound;
        }
    }
    return (uint64_t)(m >> 64);
}

void engram_numpy_integers(uint64_t seed, uint64_t bound, int n, uint64_t *out) {
    pcg64 g;
    pcg64_seed(&g, seed);
    for (int i = 0; i < n; i++) {
        out[i] = pcg64_below(&g, bound);
    }
}

double engram_numpy_double(uint64_t seed) {
    pcg64 g;
    pcg64_seed(&g, seed);
    return (double)(pcg64_next(&g) >> 11) * (1.0 / 9007199254740992.0);
}

/* ---- primes ---- */

static bool is_prime(int64_t n) {
    if (n < 2) {
        return false;
    }
    if (n % 2 == 0) {
        return n == 2;
    }
    for (int64_t d = 3; d * d <= n; d += 2) {
        if (n % d == 0) {
            return false;
        }
    }
    return true;
}

/* Whether a column before this one (of any Engram layer) already took the prime. */
static bool is_taken(const model_config *c, int i_engram, int column, int64_t prime) {
    for (int i = 0; i <= i_engram; i++) {
        int n = i < i_engram ? c->n_hashes : column;
        for (int k = 0; k < n; k++) {
            if (c->engram[i].primes[k] == prime) {
                return true;
            }
        }
    }
    return false;
}

static void find_primes(model_config *c, int i_engram) {
    engram_plan *p = &c->engram[i_engram];
    int64_t candidate = c->engram_vocab;
    for (int column = 0; column < c->n_hashes; column++) {
        if (column % c->engram_heads == 0) {
            candidate = c->engram_vocab;
        }
        while (!is_prime(candidate) || is_taken(c, i_engram, column, candidate)) {
            candidate++;
        }
        p->primes[column] = candidate;
        p->offsets[column] = p->n_rows;
        p->n_rows += candidate;
    }
}

void engram_plan_fill(model_config *c) {
    uint64_t bound = (uint64_t)INT64_MAX / (uint64_t)c->n_classes / 2;
    for (int i = 0; i < c->n_engram; i++) {
        engram_plan *p = &c->engram[i];
        uint64_t draws[MODEL_MAX_NGRAM];
        engram_numpy_integers(10007u * (uint64_t)p->layer, bound, c->max_ngram, draws);
        for (int k = 0; k < c->max_ngram; k++) {
            p->multipliers[k] = (int64_t)(draws[k] * 2 + 1);
        }
        p->n_rows = 0;
        find_primes(c, i);
    }
}
