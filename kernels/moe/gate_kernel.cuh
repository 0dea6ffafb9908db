/*
 * Device side of gate.h. Blocks of four warps, one an SM or so:
 *
 *   logits   three outputs a block; its weights and those of the norm are read before the wait, each block makes the
 *            norm itself; a logit goes to the block that routes as value and mark in one word
 *   routing  one block takes the words as they come and clears them, scores its experts, one warp chooses
 *   more     the end of the mix by a block of its own
 *
 * Only the routing waits for other blocks, all of which have lower numbers.
 */
#ifndef TANDEM_KERNELS_MOE_GATE_KERNEL_CUH
#define TANDEM_KERNELS_MOE_GATE_KERNEL_CUH

#include "kernels/linear/linear_kernel.cuh"
#include "kernels/moe/gate.h"
#include "kernels/moe/router_key.cuh"
#include "kernels/prepare/prepare_aside.cuh"

constexpr int GATE_OUTPUTS = 3, GATE_WARPS = PLAIN_THREADS / 32;
constexpr int GATE_SUMS = 32 / GATE_WARPS; /* warps of the row kernel that a warp stands for */
constexpr int GATE_PAIRS = 2;              /* pairs of experts of a thread */
constexpr int GATE_MAX_EXPERTS = 2 * GATE_PAIRS * PLAIN_THREADS, GATE_KEYS = GATE_MAX_EXPERTS / 32;

union gate_shared {
    struct {
        float squares[32], parts[GATE_WARPS][GATE_OUTPUTS];
    } row;
    struct {
        float scores[GATE_MAX_EXPERTS];
        uint32_t keys[GATE_MAX_EXPERTS];
    } choice;
    prepare_aside_shared more;
};

/* First value of a thread in group i of the row. */
__device__ __forceinline__ int gate_at(int i) {
    return (i * PLAIN_THREADS + (int)threadIdx.x) * 4;
}

__device__ __forceinline__ void gate_norm(
    const gate_args &p, float4 (&v)[PLAIN_HELD], const float4 (&w)[PLAIN_HELD], float *squares) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n = p.gate.matrix.n_in;
    const bool is_bf16 = p.more.is_bf16 != 0;
    float sums[GATE_SUMS] = {};
#pragma unroll
    for (int i = 0; i < PLAIN_HELD; i++) {
        if (gate_at(i) >= n) continue;
        float &sum = sums[i % GATE_SUMS];
        sum = fmaf(v[i].x, v[i].x, sum);
        sum = fmaf(v[i].y, v[i].y, sum);
        sum = fmaf(v[i].z, v[i].z, sum);
        sum = fmaf(v[i].w, v[i].w, sum);
    }
#pragma unroll
    for (int i = 0; i < GATE_SUMS; i++) {
        const float sum = warp_sum(sums[i]);
        if (lane == 0) squares[i * GATE_WARPS + warp] = sum;
    }
    __syncthreads();
    const float r = 1.0f / sqrtf(warp_sum(squares[lane]) / (float)n + p.norm.eps);
#pragma unroll
    for (int i = 0; i < PLAIN_HELD; i++) {
        if (gate_at(i) >= n) continue;
        v[i] = bf16_near_4_if(is_bf16, make_float4(w[i].x * (v[i].x * r), w[i].y * (v[i].y * r),
                                           w[i].z * (v[i].z * r), w[i].w * (v[i].w * r)));
        if (blockIdx.x == 0) *(float4 *)(p.norm.y + gate_at(i)) = v[i];
    }
}

__device__ __forceinline__ float gate_fma(uint2 w, float4 u, float sum) {
    sum = fmaf(__uint_as_float(w.x << 16), u.x, sum);
    sum = fmaf(__uint_as_float(w.x & 0xffff0000u), u.y, sum);
    sum = fmaf(__uint_as_float(w.y << 16), u.z, sum);
    return fmaf(__uint_as_float(w.y & 0xffff0000u), u.w, sum);
}

__device__ __forceinline__ void gate_logits(const gate_args &p, gate_shared &sh) {
    const gpu_matrix &m = p.gate.matrix;
    const int first = blockIdx.x * GATE_OUTPUTS, count = min(GATE_OUTPUTS, m.n_out - first);
    uint2 w[GATE_OUTPUTS][PLAIN_HELD];
    float4 norm[PLAIN_HELD], v[PLAIN_HELD];
#pragma unroll
    for (int i = 0; i < PLAIN_HELD; i++) {
        if (gate_at(i) >= m.n_in) continue;
        norm[i] = __ldg((const float4 *)(p.norm.norm + gate_at(i)));
#pragma unroll
        for (int o = 0; o < GATE_OUTPUTS; o++) {
            const size_t row = (size_t)(first + min(o, count - 1)) * m.row_stride;
            w[o][i] = __ldg((const uint2 *)((const uint16_t *)m.data + row + gate_at(i)));
        }
    }
    ptx_wait_for_previous();
#pragma unroll
    for (int i = 0; i < PLAIN_HELD; i++)
        if (gate_at(i) < m.n_in) v[i] = __ldcg((const float4 *)(p.norm.x + gate_at(i)));
    gate_norm(p, v, norm, sh.row.squares);
#pragma unroll
    for (int o = 0; o < GATE_OUTPUTS; o++) {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < PLAIN_HELD; i++)
            if (gate_at(i) < m.n_in) sum = gate_fma(w[o][i], v[i], sum);
        sum = warp_sum(sum);
        if ((threadIdx.x & 31) == 0) sh.row.parts[threadIdx.x >> 5][o] = sum;
    }
    __syncthreads();
    const int o = threadIdx.x;
    if (o >= count) return;
    const float(&s)[GATE_WARPS][GATE_OUTPUTS] = sh.row.parts;
    const float y = bf16_near_if(p.gate.is_bf16, ((s[0][o] + s[1][o]) + s[2][o]) + s[3][o]);
    ptx_store_device_8(p.words + first + o, (uint64_t)1 << 32 | __float_as_uint(y));
    p.gate.y[first + o] = y;
}

