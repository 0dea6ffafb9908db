/* Packing Engram tables into files, block by block, so that it can stop and go on anywhere. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/crc32c.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/rand.h"
#include "engine/model/engram_file.h"
#include "engine/model/engram_store.h"
#include "engine/weights/checkpoint.h"

enum { PACK_BLOCKS = 1024, PACK_SYNC_BLOCKS = 16384, PACK_PROGRESS_MS = 100 };

typedef struct packer {
    const engram_row_source *rows;
    const engram_pack_options *o;
    engram_pack_progress *p;
    engram_header h;
    const char *path; /* of the .part file */
    int fd;
    uint8_t *blocks; /* [PACK_BLOCKS] */
    uint64_t told_ms;
    int64_t base; /* bytes of earlier tables */
} packer;

static int tell(packer *k) {
    k->p->bytes_done = k->base + (1 + k->h.n_done) * ENGRAM_BLOCK;
    uint64_t now = clock_mono_ms();
    bool is_end = k->h.n_done == k->h.n_blocks;
    if (k->o == NULL || k->o->progress == NULL ||
        (!is_end && now - k->told_ms < PACK_PROGRESS_MS)) {
        return OK;
    }
    k->told_ms = now;
    return k->o->progress(k->o->ctx, k->p);
}

static int write_header(packer *k, err *e) {
    uint8_t block[ENGRAM_BLOCK];
    engram_header_write(&k->h, block);
    return fd_write_at(k->fd, block, sizeof block, 0, e);
}

/* What is written becomes safe: data first, then the header that says so. */
static int make_safe(packer *k, err *e) {
    if (fdatasync(k->fd) != 0) return err_errno(e, "writing %s", k->path);
    int rc = write_header(k, e);
    if (rc == OK && fdatasync(k->fd) != 0) rc = err_errno(e, "writing %s", k->path);
    return rc;
}

static void fill_block(packer *k, int64_t number, uint8_t *block) {
    const engram_header *h = &k->h;
    int64_t row = number * h->records_per_block;
    memset(block, 0, ENGRAM_BLOCK);
    for (int i = 0; i < h->records_per_block && row + i < h->n_rows; i++) {
        k->rows->row(k->rows->ctx, h->first_row + row + i, block + i * h->record_bytes);
    }
}

static int write_some(packer *k, int64_t n, err *e) {
    uint32_t sum = k->h.sum;
    for (int64_t i = 0; i < n; i++) {
        uint8_t *block = k->blocks + (size_t)i * ENGRAM_BLOCK;
        fill_block(k, k->h.n_done + i, block);
        (void)engram_block_seal(block, k->h.n_done + i);
        sum = crc32c(sum, block + ENGRAM_BLOCK - ENGRAM_BLOCK_TAIL, 4);
    }
    int rc = fd_write_at(
        k->fd, k->blocks, (size_t)n * ENGRAM_BLOCK, (uint64_t)(1 + k->h.n_done) * ENGRAM_BLOCK, e);
    if (rc != OK) return err_add(e, rc, "writing %s", k->path);
    k->h.n_done += n;
    k->h.sum = sum;
    return OK;
}

static int write_blocks(packer *k, err *e) {
    int64_t unsafe = 0;
    int rc = tell(k);
    while (rc == OK && k->h.n_done < k->h.n_blocks) {
        int64_t left = k->h.n_blocks - k->h.n_done, n = left < PACK_BLOCKS ? left : PACK_BLOCKS;
        rc = write_some(k, n, e);
        unsafe += n;
        if (rc == OK && unsafe >= PACK_SYNC_BLOCKS) {
            rc = make_safe(k, e);
            unsafe = 0;
        }
        if (rc == OK) rc = tell(k);
        if (rc == ERR_CANCELLED) (void)make_safe(k, NULL);
    }
    return rc == OK ? make_safe(k, e) : rc;
}

