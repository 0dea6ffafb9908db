/* Opening a rank pack from any bytes: header, table and digests. The seed of a sound pack keeps its
 * checksums: they are made again over what the fuzzer changed, so that it gets past them. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/weights/pack_internal.h"

enum { MAX_BYTES = 1 << 20 };

/* Makes the checksums fit whatever the sizes in the header reach. */
static void seal(uint8_t *data, size_t size) {
    pack_header h;
    memcpy(&h, data, sizeof h);
    bool is_table = h.table_offset <= size && h.table_bytes <= size - h.table_offset;
    bool is_blocks = h.n_blocks <= 64 && h.digests_offset <= size &&
                     h.n_blocks * sizeof(pack_block) <= size - h.digests_offset;
    if (is_table) sha256_of(data + h.table_offset, (size_t)h.table_bytes, h.table_digest);
    if (is_blocks) {
        pack_block blocks[64];
        memcpy(blocks, data + h.digests_offset, (size_t)h.n_blocks * sizeof *blocks);
        for (uint64_t i = 0; i < h.n_blocks; i++) {
            uint8_t sha[32];
            memcpy(sha, blocks[i].sha, sizeof sha);
            pack_block_seal(&blocks[i], i, blocks[i].crc, sha);
        }
        pack_root(&h, blocks, h.root);
        memcpy(data + h.digests_offset, blocks, (size_t)h.n_blocks * sizeof *blocks);
    }
    memcpy(data, &h, sizeof h);
    uint32_t crc = crc32c(0, data, PACK_PAGE - 4);
    memcpy(data + PACK_PAGE - 4, &crc, sizeof crc);
}

static void open_bytes(const uint8_t *data, size_t size) {
    char path[64];
    pack *p = NULL;
    err e = ERR_INIT;
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0) return;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd_write_full(fd, data, size, &e) == OK && pack_open(path, &p, &e) == OK) {
        pack_load_options o = {.n_readers = 1};
        for (size_t i = 0; i < pack_get_info(p)->n_entries; i++) {
            const pack_entry *t = pack_at(p, i);
            CHECK(pack_find(p, t->name) == t);
            CHECK(t->offset + t->bytes <= pack_get_info(p)->data_bytes);
        }
        (void)pack_verify(p, &o, NULL, &e);
    }
    pack_close(p);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size > MAX_BYTES) return 0;
    open_bytes(data, size);
    if (size < PACK_PAGE) return 0;
    uint8_t *sealed = mem_alloc(size);
    memcpy(sealed, data, size);
    seal(sealed, size);
    open_bytes(sealed, size);
    mem_free(sealed);
    return 0;
}
