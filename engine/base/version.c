#include "engine/base/version.h"

/* The Makefile links the true one into programs; tests, which must not be linked again with every
 * commit, have this. */
extern const char tandem_build_id[];
__attribute__((weak)) const char tandem_build_id[] = "unknown";

const char *version_build_id(void) {
    return tandem_build_id;
}
