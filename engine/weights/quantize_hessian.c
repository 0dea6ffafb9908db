#include <math.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/weights/quantize_internal.h"

enum { BLOCK = EXL3_BLOCK, STEP = EXL3_TILE, MAX_TRIES = 12 };
static const double DAMPING = 0.025;
static const double MORE_DAMPING = 0.05;

static double *at(double *m, int n, int r, int c) {
    return m + (size_t)r * (size_t)n + (size_t)c;
}

static double mean_diagonal(const double *m, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) {
        sum += m[(size_t)i * (size_t)n + (size_t)i];
    }
    return sum / n;
}

static void add_diagonal(double *m, int n, double value) {
    for (int i = 0; i < n; i++) {
        *at(m, n, i, i) += value;
    }
}

int quantize_hessian_init(quantize_job *j, err *e) {
    const quantize_matrix_args *a = j->args;
    size_t n = (size_t)j->in;
    if (a->hessian_sum == NULL || a->hessian_rows <= 0) return OK;
    j->hessian = mem_try_alloc(n * n * sizeof *j->hessian);
    if (j->hessian == NULL)
        return err_set(e, ERR_MEMORY, "no memory for a Hessian of %zu x %zu", n, n);
    for (int r = 0; r < a->in; r++) {
        for (int c = 0; c < a->in; c++) {
            *at(j->hessian, j->in, r, c) =
                (double)a->hessian_sum[(size_t)r * (size_t)a->in + (size_t)c] /
                (double)a->hessian_rows;
        }
    }
    double mean = mean_diagonal(j->hessian, j->in);
    if (!isfinite(mean) || mean < 1e-20) {
        mem_free(j->hessian);
        j->hessian = NULL;
        return OK;
    }
    add_diagonal(j->hessian, j->in, DAMPING * mean);
    return OK;
}

/* H := Hblk (su su^T * H) Hblk with only the signs of su. */
static void rotate(quantize_job *j) {
    int n = j->in;
    double column[BLOCK];
    for (int r = 0; r < n; r++) {
        for (int c = 0; c < n; c++) {
            bool is_negative = (j->su[r] < 0.0f) != (j->su[c] < 0.0f);
            *at(j->hessian, n, r, c) *= is_negative ? -1.0 : 1.0;
        }
        for (int c = 0; c < n; c += BLOCK) {
            exl3_hadamard_128_double(at(j->hessian, n, r, c));
        }
    }
    for (int b = 0; b < n; b += BLOCK) {
        for (int c = 0; c < n; c++) {
            for (int r = 0; r < BLOCK; r++) {
                column[r] = *at(j->hessian, n, b + r, c);
            }
            exl3_hadamard_128_double(column);
            for (int r = 0; r < BLOCK; r++) {
                *at(j->hessian, n, b + r, c) = column[r];
            }
        }
    }
}

/* In-place Cholesky of the lower triangle; false when a pivot is not positive. */
static bool cholesky(double *m, int n) {
    for (int r = 0; r < n; r++) {
        double *row = at(m, n, r, 0);
        for (int c = 0; c <= r; c++) {
            const double *other = at(m, n, c, 0);
            double sum = row[c];
            for (int i = 0; i < c; i++) {
                sum -= row[i] * other[i];
            }
            if (c < r) {
                row[c] = sum / other[c];
            } else if (sum > 0.0 && isfinite(sum)) {
                row[c] = sqrt(sum);
            } else {
                return false;
            }
        }
    }
    return true;
}

/* Solves x := x D^-1 for one row, D the lower triangular diagonal block at b. */
static void divide_by_block(const double *m, int n, int b, const double *x, float *out) {
    double y[STEP];
    for (int c = STEP - 1; c >= 0; c--) {
        double sum = x[c];
        for (int i = c + 1; i < STEP; i++) {
            sum -= y[i] * m[(size_t)(b + i) * (size_t)n + (size_t)(b + c)];
        }
        y[c] = sum / m[(size_t)(b + c) * (size_t)n + (size_t)(b + c)];
    }
    for (int c = 0; c < STEP; c++) {
        out[c] = (float)y[c];
    }
}

int quantize_hessian_factor(quantize_job *j, err *e) {
    size_t n = (size_t)j->in;
    bool is_done = false;
    if (j->hessian == NULL) return OK;
    rotate(j);
    double *c = mem_try_alloc(n * n * sizeof *c);
    j->feedback = mem_try_alloc(n * n * sizeof *j->feedback);
    if (c == NULL || j->feedback == NULL) {
        mem_free(c);
        return err_set(e, ERR_MEMORY, "no memory to factor a Hessian of %zu x %zu", n, n);
    }
    for (int i = 0; i < MAX_TRIES && !is_done; i++) {
        if (i > 0) {
            add_diagonal(j->hessian, j->in, MORE_DAMPING * mean_diagonal(j->hessian, j->in));
        }
        memcpy(c, j->hessian, n * n * sizeof *c);
        is_done = cholesky(c, j->in);
    }
    for (int b = 0; b < j->in && is_done; b += STEP) {
        for (int r = b + STEP; r < j->in; r++) {
            divide_by_block(
                c, j->in, b, at(c, j->in, r, b), j->feedback + (size_t)r * n + (size_t)b);
        }
    }
    mem_free(c);
    return is_done
               ? OK
               : err_set(e, ERR_FORMAT, "the Hessian is not positive definite even with damping");
}

/* tr(X^T H X) for one block of columns: sum over columns of x^T H x. */
static double quadratic(const quantize_job *j, const float *x, double *product) {
    double sum = 0.0;
    size_t out = (size_t)j->out;
    for (int r = 0; r < j->in; r++) {
        memset(product, 0, out * sizeof *product);
        for (int i = 0; i < j->in; i++) {
            double h = j->hessian[(size_t)r * (size_t)j->in + (size_t)i];
            const float *row = x + (size_t)i * out;
            for (size_t c = 0; c < out; c++) {
                product[c] += h * (double)row[c];
            }
        }
        for (size_t c = 0; c < out; c++) {
            sum += product[c] * (double)x[(size_t)r * out + c];
        }
    }
    return sum;
}

static double square(const float *x, size_t n) {
    double sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    return sum;
}

double quantize_proxy(const quantize_job *j, const float *e) {
    size_t n = (size_t)j->in * (size_t)j->out;
    if (j->hessian == NULL) {
        double all = square(j->w, n);
        return all > 0.0 ? square(e, n) / all : 0.0;
    }
    double *product = mem_array((size_t)j->out, sizeof *product);
    double all = quadratic(j, j->w, product);
    double r = all > 0.0 ? quadratic(j, e, product) / all : 0.0;
    mem_free(product);
    return r;
}
