#include "kernels/prepare/prepare_kernel.cuh"

void prepare_run(kernel_context *k, const prepare_args *a) {
    int rows = 0, n = 0;
    if (k->rc != OK) return;
    for (int i = 0; i < a->n_tasks; i++) {
        const prepare_task *t = &a->tasks[i];
        if (t->n < 0 || t->n > EXL3_MAX_IN) {
            k->rc = err_set(&k->error, ERR_LIMIT, "rows of %d values; the GPU engine takes %d",
                t->n, (int)EXL3_MAX_IN);
            return;
        }
        if (t->kind == PREPARE_ATTN &&
            (t->n > PREPARE_HEADS * ATTN_SUM_D || t->n % ATTN_SUM_D != 0 ||
                t->first_value % ATTN_SUM_D != 0)) {
            k->rc = err_set(
                &k->error, ERR_LIMIT, "attention: %d values from %d on", t->n, t->first_value);
            return;
        }
        rows = t->n_rows > rows ? t->n_rows : rows;
        n = t->n > n ? t->n : n;
    }
    if (rows == 0) return;
    const dim3 grid((unsigned)rows, (unsigned)a->n_tasks);
    if (n <= PREPARE_FEW * PREPARE_WARPS * 128) {
        CUDA_RUN(k, "row work", prepare_kernel<PREPARE_FEW>, grid, PREPARE_THREADS, 0, *a);
    } else {
        CUDA_RUN(k, "row work", prepare_kernel<PREPARE_MOST>, grid, PREPARE_THREADS, 0, *a);
    }
}
