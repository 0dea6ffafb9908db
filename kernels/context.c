#include "kernels/context.h"

#include "kernels/half.h"

/* Below this many multiply-adds a fork and join costs more than it saves: about 2 us of one core. */
enum { ROWS_INLINE_COST = 20000, ROWS_PIECES_PER_THREAD = 4 };

typedef struct rows_job {
    rows_fn fn;
    const void *args;
    int n_rows, per_piece;
} rows_job;

static void rows_piece(void *ctx, int i_item, int i_thread) {
    const rows_job *j = ctx;
    int first = i_item * j->per_piece;
    int n = j->n_rows - first < j->per_piece ? j->n_rows - first : j->per_piece;
    j->fn(j->args, first, n, i_thread);
}

void rows_run(kernel_context *k, int n_rows, size_t cost, rows_fn fn, const void *args) {
    if (k->rc != OK || n_rows <= 0) {
        return;
    }
    int n_threads = pool_size(k->workers);
    if (n_rows == 1 || n_threads == 1 || (size_t)n_rows * cost < ROWS_INLINE_COST) {
        fn(args, 0, n_rows, 0);
        return;
    }
    int n_pieces = n_threads * ROWS_PIECES_PER_THREAD;
    if (n_pieces > n_rows) {
        n_pieces = n_rows;
    }
    rows_job j = {fn, args, n_rows, (n_rows + n_pieces - 1) / n_pieces};
    pool_run(k->workers, (n_rows + j.per_piece - 1) / j.per_piece, rows_piece, &j);
}

void context_round(const kernel_context *k, float *x, size_t n) {
    if (!k->is_bf16) {
        return;
    }
    for (size_t i = 0; i < n; i++) {
        x[i] = bf16_round(x[i]);
    }
}
