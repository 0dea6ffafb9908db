/*
 * Many rows on one matrix: 128 outputs by up to 32, 64, 96 or 128 rows a block, weights decoded in the loop.
 *
 *   warp    16 outputs; its tile of every 16-input slice is decoded in registers, straight into the A fragments of
 *           m16n8k32: b - 510 = 256 h + l with h signed and l unsigned (b: the sum of four bytes)
 *   rows    operand bytes (a = 256 hi + lo) in shared memory, shared by the eight warps
 *   sm_90a  wgmma: the four products of one batch of weights run while the next is decoded, into other registers
 *   sums    h.hi, h.lo + l.hi and l.lo in three sets of 32-bit sums (at most 255 * 128 + 2 * 128 a value, in <= 16384)
 *   ring    3 or 4 stages of 64 or 128 inputs, filled by bulk copies; a full and an empty barrier a slot
 *   end     z = scale (65536 hh + 256 mid + ll - offset A), rotation of the 128 outputs in shared memory, svh, bias
 *
 * The sums are those of the rows kernel (S - 510 A), so the bits are the same for any split into rows. 32 rows: 128
 * registers, two blocks an SM; 64, 96 and 128: about 200, 248 and 255, one block an SM. A stage is 512 k2 + 128 rows bytes.
 * With 128 rows 64 inputs take about 1,330 cycles (at 1.78 GHz, which is what this load leaves), of which the products
 * are 1,024: the decode shares the ports of the register file with them. The end of a block is about 5,000 cycles.
 *
 * 5120 -> 2304 at K=3, 8,192 rows (H200, 2026-12-01): 0.738 ms before; 0.603 since no warp fills the ring for all and four
 * rows of a warp are turned at once; 0.567 with two steps of 64 inputs a stage; 0.546 with rotation in registers and
 * the hardware's bf16 rounding. Without gain: the warpgroups in turn, words fetched ahead, blocks that stay for all
 * tiles, sums of b instead of b - 510, the slot filled later.
 */
#ifndef KERNELS_EXL3_GEMM_KERNEL_CUH
#define KERNELS_EXL3_GEMM_KERNEL_CUH

#include "kernels/device.cuh"
#include "kernels/exl3/exl3_operand.cuh"
#include "kernels/exl3/exl3_rotate_kernel.cuh"

constexpr int EXL3_GEMM_WARPS = 8;
constexpr int EXL3_GEMM_MIN_SLOTS = 3, EXL3_GEMM_MAX_SLOTS = 4; /* stages in the ring */
constexpr int EXL3_GEMM_PITCH = 132; /* floats between rows of the output block */

struct exl3_gemm_params {
    exl3_powers powers;
    const exl3_gpu_job *jobs;
    const exl3_gpu_tile *tiles; /* NULL: own, rows by blockIdx.y, jobs by blockIdx.z */
    const int32_t *n_tiles;
    int stage_bytes, n_slots, tile_rows;
    int is_beside; /* the kernel before this one is a gemm too, whose operands were ready when it let this one start */
    exl3_gpu_own_list own;
};

/* Steps of 64 inputs in a stage; with two, two blocks of 32 rows would not fit in an SM of sm_121. */
constexpr int EXL3_GEMM_STEPS_SM90 = 2, EXL3_GEMM_STEPS_OTHERS = 1;
#ifdef PTX_HAS_WGMMA
constexpr int EXL3_GEMM_STEPS = EXL3_GEMM_STEPS_SM90;
#else
constexpr int EXL3_GEMM_STEPS = EXL3_GEMM_STEPS_OTHERS; /* of device code */
#endif

