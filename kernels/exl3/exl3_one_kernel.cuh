/*
 * One row on matrices whose weights fit into the shared memory of all SMs at once: 16 warps a CTA, one CTA an SM, every
 * byte of the weights on its way before the wait for the kernel before.
 *
 *   CTA    a contiguous share of the slices (16 inputs by 64 outputs) of a job; a warp a contiguous share of those,
 *          fetched by a few bulk copies, each with a barrier of its own
 *   row    the integer operand, read, or made here from the row itself, its norm first: then no launch has to make it.
 *          CTAs behind the last of the products do other row work of that kind (prepare_aside.cuh)
 *   sums   of a CTA in its shared memory. A block of 128 outputs is finished by the CTA that has its last slice; the ones
 *          before it leave what they have of it in global memory, value and mark in one word, so that nothing but the
 *          words is waited for. CTAs wait for those of lower number only, which start before them and leave what they have
 *          before they wait themselves, so no number of them need run at once
 *
 * Integer sums: the same bits as any other split. At most 128 registers. On an H200 (2026-12-01, stamps in a chain of
 * 4096 -> 5120 at 5 bits) of 11.1 us: 0.6 from the end of the kernel before, 1.0 to 1.6 for the row, 4.7 for the
 * products (about 59 cycles for 256 weights and quarter SM, the start included), the rest for the way of the sums and the
 * end.
 */
#ifndef KERNELS_EXL3_ONE_KERNEL_CUH
#define KERNELS_EXL3_ONE_KERNEL_CUH

#include "kernels/exl3/exl3_operand.cuh"
#include "kernels/exl3/exl3_rows_kernel.cuh"
#include "kernels/prepare/prepare_aside.cuh"

constexpr int EXL3_ONE_CHUNK = 4;  /* slices of a bulk copy */
constexpr int EXL3_ONE_CHUNKS = 8; /* bulk copies of a warp */
constexpr int EXL3_ONE_BLOCKS = 4; /* blocks of 128 outputs that a CTA touches */
constexpr int EXL3_ONE_HELD = 3;   /* blocks of 128 inputs that a warp rotates */
constexpr int EXL3_ONE_PARTS = 16; /* CTAs of a block, but for its last */

/* One matrix and its row. Its CTAs share its slices: the first n_longer have one more than the others. */
struct exl3_one_job {
    const uint32_t *words;
    const uint16_t *suh, *svh, *bias;
    const float *x, *norm; /* norm: weights of the norm that the row gets first, or NULL */
    float *row_y;          /* where the row goes behind its norm, or NULL */
    const uint32_t *operand;
    const exl3_gpu_scale *scale;
    float *y;
    float eps;
    int first_cta, share, n_longer;
    int strip_slices;   /* in / 16 */
    uint32_t per_strip; /* 2^32 / strip_slices, rounded up */
    int k2, is_bf16;
};

struct exl3_one_params {
    exl3_powers powers;
    int64_t *slots;                  /* [CTAs][128], zero before and after */
    int n_jobs, n_ctas, words_bytes; /* words_bytes: of a CTA */
    int is_bf16;                     /* rounds rows behind their norm */
    exl3_one_job jobs[EXL3_GPU_OWN_JOBS];
    prepare_aside aside; /* a task a CTA behind those */
};

struct exl3_one_shared {
    unsigned long long barriers[EXL3_WARPS * EXL3_ONE_CHUNKS];
    float squares[2 * EXL3_WARPS];
    uint32_t most[EXL3_WARPS];
    int sum[EXL3_WARPS];
    int local[EXL3_ONE_BLOCKS][2][64][2];
};

/* First slice of a CTA of a job. */
__device__ __forceinline__ int exl3_one_first(const exl3_one_job &job, int cta) {
    const int i = cta - job.first_cta;
    return i * job.share + min(i, job.n_longer);
}
__device__ __forceinline__ int exl3_one_strip(const exl3_one_job &job, int slice) {
    return (int)__umulhi((uint32_t)slice, job.per_strip);
}

