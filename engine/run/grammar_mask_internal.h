/* Shared by the files that make masks. */
#ifndef TANDEM_RUN_GRAMMAR_MASK_INTERNAL_H
#define TANDEM_RUN_GRAMMAR_MASK_INTERNAL_H

#include "engine/run/grammar_internal.h"
#include "engine/run/grammar_trie.h"

typedef struct mask_job {
    grammar_state *s;
    const token_trie *t;
    uint64_t *mask;
} mask_job;

static inline void mask_set(uint64_t *mask, int32_t token) {
    mask[token / 64] |= (uint64_t)1 << (token % 64);
}

static inline bool mask_has(const uint64_t *mask, int32_t token) {
    return (mask[token / 64] >> (token % 64) & 1) != 0;
}

/* The token and those with the same bytes. */
void mask_set_token(const mask_job *j, int32_t token);
void mask_or(const mask_job *j, const uint64_t *from);
/* What to do with a node that the machine can reach. */
typedef void (*node_sink)(const mask_job *j, uint32_t node);
void mask_sink_token(const mask_job *j, uint32_t node);
/* Walks nodes [from, to) of a tree, all at or below one depth, with the threads in s->out standing
 * in front of that depth. */
void mask_walk(const mask_job *j, const trie *tree, uint32_t from, uint32_t to, node_sink sink);
void mask_set_out(grammar_state *s, const uint32_t *threads, uint32_t n);
/* Whether the machine takes bytes from these threads on. */
bool mask_takes(
    grammar_state *s, const uint32_t *threads, uint32_t n, const uint8_t *bytes, uint32_t len);

/* A closing quote inside a token: what must hold of the text in front of it. */
typedef struct closing {
    const uint64_t *leave; /* only these tokens; NULL: all */
    uint32_t need, left;   /* characters */
} closing;
/* Tokens that close the string of an untracked thread. */
void mask_closing(const mask_job *j, uint32_t thread, const closing *c);
/* A string without automaton, from the start of a character. False: the general way must be
 * gone. */
bool mask_plain(const mask_job *j, uint32_t thread);
/* An undeclared key of a class without automaton. */
bool mask_key(const mask_job *j, uint32_t thread);
/* Text limited by an automaton. False: the general way must be gone. */
bool mask_text(const mask_job *j, uint32_t thread);

#endif
