/* What the prefix cache holds, for people who want to see or forget it. The step thread answers
 * between two steps, so a call may take as long as a step.
 * Threads: any; calls follow one another. */
#ifndef TANDEM_RUN_ENTRIES_H
#define TANDEM_RUN_ENTRIES_H

#include "engine/run/run.h"

/* A saved state: a request that begins with these tokens goes on behind them. */
typedef struct run_entry {
    uint64_t id;       /* never used again for another one */
    int32_t n_tokens;  /* 0: not known (an old record) */
    bool is_in_memory; /* else it lies on disk alone: of an earlier start, or given up in memory */
    bool is_on_disk;   /* a copy is there, or on its way */
} run_entry;

/* Fills up to cap entries; *n is how many there are. ERR_TIMEOUT: no step ended in time. */
int run_entries(run *r, run_entry *out, int32_t cap, int32_t *n, err *e);
/* Forgets one and the pages that only it needs, in memory and, where *was_on_disk, there; back when the
 * bytes on disk are wiped. ERR_NOT_FOUND. ERR_TIMEOUT: no step ended in time, or the disk takes long.
 * ERR_IO: it is forgotten in memory, and the disk refused; asking again tries again. */
int run_entry_drop(run *r, uint64_t id, bool *was_on_disk, err *e);

typedef struct run_wiped {
    int32_t n_entries;   /* that went */
    int32_t n_kept;      /* that running requests use */
    uint64_t disk_bytes; /* that were on disk */
} run_wiped;
/* Forgets everything that no running request uses, in memory and on disk. ERR_TIMEOUT: no step ended
 * in time, or the disk takes long. ERR_IO: the disk refused; asking again tries again. */
int run_entries_wipe(run *r, run_wiped *out, err *e);

/* The step thread, between steps. */
void run_answer_entries(run *r);
bool run_has_entries_asked(run *r);

#endif
