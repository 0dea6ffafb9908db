#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/str.h"
#include "engine/run/run_internal.h"

static void poke(int fd) {
    uint64_t one = 1;
    ssize_t n;
    do {
        n = write(fd, &one, sizeof one);
    } while (n < 0 && errno == EINTR);
}

void run_wake(run *r) {
    if (atomic_exchange(&r->is_asleep, 0)) {
        poke(r->wake_fd);
    }
}

void run_wake_void(void *r) {
    run_wake(r);
}

/* Room for a whole verify window and the end event must be left. */
static bool lacks_room(const ticket *t) {
    return atomic_load_explicit(&t->head, memory_order_relaxed) - atomic_load(&t->tail) >
           TICKET_BEHIND - RUN_DRAFT_MAX - 3;
}

bool ticket_is_full(ticket *t) {
    if (!lacks_room(t)) return false;
    /* Marked first, looked at again second: a reader that made room in between either sees the
     * mark or is seen. */
    atomic_store(&t->is_paused, 1);
    return lacks_room(t);
}

static void add_chunk(ticket *t) {
    ticket_chunk *c = atomic_exchange(&t->spare, NULL);
    if (c == NULL) c = mem_alloc(sizeof *c);
    c->next = NULL;
    t->write_chunk->next = c;
    t->write_chunk = c;
}

static void drop_chunk(ticket *t) {
    ticket_chunk *old = t->read_chunk;
    t->read_chunk = old->next;
    mem_free(atomic_exchange(&t->spare, old));
}

void ticket_push(ticket *t, const run_event *event) {
    uint32_t head = atomic_load_explicit(&t->head, memory_order_relaxed);
    CHECK(head - atomic_load_explicit(&t->tail, memory_order_acquire) < TICKET_BEHIND);
    if (head % TICKET_CHUNK == 0 && head > 0) add_chunk(t);
    t->write_chunk->events[head % TICKET_CHUNK] = *event;
    atomic_store(&t->head, head + 1);
    if (atomic_exchange(&t->is_waiting, 0)) {
        poke(t->wake_fd);
    }
}

static bool take(ticket *t, run_event *out) {
    uint32_t tail = atomic_load_explicit(&t->tail, memory_order_relaxed);
    if (tail == atomic_load(&t->head)) return false;
    if (tail % TICKET_CHUNK == 0 && tail > 0) drop_chunk(t);
    *out = t->read_chunk->events[tail % TICKET_CHUNK];
    atomic_store(&t->tail, tail + 1);
    if (atomic_load(&t->is_paused) && atomic_exchange(&t->is_paused, 0)) {
        run_wake(t->owner);
    }
    return true;
}

bool ticket_arm(ticket *t) {
    uint64_t drop;
    if (atomic_load(&t->head) != atomic_load_explicit(&t->tail, memory_order_relaxed)) return true;
    ssize_t n = read(t->wake_fd, &drop, sizeof drop);
    (void)n; /* not readable just means that there was no old wake-up to forget */
    atomic_store(&t->is_waiting, 1);
    return atomic_load(&t->head) != atomic_load_explicit(&t->tail, memory_order_relaxed);
}

int ticket_fd(const ticket *t) {
    return t->wake_fd;
}

int ticket_next(ticket *t, run_event *out, int timeout_ms) {
    uint64_t deadline = clock_mono_ms() + (timeout_ms > 0 ? (uint64_t)timeout_ms : 0);
    for (;;) {
        if (take(t, out)) return OK;
        if (timeout_ms == 0) return ERR_TIMEOUT;
        if (ticket_arm(t)) continue;
        int wait_ms = -1;
        if (timeout_ms > 0) {
            uint64_t now = clock_mono_ms();
            if (now >= deadline) return ERR_TIMEOUT;
            wait_ms = (int)(deadline - now);
        }
        struct pollfd p = {.fd = t->wake_fd, .events = POLLIN};
        poll(&p, 1, wait_ms);
    }
}

void ticket_cancel(ticket *t) {
    atomic_store(&t->is_cancelled, 1);
    run_wake(t->owner);
}

void ticket_progress(const ticket *t, run_progress *out) {
    memset(out, 0, sizeof *out);
    str_copy(out->id, sizeof out->id, t->id);
    out->phase = atomic_load_explicit(&t->phase, memory_order_relaxed);
    out->n_prompt = t->n_prompt;
    out->max_tokens = t->max_tokens;
    out->n_prefilled = atomic_load_explicit(&t->n_prefilled, memory_order_relaxed);
    out->n_cached = atomic_load_explicit(&t->n_cached, memory_order_relaxed);
    out->n_generated = atomic_load_explicit(&t->n_generated, memory_order_relaxed);
    out->n_drafted = atomic_load_explicit(&t->n_drafted, memory_order_relaxed);
    out->n_accepted = atomic_load_explicit(&t->n_accepted, memory_order_relaxed);
    out->submit_ns = atomic_load_explicit(&t->submit_ns, memory_order_relaxed);
    out->start_ns = atomic_load_explicit(&t->start_ns, memory_order_relaxed);
    out->first_ns = atomic_load_explicit(&t->first_ns, memory_order_relaxed);
    out->last_ns = atomic_load_explicit(&t->last_ns, memory_order_relaxed);
}

const err *ticket_error(const ticket *t) {
    return &t->failure;
}

void ticket_destroy(ticket *t) {
    if (t->wake_fd >= 0) {
        close(t->wake_fd);
    }
    if (t->has_guide) {
        t->guide.release(t->guide.ctx);
    }
    mem_free(t->tokens);
    mem_free(t->bias);
    mem_free(t->counts.generated);
    mem_free(t->counts.in_prompt);
    while (t->read_chunk != NULL) {
        ticket_chunk *c = t->read_chunk;
        t->read_chunk = c->next;
        mem_free(c);
    }
    mem_free(atomic_load(&t->spare));
    mem_aligned_free(t);
}

void ticket_leave(ticket *t) {
    if (atomic_fetch_sub(&t->n_holders, 1) != 1) return;
    run *r = t->owner;
    t->next_intake = atomic_load(&r->dead);
    while (!atomic_compare_exchange_weak(&r->dead, &t->next_intake, t)) {
    }
}

void run_reap(run *r) {
    ticket *t = atomic_exchange(&r->dead, NULL);
    while (t != NULL) {
        ticket *next = t->next_intake;
        ticket_destroy(t);
        t = next;
    }
}

static void registry_remove(run *r, ticket *t) {
    pthread_mutex_lock(&r->registry_lock);
    if (t->prev_live != NULL) {
        t->prev_live->next_live = t->next_live;
    } else {
        r->live_first = t->next_live;
    }
    if (t->next_live != NULL) {
        t->next_live->prev_live = t->prev_live;
    } else {
        r->live_last = t->prev_live;
    }
    pthread_mutex_unlock(&r->registry_lock);
}

void ticket_free(ticket *t) {
    if (t == NULL) return;
    run *r = t->owner;
    registry_remove(r, t);
    if (atomic_load(&t->phase) != RUN_PHASE_DONE) {
        ticket_cancel(t);
    }
    if (atomic_fetch_sub(&t->n_holders, 1) == 1) {
        ticket_destroy(t);
    }
    run_reap(r);
}
