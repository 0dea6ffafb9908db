/* Plain linears: one warp an output, up to 4 rows share one read of its weights. Lanes take groups
 * of four values in turn and the warp sums by halving: the order depends on the length only. Bound
 * by memory for few rows; only small matrices are plain in the product. */
#ifndef TANDEM_KERNELS_LINEAR_LINEAR_KERNEL_CUH
#define TANDEM_KERNELS_LINEAR_LINEAR_KERNEL_CUH

#include "kernels/device.cuh"
#include "kernels/linear/linear_gpu.h"

constexpr int PLAIN_TILE = 4;    /* rows of one read */
constexpr int PLAIN_OUTPUTS = 8; /* of a block, one a warp */

__device__ __forceinline__ float4 plain_weights(const gpu_matrix &m, size_t at) {
    if (!m.is_bf16) return __ldg((const float4 *)((const float *)m.data + at));
    const uint2 u = __ldg((const uint2 *)((const uint16_t *)m.data + at));
    return make_float4(__uint_as_float(u.x << 16), __uint_as_float(u.x & 0xffff0000u),
        __uint_as_float(u.y << 16), __uint_as_float(u.y & 0xffff0000u));
}

__device__ __forceinline__ float plain_weight(const gpu_matrix &m, size_t at) {
    return m.is_bf16 ? bf16_value(((const uint16_t *)m.data)[at]) : ((const float *)m.data)[at];
}

__device__ __forceinline__ void plain_dots(const gpu_matrix &m, size_t w,
    const float *const (&x)[PLAIN_TILE], int n_rows, float (&sum)[PLAIN_TILE]) {
    const int lane = threadIdx.x & 31, n = m.n_in;
    const bool is_wide = n % 4 == 0 && m.row_stride % 4 == 0;
    if (!is_wide) {
        for (int i = lane; i < n; i += 32) {
            const float v = plain_weight(m, w + i);
#pragma unroll
            for (int r = 0; r < PLAIN_TILE; r++)
                if (r < n_rows) sum[r] = fmaf(v, x[r][i], sum[r]);
        }
        return;
    }
#pragma unroll 8
    for (int i = lane * 4; i < n; i += 128) {
        const float4 v = plain_weights(m, w + i);
#pragma unroll
        for (int r = 0; r < PLAIN_TILE; r++) {
            if (r >= n_rows) break;
            const float4 u = *(const float4 *)(x[r] + i);
            sum[r] = fmaf(v.x, u.x, sum[r]);
            sum[r] = fmaf(v.y, u.y, sum[r]);
            sum[r] = fmaf(v.z, u.z, sum[r]);
            sum[r] = fmaf(v.w, u.w, sum[r]);
        }
    }
}

__global__ void __launch_bounds__(PLAIN_OUTPUTS * 32)
    plain_linear_kernel(const __grid_constant__ plain_args a) {
    const plain_job *job = a.own + blockIdx.z;
    int row0 = blockIdx.y * EXL3_GPU_TILE_ROWS;
    if (a.jobs != nullptr) {
        if ((int)blockIdx.y >= *a.n_tiles) return;
        job = a.jobs + a.tiles[blockIdx.y].job;
        row0 = a.tiles[blockIdx.y].row;
    }
    const int out = blockIdx.x * PLAIN_OUTPUTS + (threadIdx.x >> 5);
    const gpu_matrix &m = job->matrix;
    if (out >= m.n_out || row0 >= job->n_rows) return;
    const int end = min(row0 + EXL3_GPU_TILE_ROWS, job->n_rows);
    for (int r0 = row0; r0 < end; r0 += PLAIN_TILE) {
        const int n = min(PLAIN_TILE, end - r0);
        const float *x[PLAIN_TILE];
        float sum[PLAIN_TILE];
#pragma unroll
        for (int r = 0; r < PLAIN_TILE; r++) {
            const int i = r0 + min(r, n - 1);
            x[r] = job->x + (int64_t)(job->x_rows == nullptr ? i : job->x_rows[i]) * job->x_stride;
            sum[r] = 0.f;
        }
        plain_dots(m, (size_t)out * m.row_stride, x, n, sum);
#pragma unroll
        for (int r = 0; r < PLAIN_TILE; r++) {
            const float y = warp_sum(sum[r]);
            if ((threadIdx.x & 31) == 0 && r < n)
                job->y[(r0 + r) * job->y_stride + out] = bf16_near_if(job->is_bf16, y);
        }
    }
}

#endif
