/* The prefix cache on disk: pages and saved states in append-only segments, found again after a
 * restart. Each record carries a checksum of its head and of its content; the manifest of a segment,
 * written after the data is on disk, names the records that count. Whatever is damaged, cut, half written or made
 * by something else is a miss and a line in the log: "cache entry dropped".
 *
 * One folder per identity (model, layout, arithmetic) below the given one, mode 0700, files 0600,
 * one process at a time. Old segments go when the budget is full (least recently used first, never
 * while one is being loaded) or when they were not used for the age limit.
 *
 * Threads: disk_open and disk_close from any one thread; everything else from the step thread,
 * which never waits for the disk to write: a writer thread does that. Reads are small and done in
 * place. Nothing allocates after disk_open. */
#ifndef TANDEM_RUN_DISK_H
#define TANDEM_RUN_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/run/prefix.h"

#define DISK_IDENTITY_BYTES 32

typedef struct disk_options {
    const char *dir;
    uint64_t budget_bytes;
    uint32_t age_hours;                    /* 0: no limit */
    uint8_t identity[DISK_IDENTITY_BYTES]; /* of model and arithmetic; the sizes below are added */
    uint64_t layout_hash;
    int32_t page_tokens;
    size_t page_bytes, snapshot_bytes;
    void (*wake)(void *ctx); /* from the writer thread: there is room again */
    void *wake_ctx;
} disk_options;

typedef struct disk_cache disk_cache;

/* What a record is about. A page: its tokens and bytes. A mark: the state behind a whole page, or
 * with the tokens and the page of the rest. */
enum { DISK_PAGE = 1, DISK_MARK, DISK_TAIL };

typedef struct disk_name {
    int32_t type;
    int32_t n_tokens;   /* of the page or tail; 0 for DISK_MARK */
    prefix_hash self;   /* of the sequence up to and with these tokens */
    prefix_hash parent; /* of the whole pages before them (DISK_MARK: the same as self) */
    int32_t n_all;      /* no part of the name: tokens of the sequence, for lists; 0: not known */
} disk_name;

/* Makes the folder, takes its lock, reads the manifest, starts the writer. */
int disk_open(const disk_options *options, disk_cache **out, err *e);
/* Writes what was given and not yet written, then ends. NULL is fine. */
void disk_close(disk_cache *d);

/* ---- looking ---- */

bool disk_has(disk_cache *d, const disk_name *name);
/* Calls fn with each tail below parent until it returns false. */
void disk_each_tail(disk_cache *d, const prefix_hash *parent,
    bool (*fn)(void *ctx, const disk_name *name), void *ctx);

/* The saved states (marks and tails) that are there, each with a number that is never used again. A new
 * look begins with disk_look; disk_pass tells whether a state is there, and then the look goes on
 * without it; disk_next_state gives the next one behind place i (-1: the first), -1: no more. */
typedef struct disk_state {
    uint64_t serial;
    disk_name name;
} disk_state;
void disk_look(disk_cache *d);
bool disk_pass(disk_cache *d, const disk_name *name);
int32_t disk_next_state(const disk_cache *d, int32_t i, disk_state *out);

/* While a prefix is loaded no segment goes away. */
void disk_load_begin(disk_cache *d);
void disk_load_end(disk_cache *d);
/* Where a record's parts lie in memory after disk_read; valid until the next call. */
typedef struct disk_record {
    const int32_t *tokens; /* [n_tokens] */
    const void *page;      /* NULL for DISK_MARK */
    const void *snapshot;  /* NULL for DISK_PAGE */
} disk_record;
/* Reads and checks one record. ERR_NOT_FOUND, ERR_FORMAT, ERR_IO: it counts no longer. */
int disk_read(disk_cache *d, const disk_name *name, disk_record *out, err *e);

/* ---- forgetting ---- */

/* What is forgotten is not found again, here or after a restart. After disk_forget_end the writer wipes
 * the bytes and the names of what was forgotten since the last time, gives the room back, and removes
 * the files that hold nothing else; disk_is_quiet (any thread) tells when it is through, with that and
 * with what was still on its way to the disk. */

/* Room for n records to be forgotten at once; without it some may stay. */
bool disk_can_forget(const disk_cache *d, int32_t n);
/* is_given: it may be on its way to the disk; it is forgotten when it is there. False: there is none. */
bool disk_forget(disk_cache *d, const disk_name *name, bool is_given);
/* Pages of one sequence, from its end: chain[i + 1] is the parent of chain[i], for i < n. Forgets them
 * from the first on, up to one that another record needs, and pages behind them that no state needs.
 * False: there was none. */
typedef struct disk_link {
    prefix_hash hash;
    bool is_given; /* may be on its way to the disk */
} disk_link;
bool disk_forget_pages(disk_cache *d, const disk_link *chain, int32_t n);
/* The same for one page; *parent is its parent. False: there is none, or another record needs it. */
bool disk_forget_page(disk_cache *d, const prefix_hash *self, prefix_hash *parent);
void disk_forget_end(disk_cache *d);
bool disk_is_quiet(disk_cache *d);
/* When it is quiet: records that were to go and are there still, because the disk refused; a restart
 * may bring them back. disk_forget_end, disk_wipe and the writer by itself try again. Any thread. */
int32_t disk_left(const disk_cache *d);

/* Everything is forgotten: what was written and what is on its way. The files go after what the writer
 * has in hand; disk_is_quiet tells when. False: so many wait for the writer that this one has to be
 * asked for again. */
bool disk_wipe(disk_cache *d);

/* ---- writing ---- */

/* A place for the content of one record, NULL if the writer is behind or pauses. The caller fills
 * tokens, page and snapshot as the type demands and then calls disk_give. */
typedef struct disk_place {
    int32_t *tokens;
    void *page, *snapshot;
    int32_t i_slot;
} disk_place;
bool disk_take_place(disk_cache *d, int32_t type, disk_place *out);
/* ends_group: everything given so far is to be put on disk and into the manifest now. */
void disk_give(disk_cache *d, const disk_place *place, const disk_name *name, bool ends_group);
/* Not used after all. */
void disk_return(disk_cache *d, const disk_place *place);
/* Takes the writer's news; call it once a step. */
void disk_poll(disk_cache *d);
/* Grows whenever records that were given may be missing: give them again if they matter. */
uint32_t disk_epoch(const disk_cache *d);
/* Some of what was given is on its way: not to be found yet, and perhaps on disk already. */
bool disk_is_writing(const disk_cache *d);
/* disk_take_place would give one. */
bool disk_has_room(const disk_cache *d);

/* Any thread. */
typedef struct disk_counts {
    uint64_t bytes, n_records, n_written_bytes, n_read_bytes, n_dropped, n_errors;
} disk_counts;
void disk_count(disk_cache *d, disk_counts *out);

#endif
