/*
 * Many rows on one matrix: 128 outputs by up to 32, 64, 96 or 128 rows a block, weights decoded in the loop.
 *
 *   warp    16 outputs; its tile of every 16-input slice is decoded in registers, straight into the A fragments of
 *           m16n8k32: b - 510 = 256 h + l with signed bytes h and l (b: the sum of four bytes)
 *   rows    operand bytes (a = 256 hi + lo) in shared memory, shared by the eight warps
 *   sm_90a  wgmma: the four products of one batch of weights run while the next is decoded, into other registers
 *   sums    h.hi, h.lo + l.hi and l.lo in three sets of 32-bit sums (|h.lo + l.hi| <= 16512 a value, in <= 16384)
 *   ring    stages of 64 inputs, filled by bulk copies; a block barrier a stage
 *   end     z = scale (65536 hh + 256 mid + ll - offset A), rotation of the 128 outputs in shared memory, svh, bias
 *
 * The sums are those of the rows kernel (S - 510 A), so the bits are the same for any split into rows. 32 rows: 128
 * registers, two blocks an SM; 64, 96 and 128: about 200, 248 and 255, one block an SM, 4 stages of 512 k2 + 128 rows
 * bytes. A stage takes about 1450, 1580 and 1870 cycles with 64, 96 and 128 rows, of which the products are 512, 768 and
 * 1024: the more rows share a decoded weight, the better, as long as there are as many (H200, 2026-11-30).
 */
#ifndef KERNELS_EXL3_GEMM_KERNEL_CUH
#define KERNELS_EXL3_GEMM_KERNEL_CUH

#include "kernels/device.cuh"
#include "kernels/exl3/exl3_operand.cuh"
#include "kernels/exl3/exl3_rotate_kernel.cuh"

constexpr int EXL3_GEMM_WARPS = 8;
constexpr int EXL3_GEMM_STAGES = 4;
constexpr int EXL3_GEMM_PITCH = 132; /* floats between rows of the output block */

struct exl3_gemm_params {
    exl3_powers powers;
    const exl3_gpu_job *jobs;
    const exl3_gpu_tile *tiles; /* NULL: own, rows by blockIdx.y, jobs by blockIdx.z */
    const int32_t *n_tiles;
    int stage_bytes, tile_rows;
    exl3_gpu_own_list own;
};

/* For tiles of rows rows. */
constexpr int exl3_gemm_stage_bytes(int k2, int rows) {
    return 2 * 4 * 64 * k2 + 2 * rows * 64;
}
constexpr size_t exl3_gemm_shared_bytes(int k2, int rows) {
    /* Tensor cores may read behind the rows of the last slot's short tile. */
    const int ring = EXL3_GEMM_STAGES * exl3_gemm_stage_bytes(k2, rows) + rows * 16;
    const int out = rows * EXL3_GEMM_PITCH * 4;
    return (size_t)(ring > out ? ring : out);
}

/* Job and first row of this block; NULL: nothing to do. */
__device__ __forceinline__ const exl3_gpu_job *exl3_gemm_job(const exl3_gemm_params &p, int &row) {
    if (p.tiles == nullptr) {
        const exl3_gpu_job *job = p.own.jobs + blockIdx.z;
        row = blockIdx.y * p.tile_rows;
        return row < job->n_rows ? job : nullptr;
    }
    if ((int)blockIdx.y >= *p.n_tiles) return nullptr;
    const exl3_gpu_tile t = p.tiles[blockIdx.y];
    row = t.row;
    return p.jobs + t.job;
}

/* The operand as this kernel reads it. */
template <int TILE_ROWS> struct exl3_put_gemm {
    __device__ static int put(const exl3_gpu_job &job, int row, int at, float4 v, float inv) {
        const exl3_gemm_place place = {job.operand, job.row_cap, TILE_ROWS, job.matrix.in};
        return exl3_put_gemm_operand(place, row, at, v, inv);
    }
};

