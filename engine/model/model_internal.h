/* Shared by the files of engine/model that open, run and inspect a model. */
#ifndef TANDEM_ENGINE_MODEL_MODEL_INTERNAL_H
#define TANDEM_ENGINE_MODEL_MODEL_INTERNAL_H

#include "engine/base/mem.h"
#include "engine/model/model.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/pack.h"
#include "kernels/kernels.h"

enum { MODEL_MAX_GROUPS = 256, MODEL_SNAPSHOT_MAGIC = 0x544d5353 };

/* Weights of one block, this rank's part. Pointers are the model's or the checkpoint's memory. */
typedef struct block_weights {
    const float *attn_norm, *ffn_norm; /* [n_embd] */
    mhc_weights hc_attn, hc_ffn;
    const float *sink; /* [local heads] */
    const float *q_norm, *kv_norm;
    linear_weight wq_a, wq_b, wkv, wo_b;
    linear_weight wo_a[MODEL_MAX_GROUPS]; /* [local groups] */
    linear_weight comp_kv, comp_gate;     /* kv sources */
    const float *comp_norm;
    linear_weight index_q, index_w; /* index sources */
    linear_weight index_k;          /* kv sources */
    const float *index_k_norm;
    linear_weight gate;
    const float *gate_bias;
    expert_weights *experts; /* [n_experts] */
    expert_weights shared;
    void *expert_table;      /* the back end's */
    linear_weight engram_kv; /* Engram layers */
    const float *engram_qk;  /* [S][n_embd] */
} block_weights;

typedef struct draft_weights {
    linear_weight main_proj;
    const float *main_norm, *norm;
    linear_weight markov_embed, markov_head, confidence;
} draft_weights;

/* Sizes of this rank's part. */
typedef struct model_part {
    int n_heads, head0;
    int n_groups, group0;
    int n_ff;
    int n_vocab, vocab0;
    int n_columns, column0; /* Engram hash columns */
} model_part;

/* Private state of one stream; the device part lies in the slot slab. */
typedef struct slot_state {
    int64_t len;       /* computed positions */
    int64_t high;      /* most positions ever computed since reset or load: bounds rollback */
    int64_t floor;     /* truncation below this is not possible (a loaded snapshot's length) */
    int64_t final_len; /* positions known to be final: below len only after a verify span */
    int64_t fed_len;   /* the draft rings hold positions below this */
    int n_pages;
    int32_t *recent; /* [recent_cap] token of position p at p % recent_cap */
} slot_state;

/* Where things lie inside one slot's part of the slab, in bytes. */
typedef struct slot_layout {
    size_t window[MODEL_MAX_LAYERS]; /* rings of layers and stages */
    size_t tails[MODEL_MAX_LAYERS];  /* compressor tails, kv sources of ratio 2 */
    size_t taps;                     /* [max_rollback + 1][n_taps * n_embd] of rows not yet final */
    size_t bytes;
    int window_cap, tail_cap, tap_cap;
} slot_layout;

/* Where things lie inside one page. */
typedef struct page_layout {
    size_t compressed[MODEL_MAX_LAYERS], keys[MODEL_MAX_LAYERS]; /* by kv source number */
    size_t bytes;
} page_layout;

/* Lists that operators read, in memory of the back end. */
typedef struct sent_lists {
    const int32_t *closed_row, *closed_slot, *logit_row;
    const int64_t *closed_group, *closed_pos;
} sent_lists;

/* Per-row lists of one pass (backbone step, draft feed or draft block). The host fills its arrays
 * and row_lists_send brings them to the back end, where `rows` and `sent` point. */
typedef struct row_lists {
    batch_rows rows;
    sent_lists sent;
    int32_t *token, *slot, *span_row, *span_len; /* [max] */
    int64_t *pos, *span_pos;
    int n_closed; /* ratio 2 groups that close in this pass */
    int32_t *closed_row, *closed_slot, *logit_row;
    int64_t *closed_group, *closed_pos;
    char *host, *back; /* where the arrays lie, the same offsets on both sides */
    size_t bytes;
} row_lists;

/* The part of the work space that the host reads or writes. Where the back end's memory is the
 * host's, results are read in place and the buffers for them are not made. */
