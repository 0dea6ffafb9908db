/* Sparse attention with a sink: every head of a row attends the rows of its window plus the
 * selected compressed rows; key and value are the same row.
 *
 *   s_j = (q . k_j) * scale; M = max s_j (at least -1e30); den = sum exp(s_j - M) + exp(sink - M)
 *   o   = sum exp(s_j - M) k_j / den
 *
 * The list is walked window oldest first, then compressed rows ascending, one at a time: the order
 * depends on the row only. Window rows before the span come from the slot's ring, those of the span
 * from the step's packed rows. For a draft block (is_block) every row sees the ring rows of the
 * last `window` positions before the block and all block rows. */
#ifndef TANDEM_KERNELS_ATTN_ATTN_H
#define TANDEM_KERNELS_ATTN_ATTN_H

#include "kernels/kv/kv.h"

typedef struct attn_args {
    const float *q;    /* [n][n_heads * d] */
    float *o;          /* [n][n_heads * d] */
    const float *sink; /* [n_heads] */
    batch_rows batch;
    kv_format window_format, compressed_format;
    kv_ring ring;
    const uint8_t *rows;       /* [n][ring.row_bytes] packed rows of this step */
    kv_paged pages;            /* compressed rows; unused when selection is NULL */
    const int32_t *selection;  /* [n][max_selected] compressed positions, ascending; NULL: window
                                * only */
    const int32_t *n_selected; /* [n] */
    int max_selected;
    int n_heads, d, window;
    float scale;
    bool is_block;
} attn_args;

/* Per-thread scratch. */
size_t attn_thread_bytes(int window, int max_selected, int d);
void attn_run(kernel_context *k, const attn_args *a);

#endif
