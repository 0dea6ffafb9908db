/* Data that npm packages carry, for tests: fetched once into build/fetch. */
#ifndef TESTS_HARNESS_NPM_PACKAGE_H
#define TESTS_HARNESS_NPM_PACKAGE_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

/* The folder draft2020-12 of the JSON-Schema test suite, appended to dir. ERR_NOT_FOUND with the
 * reason when it cannot be had. */
int npm_schema_suite(buf *dir, err *e);

#endif
