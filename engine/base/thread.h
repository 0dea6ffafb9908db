#ifndef TANDEM_BASE_THREAD_H
#define TANDEM_BASE_THREAD_H
/* A pool of worker threads for short parallel loops, and a bounded queue between threads.
 *
 * pool: owned by one thread, which alone calls pool_run and works along as thread 0. Workers spin
 * for a short time after a job and sleep after that. pool_run does not allocate. Items are taken in
 * rising order by whoever is free, so an item must not depend on which thread runs it.
 *
 * queue: any number of pushing and popping threads. Holds borrowed pointers; the one who pops owns
 * what it means to own. */
#include <stddef.h>
#include <stdint.h>

typedef struct pool pool;
typedef void (*pool_fn)(void *ctx, int i_item, int i_thread);

/* n_threads counts the caller; 1 makes a pool without workers, 0 means one per usable core. If the
 * system refuses a thread the pool is smaller (pool_size says). Freed with pool_free. */
pool *pool_new(int n_threads);
void pool_free(pool *p);
/* Threads including the caller; 1 for NULL. */
int pool_size(const pool *p);
/* Runs fn for items 0..n_items-1 and returns when all are done. Not from inside fn. p NULL runs them
 * all here. */
void pool_run(pool *p, int n_items, pool_fn fn, void *ctx);

typedef struct queue queue;
/* cap > 0. */
queue *queue_new(size_t cap);
/* Nobody may be inside a call; items left are dropped, not freed. */
void queue_free(queue *q);
/* timeout_ms 0 tries once, < 0 waits for ever. OK, ERR_TIMEOUT when full for that long, or
 * ERR_CANCELLED when closed. */
int queue_push(queue *q, void *item, int timeout_ms);
/* OK, ERR_TIMEOUT, or ERR_CANCELLED when closed and empty: what was pushed before the close is
 * still handed out. */
int queue_pop(queue *q, void **item, int timeout_ms);
/* Wakes everybody; later pushes fail. */
void queue_close(queue *q);
size_t queue_len(queue *q);

/* Cores this process may use (affinity), at least 1. */
int thread_cpu_count(void);
/* Names the calling thread for debuggers and top; cut at 15 characters. */
void thread_set_name(const char *name);
/* A hint to the core inside a spin loop. */
void thread_relax(void);

#endif
