#include "kernels/exl3/exl3_one.h"
#include "kernels/linear/linear_kernel.cuh"
#include "kernels/prepare/prepare.h"

/* What linear_weight.packed points to. */
typedef struct packed_matrix {
    exl3_gpu_matrix m;
    const float *plain; /* other codebooks: decoded, [out][in]; NULL: mul1, in m */
} packed_matrix;

/* Whether the trellis is what the kernels read. */
static bool is_trellis(const linear_weight *w) {
    return w->form == MATRIX_EXL3 && ((const packed_matrix *)w->packed)->plain == NULL;
}

gpu_matrix linear_gpu_matrix(const linear_weight *w) {
    gpu_matrix m = {};
    m.n_in = w->n_in;
    m.n_out = w->n_out;
    if (is_trellis(w)) {
        m.packed = ((const packed_matrix *)w->packed)->m;
        return m;
    }
    if (w->form == MATRIX_EXL3) {
        m.data = ((const packed_matrix *)w->packed)->plain;
        m.row_stride = w->n_in;
        return m;
    }
    m.data = w->data;
    m.row_stride = (int64_t)w->row_stride;
    m.is_bf16 = w->form == MATRIX_BF16;
    return m;
}

/* ---- packing ---- */

static int upload_vector(cuda_device *d, const void *from, int n, const uint16_t **out, err *e) {
    if (from == NULL) return OK;
    void *to = cuda_slab_take(d, (size_t)n * 2);
    if (to == NULL) return cuda_no_memory(e, "a vector of a matrix", (size_t)n * 2);
    *out = (const uint16_t *)to;
    return cuda_upload(to, from, (size_t)n * 2, "EXL3 vector", e);
}

/* A matrix of another codebook: decoded to fp32 here, as the integer kernels know mul1 alone. Takes 32
 * bits a weight; the released packs have no such matrix. */
static int decoded_new(cuda_device *d, const exl3_matrix *m, const void **out, err *e) {
    const size_t n = (size_t)m->in * (size_t)m->out;
    if (m->bias != NULL)
        return err_set(e, ERR_UNSUPPORTED,
            "the GPU engine has no bias for EXL3 matrices of other codebooks than mul1 (%d x %d)",
            m->in, m->out);
    float *by_input = (float *)mem_try_alloc(n * sizeof(float));
    float *by_output = (float *)mem_try_alloc(n * sizeof(float));
    void *to = cuda_slab_take(d, n * sizeof(float));
    int rc = OK;
    if (by_input == NULL || by_output == NULL || to == NULL)
        rc = cuda_no_memory(e, "a decoded EXL3 matrix", n * sizeof(float));
    if (rc == OK) rc = exl3_decode_full(m, by_input, e);
    for (int k = 0; rc == OK && k < m->in; k++) {
        for (int o = 0; o < m->out; o++)
            by_output[(size_t)o * (size_t)m->in + (size_t)k] =
                by_input[(size_t)k * (size_t)m->out + (size_t)o];
    }
    if (rc == OK) rc = cuda_upload(to, by_output, n * sizeof(float), "EXL3 matrix", e);
    mem_free(by_input);
    mem_free(by_output);
    if (rc != OK) return rc;
    packed_matrix *p = (packed_matrix *)mem_alloc(sizeof(*p));
    p->plain = (const float *)to;
    p->m.in = m->in;
    p->m.out = m->out;
    *out = p;
    return OK;
}

