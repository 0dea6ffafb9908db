/* Engram's compressed token ids (model.md 10.1): tokens whose text is the same after NFKC, removal
 * of accents, lower-casing and white-space folding share one class. Plain data owned by the
 * caller; pure functions, any thread. */
#ifndef ENGINE_TEXT_COMPRESS_H
#define ENGINE_TEXT_COMPRESS_H

#include "engine/text/tokenizer.h"

typedef struct class_map {
    int32_t *classes; /* [n_tokens], class of each token id */
    int32_t n_tokens, n_classes;
} class_map;

/* Derives the table for all ids of the tokenizer. The caller frees it with class_map_release. */
int class_map_build(const tokenizer *t, class_map *out, err *e);
/* Reads {"token_map": [..]} as checkpoints without a tokenizer carry it. n_classes is the highest
 * class + 1. */
int class_map_read(const char *path, class_map *out, err *e);
void class_map_release(class_map *m);
/* SHA-256 of the table as little-endian int32. */
void class_map_sha256(const class_map *m, unsigned char digest[32]);

#endif
