/* What an answer must be, as requests say it: response_format, and the spellings that other servers
 * have for it (api.md 2 and 8). Compiled forms are kept, so that an agent's tools are compiled once.
 * Threads: the store may be used by any. */
#ifndef TANDEM_API_CONSTRAINT_H
#define TANDEM_API_CONSTRAINT_H

#include "engine/api/params.h"

/* Reads the fields into p; values are borrowed from the body. */
int constraint_read(const json *body, gen_params *p, api_error *e);

/* Compiled grammars by their text, and the trie of the vocabulary that they are made with. */
typedef struct constraint_store constraint_store;
constraint_store *constraint_store_new(void);
/* Before the tokenizer is closed. */
void constraint_store_free(constraint_store *s);

#endif