int linear_cuda_packed_new(kernel_context *k, const exl3_matrix *m, const void **out, err *e) {
    cuda_device *d = cuda_of(k);
    *out = NULL;
    if (m->codebook != EXL3_MUL1) return decoded_new(d, m, out, e);
    const size_t bytes = exl3_trellis_bytes(m->in, m->out, m->k2);
    uint32_t *words = (uint32_t *)mem_try_alloc(bytes);
    void *to = cuda_slab_take(d, bytes);
    if (words == NULL || to == NULL) {
        mem_free(words);
        return cuda_no_memory(e, "an EXL3 matrix", bytes);
    }
    packed_matrix *p = (packed_matrix *)mem_alloc(sizeof(*p));
    p->m.words = (const uint32_t *)to;
    p->m.in = m->in;
    p->m.out = m->out;
    p->m.k2 = m->k2;
    int rc = exl3_kernel_order_pack(m, words, e);
    if (rc == OK) rc = cuda_upload(to, words, bytes, "EXL3 matrix", e);
    if (rc == OK) rc = upload_vector(d, m->suh, m->in, &p->m.suh, e);
    if (rc == OK) rc = upload_vector(d, m->svh, m->out, &p->m.svh, e);
    if (rc == OK) rc = upload_vector(d, m->bias, m->out, &p->m.bias, e);
    mem_free(words);
    if (rc != OK) {
        mem_free(p);
        return rc;
    }
    *out = p;
    return OK;
}

int linear_cuda_packed_view(
    kernel_context *k, const exl3_image *image, const void *bytes, const void **out, err *e) {
    (void)k;
    *out = NULL;
    if (image->layout != EXL3_LAYOUT_GPU || !exl3_image_ok(image))
        return err_set(e, ERR_UNSUPPORTED,
            "a matrix of %d x %d in layout %s, which the GPU engine cannot use", image->in,
            image->out, exl3_layout_name(image->layout));
    const exl3_image_parts at = exl3_image_layout(image);
    const char *base = (const char *)bytes;
    packed_matrix *p = (packed_matrix *)mem_alloc(sizeof(*p));
    p->m.words = (const uint32_t *)(base + at.weights);
    p->m.suh = (const uint16_t *)(base + at.suh);
    p->m.svh = (const uint16_t *)(base + at.svh);
    p->m.bias = image->has_bias ? (const uint16_t *)(base + at.bias) : NULL;
    p->m.in = image->in;
    p->m.out = image->out;
    p->m.k2 = image->k2;
    *out = p;
    return OK;
}

const void *linear_cuda_packed_of(const exl3_gpu_matrix *m) {
    packed_matrix *p = (packed_matrix *)mem_alloc(sizeof(*p));
    p->m = *m;
    return p;
}

void linear_cuda_packed_free(const void *packed) {
    mem_free((void *)packed);
}

/* ---- plain ---- */

/* Outputs of a block for few and many rows, and rows. */
enum { PLAIN_FEW_ROWS = 4, PLAIN_MANY_OUTPUTS = 8, PLAIN_MANY_ROWS = 8 };
enum { PLAIN_SMALL_PER_SM = 8 }; /* sums */

/* Whether the kernel that holds its weights can take all of them. */
static bool can_hold(const plain_args *a) {
    if (a->jobs != NULL) return false;
    for (int i = 0; i < a->n_own; i++) {
        const plain_job *j = &a->own[i];
        if (j->matrix.n_in % 4 != 0 || j->matrix.n_in > PLAIN_HELD * PLAIN_THREADS * 4 ||
            j->matrix.row_stride % 4 != 0 || j->x_stride % 4 != 0 || ((uintptr_t)j->x & 15) != 0)
            return false;
    }
    return true;
}

