/* The row-wise work between matrix products in one launch, and what is held back for it.
 *
 *   rows   v = x, or the sum of attention tiles; then in this order, each as its own operator has it:
 *          v = norm(v), v = rope(v), stored to y, packed to a cache row, and made the integer operand
 *          of EXL3 linears (exl3_gpu.h)
 *   mix    the end of a hyper-connection mix whose dots stand in slices (mhc.h)
 *   ring   packed rows of a step copied to their rings (kv.h)
 *
 * One block a row and task, for eight rows and fewer in a form of its own (prepare_few_kernel.cuh), for
 * prompts a few warps two rows and task (prepare_many_kernel.cuh); a row's arithmetic is the same for
 * any set of tasks and any number of rows. Operators that are followed by others of this list are held
 * back (pending) until the launch that needs their results; cuda_settle launches what is held back.
 * Host side of one context: the thread that uses it. Rows of at most EXL3_MAX_IN values. */
#ifndef TANDEM_KERNELS_PREPARE_PREPARE_H
#define TANDEM_KERNELS_PREPARE_PREPARE_H

#include "kernels/attn/attn_gpu.h"
#include "kernels/cuda_ops.h"
#include "kernels/exl3/exl3_gpu.h"
#include "kernels/linear/linear_gpu.h"

enum { PREPARE_MAX_TASKS = 12, PREPARE_MAX_OPERANDS = EXL3_GPU_OWN_JOBS };
enum { PREPARE_ATTN_VALUES = 4096 }; /* of one task that sums attention; whole heads of 512 */

typedef enum prepare_kind { PREPARE_ROWS, PREPARE_ATTN, PREPARE_MIX, PREPARE_RING } prepare_kind;

/* Row r of a task is row first_row + r of every array but operand and scale. */
typedef struct prepare_task {
    int32_t kind, n_rows, first_row, n; /* n values a row */
    const float *x;                     /* rows */
    int64_t x_stride;
    const int32_t *x_rows;
    int32_t first_value; /* attention: of the heads' values */
    int32_t is_wide;     /* everything can be read four values at a time */
    const float *norm;   /* [n], or NULL */
    float eps;
    int32_t is_inverse, d_head, d_rope;
    const float *rope; /* table [rows][d_rope], or NULL */
    float *y;          /* or NULL */
    int64_t y_stride;
    uint8_t *packed; /* or NULL; needs y */
    int64_t packed_bytes;
    int32_t format;
    int32_t first_operand, n_operands;
    int32_t reserved;
} prepare_task;

typedef struct prepare_operand {
    const uint16_t *suh;
    uint32_t *operand;
    exl3_gpu_scale *scale;
    int32_t row_cap, tile_rows; /* tile_rows 0: for few rows, else for gemm */
} prepare_operand;

typedef struct prepare_args {
    prepare_task tasks[PREPARE_MAX_TASKS];
    prepare_operand operands[PREPARE_MAX_OPERANDS];
    int32_t n_tasks, n_operands, is_bf16;
    int32_t n_slices, dots_stride; /* mix */
    const float *dots;             /* mix: [rows][n_slices][dots_stride] */
    mhc_mix_args mix;
    attn_parts attn;
    kv_ring_write_args ring;
} prepare_args;

/* Tasks of one row that blocks of another launch do aside, prepare_aside.cuh: short rows without operands, and
 * the end of a mix. */
enum { PREPARE_ASIDE_TASKS = 4, PREPARE_ASIDE_VALUES = 2048 };
typedef struct prepare_aside {
    prepare_task tasks[PREPARE_ASIDE_TASKS];
    int32_t n_tasks, is_bf16;
    int32_t n_slices, dots_stride; /* of dots, as in prepare_args */
    const float *dots;
    mhc_mix_args mix;
} prepare_aside;

/* The sums of attention of one row for products that make their operands themselves: heads of 512 values. */
typedef struct prepare_heads {
    attn_parts attn;
    float *y; /* [n_heads][512], 16-byte aligned */
    int32_t n_heads, is_bf16;
    const float *rope; /* table of the row, or NULL */
    int32_t d_rope, is_inverse;
    int32_t has_ring; /* 0 or 1 */
    kv_ring_write_args ring;
} prepare_heads;
void prepare_heads_run(kernel_context *k, const prepare_heads *p);

/* Launches the tasks. */
void prepare_run(kernel_context *k, const prepare_args *a);

/* What a context holds back. In the order of launch: streams, tasks, gate, rope. */
typedef struct cuda_pending {
    bool has_expand, has_mix, has_rope, has_attn, has_gate;
    mhc_expand_args expand;
    mhc_mix_args mix;
    rope_args rope;     /* of queries, for attention */
    prepare_args tasks; /* n_tasks of them; operands none yet */
    prepare_task attn;  /* the sums of attention: y, n of a whole row, rope */
    plain_job gate;     /* a linear of few rows that a task makes, for the router behind it */
} cuda_pending;

/* Whether n_a floats at a and n_b at b lie over each other. */
static inline bool floats_overlap(const float *a, size_t n_a, const float *b, size_t n_b) {
    return a != NULL && b != NULL && a < b + n_b && b < a + n_a;
}

/* Launches everything held back. */
void cuda_settle(kernel_context *k);
/* Work space that must outlive the operator that takes it: cut from the end of the scratch, free
 * again after cuda_settle or the linear that uses it. NULL: no room. */
void *cuda_tail_take(kernel_context *k, size_t bytes);
/* Scratch in front of it. */
size_t cuda_scratch_left(const kernel_context *k);

/* Adds a task to those held back, settling first when it depends on one of them or there is no room. */
void pending_add(kernel_context *k, const prepare_task *t);
/* Gives away what is held back: the caller's launch does it. Only tasks and attention are held then. */
void pending_take(kernel_context *k, prepare_args *out, prepare_task *attn, bool *has_attn);
/* The operators that may be held back; their other forms are in cuda_ops.h. */
void rmsnorm_pending(kernel_context *k, const rmsnorm_args *a);
void rope_pending(kernel_context *k, const rope_args *a);
void kv_pack_pending(kernel_context *k, const kv_pack_args *a);
void kv_ring_write_pending(kernel_context *k, const kv_ring_write_args *a);
/* Holds a linear back when its row is a norm that is held; false: nothing was done. */
bool gate_pending(kernel_context *k, const plain_job *gate);
void router_pending(kernel_context *k, const router_args *a);
void mhc_expand_pending(kernel_context *k, const mhc_expand_args *a);
void mhc_mix_pending(kernel_context *k, const mhc_mix_args *a);
void mhc_collapse_pending(kernel_context *k, const mhc_collapse_args *a);

#endif
