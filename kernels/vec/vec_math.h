/* The second half of vec_loops.h, included by it: exponentials, weighted sums of rows, decoding of
 * small floats. Same rule: vector types only, every value by the same operations in the same order
 * in every variant. */

typedef int32_t s32x8 __attribute__((vector_size(32)));
typedef uint64_t u64x2 __attribute__((vector_size(16)));
typedef uint64_t u64x4 __attribute__((vector_size(32)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));

static inline f32x8 all8(float v) {
    return (f32x8){v, v, v, v, v, v, v, v};
}

/* a where mask is set (all bits), else b. */
static inline f32x8 pick8(s32x8 mask, f32x8 a, f32x8 b) {
    return (f32x8)((mask & (s32x8)a) | (~mask & (s32x8)b));
}

/* e^x: x = n ln 2 + r with |r| <= ln 2 / 2, e^r by a polynomial (interpolation of (e^r - 1 - r) / r^2
 * at the Chebyshev points of that range, relative error 1e-8). Returns e^r. */
static inline f32x8 exp8_parts(f32x8 x, s32x8 *n) {
    const f32x8 round = all8(12582912.0f); /* 1.5 * 2^23: the sum's low bits are the integer */
    f32x8 t = x * all8(0x1.715476p+0f);
    t = t + round;
    *n = (s32x8)t - 0x4B400000;
    t = t - round;
    f32x8 r = x - t * all8(0x1.62p-1f);
    r = r - t * all8(0x1.c85fep-10f);
    f32x8 p = r * all8(0x1.6d113cp-10f) + all8(0x1.120ba2p-7f);
    p = p * r + all8(0x1.55551ap-5f);
    p = p * r + all8(0x1.5554dcp-3f);
    p = p * r + all8(0.5f);
    return (p * (r * r) + r) + all8(1.0f);
}

/* 2^n in two factors so that the ends of the range come out right. */
static inline f32x8 exp8(f32x8 x) {
    s32x8 n;
    x = pick8(x < all8(-104.0f), all8(-104.0f), x);
    x = pick8(x > all8(89.0f), all8(89.0f), x);
    f32x8 y = exp8_parts(x, &n);
    s32x8 half = n >> 1;
    f32x8 low = (f32x8)((half + 127) << 23), high = (f32x8)((n - half + 127) << 23);
    return y * low * high;
}

/* weight_of of kernels/head for eight values, added to two times four sums: halves of 64-bit lanes. */
static inline void weigh8(f32x8 x, u64x4 *even, u64x4 *odd) {
    s32x8 n;
    x = pick8(x > all8(WEIGHT_X_MIN), x, all8(WEIGHT_X_MIN));
    f32x8 y = exp8_parts(x, &n);
    u64x4 m = (u64x4) __builtin_convertvector(y * all8(0x1p+24f), s32x8), down = (u64x4)-n;
    *even += (m & 0xffffffffu) << (WEIGHT_ONE_BITS - 24) >> (down & 0xffffffffu);
    *odd += m >> 32 << (WEIGHT_ONE_BITS - 24) >> (down >> 32);
}

static uint64_t loop_weigh(const float *x, float most, int n) {
    u64x4 even = {0}, odd = {0};
    f32x8 v;
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        LOAD8(v, x + i);
        weigh8(v - all8(most), &even, &odd);
    }
    even += odd;
    uint64_t sum = even[0] + even[1] + even[2] + even[3];
    for (; i < n; i++) {
        sum += weight_of(x[i] - most);
    }
    return sum;
}

/* Sixteen values at p, or the n there are with `rest` behind them. */
static inline void load_tail(float tail[16], const float *p, int n, float rest) {
    for (int i = 0; i < 16; i++) {
        tail[i] = i < n ? p[i] : rest;
    }
}

static float loop_exp_sum(float *x, float most, int n) {
    f32x8 s0 = all8(0.0f), s1 = s0, m = all8(most), v;
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        LOAD8(v, x + i);
        v = exp8(v - m);
        s0 += v;
        memcpy(x + i, &v, 32);
        LOAD8(v, x + i + 8);
        v = exp8(v - m);
        s1 += v;
        memcpy(x + i + 8, &v, 32);
    }
    if (i < n) {
        float tail[16];
        load_tail(tail, x + i, n - i, -INFINITY);
        LOAD8(v, tail);
        v = exp8(v - m);
        s0 += v;
        memcpy(tail, &v, 32);
        LOAD8(v, tail + 8);
        v = exp8(v - m);
        s1 += v;
        memcpy(tail + 8, &v, 32);
        memcpy(x + i, tail, (size_t)(n - i) * sizeof(float));
    }
    float sum;
    REDUCE(s0, s1, sum);
    return sum;
}

static float loop_scale_max(float *x, float scale, float floor, int n) {
    f32x8 best = all8(floor), factor = all8(scale), v;
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        LOAD8(v, x + i);
        v = v * factor;
        memcpy(x + i, &v, 32);
        best = pick8(v > best, v, best);
    }
    float most = floor;
    for (int l = 0; l < 8; l++) {
        most = best[l] > most ? best[l] : most;
    }
    for (; i < n; i++) {
        x[i] = x[i] * scale;
        most = x[i] > most ? x[i] : most;
    }
    return most;
}

static inline f32x8 swiglu8(f32x8 g, f32x8 u, float limit, float weight) {
    const f32x8 top = all8(limit), bottom = all8(-limit);
    g = pick8(g > top, top, g);
    u = pick8(u > top, top, pick8(u < bottom, bottom, u));
    return all8(weight) * (g / (all8(1.0f) + exp8(-g)) * u);
}

