/* Grammars for constrained replies: what text a reply may be, compiled from a JSON Schema, a
 * regular expression, a list of choices, an EBNF grammar or the tools of a request, run as a
 * push-down automaton over bytes, and turned into masks over the tokens of a vocabulary
 * (api.md 8).
 *
 * Threads: a token_trie and a grammar never change once made: any thread, several at once; a
 * grammar is counted (grammar_get, grammar_put) and freed by the last holder. A grammar_state
 * belongs to one thread at a time. Nothing allocates after grammar_state_new, and every function
 * on a state takes bounded time.
 *
 * Invariant: the mask of a state never leads into a dead end: after every allowed token a whole
 * sentence can still be reached (except where uniqueItems meets arrays or objects whose last open
 * place has run out of values, and past the limits below).
 *
 * Limits of one state: 128 levels of nesting, 512 remembered elements in an array with uniqueItems
 * and 512 undeclared keys in an object (then no further one can begin), 512 alternatives alive at
 * once. A state takes about 1.2 MiB. */
#ifndef TANDEM_RUN_GRAMMAR_H
#define TANDEM_RUN_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/json.h"
#include "engine/text/tokenizer.h"

/* The ordinary tokens of a vocabulary as a tree of bytes, with what is known beforehand about JSON
 * strings and free text. */
typedef struct token_trie token_trie;
/* Keeps no reference to t. The caller frees it with token_trie_free, after every grammar made with
 * it. */
int token_trie_new(const tokenizer *t, token_trie **out, err *e);
void token_trie_free(token_trie *t);
/* Words of a mask: bit i of word i / 64 is token i. */
size_t token_trie_words(const token_trie *t);
int32_t token_trie_eos(const token_trie *t);

typedef struct grammar grammar;
void grammar_put(grammar *g);
grammar *grammar_get(grammar *g);

/* All of these: on OK the caller owns *out (one hold). On an error e->place is a JSON pointer into
 * the schema where there is one, and the code is ERR_FORMAT (not well formed), ERR_UNSUPPORTED (a
 * rule that cannot be enforced: unsupported_schema), ERR_ARG (no value can fulfil it), or ERR_LIMIT.
 */
typedef struct schema_options {
    bool is_strict;    /* declared order of properties always holds */
    bool is_any_order; /* it never holds */
} schema_options;
int grammar_from_schema(
    const token_trie *t, const json *schema, const schema_options *o, grammar **out, err *e);
/* Any JSON object. */
int grammar_from_json_object(const token_trie *t, grammar **out, err *e);
/* The whole reply matches the expression. */
int grammar_from_regex(const token_trie *t, const char *pattern, grammar **out, err *e);
/* The reply is one of an array of strings. */
int grammar_from_choice(const token_trie *t, const json *choices, grammar **out, err *e);
/* GBNF: rules NAME ::= ..., literals, classes, groups, ? * + {m,n}, comments; starts at root. */
int grammar_from_ebnf(const token_trie *t, const char *text, grammar **out, err *e);

/* A name, or a list of names, that JSON Schema gives to types. */
bool grammar_knows_type(const json *type);

/* Tools that are not strict may call a type by any name: one that JSON Schema does not know allows
 * every value. */
typedef struct tools_options {
    const json *tools;        /* definitions of the request, wrapped or flat */
    const char *const *names; /* only these may be called; NULL: all */
    size_t n_names;
    bool is_required; /* a call must be made: the grammar begins before the opener, and the schemas
                         of all tools are enforced. Else it begins behind "<" and the DSML token */
    bool is_single;   /* one call only */
} tools_options;
int grammar_from_tools(
    const token_trie *t, const tokenizer *tk, const tools_options *o, grammar **out, err *e);

/* Tokens that every sentence begins with, in canonical form; empty for most grammars. Borrowed. */
const int32_t *grammar_opening(const grammar *g, size_t *n);

typedef struct grammar_state grammar_state;
/* At the beginning of a sentence. Holds g. NULL: no memory. */
grammar_state *grammar_state_new(grammar *g);
void grammar_state_free(grammar_state *s);
void grammar_state_reset(grammar_state *s);
/* Makes to equal to from (both of the same grammar): rolling back is copying back. */
void grammar_state_copy(grammar_state *to, const grammar_state *from);
/* Sets the bits of exactly the tokens that may come next, and clears all others. The end token is
 * among them when the sentence may end here. */
void grammar_mask(grammar_state *s, uint64_t *mask);
/* Takes a token. ERR_MISMATCH: it is not allowed; the state is as before. */
int grammar_accept(grammar_state *s, int32_t token);
/* Whether one token is allowed, without a mask. */
bool grammar_allows(grammar_state *s, int32_t token);
/* Takes bytes, which may end inside a token. ERR_MISMATCH as above. */
int grammar_accept_bytes(grammar_state *s, const char *bytes, size_t len);
/* The sentence may end here. */
bool grammar_is_final(grammar_state *s);
/* The end token was taken. */
bool grammar_is_done(const grammar_state *s);
/* The bytes that must come next whatever the model wants: at most cap, 0 if there is a choice. */
size_t grammar_forced(grammar_state *s, char *out, size_t cap);

#endif
