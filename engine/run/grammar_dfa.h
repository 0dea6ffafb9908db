/* Deterministic automata over bytes, for patterns, formats, sets of strings and terminals. Every
 * automaton accepts only valid UTF-8, and every state except state 0 can still reach acceptance, so
 * a walk that avoids state 0 never runs into a dead end. Built once, read-only afterwards: any
 * thread. The caller owns what is built and gives it back with dfa_free. */
#ifndef TANDEM_RUN_GRAMMAR_DFA_H
#define TANDEM_RUN_GRAMMAR_DFA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

#define DFA_MAX_STATES 20000
#define DFA_MANY 0xFFFFFFFFu /* no limit: words left, or characters left */

typedef struct dfa {
    uint32_t n_states; /* state 0 is dead */
    uint32_t n_classes;
    uint32_t start; /* 0: nothing is accepted */
    uint8_t class_of[256];
    uint32_t *next;      /* [n_states][n_classes] */
    uint8_t *accepts;    /* [n_states] */
    uint32_t *words;     /* [n_states] how many words can follow (the empty one too); DFA_MANY */
    uint32_t *min_chars; /* [n_states] fewest code points to acceptance */
    uint32_t *max_chars; /* [n_states] most; DFA_MANY without a limit */
} dfa;

enum {
    REGEX_SEARCH, /* ECMA-262: the pattern may match anywhere in the text */
    REGEX_WHOLE,  /* the pattern must match the whole text */
};

/* Compiles an ECMA-262 regular expression (Unicode mode, without look-around, back-references and
 * word borders). ERR_FORMAT: not a regular expression; ERR_UNSUPPORTED: a form named in the
 * message; ERR_LIMIT: too large. */
int dfa_from_regex(const char *pattern, size_t len, int mode, dfa **out, err *e);
/* All valid UTF-8 texts. */
int dfa_any(dfa **out, err *e);
typedef struct dfa_word {
    const char *text;
    size_t len;
} dfa_word;
/* Exactly these texts, each valid UTF-8. */
int dfa_from_words(const dfa_word *words, size_t n, dfa **out, err *e);
/* Texts of a that are in b, or (is_negated) not in b. */
int dfa_intersect(const dfa *a, const dfa *b, bool is_negated, dfa **out, err *e);
void dfa_free(dfa *d);

static inline uint32_t dfa_step(const dfa *d, uint32_t state, uint8_t byte) {
    return d->next[(size_t)state * d->n_classes + d->class_of[byte]];
}
/* The state after text, 0 when it cannot be continued to a word. */
uint32_t dfa_run(const dfa *d, uint32_t state, const char *text, size_t len);

/* Inside the automaton code: a nondeterministic automaton, and a raw deterministic one whose dead
 * states have not been removed. */
enum { NFA_RANGE, NFA_SPLIT, NFA_BEGIN, NFA_END, NFA_MATCH };
#define NFA_NONE 0xFFFFFFFFu
#define NFA_MAX_STATES 200000
typedef struct nfa_state {
    uint8_t kind, lo, hi;
    uint32_t a, b; /* where to go; b only for NFA_SPLIT */
} nfa_state;
typedef struct nfa {
    nfa_state *states;
    size_t len, cap;
    bool is_full; /* a limit was hit; what was added since is void */
} nfa;
uint32_t nfa_add(nfa *n, nfa_state s);
/* Parses into n; *start and *end (a split state whose a is open) are the fragment. */
int regex_parse(const char *pattern, size_t len, nfa *n, uint32_t ends[2], err *e);
/* A fragment for a sorted or unsorted list of code point ranges. */
void nfa_add_ranges(nfa *n, const uint32_t (*ranges)[2], size_t n_ranges, uint32_t ends[2]);
int dfa_from_nfa(const nfa *n, uint32_t start, dfa **out, err *e);
/* Takes next and accepts (n_states, 0 dead), removes what is dead, fills the tables. */
int dfa_finish(dfa *raw, dfa **out, err *e);

#endif
