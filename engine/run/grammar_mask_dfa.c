/* Masks of text that is limited by an automaton (patterns, formats, sets of strings, terminals).
 * States from which much of the vocabulary is possible have their mask prepared when the grammar is
 * compiled; from the others the tree of tokens is walked with the automaton alone. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/grammar_mask_internal.h"

#define WIDE_BYTES 26   /* a state with so many ASCII bytes is worth a prepared mask */
#define PREPARED_MAX 16 /* masks of one grammar: up to 512 KiB */
#define UNCOUNTED 256u  /* no token has as many characters */

/* Text limited by an automaton: its states along the path, and what may follow it. */
typedef struct text_walk {
    const dfa *d;
    const string_node *limits; /* NULL: none */
    frame f;
    uint32_t thread;
    bool is_json; /* a closing quote and escapes are the machine's */
    uint32_t q[TOKEN_MAX_BYTES + 1], count[TOKEN_MAX_BYTES + 1];
    uint32_t *after; /* threads once the text has ended */
    uint32_t n_after;
    bool follows[256];
} text_walk;

#define AFTER_MAX 256

/* Finds what the text's parent becomes, and which bytes it takes. */
static void find_after(grammar_state *s, text_walk *w, uint32_t after[AFTER_MAX]) {
    thread_list l = {.at = after, .cap = AFTER_MAX};
    frame_done(s, w->thread, &l);
    w->after = after;
    w->n_after = l.len;
    if (l.len == 1 && after[0] == 0) return; /* the end: nothing follows */
    for (int b = 0; b < 256; b++) {
        uint32_t n_cells = s->n_cells;
        machine_byte(s, after, l.len, (uint8_t)b);
        w->follows[b] = s->out.len > 0;
        s->n_cells = n_cells;
    }
}

/* A byte that the lexical rules of JSON take: the machine goes on from the text's frame. */
static void walk_json_mark(const mask_job *j, text_walk *w, uint32_t i) {
    const trie_node *node = &j->t->all.nodes[i];
    uint32_t n_cells = j->s->n_cells;
    frame f = w->f;
    f.u.text.q = w->q[node->depth - 1];
    f.u.text.count = w->count[node->depth - 1];
    uint32_t index = state_push(j->s, &f);
    if (index != 0) {
        mask_set_out(j->s, &index, 1);
        mask_walk(j, &j->t->all, i, node->skip, mask_sink_token);
    }
    j->s->n_cells = n_cells;
}

static void walk_text(const mask_job *j, text_walk *w) {
    const trie *tree = &j->t->all;
    const dfa *d = w->d;
    bool has_limits =
        w->limits != NULL && (w->limits->min > 0 || w->limits->max != GRAMMAR_NO_LIMIT);
    for (uint32_t i = 0; i < tree->n_nodes;) {
        const trie_node *node = &tree->nodes[i];
        uint32_t q = w->q[node->depth - 1], count = w->count[node->depth - 1];
        uint8_t byte = node->byte;
        if (w->is_json && (byte == '"' || byte == '\\' || byte < 0x20)) {
            bool may_end = d->accepts[q] && (w->limits == NULL || count >= w->limits->min);
            if (byte == '\\' || (byte == '"' && may_end)) walk_json_mark(j, w, i);
            i = node->skip;
            continue;
        }
        if (!w->is_json && w->follows[byte] && d->accepts[q] &&
            (!has_limits || count >= w->limits->min)) {
            mask_set_out(j->s, w->after, w->n_after);
            mask_walk(j, tree, i, node->skip, mask_sink_token);
        }
        uint32_t next = dfa_step(d, q, byte);
        if (has_limits) {
            count += (byte & 0xC0) != 0x80;
            if (next != 0 && !string_can_finish(w->limits, next, count)) next = 0;
        }
        if (next == 0) {
            i = node->skip;
            continue;
        }
        w->q[node->depth] = next;
        w->count[node->depth] = count;
        if (node->token >= 0) mask_set_token(j, node->token);
        i++;
    }
}

