#include "tests/harness/model_probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/file.h"
#include "engine/base/mem.h"

static size_t element_bytes(tap_type t) {
    return t == TAP_I64 ? 8 : t == TAP_U8 ? 1 : 4;
}

void probe_tap(void *user, const tap_data *t) {
    probe *p = user;
    probe_entry *e = (probe_entry *)(size_t)probe_find(p, t->name, t->layer, t->is_draft);
    size_t size = element_bytes(t->type), row = size * (size_t)t->n_cols;
    if (e == NULL) {
        CHECK(p->n < PROBE_MAX);
        e = &p->entries[p->n++];
        memset(e, 0, sizeof(*e));
        snprintf(e->name, sizeof(e->name), "%s", t->name);
    }
    mem_free(e->data);
    e->layer = t->layer;
    e->is_draft = t->is_draft;
    e->type = t->type;
    e->n_rows = t->n_rows;
    e->n_cols = t->n_cols;
    e->data = mem_alloc(row * (size_t)t->n_rows);
    for (int r = 0; r < t->n_rows; r++) {
        memcpy((char *)e->data + (size_t)r * row,
            (const char *)t->data + (size_t)r * t->stride * size, row);
    }
}

void probe_clear(probe *p) {
    for (int i = 0; i < p->n; i++) {
        mem_free(p->entries[i].data);
    }
    p->n = 0;
}

const probe_entry *probe_find(const probe *p, const char *name, int layer, bool is_draft) {
    for (int i = 0; i < p->n; i++) {
        const probe_entry *e = &p->entries[i];
        if (e->layer == layer && e->is_draft == is_draft && strcmp(e->name, name) == 0) {
            return e;
        }
    }
    return NULL;
}

static void stop(const char *what, const err *e) {
    printf("%s: %s\n", what, e->msg);
    exit(1);
}

void probe_slot(model *m, int slot, int first_page, int n_tokens) {
    model_info info;
    err e = ERR_INIT;
    model_get_info(m, &info);
    int n = (n_tokens + info.page_tokens - 1) / info.page_tokens;
    int32_t *pages = mem_array((size_t)n, sizeof(*pages));
    for (int i = 0; i < n; i++) {
        pages[i] = first_page + i;
    }
    model_slot_reset(m, slot);
    if (model_slot_pages(m, slot, pages, n, &e) != OK) {
        stop("pages", &e);
    }
    mem_free(pages);
}

const float *probe_step(model *m, int slot, const int32_t *tokens, int n, plan_kind kind) {
    plan_span span = {.slot = slot,
        .n_rows = n,
        .pos = model_slot_len(m, slot),
        .tokens = tokens,
        .logits = PLAN_LOGITS_ALL,
        .kind = (uint8_t)kind};
    batch_plan plan = {.id = 1, .n_spans = 1, .spans = &span};
    step_result out;
    err e = ERR_INIT;
    if (model_step(m, &plan, &out, &e) != OK) {
        stop("step", &e);
    }
    return out.logits;
}

int32_t probe_argmax(const float *x, int n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) {
        if (x[i] > x[best]) {
            best = i;
        }
    }
    return best;
}

bool probe_is_slow(void) {
#if defined(__SANITIZE_THREAD__)
    return true;
#else
    return false;
#endif
}

model *probe_open(const model_options *o) {
    model *m = NULL;
    err e = ERR_INIT;
    model_options with = *o;
    if (with.backend == NULL) {
        with.backend = getenv("TANDEM_TEST_BACKEND");
    }
    if (model_open(&with, &m, &e) != OK) {
        stop("opening the model", &e);
    }
    return m;
}

static void link_file(const char *golden, const char *from, const char *dir, const char *to) {
    char source[2048], target[512], real[4096];
    snprintf(source, sizeof(source), "%s/%s", golden, from);
    snprintf(target, sizeof(target), "%s/%s", dir, to);
    if (realpath(source, real) == NULL || symlink(real, target) != 0) {
        printf("cannot link %s to %s\n", source, target);
        exit(1);
    }
}

void probe_folder(const char *golden, const char *config_name, char out[256]) {
    const char *tmp = getenv("TMPDIR");
    snprintf(out, 256, "%s/tandem-model-XXXXXX", tmp != NULL ? tmp : "/tmp");
    if (mkdtemp(out) == NULL) {
        printf("cannot make a folder like %s\n", out);
        exit(1);
    }
    link_file(golden, "model.safetensors", out, "model.safetensors");
    link_file(golden, "token_map.json", out, "token_map.json");
    link_file(golden, config_name, out, "config.json");
}

void probe_folder_remove(const char *dir) {
    err e = ERR_INIT;
    (void)dir_remove_all(dir, &e);
}
