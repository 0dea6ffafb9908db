/* The parsed model configuration and the layer plan computed from it. Plain data, filled once by
 * model_config_load or model_config_parse and read-only afterwards, so any thread may read it. Both
 * layouts are accepted: the hub's config.json (architectures, text_config) and the flat
 * inference/config.json. Every value the forward pass does not know how to honour is refused with a
 * sentence; nothing is silently ignored that would change a result. */
#ifndef TANDEM_ENGINE_MODEL_CONFIG_H
#define TANDEM_ENGINE_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

enum {
    MODEL_MAX_LAYERS = 128, /* backbone layers plus draft stages */
    MODEL_MAX_STAGES = 8,   /* draft stages (num_nextn_predict_layers) */
    MODEL_MAX_ENGRAM = 8,   /* Engram layers */
    MODEL_MAX_NGRAM = 8,    /* engram_max_ngram_size */
    MODEL_MAX_HASHES = 256, /* hash columns of one Engram layer */
    MODEL_MAX_TAPS = 8,     /* dspark_target_layer_ids */
    MODEL_MAX_STREAMS = 8,  /* hc_mult */
    MODEL_MAX_BLOCK = 16,   /* dspark_block_size */
    MODEL_MAX_RATIO = 2,    /* compress ratios 0, 1 and 2 exist */
    MODEL_CONFIG_MAX_BYTES = 16 << 20
};

typedef enum layer_mode {
    LAYER_WINDOW,  /* ratio 0: sliding window only */
    LAYER_FULL,    /* owns compressed KV, index keys and a selection */
    LAYER_REINDEX, /* owns a selection over the keys of an earlier layer */
    LAYER_REUSE    /* takes KV and selection of earlier layers */
} layer_mode;

/* What one block does. Indices named i_x count among the layers that have x (-1: this layer has
 * none). */
typedef struct layer_plan {
    layer_mode mode;
    int ratio;                /* 0, 1 or 2 */
    int kv_source;            /* layer whose compressed rows are read; -1 for LAYER_WINDOW */
    int index_source;         /* layer whose selection is used; -1 for LAYER_WINDOW */
    int i_kv_source;          /* this layer owns compressed rows number i */
    int i_index_source;       /* this layer owns selection number i */
    int i_engram;             /* this layer has Engram table number i */
    int i_tap;                /* the stream entering this layer is draft input number i */
    bool is_candidate_source; /* builds the candidate mask */
    bool has_candidates;      /* scores only inside the candidate mask */
    int n_experts;
    int n_experts_used;
} layer_plan;

/* Hash constants of one Engram layer, derived (never read from a file). */
typedef struct engram_plan {
    int layer;
    int64_t n_rows;                       /* rows of the table = sum of the primes */
    int64_t multipliers[MODEL_MAX_NGRAM]; /* [max_ngram], current token first */
    int64_t primes[MODEL_MAX_HASHES];     /* [n_hashes], 2-gram heads first */
    int64_t offsets[MODEL_MAX_HASHES];    /* first row of each column's part of the table */
} engram_plan;

typedef struct model_config {
    char architecture[64];
    char quant_method[16]; /* "", "fp8", "exl3": what the file says; tensors decide */
    bool is_flat;          /* read from the flat layout */
    int bos_id, eos_id, pad_id;
    int image_token_id; /* -1: none */
    /* sizes */
    int n_vocab, n_embd, n_layers, n_stages;
    int n_heads, d_head, d_rope, q_rank, o_groups, o_rank;
    int n_ff; /* expert and shared expert width */
    int n_experts, n_experts_used, n_shared;
    int window;
    int64_t max_context; /* max_position_embeddings; flat: original length * factor */
    /* constants */
    float swiglu_limit, norm_eps, route_scale, gate_temperature;
    double rope_theta, compress_theta, yarn_factor, yarn_beta_fast, yarn_beta_slow;
    int64_t yarn_original;
    /* streams */
    int n_streams, sinkhorn_iters;
    float hc_eps;
    /* indexer */
    int n_index_heads, d_index, index_topk;
    int candidate_layer; /* -1: none */
    int candidate_blocks, candidate_block;
    /* Engram */
    int n_engram, max_ngram, engram_heads, d_engram;
    int n_hashes; /* (max_ngram - 1) * engram_heads */
    int64_t engram_vocab;
    int engram_pad_id; /* a token id; its class is looked up in the token map */
    int n_classes;     /* engram_compressed_vocab_size */
    engram_plan engram[MODEL_MAX_ENGRAM];
    /* DSpark */
    int block; /* rows of a draft block; 0 when n_stages is 0 */
    int noise_id, markov_rank, n_stage_experts, n_stage_experts_used;
    int n_taps;
    int tap_layers[MODEL_MAX_TAPS];
    /* plan: layers 0..n_layers-1, then the stages at n_layers.. */
    int n_kv_sources, n_index_sources;
    int kv_source_layers[MODEL_MAX_LAYERS];    /* [n_kv_sources] */
    int index_source_layers[MODEL_MAX_LAYERS]; /* [n_index_sources] */
    layer_plan layers[MODEL_MAX_LAYERS];
} model_config;

/* Reads DIR/config.json (or DIR/inference_config.json when there is none). ERR_NOT_FOUND,
 * ERR_FORMAT (names the key, the value and what was expected) or ERR_UNSUPPORTED (another
 * architecture). */
int model_config_load(const char *dir, model_config *out, err *e);
/* Same from text already in memory. */
int model_config_parse(const char *text, size_t len, model_config *out, err *e);
/* Whether the tokenizer of n_tokens entries fits: ERR_MISMATCH with both numbers when it has ids
 * the embedding lacks. */
int model_config_check_vocab(const model_config *c, int n_tokens, err *e);
/* Packed bytes of one stored row of n values: window (E4M3, scale per 32), compressed (E2M1, E4M3
 * scale per 16), index key (E2M1, UE8M0 scale per 32). */
size_t model_window_row_bytes(int n);
size_t model_compressed_row_bytes(int n);
size_t model_key_row_bytes(int n);
/* True when every split of model.md 15 falls on whole heads, groups and (for EXL3) 128-blocks for
 * this world size; else ERR_UNSUPPORTED with the dimension that does not divide. */
int model_config_check_world(const model_config *c, int world, err *e);

/* Numpy's default_rng(seed).integers(0, bound) for n draws (PCG64 seeded by SeedSequence); bound
 * above 2^32. */
void engram_numpy_integers(uint64_t seed, uint64_t bound, int n, uint64_t *out);

#endif
