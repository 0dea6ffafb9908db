/* Breaks the arithmetic of a model on purpose, so that tests can show that they would notice. */
#ifndef TANDEM_TESTS_SABOTAGE_H
#define TANDEM_TESTS_SABOTAGE_H

#include <stdbool.h>

#include "engine/model/model.h"

typedef struct saboteur {
    const model_config *c;
    char what;      /* 'r' inverse rotation, 'c' comb indices, 'p' own pre */
    float *own_pre; /* of the newest mix: [rows of a step][streams], the caller's */
} saboteur;

/* For model_set_tap; user: a saboteur. */
void sabotage_tap(void *user, const tap_data *t);
/* Makes the attention sinks in a safetensors file so low that they count for nothing. False: the file
 * could not be changed. */
bool sabotage_sinks(const char *path);

#endif
