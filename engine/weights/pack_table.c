/* The parts of a rank pack as bytes: header, table of tensors, records of blocks. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/base/crc32c.h"
#include "engine/base/mem.h"
#include "engine/base/sha256.h"
#include "engine/base/str.h"
#include "engine/weights/pack_internal.h"
#include "engine/weights/safetensors_internal.h"

enum { MAX_SIDE = 1 << 28, CRC_AT = PACK_PAGE - 4 };
#define REMEDY "run `tandem prepare` to make it again"

/* One tensor in the table; its name follows, padded with zeros to 8 bytes. */
typedef struct record {
    uint64_t offset, bytes;
    int32_t n_in, n_out;
    uint8_t kind, codebook, k2, has_bias;
    uint16_t name_len, reserved;
} record;
_Static_assert(sizeof(record) == 32, "no holes");

struct pack_list {
    pack_entry *entries;
    size_t n, cap;
    uint32_t *slots;
    size_t n_slots;
    uint64_t data_bytes;
};

static uint64_t up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}

/* ---- sizes ---- */

uint64_t pack_entry_bytes(const pack_entry *entry) {
    static const uint64_t width[PACK_N_KINDS] = {4, 2, 4, 0};
    bool is_sides =
        entry->n_in > 0 && entry->n_in <= MAX_SIDE && entry->n_out > 0 && entry->n_out <= MAX_SIDE;
    if (!is_sides || (unsigned)entry->kind >= PACK_N_KINDS) return 0;
    if (entry->kind != PACK_EXL3)
        return (uint64_t)entry->n_in * (uint64_t)entry->n_out * width[entry->kind];
    bool is_same = entry->exl3.in == entry->n_in && entry->exl3.out == entry->n_out;
    return is_same && exl3_image_ok(&entry->exl3) ? exl3_image_layout(&entry->exl3).total : 0;
}

uint64_t pack_block_len(const pack_header *h, uint64_t i) {
    uint64_t left = h->data_bytes - i * h->block_bytes;
    return left < h->block_bytes ? left : h->block_bytes;
}

/* ---- names ---- */

static size_t slot_of(
    const pack_entry *entries, const uint32_t *slots, size_t n_slots, const char *name) {
    size_t at = (size_t)st_name_hash(name) & (n_slots - 1);
    while (slots[at] != 0 && !str_eq(entries[slots[at] - 1].name, name)) {
        at = (at + 1) & (n_slots - 1);
    }
    return at;
}

const pack_entry *pack_find(const pack *p, const char *name) {
    uint32_t at = p->slots[slot_of(p->entries, p->slots, p->n_slots, name)];
    return at == 0 ? NULL : &p->entries[at - 1];
}

/* ---- list ---- */

pack_list *pack_list_new(void) {
    return mem_alloc(sizeof(pack_list));
}

void pack_list_free(pack_list *l) {
    if (l == NULL) return;
    for (size_t i = 0; i < l->n; i++) {
        mem_free((void *)(uintptr_t)l->entries[i].name);
    }
    mem_free(l->entries);
    mem_free(l->slots);
    mem_free(l);
}

static void grow(pack_list *l) {
    if (l->n == l->cap) {
        l->cap = l->cap == 0 ? 256 : l->cap * 2;
        l->entries = mem_realloc(l->entries, l->cap * sizeof *l->entries);
    }
    if (l->n_slots >= 2 * (l->n + 1)) return;
    mem_free(l->slots);
    l->n_slots = l->n_slots == 0 ? 512 : l->n_slots * 2;
    l->slots = mem_array(l->n_slots, sizeof *l->slots);
    for (size_t i = 0; i < l->n; i++) {
        l->slots[slot_of(l->entries, l->slots, l->n_slots, l->entries[i].name)] = (uint32_t)i + 1;
    }
}

int pack_list_add(pack_list *l, const pack_entry *entry, err *e) {
    size_t len = strlen(entry->name);
    uint64_t bytes = pack_entry_bytes(entry);
    if (l->n == PACK_MAX_ENTRIES) return err_set(e, ERR_LIMIT, "more tensors than a pack holds");
    if (bytes == 0 || len == 0 || len > PACK_NAME_MAX)
        return err_set(e, ERR_ARG, "tensor %.60s of %d x %d cannot be in a pack", entry->name,
            (int)entry->n_in, (int)entry->n_out);
    grow(l);
    size_t slot = slot_of(l->entries, l->slots, l->n_slots, entry->name);
    if (l->slots[slot] != 0) return err_set(e, ERR_EXISTS, "tensor %s twice", entry->name);
    pack_entry *mine = &l->entries[l->n];
    *mine = *entry;
    mine->name = mem_strdup(entry->name);
    mine->offset = up(l->data_bytes, PACK_ALIGN);
    mine->bytes = bytes;
    l->data_bytes = mine->offset + bytes;
    l->slots[slot] = (uint32_t)++l->n;
    return OK;
}

