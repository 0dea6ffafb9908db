#include "engine/run/grammar_regex_class.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/text/unicode.h"

#define CP_LAST 0x10FFFFu

void cp_set_add(cp_set *s, uint32_t first, uint32_t last) {
    if (s->len == s->cap) {
        s->cap = s->cap == 0 ? 8 : s->cap * 2;
        s->ranges = mem_realloc(s->ranges, s->cap * sizeof *s->ranges);
    }
    s->ranges[s->len][0] = first;
    s->ranges[s->len][1] = last;
    s->len++;
}

void cp_set_release(cp_set *s) {
    mem_free(s->ranges);
    *s = (cp_set){0};
}

static int compare_ranges(const void *a, const void *b) {
    const uint32_t *x = a, *y = b;
    return (x[0] > y[0]) - (x[0] < y[0]);
}

void cp_set_invert(cp_set *s) {
    cp_set out = {0};
    uint32_t next = 0;
    if (s->len > 0) qsort(s->ranges, s->len, sizeof *s->ranges, compare_ranges);
    for (size_t i = 0; i < s->len; i++) {
        if (s->ranges[i][0] > next) cp_set_add(&out, next, s->ranges[i][0] - 1);
        if (s->ranges[i][1] >= next) next = s->ranges[i][1] + 1;
    }
    if (next <= CP_LAST) cp_set_add(&out, next, CP_LAST);
    cp_set_release(s);
    *s = out;
}

static void add_all(cp_set *s, const uint32_t (*ranges)[2], size_t n) {
    for (size_t i = 0; i < n; i++)
        cp_set_add(s, ranges[i][0], ranges[i][1]);
}

void cp_set_dot(cp_set *s) {
    static const uint32_t line_ends[][2] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
    add_all(s, line_ends, 3);
    cp_set_invert(s);
}

static void add_digits(cp_set *s) {
    cp_set_add(s, '0', '9');
}

static void add_word(cp_set *s) {
    static const uint32_t word[][2] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
    add_all(s, word, 4);
}

static void add_space(cp_set *s) {
    static const uint32_t space[][2] = {{9, 13}, {32, 32}, {0xA0, 0xA0}, {0x1680, 0x1680},
        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000},
        {0xFEFF, 0xFEFF}};
    add_all(s, space, sizeof space / sizeof *space);
}

static void add_inverted(cp_set *s, void (*add)(cp_set *)) {
    cp_set other = {0};
    add(&other);
    cp_set_invert(&other);
    add_all(s, (const uint32_t(*)[2])other.ranges, other.len);
    cp_set_release(&other);
}

static int hex_digits(const char **p, const char *end, int n, uint32_t *out) {
    uint32_t v = 0;
    if (end - *p < n) return ERR_FORMAT;
    for (int i = 0; i < n; i++) {
        char c = (*p)[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0) return ERR_FORMAT;
        v = v * 16 + (uint32_t)d;
    }
    *p += n;
    *out = v;
    return OK;
}

/* Behind \u: four digits (a pair of surrogates joins), or digits in braces. */
static int unicode_escape(const char **p, const char *end, uint32_t *cp) {
    if (*p < end && **p == '{') {
        const char *s = *p + 1;
        uint32_t v = 0, d;
        while (s < end && *s != '}') {
            if (hex_digits(&s, end, 1, &d) != OK) return ERR_FORMAT;
            v = v * 16 + d;
            if (v > CP_LAST) return ERR_FORMAT;
        }
        if (s >= end || s == *p + 1) return ERR_FORMAT;
        *p = s + 1;
        *cp = v;
        return OK;
    }
    if (hex_digits(p, end, 4, cp) != OK) return ERR_FORMAT;
    if (*cp >= 0xD800 && *cp < 0xDC00 && end - *p >= 6 && (*p)[0] == '\\' && (*p)[1] == 'u') {
        const char *s = *p + 2;
        uint32_t low;
        if (hex_digits(&s, end, 4, &low) == OK && low >= 0xDC00 && low < 0xE000) {
            *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
            *p = s;
        }
    }
    return OK;
}

/* General categories that the tables of the tokenizer can tell apart exactly. */
static int property(const char **p, const char *end, bool is_inverted, cp_set *set) {
    static const struct {
        const char *name;
        uint8_t group;
    } known[] = {{"N", UNICODE_NUMBER}, {"Number", UNICODE_NUMBER}, {"White_Space", UNICODE_SPACE},
        {"space", UNICODE_SPACE}};
    const char *close = *p < end && **p == '{' ? memchr(*p, '}', (size_t)(end - *p)) : NULL;
    if (close == NULL) return ERR_FORMAT;
    const char *name = *p + 1;
    size_t len = (size_t)(close - name);
    *p = close + 1;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strlen(known[i].name) != len || memcmp(known[i].name, name, len) != 0) continue;
        cp_set found = {0};
        for (size_t k = 0; k < unicode_n_ranges; k++) {
            if ((unicode_ranges[k].group & known[i].group) == 0) continue;
            cp_set_add(&found, unicode_ranges[k].first, unicode_ranges[k].last);
        }
        if (is_inverted) cp_set_invert(&found);
        add_all(set, (const uint32_t(*)[2])found.ranges, found.len);
        cp_set_release(&found);
        return OK;
    }
    return ERR_UNSUPPORTED;
}

