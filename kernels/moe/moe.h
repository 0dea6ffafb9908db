/* Router and experts of one layer.
 *
 *   z[e]      = gate[e] . x;  s[e] = sqrt(softplus(z[e] / temperature))
 *   chosen    = the n_used experts with the largest s[e] + bias[e], ties to the lower expert
 *   weight[e] = s[e] / (sum of the chosen s + 1e-20) * route_scale; not divided when n_used is 1,
 *               as in the published code
 *   expert(x) : g = min(w1 x, limit), u = clamp(w3 x, +-limit), y = w2 (weight * g sigmoid(g) u)
 *   out       = sum of the chosen experts in expert order, then + shared(x) with weight 1
 *
 * fp32; with bf16 rounding the outputs of w1, w3 and w2 and the product before w2 are rounded, the
 * sum is left to the caller (it is a partial sum when experts are split over ranks). Each row by
 * itself. */
#ifndef TANDEM_KERNELS_MOE_MOE_H
#define TANDEM_KERNELS_MOE_MOE_H

#include "kernels/linear/linear.h"

enum { MOE_MAX_USED = 64 };

typedef struct router_args {
    const float *logits; /* [n][n_experts] gate . x */
    const float *bias;   /* [n_experts] */
    int32_t *expert;     /* [n][n_used], best first */
    float *weight;       /* [n][n_used] */
    float *work;         /* [n][2 * n_experts] */
    int n_rows, n_experts, n_used;
    float temperature, route_scale;
} router_args;
void router_run(kernel_context *k, const router_args *a);

typedef struct expert_weights {
    linear_weight w1, w3, w2;
} expert_weights;

typedef struct moe_args {
    const float *x;        /* [n][d] */
    const int32_t *expert; /* [n][n_used] */
    const float *weight;
    const expert_weights *experts; /* [n_experts] */
    const expert_weights *shared;
    float *out; /* [n][d], fp32 sum */
    int n_rows, n_experts, n_used, d, n_ff;
    float limit;
    void *work;        /* moe_work_bytes, 64-byte aligned */
    const void *table; /* of the back end, for these experts */
} moe_args;
size_t moe_work_bytes(int n_rows, int n_experts, int n_used, int d, int n_ff);
/* Most jobs of one linear run inside. */
int moe_max_jobs(int n_rows, int n_experts, int n_used);
void moe_run(kernel_context *k, const moe_args *a);

#endif
