/* One loaded model (one rank) and the state of its streams: the forward pass over a batch plan,
 * drafting, paged KV.
 *
 * Threads: everything below belongs to one thread, the step thread, except model_get_info and
 * model_memory, which any thread may call. The model has its own worker pool inside.
 *
 * Words. A *slot* is the private state of one stream: length, window rings, compressor tails,
 * look-back tokens, draft rings. A *page* holds page_tokens positions of every kv-source layer's
 * packed compressed rows and index keys; pages belong to the caller (engine/run), who shares them
 * between slots and cached prefixes and tells a slot which pages it reads and writes. A page is
 * written only by steps of slots that list it at positions not yet computed. A *step* is one
 * forward over rows of several slots mixed in one pass.
 *
 * Promises. The result of a row depends only on the tokens of its stream up to it, bit for bit: not
 * on the other rows of the step, the chunking, the number of threads or the kind of span. Ranks of
 * one world hold equal bits; how they compare with one rank: NOTES.md. Nothing allocates after
 * model_open. A step that fails with ERR_ARG, ERR_FULL changed nothing; after any other error the
 * slots of the plan are undefined (reset or load them), the others are untouched. */
#ifndef TANDEM_ENGINE_MODEL_MODEL_H
#define TANDEM_ENGINE_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/dist/exchange.h"
#include "engine/model/config.h"
#include "engine/model/engram_store.h"
#include "kernels/head/shortlist.h"

typedef struct model model;

typedef enum model_rounding {
    MODEL_ROUND_F32, /* product: activations stay float32 between operators */
    MODEL_ROUND_BF16 /* the rounding points of model.md 3, to compare with bf16 engines */
} model_rounding;

typedef struct model_options {
    const char *dir;       /* config.json, safetensors, tokenizer.json */
    const char *backend;   /* NULL or "cpu"; "cuda" where built */
    int rank, world;       /* world 0 means 1 */
    exchange *exchange;    /* borrowed; NULL when world is 1 */
    int n_threads;         /* of the CPU back end; 0: one per core, at most 16 */
    int n_slots;           /* streams at once */
    int n_pages;           /* KV pages shared by all slots */
    int page_tokens;       /* positions per page, even; 0: 128 */
    int max_rows;          /* rows of one step; 0: 256 */
    int max_logit_rows;    /* logit rows of one step; 0: n_slots * (block + 1) */
    int max_rollback;      /* positions model_slot_truncate can go back; 0: 16 */
    int64_t max_context;   /* positions of one slot; 0: the config's */
    bool without_drafts;   /* do not load the draft stages, keep no draft state */
    engram_store *store;   /* borrowed; NULL: tables of the checkpoint, in memory */
    int engram_timeout_ms; /* 0: 5000 */
    const char *pack;      /* rank pack, or the folder of them: weights are read from it and
                                 * not from dir; NULL: from dir */
    /* While a pack is read, about ten times a second, on this thread; not OK stops. NULL: nobody. */
    int (*load_tick)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *load_ctx;
    const int32_t *token_class; /* [n_vocab] Engram classes, copied; NULL: derived from
                                 * DIR/tokenizer.json */
    /* For tests only. */
    model_rounding rounding;
    bool has_exact_kv;   /* keep KV in float32, no fake quantization: slower, larger, not
                                 * the product */
    int32_t fault_token; /* rows of this token turn into NaN; 0: none */
    bool has_float_exl3; /* fp32 decode form of EXL3 linears instead of the integer form */
} model_options;

typedef struct model_memory_plan {
    size_t weight_bytes;    /* resident weights of this rank */
    size_t embedding_bytes; /* of these: embedding and head */
    size_t engram_bytes;    /* tables kept in memory (mapped) */
    size_t page_bytes;      /* one KV page */
    size_t pages_bytes;     /* all */
    size_t slot_bytes;      /* one slot */
    size_t slots_bytes;     /* all */
    size_t scratch_bytes;   /* work space of a step, recorded steps, exchange of a device */
    size_t total_bytes;
} model_memory_plan;

typedef struct model_info {
    const model_config *config;
    int rank, world, n_threads;
    int n_slots, n_pages, page_tokens, max_rows, max_logit_rows, max_rollback;
    int64_t max_context;
    bool has_drafts;
    int block; /* drafted tokens per model_draft; 0 without drafts */
    size_t page_bytes;
    size_t snapshot_bytes; /* size of a model_slot_save blob, the same at every length */
    uint64_t layout_hash;  /* identifies page and snapshot layout (not the weights) */
    char arithmetic[64];   /* e.g. "cpu avx512vnni" */
    model_memory_plan memory;
} model_info;

