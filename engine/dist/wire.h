/* Moving bytes between two ranks over one connection, with a deadline. Shared by the meeting and
 * the exchange over TCP. */
#ifndef TANDEM_ENGINE_DIST_WIRE_H
#define TANDEM_ENGINE_DIST_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

/* One direction of a transfer. */
typedef struct wire_part {
    void *data;
    size_t len, done;
} wire_part;

/* Sends out and receives in at the same time until both are complete. ERR_TIMEOUT after deadline_ms
 * (clock_mono_ms), ERR_PEER when the other side closed. */
int wire_transfer(int fd, wire_part *out, wire_part *in, uint64_t deadline_ms, err *e);
int wire_send(int fd, const void *data, size_t n, uint64_t deadline_ms, err *e);
int wire_receive(int fd, void *data, size_t n, uint64_t deadline_ms, err *e);
/* Small messages at once, not gathered. */
void wire_tune(int fd);

#endif
