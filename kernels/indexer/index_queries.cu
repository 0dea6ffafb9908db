/* The queries of the indexer: a warp a head of a row. */
#include "kernels/cuda_ops.h"
#include "kernels/kv/kv_device.cuh"

constexpr int QUERIES_WARPS = 4;

/* Two values from at on, a pair of the last d_rope or none; the operations of rope_kernel. */
__device__ __forceinline__ void queries_turn(
    const index_queries_args &a, const float *table, int at, bool is_bf16, float &re, float &im) {
    const int pair = at - (a.d - a.d_rope);
    if (pair < 0 || at >= a.d) return;
    const float c = __ldcg(table + pair), s = __ldcg(table + pair + 1), x = re, y = im;
    re = bf16_near_if(is_bf16, x * c - y * s);
    im = bf16_near_if(is_bf16, x * s + y * c);
}

__global__ void __launch_bounds__(QUERIES_WARPS * 32)
    index_queries_kernel(index_queries_args a, bool is_bf16) {
    kernel_begin();
    const int i = blockIdx.x * QUERIES_WARPS + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (i >= a.n_rows * a.n_heads) return;
    const float *table = a.table + (size_t)(i / a.n_heads) * a.d_rope;
    float *x = a.x + (size_t)i * a.d;
    for (int at = lane * 4; at - lane * 4 < a.d; at += 128) {
        float4 v = make_float4(0.f, 0.f, 0.f, 0.f);
        if (at < a.d) v = __ldcg((const float4 *)(x + at));
        queries_turn(a, table, at, is_bf16, v.x, v.y);
        queries_turn(a, table, at + 2, is_bf16, v.z, v.w);
        v = kv_pack_four(a.format, v, at, a.d, a.packed + i * a.packed_bytes);
        if (at < a.d) *(float4 *)(x + at) = v;
    }
}

void index_queries_cuda(kernel_context *k, const index_queries_args *a) {
    const int n = a->n_rows * a->n_heads;
    if (k->rc != OK || n == 0) return;
    if (a->d % 32 != 0 || a->d_rope % 2 != 0 || ((uintptr_t)a->x & 15) != 0) {
        k->rc = err_set(&k->error, ERR_LIMIT, "index queries of %d values, %d rotated, at %p", a->d,
            a->d_rope, (void *)a->x);
        return;
    }
    CUDA_RUN(k, "index queries", index_queries_kernel,
        (unsigned)((n + QUERIES_WARPS - 1) / QUERIES_WARPS), QUERIES_WARPS * 32, 0, *a, k->is_bf16);
}
