#include "kernels/attn/attn_mma_kernel.cuh"

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

/* ---- the real size ---- */

template <class KERNEL> static bool allow_shared(kernel_context *k, KERNEL kernel, size_t bytes) {
    k->rc = cuda_check(&k->error,
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
        "attention");
    return k->rc == OK;
}

static void run_few_rows(kernel_context *k, attn_mma_params *p, size_t shared) {
    const unsigned n = (unsigned)p->a.batch.n, groups = (unsigned)p->n_groups;
    const dim3 grid((unsigned)p->n_tiles, groups, n);
    const size_t units = (size_t)n * groups;
    char *at = (char *)k->scratch;
    p->scores = (float *)at;
    at += units * ATTN_GROUP * (size_t)p->cap * sizeof(float);
    float *den = (float *)at;
    at += units * ATTN_GROUP * sizeof(float);
    p->sums = (float *)at;
    const size_t tables = sizeof(attn_mma_shared) + (size_t)p->cap * sizeof(uint8_t *);
    if (!allow_shared(k, attn_mma_score_kernel, tables) ||
        !allow_shared(k, attn_mma_value_kernel, shared))
        return;
    CUDA_RUN(k, "attention scores", attn_mma_score_kernel, grid, ATTN_THREADS, tables, *p);
    if (k->rc != OK) return;
    CUDA_RUN(k, "attention values", attn_mma_value_kernel, grid, ATTN_THREADS, shared, *p, den);
    if (k->rc != OK) return;
    CUDA_RUN(
        k, "attention sum", attn_mma_sum_kernel, dim3((unsigned)p->a.n_heads, n), 128, 0, *p, den);
}

static size_t few_rows_bytes(const attn_mma_params *p) {
    const size_t units = (size_t)p->a.batch.n * (size_t)p->n_groups;
    return units * ATTN_GROUP * sizeof(float) * ((size_t)p->cap + 1 + (size_t)p->n_tiles * ATTN_D);
}

static attn_mma_params mma_params(const kernel_context *k, const attn_args *a) {
    attn_mma_params p = {};
    p.a = *a;
    p.cap = a->window + ATTN_MAX_BLOCK_ROWS + (a->selection == NULL ? 0 : a->max_selected);
    p.cap = (p.cap + ATTN_TILE - 1) / ATTN_TILE * ATTN_TILE;
    p.n_groups = a->n_heads / ATTN_GROUP;
    p.n_tiles = p.cap / ATTN_TILE;
    p.is_bf16 = k->is_bf16;
    return p;
}

static bool is_real_size(kernel_context *k, const attn_args *a) {
    const bool is_packed = a->window_format == KV_WINDOW &&
                           (a->selection == NULL || a->compressed_format == KV_COMPRESSED);
    const attn_mma_params p = mma_params(k, a);
    return is_packed && a->d == ATTN_D && a->n_heads % ATTN_GROUP == 0 &&
           attn_mma_shared_bytes(p.cap) <= (size_t)cuda_of(k)->shared_bytes;
}

static void run_real_size(kernel_context *k, const attn_args *a) {
    attn_mma_params p = mma_params(k, a);
    const size_t shared = attn_mma_shared_bytes(p.cap);
    if (a->batch.n * p.n_groups < cuda_of(k)->n_sms && few_rows_bytes(&p) <= k->scratch_bytes) {
        run_few_rows(k, &p, shared);
        return;
    }
    if (!allow_shared(k, attn_mma_kernel, shared)) return;
    CUDA_RUN(k, "attention", attn_mma_kernel, dim3((unsigned)a->batch.n, (unsigned)p.n_groups),
        ATTN_THREADS, shared, p);
}

void attn_cuda(kernel_context *k, const attn_args *a) {
    if (k->rc != OK || a->batch.n == 0) return;
    if (a->d > ATTN_MAX_D || a->d % 32 != 0) {
        k->rc = err_set(&k->error, ERR_LIMIT, "attention: heads of %d values", a->d);
        return;
    }
    if (is_real_size(k, a)) {
        run_real_size(k, a);
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
