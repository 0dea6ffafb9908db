#include "engine/base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <string.h>

#include "engine/base/mem.h"

#define BLOCK_BYTES 8192

struct arena_block {
    arena_block *older;
    size_t cap;
    size_t used;
    alignas(max_align_t) unsigned char data[];
};

void *arena_try_alloc(arena *a, size_t n) {
    size_t align = alignof(max_align_t);
    if (n > SIZE_MAX / 2) return NULL;
    size_t need = n == 0 ? align : (n + align - 1) / align * align;
    if (a->max_bytes != 0 &&
        (a->used_bytes > a->max_bytes || need > a->max_bytes - a->used_bytes)) {
        return NULL;
    }
    arena_block *b = a->newest;
    if (b == NULL || b->cap - b->used < need) {
        size_t cap = need > BLOCK_BYTES / 2 ? need : BLOCK_BYTES;
        b = mem_try_alloc(sizeof *b + cap);
        if (b == NULL) return NULL;
        b->cap = cap;
        b->older = a->newest;
        a->newest = b;
        /* A large one goes behind the block that still has room for small ones. */
        if (cap == need && b->older != NULL && b->older->used < b->older->cap) {
            a->newest = b->older;
            b->older = a->newest->older;
            a->newest->older = b;
        }
    }
    void *p = b->data + b->used;
    b->used += need;
    a->used_bytes += need;
    return p;
}

void *arena_alloc(arena *a, size_t n) {
    void *p = arena_try_alloc(a, n);
    CHECK_MSG(p != NULL, "arena: no room for %zu bytes (%zu of %zu used)", n, a->used_bytes,
        a->max_bytes);
    return p;
}

char *arena_strndup(arena *a, const char *s, size_t n) {
    size_t len = strnlen(s, n);
    char *copy = arena_alloc(a, len + 1);
    memcpy(copy, s, len);
    return copy;
}

char *arena_strdup(arena *a, const char *s) {
    return arena_strndup(a, s, SIZE_MAX - 1);
}

static void blocks_free(arena_block *b) {
    while (b != NULL) {
        arena_block *older = b->older;
        mem_free(b);
        b = older;
    }
}

void arena_reset(arena *a) {
    a->used_bytes = 0;
    if (a->newest == NULL) return;
    blocks_free(a->newest->older);
    a->newest->older = NULL;
    memset(a->newest->data, 0, a->newest->used);
    a->newest->used = 0;
}

void arena_release(arena *a) {
    blocks_free(a->newest);
    a->newest = NULL;
    a->used_bytes = 0;
}
