/* A plain read of device memory, the floor that a kernel bound by bytes is compared with. */
#ifndef TESTS_GPU_BENCH_STREAM_H
#define TESTS_GPU_BENCH_STREAM_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C"
#endif
    /* Queues one pass over bytes at from. */
    void
    bench_stream(const void *from, size_t bytes, uint32_t *out, cudaStream_t stream);

#endif
