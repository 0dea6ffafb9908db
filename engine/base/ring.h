#ifndef TANDEM_BASE_RING_H
#define TANDEM_BASE_RING_H
/* Two rings without locks.
 *
 * ring: samples of one measured value. Writer: one thread. Readers: any thread, never blocking the
 * writer. Oldest samples are overwritten.
 *
 * spsc: fixed-size items from exactly one producing to exactly one consuming thread (the tokens of a
 * request). Nothing is lost: a full ring refuses. Neither allocates after it is made. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sample {
    uint64_t time_ms; /* clock_mono_ms */
    double value;
} sample;

typedef struct ring ring;
/* Makes a ring for cap > 0 samples; freed with ring_free. */
ring *ring_new(size_t cap);
void ring_free(ring *r);
/* Writer only. Times must not fall. */
void ring_push(ring *r, uint64_t time_ms, double value);
/* Copies up to n newest samples into out, oldest first; returns how many. */
size_t ring_read(const ring *r, sample *out, size_t n);
/* Sum and number of the samples with time_ms > since_ms that the ring still has. */
double ring_sum_since(const ring *r, uint64_t since_ms, size_t *n_samples);

typedef struct spsc spsc;
/* Room for at least cap items of item_bytes each; both > 0. Freed with spsc_free. */
spsc *spsc_new(size_t cap, size_t item_bytes);
void spsc_free(spsc *s);
/* Producer: copies one item in and wakes the consumer; false when full or closed. */
bool spsc_push(spsc *s, const void *item);
/* Either side, or a third thread: no more pushes; what is inside can still be popped. */
void spsc_close(spsc *s);
/* Consumer: waits for an item (timeout_ms 0: does not wait, < 0: for ever). OK, ERR_TIMEOUT, or
 * ERR_CANCELLED when closed and empty. */
int spsc_pop(spsc *s, void *item, int timeout_ms);
/* Items inside, as seen by the caller. */
size_t spsc_len(const spsc *s);

#endif
