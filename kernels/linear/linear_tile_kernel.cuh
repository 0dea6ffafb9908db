/* Plain linears of many rows, with the sums of plain_linear_kernel (linear_kernel.cuh) in the same order.
 *
 *   chain    t = 0 .. 127 of an output and a row: one sum over the inputs 4 t + 512 j + 0 .. 3, j = 0, 1, ..
 *   warps    the chains 32 v .. 32 v + 31 are added by halving, at distances 16, 8, 4, 2, 1; then v = 0 .. 3
 *
 * There a thread has one chain, so an input is read by one thread only and the L2 cache limits. Here a CTA has
 * eight chains at a time of 64 outputs and 32 rows, a thread one chain of 8 x 16 of them: the chains of distance
 * 16, 8 and 1 lie in neighbouring lanes, those of distance 4 and 2 and v come one after the other (16 steps). A
 * lane's outputs and rows are in such an order that it always keeps its lower half of the sums and gives the upper
 * one to its neighbour: a shuffle and an addition a sum. What has been added up waits in shared memory, 80 floats a
 * thread. 88 KB of shared memory, 254 registers.
 *
 * A stage is one j of a step: eight groups of four inputs of every row (pieces of 32 bytes) and of every output.
 * The weights have been brought into the order of the stages, as floats, so that a stage is one bulk copy.
 *
 * Floor: fp32 multiply-adds, 0.49 ms for 8,192 x 5,120 -> 384 on 132 SMs at 1,980 MHz; measured 0.90 (H200, 2026-12-01),
 * plain_linear_kernel 3.41: issue slots 70 %, a fifth of the instructions are no multiply-adds, reads of shared
 * memory 75 % of what it gives (loads of 16 bytes a lane share nothing between lanes). */
#ifndef TANDEM_KERNELS_LINEAR_LINEAR_TILE_KERNEL_CUH
#define TANDEM_KERNELS_LINEAR_LINEAR_TILE_KERNEL_CUH

#include "kernels/linear/linear_kernel.cuh"

constexpr int PLAIN_TILE_OUTPUTS = 64;                      /* of a CTA */
constexpr int PLAIN_TILE_CHAINS = 8, PLAIN_TILE_STEPS = 16; /* at once, and one after the other */
constexpr int PLAIN_TILE_OUT = 8, PLAIN_TILE_ROW = 16;      /* outputs and rows of a thread */
constexpr int PLAIN_TILE_LINE = PLAIN_TILE_CHAINS * 16; /* bytes of a row or output in a stage */
/* Sums of a thread after two halvings, and after the third. */
constexpr int PLAIN_TILE_KEPT = PLAIN_TILE_OUT * PLAIN_TILE_ROW / 4;
constexpr int PLAIN_TILE_LAST = PLAIN_TILE_KEPT / 2;

constexpr int PLAIN_TILE_WARPS = 4; /* beside each other in the outputs; two CTAs an SM */
constexpr int PLAIN_TILE_THREADS = 32 * PLAIN_TILE_WARPS;
constexpr int PLAIN_TILE_ROWS = 2 * PLAIN_TILE_ROW;        /* of a CTA */
constexpr int PLAIN_TILE_STAGES = 4, PLAIN_TILE_AHEAD = 2; /* held, fetched before they are used */
constexpr int PLAIN_TILE_COPIES = PLAIN_TILE_ROWS * PLAIN_TILE_CHAINS / PLAIN_TILE_THREADS;
constexpr int PLAIN_TILE_WEIGHT_BYTES = PLAIN_TILE_OUTPUTS * PLAIN_TILE_LINE;
constexpr int PLAIN_TILE_STAGE_BYTES = PLAIN_TILE_WEIGHT_BYTES + PLAIN_TILE_ROWS * PLAIN_TILE_LINE;
constexpr int PLAIN_TILE_STASH_BYTES =
    PLAIN_TILE_THREADS * (2 * PLAIN_TILE_KEPT + PLAIN_TILE_LAST) * (int)sizeof(float);
constexpr int PLAIN_TILE_SHARED_BYTES =
    PLAIN_TILE_STAGES * (PLAIN_TILE_STAGE_BYTES + 16) + PLAIN_TILE_STASH_BYTES;
static_assert(PLAIN_TILE_OUTPUTS == 2 * PLAIN_TILE_OUT * PLAIN_TILE_WARPS &&
                  PLAIN_TILE_ROWS * PLAIN_TILE_CHAINS % PLAIN_TILE_THREADS == 0 &&
                  PLAIN_TILE_SHARED_BYTES <= 99 * 1024,
    "plain tile");

struct plain_tile_args {
    plain_job job;
    const float *weights; /* [tiles of outputs][stages][outputs][chains][4] */
};

