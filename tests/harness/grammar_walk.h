/* Walking texts through grammars in tests: byte by byte, in several cuts into tokens, and at random
 * under the mask. One thread. */
#ifndef TESTS_HARNESS_GRAMMAR_WALK_H
#define TESTS_HARNESS_GRAMMAR_WALK_H

#include "engine/run/grammar.h"

/* The tokenizer of the built-in demo model, else of cases/tokenizer. */
int walk_tokenizer(tokenizer **tk, token_trie **trie, err *e);
/* The text is a whole sentence. Every way of cutting it that is tried must agree with every other
 * and with the masks; a disagreement ends the program with a message. */
bool walk_accepts(grammar *g, const tokenizer *tk, const char *text);
/* The same for text with a length. */
bool walk_accepts_bytes(grammar *g, const tokenizer *tk, const char *text, size_t len);
/* Appends a random sentence: tokens drawn evenly from the mask, and after about n_free of them such
 * that the end comes near. False when chance did not find the end; then out is a beginning. Ends
 * the program when a mask is empty before the end. Control tokens are written as their text. */
bool walk_random(grammar *g, const tokenizer *tk, uint64_t seed, int n_free, buf *out);

#endif
