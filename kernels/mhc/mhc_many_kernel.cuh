/* The streams of many rows with four streams (mhc_kernel.cuh says what is computed). A block has the
 * matrix of its 64 channels in shared memory; a warp makes four rows at a time on its own, lanes 0-15 one
 * of a pair and 16-31 the other, a lane four channels of all streams of two rows in registers: so streams
 * are read and written once, 16 bytes a lane, without a barrier, and the next rows are copied to where the
 * lane reads them while the dots are computed. A lane's dots are those that lanes L and L + 16 have for one
 * row, so the sums are the same. 8,192 rows of 4 x 5120 on an H200 take 494 us, 3.5 TB/s (2026-12-01; 546
 * with loads to registers, 1,221 by blocks that had the streams in shared memory); without loads 450 to
 * 480, without dots 430. 80 registers, 71 KiB of shared memory, three blocks an SM. */
#ifndef TANDEM_KERNELS_MHC_MHC_MANY_KERNEL_CUH
#define TANDEM_KERNELS_MHC_MHC_MANY_KERNEL_CUH

#include "kernels/mhc/mhc_kernel.cuh"

constexpr int MHC_MANY_MIX = 24; /* of four streams */
constexpr int MHC_MANY_ROWS = 2; /* of a lane; a warp has twice as many */
constexpr int MHC_MANY_OUT = 8;  /* outputs whose dots are added at once */

struct mhc_many_warp {
    float4 in[MHC_MANY_ROWS][5][32];   /* four streams and y of the lanes' rows */
    float coef[2 * MHC_MANY_ROWS][24]; /* post, comb, pre */
    float sums[2 * MHC_MANY_ROWS][MHC_DOTS];
};
struct mhc_many_shared {
    float w[MHC_MANY_MIX][4 * MHC_SLICE];
    mhc_many_warp warps[MHC_WARPS];
};

/* The k-th row of this lane within its warp's. */
__device__ __forceinline__ int mhc_many_row(int k) {
    return 2 * k + (int)(threadIdx.x >> 4 & 1);
}

__device__ __forceinline__ float4 mhc_times(float4 a, float s) {
    return make_float4(a.x * s, a.y * s, a.z * s, a.w * s);
}
__device__ __forceinline__ float4 mhc_plus(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* Starts the copies of rows first .. of the warp, those behind end left out; c: the lane's first channel. */
__device__ __forceinline__ void mhc_many_copy(
    const mhc_streams_params &p, int first, int end, int c, mhc_many_warp &sh) {
    constexpr int ROWS = MHC_MANY_ROWS;
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        const int row = first + mhc_many_row(k);
        if (row >= end) continue;
        const size_t r = mhc_row(p, row);
        const float *h = p.h + r * 4 * p.d + c;
#pragma unroll
        for (int t = 0; t < 4; t++)
            ptx_copy_16(ptx_shared(&sh.in[k][t][lane]), h + (size_t)t * p.d);
        if (p.y != nullptr) ptx_copy_16(ptx_shared(&sh.in[k][4][lane]), p.y + r * p.d + c);
    }
    if (p.y != nullptr && lane < 8 * ROWS && first + lane / 4 < end)
        ptx_copy_16(ptx_shared(&sh.coef[lane / 4][4 + lane % 4 * 4]),
            p.comb + (size_t)first * 16 + lane * 4);
    if (lane >= 2 * ROWS || first + lane >= end) return;
    if (p.y != nullptr)
        ptx_copy_16(ptx_shared(&sh.coef[lane][0]), p.post + (size_t)(first + lane) * 4);
    if (p.raw != nullptr)
        ptx_copy_16(ptx_shared(&sh.coef[lane][20]), p.pre + mhc_row(p, first + lane) * 4);
}

