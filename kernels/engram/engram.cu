#include "kernels/engram/engram_kernel.cuh"

void engram_decode_cuda(kernel_context *k, const engram_decode_args *a) {
    if (k->rc != OK || a->n == 0) return;
    CUDA_RUN(k, "engram decode", engram_decode_kernel, (unsigned)a->n, DEVICE_BLOCK, 0, *a);
}

void engram_gate_cuda(kernel_context *k, const engram_gate_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    CUDA_RUN(k, "engram gate", engram_gate_kernel,
        dim3((unsigned)a->n_rows, (unsigned)a->n_streams), DEVICE_BLOCK, 0, *a, k->is_bf16);
}
