#include "kernels/moe/router_kernel.cuh"

void router_cuda(kernel_context *k, const router_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    CUDA_RUN(k, "router", router_kernel, (unsigned)((a->n_rows + ROUTER_ROWS - 1) / ROUTER_ROWS),
        ROUTER_ROWS * 32, 0, *a);
}
