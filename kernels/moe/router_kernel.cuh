/* Routing of one row by one warp: scores, then one round of a warp-wide maximum per choice. */
#ifndef TANDEM_KERNELS_MOE_ROUTER_KERNEL_CUH
#define TANDEM_KERNELS_MOE_ROUTER_KERNEL_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"

constexpr int ROUTER_ROWS = 4; /* of a block, one warp each */

/* The larger value, the lower index among equals; index n: none yet. */
__device__ __forceinline__ void router_better(float &value, int &index, float v, int i, int n) {
    if (i < n && (index == n || v > value || (v == value && i < index))) {
        value = v;
        index = i;
    }
}

__device__ __forceinline__ int router_best(float *biased, int n) {
    const int lane = threadIdx.x & 31;
    const float none = __uint_as_float(0xff800000u);
    float value = none;
    int index = n, nan_index = n;
    for (int e = lane; e < n; e += 32) {
        const float v = biased[e];
        if (v > none) router_better(value, index, v, e, n);
        if (isnan(v)) nan_index = min(nan_index, e);
    }
    for (int m = 16; m > 0; m >>= 1) {
        const float v = __shfl_xor_sync(~0u, value, m);
        const int i = __shfl_xor_sync(~0u, index, m);
        router_better(value, index, v, i, n);
    }
    nan_index = __reduce_min_sync(~0u, nan_index);
    if (index == n) index = nan_index == n ? 0 : nan_index;
    __syncwarp();
    if (lane == 0) biased[index] = none;
    __syncwarp();
    return index;
}

__global__ void __launch_bounds__(ROUTER_ROWS * 32) router_kernel(router_args a) {
    const int r = blockIdx.x * ROUTER_ROWS + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (r >= a.n_rows) return;
    const int n = a.n_experts;
    const float *z = a.logits + (size_t)r * n;
    extern __shared__ float shared[]; /* [ROUTER_ROWS][2][n_experts] */
    float *score = shared + (size_t)(threadIdx.x >> 5) * 2 * n, *biased = score + n;
    for (int e = lane; e < n; e += 32) {
        const float t = z[e] / a.temperature;
        const float s = sqrtf(t > 20.0f ? t : log1pf(expf(t)));
        score[e] = s;
        biased[e] = s + a.bias[e];
    }
    __syncwarp();
    int32_t *expert = a.expert + (size_t)r * a.n_used;
    float *weight = a.weight + (size_t)r * a.n_used;
    float sum = 0.f;
    for (int i = 0; i < a.n_used; i++) {
        const int e = router_best(biased, n);
        const float w = score[e];
        if (lane == 0) {
            expert[i] = e;
            weight[i] = w;
        }
        sum += w;
    }
    __syncwarp();
    const float total = a.n_used > 1 ? sum + 1e-20f : 1.0f;
    for (int i = lane; i < a.n_used; i += 32)
        weight[i] = weight[i] / total * a.route_scale;
}

#endif