void linear_plain_run(
    kernel_context *k, const plain_args *a, int max_rows, int max_tiles, int max_out) {
    if (k->rc != OK || max_tiles == 0) return;
    const bool is_many = max_rows > 2 * PLAIN_FEW_ROWS;
    const int outputs = is_many ? PLAIN_MANY_OUTPUTS : 1;
    const dim3 grid((unsigned)((max_out + outputs - 1) / outputs), (unsigned)max_tiles,
        a->jobs == NULL ? (unsigned)a->n_own : 1u);
    if (!is_many && can_hold(a)) {
        /* Rows of a small matrix side by side; a larger one is read once for four. */
        const bool is_apart =
            max_rows == 1 || max_out * max_rows <= PLAIN_SMALL_PER_SM * cuda_of(k)->n_sms;
        const int rows = is_apart ? 1 : PLAIN_FEW_ROWS;
        const dim3 few(
            (unsigned)max_out, (unsigned)((max_rows + rows - 1) / rows), (unsigned)a->n_own);
        if (!is_apart) {
            CUDA_RUN(
                k, "plain linear", plain_few_kernel<PLAIN_FEW_ROWS>, few, PLAIN_THREADS, 0, *a);
        } else {
            CUDA_RUN(k, "plain linear", plain_few_kernel<1>, few, PLAIN_THREADS, 0, *a);
        }
        return;
    }
    if (is_many) {
        CUDA_RUN(k, "plain linear", (plain_linear_kernel<PLAIN_MANY_OUTPUTS, PLAIN_MANY_ROWS>),
            grid, PLAIN_THREADS, 0, *a);
    } else if (max_rows > 1) {
        CUDA_RUN(k, "plain linear", (plain_linear_kernel<1, PLAIN_FEW_ROWS>), grid, PLAIN_THREADS,
            0, *a);
    } else {
        CUDA_RUN(k, "plain linear", (plain_linear_kernel<1, 1>), grid, PLAIN_THREADS, 0, *a);
    }
}

static int row_tiles(int n_rows) {
    return (n_rows + EXL3_GPU_TILE_ROWS - 1) / EXL3_GPU_TILE_ROWS;
}

static plain_job plain_job_of(const kernel_context *k, const linear_job *j) {
    return plain_job{linear_gpu_matrix(j->weight), j->x, j->x_rows, (int64_t)j->x_stride, j->y,
        (int64_t)j->y_stride, j->n_rows, k->is_bf16 && !j->keeps_f32};
}

/* Whether a linear waits for the router that may follow. */
static bool hold_gate(kernel_context *k, const linear_args *a) {
    if (a->n_jobs != 1 || is_trellis(a->jobs[0].weight)) return false;
    const plain_job job = plain_job_of(k, &a->jobs[0]);
    return gate_pending(k, &job);
}

static void run_plain(kernel_context *k, const linear_args *a) {
    plain_args p = {};
    int rows = 0, out = 0;
    for (int i = 0; i <= a->n_jobs; i++) {
        if (p.n_own == PLAIN_OWN_JOBS || (i == a->n_jobs && p.n_own > 0)) {
            linear_plain_run(k, &p, rows, row_tiles(rows), out);
            p.n_own = rows = out = 0;
        }
        if (i == a->n_jobs || a->jobs[i].n_rows == 0 || is_trellis(a->jobs[i].weight)) continue;
        const linear_job *j = &a->jobs[i];
        const plain_job job = plain_job_of(k, j);
        if (linear_tile_run(k, &job)) continue;
        p.own[p.n_own++] = job;
        rows = j->n_rows > rows ? j->n_rows : rows;
        out = j->weight->n_out > out ? j->weight->n_out : out;
    }
}

/* ---- where rows come from ---- */

/* What was held back when a run began. Rows that the run's matrices read are made with their
 * integer operands in one launch. */
typedef struct row_sources {
    prepare_args held;
    int taker[PREPARE_MAX_TASKS]; /* first job that reads a held task's rows, or NOBODY */
    prepare_task attn;
    bool has_attn;
} row_sources;

enum { NOBODY = -1 };

static bool is_in_place(const prepare_task *t) {
    return t->x == t->y;
}

static bool feeds(const prepare_task *t, const linear_job *j) {
    return t->kind == PREPARE_ROWS && t->y == j->x && t->y_stride == (int64_t)j->x_stride &&
           t->n == j->weight->n_in && t->n_rows == j->n_rows && j->x_rows == NULL;
}

static bool attn_feeds(const prepare_task *t, const linear_job *j) {
    return j->x_rows == NULL && t->y_stride == (int64_t)j->x_stride && t->n_rows == j->n_rows &&
           j->x >= t->y && j->x + j->weight->n_in <= t->y + t->n &&
           j->weight->n_in <= PREPARE_ATTN_VALUES && j->weight->n_in % 512 == 0 &&
           (j->x - t->y) % 512 == 0;
}

