/*
 * EXL3 codec and CPU linear on random matrices: packing, slices, every variant against plain C
 * bit for bit, rows alone against rows in a batch, thread counts, the closed form of the sums
 * against exl3.h, and the fp32 decode form.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "kernels/exl3/exl3.h"
#include "kernels/exl3/exl3_internal.h"
#include "kernels/half.h"

#define DIGEST 0x97650533c9526137ULL

/* ---- random matrices ---- */

typedef struct sample {
    exl3_matrix m;
    unsigned char *trellis;
    uint16_t *suh, *svh, *bias;
} sample;

static uint64_t next(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

static float uniform(uint64_t *state) {
    return (float)(next(state) >> 40) * 0x1p-23f - 1.0f;
}

static sample sample_new(int in, int out, int k2, exl3_codebook codebook) {
    uint64_t seed = (uint64_t)in * 1000003u + (uint64_t)out * 101u + (uint64_t)k2;
    sample s;
    size_t bytes = exl3_trellis_bytes(in, out, k2);
    s.trellis = mem_alloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        s.trellis[i + 1] = (unsigned char)next(&seed);
    s.suh = mem_array((size_t)in, sizeof *s.suh);
    s.svh = mem_array((size_t)out, sizeof *s.svh);
    s.bias = mem_array((size_t)out, sizeof *s.bias);
    for (int i = 0; i < in; i++)
        s.suh[i] = half_from_float(0.05f * uniform(&seed));
    for (int i = 0; i < out; i++)
        s.svh[i] = half_from_float(i % 37 == 5 ? 0.0f : 1.0f + 0.5f * uniform(&seed));
    for (int i = 0; i < out; i++)
        s.bias[i] = half_from_float(uniform(&seed));
    /* An odd address on purpose: file data has any alignment. */
    s.m = (exl3_matrix){.trellis = s.trellis + 1,
        .suh = s.suh,
        .svh = s.svh,
        .bias = k2 % 3 == 0 ? s.bias : NULL,
        .in = in,
        .out = out,
        .k2 = k2,
        .codebook = codebook};
    return s;
}

static void sample_free(sample *s) {
    mem_free(s->trellis);
    mem_free(s->suh);
    mem_free(s->svh);
    mem_free(s->bias);
}

static float *rows_new(int n_rows, int in, uint64_t seed) {
    float *x = mem_array((size_t)n_rows * (size_t)in, sizeof *x);
    for (size_t i = 0; i < (size_t)n_rows * (size_t)in; i++) {
        float u = uniform(&seed);
        x[i] = i % 29 == 0 ? 20.0f * u : u * u * u;
    }
    return x;
}

static void run(const exl3_linear *l, const float *x, int n_rows, pool *p, float *y) {
    exl3_job job = {.linear = l,
        .x = x,
        .x_stride = (size_t)exl3_linear_in(l),
        .y = y,
        .y_stride = (size_t)exl3_linear_out(l),
        .n_rows = n_rows};
    size_t bytes = exl3_scratch_bytes(1, n_rows, exl3_linear_in(l));
    void *scratch = mem_aligned(64, bytes);
    exl3_linear_run(&job, p, scratch);
    mem_aligned_free(scratch);
}

static void assert_bits(const float *got, const float *expected, size_t n, const char *what) {
    for (size_t i = 0; i < n; i++) {
        if (float_bits(got[i]) == float_bits(expected[i])) continue;
        fail_msg("%s: value %zu is %.9g (%08x), expected %.9g (%08x)", what, i, (double)got[i],
            float_bits(got[i]), (double)expected[i], float_bits(expected[i]));
    }
}

/* ---- codec ---- */

static void test_states_repack(void **unused) {
    (void)unused;
    uint64_t seed = 7;
    for (int k2 = 2; k2 <= 16; k2++) {
        if (!exl3_rate_ok(EXL3_MUL1, k2)) continue;
        unsigned char tile[256], again[256];
        uint16_t states[256];
        for (int i = 0; i < 16 * k2; i++)
            tile[i] = (unsigned char)next(&seed);
        exl3_tile_states(tile, k2, states);
        exl3_tile_pack(states, k2, again);
        assert_memory_equal(tile, again, (size_t)(16 * k2));
    }
}

static void test_worked_example(void **unused) {
    (void)unused;
    /* exl3.md 3: the first word c404bea2, the last one ends in 1f05, K = 3. */
    unsigned char tile[96] = {0xa2, 0xbe, 0x04, 0xc4};
    tile[92] = 0x05;
    tile[93] = 0x1f;
    uint16_t states[256];
    exl3_tile_states(tile, 6, states);
    assert_int_equal(states[0], 0xf82e);
    assert_int_equal(states[1], 0xc171);
    assert_int_equal(states[2], 0x0b88);
    assert_int_equal(states[3], 0x5c40);
    assert_int_equal(exl3_state_half(EXL3_MUL1, 0xf82e), 0xbd8e);
    assert_int_equal(exl3_state_half(EXL3_MUL1, 0x0000), 0xc2e8);
    assert_int_equal(exl3_state_half(EXL3_MCG, 0x0001), 0x304e);
    assert_int_equal(exl3_state_half(EXL3_3INST, 0xffff), 0xb110);
}

static void test_positions(void **unused) {
    (void)unused;
    for (int p = 0; p < 256; p++)
        assert_int_equal(exl3_position_at(exl3_position_row(p), exl3_position_column(p)), p);
}

static void test_lane_packing(void **unused) {
    (void)unused;
    uint64_t seed = 11;
    for (int k2 = 2; k2 <= 16; k2++) {
        if (!exl3_rate_ok(EXL3_MUL1, k2)) continue;
        unsigned char tile[256];
        uint16_t states[256];
        uint32_t words[64];
        for (int i = 0; i < 16 * k2; i++)
            tile[i] = (unsigned char)next(&seed);
        exl3_tile_states(tile, k2, states);
        exl3_pack_lanes(tile, k2, words);
        for (int p = 0; p < 256; p++) {
            int lane = p >> 5, end = exl3_lane_end(p & 31, k2), n = exl3_lane_words(k2);
            uint32_t state = 0;
            for (int bit = end - 16; bit < end; bit++) {
                uint32_t word =
                    bit >= 0 ? words[(bit >> 5) * 8 + lane] : words[(n - 1) * 8 + ((lane + 7) & 7)];
                state = state << 1 | (word >> (31 - (bit & 31)) & 1u);
            }
            if (state != states[p])
                fail_msg("k2 %d position %d: %04x, expected %04x", k2, p, state, states[p]);
        }
    }
}

static void test_bad_matrices(void **unused) {
    (void)unused;
    sample s = sample_new(128, 256, 6, EXL3_MUL1);
    err e = ERR_INIT;
    exl3_matrix m = s.m;
    exl3_linear *l = NULL;
    m.in = 100;
    assert_int_equal(exl3_linear_new(&m, &l, &e), ERR_ARG);
    assert_null(l);
    assert_non_null(strstr(e.msg, "100"));
    m = s.m;
    m.k2 = 9;
    assert_int_equal(exl3_matrix_check(&m, &e), ERR_ARG);
    m.k2 = 5;
    m.codebook = EXL3_MCG;
    assert_int_equal(exl3_matrix_check(&m, &e), ERR_ARG);
    m = s.m;
    m.svh = NULL;
    assert_int_equal(exl3_matrix_check(&m, &e), ERR_ARG);
    exl3_matrix cut;
    assert_int_equal(exl3_matrix_slice(&s.m, (int[]){0, 128}, (int[]){64, 192}, &cut, &e), ERR_ARG);
    assert_int_equal(exl3_matrix_slice(&s.m, (int[]){0, 256}, (int[]){0, 128}, &cut, &e), ERR_ARG);
    sample_free(&s);
}

/* ---- linear ---- */

typedef struct shape {
    int in, out, k2, n_rows;
} shape;

static const shape shapes[] = {{128, 128, 2, 1}, {128, 128, 3, 5}, {128, 256, 4, 2},
    {256, 128, 5, 3}, {256, 256, 6, 1}, {256, 256, 6, 7}, {128, 512, 7, 4}, {512, 128, 8, 13},
    {256, 128, 10, 6}, {384, 128, 12, 8}, {128, 128, 14, 65}, {256, 384, 16, 9}, {1280, 128, 6, 1},
    {2304, 128, 6, 11}, {640, 256, 8, 130}, {128, 1280, 10, 1}};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static void test_variants_agree(void **unused) {
    (void)unused;
    for (int i = 0; i < N_SHAPES; i++) {
        shape s = shapes[i];
        sample w = sample_new(s.in, s.out, s.k2, EXL3_MUL1);
        exl3_linear *l = NULL;
        assert_int_equal(exl3_linear_new(&w.m, &l, NULL), OK);
        float *x = rows_new(s.n_rows, s.in, 5);
        size_t n = (size_t)s.n_rows * (size_t)s.out;
        float *expected = mem_array(n, sizeof *expected), *y = mem_array(n, sizeof *y);
        exl3_select(0);
        run(l, x, s.n_rows, NULL, expected);
        for (int v = 1; v < exl3_variant_count(); v++) {
            if (!exl3_variant_usable(v)) continue;
            char what[96];
            snprintf(what, sizeof what, "%s, %d x %d, k2 %d, %d rows", exl3_variant_name(v), s.in,
                s.out, s.k2, s.n_rows);
            assert_int_equal(exl3_select(v), OK);
            memset(y, 0xff, n * sizeof *y);
            run(l, x, s.n_rows, NULL, y);
            assert_bits(y, expected, n, what);
        }
        exl3_select(-1);
        exl3_linear_free(l);
        sample_free(&w);
        mem_free(x);
        mem_free(expected);
        mem_free(y);
    }
    for (int v = 0; v < exl3_variant_count(); v++)
        if (!exl3_variant_usable(v))
            print_message("variant %s skipped: not on this CPU\n", exl3_variant_name(v));
}

/* The definition in exl3.h, straight from the file layout with 64-bit sums. */
static void defined_row(const exl3_matrix *m, const float *x, float *y) {
    exl3_row row = {mem_array((size_t)m->in, sizeof(float)),
        mem_array((size_t)m->in, sizeof(int16_t)), mem_array((size_t)m->in / 128, sizeof(int32_t)),
        0.0f, 0};
    float *suh = mem_array((size_t)m->in, sizeof *suh);
    for (int k = 0; k < m->in; k++)
        suh[k] = half_to_float(((const uint16_t *)m->suh)[k]);
    exl3_plain_rotate(x, suh, m->in, &row);
    for (int n0 = 0; n0 < m->out; n0 += 128) {
        float svh[128], bias[128];
        for (int n = 0; n < 128; n++) {
            int64_t sum = 0;
            for (int k = 0; k < m->in; k += 16) {
                const char *tile = (const char *)m->trellis +
                                   (size_t)(k / 16) * (size_t)m->out * (size_t)m->k2 +
                                   (size_t)((n0 + n) / 16) * 16 * (size_t)m->k2;
                uint16_t states[256];
                exl3_tile_states(tile, m->k2, states);
                for (int r = 0; r < 16; r++) {
                    int b = (int)exl3_byte_sum(states[exl3_position_at(r, n & 15)]);
                    sum += (int64_t)(b - 510) * row.a[k + r];
                }
            }
            y[n0 + n] = (float)sum;
            svh[n] = half_to_float(((const uint16_t *)m->svh)[n0 + n]);
            if (m->bias != NULL) bias[n] = half_to_float(((const uint16_t *)m->bias)[n0 + n]);
        }
        exl3_plain_finish(y + n0, &row, svh, m->bias != NULL ? bias : NULL);
    }
    mem_free(row.t);
    mem_free(row.a);
    mem_free(row.block_sums);
    mem_free(suh);
}

static void test_definition(void **unused) {
    (void)unused;
    for (int k2 = 2; k2 <= 16; k2++) {
        if (!exl3_rate_ok(EXL3_MUL1, k2)) continue;
        sample w = sample_new(256, 128, k2, EXL3_MUL1);
        exl3_linear *l = NULL;
        assert_int_equal(exl3_linear_new(&w.m, &l, NULL), OK);
        float *x = rows_new(3, 256, 77), y[3 * 128], expected[128];
        run(l, x, 3, NULL, y);
        for (int r = 0; r < 3; r++) {
            defined_row(&w.m, x + r * 256, expected);
            assert_bits(y + r * 128, expected, 128, "definition");
        }
        mem_free(x);
        exl3_linear_free(l);
        sample_free(&w);
    }
}

/* Every state of every weight the same extreme, every activation at the limit: the largest sums
 * there are. */
static void test_largest_sums(void **unused) {
    (void)unused;
    uint16_t low = 0, high = 0;
    for (uint32_t s = 0; s < 65536; s++) {
        if (exl3_byte_sum((uint16_t)s) < exl3_byte_sum(low)) low = (uint16_t)s;
        if (exl3_byte_sum((uint16_t)s) > exl3_byte_sum(high)) high = (uint16_t)s;
    }
    const uint16_t extremes[2] = {low, high};
    for (int i = 0; i < 2; i++) {
        int16_t a[256];
        int32_t sums[2] = {0, 0};
        exl3_row row = {NULL, a, sums, 1.0f, 0};
        for (int k = 0; k < 256; k++)
            a[k] = i == 0 ? -EXL3_A_MAX : EXL3_A_MAX;
        sums[0] = sums[1] = 128 * a[0];
        /* A repeated 16-bit pattern at 8 bits a weight: odd positions see it, even ones see its
         * halves swapped. */
        unsigned char tile[256];
        for (int b = 0; b < 256; b += 2) {
            tile[b] = (unsigned char)extremes[i];
            tile[b + 1] = (unsigned char)(extremes[i] >> 8);
        }
        _Alignas(64) uint32_t words[16 * 64];
        for (int t = 0; t < 16; t++)
            exl3_pack_lanes(tile, 16, words + t * 64);
        uint16_t swapped = (uint16_t)(extremes[i] << 8 | extremes[i] >> 8);
        int64_t pair = (int64_t)exl3_byte_sum(extremes[i]) + exl3_byte_sum(swapped) - 1020;
        float expected = (float)(128 * pair * a[0]);
        exl3_strip strip = {words, 256, 16, 8};
        const exl3_kernel *kernels[] = {
            &exl3_kernel_plain,
#if defined(__x86_64__)
            &exl3_kernel_avx2,
            &exl3_kernel_avx_vnni,
            &exl3_kernel_avx512_vnni,
#elif defined(__aarch64__)
            &exl3_kernel_neon,
#endif
        };
        for (size_t v = 0; v < sizeof kernels / sizeof kernels[0]; v++) {
            if (!kernels[v]->is_usable()) continue;
            exl3_row rows[3] = {row, row, row};
            float out[3][16];
            for (int n = 1; n <= 3; n += 2) {
                kernels[v]->dot(&strip, rows, n, out[0], 16);
                for (int k = 0; k < 16; k++)
                    assert_int_equal(float_bits(out[n - 1][k]), float_bits(expected));
            }
        }
    }
}

static void test_rows_and_threads(void **unused) {
    (void)unused;
    enum { ROWS = 150, IN = 384, OUT = 384 };
    sample w = sample_new(IN, OUT, 6, EXL3_MUL1);
    exl3_linear *l = NULL;
    assert_int_equal(exl3_linear_new(&w.m, &l, NULL), OK);
    float *x = rows_new(ROWS, IN, 3);
    float *all = mem_array(ROWS * OUT, sizeof *all), *part = mem_array(ROWS * OUT, sizeof *part);
    run(l, x, ROWS, NULL, all);
    for (int r = 0; r < ROWS; r++)
        run(l, x + r * IN, 1, NULL, part + r * OUT);
    assert_bits(part, all, ROWS * OUT, "rows alone");
    for (int n = 2; n <= 9; n++) {
        for (int r = 0; r < ROWS; r += n)
            run(l, x + r * IN, r + n <= ROWS ? n : ROWS - r, NULL, part + r * OUT);
        assert_bits(part, all, ROWS * OUT, "chunks");
    }
    for (int threads = 2; threads <= 3; threads++) {
        pool *p = pool_new(threads);
        memset(part, 0, ROWS * OUT * sizeof *part);
        run(l, x, ROWS, p, part);
        assert_bits(part, all, ROWS * OUT, "threads");
        run(l, x + IN, 1, p, part);
        assert_bits(part, all + OUT, OUT, "one row, threads");
        pool_free(p);
    }
    mem_free(x);
    mem_free(all);
    mem_free(part);
    exl3_linear_free(l);
    sample_free(&w);
}

static void test_grouped(void **unused) {
    (void)unused;
    enum { N = 6 };
    static const int ins[N] = {256, 256, 128, 512, 256, 384},
                     outs[N] = {256, 128, 128, 256, 512, 128};
    static const int n_rows[N] = {1, 0, 3, 70, 2, 0};
    static const int32_t picks[3] = {4, 0, 2};
    sample w[N];
    exl3_linear *l[N];
    exl3_job jobs[N];
    float *x = rows_new(70, 512, 9), *y[N], *alone[N];
    for (int i = 0; i < N; i++) {
        w[i] = sample_new(ins[i], outs[i], i == 4 ? 7 : 6, i == 2 ? EXL3_MCG : EXL3_MUL1);
        assert_int_equal(exl3_linear_new(&w[i].m, &l[i], NULL), OK);
        y[i] = mem_array((size_t)(n_rows[i] + 1) * 600, sizeof(float));
        alone[i] = mem_array((size_t)(n_rows[i] + 1) * 600, sizeof(float));
        jobs[i] = (exl3_job){l[i], x, 512, i == 2 ? picks : NULL, y[i], 600, n_rows[i]};
    }
    void *scratch = mem_aligned(64, exl3_scratch_bytes(N, 76, 512));
    pool *p = pool_new(3);
    exl3_grouped_run(&(exl3_run_args){jobs, N, p}, scratch);
    for (int i = 0; i < N; i++) {
        exl3_job job = jobs[i];
        job.y = alone[i];
        exl3_linear_run(&job, NULL, scratch);
        assert_bits(y[i], alone[i], (size_t)(n_rows[i] + 1) * 600, "grouped");
    }
    run(l[2], x + 4 * 512, 1, NULL, alone[2]); /* picks[0] */
    assert_bits(y[2], alone[2], 128, "gathered row");
    pool_free(p);
    mem_aligned_free(scratch);
    mem_free(x);
    for (int i = 0; i < N; i++) {
        exl3_linear_free(l[i]);
        sample_free(&w[i]);
        mem_free(y[i]);
        mem_free(alone[i]);
    }
}

/* Slices at multiples of 128: output slices have the same bits; input slices add up. */
static void test_slices(void **unused) {
    (void)unused;
    enum { IN = 512, OUT = 384 };
    sample w = sample_new(IN, OUT, 8, EXL3_MUL1);
    float *x = rows_new(2, IN, 21), y[2 * OUT], part[2 * OUT], sum[2 * OUT] = {0};
    exl3_linear *l = NULL;
    assert_int_equal(exl3_linear_new(&w.m, &l, NULL), OK);
    run(l, x, 2, NULL, y);
    exl3_linear_free(l);
    for (int n = 0; n < OUT; n += 128) {
        exl3_matrix cut;
        assert_int_equal(
            exl3_matrix_slice(&w.m, (int[]){0, IN}, (int[]){n, n + 128}, &cut, NULL), OK);
        assert_int_equal(exl3_linear_new(&cut, &l, NULL), OK);
        run(l, x, 2, NULL, part);
        for (int r = 0; r < 2; r++)
            assert_bits(part + r * 128, y + r * OUT + n, 128, "output slice");
        exl3_linear_free(l);
    }
    float largest = 0.0f;
    for (int k = 0; k < IN; k += 256) {
        exl3_matrix cut;
        float half[2 * 256];
        assert_int_equal(
            exl3_matrix_slice(&w.m, (int[]){k, k + 256}, (int[]){0, OUT}, &cut, NULL), OK);
        assert_int_equal(exl3_linear_new(&cut, &l, NULL), OK);
        for (int r = 0; r < 2; r++)
            memcpy(half + r * 256, x + r * IN + k, 256 * sizeof *half);
        run(l, half, 2, NULL, part);
        for (int i = 0; i < 2 * OUT; i++)
            sum[i] += part[i];
        exl3_linear_free(l);
    }
    for (int i = 0; i < 2 * OUT; i++)
        largest = fmaxf(largest, fabsf(y[i]));
    for (int i = 0; i < 2 * OUT; i++)
        assert_true(fabsf(sum[i] - y[i]) <= 5e-4f * largest);
    mem_free(x);
    sample_free(&w);
}

static void test_against_reference(void **unused) {
    (void)unused;
    static const struct {
        int k2;
        exl3_codebook codebook;
        float tolerance;
    } cases[] = {{4, EXL3_MUL1, 1e-3f}, {6, EXL3_MUL1, 1e-3f}, {7, EXL3_MUL1, 1e-3f},
        {16, EXL3_MUL1, 1e-3f}, {6, EXL3_MCG, 1e-5f}, {6, EXL3_3INST, 1e-5f},
        {16, EXL3_MCG, 1e-5f}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sample w = sample_new(256, 256, cases[i].k2, cases[i].codebook);
        exl3_linear *l = NULL;
        float *x = rows_new(2, 256, i), y[512], expected[512], largest = 0.0f;
        assert_int_equal(exl3_linear_new(&w.m, &l, NULL), OK);
        run(l, x, 2, NULL, y);
        assert_int_equal(exl3_linear_reference(&w.m, x, 2, expected, NULL), OK);
        for (int k = 0; k < 512; k++)
            largest = fmaxf(largest, fabsf(expected[k]));
        for (int k = 0; k < 512; k++)
            if (!(fabsf(y[k] - expected[k]) <= cases[i].tolerance * largest))
                fail_msg(
                    "case %zu value %d: %g, expected %g", i, k, (double)y[k], (double)expected[k]);
        mem_free(x);
        exl3_linear_free(l);
        sample_free(&w);
    }
}

/* The same bits on every machine and in every version: a digest of outputs, computed once. */
static void test_digest(void **unused) {
    (void)unused;
    uint64_t digest = 0xcbf29ce484222325ULL;
    for (int k2 = 2; k2 <= 16; k2++) {
        if (!exl3_rate_ok(EXL3_MUL1, k2)) continue;
        sample w = sample_new(256, 128, k2, EXL3_MUL1);
        exl3_linear *l = NULL;
        assert_int_equal(exl3_linear_new(&w.m, &l, NULL), OK);
        float *x = rows_new(3, 256, 1), y[3 * 128];
        run(l, x, 3, NULL, y);
        for (int i = 0; i < 3 * 128; i++)
            digest = (digest ^ float_bits(y[i])) * 0x100000001b3ULL;
        mem_free(x);
        exl3_linear_free(l);
        sample_free(&w);
    }
    if (digest != DIGEST)
        fail_msg("digest %016llx, expected %016llx", (unsigned long long)digest, DIGEST);
}

static void test_not_finite(void **unused) {
    (void)unused;
    sample w = sample_new(256, 256, 6, EXL3_MUL1);
    exl3_linear *l = NULL;
    assert_int_equal(exl3_linear_new(&w.m, &l, NULL), OK);
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int v = 0; v < exl3_variant_count(); v++) {
        if (exl3_select(v) != OK) continue;
        for (int i = 0; i < 3; i++) {
            float *x = rows_new(3, 256, 4), clean[3 * 256], y[3 * 256];
            run(l, x, 3, NULL, clean);
            x[256 + 200] = bad[i];
            run(l, x, 3, NULL, y);
            for (int n = 0; n < 256; n++)
                assert_true(isnan(y[256 + n]));
            assert_bits(y, clean, 256, "row before");
            assert_bits(y + 512, clean + 512, 256, "row after");
            memset(x, 0, 256 * sizeof *x);
            run(l, x, 1, NULL, y);
            for (int n = 0; n < 256; n++)
                assert_true(fabsf(y[n] - (w.m.bias ? half_to_float(w.bias[n]) : 0.0f)) < 1e-6f);
            mem_free(x);
        }
    }
    exl3_select(-1);
    exl3_linear_free(l);
    sample_free(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states_repack),
        cmocka_unit_test(test_worked_example),
        cmocka_unit_test(test_positions),
        cmocka_unit_test(test_lane_packing),
        cmocka_unit_test(test_bad_matrices),
        cmocka_unit_test(test_variants_agree),
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_largest_sums),
        cmocka_unit_test(test_rows_and_threads),
        cmocka_unit_test(test_grouped),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_against_reference),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
