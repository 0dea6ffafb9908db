/* Device side of prepare.h for prompts: two neighbouring rows a block of a few warps, so that many rows
 * are on their way at once and whole sectors of operands are written (their pieces of 16 bytes lie side by
 * side; by halves the memory reads what it writes). Warp w holds blocks w, w + WARPS, .. of 128 values of
 * both rows, BLOCKS at most. All sums are those of prepare_kernel.cuh: a warp stands for the warps w,
 * w + WARPS, .. of the 32 there and keeps a sum for each. Bound by memory and by
 * the instructions of the rotation: 8,192 rows as an operand of 4096 inputs 67 us, 3.0 TB/s. */
#ifndef TANDEM_KERNELS_PREPARE_PREPARE_MANY_KERNEL_CUH
#define TANDEM_KERNELS_PREPARE_PREPARE_MANY_KERNEL_CUH

#include "kernels/prepare/prepare_kernel.cuh"

constexpr int PREPARE_PAIR = 2;

constexpr int prepare_power_of_two(int n) {
    int p = 1;
    while (p < n)
        p *= 2;
    return p;
}

template <int N_WARPS, int N_BLOCKS> struct prepare_many {
    static constexpr int WARPS = N_WARPS, BLOCKS = N_BLOCKS;
    static constexpr int STANDS_FOR = PREPARE_WARPS / WARPS;               /* warps of 32 */
    static constexpr int SUMS = BLOCKS < STANDS_FOR ? BLOCKS : STANDS_FOR; /* of a row and warp */
    static constexpr int SLOTS = prepare_power_of_two(SUMS);
    typedef float4 rows[PREPARE_PAIR][BLOCKS];
    struct shared {
        float sums[PREPARE_PAIR][PREPARE_WARPS];
        uint32_t most[PREPARE_PAIR][WARPS];
        int total[PREPARE_PAIR][WARPS];
        float mix[WARPS][MHC_MAX_MIX + 1], comb[WARPS][MHC_MAX_STREAMS * MHC_MAX_STREAMS];
    };
    /* First value of a lane in its warp's block i. */
    __device__ static __forceinline__ int at(int i) {
        return ((threadIdx.x >> 5) + i * WARPS) * 128 + (threadIdx.x & 31) * 4;
    }
};

/* Sums over a warp of N values a lane by the additions of warp_sum; lane L has that of value L / (32 / N). */
template <int N> __device__ __forceinline__ float prepare_warp_sums(float (&v)[N]) {
    int m = 16;
#pragma unroll
    for (int half = N / 2; half > 0; half >>= 1, m >>= 1) {
        const bool is_upper = (threadIdx.x & m) != 0;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float keep = is_upper ? v[i + half] : v[i], send = is_upper ? v[i] : v[i + half];
            v[i] = keep + __shfl_xor_sync(~0u, send, m);
        }
    }
    float sum = v[0];
#pragma unroll
    for (; m > 0; m >>= 1)
        sum += __shfl_xor_sync(~0u, sum, m);
    return sum;
}

/* The sums of squares of a warp's blocks to where the 32 warps have theirs. */
template <class M>
__device__ __forceinline__ void prepare_many_squares(
    const prepare_task &t, const typename M::rows &v, typename M::shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float sums[PREPARE_PAIR * M::SLOTS] = {};
#pragma unroll
    for (int r = 0; r < PREPARE_PAIR; r++)
#pragma unroll
        for (int i = 0; i < M::BLOCKS; i++) {
            if (M::at(i) >= t.n) continue;
            float &sum = sums[r * M::SLOTS + i % M::STANDS_FOR];
            sum = fmaf(v[r][i].x, v[r][i].x, sum);
            sum = fmaf(v[r][i].y, v[r][i].y, sum);
            sum = fmaf(v[r][i].z, v[r][i].z, sum);
            sum = fmaf(v[r][i].w, v[r][i].w, sum);
        }
    constexpr int LANES = 32 / (PREPARE_PAIR * M::SLOTS);
    const float sum = prepare_warp_sums(sums);
    const int r = lane / LANES / M::SLOTS, slot = lane / LANES % M::SLOTS;
    if (lane % LANES == 0 && slot < M::SUMS) sh.sums[r][warp + slot * M::WARPS] = sum;
}

