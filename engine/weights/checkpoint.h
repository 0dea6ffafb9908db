/* A model's weights by their official names (model.md 2), whatever form they have on disk: plain
 * floats, FP8 with 32x32 scales, FP4 pairs with a scale per 32 inputs, or EXL3. Opening checks
 * that every tensor the configuration needs is there with the right type and shape, so that a
 * partial or mixed-up download is refused with the names instead of running as noise.
 *
 * Opened and closed by one thread; all lookups are read-only and safe from any thread. The
 * checkpoint owns everything it hands out until checkpoint_close. Vision tensors are not looked
 * at. */
#ifndef TANDEM_ENGINE_WEIGHTS_CHECKPOINT_H
#define TANDEM_ENGINE_WEIGHTS_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/model/config.h"
#include "engine/weights/safetensors.h"
#include "kernels/exl3/exl3_codec.h"

typedef struct checkpoint checkpoint;

typedef struct checkpoint_options {
    bool without_stages;    /* do not ask for the draft stages (mtp.*) */
    bool without_engram;    /* Engram tables come from another store: their absence is no error */
    bool only_tables;       /* the Engram tables are all that is wanted: weights are in a pack */
    const char *engram_dir; /* where the tables are looked for when DIR has none; NULL: nowhere */
} checkpoint_options;

typedef enum linear_kind {
    LINEAR_FLOAT, /* weight [out, in] BF16, F16 or F32 */
    LINEAR_FP8,   /* weight [out, in] E4M3, scale UE8M0 per 32 x 32 block */
    LINEAR_FP4,   /* weight [out, in/2] E2M1 pairs, low nibble first; scale UE8M0 per 32 inputs */
    LINEAR_EXL3
} linear_kind;

/* One linear, or a rectangular part of one. Borrows from the checkpoint. */
typedef struct linear_source {
    linear_kind kind;
    int in, out;           /* what the model uses; EXL3 sizes may be padded above these */
    st_dtype dtype;        /* of LINEAR_FLOAT */
    exl3_matrix exl3;      /* of LINEAR_EXL3 */
    const uint8_t *weight; /* first byte of row 0 of the part, unaligned */
    const uint8_t *scale;  /* first scale of the part */
    size_t weight_stride;  /* bytes from row to row */
    size_t scale_stride;   /* bytes from one row (FP4) or block row (FP8) of scales to the next */
} linear_source;

/* How one rank holds a linear (model.md 15). */
typedef struct tp_part {
    int in0, in1, out0, out1;
    bool is_partial_sum; /* the inputs are split: results of all ranks must be added */
    bool is_absent;      /* this rank holds none of it (a wo_a slice of the other rank) */
} tp_part;

/* The folder that a download fills with the Engram tables of the model in DIR: DATA/engram/NAME for
 * DATA/models/NAME. "" when it is not there. */
void checkpoint_engram_dir(const char *dir, buf *out);
/* Opens DIR for this configuration. Errors name tensor, file and remedy: ERR_NOT_FOUND (something
 * is missing: how many, the first names), ERR_FORMAT (wrong type, shape or marker). */
int checkpoint_open(
    const char *dir, const model_config *c, const checkpoint_options *o, checkpoint **out, err *e);
void checkpoint_close(checkpoint *k);
const st_set *checkpoint_set(const checkpoint *k);
/* Lines of text, "" when nothing is odd. */
const char *checkpoint_warnings(const checkpoint *k);
/* How many linears are EXL3 and how many plain (also FP8, FP4). */
void checkpoint_count(const checkpoint *k, int *n_exl3, int *n_plain);

/* A linear by its official name without ".weight", e.g. "layers.3.attn.wq_a",
 * "layers.0.ffn.experts.7.w2", "head", "mtp.0.main_proj". wo_a is always asked for by group:
 * "layers.3.attn.wo_a.slice.1", whichever way the file keeps it. */
int checkpoint_linear(const checkpoint *k, const char *name, linear_source *out, err *e);
/* The part of it that a rank holds. A part that is_absent gives OK and out untouched. */
int checkpoint_linear_part(const checkpoint *k, const char *name, const int rank_world[2],
    linear_source *out, tp_part *part, err *e);
/* A plain tensor by its full official name ("layers.0.attn_norm.weight", "layers.0.hc_attn_fn") as
 * floats; BF16, F16 and F32 are taken. n must be its number of elements. */
int checkpoint_floats(const checkpoint *k, const char *name, float *out, size_t n, err *e);
bool checkpoint_has(const checkpoint *k, const char *name);
/* The table of Engram layer number i_engram of the config: values [rows][d] and scales
 * [rows][d/32], mapped. ERR_NOT_FOUND when it is not at hand. */
int checkpoint_engram(const checkpoint *k, int i_engram, const uint8_t **values,
    const uint8_t **scales, int64_t *n_rows, err *e);

/* Where model.md 15 cuts the named linear of size in x out for rank of world. */
int tp_part_of(const model_config *c, const char *name, const int rank_world[2],
    const int in_out[2], tp_part *out, err *e);
/* Cuts inputs [in0, in1) and outputs [out0, out1) out of s: multiples of 128 (EXL3) or 32 (FP8,
 * FP4); any for floats. ERR_ARG or ERR_UNSUPPORTED names the cut that does not fit. */
int linear_source_slice(const linear_source *s, const tp_part *part, linear_source *out, err *e);
/* Rows [row0, row0 + n) of a linear that is not EXL3, as floats [n][in]. */
void linear_source_rows(const linear_source *s, int row0, int n, float *out);
/* The same as bf16 bits; exact for BF16, FP8 and FP4. */
void linear_source_bf16(const linear_source *s, int row0, int n, uint16_t *out);
/* All of any linear as floats [out][in]; EXL3 is decoded. ERR_MEMORY. */
int linear_source_floats(const linear_source *s, float *out, err *e);

/* What a configuration needs, in checkpoint order. */
typedef enum weight_role { WEIGHT_LINEAR, WEIGHT_PLAIN, WEIGHT_TABLE, WEIGHT_OPTIONAL } weight_role;
typedef struct weight_spec {
    const char *name; /* linear: without ".weight"; else the full name. Valid during the call. */
    weight_role role;
    int n_dims;
    uint64_t dims[2]; /* official shape; linear: [out, in] */
    bool is_stage;    /* belongs to mtp.* */
} weight_spec;
/* Calls fn for each; a non-OK return stops and is returned. wo_a comes once, whole. */
int weight_specs_each(
    const model_config *c, int (*fn)(void *ctx, const weight_spec *w, err *e), void *ctx, err *e);

/* Values of the small formats. */
float fp8_e4m3_value(uint8_t code);  /* NaN for 0x7f, 0xff */
float fp4_e2m1_value(unsigned code); /* low 4 bits */
float e8m0_value(uint8_t code);      /* 2^(code - 127), NaN for 255 */

#endif
