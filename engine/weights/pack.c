/* Opening a rank pack: header, table, digests; what it is for. */
#include "engine/weights/pack.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/weights/pack_internal.h"

#define REMEDY "run `tandem prepare` to make it again"

int pack_path(buf *out, const char *dir, exl3_layout layout, const int rank_world[2]) {
    buf_reset(out);
    return buf_printf(out, "%s/%s/rank-%d-of-%d.pack", dir, exl3_layout_name(layout), rank_world[0],
        rank_world[1]);
}

int pack_open_direct(const char *path, int flags, bool *is_direct, err *e) {
    int fd = open(path, flags | O_DIRECT | O_CLOEXEC, 0644);
    *is_direct = fd >= 0;
    if (fd < 0 && errno == EINVAL) fd = open(path, flags | O_CLOEXEC, 0644);
    return fd >= 0 ? fd : err_errno(e, "opening %s", path);
}

static int read_parts(pack *p, int fd, err *e) {
    uint8_t page[PACK_PAGE], digest[32];
    struct stat st;
    int rc = fd_read_at(fd, page, sizeof page, 0, e);
    if (rc != OK) return err_set(e, ERR_FORMAT, "%s is no rank pack: too short; " REMEDY, p->path);
    rc = pack_header_parse(&p->h, page, p->path, e);
    if (rc != OK) return rc;
    if (exl3_layout_find(p->h.layout, &p->info.id.layout) != OK)
        return err_set(e, ERR_UNSUPPORTED,
            "%s has the layout %s, which this program does not know; " REMEDY, p->path,
            p->h.layout);
    if (fstat(fd, &st) != 0) return err_errno(e, "reading %s", p->path);
    if ((uint64_t)st.st_size != p->h.file_bytes || p->h.is_complete == 0)
        return err_set(e, ERR_FORMAT, "%s is not complete: %llu of %llu bytes; " REMEDY, p->path,
            (unsigned long long)st.st_size, (unsigned long long)p->h.file_bytes);
    size_t n = (size_t)p->h.table_bytes;
    uint8_t *table = mem_try_alloc(n + 1);
    p->blocks = mem_try_alloc((size_t)p->h.n_blocks * sizeof *p->blocks);
    if (table == NULL || p->blocks == NULL) {
        mem_free(table);
        return err_set(e, ERR_MEMORY, "no memory for the table of %s", p->path);
    }
    rc = fd_read_at(fd, table, n, p->h.table_offset, e);
    sha256_of(table, n, digest);
    if (rc == OK && !sha256_equal(digest, p->h.table_digest))
        rc = err_set(e, ERR_FORMAT, "%s: the table of tensors is damaged; " REMEDY, p->path);
    if (rc == OK) rc = pack_table_parse(p, table, n, e);
    mem_free(table);
    if (rc != OK) return rc;
    return fd_read_at(
        fd, p->blocks, (size_t)p->h.n_blocks * sizeof *p->blocks, p->h.digests_offset, e);
}

static int check_blocks(const pack *p, err *e) {
    uint8_t root[32];
    for (uint64_t i = 0; i < p->h.n_blocks; i++) {
        if (!pack_block_holds(&p->blocks[i], i))
            return err_set(e, ERR_FORMAT, "%s: the digest of block %llu is damaged; " REMEDY,
                p->path, (unsigned long long)i);
    }
    pack_root(&p->h, p->blocks, root);
    if (sha256_equal(root, p->h.root)) return OK;
    return err_set(e, ERR_FORMAT, "%s: the digests do not fit the header; " REMEDY, p->path);
}

static void fill_info(pack *p) {
    const pack_header *h = &p->h;
    pack_info *i = &p->info;
    i->id.rank = h->rank;
    i->id.world = h->world;
    i->id.has_drafts = h->has_drafts != 0;
    memcpy(i->id.source, h->source, sizeof i->id.source);
    memcpy(i->id.config, h->config, sizeof i->id.config);
    memcpy(i->root, h->root, sizeof i->root);
    str_copy(i->build, sizeof i->build, h->build);
    i->file_bytes = h->file_bytes;
    i->data_bytes = h->data_bytes;
    i->block_bytes = h->block_bytes;
    i->n_blocks = h->n_blocks;
    i->n_entries = h->n_entries;
    i->data_offset = h->data_offset;
    i->made_s = h->made_s;
}