/* First input of a step's chains, and of chain c of the eight from there: c is bits 4, 3 and 0 of the
 * chain's number, the step is v and bits 1 and 2. */
__device__ __forceinline__ int plain_tile_step(int step) {
    return (step >> 2) * 128 + (step >> 1 & 1) * 8 + (step & 1) * 16;
}
__device__ __forceinline__ int plain_tile_chain(int c) {
    return (c >> 2) * 64 + (c >> 1 & 1) * 32 + (c & 1) * 4;
}

constexpr int PLAIN_ORDER_THREADS = 256;

/* The weights in the order of the stages; outputs behind the last one are zero. Grid: groups of four weights of
 * a tile, tiles of outputs. */
__global__ void __launch_bounds__(PLAIN_ORDER_THREADS)
    plain_order_kernel(const __grid_constant__ gpu_matrix m, float4 *weights) {
    kernel_begin();
    const int n_j = m.n_in / 512,
              all = PLAIN_TILE_STEPS * n_j * PLAIN_TILE_OUTPUTS * PLAIN_TILE_CHAINS;
    const int i = blockIdx.x * PLAIN_ORDER_THREADS + threadIdx.x;
    if (i >= all) return;
    const int chain = i % PLAIN_TILE_CHAINS, o = i / PLAIN_TILE_CHAINS % PLAIN_TILE_OUTPUTS,
              stage = i / PLAIN_TILE_CHAINS / PLAIN_TILE_OUTPUTS;
    const int in = stage % n_j * 512 + plain_tile_step(stage / n_j) + plain_tile_chain(chain);
    const int out = blockIdx.y * PLAIN_TILE_OUTPUTS + o;
    weights[(size_t)blockIdx.y * all + i] = out < m.n_out
                                                ? plain_weights(m, (size_t)out * m.row_stride + in)
                                                : make_float4(0.f, 0.f, 0.f, 0.f);
}

__device__ __forceinline__ float4 plain_tile_load(uint32_t address) {
    const uint4 v = ptx_load_shared_16(address);
    return make_float4(
        __uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w));
}
__device__ __forceinline__ void plain_tile_store(uint32_t address, const float *v) {
    ptx_store_shared_16(address, make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]),
                                     __float_as_uint(v[2]), __float_as_uint(v[3])));
}

/* A place in the ring of stages, and how often it was passed. */
struct plain_tile_place {
    int slot = 0, phase = 0;
    __device__ __forceinline__ void next() {
        if (++slot == PLAIN_TILE_STAGES) slot = 0, phase ^= 1;
    }
};

/* Fetches the stages of a CTA in order: a bulk copy of the weights by the first thread, the rows in pieces
 * by all. */
struct plain_tile_fill {
    const float *x[PLAIN_TILE_COPIES], *weights;
    uint32_t ring, full, empty; /* barriers: a stage is there, a stage is free */
    int n_j, in = 0, j = 0, step = 0, n_left, n_new = PLAIN_TILE_STAGES;
    plain_tile_place place;

    __device__ __forceinline__ void init(const plain_tile_args &a, int row0) {
        const plain_job &job = a.job;
#pragma unroll
        for (int i = 0; i < PLAIN_TILE_COPIES; i++) {
            const int at = threadIdx.x + i * PLAIN_TILE_THREADS,
                      r = min(row0 + at / PLAIN_TILE_CHAINS, job.n_rows - 1);
            x[i] = job.x + (int64_t)(job.x_rows == nullptr ? r : job.x_rows[r]) * job.x_stride +
                   plain_tile_chain(at % PLAIN_TILE_CHAINS);
        }
        n_j = job.matrix.n_in / 512;
        n_left = PLAIN_TILE_STEPS * n_j;
        weights = a.weights + (size_t)blockIdx.x * n_left * (PLAIN_TILE_WEIGHT_BYTES / 4);
    }
    __device__ __forceinline__ void next() {
        if (n_left == 0) return;
        if (n_new == 0) {
            ptx_barrier_wait(empty + 8 * place.slot, place.phase ^ 1);
        } else {
            n_new--;
        }
        const uint32_t to = ring + place.slot * PLAIN_TILE_STAGE_BYTES,
                       barrier = full + 8 * place.slot;
        if (threadIdx.x == 0) {
            ptx_barrier_expect(barrier, PLAIN_TILE_WEIGHT_BYTES);
            ptx_bulk_copy(to, weights, PLAIN_TILE_WEIGHT_BYTES, barrier);
        }
#pragma unroll
        for (int i = 0; i < PLAIN_TILE_COPIES; i++)
            ptx_copy_16(to + PLAIN_TILE_WEIGHT_BYTES + (threadIdx.x + i * PLAIN_TILE_THREADS) * 16,
                x[i] + in);
        ptx_copies_arrive(barrier);
        weights += PLAIN_TILE_WEIGHT_BYTES / 4;
        in += 512;
        if (++j == n_j) j = 0, in = plain_tile_step(++step);
        place.next();
        n_left--;
    }
};

