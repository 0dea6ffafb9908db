/*
 * Rows to integer operands: one CTA a row of a job. Each warp rotates blocks of 128 in registers; the maximum and the sum
 * of the row go through shared memory. Bound by latency: one read of the row, one write of 2 bytes a value.
 */
#ifndef KERNELS_EXL3_ROTATE_KERNEL_CUH
#define KERNELS_EXL3_ROTATE_KERNEL_CUH

#include "kernels/exl3/exl3_decode.cuh"

constexpr int EXL3_ROTATE_WARPS = 16;
constexpr int EXL3_ROTATE_BLOCKS = EXL3_MAX_IN / 128 / EXL3_ROTATE_WARPS; /* of a warp */

struct exl3_rotate_params {
    const exl3_gpu_list *list; /* NULL: own */
    exl3_gpu_own_list own;
};

/* Row of a job's input. */
__device__ __forceinline__ const float *exl3_input_row(const exl3_gpu_job &job, int row) {
    return job.x + (int64_t)(job.x_rows == nullptr ? row : job.x_rows[row]) * job.x_stride;
}

/* The operand as rows and experts read it. */
struct exl3_put_rows {
    __device__ static int put(const exl3_gpu_job &job, int row, int at, float4 v, float inv) {
        return exl3_put_operand(job.operand, job.row_cap, row, at, v, inv);
    }
};

/* What the warps of a CTA tell each other. */
struct exl3_rotate_shared {
    uint32_t most[EXL3_ROTATE_WARPS];
    int sum[EXL3_ROTATE_WARPS];
};

/* Rotates one row x [in] with suh into the operand of row of the job. All threads of the CTA. */
template <class PUT>
__device__ __forceinline__ void exl3_rotate_row(
    const exl3_gpu_job &job, int row, exl3_rotate_shared &sh) {
    const float *x = exl3_input_row(job, row);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_blocks = job.matrix.in / 128;
    float4 v[EXL3_ROTATE_BLOCKS];
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < EXL3_ROTATE_BLOCKS; i++) {
        const int b = warp + i * EXL3_ROTATE_WARPS;
        if (b >= n_blocks) continue;
        const int at = b * 128 + lane * 4;
        v[i] = exl3_rotate(
            exl3_times(__ldcg((const float4 *)(x + at)), exl3_half4(job.matrix.suh + at)), lane);
        most = max(most, exl3_magnitude(v[i]));
    }
    most = __reduce_max_sync(~0u, most);
    if (lane == 0) sh.most[warp] = most;
    __syncthreads();
    const exl3_row_range range(
        __reduce_max_sync(~0u, lane < EXL3_ROTATE_WARPS ? sh.most[lane] : 0u));
    int sum = 0;
#pragma unroll
    for (int i = 0; i < EXL3_ROTATE_BLOCKS; i++) {
        const int b = warp + i * EXL3_ROTATE_WARPS;
        if (b >= n_blocks) continue;
        sum += PUT::put(job, row, b * 128 + lane * 4, v[i], range.inv);
    }
    sum = __reduce_add_sync(~0u, sum);
    if (lane == 0) sh.sum[warp] = sum;
    __syncthreads();
    if (warp != 0) return;
    sum = __reduce_add_sync(~0u, lane < EXL3_ROTATE_WARPS ? sh.sum[lane] : 0);
    if (lane == 0) *(int2 *)(job.scale + row) = make_int2(__float_as_int(range.scale), sum);
}

#endif
