/* A rank pack: everything one rank keeps resident of a model, cut for it and in the order its back
 * end reads, as one file that is read in large direct pieces to where it stays. Engram tables are
 * not in it.
 *
 *   page 0       header: magic "TDRKPACK", version, length, what it is for (identity), sizes, root
 *                digest, CRC of the header
 *   table        one record per tensor: name, form, sizes, place in the data, digest over all
 *   digests      one record per block: CRC-32C and SHA-256 of its bytes, and a CRC of the record;
 *                while the file is being made this is the journal: a valid record says that its
 *                block is on the disk
 *   data         tensors in the order they are loaded, each at a multiple of 256 bytes, to a whole
 *                number of pages; cut into blocks of block_bytes for the digests
 *
 * Little-endian. Each part begins at a multiple of 4096. While it is being made the file's name
 * ends in .part; the finished file appears by rename. The root digest is the SHA-256 over the table's
 * digest and those of all blocks.
 *
 * An open pack is read-only and may be used by any thread; pack_load and pack_verify start threads
 * of their own and return when these have ended. */
#ifndef TANDEM_ENGINE_WEIGHTS_PACK_H
#define TANDEM_ENGINE_WEIGHTS_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "kernels/exl3/exl3_image.h"

enum {
    PACK_VERSION = 1,
    PACK_PAGE = 4096,
    PACK_ALIGN = EXL3_IMAGE_ALIGN, /* of a tensor in the data */
    PACK_NAME_MAX = 191,
    PACK_MAX_ENTRIES = 1 << 20
};
#define PACK_BLOCK_BYTES ((uint64_t)64 << 20)

typedef enum pack_kind {
    PACK_FLOATS, /* n_in floats */
    PACK_BF16,   /* [n_out][n_in] bf16 */
    PACK_F32,    /* [n_out][n_in] float */
    PACK_EXL3,   /* an exl3_image */
    PACK_N_KINDS
} pack_kind;

typedef struct pack_entry {
    const char *name;
    pack_kind kind;
    int32_t n_in, n_out;
    exl3_image exl3;        /* of PACK_EXL3 */
    uint64_t offset, bytes; /* in the data */
} pack_entry;

/* What a pack is for. All of it must agree before it may be used. */
typedef struct pack_identity {
    uint8_t source[32]; /* weights_digest of the model folder it was made from */
    uint8_t config[32]; /* SHA-256 of config.json */
    exl3_layout layout;
    int32_t rank, world;
    bool has_drafts;
} pack_identity;

typedef struct pack_info {
    pack_identity id;
    char build[64]; /* of the program that made it, for people */
    uint64_t file_bytes, data_bytes, block_bytes, n_blocks, n_entries;
    uint64_t data_offset; /* in the file */
    uint64_t made_s;      /* wall clock when it was begun */
    uint8_t root[32];
} pack_info;

typedef struct pack pack;

/* out = DIR/LAYOUT/rank-R-of-W.pack */
int pack_path(buf *out, const char *dir, exl3_layout layout, const int rank_world[2]);
/* Reads and checks header, table and digests (milliseconds), not the data. ERR_NOT_FOUND, ERR_FORMAT
 * (what is wrong with it and the remedy), ERR_UNSUPPORTED (another version or layout). */
int pack_open(const char *path, pack **out, err *e);
void pack_close(pack *p);
const char *pack_file(const pack *p);
const pack_info *pack_get_info(const pack *p);
const pack_entry *pack_at(const pack *p, size_t i);
/* NULL when there is none of this name. */
const pack_entry *pack_find(const pack *p, const char *name);
/* ERR_MISMATCH with the difference and the remedy. source NULL in want (all zero): not compared. */
int pack_check_identity(const pack *p, const pack_identity *want, err *e);

/* ---- loading ---- */

typedef struct pack_progress {
    uint64_t done_bytes, total_bytes;
} pack_progress;
/* Called on the caller's thread about ten times a second; not OK stops with that code. */
typedef int (*pack_tick)(void *ctx, const pack_progress *p);

/* Direct reads of several threads; the page cache stays as it was (where a file system refuses
 * O_DIRECT, what was read is dropped from the cache again). Every block is compared with its
 * CRC-32C. */