typedef float plain_tile_sums[PLAIN_TILE_OUT][PLAIN_TILE_ROW];

/* One stage; w and x: the lower and the upper half of a thread's outputs and rows. */
__device__ __forceinline__ void plain_tile_multiply(
    const uint32_t (&w_at)[2], const uint32_t (&x_at)[2], uint32_t stage, plain_tile_sums &sum) {
    constexpr int OUT = PLAIN_TILE_OUT, ROW = PLAIN_TILE_ROW;
    float4 w[OUT];
#pragma unroll
    for (int o = 0; o < OUT; o++)
        w[o] = plain_tile_load(w_at[o / (OUT / 2)] + stage + o % (OUT / 2) * PLAIN_TILE_LINE);
#pragma unroll
    for (int r = 0; r < ROW; r++) {
        const float4 x =
            plain_tile_load(x_at[r / (ROW / 2)] + stage + r % (ROW / 2) * PLAIN_TILE_LINE);
#pragma unroll
        for (int o = 0; o < OUT; o++)
            sum[o][r] = fmaf(w[o].x, x.x, sum[o][r]);
#pragma unroll
        for (int o = 0; o < OUT; o++)
            sum[o][r] = fmaf(w[o].y, x.y, sum[o][r]);
#pragma unroll
        for (int o = 0; o < OUT; o++)
            sum[o][r] = fmaf(w[o].z, x.z, sum[o][r]);
#pragma unroll
        for (int o = 0; o < OUT; o++)
            sum[o][r] = fmaf(w[o].w, x.w, sum[o][r]);
    }
}

/* Adds what the stash holds (first) to sums [o][0 .. ROW / 2). */
template <int OUTS>
__device__ __forceinline__ void plain_tile_add(uint32_t stash, plain_tile_sums &sum) {
#pragma unroll
    for (int o = 0; o < OUTS; o++)
#pragma unroll
        for (int r = 0; r < PLAIN_TILE_ROW / 2; r += 4) {
            const float4 v = plain_tile_load(
                stash + (o * (PLAIN_TILE_ROW / 8) + r / 4) * PLAIN_TILE_THREADS * 16);
            sum[o][r] = v.x + sum[o][r], sum[o][r + 1] = v.y + sum[o][r + 1];
            sum[o][r + 2] = v.z + sum[o][r + 2], sum[o][r + 3] = v.w + sum[o][r + 3];
        }
}
template <int OUTS>
__device__ __forceinline__ void plain_tile_keep(uint32_t stash, const plain_tile_sums &sum) {
#pragma unroll
    for (int o = 0; o < OUTS; o++)
#pragma unroll
        for (int r = 0; r < PLAIN_TILE_ROW / 2; r += 4)
            plain_tile_store(
                stash + (o * (PLAIN_TILE_ROW / 8) + r / 4) * PLAIN_TILE_THREADS * 16, &sum[o][r]);
}

/* The chains of a step are complete: adds them up as far as they go. After the last step sums
 * [0 .. OUT / 4)[0 .. ROW / 2) are the results of this lane. stash: this thread's. */
__device__ __forceinline__ void plain_tile_fold(uint32_t stash, int step, plain_tile_sums &sum) {
    constexpr int OUT = PLAIN_TILE_OUT, ROW = PLAIN_TILE_ROW;
    constexpr int KEPT_BYTES = PLAIN_TILE_KEPT * PLAIN_TILE_THREADS * 4;
#pragma unroll
    for (int o = 0; o < OUT / 2; o++)
#pragma unroll
        for (int r = 0; r < ROW; r++)
            sum[o][r] += __shfl_xor_sync(~0u, sum[o + OUT / 2][r], 4);
#pragma unroll
    for (int o = 0; o < OUT / 2; o++)
#pragma unroll
        for (int r = 0; r < ROW / 2; r++)
            sum[o][r] += __shfl_xor_sync(~0u, sum[o][r + ROW / 2], 2);
    const uint32_t mine = stash + (step >> 1 & 1) * KEPT_BYTES;
    if ((step & 1) != 0) plain_tile_add<OUT / 2>(mine, sum); /* distance 4 */
    if ((step & 3) != 3) {
        plain_tile_keep<OUT / 2>(mine, sum);
        return;
    }
    plain_tile_add<OUT / 2>(stash, sum); /* distance 2 */
    const bool is_odd = (threadIdx.x & 1) != 0;
#pragma unroll
    for (int o = 0; o < OUT / 4; o++)
#pragma unroll
        for (int r = 0; r < ROW / 2; r++) {
            const float upper = sum[o + OUT / 4][r], lower = sum[o][r];
            sum[o][r] = (is_odd ? upper : lower) + __shfl_xor_sync(~0u, is_odd ? lower : upper, 1);
        }
    if (step > 3) plain_tile_add<OUT / 4>(stash + 2 * KEPT_BYTES, sum); /* v in order */
    if (step < PLAIN_TILE_STEPS - 1) plain_tile_keep<OUT / 4>(stash + 2 * KEPT_BYTES, sum);
}

