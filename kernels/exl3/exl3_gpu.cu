#include "kernels/exl3/exl3_gpu.h"

#include "kernels/exl3/exl3_block.h"
#include "kernels/exl3/exl3_launch.cuh"
#include "kernels/exl3/exl3_one.h"
#include "kernels/exl3/exl3_rows_kernel.cuh"

/* Limits of the device in use, read once. */
struct exl3_device {
    int n_sms, shared_bytes;
};

static int exl3_device_get(exl3_device *out, err *e) {
    static exl3_device known[64];
    int id = 0;
    int rc = cuda_check(e, cudaGetDevice(&id), "exl3: reading the device");
    if (rc != OK) return rc;
    if (id < 0 || id >= 64)
        return err_set(e, ERR_DEVICE, "exl3: device number %d is out of range", id);
    if (known[id].n_sms == 0) {
        int n = 0, bytes = 0;
        rc = cuda_check(e, cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, id), "exl3");
        if (rc != OK) return rc;
        rc = cuda_check(
            e, cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id), "exl3");
        if (rc != OK) return rc;
        known[id] = {n, bytes};
    }
    *out = known[id];
    return OK;
}

/* One SM in so many is left to the kernel behind a dense run, a small one: it is set up and has read
 * its weights when the sums are there. */
enum { EXL3_SPARE_ONE_IN = 32 };

/* Rows of strips a CTA sums in shared memory, wanted beside a ring of three stages with one row and with
 * more (a CTA of down then has 24 strips of six tokens' experts, one of them with every token). */
enum { EXL3_FEW_LOCAL = 16, EXL3_MANY_LOCAL = 160 };

/* Ring and local sums that fit, and the launch. */
template <int EPILOGUE>
static int exl3_rows_launch(
    exl3_rows_params p, int max_rows, int max_stage_bytes, cudaStream_t stream, err *e) {
    exl3_device d;
    int rc = exl3_device_get(&d, e);
    if (rc != OK) return rc;
    constexpr int STATIC_BYTES = 8 * 1024; /* descriptors and barriers, rounded up */
    const int room = d.shared_bytes - STATIC_BYTES;
    p.powers = EXL3_POWERS;
    p.slot_bytes = (max_stage_bytes + 127) / 128 * 128;
    const int row_bytes = 128 * (int)sizeof(int);
    const int rows_wanted = max_rows == 1 ? EXL3_FEW_LOCAL : EXL3_MANY_LOCAL;
    for (p.n_stages = 3; p.n_stages > 1; p.n_stages--)
        if (EXL3_WARPS * p.n_stages * p.slot_bytes + rows_wanted * row_bytes <= room) break;
    const int ring_bytes = EXL3_WARPS * p.n_stages * p.slot_bytes;
    if (ring_bytes > room)
        return err_set(e, ERR_LIMIT, "exl3 rows: a ring of %d bytes does not fit in %d bytes",
            ring_bytes, room);
    p.max_local = (room - ring_bytes) / row_bytes;
    if (p.max_local > EXL3_MOST_LOCAL) p.max_local = EXL3_MOST_LOCAL;
    const int bytes = ring_bytes + p.max_local * row_bytes;
    /* Always the same: another context may set it before this one's launch. */
    rc = cuda_check(e,
        cudaFuncSetAttribute(
            exl3_rows_kernel<EPILOGUE>, cudaFuncAttributeMaxDynamicSharedMemorySize, room),
        "exl3 rows");
    if (rc != OK) return rc;
    const int n_spare = EPILOGUE == EXL3_DENSE ? d.n_sms / EXL3_SPARE_ONE_IN : 0;
    return exl3_launch(exl3_rows_kernel<EPILOGUE>, dim3((unsigned)(d.n_sms - n_spare)),
        EXL3_WARPS * 32, (size_t)bytes, p, stream, e);
}

static int exl3_rows_check(int max_rows, int max_stage_bytes, err *e) {
    if (max_rows < 1 || max_rows > EXL3_GPU_MAX_ROWS)
        return err_set(e, ERR_ARG, "exl3 rows: jobs of up to %d rows, limit %d", max_rows,
            (int)EXL3_GPU_MAX_ROWS);
    if (max_stage_bytes < 1 ||
        max_stage_bytes > exl3_gpu_stage_bytes(EXL3_MAX_K2, EXL3_GPU_MAX_ROWS))
        return err_set(e, ERR_ARG, "exl3 rows: stages of %d bytes", max_stage_bytes);
    return OK;
}

int exl3_gpu_rows_run(const exl3_gpu_rows_args *a, cudaStream_t stream, err *e) {
    int rc = exl3_rows_check(a->max_rows, a->max_stage_bytes, e);
    if (rc != OK) return rc;
    if (a->list == nullptr) {
        int is_one = 0;
        rc = exl3_one_run(a, 0, stream, &is_one, e);
        if (rc != OK || is_one) return rc;
        bool is_done = false;
        exl3_device d;
        rc = exl3_device_get(&d, e);
        if (rc == OK) rc = exl3_block_run(a, d.n_sms, stream, &is_done, e);
        if (rc != OK || is_done) return rc;
    }
    exl3_rows_params p = {};
    p.list = a->list;
    if (a->list == nullptr) p.own = *a->own;
    p.sums = a->scratch.sums;
    p.counters = a->scratch.counters;
    p.has_early_list = a->list == nullptr || a->has_early_list;
    return exl3_rows_launch<EXL3_DENSE>(p, a->max_rows, a->max_stage_bytes, stream, e);
}

int exl3_gpu_experts_run(const exl3_gpu_experts_args *a, cudaStream_t stream, err *e) {
    int rc = exl3_rows_check(a->max_rows, a->max_stage_bytes, e);
    if (rc != OK) return rc;
    exl3_rows_params p = {};
    p.list = a->gate_up;
    p.sums = a->scratch.sums;
    p.counters = a->scratch.counters;
    p.down = a->down;
    p.hidden = a->hidden;
    p.row_max = a->row_max;
    p.row_counter = a->row_counter;
    p.block_counter = a->block_counter;
    p.weight = a->weight;
    p.part = a->part;
    p.pair_of = a->pair_of;
    p.y = a->y;
    p.n_tokens = a->n_tokens;
    p.n_choices = a->n_choices;
    p.limit = a->limit;
    p.is_bf16 = a->is_bf16;
    p.has_early_list = a->has_early_list;
    rc = exl3_rows_launch<EXL3_GATE_UP>(p, a->max_rows, a->max_stage_bytes, stream, e);
    if (rc != OK) return rc;
    p.list = a->down;
    p.has_early_list = 1;
    return exl3_rows_launch<EXL3_DOWN>(p, a->max_rows, a->max_stage_bytes, stream, e);
}