template <class M>
__device__ __forceinline__ void prepare_many_norm(
    const prepare_task &t, typename M::rows &v, bool is_bf16, typename M::shared &sh) {
    const int lane = threadIdx.x & 31;
    float4 w[M::BLOCKS];
#pragma unroll
    for (int i = 0; i < M::BLOCKS; i++)
        w[i] = M::at(i) < t.n && t.is_wide ? __ldg((const float4 *)(t.norm + M::at(i)))
                                           : prepare_load(t.norm, M::at(i), t.n, false);
    prepare_many_squares<M>(t, v, sh);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < PREPARE_PAIR; r++) {
        const float sum = warp_sum(lane < M::WARPS * M::SUMS ? sh.sums[r][lane] : 0.f);
        const float root = 1.0f / sqrtf(sum / (float)t.n + t.eps);
#pragma unroll
        for (int i = 0; i < M::BLOCKS; i++) {
            if (M::at(i) >= t.n) continue;
            float4 &f = v[r][i];
            f = bf16_near_4_if(is_bf16, make_float4(w[i].x * (f.x * root), w[i].y * (f.y * root),
                                            w[i].z * (f.z * root), w[i].w * (f.w * root)));
        }
    }
}

template <class M>
__device__ __forceinline__ void prepare_many_rope(
    const prepare_task &t, const int (&row)[PREPARE_PAIR], typename M::rows &v, bool is_bf16) {
    const int fixed = t.d_head - t.d_rope;
#pragma unroll
    for (int i = 0; i < M::BLOCKS; i++) {
        const int at = M::at(i), in_head = at % t.d_head;
        if (at >= t.n || in_head < fixed) continue;
#pragma unroll
        for (int r = 0; r < PREPARE_PAIR; r++)
            v[r][i] = prepare_turned(
                t, t.rope + (size_t)row[r] * t.d_rope + in_head - fixed, v[r][i], is_bf16);
    }
}

/* The bytes that a lane stores for exl3_put_gemm_operand. */
__device__ __forceinline__ uint2 prepare_many_piece(float4 v, float inv, int &sum) {
    const int a = __float2int_rn(v.x * inv), b = __float2int_rn(v.y * inv),
              c = __float2int_rn(v.z * inv), d = __float2int_rn(v.w * inv);
    sum += (a + b) + (c + d);
    const uint32_t lo = __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
    const uint32_t hi = __byte_perm(
        __byte_perm(a + 128, b + 128, 0x0051), __byte_perm(c + 128, d + 128, 0x0051), 0x5410);
    const bool is_low = (threadIdx.x & 2) != 0;
    const uint32_t mine = is_low ? lo : hi;
    const uint32_t other = __shfl_xor_sync(~0u, is_low ? hi : lo, 2);
    const uint32_t first = is_low ? other : mine, second = is_low ? mine : other;
    return make_uint2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
}

/* Stores the rows' integers in the layout of exl3_put_gemm_operand: of two lanes that hold halves of the
 * same pieces one takes the piece of the first row, the other that of the second. sum: of a lane. */
template <class M>
__device__ __forceinline__ void prepare_many_put(const prepare_operand &o, int n, const int rows[2],
    const typename M::rows &v, const float (&inv)[PREPARE_PAIR], int (&sum)[PREPARE_PAIR]) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = rows[0];
    const int row0 = row / o.tile_rows * o.tile_rows, in_tile = min(o.tile_rows, o.row_cap - row0);
    const bool is_second = (lane & 1) != 0, is_here = row + (lane & 1) < rows[1];
    const int piece = warp * 16 + (lane >> 3) * 4 + (lane & 2) + (lane >> 2 & 1);
    char *to = (char *)o.operand + (size_t)row0 * n * 2 +
               (uint32_t)((piece * in_tile + (row - row0) + (lane & 1)) * 16);
