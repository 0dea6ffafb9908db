/*
 * Device side of gate.h. Blocks of 16 warps, one an SM or so. Rows lie in shared memory, so that loops can be short:
 *
 *   logits   three outputs a block; its weights and those of the norm are in shared memory before the wait, each block
 *            makes the norms itself; a logit goes to the block that routes as value and mark in one word
 *   routing  a block a row takes the words as they come and clears them, scores its experts, one warp chooses
 *   more     the end of the mix, a block a row
 *
 * Only the routing waits for other blocks, all of which have lower numbers.
 */
#ifndef TANDEM_KERNELS_MOE_GATE_KERNEL_CUH
#define TANDEM_KERNELS_MOE_GATE_KERNEL_CUH

#include "kernels/linear/linear_kernel.cuh"
#include "kernels/moe/gate.h"
#include "kernels/moe/router_key.cuh"
#include "kernels/prepare/prepare_aside.cuh"

constexpr int GATE_OUTPUTS = 3, GATE_WARPS = 16, GATE_THREADS = GATE_WARPS * 32;
constexpr int GATE_PARTS = PLAIN_THREADS / 32; /* of a sum: warps of linear_kernel.cuh */
constexpr int GATE_HELD = 3; /* groups of four values of a row that a thread has at most */
constexpr int GATE_MAX_EXPERTS = 512, GATE_KEYS = GATE_MAX_EXPERTS / 32;
static_assert(GATE_MAX_EXPERTS <= GATE_THREADS, "an expert a thread");
static_assert(2 * GATE_WARPS == 32, "a warp for two of prepare_kernel.cuh");

union gate_shared {
    struct {
        unsigned long long barrier;
        float squares[GATE_FEW_ROWS][2 * GATE_WARPS], inverse[GATE_FEW_ROWS];
        float parts[GATE_FEW_ROWS][GATE_OUTPUTS][GATE_PARTS];
    } row;
    struct {
        float scores[GATE_MAX_EXPERTS];
        uint32_t keys[GATE_MAX_EXPERTS];
    } choice;
    prepare_aside_shared more;
};

/* Dynamic shared memory: norm [n_in], rows [n_rows][n_in], weights [GATE_OUTPUTS][n_in] of bf16. */
EXL3_BOTH_SIDES constexpr int gate_bytes(int n_in, int n_rows) {
    return n_in * ((1 + n_rows) * (int)sizeof(float) + GATE_OUTPUTS * (int)sizeof(uint16_t));
}

/* A block's part of the logits. */
struct gate_part {
    int n, n_rows, first, count; /* outputs first .. first + count - 1 */
    float *norm, *x;
    uint16_t *weights;
    __device__ gate_part(const gate_args &p, float *shared)
        : n(p.gate.matrix.n_in), n_rows(p.gate.n_rows), first((int)blockIdx.x * GATE_OUTPUTS),
          count(min(GATE_OUTPUTS, p.gate.matrix.n_out - first)), norm(shared), x(shared + n),
          weights((uint16_t *)(x + n_rows * n)) {
    }
    __device__ void fetch_weights(const gate_args &p) const {
        const gpu_matrix &m = p.gate.matrix;
#pragma unroll 1
        for (int i = threadIdx.x * 4; i < n; i += GATE_THREADS * 4)
            ptx_copy_16(ptx_shared(norm + i), p.norm.norm + i);
#pragma unroll 1
        for (int o = 0; o < count; o++) {
            const uint16_t *from = (const uint16_t *)m.data + (size_t)(first + o) * m.row_stride;
#pragma unroll 1
            for (int i = threadIdx.x * 8; i < n; i += GATE_THREADS * 8)
                ptx_copy_16(ptx_shared(weights + o * n + i), from + i);
        }
    }
    /* One thread. */
    __device__ void fetch_rows(const gate_args &p, uint32_t barrier) const {
        const uint32_t bytes = (uint32_t)n * sizeof(float);
        ptx_barrier_expect(barrier, n_rows * bytes);
#pragma unroll 1
        for (int r = 0; r < n_rows; r++)
            ptx_bulk_copy(
                ptx_shared(x) + r * bytes, p.norm.x + r * p.norm.x_stride, bytes, barrier);
    }
};

