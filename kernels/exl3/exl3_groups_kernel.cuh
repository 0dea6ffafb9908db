/*
 * Rows of many jobs to integer operands in the form of gemm, for the experts of a prompt: gate and up from one row of the
 * input, down from gate and up of a pair.
 *
 *   group    eight neighbouring rows of a job, whose 16 bytes of a slice are one line of 128 bytes in the operand
 *   CTA      ROWS rows of a group at a time (a unit), all their inputs; the 8 / ROWS CTAs of a team do the parts of the same
 *            groups side by side: parts of a line that come at different times cost (one CTA for both halves, one after the
 *            other: 926 us instead of 811; writing alone takes 2,884, 487, 338 and 323 us with 1, 2, 4 and 8 rows at a time)
 *   ring     a warp of its own fetches the rows of the next unit as soon as all warps have read those of this one
 *   lane     32 inputs of a row: bits 0, 1, 3, 5, 6 of their number in registers (so that they fill 8 bytes of a piece), 2
 *            and 4 over lanes; the lanes of a warp cover ROWS rows by 1024 / ROWS inputs
 *   sums     maximum and sum of a row by atomics on shared integers; one barrier a unit, scales are written behind the next
 *
 * Registers: 80 with two matrices (64 values are held over the barrier), 64 with one. Shared memory: ROWS rows of floats, of
 * gate and of up for down. H200, 57,344 pairs, 5120 and 1152 inputs (2026-12-01): gate and up 840 us (one row a CTA and job:
 * 2,366), of which loads alone 256, stores alone 338 and all but stores 610; down with its activation 274 us (before: 862).
 */
#ifndef KERNELS_EXL3_GROUPS_KERNEL_CUH
#define KERNELS_EXL3_GROUPS_KERNEL_CUH

#include "kernels/device.cuh"
#include "kernels/exl3/exl3_operand.cuh"

constexpr int EXL3_GROUP_ROWS = 8;
constexpr int EXL3_GROUP_SLOTS = 3; /* units whose maxima and sums are in use */
constexpr int EXL3_GROUP_UNITS = 4; /* units known to the CTA: two more than under way */
constexpr int EXL3_GROUP_PAD =
    32; /* bytes behind a row: rows of a quarter warp in different banks */

/* ROWS: of a unit; WARPS: that compute, 1024 / ROWS inputs each; IS_DOWN: one matrix, inputs from gate and up. */
template <int ROWS_, int WARPS_, bool IS_DOWN_> struct exl3_group_form {
    static constexpr int ROWS = ROWS_, WARPS = WARPS_;
    static constexpr bool IS_DOWN = IS_DOWN_;
    static constexpr int PARTS = EXL3_GROUP_ROWS / ROWS;
    static constexpr int MATRICES = IS_DOWN ? 1 : 2, ARRAYS = IS_DOWN ? 2 : 1;
    static constexpr int THREADS = (WARPS + 1) * 32;
    static constexpr int MAX_IN = WARPS * 1024 / ROWS;
    static constexpr int SLICE_BIT = 2 * ROWS; /* of a lane's number */
    static_assert(ROWS == 4 || ROWS == 8, "rows of a unit");
    EXL3_BOTH_SIDES static constexpr int pitch(int in) {
        return in * 4 + EXL3_GROUP_PAD;
    }
    EXL3_BOTH_SIDES static constexpr int shared_bytes(int in) {
        return ARRAYS * ROWS * pitch(in);
    }
};

struct exl3_group_params {
    const exl3_gpu_job *jobs;
    const exl3_gpu_tile *groups;
    const int32_t *n_groups;
    int tile_rows, in;
    /* down */
    const float *up, *weight;
    float limit;
    int is_bf16;
};

template <class F> struct exl3_group_unit {
    const uint16_t *suh[F::MATRICES];
    char *operand[F::MATRICES]; /* of the first row */
    exl3_gpu_scale *scale[F::MATRICES];
    int n_rows, slice_bytes, is_end;
    float weight[F::ROWS];
};

template <class F> struct exl3_group_shared {
    exl3_group_unit<F> units[EXL3_GROUP_UNITS];
    uint32_t most[EXL3_GROUP_SLOTS][F::MATRICES][F::ROWS];
    int sum[EXL3_GROUP_SLOTS][F::MATRICES][F::ROWS];
    __align__(8) unsigned long long full, empty;
};

