/* JSON objects: which keys may come, each once, and what their values must be. The rules for keys
 * serve the parameters of calls too. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/grammar_internal.h"

static const uint64_t *written_bits(const grammar_state *s, const frame *o) {
    return s->cells[o->u.object.bits].words;
}

static const uint64_t *needed_bits(const grammar_state *s, const frame *o) {
    return written_bits(s, o) + s->g->objects[o->node].n_words;
}

static bool bit(const uint64_t *words, uint32_t i) {
    return (words[i / 64] >> (i % 64) & 1) != 0;
}

/* Names that must still be written; also, with name i written too (i < n_names). */
static uint32_t n_missing(const grammar_state *s, const frame *o, uint32_t i) {
    const object_node *n = &s->g->objects[o->node];
    const uint64_t *written = written_bits(s, o), *needed = needed_bits(s, o);
    uint32_t count = 0;
    for (uint32_t w = 0; w < n->n_words; w++) {
        uint64_t need = needed[w], have = written[w];
        if (i < n->n_names) {
            if (n->names[i].brings != NULL) need |= n->names[i].brings[w];
            if (i / 64 == w) have |= (uint64_t)1 << (i % 64);
        }
        count += (uint32_t)__builtin_popcountll(need & ~have);
    }
    return count;
}

static bool owes(const object_node *n, const frame *o) {
    return n->has_debt && (o->flags & FLAG_PAID) == 0;
}

static bool may_write_name(const grammar_state *s, const frame *o, uint32_t i) {
    const object_node *n = &s->g->objects[o->node];
    const key_name *k = &n->names[i];
    uint32_t after = o->u.object.n + 1;
    if (k->value == 0 || bit(written_bits(s, o), i)) return false;
    if (n->is_ordered) {
        if (k->order < o->u.object.last || k->order > n->next_required[o->u.object.last]) {
            return false;
        }
        if (n->n_classes == 0 && after + n->n_open_from[k->order + 1] < n->min) return false;
    }
    if (n->max == GRAMMAR_NO_LIMIT) return true;
    return after <= n->max && n_missing(s, o, i) + owes(n, o) <= n->max - after;
}

static bool may_write_class(const grammar_state *s, const frame *o, bool pays) {
    const object_node *n = &s->g->objects[o->node];
    uint32_t after = o->u.object.n + 1;
    if (o->u.object.n_unknown >= GRAMMAR_RECORDS_MAX) return false;
    if (n->is_ordered && n->next_required[o->u.object.last] < n->n_names) return false;
    if (n->max == GRAMMAR_NO_LIMIT) return true;
    if (after > n->max) return false;
    return n_missing(s, o, n->n_names) + (owes(n, o) && !pays) <= n->max - after;
}

static bool range_is_open(const grammar_state *s, const frame *o, uint32_t lo, uint32_t hi) {
    for (uint32_t i = lo; i < hi; i++) {
        if (may_write_name(s, o, i)) return true;
    }
    return false;
}

bool object_may_close(const grammar_state *s, const frame *o) {
    const object_node *n = &s->g->objects[o->node];
    return o->u.object.n >= n->min && !owes(n, o) && n_missing(s, o, n->n_names) == 0;
}

/* A key of the class can still be finished with a new text. */
static bool class_is_open(const grammar_state *s, const frame *o, const frame *key) {
    const key_class *c = &s->g->objects[o->node].classes[key->node];
    return c->text == NULL || words_left(s, c->text, key, o->u.object.records, false);
}

void object_begin_keys(grammar_state *s, uint32_t index, thread_list *l) {
    const frame o = *state_frame(s, index);
    const object_node *n = &s->g->objects[o.node];
    frame key = {.kind = FRAME_KEY_NAME, .parent = index, .hash = HASH_START};
    key.u.text.hi = (uint16_t)n->n_names;
    if (range_is_open(s, &o, 0, n->n_names)) list_push(s, l, &key);
    key.kind = FRAME_KEY_CLASS;
    for (uint32_t c = 0; c < n->n_classes; c++) {
        key.node = c;
        key.flags = 0;
        key.u.text.q = n->classes[c].text != NULL ? n->classes[c].text->start : 0;
        if (!class_is_open(s, &o, &key)) continue;
        if (n->classes[c].value != 0 && may_write_class(s, &o, false)) list_push(s, l, &key);
        if (!owes(n, &o) || n->classes[c].owed_value == 0) continue;
        key.flags = FLAG_OWED;
        if (may_write_class(s, &o, true)) list_push(s, l, &key);
    }
}