/* 1 / root of the mean square of every row. All threads. */
__device__ __forceinline__ void gate_inverses(const gate_part &part, float eps, gate_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
#pragma unroll 2
    for (int row = 0; row < part.n_rows; row++) {
        const float *x = part.x + row * part.n;
        float sums[2] = {0.f, 0.f};
#pragma unroll
        for (int i = 0; i < GATE_HELD; i++) {
            const int at = (i * GATE_THREADS + (int)threadIdx.x) * 4;
            float4 v = make_float4(0.f, 0.f, 0.f, 0.f); /* adds nothing to a sum of squares */
            if (at < part.n) v = *(const float4 *)(x + at);
            float &sum = sums[i % 2];
            sum = fmaf(v.x, v.x, sum);
            sum = fmaf(v.y, v.y, sum);
            sum = fmaf(v.z, v.z, sum);
            sum = fmaf(v.w, v.w, sum);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float sum = warp_sum(sums[i]);
            if (lane == 0) sh.row.squares[row][warp + i * GATE_WARPS] = sum;
        }
    }
    __syncthreads();
    if (warp < part.n_rows) {
        const float sum = warp_sum(sh.row.squares[warp][lane]);
        if (lane == 0) sh.row.inverse[warp] = 1.0f / sqrtf(sum / (float)part.n + eps);
    }
    __syncthreads();
}

/* The norms in the place of the rows, a warp a block of 128 values; row i goes to memory too, from block i or, where
 * there are fewer, the first. */
__device__ __forceinline__ void gate_norm(
    const gate_args &p, const gate_part &part, const gate_shared &sh) {
    const int n_blocks = part.n / 128, lane_at = (threadIdx.x & 31) * 4;
    const int last = (p.gate.matrix.n_out - 1) / GATE_OUTPUTS;
    const bool is_bf16 = p.more.is_bf16 != 0;
    int row = 0, block = threadIdx.x >> 5;
#pragma unroll 3
    for (int i = block; i < part.n_rows * n_blocks; i += GATE_WARPS) {
        while (block >= n_blocks)
            row++, block -= n_blocks;
        const int at = block * 128 + lane_at;
        float4 *x = (float4 *)(part.x + row * part.n + at);
        const float r = sh.row.inverse[row];
        const float4 v = *x, w = *(const float4 *)(part.norm + at);
        float4 u = make_float4(w.x * (v.x * r), w.y * (v.y * r), w.z * (v.z * r), w.w * (v.w * r));
        if (is_bf16) u = bf16_near_4(u);
        *x = u;
        if ((int)blockIdx.x == (row <= last ? row : 0))
            *(float4 *)(p.norm.y + row * p.norm.y_stride + at) = u;
        block += GATE_WARPS;
    }
}

__device__ __forceinline__ float gate_fma(uint2 w, float4 u, float sum) {
    sum = fmaf(__uint_as_float(w.x << 16), u.x, sum);
    sum = fmaf(__uint_as_float(w.x & 0xffff0000u), u.y, sum);
    sum = fmaf(__uint_as_float(w.y << 16), u.z, sum);
    return fmaf(__uint_as_float(w.y & 0xffff0000u), u.w, sum);
}

/* A warp has one part of a row's outputs. */
__device__ __forceinline__ void gate_dots(const gate_part &part, gate_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, q = warp % GATE_PARTS;
#pragma unroll 1
    for (int row = warp / GATE_PARTS; row < part.n_rows; row += GATE_WARPS / GATE_PARTS) {
        float sums[GATE_OUTPUTS] = {};
#pragma unroll 2
        for (int at = q * 128 + lane * 4; at < part.n; at += GATE_PARTS * 128) {
            const float4 v = *(const float4 *)(part.x + row * part.n + at);
#pragma unroll
            for (int o = 0; o < GATE_OUTPUTS; o++)
                sums[o] = gate_fma(*(const uint2 *)(part.weights + o * part.n + at), v, sums[o]);
        }
#pragma unroll
        for (int o = 0; o < GATE_OUTPUTS; o++) {
            const float sum = warp_sum(sums[o]);
            if (lane == 0) sh.row.parts[row][o][q] = sum;
        }
    }
}

__device__ __forceinline__ void gate_publish(
    const gate_args &p, const gate_part &part, const gate_shared &sh) {
    const int row = threadIdx.x / GATE_OUTPUTS, i = threadIdx.x % GATE_OUTPUTS;
    const int o = part.first + i;
    if (row >= part.n_rows || i >= part.count) return;
    const float(&s)[GATE_PARTS] = sh.row.parts[row][i];
    const float y = bf16_near_if(p.gate.is_bf16, ((s[0] + s[1]) + s[2]) + s[3]);
    ptx_store_device_8(
        p.words + row * p.gate.matrix.n_out + o, (uint64_t)1 << 32 | __float_as_uint(y));
    p.gate.y[row * p.gate.y_stride + o] = y;
}