static __global__ void __launch_bounds__(EXL3_ROTATE_WARPS * 32)
    exl3_gemm_rotate_kernel(const __grid_constant__ exl3_gemm_params p) {
    __shared__ exl3_rotate_shared sh;
    ptx_wait_for_previous();
    ptx_release_next();
    int row = 0;
    const exl3_gpu_job *job = exl3_gemm_job(p, row);
    if (job == nullptr || row + (int)blockIdx.x >= job->n_rows) return;
    switch (p.tile_rows) {
    case EXL3_GPU_SHORT_ROWS:
        exl3_rotate_row<exl3_put_gemm<EXL3_GPU_SHORT_ROWS>>(*job, row + blockIdx.x, sh);
        break;
    case EXL3_GPU_TILE_ROWS:
        exl3_rotate_row<exl3_put_gemm<EXL3_GPU_TILE_ROWS>>(*job, row + blockIdx.x, sh);
        break;
    case EXL3_GPU_WIDE_ROWS:
        exl3_rotate_row<exl3_put_gemm<EXL3_GPU_WIDE_ROWS>>(*job, row + blockIdx.x, sh);
        break;
    default:
        exl3_rotate_row<exl3_put_gemm<EXL3_GPU_WIDEST_ROWS>>(*job, row + blockIdx.x, sh);
        break;
    }
}

/* Two digits of four weights each: low bytes and high bytes of b - 510. */
__device__ __forceinline__ void exl3_digits(const uint32_t *s, uint32_t &low, uint32_t &high) {
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = __dp4a(s[i] * EXL3_MUL1_MULTIPLIER, 0x01010101u, (uint32_t)(128 - 510));
    const uint32_t a = __byte_perm(v[0], v[1], 0x5140), b = __byte_perm(v[2], v[3], 0x5140);
    low = __byte_perm(a, b, 0x5410) ^ 0x80808080u;
    high = __byte_perm(a, b, 0x7632);
}

/* States of a warp's tile of one slice; words: of the strip's slice, tile: which of its four. */
template <int K>
__device__ __forceinline__ void exl3_gemm_states(
    uint32_t words, int tile, int k2, int lane, const exl3_powers &powers, uint32_t (&s)[8]) {
    if constexpr (K != 0) {
        const exl3_lane<K> l(lane);
        const uint32_t at = words + tile * 4;
        const uint32_t lo = ptx_load_shared_4(at + l.i0 * 16),
                       mid = ptx_load_shared_4(at + l.i1 * 16);
        uint32_t hi = mid;
        if constexpr (exl3_lane<K>::HAS_THREE) hi = ptx_load_shared_4(at + l.i2 * 16);
        exl3_states<K>(hi, mid, lo, l.shift, powers, s);
    } else {
        const int n_words = 4 * k2;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int p = lane * 8 + j, end = (p >> 1) * k2 + ((p & 1) ? k2 : k2 >> 1);
            const int i0 = (end + 32 * n_words - 1) / 32 % n_words,
                      i1 = (i0 + n_words - 1) % n_words;
            const int shift = (32 * (i0 + 1) - end) & 31;
            const uint32_t at = words + tile * 4;
            s[j] = __funnelshift_r(
                       ptx_load_shared_4(at + i0 * 16), ptx_load_shared_4(at + i1 * 16), shift) &
                   0xffffu;
        }
    }
}

/* COLUMNS: tiles of 8 rows. */
template <int COLUMNS> using exl3_gemm_sums = int[3][COLUMNS][4];

/* Digits of this warp's 16 outputs for 32 inputs: the A fragments of high and low digits. */
template <int K>
__device__ __forceinline__ void exl3_gemm_decode(
    uint32_t words, int k2, const exl3_powers &powers, uint32_t (&h)[4], uint32_t (&l)[4]) {
    const int lane = threadIdx.x & 31, tile = (threadIdx.x >> 5) & 3;
    uint32_t s[8];
    exl3_gemm_states<K>(words, tile, k2, lane, powers, s);
    exl3_digits(s, l[0], h[0]);
    exl3_digits(s + 4, l[1], h[1]);
    exl3_gemm_states<K>(words + 64 * k2, tile, k2, lane, powers, s);
    exl3_digits(s, l[2], h[2]);
    exl3_digits(s + 4, l[3], h[3]);
}

