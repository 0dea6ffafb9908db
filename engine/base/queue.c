#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "engine/base/err.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

struct queue {
    pthread_mutex_t lock; /* guards all fields below */
    pthread_cond_t can_push;
    pthread_cond_t can_pop;
    size_t cap;
    size_t head; /* next to pop */
    size_t len;
    bool is_closed;
    void **items;
};

queue *queue_new(size_t cap) {
    CHECK(cap > 0);
    queue *q = mem_alloc(sizeof *q);
    q->items = mem_array(cap, sizeof *q->items);
    q->cap = cap;
    pthread_condattr_t attr;
    CHECK(pthread_condattr_init(&attr) == 0);
    CHECK(pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_mutex_init(&q->lock, NULL) == 0);
    CHECK(pthread_cond_init(&q->can_push, &attr) == 0);
    CHECK(pthread_cond_init(&q->can_pop, &attr) == 0);
    (void)pthread_condattr_destroy(&attr);
    return q;
}

void queue_free(queue *q) {
    if (q == NULL) return;
    (void)pthread_cond_destroy(&q->can_pop);
    (void)pthread_cond_destroy(&q->can_push);
    (void)pthread_mutex_destroy(&q->lock);
    mem_free(q->items);
    mem_free(q);
}

static struct timespec deadline_after(int timeout_ms) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += timeout_ms / 1000;
    t.tv_nsec += (long)(timeout_ms % 1000) * 1000000L;
    if (t.tv_nsec >= 1000000000L) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000L;
    }
    return t;
}

/* One wait; false once the time is over. */
static bool wait_locked(
    queue *q, pthread_cond_t *cond, int timeout_ms, const struct timespec *until) {
    if (timeout_ms == 0) return false;
    if (timeout_ms < 0) return pthread_cond_wait(cond, &q->lock) == 0;
    return pthread_cond_timedwait(cond, &q->lock, until) != ETIMEDOUT;
}

int queue_push(queue *q, void *item, int timeout_ms) {
    struct timespec until = deadline_after(timeout_ms < 0 ? 0 : timeout_ms);
    int rc = OK;
    pthread_mutex_lock(&q->lock);
    while (q->len == q->cap && !q->is_closed) {
        if (!wait_locked(q, &q->can_push, timeout_ms, &until)) break;
    }
    if (q->is_closed) {
        rc = ERR_CANCELLED;
    } else if (q->len == q->cap) {
        rc = ERR_TIMEOUT;
    } else {
        q->items[(q->head + q->len) % q->cap] = item;
        q->len++;
        pthread_cond_signal(&q->can_pop);
    }
    pthread_mutex_unlock(&q->lock);
    return rc;
}

int queue_pop(queue *q, void **item, int timeout_ms) {
    struct timespec until = deadline_after(timeout_ms < 0 ? 0 : timeout_ms);
    int rc = OK;
    pthread_mutex_lock(&q->lock);
    while (q->len == 0 && !q->is_closed) {
        if (!wait_locked(q, &q->can_pop, timeout_ms, &until)) break;
    }
    if (q->len > 0) {
        *item = q->items[q->head];
        q->head = (q->head + 1) % q->cap;
        q->len--;
        pthread_cond_signal(&q->can_push);
    } else {
        rc = q->is_closed ? ERR_CANCELLED : ERR_TIMEOUT;
    }
    pthread_mutex_unlock(&q->lock);
    return rc;
}

void queue_close(queue *q) {
    pthread_mutex_lock(&q->lock);
    q->is_closed = true;
    pthread_cond_broadcast(&q->can_pop);
    pthread_cond_broadcast(&q->can_push);
    pthread_mutex_unlock(&q->lock);
}

size_t queue_len(queue *q) {
    pthread_mutex_lock(&q->lock);
    size_t n = q->len;
    pthread_mutex_unlock(&q->lock);
    return n;
}
