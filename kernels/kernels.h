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
#include "kernels/head/head.h"
#include "kernels/indexer/indexer.h"
#include "kernels/kv/kv.h"
#include "kernels/linear/linear.h"
#include "kernels/mhc/mhc.h"
#include "kernels/moe/moe.h"
#include "kernels/norm/norm.h"
#include "kernels/rope/rope.h"

typedef struct kernels {
    const char *name;
    /* Memory of the back end, zeroed, aligned to 64 bytes or more; NULL when there is none left. */
    void *(*mem_new)(size_t bytes);
    void (*mem_free)(void *p);

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
    void (*kv_unpack)(kernel_context *k, const kv_unpack_args *a);
    void (*kv_ring_write)(kernel_context *k, const kv_ring_write_args *a);
    void (*kv_page_write)(kernel_context *k, const kv_page_write_args *a);
    void (*compress_pair)(kernel_context *k, const compress_args *a);
    void (*compress_tail_write)(kernel_context *k, const compress_args *a);
    void (*indexer)(kernel_context *k, const indexer_args *a);
    void (*attn)(kernel_context *k, const attn_args *a);
    void (*router)(kernel_context *k, const router_args *a);
    void (*moe)(kernel_context *k, const moe_args *a);
    void (*engram_decode)(kernel_context *k, const engram_decode_args *a);
    void (*engram_gate)(kernel_context *k, const engram_gate_args *a);
    void (*finite)(kernel_context *k, const finite_args *a);
    void (*argmax)(kernel_context *k, const argmax_args *a);
    void (*add)(kernel_context *k, const add_args *a);
    void (*join)(kernel_context *k, const join_args *a);
} kernels;

/* The CPU back end: the reference. */
const kernels *kernels_cpu(void);

#endif
