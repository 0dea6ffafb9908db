#include "kernels/prepare/prepare_kernel.cuh"

void prepare_run(kernel_context *k, const prepare_args *a) {
    int rows = 0;
    if (k->rc != OK) return;
    for (int i = 0; i < a->n_tasks; i++) {
        const prepare_task *t = &a->tasks[i];
        if (t->n < 0 || t->n > EXL3_MAX_IN) {
            k->rc = err_set(&k->error, ERR_LIMIT, "rows of %d values; the GPU engine takes %d",
                t->n, (int)EXL3_MAX_IN);
            return;
        }
        rows = t->n_rows > rows ? t->n_rows : rows;
    }
    if (rows == 0) return;
    CUDA_RUN(k, "row work", prepare_kernel, dim3((unsigned)rows, (unsigned)a->n_tasks),
        PREPARE_THREADS, 0, *a);
}
