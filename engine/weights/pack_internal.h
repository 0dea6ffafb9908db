/* The bytes of a rank pack, shared by its reader and its writer. */
#ifndef TANDEM_ENGINE_WEIGHTS_PACK_INTERNAL_H
#define TANDEM_ENGINE_WEIGHTS_PACK_INTERNAL_H

#include "engine/weights/pack.h"

#define PACK_MAGIC "TDRKPACK"
#define PACK_BLOCK_MAGIC 0x314b4c42u /* "BLK1" */
#define PACK_MAX_TABLE ((uint64_t)512 << 20)
#define PACK_MAX_BLOCKS ((uint64_t)1 << 24)

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "packs are read as they lie");

/* Page 0, as it lies in the file; zeros to the end of the page, where its CRC-32C stands. */
typedef struct pack_header {
    char magic[8];
    uint32_t version, header_bytes;
    uint64_t file_bytes;
    uint64_t table_offset, table_bytes, n_entries;
    uint64_t digests_offset, n_blocks, block_bytes;
    uint64_t data_offset, data_bytes;
    uint64_t made_s;
    int32_t rank, world;
    uint32_t has_drafts, is_complete;
    char layout[16], build[64];
    uint8_t source[32], config[32], table_digest[32], root[32];
} pack_header;
_Static_assert(sizeof(pack_header) == 320, "no holes");

/* One block in the list of digests. */
typedef struct pack_block {
    uint32_t magic, crc;
    uint64_t number;
    uint8_t sha[32];
    uint64_t reserved;
    uint32_t reserved2, own_crc;
} pack_block;
_Static_assert(sizeof(pack_block) == 64, "no holes");

struct pack {
    char *path;
    pack_header h;
    pack_info info;
    char *names; /* of all entries */
    pack_entry *entries;
    uint32_t *slots; /* number of an entry + 1 */
    size_t n_slots;
    pack_block *blocks;
};

/* Bytes of a tensor; 0: its sizes are not possible. */
uint64_t pack_entry_bytes(const pack_entry *entry);
/* The table of a list as it lies in the file. */
int pack_table_print(const pack_list *l, buf *out);
/* Entries and names from a table; out->names, entries. ERR_FORMAT. */
int pack_table_parse(pack *p, const uint8_t *table, size_t len, err *e);
/* Fills offsets and sizes for a list; block_bytes and identity from o. */
void pack_header_init(pack_header *h, const pack_list *l, const pack_make_options *o);
/* The page with its checksum. */
void pack_header_page(const pack_header *h, uint8_t page[PACK_PAGE]);
int pack_header_parse(pack_header *h, const uint8_t page[PACK_PAGE], const char *path, err *e);

void pack_block_seal(pack_block *b, uint64_t number, uint32_t crc, const uint8_t sha[32]);
bool pack_block_holds(const pack_block *b, uint64_t number);
/* Length of block i. */
uint64_t pack_block_len(const pack_header *h, uint64_t i);
void pack_root(const pack_header *h, const pack_block *blocks, uint8_t out[32]);

/* Opens for direct reads or writes; *is_direct says whether the file system does them. */
int pack_open_direct(const char *path, int flags, bool *is_direct, err *e);
/* The error of a damaged block. */
int pack_damaged(const pack *p, uint64_t block, const char *how, err *e);
/* ERR_FORMAT unless the header's numbers fit each other. */
int pack_header_check(const pack_header *h, const char *path, err *e);

#endif
