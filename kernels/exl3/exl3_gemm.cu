#include "kernels/exl3/exl3_gemm_kernel.cuh"
#include "kernels/exl3/exl3_gpu.h"
#include "kernels/exl3/exl3_launch.cuh"

static int exl3_gemm_check(const exl3_gpu_gemm_args *a, err *e) {
    const bool is_own = a->own != nullptr;
    if (a->max_tiles < 1 || a->max_out < 128 || a->max_out % 128 != 0 || a->tile_rows % 32 != 0 ||
        a->tile_rows < EXL3_GPU_SHORT_ROWS || a->tile_rows > EXL3_GPU_WIDEST_ROWS ||
        (is_own && (a->own->n_jobs < 1 || a->own->n_jobs > EXL3_GPU_OWN_JOBS)))
        return err_set(e, ERR_ARG, "exl3 gemm: %d tiles, %d outputs", a->max_tiles, a->max_out);
    return OK;
}

int exl3_gpu_gemm_tile_rows(int n_rows, int n_blocks, int n_sms, int is_sm90) {
    static const int rows[] = {EXL3_GPU_TILE_ROWS, EXL3_GPU_WIDE_ROWS, EXL3_GPU_WIDEST_ROWS};
    static const int costs[] = {118, 134, 155}; /* cycles of 64 inputs / 10 */
    int best = 0;
    long long least = 0;
    for (int i = 0; i < (is_sm90 ? 3 : 1); i++) {
        const long long tiles = (long long)((n_rows + rows[i] - 1) / rows[i]) * n_blocks;
        const long long cost = (tiles + n_sms - 1) / n_sms * costs[i];
        if (i > 0 && cost >= least) continue;
        least = cost;
        best = i;
    }
    return rows[best];
}

static exl3_gemm_params exl3_gemm_params_of(const exl3_gpu_gemm_args *a) {
    exl3_gemm_params p = {};
    p.powers = EXL3_POWERS;
    p.jobs = a->jobs;
    p.tiles = a->tiles;
    p.n_tiles = a->n_tiles;
    p.tile_rows = a->tile_rows;
    p.is_beside = a->is_beside;
    if (a->own != nullptr) p.own = *a->own;
    return p;
}

int exl3_gpu_gemm_rotate_run(const exl3_gpu_gemm_args *a, cudaStream_t stream, err *e) {
    int rc = exl3_gemm_check(a, e);
    if (rc != OK) return rc;
    const unsigned n_jobs = a->own != nullptr ? (unsigned)a->own->n_jobs : 1u;
    return exl3_launch(exl3_gemm_rotate_kernel,
        dim3((unsigned)a->tile_rows, (unsigned)a->max_tiles, n_jobs), EXL3_ROTATE_WARPS * 32, 0,
        exl3_gemm_params_of(a), stream, e);
}

/* Stages and slots of the ring: as many as fit beside what else a block and an SM hold. The limit set for the kernel is
 * always the same, since another context may set it before this one's launch. */
static int exl3_gemm_ring_of(
    const exl3_gpu_gemm_args *a, const void *kernel, exl3_gemm_params *p, err *e) {
    constexpr int SYSTEM_BYTES = 1024; /* of every block */
    int id = 0, most = 0, sm = 0, major = 0;
    cudaFuncAttributes f;
    int rc = cuda_check(e, cudaGetDevice(&id), "exl3 gemm");
    if (rc == OK)
        rc = cuda_check(
            e, cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, id), "exl3");
    if (rc == OK)
        rc = cuda_check(e,
            cudaDeviceGetAttribute(&sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, id), "exl3");
    if (rc == OK)
        rc = cuda_check(
            e, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, id), "exl3");
    if (rc == OK) rc = cuda_check(e, cudaFuncGetAttributes(&f, kernel), "exl3 gemm");
    if (rc == OK)
        rc = cuda_check(e,
            cudaFuncSetAttribute(
                kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most - (int)f.sharedSizeBytes),
            "exl3 gemm");
    if (rc != OK) return rc;
    const int n_blocks = a->tile_rows > EXL3_GPU_SHORT_ROWS ? 1 : 2;
    int room = sm / n_blocks - SYSTEM_BYTES;
    if (room > most) room = most;
    room -= (int)f.sharedSizeBytes;
    const int steps = major == 9 ? EXL3_GEMM_STEPS_SM90 : EXL3_GEMM_STEPS_OTHERS;
    p->stage_bytes = exl3_gemm_stage_bytes(a->max_k2, a->tile_rows, steps);
    for (p->n_slots = EXL3_GEMM_MAX_SLOTS; p->n_slots > EXL3_GEMM_MIN_SLOTS; p->n_slots--)
        if (exl3_gemm_shared_bytes(p->stage_bytes, a->tile_rows, p->n_slots) <= room) break;
    return OK;
}

template <int COLUMNS>
static int exl3_gemm_launch(const exl3_gpu_gemm_args *a, cudaStream_t stream, err *e) {
    exl3_gemm_params p = exl3_gemm_params_of(a);
    const int rc = exl3_gemm_ring_of(a, (const void *)exl3_gemm_kernel<COLUMNS>, &p, e);
    if (rc != OK) return rc;
    const int bytes = exl3_gemm_shared_bytes(p.stage_bytes, a->tile_rows, p.n_slots);
    const unsigned n_jobs = a->own != nullptr ? (unsigned)a->own->n_jobs : 1u;
    return exl3_launch(exl3_gemm_kernel<COLUMNS>,
        dim3((unsigned)(a->max_out / 128), (unsigned)a->max_tiles, n_jobs), EXL3_GEMM_WARPS * 32,
        (size_t)bytes, p, stream, e);
}

int exl3_gpu_gemm_run(const exl3_gpu_gemm_args *a, cudaStream_t stream, err *e) {
    const int rc = exl3_gemm_check(a, e);
    if (rc != OK) return rc;
    switch (a->tile_rows) {
    case EXL3_GPU_SHORT_ROWS:
        return exl3_gemm_launch<EXL3_GPU_SHORT_ROWS / 8>(a, stream, e);
    case EXL3_GPU_TILE_ROWS:
        return exl3_gemm_launch<EXL3_GPU_TILE_ROWS / 8>(a, stream, e);
    case EXL3_GPU_WIDE_ROWS:
        return exl3_gemm_launch<EXL3_GPU_WIDE_ROWS / 8>(a, stream, e);
    default:
        return exl3_gemm_launch<EXL3_GPU_WIDEST_ROWS / 8>(a, stream, e);
    }
}