/* For tiles of rows rows. */
constexpr int exl3_gemm_stage_bytes(int k2, int rows, int steps) {
    return steps * (2 * 4 * 64 * k2 + 2 * rows * 64);
}
constexpr int exl3_gemm_shared_bytes(int stage_bytes, int rows, int n_slots) {
    /* Tensor cores may read behind the rows of the last slot's short tile. */
    const int ring = n_slots * stage_bytes + rows * 16;
    const int out = rows * EXL3_GEMM_PITCH * 4;
    return ring > out ? ring : out;
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

/* Two digits of four weights each, l = 0 .. 255 and h = -2 .. 1: bytes 0 and 1 of b - 510. */
__device__ __forceinline__ void exl3_digits(const uint32_t *s, uint32_t &low, uint32_t &high) {
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = __dp4a(s[i] * EXL3_MUL1_MULTIPLIER, 0x01010101u, (uint32_t)-510);
    const uint32_t a = __byte_perm(v[0], v[1], 0x5140), b = __byte_perm(v[2], v[3], 0x5140);
    low = __byte_perm(a, b, 0x5410);
    high = __byte_perm(a, b, 0x7632);
}

/* The 16 outputs of a lane's sums: of tile (warp + lane / 4) % 4 of the warp's strip, so that the words a warp
 * reads, 16 bytes apart in a tile, lie in all banks (0.736 -> 0.722 ms with the digits above, see the top). */
__device__ __forceinline__ int exl3_gemm_tile() {
    return ((threadIdx.x >> 5) + ((threadIdx.x & 31) >> 2)) & 3;
}

/* Where a lane's words lie in a slice of its strip. */
template <int K> struct exl3_gemm_words {
    uint32_t lo, mid, hi;
    int shift;
    __device__ exl3_gemm_words() {
        const exl3_lane<K> l(threadIdx.x & 31);
        const uint32_t tile = exl3_gemm_tile() * 4;
        lo = l.i0 * 16 + tile;
        mid = l.i1 * 16 + tile;
        hi = l.i2 * 16 + tile;
        shift = l.shift;
    }
    __device__ __forceinline__ void states(
        uint32_t slice, int, const exl3_powers &powers, uint32_t (&s)[8]) const {
        const uint32_t a = ptx_load_shared_4(slice + lo), b = ptx_load_shared_4(slice + mid);
        uint32_t c = b;
        if constexpr (exl3_lane<K>::HAS_THREE) c = ptx_load_shared_4(slice + hi);
        exl3_states<K>(c, b, a, shift, powers, s);
    }
};
/* Any rate. */
template <> struct exl3_gemm_words<0> {
    __device__ __forceinline__ void states(
        uint32_t slice, int k2, const exl3_powers &, uint32_t (&s)[8]) const {
        const int n_words = 4 * k2, lane = threadIdx.x & 31;
        const uint32_t at = slice + exl3_gemm_tile() * 4;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int p = lane * 8 + j, end = (p >> 1) * k2 + ((p & 1) ? k2 : k2 >> 1);
            const int i0 = (end + 32 * n_words - 1) / 32 % n_words,
                      i1 = (i0 + n_words - 1) % n_words;
            const int shift = (32 * (i0 + 1) - end) & 31;
            s[j] = __funnelshift_r(
                       ptx_load_shared_4(at + i0 * 16), ptx_load_shared_4(at + i1 * 16), shift) &
                   0xffffu;
        }
    }
};

/* COLUMNS: tiles of 8 rows. */
template <int COLUMNS> using exl3_gemm_sums = int[3][COLUMNS][4];

/* Digits of this warp's 16 outputs for 32 inputs: the A fragments of high and low digits. */
template <int K>
__device__ __forceinline__ void exl3_gemm_decode(const exl3_gemm_words<K> &words, uint32_t slices,
    int k2, const exl3_powers &powers, uint32_t (&h)[4], uint32_t (&l)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        uint32_t s[8];
        words.states(slices + i * 32 * k2, k2, powers, s);
        exl3_digits(s, l[i], h[i]);
        exl3_digits(s + 4, l[i + 1], h[i + 1]);
    }
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
    ptx_wgmma_u8s8(acc[2], l, lo);
    ptx_wgmma_u8s8(acc[1], l, hi);
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
        ptx_mma_u8s8(acc[2][q], l[0], l[1], l[2], l[3], b[2], b[3]);
        ptx_mma_u8s8(acc[2][q + 1], l[0], l[1], l[2], l[3], c[2], c[3]);
        ptx_mma_u8s8(acc[1][q], l[0], l[1], l[2], l[3], b[0], b[1]);
        ptx_mma_u8s8(acc[1][q + 1], l[0], l[1], l[2], l[3], c[0], c[1]);
    }
}
#endif

