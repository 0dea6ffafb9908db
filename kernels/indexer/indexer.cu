#include "kernels/indexer/indexer_gpu.h"

#include "kernels/indexer/indexer_mma_kernel.cuh"
#include "kernels/indexer/indexer_pick_kernel.cuh"

enum { INDEXER_REAL_D = 128 };

static int64_t entries_bound(const indexer_args *a) {
    return a->batch.pos_bound / a->ratio;
}

/* Most entries that any row is scored and picked over. */
static int64_t most_entries(const indexer_args *a) {
    const int64_t n = entries_bound(a), compact = (int64_t)a->max_blocks * a->block;
    return a->uses_candidates && compact < n ? compact : n;
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

enum { INDEXER_SHARED_ROWS = 8, INDEXER_MANY_ROWS = 16, INDEXER_FULL = 8, INDEXER_MAX_STEPS = 32 };

static indexer_divisor divisor_of(int n) {
    indexer_divisor d = {n, -1};
    for (int s = 0; s < 31; s++)
        if (1 << s == n) d.shift = s;
    return d;
}

/* Whether rows go by position, which shares the decoded keys between rows: they run one after the other, so
 * either they are many or the keys alone give every SM enough blocks. It reads all positions, also those that
 * are no candidates, which pays up to 5 / 2 of them (H200, 2026-12-01, 16,384 candidates: 4,096 rows at 24,576
 * positions 1.5 ms by position, 2.8 by candidates; 2,048 rows at 40,960 positions 1.33 and 1.41). */
static bool is_by_position(kernel_context *k, const indexer_params *p, int n_rows) {
    const int64_t n = entries_bound(&p->a), most = most_entries(&p->a);
    if (n_rows == 1 || (n > most && (p->a.block != INDEXER_MMA_BLOCK || 2 * n > 5 * most)))
        return false;
    return n_rows >= INDEXER_MANY_ROWS ||
           n >= (int64_t)INDEXER_FULL * INDEXER_KEYS * cuda_of(k)->n_sms;
}

static int min_of(int a, int b) {
    return a < b ? a : b;
}

static void run_mma_scores(kernel_context *k, const indexer_params *p, int n_rows) {
    const bool is_shared = is_by_position(k, p, n_rows);
    const int64_t n = is_shared ? entries_bound(&p->a) : most_entries(&p->a);
    const int blocks = (int)((n + INDEXER_KEYS - 1) / INDEXER_KEYS);
    const int groups =
        is_shared ? (n_rows + INDEXER_SHARED_ROWS - 1) / INDEXER_SHARED_ROWS : n_rows;
    /* A block of threads takes many keys, so that its queries cost little, but every SM has enough blocks. */
    const int least = (INDEXER_FULL * cuda_of(k)->n_sms + groups - 1) / groups;
    const int most = is_shared ? INDEXER_MMA_CHUNK / INDEXER_KEYS : INDEXER_MAX_STEPS;
    const int steps = blocks / least < 1 ? 1 : min_of(blocks / least, most);
    const indexer_mma_params x = {*p, n_rows, steps * INDEXER_KEYS, divisor_of(p->a.block),
        divisor_of(p->a.keys.rows_per_page)};
    const dim3 grid((unsigned)((blocks + steps - 1) / steps), (unsigned)groups);
    if (is_shared) {
        CUDA_RUN(
            k, "indexer score", indexer_mma_kernel<INDEXER_SHARED_ROWS>, grid, INDEXER_KEYS, 0, x);
    } else {
        CUDA_RUN(k, "indexer score", indexer_mma_row_kernel, grid, INDEXER_KEYS, 0, x);
    }
}

static void run_scores(kernel_context *k, const indexer_params *p, int n_rows) {
    const indexer_args *a = &p->a;
    const int64_t entries = most_entries(a);
    const dim3 grid((unsigned)((entries + INDEXER_KEYS - 1) / INDEXER_KEYS), (unsigned)n_rows);
    const size_t shared = (size_t)a->n_heads * (size_t)(a->d + 1) * sizeof(float);
    if (entries == 0) return;
    if (is_mma(a)) {
        run_mma_scores(k, p, n_rows);
        return;
    }
    if (a->d == INDEXER_REAL_D) {
        CUDA_RUN(k, "indexer score", indexer_score_kernel<INDEXER_REAL_D>, grid, INDEXER_KEYS,
            shared, *p);
    } else {
        CUDA_RUN(k, "indexer score", indexer_score_kernel<0>, grid, INDEXER_KEYS, shared, *p);
    }
}

/* A launch of clusters of n_parts CTAs; one CTA is none. */
typedef struct pick_launch {
    cudaLaunchConfig_t config;
    cudaLaunchAttribute attributes[2];
} pick_launch;

static void launch_init(pick_launch *l, int n_parts, dim3 grid, cudaStream_t s) {
    *l = pick_launch{};
    l->config.gridDim = grid;
    l->config.blockDim = dim3(INDEXER_PICK);
    l->config.stream = s;
    l->attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    l->attributes[0].val.programmaticStreamSerializationAllowed = 1;
    l->attributes[1].id = cudaLaunchAttributeClusterDimension;
    l->attributes[1].val.clusterDim.x = (unsigned)n_parts;
    l->attributes[1].val.clusterDim.y = l->attributes[1].val.clusterDim.z = 1;
    l->config.attrs = l->attributes;
    l->config.numAttrs = n_parts > 1 ? 2 : 1;
}

/* Clusters of n_parts CTAs that run at once on a device, asked for once. */
static int most_clusters(int id, int n_parts) {
    static int known[64][INDEXER_MAX_PARTS + 1];
    if (id < 0 || id >= 64) return 0;
    if (known[id][n_parts] == 0) {
        pick_launch l;
        int n = 0;
        launch_init(&l, n_parts, dim3((unsigned)n_parts), NULL);
        l.attributes[0] = l.attributes[1];
        l.config.numAttrs = 1;
        if (cudaOccupancyMaxActiveClusters(&n, indexer_pick_kernel<true>, &l.config) !=
            cudaSuccess) {
            (void)cudaGetLastError();
            n = 0;
        }
        known[id][n_parts] = n + 1;
    }
    return known[id][n_parts] - 1;
}

/* CTAs a row: as many as have a group of entries for every warp, while all rows run at once. The first
 * launch asks for every size, so that none is asked for while a step is recorded. */
static int parts_for(kernel_context *k, int64_t entries, int n_picks, int most) {
    int n = most;
    while (n > 1 && (most_clusters(cuda_of(k)->id, n) < n_picks ||
                        (int64_t)(n / 2) * INDEXER_PICK * 4 >= entries))
        n /= 2;
    return n;
}

static void run_pick(
    kernel_context *k, const indexer_params *p, int n_rows, bool is_scored, int most) {
    const bool keeps = p->a.builds_candidates;
    const int n_kinds = keeps ? 2 : 1;
    const int n = is_scored ? parts_for(k, most_entries(&p->a), n_rows * n_kinds, most) : 1;
    pick_launch l;
    launch_init(&l, n, dim3((unsigned)n, (unsigned)n_rows, (unsigned)n_kinds), cuda_of(k)->stream);
    k->rc = cuda_check(&k->error,
        cudaLaunchKernelEx(
            &l.config, keeps ? indexer_pick_kernel<true> : indexer_pick_kernel<false>, *p),
        "indexer pick");
}

/* What the kernels take for granted. */
static int check(const indexer_args *a, err *e) {
    if ((size_t)a->n_heads * (size_t)(a->d + 1) * sizeof(float) > 48 * 1024 || a->d % 4 != 0)
        return err_set(e, ERR_LIMIT, "indexer: %d heads of %d", a->n_heads, a->d);
    if (((uintptr_t)a->score & 15) != 0)
        return err_set(e, ERR_LIMIT, "indexer: scores not aligned");
    if (entries_bound(a) > INT32_MAX / 2)
        return err_set(e, ERR_LIMIT, "indexer: %lld entries", (long long)entries_bound(a));
    return OK;
}

void indexer_cuda_parts(kernel_context *k, const indexer_args *a, int which, int most_parts) {
    if (k->rc != OK || a->batch.n == 0) return;
    k->rc = check(a, &k->error);
    if (k->rc != OK) return;
    const bool is_scored = needs_scores(a);
    indexer_params p = {*a, 0, (entries_bound(a) + 3) / 4 * 4};
    const int64_t room = 2 * (int64_t)a->score_rows * a->score_cap;
    int64_t at_once = a->batch.n;
    if (is_scored && room / p.stride < at_once) at_once = room / p.stride;
    if (at_once < 1) {
        k->rc =
            err_set(&k->error, ERR_LIMIT, "indexer: no room for %lld scores", (long long)p.stride);
        return;
    }
    if (at_once > 32768) at_once = 32768;
    for (; p.first_row < a->batch.n && k->rc == OK; p.first_row += (int)at_once) {
        const int left = a->batch.n - p.first_row, n = left < at_once ? left : (int)at_once;
        if (is_scored && (which & INDEXER_DO_SCORES) != 0) run_scores(k, &p, n);
        if (k->rc == OK && (which & INDEXER_DO_PICK) != 0)
            run_pick(k, &p, n, is_scored, most_parts);
    }
}

void indexer_cuda(kernel_context *k, const indexer_args *a) {
    indexer_cuda_parts(k, a, INDEXER_DO_SCORES | INDEXER_DO_PICK, INDEXER_MAX_PARTS);
}
