#include "kernels/norm/norm_kernel.cuh"

void rmsnorm_cuda(kernel_context *k, const rmsnorm_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    CUDA_RUN(k, "rmsnorm", rmsnorm_kernel, (unsigned)a->n_rows, DEVICE_BLOCK, 0, *a, k->is_bf16);
}
