/* Routing of one row by one block, an expert a thread: scores, then one round of a block-wide
 * maximum per choice. */
#ifndef TANDEM_KERNELS_MOE_ROUTER_KERNEL_CUH
#define TANDEM_KERNELS_MOE_ROUTER_KERNEL_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"
#include "kernels/moe/router_key.cuh"

constexpr int ROUTER_MAX_EXPERTS = 1024; /* threads of a block */

/* Best expert of the block: largest key, the lower index among equals. */
__device__ __forceinline__ int router_best(uint32_t key, uint32_t *keys, int *indices) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_warps = blockDim.x >> 5;
    const uint32_t most = __reduce_max_sync(~0u, key);
    const int index = __ffs(__ballot_sync(~0u, key == most)) - 1 + warp * 32;
    if (lane == 0) {
        keys[warp] = most;
        indices[warp] = index;
    }
    __syncthreads();
    const uint32_t mine = lane < n_warps ? keys[lane] : 0;
    const uint32_t best = __reduce_max_sync(~0u, mine);
    const int from = __ffs(__ballot_sync(~0u, lane < n_warps && mine == best)) - 1;
    const int found = indices[from];
    __syncthreads();
    return found;
}

__global__ void __launch_bounds__(ROUTER_MAX_EXPERTS) router_kernel(router_args a) {
    kernel_begin();
    __shared__ uint32_t keys[32];
    __shared__ int indices[32], chosen[MOE_MAX_USED];
    __shared__ float weights[MOE_MAX_USED];
    const int r = blockIdx.x, e = threadIdx.x, n = a.n_experts;
    float score = 0.f;
    uint32_t key = 0;
    if (e < n) {
        const float t = a.logits[(size_t)r * n + e] / a.temperature;
        score = sqrtf(t > 20.0f ? t : log1pf(expf(t)));
        key = router_key(score + a.bias[e]);
    }
    for (int i = 0; i < a.n_used; i++) {
        const int best = router_best(key, keys, indices);
        if (e == best) {
            chosen[i] = e;
            weights[i] = score;
            key = 0;
        }
    }
    __syncthreads();
    if (e >= a.n_used) return;
    float sum = 0.f;
    for (int i = 0; i < a.n_used; i++)
        sum += weights[i];
    const float total = a.n_used > 1 ? sum + 1e-20f : 1.0f;
    a.expert[(size_t)r * a.n_used + e] = chosen[e];
    a.weight[(size_t)r * a.n_used + e] = weights[e] / total * a.route_scale;
}

#endif
