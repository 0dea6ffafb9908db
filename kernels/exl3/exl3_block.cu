#include "kernels/exl3/exl3_block.h"

#include "kernels/exl3/exl3_block_kernel.cuh"
#include "kernels/exl3/exl3_launch.cuh"

enum { BLOCK_NARROW_ROWS = 2 };
enum { BLOCK_MAX_PARTS = 8 }; /* CTAs of a cluster that every device allows */

/* A block's CTA has an SM for itself, so that the same number of clusters fits whatever the rate. */
static const int BLOCK_MIN_SHARED = 116 * 1024;

typedef struct block_launch {
    cudaLaunchConfig_t config;
    cudaLaunchAttribute attributes[2];
} block_launch;

static void launch_init(block_launch *l, int n_blocks, int n_parts, size_t bytes, cudaStream_t s) {
    *l = block_launch{};
    l->config.gridDim = dim3((unsigned)(n_blocks * n_parts));
    l->config.blockDim = dim3(EXL3_WARPS * 32);
    l->config.dynamicSmemBytes = bytes;
    l->config.stream = s;
    l->attributes[0].id = cudaLaunchAttributeClusterDimension;
    l->attributes[0].val.clusterDim.x = (unsigned)n_parts;
    l->attributes[0].val.clusterDim.y = l->attributes[0].val.clusterDim.z = 1;
    l->attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    l->attributes[1].val.programmaticStreamSerializationAllowed = 1;
    l->config.attrs = l->attributes;
    l->config.numAttrs = 2;
}

/* Clusters of n_parts CTAs that run at once on the device in use, asked for once. */
static int max_clusters(int n_parts, size_t bytes, int *out, err *e) {
    static int known[64][BLOCK_MAX_PARTS + 1];
    int id = 0;
    const int rc = cuda_check(e, cudaGetDevice(&id), "exl3 block");
    if (rc != OK || id < 0 || id >= 64) return rc != OK ? rc : err_set(e, ERR_DEVICE, "exl3 block");
    if (known[id][n_parts] == 0) {
        block_launch l;
        int n = 0;
        launch_init(&l, 1, n_parts, bytes, NULL);
        l.config.numAttrs = 1;
        if (cudaOccupancyMaxActiveClusters(&n, exl3_block_kernel, &l.config) != cudaSuccess) {
            (void)cudaGetLastError();
            n = 0;
        }
        known[id][n_parts] = n + 1;
    }
    *out = known[id][n_parts] - 1;
    return OK;
}

int exl3_block_run(
    const exl3_gpu_rows_args *a, int n_sms, cudaStream_t stream, bool *is_done, err *e) {
    exl3_block_params p = {};
    int n_blocks = 0, n_parts = BLOCK_MAX_PARTS, n = 0, rc = OK;
    *is_done = false;
    for (int i = 0; i < a->own->n_jobs; i++)
        n_blocks += a->own->jobs[i].matrix.out / 128;
    p.powers = EXL3_POWERS;
    p.own = *a->own;
    p.slot_bytes = (a->max_stage_bytes + 127) / 128 * 128;
    p.local_rows = a->max_rows;
    p.n_stages = 3;
    const int local_bytes = p.local_rows * 1024, room = 220 * 1024 - local_bytes;
    while (p.n_stages > 1 && EXL3_WARPS * p.n_stages * p.slot_bytes > room)
        p.n_stages--;
    int bytes = EXL3_WARPS * p.n_stages * p.slot_bytes + local_bytes;
    if (bytes < BLOCK_MIN_SHARED) bytes = BLOCK_MIN_SHARED;
    /* Where a block has less shared memory, as on sm_121, the other form runs. */
    if (cudaFuncSetAttribute(
            exl3_block_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return OK;
    }
    for (; n_parts > 0; n_parts--) {
        rc = max_clusters(n_parts, (size_t)bytes, &n, e);
        if (rc != OK) return rc;
        if (n >= n_blocks) break;
    }
    /* With one or two rows the SMs count more than the way sums take: in a step of one row on an H200
     * (2026-11-30, timeline of bench_step_gpu) clusters on 112 and 128 SMs take 8.0 and 7.9 us against
     * 8.6 and 10.0 of the other form, on 96 and 80 SMs 10.1 and 10.9 against 8.3 and 9.8. */
    const bool is_narrow = 5 * n_blocks * n_parts < 4 * n_sms;
    if (n_parts == 0 || (a->max_rows <= BLOCK_NARROW_ROWS && is_narrow)) return OK;
    block_launch l;
    launch_init(&l, n_blocks, n_parts, (size_t)bytes, stream);
    *is_done = true;
    return cuda_check(e, cudaLaunchKernelEx(&l.config, exl3_block_kernel, p), "exl3 block launch");
}
