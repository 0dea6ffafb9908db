#include <math.h>

#include "engine/base/mem.h"
#include "kernels/indexer/indexer.h"
#include "kernels/vec/vec.h"

/* Compressed positions and rows scored by one work item: a key is unpacked once for the rows. */
enum { INDEXER_PIECE = 128, INDEXER_TILE = 8 };

typedef struct indexer_job {
    const indexer_args *a;
    kernel_context *k;
    int first_row, n_rows; /* the rows whose scores fit into the work space */
    int pieces_per_row;
} indexer_job;

size_t indexer_thread_bytes(int d, int64_t score_cap, int block) {
    return (size_t)d * sizeof(float) + (size_t)(score_cap / block + 1) * sizeof(float) + 128;
}

static int64_t visible(const indexer_args *a, int row) {
    return (a->batch.pos[row] + 1) / a->ratio;
}

static int64_t block_count(const indexer_args *a, int64_t n_vis) {
    return (n_vis + a->block - 1) / a->block;
}

/* Whether the row's candidate mask is all true. */
static bool has_all_candidates(const indexer_args *a, int row) {
    return block_count(a, visible(a, row)) <= a->max_blocks;
}

static bool needs_scores(const indexer_args *a, int row) {
    if (a->score_tap != NULL || visible(a, row) > a->topk) {
        return true;
    }
    return (a->builds_candidates || a->uses_candidates) && !has_all_candidates(a, row);
}

static bool is_candidate(const indexer_args *a, int row, int64_t j, int *at) {
    const int32_t *list = a->blocks + (size_t)row * (size_t)a->max_blocks;
    int64_t block = j / a->block;
    while (*at < a->n_blocks[row] && list[*at] < block) {
        (*at)++;
    }
    return *at < a->n_blocks[row] && list[*at] == block;
}

static float score_of(const indexer_args *a, int row, const float *key) {
    const float *q = a->q + (size_t)row * (size_t)(a->n_heads * a->d);
    const float *w = a->w + (size_t)row * (size_t)a->n_heads;
    float sum = 0.0f;
    for (int h = 0; h < a->n_heads; h += VEC_MAX_ROWS) {
        int n = a->n_heads - h < VEC_MAX_ROWS ? a->n_heads - h : VEC_MAX_ROWS;
        const float *head[VEC_MAX_ROWS];
        float s[VEC_MAX_ROWS];
        for (int i = 0; i < n; i++) {
            head[i] = q + (size_t)((h + i) * a->d);
        }
        vec()->dot_rows(key, head, n, a->d, s);
        for (int i = 0; i < n; i++) {
            if (s[i] > 0.0f || isnan(s[i])) {
                sum += w[h + i] * a->w_scale * s[i];
            }
        }
    }
    return sum;
}

/* Positions [first, first + INDEXER_PIECE) for rows i_row .. i_row + n - 1 of the run, all of one
 * slot, with one key in key. */
static void score_slot(const indexer_job *j, int i_row, int n, int64_t first, float *key) {
    const indexer_args *a = j->a;
    int at[INDEXER_TILE] = {0};
    int64_t n_vis[INDEXER_TILE], end = first;
    for (int r = 0; r < n; r++) {
        int row = j->first_row + i_row + r;
        n_vis[r] = needs_scores(a, row) ? visible(a, row) : 0;
        end = n_vis[r] > end ? n_vis[r] : end;
    }
    end = end < first + INDEXER_PIECE ? end : first + INDEXER_PIECE;
    for (int64_t p = first; p < end; p++) {
        bool has_key = false;
        for (int r = 0; r < n; r++) {
            int row = j->first_row + i_row + r;
            float *score = a->score + (int64_t)(i_row + r) * a->score_cap + p;
            if (p >= n_vis[r]) {
                continue;
            }
            if (a->uses_candidates && !is_candidate(a, row, p, &at[r])) {
                *score = -INFINITY;
                continue;
            }
            if (!has_key) {
                kv_unpack(a->key_format, kv_paged_row(&a->keys, a->batch.slot[row], p), a->d, key);
                has_key = true;
            }
            *score = score_of(a, row, key);
        }
    }
}

