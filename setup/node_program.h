/* tandem-node on the worker: the copy beside this program, put there once and compared by digest. */
#ifndef SETUP_NODE_PROGRAM_H
#define SETUP_NODE_PROGRAM_H

#include <limits.h>

#include "setup/node_access.h"

/* Puts tandem-node into ROOT/.tandem there unless the same is there already, and sees that it runs.
 * program gets its path. ERR_MISMATCH: it did not arrive whole. */
int node_program_put(node_access *worker, const char *root, char program[PATH_MAX], err *e);

#endif
