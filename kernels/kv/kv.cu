#include "kernels/kv/kv_kernel.cuh"

/* Whole warps for a row of d values. */
static unsigned threads_of(int d) {
    const int n = (d + 31) / 32 * 32;
    return (unsigned)(n < DEVICE_BLOCK ? n : DEVICE_BLOCK);
}

/* For n rows of a warp each. */
static unsigned blocks_of(int n) {
    return (unsigned)(n + KV_ROWS_OF_BLOCK - 1) / KV_ROWS_OF_BLOCK;
}

void kv_pack_cuda(kernel_context *k, const kv_pack_args *a) {
    if (k->rc != OK || a->n == 0) return;
    const bool is_wide = ((uintptr_t)a->x & 15) == 0 && a->x_stride % 4 == 0 && a->d % 32 == 0;
    if (is_wide) {
        CUDA_RUN(k, "kv pack", kv_pack_wide_kernel, blocks_of(a->n), KV_ROWS_OF_BLOCK * 32, 0, *a);
    } else {
        CUDA_RUN(k, "kv pack", kv_pack_kernel, (unsigned)a->n, threads_of(a->d), 0, *a);
    }
}

void kv_ring_write_cuda(kernel_context *k, const kv_ring_write_args *a) {
    if (k->rc != OK || a->batch.n == 0) return;
    CUDA_RUN(k, "kv ring write", kv_ring_write_kernel, (unsigned)a->batch.n, 128, 0, *a);
}

void kv_page_write_cuda(kernel_context *k, const kv_page_write_args *a) {
    if (k->rc != OK || a->n == 0) return;
    CUDA_RUN(k, "kv page write", kv_page_write_kernel, (unsigned)a->n, threads_of(a->d), 0, *a);
}