/* Goes on with a file that an earlier call left, if it is the same table. */
static void resume(packer *k) {
    uint8_t block[ENGRAM_BLOCK];
    engram_header old;
    uint64_t size = 0;
    if (fd_read_at(k->fd, block, sizeof block, 0, NULL) != OK) return;
    if (engram_header_read(&old, block, k->path, NULL) != OK) return;
    bool is_same = old.source == k->h.source && old.layer == k->h.layer && old.d == k->h.d &&
                   old.table_rows == k->h.table_rows && old.first_row == k->h.first_row &&
                   old.n_rows == k->h.n_rows;
    if (!is_same || file_size(k->path, &size, NULL) != OK ||
        size < (uint64_t)(1 + old.n_done) * ENGRAM_BLOCK) {
        return;
    }
    k->h.n_done = old.n_done;
    k->h.sum = old.sum;
    k->p->is_resumed = old.n_done > 0;
}

static int check_room(const packer *k, err *e) {
    struct statvfs v;
    uint64_t need = (uint64_t)(1 + k->h.n_blocks - k->h.n_done) * ENGRAM_BLOCK;
    if (fstatvfs(k->fd, &v) != 0) return OK; /* writing will tell */
    uint64_t room = (uint64_t)v.f_bavail * v.f_frsize;
    if (room >= need) return OK;
    return err_set(e, ERR_FULL, "%s needs %llu MiB more, the disk has %llu; free the difference",
        k->path, (unsigned long long)(need >> 20), (unsigned long long)(room >> 20));
}

static bool is_finished(const char *path, const engram_header *h) {
    uint8_t block[ENGRAM_BLOCK];
    engram_header old;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool is_good = fd_read_at(fd, block, sizeof block, 0, NULL) == OK &&
                   engram_header_read(&old, block, path, NULL) == OK &&
                   old.n_done == old.n_blocks && old.source == h->source &&
                   old.first_row == h->first_row && old.n_rows == h->n_rows && old.d == h->d;
    close(fd);
    return is_good;
}

