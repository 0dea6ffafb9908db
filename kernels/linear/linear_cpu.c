#include <string.h>

#include "engine/base/mem.h"

#include "kernels/linear/linear.h"
#include "kernels/vec/vec.h"

/* Outputs of one work item, and the multiply-adds below which a plain run is not worth a fork. */
enum { LINEAR_ITEM_OUTPUTS = 32, LINEAR_INLINE_COST = 30000, LINEAR_ITEM_ROWS = 64 };

typedef struct plain_run {
    const linear_job *const *jobs;
    const int *first_item; /* [n_jobs + 1] */
    int n_jobs;
} plain_run;

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t)63;
}

static size_t plain_bytes(int n_jobs) {
    size_t n = (size_t)n_jobs;
    return align64(n * sizeof(exl3_job)) + align64(n * sizeof(linear_job *)) +
           align64((n + 1) * sizeof(int));
}

size_t linear_scratch_bytes(int n_jobs, int n_rows, int max_in) {
    return plain_bytes(n_jobs) + align64(exl3_scratch_bytes(n_jobs, n_rows, max_in));
}

static int row_pieces(const linear_job *j) {
    return (j->n_rows + LINEAR_ITEM_ROWS - 1) / LINEAR_ITEM_ROWS;
}

static int out_pieces(const linear_job *j) {
    return (j->weight->n_out + LINEAR_ITEM_OUTPUTS - 1) / LINEAR_ITEM_OUTPUTS;
}

static const float *input_row(const linear_job *j, int i) {
    size_t row = j->x_rows == NULL ? (size_t)i : (size_t)j->x_rows[i];
    return j->x + row * j->x_stride;
}

static void plain_block(const linear_job *j, int out0, int out1, int row0, int row1) {
    const linear_weight *w = j->weight;
    const vec_ops *v = vec();
    for (int r = row0; r < row1; r += VEC_MAX_ROWS) {
        int n = row1 - r < VEC_MAX_ROWS ? row1 - r : VEC_MAX_ROWS;
        const float *x[VEC_MAX_ROWS];
        float y[VEC_MAX_ROWS];
        for (int i = 0; i < n; i++) {
            x[i] = input_row(j, r + i);
        }
        for (int o = out0; o < out1; o++) {
            size_t at = (size_t)o * w->row_stride;
            if (w->form == MATRIX_BF16) {
                v->dot_rows_bf16((const uint16_t *)w->data + at, x, n, w->n_in, y);
            } else {
                v->dot_rows((const float *)w->data + at, x, n, w->n_in, y);
            }
            for (int i = 0; i < n; i++) {
                j->y[(size_t)(r + i) * j->y_stride + (size_t)o] = y[i];
            }
        }
    }
}

static void plain_item(void *ctx, int i_item, int i_thread) {
    const plain_run *p = ctx;
    (void)i_thread;
    int low = 0, high = p->n_jobs;
    while (high - low > 1) {
        int mid = (low + high) / 2;
        if (p->first_item[mid] <= i_item) {
            low = mid;
        } else {
            high = mid;
        }
    }
    const linear_job *j = p->jobs[low];
    int i = i_item - p->first_item[low];
    int out0 = i / row_pieces(j) * LINEAR_ITEM_OUTPUTS, row0 = i % row_pieces(j) * LINEAR_ITEM_ROWS;
    int out1 = out0 + LINEAR_ITEM_OUTPUTS, row1 = row0 + LINEAR_ITEM_ROWS;
    if (out1 > j->weight->n_out) {
        out1 = j->weight->n_out;
    }
    if (row1 > j->n_rows) {
        row1 = j->n_rows;
    }
    plain_block(j, out0, out1, row0, row1);
}

static void run_plain(kernel_context *k, const plain_run *p, size_t cost) {
    if (p->n_jobs == 0) {
        return;
    }
    pool *workers = cost < LINEAR_INLINE_COST ? NULL : k->workers;
    pool_run(workers, p->first_item[p->n_jobs], plain_item, (void *)(uintptr_t)p);
}

static void round_outputs(kernel_context *k, const linear_args *a) {
    if (!k->is_bf16) {
        return;
    }
    for (int i = 0; i < a->n_jobs; i++) {
        const linear_job *j = &a->jobs[i];
        for (int r = 0; r < j->n_rows && !j->keeps_f32; r++) {
            context_round(k, j->y + (size_t)r * j->y_stride, (size_t)j->weight->n_out);
        }
    }
}

void linear_run(kernel_context *k, const linear_args *a) {
    if (k->rc != OK) {
        return;
    }
    CHECK(a->n_jobs <= LINEAR_MAX_JOBS && plain_bytes(a->n_jobs) <= k->scratch_bytes);
    size_t n_jobs = (size_t)a->n_jobs, cost = 0;
    char *at = k->scratch;
    exl3_job *packed = (exl3_job *)(void *)at;
    at += align64(n_jobs * sizeof(exl3_job));
    const linear_job **plain = (const linear_job **)(void *)at;
    at += align64(n_jobs * sizeof(linear_job *));
    int *first_item = (int *)(void *)at;
    at += align64((n_jobs + 1) * sizeof(int));
    int n_packed = 0, n_plain = 0, n_items = 0;
    for (int i = 0; i < a->n_jobs; i++) {
        const linear_job *j = &a->jobs[i];
        if (j->n_rows == 0) {
            continue;
        }
        if (j->weight->form == MATRIX_EXL3) {
            packed[n_packed++] = (exl3_job){.linear = j->weight->packed,
                .x = j->x,
                .x_stride = j->x_stride,
                .x_rows = j->x_rows,
                .y = j->y,
                .y_stride = j->y_stride,
                .n_rows = j->n_rows};
            continue;
        }
        plain[n_plain] = j;
        first_item[n_plain++] = n_items;
        n_items += row_pieces(j) * out_pieces(j);
        cost += (size_t)j->n_rows * (size_t)j->weight->n_out * (size_t)j->weight->n_in;
    }
    first_item[n_plain] = n_items;
    plain_run p = {plain, first_item, n_plain};
    run_plain(k, &p, cost);
    exl3_run_args e = {.jobs = packed, .n_jobs = n_packed, .pool = k->workers};
    if (n_packed > 0) {
        exl3_grouped_run(&e, at);
    }
    round_outputs(k, a);
}