typedef struct pack_load_options {
    /* Where all data goes, data_bytes at a multiple of PACK_PAGE: read into it without another copy
     * (host memory, or memory that host and device share). NULL: to `take`. */
    void *area;
    /* Gets each piece once, on the caller's thread, in no promised order; data may be used until it
     * returns. offset counts from the start of the data. */
    int (*take)(void *ctx, uint64_t offset, const void *data, size_t n, err *e);
    void *ctx;
    /* Buffers for `take`: a multiple of PACK_PAGE bytes there, cut in n_readers + 2 pieces (pinned
     * memory, if the device likes it). NULL: made here. */
    void *staging;
    size_t staging_bytes;
    size_t piece_bytes; /* of one read; 0: 4 MiB */
    int n_readers;      /* 0: as many as there are cores, at most 8 */
    pack_tick tick;     /* may be NULL */
    void *tick_ctx;
} pack_load_options;

/* ERR_FORMAT: a block is damaged; names block, place, the tensors in it and the remedy. ERR_IO. Also
 * what take or tick returned. */
int pack_load(const pack *p, const pack_load_options *o, err *e);
/* Reads everything and compares the SHA-256 of every block. damaged (may be NULL): [n_blocks], 1 for
 * each block that is wrong; then all blocks are read. ERR_FORMAT as above for the first. */
int pack_verify(const pack *p, const pack_load_options *o, uint8_t *damaged, err *e);

/* Whether `bytes` more fit into this machine's memory with `reserve` left: MemAvailable, and for
 * memory the driver takes (is_device) also MemFree, which is less because drivers do not always push
 * out the page cache (setup.md 1.1). ERR_MEMORY says both numbers and the remedy. */
int pack_check_memory(uint64_t bytes, uint64_t reserve, bool is_device, err *e);
/* The same on numbers of a text in the form of /proc/meminfo. */
int pack_check_meminfo(
    const char *meminfo, const uint64_t bytes_reserve[2], bool is_device, err *e);

/* ---- making ---- */

typedef struct pack_list pack_list; /* tensors in the order of the data */
pack_list *pack_list_new(void);
void pack_list_free(pack_list *l);
/* Copies name, kind, sizes; fills in offset and bytes. ERR_EXISTS, ERR_LIMIT, ERR_ARG. */
int pack_list_add(pack_list *l, const pack_entry *entry, err *e);
size_t pack_list_count(const pack_list *l);
const pack_entry *pack_list_at(const pack_list *l, size_t i);
uint64_t pack_list_data_bytes(const pack_list *l);

/* Where the bytes come from. */
typedef struct pack_source {
    void *ctx;
    /* Bytes [at, at + n) of tensor i, which lies at a multiple of 64 minus at; any thread. */
    int (*fill)(void *ctx, size_t i, const uint64_t at_n[2], void *out, err *e);
    /* Tensors [from, to) are read soon, or are not needed any more (their part of the page cache can
     * go). May be NULL. */
    void (*soon)(void *ctx, size_t from, size_t to);
    void (*done)(void *ctx, size_t from, size_t to);
} pack_source;

typedef enum pack_phase { PACK_WRITING, PACK_VERIFYING, PACK_DONE } pack_phase;

typedef struct pack_make_progress {
    pack_phase phase;
    uint64_t done_bytes, total_bytes; /* of this phase */
    uint64_t had_bytes;               /* were there from an earlier time */
    uint64_t n_blocks, n_had_blocks, n_mended;
    uint64_t data_bytes;
    bool is_kept; /* the finished file was there already */
} pack_make_progress;

typedef struct pack_make_options {
    const char *path; /* of the finished file; its folder is made */
    pack_identity id;
    const char *build;
    uint64_t block_bytes; /* a multiple of PACK_PAGE; 0: PACK_BLOCK_BYTES */
    int n_threads;        /* that make the bytes; 0: one per core */
    bool checks;          /* read a finished file back; make damaged blocks anew */
    /* About ten times a second; not OK stops with that code, what is written stays. NULL: nobody. */
    int (*progress)(void *ctx, const pack_make_progress *p);
    void *ctx;
} pack_make_options;

/* Makes the file, or goes on where an earlier call was stopped or killed: at most the blocks in
 * work are made again. A finished file of the same identity and table is kept. A file of another
 * identity stays until the new one is complete. ERR_FULL (both numbers, before writing), ERR_BUSY
 * (another process makes it). */
int pack_make(const pack_list *l, const pack_source *s, const pack_make_options *o,
    pack_make_progress *p, err *e);

/* Digest of what a model folder holds: names and sizes of its *.json and *.safetensors, small files
 * whole, of large ones both ends. Equal copies on two machines give the same. */
int weights_digest(const char *dir, uint8_t out[32], err *e);
/* Whether there is any *.safetensors: a node with a pack needs none. */
bool weights_has_shards(const char *dir);

#endif
