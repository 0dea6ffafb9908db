#include "engine/model/engram_file.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/model/engram_store.h"

static const char magic[8] = {'T', 'D', 'E', 'N', 'G', 'R', 'A', 'M'};
enum { HEADER_WORDS = 12, HEADER_BYTES = 8 + 8 * HEADER_WORDS, VERIFY_BLOCKS = 1024 };

int engram_header_init(engram_header *h, int d, const int64_t first_n[2], err *e) {
    int room = ENGRAM_BLOCK - ENGRAM_BLOCK_TAIL, record = d > 0 ? (int)engram_record_bytes(d) : 0;
    if (record < 1 || record > room || d % ENGRAM_SCALE_BLOCK != 0) {
        return err_set(e, ERR_UNSUPPORTED,
            "Engram rows of %d values do not fit: whole groups of %d, at most %d bytes a record", d,
            ENGRAM_SCALE_BLOCK, room);
    }
    *h = (engram_header){.d = d,
        .record_bytes = record,
        .records_per_block = room / record,
        .first_row = first_n[0],
        .n_rows = first_n[1]};
    h->n_blocks = (h->n_rows + h->records_per_block - 1) / h->records_per_block;
    return OK;
}

static void put_word(uint8_t *at, uint64_t v) {
    for (int i = 0; i < 8; i++) {
        at[i] = (uint8_t)(v >> (8 * i));
    }
}

static uint64_t get_word(const uint8_t *at) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--) {
        v = v << 8 | at[i];
    }
    return v;
}

void engram_header_write(const engram_header *h, uint8_t block[ENGRAM_BLOCK]) {
    const uint64_t words[HEADER_WORDS] = {ENGRAM_FILE_VERSION, (uint64_t)h->layer, (uint64_t)h->d,
        (uint64_t)h->record_bytes, (uint64_t)h->records_per_block, (uint64_t)h->table_rows,
        (uint64_t)h->first_row, (uint64_t)h->n_rows, (uint64_t)h->n_blocks, (uint64_t)h->n_done,
        h->source, h->sum};
    memset(block, 0, ENGRAM_BLOCK);
    memcpy(block, magic, sizeof magic);
    for (int i = 0; i < HEADER_WORDS; i++) {
        put_word(block + 8 + 8 * i, words[i]);
    }
    put_word(block + HEADER_BYTES, crc32c(0, block, HEADER_BYTES));
}

static bool is_consistent(const engram_header *h) {
    engram_header want;
    const int64_t range[2] = {h->first_row, h->n_rows};
    if (h->d < 1 || h->d > ENGRAM_BLOCK || h->first_row < 0 || h->n_rows < 1 ||
        h->n_rows > INT64_MAX / ENGRAM_BLOCK - 1 || h->n_rows > h->table_rows - h->first_row) {
        return false;
    }
    return engram_header_init(&want, h->d, range, NULL) == OK &&
           want.record_bytes == h->record_bytes && want.records_per_block == h->records_per_block &&
           want.n_blocks == h->n_blocks && h->n_done >= 0 && h->n_done <= h->n_blocks;
}

int engram_header_read(
    engram_header *h, const uint8_t block[ENGRAM_BLOCK], const char *path, err *e) {
    uint64_t w[HEADER_WORDS];
    if (memcmp(block, magic, sizeof magic) != 0) {
        return err_set(e, ERR_FORMAT, "%s is no packed Engram table", path);
    }
    for (int i = 0; i < HEADER_WORDS; i++) {
        w[i] = get_word(block + 8 + 8 * i);
    }
    if (w[0] != ENGRAM_FILE_VERSION) {
        return err_set(e, ERR_FORMAT,
            "%s has version %llu, this program reads %d; pack the table again with: tandem model "
            "engram",
            path, (unsigned long long)w[0], ENGRAM_FILE_VERSION);
    }
    *h = (engram_header){.layer = (int32_t)w[1],
        .d = (int32_t)w[2],
        .record_bytes = (int32_t)w[3],
        .records_per_block = (int32_t)w[4],
        .table_rows = (int64_t)w[5],
        .first_row = (int64_t)w[6],
        .n_rows = (int64_t)w[7],
        .n_blocks = (int64_t)w[8],
        .n_done = (int64_t)w[9],
        .source = w[10],
        .sum = (uint32_t)w[11]};
    if (get_word(block + HEADER_BYTES) == crc32c(0, block, HEADER_BYTES) && is_consistent(h)) {
        return OK;
    }
    return err_set(e, ERR_FORMAT,
        "the header of %s is damaged; pack the table again with: tandem model engram", path);
}

