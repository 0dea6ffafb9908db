#include "engine/run/grammar_trie.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/run/grammar_internal.h"

typedef struct piece {
    const uint8_t *bytes;
    uint32_t len;
    int32_t token;
} piece;

static int compare_pieces(const void *a, const void *b) {
    const piece *x = a, *y = b;
    uint32_t n = x->len < y->len ? x->len : y->len;
    int c = n == 0 ? 0 : memcmp(x->bytes, y->bytes, n);
    if (c != 0) return c;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return (x->token > y->token) - (x->token < y->token);
}

static uint32_t shared_prefix(const piece *a, const piece *b) {
    uint32_t n = 0;
    while (n < a->len && n < b->len && a->bytes[n] == b->bytes[n])
        n++;
    return n;
}

/* Builds a tree from sorted pieces. node_of[i] (may be NULL): the node where piece i ends;
 * UINT32_MAX for an empty one. */
static void trie_build(trie *t, const piece *pieces, size_t n, uint32_t *node_of) {
    uint32_t open[TOKEN_MAX_BYTES + 1]; /* nodes of the current path */
    uint32_t depth = 0;
    size_t n_max = 1;
    for (size_t i = 0; i < n; i++)
        n_max += pieces[i].len;
    t->nodes = mem_array(n_max, sizeof *t->nodes);
    t->n_nodes = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t common = i == 0 ? 0 : shared_prefix(&pieces[i - 1], &pieces[i]);
        while (depth > common)
            t->nodes[open[--depth]].skip = t->n_nodes;
        while (depth < pieces[i].len) {
            trie_node *node = &t->nodes[t->n_nodes];
            node->byte = pieces[i].bytes[depth];
            node->token = -1;
            open[depth++] = t->n_nodes++;
            node->depth = (uint16_t)depth;
        }
        if (node_of != NULL) node_of[i] = depth == 0 ? UINT32_MAX : open[depth - 1];
        if (depth > 0 && t->nodes[open[depth - 1]].token < 0) {
            t->nodes[open[depth - 1]].token = pieces[i].token;
        }
    }
    while (depth > 0)
        t->nodes[open[--depth]].skip = t->n_nodes;
    t->nodes = mem_realloc(t->nodes, (t->n_nodes + 1) * sizeof *t->nodes);
}

/* Copies the bytes of the ordinary tokens; pieces in token order. */
static size_t take_tokens(token_trie *t, const tokenizer *tk, piece *pieces) {
    size_t n = 0, total = 0, len;
    for (int32_t i = 0; i < t->n_tokens; i++) {
        tokenizer_bytes(tk, i, &len);
        if (!tokenizer_is_added(tk, i) && len <= TOKEN_MAX_BYTES) total += len;
    }
    t->text = mem_alloc(total + 1);
    total = 0;
    for (int32_t i = 0; i < t->n_tokens; i++) {
        const char *bytes = tokenizer_bytes(tk, i, &len);
        t->same[i] = -1;
        if (tokenizer_is_added(tk, i) || len == 0 || len > TOKEN_MAX_BYTES) continue;
        t->bytes[i] = t->text + total;
        t->len[i] = (uint16_t)len;
        memcpy(t->bytes[i], bytes, len);
        total += len;
        pieces[n++] = (piece){t->bytes[i], (uint32_t)len, i};
    }
    return n;
}

static void set_token(const token_trie *t, uint64_t *mask, int32_t token) {
    for (; token >= 0; token = t->same[token]) {
        mask[token / 64] |= (uint64_t)1 << (token % 64);
    }
}

/* Walks all tokens through the plain lexical rules from one state. */
static void plain_build(token_trie *t, plain_mask *m, int lex, bool is_raw) {
    uint8_t at[TOKEN_MAX_BYTES + 1];
    size_t cap = 0;
    m->inside = mem_array(t->n_words, sizeof *m->inside);
    at[0] = (uint8_t)lex;
    for (uint32_t i = 0; i < t->all.n_nodes;) {
        const trie_node *node = &t->all.nodes[i];
        uint8_t next = at[node->depth - 1];
        if (next != LEX_QUOTE) next = lex_step(next, node->byte, is_raw);
        if (next == LEX_DEAD) {
            i = node->skip;
            continue;
        }
        at[node->depth] = next;
        if (node->token >= 0 && next != LEX_QUOTE) set_token(t, m->inside, node->token);
        for (int32_t k = node->token; k >= 0 && next == LEX_QUOTE; k = t->same[k]) {
            if (m->n_leaving == cap) {
                cap = cap == 0 ? 64 : cap * 2;
                m->leaving = mem_realloc(m->leaving, cap * sizeof *m->leaving);
            }
            m->leaving[m->n_leaving++] = k;
        }
        i++;
    }
}

/* Characters that a token begins in a JSON string read from its start, up to a closing quote;
 * *end is the offset behind that quote, or 0. */
