/* Data that npm packages carry, for tests: fetched once into build/fetch. */
#ifndef TESTS_HARNESS_NPM_PACKAGE_H
#define TESTS_HARNESS_NPM_PACKAGE_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

/* The folder of the JSON-Schema test suite that npm has, appended to dir: draft 4, whose spellings
 * are accepted too; no package carries draft 2020-12. ERR_NOT_FOUND with the reason when it cannot
 * be had. */
int npm_schema_suite(buf *dir, err *e);

#endif
