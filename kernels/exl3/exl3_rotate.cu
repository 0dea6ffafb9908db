#include "kernels/exl3/exl3_launch.cuh"
#include "kernels/exl3/exl3_rotate_kernel.cuh"

/* Grid: rows of the longest job, jobs. */
static __global__ void __launch_bounds__(EXL3_ROTATE_WARPS * 32)
    exl3_rotate_kernel(const __grid_constant__ exl3_rotate_params p) {
    __shared__ exl3_rotate_shared sh;
    ptx_wait_for_previous();
    ptx_release_next();
    const exl3_gpu_list *list = p.list != nullptr ? p.list : (const exl3_gpu_list *)&p.own;
    if ((int)blockIdx.y >= list->n_jobs) return;
    const exl3_gpu_job &job = list->jobs[blockIdx.y];
    if ((int)blockIdx.x >= job.n_rows) return;
    exl3_rotate_row<exl3_put_rows>(job, blockIdx.x, sh);
}

int exl3_gpu_rotate_run(const exl3_gpu_rotate_args *a, cudaStream_t stream, err *e) {
    if (a->n_jobs < 1 || a->n_jobs > EXL3_GPU_MAX_JOBS || a->max_rows < 1 ||
        a->max_rows > EXL3_GPU_MAX_ROWS)
        return err_set(e, ERR_ARG, "exl3 rotate: %d jobs of up to %d rows", a->n_jobs, a->max_rows);
    exl3_rotate_params p = {a->list, {}};
    if (a->list == nullptr) p.own = *a->own;
    return exl3_launch(exl3_rotate_kernel, dim3((unsigned)a->max_rows, (unsigned)a->n_jobs),
        EXL3_ROTATE_WARPS * 32, 0, p, stream, e);
}