/* Fetches the slices [at, end): a copy for every chunk of a strip. One lane. */
__device__ __forceinline__ void exl3_one_fetch(
    const exl3_one_job &job, int at, int end, uint32_t to, uint32_t barrier) {
    const uint64_t policy = ptx_policy_once();
    const int bytes = 64 * job.k2;
    const char *from = (const char *)job.words + (size_t)at * bytes;
    int strip_end = (exl3_one_strip(job, at) + 1) * job.strip_slices;
    while (at < end) {
        const int n = min(EXL3_ONE_CHUNK, min(strip_end, end) - at);
        ptx_barrier_expect(barrier, n * bytes);
        ptx_bulk_copy_once(to, from, n * bytes, barrier, policy);
        to += n * bytes, from += n * bytes, barrier += 8;
        at += n;
        if (at == strip_end) strip_end += job.strip_slices;
    }
}

/* ---- the row ---- */

/* The norm of prepare_kernel.cuh: a warp stands for two of the 32 there. */
__device__ __forceinline__ void exl3_one_norm(const exl3_one_job &job, bool is_bf16,
    float4 (&v)[EXL3_ONE_HELD], const float4 (&w)[EXL3_ONE_HELD], exl3_one_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_blocks = job.strip_slices / 8;
    float sums[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < EXL3_ONE_HELD; i++) {
        if (warp + i * EXL3_WARPS >= n_blocks) continue;
        float &sum = sums[i % 2];
        sum = fmaf(v[i].x, v[i].x, sum);
        sum = fmaf(v[i].y, v[i].y, sum);
        sum = fmaf(v[i].z, v[i].z, sum);
        sum = fmaf(v[i].w, v[i].w, sum);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float sum = warp_sum(sums[i]);
        if (lane == 0) sh.squares[warp + i * EXL3_WARPS] = sum;
    }
    __syncthreads();
    const float sum = warp_sum(sh.squares[lane]);
    const float r = 1.0f / sqrtf(sum / (float)(job.strip_slices * 16) + job.eps);
#pragma unroll
    for (int i = 0; i < EXL3_ONE_HELD; i++) {
        const int b = warp + i * EXL3_WARPS;
        if (b >= n_blocks) continue;
        v[i] = bf16_near_4_if(is_bf16, make_float4(w[i].x * (v[i].x * r), w[i].y * (v[i].y * r),
                                           w[i].z * (v[i].z * r), w[i].w * (v[i].w * r)));
        if (job.row_y != nullptr && (int)blockIdx.x == job.first_cta)
            *(float4 *)(job.row_y + b * 128 + lane * 4) = v[i];
    }
}

/* Made from floats: operand, and what each warp adds to the scale. The operand is there after a barrier. */
__device__ __forceinline__ void exl3_one_rotate(const exl3_one_job &job, bool is_bf16,
    uint32_t *operand, const uint2 (&suh)[EXL3_ONE_HELD], const float4 (&norm)[EXL3_ONE_HELD],
    exl3_one_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, n_blocks = job.strip_slices / 8;
    float4 v[EXL3_ONE_HELD];
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < EXL3_ONE_HELD; i++) {
        const int b = warp + i * EXL3_WARPS;
        if (b < n_blocks) v[i] = __ldcg((const float4 *)(job.x + b * 128 + lane * 4));
    }
    if (job.norm != nullptr) exl3_one_norm(job, is_bf16, v, norm, sh);
#pragma unroll
    for (int i = 0; i < EXL3_ONE_HELD; i++) {
        const int b = warp + i * EXL3_WARPS;
        if (b >= n_blocks) continue;
        v[i] = exl3_rotate(exl3_times(v[i], exl3_half4_value(suh[i])), lane);
        most = max(most, exl3_magnitude(v[i]));
    }
    most = __reduce_max_sync(~0u, most);
    if (lane == 0) sh.most[warp] = most;
    __syncthreads();
    const exl3_row_range range(__reduce_max_sync(~0u, sh.most[lane % EXL3_WARPS]));
    int sum = 0;
