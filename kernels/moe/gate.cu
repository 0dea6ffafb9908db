#include "kernels/cuda_check.h"
#include "kernels/moe/gate_kernel.cuh"

static_assert(sizeof(gate_args) <= 4096, "the size of kernel parameters");

/* Dynamic shared memory of a block at most; what is static is rounded up. */
static int room(kernel_context *k) {
    return cuda_of(k)->shared_bytes - (int)sizeof(gate_shared) - 1024;
}

bool gate_fits(kernel_context *k, const plain_job *gate, const prepare_task *norm) {
    const gpu_matrix *m = &gate->matrix;
    const size_t n = (size_t)(norm->n_rows - 1) * (size_t)norm->y_stride + (size_t)norm->n,
                 n_x = (size_t)(norm->n_rows - 1) * (size_t)norm->x_stride + (size_t)norm->n;
    return gate->n_rows >= 1 && gate->n_rows <= GATE_FEW_ROWS && gate->x_rows == NULL &&
           m->is_bf16 && m->n_in % 128 == 0 && m->n_in <= GATE_HELD * GATE_THREADS * 4 &&
           m->row_stride % 8 == 0 && ((uintptr_t)m->data & 15) == 0 &&
           ((uintptr_t)norm->norm & 15) == 0 && m->n_out % 2 == 0 && m->n_out <= GATE_MAX_EXPERTS &&
           gate_bytes(m->n_in, gate->n_rows) <= room(k) && norm->kind == PREPARE_ROWS &&
           norm->n_rows == gate->n_rows && norm->first_row == 0 && norm->n == m->n_in &&
           norm->norm != NULL && norm->rope == NULL && norm->packed == NULL &&
           norm->x_rows == NULL && norm->is_wide && norm->y == gate->x && norm->x_stride % 4 == 0 &&
           norm->y_stride == gate->x_stride && !floats_overlap(norm->y, n, norm->x, n_x);
}

bool gate_more_fits(const plain_job *gate, const prepare_task *t) {
    return t->kind == PREPARE_MIX && t->n_rows == gate->n_rows;
}

void gate_run(kernel_context *k, const gate_args *a) {
    const int n_blocks = (a->gate.matrix.n_out + GATE_OUTPUTS - 1) / GATE_OUTPUTS;
    const int n_rows = a->gate.n_rows;
    const unsigned grid = (unsigned)(n_blocks + n_rows * (1 + a->more.n_tasks));
    if (k->rc != OK) return;
    k->rc = cuda_check(&k->error, /* always the same: another context may set it meanwhile */
        cudaFuncSetAttribute(gate_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room(k)),
        "router");
    if (k->rc != OK) return;
    CUDA_RUN(k, "router", gate_kernel, grid, GATE_THREADS,
        (size_t)gate_bytes(a->gate.matrix.n_in, n_rows), *a);
}
