/*
 * How a block of 128 outputs is finished once all its units are summed: dense linears, gate with up, down. One warp a
 * block; 4 outputs a lane.
 */
#ifndef KERNELS_EXL3_FINISH_CUH
#define KERNELS_EXL3_FINISH_CUH

#include "kernels/device.cuh"
#include "kernels/exl3/exl3_decode.cuh"

enum exl3_epilogue { EXL3_DENSE, EXL3_GATE_UP, EXL3_DOWN };

struct exl3_rows_params {
    exl3_powers powers;
    const exl3_gpu_list *list; /* NULL: own */
    exl3_gpu_own_list own;
    int64_t *sums;
    int *counters;
    int slot_bytes, n_stages;
    int max_local; /* rows of strips a CTA may sum in shared memory */
    int has_early_list;
    /* experts only */
    const exl3_gpu_list *down;
    float *hidden;
    uint32_t *row_max;
    int *row_counter, *block_counter;
    const float *weight;
    float *part;
    const int *pair_of;
    float *y;
    int n_tokens, n_choices;
    float limit;
    int is_bf16;
};

__device__ __forceinline__ const exl3_gpu_list *exl3_list_of(const exl3_rows_params &p) {
    return p.list != nullptr ? p.list : (const exl3_gpu_list *)&p.own;
}

/* Counts up by n after everything this warp wrote; true for all lanes of the warp that completes total. */
__device__ __forceinline__ bool exl3_completes(int *counter, int n, int total) {
    ptx_fence_device();
    __syncwarp();
    int old = 0;
    if ((threadIdx.x & 31) == 0) old = atomicAdd(counter, n);
    old = __shfl_sync(~0u, old, 0);
    if (old + n != total) return false;
    ptx_fence_device();
    if ((threadIdx.x & 31) == 0) *counter = 0;
    return true;
}

/* One row of a block in the output basis: sums taken, rotated, times svh. */
__device__ __forceinline__ float4 exl3_row_of(
    const exl3_rows_params &p, const exl3_gpu_job &job, int block, int row) {
    const int lane = threadIdx.x & 31;
    int64_t *sums = p.sums + job.first_sum + (size_t)row * job.matrix.out + block * 128;
    float4 z = exl3_rotate(exl3_take(sums, job.scale + row, lane), lane);
    return exl3_times(z, exl3_half4(job.matrix.svh + block * 128 + lane * 4));
}

/* Sums of one row: this lane's four outputs over the cluster, in the rotated basis. */
__device__ __forceinline__ float4 exl3_cluster_row(
    uint32_t local, int n_parts, int local_rows, int row, exl3_gpu_scale scale) {
    const int lane = threadIdx.x & 31, strip = lane >> 4, output = (lane & 15) * 4;
    const uint32_t at = local + (uint32_t)((strip * local_rows + row) * 64 + output) * 8;
    int4 a = make_int4(0, 0, 0, 0), b = a;
    for (int c = 0; c < n_parts; c++) {
        const int4 u = ptx_load_cluster_16(at, c), v = ptx_load_cluster_16(at + 16, c);
        a = make_int4(a.x + u.x, a.y + u.y, a.z + u.z, a.w + u.w);
        b = make_int4(b.x + v.x, b.y + v.y, b.z + v.z, b.w + v.w);
    }
    return make_float4(exl3_unscale(a.x * 256ll + a.y, scale),
        exl3_unscale(a.z * 256ll + a.w, scale), exl3_unscale(b.x * 256ll + b.y, scale),
        exl3_unscale(b.z * 256ll + b.w, scale));
}

__device__ __forceinline__ void exl3_finish_dense(
    const exl3_rows_params &p, const exl3_gpu_job &job, int block, int2 rows) {
    const int at = block * 128 + (threadIdx.x & 31) * 4;
    float4 bias = make_float4(0.f, 0.f, 0.f, 0.f);
    if (job.matrix.bias != nullptr) bias = exl3_half4(job.matrix.bias + at);
    for (int r = rows.x; r < rows.y; r++) {
        float4 y = exl3_row_of(p, job, block, r);
        if (job.matrix.bias != nullptr)
            y = make_float4(y.x + bias.x, y.y + bias.y, y.z + bias.z, y.w + bias.w);
        *(float4 *)(job.y + r * job.y_stride + at) = bf16_near_4_if(job.is_bf16, y);
    }
}

/* The integer operand of down for a row of an expert, once every block of its hidden values is there. */
__device__ __forceinline__ void exl3_quantize_hidden(
    const exl3_rows_params &p, const exl3_gpu_job &down, int row) {
    const int lane = threadIdx.x & 31, n = down.matrix.in, pair = down.first_pair + row;
    const exl3_row_range range(__ldcg(p.row_max + pair));
    int sum = 0;
#pragma unroll 10
    for (int at = lane * 4; at < n; at += 128) {
        float4 h = __ldcg((const float4 *)(p.hidden + (size_t)pair * n + at));
        sum += exl3_put_operand(down.operand, down.row_cap, row, at, h, range.inv);
    }
    sum = __reduce_add_sync(~0u, sum);
    if (lane != 0) return;
    p.row_max[pair] = 0;
    *(int2 *)(down.scale + row) = make_int2(__float_as_int(range.scale), sum);
}

