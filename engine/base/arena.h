#ifndef TANDEM_BASE_ARENA_H
#define TANDEM_BASE_ARENA_H
/* Memory that is given back all at once: what a turn, a request or a parse needs until it ends. Owns
 * its blocks. One thread at a time. Pointers stay valid until arena_reset or arena_release. */
#include <stddef.h>

typedef struct arena_block arena_block;
typedef struct arena {
    arena_block *newest;
    size_t used_bytes; /* what was asked for, without rounding of blocks */
    size_t max_bytes;  /* arena_try_alloc refuses beyond this; 0 means no limit */
} arena;
#define ARENA_INIT                                                                                 \
    { NULL, 0, 0 }
#define ARENA_MAX(n)                                                                               \
    { NULL, 0, (n) }

/* Zeroed, aligned for any type; ends the process when there is no memory or past the limit. */
void *arena_alloc(arena *a, size_t n);
/* NULL when there is no memory or past the limit: for sizes that come from outside. */
void *arena_try_alloc(arena *a, size_t n);
char *arena_strdup(arena *a, const char *s);
char *arena_strndup(arena *a, const char *s, size_t n);
/* Empty; keeps the newest block for what comes. */
void arena_reset(arena *a);
void arena_release(arena *a);

#endif
