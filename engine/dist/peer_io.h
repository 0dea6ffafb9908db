/* Moving bytes between two ranks over one connection, with a deadline. Shared by the meeting and
 * the exchange over TCP. */
#ifndef TANDEM_ENGINE_DIST_PEER_IO_H
#define TANDEM_ENGINE_DIST_PEER_IO_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

/* One direction of a transfer. */
typedef struct peer_part {
    void *data;
    size_t len, done;
} peer_part;

/* Sends out and receives in at the same time until both are complete. ERR_TIMEOUT after deadline_ms
 * (clock_mono_ms), ERR_PEER when the other side closed. */
int peer_transfer(int fd, peer_part *out, peer_part *in, uint64_t deadline_ms, err *e);
int peer_send(int fd, const void *data, size_t n, uint64_t deadline_ms, err *e);
int peer_receive(int fd, void *data, size_t n, uint64_t deadline_ms, err *e);
/* Small messages at once, not gathered. */
void peer_tune(int fd);

#endif