static uint32_t count_chars(const token_trie *t, int32_t token, uint32_t *end) {
    uint8_t lex = LEX_START;
    uint32_t n = 0;
    *end = 0;
    for (uint32_t i = 0; i < t->len[token]; i++) {
        uint8_t next = lex_step(lex, t->bytes[token][i], false);
        if (next == LEX_QUOTE) {
            *end = i + 1;
            return n;
        }
        n += lex == LEX_START;
        lex = next;
    }
    return n;
}

/* From the leaves up: children stand behind their parent. */
static void build_digits(trie *t) {
    for (uint32_t i = t->n_nodes; i-- > 0;) {
        uint32_t most = 0;
        bool is_all = true;
        for (uint32_t k = i + 1; k < t->nodes[i].skip && is_all; k = t->nodes[k].skip) {
            const trie_node *below = &t->nodes[k];
            bool is_leaf = below->skip == k + 1;
            is_all = below->byte >= '0' && below->byte <= '9' && (is_leaf || below->n_digits > 0);
            if (below->n_digits + 1u > most) most = below->n_digits + 1u;
        }
        t->nodes[i].n_digits = (uint8_t)(is_all && most < 255 ? most : 0);
    }
}

static void build_holds(token_trie *t) {
    t->holds = mem_array(256 * t->n_words, sizeof *t->holds);
    for (int32_t i = 0; i < t->n_tokens; i++) {
        for (uint32_t k = 0; k < t->len[i]; k++) {
            uint8_t b = t->bytes[i][k];
            uint64_t *word = &t->holds[b * t->n_words + (size_t)i / 64];
            t->n_holds[b] += (*word >> (i % 64) & 1) == 0;
            *word |= (uint64_t)1 << (i % 64);
        }
    }
}

/* Most characters first: counted, then placed. */
static void sort_by_chars(token_trie *t) {
    uint32_t first[257] = {0};
    int32_t *sorted = mem_array((size_t)t->n_by_chars + 1, sizeof *sorted);
    for (uint32_t i = 0; i < t->n_by_chars; i++)
        first[256 - t->n_chars[t->by_chars[i]]]++;
    for (int k = 1; k < 257; k++)
        first[k] += first[k - 1];
    for (uint32_t i = t->n_by_chars; i-- > 0;)
        sorted[--first[256 - t->n_chars[t->by_chars[i]]]] = t->by_chars[i];
    mem_free(t->by_chars);
    t->by_chars = sorted;
}

static void build_short_masks(token_trie *t) {
    const uint64_t *inside = t->json[LEX_START].inside;
    uint32_t end;
    t->n_chars = mem_alloc((size_t)t->n_tokens + 1);
    t->by_chars = mem_array((size_t)t->n_tokens + 1, sizeof *t->by_chars);
    t->short_masks = mem_array(TRIE_SHORT * t->n_words, sizeof *t->short_masks);
    for (int32_t i = 0; i < t->n_tokens; i++) {
        if ((inside[i / 64] >> (i % 64) & 1) == 0) continue;
        uint32_t n = count_chars(t, i, &end);
        t->n_chars[i] = (uint8_t)(n > 255 ? 255 : n);
        if (n > TRIE_LONG) t->by_chars[t->n_by_chars++] = i;
        if (n >= TRIE_SHORT) continue;
        t->short_masks[n * t->n_words + (size_t)i / 64] |= (uint64_t)1 << (i % 64);
    }
    for (size_t r = 1; r < TRIE_SHORT; r++) {
        for (size_t w = 0; w < t->n_words; w++) {
            t->short_masks[r * t->n_words + w] |= t->short_masks[(r - 1) * t->n_words + w];
        }
    }
    sort_by_chars(t);
}

static void build_prefixes(token_trie *t) {
    const plain_mask *m = &t->json[LEX_START];
    piece *pieces = mem_array(m->n_leaving + 1, sizeof *pieces);
    t->by_prefix = mem_array(m->n_leaving + 1, sizeof *t->by_prefix);
    t->odd = mem_array(m->n_leaving + 1, sizeof *t->odd);
    for (uint32_t i = 0; i < m->n_leaving; i++) {
        int32_t k = m->leaving[i];
        uint32_t end, n_quotes = 0;
        uint32_t n = count_chars(t, k, &end);
        t->n_chars[k] = (uint8_t)(n > 255 ? 255 : n);
        if (n > t->prefix_chars_max) t->prefix_chars_max = n;
        for (uint32_t b = end; b < t->len[k]; b++)
            n_quotes += t->bytes[k][b] == '"';
        if (n_quotes > 1 || memchr(t->bytes[k], '\\', end) != NULL) {
            t->odd[t->n_odd++] = k;
        } else {
            pieces[t->n_prefixed++] = (piece){t->bytes[k], end - 1, k};
        }
    }
    if (t->n_prefixed > 0) qsort(pieces, t->n_prefixed, sizeof *pieces, compare_pieces);
    for (uint32_t i = 0; i < t->n_prefixed; i++)
        t->by_prefix[i] = pieces[i].token;
    mem_free(pieces);
}

