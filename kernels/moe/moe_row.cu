#include "kernels/moe/moe_launch.cuh"
#include "kernels/moe/moe_row_kernel.cuh"

/* More stages only delay the first ones (H200, 2026-12-01: 34.3 us with two, 34.4 with three). */
enum { ROW_STAGES = 2 };

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
    static moe_device known[64];
    moe_device d = {};
    moe_row_params p = {};
    const int slots = a->n_used + (a->has_shared ? 1 : 0);
    *is_done = false;
    int rc = moe_device_get(known, moe_row_kernel, (int)sizeof(moe_row_shared), &d, e);
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
    return moe_launch(moe_row_kernel, d.n_sms, EXL3_WARPS * 32, bytes, p, stream, e);
}
