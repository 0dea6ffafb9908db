#include <string.h>

#include "engine/text/reply_internal.h"

int reply_word(const char *p, size_t n, const char *word) {
    size_t len = strlen(word);
    if (n >= len) return memcmp(p, word, len) == 0 ? 2 : 0;
    return memcmp(p, word, n) == 0 ? 1 : 0;
}

tag_kind reply_think_tag(const char *p, size_t n, size_t *len) {
    int open = reply_word(p, n, "<think>"), close = reply_word(p, n, "</think>");
    if (open == 2) {
        *len = 7;
        return TAG_THINK_OPEN;
    }
    if (close == 2) {
        *len = 8;
        return TAG_THINK_CLOSE;
    }
    return open == 1 || close == 1 ? TAG_PARTIAL : TAG_NONE;
}

/* After "<" and the mark. */
static tag_kind opening(const char *p, size_t n, size_t *len) {
    static const struct {
        const char *word;
        tag_kind kind;
    } words[] = {
        {"calls", TAG_OPEN_BLOCK},
        {"tool_calls", TAG_OPEN_BLOCK},
        {"toolcalls", TAG_OPEN_BLOCK},
        {"tool_use", TAG_OPEN_BLOCK},
        {">", TAG_OPEN_BLOCK},
        {"invoke", TAG_INVOKE},
        {"parameter", TAG_PARAMETER},
    };
    size_t at = n > 0 && p[0] == ' ' ? 1 : 0;
    tag_kind found = TAG_NONE;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        int fit = reply_word(p + at, n - at, words[i].word);
        if (fit == 2) {
            *len = at + strlen(words[i].word);
            return words[i].kind;
        }
        if (fit == 1) found = TAG_PARTIAL;
    }
    return found;
}

static tag_kind closing_kind(const char *name, size_t len) {
    static const struct {
        const char *word;
        tag_kind kind;
    } words[] = {
        {"calls", TAG_CLOSE_BLOCK},
        {"tool_calls", TAG_CLOSE_BLOCK},
        {"toolcalls", TAG_CLOSE_BLOCK},
        {"tool_use", TAG_CLOSE_BLOCK},
        {"", TAG_CLOSE_BLOCK},
        {"invoke", TAG_CLOSE_INVOKE},
        {"parameter", TAG_CLOSE_PARAMETER},
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strlen(words[i].word) == len && memcmp(words[i].word, name, len) == 0) {
            return words[i].kind;
        }
    }
    return TAG_CLOSE_OTHER;
}

/* The mark in plain letters, cut off: it stays plain, but a reply that ends in it ended in a tag. */
static bool is_cut_literal(const char *p, size_t n) {
    return n > 0 && reply_word(p, n, REPLY_DSML) == 1;
}

/* One doubled bar may stand here. 1 skipped or absent, 0 cut off. */
static int skip_bar(const char *p, size_t n, size_t *at) {
    int fit = *at < n ? reply_word(p + *at, n - *at, REPLY_BAR) : 0;
    if (fit == 2) *at += 3;
    return fit == 1 ? 0 : 1;
}

/* p begins with "</". A closing tag may carry doubled bars around its mark. */
static tag_kind closing(const char *p, size_t n, size_t *len) {
    size_t at = 2;
    if (is_cut_literal(p + at, n - at)) return TAG_PARTIAL;
    if (skip_bar(p, n, &at) == 0 || at == n) return TAG_PARTIAL;
    if (p[at++] != REPLY_MARK) return TAG_NONE;
    if (skip_bar(p, n, &at) == 0) return TAG_PARTIAL;
    if (at < n && p[at] == ' ') at++;
    size_t name = at;
    while (at < n && at - name < 16 && ((p[at] >= 'a' && p[at] <= 'z') || p[at] == '_'))
        at++;
    if (at == n) return TAG_PARTIAL;
    *len = at;
    if (p[at] != '>') return TAG_CLOSE_OTHER;
    *len = at + 1;
    return closing_kind(p + name, at - name);
}

tag_kind reply_tag(const char *p, size_t n, size_t *len) {
    if (n < 2) return TAG_PARTIAL;
    if (p[1] == '/') return closing(p, n, len);
    if (is_cut_literal(p + 1, n - 1)) return TAG_PARTIAL;
    if (p[1] != REPLY_MARK) return TAG_NONE;
    if (n == 2) return TAG_PARTIAL;
    tag_kind kind = opening(p + 2, n - 2, len);
    *len += 2;
    return kind;
}
