/* The router of one to eight tokens in one launch: norm of the row, router linear, choice of experts, and the end of the mix
 * beside them. The operations and their order are those of prepare_kernel.cuh, linear_kernel.cuh and
 * router_kernel.cuh: the same bits. */
#ifndef TANDEM_KERNELS_MOE_GATE_H
#define TANDEM_KERNELS_MOE_GATE_H

#include "kernels/cuda_ops.h"
#include "kernels/linear/linear_gpu.h"
#include "kernels/prepare/prepare.h"

enum { GATE_FEW_ROWS = 8 };

/* Whether gate_run takes this linear behind this norm. */
bool gate_fits(kernel_context *k, const plain_job *gate, const prepare_task *norm);

/* norm: the task that makes gate->x; more: tasks that go along, of those that gate_more_fits. words: [rows][n_out], zero
 * before and after. */
bool gate_more_fits(const plain_job *gate, const prepare_task *t);
typedef struct gate_args {
    plain_job gate;
    prepare_task norm;
    router_args router;
    prepare_aside more;
    uint64_t *words;
} gate_args;
void gate_run(kernel_context *k, const gate_args *a);

#endif
