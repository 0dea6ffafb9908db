#include "engine/run/copy_draft.h"

#include <string.h>

#include "engine/base/mem.h"

/* Places kept; a power of two. Older places of the same slot are overwritten: only a hint is lost. */
#define PLACES (1 << 14)
/* Of a long prompt only the newest part is indexed, so that a first look stays short. */
#define LOOK_BACK (1 << 16)
#define HASH_PRIME 0x9e3779b97f4a7c15u

struct copy_draft {
    int32_t n_indexed;     /* runs that end before this position are in */
    int32_t place[PLACES]; /* position behind the run; 0: none */
};

copy_draft *copy_draft_new(void) {
    return mem_alloc(sizeof(copy_draft));
}

void copy_draft_free(copy_draft *c) {
    mem_free(c);
}

void copy_draft_reset(copy_draft *c) {
    memset(c, 0, sizeof *c);
}

static uint32_t slot_of(const int32_t *run) {
    uint64_t h = 0;
    for (int i = 0; i < COPY_KEY; i++) {
        h = (h ^ (uint32_t)run[i]) * HASH_PRIME;
        h ^= h >> 31;
    }
    return (uint32_t)(h >> 20) & (PLACES - 1);
}

int32_t copy_draft_find(
    copy_draft *c, const int32_t *tokens, int32_t n, int32_t most, int32_t *drafts) {
    if (n <= COPY_KEY) return 0;
    if (c->n_indexed < n - LOOK_BACK) c->n_indexed = n - LOOK_BACK;
    if (c->n_indexed < COPY_KEY) c->n_indexed = COPY_KEY;
    for (; c->n_indexed < n; c->n_indexed++) {
        c->place[slot_of(tokens + c->n_indexed - COPY_KEY)] = c->n_indexed;
    }
    const int32_t *key = tokens + n - COPY_KEY;
    int32_t at = c->place[slot_of(key)];
    if (at == 0 || memcmp(tokens + at - COPY_KEY, key, COPY_KEY * sizeof *key) != 0) return 0;
    int32_t n_drafts = n - at < most ? n - at : most;
    memcpy(drafts, tokens + at, (size_t)n_drafts * sizeof *drafts);
    return n_drafts;
}