typedef struct host_buffers {
    int64_t *row_ids[MODEL_MAX_ENGRAM]; /* [rows][n_hashes], all columns */
    int64_t *local_ids;                 /* [rows][local columns] of one table */
    uint8_t *records[MODEL_MAX_ENGRAM]; /* what the store fills */
    int32_t *first_logit;
    float *logits;
    shortlist *lists;    /* not made where the rows themselves are in reach */
    shortlist_ask *asks; /* [slots] of drafts, likewise */
    uint8_t *is_finite, *is_row_finite, *is_span_finite;
    int32_t *draft_tokens, *draft_prev;
    float *draft_confidence, *draft_logits;
    float *exchange; /* for an exchange that works on host memory beside a device */
} host_buffers;

/* Work space of a pass; sizes in buffers.c. */
typedef struct buffers {
    float *h, *pre, *x, *y;
    float *pre_attn, *post_attn, *comb_attn, *pre_ffn, *post_ffn, *comb_ffn;
    float *qa, *q, *kv, *o, *u;
    uint8_t *window_rows;
    float *comp_a, *comp_b, *latent, *index_k, *index_q, *index_w;
    uint8_t *index_rows;
    int32_t *blocks, *n_blocks, *selection, *n_selected;
    float *score;
    float *router_logits, *router_work, *router_weight;
    int32_t *router_expert;
    void *moe_work;
    float *rope_a, *rope_b, *rope_pair;
    uint8_t *records[MODEL_MAX_ENGRAM];
    float *engram_x, *engram_kv;
    float *taps; /* [rows][n_taps * n_embd] */
    float *feed_x, *feed_main;
    float *head_x, *logits, *logits_part;
    shortlist_ask *asks; /* [logit rows] these two only on a device */
    shortlist *lists;
    uint8_t *is_finite, *is_row_finite;
    int32_t *draft_prev, *draft_pick;
    float *draft_xe, *draft_confidence, *draft_logits, *draft_value;
    host_buffers host;
} buffers;

enum { MODEL_MAX_GRAPHS = 64, MODEL_GRAPH_ROWS = 64 };

/* A recorded pass. Everything a launch depends on that changes from step to step, apart from the
 * contents of the lists, is in the key. */
typedef struct step_graph {
    int n_rows, n_closed, n_logits;
    int64_t pos_bound;
    int n_seen; /* the first pass of a key runs as it is and loads what it needs */
    void *graph;
    uint64_t used; /* number of the last step that ran it */
} step_graph;

struct model {
    model_config config;
    model_options options; /* resolved: no zero that means a default */
    int n_threads;
    const kernels *ops;
    kernel_context k;
    checkpoint *ck;     /* NULL: weights come from the pack and rows from a store */
    pack *pack;         /* NULL: weights come from the checkpoint */
    uint8_t *pack_area; /* its data, in memory of the back end */
    void *pack_map;     /* where the host holds it */
    size_t pack_map_bytes;
    struct listing *listing; /* only while a pack is listed */
    exchange *x;
    int rank, world;
    model_part part;
    /* weights */
    block_weights blocks[MODEL_MAX_LAYERS];
    draft_weights draft;
    linear_weight embed, head;
    const float *norm;
    float *rope_frequency_a, *rope_frequency_b;
    const void **packed; /* every packed matrix, to free */
    size_t n_packed, cap_packed;
    void **owned; /* every block from ops->mem_new */
    size_t n_owned, cap_owned;
    size_t weight_bytes; /* counted while loading */
    model_memory_plan memory;
    bool is_dry; /* counting bytes only */
    /* state */
    kv_format window_format, compressed_format, key_format;
    slot_layout slot_at;
    page_layout page_at;
    slot_state *slots;
    uint8_t *slot_slab, *pages;
    int32_t *page_table, *host_page_table; /* [n_slots][max_pages] */
    int max_pages;
    int recent_cap;
    /* Engram */
    engram_store *store, *own_store;
    int32_t *token_class; /* [n_vocab] */
    int32_t pad_class;
    int tickets[MODEL_MAX_ENGRAM];
    err fault; /* of the Engram store in this step; code OK: none */
    /* pass */
    step_graph graphs[MODEL_MAX_GRAPHS];
    int n_recorded_rows; /* most rows of a pass that was run before it was recorded ahead */
    uint64_t n_steps;
    row_lists step_rows, feed_rows, draft_rows;
    buffers b;
    int rows_cap;
    uint64_t part_ns[STEP_N_PARTS];
    model_tap tap;
    void *tap_user;
    float *tap_score; /* scores for the tap; made by model_set_tap */
    char *tap_copy;   /* host copy of what a tap sees, where the back end is not the host */
    size_t tap_bytes;
    char *host_area; /* of lists and host_buffers */
};

/* ---- open.c, loading.c, buffers.c ---- */

