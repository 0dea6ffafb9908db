/* Counting and naming of vectors, for runners whose folder comes from outside. One thread. */
#ifndef TESTS_HARNESS_VECTORS_H
#define TESTS_HARNESS_VECTORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/json.h"

typedef struct vectors {
    int passed, failed, skipped;
} vectors;

/* GOLDEN_DIR or CASES_DIR, else the copies in tests/data. */
const char *vectors_golden_dir(void);
const char *vectors_cases_dir(void);
/* Reads DIR/NAME as JSON; ends the program with a message when that fails. */
json *vectors_load(const char *dir, const char *name);
/* Counts one vector; a failure is printed with both texts (at most 600 bytes of each, from a
 * little before the first difference). Returns whether they were equal. */
bool vectors_text(vectors *v, const char *id, const char *what, const buf *want, const buf *got);
void vectors_pass(vectors *v);
void vectors_fail(vectors *v, const char *id, const char *want, const char *got);
void vectors_skip(vectors *v, const char *id, const char *why);
/* Processor time of this thread, for vectors that bound it: what else the machine does is no fault. */
int64_t vectors_cpu_ms(void);
/* The plain line "N passed, N failed, N skipped". Returns the exit status. */
int vectors_end(const vectors *v);

#endif
