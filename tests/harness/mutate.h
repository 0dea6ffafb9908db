/* Damages texts for fuzzers and for tests that replay seeds: the same start gives the same damage on
 * every machine. One thread. */
#ifndef TESTS_HARNESS_MUTATE_H
#define TESTS_HARNESS_MUTATE_H

#include "engine/base/buf.h"
#include "engine/base/rand.h"

/* Changes, takes out, repeats or adds a few bytes; other (may be NULL or empty) gives a part of
 * itself at times. Never longer than max. */
void mutate_bytes(rand_state *r, buf *b, const buf *other, size_t max);
/* The same for JSON: one value becomes another, an odd one or one of the same text, so that most
 * results are JSON again. */
void mutate_json(rand_state *r, buf *b, size_t max);

#endif