/* The four products of 32 inputs. run: bytes between (hi, lo) x slice. */
#ifdef PTX_HAS_WGMMA
template <int COLUMNS>
__device__ __forceinline__ void exl3_gemm_products(exl3_gemm_sums<COLUMNS> &acc, uint32_t operand,
    uint32_t run, const uint32_t (&h)[4], const uint32_t (&l)[4]) {
    const uint64_t hi = ptx_wgmma_matrix(operand, run),
                   lo = ptx_wgmma_matrix(operand + 2 * run, run);
    ptx_wgmma_fence();
    ptx_wgmma_s8s8(acc[1], h, lo);
    ptx_wgmma_s8s8(acc[0], h, hi);
    ptx_wgmma_s8s8(acc[2], l, lo);
    ptx_wgmma_s8s8(acc[1], l, hi);
    ptx_wgmma_commit();
}
#else
/* Two columns at a time: the two products of a middle sum are never neighbours. */
template <int COLUMNS>
__device__ __forceinline__ void exl3_gemm_products(exl3_gemm_sums<COLUMNS> &acc, uint32_t operand,
    uint32_t run, const uint32_t (&h)[4], const uint32_t (&l)[4]) {
    const int lane = threadIdx.x & 31;
    const uint32_t at = operand + (lane >> 3) * run + (lane & 7) * 16;
#pragma unroll
    for (int q = 0; q < COLUMNS; q += 2) {
        uint32_t b[4], c[4]; /* hi, hi of the next slice, lo, lo */
        ptx_load_matrix_4(at + q * 128, b);
        ptx_load_matrix_4(at + q * 128 + 128, c);
        ptx_mma_s8s8(acc[1][q], h[0], h[1], h[2], h[3], b[2], b[3]);
        ptx_mma_s8s8(acc[1][q + 1], h[0], h[1], h[2], h[3], c[2], c[3]);
        ptx_mma_s8s8(acc[0][q], h[0], h[1], h[2], h[3], b[0], b[1]);
        ptx_mma_s8s8(acc[0][q + 1], h[0], h[1], h[2], h[3], c[0], c[1]);
        ptx_mma_s8s8(acc[2][q], l[0], l[1], l[2], l[3], b[2], b[3]);
        ptx_mma_s8s8(acc[2][q + 1], l[0], l[1], l[2], l[3], c[2], c[3]);
        ptx_mma_s8s8(acc[1][q], l[0], l[1], l[2], l[3], b[0], b[1]);
        ptx_mma_s8s8(acc[1][q + 1], l[0], l[1], l[2], l[3], c[0], c[1]);
    }
}
#endif

/* Filling of the ring; three lanes of one warp. */
struct exl3_gemm_feed {
    const char *words, *operand; /* first of two strips; rows of the tile */
    size_t strip_bytes;
    uint32_t word_bytes, operand_bytes;

    __device__ void fetch(uint32_t to, uint32_t barrier, int stage) const {
        const int lane = threadIdx.x & 31;
        const char *from = lane < 2 ? words + lane * strip_bytes + (size_t)stage * word_bytes
                                    : operand + (size_t)stage * operand_bytes;
        if (lane == 0) ptx_barrier_expect(barrier, 2 * word_bytes + operand_bytes);
        if (lane < 3)
            ptx_bulk_copy(
                to + lane * word_bytes, from, lane < 2 ? word_bytes : operand_bytes, barrier);
    }
};

/* The barriers of a ring: full ones, then empty ones, on which every warp arrives. */
struct exl3_gemm_ring {
    uint32_t slots, barriers, stage_bytes;
    __device__ uint32_t full(int slot) const {
        return barriers + 8 * slot;
    }
    __device__ uint32_t empty(int slot) const {
        return barriers + 8 * (EXL3_GEMM_STAGES + slot);
    }
};

