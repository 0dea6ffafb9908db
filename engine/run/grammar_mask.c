/* Masks: which tokens may come next. Threads that stand in plain text have their mask prepared;
 * threads in text with an automaton walk the tree of tokens with that automaton alone; all others
 * walk it with the machine, which the first byte mostly cuts to a few branches. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/grammar_internal.h"
#include "engine/run/grammar_trie.h"

typedef struct mask_job {
    grammar_state *s;
    const token_trie *t;
    uint64_t *mask;
} mask_job;

static void set_token(const mask_job *j, int32_t token) {
    for (; token >= 0; token = j->t->same[token]) {
        j->mask[token / 64] |= (uint64_t)1 << (token % 64);
    }
}

static bool push_level(grammar_state *s, uint32_t depth, uint32_t first) {
    if (first + s->out.len > GRAMMAR_LEVELS) {
        s->is_overrun = true;
        return false;
    }
    memcpy(s->levels + first, s->out.at, s->out.len * sizeof *s->levels);
    s->level_first[depth] = first;
    s->level_first[depth + 1] = first + s->out.len;
    s->level_cells[depth] = s->n_cells;
    return true;
}

/* What to do with a node that the machine can reach. */
typedef void (*node_sink)(const mask_job *j, uint32_t node);

/* Walks nodes [from, to) of a tree, all at or below one depth, with the threads in s->out standing
 * in front of that depth. */
static void walk(const mask_job *j, const trie *tree, uint32_t from, uint32_t to, node_sink sink) {
    grammar_state *s = j->s;
    if (from >= to) return;
    uint32_t base = tree->nodes[from].depth - 1u;
    uint32_t n_cells = s->n_cells;
    if (!push_level(s, 0, 0)) return;
    for (uint32_t i = from; i < to;) {
        const trie_node *node = &tree->nodes[i];
        uint32_t d = node->depth - base;
        uint32_t first = s->level_first[d - 1], end = s->level_first[d];
        s->n_cells = s->level_cells[d - 1];
        machine_byte(s, s->levels + first, end - first, node->byte);
        if (s->out.len == 0 || !push_level(s, d, end)) {
            i = node->skip;
            continue;
        }
        sink(j, i);
        i++;
    }
    s->n_cells = n_cells;
}

static void sink_token(const mask_job *j, uint32_t node) {
    set_token(j, j->t->all.nodes[node].token);
}

static void sink_suffix(const mask_job *j, uint32_t node) {
    const token_trie *t = j->t;
    for (uint32_t i = t->suffix_first[node + 1]; i < t->suffix_first[node + 2]; i++) {
        int32_t k = t->suffix_tokens[i];
        j->mask[k / 64] |= (uint64_t)1 << (k % 64);
    }
}

static void or_mask(const mask_job *j, const uint64_t *from) {
    for (size_t w = 0; w < j->t->n_words; w++)
        j->mask[w] |= from[w];
}

static bool thread_takes(grammar_state *s, uint32_t thread, const uint8_t *bytes, uint32_t len) {
    uint32_t n_cells = s->n_cells;
    uint32_t *at = s->levels;
    uint32_t n = 1;
    at[0] = thread;
    for (uint32_t i = 0; i < len && n > 0; i++) {
        machine_byte(s, at, n, bytes[i]);
        n = s->out.len;
        memcpy(at, s->out.at, n * sizeof *at);
    }
    s->n_cells = n_cells;
    return n > 0;
}

/* Tokens that leave plain text, each on its own. */
static void test_leaving(const mask_job *j, uint32_t thread, const plain_mask *m) {
    for (uint32_t i = 0; i < m->n_leaving; i++) {
        int32_t k = m->leaving[i];
        if (thread_takes(j->s, thread, j->t->bytes[k], j->t->len[k])) {
            j->mask[k / 64] |= (uint64_t)1 << (k % 64);
        }
    }
}

/* Tokens that stay inside with at most left characters, from the start state. */
static void or_short(const mask_job *j, uint32_t left) {
    const token_trie *t = j->t;
    uint32_t row = left < TRIE_SHORT ? left : TRIE_SHORT - 1;
    or_mask(j, t->short_masks + row * t->n_words);
    for (uint32_t i = 0; i < t->n_by_chars; i++) {
        int32_t k = t->by_chars[i];
        if (t->n_chars[k] <= left && t->n_chars[k] < 255) {
            j->mask[k / 64] |= (uint64_t)1 << (k % 64);
        }
    }
}

