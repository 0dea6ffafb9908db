/* Plain linears: a block of four warps takes a few outputs and rows. Threads take groups of four
 * inputs in turn, a warp sums by halving, then the four warps are added in order: the order depends
 * on the length only, whatever the number of outputs and rows of a block. Bound by memory for few
 * rows, by fp32 arithmetic for many; only small matrices are plain in the product. */
#ifndef TANDEM_KERNELS_LINEAR_LINEAR_KERNEL_CUH
#define TANDEM_KERNELS_LINEAR_LINEAR_KERNEL_CUH

#include "kernels/device.cuh"
#include "kernels/linear/linear_gpu.h"

constexpr int PLAIN_THREADS = 128;

__device__ __forceinline__ float4 plain_weights(const gpu_matrix &m, size_t at) {
    if (!m.is_bf16) return __ldg((const float4 *)((const float *)m.data + at));
    const uint2 u = __ldg((const uint2 *)((const uint16_t *)m.data + at));
    return make_float4(__uint_as_float(u.x << 16), __uint_as_float(u.x & 0xffff0000u),
        __uint_as_float(u.y << 16), __uint_as_float(u.y & 0xffff0000u));
}

__device__ __forceinline__ float plain_weight(const gpu_matrix &m, size_t at) {
    return m.is_bf16 ? bf16_value(((const uint16_t *)m.data)[at]) : ((const float *)m.data)[at];
}

/* Four weights from input i on; inputs behind the end count as zero. */
__device__ __forceinline__ float4 plain_weights_safe(const gpu_matrix &m, size_t row, int i) {
    float v[4];
#pragma unroll
    for (int c = 0; c < 4; c++)
        v[c] = i + c < m.n_in ? plain_weight(m, row + i + c) : 0.f;
    return make_float4(v[0], v[1], v[2], v[3]);
}
__device__ __forceinline__ float4 plain_inputs_safe(const float *x, int i, int n) {
    float v[4];
#pragma unroll
    for (int c = 0; c < 4; c++)
        v[c] = i + c < n ? x[i + c] : 0.f;
    return make_float4(v[0], v[1], v[2], v[3]);
}

template <int OUTPUTS, int ROWS>
__device__ __forceinline__ void plain_dots(const gpu_matrix &m, int out0, int n_outputs,
    const float *const (&x)[ROWS], bool is_wide, float (&sum)[OUTPUTS][ROWS]) {
    const int n = m.n_in;
#pragma unroll(OUTPUTS == 1 ? 5 : 1)
    for (int i = threadIdx.x * 4; i < n; i += PLAIN_THREADS * 4) {
        float4 w[OUTPUTS];
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++) {
            const size_t row = (size_t)(out0 + min(o, n_outputs - 1)) * m.row_stride;
            w[o] = is_wide ? plain_weights(m, row + i) : plain_weights_safe(m, row, i);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float4 u = is_wide ? *(const float4 *)(x[r] + i) : plain_inputs_safe(x[r], i, n);
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) {
                sum[o][r] = fmaf(w[o].x, u.x, sum[o][r]);
                sum[o][r] = fmaf(w[o].y, u.y, sum[o][r]);
                sum[o][r] = fmaf(w[o].z, u.z, sum[o][r]);
                sum[o][r] = fmaf(w[o].w, u.w, sum[o][r]);
            }
        }
    }
}

/* Few rows of own jobs, an output a block: its weights are read before the wait for the kernel before.
 * The sums are those of plain_linear_kernel. Grid: outputs, rows / ROWS, jobs. */
constexpr int PLAIN_HELD = 10; /* groups of four weights a thread holds */

