#include "kernels/moe/moe_kernel.cuh"

#include "kernels/moe/moe_few.h"

/* What moe_args.table points to: host memory, freed with the context's slabs'
 * owner. */
typedef struct moe_table {
    const moe_expert *experts; /* device, [n + 1] */
    bool is_packed, is_plain;  /* all of them */
    int max_k2;
} moe_table;

static void note_form(moe_table *t, const gpu_matrix *m) {
    const bool is_packed = m->packed.words != NULL;
    t->is_packed = t->is_packed && is_packed;
    t->is_plain = t->is_plain && !is_packed;
    if (is_packed && m->packed.k2 > t->max_k2) t->max_k2 = m->packed.k2;
}

int moe_cuda_table_new(kernel_context *k, const expert_weights *experts, int n,
    const expert_weights *shared, void **out, err *e) {
    if (n > MOE_MAX_EXPERTS)
        return err_set(
            e, ERR_LIMIT, "%d experts; the GPU engine has room for %d", n, (int)MOE_MAX_EXPERTS);
    const size_t bytes = (size_t)(n + 1) * sizeof(moe_expert);
    moe_expert *host = (moe_expert *)mem_alloc(bytes);
    moe_table t = {NULL, true, true, 2};
    for (int i = 0; i <= n; i++) {
        const expert_weights *x = i < n ? &experts[i] : shared;
        host[i] = moe_expert{
            linear_gpu_matrix(&x->w1), linear_gpu_matrix(&x->w3), linear_gpu_matrix(&x->w2)};
        const bool is_packed = host[i].w1.packed.words != NULL;
        note_form(&t, &host[i].w1);
        note_form(&t, &host[i].w3);
        note_form(&t, &host[i].w2);
        if (is_packed != (host[i].w3.packed.words != NULL) ||
            is_packed != (host[i].w2.packed.words != NULL)) {
            mem_free(host);
            return err_set(e, ERR_UNSUPPORTED,
                "expert %d mixes packed and plain matrices, which the GPU "
                "engine cannot run",
                i);
        }
    }
    void *device = cuda_slab_take(cuda_of(k), bytes);
    int rc = device == NULL ? cuda_no_memory(e, "a table of experts", bytes)
                            : cuda_upload(device, host, bytes, "table of experts", e);
    mem_free(host);
    if (rc != OK) return rc;
    t.experts = (const moe_expert *)device;
    moe_table *kept = (moe_table *)cuda_keep(cuda_of(k), sizeof(*kept));
    *kept = t;
    *out = kept;
    return OK;
}

static void *carve(char **at, size_t bytes) {
    void *p = *at;
    *at += (bytes + 255) & ~(size_t)255;
    return p;
}

static size_t lay_out(moe_buffers *b, char *base, const moe_args *a) {
    char *at = base;
    const size_t n = (size_t)a->n_rows, used = (size_t)a->n_used + 1, pairs = n * used;
    const size_t d = (size_t)a->d, ff = (size_t)a->n_ff, experts = (size_t)a->n_experts + 1;
    const size_t jobs = pairs < experts ? pairs : experts;
    const size_t tiles = pairs / EXL3_GPU_SHORT_ROWS + jobs + 1;
    const size_t cap = pairs + 8 * jobs; /* rows of operands: every job is rounded up */
    b->pair_row = (int32_t *)carve(&at, pairs * 4);
    b->pair_weight = (float *)carve(&at, pairs * 4);
    b->row_pair = (int32_t *)carve(&at, pairs * 4);
    b->gate = (float *)carve(&at, pairs * ff * 4);
    b->up = (float *)carve(&at, pairs * ff * 4);
    b->down = (float *)carve(&at, pairs * d * 4);
    b->packed_in = (exl3_gpu_job *)carve(&at, 2 * jobs * sizeof(exl3_gpu_job));
    b->packed_out = (exl3_gpu_job *)carve(&at, jobs * sizeof(exl3_gpu_job));
    b->plain_in = (plain_job *)carve(&at, 2 * jobs * sizeof(plain_job));
    b->plain_out = (plain_job *)carve(&at, jobs * sizeof(plain_job));
    b->tiles = (exl3_gpu_tile *)carve(&at, 2 * tiles * sizeof(exl3_gpu_tile));
    b->down_tiles = (exl3_gpu_tile *)carve(&at, tiles * sizeof(exl3_gpu_tile));
    for (int i = 0; i < MOE_TILE_LISTS; i++)
        b->part_tiles[i] = (exl3_gpu_tile *)carve(
            &at, (i < MOE_TILE_CLASSES ? 2 : 1) * tiles * sizeof(exl3_gpu_tile));
    b->groups = (exl3_gpu_tile *)carve(&at, (cap / 8) * sizeof(exl3_gpu_tile));
    b->n_tiles = (int32_t *)carve(&at, (3 + MOE_TILE_LISTS) * 4);
    b->operand_in = (uint32_t *)carve(&at, 2 * cap * d * 2);
    b->operand_out = (uint32_t *)carve(&at, cap * ff * 2);
    b->scale_in = (exl3_gpu_scale *)carve(&at, 2 * cap * sizeof(exl3_gpu_scale));
    b->scale_out = (exl3_gpu_scale *)carve(&at, cap * sizeof(exl3_gpu_scale));
    b->few_in = (exl3_gpu_list *)carve(&at, 16 + EXL3_GPU_MAX_JOBS * sizeof(exl3_gpu_job));
    b->few_out = (exl3_gpu_list *)carve(&at, 16 + EXL3_GPU_MAX_JOBS * sizeof(exl3_gpu_job));
    return (size_t)(at - base);
}

