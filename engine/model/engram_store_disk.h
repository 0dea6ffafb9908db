/* The Engram store over packed files (engram_file.h): one thread owns an io_uring and keeps many
 * aligned direct reads in flight; rows that were read stay in a small cache in memory; hints fill
 * the cache ahead. Every block is checked against its checksum when it comes. Where the kernel has
 * no io_uring the thread reads one block at a time.
 *
 * A read that fails, is damaged twice or is late does not fail the step: its record becomes all NaN,
 * so that the rows which need it, and no others, are found by the guard at the end of the step; wait
 * then returns ERR_IO, ERR_FORMAT or ERR_TIMEOUT with the first reason. */
#ifndef TANDEM_ENGINE_MODEL_ENGRAM_STORE_DISK_H
#define TANDEM_ENGINE_MODEL_ENGRAM_STORE_DISK_H

#include "engine/model/config.h"
#include "engine/model/engram_store.h"

typedef struct engram_disk_options {
    const char *const *paths; /* [n_tables], one file each */
    int n_tables;
    int d;
    int max_records; /* of one request; 0: 65536 */
    int n_tickets;   /* requests at a time, at most ENGRAM_MAX_TICKETS; 0: 4 */
    int depth;       /* reads in flight; 0: 256 */
    size_t cache_bytes;
    bool without_ring; /* read one block at a time */
    int test_delay_ms; /* tests: every block comes so much later */
} engram_disk_options;

/* ERR_NOT_FOUND, ERR_FORMAT (the header is wrong or the file unfinished), ERR_MISMATCH (d). */
int engram_store_disk_open(const engram_disk_options *options, engram_store **out, err *e);
/* Opens DIR's files for a rank: its own half, or the whole table. ERR_NOT_FOUND when a layer has
 * neither; ERR_MISMATCH when a file is of another model. Only paths, n_tables and d of the options
 * are ignored. */
int engram_store_dir_open(const char *dir, const model_config *c, const int rank_world[2],
    const engram_disk_options *options, engram_store **out, err *e);
/* Makes n records of d values that are all NaN. */
void engram_record_poison(uint8_t *records, int n, int d);

#endif
