/* A small validator of JSON Schema for tests, written without a look at the compiler: it recurses
 * over the value, keeps no state, and knows the common keywords only. One thread. */
#ifndef TESTS_HARNESS_SCHEMA_CHECK_H
#define TESTS_HARNESS_SCHEMA_CHECK_H

#include <stdbool.h>

#include "engine/base/json.h"

/* Whether the validator knows every keyword that the schema uses anywhere. */
bool schema_check_knows(const json *schema);
/* Whether value fulfils schema; root is the document for references. */
bool schema_check(const json *root, const json *schema, const json *value);

#endif
