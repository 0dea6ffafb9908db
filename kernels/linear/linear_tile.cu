#include "kernels/linear/linear_tile_kernel.cuh"
#include "kernels/prepare/prepare.h"

/* Rows from which tiles are worth their set-up (70 rows of 5,120 -> 384: 100 us, the other kernel 139; H200, 2026-12-01),
 * and outputs below which too much of a tile would be empty. */
enum { PLAIN_TILE_MIN_ROWS = 64, PLAIN_TILE_MIN_OUTPUTS = 16 };

template <class FORM>
static void run_tiles(kernel_context *k, const plain_tile_args *a, unsigned out_tiles) {
    k->rc = cuda_check(&k->error,
        cudaFuncSetAttribute(plain_tile_kernel<FORM>, cudaFuncAttributeMaxDynamicSharedMemorySize,
            FORM::SHARED_BYTES),
        "plain linear");
    if (k->rc != OK) return;
    const dim3 grid(out_tiles, (unsigned)((a->job.n_rows + PLAIN_TILE_ROWS - 1) / PLAIN_TILE_ROWS));
    CUDA_RUN(k, "plain linear", plain_tile_kernel<FORM>, grid, PLAIN_TILE_THREADS,
        FORM::SHARED_BYTES, *a);
}

bool linear_tile_run(kernel_context *k, const plain_job *j) {
    const gpu_matrix *m = &j->matrix;
    const int tiles = (m->n_out + PLAIN_TILE_OUTPUTS - 1) / PLAIN_TILE_OUTPUTS;
    const size_t n_weights = (size_t)tiles * PLAIN_TILE_OUTPUTS * (size_t)m->n_in;
    if (k->rc != OK || j->n_rows < PLAIN_TILE_MIN_ROWS || m->n_out < PLAIN_TILE_MIN_OUTPUTS ||
        m->n_in % 512 != 0 || m->row_stride % 4 != 0 || j->x_stride % 4 != 0 ||
        ((uintptr_t)j->x & 15) != 0 || n_weights * sizeof(float) > cuda_scratch_left(k) ||
        cuda_of(k)->shared_bytes < plain_tile_small::SHARED_BYTES)
        return false;
    const plain_tile_args a = {*j, (const float *)k->scratch};
    const int groups = m->n_in * PLAIN_TILE_OUTPUTS / 4;
    const dim3 order(
        (unsigned)((groups + PLAIN_ORDER_THREADS - 1) / PLAIN_ORDER_THREADS), (unsigned)tiles);
    CUDA_RUN(k, "plain linear", plain_order_kernel, order, PLAIN_ORDER_THREADS, 0, *m,
        (float4 *)k->scratch);
    if (k->rc != OK) return true;
    if (m->n_in % (512 * plain_tile_large::J) == 0 &&
        cuda_of(k)->shared_bytes >= plain_tile_large::SHARED_BYTES) {
        run_tiles<plain_tile_large>(k, &a, (unsigned)tiles);
    } else {
        run_tiles<plain_tile_small>(k, &a, (unsigned)tiles);
    }
    return true;
}