static uint32_t block_sum(const uint8_t *block, int64_t number) {
    uint8_t start[8];
    put_word(start, (uint64_t)number);
    return crc32c(crc32c(0, start, sizeof start), block, ENGRAM_BLOCK - ENGRAM_BLOCK_TAIL);
}

uint32_t engram_block_seal(uint8_t *block, int64_t number) {
    uint32_t sum = block_sum(block, number);
    put_word(block + ENGRAM_BLOCK - ENGRAM_BLOCK_TAIL, sum);
    return sum;
}

bool engram_block_good(const uint8_t *block, int64_t number) {
    return get_word(block + ENGRAM_BLOCK - ENGRAM_BLOCK_TAIL) == block_sum(block, number);
}

void engram_rank_rows(
    const model_config *c, int i_engram, const int rank_world[2], int64_t first_n[2]) {
    const engram_plan *p = &c->engram[i_engram];
    int world = rank_world[1] > 1 ? rank_world[1] : 1;
    int columns = c->n_hashes / world, from = columns * (world > 1 ? rank_world[0] : 0);
    first_n[0] = p->offsets[from];
    int64_t end = from + columns < c->n_hashes ? p->offsets[from + columns] : p->n_rows;
    first_n[1] = end - first_n[0];
}

int engram_file_path(buf *out, const char *dir, int layer, const int rank_world[2]) {
    buf_reset(out);
    if (rank_world[1] > 1) {
        return buf_printf(out, "%s/engram-%d.r%dw%d.tde", dir, layer, rank_world[0], rank_world[1]);
    }
    return buf_printf(out, "%s/engram-%d.tde", dir, layer);
}

static int verify_blocks(int fd, const engram_header *h, const char *path, err *e) {
    uint8_t *blocks = mem_alloc((size_t)VERIFY_BLOCKS * ENGRAM_BLOCK);
    uint32_t sum = 0;
    int rc = OK;
    for (int64_t at = 0; at < h->n_blocks && rc == OK; at += VERIFY_BLOCKS) {
        int64_t n = h->n_blocks - at < VERIFY_BLOCKS ? h->n_blocks - at : VERIFY_BLOCKS;
        rc = fd_read_at(fd, blocks, (size_t)n * ENGRAM_BLOCK, (uint64_t)(1 + at) * ENGRAM_BLOCK, e);
        for (int64_t i = 0; i < n && rc == OK; i++) {
            uint8_t *block = blocks + (size_t)i * ENGRAM_BLOCK;
            if (!engram_block_good(block, at + i)) {
                rc = err_set(e, ERR_FORMAT,
                    "block %lld of %s is damaged (rows %lld and on); pack the table again",
                    (long long)(at + i), path,
                    (long long)(h->first_row + (at + i) * h->records_per_block));
            }
            sum = crc32c(sum, block + ENGRAM_BLOCK - ENGRAM_BLOCK_TAIL, 4);
        }
    }
    mem_free(blocks);
    if (rc == OK && sum != h->sum) {
        rc = err_set(e, ERR_FORMAT, "the blocks of %s are not those that were written", path);
    }
    return rc;
}

int engram_file_verify(const char *path, engram_header *out, err *e) {
    uint8_t block[ENGRAM_BLOCK];
    engram_header h;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return err_errno(e, "opening %s", path);
    int rc = fd_read_at(fd, block, sizeof block, 0, e);
    if (rc == OK) rc = engram_header_read(&h, block, path, e);
    if (rc == OK && h.n_done != h.n_blocks) {
        rc = err_set(e, ERR_FORMAT, "%s was not written to its end", path);
    }
    if (rc == OK) rc = verify_blocks(fd, &h, path, e);
    close(fd);
    if (rc == OK && out != NULL) *out = h;
    return rc;
}