/* Whether every character that begins with first (not ASCII) leads from q back to q. */
static bool lead_is_inert(const dfa *d, uint32_t q, uint8_t first) {
    struct {
        uint32_t q;
        uint8_t lex;
    } seen[64];
    uint32_t n = 1;
    seen[0].q = dfa_step(d, q, first);
    seen[0].lex = lex_step(LEX_START, first, true);
    if (seen[0].lex == LEX_DEAD) return true; /* no text holds it */
    if (seen[0].q == 0) return false;
    for (uint32_t i = 0; i < n; i++) {
        for (int b = 0x80; b < 0xC0; b++) {
            uint8_t lex = lex_step(seen[i].lex, (uint8_t)b, true);
            if (lex == LEX_DEAD) continue;
            uint32_t next = dfa_step(d, seen[i].q, (uint8_t)b), k = 0;
            if (next == 0 || (lex == LEX_START && next != q)) return false;
            if (lex == LEX_START) continue;
            while (k < n && (seen[k].q != next || seen[k].lex != lex))
                k++;
            if (k < n) continue;
            if (n == 64) return false;
            seen[n].q = next;
            seen[n++].lex = lex;
        }
    }
    return true;
}

/* One token from the text's state: inside by its automaton, else by the machine. */
static bool text_takes(const mask_job *j, const text_walk *w, int32_t token) {
    const uint8_t *bytes = j->t->bytes[token];
    uint32_t len = j->t->len[token], q = w->q[0], count = w->count[0];
    const string_node *n = w->limits;
    for (uint32_t i = 0; i < len; i++) {
        bool may_end = w->d->accepts[q] && (n == NULL || count >= n->min);
        if (w->is_json && (bytes[i] == '"' || bytes[i] == '\\')) {
            frame f = w->f;
            f.u.text.q = q;
            f.u.text.count = count;
            if (bytes[i] == '"' && !may_end) return false;
            uint32_t index = state_push(j->s, &f);
            bool is_taken = index != 0 && mask_takes(j->s, &index, 1, bytes + i, len - i);
            if (index != 0) j->s->n_cells--;
            return is_taken;
        }
        if (w->is_json && bytes[i] < 0x20) return false;
        if (!w->is_json && may_end && w->follows[bytes[i]] &&
            mask_takes(j->s, w->after, w->n_after, bytes + i, len - i)) {
            return true;
        }
        q = dfa_step(w->d, q, bytes[i]);
        if (n != NULL && (n->min > 0 || n->max != GRAMMAR_NO_LIMIT)) {
            count += (bytes[i] & 0xC0) != 0x80;
            if (q != 0 && !string_can_finish(n, q, count)) return false;
        }
        if (q == 0) return false;
    }
    return true;
}

#define LOOSE_MAX 24000 /* more tokens are walked as a tree */

/* Tokens that hold a byte which may change the state, end the text, or is counted otherwise than
 * its character: they must be looked at one by one. False: they are too many. */
static bool find_loose(const mask_job *j, const text_walk *w, bool is_short, uint64_t *loose) {
    const token_trie *t = j->t;
    for (int b = 0; b < 256; b++) {
        bool is_mark = b == '"' || b == '\\' || b < 0x20;
        bool is_inert = b < 0x80 ? dfa_step(w->d, w->q[0], (uint8_t)b) == w->q[0]
                                 : b < 0xC0 || lead_is_inert(w->d, w->q[0], (uint8_t)b);
        if (is_mark && (w->is_json || is_short)) is_inert = false;
        if (!w->is_json && w->follows[b]) is_inert = false;
        if (is_inert) continue;
        if (t->n_holds[b] > LOOSE_MAX) return false;
        for (size_t i = 0; i < t->n_words; i++)
            loose[i] |= t->holds[(size_t)b * t->n_words + i];
    }
    return true;
}