/* The stage before i was read by this warp; the first warp fills its slot again when all have. */
__device__ __forceinline__ void exl3_gemm_pass_on(
    const exl3_gemm_feed &feed, const exl3_gemm_ring &ring, int i, int n_stages) {
    const int slot = (i + EXL3_GEMM_STAGES - 1) % EXL3_GEMM_STAGES, next = i - 1 + EXL3_GEMM_STAGES;
    if (i == 0 || next >= n_stages) return;
    __syncwarp();
    if ((threadIdx.x & 31) == 0) ptx_barrier_arrive(ring.empty(slot));
    if (threadIdx.x >= 32) return;
    ptx_barrier_wait(ring.empty(slot), ((i - 1) / EXL3_GEMM_STAGES) & 1);
    feed.fetch(ring.slots + slot * ring.stage_bytes, ring.full(slot), next);
}

/* Stages of 64 inputs. Batches of products go in turn through two sets of digits; one may be under
 * way while the next is decoded. */
template <int K, int COLUMNS>
__device__ __forceinline__ void exl3_gemm_loop(exl3_gemm_sums<COLUMNS> &acc,
    const exl3_gpu_job &job, const exl3_gemm_feed &feed, const exl3_gemm_ring &ring,
    const exl3_powers &powers) {
    const int n_stages = job.matrix.in / 64, k2 = job.matrix.k2, strip = threadIdx.x >> 7;
    const uint32_t run = feed.operand_bytes / 8;
    uint32_t h[2][4], l[2][4];
#pragma unroll 1
    for (int i = 0; i < n_stages; i++) {
        const int slot = i % EXL3_GEMM_STAGES;
        const uint32_t at = ring.slots + slot * ring.stage_bytes,
                       words = at + strip * feed.word_bytes, operand = at + 2 * feed.word_bytes;
        ptx_barrier_wait(ring.full(slot), (i / EXL3_GEMM_STAGES) & 1);
        exl3_gemm_decode<K>(words, k2, powers, h[0], l[0]);
        exl3_gemm_products<COLUMNS>(acc, operand, run, h[0], l[0]);
#ifdef PTX_HAS_WGMMA
        ptx_wgmma_wait<1>();
#endif
        exl3_gemm_pass_on(feed, ring, i, n_stages);
        exl3_gemm_decode<K>(words + 128 * k2, k2, powers, h[1], l[1]);
        exl3_gemm_products<COLUMNS>(acc, operand + 4 * run, run, h[1], l[1]);
#ifdef PTX_HAS_WGMMA
        ptx_wgmma_wait<1>();
#endif
    }
#ifdef PTX_HAS_WGMMA
    ptx_wgmma_wait<0>();
#endif
    __syncthreads();
}

/* Sums of this warp to floats in the block's output [row][128]. */
template <int COLUMNS>
__device__ __forceinline__ void exl3_gemm_put(
    const exl3_gemm_sums<COLUMNS> &acc, const exl3_gpu_scale *scale, int n_rows, float *out) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, first = threadIdx.x / 32 * 16;
#pragma unroll
    for (int q = 0; q < COLUMNS; q++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = q * 8 + 2 * t + (i & 1), column = first + g + (i >> 1) * 8;
            if (row >= n_rows) continue;
            const long long s =
                65536ll * acc[0][q][i] + 256ll * acc[1][q][i] + (long long)acc[2][q][i];
            const exl3_gpu_scale r = scale[row];
            out[row * EXL3_GEMM_PITCH + column] =
                fmaf(-EXL3_MUL1_OFFSET, (float)r.sum, (float)s) * (EXL3_MUL1_SCALE * r.scale);
        }
}