/* Memory of the back end that the model frees at close. In a dry run only counts and returns NULL.
 */
int model_new_memory(model *m, size_t bytes, void **out, err *e);
int model_load_weights(model *m, err *e);
/* Everything that needs the config only; is_dry set before: sizes, no exchange. */
int model_prepare(model *m, const model_options *o, err *e);
/* Opens options.pack and, unless dry, brings its data to where it stays. */
int model_open_pack(model *m, err *e);
void model_close_pack(model *m);
void model_drop_weights(model *m);
/* token_class and pad_class. */
int model_load_classes(model *m, err *e);
/* Lays out slots and pages (sizes only). */
void model_lay_out_state(model *m);
/* Bytes of work space; with base set also places every buffer. */
size_t model_lay_out_buffers(model *m, char *base);
/* The same for the host's part, after model_lay_out_buffers; base NULL counts. */
size_t model_lay_out_host(model *m, char *base);
/* Rows whose index scores the work space holds at once. */
int model_score_rows(const model *m);
/* Draft stages are loaded and used. */
static inline bool model_has_drafts(const model *m) {
    return m->config.n_stages > 0 && !m->options.without_drafts;
}

/* ---- state.c ---- */

size_t model_snapshot_bytes(const model *m);
uint64_t model_layout_hash(const model *m);

/* ---- plan.c ---- */

int plan_check(const model *m, const batch_plan *plan, err *e);
/* Fills step_rows, logit rows and Engram row ids from a checked plan; returns the number of logit
 * rows. */
int plan_fill(model *m, const batch_plan *plan);
/* Rows that close a group, from the rows already listed. */
void row_lists_close(row_lists *l);
/* Brings filled lists to the back end. */
void row_lists_send(model *m, row_lists *l);

/* ---- engram.c ---- */

/* All hash columns of one position; tokens(back) gives the token back positions earlier, -1 before
 * the start. */
void engram_hash(const model *m, int i_engram, const int32_t *history, int64_t *ids);
/* Records the pass of the lists as they are, without running it, unless it is recorded already. */
void pass_record(model *m, int n_logits);
void engram_begin(model *m);
/* Rows that will be needed soon: of n positions behind n_before tokens, see model_prefetch; of the
 * newest of n_drafted drafted tokens of each request (0: of the request's own token). */
void engram_hint(model *m, const int32_t *tokens, int n_before, int n);
void engram_hint_draft(model *m, const draft_request *requests, int n, int n_drafted);
/* Brings the records of table t to the back end; nothing when they are there. */
void engram_fetch(model *m, int t);
void engram_layer(model *m, int i_layer);
/* Waits for what engram_begin started and was not consumed (after an error). */
void engram_abandon(model *m);

/* ---- block.c ---- */

/* One pass of rows through block i: m->config.layers[i] and m->blocks[i] on the buffers of m. */
typedef struct block_pass {
    const row_lists *lists;
    bool is_draft;
} block_pass;
void block_run(model *m, int i, const block_pass *p);
void attention_run(model *m, int i, const block_pass *p);
void ffn_run(model *m, int i, const block_pass *p);
/* Sum over ranks, then the rounding point that follows. */
void model_sum(model *m, float *rows, size_t n);
kv_ring model_window_ring(const model *m, int i);
kv_ring model_tail_ring(const model *m, int i);
kv_paged model_pages_view(const model *m, int i_kv_source, bool is_key);
/* Logits of n rows of head_x into out [n][n_vocab] on every rank. */
void head_run(model *m, int n, float *out);

/* ---- draft.c ---- */

/* Adds a slot's final but not yet fed verify rows to feed_rows; draft_feed_run then writes all of
 * them into the draft rings. */
void draft_feed_pending(model *m, int slot);
void draft_feed_run(model *m);
/* After a step: feeds its final rows, keeps the taps of verify rows for later. */
void draft_feed_step(model *m, const batch_plan *plan);

/* ---- tap.c ---- */

void tap_give(model *m, const tap_data *t);
void tap_give_host(model *m, const tap_data *t);
void tap_floats(model *m, const char *name, int layer, int n_cols, float *data);
void tap_draft_floats(model *m, const char *name, int stage, int n_cols, float *data);
void tap_embed(model *m);
void tap_logit_rows(model *m, int n);
void tap_draft_logits(model *m, int i, int n);
void tap_selection(model *m, int layer);
void tap_used(model *m, int layer);
void tap_router(model *m, int i, int n_used, bool is_draft);

#endif
