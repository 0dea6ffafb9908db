/* Packing and storing of cache rows: a warp a row where rows can be read four values at a time,
 * else a block. */
#ifndef TANDEM_KERNELS_KV_KV_KERNEL_CUH
#define TANDEM_KERNELS_KV_KV_KERNEL_CUH

#include "kernels/kv/kv_device.cuh"

constexpr int KV_ROWS_OF_BLOCK = 4;

__global__ void __launch_bounds__(DEVICE_BLOCK) kv_pack_kernel(kv_pack_args a) {
    kernel_begin();
    kv_pack_row(a.format, a.x + blockIdx.x * a.x_stride, a.d, a.rows + blockIdx.x * a.row_bytes);
}

__global__ void __launch_bounds__(KV_ROWS_OF_BLOCK * 32) kv_pack_wide_kernel(kv_pack_args a) {
    kernel_begin();
    const int i = blockIdx.x * KV_ROWS_OF_BLOCK + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (i >= a.n) return;
    const float *x = a.x + i * a.x_stride;
    for (int at = lane * 4; at - lane * 4 < a.d; at += 128) {
        const float4 v =
            at < a.d ? __ldcg((const float4 *)(x + at)) : make_float4(0.f, 0.f, 0.f, 0.f);
        kv_pack_four(a.format, v, at, a.d, a.rows + i * a.row_bytes);
    }
}

__global__ void __launch_bounds__(128) kv_ring_write_kernel(kv_ring_write_args a) {
    kernel_begin();
    const int i = blockIdx.x;
    const batch_rows &b = a.batch;
    if (b.span_pos[i] + b.span_len[i] - b.pos[i] > a.ring.cap) return;
    copy_bytes(ring_row(a.ring, b.slot[i], b.pos[i]), a.rows + (size_t)i * a.ring.row_bytes,
        a.ring.row_bytes);
}

__global__ void __launch_bounds__(DEVICE_BLOCK) kv_page_write_kernel(kv_page_write_args a) {
    kernel_begin();
    const int i = blockIdx.x;
    kv_pack_row(a.format, a.x + (size_t)i * a.d, a.d, paged_row(a.pages, a.slot[i], a.group[i]));
}

#endif