/* Text whose state most characters leave as it is ([^<]* and the like): tokens of only such
 * characters need no look, only those that hold another one do. False: not such a text. */
static bool mask_inert(const mask_job *j, const text_walk *w) {
    const token_trie *t = j->t;
    const string_node *n = w->limits;
    uint32_t n_loose = 0, left = GRAMMAR_NO_LIMIT;
    uint64_t loose[GRAMMAR_MASK_WORDS] = {0};
    if (t->n_words > GRAMMAR_MASK_WORDS) return false;
    for (int b = 0x80; b < 0xC0; b++) { /* inside a character */
        if (dfa_step(w->d, w->q[0], (uint8_t)b) != 0) return false;
    }
    /* The state loops, so any length from here to the shortest end is possible. */
    if (n != NULL && n->max != GRAMMAR_NO_LIMIT) {
        left = n->max - w->count[0] - w->d->min_chars[w->q[0]];
    }
    if (!find_loose(j, w, left < 256, loose)) return false;
    for (size_t i = 0; i < t->n_words; i++)
        n_loose += (uint32_t)__builtin_popcountll(loose[i]);
    if (n_loose > LOOSE_MAX) return false;
    const uint64_t *inside = w->is_json ? t->json[LEX_START].inside : t->raw[LEX_START].inside;
    if (left < 256)
        inside = t->short_masks + (left < TRIE_SHORT ? left : TRIE_SHORT - 1) * t->n_words;
    for (uint32_t i = 0; i < t->n_by_chars && left >= TRIE_SHORT && left < 256; i++) {
        int32_t k = t->by_chars[i];
        if (t->n_chars[k] < TRIE_SHORT) break;
        mask_set(loose, k);
    }
    for (size_t i = 0; i < t->n_words; i++) {
        j->mask[i] |= inside[i] & ~loose[i];
        for (uint64_t rest = loose[i]; rest != 0; rest &= rest - 1) {
            int32_t k = (int32_t)(i * 64) + __builtin_ctzll(rest);
            if (t->bytes[k] != NULL && text_takes(j, w, k)) j->mask[i] |= rest & -rest;
        }
    }
    return true;
}

static bool is_wide(const dfa *d, uint32_t q) {
    uint32_t n = 0;
    for (int b = 0x20; b < 0x7F; b++)
        n += dfa_step(d, q, (uint8_t)b) != 0;
    return n >= WIDE_BYTES;
}

/* ---- prepared masks ---- */

static const text_mask *find_prepared(const grammar *g, const text_walk *w) {
    for (uint32_t i = 0; i < g->n_text_masks; i++) {
        const text_mask *m = &g->text_masks[i];
        if (m->d == w->d && m->q == w->q[0] && m->is_json == w->is_json) return m;
    }
    return NULL;
}

/* Characters a token may have and still leave room for any end of the text; 0: the end is so near
 * that the mask says nothing. */
static uint32_t room_of(const token_trie *t, const text_walk *w, const text_mask *m) {
    const string_node *n = w->limits;
    if (n == NULL || (n->min == 0 && n->max == GRAMMAR_NO_LIMIT)) return GRAMMAR_NO_LIMIT;
    if (w->count[0] < n->min && !m->pads) return 0;
    if (n->max == GRAMMAR_NO_LIMIT) return GRAMMAR_NO_LIMIT;
    uint32_t left = n->max - w->count[0];
    uint32_t least = t->prefix_chars_max > TRIE_LONG ? t->prefix_chars_max : TRIE_LONG;
    return left < m->most_min || left - m->most_min < least ? 0 : left - m->most_min;
}

