/* The prompt self-test: conversations whose rendered text and token ids are known from DeepSeek's own
 * encoder and tokenizer are rendered and encoded here and compared. A wrong prompt is no error
 * anybody sees, only worse answers; so it is found before a start. Any thread; changes nothing. */
#ifndef ENGINE_TEXT_SELF_TEST_H
#define ENGINE_TEXT_SELF_TEST_H

#include <stddef.h>

#include "engine/base/err.h"
#include "engine/text/tokenizer.h"

#define SELF_TEST_MAX_BYTES ((size_t)1 << 20)

typedef struct self_test_result {
    int n_cases, n_prompts, n_tokens; /* texts compared, token lists compared */
    char tokenizer[32]; /* whose ids they were: "deepseek-v4.1", "tandem-demo"; "" for another */
    char digest[65];    /* over all texts and ids as they came out: the version of the renderer */
} self_test_result;

/* cases: the text of templates/prompt-self-test.json. ERR_MISMATCH names case and first difference;
 * ERR_FORMAT: the cases are damaged. out is filled also on a mismatch. */
int self_test_run(const char *cases, size_t len, const tokenizer *t, self_test_result *out, err *e);

#endif
