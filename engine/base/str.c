#include "engine/base/str.h"

#include <errno.h>

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/err.h"

/* Length of the sequence that starts with this byte, 0 when none can, and the allowed range of the
 * second byte, which is where overlong forms, surrogates and values above U+10FFFF show. */
static size_t utf8_lead(unsigned char lead, unsigned char *low, unsigned char *high) {
    *low = 0x80;
    *high = 0xBF;
    if (lead < 0x80) return 1;
    if (lead < 0xC2) return 0;
    if (lead < 0xE0) return 2;
    if (lead < 0xF0) {
        if (lead == 0xE0) *low = 0xA0;
        if (lead == 0xED) *high = 0x9F;
        return 3;
    }
    if (lead > 0xF4) return 0;
    if (lead == 0xF0) *low = 0x90;
    if (lead == 0xF4) *high = 0x8F;
    return 4;
}

/* Bytes at s that form the beginning of one valid sequence, and the length of the whole one. */
static size_t utf8_match(const unsigned char *s, size_t n, size_t *whole) {
    unsigned char low;
    unsigned char high;
    *whole = utf8_lead(s[0], &low, &high);
    if (*whole == 0) return 0;
    size_t i = 1;
    for (; i < *whole && i < n; i++) {
        if (s[i] < low || s[i] > high) break;
        low = 0x80;
        high = 0xBF;
    }
    return i;
}

size_t utf8_decode(const char *s, size_t n, uint32_t *cp) {
    const unsigned char *u = (const unsigned char *)s;
    *cp = UTF8_INVALID;
    if (n == 0) return 0;
    if (u[0] < 0x80) {
        *cp = u[0];
        return 1;
    }
    size_t whole;
    if (utf8_match(u, n, &whole) != whole || whole == 0) return 1;
    uint32_t v = u[0] & (0x7Fu >> whole);
    for (size_t i = 1; i < whole; i++)
        v = v << 6 | (u[i] & 0x3Fu);
    *cp = v;
    return whole;
}

size_t utf8_encode(uint32_t cp, char out[4]) {
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) cp = 0xFFFD;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

size_t utf8_valid_prefix(const char *s, size_t n) {
    size_t i = 0;
    while (i < n) {
        /* Eight ASCII bytes at a time: most text is that. */
        uint64_t word;
        while (n - i >= sizeof word) {
            memcpy(&word, s + i, sizeof word);
            if ((word & UINT64_C(0x8080808080808080)) != 0) break;
            i += sizeof word;
        }
        if (i == n) break;
        uint32_t cp;
        size_t used = utf8_decode(s + i, n - i, &cp);
        if (cp == UTF8_INVALID) break;
        i += used;
    }
    return i;
}

bool utf8_valid(const char *s, size_t n) {
    return utf8_valid_prefix(s, n) == n;
}

size_t utf8_partial_tail(const char *s, size_t n) {
    const unsigned char *u = (const unsigned char *)s;
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        unsigned char c = u[n - back];
        if (c >= 0x80 && c < 0xC0) continue;
        if (c < 0x80) return 0;
        size_t whole;
        size_t matched = utf8_match(u + n - back, back, &whole);
        return matched == back && whole > back ? back : 0;
    }
    return 0;
}

bool str_starts(const char *s, const char *prefix) {
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

bool str_ends(const char *s, const char *suffix) {
    size_t n = strlen(s);
    size_t m = strlen(suffix);
    return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

bool str_eq(const char *a, const char *b) {
    if (a == NULL || b == NULL) return a == b;
    return strcmp(a, b) == 0;
}

static char ascii_lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c + ('a' - 'A')) : c;
}

bool str_eq_nocase(const char *a, const char *b) {
    if (a == NULL || b == NULL) return a == b;
    while (*a != '\0' && ascii_lower(*a) == ascii_lower(*b)) {
        a++;
        b++;
    }
    return *a == '\0' && *b == '\0';
}

size_t str_copy(char *dst, size_t cap, const char *src) {
    size_t n = strlen(src);
    if (cap > 0) {
        size_t take = n < cap ? n : cap - 1;
        memcpy(dst, src, take);
        dst[take] = '\0';
    }
    return n;
}

static bool is_digits(const char *s) {
    if (*s == '\0') return false;
    for (; *s != '\0'; s++) {
        if (*s < '0' || *s > '9') return false;
    }
    return true;
}

int parse_u64(const char *s, uint64_t *out) {
    if (!is_digits(s)) return ERR_FORMAT;
    uint64_t v = 0;
    for (; *s != '\0'; s++) {
        if (__builtin_mul_overflow(v, (uint64_t)10, &v)) return ERR_LIMIT;
        if (__builtin_add_overflow(v, (uint64_t)(*s - '0'), &v)) return ERR_LIMIT;
    }
    *out = v;
    return OK;
}

