#include "kernels/exl3/exl3_groups_kernel.cuh"
#include "kernels/exl3/exl3_launch.cuh"

/* 20 warps take 4 rows of up to 5120 inputs, 10 warps 8 rows of 1280 (gate and up of 1280) or 4 of 2560. */
using exl3_group_up = exl3_group_form<4, 20, false>;
using exl3_group_down = exl3_group_form<8, 10, true>;
using exl3_group_wide_down = exl3_group_form<4, 10, true>;

int exl3_gpu_groups_fit(int in, int is_down) {
    return in % 128 == 0 && in <= (is_down ? exl3_group_wide_down::MAX_IN : exl3_group_up::MAX_IN);
}

template <class F, int PER_SM>
static int exl3_groups_launch(const exl3_group_params &p, int n_sms, cudaStream_t stream, err *e) {
    const int bytes = F::shared_bytes(p.in);
    auto *kernel = exl3_groups_kernel<F, PER_SM>;
    const int rc = cuda_check(e,
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
            F::shared_bytes(F::MAX_IN)), /* always the same: another context may set it meanwhile */
        "exl3 groups");
    if (rc != OK) return rc;
    const int n_teams = (n_sms * PER_SM + F::PARTS - 1) / F::PARTS;
    return exl3_launch(
        kernel, dim3((unsigned)(n_teams * F::PARTS)), F::THREADS, (size_t)bytes, p, stream, e);
}

int exl3_gpu_groups_run(const exl3_gpu_groups_args *a, cudaStream_t stream, err *e) {
    const int is_down = a->up != nullptr;
    if (!exl3_gpu_groups_fit(a->in, is_down) || a->n_sms < 1)
        return err_set(e, ERR_ARG, "exl3 groups: %d inputs, %d SMs", a->in, a->n_sms);
    exl3_group_params p = {};
    p.jobs = a->jobs;
    p.groups = a->groups;
    p.n_groups = a->n_groups;
    p.tile_rows = a->tile_rows;
    p.in = a->in;
    p.up = a->up;
    p.weight = a->weight;
    p.limit = a->limit;
    p.is_bf16 = a->is_bf16;
    if (!is_down) return exl3_groups_launch<exl3_group_up, 1>(p, a->n_sms, stream, e);
    if (a->in <= exl3_group_down::MAX_IN)
        return exl3_groups_launch<exl3_group_down, 2>(p, a->n_sms, stream, e);
    return exl3_groups_launch<exl3_group_wide_down, 2>(p, a->n_sms, stream, e);
}
