#include "engine/weights/header_scan.h"

#include <string.h>

#include "engine/base/str.h"

void header_scan_init(header_scan *s, const char *text, size_t len) {
    s->at = text;
    s->start = text;
    s->end = text + len;
    s->wrong = NULL;
}

size_t header_scan_offset(const header_scan *s) {
    return (size_t)(s->at - s->start);
}

bool header_scan_fail(header_scan *s, const char *wrong) {
    if (s->wrong == NULL) {
        s->wrong = wrong;
    }
    return false;
}

int header_scan_peek(header_scan *s) {
    while (
        s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r')) {
        s->at++;
    }
    return s->at < s->end ? (unsigned char)*s->at : -1;
}

bool header_scan_take(header_scan *s, char c) {
    if (header_scan_peek(s) != (unsigned char)c) {
        switch (c) {
        case '{':
            return header_scan_fail(s, "an object was expected");
        case '[':
            return header_scan_fail(s, "a list was expected");
        case ':':
            return header_scan_fail(s, "a colon was expected");
        default:
            return header_scan_fail(s, "unexpected text");
        }
    }
    s->at++;
    return true;
}

bool header_scan_next(header_scan *s, char closing, bool *is_last) {
    int c = header_scan_peek(s);
    if (c != ',' && c != (unsigned char)closing) {
        return header_scan_fail(s, "a comma or a closing bracket was expected");
    }
    s->at++;
    *is_last = c != ',';
    return true;
}

static bool scan_hex4(header_scan *s, uint32_t *out) {
    uint32_t v = 0;
    if (s->end - s->at < 4) return header_scan_fail(s, "cut escape");
    for (int i = 0; i < 4; i++) {
        char c = *s->at++;
        uint32_t d;
        if (c >= '0' && c <= '9') {
            d = (uint32_t)(c - '0');
        } else if (c >= 'a' && c <= 'f') {
            d = (uint32_t)(c - 'a') + 10;
        } else if (c >= 'A' && c <= 'F') {
            d = (uint32_t)(c - 'A') + 10;
        } else {
            return header_scan_fail(s, "wrong escape");
        }
        v = v * 16 + d;
    }
    *out = v;
    return true;
}

/* Takes what follows "\u"; joins surrogate pairs. */
static bool scan_unicode_escape(header_scan *s, uint32_t *out) {
    uint32_t hi, lo;
    if (!scan_hex4(s, &hi)) return false;
    if (hi >= 0xDC00 && hi <= 0xDFFF) return header_scan_fail(s, "lone surrogate");
    if (hi >= 0xD800 && hi <= 0xDBFF) {
        if (s->end - s->at < 2 || s->at[0] != '\\' || s->at[1] != 'u') {
            return header_scan_fail(s, "lone surrogate");
        }
        s->at += 2;
        if (!scan_hex4(s, &lo)) return false;
        if (lo < 0xDC00 || lo > 0xDFFF) return header_scan_fail(s, "lone surrogate");
        hi = 0x10000 + ((hi - 0xD800) << 10) + (lo - 0xDC00);
    }
    if (hi == 0) return header_scan_fail(s, "NUL character in a string");
    *out = hi;
    return true;
}

/* Takes what follows a backslash; writes the character to out, its length to *n. */
static bool scan_escape(header_scan *s, char out[4], size_t *n) {
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    if (s->at >= s->end) return header_scan_fail(s, "cut escape");
    char c = *s->at++;
    if (c == 'u') {
        uint32_t code;
        if (!scan_unicode_escape(s, &code)) return false;
        *n = utf8_encode(code, out);
        return true;
    }
    const char *hit = c != '\0' ? strchr(from, c) : NULL;
    if (hit == NULL) return header_scan_fail(s, "wrong escape");
    out[0] = to[hit - from];
    *n = 1;
    return true;
}

bool header_scan_string(header_scan *s, char *out, size_t cap, size_t *len) {
    size_t n = 0;
    if (header_scan_peek(s) != '"') return header_scan_fail(s, "a string was expected");
    s->at++;
    for (;;) {
        char piece[4];
        size_t n_piece = 1;
        if (s->at >= s->end) return header_scan_fail(s, "a string has no end");
        unsigned char c = (unsigned char)*s->at++;
        if (c == '"') break;
        if (c < 0x20) return header_scan_fail(s, "control byte in a string");
        piece[0] = (char)c;
        if (c == '\\' && !scan_escape(s, piece, &n_piece)) return false;
        if (n + n_piece >= cap) return header_scan_fail(s, "a string is too long");
        memcpy(out + n, piece, n_piece);
        n += n_piece;
    }
    out[n] = '\0';
    *len = n;
    if (!utf8_valid(out, n)) return header_scan_fail(s, "a string is not UTF-8");
    return true;
}

bool header_scan_u64(header_scan *s, uint64_t *out) {
    uint64_t v = 0;
    int c = header_scan_peek(s);
    const char *first = s->at;
    if (c < '0' || c > '9') return header_scan_fail(s, "a whole number was expected");
    while (s->at < s->end && *s->at >= '0' && *s->at <= '9') {
        uint64_t d = (uint64_t)(*s->at - '0');
        if (v > (UINT64_MAX - d) / 10) return header_scan_fail(s, "a number is above 2^64");
        v = v * 10 + d;
        s->at++;
    }
    if (*first == '0' && s->at - first > 1)
        return header_scan_fail(s, "a number has a leading zero");
    if (s->at < s->end && (*s->at == '.' || *s->at == 'e' || *s->at == 'E')) {
        return header_scan_fail(s, "a whole number was expected, not a fraction");
    }
    *out = v;
    return true;
}

/* Skips a string without decoding it. */
static bool skip_string(header_scan *s) {
    s->at++;
    while (s->at < s->end) {
        char c = *s->at++;
        if (c == '"') return true;
        if (c == '\\') {
            if (s->at >= s->end) break;
            s->at++;
        }
    }
    return header_scan_fail(s, "a string has no end");
}

/* Skips a number, true, false or null; what it spells is not checked beyond its bytes. */
static bool skip_word(header_scan *s) {
    const char *first = s->at;
    while (s->at < s->end && strchr("+-.0123456789abcdefghijklmnopqrstuvwxyzE", *s->at) != NULL &&
           *s->at != '\0') {
        s->at++;
    }
    return s->at > first || header_scan_fail(s, "a value was expected");
}

bool header_scan_skip(header_scan *s) {
    char open[HEADER_SCAN_MAX_DEPTH];
    int depth = 0;
    for (;;) {
        int c = header_scan_peek(s);
        if (c == '{' || c == '[') {
            if (depth == HEADER_SCAN_MAX_DEPTH) return header_scan_fail(s, "nested too deep");
            open[depth++] = c == '{' ? '}' : ']';
            s->at++;
        } else if (depth > 0 && c == open[depth - 1]) {
            depth--;
            s->at++;
        } else if (c == '"') {
            if (!skip_string(s)) return false;
        } else if (depth > 0 && (c == ',' || c == ':')) {
            s->at++;
        } else if (c < 0 || !skip_word(s)) {
            return header_scan_fail(s, "the text ends too early");
        }
        if (depth == 0) return true;
    }
}

bool header_scan_at_end(header_scan *s) {
    return header_scan_peek(s) < 0;
}
