#include "kernels/moe/router_kernel.cuh"

void router_cuda(kernel_context *k, const router_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    if (a->n_experts > ROUTER_MAX_EXPERTS || a->n_used > MOE_MAX_USED || a->n_used > a->n_experts) {
        k->rc = err_set(&k->error, ERR_LIMIT, "router: %d of %d experts", a->n_used, a->n_experts);
        return;
    }
    int threads = (a->n_experts + 31) / 32 * 32;
    threads = threads < MOE_MAX_USED ? MOE_MAX_USED : threads;
    CUDA_RUN(k, "router", router_kernel, (unsigned)a->n_rows, (unsigned)threads, 0, *a);
}
