/* Operators held back until a launch that can take them along. Host code only. */
#include <cstring>

#include "kernels/mhc/mhc_gpu.h"
#include "kernels/moe/gate.h"
#include "kernels/prepare/prepare.h"

static cuda_pending *pending_of(kernel_context *k) {
    return cuda_of(k)->pending;
}

/* ---- the end of the scratch ---- */

void *cuda_tail_take(kernel_context *k, size_t bytes) {
    cuda_device *d = cuda_of(k);
    const size_t end = k->scratch_bytes / 256 * 256;
    bytes = (bytes + 255) / 256 * 256;
    if (d->tail_bytes + bytes > end) return NULL;
    d->tail_bytes += bytes;
    return (char *)k->scratch + end - d->tail_bytes;
}

size_t cuda_scratch_left(const kernel_context *k) {
    const size_t end = k->scratch_bytes / 256 * 256, used = ((cuda_device *)k->device)->tail_bytes;
    return used < end ? end - used : 0;
}

/* ---- launching ---- */

/* Expand, mix and collapse of one set of streams. */
typedef struct streams_work {
    bool has_expand, has_mix, has_collapse;
    mhc_expand_args expand;
    mhc_mix_args mix;
    mhc_collapse_args collapse;
    int n_rows, n_streams, d;
} streams_work;

static size_t dots_of_row(const streams_work *w) {
    return (size_t)mhc_dots_stride(w->n_rows, w->n_streams, w->d) * (size_t)mhc_slices(w->d);
}

/* Bytes of tail that a row needs until the launch behind. */
static size_t tail_of_row(const streams_work *w) {
    const bool has_own_raw = w->has_collapse && w->collapse.raw == NULL;
    return sizeof(float) * ((w->has_mix ? dots_of_row(w) : 0) + (has_own_raw ? (size_t)w->d : 0));
}

/* Rows [first, first + n) of it as work of its own. */
static streams_work rows_of(const streams_work *all, int first, int n) {
    streams_work w = *all;
    const size_t r = (size_t)first, s = (size_t)w.n_streams, d = (size_t)w.d;
    w.n_rows = w.expand.n_rows = w.mix.n_rows = w.collapse.n_rows = n;
    w.expand.h += r * s * d, w.expand.y += r * d;
    w.expand.post += r * s, w.expand.comb += r * s * s;
    w.mix.h += r * s * d;
    w.mix.pre += r * s, w.mix.post += r * s, w.mix.comb += r * s * s;
    if (w.collapse.rows != NULL) {
        w.collapse.rows += r;
    } else {
        w.collapse.h += r * s * d, w.collapse.pre += r * s;
    }
    if (w.collapse.raw != NULL) w.collapse.raw += r * d;
    w.collapse.x += r * d;
    return w;
}

/* Launches it; what a whole row is needed for becomes tasks. */
static void launch_streams(kernel_context *k, const streams_work *w, prepare_args *tasks) {
    mhc_streams_params p = {};
    prepare_task t = {};
    p.n_rows = t.n_rows = w->n_rows, p.n_streams = w->n_streams, p.d = w->d;
    if (w->has_expand)
        p.h = w->expand.h, p.y = w->expand.y, p.post = w->expand.post, p.comb = w->expand.comb;
    if (w->has_mix) {
        p.h = (float *)w->mix.h, p.fn = w->mix.w.fn;
        p.dots = (float *)cuda_tail_take(k, (size_t)w->n_rows * dots_of_row(w) * sizeof(float));
        tasks->mix = w->mix, tasks->dots = p.dots, tasks->n_slices = mhc_slices(w->d);
        p.dots_stride = tasks->dots_stride = mhc_dots_stride(w->n_rows, w->n_streams, w->d);
        t.kind = PREPARE_MIX;
        tasks->tasks[tasks->n_tasks++] = t;
    }
    if (w->has_collapse) {
        const mhc_collapse_args *c = &w->collapse;
        p.h = (float *)c->h, p.pre = c->pre, p.rows = c->rows, p.raw = c->raw;
        if (p.raw == NULL)
            p.raw = (float *)cuda_tail_take(k, (size_t)w->n_rows * (size_t)w->d * sizeof(float));
        t.kind = PREPARE_ROWS, t.n = w->d;
        t.x = p.raw, t.x_stride = w->d, t.norm = c->weight, t.eps = c->norm_eps;
        t.y = c->x, t.y_stride = w->d;
        tasks->tasks[tasks->n_tasks++] = t;
    }
    mhc_streams_run(k, &p);
}

