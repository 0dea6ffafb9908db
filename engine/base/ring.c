#include "engine/base/ring.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/err.h"
#include "engine/base/mem.h"

typedef struct slot {
    _Atomic uint64_t time_ms;
    _Atomic uint64_t bits;
} slot;

struct ring {
    size_t cap;
    _Atomic uint64_t n_written; /* sample i lives in slot i % cap */
    slot slots[];
};

ring *ring_new(size_t cap) {
    CHECK(cap > 0 && cap < SIZE_MAX / sizeof(slot) / 2);
    /* One slot more than promised: the one that may be half written is never read. */
    ring *r = mem_alloc(sizeof *r + (cap + 1) * sizeof(slot));
    r->cap = cap + 1;
    return r;
}

void ring_free(ring *r) {
    mem_free(r);
}

void ring_push(ring *r, uint64_t time_ms, double value) {
    uint64_t i = atomic_load_explicit(&r->n_written, memory_order_relaxed);
    slot *s = &r->slots[i % r->cap];
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    atomic_store_explicit(&s->time_ms, time_ms, memory_order_release);
    atomic_store_explicit(&s->bits, bits, memory_order_release);
    atomic_store_explicit(&r->n_written, i + 1, memory_order_release);
}

static sample slot_read(const slot *s) {
    sample out = {.time_ms = atomic_load_explicit(&s->time_ms, memory_order_acquire)};
    uint64_t bits = atomic_load_explicit(&s->bits, memory_order_acquire);
    memcpy(&out.value, &bits, sizeof bits);
    return out;
}

size_t ring_read(const ring *r, sample *out, size_t n) {
    uint64_t end = atomic_load_explicit(&r->n_written, memory_order_acquire);
    if (n > r->cap - 1) n = r->cap - 1;
    if (n > end) n = (size_t)end;
    uint64_t begin = end - n;
    for (size_t k = 0; k < n; k++)
        out[k] = slot_read(&r->slots[(begin + k) % r->cap]);
    /* What the writer may have begun to overwrite meanwhile is dropped: sample i goes when sample
     * i + cap is being written, and that can be the one after the newest finished. */
    uint64_t now = atomic_load_explicit(&r->n_written, memory_order_acquire);
    uint64_t oldest = now + 1 > r->cap ? now + 1 - r->cap : 0;
    if (oldest <= begin) return n;
    size_t n_lost = oldest - begin > n ? n : (size_t)(oldest - begin);
    memmove(out, out + n_lost, (n - n_lost) * sizeof *out);
    return n - n_lost;
}

double ring_sum_since(const ring *r, uint64_t since_ms, size_t *n_samples) {
    uint64_t end = atomic_load_explicit(&r->n_written, memory_order_acquire);
    size_t n = end < r->cap - 1 ? (size_t)end : r->cap - 1;
    double sum = 0;
    size_t used = 0;
    for (; used < n; used++) {
        uint64_t i = end - 1 - used;
        sample s = slot_read(&r->slots[i % r->cap]);
        uint64_t now = atomic_load_explicit(&r->n_written, memory_order_acquire);
        if (s.time_ms <= since_ms || now + 1 > i + r->cap) break;
        sum += s.value;
    }
    if (n_samples != NULL) *n_samples = used;
    return sum;
}

struct spsc {
    size_t mask;
    size_t item_bytes;
    _Alignas(64) _Atomic size_t head;    /* next to pop; written by the consumer */
    _Alignas(64) _Atomic size_t tail;    /* next to push; written by the producer */
    _Alignas(64) _Atomic uint32_t event; /* futex: changes with every push and close */
    atomic_int n_waiting;
    atomic_bool is_closed;
    _Alignas(64) unsigned char items[];
};

spsc *spsc_new(size_t cap, size_t item_bytes) {
    CHECK(cap > 0 && item_bytes > 0 && cap <= SIZE_MAX / 4);
    size_t n = 1;
    while (n < cap)
        n *= 2;
    CHECK(n <= SIZE_MAX / 2 / item_bytes);
    size_t bytes = (sizeof(spsc) + n * item_bytes + 63) / 64 * 64;
    spsc *s = mem_aligned(64, bytes);
    CHECK_MSG(s != NULL, "out of memory: %zu bytes", bytes);
    s->mask = n - 1;
    s->item_bytes = item_bytes;
    return s;
}

void spsc_free(spsc *s) {
    mem_aligned_free(s);
}

static void spsc_signal(spsc *s) {
    atomic_fetch_add(&s->event, 1);
    if (atomic_load(&s->n_waiting) > 0) {
        (void)syscall(SYS_futex, &s->event, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

bool spsc_push(spsc *s, const void *item) {
    size_t tail = atomic_load_explicit(&s->tail, memory_order_relaxed);
    size_t head = atomic_load_explicit(&s->head, memory_order_acquire);
    if (tail - head > s->mask || atomic_load(&s->is_closed)) return false;
    memcpy(s->items + (tail & s->mask) * s->item_bytes, item, s->item_bytes);
    atomic_store_explicit(&s->tail, tail + 1, memory_order_release);
    spsc_signal(s);
    return true;
}

void spsc_close(spsc *s) {
    atomic_store(&s->is_closed, true);
    spsc_signal(s);
}

static bool spsc_try_pop(spsc *s, void *item) {
    size_t head = atomic_load_explicit(&s->head, memory_order_relaxed);
    if (head == atomic_load_explicit(&s->tail, memory_order_acquire)) return false;
    memcpy(item, s->items + (head & s->mask) * s->item_bytes, s->item_bytes);
    atomic_store_explicit(&s->head, head + 1, memory_order_release);
    return true;
}

int spsc_pop(spsc *s, void *item, int timeout_ms) {
    uint64_t until = clock_mono_ns() + (uint64_t)(timeout_ms < 0 ? 0 : timeout_ms) * 1000000u;
    for (;;) {
        uint32_t seen = atomic_load(&s->event);
        /* Closed is read before the last look: a push before the close is then always seen. */
        bool is_closed = atomic_load(&s->is_closed);
        if (spsc_try_pop(s, item)) return OK;
        if (is_closed) return ERR_CANCELLED;
        struct timespec left = {0};
        if (timeout_ms >= 0) {
            uint64_t now = clock_mono_ns();
            if (now >= until) return ERR_TIMEOUT;
            left.tv_sec = (time_t)((until - now) / 1000000000u);
            left.tv_nsec = (long)((until - now) % 1000000000u);
        }
        atomic_fetch_add(&s->n_waiting, 1);
        (void)syscall(
            SYS_futex, &s->event, FUTEX_WAIT_PRIVATE, seen, timeout_ms < 0 ? NULL : &left, NULL, 0);
        atomic_fetch_sub(&s->n_waiting, 1);
    }
}

size_t spsc_len(const spsc *s) {
    size_t head = atomic_load_explicit(&s->head, memory_order_acquire);
    return atomic_load_explicit(&s->tail, memory_order_acquire) - head;
}