static bool lies_in(const float *x, const prepare_task *t) {
    return t->y != NULL && x >= t->y && x < t->y + (size_t)t->n_rows * (size_t)t->y_stride;
}

enum { LINEAR_FEW_ROWS = 32 }; /* rows up to which a matrix is read again for every 8 of them */

static int ranges_of(const linear_job *j) {
    return j->n_rows > LINEAR_FEW_ROWS ? 1
                                       : (j->n_rows + EXL3_GPU_MAX_ROWS - 1) / EXL3_GPU_MAX_ROWS;
}

static int row_cap(int n_rows, bool is_few) {
    return !is_few ? (n_rows + 7) / 8 * 8 : n_rows <= 2 ? n_rows : n_rows <= 4 ? 4 : 8;
}

/* Bytes of scratch of a job: operand and scales. */
static size_t packed_bytes(int in, int cap) {
    return ((size_t)in * (size_t)cap * 2 + (size_t)cap * sizeof(exl3_gpu_scale) + 511) / 256 * 256;
}

/* Whether job i reads the rows of the packed one before it. */
static bool is_shared_row(const linear_args *a, int i) {
    int before = i - 1;
    while (before >= 0 && !is_trellis(a->jobs[before].weight))
        before--;
    return before >= 0 && a->jobs[before].x == a->jobs[i].x;
}

/* Whether the rows of j can be made from what is held: from one task, or from none of them. */
static bool can_feed(const cuda_pending *w, const linear_args *a, int i) {
    const linear_job *j = &a->jobs[i];
    if (w->has_attn && lies_in(j->x, &w->attn)) return attn_feeds(&w->attn, j);
    for (int t = 0; t < w->tasks.n_tasks; t++) {
        const prepare_task *task = &w->tasks.tasks[t];
        if (!lies_in(j->x, task)) continue;
        /* Rows made in place are read by one block only, for neighbouring jobs. */
        return feeds(task, j) && (!is_in_place(task) || !is_shared_row(a, i) || ranges_of(j) == 1);
    }
    return true;
}

/* Whether one launch can make everything that is held and all operands of a run. Plain matrices come behind it and read
 * what it left. */
static bool can_fuse(kernel_context *k, const linear_args *a) {
    const cuda_pending *w = cuda_of(k)->pending;
    int n = 0, covered = 0;
    size_t bytes = 0;
    if (w->has_expand || w->has_mix || w->has_rope || w->has_gate) return false;
    for (int i = 0; i < a->n_jobs; i++) {
        const linear_job *j = &a->jobs[i];
        if (j->n_rows == 0 || !is_trellis(j->weight)) continue;
        const bool is_few = j->n_rows <= LINEAR_FEW_ROWS;
        if (is_few != (a->jobs[0].n_rows <= LINEAR_FEW_ROWS) || j->x_stride % 4 != 0 ||
            !can_feed(w, a, i))
            return false;
        n += ranges_of(j);
        bytes += (size_t)ranges_of(j) * packed_bytes(j->weight->n_in, row_cap(j->n_rows, false));
        if (w->has_attn && lies_in(j->x, &w->attn)) covered += j->weight->n_in;
    }
    return n > 0 && n <= EXL3_GPU_OWN_JOBS && n + w->tasks.n_tasks <= PREPARE_MAX_TASKS &&
           bytes <= cuda_scratch_left(k) && (!w->has_attn || covered == w->attn.n);
}

/* The held task that makes the rows of j, or NOBODY. */
static int held_of(const row_sources *s, const linear_job *j) {
    for (int i = 0; i < s->held.n_tasks; i++) {
        if (feeds(&s->held.tasks[i], j)) return i;
    }
    return NOBODY;
}

