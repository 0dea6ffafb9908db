/* Splitting before merging (chat.md 3). Each stage keeps matches and the gaps between them as
 * pieces and the next stage runs inside each piece, so look-ahead ends at the end of the piece.
 * DeepSeek's three patterns are scanned by hand, in one pass, in linear time. */
#include <string.h>

#include "engine/base/str.h"
#include "engine/text/tokenizer_internal.h"

static inline uint8_t flags_at(
    const uint8_t *groups, const uint8_t *p, const uint8_t *end, unsigned *len) {
    if (*p < 0x80) {
        *len = 1;
        return groups[*p];
    }
    return unicode_flags(groups, unicode_decode(p, end, len));
}

/* End of the run of characters that have one of the flags. */
static const uint8_t *run_of(
    const uint8_t *groups, const uint8_t *p, const uint8_t *end, uint8_t flags) {
    unsigned len;
    while (p < end && (flags_at(groups, p, end, &len) & flags) != 0)
        p += len;
    return p;
}

/* \s*[\r\n]+ | \s+(?!\S) | \s+ at p, which is white space. */
static const uint8_t *match_space(const uint8_t *groups, const uint8_t *p, const uint8_t *end) {
    const uint8_t *after_newline = NULL, *last = p, *q = p;
    unsigned len;
    while (q < end) {
        uint8_t f = flags_at(groups, q, end, &len);
        if ((f & UNICODE_SPACE) == 0) break;
        last = q;
        q += len;
        if (f & UNICODE_NEWLINE) after_newline = q;
    }
    if (after_newline != NULL) return after_newline;
    if (q == end || last == p) return q;
    return last;
}

/* End of the match of the third pattern at p, or NULL when nothing matches there. */
static const uint8_t *match_words(const uint8_t *groups, const uint8_t *p, const uint8_t *end) {
    unsigned len, next_len;
    uint8_t f = flags_at(groups, p, end, &len);
    const uint8_t *q = p + len;
    if (f & UNICODE_LETTER) return run_of(groups, q, end, UNICODE_LETTER);
    uint8_t next = q < end ? flags_at(groups, q, end, &next_len) : 0;
    if ((f & UNICODE_ASCII_SYMBOL) && (next & UNICODE_ASCII_LETTER)) {
        return run_of(groups, q, end, UNICODE_ASCII_LETTER);
    }
    if ((f & (UNICODE_SYMBOL | UNICODE_NEWLINE)) == 0 && (next & UNICODE_LETTER)) {
        return run_of(groups, q, end, UNICODE_LETTER);
    }
    if ((f & UNICODE_SYMBOL) || (*p == ' ' && (next & UNICODE_SYMBOL))) {
        q = run_of(groups, q, end, UNICODE_SYMBOL);
        return run_of(groups, q, end, UNICODE_NEWLINE);
    }
    return f & UNICODE_SPACE ? match_space(groups, p, end) : NULL;
}

const uint8_t *split_words_next(const uint8_t *groups, const uint8_t *p, const uint8_t *end) {
    const uint8_t *q = match_words(groups, p, end);
    if (q != NULL) return q;
    unsigned len;
    for (q = p; q < end && match_words(groups, q, end) == NULL; q += len) {
        (void)flags_at(groups, q, end, &len);
    }
    return q;
}

static const uint8_t *up_to_three_numbers(
    const uint8_t *groups, const uint8_t *p, const uint8_t *end) {
    unsigned len;
    for (int n = 0; n < 3 && p < end; n++) {
        if ((flags_at(groups, p, end, &len) & UNICODE_NUMBER) == 0) break;
        p += len;
    }
    return p;
}

/* --- one stage over one piece, as an iterator of matches --- */

typedef struct stage_scan {
    const tokenizer *t;
    const split_stage *stage;
    void *regex_data;
    const uint8_t *base, *end;
} stage_scan;