__device__ __forceinline__ void plain_tile_zero(plain_tile_sums &sum) {
#pragma unroll
    for (int o = 0; o < PLAIN_TILE_OUT; o++)
#pragma unroll
        for (int r = 0; r < PLAIN_TILE_ROW; r++)
            sum[o][r] = 0.f;
}

/* Grid: tiles of outputs, tiles of rows. n_in is a multiple of 512, rows and strides of 16 bytes. */
__global__ void __launch_bounds__(PLAIN_TILE_THREADS, 2)
    plain_tile_kernel(const __grid_constant__ plain_tile_args a) {
    extern __shared__ __align__(128) unsigned char plain_tile_shared[];
    constexpr int OUT = PLAIN_TILE_OUT, ROW = PLAIN_TILE_ROW, LINE = PLAIN_TILE_LINE;
    kernel_begin();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, chain = lane & 7;
    const int is_16 = chain >> 2, is_8 = chain >> 1 & 1, is_1 = chain & 1;
    const int o_at = (warp * 2 + (lane >> 3 & 1)) * OUT, r_at = (lane >> 4) * ROW;
    const uint32_t ring = ptx_shared(plain_tile_shared),
                   stash = ring + PLAIN_TILE_STAGES * PLAIN_TILE_STAGE_BYTES + threadIdx.x * 16;
    plain_tile_fill fill;
    fill.ring = ring;
    fill.full = ring + PLAIN_TILE_STAGES * PLAIN_TILE_STAGE_BYTES + PLAIN_TILE_STASH_BYTES;
    fill.empty = fill.full + 8 * PLAIN_TILE_STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < PLAIN_TILE_STAGES; i++) {
            ptx_barrier_init(fill.full + 8 * i, PLAIN_TILE_THREADS + 1);
            ptx_barrier_init(fill.empty + 8 * i, PLAIN_TILE_WARPS);
        }
        ptx_barrier_init_fence();
    }
    __syncthreads();
    fill.init(a, blockIdx.y * PLAIN_TILE_ROWS);
#pragma unroll 1
    for (int i = 0; i < PLAIN_TILE_AHEAD; i++)
        fill.next();
    const uint32_t w = ring + o_at * LINE + chain * 16,
                   x = ring + PLAIN_TILE_WEIGHT_BYTES + r_at * LINE + chain * 16;
    const uint32_t w_at[2] = {w + is_16 * (OUT / 2 * LINE), w + (is_16 ^ 1) * (OUT / 2 * LINE)},
                   x_at[2] = {x + is_8 * (ROW / 2 * LINE), x + (is_8 ^ 1) * (ROW / 2 * LINE)};
    plain_tile_sums sum;
    plain_tile_place place;
#pragma unroll 1
    for (int step = 0; step < PLAIN_TILE_STEPS; step++) {
        plain_tile_zero(sum);
#pragma unroll 1
        for (int j = 0; j < fill.n_j; j++) {
            fill.next();
            ptx_barrier_wait(fill.full + 8 * place.slot, place.phase);
            plain_tile_multiply(w_at, x_at, place.slot * PLAIN_TILE_STAGE_BYTES, sum);
            __syncwarp();
            if (lane == 0) ptx_barrier_arrive(fill.empty + 8 * place.slot);
            place.next();
        }
        plain_tile_fold(stash, step, sum);
    }
    const plain_job &job = a.job;
    const int out = blockIdx.x * PLAIN_TILE_OUTPUTS + o_at + is_16 * (OUT / 2) + is_1 * (OUT / 4),
              row = blockIdx.y * PLAIN_TILE_ROWS + r_at + is_8 * (ROW / 2);
#pragma unroll
    for (int o = 0; o < OUT / 4; o++)
#pragma unroll
        for (int r = 0; r < ROW / 2; r++)
            if (out + o < job.matrix.n_out && row + r < job.n_rows)
                job.y[(row + r) * job.y_stride + out + o] = bf16_near_if(job.is_bf16, sum[o][r]);
}

#endif
