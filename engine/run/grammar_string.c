/* Strings inside JSON and raw text: lexical rules, content automata, counts of characters. */
#include <string.h>

#include "engine/base/str.h"
#include "engine/run/grammar_internal.h"

static int hex_value(uint8_t b) {
    if (b >= '0' && b <= '9') return b - '0';
    if (b >= 'a' && b <= 'f') return b - 'a' + 10;
    if (b >= 'A' && b <= 'F') return b - 'A' + 10;
    return -1;
}

static uint8_t lex_first(uint8_t byte) {
    if (byte < 0x80) return LEX_START;
    if (byte < 0xC2) return LEX_DEAD;
    if (byte < 0xE0) return LEX_TAIL1;
    if (byte == 0xE0) return LEX_E0;
    if (byte == 0xED) return LEX_ED;
    if (byte < 0xF0) return LEX_TAIL2;
    if (byte == 0xF0) return LEX_F0;
    if (byte < 0xF4) return LEX_TAIL3;
    return byte == 0xF4 ? LEX_F4 : LEX_DEAD;
}

static uint8_t lex_tail(uint8_t lex, uint8_t byte) {
    switch (lex) {
    case LEX_TAIL1:
        return byte >= 0x80 && byte <= 0xBF ? LEX_START : LEX_DEAD;
    case LEX_TAIL2:
        return byte >= 0x80 && byte <= 0xBF ? LEX_TAIL1 : LEX_DEAD;
    case LEX_TAIL3:
        return byte >= 0x80 && byte <= 0xBF ? LEX_TAIL2 : LEX_DEAD;
    case LEX_E0:
        return byte >= 0xA0 && byte <= 0xBF ? LEX_TAIL1 : LEX_DEAD;
    case LEX_ED:
        return byte >= 0x80 && byte <= 0x9F ? LEX_TAIL1 : LEX_DEAD;
    case LEX_F0:
        return byte >= 0x90 && byte <= 0xBF ? LEX_TAIL2 : LEX_DEAD;
    default:
        return byte >= 0x80 && byte <= 0x8F ? LEX_TAIL2 : LEX_DEAD;
    }
}

/* Inside \u: digits, and the second half of a pair. */
static uint8_t lex_unit(uint8_t lex, uint8_t byte) {
    int d = hex_value(byte);
    if (lex == LEX_PAIR_SLASH) return byte == '\\' ? LEX_PAIR_U : LEX_DEAD;
    if (lex == LEX_PAIR_U) return byte == 'u' ? LEX_LOW1 : LEX_DEAD;
    if (d < 0) return LEX_DEAD;
    switch (lex) {
    case LEX_U1:
        return d == 13 ? LEX_U2_D : LEX_U2;
    case LEX_U2:
        return LEX_U3;
    case LEX_U3:
        return LEX_U4;
    case LEX_U4:
        return LEX_START;
    case LEX_U2_D:
        return d < 8 ? LEX_U3 : d < 12 ? LEX_HIGH3 : LEX_DEAD;
    case LEX_HIGH3:
        return LEX_HIGH4;
    case LEX_HIGH4:
        return LEX_PAIR_SLASH;
    case LEX_LOW1:
        return d == 13 ? LEX_LOW2 : LEX_DEAD;
    case LEX_LOW2:
        return d >= 12 ? LEX_LOW3 : LEX_DEAD;
    case LEX_LOW3:
        return LEX_LOW4;
    default:
        return LEX_START;
    }
}

uint8_t lex_step(uint8_t lex, uint8_t byte, bool is_raw) {
    if (lex == LEX_START) {
        if (is_raw) return lex_first(byte);
        if (byte == '"') return LEX_QUOTE;
        if (byte == '\\') return LEX_ESCAPE;
        return byte < 0x20 ? LEX_DEAD : lex_first(byte);
    }
    if (lex <= LEX_F4) return lex_tail(lex, byte);
    if (lex == LEX_ESCAPE) {
        if (byte == 'u') return LEX_U1;
        return byte != 0 && strchr("\"\\/bfnrt", byte) != NULL ? LEX_START : LEX_DEAD;
    }
    return lex_unit(lex, byte);
}

static uint8_t escape_value(uint8_t byte) {
    switch (byte) {
    case 'b':
        return '\b';
    case 'f':
        return '\f';
    case 'n':
        return '\n';
    case 'r':
        return '\r';
    case 't':
        return '\t';
    default:
        return byte;
    }
}

