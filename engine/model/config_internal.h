/* Shared by the files that make a model_config. */
#ifndef TANDEM_ENGINE_MODEL_CONFIG_INTERNAL_H
#define TANDEM_ENGINE_MODEL_CONFIG_INTERNAL_H

#include "engine/base/json.h"
#include "engine/model/config.h"

/* Multipliers, primes, offsets and rows of every Engram layer; needs n_engram, engram[].layer and
 * the sizes. */
void engram_plan_fill(model_config *c);
/* First double of numpy's default_rng(seed): self-test of the generator. */
double engram_numpy_double(uint64_t seed);
/* The layer plan from ratios [n_layers + n_stages] and the source lists already in c. */
int layer_plan_fill(model_config *c, const int *ratios, err *e);

#endif