static int pack_part(packer *k, const char *path, err *e) {
    int rc = OK;
    buf dir = BUF_INIT;
    k->fd = open(k->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (k->fd < 0) return err_errno(e, "creating %s", k->path);
    if (flock(k->fd, LOCK_EX | LOCK_NB) != 0) {
        rc = err_set(e, ERR_BUSY, "another program is writing %s", k->path);
    }
    if (rc == OK) resume(k);
    if (rc == OK) rc = check_room(k, e);
    if (rc == OK) rc = write_blocks(k, e);
    close(k->fd);
    if (rc != OK) return rc;
    if (rename(k->path, path) != 0) return err_errno(e, "renaming %s", k->path);
    path_dir(&dir, path);
    rc = dir_sync(buf_cstr(&dir), e);
    buf_release(&dir);
    return rc;
}

int engram_pack_file(const char *path, const engram_header *h, const engram_row_source *rows,
    const engram_pack_options *options, engram_pack_progress *p, err *e) {
    buf part = BUF_INIT;
    packer k = {.rows = rows, .o = options, .p = p, .h = *h, .base = p->bytes_done};
    k.h.n_done = 0;
    k.h.sum = 0;
    int rc = OK;
    if (is_finished(path, h)) {
        k.h.n_done = k.h.n_blocks;
        p->is_resumed = true;
        rc = tell(&k);
    } else {
        buf_printf(&part, "%s.part", path);
        k.path = buf_cstr(&part);
        k.blocks = mem_alloc((size_t)PACK_BLOCKS * ENGRAM_BLOCK);
        rc = pack_part(&k, path, e);
        mem_free(k.blocks);
    }
    buf_release(&part);
    return rc;
}

/* ---- from a checkpoint ---- */

typedef struct table_rows {
    const uint8_t *values, *scales;
    size_t d, n_scales;
} table_rows;

static void table_row(void *ctx, int64_t row, uint8_t *record) {
    const table_rows *t = ctx;
    memcpy(record, t->values + (size_t)row * t->d, t->d);
    memcpy(record + t->d, t->scales + (size_t)row * t->n_scales, t->n_scales);
}

/* Sizes, first and last rows: another table of the same shape is not taken for this one. */
static uint64_t identify(const table_rows *t, int64_t n_rows) {
    uint64_t hash = rand_mix((uint64_t)n_rows + t->d);
    for (int i = 0; i < 64; i++) {
        int64_t row = n_rows / 64 * i + i;
        row = row < n_rows ? row : n_rows - 1;
        hash = rand_mix(hash ^ crc32c(0, t->values + (size_t)row * t->d, t->d));
        hash = rand_mix(hash ^ crc32c(0, t->scales + (size_t)row * t->n_scales, t->n_scales));
    }
    return hash;
}

static int pack_table(const engram_pack_options *o, const model_config *c, const checkpoint *ck,
    engram_pack_progress *p, err *e) {
    table_rows t = {.d = (size_t)c->d_engram,
        .n_scales = engram_record_bytes(c->d_engram) - (size_t)c->d_engram};
    int64_t n_rows = 0, range[2];
    const int part[2] = {o->rank, o->world};
    engram_header h;
    buf path = BUF_INIT;
    int i = p->i_table;
    int rc = checkpoint_engram(ck, i, &t.values, &t.scales, &n_rows, e);
    if (rc == OK && n_rows != c->engram[i].n_rows) {
        rc = err_set(e, ERR_MISMATCH,
            "the Engram table of layer %d has %lld rows, its hash needs %lld", c->engram[i].layer,
            (long long)n_rows, (long long)c->engram[i].n_rows);
    }
    if (rc != OK) return rc;
    engram_rank_rows(c, i, part, range);
    rc = engram_header_init(&h, c->d_engram, range, e);
    if (rc != OK) return rc;
    h.layer = c->engram[i].layer;
    h.table_rows = n_rows;
    h.source = identify(&t, n_rows);
    engram_row_source rows = {&t, table_row, h.source};
    engram_file_path(&path, o->out_dir, h.layer, part);
    rc = engram_pack_file(buf_cstr(&path), &h, &rows, o, p, e);
    buf_release(&path);
    return rc;
}

static int count_bytes(
    const engram_pack_options *o, const model_config *c, engram_pack_progress *p, err *e) {
    for (int i = 0; i < c->n_engram; i++) {
        int64_t range[2];
        engram_header h;
        engram_rank_rows(c, i, (int[2]){o->rank, o->world}, range);
        int rc = engram_header_init(&h, c->d_engram, range, e);
        if (rc != OK) return rc;
        p->bytes_total += (1 + h.n_blocks) * ENGRAM_BLOCK;
    }
    return OK;
}

int engram_pack(const engram_pack_options *o, err *e) {
    model_config *c = mem_alloc(sizeof *c);
    checkpoint *ck = NULL;
    const char *config_dir = o->config_dir != NULL ? o->config_dir : o->in_dir;
    checkpoint_options co = {.only_tables = true, .engram_dir = o->in_dir};
    int rc = model_config_load(config_dir, c, e);
    if (rc == OK && c->n_engram == 0) {
        rc = err_set(e, ERR_NOT_FOUND, "the model in %s has no Engram layers", config_dir);
    }
    if (rc == OK && o->world > 1) rc = model_config_check_world(c, o->world, e);
    if (rc == OK) rc = checkpoint_open(config_dir, c, &co, &ck, e);
    if (rc == OK) rc = dir_make_all(o->out_dir, 0755, e);
    engram_pack_progress p = {.n_tables = c->n_engram};
    if (rc == OK) rc = count_bytes(o, c, &p, e);
    for (int i = 0; i < c->n_engram && rc == OK; i++) {
        p.i_table = i;
        rc = pack_table(o, c, ck, &p, e);
    }
    checkpoint_close(ck);
    mem_free(c);
    return rc;
}
