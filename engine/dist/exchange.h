/* What ranks tell each other during a step. Every rank calls the same functions in the same order
 * with the same sizes; each call returns on a rank when its own result is complete. All waits have
 * the deadline given at open; a peer that is late or gone gives ERR_TIMEOUT or ERR_PEER (naming the
 * rank) on every later call too: the exchange is then broken and only exchange_close is allowed.
 *
 * Threads: one thread per rank (the step thread) uses an exchange. Sums are formed from all
 * partials in rank order, so every rank holds the same bits. World size is a parameter. Kinds:
 * local (ranks are threads of one process), tcp (one process each), nccl (device buffers, captured
 * in graphs; the stream argument is used there and must be NULL for the host kinds). Nothing
 * allocates after open: max_bytes bounds the payload of one rank in one call; larger sums and
 * gathers are cut into pieces inside. */
#ifndef TANDEM_ENGINE_DIST_EXCHANGE_H
#define TANDEM_ENGINE_DIST_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

enum { EXCHANGE_MAX_WORLD = 16, EXCHANGE_SECRET_BYTES = 32 };

typedef struct exchange exchange;

typedef struct exchange_tcp_options {
    int rank, world;
    const char *host; /* address of rank 0; rank 0 listens there ("" or NULL: 127.0.0.1)
                                 * */
    int port;         /* rank 0: 0 picks a free port when listen_fd is -1 */
    int listen_fd;    /* rank 0: an already listening socket (taken), or -1 */
    uint8_t secret[EXCHANGE_SECRET_BYTES]; /* start secret: both sides prove it, it is never sent */
    uint64_t identity;   /* hash of build, layout and settings: must be equal on all ranks */
    size_t max_bytes;    /* 0: 1 MiB */
    int open_timeout_ms; /* 0: 30000 */
    int timeout_ms;      /* 0: 10000; of every later wait */
} exchange_tcp_options;

/* Makes the world's ends for threads of this process; out[rank]. Each is closed by its own
 * exchange_close. */
int exchange_local_open(int world, size_t max_bytes, int timeout_ms, exchange **out, err *e);
/* Connects this rank with rank 0 and, through it, with every other rank. Blocks until the world is
 * complete. */
int exchange_tcp_open(const exchange_tcp_options *options, exchange **out, err *e);
/* The same over connections that stand already (meet.h), one per other rank; they are taken, also on
 * error. Only rank, world, max_bytes and timeout_ms of the options are used. */
int exchange_tcp_adopt(const exchange_tcp_options *options, const int *fds, exchange **out, err *e);
/* Ends every wait of the step thread, now and later, with this error. From any thread, once; kinds
 * that cannot be woken end their waits by their deadline. */
void exchange_abort(exchange *x, const err *why);
/* Nanoseconds the step thread has spent in exchanges and how many there were. Any thread. */
void exchange_usage(const exchange *x, uint64_t *ns, uint64_t *n);
/* Bytes that this rank has sent and received over TCP; device kinds leave their rails to the
 * machine's own counters. Any thread. */
uint64_t exchange_bytes(const exchange *x);
/* Closes this rank's end; peers waiting on it get ERR_PEER. NULL allowed. */
void exchange_close(exchange *x);

int exchange_rank(const exchange *x);
int exchange_world(const exchange *x);
/* 1: sums and gathers work on device memory and take a stream; 0: on host memory, without one. */
int exchange_is_device(const exchange *x);

/* rows[i] becomes the sum over ranks 0, 1, .. in that order, for i < n. */
int exchange_sum_rows(exchange *x, float *rows, size_t n, void *stream, err *e);
/* all [world][bytes] receives every rank's mine [bytes]; mine may be all + rank * bytes. */
int exchange_gather(exchange *x, const void *mine, size_t bytes, void *all, void *stream, err *e);
/* For i < n: the largest value over ranks and its index; equal values: the lower index. */
int exchange_max_pair(exchange *x, float *value, int32_t *index, int n, void *stream, err *e);
/* Everyone receives root's data [bytes] (host memory, any kind). */
int exchange_bcast(exchange *x, void *data, size_t bytes, int root, err *e);
/* ERR_MISMATCH on every rank when the hashes differ (step plans, layouts). */
int exchange_check(exchange *x, uint64_t hash, const char *what, err *e);

#endif
