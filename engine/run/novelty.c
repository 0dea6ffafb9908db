#include "engine/run/novelty.h"

#include <string.h>

#include "engine/base/mem.h"

#define RUN_LEN 6
#define WINDOW 512
#define NEW_MIN (WINDOW / 10)
#define SEEN_BITS (1u << 17)
/* A fuller table would call new runs known. */
#define SEEN_MAX (SEEN_BITS / 16)

struct novelty {
    uint64_t seen[SEEN_BITS / 64];
    int32_t last[RUN_LEN];
    bool is_new[WINDOW];
    uint32_t n_seen, n_new;
    uint64_t n_taken;
};

novelty *novelty_new(void) {
    return mem_alloc(sizeof(novelty));
}

void novelty_free(novelty *v) {
    mem_free(v);
}

void novelty_reset(novelty *v) {
    memset(v, 0, sizeof *v);
}

static uint32_t place_of(const novelty *v) {
    uint64_t h = 0x9E3779B97F4A7C15u;
    for (uint64_t i = 0; i < RUN_LEN; i++) {
        h ^= (uint32_t)v->last[(v->n_taken + i) % RUN_LEN];
        h *= 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    return (uint32_t)(h % SEEN_BITS);
}

static bool note(novelty *v, uint32_t place) {
    uint64_t bit = (uint64_t)1 << (place % 64);
    if ((v->seen[place / 64] & bit) != 0) return false;
    if (v->n_seen == SEEN_MAX) {
        memset(v->seen, 0, sizeof v->seen);
        v->n_seen = 0;
    }
    v->seen[place / 64] |= bit;
    v->n_seen++;
    return true;
}

bool novelty_take(novelty *v, int32_t token) {
    v->last[v->n_taken % RUN_LEN] = token;
    v->n_taken++;
    bool is_new = v->n_taken < RUN_LEN || note(v, place_of(v));
    bool *slot = &v->is_new[v->n_taken % WINDOW];
    if (v->n_taken > WINDOW) v->n_new -= *slot;
    *slot = is_new;
    v->n_new += is_new;
    return v->n_taken >= WINDOW && v->n_new < NEW_MIN;
}
