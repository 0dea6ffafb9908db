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
 * thread. 254 registers.
 *
 * A stage is one or two j of a step: eight groups of four inputs of every row (pieces of 32 bytes) and output a j.
 * The weights have been brought into the order of the stages, as floats, so that a stage is one bulk copy.
 *
 * Floor: fp32 multiply-adds, 0.49 ms for 8,192 x 5,120 -> 384 on 132 SMs at 1,980 MHz; measured 0.85 (H200, 2026-12-01),
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
constexpr int PLAIN_TILE_ROWS = 2 * PLAIN_TILE_ROW; /* of a CTA */
constexpr int PLAIN_TILE_COPIES = PLAIN_TILE_ROWS * PLAIN_TILE_CHAINS / PLAIN_TILE_THREADS;
constexpr int PLAIN_TILE_WEIGHT_BYTES = PLAIN_TILE_OUTPUTS * PLAIN_TILE_LINE; /* for one j */
constexpr int PLAIN_TILE_ROW_BYTES = PLAIN_TILE_ROWS * PLAIN_TILE_LINE;
constexpr int PLAIN_TILE_STASH_BYTES =
    PLAIN_TILE_THREADS * (2 * PLAIN_TILE_KEPT + PLAIN_TILE_LAST) * (int)sizeof(float);

/* A stage holds the inputs of J_ values of j; AHEAD_ stages are fetched before they are used, and warps may lie as
 * many stages apart as are left. */
