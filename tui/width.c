#include "tui/width.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/base/err.h"

static int ambiguous_columns = 1;

typedef struct range {
    uint32_t first, last;
} range;

/* East Asian ambiguous width, the ranges that occur in text (UAX 11); only read when the user says
 * that his terminal draws them wide. */
static const range AMBIGUOUS[] = {
    {0x00a1, 0x00a1},
    {0x00a4, 0x00a4},
    {0x00a7, 0x00a8},
    {0x00aa, 0x00aa},
    {0x00ae, 0x00ae},
    {0x00b0, 0x00b4},
    {0x00b6, 0x00ba},
    {0x00bc, 0x00bf},
    {0x00c6, 0x00c6},
    {0x00d0, 0x00d0},
    {0x00d7, 0x00d8},
    {0x00de, 0x00e1},
    {0x00e6, 0x00e6},
    {0x00e8, 0x00ea},
    {0x00ec, 0x00ed},
    {0x00f0, 0x00f0},
    {0x00f2, 0x00f3},
    {0x00f7, 0x00fa},
    {0x00fc, 0x00fc},
    {0x00fe, 0x00fe},
    {0x0391, 0x03a9},
    {0x03b1, 0x03c9},
    {0x0401, 0x0401},
    {0x0410, 0x044f},
    {0x0451, 0x0451},
    {0x2010, 0x2010},
    {0x2013, 0x2016},
    {0x2018, 0x2019},
    {0x201c, 0x201d},
    {0x2020, 0x2022},
    {0x2024, 0x2027},
    {0x2030, 0x2030},
    {0x2032, 0x2033},
    {0x2035, 0x2035},
    {0x203b, 0x203b},
    {0x203e, 0x203e},
    {0x2103, 0x2103},
    {0x2116, 0x2116},
    {0x2121, 0x2122},
    {0x2153, 0x215e},
    {0x2160, 0x216b},
    {0x2170, 0x2179},
    {0x2190, 0x2199},
    {0x21d2, 0x21d2},
    {0x21d4, 0x21d4},
    {0x2200, 0x2200},
    {0x2202, 0x2203},
    {0x2207, 0x2208},
    {0x220b, 0x220b},
    {0x220f, 0x220f},
    {0x2211, 0x2211},
    {0x221a, 0x221a},
    {0x221d, 0x2220},
    {0x2227, 0x222c},
    {0x2234, 0x2237},
    {0x2248, 0x2248},
    {0x2260, 0x2261},
    {0x2264, 0x2267},
    {0x2282, 0x2283},
    {0x2460, 0x24e9},
    {0x24eb, 0x254b},
    {0x2550, 0x2573},
    {0x2580, 0x258f},
    {0x2592, 0x2595},
    {0x25a0, 0x25a1},
    {0x25b2, 0x25b3},
    {0x25b6, 0x25b7},
    {0x25bc, 0x25bd},
    {0x25c6, 0x25c8},
    {0x25cb, 0x25cb},
    {0x25ce, 0x25d1},
    {0x2605, 0x2606},
    {0x2640, 0x2640},
    {0x2642, 0x2642},
    {0x2660, 0x2661},
    {0x2776, 0x277f},
    {0xe000, 0xf8ff},
    {0xfffd, 0xfffd},
};

void width_set_ambiguous(int columns) {
    ambiguous_columns = columns == 2 ? 2 : 1;
}

static bool is_ambiguous(uint32_t c) {
    for (size_t i = 0; i < sizeof AMBIGUOUS / sizeof AMBIGUOUS[0]; i++) {
        if (c < AMBIGUOUS[i].first) return false;
        if (c <= AMBIGUOUS[i].last) return true;
    }
    return false;
}

static bool is_regional(uint32_t c) {
    return c >= 0x1f1e6 && c <= 0x1f1ff;
}

/* One code point; a byte that is not UTF-8 is U+FFFD of length 1. */
static size_t decode(const char *s, size_t n, uint32_t *c) {
    utf8proc_int32_t value = 0;
    utf8proc_ssize_t len =
        utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &value);
    if (len <= 0 || value < 0) {
        *c = 0xfffd;
        return 1;
    }
    *c = (uint32_t)value;
    return (size_t)len;
}

/* Vowels and final consonants of a Korean syllable in its decomposed form: drawn into the cells of
 * its first consonant. */
static bool is_inner_jamo(uint32_t c) {
    return (c >= 0x1160 && c <= 0x11ff) || (c >= 0xd7b0 && c <= 0xd7fb);
}

/* Corrections to utf8proc: unassigned code points are drawn as one cell by terminals, or as two in
 * the emoji planes, and the soft hyphen is drawn. */