static void score_piece(void *ctx, int i_item, int i_thread) {
    const indexer_job *j = ctx;
    const int32_t *slot = j->a->batch.slot + j->first_row;
    int row = i_item / j->pieces_per_row * INDEXER_TILE;
    int end = row + INDEXER_TILE < j->n_rows ? row + INDEXER_TILE : j->n_rows;
    int64_t first = (int64_t)(i_item % j->pieces_per_row) * INDEXER_PIECE;
    while (row < end) {
        int n = 1;
        while (row + n < end && slot[row + n] == slot[row]) {
            n++;
        }
        score_slot(j, row, n, first, j->k->thread_scratch[i_thread]);
        row += n;
    }
}

static void keep_blocks(const indexer_args *a, int row, const float *score, float *best) {
    int64_t n_vis = visible(a, row), n = block_count(a, n_vis);
    int32_t *out = a->blocks + (size_t)row * (size_t)a->max_blocks;
    if (n <= a->max_blocks) {
        for (int64_t b = 0; b < n; b++) {
            out[b] = (int32_t)b;
        }
        a->n_blocks[row] = (int32_t)n;
        return;
    }
    for (int64_t b = 0; b < n; b++) {
        best[b] = -INFINITY;
        for (int64_t p = b * a->block; p < (b + 1) * a->block && p < n_vis; p++) {
            if (score[p] > best[b]) {
                best[b] = score[p];
            }
        }
    }
    best[(n_vis - 1) / a->block] = INFINITY;
    a->n_blocks[row] = indexer_pick(best, n, a->max_blocks, out);
}

static void pick_row(const indexer_args *a, int row, const float *score, float *best) {
    int64_t n_vis = visible(a, row);
    int32_t *out = a->selection + (size_t)row * (size_t)a->topk;
    if (a->builds_candidates) {
        keep_blocks(a, row, score, best);
    }
    if (!needs_scores(a, row)) {
        for (int64_t i = 0; i < n_vis; i++) {
            out[i] = (int32_t)i;
        }
        a->n_selected[row] = (int32_t)n_vis;
        return;
    }
    a->n_selected[row] = indexer_pick(score, n_vis, a->topk, out);
    if (a->score_tap == NULL) {
        return;
    }
    float *tap = a->score_tap + (int64_t)row * a->score_cap;
    for (int64_t i = 0; i < a->score_cap; i++) {
        tap[i] = i < n_vis ? score[i] : -INFINITY;
    }
}

static void pick_item(void *ctx, int i_item, int i_thread) {
    const indexer_job *j = ctx;
    float *best = (float *)j->k->thread_scratch[i_thread] + j->a->d;
    pick_row(j->a, j->first_row + i_item, j->a->score + (int64_t)i_item * j->a->score_cap, best);
}

static void run_rows(indexer_job *j) {
    int64_t most = 0;
    bool any = false;
    for (int r = j->first_row; r < j->first_row + j->n_rows; r++) {
        int64_t n = visible(j->a, r);
        most = n > most ? n : most;
        any = any || needs_scores(j->a, r);
    }
    j->pieces_per_row = (int)((most + INDEXER_PIECE - 1) / INDEXER_PIECE);
    if (any) {
        pool_run(j->k->workers, j->n_rows * j->pieces_per_row, score_piece, j);
    }
    pool_run(any ? j->k->workers : NULL, j->n_rows, pick_item, j);
}

void indexer_run(kernel_context *k, const indexer_args *a) {
    if (k->rc != OK) {
        return;
    }
    CHECK(indexer_thread_bytes(a->d, a->score_cap, a->block) <= k->thread_scratch_bytes);
    for (int row = 0; row < a->batch.n; row += a->score_rows) {
        int n = a->batch.n - row < a->score_rows ? a->batch.n - row : a->score_rows;
        indexer_job j = {a, k, row, n, 0};
        run_rows(&j);
    }
}
