/* Device side of prepare.h for a few rows, for what stands between the products of a step: the operations of
 * prepare_kernel.cuh in their order, by as many warps. Bound by the instructions that 32 warps issue (the code run
 * once before the wait, so that it is there, gained nothing): what takes many of them is in loops, tiles of attention
 * come by bulk copies, and an operand is stored by halves of its pieces instead of pairs of bytes. A step of six
 * rows on an H200 (2026-12-01), by prepare_kernel and by this one in turn: 11.87, 11.58, 11.71, 11.58 ms. At most
 * 64 registers. */
#ifndef TANDEM_KERNELS_PREPARE_PREPARE_FEW_KERNEL_CUH
#define TANDEM_KERNELS_PREPARE_PREPARE_FEW_KERNEL_CUH

#include "kernels/prepare/prepare_kernel.cuh"

constexpr int FEW_BLOCKS = 2; /* of 128 values, of a warp */

struct few_shared : prepare_shared {
    uint64_t arrived; /* tiles of attention */
};

__device__ __forceinline__ float4 few_near(bool is_bf16, float4 v) {
    return is_bf16 ? bf16_near_4(v) : v;
}

/* exl3_put_operand by a whole warp: of the lanes of a slice two store the high bytes, two the low ones. */
__device__ __forceinline__ int few_put(
    uint32_t *operand, int row_cap, int row, int at, float4 v, float inv) {
    const int a = __float2int_rn(v.x * inv), b = __float2int_rn(v.y * inv),
              c = __float2int_rn(v.z * inv), d = __float2int_rn(v.w * inv);
    const uint32_t lo = __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
    const uint32_t hi = __byte_perm(
        __byte_perm(a + 128, b + 128, 0x0051), __byte_perm(c + 128, d + 128, 0x0051), 0x5410);
    const int q = (at >> 2) & 3;
    const bool is_low = q >= 2;
    const uint32_t mine = is_low ? lo : hi;
    const uint32_t other = __shfl_xor_sync(~0u, is_low ? hi : lo, 2);
    const uint32_t first = is_low ? other : mine, second = is_low ? mine : other;
    char *o = (char *)(operand + (size_t)(at >> 4) * 8 * row_cap + 8 * row);
    *(uint2 *)(o + (is_low ? 16 : 0) + (q & 1) * 8) =
        make_uint2(__byte_perm(first, second, 0x5410), __byte_perm(first, second, 0x7632));
    return (a + b) + (c + d);
}

/* The tiles of a task's heads to shared memory, by one thread. Those that were not summed lie in the same work
 * space: copied, not used. */
__device__ __forceinline__ void few_fetch_tiles(const prepare_task &t, const attn_parts &a, int row,
    const unsigned char *tiles, uint32_t barrier) {
    const int head = t.first_value / ATTN_SUM_D, bytes = t.n * 4;
    const size_t unit = (size_t)row * a.n_groups + head / ATTN_SUM_GROUP;
    const float *from =
        a.sums + (unit * a.max_tiles * ATTN_SUM_GROUP + head % ATTN_SUM_GROUP) * ATTN_SUM_D;
    ptx_barrier_init(barrier, 1);
    ptx_barrier_init_fence();
    ptx_barrier_expect(barrier, a.max_tiles * bytes);
#pragma unroll 1
    for (int i = 0; i < a.max_tiles; i++)
        ptx_bulk_copy(ptx_shared(tiles) + i * bytes, from + (size_t)i * ATTN_SUM_GROUP * ATTN_SUM_D,
            bytes, barrier);
}