/* What a lane has of its warp's ROWS rows by 1024 / ROWS inputs. */
template <class F> struct exl3_group_lane {
    int row, slice, at; /* at: first input */
    bool is_first;      /* of its row in this warp */
    __device__ exl3_group_lane() {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        row = (lane >> 1) & (F::ROWS - 1);
        slice = (lane / F::SLICE_BIT) & 1;
        at =
            warp * (1024 / F::ROWS) + lane / (2 * F::SLICE_BIT) * 128 + slice * 16 + (lane & 1) * 4;
        is_first = (lane & ~(F::SLICE_BIT - 2)) == 0;
    }
};
/* Where input j of a lane lies behind its first, j % 4 left out. */
__device__ __forceinline__ int exl3_group_at(int j) {
    return (j >> 3) * 32 + ((j >> 2) & 1) * 8;
}

/* Sums and differences of values STEP apart, of a lane or of lanes BIT apart: the order of exl3_rotate. */
template <int STEP> __device__ __forceinline__ void exl3_group_turn(float (&v)[32]) {
#pragma unroll
    for (int j = 0; j < 32; j++) {
        if (j & STEP) continue;
        const float a = v[j], b = v[j + STEP];
        v[j] = a + b;
        v[j + STEP] = a - b;
    }
}
template <int BIT> __device__ __forceinline__ void exl3_group_turn_lanes(float (&v)[32]) {
    const float s = (threadIdx.x & BIT) ? -1.f : 1.f;
#pragma unroll
    for (int j = 0; j < 32; j++)
        v[j] = fmaf(s, v[j], __shfl_xor_sync(~0u, v[j], BIT));
}
template <class F> __device__ __forceinline__ void exl3_group_rotate(float (&v)[32]) {
    exl3_group_turn<1>(v);
    exl3_group_turn<2>(v);
    exl3_group_turn_lanes<1>(v);
    exl3_group_turn<4>(v);
    exl3_group_turn_lanes<F::SLICE_BIT>(v);
    exl3_group_turn<8>(v);
    exl3_group_turn<16>(v);
#pragma unroll
    for (int j = 0; j < 32; j++)
        v[j] *= EXL3_HADAMARD_SCALE;
}

/* Largest magnitude as in exl3_magnitude, over the kept lanes of a row. */
template <class F>
__device__ __forceinline__ uint32_t exl3_group_most(const float (&v)[32], bool is_kept) {
    float m[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int j = 0; j < 32; j++)
        m[j & 3] = ptx_max_nan(m[j & 3], fabsf(v[j]));
    const float all = ptx_max_nan(ptx_max_nan(m[0], m[1]), ptx_max_nan(m[2], m[3]));
    uint32_t most = is_kept ? __float_as_uint(all) : 0u;
    most = max(most, __shfl_xor_sync(~0u, most, 1));
#pragma unroll
    for (int bit = F::SLICE_BIT; bit < 32; bit <<= 1)
        most = max(most, __shfl_xor_sync(~0u, most, bit));
    return most;
}

/* The lane's values as bytes of gemm's operand; returns their sum. to: the lane's first 8 bytes. A float of magic size
 * has the rounded integer + 128 in its low bits: the high byte as it is, the low one with its upper bit turned. */
__device__ __forceinline__ int exl3_group_put(
    char *to, int slice_bytes, const float (&v)[32], float inv, bool is_kept) {
    int high = 0, low = 0;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        uint32_t u[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            u[j] = __float_as_uint(v[8 * c + j] * inv + (12582912.f + 128.f));
        const uint32_t a = __byte_perm(u[0], u[1], 0x5410), b = __byte_perm(u[4], u[5], 0x5410),
                       d = __byte_perm(u[2], u[3], 0x5410), e = __byte_perm(u[6], u[7], 0x5410);
        const uint2 hi = make_uint2(__byte_perm(a, b, 0x7531), __byte_perm(d, e, 0x7531));
        const uint2 lo = make_uint2(
            __byte_perm(a, b, 0x6420) ^ 0x80808080u, __byte_perm(d, e, 0x6420) ^ 0x80808080u);
        high = __dp4a((int)hi.y, 0x01010101, __dp4a((int)hi.x, 0x01010101, high));
        low = __dp4a((int)lo.y, 0x01010101, __dp4a((int)lo.x, 0x01010101, low));
        if (!is_kept) continue;
        *(uint2 *)(to + c * 4 * slice_bytes) = hi;
        *(uint2 *)(to + (c * 4 + 2) * slice_bytes) = lo;
    }
    return 256 * high + low;
}