static bool mask_json_prepared(const mask_job *j, const text_walk *w, const text_mask *m) {
    const token_trie *t = j->t;
    uint64_t *scratch = j->s->scratch;
    uint32_t room = room_of(t, w, m);
    if (room == 0) return false;
    memcpy(scratch, m->inside, t->n_words * sizeof *scratch);
    for (uint32_t i = 0; i < t->n_by_chars && room < UNCOUNTED; i++) {
        int32_t k = t->by_chars[i];
        if (t->n_chars[k] <= room) break;
        if (!text_takes(j, w, k)) scratch[k / 64] &= ~((uint64_t)1 << (k % 64));
    }
    mask_or(j, scratch);
    uint32_t min = w->limits->min, count = w->count[0];
    mask_closing(j, w->thread,
        &(closing){
            .leave = m->leave, .need = min > count ? min - count : 0, .left = GRAMMAR_NO_LIMIT});
    return true;
}

static bool mask_raw_prepared(const mask_job *j, const text_walk *w, const text_mask *m) {
    const token_trie *t = j->t;
    uint64_t *scratch = j->s->scratch;
    uint32_t n_found = 0;
    if (room_of(t, w, m) < UNCOUNTED) return false;
    memset(scratch, 0, t->n_words * sizeof *scratch);
    for (int b = 0; b < 256; b++) {
        if (!w->follows[b]) continue;
        n_found += t->n_holds[b];
        if (n_found > LOOSE_MAX / 8) return false;
        for (size_t i = 0; i < t->n_words; i++)
            scratch[i] |= t->holds[(size_t)b * t->n_words + i];
    }
    mask_or(j, m->inside);
    for (size_t i = 0; i < t->n_words; i++) {
        for (uint64_t rest = scratch[i] & ~m->inside[i]; rest != 0; rest &= rest - 1) {
            int32_t k = (int32_t)(i * 64) + __builtin_ctzll(rest);
            if (t->bytes[k] != NULL && text_takes(j, w, k)) mask_set(j->mask, k);
        }
    }
    return true;
}

bool mask_text(const mask_job *j, uint32_t thread) {
    grammar_state *s = j->s;
    uint32_t after[AFTER_MAX];
    text_walk w = {.f = *state_frame(s, thread), .thread = thread};
    uint32_t n_cells = s->n_cells;
    if ((w.f.flags & FLAG_TRACK) != 0 || w.f.u.text.lex != LEX_START) return false;
    w.is_json = w.f.kind == FRAME_STRING;
    if (w.f.kind == FRAME_TERM) {
        w.d = s->g->dfas[w.f.node];
    } else {
        w.limits = &s->g->strings[w.f.node];
        w.d = w.limits->content;
    }
    w.q[0] = w.f.u.text.q;
    w.count[0] = w.f.u.text.count;
    if (!w.is_json) find_after(s, &w, after);
    const text_mask *m = find_prepared(s->g, &w);
    bool is_done =
        m != NULL && (w.is_json ? mask_json_prepared(j, &w, m) : mask_raw_prepared(j, &w, m));
    is_done = is_done || (is_wide(w.d, w.q[0]) && mask_inert(j, &w));
    if (!is_done) walk_text(j, &w);
    s->n_cells = n_cells;
    return true;
}

/* ---- preparing ---- */

/* Where a text without limits stands along the path. */
typedef struct fill_walk {
    const token_trie *t;
    const text_mask *m;
    string_node free;
    frame at[TOKEN_MAX_BYTES + 1];
} fill_walk;

static void set_below(const token_trie *t, uint64_t *mask, uint32_t from) {
    for (uint32_t i = from; i < t->all.nodes[from].skip; i++) {
        for (int32_t k = t->all.nodes[i].token; k >= 0; k = t->same[k])
            mask_set(mask, k);
    }
}

/* One byte below a frame; false: nothing below is possible inside the text. */
static bool fill_step(fill_walk *w, uint32_t i) {
    const trie_node *node = &w->t->all.nodes[i];
    const dfa *d = w->m->d;
    frame *f = &w->at[node->depth];
    *f = w->at[node->depth - 1];
    int c = w->m->is_json ? escape_step(f, node->byte) : node->byte;
    if (c == -2 && d->accepts[f->u.text.q]) set_below(w->t, w->m->leave, i);
    if (c == -1) return string_escape_is_open(NULL, &w->free, f);
    if (c < 0) return false;
    f->u.text.q = dfa_step(d, f->u.text.q, (uint8_t)c);
    return f->u.text.q != 0;
}

