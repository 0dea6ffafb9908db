/* Where tokens come from: the seam between the step thread and the model. The product uses the
 * model (source_model.c); tests of the HTTP layer put a scripted stub there (stub.h). Every call
 * is made by the step thread alone, in an order that depends only on the plans, so a source may
 * also send each call to a second rank. Contracts of the functions are those of the functions of
 * the same name in engine/model/model.h. */
#ifndef TANDEM_RUN_SOURCE_H
#define TANDEM_RUN_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/model/model.h"

#define RUN_DRAFT_MAX 16

typedef struct source_info {
    int32_t n_vocab, n_slots, n_pages, page_tokens, max_rows, max_logit_rows;
    int32_t block;       /* drafts per call; 0: no drafts */
    int64_t max_context; /* positions of one stream */
    /* For the prefix cache; a source without slot_save leaves them 0. */
    size_t snapshot_bytes, page_bytes;
    uint64_t layout_hash;
    int32_t max_rollback; /* how far back slot_save reaches */
} source_info;

typedef struct run_source {
    void *self;
    source_info info;
    int (*step)(void *self, const batch_plan *plan, step_result *out, err *e);
    int (*draft)(void *self, const draft_request *requests, int n, draft_result *out, err *e);
    /* A logit row of the last step that came without; NULL: steps give whole rows, and no lists are
     * asked for. */
    int (*logit_row)(void *self, int i, const float **row, err *e);
    int (*commit)(void *self, int slot, int64_t new_len, err *e);
    int (*slot_pages)(void *self, int slot, const int32_t *pages, int n, err *e);
    void (*slot_reset)(void *self, int slot);
    int (*slot_copy)(void *self, int dst, int src, err *e);
    /* State at len, at most max_rollback back; NULL: nothing can be cached. */
    int (*slot_save)(void *self, int slot, int64_t len, void *blob, err *e);
    int (*slot_load)(void *self, int slot, const void *blob, err *e);
    int (*page_copy)(void *self, int dst, int src, err *e);
    int (*page_read)(void *self, int page, void *out, err *e);
    int (*page_write)(void *self, int page, const void *data, err *e);
    /* The stream that will use a freshly reset slot; NULL where the source does not care. */
    void (*slot_begin)(void *self, int slot, const int32_t *prompt, int32_t n_prompt);
    /* model_prefetch; on every rank, which holds its own part of the rows. NULL: nothing to read
     * ahead. */
    void (*prefetch)(void *self, const int32_t *tokens, int32_t n_before, int32_t n);
    /* Of everything that the slots and pages hold; over several ranks ERR_MISMATCH when it differs.
     * For tests and for finding faults, it takes long. NULL where there is no such thing. */
    int (*state_hash)(void *self, uint64_t *hash, err *e);
} run_source;

/* Fills out with the model's functions. The model is borrowed. */
void source_from_model(model *m, run_source *out);

#endif