/* End of a native match that begins exactly at p, or NULL. */
static const uint8_t *native_match(const stage_scan *s, const uint8_t *p) {
    const uint8_t *g = s->t->groups, *q = p;
    unsigned len;
    switch (s->stage->kind) {
    case SPLIT_NUMBER3:
        q = up_to_three_numbers(g, p, s->end);
        break;
    case SPLIT_CJK:
        q = run_of(g, p, s->end, UNICODE_CJK_RUN);
        break;
    case SPLIT_WORDS:
        return match_words(g, p, s->end);
    case SPLIT_DIGITS:
        if (!s->stage->is_single)
            q = run_of(g, p, s->end, UNICODE_NUMBER);
        else if (flags_at(g, p, s->end, &len) & UNICODE_NUMBER)
            q = p + len;
        break;
    case SPLIT_LITERAL:
        if ((size_t)(s->end - p) >= s->stage->literal_len &&
            memcmp(p, s->stage->literal, s->stage->literal_len) == 0) {
            q = p + s->stage->literal_len;
        }
        break;
    case SPLIT_REGEX:
        break;
    }
    return q > p ? q : NULL;
}

/* First match at or after from: 1, 0 or a negative code. Never an empty match. */
static int next_match(const stage_scan *s, size_t from, size_t out[2]) {
    size_t len = (size_t)(s->end - s->base);
    if (s->stage->kind == SPLIT_REGEX) {
        return split_regex_find(
            s->stage->regex, s->regex_data, (const char *)s->base, len, from, out);
    }
    unsigned step;
    for (const uint8_t *p = s->base + from; p < s->end; p += step) {
        const uint8_t *q = native_match(s, p);
        if (q != NULL) {
            out[0] = (size_t)(p - s->base);
            out[1] = (size_t)(q - s->base);
            return 1;
        }
        (void)flags_at(s->t->groups, p, s->end, &step);
    }
    return 0;
}

/* Joins raw parts (match or gap) into pieces by the rule's behaviour. */
typedef struct joiner {
    split_behavior behavior;
    size_t start, end; /* pending piece */
    bool has_pending, pending_is_match;
    piece_fn fn;
    void *ctx;
    const char *base;
} joiner;

static bool joiner_flush(joiner *j) {
    if (!j->has_pending) return true;
    j->has_pending = false;
    return j->end == j->start || j->fn(j->ctx, j->base + j->start, j->end - j->start);
}

static bool joiner_add(joiner *j, size_t start, size_t end, bool is_match) {
    if (start == end) return true;
    bool joins = false;
    switch (j->behavior) {
    case SPLIT_ISOLATED:
        break;
    case SPLIT_REMOVED:
        if (is_match) return joiner_flush(j);
        break;
    case SPLIT_MERGED_WITH_PREVIOUS:
        joins = is_match && !j->pending_is_match;
        break;
    case SPLIT_MERGED_WITH_NEXT:
        joins = !is_match && j->pending_is_match;
        break;
    case SPLIT_CONTIGUOUS:
        joins = is_match == j->pending_is_match;
        break;
    }
    if (j->has_pending && joins) {
        j->end = end;
        j->pending_is_match = is_match;
        return true;
    }
    if (!joiner_flush(j)) return false;
    *j = (joiner){j->behavior, start, end, true, is_match, j->fn, j->ctx, j->base};
    return true;
}

typedef struct walk {
    const tokenizer *t;
    piece_fn fn;
    void *ctx;
    int rc;
    void *regex_data[SPLIT_MAX_STAGES];
} walk;

typedef struct walk_level {
    walk *w;
    int i_stage;
} walk_level;

static bool walk_stage(void *ctx, const char *p, size_t len);

