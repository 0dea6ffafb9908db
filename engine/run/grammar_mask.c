/* Masks: which tokens may come next. Threads that stand in plain text have their mask prepared;
 * threads in text with an automaton walk the tree of tokens with that automaton alone; all others
 * walk it with the machine, which the first byte mostly cuts to a few branches. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/grammar_mask_internal.h"

void mask_set_token(const mask_job *j, int32_t token) {
    for (; token >= 0; token = j->t->same[token])
        mask_set(j->mask, token);
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

/* A number that goes on with any digits: what stands below needs no look. */
static bool takes_all_digits(const grammar_state *s, const trie_node *node) {
    for (uint32_t k = 0; k < s->out.len && node->n_digits > 0; k++) {
        const frame *f = state_frame(s, s->out.at[k]);
        if (f->kind == FRAME_NUMBER && number_takes_digits(s, f, node->n_digits)) return true;
    }
    return false;
}

void mask_walk(const mask_job *j, const trie *tree, uint32_t from, uint32_t to, node_sink sink) {
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
        uint32_t end_digits = takes_all_digits(s, node) ? node->skip : i + 1;
        while (i < end_digits)
            sink(j, i++);
    }
    s->n_cells = n_cells;
}

void mask_sink_token(const mask_job *j, uint32_t node) {
    mask_set_token(j, j->t->all.nodes[node].token);
}

void mask_or(const mask_job *j, const uint64_t *from) {
    for (size_t w = 0; w < j->t->n_words; w++)
        j->mask[w] |= from[w];
}

void mask_set_out(grammar_state *s, const uint32_t *threads, uint32_t n) {
    memcpy(s->out.at, threads, n * sizeof *threads);
    s->out.len = n;
}

bool mask_takes(
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
        mask_or(j, j->t->raw[f->u.text.lex].inside);
        return true;
    }
    case FRAME_KEY_CLASS: {
        const frame *o = state_frame(s, f->parent);
        if (o->kind != FRAME_OBJECT) return false;
        return s->g->objects[o->node].classes[f->node].text == NULL && mask_key(j, thread);
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
        mask_set_out(s, rest, n_rest);
        mask_walk(&j, &j.t->all, 0, j.t->all.n_nodes, mask_sink_token);
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
