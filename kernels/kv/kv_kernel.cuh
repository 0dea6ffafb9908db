/* Packing, unpacking and storing of cache rows, one block a row. */
#ifndef TANDEM_KERNELS_KV_KV_KERNEL_CUH
#define TANDEM_KERNELS_KV_KV_KERNEL_CUH

#include "kernels/kv/kv_device.cuh"

__global__ void __launch_bounds__(DEVICE_BLOCK) kv_pack_kernel(kv_pack_args a) {
    kernel_begin();
    kv_pack_row(a.format, a.x + blockIdx.x * a.x_stride, a.d, a.rows + blockIdx.x * a.row_bytes);
}

__global__ void __launch_bounds__(DEVICE_BLOCK) kv_unpack_kernel(kv_unpack_args a) {
    kernel_begin();
    const uint8_t *row = a.rows + blockIdx.x * a.row_bytes;
    for (int i = threadIdx.x; i < a.d; i += blockDim.x)
        a.x[(size_t)blockIdx.x * a.d + i] = kv_value(a.format, row, a.d, i);
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