/* What makes the rows of job i: a held task, the sums of attention, or a plain read. */
static prepare_task task_for(row_sources *s, const linear_job *j, int i_job) {
    prepare_task t = {};
    const int held = held_of(s, j);
    if (held != NOBODY) {
        t = s->held.tasks[held];
        if (s->taker[held] == NOBODY) s->taker[held] = i_job;
        if (s->taker[held] != i_job) t.y = NULL, t.packed = NULL;
        return t;
    }
    if (s->has_attn && attn_feeds(&s->attn, j)) {
        t = s->attn;
        t.first_value = (int32_t)(j->x - s->attn.y);
        t.y += t.first_value;
        t.n = j->weight->n_in;
        return t;
    }
    t.kind = PREPARE_ROWS;
    t.x = j->x;
    t.x_stride = (int64_t)j->x_stride;
    t.x_rows = j->x_rows;
    t.n = j->weight->n_in;
    t.is_wide = ((uintptr_t)j->x & 15) == 0 && j->x_stride % 4 == 0;
    return t;
}

/* ---- EXL3 ---- */

/* Jobs of one launch under construction, and the scratch they use. */
typedef struct packed_run {
    exl3_gpu_own_list list;
    size_t scratch_at, scratch_bytes, n_sums, n_counters;
    int tile_rows; /* many rows */
    int max_rows, max_out, max_k2, max_stage_bytes;
    row_sources *sources;
    prepare_args rows;
} packed_run;

static void packed_run_begin(packed_run *r, row_sources *s, size_t scratch_bytes, int tile_rows) {
    *r = packed_run{};
    r->sources = s;
    r->scratch_bytes = scratch_bytes;
    r->tile_rows = tile_rows;
    r->rows = s->held;
    r->rows.n_tasks = 0;
}

/* Rows [range[0], range[1]) of job i become the operand of o. */
static void add_rows(packed_run *r, const linear_args *a, int i, const int range[2], bool is_few) {
    prepare_args *p = &r->rows;
    const exl3_gpu_job *o = &r->list.jobs[r->list.n_jobs - 1];
    const int held = held_of(r->sources, &a->jobs[i]);
    p->operands[p->n_operands++] =
        prepare_operand{o->matrix.suh, o->operand, o->scale, o->row_cap, is_few ? 0 : r->tile_rows};
    if (held != NOBODY && is_in_place(&r->sources->held.tasks[held]) &&
        r->sources->taker[held] != NOBODY && r->sources->taker[held] != i) {
        p->tasks[p->n_tasks - 1].n_operands++; /* can_fuse: the job before it */
        return;
    }
    prepare_task t = task_for(r->sources, &a->jobs[i], i);
    t.first_row = range[0];
    t.n_rows = range[1] - range[0];
    t.first_operand = p->n_operands - 1;
    t.n_operands = 1;
    p->tasks[p->n_tasks++] = t;
}

/* What is held and no job reads goes along. */
static void add_held(packed_run *r) {
    row_sources *s = r->sources;
    for (int i = 0; i < s->held.n_tasks; i++) {
        if (s->taker[i] == NOBODY) r->rows.tasks[r->rows.n_tasks++] = s->held.tasks[i];
    }
    s->held.n_tasks = 0;
    s->has_attn = false;
}

/* ---- one row ---- */

/* Whether n floats at p lie over the output of a job. */
static bool is_written(const packed_run *r, const float *p, size_t n) {
    for (int i = 0; i < r->list.n_jobs; i++) {
        const exl3_gpu_job *j = &r->list.jobs[i];
        if (floats_overlap(p, n, j->y, (size_t)j->matrix.out)) return true;
    }
    return false;
}

/* Or over what a job's row is read from. */
static bool is_touched(const packed_run *r, const float *p, size_t n) {
    for (int i = 0; i < r->list.n_jobs; i++) {
        const prepare_task *t = &r->rows.tasks[i];
        if (floats_overlap(p, n, t->x, (size_t)t->n)) return true;
    }
    return is_written(r, p, n);
}

