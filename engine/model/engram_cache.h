/* Records that were read lately, in memory: 4-way sets, the longest unused goes. Used under its
 * owner's lock. */
#ifndef TANDEM_ENGINE_MODEL_ENGRAM_CACHE_H
#define TANDEM_ENGINE_MODEL_ENGRAM_CACHE_H

#include <stddef.h>
#include <stdint.h>

typedef struct engram_cache engram_cache;
/* NULL when not even one set fits, or there is no memory. */
engram_cache *engram_cache_new(size_t bytes, size_t record_bytes);
void engram_cache_free(engram_cache *c);
/* The record, valid until the next put, or NULL. c NULL: NULL. */
const uint8_t *engram_cache_get(engram_cache *c, int i_table, int64_t row);
void engram_cache_put(engram_cache *c, int i_table, int64_t row, const uint8_t *record);

#endif