/* A hex digit of an escape. Returns how many decoded bytes it gives. */
static int unit_digit(frame *f, uint8_t lex, uint8_t byte, char out[4]) {
    f->u.text.unit = (uint16_t)(f->u.text.unit << 4 | hex_value(byte));
    uint32_t cp = f->u.text.unit;
    if (lex == LEX_HIGH4) f->u.text.high = f->u.text.unit;
    if (lex == LEX_LOW4) cp = 0x10000u + ((f->u.text.high - 0xD800u) << 10) + (cp - 0xDC00u);
    if (lex != LEX_U4 && lex != LEX_LOW4) return 0;
    f->u.text.unit = f->u.text.high = 0;
    return (int)utf8_encode(cp, out);
}

int any_text_step(frame *f, uint8_t byte, char out[4]) {
    uint8_t lex = f->u.text.lex, next = lex_step(lex, byte, false);
    int n = 0;
    if (next == LEX_DEAD) return -1;
    f->u.text.lex = next;
    if (next == LEX_QUOTE) return 0;
    if (lex == LEX_START) f->u.text.count++;
    if (next <= LEX_F4 && lex <= LEX_F4) {
        out[n++] = (char)byte;
    } else if (lex == LEX_ESCAPE && next == LEX_START) {
        out[n++] = (char)escape_value(byte);
    } else if (next == LEX_U1 || next == LEX_LOW1) {
        f->u.text.unit = 0;
    } else if (lex != LEX_START && lex != LEX_PAIR_SLASH) {
        n = unit_digit(f, lex, byte, out);
    }
    for (int i = 0; i < n; i++)
        f->hash = hash_byte(f->hash, (uint8_t)out[i]);
    return n;
}

int escape_step(frame *f, uint8_t byte) {
    uint8_t lex = f->u.text.lex;
    int d = hex_value(byte);
    f->u.text.lex = LEX_START;
    switch (lex) {
    case LEX_START:
        if (byte == '"') return -2;
        if (byte == '\\') break;
        return byte < 0x20 ? -3 : byte;
    case LEX_ESCAPE:
        if (byte == 'u') break;
        return byte != 0 && strchr("\"\\/bfnrt", byte) != NULL ? escape_value(byte) : -3;
    case LEX_U1:
    case LEX_U2:
        if (byte != '0') return -3;
        break;
    case LEX_U3:
        if (d != 0 && d != 1) return -3;
        f->u.text.unit = (uint16_t)d;
        break;
    default:
        if (d < 0) return -3;
        d |= f->u.text.unit << 4;
        f->u.text.unit = 0;
        return d;
    }
    f->u.text.lex = lex == LEX_START ? LEX_ESCAPE : lex == LEX_ESCAPE ? LEX_U1 : (uint8_t)(lex + 1);
    return -1;
}

static bool has_length(const string_node *n, uint32_t q, uint32_t lo, uint32_t hi) {
    const uint64_t *row = n->lengths + (size_t)q * n->lengths_words;
    for (uint32_t i = lo; i <= hi && i < n->lengths_words * 64; i++) {
        if (i % 64 == 0 && row[i / 64] == 0) {
            i += 63;
            continue;
        }
        if ((row[i / 64] >> (i % 64) & 1) != 0) return true;
    }
    return false;
}

bool string_can_finish(const string_node *n, uint32_t q, uint32_t count) {
    if (count > n->max) return false;
    if (n->content == NULL) return true;
    uint32_t lo = n->min > count ? n->min - count : 0;
    uint32_t hi = n->max == GRAMMAR_NO_LIMIT ? GRAMMAR_NO_LIMIT : n->max - count;
    if (q == 0 || n->content->min_chars[q] > hi) return false;
    if (n->content->max_chars[q] < lo) return false;
    return n->lengths == NULL || has_length(n, q, lo, hi);
}

bool string_may_end(const string_node *n, const frame *f) {
    if (f->u.text.lex != LEX_START || f->u.text.count < n->min) return false;
    return n->content == NULL || n->content->accepts[f->u.text.q] != 0;
}

/* A string whose array holds each value once: some completion must be new. */
static bool has_fresh_end(const grammar_state *s, const string_node *n, const frame *f) {
    const frame *array = unique_parent(s, f);
    if (array == NULL || f->u.text.lex != LEX_START) return true;
    uint32_t records = array->u.array.records;
    if (f->u.text.count == n->max && string_may_end(n, f)) {
        return !records_have(s, records, hash_mix(HASH_STRING, f->hash));
    }
    return n->content == NULL || words_left(s, n->content, f, records, true);
}

void string_begin(grammar_state *s, uint32_t node, uint32_t parent, uint8_t flags) {
    const string_node *n = &s->g->strings[node];
    frame f = {.kind = FRAME_STRING, .node = node, .parent = parent, .flags = flags};
    f.hash = HASH_START;
    if (n->content != NULL) f.u.text.q = n->content->start;
    if (has_fresh_end(s, n, &f)) list_push(s, &s->out, &f);
}