/* Job i's row, if its task is no more than a norm or nothing. */
static bool row_of_job(const packed_run *r, int i, exl3_one_row *out) {
    const prepare_task *t = &r->rows.tasks[i];
    if (t->kind != PREPARE_ROWS || t->n_rows != 1 || t->first_row != 0 || t->rope != NULL ||
        t->packed != NULL || t->x_rows != NULL || !t->is_wide || t->n_operands != 1 ||
        t->first_operand != i || is_written(r, t->x, (size_t)t->n) ||
        is_touched(r, t->y, (size_t)t->n))
        return false;
    *out = exl3_one_row{t->x, t->norm, t->y, t->eps};
    return true;
}

static bool can_go_aside(const packed_run *r, const prepare_task *t) {
    if (t->n_rows != 1) return false;
    if (t->kind == PREPARE_MIX) return true;
    const size_t n = (size_t)t->n;
    return t->kind == PREPARE_ROWS && t->n <= PREPARE_ASIDE_VALUES && t->n_operands == 0 &&
           t->is_wide && t->x_rows == NULL && t->first_row == 0 && !is_touched(r, t->x, n) &&
           !is_touched(r, t->y, n) && !is_touched(r, (const float *)t->packed, n);
}

/* Whether the products of one row can do all row work in their launch. */
static bool rows_of_one(const packed_run *r, exl3_one_rows *out, prepare_aside *aside) {
    const prepare_args *p = &r->rows;
    const int n_aside = p->n_tasks - r->list.n_jobs;
    if (r->max_rows != 1 || n_aside < 0 || n_aside > PREPARE_ASIDE_TASKS) return false;
    for (int i = 0; i < r->list.n_jobs; i++)
        if (!row_of_job(r, i, &out->of_job[i])) return false;
    for (int i = 0; i < n_aside; i++) {
        aside->tasks[i] = p->tasks[r->list.n_jobs + i];
        if (!can_go_aside(r, &aside->tasks[i])) return false;
    }
    aside->n_tasks = n_aside;
    aside->is_bf16 = out->is_bf16 = p->is_bf16;
    aside->mix = p->mix, aside->dots = p->dots;
    aside->n_slices = p->n_slices, aside->dots_stride = p->dots_stride;
    out->aside = aside;
    return true;
}

/* Whether all of it are the sums of attention of one row, and the row of its ring. */
static bool heads_of_one(const packed_run *r, exl3_one_rows *rows, prepare_heads *out) {
    const prepare_args *p = &r->rows;
    const int n_jobs = r->list.n_jobs, n_more = p->n_tasks - n_jobs;
    if (r->max_rows != 1 || n_more < 0 || n_more > 1) return false;
    const prepare_task *first = &p->tasks[0];
    for (int i = 0; i < n_jobs; i++) {
        const prepare_task *t = &p->tasks[i];
        if (t->kind != PREPARE_ATTN || t->first_row != 0 || !t->is_wide || t->n_operands != 1 ||
            t->first_operand != i || (t->rope != NULL && t->d_head != 512))
            return false;
        out->n_heads += t->n / 512;
        rows->of_job[i].x = t->y;
    }
    if (n_more > 0 && p->tasks[n_jobs].kind != PREPARE_RING) return false;
    out->attn = p->attn;
    out->y = first->y - first->first_value;
    out->is_bf16 = p->is_bf16;
    out->rope = first->rope, out->d_rope = first->d_rope, out->is_inverse = first->is_inverse;
    out->has_ring = n_more, out->ring = p->ring;
    return true;
}

/* One row: whether the products were launched, all row work in their launch or in a light one before it. */
static bool run_one(kernel_context *k, const packed_run *r, const exl3_gpu_rows_args *args) {
    exl3_one_rows rows = {};
    prepare_aside aside = {};
    prepare_heads heads = {};
    int is_done = 0;
    if (heads_of_one(r, &rows, &heads)) {
        k->rc = exl3_one_fits(args, 0, &is_done, &k->error);
        if (!is_done) return false;
        prepare_heads_run(k, &heads);
    } else if (!rows_of_one(r, &rows, &aside)) {
        return false;
    }
    if (k->rc == OK)
        k->rc = exl3_one_run_rows(args, &rows, cuda_of(k)->stream, &is_done, &k->error);
    return is_done != 0;
}