#pragma unroll
    for (int i = 0; i < M::BLOCKS; i++) {
        if (M::at(i) >= n) continue;
        const uint2 a = prepare_many_piece(v[0][i], inv[0], sum[0]);
        const uint2 b = prepare_many_piece(v[1][i], inv[1], sum[1]);
        const uint2 own = is_second ? b : a, give = is_second ? a : b;
        const uint2 got =
            make_uint2(__shfl_xor_sync(~0u, give.x, 1), __shfl_xor_sync(~0u, give.y, 1));
        if (is_here)
            *(uint4 *)(to + (uint32_t)(i * M::WARPS * 16 * 16 * in_tile)) =
                is_second ? make_uint4(got.x, got.y, own.x, own.y)
                          : make_uint4(own.x, own.y, got.x, got.y);
    }
}

/* The integer operand of rows rows[0] and, if below rows[1], the next of one linear; v is lost. */
template <class M>
__device__ __forceinline__ void prepare_many_quantize(const prepare_operand &o, int n,
    const int rows[2], typename M::rows &v, typename M::shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    uint32_t most[PREPARE_PAIR] = {};
#pragma unroll
    for (int i = 0; i < M::BLOCKS; i++) {
        if (M::at(i) >= n) continue;
        const float4 suh = exl3_half4(o.suh + M::at(i));
#pragma unroll
        for (int r = 0; r < PREPARE_PAIR; r++) {
            v[r][i] = exl3_rotate(exl3_times(v[r][i], suh), lane);
            most[r] = max(most[r], exl3_magnitude(v[r][i]));
        }
    }
#pragma unroll
    for (int r = 0; r < PREPARE_PAIR; r++) {
        most[r] = __reduce_max_sync(~0u, most[r]);
        if (lane == 0) sh.most[r][warp] = most[r];
    }
    __syncthreads();
    float inv[PREPARE_PAIR], scale[PREPARE_PAIR];
#pragma unroll
    for (int r = 0; r < PREPARE_PAIR; r++) {
        const exl3_row_range range(__reduce_max_sync(~0u, sh.most[r][lane % M::WARPS]));
        inv[r] = range.inv, scale[r] = range.scale;
    }
    int sum[PREPARE_PAIR] = {};
    prepare_many_put<M>(o, n, rows, v, inv, sum);
#pragma unroll
    for (int r = 0; r < PREPARE_PAIR; r++) {
        sum[r] = __reduce_add_sync(~0u, sum[r]);
        if (lane == 0) sh.total[r][warp] = sum[r];
    }
    __syncthreads();
    const int r = threadIdx.x;
    if (r >= PREPARE_PAIR || rows[0] + r >= rows[1]) return;
    int total = 0;
    for (int w = 0; w < M::WARPS; w++)
        total += sh.total[r][w];
    *(int2 *)(o.scale + rows[0] + r) =
        make_int2(__float_as_int(r == 0 ? scale[0] : scale[1]), total);
}

/* The rows of x, or as they were stored to y. */
template <class M>
__device__ __forceinline__ void prepare_many_load(
    const prepare_task &t, const int (&row)[PREPARE_PAIR], typename M::rows &v, bool is_stored) {
#pragma unroll
    for (int r = 0; r < PREPARE_PAIR; r++) {
        const float *x = is_stored
                             ? t.y + row[r] * t.y_stride
                             : t.x + (t.x_rows == nullptr ? row[r] : t.x_rows[row[r]]) * t.x_stride;
#pragma unroll
        for (int i = 0; i < M::BLOCKS; i++)
            v[r][i] = prepare_load(x, M::at(i), t.n, t.is_wide != 0);
    }
}

