#include "kernels/compress/compress_kernel.cuh"

void compress_pair_cuda(kernel_context *k, const compress_args *a) {
    if (k->rc != OK || a->n_closed == 0) return;
    CUDA_RUN(k, "compress pair", compress_pair_kernel, (unsigned)a->n_closed, DEVICE_BLOCK, 0, *a,
        k->is_bf16);
}

void compress_tail_write_cuda(kernel_context *k, const compress_args *a) {
    if (k->rc != OK || a->batch.n == 0) return;
    CUDA_RUN(k, "compress tail", compress_tail_kernel, (unsigned)a->batch.n, DEVICE_BLOCK, 0, *a);
}

void gather_cuda(kernel_context *k, const gather_args *a) {
    if (k->rc != OK || a->n == 0) return;
    CUDA_RUN(k, "gather", gather_kernel, (unsigned)a->n, DEVICE_BLOCK, 0, *a);
}