/* What is held of streams, with collapse behind it or not. When the tail has no room for all rows
 * nothing stays held. */
static void run_streams(kernel_context *k, const mhc_collapse_args *collapse) {
    cuda_pending *held = pending_of(k);
    streams_work w = {held->has_expand, held->has_mix, collapse != NULL, held->expand, held->mix};
    if (w.has_expand)
        w.n_rows = w.expand.n_rows, w.n_streams = w.expand.n_streams, w.d = w.expand.d;
    if (w.has_mix) w.n_rows = w.mix.n_rows, w.n_streams = w.mix.n_streams, w.d = w.mix.d;
    if (w.has_collapse) {
        w.collapse = *collapse;
        w.n_rows = collapse->n_rows, w.n_streams = collapse->n_streams, w.d = collapse->d;
    }
    held->has_expand = held->has_mix = false;
    const size_t left = cuda_scratch_left(k), row = tail_of_row(&w);
    if ((size_t)w.n_rows * row + 512 <= left) {
        launch_streams(k, &w, &held->tasks);
        return;
    }
    const int most = left < row + 512 ? 0 : (int)((left - 512) / row);
    if (most == 0) {
        k->rc = err_set(&k->error, ERR_LIMIT,
            "hyper-connections: a row of %d x %d does not fit in the work space", w.n_streams, w.d);
        return;
    }
    for (int r = 0; r < w.n_rows && k->rc == OK; r += most) {
        const streams_work piece = rows_of(&w, r, r + most < w.n_rows ? most : w.n_rows - r);
        launch_streams(k, &piece, &held->tasks);
        cuda_settle(k);
    }
}

/* A whole row of attention as tasks. */
static void add_attn_tasks(cuda_pending *w) {
    for (int at = 0; at < w->attn.n; at += PREPARE_ATTN_VALUES) {
        prepare_task t = w->attn;
        const int left = w->attn.n - at;
        t.first_value = at;
        t.n = left < PREPARE_ATTN_VALUES ? left : PREPARE_ATTN_VALUES;
        t.y += at;
        w->tasks.tasks[w->tasks.n_tasks++] = t;
    }
    w->has_attn = false;
}

static bool is_even(const void *p, int64_t stride) {
    return ((uintptr_t)p & 15) == 0 && stride % 4 == 0;
}

static void set_width(prepare_task *t) {
    t->is_wide = t->n % 4 == 0 && (t->x == NULL || is_even(t->x, t->x_stride)) &&
                 (t->norm == NULL || is_even(t->norm, 0)) &&
                 (t->y == NULL || is_even(t->y, t->y_stride));
}

void pending_take(kernel_context *k, prepare_args *out, prepare_task *attn, bool *has_attn) {
    cuda_pending *w = pending_of(k);
    *out = w->tasks;
    *attn = w->attn;
    *has_attn = w->has_attn;
    for (int i = 0; i < out->n_tasks; i++)
        set_width(&out->tasks[i]);
    set_width(attn);
    out->is_bf16 = k->is_bf16;
    w->has_attn = false;
    w->tasks.n_tasks = 0;
    cuda_of(k)->tail_bytes = 0;
}

static void run_gate_alone(kernel_context *k) {
    cuda_pending *w = pending_of(k);
    plain_args p = {};
    p.n_own = 1;
    p.own[0] = w->gate;
    w->has_gate = false;
    linear_plain_run(k, &p, w->gate.n_rows, 1, w->gate.matrix.n_out);
}

void cuda_settle(kernel_context *k) {
    cuda_device *d = cuda_of(k);
    cuda_pending *w = d->pending;
    if (k->rc != OK) { /* the step is lost */
        memset(w, 0, sizeof(*w));
        d->tail_bytes = 0;
        return;
    }
    if (w->has_expand || w->has_mix) run_streams(k, NULL);
    if (w->has_attn) add_attn_tasks(w);
    if (w->tasks.n_tasks > 0) {
        prepare_args a;
        prepare_task attn;
        bool has_attn;
        pending_take(k, &a, &attn, &has_attn);
        prepare_run(k, &a);
    }
    if (w->has_gate) run_gate_alone(k);
    if (w->has_rope) {
        w->has_rope = false;
        rope_cuda(k, &w->rope);
    }
    d->tail_bytes = 0;
}

