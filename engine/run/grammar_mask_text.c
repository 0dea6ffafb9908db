/* Masks of strings and keys without automaton: most of the vocabulary, prepared beforehand, and the
 * few tokens that hold a closing quote, which are grouped by what follows the quote. */
#include <string.h>

#include "engine/run/grammar_mask_internal.h"

#define COUNTED 256 /* characters up to which strings are counted here */

static void sink_suffix(const mask_job *j, uint32_t node) {
    const token_trie *t = j->t;
    for (uint32_t i = t->suffix_first[node + 1]; i < t->suffix_first[node + 2]; i++) {
        mask_set(j->mask, t->suffix_tokens[i]);
    }
}

/* Into s->scratch: tokens whose part behind the quote is taken by the threads in s->out. */
static void find_suffixes(const mask_job *j) {
    mask_job k = {.s = j->s, .t = j->t, .mask = j->s->scratch};
    memset(k.mask, 0, j->t->n_words * sizeof *k.mask);
    if (j->s->out.len == 0) return;
    sink_suffix(&k, UINT32_MAX);
    mask_walk(&k, &j->t->suffixes, 0, j->t->suffixes.n_nodes, sink_suffix);
}

void mask_closing(const mask_job *j, uint32_t thread, const closing *c) {
    grammar_state *s = j->s;
    const token_trie *t = j->t;
    uint32_t n_cells = s->n_cells;
    s->out.len = 0;
    frame_done(s, thread, &s->out);
    find_suffixes(j);
    s->n_cells = n_cells;
    const uint64_t *found = s->scratch;
    bool has_counts = c->need > 0 || c->left < t->prefix_chars_max;
    for (size_t w = 0; w < t->n_words; w++) {
        uint64_t these = c->leave != NULL ? found[w] & c->leave[w] : found[w];
        for (uint64_t rest = has_counts ? these : 0; rest != 0; rest &= rest - 1) {
            uint8_t n = t->n_chars[w * 64 + (size_t)__builtin_ctzll(rest)];
            if (n < c->need || n > c->left) these &= ~(rest & -rest);
        }
        j->mask[w] |= these;
    }
}

/* Tokens that leave plain text, each on its own. */
static void test_leaving(const mask_job *j, uint32_t thread, const plain_mask *m) {
    for (uint32_t i = 0; i < m->n_leaving; i++) {
        int32_t k = m->leaving[i];
        if (mask_takes(j->s, &thread, 1, j->t->bytes[k], j->t->len[k])) mask_set(j->mask, k);
    }
}

/* Tokens that stay inside with at most left characters, from the start state. */
static void or_short(const mask_job *j, uint32_t left) {
    const token_trie *t = j->t;
    uint32_t row = left < TRIE_SHORT ? left : TRIE_SHORT - 1;
    mask_or(j, t->short_masks + row * t->n_words);
    for (uint32_t i = 0; i < t->n_by_chars && left >= TRIE_SHORT; i++) {
        int32_t k = t->by_chars[i];
        if (t->n_chars[k] < TRIE_SHORT) break;
        if (t->n_chars[k] <= left) mask_set(j->mask, k);
    }
}

bool mask_plain(const mask_job *j, uint32_t thread) {
    const grammar_state *s = j->s;
    frame f = *state_frame(s, thread);
    uint8_t lex = f.u.text.lex;
    const plain_mask *m = &j->t->json[lex];
    const string_node *n = &s->g->strings[f.node];
    uint32_t left = n->max == GRAMMAR_NO_LIMIT ? n->max : n->max - f.u.text.count;
    bool is_tracked = (f.flags & FLAG_TRACK) != 0 || unique_parent(s, &f) != NULL;
    if (left < COUNTED && (lex != LEX_START || is_tracked)) return false;
    if (left >= COUNTED) {
        mask_or(j, m->inside);
    } else {
        or_short(j, left);
    }
    if (lex != LEX_START || is_tracked) {
        test_leaving(j, thread, m);
        return true;
    }
    uint32_t need = n->min > f.u.text.count ? n->min - f.u.text.count : 0;
    mask_closing(j, thread, &(closing){.need = need, .left = left});
    return true;
}

/* ---- keys ---- */

#define BLOOM_WORDS 16