/* Counters that must stay zero from run to run: at the start of the work space,
 * in places that depend on nothing, since layers of different shapes share the
 * work space. */
struct moe_zeros {
    uint32_t row_max[EXL3_GPU_MAX_JOBS];
    int32_t row_counter[MOE_MAX_EXPERTS + 1];
    int32_t block_counter[EXL3_MAX_IN / 128];
};
constexpr size_t MOE_ZERO_BYTES = (sizeof(moe_zeros) + 255) / 256 * 256;

size_t moe_cuda_work_bytes(int n_rows, int n_experts, int n_used, int d, int n_ff) {
    moe_args a = {};
    a.n_rows = n_rows;
    a.n_experts = n_experts;
    a.n_used = n_used;
    a.d = d;
    a.n_ff = n_ff;
    moe_buffers b;
    return lay_out(&b, (char *)256, &a) + MOE_ZERO_BYTES;
}

/* Most jobs of down in the fused form: every expert has one that is not full.
 */
static int few_jobs(const moe_args *a) {
    const int pairs = a->n_rows * (a->n_used + 1);
    const int most = a->n_experts + 1 + pairs / EXL3_GPU_MAX_ROWS;
    return pairs < most ? pairs : most;
}

static bool fits_few(const moe_args *a, const moe_table *t) {
    const size_t pairs = (size_t)a->n_rows * (size_t)(a->n_used + 1);
    const size_t sums = pairs * (2 * (size_t)a->n_ff + (size_t)a->d);
    const size_t counters = pairs * (size_t)(a->n_ff / 128 + a->d / 128);
    return t->is_packed && a->n_rows <= MOE_FEW_ROWS && pairs <= EXL3_GPU_MAX_JOBS &&
           a->d <= EXL3_MAX_IN && 2 * few_jobs(a) <= EXL3_GPU_MAX_JOBS &&
           sums <= EXL3_GPU_MAX_SUMS && counters <= EXL3_GPU_MAX_COUNTERS;
}