/* The tree of what follows the closing quote. */
static void build_suffixes(token_trie *t) {
    const plain_mask *m = &t->json[LEX_START];
    piece *pieces = mem_array(m->n_leaving + 1, sizeof *pieces);
    uint32_t *node_of = mem_array(m->n_leaving + 1, sizeof *node_of);
    for (uint32_t i = 0; i < m->n_leaving; i++) {
        int32_t k = m->leaving[i];
        uint32_t end;
        count_chars(t, k, &end);
        pieces[i] = (piece){t->bytes[k] + end, t->len[k] - end, k};
    }
    if (m->n_leaving > 0) qsort(pieces, m->n_leaving, sizeof *pieces, compare_pieces);
    trie_build(&t->suffixes, pieces, m->n_leaving, node_of);
    t->suffix_first = mem_array(t->suffixes.n_nodes + 3, sizeof *t->suffix_first);
    t->suffix_tokens = mem_array(m->n_leaving + 1, sizeof *t->suffix_tokens);
    for (uint32_t i = 0; i < m->n_leaving; i++)
        t->suffix_first[node_of[i] + 2]++;
    for (uint32_t i = 1; i < t->suffixes.n_nodes + 3; i++) {
        t->suffix_first[i] += t->suffix_first[i - 1];
    }
    /* Pieces are sorted, and so are nodes: tokens of one node lie side by side. */
    for (uint32_t i = 0; i < m->n_leaving; i++)
        t->suffix_tokens[i] = pieces[i].token;
    mem_free(pieces);
    mem_free(node_of);
}

int token_trie_new(const tokenizer *tk, token_trie **out, err *e) {
    token_trie *t = mem_alloc(sizeof *t);
    t->n_tokens = tokenizer_size(tk);
    if (t->n_tokens <= 0) {
        mem_free(t);
        return err_set(e, ERR_ARG, "the tokenizer has no tokens");
    }
    control_ids ids = tokenizer_controls(tk);
    size_t n_tokens = (size_t)t->n_tokens;
    t->eos = ids.eos;
    t->dsml = ids.dsml;
    t->think_close = ids.think_close;
    t->n_words = (n_tokens + 63) / 64;
    t->same = mem_array(n_tokens, sizeof *t->same);
    t->bytes = mem_array(n_tokens, sizeof *t->bytes);
    t->len = mem_array(n_tokens, sizeof *t->len);
    piece *pieces = mem_array(n_tokens, sizeof *pieces);
    size_t n = take_tokens(t, tk, pieces);
    if (n > 0) qsort(pieces, n, sizeof *pieces, compare_pieces);
    for (size_t i = n; i-- > 1;) {
        if (pieces[i].len != pieces[i - 1].len || compare_pieces(&pieces[i - 1], &pieces[i]) == 0) {
            continue;
        }
        if (memcmp(pieces[i].bytes, pieces[i - 1].bytes, pieces[i].len) == 0) {
            t->same[pieces[i - 1].token] = pieces[i].token;
        }
    }
    trie_build(&t->all, pieces, n, NULL);
    mem_free(pieces);
    for (int lex = 0; lex < LEX_N_STATES; lex++)
        plain_build(t, &t->json[lex], lex, false);
    for (int lex = 0; lex <= LEX_F4; lex++)
        plain_build(t, &t->raw[lex], lex, true);
    build_digits(&t->all);
    build_holds(t);
    build_short_masks(t);
    build_suffixes(t);
    build_prefixes(t);
    *out = t;
    return OK;
}

static void plain_release(plain_mask *m) {
    mem_free(m->inside);
    mem_free(m->leaving);
}

void token_trie_free(token_trie *t) {
    if (t == NULL) return;
    for (int lex = 0; lex < LEX_N_STATES; lex++)
        plain_release(&t->json[lex]);
    for (int lex = 0; lex <= LEX_F4; lex++)
        plain_release(&t->raw[lex]);
    mem_free(t->all.nodes);
    mem_free(t->suffixes.nodes);
    mem_free(t->suffix_first);
    mem_free(t->suffix_tokens);
    mem_free(t->by_prefix);
    mem_free(t->odd);
    mem_free(t->same);
    mem_free(t->bytes);
    mem_free(t->len);
    mem_free(t->text);
    mem_free(t->holds);
    mem_free(t->n_chars);
    mem_free(t->by_chars);
    mem_free(t->short_masks);
    mem_free(t);
}

size_t token_trie_words(const token_trie *t) {
    return t->n_words;
}

int32_t token_trie_eos(const token_trie *t) {
    return t->eos;
}
