/*
 * CUDA return codes as errors. Host code only; any thread.
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

#ifdef __cplusplus
}
#endif

#endif