/* Expands one row of the lane with the coefficients q, stored when it is a row; and collapses it. */
__device__ __forceinline__ void mhc_many_make(const mhc_streams_params &p, int row, bool is_here,
    int c, const float *q, float4 (&h)[4], float4 y) {
    const size_t r = is_here ? mhc_row(p, row) : 0;
    if (p.y != nullptr) {
        const float4 post = *(const float4 *)q;
        float4 v[4] = {
            mhc_times(y, post.x), mhc_times(y, post.y), mhc_times(y, post.z), mhc_times(y, post.w)};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float4 comb = *(const float4 *)(q + 4 + 4 * j);
            v[0] = mhc_plus(v[0], mhc_times(h[j], comb.x));
            v[1] = mhc_plus(v[1], mhc_times(h[j], comb.y));
            v[2] = mhc_plus(v[2], mhc_times(h[j], comb.z));
            v[3] = mhc_plus(v[3], mhc_times(h[j], comb.w));
        }
#pragma unroll
        for (int t = 0; t < 4; t++) {
            h[t] = p.is_bf16 ? bf16_near_4(v[t]) : v[t];
            if (is_here) *(float4 *)(p.h + (r * 4 + t) * p.d + c) = h[t];
        }
    }
    if (p.raw == nullptr) return;
    const float4 pre = *(const float4 *)(q + 20);
    float4 v = mhc_times(h[0], pre.x);
    v = mhc_plus(v, mhc_times(h[1], pre.y));
    v = mhc_plus(v, mhc_times(h[2], pre.z));
    v = mhc_plus(v, mhc_times(h[3], pre.w));
    if (is_here) *(float4 *)(p.raw + (size_t)row * p.d + c) = p.is_bf16 ? bf16_near_4(v) : v;
}

/* Sums over 2 M lanes of N values a lane, halving distances; lane L has that of value L % (2 M) / (2 M / N). A
 * recursion, since the compiler keeps v in memory when it does not unroll the loop. */
template <int M, int N, int SIZE> __device__ __forceinline__ float mhc_half_sums(float (&v)[SIZE]) {
    if constexpr (M == 0) return v[0];
    if constexpr (M > 0) {
        const bool is_upper = (threadIdx.x & M) != 0;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float keep = is_upper ? v[i + N / 2] : v[i];
            const float give = is_upper ? v[i] : v[i + N / 2];
            v[i] = keep + __shfl_xor_sync(~0u, give, M);
        }
        if (N == 1) v[0] += __shfl_xor_sync(~0u, v[0], M);
        return mhc_half_sums < M / 2, N == 1 ? 1 : N / 2 > (v);
    }
}

/* Dots f0 .. f0 + OUT - 1 of the warp's rows with the rows of the matrix at w. */
template <int ROWS, int OUT>
__device__ __forceinline__ void mhc_many_dots(
    const float4 (&h)[ROWS][4], const float *w, int f0, float (*sums)[MHC_DOTS]) {
    const int lane = threadIdx.x & 15;
    float v[ROWS * OUT];
#pragma unroll
    for (int g = 0; g < OUT; g++) {
        const float4 *at = (const float4 *)w + g * MHC_SLICE + lane;
        const float4 w0 = at[0], w1 = at[16], w2 = at[32], w3 = at[48];
#pragma unroll
        for (int k = 0; k < ROWS; k++)
            v[k * OUT + g] = mhc_dot4(w2, h[k][2], mhc_dot4(w0, h[k][0], 0.f)) +
                             mhc_dot4(w3, h[k][3], mhc_dot4(w1, h[k][1], 0.f));
    }
    constexpr int LANES = 16 / (ROWS * OUT);
    const float sum = mhc_half_sums<8, ROWS * OUT>(v);
    const int i = lane / LANES;
    if (lane % LANES == 0) sums[mhc_many_row(i / OUT)][f0 + i % OUT] = sum;
}

template <int ROWS>
__device__ __forceinline__ void mhc_many_squares(
    const float4 (&h)[ROWS][4], float (*sums)[MHC_DOTS]) {
    const int lane = threadIdx.x & 15;
    float v[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; k++)
        v[k] = mhc_dot4(h[k][2], h[k][2], mhc_dot4(h[k][0], h[k][0], 0.f)) +
               mhc_dot4(h[k][3], h[k][3], mhc_dot4(h[k][1], h[k][1], 0.f));
    constexpr int LANES = 16 / ROWS;
    const float sum = mhc_half_sums<8, ROWS>(v);
    if (lane % LANES == 0) sums[mhc_many_row(lane / LANES)][MHC_MANY_MIX] = sum;
}