/* Bytes model_open would take with these options, from the config and the file headers only. */
int model_memory(const model_options *options, model_memory_plan *out, err *e);
/* Loads the weights of this rank and allocates everything. ERR_NOT_FOUND, ERR_FORMAT, ERR_MISMATCH,
 * ERR_UNSUPPORTED, ERR_MEMORY: the sentence names file, tensor or number and the remedy. *out is
 * NULL on error. */
int model_open(const model_options *options, model **out, err *e);
void model_close(model *m);
void model_get_info(const model *m, model_info *out);
/* What the store of Engram rows has done for this model; zeros without one. Any thread. */
void model_engram_stats(const model *m, engram_store_stats *out);

/* ---- steps ---- */

typedef enum plan_logits { PLAN_LOGITS_NONE, PLAN_LOGITS_LAST, PLAN_LOGITS_ALL } plan_logits;
/* Only bookkeeping differs: rows of PROMPT and DECODE are final; rows of VERIFY become final by
 * model_commit. */
typedef enum plan_kind { PLAN_PROMPT, PLAN_DECODE, PLAN_VERIFY } plan_kind;

typedef struct plan_span {
    int32_t slot;
    int32_t n_rows;        /* VERIFY: at most max_rollback + 1 */
    int64_t pos;           /* position of tokens[0]; must equal the slot's length */
    const int32_t *tokens; /* [n_rows], borrowed during the call */
    uint8_t logits;        /* plan_logits */
    uint8_t kind;          /* plan_kind */
} plan_span;

/* How logit rows come back. LISTED: as short lists, made by the device; whole rows on demand. A back end
 * whose memory is the host's has the rows there anyway and makes no lists. */
typedef enum plan_form { PLAN_FORM_WHOLE, PLAN_FORM_LISTED } plan_form;

typedef struct batch_plan {
    uint64_t id;     /* same on every rank */
    int32_t n_spans; /* a slot occurs at most once */
    const plan_span *spans;
    uint8_t form; /* plan_form */
    /* LISTED: one for every logit row in the order of the spans, borrowed during the call; NULL: nobody
     * here reads rows (a rank that does not sample). */
    const shortlist_ask *asks;
} batch_plan;

typedef enum step_part {
    STEP_PART_EMBED,
    STEP_PART_ENGRAM,
    STEP_PART_ATTENTION,
    STEP_PART_MOE,
    STEP_PART_HEAD,
    STEP_PART_DRAFT_FEED,
    STEP_PART_EXCHANGE,
    STEP_N_PARTS
} step_part;

typedef struct step_result {
    int32_t n_rows;
    int32_t n_logit_rows;
    const float *logits;        /* [n_logit_rows][n_vocab], the model's, valid until the next step
                                 * or draft; NULL: model_logit_row gives them */
    const shortlist *lists;     /* [n_logit_rows] likewise; NULL: there are none */
    const int32_t *first_logit; /* [n_spans] first logit row of a span; -1: none */
    const uint8_t *is_span_finite;  /* [n_spans] 0: a row of the span went wrong, with or without
                                    * logits; NULL: not known */
    const err *fault;               /* what the Engram store reported; NULL: nothing */
    const uint8_t *is_finite;       /* [n_logit_rows] 0: this row holds a NaN or infinity, drop its
                                 * stream */
    uint64_t part_ns[STEP_N_PARTS]; /* EXCHANGE is also contained in the others */
    uint64_t total_ns;
} step_result;

/* Between steps: the Engram rows of n coming positions will be needed soon, such as those of the next
 * slice of a prompt while this one is computed. tokens [n_before + n]: the n_before ones precede
 * them (as many as an n-gram looks back, fewer only at the start of the sequence). Only a hint: it
 * neither waits nor fails; the reads of a step itself and those of drafts need none. */
void model_prefetch(model *m, const int32_t *tokens, int n_before, int n);
/* One forward. ERR_ARG names the span and the reason (position, page missing, token id out of
 * range, too many rows). */
int model_step(model *m, const batch_plan *plan, step_result *out, err *e);
/* Logit row i of the last step, valid until the next step or draft; waits for the device. */
int model_logit_row(model *m, int i, const float **row, err *e);

/* ---- slots ---- */