/* Fetches the units of this CTA, one after the other, and an end. One warp. */
template <class F>
__device__ __forceinline__ void exl3_group_fetch(
    const exl3_group_params &p, exl3_group_shared<F> &sh, uint32_t ring) {
    const int lane = threadIdx.x & 31, in = p.in, n_groups = *p.n_groups;
    const int team = blockIdx.x / F::PARTS, n_teams = gridDim.x / F::PARTS;
    const int first = (int)((int64_t)n_groups * team / n_teams);
    const int n = (int)((int64_t)n_groups * (team + 1) / n_teams) - first;
    const uint32_t full = ptx_shared(&sh.full), to = ring + lane * F::pitch(in);
    for (int k = 0; k <= n; k++) {
        exl3_group_unit<F> &unit = sh.units[k % EXL3_GROUP_UNITS];
        exl3_gpu_tile g = {0, 0};
        if (k < n) g = p.groups[first + k];
        const exl3_gpu_job *job = p.jobs + g.job * F::MATRICES;
        const int row = g.row + blockIdx.x % F::PARTS * F::ROWS;
        const int n_rows = k < n ? max(min(F::ROWS, job->n_rows - row), 0) : 0;
        const int row0 = row / p.tile_rows * p.tile_rows;
        const float *x = nullptr;
        float weight = 0.f;
        if (lane < n_rows) {
            x = job->x +
                (job->x_rows == nullptr ? row + lane : job->x_rows[row + lane]) * job->x_stride;
            if (F::IS_DOWN) weight = p.weight[job->first_pair + row + lane];
        }
        if (k > 0) ptx_barrier_wait(ptx_shared(&sh.empty), (k - 1) & 1);
        if (lane < F::MATRICES && k < n) {
            unit.suh[lane] = job[lane].matrix.suh;
            unit.operand[lane] =
                (char *)job[lane].operand + (size_t)row0 * in * 2 + (row - row0) * 16;
            unit.scale[lane] = job[lane].scale + row;
            unit.slice_bytes = min(p.tile_rows, job->row_cap - row0) * 16;
        }
        if (F::IS_DOWN && lane < F::ROWS) unit.weight[lane] = weight;
        if (lane == 0) {
            unit.n_rows = n_rows;
            unit.is_end = k == n;
        }
        __syncwarp();
        if (lane == 0) ptx_barrier_expect(full, (uint32_t)(n_rows * in * 4 * F::ARRAYS));
        __syncwarp();
        if (lane >= n_rows) continue;
        ptx_bulk_copy(to, x, (uint32_t)in * 4, full);
        if constexpr (F::IS_DOWN) {
            const float *up = p.up + (int64_t)(job->first_pair + row + lane) * in;
            ptx_bulk_copy(to + F::ROWS * F::pitch(in), up, (uint32_t)in * 4, full);
        }
    }
}

/* The lane's inputs of the unit in the ring; down: weight * silu(gate) * up. */
template <class F>
__device__ __forceinline__ void exl3_group_read(const exl3_group_params &p,
    const exl3_group_unit<F> &unit, const char *from, int row, float (&v)[32]) {
    const bool is_bf16 = p.is_bf16 != 0;
#pragma unroll
    for (int j = 0; j < 32; j += 4) {
        float4 x = *(const float4 *)(from + exl3_group_at(j) * 4);
        if constexpr (F::IS_DOWN) {
            const char *up = from + F::ROWS * F::pitch(p.in);
            const float4 u = *(const float4 *)(up + exl3_group_at(j) * 4);
            const float w = unit.weight[row];
            x = make_float4(bf16_near_if(is_bf16, swiglu_of(x.x, u.x, p.limit, w)),
                bf16_near_if(is_bf16, swiglu_of(x.y, u.y, p.limit, w)),
                bf16_near_if(is_bf16, swiglu_of(x.z, u.z, p.limit, w)),
                bf16_near_if(is_bf16, swiglu_of(x.w, u.w, p.limit, w)));
        }
        v[j] = x.x;
        v[j + 1] = x.y;
        v[j + 2] = x.z;
        v[j + 3] = x.w;
    }
}

/* Scales of unit k, whose sums are complete; its slot is free again. */
template <class F>
__device__ __forceinline__ void exl3_group_finish(exl3_group_shared<F> &sh, int k) {
    const int m = threadIdx.x / F::ROWS, row = threadIdx.x % F::ROWS;
    if (k < 0 || m >= F::MATRICES) return;
    const exl3_group_unit<F> &unit = sh.units[k % EXL3_GROUP_UNITS];
    uint32_t *most = &sh.most[k % EXL3_GROUP_SLOTS][m][row];
    int *sum = &sh.sum[k % EXL3_GROUP_SLOTS][m][row];
    if (row < unit.n_rows) {
        const exl3_row_range range(*most);
        *(int2 *)(unit.scale[m] + row) = make_int2(__float_as_int(range.scale), *sum);
    }
    *most = 0;
    *sum = 0;
}

