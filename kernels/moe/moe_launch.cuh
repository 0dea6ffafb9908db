/* Launches whose blocks wait for each other: one block an SM, all at once. Host code. */
#ifndef TANDEM_KERNELS_MOE_MOE_LAUNCH_CUH
#define TANDEM_KERNELS_MOE_MOE_LAUNCH_CUH

#include "kernels/cuda_check.h"

typedef struct moe_device {
    int n_sms, room;    /* shared memory a block may ask for beside its static one */
    int is_cooperative; /* blocks may wait for each other */
} moe_device;

/* Limits of the device in use for a kernel with static_bytes of shared memory, read once into known [64]. */
template <class PARAMS>
inline int moe_device_get(
    moe_device *known, void (*kernel)(PARAMS), int static_bytes, moe_device *out, err *e) {
    const char *what = "experts at once";
    int id = 0, bytes = 0, n = 0, is_cooperative = 0;
    int rc = cuda_check(e, cudaGetDevice(&id), what);
    if (rc != OK) return rc;
    if (id < 0 || id >= 64) return err_set(e, ERR_DEVICE, "device number %d is out of range", id);
    moe_device *d = &known[id];
    if (d->n_sms == 0) {
        rc = cuda_check(
            e, cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id), what);
        if (rc == OK)
            rc = cuda_check(
                e, cudaDeviceGetAttribute(&is_cooperative, cudaDevAttrCooperativeLaunch, id), what);
        if (rc == OK)
            rc =
                cuda_check(e, cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, id), what);
        const int room = bytes - static_bytes - 1024;
        /* Once: layers of different rates on two streams must not set it back between each other's launches. */
        if (rc == OK)
            rc = cuda_check(e,
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room),
                what);
        if (rc != OK) return rc;
        *d = {n, room, is_cooperative};
    }
    *out = *d;
    return OK;
}

template <class PARAMS>
inline int moe_launch(void (*kernel)(PARAMS), int n_sms, int threads, int bytes, const PARAMS &p,
    cudaStream_t stream, err *e) {
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeCooperative;
    attributes[1].val.cooperative = 1;
    c.gridDim = dim3((unsigned)n_sms);
    c.blockDim = dim3((unsigned)threads);
    c.dynamicSmemBytes = (size_t)bytes;
    c.stream = stream;
    c.attrs = attributes;
    c.numAttrs = 2;
    return cuda_check(e, cudaLaunchKernelEx(&c, kernel, p), "experts at once");
}

#endif
