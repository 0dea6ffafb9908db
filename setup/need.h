/* What is still missing of a profile on each machine: bytes of the manifest's files that are not there,
 * and of the prepared files that are not made yet (setup.md 4.4, D2). Agentless: one listing a
 * machine. One thread. */
#ifndef SETUP_NEED_H
#define SETUP_NEED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "setup/manifest.h"
#include "setup/node_access.h"
#include "setup/settings.h"

typedef struct need {
    uint64_t files_bytes;    /* of the manifest, missing here */
    uint64_t prepared_bytes; /* estimate for the rank pack; 0: it is there */
    size_t n_files, n_there; /* of the manifest, for this machine */
    size_t n_verified;       /* have a record that their digest was compared */
    char wrong[256];         /* first file whose record names another digest; "" */
} need;

/* i_node: 0 head, 1 worker. ERR_ARG: no data folder is set. A folder that is not there yet is empty. */
int need_find(node_access *n, const settings *s, const manifest *m, int i_node, need *out, err *e);

#endif
