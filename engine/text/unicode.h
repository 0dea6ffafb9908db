/* Groups of code points as the pre-tokenizer sees them (chat.md 3): letter or mark, number,
 * punctuation or symbol, white space. The data follow Unicode 16 and need no Unicode library.
 * Pure functions over a table that the caller owns; any thread may read a filled table. */
#ifndef ENGINE_TEXT_UNICODE_H
#define ENGINE_TEXT_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum {
    UNICODE_LETTER = 1,        /* L or M */
    UNICODE_NUMBER = 2,        /* N */
    UNICODE_SYMBOL = 4,        /* P or S */
    UNICODE_SPACE = 8,         /* White_Space */
    UNICODE_NEWLINE = 16,      /* CR or LF, always together with UNICODE_SPACE */
    UNICODE_ASCII_LETTER = 32, /* A-Z a-z, always together with UNICODE_LETTER */
    UNICODE_ASCII_SYMBOL = 64, /* ASCII punctuation or symbol, always with UNICODE_SYMBOL */
    UNICODE_CJK_RUN = 128,     /* U+4E00-U+9FA5, U+3040-U+30FF: the second split of DeepSeek */
};

/* Code points below this bound have a table entry; above it only the variation selectors
 * U+E0100-U+E01EF belong to a group (letter or mark). */
#define UNICODE_TABLE_SIZE 0x32400

typedef struct unicode_range {
    uint32_t first, last;
    uint8_t group;
} unicode_range;

extern const unicode_range unicode_ranges[];
extern const size_t unicode_n_ranges;

/* Fills table[UNICODE_TABLE_SIZE] with the flags above. */
void unicode_table_fill(uint8_t *table);

/* The flags of one code point; 0 for one in no group. */
static inline uint8_t unicode_flags(const uint8_t *table, uint32_t cp) {
    if (cp < UNICODE_TABLE_SIZE) return table[cp];
    return cp >= 0xE0100 && cp <= 0xE01EF ? UNICODE_LETTER : 0;
}

/* Decodes one character of [p, end), p < end. Writes its length to *len. A byte that starts no
 * valid UTF-8 sequence counts as one character of its own with code point 0xFFFFFFFF. */
static inline uint32_t unicode_decode(const uint8_t *p, const uint8_t *end, unsigned *len) {
    uint32_t c = p[0];
    size_t left = (size_t)(end - p);
    *len = 1;
    if (c < 0x80) return c;
    if (c >= 0xC2 && c < 0xE0 && left >= 2 && (p[1] & 0xC0) == 0x80) {
        *len = 2;
        return (c & 0x1F) << 6 | (p[1] & 0x3Fu);
    }
    if (c >= 0xE0 && c < 0xF0 && left >= 3 && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80) {
        uint32_t cp = (c & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        if (cp >= 0x800 && (cp < 0xD800 || cp > 0xDFFF)) {
            *len = 3;
            return cp;
        }
    }
    if (c >= 0xF0 && c < 0xF5 && left >= 4 && (p[1] & 0xC0) == 0x80 && (p[2] & 0xC0) == 0x80 &&
        (p[3] & 0xC0) == 0x80) {
        uint32_t cp =
            (c & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
        if (cp >= 0x10000 && cp <= 0x10FFFF) {
            *len = 4;
            return cp;
        }
    }
    return 0xFFFFFFFFu;
}

#endif