template <int J_, int STAGES_, int AHEAD_> struct plain_tile_form {
    static constexpr int J = J_, STAGES = STAGES_, AHEAD = AHEAD_;
    static constexpr int STAGE_BYTES = J * (PLAIN_TILE_WEIGHT_BYTES + PLAIN_TILE_ROW_BYTES);
    static constexpr int SHARED_BYTES = STAGES * (STAGE_BYTES + 16) + PLAIN_TILE_STASH_BYTES;
};
using plain_tile_large = plain_tile_form<2, 3, 1>; /* 112 KB: two CTAs of an H200's SM; 0.85 ms */
using plain_tile_small = plain_tile_form<1, 4, 2>; /* 88 KB, for any length; 0.90 ms */
static_assert(PLAIN_TILE_OUTPUTS == 2 * PLAIN_TILE_OUT * PLAIN_TILE_WARPS &&
                  PLAIN_TILE_ROWS * PLAIN_TILE_CHAINS % PLAIN_TILE_THREADS == 0 &&
                  plain_tile_small::SHARED_BYTES <= 99 * 1024,
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
template <class FORM> struct plain_tile_place {
    int slot = 0, phase = 0;
    __device__ __forceinline__ void next() {
        if (++slot == FORM::STAGES) slot = 0, phase ^= 1;
    }
};

/* Fetches the stages of a CTA in order: a bulk copy of the weights by the first thread, the rows in pieces
 * by all. */
template <class FORM> struct plain_tile_fill {
    const float *x[PLAIN_TILE_COPIES], *weights;
    uint32_t ring, full, empty; /* barriers: a stage is there, a stage is free */
    int n_stages, in = 0, i_stage = 0, step = 0, n_left, n_new = FORM::STAGES;
    plain_tile_place<FORM> place;

    __device__ __forceinline__ void init(const plain_tile_args &a, int row0) {
        const plain_job &job = a.job;
#pragma unroll
        for (int i = 0; i < PLAIN_TILE_COPIES; i++) {
            const int at = threadIdx.x + i * PLAIN_TILE_THREADS,
                      r = min(row0 + at / PLAIN_TILE_CHAINS, job.n_rows - 1);
            x[i] = job.x + (int64_t)(job.x_rows == nullptr ? r : job.x_rows[r]) * job.x_stride +
                   plain_tile_chain(at % PLAIN_TILE_CHAINS);
        }
        n_stages = job.matrix.n_in / (512 * FORM::J);
        n_left = PLAIN_TILE_STEPS * n_stages;
        weights = a.weights + (size_t)blockIdx.x * n_left * (FORM::J * PLAIN_TILE_WEIGHT_BYTES / 4);
    }
    __device__ __forceinline__ void next() {
        if (n_left == 0) return;
        if (n_new == 0) {
            ptx_barrier_wait(empty + 8 * place.slot, place.phase ^ 1);
        } else {
            n_new--;
        }
        const uint32_t to = ring + place.slot * FORM::STAGE_BYTES, barrier = full + 8 * place.slot;
        if (threadIdx.x == 0) {
            ptx_barrier_expect(barrier, FORM::J * PLAIN_TILE_WEIGHT_BYTES);
            ptx_bulk_copy(to, weights, FORM::J * PLAIN_TILE_WEIGHT_BYTES, barrier);
        }
        const uint32_t rows = to + FORM::J * PLAIN_TILE_WEIGHT_BYTES + threadIdx.x * 16;
#pragma unroll
        for (int j = 0; j < FORM::J; j++)
#pragma unroll
            for (int i = 0; i < PLAIN_TILE_COPIES; i++)
                ptx_copy_16(rows + j * PLAIN_TILE_ROW_BYTES + i * PLAIN_TILE_THREADS * 16,
                    x[i] + in + j * 512);
        ptx_copies_arrive(barrier);
        weights += FORM::J * PLAIN_TILE_WEIGHT_BYTES / 4;
        in += 512 * FORM::J;
        if (++i_stage == n_stages) i_stage = 0, in = plain_tile_step(++step);
        place.next();
        n_left--;
    }
};

typedef float plain_tile_sums[PLAIN_TILE_OUT][PLAIN_TILE_ROW];

/* One j; w_at and x_at: the lower and the upper half of a thread's outputs and rows. */
__device__ __forceinline__ void plain_tile_multiply(const uint32_t (&w_at)[2], uint32_t w_from,
    const uint32_t (&x_at)[2], uint32_t x_from, plain_tile_sums &sum) {
    constexpr int OUT = PLAIN_TILE_OUT, ROW = PLAIN_TILE_ROW;
    float4 w[OUT];
#pragma unroll
    for (int o = 0; o < OUT; o++)
        w[o] = plain_tile_load(w_at[o / (OUT / 2)] + w_from + o % (OUT / 2) * PLAIN_TILE_LINE);
#pragma unroll
    for (int r = 0; r < ROW; r++) {
        const float4 x =
            plain_tile_load(x_at[r / (ROW / 2)] + x_from + r % (ROW / 2) * PLAIN_TILE_LINE);
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
template <class FORM>
__global__ void __launch_bounds__(PLAIN_TILE_THREADS, 2)
    plain_tile_kernel(const __grid_constant__ plain_tile_args a) {
    extern __shared__ __align__(128) unsigned char plain_tile_shared[];
    constexpr int OUT = PLAIN_TILE_OUT, ROW = PLAIN_TILE_ROW, LINE = PLAIN_TILE_LINE;
    kernel_begin();
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, chain = lane & 7;
    const int is_16 = chain >> 2, is_8 = chain >> 1 & 1, is_1 = chain & 1;
    const int o_at = (warp * 2 + (lane >> 3 & 1)) * OUT, r_at = (lane >> 4) * ROW;
    const uint32_t ring = ptx_shared(plain_tile_shared),
                   stash = ring + FORM::STAGES * FORM::STAGE_BYTES + threadIdx.x * 16;
    plain_tile_fill<FORM> fill;
    fill.ring = ring;
    fill.full = ring + FORM::STAGES * FORM::STAGE_BYTES + PLAIN_TILE_STASH_BYTES;
    fill.empty = fill.full + 8 * FORM::STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < FORM::STAGES; i++) {
            ptx_barrier_init(fill.full + 8 * i, PLAIN_TILE_THREADS + 1);
            ptx_barrier_init(fill.empty + 8 * i, PLAIN_TILE_WARPS);
        }
        ptx_barrier_init_fence();
    }
    __syncthreads();
    fill.init(a, blockIdx.y * PLAIN_TILE_ROWS);
#pragma unroll 1
    for (int i = 0; i < FORM::AHEAD; i++)
        fill.next();
    const uint32_t w = ring + o_at * LINE + chain * 16,
                   x = ring + FORM::J * PLAIN_TILE_WEIGHT_BYTES + r_at * LINE + chain * 16;
    const uint32_t w_at[2] = {w + is_16 * (OUT / 2 * LINE), w + (is_16 ^ 1) * (OUT / 2 * LINE)},
                   x_at[2] = {x + is_8 * (ROW / 2 * LINE), x + (is_8 ^ 1) * (ROW / 2 * LINE)};
    plain_tile_sums sum;
    plain_tile_place<FORM> place;
#pragma unroll 1
    for (int step = 0; step < PLAIN_TILE_STEPS; step++) {
        plain_tile_zero(sum);
#pragma unroll 1
        for (int i = 0; i < fill.n_stages; i++) {
            const uint32_t from = place.slot * FORM::STAGE_BYTES;
            fill.next();
            ptx_barrier_wait(fill.full + 8 * place.slot, place.phase);
#pragma unroll
            for (int j = 0; j < FORM::J; j++)
                plain_tile_multiply(w_at, from + j * PLAIN_TILE_WEIGHT_BYTES, x_at,
                    from + j * PLAIN_TILE_ROW_BYTES, sum);
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
