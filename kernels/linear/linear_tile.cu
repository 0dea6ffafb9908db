#include "kernels/linear/linear_tile_kernel.cuh"
#include "kernels/prepare/prepare.h"

/* Rows from which tiles are worth their set-up (70 rows of 5,120 -> 384: 107 us, the other kernel 139; H200, 2026-12-01),
 * and outputs below which too much of a tile would be empty. */
enum { PLAIN_TILE_MIN_ROWS = 64, PLAIN_TILE_MIN_OUTPUTS = 16 };

bool linear_tile_run(kernel_context *k, const plain_job *j) {
    const gpu_matrix *m = &j->matrix;
    const int tiles = (m->n_out + PLAIN_TILE_OUTPUTS - 1) / PLAIN_TILE_OUTPUTS;
    const size_t n_weights = (size_t)tiles * PLAIN_TILE_OUTPUTS * (size_t)m->n_in;
    if (k->rc != OK || j->n_rows < PLAIN_TILE_MIN_ROWS || m->n_out < PLAIN_TILE_MIN_OUTPUTS ||
        m->n_in % 512 != 0 || m->row_stride % 4 != 0 || j->x_stride % 4 != 0 ||
        ((uintptr_t)j->x & 15) != 0 || n_weights * sizeof(float) > cuda_scratch_left(k) ||
        cuda_of(k)->shared_bytes < PLAIN_TILE_SHARED_BYTES)
        return false;
    const plain_tile_args a = {*j, (const float *)k->scratch};
    const int groups = m->n_in * PLAIN_TILE_OUTPUTS / 4;
    const dim3 order(
        (unsigned)((groups + PLAIN_ORDER_THREADS - 1) / PLAIN_ORDER_THREADS), (unsigned)tiles);
    CUDA_RUN(k, "plain linear", plain_order_kernel, order, PLAIN_ORDER_THREADS, 0, *m,
        (float4 *)k->scratch);
    if (k->rc != OK) return true;
    k->rc = cuda_check(&k->error,
        cudaFuncSetAttribute(plain_tile_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
            PLAIN_TILE_SHARED_BYTES),
        "plain linear");
    if (k->rc != OK) return true;
    const dim3 grid(
        (unsigned)tiles, (unsigned)((j->n_rows + PLAIN_TILE_ROWS - 1) / PLAIN_TILE_ROWS));
    CUDA_RUN(
        k, "plain linear", plain_tile_kernel, grid, PLAIN_TILE_THREADS, PLAIN_TILE_SHARED_BYTES, a);
    return true;
}