static int code_point_columns(uint32_t c) {
    if (c == 0xad) return 1;
    if (is_inner_jamo(c)) return 0;
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    if (category == UTF8PROC_CATEGORY_CN) return c >= 0x1f000 && c <= 0x1faff ? 2 : 1;
    int columns = utf8proc_charwidth((utf8proc_int32_t)c);
    if (columns == 1 && ambiguous_columns == 2 && is_ambiguous(c)) return 2;
    return columns;
}

bool width_is_mark(uint32_t c) {
    utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)c);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_ME;
}

/* A joiner also stands in words of Indic scripts, where it makes nothing wider. */
static bool is_emoji_part(uint32_t base, uint32_t c) {
    if (c == 0x200d) {
        return utf8proc_get_property((utf8proc_int32_t)base)->boundclass ==
               UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC;
    }
    return c == 0xfe0f || (c >= 0x1f3fb && c <= 0x1f3ff) || is_regional(c);
}

width_cluster width_next(const char *s, size_t n) {
    width_cluster k = {.len = 1, .columns = 1, .base = (unsigned char)s[0]};
    unsigned char first = (unsigned char)s[0];
    if (first < 0x80 && (n == 1 || (unsigned char)s[1] < 0x80)) {
        if (first < 0x20 || first == 0x7f) k.columns = 0;
        return k;
    }
    uint32_t previous;
    k.len = decode(s, n, &previous);
    k.base = previous;
    k.columns = code_point_columns(previous);
    if (width_is_mark(previous)) k.columns = 1; /* drawn on a dotted circle */
    utf8proc_int32_t state = 0;
    bool is_emoji = false;
    while (k.len < n) {
        uint32_t c;
        size_t len = decode(s + k.len, n - k.len, &c);
        if (utf8proc_grapheme_break_stateful(
                (utf8proc_int32_t)previous, (utf8proc_int32_t)c, &state)) {
            break;
        }
        if (is_emoji_part(k.base, c)) is_emoji = true;
        if (!is_emoji && !width_is_mark(c)) k.columns += code_point_columns(c);
        previous = c;
        k.len += len;
    }
    if (is_emoji && k.columns > 0) {
        k.columns = 2;
        k.is_special = true;
    }
    if (is_regional(k.base) || k.base >= 0x1f000 || k.columns > 2) k.is_special = true;
    return k;
}

int width_text(const char *s, size_t n) {
    int columns = 0;
    for (size_t at = 0; at < n;) {
        width_cluster k = width_next(s + at, n - at);
        columns += k.columns;
        at += k.len;
    }
    return columns;
}

size_t width_fit(const char *s, size_t n, int max_columns, int *columns) {
    int used = 0;
    size_t at = 0;
    while (at < n) {
        width_cluster k = width_next(s + at, n - at);
        if (used + k.columns > max_columns) break;
        used += k.columns;
        at += k.len;
    }
    if (columns != NULL) *columns = used;
    return at;
}

size_t width_previous(const char *s, size_t at) {
    if (at == 0) return 0;
    /* A cluster can only be found from a safe start; the line start or 256 bytes back are near
     * enough. */
    size_t start = at;
    while (start > 0 && at - start < 256 && s[start - 1] != '\n')
        start--;
    while (start < at && ((unsigned char)s[start] & 0xc0) == 0x80)
        start++;
    if (start == at) return 1;
    size_t last = 1;
    while (start < at) {
        width_cluster k = width_next(s + start, at - start);
        last = k.len;
        start += k.len;
    }
    return last;
}