/* Filling of the ring. Lies in shared memory: any warp may do it. */
struct exl3_gemm_feed {
    const char *words, *operand; /* first of two strips; rows of the tile */
    size_t strip_bytes;
    uint32_t word_bytes, operand_bytes;

    /* One thread. */
    __device__ void fetch(uint32_t to, uint32_t barrier, int stage) const {
        const char *from = words + (size_t)stage * word_bytes;
        ptx_barrier_expect(barrier, 2 * word_bytes + operand_bytes);
        ptx_bulk_copy(to, from, word_bytes, barrier);
        ptx_bulk_copy(to + word_bytes, from + strip_bytes, word_bytes, barrier);
        ptx_bulk_copy(
            to + 2 * word_bytes, operand + (size_t)stage * operand_bytes, operand_bytes, barrier);
    }
};

/* Slots and their barriers: full ones, then empty ones, on which every warp arrives. */
struct exl3_gemm_ring {
    uint32_t slots, barriers;
    int stage_bytes, n_slots;
    __device__ uint32_t at(int slot) const {
        return slots + slot * stage_bytes;
    }
    __device__ uint32_t full(int slot) const {
        return barriers + 8 * slot;
    }
    __device__ uint32_t empty(int slot) const {
        return barriers + 8 * (EXL3_GEMM_MAX_SLOTS + slot);
    }
    __device__ int before(int slot, int n) const {
        return slot >= n ? slot - n : slot - n + n_slots;
    }
};

/* What a warp does in the middle of stage i, in slot: stage i - 1 is read. The slot of stage i - 2, which hardly any
 * warp still reads, is filled again by one of the warps in turn: when one did it for all, all waited for that one. */
__device__ __forceinline__ void exl3_gemm_pass_on(
    const exl3_gemm_feed &feed, const exl3_gemm_ring &ring, int i, int n_stages, int2 slot_phase) {
    const int slot = slot_phase.x, next = i - 2 + ring.n_slots;
    __syncwarp();
    if (i > 0 && (threadIdx.x & 31) == 0) ptx_barrier_arrive(ring.empty(ring.before(slot, 1)));
    if (i < 2 || next >= n_stages || (int)(threadIdx.x >> 5) != i % EXL3_GEMM_WARPS) return;
    const int to = ring.before(slot, 2);
    ptx_barrier_wait(ring.empty(to), slot_phase.y ^ (slot < 2));
    if (ptx_elect_one()) feed.fetch(ring.at(to), ring.full(to), next);
}

/* All stages. Batches of products of 32 inputs go in turn through two sets of digits; one may be under
 * way while the next is decoded. */
template <int K, int COLUMNS>
__device__ __forceinline__ void exl3_gemm_loop(exl3_gemm_sums<COLUMNS> &acc,
    const exl3_gpu_job &job, const exl3_gemm_feed &feed, const exl3_gemm_ring &ring,
    const exl3_powers &powers) {
    const int n_stages = job.matrix.in / (64 * EXL3_GEMM_STEPS),
              k2 = K != 0 ? 2 * K : job.matrix.k2;
    const uint32_t strip = (threadIdx.x >> 7) * feed.word_bytes;
    const uint32_t run = feed.operand_bytes / (8 * EXL3_GEMM_STEPS);
    /* Of any rate: no products under way, which the compiler cannot keep so in that much code. */
    constexpr int UNROLLED = K != 0 ? EXL3_GEMM_STEPS : 1;
    const exl3_gemm_words<K> words;
    uint32_t h[2][4], l[2][4];
    int slot = 0, phase = 0;
#pragma unroll 1
    for (int i = 0; i < n_stages; i++) {
        const uint32_t at = ring.at(slot) + strip, operand = ring.at(slot) + 2 * feed.word_bytes;
        ptx_barrier_wait(ring.full(slot), phase);
#pragma unroll(UNROLLED)
        for (int step = 0; step < EXL3_GEMM_STEPS; step++)
#pragma unroll
            for (int set = 0; set < 2; set++) {
                const int batch = 2 * step + set;
                exl3_gemm_decode<K>(words, at + batch * 128 * k2, k2, powers, h[set], l[set]);
                exl3_gemm_products<COLUMNS>(acc, operand + batch * 4 * run, run, h[set], l[set]);
#ifdef PTX_HAS_WGMMA
                ptx_wgmma_wait<K != 0 ? 1 : 0>();
#endif
                if (batch == 0) exl3_gemm_pass_on(feed, ring, i, n_stages, make_int2(slot, phase));
            }
        if (++slot == ring.n_slots) {
            slot = 0;
            phase ^= 1;
        }
    }
#ifdef PTX_HAS_WGMMA
    ptx_wgmma_wait<0>();
#endif
}