static void packed_launch(kernel_context *k, packed_run *r, bool is_few) {
    cuda_device *d = cuda_of(k);
    if (k->rc != OK || r->list.n_jobs == 0) return;
    const exl3_gpu_rows_args rows = {
        NULL, &r->list, {d->sums, d->counters}, r->max_rows, r->max_stage_bytes, 1};
    add_held(r);
    const bool is_done = is_few && run_one(k, r, &rows);
    if (!is_done) prepare_run(k, &r->rows);
    if (k->rc == OK && is_few) {
        if (!is_done) k->rc = exl3_gpu_rows_run(&rows, d->stream, &k->error);
    } else if (k->rc == OK) {
        exl3_gpu_gemm_args g = {};
        g.own = &r->list;
        g.max_tiles = (r->max_rows + r->tile_rows - 1) / r->tile_rows;
        g.max_out = r->max_out;
        g.max_k2 = r->max_k2;
        g.tile_rows = r->tile_rows;
        k->rc = exl3_gpu_gemm_run(&g, d->stream, &k->error);
    }
    packed_run_begin(r, r->sources, k->scratch_bytes, r->tile_rows);
}

static void packed_add(
    kernel_context *k, packed_run *r, const linear_args *a, int i, const int range[2]) {
    const linear_job *j = &a->jobs[i];
    const bool is_few = j->n_rows <= LINEAR_FEW_ROWS;
    const exl3_gpu_matrix m = ((const packed_matrix *)j->weight->packed)->m;
    const int n = range[1] - range[0], cap = row_cap(n, is_few);
    const size_t bytes = packed_bytes(m.in, cap);
    const bool is_full =
        r->list.n_jobs == EXL3_GPU_OWN_JOBS || r->scratch_at + bytes > r->scratch_bytes ||
        (is_few && (r->n_sums + (size_t)(n * m.out) > EXL3_GPU_MAX_SUMS ||
                       r->n_counters + (size_t)(m.out / 128) > EXL3_GPU_MAX_COUNTERS));
    if (is_full) packed_launch(k, r, is_few);
    if (bytes > r->scratch_bytes || j->x_stride % 4 != 0 || j->y_stride % 4 != 0) {
        k->rc = err_set(&k->error, ERR_LIMIT, "EXL3 linear: %d rows of %d, strides %zu and %zu", n,
            m.in, j->x_stride, j->y_stride);
        return;
    }
    char *at = (char *)k->scratch + r->scratch_at;
    exl3_gpu_job *o = &r->list.jobs[r->list.n_jobs++];
    *o = exl3_gpu_job{};
    o->matrix = m;
    o->x = j->x_rows == NULL ? j->x + (size_t)range[0] * j->x_stride : j->x;
    o->x_rows = j->x_rows == NULL ? NULL : j->x_rows + range[0];
    o->x_stride = (int64_t)j->x_stride;
    o->operand = (uint32_t *)at;
    o->scale = (exl3_gpu_scale *)(at + (size_t)m.in * (size_t)cap * 2);
    o->y = j->y + (size_t)range[0] * j->y_stride;
    o->y_stride = (int64_t)j->y_stride;
    o->n_rows = n;
    o->row_cap = cap;
    o->is_bf16 = k->is_bf16 && !j->keeps_f32;
    o->first_sum = (int32_t)r->n_sums;
    o->first_counter = (int32_t)r->n_counters;
    o->first_unit = r->list.n_units;
    o->first_cost = r->list.n_cost;
    r->list.n_units += exl3_gpu_units(m.in, m.out);
    r->list.n_cost += exl3_gpu_units(m.in, m.out) * exl3_gpu_unit_cost(m.k2, n);
    r->n_sums += (size_t)(n * m.out);
    r->n_counters += (size_t)(m.out / 128);
    r->scratch_at += bytes;
    r->max_rows = n > r->max_rows ? n : r->max_rows;
    r->max_out = m.out > r->max_out ? m.out : r->max_out;
    r->max_k2 = m.k2 > r->max_k2 ? m.k2 : r->max_k2;
    const int stage = exl3_gpu_stage_bytes(m.k2, cap);
    r->max_stage_bytes = stage > r->max_stage_bytes ? stage : r->max_stage_bytes;
    add_rows(r, a, i, range, is_few);
}

