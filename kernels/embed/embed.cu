#include "kernels/embed/embed_kernel.cuh"

void embed_cuda(kernel_context *k, const embed_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    const int of_block = EMBED_HELD * DEVICE_BLOCK;
    CUDA_RUN(k, "embed", embed_kernel,
        dim3((unsigned)a->n_rows, (unsigned)((a->table->n_in + of_block - 1) / of_block)),
        DEVICE_BLOCK, 0, *a, *a->table, k->is_bf16);
}

void lookup_cuda(kernel_context *k, const lookup_args *a) {
    if (k->rc != OK || a->n == 0) return;
    CUDA_RUN(k, "lookup", lookup_kernel, (unsigned)a->n, DEVICE_BLOCK, 0, *a, *a->table);
}
