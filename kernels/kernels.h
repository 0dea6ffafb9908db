/* The operators of a forward pass as one table per back end, so that there is one forward and not
 * one per back end. Argument structs and formulas stand in each operator's own header. All pointers
 * in arguments are memory of the back end (mem_new), except where a header says host. Operators
 * follow kernels/context.h: they return nothing, allocate nothing, and do nothing once the context
 * holds an error. */
#ifndef TANDEM_KERNELS_KERNELS_H
#define TANDEM_KERNELS_KERNELS_H

#include "kernels/attn/attn.h"
#include "kernels/compress/compress.h"
#include "kernels/embed/embed.h"
#include "kernels/engram/engram.h"
#include "kernels/exl3/exl3_image.h"
#include "kernels/head/head.h"
#include "kernels/head/shortlist.h"
#include "kernels/indexer/indexer.h"
#include "kernels/kv/kv.h"
#include "kernels/linear/linear.h"
#include "kernels/mhc/mhc.h"
#include "kernels/moe/moe.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"

/* The largest shapes of a model, for the work space of a back end. */
typedef struct kernel_limits {
    int n_jobs, n_rows; /* of one linear run: jobs, and rows counted once per job */
    int max_in, max_out;
} kernel_limits;

typedef struct kernels {
    const char *name;
    bool is_host; /* memory of the back end is the host's: pointers may be followed between calls */
    /* Fills the device part of a context (nothing on the host) and gives it back. */
    int (*open)(kernel_context *k, err *e);
    void (*close)(kernel_context *k);
    /* Memory of the back end, zeroed, aligned to 64 bytes or more; NULL when there is none left. */
    void *(*mem_new)(size_t bytes);
    void (*mem_free)(void *p);
    /* Copies between any two of host and back end, in the order of the operators. The source may
     * change once copy returned. */
    void (*copy)(kernel_context *k, void *to, const void *from, size_t bytes);
    /* The same to host memory, complete on return, as is everything before it. */
    void (*fetch)(kernel_context *k, void *to, const void *from, size_t bytes);
    /* Waits for everything before it; picks up errors of the device. */
    void (*wait)(kernel_context *k);
    /* Recording of a sequence of operators for later replay with the same arguments; NULL: not
     * possible. Between begin and end operators only record (no wait, no copy from the host);
     * graph_end gives the recording or NULL with the context's error. */
    void (*graph_begin)(kernel_context *k);
    void *(*graph_end)(kernel_context *k);
    void (*graph_run)(kernel_context *k, void *graph);
    void (*graph_free)(void *graph);
    /* Rounds to bf16 where the context asks for it. */
    void (*round)(kernel_context *k, float *x, size_t n);
    /* A packed matrix in the order of the back end (linear_weight.packed), and its bytes. */
    int (*packed_new)(kernel_context *k, const exl3_matrix *m, const void **out, err *e);
    void (*packed_free)(const void *packed);
    /* Images of this layout can be used where they lie: memory of the back end, aligned to
     * EXL3_IMAGE_ALIGN, which stays until packed_free. NULL: the back end has no such form. */
    exl3_layout layout;
    int (*packed_view)(
        kernel_context *k, const exl3_image *image, const void *bytes, const void **out, err *e);
    /* What moe_args.table is for these experts; lives until close. NULL where none is needed. */
    int (*expert_table)(kernel_context *k, const expert_weights *experts, int n,
        const expert_weights *shared, void **out, err *e);
    size_t (*moe_work_bytes)(int n_rows, int n_experts, int n_used, int d, int n_ff);
    /* Bytes of kernel_context.scratch. */
    size_t (*scratch_bytes)(const kernel_limits *limits);

    void (*embed)(kernel_context *k, const embed_args *a);
    void (*lookup)(kernel_context *k, const lookup_args *a);
    void (*gather)(kernel_context *k, const gather_args *a);
    void (*rmsnorm)(kernel_context *k, const rmsnorm_args *a);
    void (*linear)(kernel_context *k, const linear_args *a);
    void (*rope_table)(kernel_context *k, const rope_table_args *a);
    void (*rope)(kernel_context *k, const rope_args *a);
    void (*mhc_mix)(kernel_context *k, const mhc_mix_args *a);
    void (*mhc_collapse)(kernel_context *k, const mhc_collapse_args *a);
    void (*mhc_expand)(kernel_context *k, const mhc_expand_args *a);
    void (*mhc_mean)(kernel_context *k, const mhc_mean_args *a);
    void (*kv_pack)(kernel_context *k, const kv_pack_args *a);
    void (*kv_ring_write)(kernel_context *k, const kv_ring_write_args *a);
    void (*kv_page_write)(kernel_context *k, const kv_page_write_args *a);
    void (*compress_pair)(kernel_context *k, const compress_args *a);
    void (*compress_tail_write)(kernel_context *k, const compress_args *a);
    void (*index_queries)(kernel_context *k, const index_queries_args *a);
    void (*indexer)(kernel_context *k, const indexer_args *a);
    void (*attn)(kernel_context *k, const attn_args *a);
    void (*router)(kernel_context *k, const router_args *a);
    void (*moe)(kernel_context *k, const moe_args *a);
    void (*engram_decode)(kernel_context *k, const engram_decode_args *a);
    void (*engram_gate)(kernel_context *k, const engram_gate_args *a);
    void (*finite)(kernel_context *k, const finite_args *a);
    void (*argmax)(kernel_context *k, const argmax_args *a);
    void (*shortlist)(kernel_context *k, const shortlist_args *a);
    void (*add)(kernel_context *k, const add_args *a);
    void (*join)(kernel_context *k, const join_args *a);
} kernels;

/* The CPU back end: the reference. */
const kernels *kernels_cpu(void);
/* Makes another back end known by its name; before any thread is started. At most four. */
void kernels_add(const kernels *table);
/* The back end of that name; NULL: the CPU's; none known: NULL. */
const kernels *kernels_find(const char *name);

#endif