size_t pack_list_count(const pack_list *l) {
    return l->n;
}

const pack_entry *pack_list_at(const pack_list *l, size_t i) {
    return &l->entries[i];
}

uint64_t pack_list_data_bytes(const pack_list *l) {
    return up(l->data_bytes, PACK_PAGE);
}

/* ---- table ---- */

int pack_table_print(const pack_list *l, buf *out) {
    int rc = OK;
    for (size_t i = 0; i < l->n && rc == OK; i++) {
        static const char zeros[8] = {0};
        const pack_entry *t = &l->entries[i];
        size_t len = strlen(t->name);
        record r = {.offset = t->offset,
            .bytes = t->bytes,
            .n_in = t->n_in,
            .n_out = t->n_out,
            .kind = (uint8_t)t->kind,
            .name_len = (uint16_t)len};
        if (t->kind == PACK_EXL3) {
            r.codebook = (uint8_t)t->exl3.codebook;
            r.k2 = (uint8_t)t->exl3.k2;
            r.has_bias = t->exl3.has_bias;
        }
        rc = buf_append(out, &r, sizeof r);
        if (rc == OK) rc = buf_append(out, t->name, len);
        if (rc == OK) rc = buf_append(out, zeros, up(len, 8) - len);
    }
    return rc;
}

static bool take_record(pack *p, const record *r, const char *name, pack_entry *out) {
    *out = (pack_entry){.name = name,
        .kind = (pack_kind)r->kind,
        .n_in = r->n_in,
        .n_out = r->n_out,
        .offset = r->offset,
        .bytes = r->bytes};
    if (r->kind == PACK_EXL3) {
        out->exl3 = (exl3_image){p->info.id.layout, r->n_in, r->n_out, r->k2,
            (exl3_codebook)r->codebook, r->has_bias != 0};
        if (r->codebook > EXL3_MUL1) return false;
    }
    return pack_entry_bytes(out) == r->bytes && r->bytes > 0 && r->offset % PACK_ALIGN == 0;
}

int pack_table_parse(pack *p, const uint8_t *table, size_t len, err *e) {
    size_t at = 0, n_names = 0;
    uint64_t end = 0;
    size_t n = (size_t)p->h.n_entries;
    p->entries = mem_array(n + 1, sizeof *p->entries);
    p->names = mem_alloc(len + 1);
    for (p->n_slots = 16; p->n_slots < 2 * n; p->n_slots *= 2) {
    }
    p->slots = mem_array(p->n_slots, sizeof *p->slots);
    for (size_t i = 0; i < n; i++) {
        record r;
        if (len - at < sizeof r) return err_set(e, ERR_FORMAT, "%s: table cut; " REMEDY, p->path);
        memcpy(&r, table + at, sizeof r);
        at += sizeof r;
        size_t name_len = r.name_len, room = up(name_len, 8);
        char *name = p->names + n_names;
        bool is_name = name_len > 0 && name_len <= PACK_NAME_MAX && len - at >= room &&
                       memchr(table + at, 0, name_len) == NULL;
        if (is_name) {
            memcpy(name, table + at, name_len);
            name[name_len] = '\0';
            n_names += name_len + 1;
            at += room;
        }
        bool is_good = is_name && take_record(p, &r, name, &p->entries[i]) && r.offset >= end &&
                       r.offset <= p->h.data_bytes && r.bytes <= p->h.data_bytes - r.offset;
        size_t slot = is_good ? slot_of(p->entries, p->slots, p->n_slots, name) : 0;
        if (!is_good || p->slots[slot] != 0)
            return err_set(
                e, ERR_FORMAT, "%s: tensor %zu of the table is wrong; " REMEDY, p->path, i + 1);
        p->slots[slot] = (uint32_t)i + 1;
        end = r.offset + r.bytes;
    }
    if (at != len) return err_set(e, ERR_FORMAT, "%s: table too long; " REMEDY, p->path);
    return OK;
}

/* ---- header ---- */

