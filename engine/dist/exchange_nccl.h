/* An exchange between GPUs over NCCL: sums and gathers of device memory on a stream, so that they
 * can be part of a recorded step; everything of the host (plans, checks) goes over a control
 * exchange, which also brings the ranks together. NCCL is loaded when the first one is opened: the
 * program runs without it. Sums gather all partials and add them in rank order, so every rank holds
 * the same bits, and the same bits as the other kinds of exchange.
 *
 * Threads: as exchange.h; the calling thread's current device is the rank's. While the step thread
 * waits for that device it looks every few milliseconds for what NCCL noticed and for an
 * exchange_abort, and then ends the work that waits for a peer (cuda_watch_set). A broken exchange
 * (a peer gone, an NCCL error) fails every later call and is given up. */
#ifndef TANDEM_ENGINE_DIST_EXCHANGE_NCCL_H
#define TANDEM_ENGINE_DIST_EXCHANGE_NCCL_H

#ifdef __cplusplus
extern "C" {
#endif

#include "engine/dist/exchange.h"

/* Every rank of control calls it; takes control on success. max_bytes: largest piece of one rank in
 * device memory, 0: 64 MiB. ERR_UNSUPPORTED: NCCL is not installed; ERR_TIMEOUT: the ranks did
 * not come together within a minute; ERR_PEER, ERR_NET, ERR_DEVICE name what NCCL said. */
int exchange_nccl_open(exchange *control, size_t max_bytes, exchange **out, err *e);
/* Version of the NCCL that is there, as 22803 for 2.28.3; 0: none. */
int exchange_nccl_version(void);

#ifdef __cplusplus
}
#endif

#endif
