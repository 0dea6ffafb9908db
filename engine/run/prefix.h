/* The prefix cache in memory: which token sequences were computed before, which KV pages hold them,
 * and at which places (marks) the private state of a stream was saved, so that another stream can
 * go on from there. A tree of pages: a node is one page of tokens below its parent; a node with
 * fewer tokens than a page is a tail and always has a mark. Two sequences are equal only if every
 * token is: the hash chain finds candidates, the tokens decide.
 *
 * Pages: each node holds its page by count (pages.h), so a stream and the cache share pages; a node
 * whose page only the cache holds can be given up, leaves first. Who goes first: what was poisoned,
 * then small requests while they hold more than their share, then the least recently used.
 *
 * Threads: the step thread only. Nothing allocates after prefix_new. */
#ifndef TANDEM_RUN_PREFIX_H
#define TANDEM_RUN_PREFIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/run/pages.h"

#define PREFIX_SALT_BYTES 16
#define PREFIX_ROOT 0

typedef struct prefix_options {
    page_pool *pool; /* borrowed */
    int32_t n_pages, page_tokens;
    int32_t n_marks;        /* saved states kept at most; >= 1 */
    size_t snapshot_bytes;  /* of one */
    bool has_constant_hash; /* for tests: every hash is equal, tokens alone decide */
} prefix_options;

typedef struct prefix_cache prefix_cache;

/* Of a page of tokens and all before it; 0 is the root's. Finds candidates, decides nothing. */
typedef struct prefix_hash {
    uint64_t a, b;
} prefix_hash;
prefix_hash prefix_hash_of(
    const prefix_hash *parent, const uint8_t *salt, const int32_t *tokens, int32_t n);

/* A sequence of tokens of one salt. */
typedef struct prefix_key {
    const int32_t *tokens;
    int32_t n_tokens;
    uint8_t salt[PREFIX_SALT_BYTES];
} prefix_key;

typedef struct prefix_hit {
    int32_t n_tokens;     /* of the mark; 0: none */
    int32_t n_match;      /* tokens of whole pages that are known, with or without a mark */
    int32_t match_node;   /* of the last of them */
    int32_t node;         /* of the last whole page below n_tokens; PREFIX_ROOT: none */
    int32_t tail_page;    /* page with the rest; -1: n_tokens is a page border */
    const void *snapshot; /* valid until the next call that is not prefix_page */
} prefix_hit;

/* NULL when there is no memory for the snapshots. */
prefix_cache *prefix_new(const prefix_options *options);
void prefix_free(prefix_cache *c);

/* The longest mark on the way of the key's tokens. Counts as use. */
void prefix_find(prefix_cache *c, const prefix_key *key, prefix_hit *out);
/* The same among marks at page borders, which need no page to be copied. */
void prefix_find_border(prefix_cache *c, const prefix_key *key, prefix_hit *out);
/* The node of the chain that ends in node with n_pages whole pages up to it. */
int32_t prefix_node_at(const prefix_cache *c, int32_t node, int32_t n_pages);
/* Page number i of the chain that ends in node. */
void prefix_pages(const prefix_cache *c, int32_t node, int32_t *pages);
/* Walks from node (of the same chain, before or behind) to the first n_full pages of the key, adding
 * what is missing; pages[] are the stream's, each held by it. Where the tree holds an equal page
 * already the stream's is given back and pages[i] becomes the tree's, held for the stream; then
 * *has_swapped is set. Returns the new node. creator names the stream for prefix_poison. */
typedef struct prefix_growth {
    const prefix_key *key;
    int32_t *pages;
    int32_t n_full;
    uint64_t creator;
    bool has_swapped; /* out */
} prefix_growth;
int32_t prefix_grow(prefix_cache *c, int32_t node, prefix_growth *g);
/* A place for the state at the key's length, on node (length is a page border) or as a tail below
 * it (page holds the rest). NULL if it is there already or no place is free; else the caller fills
 * the blob at once. *at is the node with the mark, -1: none. */
void *prefix_mark(prefix_cache *c, int32_t node, const prefix_key *key, int32_t page, int32_t *at);
/* The mark turned out unusable. */
void prefix_unmark(prefix_cache *c, int32_t node);
/* Gives up a node that has no mark and nobody needs; returns its parent. -1: it stays. */
int32_t prefix_drop_spare(prefix_cache *c, int32_t node);
/* The next such node behind this one (0: the first) on a way that goes through base; 0: none. */
int32_t prefix_next_spare(const prefix_cache *c, int32_t node, int32_t base);
/* Nodes that this creator added, from node upwards, are never found again. */
void prefix_poison(prefix_cache *c, int32_t node, uint64_t creator);
/* Gives up one node that nobody uses; false if there is none. */
bool prefix_evict(prefix_cache *c);

/* Gives up every node that nobody uses, and overwrites what they held. How many marks went. */
int32_t prefix_clear(prefix_cache *c);

/* ---- for the disk ---- */

typedef struct prefix_view {
    int32_t parent, n_tokens, page;
    int32_t depth; /* whole pages before this node's own */
    const int32_t *tokens;
    const uint8_t *salt;
    const void *snapshot;         /* NULL: no mark */
    prefix_hash hash;             /* of a whole page and all before it */
    uint64_t serial;              /* of this node, never used again */
    uint32_t stored, mark_stored; /* epochs of prefix_set_*; 0: never */
    bool is_gone;                 /* given up or poisoned */
} prefix_view;
/* The node of the whole page that ends in this hash; 0: none. */
int32_t prefix_node_of(const prefix_cache *c, const prefix_hash *hash);
/* The next node behind this one (0: the first) that has a mark and is not given up; 0: none. */
int32_t prefix_next_mark(const prefix_cache *c, int32_t node);
void prefix_look(const prefix_cache *c, int32_t node, prefix_view *out);
void prefix_set_stored(prefix_cache *c, int32_t node, uint32_t epoch);
void prefix_set_mark_stored(prefix_cache *c, int32_t node, uint32_t epoch);

typedef struct prefix_counts {
    int32_t n_nodes, n_marks, marks_cap;
    uint64_t n_evicted;
} prefix_counts;
void prefix_count(const prefix_cache *c, prefix_counts *out);

#endif
