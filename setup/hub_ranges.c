#include "setup/hub_ranges.h"

#include <string.h>

#include "engine/base/crc32c.h"
#include "engine/base/mem.h"

enum { VERSION = 1, HEAD_BYTES = 8 + 4 + 4 + RANGES_ID_BYTES + 8 + 8 + 4 + 4 };
static const char MAGIC[8] = {'T', 'D', 'M', 'R', 'A', 'N', 'G', 'E'};

int ranges_init(
    ranges *r, uint64_t size, uint64_t unit, const uint8_t id[RANGES_ID_BYTES], err *e) {
    memset(r, 0, sizeof *r);
    if (unit == 0 || unit > RANGES_MAX_UNIT || size > (uint64_t)INT64_MAX / 2)
        return err_set(e, ERR_ARG, "impossible size of a file or of its units");
    uint64_t n = size / unit + (size % unit != 0 ? 1 : 0);
    if (n > RANGES_MAX_UNITS) return err_set(e, ERR_LIMIT, "the units are too small");
    memcpy(r->id, id, RANGES_ID_BYTES);
    r->size = size;
    r->unit = unit;
    r->n_units = (size_t)n;
    r->done = mem_array(r->n_units + 1, sizeof *r->done);
    return OK;
}

void ranges_release(ranges *r) {
    mem_free(r->done);
    memset(r, 0, sizeof *r);
}

void ranges_clear(ranges *r) {
    memset(r->done, 0, r->n_units * sizeof *r->done);
    r->done_bytes = 0;
}

uint64_t ranges_unit_bytes(const ranges *r, size_t i) {
    CHECK(i < r->n_units);
    uint64_t start = (uint64_t)i * r->unit;
    return r->size - start < r->unit ? r->size - start : r->unit;
}

void ranges_mark(ranges *r, uint64_t start, uint64_t end) {
    CHECK(start <= end && end <= r->size);
    while (start < end) {
        size_t i = (size_t)(start / r->unit);
        uint64_t base = (uint64_t)i * r->unit;
        uint64_t length = ranges_unit_bytes(r, i);
        uint64_t stop = end - base < length ? end - base : length;
        if (start - base <= r->done[i] && stop > r->done[i]) {
            r->done_bytes += stop - r->done[i];
            r->done[i] = (uint32_t)stop;
        }
        start = base + stop;
    }
}

uint64_t ranges_prefix(const ranges *r) {
    uint64_t start = 0, end = 0;
    return ranges_missing(r, 0, &start, &end) ? start : r->size;
}

bool ranges_missing(const ranges *r, uint64_t from, uint64_t *start, uint64_t *end) {
    for (size_t i = (size_t)(from / r->unit); i < r->n_units; i++) {
        uint64_t base = (uint64_t)i * r->unit;
        uint64_t at = base + r->done[i];
        if (at < from) at = from;
        if (at >= base + ranges_unit_bytes(r, i)) continue;
        *start = at;
        while (i < r->n_units && (r->done[i] == 0 || (uint64_t)i * r->unit < at))
            i++;
        *end = i < r->n_units ? (uint64_t)i * r->unit : r->size;
        return true;
    }
    return false;
}

bool ranges_is_complete(const ranges *r) {
    return r->done_bytes == r->size;
}

/* The journal. Little endian whatever the machine is. */

static void put_u32(buf *out, uint32_t v) {
    for (int i = 0; i < 4; i++)
        buf_putc(out, (char)(uint8_t)(v >> (8 * i)));
}

static void put_u64(buf *out, uint64_t v) {
    put_u32(out, (uint32_t)v);
    put_u32(out, (uint32_t)(v >> 32));
}

static uint32_t get_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t get_u64(const uint8_t *p) {
    return (uint64_t)get_u32(p) | (uint64_t)get_u32(p + 4) << 32;
}

static bool is_part(const ranges *r, size_t i) {
    return r->done[i] != 0 && r->done[i] != ranges_unit_bytes(r, i);
}