static void bloom_add(uint64_t bloom[BLOOM_WORDS], uint64_t hash) {
    bloom[hash / 64 % BLOOM_WORDS] |= (uint64_t)1 << (hash % 64);
}

static bool bloom_has(const uint64_t bloom[BLOOM_WORDS], uint64_t hash) {
    return (bloom[hash / 64 % BLOOM_WORDS] >> (hash % 64) & 1) != 0;
}

/* Takes tokens out of s->scratch whose part in front of the quote makes a key that is written
 * already. */
static void drop_written(const mask_job *j, const frame *key, uint32_t records) {
    const token_trie *t = j->t;
    const grammar_state *s = j->s;
    uint64_t bloom[BLOOM_WORDS] = {0};
    for (uint32_t i = records; i != 0; i = s->cells[i].f.u.record.previous) {
        bloom_add(bloom, s->cells[i].f.u.record.hash);
    }
    for (uint32_t i = 0; i < t->n_prefixed && records != 0; i++) {
        int32_t k = t->by_prefix[i];
        uint64_t h = key->hash;
        for (uint32_t b = 0; t->bytes[k][b] != '"'; b++)
            h = hash_byte(h, t->bytes[k][b]);
        if (!bloom_has(bloom, h) || !records_have(s, records, h)) continue;
        s->scratch[k / 64] &= ~((uint64_t)1 << (k % 64));
    }
}

/* The part of a leaving token in front of its quote against a text. */
static int compare_prefix(const token_trie *t, int32_t token, const char *text, uint32_t len) {
    const uint8_t *bytes = t->bytes[token];
    for (uint32_t i = 0; i < len; i++) {
        if (bytes[i] == '"') return -1;
        if (bytes[i] != (uint8_t)text[i]) return bytes[i] < (uint8_t)text[i] ? -1 : 1;
    }
    return bytes[len] == '"' ? 0 : 1;
}

/* The same for declared names: they are other threads' business. */
static void drop_declared(const mask_job *j, const frame *key, const object_node *o) {
    const token_trie *t = j->t;
    for (uint32_t i = key->u.text.lo; i < key->u.text.hi; i++) {
        uint32_t depth = key->u.text.depth;
        uint32_t len = o->names[i].len - depth, low = 0, high = t->n_prefixed;
        const char *text = o->names[i].text + depth;
        if (o->names[i].len < depth || memchr(text, '"', len) != NULL) continue;
        while (low < high) {
            uint32_t middle = (low + high) / 2;
            if (compare_prefix(t, t->by_prefix[middle], text, len) < 0) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        for (; low < t->n_prefixed; low++) {
            int32_t k = t->by_prefix[low];
            if (compare_prefix(t, k, text, len) != 0) break;
            j->s->scratch[k / 64] &= ~((uint64_t)1 << (k % 64));
        }
    }
}

/* What the object becomes behind any key of this class goes to s->out. */
static void end_any_key(grammar_state *s, const frame *key) {
    frame any = *key;
    any.hash = 0; /* tokens that hold another key too are tested alone */
    any.u.text.lo = any.u.text.hi = 0;
    uint32_t index = state_push(s, &any);
    if (index != 0) machine_byte(s, &index, 1, '"');
}

bool mask_key(const mask_job *j, uint32_t thread) {
    grammar_state *s = j->s;
    const token_trie *t = j->t;
    const frame key = *state_frame(s, thread);
    const plain_mask *m = &t->json[key.u.text.lex];
    const frame *o = state_frame(s, key.parent);
    uint32_t n_cells = s->n_cells;
    mask_or(j, m->inside);
    if (key.u.text.lex != LEX_START || (o->flags & FLAG_TRACK) != 0) {
        test_leaving(j, thread, m);
        return true;
    }
    end_any_key(s, &key);
    find_suffixes(j);
    s->n_cells = n_cells;
    drop_written(j, &key, o->u.object.records);
    drop_declared(j, &key, &s->g->objects[o->node]);
    for (uint32_t i = 0; i < t->n_odd; i++) {
        int32_t k = t->odd[i];
        s->scratch[k / 64] &= ~((uint64_t)1 << (k % 64));
        if (mask_takes(s, &thread, 1, t->bytes[k], t->len[k])) mask_set(j->mask, k);
    }
    mask_or(j, s->scratch);
    return true;
}