#pragma unroll
    for (int i = 0; i < EXL3_ONE_HELD; i++) {
        const int b = warp + i * EXL3_WARPS;
        if (b < n_blocks)
            sum += exl3_put_operand(operand, 1, 0, b * 128 + lane * 4, v[i], range.inv);
    }
    sum = __reduce_add_sync(~0u, sum);
    if (lane == 0) sh.sum[warp] = sum;
}

/* Read. The scale stands in the first places of most and sum. */
__device__ __forceinline__ void exl3_one_read(
    const exl3_one_job &job, uint32_t *operand, exl3_one_shared &sh) {
    for (int i = threadIdx.x; i < job.strip_slices * 2; i += EXL3_WARPS * 32)
        ((uint4 *)operand)[i] = __ldcg((const uint4 *)job.operand + i);
    if (threadIdx.x != 0) return;
    const int2 m = __ldcg((const int2 *)job.scale);
    sh.most[0] = m.x, sh.sum[0] = m.y;
}

/* Scale of the row. A whole warp. */
template <bool ROTATES>
__device__ __forceinline__ exl3_gpu_scale exl3_one_scale(const exl3_one_shared &sh) {
    const int lane = threadIdx.x & 31;
    if constexpr (!ROTATES) return {__uint_as_float(sh.most[0]), sh.sum[0]};
    const exl3_row_range range(__reduce_max_sync(~0u, sh.most[lane % EXL3_WARPS]));
    return {range.scale, __reduce_add_sync(~0u, lane < EXL3_WARPS ? sh.sum[lane] : 0)};
}

/* ---- products ---- */

/* n slices of one strip; the sums are added to local [64][2]. */
template <int K>
__device__ __forceinline__ void exl3_one_run(uint32_t words, uint32_t operand, uint32_t barrier,
    int n, int *local, const exl3_powers &powers) {
    const int lane = threadIdx.x & 31;
    int acc[4][1][4];
#pragma unroll
    for (int i = 0; i < 16; i++)
        (&acc[0][0][0])[i] = 0;
    const exl3_lane<K> l(lane);
#pragma unroll 1
    for (int i = 0; i < n; i += EXL3_ONE_CHUNK) {
        ptx_barrier_wait(barrier, 0);
        barrier += 8;
#pragma unroll 1
        for (int left = min(n - i, EXL3_ONE_CHUNK); left > 0; left--) {
            uint32_t b[1][4];
            exl3_operand_words<1>(operand, b);
            exl3_slice<K, 1>(acc, words, b, l, powers);
            words += 128 * K;
            operand += 32;
        }
    }
    const exl3_target to = {local, nullptr, 0, 1};
    exl3_flush<1>(acc, to, lane);
}

/* The slices [at, end) of a warp, strip by strip. */
__device__ __forceinline__ void exl3_one_products(const exl3_one_params &p, const exl3_one_job &job,
    exl3_one_shared &sh, int at, int end, uint32_t words, uint32_t barrier, uint32_t operand,
    int block0) {
    int strip = exl3_one_strip(job, at);
#pragma unroll 1
    while (at < end) {
        const int strip_first = strip * job.strip_slices;
        const int n = min(end, strip_first + job.strip_slices) - at;
        const uint32_t row = operand + (at - strip_first) * 32 + (threadIdx.x & 7) * 4;
        int *local = &sh.local[(strip >> 1) - block0][strip & 1][0][0];
        switch (job.k2) {
        case 4:
            exl3_one_run<2>(words, row, barrier, n, local, p.powers);
            break;
        case 6:
            exl3_one_run<3>(words, row, barrier, n, local, p.powers);
            break;
        case 8:
            exl3_one_run<4>(words, row, barrier, n, local, p.powers);
            break;
        case 10:
            exl3_one_run<5>(words, row, barrier, n, local, p.powers);
            break;
        case 12:
            exl3_one_run<6>(words, row, barrier, n, local, p.powers);
            break;
        default:
            exl3_one_run<8>(words, row, barrier, n, local, p.powers);
            break;
        }
        words += n * 64 * job.k2;
        barrier += 8 * ((n + EXL3_ONE_CHUNK - 1) / EXL3_ONE_CHUNK);
        at += n, strip++;
    }
}

