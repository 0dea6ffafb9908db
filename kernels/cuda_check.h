/*
 * CUDA return codes as errors, and waits for a device that end. Host code only; any thread.
 */
#ifndef KERNELS_CUDA_CHECK_H
#define KERNELS_CUDA_CHECK_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "engine/base/err.h"

/* OK, or ERR_MEMORY for a failed allocation, else ERR_DEVICE, with "WHAT: reason of the driver" in
 * e. */
int cuda_check(err *e, cudaError_t code, const char *what);

/* After a launch: the launch's own error, named after the operator. Never synchronises. */
#define CUDA_LAUNCHED(e, what) cuda_check((e), cudaGetLastError(), (what))

/* ERR_MEMORY in a sentence with what is free on the device in use. */
int cuda_no_memory(err *e, const char *what, size_t bytes);

/* What must stay well while a device works, such as the exchange with its peers: asked every few
 * milliseconds by whoever waits for that device, and once when the device is done. An error of it ends the wait; fn has by then made
 * sure that the work ends. */
typedef int (*cuda_watch_fn)(void *ctx, err *e);
/* One per device; fn NULL: none. Not while somebody waits for that device. */
void cuda_watch_set(int device, cuda_watch_fn fn, void *ctx);

enum {
    CUDA_WAIT_MS = 120000
}; /* longer than any step: a slice of a prompt at the longest context */

/* Waits until everything on the stream of device is complete, picks up errors of the device.
 * ERR_TIMEOUT after timeout_ms: the device is then of no more use to this process. */
int cuda_stream_wait(cudaStream_t stream, int device, int timeout_ms, err *e);

#ifdef __cplusplus
}
#endif

#endif
