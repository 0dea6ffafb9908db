/* What every operator call carries: the worker pool or device stream, work space, the rounding
 * mode, and the first failure. Operators return nothing: a failing one records its error here, and
 * every operator does nothing while an error stands, so the forward pass reads as a plain sequence
 * and asks once at its end. One thread at a time. */
#ifndef TANDEM_KERNELS_CONTEXT_H
#define TANDEM_KERNELS_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/thread.h"

enum { KERNEL_MAX_THREADS = 64 };

typedef struct kernel_context {
    pool *workers; /* CPU back end; NULL: the calling thread alone */
    void *stream;  /* device back end: what its exchanges are ordered with */
    void *device;  /* device back end: its own state, made by open */
    bool is_bf16;  /* round to bf16 at the points of model.md 3 */
    void *scratch; /* shared by one operator at a time, 64-byte aligned */
    size_t scratch_bytes;
    void *thread_scratch[KERNEL_MAX_THREADS]; /* [pool_size(workers)], 64-byte aligned */
    size_t thread_scratch_bytes;              /* each */
    int rc;                                   /* first failure, sticky */
    err error;
} kernel_context;

/* Rows [first, first + n) of an operator; i_thread picks its thread scratch. */
typedef void (*rows_fn)(const void *args, int first, int n, int i_thread);

/* Runs fn over n_rows rows: here when rows * cost is small (cost: about the multiply-adds of one
 * row), else in pieces on the pool. The pieces never split a row, so results do not depend on them.
 */
void rows_run(kernel_context *k, int n_rows, size_t cost, rows_fn fn, const void *args);

/* Rounds n values to bf16 in place when the context asks for it. */
void context_round(const kernel_context *k, float *x, size_t n);

#endif