__device__ __forceinline__ void exl3_finish_gate_up(
    const exl3_rows_params &p, int job, int block, int2 rows) {
    const int lane = threadIdx.x & 31;
    const exl3_gpu_job &gate = p.list->jobs[job & ~1], &up = p.list->jobs[job | 1];
    const exl3_gpu_job &down = p.down->jobs[job >> 1];
    const int n = gate.matrix.out, at = block * 128 + lane * 4;
    const float4 suh = exl3_half4(down.matrix.suh + at);
    const float4 gate_svh = exl3_half4(gate.matrix.svh + at),
                 up_svh = exl3_half4(up.matrix.svh + at);
    for (int r = rows.x; r < rows.y; r++) {
        const int pair = down.first_pair + r;
        const size_t from = (size_t)r * n + block * 128;
        const float w = __ldcg(p.weight + pair);
        const exl3_four_sums gate_sums(p.sums + gate.first_sum + from, gate.scale + r, lane);
        const exl3_four_sums up_sums(p.sums + up.first_sum + from, up.scale + r, lane);
        gate_sums.clear();
        up_sums.clear();
        const float4 g =
            bf16_near_4_if(p.is_bf16, exl3_times(exl3_rotate(gate_sums.value(), lane), gate_svh));
        const float4 u =
            bf16_near_4_if(p.is_bf16, exl3_times(exl3_rotate(up_sums.value(), lane), up_svh));
        float4 h = make_float4(swiglu_of(g.x, u.x, p.limit, w), swiglu_of(g.y, u.y, p.limit, w),
            swiglu_of(g.z, u.z, p.limit, w), swiglu_of(g.w, u.w, p.limit, w));
        h = bf16_near_4_if(p.is_bf16, h);
        h = exl3_rotate(exl3_times(h, suh), lane);
        __stcg((float4 *)(p.hidden + (size_t)pair * n + at), h);
        const uint32_t most = __reduce_max_sync(~0u, exl3_magnitude(h));
        if (lane == 0) atomicMax(p.row_max + pair, most);
        if (exl3_completes(p.row_counter + pair, 1, n / 128)) exl3_quantize_hidden(p, down, r);
    }
}

/* The sums over the choices of every token, 128 outputs; two tokens at a time, so that their reads overlap. */
__device__ __forceinline__ void exl3_sum_tokens(const exl3_rows_params &p, int n, int at) {
    for (int t = 0; t < p.n_tokens; t += 2) {
        const int *of = p.pair_of + t * p.n_choices;
        const int second = t + 1 < p.n_tokens ? p.n_choices : 0;
        float4 a = make_float4(0.f, 0.f, 0.f, 0.f), b = a;
#pragma unroll 4
        for (int c = 0; c < p.n_choices; c++) {
            const int pair_a = __ldcg(of + c), pair_b = __ldcg(of + second + c);
            const float4 u = __ldcg((const float4 *)(p.part + (size_t)pair_a * n + at));
            const float4 v = __ldcg((const float4 *)(p.part + (size_t)pair_b * n + at));
            a = make_float4(a.x + u.x, a.y + u.y, a.z + u.z, a.w + u.w);
            b = make_float4(b.x + v.x, b.y + v.y, b.z + v.z, b.w + v.w);
        }
        *(float4 *)(p.y + (size_t)t * n + at) = a;
        if (second != 0) *(float4 *)(p.y + (size_t)(t + 1) * n + at) = b;
    }
}

__device__ __forceinline__ void exl3_finish_down(
    const exl3_rows_params &p, const exl3_gpu_job &job, int block, int2 rows) {
    const int n = job.matrix.out, at = block * 128 + (threadIdx.x & 31) * 4;
    for (int r = rows.x; r < rows.y; r++) {
        float4 y = bf16_near_4_if(p.is_bf16, exl3_row_of(p, job, block, r));
        __stcg((float4 *)(p.part + (size_t)(job.first_pair + r) * n + at), y);
    }
}

/* All rows of a block of down are finished; the tokens are summed when those of all experts are. */
__device__ __forceinline__ void exl3_close_down(
    const exl3_rows_params &p, const exl3_gpu_job &job, int block) {
    if (exl3_completes(p.block_counter + block, job.n_rows, p.n_tokens * p.n_choices))
        exl3_sum_tokens(p, job.matrix.out, block * 128 + (threadIdx.x & 31) * 4);
}

/* Rows [rows.x, rows.y) of a block whose sums are complete. */
template <int EPILOGUE>
__device__ __forceinline__ void exl3_finish(
    const exl3_rows_params &p, const exl3_gpu_job *jobs, int2 job_block, int2 rows) {
    const exl3_gpu_job &job = jobs[job_block.x];
    if constexpr (EPILOGUE == EXL3_DENSE) exl3_finish_dense(p, job, job_block.y, rows);
    if constexpr (EPILOGUE == EXL3_GATE_UP) exl3_finish_gate_up(p, job_block.x, job_block.y, rows);
    if constexpr (EPILOGUE == EXL3_DOWN) exl3_finish_down(p, job, job_block.y, rows);
}

/* A warp is done with n units of strip at.y of job at.x; true when that completes the strip's block. */
template <int EPILOGUE>
__device__ __forceinline__ bool exl3_arrive(
    const exl3_rows_params &p, const exl3_gpu_job &job, int strip, int n) {
    const int total = (EPILOGUE == EXL3_GATE_UP ? 4 : 2) * (job.matrix.in / EXL3_GPU_UNIT_IN);
    return exl3_completes(p.counters + job.first_counter + (strip >> 1), n, total);
}

#endif