template <class M, bool HAS_ROPE>
__device__ __forceinline__ void prepare_many_rows(
    const prepare_args &p, const prepare_task &t, int first, typename M::shared &sh) {
    const bool is_bf16 = p.is_bf16 != 0;
    const int rows[2] = {first, t.n_rows};
    /* A row behind the end is the last one again, and not stored. */
    const int row[PREPARE_PAIR] = {t.first_row + first, t.first_row + min(first + 1, t.n_rows - 1)};
    typename M::rows v;
    prepare_many_load<M>(t, row, v, false);
    if (t.norm != nullptr) prepare_many_norm<M>(t, v, is_bf16, sh);
    if (HAS_ROPE && t.rope != nullptr) prepare_many_rope<M>(t, row, v, is_bf16);
#pragma unroll
    for (int r = 0; r < PREPARE_PAIR; r++) {
        if (first + r >= t.n_rows) continue;
#pragma unroll
        for (int i = 0; i < M::BLOCKS; i++) {
            if (t.y != nullptr)
                prepare_store(t.y + row[r] * t.y_stride, M::at(i), t.n, t.is_wide != 0, v[r][i]);
            if (HAS_ROPE && t.packed != nullptr && M::at(i) - (int)(threadIdx.x & 31) * 4 < t.n)
                kv_pack_four((kv_format)t.format, v[r][i], M::at(i), t.n,
                    t.packed + (size_t)row[r] * t.packed_bytes);
        }
    }
#pragma unroll 1
    for (int q = 0; q < t.n_operands; q++) {
        if (q > 0) {
            __syncthreads();
            prepare_many_load<M>(t, row, v, true); /* a lane reads what it wrote */
        }
        prepare_many_quantize<M>(p.operands[t.first_operand + q], t.n, rows, v, sh);
    }
}

/* The end of the mix of row r by one warp, a dot a lane: what the lanes of prepare_mix hold stands in
 * registers, and is added in the same order. */
__device__ __forceinline__ void prepare_many_mix(
    const prepare_args &p, int r, float *mix, float *comb) {
    const int lane = threadIdx.x & 31, n_mix = p.mix.n_streams * (2 + p.mix.n_streams);
    for (int f = lane; f <= n_mix; f += 32) {
        const float *at = p.dots + (size_t)r * p.n_slices * p.dots_stride + f;
        float sum[32] = {};
        for (int s0 = 0; s0 < p.n_slices; s0 += 32) {
#pragma unroll
            for (int half = 0; half < 32; half += 16) {
                float v[16]; /* on their way at once */
#pragma unroll
                for (int i = 0; i < 16; i++)
                    v[i] = __ldcg(at + min(s0 + half + i, p.n_slices - 1) * p.dots_stride);
#pragma unroll
                for (int i = 0; i < 16; i++)
                    sum[half + i] += s0 + half + i < p.n_slices ? v[i] : 0.f;
            }
        }
#pragma unroll
        for (int m = 16; m > 0; m >>= 1)
#pragma unroll
            for (int i = 0; i < m; i++)
                sum[i] += sum[i + m];
        mix[f] = sum[0];
    }
    __syncwarp();
    mhc_mix_row(p.mix, r, mix, comb);
}

/* Grid: tasks of pairs of rows; a task's blocks that read the same rows run side by side. */
template <class M, bool HAS_ROPE, bool HAS_MIX, int MIN_BLOCKS>
__global__ void __launch_bounds__(M::WARPS * 32, MIN_BLOCKS)
    prepare_many_kernel(const __grid_constant__ prepare_args p) {
    __shared__ typename M::shared sh;
    const prepare_task &t = p.tasks[blockIdx.x % p.n_tasks];
    const int i = blockIdx.x / p.n_tasks, warp = threadIdx.x >> 5;
    ptx_release_next();
    ptx_wait_for_previous();
    if (HAS_MIX && t.kind == PREPARE_MIX) {
        /* Spread over the grid, as they wait more than they read. */
        const int row = i * PREPARE_PAIR + warp;
        if (i * PREPARE_PAIR % M::WARPS == 0 && row < t.n_rows)
            prepare_many_mix(p, row, sh.mix[warp], sh.comb[warp]);
    } else if (i * PREPARE_PAIR < t.n_rows) {
        prepare_many_rows<M, HAS_ROPE>(p, t, i * PREPARE_PAIR, sh);
    }
}

#endif