/* ---- holding back ---- */

static bool has_any(const cuda_pending *w) {
    return w->has_expand || w->has_mix || w->has_rope || w->has_attn || w->has_gate ||
           w->tasks.n_tasks > 0;
}

static size_t floats_of(int n_rows, int64_t stride, int n) {
    return n_rows == 0 ? 0 : (size_t)(n_rows - 1) * (size_t)stride + (size_t)n;
}

static bool depends(const prepare_task *t, const prepare_task *on) {
    const size_t x = floats_of(t->n_rows, t->x_stride, t->n),
                 y = floats_of(t->n_rows, t->y_stride, t->n);
    const size_t on_x = floats_of(on->n_rows, on->x_stride, on->n),
                 on_y = floats_of(on->n_rows, on->y_stride, on->n);
    return floats_overlap(t->x, x, on->y, on_y) || floats_overlap(t->y, y, on->x, on_x) ||
           floats_overlap(t->y, y, on->y, on_y);
}

/* Room for the sums of attention and the rows of a ring beside the tasks. */
enum { PENDING_MAX_TASKS = 4 };

void pending_add(kernel_context *k, const prepare_task *t) {
    cuda_pending *w = pending_of(k);
    bool is_free = !w->has_expand && !w->has_mix && !w->has_rope && !w->has_attn && !w->has_gate &&
                   w->tasks.n_tasks < PENDING_MAX_TASKS;
    for (int i = 0; i < w->tasks.n_tasks && is_free; i++)
        is_free = !depends(t, &w->tasks.tasks[i]);
    if (!is_free) cuda_settle(k);
    w->tasks.tasks[w->tasks.n_tasks++] = *t;
}

void rmsnorm_pending(kernel_context *k, const rmsnorm_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    prepare_task t = {};
    t.kind = PREPARE_ROWS, t.n_rows = a->n_rows, t.n = a->n;
    t.x = a->x, t.x_stride = (int64_t)a->x_stride, t.norm = a->weight, t.eps = a->eps;
    t.y = a->y, t.y_stride = (int64_t)a->y_stride;
    pending_add(k, &t);
}

static void set_rope(prepare_task *t, const rope_args *a) {
    t->rope = a->table, t->is_inverse = a->is_inverse, t->d_head = a->d_head, t->d_rope = a->d_rope;
}

/* The held task whose rows are x and that nothing but a norm was asked of so far. */
static prepare_task *task_of(cuda_pending *w, const float *x, size_t stride, int n_rows, int n) {
    for (int i = 0; i < w->tasks.n_tasks && !w->has_gate; i++) {
        prepare_task *t = &w->tasks.tasks[i];
        if (t->kind == PREPARE_ROWS && t->y == x && t->y_stride == (int64_t)stride &&
            t->n_rows == n_rows && t->n == n && t->packed == NULL)
            return t;
    }
    return NULL;
}

void rope_pending(kernel_context *k, const rope_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    cuda_pending *w = pending_of(k);
    const bool is_even_head = a->d_head % 4 == 0 && a->d_rope % 4 == 0;
    prepare_task *t = !is_even_head || a->n_heads != 1
                          ? NULL
                          : task_of(w, a->x, a->x_stride, a->n_rows, a->d_head);
    if (t != NULL && t->rope == NULL) {
        set_rope(t, a);
        return;
    }
    if (w->has_attn && is_even_head && w->attn.y == a->x && w->attn.rope == NULL &&
        w->attn.n_rows == a->n_rows && w->attn.y_stride == (int64_t)a->x_stride &&
        w->attn.n == a->n_heads * a->d_head) {
        set_rope(&w->attn, a);
        return;
    }
    cuda_settle(k);
    if (a->n_heads > 1 && !a->is_inverse) {
        w->rope = *a;
        w->has_rope = true;
        return;
    }
    rope_cuda(k, a);
}

void kv_pack_pending(kernel_context *k, const kv_pack_args *a) {
    if (k->rc != OK || a->n == 0) return;
    prepare_task *t = task_of(pending_of(k), a->x, a->x_stride, a->n, a->d);
    if (t == NULL || a->d % 32 != 0) {
        cuda_settle(k);
        kv_pack_cuda(k, a);
        return;
    }
    t->packed = a->rows;
    t->packed_bytes = (int64_t)a->row_bytes;
    t->format = a->format;
}

