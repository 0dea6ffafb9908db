/* An exchange between GPUs of one host that can write into each other's memory (NVLink, PCIe peer
 * access): no library, one launch a call. A rank writes its part into an inbox of every other rank
 * and adds what arrives in its own, in rank order, so the bits are those of the other kinds. Small
 * parts travel as pairs of value and number of the call in one 64-bit store, which needs no fence;
 * large ones as tiles with a flag behind them. Everything of the host goes over a control exchange,
 * which also brings the ranks together. Ranks are threads or processes, each with its own GPU.
 *
 * Threads: as exchange.h; the calling thread's current device is the rank's. A wait of the device
 * ends at its deadline or with exchange_abort (from any thread); the step thread is told when it
 * waits for the device (cuda_watch_set). The exchange is then broken, as exchange.h says. */
#ifndef TANDEM_ENGINE_DIST_EXCHANGE_PEER_H
#define TANDEM_ENGINE_DIST_EXCHANGE_PEER_H

#ifdef __cplusplus
extern "C" {
#endif

#include "engine/dist/exchange.h"

/* Every rank of control calls it; takes control on success. timeout_ms: of a wait of the device, 0:
 * a little less than the step thread waits for it. ERR_UNSUPPORTED, on every rank: the ranks do not
 * share a host, or their GPUs cannot write into each other's memory; the sentence says which. */
int exchange_peer_open(exchange *control, int timeout_ms, exchange **out, err *e);

/* What the ranks of a GPU engine use. */
typedef enum exchange_kind {
    EXCHANGE_AUTO, /* peer where it is possible, else NCCL */
    EXCHANGE_PEER,
    EXCHANGE_NCCL,
} exchange_kind;

/* Every rank of control calls it; takes control on success. A rank that asks for NCCL decides for
 * all; one that insists on peer gets the error of exchange_peer_open. */
int exchange_gpu_open(exchange *control, exchange_kind kind, exchange **out, err *e);
/* "peer", "NCCL": what an open exchange of device memory is. */
const char *exchange_gpu_name(const exchange *x);

#ifdef __cplusplus
}
#endif

#endif