int parse_i64(const char *s, int64_t *out) {
    bool is_negative = *s == '-';
    uint64_t v;
    int rc = parse_u64(s + (is_negative || *s == '+'), &v);
    if (rc != OK) return rc;
    uint64_t limit = (uint64_t)INT64_MAX + (is_negative ? 1 : 0);
    if (v > limit) return ERR_LIMIT;
    *out = is_negative ? (int64_t)(0 - v) : (int64_t)v;
    return OK;
}

/* digits [. digits] [e [sign] digits] with a digit on at least one side of the point */
static bool is_decimal(const char *s) {
    size_t n_digits = 0;
    if (*s == '-' || *s == '+') s++;
    for (; *s >= '0' && *s <= '9'; s++)
        n_digits++;
    if (*s == '.') {
        for (s++; *s >= '0' && *s <= '9'; s++)
            n_digits++;
    }
    if (n_digits == 0) return false;
    if (*s == 'e' || *s == 'E') {
        s++;
        if (*s == '-' || *s == '+') s++;
        return is_digits(s);
    }
    return *s == '\0';
}

/* The "C" locale as an object, made once; the process may run under another one. */
static locale_t c_locale(void) {
    static _Atomic(locale_t) cached;
    locale_t have = cached;
    if (have != (locale_t)0) return have;
    locale_t made = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    locale_t expected = (locale_t)0;
    if (__atomic_compare_exchange_n(
            (locale_t *)&cached, &expected, made, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        return made;
    }
    freelocale(made);
    return expected;
}

int parse_double(const char *s, double *out) {
    if (!is_decimal(s)) return ERR_FORMAT;
    char *end;
    double v = strtod_l(s, &end, c_locale());
    if (*end != '\0') return ERR_FORMAT;
    if (isinf(v)) return ERR_LIMIT;
    *out = v;
    return OK;
}

int parse_bytes(const char *s, uint64_t *out) {
    static const struct {
        const char *name;
        double factor;
    } units[] = {{"", 1}, {"B", 1}, {"K", 0x1p10}, {"KiB", 0x1p10}, {"KB", 1e3}, {"M", 0x1p20},
        {"MiB", 0x1p20}, {"MB", 1e6}, {"G", 0x1p30}, {"GiB", 0x1p30}, {"GB", 1e9}, {"T", 0x1p40},
        {"TiB", 0x1p40}, {"TB", 1e12}};
    char number[40];
    size_t n = strspn(s, "0123456789.");
    if (n == 0 || n >= sizeof number) return ERR_FORMAT;
    memcpy(number, s, n);
    number[n] = '\0';
    s += n;
    while (*s == ' ')
        s++;
    double v;
    int rc = parse_double(number, &v);
    if (rc != OK) return rc;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (!str_eq_nocase(s, units[i].name)) continue;
        /* A plain integer keeps every digit. */
        if (units[i].factor == 1) return parse_u64(number, out);
        v *= units[i].factor;
        if (v >= 0x1p63) return ERR_LIMIT;
        *out = (uint64_t)v;
        return OK;
    }
    return ERR_FORMAT;
}

/* ---- mistyped words ---- */

enum { WORD_CAP = 64 };

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Letters that are wrong, missing, too many or swapped with their neighbour. */
static size_t wrong_letters(const char *a, const char *b) {
    size_t n = strlen(a), m = strlen(b);
    size_t row[3][WORD_CAP]; /* of the letter before the last, the last and this one of a */
    if (n >= WORD_CAP || m >= WORD_CAP) return WORD_CAP;
    size_t *before = row[0], *last = row[1], *now = row[2];
    for (size_t j = 0; j <= m; j++)
        last[j] = j;
    for (size_t i = 1; i <= n; i++) {
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            bool is_same = lower(a[i - 1]) == lower(b[j - 1]);
            now[j] = least(least(last[j], now[j - 1]) + 1, last[j - 1] + (is_same ? 0 : 1));
            bool is_swapped = i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                              lower(a[i - 2]) == lower(b[j - 1]);
            if (is_swapped) now[j] = least(now[j], before[j - 2] + 1);
        }
        size_t *free_row = before;
        before = last;
        last = now;
        now = free_row;
    }
    return last[m];
}

static bool begins(const char *word, const char *name) {
    size_t i = 0;
    while (word[i] != '\0' && lower(word[i]) == lower(name[i]))
        i++;
    return word[i] == '\0';
}

const char *str_nearest(
    const char *word, const char *(*name)(size_t i, void *ctx), size_t n, void *ctx) {
    const char *best = NULL, *start = NULL;
    size_t len = strlen(word), best_wrong = len < 3 ? 1 : len / 3 + 1;
    bool is_one_start = true;
    for (size_t i = 0; i < n; i++) {
        const char *candidate = name(i, ctx);
        if (candidate == NULL || candidate[0] == '\0') continue;
        if (len >= 3 && begins(word, candidate)) {
            is_one_start = is_one_start && (start == NULL || str_eq(start, candidate));
            start = candidate;
        }
        size_t wrong = wrong_letters(word, candidate);
        if (wrong >= best_wrong) continue;
        best_wrong = wrong;
        best = candidate;
    }
    return start != NULL && is_one_start ? start : best;
}
