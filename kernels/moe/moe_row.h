/*
 * The experts of one token, in two launches: no list of jobs, no rotation and
 * no plan before them.
 *
 *   up     h_s = weight_s * silu(min(gate_s x, limit)) * clamp(up_s x,
 * +-limit), rotated for down_s down   y = sum over s of down_s h_s, experts in
 * ascending order, the shared one last
 *
 * The arithmetic and its order are those of exl3_gpu_experts_run with one
 * token: the same bits. Operands: d and n_ff are multiples of 128, every expert
 * has the same shapes; rates may differ. Results do not depend on the grid.
 * Launchers allocate nothing and never wait; sums and counters are zero before
 * the first run and left zero.
 */
#ifndef TANDEM_KERNELS_MOE_MOE_ROW_H
#define TANDEM_KERNELS_MOE_MOE_ROW_H

#include <stdbool.h>

#include "kernels/linear/linear_gpu.h"

/* One expert's matrices in device memory. */
typedef struct moe_expert {
    gpu_matrix w1, w3, w2;
} moe_expert;

enum { MOE_ROW_SLOTS = 8 }; /* experts of a token, the shared one among them */

typedef struct moe_row_args {
    const moe_expert *experts; /* device, [n_experts + 1], the shared one last; packed */
    const int32_t *expert;     /* device, [n_used] distinct */
    const float *weight;       /* device, [n_used] */
    const float *x;            /* [d], 16-byte aligned */
    float *hidden;             /* [n_used + 1][n_ff] work space */
    float *y;                  /* [d] */
    exl3_gpu_scale *scale;     /* [n_used + 1] work space */
    int64_t *sums;             /* [n_used + 1][d] zero between runs */
    int32_t *counters;         /* [d / 128] likewise */
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