/* Empties a slot: length 0, no pages. */
void model_slot_reset(model *m, int slot);
int64_t model_slot_len(const model *m, int slot);
/* pages[i] holds positions i * page_tokens ..; copied. n * page_tokens bounds what a step may
 * reach. Pages that hold computed positions must keep their content; replacing one by a copy of
 * itself is allowed between steps. */
int model_slot_pages(model *m, int slot, const int32_t *pages, int n, err *e);
/* Makes the first new_len positions final after a verify span and drops the rest (rollback).
 * new_len between the length before that span and the current length; feeds the draft rings at the
 * next step or draft. */
int model_commit(model *m, int slot, int64_t new_len, err *e);
/* Goes back to new_len: 0, or at most max_rollback below the current length and never below a
 * loaded snapshot's length. Pages keep stale rows beyond; they are overwritten later. */
int model_slot_truncate(model *m, int slot, int64_t new_len, err *e);
/* Copies the private state (not the pages) at the current length; same model only. */
int model_slot_copy(model *m, int dst, int src, err *e);
/* Snapshot of the private state at the current length into blob [snapshot_bytes], and back into a
 * reset slot. The pages of the same positions are saved by the caller. A blob of another layout:
 * ERR_MISMATCH. */
int model_slot_save(model *m, int slot, void *blob, size_t size, err *e);
/* The same as it was at len: at most max_rollback positions back, never below a loaded snapshot. */
typedef struct snapshot_blob {
    void *data;
    size_t size;
} snapshot_blob;
int model_slot_save_at(model *m, int slot, int64_t len, snapshot_blob blob, err *e);
int model_slot_load(model *m, int slot, const void *blob, size_t size, err *e);

/* ---- pages ---- */

/* Moves the bytes of one page (page_bytes); host memory, whatever the back end. */
int model_page_read(model *m, int page, void *out, err *e);
int model_page_write(model *m, int page, const void *data, err *e);
int model_page_copy(model *m, int dst, int src, err *e);

/* Of the bytes of all slots and pages and of the slots' lengths: equal on all ranks of a world after
 * equal calls. Takes as long as reading all of it. */
int model_state_hash(model *m, uint64_t *hash, err *e);

/* ---- drafts (DSpark) ---- */

/* Picks a drafted token from logits [n_vocab] for request i; position is the drafted token's own.
 * All ranks of a world hold the same bits and must pick the same. */
typedef int32_t (*draft_pick)(
    void *user, int i_request, int64_t position, const float *logits, int n_vocab);

typedef struct draft_request {
    int32_t slot;
    int32_t token; /* newest chosen token, not yet stepped; its position is the slot's length */
    /* 0: the likeliest tokens are drafted. Above: each is drawn at this temperature with the noise of
     * (seed, its position, token), see rand_keyed_uniform. Who draws the same way from the rows that
     * verify them keeps far more of them. */
    float temperature;
    uint64_t seed;
} draft_request;

typedef struct draft_result {
    int32_t n_requests, block;
    const int32_t *tokens;   /* [n_requests][block] */
    const float *confidence; /* [n_requests][block] logit that row i is kept if the earlier ones
                                 * are */
    uint64_t total_ns;
} draft_result;

/* One draft block per request. pick NULL: as the requests say. Leaves the slots' lengths as they are. */
int model_draft(model *m, const draft_request *requests, int n, draft_pick pick, void *user,
    draft_result *out, err *e);

/* ---- inspection, for tests and tandem verify ---- */

typedef enum tap_type { TAP_F32, TAP_I32, TAP_I64, TAP_U8 } tap_type;
typedef struct tap_data {
    const char *name; /* the golden files' names: "attn_in", "hidden", "router_ids", .. */
    int layer;        /* -1: none; draft stages: 0.. with is_draft */
    bool is_draft;
    tap_type type;
    int n_rows, n_cols; /* rows of the step in plan order */
    size_t stride;      /* elements between rows */
    void *data;         /* host copy; a change is written back before the next operator
                                 * (negative controls) */
} tap_data;
typedef void (*model_tap)(void *user, const tap_data *t);
/* Calls tap with intermediate values during steps and drafts; NULL switches it off (no cost then).
 */
void model_set_tap(model *m, model_tap tap, void *user);

typedef enum model_rows { MODEL_ROWS_WINDOW, MODEL_ROWS_COMPRESSED, MODEL_ROWS_KEYS } model_rows;
/* Decodes stored rows [first, first + n) of a layer to float: window rows by position, others by
 * compressed position. */
int model_read_rows(
    model *m, int slot, model_rows what, int layer, int64_t first, int n, float *out, err *e);

#endif
