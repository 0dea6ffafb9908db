/* The map of bits and the list of what a run does, shared by the files of quantize_model. */
#ifndef TANDEM_ENGINE_WEIGHTS_QUANTIZE_PLAN_H
#define TANDEM_ENGINE_WEIGHTS_QUANTIZE_PLAN_H

#include "engine/weights/checkpoint.h"
#include "engine/weights/quantize.h"
#include "engine/weights/safetensors.h"

typedef enum quantize_action { ACTION_KEEP, ACTION_BITS, ACTION_FLOAT } quantize_action;

typedef struct quantize_rule {
    char *pattern;
    quantize_action action;
    int k2;         /* ACTION_BITS */
    st_dtype dtype; /* ACTION_FLOAT */
} quantize_rule;

struct quantize_map {
    quantize_rule *rules;
    int n_rules, cap_rules;
    char *text; /* as given, for the record */
};

/* The rule for a name; ACTION_KEEP when none matches. */
quantize_rule quantize_map_find(const quantize_map *m, const char *name);

/* One output tensor group: a matrix to quantize, or one tensor to copy or convert. */
typedef struct plan_item {
    char *name; /* module (matrix) or full tensor name */
    bool is_matrix;
    int k2;                  /* of a matrix */
    linear_source source;    /* of a matrix */
    const st_tensor *tensor; /* of a copy */
    st_dtype dtype;          /* of a copy: type on output */
    int i_shard;
    int first_id; /* number of its first tensor in the shard's writer */
} plan_item;

typedef struct quantize_plan {
    plan_item *items;
    int n_items, cap_items;
    int n_matrices;
    uint64_t weights; /* in all matrices */
    int n_shards;
    exl3_codebook codebook;
} quantize_plan;

/* Lists what must be done to the checkpoint, in checkpoint order. */
int quantize_plan_make(quantize_plan *p, const checkpoint *k, const model_config *c,
    const quantize_options *o, err *e);
void quantize_plan_release(quantize_plan *p);
/* Bytes of the item's tensors in the output. */
uint64_t plan_item_bytes(const plan_item *it);
int plan_padded(int n);

/* "mul1" or "mcg", the name of the marker tensor and its value; NULL when there is none. */
const char *quantize_marker(exl3_codebook c, uint32_t *value);

/* config.json with the exl3 block instead of the old quantization_config. */
int quantize_write_config(const char *in_dir, const char *out_dir, const quantize_options *o,
    const quantize_report *r, err *e);
/* Tokenizer, templates and licence texts. */
int quantize_copy_texts(const char *in_dir, const char *out_dir, err *e);
/* model.safetensors.index.json for several shards. */
int quantize_write_index(const quantize_plan *p, const char *dir, err *e);
/* "model.safetensors" or "model-00001-of-00003.safetensors". */
void quantize_shard_name(const quantize_plan *p, int i_shard, char out[64]);

#endif