/* The float nearest to s = 65536 high + 256 middle + low. With in <= 16384 256 high + middle and what low adds to it
 * are below 2^31; both parts of s become floats exactly and the fma rounds once. */
__device__ __forceinline__ float exl3_gemm_sum(int high, int middle, int low) {
    const int upper = 256 * high + middle + (low >> 8); /* of 256 */
    const int rest = (upper & 255) << 8 | (low & 255);  /* s mod 65536 */
    return fmaf((float)(upper >> 8), 65536.f, (float)rest);
}

/* Sums of this warp to floats in the block's output [row][128]. */
template <int COLUMNS>
__device__ __forceinline__ void exl3_gemm_put(const exl3_gemm_sums<COLUMNS> &acc, float *out) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    out += 2 * t * EXL3_GEMM_PITCH + (threadIdx.x >> 7) * 64 + exl3_gemm_tile() * 16 + g;
#pragma unroll
    for (int q = 0; q < COLUMNS; q++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            out[(q * 8 + (i & 1)) * EXL3_GEMM_PITCH + (i >> 1) * 8] =
                exl3_gemm_sum(acc[0][q][i], acc[1][q][i], acc[2][q][i]);
}

/* What the end of a block reads, fetched while the products run. */
template <int ROWS> struct exl3_gemm_ends {
    exl3_gpu_scale scale[ROWS];
    uint2 svh[32]; /* 128 fp16 */

    __device__ void fetch(const exl3_gpu_job &job, int row0, int n_rows) {
        const int i = threadIdx.x;
        if (i < n_rows) ptx_copy_8(ptx_shared(scale + i), job.scale + row0 + i);
        if (i < 32) ptx_copy_8(ptx_shared(svh + i), job.matrix.svh + blockIdx.x * 128 + i * 4);
    }
};

/* Sums and differences of neighbours, then at distances 2, 4 .. N / 2: the order of exl3_rotate. */
template <int N> __device__ __forceinline__ void exl3_butterflies(float (&v)[N]) {
#pragma unroll
    for (int d = 1; d < N; d *= 2)
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (i & d) continue;
            const float a = v[i], b = v[i + d];
            v[i] = a + b;
            v[i + d] = a - b;
        }
}

/* Sums of eight rows become values, and the first half of their rotation: distances 1 to 8; a warp, in place. Eight lanes
 * read 16 bytes of eight rows each, which lie in all banks; likewise below. */
__device__ __forceinline__ void exl3_gemm_turn_near(float *rows, const exl3_gpu_scale *scale) {
    const int lane = threadIdx.x & 31;
    const exl3_gpu_scale r = scale[lane & 7];
    const float sum = (float)r.sum, factor = EXL3_MUL1_SCALE * r.scale;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float4 *at =
            (float4 *)(rows + (lane & 7) * EXL3_GEMM_PITCH + ((lane >> 3) + half * 4) * 16);
        float v[16];
#pragma unroll
        for (int i = 0; i < 4; i++)
            *(float4 *)(v + 4 * i) = at[i];
#pragma unroll
        for (int i = 0; i < 16; i++)
            v[i] = fmaf(-EXL3_MUL1_OFFSET, sum, v[i]) * factor;
        exl3_butterflies<16>(v);
#pragma unroll
        for (int i = 0; i < 4; i++)
            at[i] = *(float4 *)(v + 4 * i);
    }
}