/* Takes the logits of a thread's experts and clears their words. */
__device__ __forceinline__ void gate_take(const gate_args &p, ulonglong2 (&u)[GATE_PAIRS]) {
    const int n_pairs = p.gate.matrix.n_out / 2;
    bool is_there;
    do {
        is_there = true;
#pragma unroll
        for (int i = 0; i < GATE_PAIRS; i++) {
            const int pair = i * PLAIN_THREADS + (int)threadIdx.x;
            if (pair >= n_pairs) continue;
            u[i] = ptx_load_device_16(p.words + 2 * pair);
            is_there = is_there && (u[i].x & u[i].y) >> 32 != 0;
        }
    } while (!is_there);
#pragma unroll
    for (int i = 0; i < GATE_PAIRS; i++) {
        const int pair = i * PLAIN_THREADS + (int)threadIdx.x;
        if (pair < n_pairs) ptx_store_device_16(p.words + 2 * pair, make_ulonglong2(0, 0));
    }
}

/* The choice of one warp: rounds of the largest key, the lower expert among equals. */
__device__ __forceinline__ void gate_choose(const router_args &a, const gate_shared &sh) {
    const int lane = threadIdx.x & 31;
    uint32_t keys[GATE_KEYS];
    int chosen = 0;
    float weight = 0.f, sum = 0.f;
#pragma unroll
    for (int j = 0; j < GATE_KEYS; j++)
        keys[j] = lane + 32 * j < a.n_experts ? sh.choice.keys[lane + 32 * j] : 0;
    for (int i = 0; i < a.n_used; i++) {
        uint32_t most = 0, mine = ~0u;
#pragma unroll
        for (int j = 0; j < GATE_KEYS; j++)
            most = max(most, keys[j]);
        most = __reduce_max_sync(~0u, most);
#pragma unroll
        for (int j = GATE_KEYS - 1; j >= 0; j--)
            if (keys[j] == most) mine = (uint32_t)(lane + 32 * j);
        const int best = (int)__reduce_min_sync(~0u, mine);
#pragma unroll
        for (int j = 0; j < GATE_KEYS; j++)
            if (lane + 32 * j == best) keys[j] = 0;
        const float score = sh.choice.scores[best];
        sum += score;
        if (lane == i) chosen = best, weight = score;
    }
    if (lane >= a.n_used) return;
    const float total = a.n_used > 1 ? sum + 1e-20f : 1.0f;
    a.expert[lane] = chosen;
    a.weight[lane] = weight / total * a.route_scale;
}

__device__ __forceinline__ void gate_route(const gate_args &p, gate_shared &sh) {
    const router_args &a = p.router;
    ulonglong2 u[GATE_PAIRS];
    float2 bias[GATE_PAIRS];
#pragma unroll
    for (int i = 0; i < GATE_PAIRS; i++) {
        const int e = (i * PLAIN_THREADS + (int)threadIdx.x) * 2;
        if (e < a.n_experts) bias[i] = __ldg((const float2 *)(a.bias + e));
    }
    ptx_wait_for_previous();
    gate_take(p, u);
#pragma unroll
    for (int i = 0; i < GATE_PAIRS; i++) {
        const int e = (i * PLAIN_THREADS + (int)threadIdx.x) * 2;
        if (e >= a.n_experts) continue;
#pragma unroll
        for (int q = 0; q < 2; q++) {
            const float t = __uint_as_float((uint32_t)(q == 0 ? u[i].x : u[i].y)) / a.temperature;
            const float score = sqrtf(t > 20.0f ? t : log1pf(expf(t)));
            sh.choice.scores[e + q] = score;
            sh.choice.keys[e + q] = router_key(score + (q == 0 ? bias[i].x : bias[i].y));
        }
    }
    __syncthreads();
    if (threadIdx.x < 32) gate_choose(a, sh);
}

/* Grid: blocks of outputs, one that routes, tasks of more. */
__global__ void __launch_bounds__(PLAIN_THREADS) gate_kernel(const __grid_constant__ gate_args p) {
    __shared__ __align__(16) gate_shared sh;
    const int n_blocks = (p.gate.matrix.n_out + GATE_OUTPUTS - 1) / GATE_OUTPUTS;
    ptx_release_next();
    if ((int)blockIdx.x < n_blocks) {
        gate_logits(p, sh);
    } else if ((int)blockIdx.x == n_blocks) {
        gate_route(p, sh);
    } else {
        prepare_aside_mix<GATE_WARPS>(p.more, sh.more);
    }
}

#endif
