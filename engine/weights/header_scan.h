/* A strict pull scanner for the two JSON texts of a safetensors checkpoint: the header of a file
 * and the index. It never recurses, never copies more than it reads, and keeps integers exact;
 * base/json would build a tree of half a million nodes for the real index. Used by one thread at a
 * time. */
#ifndef TANDEM_ENGINE_WEIGHTS_HEADER_SCAN_H
#define TANDEM_ENGINE_WEIGHTS_HEADER_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HEADER_SCAN_MAX_DEPTH = 32 };

typedef struct header_scan {
    const char *at; /* next byte; borrowed text */
    const char *end;
    const char *start;
    const char *wrong; /* first fault in words, NULL while all is well */
} header_scan;

/* Sets up over text[0..len). The text need not end in NUL. */
void header_scan_init(header_scan *s, const char *text, size_t len);
/* Offset of the next byte, for messages. */
size_t header_scan_offset(const header_scan *s);
/* Notes a fault (the first one wins) and returns false. */
bool header_scan_fail(header_scan *s, const char *wrong);
/* Skips blanks; returns the next byte without taking it, or -1 at the end. */
int header_scan_peek(header_scan *s);
/* Takes the byte c after blanks; false with a fault when another stands there. */
bool header_scan_take(header_scan *s, char c);
/* Takes a separator inside a container: ',' gives true with *is_last false, the closing byte gives
 * true with *is_last true. */
bool header_scan_next(header_scan *s, char closing, bool *is_last);
/* Takes a string. Decodes it into out (cap bytes with NUL); refuses bad escapes, control bytes,
 * invalid UTF-8 and NUL characters. The decoded text is never longer than the encoded one. *len
 * gets its length. */
bool header_scan_string(header_scan *s, char *out, size_t cap, size_t *len);
/* Takes an unsigned integer: digits only, no leading zero, at most 2^64 - 1. */
bool header_scan_u64(header_scan *s, uint64_t *out);
/* Skips any value, at most HEADER_SCAN_MAX_DEPTH deep. */
bool header_scan_skip(header_scan *s);
/* True when only blanks are left. */
bool header_scan_at_end(header_scan *s);

#endif
