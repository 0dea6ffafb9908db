#include "kernels/mhc/mhc_kernel.cuh"

void mhc_mix_cuda(kernel_context *k, const mhc_mix_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    const int n_mix = a->n_streams * (2 + a->n_streams);
    const size_t bytes = (size_t)a->n_rows * (size_t)(n_mix + 1) * sizeof(float);
    if (bytes > k->scratch_bytes || a->n_streams > MHC_MAX_STREAMS || a->d % 4 != 0) {
        k->rc = err_set(&k->error, ERR_LIMIT, "mhc mix: %d streams of %d, %d rows", a->n_streams,
            a->d, a->n_rows);
        return;
    }
    float *raw = (float *)k->scratch;
    const dim3 grid((unsigned)(n_mix + 1), (unsigned)((a->n_rows + MHC_TILE - 1) / MHC_TILE));
    CUDA_RUN(k, "mhc dot", mhc_dot_kernel<MHC_TILE>, grid, MHC_MIX_BLOCK, 0, *a, raw);
    if (k->rc != OK) return;
    CUDA_RUN(k, "mhc mix", mhc_mix_kernel, (unsigned)((a->n_rows + 3) / 4), 128, 0, *a, raw);
}

void mhc_collapse_cuda(kernel_context *k, const mhc_collapse_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    if (a->d % 4 != 0 || a->d > MHC_COLLAPSE_BLOCK * MHC_COLLAPSE_HELD * 4) {
        k->rc = err_set(&k->error, ERR_LIMIT, "mhc collapse: streams of %d", a->d);
        return;
    }
    CUDA_RUN(k, "mhc collapse", mhc_collapse_kernel, (unsigned)a->n_rows, MHC_COLLAPSE_BLOCK, 0, *a,
        k->is_bf16);
}

static dim3 rows_by_channels(int n_rows, int d) {
    return dim3((unsigned)n_rows, (unsigned)((d + DEVICE_BLOCK - 1) / DEVICE_BLOCK));
}

void mhc_expand_cuda(kernel_context *k, const mhc_expand_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    CUDA_RUN(k, "mhc expand", mhc_expand_kernel, rows_by_channels(a->n_rows, a->d), DEVICE_BLOCK, 0,
        *a, k->is_bf16);
}

void mhc_mean_cuda(kernel_context *k, const mhc_mean_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    CUDA_RUN(k, "mhc mean", mhc_mean_kernel, rows_by_channels(a->n_rows, a->d), DEVICE_BLOCK, 0, *a,
        k->is_bf16);
}
