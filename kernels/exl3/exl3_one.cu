#include "kernels/exl3/exl3_one.h"

#include "kernels/exl3/exl3_launch.cuh"
#include "kernels/exl3/exl3_one_kernel.cuh"

/* One SM in so many is left to the kernel behind. */
enum { ONE_SPARE_ONE_IN = 32 };
enum { ONE_LEAST_SLICES = 32 }; /* of a CTA */

typedef struct one_device {
    int n_sms, room; /* shared memory a block may ask for beside its static one */
} one_device;

/* Limits of the device in use, read once. */
static int device_get(one_device *out, err *e) {
    static one_device known[64];
    int id = 0, n = 0, bytes = 0;
    int rc = cuda_check(e, cudaGetDevice(&id), "exl3 one row");
    if (rc != OK || id < 0 || id >= 64)
        return rc != OK ? rc : err_set(e, ERR_DEVICE, "exl3 one row: device %d", id);
    one_device *d = &known[id];
    if (d->n_sms == 0) {
        rc = cuda_check(
            e, cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, id), "exl3 one row");
        if (rc == OK)
            rc = cuda_check(e,
                cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, id),
                "exl3 one row");
        if (rc != OK) return rc;
        const int room = bytes - (int)sizeof(exl3_one_shared) - 1024;
        for (int i = 0; i < 2; i++) {
            rc = cuda_check(e,
                cudaFuncSetAttribute(i == 0 ? exl3_one_kernel<false> : exl3_one_kernel<true>,
                    cudaFuncAttributeMaxDynamicSharedMemorySize, room),
                "exl3 one row");
            if (rc != OK) return rc;
        }
        *d = {n, room};
    }
    *out = *d;
    return OK;
}

static bool has_loop(int k2) {
    return k2 == 4 || k2 == 6 || k2 == 8 || k2 == 10 || k2 == 12 || k2 == 16;
}

/* Slices of a job that its longest CTA gets, times what they cost. */
static int64_t cost_of(const exl3_gpu_matrix *m, int n_ctas) {
    const int n = m->in / 16 * (m->out / 64);
    return (int64_t)((n + n_ctas - 1) / n_ctas) * exl3_gpu_unit_cost(m->k2, 1);
}

/* CTAs for every job, so that the longest takes as little as can be. */
static void deal_ctas(const exl3_gpu_own_list *own, int n_ctas, int *out) {
    for (int i = 0; i < own->n_jobs; i++)
        out[i] = 1;
    for (int left = n_ctas - own->n_jobs; left > 0; left--) {
        int most = 0;
        for (int i = 1; i < own->n_jobs; i++)
            if (cost_of(&own->jobs[i].matrix, out[i]) > cost_of(&own->jobs[most].matrix, out[most]))
                most = i;
        const exl3_gpu_matrix *m = &own->jobs[most].matrix;
        if (m->in / 16 * (m->out / 64) < (out[most] + 1) * ONE_LEAST_SLICES) return;
        out[most]++;
    }
}

/* One job of n_ctas CTAs; false when it is not of this form. */
static bool job_init(exl3_one_job *to, const exl3_gpu_job *from, int n_ctas, bool rotates) {
    const exl3_gpu_matrix *m = &from->matrix;
    const int n_slices = m->in / 16 * (m->out / 64), strip = m->in / 16;
    if (from->n_rows != 1 || from->row_cap != 1 || !has_loop(m->k2) ||
        (rotates && m->in > EXL3_ONE_HELD * EXL3_WARPS * 128))
        return false;
    to->words = m->words, to->suh = m->suh, to->svh = m->svh, to->bias = m->bias;
    to->x = from->x, to->operand = from->operand, to->scale = from->scale, to->y = from->y;
    to->share = n_slices / n_ctas, to->n_longer = n_slices % n_ctas;
    to->strip_slices = strip;
    to->per_strip = (uint32_t)((0xffffffffull + (uint64_t)strip) / (uint64_t)strip);
    to->k2 = m->k2, to->is_bf16 = from->is_bf16;
    const int most = to->share + (to->n_longer > 0), of_warp = (most + EXL3_WARPS - 1) / EXL3_WARPS;
    return to->share > 0 &&
           of_warp / EXL3_ONE_CHUNK + (of_warp - 1) / strip + 2 <= EXL3_ONE_CHUNKS &&
           (most - 1) / (2 * strip) + 2 <= EXL3_ONE_BLOCKS &&
           2 * strip / to->share + 1 <= EXL3_ONE_PARTS;
}