/* Four values of row from at on: tiles added in order, divided. All threads. */
__device__ __forceinline__ float4 few_attn(const prepare_task &t, const attn_parts &a, int row,
    int at, const unsigned char *tiles, few_shared &sh) {
    const uint32_t barrier = ptx_shared(&sh.arrived);
    if (threadIdx.x == PREPARE_THREADS - 32) few_fetch_tiles(t, a, row, tiles, barrier);
    const int n_tiles = __ldcg(a.n_tiles + row);
    prepare_attn_steps(a, row, t.first_value / ATTN_SUM_D, t.n / ATTN_SUM_D, sh);
    __syncthreads();
    ptx_barrier_wait(barrier, 0);
    if (at >= t.n) return make_float4(0.f, 0.f, 0.f, 0.f);
    const int q = at / ATTN_SUM_D;
    const float *from = (const float *)tiles + at;
    float4 v = *(const float4 *)from;
#pragma unroll 2
    for (int i = 1; i < n_tiles; i++) {
        const float4 c = *(const float4 *)(from + i * t.n);
        const attn_step s = {0.f, sh.before[q][i], sh.now[q][i]};
        v = make_float4(attn_add(false, s, v.x, c.x), attn_add(false, s, v.y, c.y),
            attn_add(false, s, v.z, c.z), attn_add(false, s, v.w, c.w));
    }
    const float d = sh.den[q];
    return make_float4(v.x / d, v.y / d, v.z / d, v.w / d);
}

/* What a norm multiplies the values of the row by. */
__device__ __forceinline__ float few_root(
    const prepare_task &t, int n_own, const float4 (&v)[FEW_BLOCKS], few_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < FEW_BLOCKS; i++) {
        if (i >= n_own) continue;
        sum = fmaf(v[i].x, v[i].x, sum);
        sum = fmaf(v[i].y, v[i].y, sum);
        sum = fmaf(v[i].z, v[i].z, sum);
        sum = fmaf(v[i].w, v[i].w, sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) sh.sums[warp] = sum;
    __syncthreads();
    sum = warp_sum(sh.sums[lane]);
    return 1.0f / sqrtf(sum / (float)t.n + t.eps);
}

/* The operand of a row from its rotated values, whose largest magnitude in this warp is most. */
__device__ __forceinline__ void few_operand(const prepare_operand &o, int n_own,
    const float4 (&v)[FEW_BLOCKS], uint32_t most, few_shared &sh) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, row = blockIdx.x;
    most = __reduce_max_sync(~0u, most);
    if (lane == 0) sh.most[warp] = most;
    __syncthreads();
    const exl3_row_range range(__reduce_max_sync(~0u, sh.most[lane]));
    int sum = 0;
#pragma unroll 1
    for (int i = 0; i < n_own; i++)
        sum += few_put(o.operand, o.row_cap, row, prepare_at(i), i == 0 ? v[0] : v[1], range.inv);
    sum = __reduce_add_sync(~0u, sum);
    if (lane == 0) sh.total[warp] = sum;
    __syncthreads();
    if (warp != 0) return;
    sum = __reduce_add_sync(~0u, sh.total[lane]);
    if (lane == 0) *(int2 *)(o.scale + row) = make_int2(__float_as_int(range.scale), sum);
}

/* What a warp's values are multiplied by. */
struct few_weights {
    float4 norm[FEW_BLOCKS];
    uint2 suh[FEW_BLOCKS];
    bool has_turn = false;
    float4 turn; /* of the table, read behind the wait */
    __device__ few_weights(const prepare_task &t, const prepare_operand &o, int n_own) {
#pragma unroll
        for (int i = 0; i < FEW_BLOCKS; i++) {
            norm[i] = make_float4(0.f, 0.f, 0.f, 0.f);
            suh[i] = make_uint2(0, 0);
            if (i >= n_own) continue;
            if (t.norm != nullptr) norm[i] = __ldg((const float4 *)(t.norm + prepare_at(i)));
            if (t.n_operands > 0) suh[i] = __ldg((const uint2 *)(o.suh + prepare_at(i)));
        }
    }
};

