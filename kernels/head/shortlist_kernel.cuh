/* Short lists of logit rows: a cluster of CTAs a row, each with a contiguous part of it, which it reads
 * three times (the second and third time from L2): largest, sums and counts, lists. Counts and sums of
 * the parts meet through the cluster's shared memory. Integers and maxima only, so the order does
 * not matter. 3 KB of shared memory, at most 64 registers. */
#ifndef TANDEM_KERNELS_HEAD_SHORTLIST_KERNEL_CUH
#define TANDEM_KERNELS_HEAD_SHORTLIST_KERNEL_CUH

#include "kernels/cuda_ops.h"
#include "kernels/device.cuh"

constexpr int SHORTLIST_PARTS = 8; /* CTAs of a cluster that every device allows */
constexpr int SHORTLIST_BLOCK = 1024;
constexpr int SHORTLIST_WARPS = SHORTLIST_BLOCK / 32;
static_assert(SHORTLIST_BINS <= SHORTLIST_BLOCK && SHORTLIST_BINS % 32 == 0, "a thread per bin");
static_assert(SHORTLIST_WARPS == 32, "a lane per warp");

/* Of one part; read by the whole cluster between two of its barriers. */
struct shortlist_part {
    unsigned long long best, mass, mass_raw;
    float low;
    int n_noisy;
    int count[SHORTLIST_BINS];
    shortlist_entry noisy[SHORTLIST_NOISY];
};

/* One row as every thread of its cluster sees it. */
struct shortlist_row {
    const float *x; /* the part's first value */
    int first, n;   /* of the part */
    int part;
    float max, inverse, top; /* top: max at the temperature */
    bool has_noise;
    uint64_t seed, position;
};

__device__ __forceinline__ float shortlist_nothing() {
    return __uint_as_float(0xff800000u);
}

/* Value i of the part; NaN and what lies behind the end are -infinity. */
__device__ __forceinline__ float shortlist_value(const shortlist_row &r, int i) {
    const float v = i < r.n ? r.x[i] : shortlist_nothing();
    return v > shortlist_nothing() ? v : shortlist_nothing();
}