static void run_few(
    kernel_context *k, const moe_args *a, const moe_buffers *b, const moe_table *t) {
    cuda_device *d = cuda_of(k);
    const int rows = a->n_rows < EXL3_GPU_MAX_ROWS ? a->n_rows : EXL3_GPU_MAX_ROWS;
    const int cap = rows <= 2 ? rows : rows <= 4 ? 4 : 8;
    const exl3_gpu_rotate_args rotate = {b->few_in, NULL, 2 * few_jobs(a), rows};
    k->rc = exl3_gpu_rotate_run(&rotate, d->stream, &k->error);
    if (k->rc != OK) return;
    exl3_gpu_experts_args x = {};
    x.gate_up = b->few_in;
    x.down = b->few_out;
    x.scratch = {d->sums, d->counters};
    x.hidden = b->gate;
    x.row_max = b->row_max;
    x.row_counter = b->row_counter;
    x.block_counter = b->block_counter;
    x.weight = b->pair_weight;
    x.part = b->down;
    x.pair_of = b->row_pair;
    x.y = a->out;
    x.n_tokens = a->n_rows;
    x.n_choices = a->n_used + 1;
    x.limit = a->limit;
    x.max_rows = rows;
    x.max_stage_bytes = exl3_gpu_stage_bytes(t->max_k2, cap);
    x.is_bf16 = k->is_bf16;
    x.has_early_list = 1; /* made before the rotation */
    k->rc = exl3_gpu_experts_run(&x, d->stream, &k->error);
}

/* One token: no lists. False: its experts do not suit that form. */
static bool run_row(kernel_context *k, const moe_args *a, const moe_table *t) {
    const cuda_device *d = cuda_of(k);
    bool is_done = false;
    if (a->n_rows != 1 || !t->is_packed || ((uintptr_t)a->x & 15) != 0) return false;
    moe_row_args r = {};
    r.experts = t->experts;
    r.expert = a->expert;
    r.weight = a->weight;
    r.x = a->x;
    r.y = a->out;
    r.sums = d->sums;
    r.link = d->row_link;
    r.n_used = a->n_used;
    r.n_experts = a->n_experts;
    r.d = a->d;
    r.n_ff = a->n_ff;
    r.has_shared = 1;
    r.max_k2 = t->max_k2;
    r.is_bf16 = k->is_bf16;
    r.limit = a->limit;
    k->rc = moe_row_run(&r, d->stream, &is_done, &k->error);
    return is_done || k->rc != OK;
}

/* A few tokens: no lists either. False: their experts do not suit that form. */
static bool run_at_once(kernel_context *k, const moe_args *a, const moe_table *t) {
    const cuda_device *d = cuda_of(k);
    const size_t pairs = (size_t)a->n_rows * (size_t)(a->n_used + 1);
    bool is_done = false;
    if (a->n_rows < 2 || a->n_rows > MOE_FEW_TOKENS || !t->is_packed || d->few_link == NULL ||
        ((uintptr_t)a->x & 15) != 0 ||
        pairs * (2 * (size_t)a->n_ff + (size_t)a->d) > EXL3_GPU_MAX_SUMS)
        return false;
    moe_few_args f = {};
    f.experts = t->experts;
    f.expert = a->expert;
    f.weight = a->weight;
    f.x = a->x;
    f.y = a->out;
    f.sums = d->sums;
    f.link = d->few_link;
    f.n_tokens = a->n_rows;
    f.n_used = a->n_used;
    f.n_experts = a->n_experts;
    f.d = a->d;
    f.n_ff = a->n_ff;
    f.has_shared = 1;
    f.max_k2 = t->max_k2;
    f.is_bf16 = k->is_bf16;
    f.limit = a->limit;
    k->rc = moe_few_run(&f, d->stream, &is_done, &k->error);
    return is_done || k->rc != OK;
}

/* Rows of a tile. A stage takes about 840, 1180, 1340 and 1550 cycles with 32 (two blocks an SM), 64, 96 and 128 rows (H200,
 * 2026-12-01), and what is left of an expert behind full tiles of 128 is a tile of the least rows that hold it. With these
 * no other size takes less from a mean of 16 rows on, be all experts alike or their rows as the rank's inverse. */
static int tile_rows(const cuda_device *d, const moe_args *a, const moe_table *t) {
    const int mean = a->n_rows * a->n_used / a->n_experts;
    if (t->is_plain) return EXL3_GPU_TILE_ROWS;
    return d->is_sm90 && mean >= 16 ? EXL3_GPU_WIDEST_ROWS : EXL3_GPU_SHORT_ROWS;
}

