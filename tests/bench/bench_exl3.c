/*
 * Speed of the CPU EXL3 linear: one line per variant, rate, shape and row count. Every call uses
 * the next of several matrices, so that weights come from the last-level cache or memory as they
 * do in a model. Best of several rounds.
 */
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "kernels/exl3/exl3.h"
#include "kernels/half.h"

typedef struct bench_set {
    exl3_linear **linears;
    int n, in, out, k2;
    float *x, *y;
    void *scratch;
} bench_set;

enum { MAX_ROWS = 256, ROUNDS = 7 };

static exl3_linear *random_linear(int in, int out, int k2, uint64_t *seed) {
    size_t bytes = exl3_trellis_bytes(in, out, k2);
    unsigned char *trellis = mem_alloc(bytes);
    uint16_t *ones = mem_array((size_t)(in > out ? in : out), sizeof *ones);
    for (size_t i = 0; i < bytes; i++) {
        *seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
        trellis[i] = (unsigned char)(*seed >> 56);
    }
    for (int i = 0; i < (in > out ? in : out); i++)
        ones[i] = half_from_float(i % 3 == 0 ? -1.0f : 1.0f);
    exl3_matrix m = {.trellis = trellis,
        .suh = ones,
        .svh = ones,
        .in = in,
        .out = out,
        .k2 = k2,
        .codebook = EXL3_MUL1};
    exl3_linear *l = NULL;
    int rc = exl3_linear_new(&m, &l, NULL);
    CHECK(rc == OK);
    mem_free(trellis);
    mem_free(ones);
    return l;
}

static void set_init(bench_set *s, int in, int out, int k2, size_t total_weights) {
    uint64_t seed = 1;
    size_t n = total_weights / ((size_t)in * (size_t)out);
    *s = (bench_set){.n = n > 0 ? (int)n : 1, .in = in, .out = out, .k2 = k2};
    s->linears = mem_array((size_t)s->n, sizeof *s->linears);
    for (int i = 0; i < s->n; i++)
        s->linears[i] = random_linear(in, out, k2, &seed);
    s->x = mem_array((size_t)MAX_ROWS * (size_t)in, sizeof(float));
    s->y = mem_array((size_t)MAX_ROWS * (size_t)out, sizeof(float));
    for (int i = 0; i < MAX_ROWS * in; i++)
        s->x[i] = (float)(i * 7919 % 1009) / 504.5f - 1.0f;
    s->scratch = mem_aligned(64, exl3_scratch_bytes(1, MAX_ROWS, in));
}

static void set_release(bench_set *s) {
    for (int i = 0; i < s->n; i++)
        exl3_linear_free(s->linears[i]);
    mem_free(s->linears);
    mem_free(s->x);
    mem_free(s->y);
    mem_aligned_free(s->scratch);
}

/* Best nanoseconds of one call with n_rows rows. */
static double measure(bench_set *s, int n_rows, pool *p) {
    double best = 1e18;
    for (int round = 0; round < ROUNDS; round++) {
        int calls = 0;
        uint64_t start = clock_mono_ns(), now = start;
        while (now - start < 8000000u) {
            for (int i = 0; i < s->n && (i < 64 || n_rows == 1); i++) {
                exl3_job job = {.linear = s->linears[i],
                    .x = s->x,
                    .x_stride = (size_t)s->in,
                    .y = s->y,
                    .y_stride = (size_t)s->out,
                    .n_rows = n_rows};
                exl3_linear_run(&job, p, s->scratch);
                calls++;
                if ((calls & 15) == 0 && clock_mono_ns() - start > 20000000u) break;
            }
            now = clock_mono_ns();
        }
        double ns = (double)(now - start) / calls;
        if (ns < best) best = ns;
    }
    return best;
}

static void report(bench_set *s, int n_rows, pool *p) {
    double ns = measure(s, n_rows, p), weights = (double)s->in * s->out;
    printf("exl3 %-12s threads %d  %5d x %-5d K %3.1f rows %3d: %9.2f us  "
           "%6.2f Gweights/s  %6.2f Gmul-add/s  %5.2f GB/s trellis\n",
        exl3_variant_name(exl3_variant_in_use()), pool_size(p), s->in, s->out, s->k2 / 2.0, n_rows,
        ns / 1000.0, weights / ns, weights * n_rows / ns, weights * s->k2 / 16.0 / ns);
}

int main(void) {
    static const struct { int in, out; } shapes[] = {{256, 256}, {1536, 1280}};
    static const int rates[] = {6, 7, 8, 12}, row_counts[] = {1, 2, 6, 128};
    pool *pools[2] = {NULL, pool_new(2)};
    for (size_t shape = 0; shape < sizeof shapes / sizeof shapes[0]; shape++) {
        for (size_t rate = 0; rate < sizeof rates / sizeof rates[0]; rate++) {
            bench_set s;
            set_init(&s, shapes[shape].in, shapes[shape].out, rates[rate], 12u << 20);
            for (int v = 0; v < exl3_variant_count(); v++) {
                if (exl3_select(v) != OK) continue;
                for (size_t r = 0; r < sizeof row_counts / sizeof row_counts[0]; r++)
                    for (int t = 0; t < 2; t++)
                        if (v > 0 || (r == 0 && t == 0 && shape == 0))
                            report(&s, row_counts[r], pools[t]);
            }
            set_release(&s);
        }
    }
    pool_free(pools[1]);
    return 0;
}