/* Rows of one job that fit into the scratch at once, in whole tiles. */
static int rows_at_once(const kernel_context *k, int in, int tile_rows) {
    size_t n = k->scratch_bytes / ((size_t)in * 2 + sizeof(exl3_gpu_scale)) / (size_t)tile_rows;
    return n < 2 ? tile_rows : (int)(n - 1) * tile_rows;
}

static bool is_of_run(const linear_job *j, bool is_few) {
    return is_trellis(j->weight) && j->n_rows > 0 && is_few == (j->n_rows <= LINEAR_FEW_ROWS);
}

/* For all matrices of a run of many rows. */
static int tile_rows_of(kernel_context *k, const linear_args *a) {
    const cuda_device *d = cuda_of(k);
    int n_rows = 1, n_blocks = 0;
    for (int i = 0; i < a->n_jobs; i++) {
        const linear_job *j = &a->jobs[i];
        if (!is_of_run(j, false)) continue;
        n_rows = j->n_rows > n_rows ? j->n_rows : n_rows;
        n_blocks += j->weight->n_out / 128;
    }
    return exl3_gpu_gemm_tile_rows(n_rows, n_blocks, d->n_sms, d->is_sm90);
}

static void run_packed(kernel_context *k, const linear_args *a, row_sources *s, bool is_few) {
    packed_run r;
    packed_run_begin(&r, s, cuda_scratch_left(k), tile_rows_of(k, a));
    for (int i = 0; i < a->n_jobs && k->rc == OK; i++) {
        const linear_job *j = &a->jobs[i];
        const bool is_mine = is_of_run(j, is_few);
        const int most = is_few    ? EXL3_GPU_MAX_ROWS
                         : is_mine ? rows_at_once(k, j->weight->n_in, r.tile_rows)
                                   : 1;
        for (int r0 = 0; is_mine && r0 < j->n_rows && k->rc == OK; r0 += most) {
            const int range[2] = {r0, r0 + most < j->n_rows ? r0 + most : j->n_rows};
            packed_add(k, &r, a, i, range);
        }
    }
    packed_launch(k, &r, is_few);
}

size_t linear_cuda_scratch_bytes(int n_jobs, int n_rows, int max_in, int max_out) {
    (void)max_out;
    const size_t most = (size_t)256 << 20, few = (size_t)1 << 20;
    size_t bytes = few + (size_t)n_rows * ((size_t)max_in * 2 + 8) + (size_t)n_jobs * 512;
    return bytes > most ? most : bytes;
}

void linear_cuda(kernel_context *k, const linear_args *a) {
    row_sources s = {};
    if (hold_gate(k, a)) return;
    if (!can_fuse(k, a)) cuda_settle(k);
    if (k->rc != OK) return;
    const size_t tail = cuda_of(k)->tail_bytes;
    pending_take(k, &s.held, &s.attn, &s.has_attn);
    cuda_of(k)->tail_bytes = tail; /* until the launch that reads it is made */
    for (int i = 0; i < PREPARE_MAX_TASKS; i++)
        s.taker[i] = NOBODY;
    run_packed(k, a, &s, true);
    run_packed(k, a, &s, false);
    cuda_of(k)->tail_bytes = 0;
    run_plain(k, a);
}
