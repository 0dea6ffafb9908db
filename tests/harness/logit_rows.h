/* Made-up rows of logits of the kinds that samplers meet and of those that they must survive. */
#ifndef TESTS_HARNESS_LOGIT_ROWS_H
#define TESTS_HARNESS_LOGIT_ROWS_H

#include <stdint.h>

enum {
    LOGITS_PLAIN,   /* a bell of width 3 */
    LOGITS_PEAKY,   /* the same with a few tokens far above */
    LOGITS_SURE,    /* one token takes all */
    LOGITS_TIES,    /* a few different values only, both zeros among them */
    LOGITS_FLAT,    /* all equal but for the last bits */
    LOGITS_MASKED,  /* most are -infinity */
    LOGITS_DEEP,    /* spread over hundreds */
    LOGITS_NOTHING, /* -infinity */
    LOGITS_KINDS
};

extern const char *const logit_kind_names[LOGITS_KINDS];

/* Row number `seed` of a kind. */
void logit_row_fill(float *x, int32_t n, int kind, uint64_t seed);

#endif