/* Rows of the jobs as operands: gate and up from one read of a row, down with its activation. */
static void run_groups(
    kernel_context *k, const moe_args *a, const moe_buffers *b, int tile_rows, bool is_down) {
    cuda_device *d = cuda_of(k);
    exl3_gpu_groups_args g = {};
    g.jobs = is_down ? b->packed_out : b->packed_in;
    g.groups = b->groups;
    g.n_groups = b->n_tiles + 2 + MOE_TILE_LISTS;
    g.in = is_down ? a->n_ff : a->d;
    g.tile_rows = tile_rows;
    g.n_sms = d->n_sms;
    if (is_down) {
        g.up = b->up;
        g.weight = b->pair_weight;
        g.limit = a->limit;
        g.is_bf16 = k->is_bf16;
    }
    k->rc = exl3_gpu_groups_run(&g, d->stream, &k->error);
}

/* The products of a list of jobs, class by class, the longest first; those behind it fill its last wave. */
static void run_products(
    kernel_context *k, const moe_buffers *b, exl3_gpu_gemm_args g, int n_jobs, bool is_down) {
    static const int rows[MOE_TILE_CLASSES] = {
        EXL3_GPU_WIDEST_ROWS, EXL3_GPU_WIDE_ROWS, EXL3_GPU_TILE_ROWS, EXL3_GPU_SHORT_ROWS};
    const int n = g.tile_rows == EXL3_GPU_WIDEST_ROWS ? MOE_TILE_CLASSES : 1;
    for (int i = 0; i < n && k->rc == OK; i++) {
        const int list = (is_down ? MOE_TILE_CLASSES : 0) + i;
        g.tiles = b->part_tiles[list];
        g.n_tiles = b->n_tiles + 2 + list;
        if (i > 0) { /* one of a job at most */
            g.tile_rows = rows[i];
            g.max_tiles = n_jobs;
            g.is_beside = 1;
        }
        k->rc = exl3_gpu_gemm_run(&g, cuda_of(k)->stream, &k->error);
    }
}

/* Input jobs (gate and up) or output jobs (down), whichever forms there are. */
static void run_linears(
    kernel_context *k, const moe_args *a, const moe_buffers *b, const moe_table *t, bool is_down) {
    cuda_device *d = cuda_of(k);
    const int rows = tile_rows(d, a, t);
    const int pairs = a->n_rows * (a->n_used + 1);
    const int jobs = pairs < a->n_experts + 1 ? pairs : a->n_experts + 1;
    const int tiles = (pairs / rows + jobs) * (is_down ? 1 : 2);
    const int out = is_down ? a->d : a->n_ff;
    if (t->is_plain) {
        plain_args p = {};
        p.jobs = is_down ? b->plain_out : b->plain_in;
        p.tiles = is_down ? b->down_tiles : b->tiles;
        p.n_tiles = b->n_tiles + (is_down ? 1 : 0);
        linear_plain_run(k, &p, a->n_rows, tiles, out);
        return;
    }
    exl3_gpu_gemm_args g = {};
    g.jobs = is_down ? b->packed_out : b->packed_in;
    g.tiles = is_down ? b->down_tiles : b->tiles;
    g.n_tiles = b->n_tiles + (is_down ? 1 : 0);
    g.max_tiles = tiles;
    g.max_out = out;
    g.max_k2 = t->max_k2;
    g.tile_rows = rows;
    if (exl3_gpu_groups_fit(is_down ? a->n_ff : a->d, is_down)) {
        run_groups(k, a, b, rows, is_down);
    } else {
        k->rc = exl3_gpu_gemm_rotate_run(&g, d->stream, &k->error);
    }
    if (k->rc == OK) run_products(k, b, g, jobs * (is_down ? 1 : 2), is_down);
}

/* A launch of the plan by a cluster of n_parts blocks; one block is none. */
typedef struct plan_launch {
    cudaLaunchConfig_t config;
    cudaLaunchAttribute attributes[2];
} plan_launch;

static void plan_launch_init(plan_launch *l, int n_parts, cudaStream_t s) {
    *l = plan_launch{};
    l->config.gridDim = dim3((unsigned)n_parts);
    l->config.blockDim = dim3(MOE_PLAN_BLOCK);
    l->config.stream = s;
    l->attributes[0].id = cudaLaunchAttributeClusterDimension;
    l->attributes[0].val.clusterDim.x = (unsigned)n_parts;
    l->attributes[0].val.clusterDim.y = l->attributes[0].val.clusterDim.z = 1;
    l->attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    l->attributes[1].val.programmaticStreamSerializationAllowed = 1;
    l->config.attrs = n_parts > 1 ? l->attributes : l->attributes + 1;
    l->config.numAttrs = n_parts > 1 ? 2 : 1;
}

