#include "kernels/moe/gate_kernel.cuh"

static_assert(sizeof(gate_args) <= 4096, "the size of kernel parameters");

bool gate_fits(const plain_job *gate, const prepare_task *norm) {
    const gpu_matrix *m = &gate->matrix;
    return gate->n_rows == 1 && gate->x_rows == NULL && m->is_bf16 && m->n_in % 128 == 0 &&
           m->n_in <= PLAIN_HELD * PLAIN_THREADS * 4 && m->row_stride % 4 == 0 &&
           m->n_out % 2 == 0 && m->n_out <= GATE_MAX_EXPERTS && norm->kind == PREPARE_ROWS &&
           norm->n_rows == 1 && norm->first_row == 0 && norm->n == m->n_in && norm->norm != NULL &&
           norm->rope == NULL && norm->packed == NULL && norm->x_rows == NULL && norm->is_wide &&
           norm->y == gate->x && (norm->y + norm->n <= norm->x || norm->x + norm->n <= norm->y);
}

bool gate_more_fits(const prepare_task *t) {
    return t->kind == PREPARE_MIX && t->n_rows == 1;
}

void gate_run(kernel_context *k, const gate_args *a) {
    const int n_blocks = (a->gate.matrix.n_out + GATE_OUTPUTS - 1) / GATE_OUTPUTS;
    if (k->rc != OK) return;
    CUDA_RUN(
        k, "router", gate_kernel, (unsigned)(n_blocks + 1 + a->more.n_tasks), PLAIN_THREADS, 0, *a);
}
