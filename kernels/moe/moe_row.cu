#include "kernels/cuda_check.h"
#include "kernels/moe/moe_row_kernel.cuh"

enum { ROW_STAGES = 3, ROW_MAX_PARTS = 4 };

/* Shared memory that keeps a second CTA of these kernels off an SM, so that
 * clusters are counted alike. */
static const int ROW_MIN_SHARED = 116 * 1024;

typedef struct row_device {
    int n_sms, room;                   /* shared memory a block may ask for beside its static one */
    int n_clusters[ROW_MAX_PARTS + 1]; /* that run at once; 0: none */
} row_device;

static void launch_init(cudaLaunchConfig_t *c, cudaLaunchAttribute *attributes, int n_parts) {
    *c = cudaLaunchConfig_t{};
    c->blockDim = dim3(EXL3_WARPS * 32);
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = (unsigned)n_parts;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    c->attrs = attributes;
    c->numAttrs = n_parts == 0 ? 1 : 2;
}

/* Limits of the device in use, read once. */
static int device_get(row_device *out, err *e) {
    static row_device known[64];
    int id = 0, bytes = 0;
    int rc = cuda_check(e, cudaGetDevice(&id), "experts of a row");
    if (rc != OK) return rc;
    if (id < 0 || id >= 64) return err_set(e, ERR_DEVICE, "device number %d is out of range", id);
    row_device *d = &known[id];
    if (d->n_sms == 0) {
        rc = cuda_check(e,
            cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id),
            "experts of a row");
        if (rc == OK)
            rc =
                cuda_check(e, cudaDeviceGetAttribute(&d->n_sms, cudaDevAttrMultiProcessorCount, id),
                    "experts of a row");
        if (rc != OK) return rc;
        d->room = bytes - (int)sizeof(moe_row_down_shared) - 1024;
        for (int n = 1; n <= ROW_MAX_PARTS && d->room >= ROW_MIN_SHARED; n++) {
            cudaLaunchConfig_t c;
            cudaLaunchAttribute a[2];
            launch_init(&c, a, n);
            c.gridDim = dim3((unsigned)n);
            c.dynamicSmemBytes = (size_t)ROW_MIN_SHARED;
            rc = cuda_check(e,
                cudaFuncSetAttribute(
                    moe_row_up_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, d->room),
                "experts of a row");
            if (rc != OK) return rc;
            if (cudaOccupancyMaxActiveClusters(&d->n_clusters[n], moe_row_up_kernel, &c) !=
                cudaSuccess) {
                (void)cudaGetLastError();
                d->n_clusters[n] = 0;
            }
        }
    }
    *out = *d;
    return OK;
}

/* CTAs for a block of up: as many as there is room for. 0: not all blocks run
 * at once. */
static int parts_for(const row_device *d, int n_blocks) {
    int n = ROW_MAX_PARTS;
    while (n > 0 && d->n_clusters[n] < n_blocks)
        n--;
    return n;
}

static int run_up(const moe_row_args *a, const row_device *d, int n_parts, cudaStream_t s, err *e) {
    moe_row_params p = {};
    cudaLaunchConfig_t c;
    cudaLaunchAttribute attributes[2];
    const int slots = a->n_used + (a->has_shared ? 1 : 0), operands = 4 * a->d;
    p.powers = EXL3_POWERS;
    p.a = *a;
    p.slot_bytes = EXL3_SLICES * 64 * a->max_k2;
    for (p.n_stages = ROW_STAGES; EXL3_WARPS * p.n_stages * p.slot_bytes + operands > d->room;)
        if (--p.n_stages == 0) return err_set(e, ERR_LIMIT, "experts of a row: no room for a ring");
    int bytes = EXL3_WARPS * p.n_stages * p.slot_bytes + operands;
    if (bytes < ROW_MIN_SHARED) bytes = ROW_MIN_SHARED;
    launch_init(&c, attributes, n_parts);
    c.gridDim = dim3((unsigned)(slots * (a->n_ff / 128) * n_parts));
    c.dynamicSmemBytes = (size_t)bytes;
    c.stream = s;
    return cuda_check(e, cudaLaunchKernelEx(&c, moe_row_up_kernel, p), "experts of a row, up");
}

/* Pairs of block and expert that one CTA of down may touch. */
static int pairs_of(const moe_row_args *a, int n_ctas) {
    const int slots = a->n_used + (a->has_shared ? 1 : 0), run = a->n_ff / EXL3_GPU_UNIT_IN * 2;
    const int n_units = a->d / 128 * slots * run,
              each = (n_units + n_ctas - 1) / n_ctas + EXL3_WARPS;
    return (each + run - 1) / run + 1;
}

static int run_down(const moe_row_args *a, const row_device *d, cudaStream_t s, err *e) {
    moe_row_params p = {};
    cudaLaunchConfig_t c;
    cudaLaunchAttribute attributes[2];
    p.powers = EXL3_POWERS;
    p.a = *a;
    p.slot_bytes = EXL3_SLICES * 64 * a->max_k2;
    p.n_rows_held = pairs_of(a, d->n_sms);
    const int rest = p.n_rows_held * (2 * a->n_ff + 1024);
    for (p.n_stages = ROW_STAGES; EXL3_WARPS * p.n_stages * p.slot_bytes + rest > d->room;)
        if (--p.n_stages == 0) return err_set(e, ERR_LIMIT, "experts of a row: no room for a ring");
    const int bytes = EXL3_WARPS * p.n_stages * p.slot_bytes + rest;
    const int rc = cuda_check(e,
        cudaFuncSetAttribute(
            moe_row_down_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "experts of a row");
    if (rc != OK) return rc;
    launch_init(&c, attributes, 0);
    c.gridDim = dim3((unsigned)d->n_sms);
    c.dynamicSmemBytes = (size_t)bytes;
    c.stream = s;
    return cuda_check(e, cudaLaunchKernelEx(&c, moe_row_down_kernel, p), "experts of a row, down");
}

int moe_row_run(const moe_row_args *a, cudaStream_t stream, bool *is_done, err *e) {
    row_device d;
    *is_done = false;
    int rc = device_get(&d, e);
    if (rc != OK) return rc;
    const int slots = a->n_used + (a->has_shared ? 1 : 0), n_blocks = a->n_ff / 128;
    const int n_parts = parts_for(&d, slots * n_blocks), pairs = pairs_of(a, d.n_sms);
    if (slots > MOE_ROW_SLOTS || a->d % 128 != 0 || a->n_ff % 128 != 0 ||
        a->d > MOE_ROW_HELD * MOE_ROW_HALF * 128 || n_parts == 0 || pairs > MOE_ROW_SLOTS ||
        pairs * n_blocks > MOE_ROW_HELD * EXL3_WARPS ||
        EXL3_WARPS * EXL3_SLICES * 64 * a->max_k2 + 4 * a->d > d.room ||
        EXL3_WARPS * EXL3_SLICES * 64 * a->max_k2 + pairs * (2 * a->n_ff + 1024) > d.room)
        return OK;
    *is_done = true;
    rc = run_up(a, &d, n_parts, stream, e);
    return rc != OK ? rc : run_down(a, &d, stream, e);
}
