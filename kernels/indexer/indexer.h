/* The indexer: scores of compressed positions for each row, candidate blocks, and the exact top-k.
 *
 *   n_vis    = (pos + 1) / ratio            visible compressed positions of the row
 *   score[j] = sum_i (w[i] w_scale) max(0, q[i] . key[j])         fp32, in a fixed order
 *   blocks   B[b] = largest score in the block; the block of position n_vis - 1 is pinned; the
 *            max_blocks best with a visible position are kept, ties to the lower block
 *   pick     the topk best positions (inside the kept blocks where those are used), ties to the
 *            lower position, in ascending order; never one whose score is -inf or not visible
 *
 * When every position would be picked anyway nothing is scored. Each row by itself; exact for any
 * batch and thread count. */
#ifndef TANDEM_KERNELS_INDEXER_INDEXER_H
#define TANDEM_KERNELS_INDEXER_INDEXER_H

#include "kernels/kv/kv.h"

/* Index queries: x is rotated, then packed, and then holds what the packed rows hold. */
typedef struct index_queries_args {
    float *x;           /* [n_rows][n_heads * d] */
    const float *table; /* rotation, [n_rows][d_rope] */
    kv_format format;
    uint8_t *packed; /* [n_rows * n_heads][packed_bytes] */
    size_t packed_bytes;
    int n_rows, n_heads, d, d_rope;
} index_queries_args;
void index_queries_run(kernel_context *k, const index_queries_args *a);

typedef struct indexer_args {
    const float *q; /* [n][n_heads * d], of index_queries */
    /* The same as KV_KEY rows [n * n_heads][packed_bytes], or NULL; a back end may read these instead. */
    const uint8_t *packed;
    size_t packed_bytes;
    const float *w; /* [n][n_heads] */
    batch_rows batch;
    kv_format key_format;
    kv_paged keys;
    int ratio, n_heads, d, topk;
    float w_scale; /* every w is multiplied by it first */
    /* Candidate blocks, kept per row, ascending: made when builds_candidates, used when
     * uses_candidates. */
    bool builds_candidates, uses_candidates;
    int32_t *blocks;   /* [n][max_blocks] */
    int32_t *n_blocks; /* [n] */
    int max_blocks, block;
    int32_t *selection;  /* [n][topk] */
    int32_t *n_selected; /* [n] */
    /* Work space [score_rows][score_cap]; on a device [2 * score_rows][score_cap], 16-byte aligned. */
    float *score;
    int score_rows;
    int64_t score_cap; /* at least the largest n_vis */
    float *score_tap;  /* [n][score_cap] or NULL: scores as used for the pick; forces
                                * scoring */
} indexer_args;

void indexer_run(kernel_context *k, const indexer_args *a);
/* Per-thread scratch. */
size_t indexer_thread_bytes(int d, int64_t score_cap, int block);

/* The topk largest of score[0..n), ties to the lower index, -inf and NaN never; ascending. Returns
 * how many. */
int indexer_pick(const float *score, int64_t n, int topk, int32_t *out);

#endif
