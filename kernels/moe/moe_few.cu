#include "kernels/moe/moe_few_kernel.cuh"
#include "kernels/moe/moe_launch.cuh"

/* Parts of matrices a block may touch: a share of n of them, of which one may cost 4.25 times another; a quarter of the
 * blocks may be the shared expert's. */
static int most_segments(int n, int n_ctas) {
    const int ctas = n_ctas - n_ctas / 4;
    return (n * 68 + 16 * ctas - 1) / (16 * ctas) + 1;
}

/* Whether sizes and device suit this form. */
static bool fits(const moe_few_args *a, const moe_device *d) {
    const int rows = a->n_tokens * (a->n_used + a->has_shared);
    const int jobs = a->n_tokens * a->n_used + a->has_shared;
    return d->is_cooperative && d->n_sms <= MOE_ROW_MAX_BLOCKS && a->n_tokens <= MOE_FEW_TOKENS &&
           rows <= MOE_FEW_PAIRS && jobs < MOE_FEW_PAIRS &&
           a->n_used + a->has_shared <= MOE_ROW_SLOTS && a->d % 128 == 0 && a->n_ff % 128 == 0 &&
           a->d <= MOE_FEW_WIDTH && a->n_ff <= MOE_FEW_WIDTH && rows * a->n_ff <= MOE_FEW_HIDDEN &&
           most_segments(2 * jobs, d->n_sms) <= MOE_FEW_SEGMENTS;
}

int moe_few_run(const moe_few_args *a, cudaStream_t stream, bool *is_done, err *e) {
    static moe_device known[64];
    moe_device d = {};
    moe_few_params p = {};
    *is_done = false;
    int rc = moe_device_get(known, moe_few_kernel, (int)sizeof(moe_few_shared), &d, e);
    if (rc != OK || !fits(a, &d)) return rc;
    p.powers = EXL3_POWERS;
    p.a = *a;
    p.slot_bytes = moe_few_slot_bytes(a->max_k2);
    p.stage = 6 * a->d > 4 * a->n_ff ? 6 * a->d : 4 * a->n_ff;
    const int ring = MOE_FEW_WARPS * MOE_FEW_STAGES * p.slot_bytes;
    p.room = (d.room - ring - p.stage) / 128 * 128;
    /* the rows of any job, and the parts of the outputs at the end */
    const int rows = a->n_tokens * moe_few_row_bytes(a->d > a->n_ff ? a->d : a->n_ff);
    const int parts = moe_few_ends(*a, d.n_sms) * MOE_ROW_SLOTS * (int)sizeof(float4) * 32;
    if (p.room < rows || p.room < parts) return OK;
    *is_done = true;
    return moe_launch(
        moe_few_kernel, d.n_sms, MOE_FEW_WARPS * 32, ring + p.room + p.stage, p, stream, e);
}
