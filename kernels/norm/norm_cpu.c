#include <math.h>

#include "kernels/norm/norm.h"
#include "kernels/vec/vec.h"

typedef struct norm_job {
    const rmsnorm_args *a;
    const kernel_context *k;
} norm_job;

void rmsnorm_row(const float *x, const float *weight, int n, float eps, float *y) {
    float mean = vec()->sum_squares(x, n) / (float)n;
    vec()->scale(y, x, weight, 1.0f / sqrtf(mean + eps), n);
}

static void norm_rows(const void *args, int first, int n, int i_thread) {
    const norm_job *j = args;
    const rmsnorm_args *a = j->a;
    (void)i_thread;
    for (int i = first; i < first + n; i++) {
        float *y = a->y + (size_t)i * a->y_stride;
        rmsnorm_row(a->x + (size_t)i * a->x_stride, a->weight, a->n, a->eps, y);
        context_round(j->k, y, (size_t)a->n);
    }
}

void rmsnorm_run(kernel_context *k, const rmsnorm_args *a) {
    norm_job j = {a, k};
    rows_run(k, a->n_rows, (size_t)a->n, norm_rows, &j);
}