/* ---- sums ---- */

/* This CTA's sums of a lane's four outputs of a block. */
__device__ __forceinline__ void exl3_one_local(
    const int (&local)[2][64][2], longlong2 &a, longlong2 &b) {
    const int lane = threadIdx.x & 31;
    const int4 *at = (const int4 *)&local[lane >> 4][(lane & 15) * 4][0];
    const int4 u = at[0], v = at[1];
    a = make_longlong2(u.x * 256ll + u.y, u.z * 256ll + u.w);
    b = make_longlong2(v.x * 256ll + v.y, v.z * 256ll + v.w);
}

/* Leaves a block's sums to the CTA that finishes it: twice the sum and one, so that no word is 0. One warp. */
__device__ __forceinline__ void exl3_one_leave(int64_t *slot, const int (&local)[2][64][2]) {
    longlong2 u, v, *to = (longlong2 *)slot + (threadIdx.x & 31) * 2;
    exl3_one_local(local, u, v);
    ptx_store_device_16(to, make_ulonglong2((uint64_t)u.x << 1 | 1, (uint64_t)u.y << 1 | 1));
    ptx_store_device_16(to + 1, make_ulonglong2((uint64_t)v.x << 1 | 1, (uint64_t)v.y << 1 | 1));
}

/* Waits for what a CTA leaves, takes it to shared memory and clears its place. One warp. */
__device__ __forceinline__ void exl3_one_take(int64_t *slot, longlong2 *to) {
    longlong2 *from = (longlong2 *)slot + (threadIdx.x & 31) * 2;
    ulonglong2 u, v;
    do {
        u = ptx_load_device_16(from), v = ptx_load_device_16(from + 1);
    } while (!(u.x & u.y & v.x & v.y & 1));
    to += (threadIdx.x & 31) * 2;
    to[0] = make_longlong2((int64_t)u.x >> 1, (int64_t)u.y >> 1);
    to[1] = make_longlong2((int64_t)v.x >> 1, (int64_t)v.y >> 1);
    ptx_store_device_16(from, make_ulonglong2(0, 0));
    ptx_store_device_16(from + 1, make_ulonglong2(0, 0));
}

/* Sums of a block to outputs. One warp; svh: of the lane. */
__device__ __forceinline__ void exl3_one_finish(
    const exl3_one_job &job, int block, longlong2 u, longlong2 v, exl3_gpu_scale scale, uint2 svh) {
    const int lane = threadIdx.x & 31, output = block * 128 + lane * 4;
    float4 y = make_float4(exl3_unscale(u.x, scale), exl3_unscale(u.y, scale),
        exl3_unscale(v.x, scale), exl3_unscale(v.y, scale));
    y = exl3_times(exl3_rotate(y, lane), exl3_half4_value(svh));
    if (job.bias != nullptr) {
        const float4 bias = exl3_half4(job.bias + output);
        y = make_float4(y.x + bias.x, y.y + bias.y, y.z + bias.z, y.w + bias.w);
    }
    *(float4 *)(job.y + output) = bf16_near_4_if(job.is_bf16, y);
}

/* The sums of a CTA with the slices [first, end): warp i has its block block0 + i, of which there are n. */
template <bool ROTATES>
__device__ __forceinline__ void exl3_one_end(const exl3_one_params &p, const exl3_one_job &job,
    int first, int end, int block0, int n, uint2 svh, longlong2 *room, const exl3_one_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, cta = blockIdx.x;
    const int block_slices = 2 * job.strip_slices;
    const bool is_left = (block0 + warp + 1) * block_slices > end;
    if (warp < n && is_left) exl3_one_leave(p.slots + (size_t)cta * 128, sh.local[warp]);
    int n_parts = 0; /* CTAs that left something of the first block */
    if (block0 * block_slices < first && (block0 + 1) * block_slices <= end) {
        while (exl3_one_first(job, cta - n_parts) > block0 * block_slices)
            n_parts++;
        if (warp < n_parts)
            exl3_one_take(p.slots + (size_t)(cta - 1 - warp) * 128, room + warp * 64);
        __syncthreads();
    }
    if (warp >= n || is_left) return;
    longlong2 u, v;
    exl3_one_local(sh.local[warp], u, v);
    const exl3_gpu_scale scale = exl3_one_scale<ROTATES>(sh);
    for (int i = 0; warp == 0 && i < n_parts; i++) {
        const longlong2 a = room[i * 64 + lane * 2], b = room[i * 64 + lane * 2 + 1];
        u.x += a.x, u.y += a.y, v.x += b.x, v.y += b.y;
    }
    exl3_one_finish(job, block0 + warp, u, v, scale, svh);
}

