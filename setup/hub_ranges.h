/* Which bytes of a file have arrived for good: the journal NAME.ranges beside NAME.part, used by the
 * download and by the copy. A file is cut into units; of each unit a prefix may be done. Only what
 * has been flushed to the disk is marked, so after a crash at most the units in work come again.
 * Plain data; its owner locks. */
#ifndef SETUP_HUB_RANGES_H
#define SETUP_HUB_RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"

#define RANGES_ID_BYTES 32
#define RANGES_MAX_UNIT ((uint64_t)1 << 30)
#define RANGES_MAX_UNITS ((uint64_t)1 << 20)
#define RANGES_MAX_BYTES ((size_t)16 << 20) /* of an encoded journal */

typedef struct ranges {
    uint8_t id[RANGES_ID_BYTES]; /* of the content: a journal of other bytes is not taken */
    uint64_t size;
    uint64_t unit;
    size_t n_units;
    uint32_t *done; /* [n_units] bytes of the unit's prefix that are done; owned */
    uint64_t done_bytes;
} ranges;

/* Nothing done. ERR_LIMIT when size and unit give too many units. */
int ranges_init(ranges *r, uint64_t size, uint64_t unit, const uint8_t id[RANGES_ID_BYTES], err *e);
void ranges_release(ranges *r);
/* Nothing done again. */
void ranges_clear(ranges *r);

/* Length of unit i. */
uint64_t ranges_unit_bytes(const ranges *r, size_t i);
/* Marks [start, end). Within a unit only an extension of its prefix counts: what would leave a hole
 * is not marked and comes again. */
void ranges_mark(ranges *r, uint64_t start, uint64_t end);
/* End of the run of done bytes that begins at 0. */
uint64_t ranges_prefix(const ranges *r);
/* First missing byte at or after from and the end of that missing run; false when all is there. */
bool ranges_missing(const ranges *r, uint64_t from, uint64_t *start, uint64_t *end);
bool ranges_is_complete(const ranges *r);

/* The journal's bytes: "TDMRANGE", version, length, id, size, unit, bitmap of finished units, the
 * prefixes of others, CRC-32C. */
int ranges_encode(const ranges *r, buf *out);
/* Reads a journal into an initialised r. ERR_MISMATCH when it is of other bytes or cut otherwise,
 * ERR_FORMAT when it is damaged; r is then unchanged. */
int ranges_decode(ranges *r, const void *data, size_t len, err *e);

#endif
