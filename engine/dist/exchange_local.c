/* Ranks that are threads of one process: a barrier over shared memory. Two sets of buffers
 * alternate, so one barrier a call is enough: who writes a set again has passed the next barrier,
 * which all others reached after reading it. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"
#include "engine/dist/exchange_internal.h"

enum { LOCAL_SPINS = 4000 };

typedef struct local_world {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int world, n_open;      /* under lock */
    int n_arrived;          /* under lock */
    bool is_broken;         /* under lock: somebody left, was late or gave up */
    _Atomic uint64_t round; /* grows when all have arrived; written under lock */
    char *parts[2];         /* [world][max_bytes] */
} local_world;

typedef struct local_exchange {
    exchange base; /* first */
    local_world *w;
    uint64_t round;
} local_exchange;

static int gone(err *e) {
    return err_set(
        e, ERR_PEER, "another rank of this process closed its exchange or did not come in time");
}

static void set_deadline(struct timespec *t, int timeout_ms) {
    clock_gettime(CLOCK_MONOTONIC, t);
    t->tv_sec += timeout_ms / 1000;
    t->tv_nsec += (long)(timeout_ms % 1000) * 1000000L;
    if (t->tv_nsec >= 1000000000L) {
        t->tv_sec++;
        t->tv_nsec -= 1000000000L;
    }
}

/* Waits until the round that was current on arrival is over. */
static int await_round(local_exchange *x, uint64_t round, err *e) {
    local_world *w = x->w;
    for (int i = 0; i < LOCAL_SPINS; i++) {
        if (atomic_load_explicit(&w->round, memory_order_acquire) != round) {
            return OK;
        }
        thread_relax();
    }
    struct timespec deadline;
    set_deadline(&deadline, x->base.timeout_ms);
    int rc = OK;
    pthread_mutex_lock(&w->lock);
    while (atomic_load_explicit(&w->round, memory_order_relaxed) == round && !w->is_broken &&
           rc == OK) {
        if (pthread_cond_timedwait(&w->changed, &w->lock, &deadline) != 0) {
            w->is_broken = true;
            pthread_cond_broadcast(&w->changed);
            rc = err_set(e, ERR_TIMEOUT, "another rank of this process did not answer for %d ms",
                x->base.timeout_ms);
        }
    }
    if (rc == OK && atomic_load_explicit(&w->round, memory_order_relaxed) == round) {
        rc = gone(e);
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}

static int arrive(local_exchange *x, err *e) {
    local_world *w = x->w;
    pthread_mutex_lock(&w->lock);
    uint64_t round = atomic_load_explicit(&w->round, memory_order_relaxed);
    bool is_broken = w->is_broken, is_last = false;
    if (!is_broken) {
        is_last = ++w->n_arrived == w->world;
        if (is_last) {
            w->n_arrived = 0;
            atomic_store_explicit(&w->round, round + 1, memory_order_release);
            pthread_cond_broadcast(&w->changed);
        }
    }
    pthread_mutex_unlock(&w->lock);
    if (is_broken) {
        return gone(e);
    }
    return is_last ? OK : await_round(x, round, e);
}

static int local_gather(exchange *base, const void *mine, size_t bytes, void *all, err *e) {
    local_exchange *x = (local_exchange *)(void *)base;
    char *parts = x->w->parts[x->round++ % 2];
    memcpy(parts + (size_t)base->rank * bytes, mine, bytes);
    int rc = arrive(x, e);
    if (rc != OK) {
        return rc;
    }
    memcpy(all, parts, (size_t)base->world * bytes);
    return OK;
}

static void free_world(local_world *w) {
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    mem_aligned_free(w->parts[0]);
    mem_aligned_free(w->parts[1]);
    mem_free(w);
}

static void local_close(exchange *base) {
    local_exchange *x = (local_exchange *)(void *)base;
    local_world *w = x->w;
    pthread_mutex_lock(&w->lock);
    w->is_broken = true;
    bool is_last = --w->n_open == 0;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    if (is_last) {
        free_world(w);
    }
    exchange_release(base);
    mem_free(x);
}

static void local_abort(exchange *base) {
    local_world *w = ((local_exchange *)(void *)base)->w;
    pthread_mutex_lock(&w->lock);
    w->is_broken = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static const exchange_ops local_ops = {
    .gather = local_gather, .abort = local_abort, .close = local_close};

static local_world *new_world(int world) {
    local_world *w = mem_alloc(sizeof(*w));
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC); /* the other may be set */
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
    w->world = world;
    return w;
}

int exchange_local_open(int world, size_t max_bytes, int timeout_ms, exchange **out, err *e) {
    if (world < 1 || world > EXCHANGE_MAX_WORLD) {
        return err_set(e, ERR_ARG, "%d ranks; 1 to %d are possible", world, EXCHANGE_MAX_WORLD);
    }
    local_world *w = new_world(world);
    int rc = OK;
    for (int r = 0; r < world; r++) {
        out[r] = NULL;
    }
    for (int r = 0; r < world && rc == OK; r++) {
        local_exchange *x = mem_alloc(sizeof(*x));
        x->w = w;
        w->n_open++;
        out[r] = &x->base;
        rc = exchange_init(&x->base, &local_ops, (int[2]){r, world}, max_bytes, e);
        x->base.ops = &local_ops;
        x->base.timeout_ms = timeout_ms > 0 ? timeout_ms : EXCHANGE_DEFAULT_TIMEOUT_MS;
    }
    for (int i = 0; i < 2 && rc == OK; i++) {
        w->parts[i] = mem_aligned(64, (size_t)world * out[0]->max_bytes);
        if (w->parts[i] == NULL) {
            rc = err_set(e, ERR_MEMORY, "no memory for the exchange of %d ranks", world);
        }
    }
    for (int r = 0; r < world && rc != OK; r++) {
        exchange_close(out[r]);
        out[r] = NULL;
    }
    return rc;
}
