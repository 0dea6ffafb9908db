/* The tree of token bytes behind masks. Read-only once built; any thread. */
#ifndef TANDEM_RUN_GRAMMAR_TRIE_H
#define TANDEM_RUN_GRAMMAR_TRIE_H

#include "engine/run/grammar.h"

#define TOKEN_MAX_BYTES 256 /* longer tokens are never allowed by a mask */
#define TRIE_SHORT 64       /* strings with fewer characters left are masked by length */
#define TRIE_LONG 12        /* tokens with more characters are few */

/* Nodes in depth-first order: the children of a node follow it; skip is the first node that is not
 * below it. */
typedef struct trie_node {
    uint32_t skip;
    int32_t token;  /* that ends here, or -1; further ones by same[] */
    uint16_t depth; /* bytes, 1 for the first */
    uint8_t byte;
    uint8_t n_digits; /* only digits stand below, so many deep; 0: other bytes too, or nothing */
} trie_node;

typedef struct trie {
    trie_node *nodes;
    uint32_t n_nodes;
} trie;

/* What is known beforehand about plain text in one lexical state (JSON strings, free text). */
typedef struct plain_mask {
    uint64_t *inside; /* tokens that stay inside the text */
    /* Tokens that leave it (JSON: hold a closing quote). */
    int32_t *leaving;
    uint32_t n_leaving;
} plain_mask;

struct token_trie {
    int32_t n_tokens, eos, dsml, think_close;
    size_t n_words;
    trie all;
    int32_t *same;   /* [n_tokens] next token with the same bytes, or -1 */
    uint8_t **bytes; /* [n_tokens] points into text; NULL: control or unused */
    uint16_t *len;   /* [n_tokens] */
    uint8_t *text;
    plain_mask json[32], raw[8]; /* by lexical state */
    uint64_t *holds;             /* [256][n_words] tokens that hold a byte */
    uint32_t n_holds[256];       /* how many */
    /* [n_tokens] characters a token begins in a JSON string, up to a closing quote; at most 255 */
    uint8_t *n_chars;
    /* Tokens with more than TRIE_LONG that stay inside from the start state, most first. */
    int32_t *by_chars;
    uint32_t n_by_chars;
    uint64_t *short_masks; /* [TRIE_SHORT][n_words] inside with at most so many characters */
    /* What follows the closing quote in leaving tokens, as a tree; tokens of a node in lists. */
    trie suffixes;
    uint32_t *suffix_first; /* [n_nodes + 2]; entry 0: nothing follows; i + 1: of node i */
    int32_t *suffix_tokens;
    /* Leaving tokens by their text in front of the quote, in the order of its bytes, and those
     * that must be looked at alone: with an escape there, or with more quotes behind. */
    int32_t *by_prefix, *odd;
    uint32_t n_prefixed, n_odd;
    uint32_t prefix_chars_max;
};

#endif
