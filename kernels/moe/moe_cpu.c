#include <string.h>

#include "engine/base/mem.h"
#include "kernels/moe/moe.h"
#include "kernels/vec/vec.h"

/* Work space of one run. A pair is one row at one expert; pairs of an expert are contiguous, the
 * shared expert's rows come last. */
typedef struct moe_work {
    int32_t *first;     /* [n_experts + 1] first pair of each expert */
    int32_t *pair_row;  /* [n_pairs] */
    float *pair_weight; /* [n_pairs] */
    int32_t *row_pair;  /* [n_rows][n_used] pairs of a row in expert order */
    float *gate, *up;   /* [n_pairs + n_rows][n_ff] */
    float *down;        /* [n_pairs + n_rows][d] */
    linear_job *jobs;
} moe_work;

static void *carve(char **at, size_t bytes) {
    void *p = *at;
    *at += (bytes + 63) & ~(size_t)63;
    return p;
}

int moe_max_jobs(int n_rows, int n_experts, int n_used) {
    int n_pairs = n_rows * n_used;
    return 2 * ((n_pairs < n_experts ? n_pairs : n_experts) + 1);
}

static size_t lay_out(moe_work *w, char *base, const moe_args *a) {
    char *at = base;
    size_t pairs = (size_t)a->n_rows * (size_t)a->n_used, rows = pairs + (size_t)a->n_rows;
    w->first = carve(&at, ((size_t)a->n_experts + 1) * sizeof(int32_t));
    w->pair_row = carve(&at, pairs * sizeof(int32_t));
    w->pair_weight = carve(&at, pairs * sizeof(float));
    w->row_pair = carve(&at, pairs * sizeof(int32_t));
    w->gate = carve(&at, rows * (size_t)a->n_ff * sizeof(float));
    w->up = carve(&at, rows * (size_t)a->n_ff * sizeof(float));
    w->down = carve(&at, rows * (size_t)a->d * sizeof(float));
    int n_jobs = moe_max_jobs(a->n_rows, a->n_experts, a->n_used);
    w->jobs = carve(&at, (size_t)n_jobs * sizeof(linear_job));
    return (size_t)(at - base);
}

size_t moe_work_bytes(int n_rows, int n_experts, int n_used, int d, int n_ff) {
    moe_args a = {.n_rows = n_rows, .n_experts = n_experts, .n_used = n_used, .d = d, .n_ff = n_ff};
    moe_work w;
    return lay_out(&w, NULL, &a);
}

/* Sorts the pairs by expert (counting sort) and notes each row's pairs in expert order. */
static void group_pairs(const moe_args *a, moe_work *w) {
    int n_pairs = a->n_rows * a->n_used;
    memset(w->first, 0, ((size_t)a->n_experts + 1) * sizeof(int32_t));
    for (int i = 0; i < n_pairs; i++) {
        w->first[a->expert[i] + 1]++;
    }
    for (int e = 0; e < a->n_experts; e++) {
        w->first[e + 1] += w->first[e];
    }
    for (int i = 0; i < n_pairs; i++) {
        int32_t p = w->first[a->expert[i]]++;
        w->pair_row[p] = i / a->n_used;
        w->pair_weight[p] = a->weight[i];
    }
    for (int e = a->n_experts; e > 0; e--) {
        w->first[e] = w->first[e - 1];
    }
    w->first[0] = 0;
    for (int r = 0; r < a->n_rows; r++) {
        for (int i = 0; i < a->n_used; i++) {
            w->row_pair[r * a->n_used + i] = -1;
        }
    }
    for (int32_t p = 0; p < n_pairs; p++) {
        int32_t *list = w->row_pair + w->pair_row[p] * a->n_used;
        while (*list >= 0) {
            list++;
        }
        *list = p;
    }
}

static int add_job(moe_work *w, int n, const linear_weight *weight, linear_job job) {
    job.weight = weight;
    w->jobs[n] = job;
    return n + 1;
}

