/* The loops of vec.h, compiled once per instruction set: the including file defines VEC_NAME (a
 * string) and VEC_OPS (the
 * table's name). Vector types of the compiler only, so the order of every sum is the same
 * everywhere. */
#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/head/weight.h"
#include "kernels/vec/vec.h"

typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef uint32_t u32x8 __attribute__((vector_size(32)));
typedef uint16_t u16x8 __attribute__((vector_size(16)));

/* Vectors are passed between inline functions of this file only. */
#pragma GCC diagnostic ignored "-Wpsabi"

#define LOAD8(v, p) memcpy(&(v), (p), 32)

#define LOAD8_BF16(v, p)                                                                           \
    do {                                                                                           \
        u16x8 half_;                                                                               \
        memcpy(&half_, (p), 16);                                                                   \
        u32x8 wide_ = __builtin_convertvector(half_, u32x8) << 16;                                 \
        memcpy(&(v), &wide_, 32);                                                                  \
    } while (0)

/* The fixed tree over sixteen lanes: lanes 8 apart, then 4, 2 and 1. */
#define REDUCE(a, b, out)                                                                          \
    do {                                                                                           \
        f32x8 s_ = (a) + (b);                                                                      \
        f32x4 t_ = __builtin_shufflevector(s_, s_, 0, 1, 2, 3) +                                   \
                   __builtin_shufflevector(s_, s_, 4, 5, 6, 7);                                    \
        t_ += __builtin_shufflevector(t_, t_, 2, 3, 0, 1);                                         \
        (out) = t_[0] + t_[1];                                                                     \
    } while (0)

static float loop_dot(const float *a, const float *b, int n) {
    f32x8 s0 = {0}, s1 = {0}, x, y;
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        LOAD8(x, a + i);
        LOAD8(y, b + i);
        s0 += x * y;
        LOAD8(x, a + i + 8);
        LOAD8(y, b + i + 8);
        s1 += x * y;
    }
    float sum;
    REDUCE(s0, s1, sum);
    for (; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

#define DOT_ROWS(NAME, TYPE, LOAD, ONE)                                                            \
    static void NAME##_4(const TYPE *w, const float *const *x, int n, float *y) {                  \
        const float *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];                                \
        f32x8 a0 = {0}, a1 = {0}, b0 = {0}, b1 = {0}, c0 = {0}, c1 = {0}, d0 = {0}, d1 = {0};      \
        f32x8 u, v, p;                                                                             \
        int i = 0;                                                                                 \
        for (; i + 16 <= n; i += 16) {                                                             \
            LOAD(u, w + i);                                                                        \
            LOAD(v, w + i + 8);                                                                    \
            LOAD8(p, x0 + i);                                                                      \
            a0 += u * p;                                                                           \
            LOAD8(p, x0 + i + 8);                                                                  \
            a1 += v * p;                                                                           \
            LOAD8(p, x1 + i);                                                                      \
            b0 += u * p;                                                                           \
            LOAD8(p, x1 + i + 8);                                                                  \
            b1 += v * p;                                                                           \
            LOAD8(p, x2 + i);                                                                      \
            c0 += u * p;                                                                           \
            LOAD8(p, x2 + i + 8);                                                                  \
            c1 += v * p;                                                                           \
            LOAD8(p, x3 + i);                                                                      \
            d0 += u * p;                                                                           \
            LOAD8(p, x3 + i + 8);                                                                  \
            d1 += v * p;                                                                           \
        }                                                                                          \
        REDUCE(a0, a1, y[0]);                                                                      \
        REDUCE(b0, b1, y[1]);                                                                      \
        REDUCE(c0, c1, y[2]);                                                                      \
        REDUCE(d0, d1, y[3]);                                                                      \
        for (; i < n; i++) {                                                                       \
            float t = ONE(w[i]);                                                                   \
            y[0] += t * x0[i];                                                                     \
            y[1] += t * x1[i];                                                                     \
            y[2] += t * x2[i];                                                                     \
            y[3] += t * x3[i];                                                                     \
        }                                                                                          \
    }                                                                                              \
    static void NAME##_1(const TYPE *w, const float *x, int n, float *y) {                         \
        f32x8 s0 = {0}, s1 = {0}, u, p;                                                            \
        int i = 0;                                                                                 \
        for (; i + 16 <= n; i += 16) {                                                             \
            LOAD(u, w + i);                                                                        \
            LOAD8(p, x + i);                                                                       \
            s0 += u * p;                                                                           \
            LOAD(u, w + i + 8);                                                                    \
            LOAD8(p, x + i + 8);                                                                   \
            s1 += u * p;                                                                           \
        }                                                                                          \
        REDUCE(s0, s1, *y);                                                                        \
        for (; i < n; i++) {                                                                       \
            *y += ONE(w[i]) * x[i];                                                                \
        }                                                                                          \
    }                                                                                              \
    static void NAME(const TYPE *w, const float *const *x, int n_rows, int n, float *y) {          \
        if (n_rows == VEC_MAX_ROWS) {                                                              \
            NAME##_4(w, x, n, y);                                                                  \
            return;                                                                                \
        }                                                                                          \
        for (int r = 0; r < n_rows; r++) {                                                         \
            NAME##_1(w, x[r], n, y + r);                                                           \
        }                                                                                          \
    }

#define SAME(v) (v)
DOT_ROWS(loop_dot_rows, float, LOAD8, SAME)
DOT_ROWS(loop_dot_rows_bf16, uint16_t, LOAD8_BF16, bf16_to_float)

static void loop_axpy(float *y, const float *x, float a, int n) {
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        f32x8 p, q;
        LOAD8(p, x + i);
        LOAD8(q, y + i);
        q += p * a;
        memcpy(y + i, &q, 32);
    }
    for (; i < n; i++) {
        y[i] += x[i] * a;
    }
}

static void loop_scale(float *y, const float *x, const float *w, float r, int n) {
    if (w == NULL) {
        for (int i = 0; i < n; i++) {
            y[i] = x[i] * r;
        }
        return;
    }
    for (int i = 0; i < n; i++) {
        y[i] = w[i] * (x[i] * r);
    }
}

static float loop_sum_squares(const float *x, int n) {
    return loop_dot(x, x, n);
}

static float loop_max_abs(const float *x, int n) {
    uint32_t most = 0;
    for (int i = 0; i < n; i++) {
        uint32_t u = float_bits(x[i]) & 0x7fffffffu;
        most = u > most ? u : most;
    }
    return float_from_bits(most);
}

#include "kernels/vec/vec_math.h"

const vec_ops VEC_OPS = {
    .name = VEC_NAME,
    .dot = loop_dot,
    .dot_rows = loop_dot_rows,
    .dot_rows_bf16 = loop_dot_rows_bf16,
    .axpy = loop_axpy,
    .scale = loop_scale,
    .sum_squares = loop_sum_squares,
    .max_abs = loop_max_abs,
    .exp_sum = loop_exp_sum,
    .weigh = loop_weigh,
    .scale_max = loop_scale_max,
    .swiglu = loop_swiglu,
    .sum_rows = loop_sum_rows,
    .combine = loop_combine,
    .from_e4m3 = loop_from_e4m3,
    .from_e2m1 = loop_from_e2m1,
};