static void fill(const token_trie *t, const text_mask *m) {
    fill_walk w = {.t = t, .m = m, .free = {.content = m->d, .max = GRAMMAR_NO_LIMIT}};
    w.at[0].u.text.q = m->q;
    for (uint32_t i = 0; i < t->all.n_nodes;) {
        const trie_node *node = &t->all.nodes[i];
        if (!fill_step(&w, i)) {
            i = node->skip;
            continue;
        }
        for (int32_t k = node->token; k >= 0; k = t->same[k])
            mask_set(m->inside, k);
        i++;
    }
}

static uint32_t most_min_chars(const dfa *d) {
    uint32_t most = 0;
    for (uint32_t q = 1; q < d->n_states; q++) {
        if (d->min_chars[q] > most) most = d->min_chars[q];
    }
    return most;
}

/* Every end can be put off by any number of characters, so no lower limit is ever out of reach. */
static bool can_pad(const dfa *d) {
    for (uint32_t q = 1; q < d->n_states; q++) {
        int b = 0x20;
        while (d->accepts[q] && b < 0x7F && dfa_step(d, q, (uint8_t)b) != q)
            b++;
        if (b == 0x7F) return false;
    }
    return true;
}

static void prepare_dfa(grammar *g, const dfa *d, bool is_json) {
    uint32_t most_min = most_min_chars(d);
    bool pads = can_pad(d);
    for (uint32_t i = 0; i < g->n_text_masks; i++) {
        if (g->text_masks[i].d == d && g->text_masks[i].is_json == is_json) return;
    }
    for (uint32_t q = 1; q < d->n_states && g->n_text_masks < PREPARED_MAX; q++) {
        if (!is_wide(d, q)) continue;
        text_mask m = {.d = d, .q = q, .most_min = most_min, .pads = pads, .is_json = is_json};
        m.inside = mem_array(g->trie->n_words, sizeof *m.inside);
        if (is_json) m.leave = mem_array(g->trie->n_words, sizeof *m.leave);
        fill(g->trie, &m);
        g->text_masks[g->n_text_masks++] = m;
    }
}

/* Texts of calls that stand between tags. */
static void prepare_value(grammar *g, uint32_t value) {
    const value_node *v = &g->values[value];
    for (uint32_t i = 0; i < v->n_choices; i++) {
        if (v->choices[i].kind != VALUE_STRING) continue;
        const dfa *d = g->strings[v->choices[i].index].content;
        if (d != NULL) prepare_dfa(g, d, false);
    }
}

void grammar_prepare_masks(grammar *g) {
    g->text_masks = mem_array(PREPARED_MAX, sizeof *g->text_masks);
    for (uint32_t i = 0; i < g->n_items; i++) {
        if (g->items[i].kind == ITEM_TERM) prepare_dfa(g, g->dfas[g->items[i].index], false);
    }
    if (g->root.kind == ITEM_TERM) prepare_dfa(g, g->dfas[g->root.index], false);
    for (uint32_t i = 0; i < g->n_objects; i++) {
        const object_node *o = &g->objects[i];
        for (uint32_t k = 0; k < o->n_names && o->is_tagged; k++)
            prepare_value(g, o->names[k].value);
    }
    for (uint32_t i = 0; i < g->n_strings; i++) {
        if (g->strings[i].content != NULL) prepare_dfa(g, g->strings[i].content, true);
    }
}

void grammar_release_masks(grammar *g) {
    for (uint32_t i = 0; i < g->n_text_masks; i++) {
        mem_free(g->text_masks[i].inside);
        mem_free(g->text_masks[i].leave);
    }
    mem_free(g->text_masks);
}