/* The matrix of the block's channels to shared memory. */
__device__ __forceinline__ void mhc_many_matrix(
    const mhc_streams_params &p, int c0, float (*w)[4 * MHC_SLICE]) {
    for (int e = threadIdx.x; e < MHC_MANY_MIX * MHC_SLICE; e += MHC_THREADS) {
        const int f = e / MHC_SLICE, t = e % MHC_SLICE / 16, c = e % 16 * 4;
        *(float4 *)&w[f][t * MHC_SLICE + c] =
            __ldg((const float4 *)(p.fn + ((size_t)f * 4 + t) * p.d + c0 + c));
    }
}

/* Dots of the warp's rows from row on, whole lines. */
template <int ROWS>
__device__ __forceinline__ void mhc_many_store(
    const mhc_streams_params &p, int row, int end, const float (*sums)[MHC_DOTS]) {
    constexpr int PARTS = MHC_DOTS / 4;
#pragma unroll
    for (int k = 0; k < 2 * ROWS * PARTS / 32; k++) {
        const int e = k * 32 + (threadIdx.x & 31), i = e / PARTS, f = e % PARTS * 4;
        if (row + i < end)
            *(float4 *)(p.dots + ((size_t)(row + i) * p.n_slices + blockIdx.x) * MHC_DOTS + f) =
                *(const float4 *)&sums[i][f];
    }
}

/* Grid: slices, groups of rows_of_block rows. */
__global__ void __launch_bounds__(MHC_THREADS, 3)
    mhc_many_kernel(const __grid_constant__ mhc_streams_params p) {
    constexpr int ROWS = MHC_MANY_ROWS, OUT = MHC_MANY_OUT, STEP = 2 * ROWS;
    extern __shared__ __align__(16) char mhc_many_memory[];
    mhc_many_shared &sh = *(mhc_many_shared *)mhc_many_memory;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, c0 = blockIdx.x * MHC_SLICE;
    const int c = c0 + (lane & 15) * 4, first = blockIdx.y * p.rows_of_block;
    const int end = min(first + p.rows_of_block, p.n_rows);
    mhc_many_warp &mine = sh.warps[warp];
    ptx_release_next();
    if (p.dots != nullptr) mhc_many_matrix(p, c0, sh.w);
    for (int e = lane; e < STEP * MHC_DOTS; e += 32) /* what is stored behind the dots */
        mine.sums[e / MHC_DOTS][e % MHC_DOTS] = 0.f;
    ptx_wait_for_previous();
    int row = first + warp * STEP;
    mhc_many_copy(p, row, end, c, mine);
    __syncthreads();
    for (; row < end; row += MHC_WARPS * STEP) {
        float4 h[ROWS][4];
        ptx_copies_wait();
        __syncwarp();
#pragma unroll
        for (int k = 0; k < ROWS; k++) {
            const int i = mhc_many_row(k);
#pragma unroll
            for (int t = 0; t < 4; t++)
                h[k][t] = mine.in[k][t][lane];
            mhc_many_make(p, row + i, row + i < end, c, mine.coef[i], h[k], mine.in[k][4][lane]);
        }
        __syncwarp(); /* all was read */
        mhc_many_copy(p, row + MHC_WARPS * STEP, end, c, mine);
        if (p.dots == nullptr) continue;
#pragma unroll 1
        for (int f = 0; f < MHC_MANY_MIX; f += OUT)
            mhc_many_dots<ROWS, OUT>(h, sh.w[f], f, mine.sums);
        mhc_many_squares<ROWS>(h, mine.sums);
        __syncwarp();
        mhc_many_store<ROWS>(p, row, end, mine.sums);
        __syncwarp();
    }
}

#endif