/* One part of a stage: cut off at matches, joined, handed to the next stage. */
static int run_stage(walk *w, int i_stage, const char *p, size_t len) {
    const split_stage *st = &w->t->stages[i_stage];
    walk_level next = {w, i_stage + 1};
    joiner j = {.behavior = st->behavior, .fn = walk_stage, .ctx = &next, .base = p};
    stage_scan s = {w->t, st, w->regex_data[i_stage], (const uint8_t *)p, (const uint8_t *)p + len};
    size_t at = 0, m[2];
    while (at < len) {
        int rc = next_match(&s, at, m);
        if (rc < 0) return rc;
        if (rc == 0) break;
        if (!joiner_add(&j, at, m[0], st->is_inverted) ||
            !joiner_add(&j, m[0], m[1], !st->is_inverted)) {
            return w->rc;
        }
        at = m[1];
    }
    if (joiner_add(&j, at, len, st->is_inverted)) (void)joiner_flush(&j);
    return w->rc;
}

/* Depth is the number of stages, at most SPLIT_MAX_STAGES. */
static bool walk_stage(void *ctx, const char *p, size_t len) {
    walk_level *l = ctx;
    walk *w = l->w;
    if (l->i_stage == w->t->n_stages) {
        if (w->fn(w->ctx, p, len)) return true;
        w->rc = ERR_CANCELLED;
        return false;
    }
    int rc = run_stage(w, l->i_stage, p, len);
    if (rc != OK) w->rc = rc;
    return w->rc == OK;
}

int split_walk(const tokenizer *t, const char *p, size_t len, piece_fn fn, void *ctx) {
    walk w = {.t = t, .fn = fn, .ctx = ctx};
    for (int i = 0; i < t->n_stages; i++) {
        if (t->stages[i].kind == SPLIT_REGEX) {
            w.regex_data[i] = split_regex_data(t->stages[i].regex);
            if (w.regex_data[i] == NULL) w.rc = ERR_MEMORY;
        }
    }
    walk_level first = {&w, 0};
    /* Bytes that are not UTF-8 are pieces of their own, so patterns only ever see valid text. */
    for (size_t at = 0; at < len && w.rc == OK;) {
        size_t good = utf8_valid_prefix(p + at, len - at);
        if (good == 0) {
            if (!fn(ctx, p + at, 1)) w.rc = ERR_CANCELLED;
            at++;
        } else {
            (void)walk_stage(&first, p + at, good);
            at += good;
        }
    }
    for (int i = 0; i < t->n_stages; i++)
        split_regex_data_free(w.regex_data[i]);
    return w.rc;
}

/* --- DeepSeek's sequence, fused --- */

static void encode_words(encoder *enc, const uint8_t *p, const uint8_t *end) {
    const uint8_t *groups = enc->t->groups;
    while (p < end && enc->rc == OK) {
        const uint8_t *q = split_words_next(groups, p, end);
        encoder_piece(enc, (const char *)p, (size_t)(q - p));
        p = q;
    }
}

static void encode_deepseek(encoder *enc, const uint8_t *p, const uint8_t *end) {
    const uint8_t *groups = enc->t->groups, *start = p;
    unsigned len;
    while (p < end && enc->rc == OK) {
        uint8_t f = flags_at(groups, p, end, &len);
        if ((f & (UNICODE_NUMBER | UNICODE_CJK_RUN)) == 0) {
            p += len;
            continue;
        }
        encode_words(enc, start, p);
        const uint8_t *q;
        if (f & UNICODE_NUMBER) {
            q = up_to_three_numbers(groups, p, end);
            encoder_piece(enc, (const char *)p, (size_t)(q - p));
        } else {
            q = run_of(groups, p, end, UNICODE_CJK_RUN);
            encode_words(enc, p, q);
        }
        p = start = q;
    }
    encode_words(enc, start, p);
}

static bool encode_one(void *ctx, const char *p, size_t len) {
    encoder *enc = ctx;
    encoder_piece(enc, p, len);
    return enc->rc == OK;
}

void encoder_text(encoder *enc, const char *p, size_t len) {
    if (enc->rc != OK || len == 0) return;
    if (enc->t->is_deepseek) {
        encode_deepseek(enc, (const uint8_t *)p, (const uint8_t *)p + len);
        return;
    }
    int rc = split_walk(enc->t, p, len, encode_one, enc);
    if (enc->rc == OK) enc->rc = rc;
}