static void run_gate_up(kernel_context *k, const moe_args *a, moe_work *w) {
    size_t ff = (size_t)a->n_ff, d = (size_t)a->d;
    int n = 0;
    for (int e = 0; e <= a->n_experts; e++) {
        bool is_shared = e == a->n_experts;
        int32_t first = is_shared ? a->n_rows * a->n_used : w->first[e];
        int n_rows = is_shared ? a->n_rows : w->first[e + 1] - first;
        if (n_rows == 0) {
            continue;
        }
        const expert_weights *x = is_shared ? a->shared : &a->experts[e];
        linear_job job = {.x = a->x,
            .x_stride = d,
            .x_rows = is_shared ? NULL : w->pair_row + first,
            .y_stride = ff,
            .n_rows = n_rows};
        job.y = w->gate + (size_t)first * ff;
        n = add_job(w, n, &x->w1, job);
        job.y = w->up + (size_t)first * ff;
        n = add_job(w, n, &x->w3, job);
    }
    linear_run(k, &(linear_args){w->jobs, n});
}

typedef struct act_job {
    const moe_args *a;
    const moe_work *w;
    const kernel_context *k;
} act_job;

static void act_rows(const void *args, int first, int n, int i_thread) {
    const act_job *j = args;
    int ff = j->a->n_ff;
    (void)i_thread;
    for (int p = first; p < first + n; p++) {
        float weight = p < j->a->n_rows * j->a->n_used ? j->w->pair_weight[p] : 1.0f;
        float *g = j->w->gate + (size_t)p * (size_t)ff;
        vec()->swiglu(g, j->w->up + (size_t)p * (size_t)ff, j->a->limit, weight, ff);
        context_round(j->k, g, (size_t)ff);
    }
}

static void run_down(kernel_context *k, const moe_args *a, moe_work *w) {
    size_t ff = (size_t)a->n_ff, d = (size_t)a->d;
    int n = 0;
    for (int e = 0; e <= a->n_experts; e++) {
        bool is_shared = e == a->n_experts;
        int32_t first = is_shared ? a->n_rows * a->n_used : w->first[e];
        int n_rows = is_shared ? a->n_rows : w->first[e + 1] - first;
        if (n_rows == 0) {
            continue;
        }
        linear_job job = {.x = w->gate + (size_t)first * ff,
            .x_stride = ff,
            .y_stride = d,
            .y = w->down + (size_t)first * d,
            .n_rows = n_rows};
        n = add_job(w, n, is_shared ? &a->shared->w2 : &a->experts[e].w2, job);
    }
    linear_run(k, &(linear_args){w->jobs, n});
}

static void sum_rows(const void *args, int first, int n, int i_thread) {
    const act_job *j = args;
    const moe_args *a = j->a;
    size_t d = (size_t)a->d;
    (void)i_thread;
    for (int r = first; r < first + n; r++) {
        float *out = a->out + (size_t)r * d;
        const int32_t *list = j->w->row_pair + (size_t)r * (size_t)a->n_used;
        memcpy(out, j->w->down + (size_t)list[0] * d, d * sizeof(float));
        for (int i = 1; i < a->n_used; i++) {
            vec()->axpy(out, j->w->down + (size_t)list[i] * d, 1.0f, a->d);
        }
        size_t shared = (size_t)(a->n_rows * a->n_used + r);
        vec()->axpy(out, j->w->down + shared * d, 1.0f, a->d);
    }
}

void moe_run(kernel_context *k, const moe_args *a) {
    if (k->rc != OK || a->n_rows == 0) {
        return;
    }
    moe_work w;
    (void)lay_out(&w, a->work, a);
    group_pairs(a, &w);
    run_gate_up(k, a, &w);
    act_job j = {a, &w, k};
    rows_run(k, a->n_rows * (a->n_used + 1), (size_t)a->n_ff * 20, act_rows, &j);
    run_down(k, a, &w);
    rows_run(k, a->n_rows, (size_t)a->d * (size_t)(a->n_used + 1), sum_rows, &j);
}
