/*
 * Few rows on matrices with few outputs: a cluster of CTAs for every block of 128 outputs, each CTA a part of the
 * inputs. The warps' loop is that of the rows kernel; sums meet in shared memory, of the CTA first and of the cluster
 * then, so nothing goes through global memory and no counter is waited for. Integer sums: the same bits as any other
 * split. At most 128 registers; a ring of 16 warps and 1 KB a row of shared memory.
 */
#ifndef KERNELS_EXL3_BLOCK_KERNEL_CUH
#define KERNELS_EXL3_BLOCK_KERNEL_CUH

#include "kernels/exl3/exl3_rows_kernel.cuh"

struct exl3_block_params {
    exl3_powers powers;
    exl3_gpu_own_list own;
    int slot_bytes, n_stages, local_rows;
};

/* Rows of the block, dealt out over the warps of the cluster. */
__device__ __forceinline__ void exl3_block_finish(
    const exl3_block_params &p, const exl3_gpu_job &job, int block, int part, uint32_t local) {
    const int n_parts = (int)ptx_cluster_size(), warp = threadIdx.x >> 5;
    const int at = block * 128 + (threadIdx.x & 31) * 4;
    for (int r = part + n_parts * warp; r < job.n_rows; r += n_parts * EXL3_WARPS) {
        const int2 m = __ldcg((const int2 *)(job.scale + r));
        const exl3_gpu_scale scale = {__int_as_float(m.x), m.y};
        const float4 svh = exl3_half4(job.matrix.svh + at);
        float4 y = exl3_cluster_row(local, n_parts, p.local_rows, r, scale);
        y = exl3_times(exl3_rotate(y, threadIdx.x & 31), svh);
        if (job.matrix.bias != nullptr) {
            const float4 bias = exl3_half4(job.matrix.bias + at);
            y = make_float4(y.x + bias.x, y.y + bias.y, y.z + bias.z, y.w + bias.w);
        }
        *(float4 *)(job.y + r * job.y_stride + at) = bf16_near_4_if(job.is_bf16, y);
    }
}

/* Grid: blocks of all jobs, times the size of a cluster. */
static __global__ void __launch_bounds__(EXL3_WARPS * 32, 1)
    exl3_block_kernel(const __grid_constant__ exl3_block_params p) {
    extern __shared__ __align__(128) unsigned char shared[];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int n_parts = (int)ptx_cluster_size(), part = blockIdx.x % n_parts;
    int block = blockIdx.x / n_parts, j = 0;
    for (; block >= p.own.jobs[j].matrix.out / 128; j++)
        block -= p.own.jobs[j].matrix.out / 128;
    const exl3_gpu_job &job = p.own.jobs[j];
    const int units_in = job.matrix.in / EXL3_GPU_UNIT_IN;
    const int2 mine =
        exl3_share(units_in, n_parts * EXL3_WARPS / 2, part * EXL3_WARPS / 2 + warp / 2);
    const int n_mine = mine.y - mine.x;
    exl3_ring ring(ptx_shared(shared) + warp * p.n_stages * p.slot_bytes, p.slot_bytes, p.n_stages);
    exl3_feed feed;
    feed.jobs = p.own.jobs;
    if (n_mine > 0) feed.enter(j, (block * 2 + warp % 2) * units_in + mine.x);
    exl3_feed operands = feed; /* follows behind: the weights are fetched early */
    exl3_fill_words(ring, feed, n_mine);
    if (warp == EXL3_WARPS - 1 && lane < 2)
        ptx_prefetch_l2(job.matrix.svh + block * 128 + lane * 64);
    int *local = (int *)(shared + EXL3_WARPS * p.n_stages * p.slot_bytes);
    for (int i = threadIdx.x; i < p.local_rows * 256; i += EXL3_WARPS * 32)
        local[i] = 0;
    ptx_wait_for_previous();
    ptx_release_next();
    exl3_fill_operands(ring, operands, n_mine);
    __syncthreads();
    if (n_mine > 0) {
        const exl3_target to = {
            local + (warp % 2) * p.local_rows * 128, nullptr, job.matrix.out, job.n_rows};
        if (job.row_cap <= 4) {
            exl3_strip_of<1>(ring, feed, job, make_int2(n_mine, n_mine), to, p.powers);
        } else {
            exl3_strip_of<2>(ring, feed, job, make_int2(n_mine, n_mine), to, p.powers);
        }
    }
    ptx_cluster_barrier();
    exl3_block_finish(p, job, block, part, ptx_shared(local));
    ptx_cluster_barrier(); /* nobody leaves while its sums are read */
}

#endif