bool object_may_add(grammar_state *s, uint32_t index) {
    uint32_t n_cells = s->n_cells;
    uint32_t at[4];
    thread_list found = {.at = at, .cap = 4};
    bool is_overrun = s->is_overrun;
    object_begin_keys(s, index, &found);
    s->n_cells = n_cells;
    s->is_overrun = is_overrun;
    return found.len > 0;
}

void object_init(grammar_state *s, frame *f) {
    const object_node *n = &s->g->objects[f->node];
    uint64_t words[2 * 80] = {0};
    CHECK(n->n_words <= 80);
    for (uint32_t i = 0; i < n->n_names; i++) {
        if (n->names[i].is_required) words[n->n_words + i / 64] |= (uint64_t)1 << (i % 64);
    }
    f->u.object.bits = state_push_words(s, words, 2 * n->n_words);
    f->hash = HASH_OBJECT;
    f->phase = PHASE_FIRST;
}

void object_begin(grammar_state *s, uint32_t node, uint32_t parent) {
    const object_node *n = &s->g->objects[node];
    const frame *above = state_frame(s, parent);
    frame f = {.kind = FRAME_OBJECT, .node = node, .parent = parent};
    f.nest = (uint16_t)(above->nest + 1);
    f.flags = above->flags & FLAG_TRACK;
    if (unique_parent(s, &f) != NULL) f.flags |= FLAG_TRACK;
    if (n->height > (uint32_t)(GRAMMAR_NEST_MAX - above->nest)) return;
    object_init(s, &f);
    if (f.u.object.bits != 0) list_push(s, &s->out, &f);
}

void object_byte(grammar_state *s, uint32_t index, uint8_t byte) {
    frame f = *state_frame(s, index);
    uint8_t phase = f.phase;
    if (space_byte(s, &f, byte)) return;
    f.space = 0;
    if (phase == PHASE_VALUE) {
        uint32_t next = state_push(s, &f);
        if (next != 0) value_begin(s, f.u.object.child, next, byte, 0);
    } else if (phase == PHASE_COLON) {
        f.phase = PHASE_VALUE;
        if (byte == ':') list_push(s, &s->out, &f);
    } else if (byte == '"' && phase != PHASE_NEXT) {
        uint32_t next = state_push(s, &f);
        if (next != 0) object_begin_keys(s, next, &s->out);
    } else if (byte == ',' && phase == PHASE_NEXT) {
        f.phase = PHASE_COMMA;
        if (object_may_add(s, index)) list_push(s, &s->out, &f);
    } else if (byte == '}' && phase != PHASE_COMMA && object_may_close(s, &f)) {
        uint32_t next = state_push(s, &f);
        if (next != 0) frame_done(s, next, &s->out);
    }
}

void object_value_done(grammar_state *s, const frame *child, thread_list *l) {
    frame f = *state_frame(s, child->parent);
    if ((f.flags & FLAG_TRACK) != 0) {
        f.hash += hash_mix(f.u.object.key_hash, value_hash(child));
    }
    f.phase = f.kind == FRAME_TAGS ? TAGS_VALUE : PHASE_NEXT;
    f.space = 0;
    f.u.object.child = 0;
    f.u.object.key_hash = 0;
    if (f.kind == FRAME_OBJECT && !object_may_close(s, &f)) {
        uint32_t index = state_push(s, &f);
        if (index != 0 && object_may_add(s, index)) list_add(s, l, index);
        return;
    }
    list_push(s, l, &f);
}

