/*
 * The experts of one token, in one launch: no list of jobs, no rotation and no plan before it.
 *
 *   up     h_s = weight_s * silu(min(gate_s x, limit)) * clamp(up_s x, +-limit), rotated for down_s
 *   down   y = sum over s of down_s h_s, experts in ascending order, the shared one last
 *
 * The arithmetic and its order are those of exl3_gpu_experts_run with one token: the same bits. Operands: d and n_ff are
 * multiples of 128, every expert has the same shapes; rates may differ. Results do not depend on the grid. Every block
 * waits for others, so the launch is a cooperative one: all blocks run at once or none does. Launchers allocate nothing
 * and never wait; sums are zero before the first run and left zero.
 */
#ifndef TANDEM_KERNELS_MOE_MOE_ROW_H
#define TANDEM_KERNELS_MOE_MOE_ROW_H

#include <stdbool.h>

#include "kernels/linear/linear_gpu.h"

/* One expert's matrices in device memory. */
typedef struct moe_expert {
    gpu_matrix w1, w3, w2;
} moe_expert;

enum {
    MOE_ROW_SLOTS = 8,         /* experts of a token, the shared one among them */
    MOE_ROW_MAX_WIDTH = 6144,  /* d and n_ff */
    MOE_ROW_MAX_BLOCKS = 1024, /* of a launch */
};

/* A value that blocks hand each other, with the number of the run that it belongs to: it says itself that it is there. */
typedef struct moe_row_word {
    uint32_t value, run;
} moe_row_word;

/* What the blocks of a run tell each other: device memory, 16-byte aligned, zeroed once, written by these launches only,
 * which follow each other. */
typedef struct moe_row_link {
    uint32_t run[MOE_ROW_MAX_BLOCKS]; /* of every block its last one */
    /* scale and sum of the operand: of gate and up, of down */
    moe_row_word in_scale[2 * MOE_ROW_SLOTS][2], out_scale[MOE_ROW_SLOTS][2];
    moe_row_word hidden[MOE_ROW_SLOTS][MOE_ROW_MAX_WIDTH];
} moe_row_link;

typedef struct moe_row_args {
    const moe_expert *experts; /* device, [n_experts + 1], the shared one last; packed */
    const int32_t *expert;     /* device, [n_used] distinct */
    const float *weight;       /* device, [n_used] */
    const float *x;            /* [d], 16-byte aligned */
    float *y;                  /* [d], 16-byte aligned */
    int64_t *sums;             /* [n_used + 1][d + 2 n_ff] zero between runs */
    moe_row_link *link;
    int n_used, n_experts, d, n_ff;
    int has_shared, max_k2, is_bf16;
    float limit;
} moe_row_args;

#ifdef __cplusplus
extern "C" {
#endif
/* False in *is_done: nothing was launched, since the device or the sizes do not
 * suit this form. */
int moe_row_run(const moe_row_args *a, cudaStream_t stream, bool *is_done, err *e);
#ifdef __cplusplus
}
#endif

#endif
