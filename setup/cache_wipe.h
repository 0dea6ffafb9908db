/* Removing what the cache of prompts left on a disk (engine/run/disk.h): one folder per model and build
 * below DATA/cache, with segments, manifests and a lock. Nothing else is touched, symbolic links are
 * not followed, and a folder whose lock an engine holds is left to that engine. Any thread. */
#ifndef SETUP_CACHE_WIPE_H
#define SETUP_CACHE_WIPE_H

#include <stdint.h>

#include "engine/base/err.h"

typedef struct cache_wiped {
    uint64_t n_files, bytes;
    int n_busy; /* folders that an engine uses right now */
} cache_wiped;

/* dir: DATA/cache. One that is not there is empty. */
int cache_wipe(const char *dir, cache_wiped *out, err *e);

#endif