template <int COLUMNS>
__global__ void __launch_bounds__(EXL3_GEMM_WARPS * 32, COLUMNS > 4 ? 1 : 2)
    exl3_gemm_kernel(const __grid_constant__ exl3_gemm_params p) {
#ifndef PTX_HAS_WGMMA
    if constexpr (COLUMNS * 8 > EXL3_GPU_TILE_ROWS) return; /* never launched */
#endif
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(8) unsigned long long barriers[2 * EXL3_GEMM_STAGES];
    ptx_wait_for_previous();
    ptx_release_next();
    int row0 = 0;
    const exl3_gpu_job *found = exl3_gemm_job(p, row0);
    if (found == nullptr || (int)blockIdx.x * 128 >= found->matrix.out) return;
    const exl3_gpu_job &job = *found;
    const int n_rows = min(COLUMNS * 8, job.n_rows - row0), in = job.matrix.in;
    const int k2 = job.matrix.k2, block = blockIdx.x;
    exl3_gemm_feed feed;
    feed.word_bytes = 4 * 64 * k2;
    feed.operand_bytes = (uint32_t)min(COLUMNS * 8, job.row_cap - row0) * 128;
    feed.strip_bytes = (size_t)(in / 16) * 64 * k2;
    feed.words = (const char *)job.matrix.words + (size_t)(2 * block) * feed.strip_bytes;
    feed.operand = (const char *)job.operand + (size_t)row0 * in * 2;
    const exl3_gemm_ring ring = {ptx_shared(shared), ptx_shared(barriers), (uint32_t)p.stage_bytes};
    if (threadIdx.x == 0) {
        for (int i = 0; i < EXL3_GEMM_STAGES; i++) {
            ptx_barrier_init(ring.full(i), 1);
            ptx_barrier_init(ring.empty(i), EXL3_GEMM_WARPS);
        }
        ptx_barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        for (int i = 0; i < min(EXL3_GEMM_STAGES, in / 64); i++)
            feed.fetch(ring.slots + i * ring.stage_bytes, ring.full(i), i);
    }
    exl3_gemm_sums<COLUMNS> acc;
#pragma unroll
    for (int i = 0; i < 12 * COLUMNS; i++)
        (&acc[0][0][0])[i] = 0;
    switch (k2) {
    case 4:
        exl3_gemm_loop<2, COLUMNS>(acc, job, feed, ring, p.powers);
        break;
    case 6:
        exl3_gemm_loop<3, COLUMNS>(acc, job, feed, ring, p.powers);
        break;
    case 8:
        exl3_gemm_loop<4, COLUMNS>(acc, job, feed, ring, p.powers);
        break;
    case 10:
        exl3_gemm_loop<5, COLUMNS>(acc, job, feed, ring, p.powers);
        break;
    case 12:
        exl3_gemm_loop<6, COLUMNS>(acc, job, feed, ring, p.powers);
        break;
    case 16:
        exl3_gemm_loop<8, COLUMNS>(acc, job, feed, ring, p.powers);
        break;
    default:
        exl3_gemm_loop<0, COLUMNS>(acc, job, feed, ring, p.powers);
        break;
    }
    float *out = (float *)shared;
    exl3_gemm_put<COLUMNS>(acc, job.scale + row0, n_rows, out);
    __syncthreads();
    const int lane = threadIdx.x & 31, at = block * 128 + lane * 4;
    const float4 svh = exl3_half4(job.matrix.svh + at);
    float4 bias = make_float4(0.f, 0.f, 0.f, 0.f);
    if (job.matrix.bias != nullptr) bias = exl3_half4(job.matrix.bias + at);
    for (int r = threadIdx.x >> 5; r < n_rows; r += EXL3_GEMM_WARPS) {
        float4 y = *(const float4 *)(out + r * EXL3_GEMM_PITCH + lane * 4);
        y = exl3_times(exl3_rotate(y, lane), svh);
        if (job.matrix.bias != nullptr)
            y = make_float4(y.x + bias.x, y.y + bias.y, y.z + bias.z, y.w + bias.w);
        const bool is_bf16 = job.is_bf16 != 0;
        y = make_float4(bf16_near_if(is_bf16, y.x), bf16_near_if(is_bf16, y.y),
            bf16_near_if(is_bf16, y.z), bf16_near_if(is_bf16, y.w));
        *(float4 *)(job.y + (row0 + r) * job.y_stride + at) = y;
    }
}

#endif