/* Whether the text may go on with this character, which an escape stands for. */
static bool char_is_open(
    const grammar_state *s, const string_node *n, const frame *f, uint8_t byte) {
    frame after = *f;
    after.u.text.q = dfa_step(n->content, f->u.text.q, byte);
    if (!string_can_finish(n, after.u.text.q, f->u.text.count + 1)) return false;
    if (s == NULL) return true;
    after.u.text.lex = LEX_START;
    if (n->max != GRAMMAR_NO_LIMIT || n->min > 0) after.u.text.count++;
    after.hash = hash_byte(f->hash, byte);
    return has_fresh_end(s, n, &after);
}

bool string_escape_is_open(const grammar_state *s, const string_node *n, const frame *f) {
    static const uint8_t values[] = "\"\\/\b\f\n\r\t";
    uint32_t first = 0, last = 31;
    if (f->u.text.lex == LEX_U4) {
        first = (uint32_t)f->u.text.unit << 4;
        last = first + 15;
    }
    for (uint32_t c = first; c <= last; c++) {
        if (char_is_open(s, n, f, (uint8_t)c)) return true;
    }
    if (f->u.text.lex != LEX_ESCAPE) return false;
    for (size_t i = 0; i < sizeof values - 1; i++) {
        if (char_is_open(s, n, f, values[i])) return true;
    }
    return false;
}

static void content_string_byte(grammar_state *s, const string_node *n, frame *f, uint8_t byte) {
    int c = escape_step(f, byte);
    if (c == -3) return;
    if (c == -2) {
        if (!string_may_end(n, f)) return;
        uint32_t index = state_push(s, f);
        if (index != 0) frame_done(s, index, &s->out);
        return;
    }
    if (c == -1) {
        if (string_escape_is_open(s, n, f)) list_push(s, &s->out, f);
        return;
    }
    f->u.text.q = dfa_step(n->content, f->u.text.q, (uint8_t)c);
    if (n->max != GRAMMAR_NO_LIMIT || n->min > 0) f->u.text.count += (c & 0xC0) != 0x80;
    if (!string_can_finish(n, f->u.text.q, f->u.text.count)) return;
    if ((f->flags & FLAG_TRACK) != 0) f->hash = hash_byte(f->hash, (uint8_t)c);
    if (has_fresh_end(s, n, f)) list_push(s, &s->out, f);
}

void string_byte(grammar_state *s, uint32_t index, uint8_t byte) {
    frame f = *state_frame(s, index);
    const string_node *n = &s->g->strings[f.node];
    if (n->content != NULL) {
        content_string_byte(s, n, &f, byte);
        return;
    }
    uint64_t hash = f.hash;
    uint32_t count = f.u.text.count;
    char decoded[4];
    if (any_text_step(&f, byte, decoded) < 0) return;
    if ((f.flags & FLAG_TRACK) == 0) f.hash = hash;
    if (f.u.text.lex == LEX_QUOTE) {
        f.u.text.lex = LEX_START;
        if (!string_may_end(n, &f)) return;
        uint32_t next = state_push(s, &f);
        if (next != 0) frame_done(s, next, &s->out);
        return;
    }
    if (f.u.text.count > n->max) return;
    if (n->max == GRAMMAR_NO_LIMIT && n->min == 0) f.u.text.count = count;
    if (has_fresh_end(s, n, &f)) list_push(s, &s->out, &f);
}

void text_begin(grammar_state *s, uint32_t node, uint32_t parent, thread_list *l) {
    const string_node *n = &s->g->strings[node];
    frame f = {.kind = FRAME_TEXT, .node = node, .parent = parent};
    f.hash = HASH_START;
    if (n->content != NULL) f.u.text.q = n->content->start;
    list_push(s, l, &f);
}

void text_byte(grammar_state *s, uint32_t index, uint8_t byte) {
    frame f = *state_frame(s, index);
    const string_node *n = &s->g->strings[f.node];
    if (string_may_end(n, &f)) frame_done(s, index, &s->pending);
    if (n->content == NULL) {
        if (f.u.text.lex == LEX_START && (n->max != GRAMMAR_NO_LIMIT || n->min > 0)) {
            f.u.text.count++;
        }
        f.u.text.lex = lex_step(f.u.text.lex, byte, true);
        if (f.u.text.lex == LEX_DEAD || f.u.text.count > n->max) return;
    } else {
        f.u.text.q = dfa_step(n->content, f.u.text.q, byte);
        if (n->max != GRAMMAR_NO_LIMIT || n->min > 0) f.u.text.count += (byte & 0xC0) != 0x80;
        if (!string_can_finish(n, f.u.text.q, f.u.text.count)) return;
    }
    list_push(s, &s->out, &f);
}
