#include "engine/run/source.h"

static int step(void *self, const batch_plan *plan, step_result *out, err *e) {
    return model_step(self, plan, out, e);
}

static int draft(void *self, const draft_request *requests, int n, draft_result *out, err *e) {
    return model_draft(self, requests, n, NULL, NULL, out, e);
}

static int logit_row(void *self, int i, const float **row, err *e) {
    return model_logit_row(self, i, row, e);
}

static int commit(void *self, int slot, int64_t new_len, err *e) {
    return model_commit(self, slot, new_len, e);
}

static int slot_pages(void *self, int slot, const int32_t *pages, int n, err *e) {
    return model_slot_pages(self, slot, pages, n, e);
}

static void slot_reset(void *self, int slot) {
    model_slot_reset(self, slot);
}

static int slot_copy(void *self, int dst, int src, err *e) {
    return model_slot_copy(self, dst, src, e);
}

static int slot_save(void *self, int slot, int64_t len, void *blob, err *e) {
    model_info info;
    model_get_info(self, &info);
    return model_slot_save_at(self, slot, len, (snapshot_blob){blob, info.snapshot_bytes}, e);
}

static int slot_load(void *self, int slot, const void *blob, err *e) {
    model_info info;
    model_get_info(self, &info);
    return model_slot_load(self, slot, blob, info.snapshot_bytes, e);
}

static int page_copy(void *self, int dst, int src, err *e) {
    return model_page_copy(self, dst, src, e);
}

static int page_read(void *self, int page, void *out, err *e) {
    return model_page_read(self, page, out, e);
}

static int page_write(void *self, int page, const void *data, err *e) {
    return model_page_write(self, page, data, e);
}

static int state_hash(void *self, uint64_t *hash, err *e) {
    return model_state_hash(self, hash, e);
}

static void prefetch(void *self, const int32_t *tokens, int32_t n_before, int32_t n) {
    model_prefetch(self, tokens, n_before, n);
}

void source_from_model(model *m, run_source *out) {
    model_info info;
    model_get_info(m, &info);
    *out = (run_source){
        .self = m,
        .info = {.n_vocab = info.config->n_vocab,
            .n_slots = info.n_slots,
            .n_pages = info.n_pages,
            .page_tokens = info.page_tokens,
            .max_rows = info.max_rows,
            .max_logit_rows = info.max_logit_rows,
            .block = info.has_drafts ? info.block : 0,
            .max_context = info.max_context,
            .snapshot_bytes = info.snapshot_bytes,
            .page_bytes = info.page_bytes,
            .layout_hash = info.layout_hash,
            .max_rollback = info.max_rollback},
        .step = step,
        .draft = draft,
        .logit_row = logit_row,
        .commit = commit,
        .slot_pages = slot_pages,
        .slot_reset = slot_reset,
        .slot_copy = slot_copy,
        .slot_save = slot_save,
        .slot_load = slot_load,
        .page_copy = page_copy,
        .page_read = page_read,
        .page_write = page_write,
        .prefetch = prefetch,
        .state_hash = state_hash,
    };
}