/* A string or key without automaton. False: the general way must be gone. */
static bool mask_plain(const mask_job *j, uint32_t thread) {
    grammar_state *s = j->s;
    frame f = *state_frame(s, thread);
    uint8_t lex = f.u.text.lex;
    const plain_mask *m = &j->t->json[lex];
    if (f.kind == FRAME_KEY_CLASS) {
        or_mask(j, m->inside);
        test_leaving(j, thread, m);
        return true;
    }
    const string_node *n = &s->g->strings[f.node];
    uint32_t left = n->max == GRAMMAR_NO_LIMIT ? n->max : n->max - f.u.text.count;
    if (left < 256 && (lex != LEX_START || unique_parent(s, &f) != NULL)) return false;
    if (left >= 256) {
        or_mask(j, m->inside);
    } else {
        or_short(j, left);
    }
    if (lex != LEX_START || (f.flags & FLAG_TRACK) != 0 || f.u.text.count < n->min || left < 256) {
        test_leaving(j, thread, m);
        return true;
    }
    uint32_t n_cells = s->n_cells;
    machine_byte(s, &thread, 1, '"');
    if (s->out.len > 0) {
        sink_suffix(j, UINT32_MAX);
        walk(j, &j->t->suffixes, 0, j->t->suffixes.n_nodes, sink_suffix);
    }
    s->n_cells = n_cells;
    return true;
}

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
    for (int b = 0; b < 256; b++) {
        uint32_t n_cells = s->n_cells;
        machine_byte(s, after, l.len, (uint8_t)b);
        w->follows[b] = s->out.len > 0;
        s->n_cells = n_cells;
    }
}

