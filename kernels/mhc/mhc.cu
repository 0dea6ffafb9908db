#include "kernels/mhc/mhc_many_kernel.cuh"

/* Rows of a block when there are many: they share one read of the matrix. A warp takes four at once. */
enum { MHC_LOTS = 1024, MHC_ROWS_OF_BLOCK = 32, MHC_ROWS_OF_LOTS = 128 };

void mhc_streams_run(kernel_context *k, mhc_streams_params *p) {
    if (k->rc != OK || p->n_rows == 0) return;
    if (p->n_streams > MHC_MAX_STREAMS) {
        k->rc = err_set(&k->error, ERR_LIMIT, "hyper-connections: %d streams", p->n_streams);
        return;
    }
    const bool is_many = mhc_is_many(p->n_rows, p->n_streams, p->d);
    p->n_slices = mhc_slices(p->d);
    p->rows_of_block = !is_many ? 1 : p->n_rows < MHC_LOTS ? MHC_ROWS_OF_BLOCK : MHC_ROWS_OF_LOTS;
    p->is_bf16 = k->is_bf16;
    const dim3 grid(
        (unsigned)p->n_slices, (unsigned)((p->n_rows + p->rows_of_block - 1) / p->rows_of_block));
    if (is_many) {
        const int bytes = (int)sizeof(mhc_many_shared);
        k->rc = cuda_check(&k->error,
            cudaFuncSetAttribute(
                mhc_many_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "hyper-connections");
        if (k->rc != OK) return;
        CUDA_RUN(k, "hyper-connections", mhc_many_kernel, grid, MHC_THREADS, bytes, *p);
    } else if (p->n_streams == 4 && p->d % MHC_SLICE == 0) {
        CUDA_RUN(k, "hyper-connections", mhc_streams_kernel<true>, grid, MHC_THREADS, 0, *p);
    } else {
        CUDA_RUN(k, "hyper-connections", mhc_streams_kernel<false>, grid, MHC_THREADS, 0, *p);
    }
}

void mhc_mean_cuda(kernel_context *k, const mhc_mean_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    CUDA_RUN(k, "mhc mean", mhc_mean_kernel,
        dim3((unsigned)a->n_rows, (unsigned)((a->d + DEVICE_BLOCK - 1) / DEVICE_BLOCK)),
        DEVICE_BLOCK, 0, *a, k->is_bf16);
}
