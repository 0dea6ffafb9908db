/* A source of tokens that follows a script instead of a model, for tests of everything above it.
 * Every stream yields the pieces in order, one token each, then ends as the script says. Piece i is
 * token n_base + i; the ids below are the tokenizer's, so prompts are real. */
#ifndef TESTS_HARNESS_STUB_SOURCE_H
#define TESTS_HARNESS_STUB_SOURCE_H

#include <stdint.h>

#include "engine/run/source.h"

typedef enum stub_end { STUB_END_EOS, STUB_END_ERROR, STUB_END_PEER_LOST } stub_end;

typedef struct stub_list {
    const int32_t *tokens;
    int32_t n;
} stub_list;

typedef struct stub_script {
    const char *const *pieces; /* [n_pieces]; borrowed */
    int32_t n_pieces;
    int32_t n_times; /* how often the list is gone through; 0: once */
    stub_end end;
    int32_t prefill_ms, delay_ms;
    int32_t n_base, eos_id;
    /* Instead of pieces: real tokens that are preferred in this order. One that may not be taken is
     * skipped; what is allowed comes next. */
    const int32_t *preferred; /* [n_preferred]; borrowed; NULL: pieces */
    int32_t n_preferred;
    /* Chooses what a stream prefers by its prompt; NULL: the list above. Any thread of the run. */
    stub_list (*choose)(void *ctx, const int32_t *prompt, int32_t n_prompt);
    void *choose_ctx;
    int32_t n_slots;            /* 0: 4 */
    int32_t max_rows;           /* of one step; 0: 16 */
    int64_t max_context;        /* 0: 8192 */
    const _Atomic int *is_held; /* steps wait while it is not 0; NULL: they do not */
    _Atomic int *n_allowed;     /* so many more steps are done, the others wait; NULL: all are */
} stub_script;

typedef struct stub stub;

/* The caller frees with stub_free after the run that uses the source is closed. */
stub *stub_new(const stub_script *script);
void stub_free(stub *s);
const run_source *stub_source(const stub *s);
/* Streams of the step that had most of them. Any thread. */
int stub_most_spans(const stub *s);

#endif
