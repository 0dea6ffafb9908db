/* Work of the device that takes a known time, for tests of waits. */
#ifndef TESTS_GPU_SPIN_H
#define TESTS_GPU_SPIN_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C"
#endif
    /* Keeps the stream busy for so many milliseconds. */
    void
    spin_start(int ms, cudaStream_t stream);

#endif