/* The object's frame once the key is written; false when the pool is full. */
static bool take_key(grammar_state *s, const frame *key, frame *o) {
    const object_node *n = &s->g->objects[o->node];
    o->u.object.key_hash = key->hash;
    o->u.object.n++;
    o->space = 0;
    o->phase = o->kind == FRAME_TAGS ? TAGS_ATTRIBUTE : PHASE_COLON;
    if (key->kind == FRAME_KEY_CLASS) {
        const key_class *c = &n->classes[key->node];
        o->u.object.child = (key->flags & FLAG_OWED) != 0 ? c->owed_value : c->value;
        if ((key->flags & FLAG_OWED) != 0) o->flags |= FLAG_PAID;
        o->u.object.n_unknown++;
        o->u.object.records = records_add(s, o->u.object.records, key->hash);
        return o->u.object.records != 0;
    }
    uint32_t i = key->u.text.lo;
    uint64_t words[2 * 80];
    memcpy(words, written_bits(s, o), 2 * n->n_words * sizeof *words);
    words[i / 64] |= (uint64_t)1 << (i % 64);
    for (uint32_t w = 0; w < n->n_words && n->names[i].brings != NULL; w++) {
        words[n->n_words + w] |= n->names[i].brings[w];
    }
    o->u.object.bits = state_push_words(s, words, 2 * n->n_words);
    o->u.object.child = n->names[i].value;
    if (n->is_ordered) o->u.object.last = n->names[i].order + 1;
    return o->u.object.bits != 0;
}

static void end_key(grammar_state *s, const frame *key) {
    frame o = *state_frame(s, key->parent);
    const object_node *n = &s->g->objects[o.node];
    uint32_t lo = key->u.text.lo;
    bool is_name = lo < key->u.text.hi && n->names[lo].len == key->u.text.depth;
    if (key->kind == FRAME_KEY_NAME) {
        if (!is_name || !may_write_name(s, &o, lo)) return;
    } else {
        const dfa *d = n->classes[key->node].text;
        if (d == NULL ? is_name : !d->accepts[key->u.text.q]) return;
        if (records_have(s, o.u.object.records, key->hash)) return;
    }
    if (take_key(s, key, &o)) list_push(s, &s->out, &o);
}

/* The first name of [lo, hi), which share depth bytes, that goes on with byte or a higher one. */
static uint32_t first_name_from(const object_node *n, const frame *key, uint32_t byte) {
    uint32_t lo = key->u.text.lo, hi = key->u.text.hi, depth = key->u.text.depth;
    while (lo < hi) {
        uint32_t middle = (lo + hi) / 2;
        const key_name *k = &n->names[middle];
        if (k->len <= depth || (uint8_t)k->text[depth] < byte) {
            lo = middle + 1;
        } else {
            hi = middle;
        }
    }
    return lo;
}

/* Cuts [lo, hi) to the names that go on with byte. */
static void narrow_names(const object_node *n, frame *key, uint8_t byte) {
    uint32_t lo = first_name_from(n, key, byte);
    uint32_t end = first_name_from(n, key, byte + 1u);
    key->u.text.lo = (uint16_t)lo;
    key->u.text.hi = (uint16_t)end;
    key->u.text.depth = (uint16_t)(key->u.text.depth + 1);
}

/* Any name in the range goes on with a byte that the escape can write. */
static bool name_escape_is_open(const grammar_state *s, const frame *key) {
    static const char plain[] = "\"\\/\b\f\n\r\t";
    const frame *o = state_frame(s, key->parent);
    const object_node *n = &s->g->objects[o->node];
    for (uint32_t i = key->u.text.lo; i < key->u.text.hi; i++) {
        if (n->names[i].len <= key->u.text.depth) continue;
        uint8_t c = (uint8_t)n->names[i].text[key->u.text.depth];
        bool fits = c < 32 && (key->u.text.lex != LEX_U4 || c >> 4 == key->u.text.unit);
        if (key->u.text.lex == LEX_ESCAPE && c != 0) fits = fits || strchr(plain, c) != NULL;
        if (fits && may_write_name(s, o, i)) return true;
    }
    return false;
}

