#include "kernels/cuda_check.h"

int cuda_check(err *e, cudaError_t code, const char *what) {
    if (code == cudaSuccess) return OK;
    int kind = code == cudaErrorMemoryAllocation ? ERR_MEMORY : ERR_DEVICE;
    return err_set(e, kind, "%s: %s", what, cudaGetErrorString(code));
}