/* ROTATES: operands are made here. Grid: n_ctas and those of aside. */
template <bool ROTATES>
__global__ void __launch_bounds__(EXL3_WARPS * 32, 1)
    exl3_one_kernel(const __grid_constant__ exl3_one_params p) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(16) exl3_one_shared sh;
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, cta = blockIdx.x;
    if (ROTATES && cta >= p.n_ctas) {
        prepare_aside_task(p.aside, cta - p.n_ctas, *(prepare_aside_shared *)shared);
        return;
    }
    int j = 0;
    while (j + 1 < p.n_jobs && cta >= p.jobs[j + 1].first_cta)
        j++;
    const exl3_one_job &job = p.jobs[j];
    const int first = exl3_one_first(job, cta), end = exl3_one_first(job, cta + 1);
    const int each = (end - first) / EXL3_WARPS, longer = (end - first) % EXL3_WARPS;
    const int my_first = first + warp * each + min(warp, longer);
    const int my_end = my_first + each + (warp < longer);
    const uint32_t words = ptx_shared(shared) + (my_first - first) * 64 * job.k2;
    const uint32_t barriers = ptx_shared(sh.barriers + warp * EXL3_ONE_CHUNKS);
    if (lane == 0) {
        for (int i = 0; i < EXL3_ONE_CHUNKS; i++)
            ptx_barrier_init(barriers + 8 * i, 1);
        ptx_barrier_init_fence();
        exl3_one_fetch(job, my_first, my_end, words, barriers);
    }
    __syncwarp();
    for (int i = threadIdx.x; i < EXL3_ONE_BLOCKS * 64; i += EXL3_WARPS * 32)
        ((int4 *)sh.local)[i] = make_int4(0, 0, 0, 0);
    uint32_t *operand = (uint32_t *)(shared + p.words_bytes);
    const int block0 = exl3_one_strip(job, first) >> 1;
    const int n_blocks = (exl3_one_strip(job, end - 1) >> 1) - block0 + 1;
    uint2 suh[EXL3_ONE_HELD], svh = make_uint2(0, 0);
    float4 norm[EXL3_ONE_HELD];
    if constexpr (ROTATES) {
#pragma unroll
        for (int i = 0; i < EXL3_ONE_HELD; i++) {
            const int at = (warp + i * EXL3_WARPS) * 128 + lane * 4;
            if (at >= job.strip_slices * 16) continue;
            suh[i] = __ldg((const uint2 *)(job.suh + at));
            if (job.norm != nullptr) norm[i] = __ldg((const float4 *)(job.norm + at));
        }
    }
    if (warp < n_blocks) svh = __ldg((const uint2 *)(job.svh + (block0 + warp) * 128 + lane * 4));
    ptx_wait_for_previous();
    ptx_release_next();
    if constexpr (ROTATES) {
        exl3_one_rotate(job, p.is_bf16 != 0, operand, suh, norm, sh);
    } else {
        exl3_one_read(job, operand, sh);
    }
    __syncthreads();
    exl3_one_products(p, job, sh, my_first, my_end, words, barriers, ptx_shared(operand), block0);
    __syncthreads();
    /* The weights' place is free. */
    exl3_one_end<ROTATES>(p, job, first, end, block0, n_blocks, svh, (longlong2 *)shared, sh);
}

#endif
