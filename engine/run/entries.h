/* What the prefix cache holds, for people who want to see or forget it. The step thread answers
 * between two steps, so a call may take as long as a step.
 * Threads: any; calls follow one another. */
#ifndef TANDEM_RUN_ENTRIES_H
#define TANDEM_RUN_ENTRIES_H

#include "engine/run/run.h"

/* A saved state: a request that begins with these tokens goes on behind them. */
typedef struct run_entry {
    uint64_t id; /* never used again for another one */
    int32_t n_tokens;
    bool is_on_disk; /* a copy was written */
} run_entry;

/* Fills up to cap entries; *n is how many there are. ERR_TIMEOUT: no step ended in time. */
int run_entries(run *r, run_entry *out, int32_t cap, int32_t *n, err *e);
/* Forgets one and the pages that only it needs, in memory and, where *was_on_disk, there.
 * ERR_NOT_FOUND. */
int run_entry_drop(run *r, uint64_t id, bool *was_on_disk, err *e);

typedef struct run_wiped {
    int32_t n_entries;   /* that went */
    int32_t n_kept;      /* that running requests use */
    uint64_t disk_bytes; /* that were on disk */
} run_wiped;
/* Forgets everything that no running request uses, in memory and on disk. ERR_TIMEOUT: no step ended
 * in time, or the disk takes long. */
int run_entries_wipe(run *r, run_wiped *out, err *e);

/* The step thread, between steps. */
void run_answer_entries(run *r);
bool run_has_entries_asked(run *r);

#endif