/* Orders by value, then by lower token; 0 for -infinity. */
__device__ __forceinline__ unsigned long long shortlist_key(float v, int token) {
    if (!(v > shortlist_nothing())) return 0;
    const uint32_t u = __float_as_uint(v + 0.0f);
    const uint32_t order = u ^ ((u >> 31) != 0 ? 0xffffffffu : 0x80000000u);
    return (unsigned long long)order << 32 | (0xffffffffu - (uint32_t)token);
}
__device__ __forceinline__ float shortlist_key_value(unsigned long long key) {
    const uint32_t order = (uint32_t)(key >> 32);
    return __uint_as_float(order ^ ((order >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

struct shortlist_larger {
    __device__ unsigned long long operator()(unsigned long long a, unsigned long long b) const {
        return a > b ? a : b;
    }
};
struct shortlist_sum {
    __device__ unsigned long long operator()(unsigned long long a, unsigned long long b) const {
        return a + b;
    }
};

/* Over the block, for every thread. shared: 32 values, free again after return. */
template <typename F>
__device__ __forceinline__ unsigned long long shortlist_reduce(
    unsigned long long v, unsigned long long *shared, F join) {
#pragma unroll
    for (int m = 16; m > 0; m >>= 1)
        v = join(v, __shfl_xor_sync(~0u, v, m));
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
    __syncthreads();
    v = shared[threadIdx.x & 31];
#pragma unroll
    for (int m = 16; m > 0; m >>= 1)
        v = join(v, __shfl_xor_sync(~0u, v, m));
    __syncthreads();
    return v;
}

/* Inclusive sum over the lanes of a warp. */
__device__ __forceinline__ int shortlist_scan(int v) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int m = 1; m < 32; m <<= 1) {
        const int below = __shfl_up_sync(~0u, v, m);
        if (lane >= m) v += below;
    }
    return v;
}

/* As noise_of of the CPU's form. */
__device__ __forceinline__ bool shortlist_noise(
    const shortlist_row &r, float v, int i, float *depth, int *zeros) {
    if (!r.has_noise || !(v > shortlist_nothing())) return false;
    *depth = v * r.inverse - r.top;
    if (!(*depth > SHORTLIST_NOISE_DEPTH)) return false;
    *zeros = shortlist_zeros(rand_keyed(r.seed, r.position, (uint64_t)(uint32_t)(r.first + i)));
    return true;
}

/* Weights, counts by bin, the best lower bound of a score: those of this part. */
__device__ __forceinline__ void shortlist_measure(
    const shortlist_row &r, shortlist_part *part, unsigned long long *shared, float *shared_max) {
    unsigned long long mass = 0, mass_raw = 0;
    float low = shortlist_nothing();
    for (int i = threadIdx.x; i < r.n; i += SHORTLIST_BLOCK) {
        const float v = shortlist_value(r, i);
        if (!(v > shortlist_nothing())) continue;
        const int bin = shortlist_bin(r.max, v);
        if (bin < SHORTLIST_BINS) atomicAdd(&part->count[bin], 1);
        mass_raw += weight_of(v - r.max);
        if (r.inverse > 0.0f) mass += weight_of(v * r.inverse - r.top);
        float depth;
        int zeros;
        if (shortlist_noise(r, v, i, &depth, &zeros))
            low = fmaxf(low, depth + shortlist_noise_low(zeros));
    }
    mass = shortlist_reduce(mass, shared, shortlist_sum());
    mass_raw = shortlist_reduce(mass_raw, shared, shortlist_sum());
    low = block_max(low, shared_max);
    if (threadIdx.x == 0) {
        part->mass = mass;
        part->mass_raw = mass_raw;
        part->low = low;
    }
}

/* What all parts counted: how many whole bins fit, their tokens, and those of the parts before. */
struct shortlist_bins {
    int n_bins, n, n_before;
};
__device__ __forceinline__ shortlist_bins shortlist_choose(
    const shortlist_part *part, int i_part, int *shared) {
    const int bin = threadIdx.x, warp = threadIdx.x >> 5;
    int count = 0, before = 0;
    for (int q = 0; q < SHORTLIST_PARTS && bin < SHORTLIST_BINS; q++) {
        const int c = ptx_cluster_at(part, q)->count[bin];
        count += c;
        before += q < i_part ? c : 0;
    }
    int sum = shortlist_scan(count);
    if ((threadIdx.x & 31) == 31) shared[warp] = sum;
    __syncthreads();
    const int warps = shortlist_scan(shared[threadIdx.x & 31]);
    sum += warp > 0 ? __shfl_sync(~0u, warps, warp - 1) : 0;
    __syncthreads();
    const bool fits = bin < SHORTLIST_BINS && sum <= SHORTLIST_CAP;
    shortlist_bins b;
    b.n_bins = block_sum_int(fits ? 1 : 0, shared);
    b.n = block_sum_int(fits ? count : 0, shared);
    b.n_before = block_sum_int(fits ? before : 0, shared);
    return b;
}

/* Writes the listed tokens of this part behind those of the parts before, keeps the noisy ones. */
__device__ __forceinline__ void shortlist_write(const shortlist_row &r, const shortlist_bins &b,
    float noisy_low, shortlist *out, shortlist_part *part, int *shared) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const unsigned below = (1u << lane) - 1u;
    int at = b.n_before, n_noisy = 0;
    for (int start = 0; start < r.n; start += SHORTLIST_BLOCK) {
        const int i = start + threadIdx.x;
        const float v = shortlist_value(r, i);
        float depth;
        int zeros;
        const bool is_listed = v > shortlist_nothing() && shortlist_bin(r.max, v) < b.n_bins;
        const bool is_noisy = shortlist_noise(r, v, i, &depth, &zeros) &&
                              depth + shortlist_noise_high(zeros) >= noisy_low;
        const unsigned listed = __ballot_sync(~0u, is_listed);
        const unsigned noisy = __ballot_sync(~0u, is_noisy);
        if (lane == 0) shared[warp] = __popc(listed) | __popc(noisy) << 16;
        __syncthreads();
        const int own = shared[lane], sums = shortlist_scan(own);
        const int mine = __shfl_sync(~0u, sums - own, warp), all = __shfl_sync(~0u, sums, 31);
        const shortlist_entry entry = {r.first + i, v};
        if (is_listed) out->entries[at + (mine & 0xffff) + __popc(listed & below)] = entry;
        const int k = n_noisy + (mine >> 16) + __popc(noisy & below);
        if (is_noisy && k < SHORTLIST_NOISY) part->noisy[k] = entry;
        at += all & 0xffff;
        n_noisy += all >> 16;
        __syncthreads();
    }
    if (threadIdx.x == 0) part->n_noisy = n_noisy;
}

/* The noisy tokens that this part kept go behind those of the parts before; their number. */
__device__ __forceinline__ int shortlist_join_noisy(
    const shortlist_row &r, shortlist *out, const shortlist_part *part) {
    int n = 0, before = 0;
    for (int q = 0; q < SHORTLIST_PARTS; q++) {
        const int c = ptx_cluster_at(part, q)->n_noisy;
        before += q < r.part ? c : 0;
        n += c;
    }
    const int k = threadIdx.x;
    if (k < part->n_noisy && k < SHORTLIST_NOISY && before + k < SHORTLIST_NOISY)
        out->noisy[before + k] = part->noisy[k];
    return n;
}

__device__ __forceinline__ shortlist_row shortlist_begin(const shortlist_args &a) {
    const int row = blockIdx.x / SHORTLIST_PARTS, part = blockIdx.x % SHORTLIST_PARTS;
    const int share = (a.n + SHORTLIST_PARTS - 1) / SHORTLIST_PARTS;
    shortlist_row r = {};
    r.part = part;
    r.first = part * share;
    r.n = a.n - r.first < share ? a.n - r.first : share;
    r.n = r.n < 0 ? 0 : r.n;
    r.x = a.x + (size_t)row * a.n + r.first;
    r.inverse = a.asks[row].inverse;
    r.has_noise = a.asks[row].has_noise != 0 && r.inverse > 0.0f;
    r.seed = a.asks[row].seed;
    r.position = (uint64_t)a.asks[row].position;
    return r;
}

__global__ void __launch_bounds__(SHORTLIST_BLOCK) shortlist_kernel(shortlist_args a) {
    kernel_begin();
    __shared__ shortlist_part part;
    __shared__ unsigned long long wide[32];
    __shared__ int narrow[33];
    __shared__ float floats[33];
    shortlist_row r = shortlist_begin(a);
    shortlist *out = a.out + blockIdx.x / SHORTLIST_PARTS;
    unsigned long long best = 0, mass = 0, mass_raw = 0;
    for (int i = threadIdx.x; i < r.n; i += SHORTLIST_BLOCK)
        best = shortlist_larger()(best, shortlist_key(shortlist_value(r, i), r.first + i));
    best = shortlist_reduce(best, wide, shortlist_larger());
    if (threadIdx.x == 0) part.best = best;
    if (threadIdx.x < SHORTLIST_BINS) part.count[threadIdx.x] = 0;
    ptx_cluster_barrier();
    for (int q = 0; q < SHORTLIST_PARTS; q++)
        best = shortlist_larger()(best, ptx_cluster_at(&part, q)->best);
    r.max = best == 0 ? shortlist_nothing() : shortlist_key_value(best);
    r.top = r.max * r.inverse;
    shortlist_measure(r, &part, wide, floats);
    ptx_cluster_barrier();
    float noisy_low = shortlist_nothing();
    for (int q = 0; q < SHORTLIST_PARTS; q++) {
        const shortlist_part *p = ptx_cluster_at(&part, q);
        mass += p->mass;
        mass_raw += p->mass_raw;
        noisy_low = fmaxf(noisy_low, p->low);
    }
    const shortlist_bins b = shortlist_choose(&part, r.part, narrow);
    shortlist_write(r, b, noisy_low, out, &part, narrow);
    ptx_cluster_barrier();
    const int n_noisy = shortlist_join_noisy(r, out, &part);
    if (r.part == 0 && threadIdx.x == 0) {
        out->mass = mass;
        out->mass_raw = mass_raw;
        out->max = r.max;
        out->token = best == 0 ? -1 : (int)(0xffffffffu - (uint32_t)best);
        out->ask = a.asks[blockIdx.x / SHORTLIST_PARTS];
        out->n = b.n;
        out->n_bins = best == 0 ? 0 : b.n_bins;
        out->n_noisy = n_noisy;
        out->noisy_low = noisy_low;
    }
    ptx_cluster_barrier(); /* nobody leaves while its part is read */
}

#endif