/* Rotated values of the unit as integers; slot: of its maxima and sums. */
template <class F>
__device__ __forceinline__ void exl3_group_store(exl3_group_shared<F> &sh,
    const exl3_group_unit<F> &unit, int slot, const exl3_group_lane<F> &l, bool is_kept,
    float (&v)[F::MATRICES][32]) {
#pragma unroll
    for (int m = 0; m < F::MATRICES; m++) {
        const uint32_t most = sh.most[slot][m][l.row];
        const exl3_row_range range(most);
        if (most >= 0x7f800000u) { /* not finite: zeros, and NaN must not come near the sums */
#pragma unroll
            for (int j = 0; j < 32; j++)
                v[m][j] = 0.f;
        }
        char *to = unit.operand[m] + (size_t)((l.at >> 5) * 4 + l.slice) * unit.slice_bytes +
                   l.row * 16 + ((l.at >> 2) & 1) * 8;
        int sum = exl3_group_put(to, unit.slice_bytes, v[m], range.inv, is_kept);
        sum = is_kept ? sum : 0;
        sum += __shfl_xor_sync(~0u, sum, 1);
#pragma unroll
        for (int bit = F::SLICE_BIT; bit < 32; bit <<= 1)
            sum += __shfl_xor_sync(~0u, sum, bit);
        if (l.is_first) atomicAdd(&sh.sum[slot][m][l.row], sum);
    }
}

/* All units, by one of the warps that compute. */
template <class F>
__device__ __forceinline__ void exl3_group_loop(
    const exl3_group_params &p, exl3_group_shared<F> &sh, const char *ring) {
    const exl3_group_lane<F> l;
    const int lane = threadIdx.x & 31;
    const bool has_inputs = l.at < p.in,
               has_work = (int)(threadIdx.x / 32 * (1024 / F::ROWS)) < p.in;
    const int at = has_inputs ? l.at : 0;
    const char *from = ring + l.row * F::pitch(p.in) + at * 4;
    int k = 0;
    for (;; k++) {
        const exl3_group_unit<F> &unit = sh.units[k % EXL3_GROUP_UNITS];
        const int slot = k % EXL3_GROUP_SLOTS;
        float v[F::MATRICES][32];
        ptx_barrier_wait(ptx_shared(&sh.full), k & 1);
        if (unit.is_end) break;
        const bool is_kept = has_inputs && l.row < unit.n_rows;
        if (has_work) exl3_group_read<F>(p, unit, from, l.row, v[F::MATRICES - 1]);
        __syncwarp();
        if (lane == 0) ptx_barrier_arrive(ptx_shared(&sh.empty));
#pragma unroll
        for (int m = 0; m < F::MATRICES && has_work; m++) {
#pragma unroll
            for (int j = 0; j < 32; j += 4) {
                const float4 s = exl3_half4(unit.suh[m] + at + exl3_group_at(j));
                const float(&x)[32] = v[F::MATRICES - 1];
                v[m][j] = x[j] * s.x;
                v[m][j + 1] = x[j + 1] * s.y;
                v[m][j + 2] = x[j + 2] * s.z;
                v[m][j + 3] = x[j + 3] * s.w;
            }
            exl3_group_rotate<F>(v[m]);
            const uint32_t most = exl3_group_most<F>(v[m], is_kept);
            if (l.is_first) atomicMax(&sh.most[slot][m][l.row], most);
        }
        ptx_named_barrier(1, F::WARPS * 32);
        exl3_group_finish<F>(sh, k - 1);
        if (has_work) exl3_group_store<F>(sh, unit, slot, l, is_kept, v);
    }
    ptx_named_barrier(1, F::WARPS * 32);
    exl3_group_finish<F>(sh, k - 1);
}

template <class F, int PER_SM>
__global__ void __launch_bounds__(F::THREADS, PER_SM)
    exl3_groups_kernel(const __grid_constant__ exl3_group_params p) {
    extern __shared__ __align__(128) char ring[];
    __shared__ exl3_group_shared<F> sh;
    kernel_begin();
    for (int i = threadIdx.x; i < EXL3_GROUP_SLOTS * F::MATRICES * F::ROWS; i += F::THREADS) {
        (&sh.most[0][0][0])[i] = 0;
        (&sh.sum[0][0][0])[i] = 0;
    }
    if (threadIdx.x == 0) {
        ptx_barrier_init(ptx_shared(&sh.full), 1);
        ptx_barrier_init(ptx_shared(&sh.empty), F::WARPS);
        ptx_barrier_init_fence();
    }
    __syncthreads();
    if (threadIdx.x / 32 == F::WARPS) {
        exl3_group_fetch<F>(p, sh, ptx_shared(ring));
    } else {
        exl3_group_loop<F>(p, sh, ring);
    }
}

#endif