/* The second half, of lane's row: distances 16 to 64. y[j]: outputs 16 j + at .. + 3 of the block. */
__device__ __forceinline__ void exl3_gemm_turn_far(const float *row, int at, float4 (&y)[8]) {
    float v[4][8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float4 f = *(const float4 *)(row + 16 * j + at);
        v[0][j] = f.x, v[1][j] = f.y, v[2][j] = f.z, v[3][j] = f.w;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        exl3_butterflies<8>(v[i]);
#pragma unroll
    for (int j = 0; j < 8; j++)
        y[j] = make_float4(v[0][j] * EXL3_HADAMARD_SCALE, v[1][j] * EXL3_HADAMARD_SCALE,
            v[2][j] * EXL3_HADAMARD_SCALE, v[3][j] * EXL3_HADAMARD_SCALE);
}

/* Rotation of the rows of the block's output, svh, bias; eight rows of a warp at a time. In registers and through
 * shared memory: 20 shuffles a row hold the path to shared memory for 2,560 cycles a block. */
template <int ROWS>
__device__ __forceinline__ void exl3_gemm_finish(
    const exl3_gpu_job &job, int row0, int n_rows, const exl3_gemm_ends<ROWS> &ends, float *out) {
    const int lane = threadIdx.x & 31, in_group = (lane >> 3) + (lane & 4), part = lane & 3;
    const int at = blockIdx.x * 128 + part * 4;
    const bool is_bf16 = job.is_bf16 != 0, has_bias = job.matrix.bias != nullptr;
#pragma unroll 1
    for (int first = (threadIdx.x >> 5) * 8; first < n_rows; first += EXL3_GEMM_WARPS * 8) {
        const int r = first + in_group;
        float4 y[8];
        exl3_gemm_turn_near(out + first * EXL3_GEMM_PITCH, ends.scale + first);
        __syncwarp();
        exl3_gemm_turn_far(out + r * EXL3_GEMM_PITCH, part * 4, y);
        if (r >= n_rows) continue;
        float *to = job.y + (row0 + r) * job.y_stride + at;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float4 v = exl3_times(y[j], exl3_half4_value(ends.svh[4 * j + part]));
            if (has_bias) {
                const float4 b = exl3_half4(job.matrix.bias + at + 16 * j);
                v = make_float4(v.x + b.x, v.y + b.y, v.z + b.z, v.w + b.w);
            }
            *(float4 *)(to + 16 * j) = is_bf16 ? bf16_near_4(v) : v;
        }
    }
}

/* All stages at the rate of the matrix. */
template <int COLUMNS>
__device__ __forceinline__ void exl3_gemm_multiply(exl3_gemm_sums<COLUMNS> &acc,
    const exl3_gpu_job &job, const exl3_gemm_feed &feed, const exl3_gemm_ring &ring,
    const exl3_powers &powers) {
    switch (job.matrix.k2) {
    case 4:
        exl3_gemm_loop<2, COLUMNS>(acc, job, feed, ring, powers);
        break;
    case 6:
        exl3_gemm_loop<3, COLUMNS>(acc, job, feed, ring, powers);
        break;
    case 8:
        exl3_gemm_loop<4, COLUMNS>(acc, job, feed, ring, powers);
        break;
    case 10:
        exl3_gemm_loop<5, COLUMNS>(acc, job, feed, ring, powers);
        break;
    case 12:
        exl3_gemm_loop<6, COLUMNS>(acc, job, feed, ring, powers);
        break;
    case 16:
        exl3_gemm_loop<8, COLUMNS>(acc, job, feed, ring, powers);
        break;
    default:
        exl3_gemm_loop<0, COLUMNS>(acc, job, feed, ring, powers);
        break;
    }
}