static int exl3_one_plan(const exl3_gpu_rows_args *a, bool rotates, int n_aside, exl3_one_params *p,
    size_t *bytes, err *e) {
    const exl3_gpu_own_list *own = a->own;
    one_device d = {};
    int n_ctas[EXL3_GPU_OWN_JOBS], operand_bytes = 0;
    *p = exl3_one_params{};
    *bytes = 0;
    if (own == nullptr || own->n_jobs < 1 || a->max_rows != 1) return OK;
    const int rc = device_get(&d, e);
    if (rc != OK) return rc;
    const int spare = d.n_sms / ONE_SPARE_ONE_IN,
              most = d.n_sms - (n_aside > spare ? n_aside : spare);
    deal_ctas(own, most < EXL3_GPU_MAX_SLOTS ? most : EXL3_GPU_MAX_SLOTS, n_ctas);
    for (int i = 0; i < own->n_jobs; i++) {
        exl3_one_job *j = &p->jobs[i];
        const exl3_gpu_matrix *m = &own->jobs[i].matrix;
        if (!job_init(j, &own->jobs[i], n_ctas[i], rotates)) return OK;
        j->first_cta = p->n_ctas;
        p->n_ctas += n_ctas[i];
        const int words = (j->share + 1) * 64 * m->k2;
        if (words > p->words_bytes) p->words_bytes = words;
        if (2 * m->in > operand_bytes) operand_bytes = 2 * m->in;
    }
    p->words_bytes = (p->words_bytes + 127) / 128 * 128;
    int need = p->words_bytes + operand_bytes;
    if (need < EXL3_ONE_PARTS * 1024) need = EXL3_ONE_PARTS * 1024;
    if (need > d.room) return OK;
    p->powers = EXL3_POWERS;
    p->n_jobs = own->n_jobs;
    p->slots = a->scratch.sums;
    *bytes = (size_t)need;
    return OK;
}

/* rows: of the jobs, NULL: as they are, or their operands. */
static int run(const exl3_gpu_rows_args *a, bool rotates, const exl3_one_rows *rows,
    cudaStream_t stream, int *is_done, err *e) {
    exl3_one_params p;
    size_t bytes;
    const int n_aside = rows != nullptr && rows->aside != nullptr ? rows->aside->n_tasks : 0;
    const int rc = exl3_one_plan(a, rotates, n_aside, &p, &bytes, e);
    *is_done = rc == OK && bytes > 0;
    if (!*is_done) return rc;
    for (int i = 0; rows != nullptr && i < p.n_jobs; i++) {
        const exl3_one_row *r = &rows->of_job[i];
        p.jobs[i].x = r->x, p.jobs[i].norm = r->norm, p.jobs[i].row_y = r->y,
        p.jobs[i].eps = r->eps;
    }
    if (n_aside > 0) p.aside = *rows->aside;
    p.is_bf16 = rows != nullptr && rows->is_bf16;
    return exl3_launch(rotates ? exl3_one_kernel<true> : exl3_one_kernel<false>,
        dim3((unsigned)(p.n_ctas + n_aside)), EXL3_WARPS * 32, bytes, p, stream, e);
}

int exl3_one_run(
    const exl3_gpu_rows_args *a, int rotates, cudaStream_t stream, int *is_done, err *e) {
    return run(a, rotates != 0, nullptr, stream, is_done, e);
}

int exl3_one_run_rows(const exl3_gpu_rows_args *a, const exl3_one_rows *rows, cudaStream_t stream,
    int *is_done, err *e) {
    return run(a, true, rows, stream, is_done, e);
}

int exl3_one_fits(const exl3_gpu_rows_args *a, int n_aside, int *fits, err *e) {
    exl3_one_params p;
    size_t bytes;
    const int rc = exl3_one_plan(a, true, n_aside, &p, &bytes, e);
    *fits = rc == OK && bytes > 0;
    return rc;
}
