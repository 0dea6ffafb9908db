/* How the C library's allocator is to behave in a process that runs for weeks: one arena, and large
 * blocks go back to the system when they are freed. Without this its memory grows for hours although
 * nothing is lost: each thread of a connection gets an arena, of which malloc_trim() never cuts the
 * end, and the size from which blocks are given back rises with the largest one that was freed. */
#include <malloc.h>

#include "engine/daemon_internal.h"

#define ARENAS 1
#define MMAP_BYTES (128 << 10)
#define TRIM_BYTES (1 << 20)

void daemon_calm_memory(void) {
#ifdef __GLIBC__
    (void)mallopt(M_ARENA_MAX, ARENAS);
    (void)mallopt(M_MMAP_THRESHOLD, MMAP_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, TRIM_BYTES);
#endif
}