int ranges_encode(const ranges *r, buf *out) {
    size_t n_part = 0;
    for (size_t i = 0; i < r->n_units; i++)
        n_part += is_part(r, i) ? 1 : 0;
    size_t total = HEAD_BYTES + (r->n_units + 7) / 8 + n_part * 8 + 4;
    buf_reset(out);
    int rc = buf_reserve(out, total);
    if (rc != OK) return rc;
    buf_append(out, MAGIC, sizeof MAGIC);
    put_u32(out, VERSION);
    put_u32(out, (uint32_t)total);
    buf_append(out, r->id, RANGES_ID_BYTES);
    put_u64(out, r->size);
    put_u64(out, r->unit);
    put_u32(out, (uint32_t)r->n_units);
    put_u32(out, (uint32_t)n_part);
    for (size_t at = 0; at < r->n_units; at += 8) {
        unsigned bits = 0;
        for (size_t i = at; i < at + 8 && i < r->n_units; i++)
            bits |= r->done[i] == ranges_unit_bytes(r, i) ? 1u << (i - at) : 0;
        buf_putc(out, (char)(uint8_t)bits);
    }
    for (size_t i = 0; i < r->n_units; i++) {
        if (!is_part(r, i)) continue;
        put_u32(out, (uint32_t)i);
        put_u32(out, r->done[i]);
    }
    put_u32(out, crc32c(0, out->data, out->len));
    return OK;
}

static int check_head(const ranges *r, const uint8_t *p, size_t len, err *e) {
    if (len < HEAD_BYTES + 4 || memcmp(p, MAGIC, sizeof MAGIC) != 0 || get_u32(p + 8) != VERSION ||
        get_u32(p + 12) != len)
        return err_set(e, ERR_FORMAT, "the journal is no journal, or is cut off");
    if (get_u32(p + len - 4) != crc32c(0, p, len - 4))
        return err_set(e, ERR_FORMAT, "the journal is damaged");
    const uint8_t *at = p + 16;
    if (memcmp(at, r->id, RANGES_ID_BYTES) != 0 || get_u64(at + RANGES_ID_BYTES) != r->size)
        return err_set(e, ERR_MISMATCH, "the journal is of another file");
    if (get_u64(at + RANGES_ID_BYTES + 8) != r->unit ||
        get_u32(at + RANGES_ID_BYTES + 16) != r->n_units)
        return err_set(e, ERR_MISMATCH, "the journal has units of another size");
    return OK;
}

int ranges_decode(ranges *r, const void *data, size_t len, err *e) {
    const uint8_t *p = data;
    int rc = check_head(r, p, len, e);
    if (rc != OK) return rc;
    size_t n_part = get_u32(p + HEAD_BYTES - 4);
    size_t map_bytes = (r->n_units + 7) / 8;
    if (n_part > r->n_units || len != HEAD_BYTES + map_bytes + n_part * 8 + 4)
        return err_set(e, ERR_FORMAT, "the journal has a wrong length");
    ranges next = *r;
    next.done = mem_array(r->n_units + 1, sizeof *next.done);
    next.done_bytes = 0;
    for (size_t i = 0; i < r->n_units; i++) {
        if ((p[HEAD_BYTES + i / 8] >> (i % 8) & 1) == 0) continue;
        next.done[i] = (uint32_t)ranges_unit_bytes(r, i);
        next.done_bytes += next.done[i];
    }
    const uint8_t *at = p + HEAD_BYTES + map_bytes;
    for (size_t k = 0; rc == OK && k < n_part; k++, at += 8) {
        uint32_t i = get_u32(at), bytes = get_u32(at + 4);
        if (i >= r->n_units || next.done[i] != 0 || bytes >= ranges_unit_bytes(r, i)) {
            rc = err_set(e, ERR_FORMAT, "the journal has an impossible entry");
        } else {
            next.done[i] = bytes;
            next.done_bytes += bytes;
        }
    }
    mem_free(rc == OK ? r->done : next.done);
    if (rc == OK) *r = next;
    return rc;
}
