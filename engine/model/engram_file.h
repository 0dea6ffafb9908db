/* An Engram table as a file: one record of d + d/32 bytes a row, as many whole records as fit in a
 * block of 4 KiB with the block's checksum, so that one aligned read brings a row and proves it.
 *
 *   block 0     header: magic "TDENGRAM", version, sizes, range of rows, layer, where the table came
 *               from, how far it is written, CRC of the header
 *   block 1..   records_per_block records, zeros, then 8 bytes: CRC32C over the block before it,
 *               started with the block's number
 *
 * A file may hold a range of the table's rows: the columns of a rank are such a range (column c of
 * the hash owns rows offset[c] .. offset[c + 1] - 1). Little-endian. While it is being written its
 * name ends in .part; n_done says how many blocks are safe, so writing can go on after a kill. */
#ifndef TANDEM_ENGINE_MODEL_ENGRAM_FILE_H
#define TANDEM_ENGINE_MODEL_ENGRAM_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/model/config.h"

enum { ENGRAM_BLOCK = 4096, ENGRAM_BLOCK_TAIL = 8, ENGRAM_FILE_VERSION = 1 };

typedef struct engram_header {
    int32_t layer, d, record_bytes, records_per_block;
    int64_t table_rows;        /* of the whole table */
    int64_t first_row, n_rows; /* of this file */
    int64_t n_blocks;          /* of records */
    int64_t n_done;            /* blocks that are written and synced */
    uint64_t source;           /* hash of where the rows came from */
    uint32_t sum;              /* CRC32C over the CRCs of the first n_done blocks */
} engram_header;

/* Fills sizes from d and the range. ERR_UNSUPPORTED: a record does not fit a block. */
int engram_header_init(engram_header *h, int d, const int64_t first_n[2], err *e);
void engram_header_write(const engram_header *h, uint8_t block[ENGRAM_BLOCK]);
/* ERR_FORMAT with what is wrong; path is for the sentence. */
int engram_header_read(
    engram_header *h, const uint8_t block[ENGRAM_BLOCK], const char *path, err *e);
/* Closes a block: puts the checksum in, returns it. */
uint32_t engram_block_seal(uint8_t *block, int64_t number);
bool engram_block_good(const uint8_t *block, int64_t number);

/* The range of a table's rows that a rank reads. */
void engram_rank_rows(
    const model_config *c, int i_engram, const int rank_world[2], int64_t first_n[2]);
/* out = DIR/engram-LAYER.tde, with world above 1 DIR/engram-LAYER.rRwW.tde */
int engram_file_path(buf *out, const char *dir, int layer, const int rank_world[2]);

/* ---- packing ---- */

typedef struct engram_pack_progress {
    int i_table, n_tables;
    int64_t bytes_done, bytes_total; /* written, of all tables */
    bool is_resumed;
} engram_pack_progress;

typedef struct engram_pack_options {
    const char *in_dir;     /* model folder, or the folder of the tables */
    const char *config_dir; /* NULL: in_dir */
    const char *out_dir;
    int rank, world; /* world 0 or 1: whole tables */
    /* Called about ten times a second; a return other than OK stops with that code, and what is
     * written stays for the next time. NULL: nobody asks. */
    int (*progress)(void *ctx, const engram_pack_progress *p);
    void *ctx;
} engram_pack_options;

/* Packs every Engram table of a model. Goes on where an earlier call stopped; a finished file of the
 * same source is kept. ERR_FULL when the disk has no room (said before writing). */
int engram_pack(const engram_pack_options *options, err *e);

/* Where rows come from when they are packed from elsewhere than a checkpoint (benchmarks). */
typedef struct engram_row_source {
    void *ctx;
    void (*row)(void *ctx, int64_t row, uint8_t *record);
    uint64_t identity;
} engram_row_source;
/* Writes one file. h: filled by engram_header_init, with layer, table_rows and source. */
int engram_pack_file(const char *path, const engram_header *h, const engram_row_source *rows,
    const engram_pack_options *options, engram_pack_progress *p, err *e);
/* Reads the whole file and checks every block. */
int engram_file_verify(const char *path, engram_header *out, err *e);

#endif