void pack_header_init(pack_header *h, const pack_list *l, const pack_make_options *o) {
    buf table = BUF_MAX(PACK_MAX_TABLE);
    *h = (pack_header){.version = PACK_VERSION, .header_bytes = PACK_PAGE};
    memcpy(h->magic, PACK_MAGIC, sizeof h->magic);
    CHECK(pack_table_print(l, &table) == OK);
    h->n_entries = l->n;
    h->table_offset = PACK_PAGE;
    h->table_bytes = table.len;
    sha256_of(table.data, table.len, h->table_digest);
    buf_release(&table);
    h->block_bytes = o->block_bytes == 0 ? PACK_BLOCK_BYTES : o->block_bytes;
    h->data_bytes = pack_list_data_bytes(l);
    h->n_blocks = (h->data_bytes + h->block_bytes - 1) / h->block_bytes;
    h->digests_offset = up(h->table_offset + h->table_bytes, PACK_PAGE);
    h->data_offset = up(h->digests_offset + h->n_blocks * sizeof(pack_block), PACK_PAGE);
    h->file_bytes = h->data_offset + h->data_bytes;
    h->made_s = (uint64_t)time(NULL);
    h->rank = o->id.rank;
    h->world = o->id.world;
    h->has_drafts = o->id.has_drafts;
    str_copy(h->layout, sizeof h->layout, exl3_layout_name(o->id.layout));
    str_copy(h->build, sizeof h->build, o->build != NULL ? o->build : "");
    memcpy(h->source, o->id.source, sizeof h->source);
    memcpy(h->config, o->id.config, sizeof h->config);
}

void pack_header_page(const pack_header *h, uint8_t page[PACK_PAGE]) {
    memset(page, 0, PACK_PAGE);
    memcpy(page, h, sizeof *h);
    uint32_t crc = crc32c(0, page, CRC_AT);
    memcpy(page + CRC_AT, &crc, sizeof crc);
}

int pack_header_check(const pack_header *h, const char *path, err *e) {
    bool is_good =
        h->header_bytes == PACK_PAGE && h->table_offset == PACK_PAGE && h->n_entries > 0 &&
        h->n_entries <= PACK_MAX_ENTRIES && h->table_bytes <= PACK_MAX_TABLE && h->n_blocks > 0 &&
        h->n_blocks <= PACK_MAX_BLOCKS && h->block_bytes >= PACK_PAGE &&
        h->block_bytes % PACK_PAGE == 0 && h->block_bytes <= (uint64_t)1 << 40 &&
        h->data_bytes % PACK_PAGE == 0 && h->data_bytes <= h->n_blocks * h->block_bytes &&
        h->data_bytes > (h->n_blocks - 1) * h->block_bytes;
    is_good =
        is_good && h->digests_offset == up(h->table_offset + h->table_bytes, PACK_PAGE) &&
        h->data_offset == up(h->digests_offset + h->n_blocks * sizeof(pack_block), PACK_PAGE) &&
        h->file_bytes == h->data_offset + h->data_bytes && h->world > 0 && h->rank >= 0 &&
        h->rank < h->world;
    is_good = is_good && memchr(h->layout, 0, sizeof h->layout) != NULL &&
              memchr(h->build, 0, sizeof h->build) != NULL;
    if (is_good) return OK;
    return err_set(e, ERR_FORMAT, "%s: the sizes in its header do not fit; " REMEDY, path);
}

int pack_header_parse(pack_header *h, const uint8_t page[PACK_PAGE], const char *path, err *e) {
    uint32_t crc = 0;
    memcpy(h, page, sizeof *h);
    memcpy(&crc, page + CRC_AT, sizeof crc);
    if (memcmp(h->magic, PACK_MAGIC, sizeof h->magic) != 0)
        return err_set(e, ERR_FORMAT, "%s is no rank pack; " REMEDY, path);
    if (h->version != PACK_VERSION)
        return err_set(e, ERR_UNSUPPORTED, "%s is of version %u, this program reads %d; " REMEDY,
            path, h->version, PACK_VERSION);
    if (crc != crc32c(0, page, CRC_AT))
        return err_set(e, ERR_FORMAT, "%s: the header is damaged; " REMEDY, path);
    return pack_header_check(h, path, e);
}

/* ---- blocks ---- */

void pack_block_seal(pack_block *b, uint64_t number, uint32_t crc, const uint8_t sha[32]) {
    *b = (pack_block){.magic = PACK_BLOCK_MAGIC, .crc = crc, .number = number};
    memcpy(b->sha, sha, sizeof b->sha);
    b->own_crc = crc32c(0, b, offsetof(pack_block, own_crc));
}

bool pack_block_holds(const pack_block *b, uint64_t number) {
    return b->magic == PACK_BLOCK_MAGIC && b->number == number &&
           b->own_crc == crc32c(0, b, offsetof(pack_block, own_crc));
}

void pack_root(const pack_header *h, const pack_block *blocks, uint8_t out[32]) {
    sha256 *s = sha256_new();
    sha256_update(s, h->table_digest, sizeof h->table_digest);
    for (uint64_t i = 0; i < h->n_blocks; i++) {
        sha256_update(s, blocks[i].sha, sizeof blocks[i].sha);
    }
    sha256_finish(s, out);
    sha256_free(s);
}
