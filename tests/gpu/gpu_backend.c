#include "tests/gpu/gpu_backend.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda_ops.h"

bool gpu_backend_use(void) {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("skipped: no GPU\n");
        return false;
    }
    kernels_add(kernels_cuda());
    return setenv("TANDEM_TEST_BACKEND", "cuda", 1) == 0;
}
