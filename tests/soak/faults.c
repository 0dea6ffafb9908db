/* Faults for the test build of tandemd (tandemd-faults): linked in place of source_from_model and
 * model_open, so that the product holds no such code. TANDEM_FAULTS=1 switches them on, after the
 * first reply of the start: steps and drafts that fail, steps that take long, states and pages that
 * can not be saved or loaded. TANDEM_FAULT_TOKEN=ID: rows of this token are not finite. */
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/rand.h"
#include "engine/base/str.h"
#include "engine/run/source.h"

/* The linker gives these names with --wrap. */
void __real_source_from_model(model *m, run_source *out);
void __wrap_source_from_model(model *m, run_source *out);
int __real_model_open(const model_options *options, model **out, err *e);
int __wrap_model_open(const model_options *options, model **out, err *e);

enum { FAULTS_FROM_STEP = 100, FAULT_SLOW_MS = 300 };

/* One engine a process; all calls come from its step thread. */
static struct {
    run_source inner;
    rand_state rand;
    uint64_t n_steps;
} faults;

/* Once in n calls. */
static bool is_due(uint32_t n) {
    return faults.n_steps > FAULTS_FROM_STEP && rand_u32(&faults.rand) % n == 0;
}

static int step(void *self, const batch_plan *plan, step_result *out, err *e) {
    faults.n_steps++;
    if (is_due(400)) return err_set(e, ERR_INTERNAL, "injected: a step failed");
    if (is_due(1000)) sleep_ms(FAULT_SLOW_MS);
    return faults.inner.step(self, plan, out, e);
}

static int draft(void *self, const draft_request *requests, int n, draft_result *out, err *e) {
    if (is_due(100)) return err_set(e, ERR_INTERNAL, "injected: a draft failed");
    return faults.inner.draft(self, requests, n, out, e);
}

static int slot_save(void *self, int slot, int64_t len, void *blob, err *e) {
    if (is_due(20)) return err_set(e, ERR_INTERNAL, "injected: a state was not saved");
    return faults.inner.slot_save(self, slot, len, blob, e);
}

static int slot_load(void *self, int slot, const void *blob, err *e) {
    if (is_due(20)) return err_set(e, ERR_MISMATCH, "injected: a state was not loaded");
    return faults.inner.slot_load(self, slot, blob, e);
}

static int page_read(void *self, int page, void *out, err *e) {
    if (is_due(50)) return err_set(e, ERR_INTERNAL, "injected: a page was not read");
    return faults.inner.page_read(self, page, out, e);
}

static int page_write(void *self, int page, const void *data, err *e) {
    if (is_due(50)) return err_set(e, ERR_INTERNAL, "injected: a page was not written");
    return faults.inner.page_write(self, page, data, e);
}

static int page_copy(void *self, int dst, int src, err *e) {
    if (is_due(50)) return err_set(e, ERR_INTERNAL, "injected: a page was not copied");
    return faults.inner.page_copy(self, dst, src, e);
}

void __wrap_source_from_model(model *m, run_source *out) {
    __real_source_from_model(m, out);
    if (getenv("TANDEM_FAULTS") == NULL) return;
    faults.inner = *out;
    rand_init(&faults.rand, 5, 1);
    out->step = step;
    out->draft = draft;
    out->slot_save = slot_save;
    out->slot_load = slot_load;
    out->page_read = page_read;
    out->page_write = page_write;
    out->page_copy = page_copy;
}

int __wrap_model_open(const model_options *options, model **out, err *e) {
    model_options o = *options;
    const char *text = getenv("TANDEM_FAULT_TOKEN");
    int64_t token = 0;
    if (text != NULL && parse_i64(text, &token) == OK) o.fault_token = (int32_t)token;
    return __real_model_open(&o, out, e);
}