__device__ __forceinline__ void gate_logits(const gate_args &p, float *shared, gate_shared &sh) {
    const gate_part part(p, shared);
    const uint32_t barrier = ptx_shared(&sh.row.barrier);
    part.fetch_weights(p);
    if (threadIdx.x == 0) {
        ptx_barrier_init(barrier, 1);
        ptx_barrier_init_fence();
    }
    ptx_copies_wait();
    __syncthreads();
    ptx_wait_for_previous();
    if (threadIdx.x == 0) part.fetch_rows(p, barrier);
    ptx_barrier_wait(barrier, 0);
    gate_inverses(part, p.norm.eps, sh);
    gate_norm(p, part, sh);
    __syncthreads();
    gate_dots(part, sh);
    __syncthreads();
    gate_publish(p, part, sh);
}

/* Takes a row's logit of expert e and clears its word. */
__device__ __forceinline__ float gate_take(uint64_t *words, int e) {
    ulonglong2 u;
    uint64_t mine;
    do {
        u = ptx_load_device_16(words + e / 2 * 2);
        mine = e % 2 == 0 ? u.x : u.y;
    } while (mine >> 32 == 0);
    ptx_store_device_8(words + e, 0);
    return __uint_as_float((uint32_t)mine);
}

/* The choice of one warp: rounds of the largest key, the lower expert among equals. */
__device__ __forceinline__ void gate_choose(const router_args &a, int row, const gate_shared &sh) {
    const int lane = threadIdx.x & 31;
    uint32_t keys[GATE_KEYS];
    int chosen = 0;
    float weight = 0.f, sum = 0.f;
#pragma unroll
    for (int j = 0; j < GATE_KEYS; j++)
        keys[j] = lane + 32 * j < a.n_experts ? sh.choice.keys[lane + 32 * j] : 0;
    for (int i = 0; i < a.n_used; i++) {
        uint32_t most[GATE_KEYS];
        int at[GATE_KEYS];
#pragma unroll
        for (int j = 0; j < GATE_KEYS; j++)
            most[j] = keys[j], at[j] = j;
#pragma unroll
        for (int step = 1; step < GATE_KEYS; step *= 2)
#pragma unroll
            for (int j = 0; j < GATE_KEYS; j += 2 * step)
                if (most[j + step] > most[j]) most[j] = most[j + step], at[j] = at[j + step];
        const bool is_best = most[0] == __reduce_max_sync(~0u, most[0]);
        const uint32_t mine = is_best ? (uint32_t)(lane + 32 * at[0]) : ~0u;
        const int best = (int)__reduce_min_sync(~0u, mine);
        const int taken = best % 32 == lane ? best / 32 : -1;
#pragma unroll
        for (int j = 0; j < GATE_KEYS; j++)
            if (taken == j) keys[j] = 0;
        const float score = sh.choice.scores[best];
        sum += score;
        if (lane == i) chosen = best, weight = score;
    }
    if (lane >= a.n_used) return;
    const float total = a.n_used > 1 ? sum + 1e-20f : 1.0f;
    a.expert[row * a.n_used + lane] = chosen;
    a.weight[row * a.n_used + lane] = weight / total * a.route_scale;
}

/* A row by a block, an expert a thread. */
__device__ __forceinline__ void gate_route(const gate_args &p, int row, gate_shared &sh) {
    const router_args &a = p.router;
    const int e = threadIdx.x;
    const float bias = e < a.n_experts ? __ldg(a.bias + e) : 0.f;
    ptx_wait_for_previous();
    if (e < a.n_experts) {
        const float t = gate_take(p.words + row * a.n_experts, e) / a.temperature;
        const float score = sqrtf(t > 20.0f ? t : log1pf(expf(t)));
        sh.choice.scores[e] = score;
        sh.choice.keys[e] = router_key(score + bias);
    }
    __syncthreads();
    if (threadIdx.x < 32) gate_choose(a, row, sh);
}

/* Grid: blocks of outputs, one a row that routes, one a row and task of more. */
static __global__ void __launch_bounds__(GATE_THREADS)
    gate_kernel(const __grid_constant__ gate_args p) {
    extern __shared__ __align__(16) float shared[];
    __shared__ __align__(16) gate_shared sh;
    const int n_blocks = (p.gate.matrix.n_out + GATE_OUTPUTS - 1) / GATE_OUTPUTS;
    const int row = (int)blockIdx.x - n_blocks;
    ptx_release_next();
    if (row < 0) {
        gate_logits(p, shared, sh);
    } else if (row < p.gate.n_rows) {
        gate_route(p, row, sh);
    } else {
        prepare_aside_mix<GATE_WARPS>(p.more, row % p.gate.n_rows, sh.more);
    }
}

#endif