/* A backslash and a letter that stands for a class. True if it was one. */
static bool class_escape(char c, cp_set *set) {
    switch (c) {
    case 'd':
        add_digits(set);
        return true;
    case 'D':
        add_inverted(set, add_digits);
        return true;
    case 'w':
        add_word(set);
        return true;
    case 'W':
        add_inverted(set, add_word);
        return true;
    case 's':
        add_space(set);
        return true;
    case 'S':
        add_inverted(set, add_space);
        return true;
    default:
        return false;
    }
}

/* A backslash and what stands for one character; *p behind the backslash. */
static int char_escape(const char **p, const char *end, uint32_t *cp) {
    static const char letters[] = "tnvfr0", values[] = {9, 10, 11, 12, 13, 0};
    char c = *(*p)++;
    const char *at = strchr(letters, c);
    if (c != 0 && at != NULL) {
        if (c == '0' && *p < end && **p >= '0' && **p <= '9') return ERR_FORMAT;
        *cp = (uint32_t)values[at - letters];
        return OK;
    }
    if (c == 'x') return hex_digits(p, end, 2, cp);
    if (c == 'u') return unicode_escape(p, end, cp);
    if (c == 'c' && *p < end && ((**p >= 'a' && **p <= 'z') || (**p >= 'A' && **p <= 'Z'))) {
        *cp = (uint32_t)(*(*p)++ & 31);
        return OK;
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
        return ERR_FORMAT;
    }
    (*p)--;
    size_t n = utf8_decode(*p, (size_t)(end - *p), cp);
    *p += n;
    return *cp == UTF8_INVALID ? ERR_FORMAT : OK;
}

int regex_escape(const char **p, const char *end, cp_set *set, const char **what) {
    uint32_t cp;
    *what = "unknown escape";
    if (end - *p < 2) {
        *what = "a backslash at the end";
        return ERR_FORMAT;
    }
    (*p)++;
    char c = **p;
    if (class_escape(c, set)) {
        (*p)++;
        return OK;
    }
    if (c == 'b' || c == 'B') {
        *what = "a word border cannot be enforced";
        return ERR_UNSUPPORTED;
    }
    if ((c >= '1' && c <= '9') || c == 'k') {
        *what = "a back-reference cannot be enforced";
        return ERR_UNSUPPORTED;
    }
    if (c == 'p' || c == 'P') {
        (*p)++;
        *what = "this Unicode property cannot be enforced";
        return property(p, end, c == 'P', set);
    }
    int rc = char_escape(p, end, &cp);
    if (rc == OK) cp_set_add(set, cp, cp);
    return rc;
}

/* One member of a class. *is_single: it is one character (in *cp) and may begin a range. */
static int class_member(
    const char **p, const char *end, cp_set *set, uint32_t *cp, bool *is_single) {
    *is_single = true;
    if (**p != '\\') {
        *p += utf8_decode(*p, (size_t)(end - *p), cp);
        return *cp == UTF8_INVALID ? ERR_FORMAT : OK;
    }
    if (end - *p < 2) return ERR_FORMAT;
    char c = (*p)[1];
    if (class_escape(c, set)) {
        *is_single = false;
        *p += 2;
        return OK;
    }
    *p += 1;
    if (c == 'p' || c == 'P') {
        *p += 1;
        *is_single = false;
        return property(p, end, c == 'P', set);
    }
    if (c == 'b' || c == '-') {
        *p += 1;
        *cp = c == 'b' ? 8 : '-';
        return OK;
    }
    return char_escape(p, end, cp);
}

int regex_class(const char **p, const char *end, cp_set *set, const char **what) {
    bool is_inverted = end - *p >= 2 && (*p)[1] == '^';
    *p += is_inverted ? 2 : 1;
    *what = "a character class that is not right";
    while (*p < end && **p != ']') {
        uint32_t first, last;
        bool is_single, is_last_single;
        int rc = class_member(p, end, set, &first, &is_single);
        if (rc == ERR_UNSUPPORTED) *what = "this Unicode property cannot be enforced";
        if (rc != OK) return rc;
        if (!is_single) continue;
        last = first;
        if (end - *p >= 2 && **p == '-' && (*p)[1] != ']') {
            (*p)++;
            rc = class_member(p, end, set, &last, &is_last_single);
            if (rc != OK) return rc;
            if (!is_last_single || last < first) {
                *what = "a range out of order in a character class";
                return ERR_FORMAT;
            }
        }
        cp_set_add(set, first, last);
    }
    if (*p >= end) {
        *what = "a character class is not closed";
        return ERR_FORMAT;
    }
    (*p)++;
    if (is_inverted) cp_set_invert(set);
    return OK;
}