int pack_open(const char *path, pack **out, err *e) {
    *out = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return err_set(
            e, ERR_NOT_FOUND, "there is no prepared file %s; `tandem prepare` makes it", path);
    if (fd < 0) return err_errno(e, "opening %s", path);
    pack *p = mem_alloc(sizeof *p);
    p->path = mem_strdup(path);
    int rc = read_parts(p, fd, e);
    close(fd);
    if (rc == OK) rc = check_blocks(p, e);
    if (rc != OK) {
        pack_close(p);
        return rc;
    }
    fill_info(p);
    *out = p;
    return OK;
}

void pack_close(pack *p) {
    if (p == NULL) return;
    mem_free(p->path);
    mem_free(p->names);
    mem_free(p->entries);
    mem_free(p->slots);
    mem_free(p->blocks);
    mem_free(p);
}

const char *pack_file(const pack *p) {
    return p->path;
}

const pack_info *pack_get_info(const pack *p) {
    return &p->info;
}

const pack_entry *pack_at(const pack *p, size_t i) {
    return i < p->h.n_entries ? &p->entries[i] : NULL;
}

int pack_check_identity(const pack *p, const pack_identity *want, err *e) {
    static const uint8_t unknown[32] = {0};
    const pack_identity *is = &p->info.id;
    if (is->rank != want->rank || is->world != want->world)
        return err_set(e, ERR_MISMATCH,
            "%s holds rank %d of %d, this process is rank %d of %d; use the other file, or run "
            "`tandem prepare`",
            p->path, is->rank, is->world, want->rank, want->world);
    if (is->layout != want->layout)
        return err_set(e, ERR_MISMATCH,
            "%s is laid out for %s, this engine reads %s; run `tandem prepare --layout %s`",
            p->path, exl3_layout_name(is->layout), exl3_layout_name(want->layout),
            exl3_layout_name(want->layout));
    if (!sha256_equal(is->config, want->config))
        return err_set(e, ERR_MISMATCH,
            "%s was made for another config.json than the model folder has; " REMEDY, p->path);
    if (memcmp(want->source, unknown, sizeof unknown) != 0 &&
        !sha256_equal(is->source, want->source))
        return err_set(e, ERR_MISMATCH,
            "%s was made from other weights than the model folder has; " REMEDY, p->path);
    if (want->has_drafts && !is->has_drafts)
        return err_set(e, ERR_MISMATCH,
            "%s holds no draft stages; run `tandem prepare`, or start without drafts", p->path);
    return OK;
}

int pack_damaged(const pack *p, uint64_t block, const char *how, err *e) {
    uint64_t from = block * p->h.block_bytes, to = from + pack_block_len(&p->h, block);
    const pack_entry *first = NULL, *last = NULL;
    for (uint64_t i = 0; i < p->h.n_entries; i++) {
        const pack_entry *t = &p->entries[i];
        if (t->offset >= to || t->offset + t->bytes <= from) continue;
        first = first == NULL ? t : first;
        last = t;
    }
    bool is_many = first != last;
    return err_set(e, ERR_FORMAT,
        "%s: block %llu of %llu (bytes %llu to %llu) %s; it holds %s%s%s; run `tandem prepare "
        "--check`: it makes the damaged blocks anew",
        p->path, (unsigned long long)block + 1, (unsigned long long)p->h.n_blocks,
        (unsigned long long)(p->h.data_offset + from), (unsigned long long)(p->h.data_offset + to),
        how, first != NULL ? first->name : "nothing but padding", is_many ? " to " : "",
        is_many ? last->name : "");
}