static void set_out(grammar_state *s, const uint32_t *threads, uint32_t n) {
    memcpy(s->out.at, threads, n * sizeof *threads);
    s->out.len = n;
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
        set_out(j->s, &index, 1);
        walk(j, &j->t->all, i, node->skip, sink_token);
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
            set_out(j->s, w->after, w->n_after);
            walk(j, tree, i, node->skip, sink_token);
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
        if (node->token >= 0) set_token(j, node->token);
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

static bool threads_take(
    grammar_state *s, const uint32_t *threads, uint32_t n, const uint8_t *bytes, uint32_t len) {
    uint32_t n_cells = s->n_cells;
    memcpy(s->levels, threads, n * sizeof *threads);
    for (uint32_t i = 0; i < len && n > 0; i++) {
        machine_byte(s, s->levels, n, bytes[i]);
        n = s->out.len;
        memcpy(s->levels, s->out.at, n * sizeof *s->levels);
    }
    s->n_cells = n_cells;
    return n > 0;
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
            bool is_taken = index != 0 && threads_take(j->s, &index, 1, bytes + i, len - i);
            if (index != 0) j->s->n_cells--;
            return is_taken;
        }
        if (w->is_json && bytes[i] < 0x20) return false;
        if (!w->is_json && may_end && w->follows[bytes[i]] &&
            threads_take(j->s, w->after, w->n_after, bytes + i, len - i)) {
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
 * its character: they must be looked at one by one. */
static void find_loose(const mask_job *j, const text_walk *w, bool is_short, uint64_t *loose) {
    const token_trie *t = j->t;
    for (int b = 0; b < 256; b++) {
        bool is_mark = b == '"' || b == '\\' || b < 0x20;
        bool is_inert = b < 0x80 ? dfa_step(w->d, w->q[0], (uint8_t)b) == w->q[0]
                                 : b < 0xC0 || lead_is_inert(w->d, w->q[0], (uint8_t)b);
        if (is_mark && (w->is_json || is_short)) is_inert = false;
        if (!w->is_json && w->follows[b]) is_inert = false;
        if (is_inert) continue;
        for (size_t i = 0; i < t->n_words; i++)
            loose[i] |= t->holds[(size_t)b * t->n_words + i];
    }
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
    find_loose(j, w, left < 256, loose);
    for (size_t i = 0; i < t->n_words; i++)
        n_loose += (uint32_t)__builtin_popcountll(loose[i]);
    if (n_loose > LOOSE_MAX) return false;
    const uint64_t *inside = w->is_json ? t->json[LEX_START].inside : t->raw[LEX_START].inside;
    if (left < 256)
        inside = t->short_masks + (left < TRIE_SHORT ? left : TRIE_SHORT - 1) * t->n_words;
    for (uint32_t i = 0; i < t->n_by_chars && left >= TRIE_SHORT && left < 256; i++) {
        int32_t k = t->by_chars[i];
        loose[k / 64] |= (uint64_t)1 << (k % 64);
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

static bool mask_text(const mask_job *j, uint32_t thread) {
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
    if (!mask_inert(j, &w)) walk_text(j, &w);
    s->n_cells = n_cells;
    return true;
}

static bool mask_prepared(const mask_job *j, uint32_t thread) {
    const grammar_state *s = j->s;
    const frame *f = state_frame(s, thread);
    switch (f->kind) {
    case FRAME_STRING:
        if (s->g->strings[f->node].content != NULL) return mask_text(j, thread);
        return mask_plain(j, thread);
    case FRAME_TERM:
        return mask_text(j, thread);
    case FRAME_TEXT: {
        const string_node *n = &s->g->strings[f->node];
        if (n->content != NULL) return mask_text(j, thread);
        if (n->min > 0 || n->max != GRAMMAR_NO_LIMIT) return false;
        /* What may follow such a text is ordinary text too, so nothing else can be added. */
        or_mask(j, j->t->raw[f->u.text.lex].inside);
        return true;
    }
    case FRAME_KEY_CLASS: {
        const frame *o = state_frame(s, f->parent);
        if (o->kind != FRAME_OBJECT) return false;
        return s->g->objects[o->node].classes[f->node].text == NULL && mask_plain(j, thread);
    }
    default:
        return false;
    }
}

static void mask_controls(const mask_job *j) {
    grammar_state *s = j->s;
    uint32_t n_cells = s->n_cells;
    int32_t dsml = j->t->dsml, eos = j->t->eos;
    machine_settle(s, s->threads.at, s->threads.len);
    for (uint32_t i = 0; i < s->pending.len; i++) {
        uint32_t index = s->pending.at[i];
        const frame *f = state_frame(s, index);
        if (index == 0 && eos >= 0) j->mask[eos / 64] |= (uint64_t)1 << (eos % 64);
        if (index == 0 || (f->kind != FRAME_TOKEN && f->kind != FRAME_TAGS)) continue;
        int32_t token = f->kind == FRAME_TOKEN ? (int32_t)f->node : dsml;
        s->out.len = 0;
        if (f->kind == FRAME_TAGS) tags_token(s, index, token);
        if (f->kind == FRAME_TOKEN || s->out.len > 0) {
            j->mask[token / 64] |= (uint64_t)1 << (token % 64);
        }
    }
    s->n_cells = n_cells;
}

void grammar_mask(grammar_state *s, uint64_t *mask) {
    mask_job j = {.s = s, .t = s->g->trie, .mask = mask};
    uint32_t rest[GRAMMAR_THREADS], n_rest = 0;
    memset(mask, 0, j.t->n_words * sizeof *mask);
    if (s->is_done) return;
    for (uint32_t i = 0; i < s->threads.len; i++) {
        if (!mask_prepared(&j, s->threads.at[i])) rest[n_rest++] = s->threads.at[i];
    }
    if (n_rest > 0) {
        set_out(s, rest, n_rest);
        walk(&j, &j.t->all, 0, j.t->all.n_nodes, sink_token);
    }
    mask_controls(&j);
}

void grammar_state_reset(grammar_state *s) {
    s->is_done = s->is_overrun = false;
    machine_start(s);
}

int grammar_accept_bytes(grammar_state *s, const char *bytes, size_t len) {
    uint32_t *at = s->levels;
    uint32_t n = s->threads.len, n_cells = s->n_cells;
    if (s->is_done) return ERR_MISMATCH;
    memcpy(at, s->threads.at, n * sizeof *at);
    for (size_t i = 0; i < len; i++) {
        machine_byte(s, at, n, (uint8_t)bytes[i]);
        n = s->out.len;
        memcpy(at, s->out.at, n * sizeof *at);
        if (n == 0) {
            s->n_cells = n_cells;
            return ERR_MISMATCH;
        }
        if (s->n_cells <= GRAMMAR_CELLS / 8) continue;
        if (i + 1 < len && s->n_cells < GRAMMAR_CELLS / 2) continue;
        s->threads.len = n;
        memcpy(s->threads.at, at, n * sizeof *at);
        state_compact(s);
        memcpy(at, s->threads.at, n * sizeof *at);
        n_cells = s->n_cells;
    }
    s->threads.len = n;
    memcpy(s->threads.at, at, n * sizeof *at);
    return OK;
}

static int accept_control(grammar_state *s, int32_t token) {
    uint32_t n_cells = s->n_cells;
    if (token == s->g->trie->eos) {
        if (!machine_is_final(s, s->threads.at, s->threads.len)) return ERR_MISMATCH;
        s->is_done = true;
        return OK;
    }
    machine_token(s, s->threads.at, s->threads.len, token);
    if (s->out.len == 0) {
        s->n_cells = n_cells;
        return ERR_MISMATCH;
    }
    s->threads.len = s->out.len;
    memcpy(s->threads.at, s->out.at, s->out.len * sizeof *s->out.at);
    return OK;
}

int grammar_accept(grammar_state *s, int32_t token) {
    const token_trie *t = s->g->trie;
    if (s->is_done || token < 0 || token >= t->n_tokens) return ERR_MISMATCH;
    if (t->bytes[token] == NULL) return accept_control(s, token);
    return grammar_accept_bytes(s, (const char *)t->bytes[token], t->len[token]);
}

bool grammar_allows(grammar_state *s, int32_t token) {
    const token_trie *t = s->g->trie;
    uint32_t n_cells = s->n_cells;
    uint32_t *at = s->levels, n = s->threads.len;
    if (s->is_done || token < 0 || token >= t->n_tokens) return false;
    if (token == t->eos) return machine_is_final(s, s->threads.at, n);
    if (t->bytes[token] == NULL) {
        machine_token(s, s->threads.at, n, token);
        s->n_cells = n_cells;
        return s->out.len > 0;
    }
    memcpy(at, s->threads.at, n * sizeof *at);
    for (uint32_t i = 0; i < t->len[token] && n > 0; i++) {
        machine_byte(s, at, n, t->bytes[token][i]);
        n = s->out.len;
        memcpy(at, s->out.at, n * sizeof *at);
    }
    s->n_cells = n_cells;
    return n > 0;
}

bool grammar_is_final(grammar_state *s) {
    return s->is_done || machine_is_final(s, s->threads.at, s->threads.len);
}

bool grammar_is_done(const grammar_state *s) {
    return s->is_done;
}

static bool waits_for_token(grammar_state *s, const uint32_t *threads, uint32_t n) {
    uint32_t n_cells = s->n_cells;
    machine_token(s, threads, n, s->g->trie->dsml);
    s->n_cells = n_cells;
    return s->out.len > 0 || machine_is_final(s, threads, n);
}

size_t grammar_forced(grammar_state *s, char *out, size_t cap) {
    uint32_t *at = s->levels, n = s->threads.len, n_start = s->n_cells;
    size_t len = 0;
    if (s->is_done) return 0;
    memcpy(at, s->threads.at, n * sizeof *at);
    while (len < cap && s->n_cells < GRAMMAR_CELLS / 2 && !waits_for_token(s, at, n)) {
        int only = -1, n_found = 0;
        uint32_t n_cells = s->n_cells;
        for (int b = 0; b < 256 && n_found < 2; b++) {
            machine_byte(s, at, n, (uint8_t)b);
            s->n_cells = n_cells;
            if (s->out.len == 0) continue;
            only = b;
            n_found++;
        }
        if (n_found != 1) break;
        machine_byte(s, at, n, (uint8_t)only);
        n = s->out.len;
        memcpy(at, s->out.at, n * sizeof *at);
        out[len++] = (char)only;
    }
    s->n_cells = n_start;
    return len;
}
