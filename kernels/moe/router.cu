#include "kernels/moe/router_kernel.cuh"

void router_cuda(kernel_context *k, const router_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    const size_t shared = (size_t)(ROUTER_ROWS * 2 * a->n_experts) * sizeof(float);
    if (shared > 48 * 1024) {
        k->rc = err_set(&k->error, ERR_LIMIT, "router: %d experts", a->n_experts);
        return;
    }
    CUDA_RUN(k, "router", router_kernel, (unsigned)((a->n_rows + ROUTER_ROWS - 1) / ROUTER_ROWS),
        ROUTER_ROWS * 32, shared, *a);
}