void kv_ring_write_pending(kernel_context *k, const kv_ring_write_args *a) {
    if (k->rc != OK || a->batch.n == 0) return;
    cuda_pending *w = pending_of(k);
    if (!w->has_attn || w->tasks.n_tasks > 0) {
        cuda_settle(k);
        kv_ring_write_cuda(k, a);
        return;
    }
    prepare_task t = {};
    t.kind = PREPARE_RING, t.n_rows = a->batch.n;
    w->tasks.ring = *a;
    w->tasks.tasks[w->tasks.n_tasks++] = t;
}

/* ---- the router of few rows ---- */

static bool is_of_gate(const prepare_task *t, const plain_job *gate) {
    return t->kind == PREPARE_ROWS && t->y == gate->x;
}

bool gate_pending(kernel_context *k, const plain_job *gate) {
    cuda_pending *w = pending_of(k);
    int n_norms = 0;
    if (k->rc != OK || w->has_expand || w->has_mix || w->has_rope || w->has_attn || w->has_gate)
        return false;
    for (int i = 0; i < w->tasks.n_tasks; i++) {
        prepare_task t = w->tasks.tasks[i];
        set_width(&t);
        const bool is_norm = is_of_gate(&t, gate);
        if (is_norm ? !gate_fits(k, gate, &t) : !gate_more_fits(gate, &t)) return false;
        n_norms += is_norm;
    }
    if (n_norms != 1) return false;
    w->gate = *gate;
    w->has_gate = true;
    return true;
}

/* Everything held goes into the launch: gate_pending has looked at it. */
static void run_gate(kernel_context *k, const router_args *a) {
    cuda_pending *w = pending_of(k);
    gate_args g = {};
    prepare_args tasks;
    prepare_task attn;
    bool has_attn;
    g.gate = w->gate, g.router = *a;
    g.words = (uint64_t *)cuda_of(k)->sums;
    w->has_gate = false;
    pending_take(k, &tasks, &attn, &has_attn);
    for (int i = 0; i < tasks.n_tasks; i++) {
        if (is_of_gate(&tasks.tasks[i], &g.gate)) {
            g.norm = tasks.tasks[i];
        } else {
            g.more.tasks[g.more.n_tasks++] = tasks.tasks[i];
        }
    }
    g.more.is_bf16 = tasks.is_bf16;
    g.more.mix = tasks.mix, g.more.dots = tasks.dots;
    g.more.n_slices = tasks.n_slices, g.more.dots_stride = tasks.dots_stride;
    gate_run(k, &g);
}

void router_pending(kernel_context *k, const router_args *a) {
    const cuda_pending *w = pending_of(k);
    if (k->rc == OK && w->has_gate && w->gate.y == a->logits && a->n_rows == w->gate.n_rows &&
        a->n_experts == w->gate.matrix.n_out && a->n_used <= 32 && a->n_used <= a->n_experts &&
        ((uintptr_t)a->bias & 7) == 0) {
        run_gate(k, a);
        return;
    }
    cuda_settle(k);
    router_cuda(k, a);
}

void mhc_expand_pending(kernel_context *k, const mhc_expand_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    cuda_settle(k);
    pending_of(k)->expand = *a;
    pending_of(k)->has_expand = true;
}

void mhc_mix_pending(kernel_context *k, const mhc_mix_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    cuda_pending *w = pending_of(k);
    const bool follows = w->has_expand && !w->has_mix && w->expand.h == a->h &&
                         w->expand.n_rows == a->n_rows && w->expand.n_streams == a->n_streams &&
                         w->expand.d == a->d;
    if (!follows && has_any(w)) cuda_settle(k);
    w->mix = *a;
    w->has_mix = true;
}

void mhc_collapse_pending(kernel_context *k, const mhc_collapse_args *a) {
    if (k->rc != OK || a->n_rows == 0) return;
    cuda_pending *w = pending_of(k);
    /* The weights of a collapse are never those of the mix before it: that mix is not complete. */
    const bool is_same =
        a->rows == NULL &&
        (!w->has_expand || (w->expand.h == a->h && w->expand.n_rows == a->n_rows)) &&
        (!w->has_mix || (w->mix.h == a->h && w->mix.n_rows == a->n_rows && w->mix.pre != a->pre));
    if (!is_same || w->has_rope || w->has_attn || w->tasks.n_tasks > 0) cuda_settle(k);
    run_streams(k, a);
}
