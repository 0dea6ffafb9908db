#include "kernels/embed/embed_kernel.cuh"

void embed_cuda(kernel_context *k, const embed_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    CUDA_RUN(
        k, "embed", embed_kernel, (unsigned)a->n_rows, DEVICE_BLOCK, 0, *a, *a->table, k->is_bf16);
}

void lookup_cuda(kernel_context *k, const lookup_args *a) {
    if (k->rc != OK || a->n == 0) return;
    CUDA_RUN(k, "lookup", lookup_kernel, (unsigned)a->n, DEVICE_BLOCK, 0, *a, *a->table);
}