/* Values are normalized and stored, and rotated for an operand in v; the largest magnitude of those. */
__device__ __forceinline__ uint32_t few_values(const prepare_task &t, bool is_bf16, int n_own,
    const few_weights &w, float root, float4 (&v)[FEW_BLOCKS]) {
    const int row = t.first_row + (int)blockIdx.x;
    uint32_t most = 0;
#pragma unroll 1
    for (int i = 0; i < n_own; i++) {
        float4 f = i == 0 ? v[0] : v[1];
        if (t.norm != nullptr) {
            const float4 g = i == 0 ? w.norm[0] : w.norm[1];
            f = few_near(is_bf16, make_float4(g.x * (f.x * root), g.y * (f.y * root),
                                      g.z * (f.z * root), g.w * (f.w * root)));
        }
        if (w.has_turn) {
            const float4 c = w.turn;
            const float s0 = t.is_inverse ? -c.y : c.y, s1 = t.is_inverse ? -c.w : c.w;
            f = few_near(is_bf16, make_float4(f.x * c.x - f.y * s0, f.x * s0 + f.y * c.x,
                                      f.z * c.z - f.w * s1, f.z * s1 + f.w * c.z));
        }
        if (t.y != nullptr) *(float4 *)(t.y + row * t.y_stride + prepare_at(i)) = f;
        if (t.n_operands == 0) continue;
        const uint2 suh = i == 0 ? w.suh[0] : w.suh[1];
        f = exl3_rotate(exl3_times(f, exl3_half4_value(suh)), threadIdx.x & 31);
        most = max(most, exl3_magnitude(f));
        if (i == 0) v[0] = f;
        if (i != 0) v[1] = f;
    }
    return most;
}

template <bool HAS_ATTN>
__device__ __forceinline__ void few_row(
    const prepare_args &p, const prepare_task &t, const unsigned char *tiles, few_shared &sh) {
    const int row = t.first_row + (int)blockIdx.x, at = prepare_at(0);
    const int n_own = (at < t.n) + (prepare_at(1) < t.n);
    const int turned = n_own == 0 || t.rope == nullptr ? -1 : at % t.d_head - (t.d_head - t.d_rope);
    const prepare_operand &o = p.operands[t.first_operand];
    const bool is_bf16 = p.is_bf16 != 0;
    few_weights w(t, o, n_own);
    float4 v[FEW_BLOCKS];
    v[0] = v[1] = w.turn = make_float4(0.f, 0.f, 0.f, 0.f);
    w.has_turn = turned >= 0;
    ptx_wait_for_previous();
    if (w.has_turn) w.turn = __ldcg((const float4 *)(t.rope + (size_t)row * t.d_rope + turned));
    if (HAS_ATTN && t.kind == PREPARE_ATTN) {
        v[0] = few_near(is_bf16, few_attn(t, p.attn, row, at, tiles, sh));
    } else {
        const float *x = t.x + row * t.x_stride;
#pragma unroll
        for (int i = 0; i < FEW_BLOCKS; i++)
            if (i < n_own) v[i] = __ldcg((const float4 *)(x + prepare_at(i)));
    }
    const float root = t.norm == nullptr ? 1.f : few_root(t, n_own, v, sh);
    const uint32_t most = few_values(t, is_bf16, n_own, w, root, v);
    if (t.packed != nullptr) {
        __syncthreads();
        kv_pack_row((kv_format)t.format, t.y + row * t.y_stride, t.n,
            t.packed + (size_t)row * t.packed_bytes);
    }
    if (t.n_operands > 0) few_operand(o, n_own, v, most, sh);
}

/* Grid: rows of the longest task, tasks. */
template <bool HAS_ATTN>
__global__ void __launch_bounds__(PREPARE_THREADS, 1)
    prepare_few_kernel(const __grid_constant__ prepare_args p) {
    extern __shared__ __align__(128) unsigned char few_tiles[];
    __shared__ few_shared sh;
    ptx_release_next();
    const prepare_task &t = p.tasks[blockIdx.y];
    if ((int)blockIdx.x >= t.n_rows) return;
    if (t.kind == PREPARE_MIX) {
        prepare_mix(p, sh);
    } else if (t.kind == PREPARE_RING) {
        prepare_ring(p.ring);
    } else {
        few_row<HAS_ATTN>(p, t, few_tiles, sh);
    }
}

#endif
