/* Launching of this folder's kernels. Host code. */
#ifndef KERNELS_EXL3_LAUNCH_CUH
#define KERNELS_EXL3_LAUNCH_CUH

#include "kernels/cuda_check.h"

/* A launch that may begin while the kernel before it ends. */
template <class PARAMS>
inline int exl3_launch(void (*kernel)(PARAMS), dim3 grid, int threads, size_t shared_bytes,
    const PARAMS &p, cudaStream_t stream, err *e) {
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = dim3((unsigned)threads);
    c.dynamicSmemBytes = shared_bytes;
    c.stream = stream;
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.attrs = &early;
    c.numAttrs = 1;
    return cuda_check(e, cudaLaunchKernelEx(&c, kernel, p), "exl3 launch");
}

#endif
