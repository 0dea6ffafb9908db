/*
 * The experts of a few tokens, in one launch: no list of jobs, no rotation and no plan before it.
 *
 *   up     h_p = weight_p * silu(min(gate_e x, limit)) * clamp(up_e x, +-limit) of every pair p of a token and an expert e
 *   down   y_t = sum over the pairs of t of down_e h_p, experts in ascending order, the shared one last
 *
 * The arithmetic and its order are those of exl3_gpu_experts_run: the same bits, whatever the other tokens are. Operands: d
 * and n_ff are multiples of 128, every expert has the same shapes; rates may differ. Results do not depend on the grid. Every
 * block waits for others, so the launch is a cooperative one: all blocks run at once or none does. Launchers allocate nothing
 * and never wait; sums are zero before the first run and left zero.
 */
#ifndef TANDEM_KERNELS_MOE_MOE_FEW_H
#define TANDEM_KERNELS_MOE_MOE_FEW_H

#include "kernels/moe/moe_row.h"

enum {
    MOE_FEW_TOKENS = 8,
    MOE_FEW_WIDTH = 5120,       /* d and n_ff */
    MOE_FEW_PAIRS = 64,         /* of a token and one of its experts, shared ones among them */
    MOE_FEW_HIDDEN = 64 * 2304, /* values between up and down */
};

/* What the blocks of a run tell each other: device memory, 16-byte aligned, zeroed once, written by these launches only,
 * which follow each other. Pairs of an expert lie together: "rows". */
typedef struct moe_few_link {
    uint32_t run[MOE_ROW_MAX_BLOCKS]; /* of every block its last one */
    /* scale and sum of the operand: of gate and up, of down */
    moe_row_word in_scale[MOE_FEW_PAIRS][2][2], out_scale[MOE_FEW_PAIRS][2];
    moe_row_word hidden[MOE_FEW_HIDDEN]; /* [rows][n_ff] */
} moe_few_link;

typedef struct moe_few_args {
    const moe_expert *experts; /* device, [n_experts + 1], the shared one last; packed */
    const int32_t *expert;     /* device, [n_tokens][n_used], distinct in a token */
    const float *weight;       /* device, [n_tokens][n_used] */
    const float *x;            /* [n_tokens][d], 16-byte aligned */
    float *y;                  /* [n_tokens][d], 16-byte aligned */
    int64_t *sums;             /* [n_tokens * (n_used + 1)][d + 2 n_ff] zero between runs */
    moe_few_link *link;
    int n_tokens, n_used, n_experts, d, n_ff;
    int has_shared, max_k2, is_bf16;
    float limit;
} moe_few_args;

#ifdef __cplusplus
extern "C" {
#endif
/* False in *is_done: nothing was launched, since the device or the sizes do not suit this form. */
int moe_few_run(const moe_few_args *a, cudaStream_t stream, bool *is_done, err *e);
#ifdef __cplusplus
}
#endif

#endif
