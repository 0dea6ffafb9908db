/* Binding weights, shared by loading.c, which walks the model's names, and by what gives each name
 * its bytes: binding.c (from the checkpoint, or from a rank pack) and listing.c (to a rank pack). */
#ifndef TANDEM_ENGINE_MODEL_LOADING_INTERNAL_H
#define TANDEM_ENGINE_MODEL_LOADING_INTERNAL_H

#include "engine/model/model_internal.h"

typedef struct loader {
    model *m;
    err *e;
    int rc;         /* sticky: nothing is bound once it is set */
    char block[64]; /* "layers.3." or "mtp.0." or "" */
    uint64_t told_ms;
} loader;

/* n floats of a plain tensor. NULL in a dry run and after an error. */
const float *loader_floats(loader *l, const char *name, size_t n);
/* The products of two plain tensors of n floats, element by element, under a name of their own.
 * factors NULL: the tensor of that name. */
const float *loader_product(loader *l, const char *name, const char *const factors[2], size_t n);
/* This rank's part of a linear. */
void loader_linear(loader *l, const char *name, linear_weight *out);
/* A plain [rows][cols] tensor by its full name, whole on every rank. */
void loader_table(loader *l, const char *name, const int rows_cols[2], linear_weight *out);

/* How the weights are kept: EXL3 in the order of the back end, BF16 and F32 as they are, the other
 * forms as BF16 (FP8, FP4: exact) or F32 (F16; EXL3 of padded sizes). */
matrix_form binding_form(const linear_source *s);

/* ---- listing.c: instead of being bound, weights are listed for a pack ---- */

typedef struct listing listing;
int listing_floats(listing *l, const char *name, const char *const factors[2], size_t n, err *e);
int listing_matrix(listing *l, const char *name, const linear_source *s, err *e);

#endif
