#include "kernels/cuda_check.h"
#include "kernels/moe/moe_row_kernel.cuh"

/* More stages only delay the first ones (H200, 2026-12-01: 34.3 us with two, 34.4 with three). */
enum { ROW_STAGES = 2 };

typedef struct row_device {
    int n_sms, room;    /* shared memory a block may ask for beside its static one */
    int is_cooperative; /* blocks may wait for each other */
} row_device;

/* Limits of the device in use, read once. */
static int device_get(row_device *out, err *e) {
    static row_device known[64];
    int id = 0, bytes = 0;
    int rc = cuda_check(e, cudaGetDevice(&id), "experts of a row");
    if (rc != OK) return rc;
    if (id < 0 || id >= 64) return err_set(e, ERR_DEVICE, "device number %d is out of range", id);
    row_device *d = &known[id];
    if (d->n_sms == 0) {
        int n = 0, is_cooperative = 0;
        rc = cuda_check(e,
            cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id),
            "experts of a row");
        if (rc == OK)
            rc = cuda_check(e,
                cudaDeviceGetAttribute(&is_cooperative, cudaDevAttrCooperativeLaunch, id),
                "experts of a row");
        if (rc == OK)
            rc = cuda_check(e, cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, id),
                "experts of a row");
        const int room = bytes - (int)sizeof(moe_row_shared) - 1024;
        /* Once: layers of different rates on two streams must not set it back between each other's launches. */
        if (rc == OK)
            rc = cuda_check(e,
                cudaFuncSetAttribute(
                    moe_row_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room),
                "experts of a row");
        if (rc != OK) return rc;
        *d = {n, room, is_cooperative};
    }
    *out = *d;
    return OK;
}

/* Cost of a unit: 16 at least, 64 at most. Each of n matrices then has this many of n_ctas CTAs at least. */
static int fewest_ctas(int n_ctas, int n) {
    return n_ctas * 16 / (64 * n);
}

/* Strips of 64 outputs that a CTA may touch of one of n matrices. */
static int most_strips(const moe_row_args *a, int n_ctas, int n, int in) {
    const int n_units = a->d / EXL3_GPU_UNIT_IN * (a->n_ff / EXL3_GPU_UNIT_IN);
    return (n_units / fewest_ctas(n_ctas, n) + 1) / (in / EXL3_GPU_UNIT_IN) + 2;
}

int moe_row_run(const moe_row_args *a, cudaStream_t stream, bool *is_done, err *e) {
    row_device d = {};
    moe_row_params p = {};
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute attributes[2];
    const int slots = a->n_used + (a->has_shared ? 1 : 0);
    *is_done = false;
    int rc = device_get(&d, e);
    if (rc != OK) return rc;
    if (!d.is_cooperative || slots > MOE_ROW_SLOTS || a->d % 128 != 0 || a->n_ff % 128 != 0 ||
        a->d > MOE_ROW_MAX_WIDTH || a->n_ff > MOE_ROW_MAX_WIDTH || d.n_sms > MOE_ROW_MAX_BLOCKS ||
        fewest_ctas(d.n_sms, 2 * slots) == 0)
        return OK;
    p.powers = EXL3_POWERS;
    p.a = *a;
    p.slot_bytes = EXL3_SLICES * 64 * a->max_k2;
    p.n_stages = ROW_STAGES;
    p.n_in_strips = most_strips(a, d.n_sms, 2 * slots, a->d);
    p.n_out_strips = most_strips(a, d.n_sms, slots, a->n_ff);
    const int bytes = EXL3_WARPS * p.n_stages * p.slot_bytes +
                      (a->d + a->n_ff) / 16 * MOE_ROW_SLICE_BYTES +
                      (p.n_in_strips + p.n_out_strips) * 64 * 2 * (int)sizeof(int);
    if (bytes > d.room) return OK;
    *is_done = true;
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeCooperative;
    attributes[1].val.cooperative = 1;
    c.gridDim = dim3((unsigned)d.n_sms);
    c.blockDim = dim3(EXL3_WARPS * 32);
    c.dynamicSmemBytes = (size_t)bytes;
    c.stream = stream;
    c.attrs = attributes;
    c.numAttrs = 2;
    return cuda_check(e, cudaLaunchKernelEx(&c, moe_row_kernel, p), "experts of a row");
}
