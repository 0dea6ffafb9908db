/* Shared by the kinds of exchange. */
#ifndef TANDEM_ENGINE_DIST_EXCHANGE_INTERNAL_H
#define TANDEM_ENGINE_DIST_EXCHANGE_INTERNAL_H

#include <stdatomic.h>

#include "engine/dist/exchange.h"

typedef struct exchange_ops {
    /* bytes <= max_bytes; all [world][bytes], mine may lie in it. */
    int (*gather)(exchange *x, const void *mine, size_t bytes, void *all, err *e);
    /* Device kinds only, NULL for the others: the public calls of these names on device memory, in
     * the order of the stream. They fail at once when the exchange is broken. */
    int (*sum_rows)(exchange *x, float *rows, size_t n, void *stream, err *e);
    int (*gather_rows)(
        exchange *x, const void *mine, size_t bytes, void *all, void *stream, err *e);
    /* Wakes the step thread out of a wait of this kind, from another thread; NULL: not possible. */
    void (*abort)(exchange *x);
    void (*close)(exchange *x);
} exchange_ops;

/* Every kind begins with this. */
struct exchange {
    const exchange_ops *ops;
    int rank, world;
    size_t max_bytes;
    int timeout_ms;
    exchange *control; /* device kinds: carries what is the host's, owned; NULL: no other one */
    void *parts;       /* [world][max_bytes] */
    int rc;            /* first failure of communication; every later call gives it again */
    err broken;
    _Atomic int is_aborted; /* 1: abort_error is being written, 2: it is there */
    err abort_error;
    _Atomic uint64_t used_ns, n_used, n_bytes; /* n_bytes: sent and received over TCP */
};

enum { EXCHANGE_DEFAULT_BYTES = 1 << 20, EXCHANGE_DEFAULT_TIMEOUT_MS = 10000 };

/* Fills the common part from checked values; parts is allocated. ERR_ARG, ERR_MEMORY. */
int exchange_init(
    exchange *x, const exchange_ops *ops, const int rank_world[2], size_t max_bytes, err *e);
void exchange_release(exchange *x);

#endif
