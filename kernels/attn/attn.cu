#include "kernels/attn/attn_mma_kernel.cuh"
#include "kernels/prepare/prepare.h"

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

static size_t few_rows_bytes(const attn_mma_params *p) {
    const size_t units = (size_t)p->a.batch.n * (size_t)p->n_groups;
    return units * ATTN_GROUP * sizeof(float) * ((size_t)p->cap + 1 + (size_t)p->n_tiles * ATTN_D) +
           (size_t)p->a.batch.n * sizeof(int32_t) + 256;
}

/* Scores and sums of tiles; adding these is held back for the launch behind. */
static void run_few_rows(kernel_context *k, attn_mma_params *p, size_t shared) {
    const unsigned n = (unsigned)p->a.batch.n, groups = (unsigned)p->n_groups;
    const dim3 grid((unsigned)p->n_tiles, groups, n);
    const size_t units = (size_t)n * groups,
                 tables = sizeof(attn_mma_shared) + (size_t)p->cap * sizeof(uint8_t *);
    char *at = (char *)cuda_tail_take(k, few_rows_bytes(p));
    p->sums = (float *)at;
    at += units * ATTN_GROUP * (size_t)p->n_tiles * ATTN_D * sizeof(float);
    p->scores = (float *)at;
    at += units * ATTN_GROUP * (size_t)p->cap * sizeof(float);
    p->den = (float *)at;
    at += units * ATTN_GROUP * sizeof(float);
    p->n_used_tiles = (int32_t *)at;
    if (!allow_shared(k, attn_mma_score_kernel, tables) ||
        !allow_shared(k, attn_mma_value_kernel, shared))
        return;
    CUDA_RUN(k, "attention scores", attn_mma_score_kernel, grid, ATTN_THREADS, tables, *p);
    if (k->rc != OK) return;
    CUDA_RUN(k, "attention values", attn_mma_value_kernel, grid, ATTN_THREADS, shared, *p);
    if (k->rc != OK) return;
    cuda_pending *w = cuda_of(k)->pending;
    w->has_attn = true;
    w->attn = prepare_task{};
    w->attn.kind = PREPARE_ATTN;
    w->attn.n_rows = p->a.batch.n;
    w->attn.n = p->a.n_heads * ATTN_D;
    w->attn.y = p->a.o;
    w->attn.y_stride = w->attn.n;
    w->tasks.attn = attn_parts{p->sums, p->den, p->n_used_tiles, p->n_groups, p->n_tiles};
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

static void run_real_size(kernel_context *k, const attn_args *a, const rope_args *rope) {
    attn_mma_params p = mma_params(k, a);
    const size_t shared = attn_mma_shared_bytes(p.cap);
    if (rope != NULL) p.rope = rope->table, p.d_rope = rope->d_rope;
    if (a->batch.n * p.n_groups < cuda_of(k)->n_sms &&
        few_rows_bytes(&p) + 512 <= cuda_scratch_left(k)) {
        run_few_rows(k, &p, shared);
        return;
    }
    if (!allow_shared(k, attn_mma_kernel, shared)) return;
    CUDA_RUN(k, "attention", attn_mma_kernel, dim3((unsigned)a->batch.n, (unsigned)p.n_groups),
        ATTN_THREADS, shared, p);
}

/* The rotation of the queries, when it is held back and rows can be read four values at a time. */
static bool take_rope(kernel_context *k, const attn_args *a, rope_args *out) {
    cuda_pending *w = cuda_of(k)->pending;
    if (!w->has_rope || w->rope.x != a->q || w->rope.n_rows != a->batch.n ||
        w->rope.n_heads != a->n_heads || w->rope.d_head != ATTN_D || w->rope.d_rope % 4 != 0 ||
        w->rope.x_stride != (size_t)a->n_heads * ATTN_D)
        return false;
    *out = w->rope;
    w->has_rope = false;
    return true;
}

void attn_cuda(kernel_context *k, const attn_args *a) {
    if (k->rc != OK || a->batch.n == 0) return;
    if (a->d > ATTN_MAX_D || a->d % 32 != 0) {
        k->rc = err_set(&k->error, ERR_LIMIT, "attention: heads of %d values", a->d);
        return;
    }
    if (is_real_size(k, a)) {
        rope_args rope;
        const bool has_rope = take_rope(k, a, &rope);
        cuda_settle(k);
        if (k->rc == OK) run_real_size(k, a, has_rope ? &rope : NULL);
        return;
    }
    cuda_settle(k);
    if (k->rc != OK) return;
    /* Few rows: a block a head fills the device; many: heads share the decoding of a row. */
    const bool is_many = a->n_heads % ATTN_MANY_HEADS == 0 &&
                         a->batch.n * a->n_heads / ATTN_MANY_HEADS >= 2 * cuda_of(k)->n_sms;
    if (a->d <= 128) {
        is_many ? launch<1, ATTN_MANY_HEADS>(k, a) : launch<1, 1>(k, a);
    } else {
        is_many ? launch<4, ATTN_MANY_HEADS>(k, a) : launch<4, 1>(k, a);
    }
}
