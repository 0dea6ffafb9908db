#include "kernels/head/head_kernel.cuh"

static unsigned blocks_of(size_t n) {
    return (unsigned)((n + DEVICE_BLOCK - 1) / DEVICE_BLOCK);
}

void finite_cuda(kernel_context *k, const finite_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    CUDA_RUN(k, "finite", finite_kernel, (unsigned)a->n_rows, HEAD_BLOCK, 0, *a);
}

void argmax_cuda(kernel_context *k, const argmax_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    CUDA_RUN(k, "argmax", argmax_kernel, (unsigned)a->n_rows, HEAD_BLOCK, 0, *a);
}

void add_cuda(kernel_context *k, const add_args *a) {
    if (k->rc != OK || a->n == 0) return;
    CUDA_RUN(k, "add", add_kernel, blocks_of(a->n), DEVICE_BLOCK, 0, *a);
}

void join_cuda(kernel_context *k, const join_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    CUDA_RUN(k, "join", join_kernel,
        dim3((unsigned)a->n_rows, (unsigned)a->n_parts, blocks_of((size_t)a->n_part)), DEVICE_BLOCK,
        0, *a);
}

void round_cuda(kernel_context *k, float *x, size_t n) {
    if (k->rc != OK || n == 0 || !k->is_bf16) return;
    CUDA_RUN(k, "round", round_kernel, blocks_of(n), DEVICE_BLOCK, 0, x, n);
}
