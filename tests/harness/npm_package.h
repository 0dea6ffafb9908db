/* Data that packages of npm and Debian carry, for tests: fetched once into build/fetch. */
#ifndef TESTS_HARNESS_NPM_PACKAGE_H
#define TESTS_HARNESS_NPM_PACKAGE_H

#include "engine/base/buf.h"
#include "engine/base/err.h"

/* The folder of the JSON-Schema test suite that npm has, appended to dir: draft 4, whose spellings
 * are accepted too. ERR_NOT_FOUND with the reason when it cannot be had. */
int npm_schema_suite(buf *dir, err *e);
/* The same of draft 2020-12, which no package of npm carries but one of Debian does; it is
 * unpacked, not installed. */
int deb_schema_suite(buf *dir, err *e);

#endif
