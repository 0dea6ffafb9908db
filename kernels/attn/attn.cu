#include "kernels/attn/attn_kernel.cuh"

enum { ATTN_MAX_D = 512, ATTN_MANY_HEADS = 4, ATTN_MAX_BLOCK_ROWS = 16 };

template <int CHUNKS, int HEADS> static void launch(kernel_context *k, const attn_args *a) {
    const int cap = a->window + ATTN_MAX_BLOCK_ROWS + (a->selection == NULL ? 0 : a->max_selected);
    const size_t bytes = (size_t)HEADS * (size_t)(a->d + cap + ATTN_WARPS * a->d) * sizeof(float);
    if (bytes > (size_t)cuda_of(k)->shared_bytes - 1024) {
        k->rc = err_set(&k->error, ERR_LIMIT,
            "attention: %d rows of %d need %zu bytes of shared "
            "memory",
            cap, a->d, bytes);
        return;
    }
    k->rc = cuda_check(&k->error,
        cudaFuncSetAttribute(
            attn_kernel<CHUNKS, HEADS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
        "attention");
    if (k->rc != OK) return;
    CUDA_RUN(k, "attention", (attn_kernel<CHUNKS, HEADS>),
        dim3((unsigned)a->batch.n, (unsigned)(a->n_heads / HEADS)), ATTN_WARPS * 32, bytes, *a, cap,
        k->is_bf16);
}

void attn_cuda(kernel_context *k, const attn_args *a) {
    if (k->rc != OK || a->batch.n == 0) return;
    if (a->d > ATTN_MAX_D || a->d % 32 != 0) {
        k->rc = err_set(&k->error, ERR_LIMIT, "attention: heads of %d values", a->d);
        return;
    }
    /* Few rows: a block a head fills the device; many: heads share the decoding of a row. */
    const bool is_many = a->n_heads % ATTN_MANY_HEADS == 0 &&
                         a->batch.n * a->n_heads / ATTN_MANY_HEADS >= 2 * cuda_of(k)->n_sms;
    if (a->d <= 128) {
        is_many ? launch<1, ATTN_MANY_HEADS>(k, a) : launch<1, 1>(k, a);
    } else {
        is_many ? launch<4, ATTN_MANY_HEADS>(k, a) : launch<4, 1>(k, a);
    }
}