/* Pairs from which on a cluster makes the plan, above those of recorded steps; its blocks, of which every device allows
 * eight, if it has room for them. */
enum { PLAN_MANY_PAIRS = 2048, PLAN_PARTS = 8 };

static int plan_parts(int id, const moe_args *a) {
    static int known[64]; /* 1: no room, 2: room */
    if (a->n_rows * a->n_used < PLAN_MANY_PAIRS || id < 0 || id >= 64) return 1;
    if (known[id] == 0) {
        plan_launch l;
        int n = 0;
        plan_launch_init(&l, PLAN_PARTS, NULL);
        l.config.numAttrs = 1;
        if (cudaOccupancyMaxActiveClusters(&n, moe_plan_kernel, &l.config) != cudaSuccess) {
            (void)cudaGetLastError();
            n = 0;
        }
        known[id] = n > 0 ? 2 : 1;
    }
    return known[id] == 2 ? PLAN_PARTS : 1;
}

static void run_plan(kernel_context *k, const moe_plan_args *p) {
    plan_launch l;
    plan_launch_init(&l, plan_parts(cuda_of(k)->id, &p->a), cuda_of(k)->stream);
    k->rc = cuda_check(&k->error, cudaLaunchKernelEx(&l.config, moe_plan_kernel, *p), "moe plan");
}

static void run_sum(kernel_context *k, const moe_args *a, const moe_buffers *b) {
    const bool is_wide = a->d % 4 == 0 && ((uintptr_t)a->out & 15) == 0;
    const int n = is_wide ? a->d / 4 : a->d, used = a->n_used + 1;
    const dim3 grid((unsigned)a->n_rows, (unsigned)((n + MOE_SUM_BLOCK - 1) / MOE_SUM_BLOCK));
    if (is_wide) {
        CUDA_RUN(k, "moe sum", moe_sum_kernel<float4>, grid, MOE_SUM_BLOCK, 0, (float4 *)a->out,
            (const float4 *)b->down, b->row_pair, used, n);
    } else {
        CUDA_RUN(k, "moe sum", moe_sum_kernel<float>, grid, MOE_SUM_BLOCK, 0, a->out, b->down,
            b->row_pair, used, n);
    }
}

void moe_cuda(kernel_context *k, const moe_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    const moe_table *t = (const moe_table *)a->table;
    if (t == NULL || (!t->is_packed && !t->is_plain)) {
        k->rc = err_set(&k->error, ERR_UNSUPPORTED,
            "a layer with packed and plain experts cannot run on the GPU");
        return;
    }
    moe_plan_args p = {};
    p.a = *a;
    moe_zeros *zeros = (moe_zeros *)a->work;
    (void)lay_out(&p.b, (char *)a->work + MOE_ZERO_BYTES, a);
    p.b.row_max = zeros->row_max;
    p.b.row_counter = zeros->row_counter;
    p.b.block_counter = zeros->block_counter;
    p.experts = t->experts;
    p.is_few = fits_few(a, t);
    p.tile_rows = tile_rows(cuda_of(k), a, t);
    p.is_bf16 = k->is_bf16;
    if (run_row(k, a, t) || run_at_once(k, a, t)) return;
    run_plan(k, &p);
    if (k->rc != OK) return;
    if (p.is_few) {
        run_few(k, a, &p.b, t);
        return;
    }
    run_linears(k, a, &p.b, t, false);
    if (k->rc != OK) return;
    if (t->is_plain || !exl3_gpu_groups_fit(a->n_ff, true)) {
        CUDA_RUN(k, "moe act", moe_act_kernel, (unsigned)(a->n_rows * (a->n_used + 1)),
            DEVICE_BLOCK, 0, p.b.gate, p.b.up, p.b.pair_weight, a->n_ff, a->limit, k->is_bf16);
    }
    run_linears(k, a, &p.b, t, true);
    if (k->rc != OK) return;
    run_sum(k, a, &p.b);
}
