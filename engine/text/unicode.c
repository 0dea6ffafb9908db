#include "engine/text/unicode.h"

#include <string.h>

static uint8_t ascii_flags(unsigned c) {
    if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) {
        return UNICODE_LETTER | UNICODE_ASCII_LETTER;
    }
    if (c >= '0' && c <= '9') return UNICODE_NUMBER;
    if (c == '\r' || c == '\n') return UNICODE_SPACE | UNICODE_NEWLINE;
    if (c == ' ' || (c >= 9 && c <= 13)) return UNICODE_SPACE;
    if (c > ' ' && c < 0x7F) return UNICODE_SYMBOL | UNICODE_ASCII_SYMBOL;
    return 0;
}

static void add_flag(uint8_t *table, uint32_t first, uint32_t last, uint8_t flag) {
    for (uint32_t cp = first; cp <= last && cp < UNICODE_TABLE_SIZE; cp++)
        table[cp] |= flag;
}

void unicode_table_fill(uint8_t *table) {
    memset(table, 0, UNICODE_TABLE_SIZE);
    for (unsigned c = 0; c < 0x80; c++)
        table[c] = ascii_flags(c);
    for (size_t i = 0; i < unicode_n_ranges; i++) {
        add_flag(table, unicode_ranges[i].first, unicode_ranges[i].last, unicode_ranges[i].group);
    }
    add_flag(table, 0x4E00, 0x9FA5, UNICODE_CJK_RUN);
    add_flag(table, 0x3040, 0x30FF, UNICODE_CJK_RUN);
}
