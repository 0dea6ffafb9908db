/* The sums of attention of one row: a block a head, so that all its tiles are on their way at once; each warp finds
 * the weights of the tiles by itself. Operations and order are those of prepare_kernel.cuh. The products behind make
 * their operands themselves. */
#include "kernels/attn/attn_sum.cuh"
#include "kernels/kv/kv_device.cuh"
#include "kernels/prepare/prepare.h"

constexpr int HEADS_THREADS = ATTN_SUM_D / 4;
constexpr int HEADS_HELD = 12; /* tiles read at a time */

/* Tile t's part of a thread. Tiles that were not summed lie in the same work space: read, not used. */
__device__ __forceinline__ void heads_read(
    const attn_parts &a, const float *sums, int first, float4 (&v)[HEADS_HELD]) {
#pragma unroll
    for (int i = 0; i < HEADS_HELD; i++)
        if (first + i < a.max_tiles)
            v[i] =
                __ldcg((const float4 *)(sums + (size_t)(first + i) * ATTN_SUM_GROUP * ATTN_SUM_D));
}

/* Of a warp: lane t has the step of tile t. */
struct heads_steps {
    float most, before, now, sum; /* sum: of the tile's weights */
};

__device__ __forceinline__ heads_steps heads_steps_of(float2 end) {
    const int lane = threadIdx.x & 31;
    float most = end.x;
    for (int m = 1; m < 32; m <<= 1) {
        const float o = __shfl_up_sync(~0u, most, m);
        if (lane >= m) most = o > most ? o : most;
    }
    const attn_step s = attn_step_of(lane == 0, __shfl_up_sync(~0u, most, 1), end.x);
    return {most, s.before, s.now, end.y};
}

/* Four values of a head, from at on: tiles added in order, divided. */
__device__ __forceinline__ float4 heads_sum(const attn_parts &a, int head, int at) {
    const int h = head % ATTN_SUM_GROUP, lane = threadIdx.x & 31;
    const size_t unit = (size_t)(head / ATTN_SUM_GROUP) * a.max_tiles * ATTN_SUM_GROUP + h;
    const float *sums = a.sums + unit * ATTN_SUM_D + at;
    float4 c[HEADS_HELD], v;
    heads_read(a, sums, 0, c);
    const float2 end =
        __ldcg((const float2 *)a.ends + unit + (size_t)min(lane, a.max_tiles - 1) * ATTN_SUM_GROUP);
    const int n_tiles = __ldcg(a.n_tiles);
    const float sink = __ldg(a.sink + head);
    const heads_steps s = heads_steps_of(end);
    float den = 0.f;
#pragma unroll 1
    for (int first = 0; first < n_tiles; first += HEADS_HELD) {
        if (first > 0) heads_read(a, sums, first, c);
#pragma unroll
        for (int i = 0; i < HEADS_HELD; i++) {
            const int t = first + i;
            if (t >= n_tiles) break;
            const attn_step u = {0.f, __shfl_sync(~0u, s.before, t), __shfl_sync(~0u, s.now, t)};
            den = attn_add(t == 0, u, den, __shfl_sync(~0u, s.sum, t));
            v = make_float4(attn_add(t == 0, u, v.x, c[i].x), attn_add(t == 0, u, v.y, c[i].y),
                attn_add(t == 0, u, v.z, c[i].z), attn_add(t == 0, u, v.w, c[i].w));
        }
    }
    den += expf(sink - __shfl_sync(~0u, s.most, n_tiles - 1));
    return make_float4(v.x / den, v.y / den, v.z / den, v.w / den);
}

/* Two pairs turned by the table's entries c. */
__device__ __forceinline__ float4 heads_turned(float4 v, float4 c, bool is_inverse) {
    const float s0 = is_inverse ? -c.y : c.y, s1 = is_inverse ? -c.w : c.w;
    return make_float4(
        v.x * c.x - v.y * s0, v.x * s0 + v.y * c.x, v.z * c.z - v.w * s1, v.z * s1 + v.w * c.z);
}

__device__ __forceinline__ void heads_ring(const kv_ring_write_args &a) {
    const batch_rows &b = a.batch;
    if (b.span_pos[0] + b.span_len[0] - b.pos[0] > a.ring.cap) return;
    copy_bytes(ring_row(a.ring, b.slot[0], b.pos[0]), a.rows, a.ring.row_bytes);
}

/* Grid: heads, and one for the ring. */
__global__ void __launch_bounds__(HEADS_THREADS)
    prepare_heads_kernel(const __grid_constant__ prepare_heads p) {
    ptx_release_next();
    const int head = blockIdx.x, at = threadIdx.x * 4, turned = at - (ATTN_SUM_D - p.d_rope);
    const bool is_bf16 = p.is_bf16 != 0;
    ptx_wait_for_previous();
    if (head == p.n_heads) {
        heads_ring(p.ring);
        return;
    }
    float4 c = make_float4(0.f, 0.f, 0.f, 0.f);
    if (p.rope != nullptr && turned >= 0) c = __ldcg((const float4 *)(p.rope + turned));
    float4 v = bf16_near_4_if(is_bf16, heads_sum(p.attn, head, at));
    if (p.rope != nullptr && turned >= 0)
        v = bf16_near_4_if(is_bf16, heads_turned(v, c, p.is_inverse != 0));
    *(float4 *)(p.y + (size_t)head * ATTN_SUM_D + at) = v;
}

void prepare_heads_run(kernel_context *k, const prepare_heads *p) {
    if (k->rc != OK) return;
    CUDA_RUN(k, "heads of attention", prepare_heads_kernel,
        dim3((unsigned)(p->n_heads + p->has_ring)), HEADS_THREADS, 0, *p);
}
