#include <string.h>

#include "engine/base/str.h"
#include "engine/text/tokenizer.h"

#define REPLACEMENT "\xEF\xBF\xBD"

/* The bytes that may follow as the second of a sequence, by its first (Unicode table 3-7). */
static void second_range(uint8_t first, uint8_t *low, uint8_t *high) {
    *low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    *high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
}

static unsigned sequence_len(uint8_t first) {
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4) return 0;
    return first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

static bool continues(const utf8_stream *s, uint8_t next) {
    uint8_t low = 0x80, high = 0xBF;
    if (s->n_pending == 1) second_range((uint8_t)s->pending[0], &low, &high);
    return next >= low && next <= high;
}

/* One byte, when something is pending or the byte is not ASCII. */
static int feed_byte(utf8_stream *s, char c, buf *out) {
    int rc = OK;
    if (s->n_pending > 0 && !continues(s, (uint8_t)c)) {
        s->n_pending = 0;
        rc = buf_append(out, REPLACEMENT, 3);
    }
    if (rc != OK) return rc;
    if (s->n_pending == 0) {
        unsigned need = sequence_len((uint8_t)c);
        if (need == 0) return buf_append(out, REPLACEMENT, 3);
        if (need == 1) return buf_putc(out, c);
    }
    s->pending[s->n_pending++] = c;
    if (s->n_pending < sequence_len((uint8_t)s->pending[0])) return OK;
    unsigned n = s->n_pending;
    s->n_pending = 0;
    return buf_append(out, s->pending, n);
}

int utf8_stream_feed(utf8_stream *s, const char *bytes, size_t len, buf *out) {
    int rc = OK;
    for (size_t i = 0; i < len && rc == OK;) {
        size_t good = s->n_pending == 0 ? utf8_valid_prefix(bytes + i, len - i) : 0;
        if (good > 0) {
            rc = buf_append(out, bytes + i, good);
            i += good;
        } else {
            rc = feed_byte(s, bytes[i++], out);
        }
    }
    return rc;
}

int utf8_stream_end(utf8_stream *s, buf *out) {
    if (s->n_pending == 0) return OK;
    s->n_pending = 0;
    return buf_append(out, REPLACEMENT, 3);
}
