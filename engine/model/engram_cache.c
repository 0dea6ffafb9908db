#include "engine/model/engram_cache.h"

#include <string.h>

#include "engine/base/mem.h"
#include "engine/base/rand.h"

enum { CACHE_WAYS = 4 };

typedef struct cache_entry {
    uint64_t tag; /* 0: empty */
    uint64_t used;
} cache_entry;

struct engram_cache {
    size_t n_sets; /* a power of two */
    size_t record_bytes;
    uint64_t now;
    cache_entry *entries; /* [n_sets][CACHE_WAYS] */
    uint8_t *records;
};

engram_cache *engram_cache_new(size_t bytes, size_t record_bytes) {
    size_t per_set = CACHE_WAYS * (record_bytes + sizeof(cache_entry));
    if (bytes < per_set) return NULL;
    engram_cache *c = mem_alloc(sizeof *c);
    c->record_bytes = record_bytes;
    c->n_sets = 1;
    while (c->n_sets * 2 * per_set <= bytes) {
        c->n_sets *= 2;
    }
    c->entries = mem_try_alloc(c->n_sets * CACHE_WAYS * sizeof *c->entries);
    c->records = mem_try_alloc(c->n_sets * CACHE_WAYS * record_bytes);
    if (c->entries != NULL && c->records != NULL) {
        memset(c->entries, 0, c->n_sets * CACHE_WAYS * sizeof *c->entries);
        return c;
    }
    engram_cache_free(c);
    return NULL;
}

void engram_cache_free(engram_cache *c) {
    if (c == NULL) return;
    mem_free(c->entries);
    mem_free(c->records);
    mem_free(c);
}

static uint64_t tag_of(int i_table, int64_t row) {
    return ((uint64_t)row << 4 | (uint64_t)(unsigned)i_table) + 1;
}

static cache_entry *set_of(const engram_cache *c, uint64_t tag) {
    return &c->entries[(rand_mix(tag) & (c->n_sets - 1)) * CACHE_WAYS];
}

static uint8_t *record_of(const engram_cache *c, const cache_entry *entry) {
    return c->records + (size_t)(entry - c->entries) * c->record_bytes;
}

const uint8_t *engram_cache_get(engram_cache *c, int i_table, int64_t row) {
    if (c == NULL) return NULL;
    uint64_t tag = tag_of(i_table, row);
    cache_entry *set = set_of(c, tag);
    for (int i = 0; i < CACHE_WAYS; i++) {
        if (set[i].tag != tag) continue;
        set[i].used = ++c->now;
        return record_of(c, &set[i]);
    }
    return NULL;
}

void engram_cache_put(engram_cache *c, int i_table, int64_t row, const uint8_t *record) {
    if (c == NULL) return;
    uint64_t tag = tag_of(i_table, row);
    cache_entry *set = set_of(c, tag), *victim = set;
    for (int i = 0; i < CACHE_WAYS; i++) {
        if (set[i].tag == tag) {
            victim = &set[i];
            break;
        }
        victim = set[i].used < victim->used ? &set[i] : victim;
    }
    victim->tag = tag;
    victim->used = ++c->now;
    memcpy(record_of(c, victim), record, c->record_bytes);
}
