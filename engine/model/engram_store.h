/* Where Engram rows come from. A store answers reads of whole records (d E4M3 values followed by
 * d/32 UE8M0 scales) by row number; reads are requested before the step needs them and waited for
 * with a deadline, so a store on disk overlaps with computing. The table of functions lets the
 * in-memory store (tables inside the checkpoint) and the io_uring store (repacked tables of any
 * size) stand behind the same calls.
 *
 * Threads: begin, wait and hint are called by the step thread only; a store may use threads of its
 * own inside. A ticket is one outstanding request; at most ENGRAM_MAX_TICKETS at a time. The
 * destination of a request is borrowed until its wait returned. Nothing allocates after open. */
#ifndef TANDEM_ENGINE_MODEL_ENGRAM_STORE_H
#define TANDEM_ENGINE_MODEL_ENGRAM_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/histogram.h"

enum { ENGRAM_MAX_TICKETS = 64, ENGRAM_SCALE_BLOCK = 32 };

typedef struct engram_store engram_store;

typedef struct engram_store_stats {
    uint64_t n_rows;   /* records delivered */
    uint64_t n_cached; /* of these from memory */
    uint64_t wait_ns;  /* time the step thread waited */
    uint64_t n_errors;
    uint64_t n_ahead;              /* records hinted that are in memory now */
    histogram_counts read_seconds; /* of a request, from begin to its last record; bounds below */
} engram_store_stats;
extern const metric_bounds ENGRAM_READ_SECONDS;

typedef struct engram_store_ops {
    /* Starts reading n records of table i_table into out [n][record_bytes]; *ticket >= 0. ERR_BUSY:
     * too many open. */
    int (*begin)(engram_store *s, int i_table, const int64_t *rows, int n, uint8_t *out,
        int *ticket, err *e);
    /* Waits until the request is complete; deadline_ns is on clock_mono_ns. The request is over
     * either way: after ERR_TIMEOUT, ERR_IO or ERR_FORMAT (which name the file or the reason) the
     * records that did not come are all NaN, the others are right. */
    int (*wait)(engram_store *s, int ticket, uint64_t deadline_ns, err *e);
    /* These records will probably be asked for soon (the next slice of a prompt, drafted tokens).
     * Read when nothing that is waited for is; never blocks. NULL: nothing can be read ahead. */
    void (*hint)(engram_store *s, int i_table, const int64_t *rows, int n);
    /* Any thread. */
    void (*stats)(const engram_store *s, engram_store_stats *out);
    void (*close)(engram_store *s);
} engram_store_ops;

/* Every store begins with this. */
struct engram_store {
    const engram_store_ops *ops;
    int n_tables;
    int d; /* values of a record */
};

static inline size_t engram_record_bytes(int d) {
    return (size_t)d + (size_t)((d + ENGRAM_SCALE_BLOCK - 1) / ENGRAM_SCALE_BLOCK);
}

/* One table in memory (borrowed, e.g. a mapped checkpoint): values [n_rows][d] E4M3, scales
 * [n_rows][d/32] UE8M0. */
typedef struct engram_table {
    const uint8_t *values;
    const uint8_t *scales;
    int64_t n_rows;
} engram_table;

/* A store over tables in memory; copies the descriptions, borrows the bytes. */
int engram_store_memory_open(
    const engram_table *tables, int n_tables, int d, engram_store **out, err *e);
/* Closes any store. NULL allowed. */
void engram_store_close(engram_store *s);

#endif
