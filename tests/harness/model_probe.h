/* Records what a model's tap gives during one step or draft, for comparison with golden tensors,
 * and small helpers to drive a model in tests. One thread. */
#ifndef TESTS_HARNESS_MODEL_PROBE_H
#define TESTS_HARNESS_MODEL_PROBE_H

#include <stdbool.h>

#include "engine/model/model.h"

enum { PROBE_MAX = 1024 };

typedef struct probe_entry {
    char name[48];
    int layer;
    bool is_draft;
    tap_type type;
    int n_rows, n_cols;
    void *data; /* [n_rows][n_cols], compact copy */
} probe_entry;

typedef struct probe {
    probe_entry entries[PROBE_MAX];
    int n;
} probe;

/* The tap function; user is the probe. A repeated name replaces the earlier value. */
void probe_tap(void *user, const tap_data *t);
void probe_clear(probe *p);
/* NULL when nothing of this name was given. */
const probe_entry *probe_find(const probe *p, const char *name, int layer, bool is_draft);

/* Resets a slot and gives it pages first_page, first_page + 1, .. for n_tokens positions. */
void probe_slot(model *m, int slot, int first_page, int n_tokens);
/* One span as a step; ends the program with the error on failure. Returns the logits of its rows. */
const float *probe_step(model *m, int slot, const int32_t *tokens, int n, plan_kind kind);
/* Index of the largest value, the lower one on a tie. */
int32_t probe_argmax(const float *x, int n);
/* Opens or ends the program with the error. The environment variable TANDEM_TEST_BACKEND names the
 * back end when the options name none. */
model *probe_open(const model_options *o);
/* Built with the thread sanitizer, under which big models take minutes. */
bool probe_is_slow(void);

/* A golden folder holds result tensors beside the weights, so a model is opened from a temporary
 * folder of links to its model.safetensors, token_map.json and the named config. Ends the program
 * when that fails. */
void probe_folder(const char *golden, const char *config_name, char out[256]);
void probe_folder_remove(const char *dir);

#endif
