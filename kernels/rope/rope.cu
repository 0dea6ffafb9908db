#include "kernels/rope/rope_kernel.cuh"

static unsigned blocks_of(int n) {
    return (unsigned)((n + DEVICE_BLOCK - 1) / DEVICE_BLOCK);
}

void rope_table_cuda(kernel_context *k, const rope_table_args *a) {
    if (k->rc != OK || a->n == 0) return;
    CUDA_RUN(
        k, "rope table", rope_table_kernel, blocks_of(a->n * a->d_rope / 2), DEVICE_BLOCK, 0, *a);
}

void rope_cuda(kernel_context *k, const rope_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    CUDA_RUN(k, "rope", rope_kernel,
        dim3((unsigned)a->n_rows, blocks_of(a->n_heads * a->d_rope / 2)), DEVICE_BLOCK, 0, *a,
        k->is_bf16);
}