static void name_byte(grammar_state *s, frame *key, uint8_t byte, bool is_raw) {
    const frame *o = state_frame(s, key->parent);
    const object_node *n = &s->g->objects[o->node];
    int c = !is_raw ? escape_step(key, byte) : byte == '"' ? -2 : byte;
    if (c == -3) return;
    if (c == -2) {
        end_key(s, key);
    } else if (c == -1) {
        if (name_escape_is_open(s, key)) list_push(s, &s->out, key);
    } else {
        narrow_names(n, key, (uint8_t)c);
        key->hash = hash_byte(key->hash, (uint8_t)c);
        if (range_is_open(s, o, key->u.text.lo, key->u.text.hi)) list_push(s, &s->out, key);
    }
}

/* Keys that are not limited by a text automaton: anything but the declared names. */
static void any_key_byte(grammar_state *s, frame *key, uint8_t byte, bool is_raw) {
    const object_node *n = &s->g->objects[state_frame(s, key->parent)->node];
    char decoded[4];
    int len = 1;
    if (is_raw && byte < 0x20) return;
    if (is_raw && byte == '\\' && key->u.text.lex == LEX_START) { /* no escapes there */
        decoded[0] = (char)byte;
        key->hash = hash_byte(key->hash, byte);
    } else {
        len = any_text_step(key, byte, decoded);
    }
    if (len < 0) return;
    key->u.text.count = 0;
    if (key->u.text.lex == LEX_QUOTE) {
        key->u.text.lex = LEX_START;
        end_key(s, key);
        return;
    }
    for (int i = 0; i < len && key->u.text.lo < key->u.text.hi; i++) {
        narrow_names(n, key, (uint8_t)decoded[i]);
    }
    list_push(s, &s->out, key);
}

static bool class_escape_is_open(const dfa *d, const frame *key) {
    static const uint8_t plain[] = "\"\\/\b\f\n\r\t";
    uint32_t first = key->u.text.lex == LEX_U4 ? (uint32_t)key->u.text.unit << 4 : 0;
    uint32_t last = key->u.text.lex == LEX_U4 ? first + 15 : 31;
    for (uint32_t c = first; c <= last; c++) {
        if (dfa_step(d, key->u.text.q, (uint8_t)c) != 0) return true;
    }
    for (size_t i = 0; i < sizeof plain - 1 && key->u.text.lex == LEX_ESCAPE; i++) {
        if (dfa_step(d, key->u.text.q, plain[i]) != 0) return true;
    }
    return false;
}

static void class_key_byte(grammar_state *s, frame *key, uint8_t byte, bool is_raw) {
    const frame *o = state_frame(s, key->parent);
    const dfa *d = s->g->objects[o->node].classes[key->node].text;
    int c = !is_raw ? escape_step(key, byte) : byte == '"' ? -2 : byte < 0x20 ? -3 : byte;
    if (c == -3) return;
    if (c == -2) {
        end_key(s, key);
    } else if (c == -1) {
        if (class_escape_is_open(d, key)) list_push(s, &s->out, key);
    } else {
        key->u.text.q = dfa_step(d, key->u.text.q, (uint8_t)c);
        key->hash = hash_byte(key->hash, (uint8_t)c);
        if (key->u.text.q != 0 && class_is_open(s, o, key)) list_push(s, &s->out, key);
    }
}

void key_byte(grammar_state *s, uint32_t index, uint8_t byte) {
    frame key = *state_frame(s, index);
    const frame *o = state_frame(s, key.parent);
    bool is_raw = o->kind == FRAME_TAGS;
    if (key.kind == FRAME_KEY_NAME) {
        name_byte(s, &key, byte, is_raw);
    } else if (s->g->objects[o->node].classes[key.node].text == NULL) {
        any_key_byte(s, &key, byte, is_raw);
    } else {
        class_key_byte(s, &key, byte, is_raw);
    }
}