static void loop_swiglu(float *gate, const float *up, float limit, float weight, int n) {
    f32x8 g, u;
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        LOAD8(g, gate + i);
        LOAD8(u, up + i);
        g = swiglu8(g, u, limit, weight);
        memcpy(gate + i, &g, 32);
    }
    if (i == n) {
        return;
    }
    float tail[2][16];
    load_tail(tail[0], gate + i, n - i, 0.0f);
    load_tail(tail[1], up + i, n - i, 0.0f);
    LOAD8(g, tail[0]);
    LOAD8(u, tail[1]);
    g = swiglu8(g, u, limit, weight);
    memcpy(tail[0], &g, 32);
    memcpy(gate + i, tail[0], (size_t)(n - i) * sizeof(float));
}

static inline const float *row_at(const float *rows, const int32_t *index, int i, int n) {
    return rows + (size_t)(index == NULL ? i : index[i]) * (size_t)n;
}

/* Columns c .. c + 31. */
static inline void sum_columns(
    float *y, const float *rows, const int32_t *index, const float *w, int n_rows, int n) {
    f32x8 a, b, c, d, p;
    LOAD8(a, y);
    LOAD8(b, y + 8);
    LOAD8(c, y + 16);
    LOAD8(d, y + 24);
    for (int i = 0; i < n_rows; i++) {
        const float *row = row_at(rows, index, i, n);
        LOAD8(p, row);
        a += p * w[i];
        LOAD8(p, row + 8);
        b += p * w[i];
        LOAD8(p, row + 16);
        c += p * w[i];
        LOAD8(p, row + 24);
        d += p * w[i];
    }
    memcpy(y, &a, 32);
    memcpy(y + 8, &b, 32);
    memcpy(y + 16, &c, 32);
    memcpy(y + 24, &d, 32);
}

static void loop_sum_rows(
    float *y, const float *rows, const int32_t *index, const float *w, int n_rows, int n) {
    int c = 0;
    for (; c + 32 <= n; c += 32) {
        if (index == NULL) {
            sum_columns(y + c, rows + c, NULL, w, n_rows, n);
        } else {
            sum_columns(y + c, rows + c, index, w, n_rows, n);
        }
    }
    for (; c < n; c++) {
        for (int i = 0; i < n_rows; i++) {
            y[c] += row_at(rows, index, i, n)[c] * w[i];
        }
    }
}

static void loop_combine(float *y, const float *const *x, const float *w, int n_x, int n) {
    int c = 0;
    for (; c + 8 <= n; c += 8) {
        f32x8 s, p;
        LOAD8(s, x[0] + c);
        s *= w[0];
        for (int i = 1; i < n_x; i++) {
            LOAD8(p, x[i] + c);
            s += p * w[i];
        }
        memcpy(y + c, &s, 32);
    }
    for (; c < n; c++) {
        float s = x[0][c] * w[0];
        for (int i = 1; i < n_x; i++) {
            s += x[i][c] * w[i];
        }
        y[c] = s;
    }
}

/* Eight bytes to eight integers, over 16 bits: the compilers convert from bytes one by one. */
static inline s32x8 widen8(const uint8_t *p) {
    uint64_t eight;
    memcpy(&eight, p, 8);
    u8x16 bytes = (u8x16)(u64x2){eight, 0}, none = {0};
    u8x16 pairs = __builtin_shufflevector(
        bytes, none, 0, 16, 1, 16, 2, 16, 3, 16, 4, 16, 5, 16, 6, 16, 7, 16);
    u16x8 half = (u16x8)pairs;
    return (s32x8) __builtin_convertvector(half, u32x8);
}

/* E4M3 codes, one scale per block values (a multiple of 8). */
static void loop_from_e4m3(float *y, const uint8_t *code, const float *scale, int block, int n) {
    for (; n > 0; n -= block, scale++) {
        const f32x8 factor = all8(*scale);
        for (int i = 0; i < block; i += 8, code += 8, y += 8) {
            s32x8 c = widen8(code), size = c & 0x7f;
            f32x8 normal = (f32x8)((size << 20) + (120 << 23));
            f32x8 small = __builtin_convertvector(size, f32x8) * all8(0x1p-9f);
            f32x8 v = pick8(size < 8, small, normal);
            s32x8 is_nan = size == 0x7f;
            v = (f32x8)((s32x8)v | (is_nan & 0x7fc00000) | ((c & 0x80) << 24));
            v = v * factor;
            memcpy(y, &v, 32);
        }
    }
}

/* The values of eight E2M1 codes: 0 0.5 1 1.5 2 3 4 6 and a sign. */
static inline f32x8 from_e2m1(s32x8 c) {
    s32x8 size = c & 7;
    f32x8 normal = (f32x8)((size << 22) + (126 << 23));
    f32x8 small = __builtin_convertvector(size, f32x8) * all8(0.5f);
    f32x8 v = pick8(size < 2, small, normal);
    return (f32x8)((s32x8)v | ((c & 8) << 28));
}

/* Pairs of E2M1 codes, first value in the low half, one scale per block values (a multiple of 16). */
static void loop_from_e2m1(float *y, const uint8_t *code, const float *scale, int block, int n) {
    for (; n > 0; n -= block, scale++) {
        const f32x8 factor = all8(*scale);
        for (int i = 0; i < block; i += 16, code += 8, y += 16) {
            s32x8 c = widen8(code);
            f32x8 even = from_e2m1(c & 15) * factor, odd = from_e2m1(c >> 4) * factor;
            f32x8 first = __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11);
            f32x8 second = __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15);
            memcpy(y, &first, 32);
            memcpy(y + 8, &second, 32);
        }
    }
}