template <int ROWS>
__global__ void __launch_bounds__(PLAIN_THREADS)
    plain_few_kernel(const __grid_constant__ plain_args a) {
    __shared__ float parts[PLAIN_THREADS / 32][ROWS];
    ptx_release_next();
    const plain_job &job = a.own[blockIdx.z];
    const gpu_matrix &m = job.matrix;
    const int out = blockIdx.x, r0 = blockIdx.y * ROWS, n = min(ROWS, job.n_rows - r0);
    if (out >= m.n_out || n <= 0) return;
    float4 w[PLAIN_HELD];
#pragma unroll
    for (int i = 0; i < PLAIN_HELD; i++) {
        const int at = (i * PLAIN_THREADS + threadIdx.x) * 4;
        if (at < m.n_in) w[i] = plain_weights(m, (size_t)out * m.row_stride + at);
    }
    ptx_wait_for_previous();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int row = r0 + min(r, n - 1);
        const float *x =
            job.x + (int64_t)(job.x_rows == nullptr ? row : job.x_rows[row]) * job.x_stride;
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < PLAIN_HELD; i++) {
            const int at = (i * PLAIN_THREADS + threadIdx.x) * 4;
            if (at >= m.n_in) continue;
            const float4 u = *(const float4 *)(x + at);
            sum = fmaf(w[i].x, u.x, sum);
            sum = fmaf(w[i].y, u.y, sum);
            sum = fmaf(w[i].z, u.z, sum);
            sum = fmaf(w[i].w, u.w, sum);
        }
        sum = warp_sum(sum);
        if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5][r] = sum;
    }
    __syncthreads();
    const int r = threadIdx.x;
    if (r < n) {
        const float y = ((parts[0][r] + parts[1][r]) + parts[2][r]) + parts[3][r];
        job.y[(r0 + r) * job.y_stride + out] = bf16_near_if(job.is_bf16, y);
    }
}

/* Grid: outputs, tiles of 64 rows, jobs (of own). */
template <int OUTPUTS, int ROWS>
__global__ void __launch_bounds__(PLAIN_THREADS)
    plain_linear_kernel(const __grid_constant__ plain_args a) {
    kernel_begin();
    __shared__ float parts[PLAIN_THREADS / 32][OUTPUTS * ROWS];
    const plain_job *job = a.own + blockIdx.z;
    int row0 = blockIdx.y * EXL3_GPU_TILE_ROWS;
    if (a.jobs != nullptr) {
        if ((int)blockIdx.y >= *a.n_tiles) return;
        job = a.jobs + a.tiles[blockIdx.y].job;
        row0 = a.tiles[blockIdx.y].row;
    }
    const gpu_matrix &m = job->matrix;
    const int out0 = blockIdx.x * OUTPUTS, n_outputs = min(OUTPUTS, m.n_out - out0);
    if (n_outputs <= 0 || row0 >= job->n_rows) return;
    const int end = min(row0 + EXL3_GPU_TILE_ROWS, job->n_rows);
    const bool is_wide = m.n_in % 4 == 0 && m.row_stride % 4 == 0 && job->x_stride % 4 == 0 &&
                         ((uintptr_t)job->x & 15) == 0;
    for (int r0 = row0; r0 < end; r0 += ROWS) {
        const int n = min(ROWS, end - r0);
        const float *x[ROWS];
        float sum[OUTPUTS][ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int i = r0 + min(r, n - 1);
            x[r] = job->x + (int64_t)(job->x_rows == nullptr ? i : job->x_rows[i]) * job->x_stride;
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++)
                sum[o][r] = 0.f;
        }
        plain_dots<OUTPUTS, ROWS>(m, out0, n_outputs, x, is_wide, sum);
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++)
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const float y = warp_sum(sum[o][r]);
                if ((threadIdx.x & 31) == 0) parts[threadIdx.x >> 5][o * ROWS + r] = y;
            }
        __syncthreads();
        for (int i = threadIdx.x; i < OUTPUTS * ROWS; i += PLAIN_THREADS) {
            const int o = i / ROWS, r = i % ROWS;
            if (o >= n_outputs || r >= n) continue;
            const float y = ((parts[0][i] + parts[1][i]) + parts[2][i]) + parts[3][i];
            job->y[(r0 + r) * job->y_stride + out0 + o] = bf16_near_if(job->is_bf16, y);
        }
        __syncthreads();
    }
}

#endif
