#include "kernels/indexer/indexer_mma_kernel.cuh"

enum { INDEXER_REAL_D = 128 };

static int64_t entries_bound(const indexer_args *a) {
    return a->batch.pos_bound / a->ratio;
}

/* Whether any row may need scores. */
static bool needs_scores(const indexer_args *a) {
    const int64_t n = entries_bound(a);
    return a->score_tap != NULL || n > a->topk ||
           ((a->builds_candidates || a->uses_candidates) &&
               (n + a->block - 1) / a->block > a->max_blocks);
}

/* Packed rows of the real size, at addresses that allow words. */
static bool is_mma(const indexer_args *a) {
    return a->packed != NULL && a->key_format == KV_KEY && a->n_heads == INDEXER_MMA_HEADS &&
           a->d == INDEXER_MMA_D && ((uintptr_t)a->keys.base & 3) == 0 &&
           a->keys.page_stride % 4 == 0 && a->keys.row_bytes % 4 == 0;
}

enum { INDEXER_SHARED_ROWS = 8, INDEXER_MANY_ROWS = 16 };

static void run_mma_scores(kernel_context *k, const indexer_params *p, int n_rows, dim3 grid) {
    if (n_rows >= INDEXER_MANY_ROWS && !p->a.uses_candidates) {
        grid.y = (unsigned)((n_rows + INDEXER_SHARED_ROWS - 1) / INDEXER_SHARED_ROWS);
        CUDA_RUN(k, "indexer score", indexer_mma_kernel<INDEXER_SHARED_ROWS>, grid, INDEXER_KEYS, 0,
            *p, n_rows);
    } else {
        CUDA_RUN(k, "indexer score", indexer_mma_kernel<1>, grid, INDEXER_KEYS, 0, *p, n_rows);
    }
}

static void run_scores(kernel_context *k, const indexer_params *p, int n_rows) {
    const indexer_args *a = &p->a;
    int64_t entries = entries_bound(a);
    const int64_t compact = (int64_t)a->max_blocks * a->block;
    if (a->uses_candidates && compact < entries) entries = compact;
    const dim3 grid((unsigned)((entries + INDEXER_KEYS - 1) / INDEXER_KEYS), (unsigned)n_rows);
    const size_t shared = (size_t)a->n_heads * (size_t)(a->d + 1) * sizeof(float);
    if (entries == 0) return;
    if (is_mma(a)) {
        run_mma_scores(k, p, n_rows, grid);
        return;
    }
    if (a->d == INDEXER_REAL_D) {
        CUDA_RUN(k, "indexer score", indexer_score_kernel<INDEXER_REAL_D>, grid, INDEXER_KEYS,
            shared, *p);
    } else {
        CUDA_RUN(k, "indexer score", indexer_score_kernel<0>, grid, INDEXER_KEYS, shared, *p);
    }
}

void indexer_cuda(kernel_context *k, const indexer_args *a) {
    if (k->rc != OK || a->batch.n == 0) return;
    if ((size_t)a->n_heads * (size_t)(a->d + 1) * sizeof(float) > 48 * 1024 || a->d % 4 != 0) {
        k->rc = err_set(&k->error, ERR_LIMIT, "indexer: %d heads of %d", a->n_heads, a->d);
        return;
    }
    const bool is_scored = needs_scores(a);
    indexer_params p = {*a, 0, 0, 0};
    p.scores = entries_bound(a);
    p.stride = p.scores + p.scores / a->block + 2;
    const int64_t room = 2 * (int64_t)a->score_rows * a->score_cap;
    int at_once =
        is_scored ? (int)(room / p.stride < a->batch.n ? room / p.stride : a->batch.n) : a->batch.n;
    if (at_once < 1) {
        k->rc =
            err_set(&k->error, ERR_LIMIT, "indexer: no room for %lld scores", (long long)p.stride);
        return;
    }
    if (at_once > 32768) at_once = 32768;
    for (; p.first_row < a->batch.n && k->rc == OK; p.first_row += at_once) {
        const int left = a->batch.n - p.first_row, n = left < at_once ? left : at_once;
        if (is_scored) run_scores(k, &p, n);
        if (k->rc != OK) return;
        CUDA_RUN(k, "indexer pick", indexer_pick_kernel, (unsigned)n, INDEXER_PICK, 0, p);
    }
}