/* Where a block of a job reads. */
__device__ __forceinline__ exl3_gemm_feed exl3_gemm_feed_of(
    const exl3_gpu_job &job, int row0, int max_rows) {
    const int in = job.matrix.in, k2 = job.matrix.k2;
    exl3_gemm_feed feed;
    feed.word_bytes = EXL3_GEMM_STEPS * 4 * 64 * k2;
    feed.operand_bytes = EXL3_GEMM_STEPS * (uint32_t)min(max_rows, job.row_cap - row0) * 128;
    feed.strip_bytes = (size_t)(in / 16) * 64 * k2;
    feed.words = (const char *)job.matrix.words + (size_t)(2 * blockIdx.x) * feed.strip_bytes;
    feed.operand = (const char *)job.operand + (size_t)row0 * in * 2;
    return feed;
}

/* A tile's 128 outputs. */
template <int COLUMNS> __device__ __forceinline__ void exl3_gemm_block(const exl3_gemm_params &p) {
    extern __shared__ __align__(128) unsigned char shared[];
    __shared__ __align__(8) unsigned long long barriers[2 * EXL3_GEMM_MAX_SLOTS];
    __shared__ exl3_gemm_feed feed;
    __shared__ __align__(8) exl3_gemm_ends<COLUMNS * 8> ends;
    int row0 = 0;
    const exl3_gpu_job *found = exl3_gemm_job(p, row0);
    if (found == nullptr || (int)blockIdx.x * 128 >= found->matrix.out) return;
    const exl3_gpu_job &job = *found;
    const int n_rows = min(COLUMNS * 8, job.n_rows - row0), warp = threadIdx.x >> 5;
    const exl3_gemm_ring ring = {
        ptx_shared(shared), ptx_shared(barriers), p.stage_bytes, p.n_slots};
    if (threadIdx.x == 0) {
        for (int i = 0; i < ring.n_slots; i++) {
            ptx_barrier_init(ring.full(i), 1);
            ptx_barrier_init(ring.empty(i), EXL3_GEMM_WARPS);
        }
        ptx_barrier_init_fence();
        feed = exl3_gemm_feed_of(job, row0, COLUMNS * 8);
    }
    __syncthreads();
    if (warp < min(ring.n_slots, job.matrix.in / (64 * EXL3_GEMM_STEPS)) && ptx_elect_one())
        feed.fetch(ring.at(warp), ring.full(warp), warp);
    exl3_gemm_sums<COLUMNS> acc;
#pragma unroll
    for (int i = 0; i < 12 * COLUMNS; i++)
        (&acc[0][0][0])[i] = 0;
    ends.fetch(job, row0, n_rows);
    exl3_gemm_multiply<COLUMNS>(acc, job, feed, ring, p.powers);
#ifdef PTX_HAS_WGMMA
#pragma unroll
    for (int i = 0; i < 3; i++)
        ptx_wgmma_settle(acc[i]);
#endif
    ptx_copies_wait();
    __syncthreads(); /* the ring is read */
    float *out = (float *)shared;
    exl3_gemm_put<COLUMNS>(acc, out);
    __syncthreads();
    exl3_gemm_finish(job, row0, n_rows, ends, out);
}

template <int COLUMNS>
__global__ void __launch_bounds__(EXL3_GEMM_WARPS * 32, COLUMNS > 4 ? 1 : 2)
    exl3_gemm_kernel(const __grid_constant__ exl3_gemm_params p) {
#ifndef PTX_HAS_WGMMA
    if constexpr (COLUMNS * 8 > EXL3_GPU_TILE_ROWS) return; /* never launched */
#endif
    if (!p.is_beside) ptx_wait_for_previous();
    ptx_release_next();
    exl3_gemm_block<COLUMNS>(p);
    /* The kernel behind this one waits for this one only, of which one block is enough. */
    if (p.is_beside && blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1)
        ptx_wait_for_previous();
}

#endif