bool width_is_unsafe(uint32_t c) {
    if (c < 0x20 || (c >= 0x7f && c < 0xa0)) return true;
    return (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

/* States of the cleaner. STRING is OSC, DCS, SOS, PM or APC, which end in BEL or ESC \. */
enum { CLEAN_TEXT, CLEAN_ESC, CLEAN_ESC_MIDDLE, CLEAN_CSI, CLEAN_STRING, CLEAN_STRING_ESC };

void width_cleaner_reset(width_cleaner *c) {
    memset(c, 0, sizeof *c);
}

static int put_visible(uint32_t c, buf *out) {
    if (c < 0x20) return buf_printf(out, "^%c", (int)(c + 0x40));
    if (c == 0x7f) return buf_puts(out, "^?");
    return buf_printf(out, "<U+%04X>", (unsigned)c);
}

static int put_text(width_cleaner *k, uint32_t c, buf *out) {
    if (k->has_cr) {
        k->has_cr = false;
        if (c != '\n') {
            int rc = put_visible('\r', out);
            if (rc != OK) return rc;
        }
    }
    if (c == 0x1b)
        k->state = CLEAN_ESC;
    else if (c == 0x9b)
        k->state = CLEAN_CSI;
    else if (c == 0x90 || c == 0x98 || (c >= 0x9d && c <= 0x9f))
        k->state = CLEAN_STRING;
    else if (c == '\r')
        k->has_cr = true;
    else if (c == 0x2028 || c == 0x2029)
        return buf_puts(out, "\n");
    else if (c != '\n' && c != '\t' && width_is_unsafe(c))
        return put_visible(c, out);
    else {
        utf8proc_uint8_t bytes[4];
        utf8proc_ssize_t len = utf8proc_encode_char((utf8proc_int32_t)c, bytes);
        return buf_append(out, bytes, (size_t)len);
    }
    return OK;
}

static void after_esc(width_cleaner *k, uint32_t c) {
    if (c == '[')
        k->state = CLEAN_CSI;
    else if (c == ']' || c == 'P' || c == 'X' || c == '^' || c == '_')
        k->state = CLEAN_STRING;
    else if (c >= 0x20 && c < 0x30)
        k->state = CLEAN_ESC_MIDDLE;
    else
        k->state = CLEAN_TEXT;
}

static int clean_one(width_cleaner *k, uint32_t c, buf *out) {
    if (k->state == CLEAN_TEXT) return put_text(k, c, out);
    if (c == '\n') {
        k->state = CLEAN_TEXT;
        return put_text(k, c, out);
    }
    switch (k->state) {
    case CLEAN_ESC:
    case CLEAN_ESC_MIDDLE:
        if (c == 0x1b)
            k->state = CLEAN_ESC;
        else if (c >= 0x80) { /* no sequence: the text goes on */
            k->state = CLEAN_TEXT;
            return put_text(k, c, out);
        } else
            after_esc(k, c);
        break;
    case CLEAN_CSI:
        if (c == 0x1b)
            k->state = CLEAN_ESC;
        else if (c >= 0x40 && c < 0x7f)
            k->state = CLEAN_TEXT;
        else if (c >= 0x80) {
            k->state = CLEAN_TEXT;
            return put_text(k, c, out);
        }
        break;
    case CLEAN_STRING:
        if (c == 0x07 || c == 0x9c)
            k->state = CLEAN_TEXT;
        else if (c == 0x1b)
            k->state = CLEAN_STRING_ESC;
        break;
    default: /* CLEAN_STRING_ESC */
        k->state = CLEAN_TEXT;
        if (c != '\\') {
            k->state = CLEAN_ESC;
            return clean_one(k, c, out);
        }
        break;
    }
    return OK;
}

/* Bytes that the first byte of a sequence announces; 1 for anything that cannot start one. */
static size_t announced(unsigned char first) {
    if (first >= 0xf0 && first < 0xf5) return 4;
    if (first >= 0xe0) return first < 0xf0 ? 3 : 1;
    return first >= 0xc2 ? 2 : 1;
}

/* True if the n bytes could become one code point when more bytes arrive. */
static bool is_incomplete(const char *s, size_t n) {
    size_t want = announced((unsigned char)s[0]);
    if (want <= n) return false;
    for (size_t i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80) return false;
    }
    return true;
}

int width_clean(width_cleaner *k, const char *s, size_t n, buf *out) {
    size_t at = 0;
    while (at < n || k->pending_len > 0) {
        char joined[sizeof k->pending];
        size_t old = k->pending_len, len = old;
        memcpy(joined, k->pending, old);
        while (len < 4 && at + (len - old) < n) {
            joined[len] = s[at + (len - old)];
            len++;
        }
        if (is_incomplete(joined, len)) {
            memcpy(k->pending, joined, len);
            k->pending_len = len;
            return OK;
        }
        uint32_t c;
        size_t used = decode(joined, len, &c);
        if (used >= old) {
            at += used - old;
            k->pending_len = 0;
        } else { /* the pending bytes were wrong: drop the first, look at the rest again */
            memmove(k->pending, k->pending + used, old - used);
            k->pending_len = old - used;
        }
        int rc = clean_one(k, c, out);
        if (rc != OK) return rc;
        if (at >= n && k->pending_len > 0 && is_incomplete(k->pending, k->pending_len)) return OK;
    }
    return OK;
}

int width_clean_end(width_cleaner *k, buf *out) {
    int rc = OK;
    if (k->pending_len > 0 && k->state == CLEAN_TEXT) rc = buf_puts(out, "\xef\xbf\xbd");
    if (rc == OK && k->has_cr) rc = put_visible('\r', out);
    width_cleaner_reset(k);
    return rc;
}
