/* Experts of few and many rows: the CUDA back end against the CPU's, bit for bit with packed experts (exact sums, the same order of
 * everything else), and against itself with the rows in other company: plans by one block and by a cluster, tiles of all
 * lengths, operands by groups. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "kernels/cuda_ops.h"
#include "tests/gpu/exl3_fixture.h"
#include "tests/gpu/ops_fixture.h"

enum { MOST_EXPERTS = 16 };

typedef struct moe_case {
    int n_rows, n_experts, n_used, d, n_ff, is_packed, is_bf16;
} moe_case;

/* Experts and the shared one, in both memories. */
typedef struct moe_weights {
    expert_weights host[MOST_EXPERTS + 1], device[MOST_EXPERTS + 1];
    void *table;
} moe_weights;

/* Evenly spread, unlike random_floats. */
static float *even_floats(size_t n, float size) {
    float *p = mem_array(n, sizeof(*p));
    for (size_t i = 0; i < n; i++)
        p[i] = size * (float)(int32_t)rand_u32(&noise) * 0x1p-31f;
    return p;
}

/* A matrix of n_out rows in both memories, which live as long as the test. */
static void make_matrix(linear_weight *h, linear_weight *g, int n_in, int n_out, int is_packed) {
    *h = (linear_weight){.form = MATRIX_F32, .n_in = n_in, .n_out = n_out};
    if (!is_packed) {
        const size_t n = (size_t)n_in * (size_t)n_out;
        const float *data = even_floats(n, 0.2f);
        h->data = data;
        h->row_stride = (size_t)n_in;
        *g = *h;
        g->data = sent(data, n * sizeof(float));
        return;
    }
    const int shape[3] = {n_in, n_out, 6};
    fixture_matrix m;
    err e = ERR_INIT;
    fixture_matrix_init(&m, shape, 0, rand_u32(&noise));
    h->form = MATRIX_EXL3;
    *g = *h;
    assert_int_equal(cpu->packed_new(&host, &m.host, &h->packed, &e), OK);
    assert_int_equal(cuda->packed_new(&device, &m.host, &g->packed, &e), OK);
    fixture_matrix_release(&m);
}

static void make_weights(moe_weights *w, const moe_case *c) {
    err e = ERR_INIT;
    for (int i = 0; i <= c->n_experts; i++) {
        expert_weights *h = &w->host[i], *g = &w->device[i];
        make_matrix(&h->w1, &g->w1, c->d, c->n_ff, c->is_packed);
        make_matrix(&h->w3, &g->w3, c->d, c->n_ff, c->is_packed);
        make_matrix(&h->w2, &g->w2, c->n_ff, c->d, c->is_packed);
    }
    const expert_weights *shared = &w->device[c->n_experts];
    assert_int_equal(
        cuda->expert_table(&device, w->device, c->n_experts, shared, &w->table, &e), OK);
}

/* Distinct experts of every row; the first one takes most rows, the last one none. */
static void pick(const moe_case *c, int32_t *expert) {
    for (int r = 0; r < c->n_rows; r++) {
        int32_t *e = expert + r * c->n_used;
        for (int i = 0; i < c->n_used; i++) {
            const uint32_t start = i == 0 && r % 4 != 0 ? 0 : rand_u32(&noise);
            bool is_taken = true;
            for (uint32_t k = 0; is_taken; k++) {
                e[i] = (int32_t)((start + k) % (uint32_t)(c->n_experts - 1));
                is_taken = false;
                for (int j = 0; j < i; j++)
                    is_taken |= e[j] == e[i];
            }
        }
    }
}

/* Rows [first, first + n) on the device. */
static void run_rows(const moe_args *all, int first, int n) {
    moe_args a = *all;
    a.x += (size_t)first * (size_t)a.d;
    a.out += (size_t)first * (size_t)a.d;
    a.expert += (size_t)first * (size_t)a.n_used;
    a.weight += (size_t)first * (size_t)a.n_used;
    a.n_rows = n;
    cuda->moe(&device, &a);
    cuda->wait(&device);
    if (device.rc != OK) fail_msg("%s", device.error.msg);
}

/* The largest difference, over the largest value; 0: the same bits. */
static void compare(
    const char *what, const moe_case *c, const float *got, const float *want, float limit) {
    float size = 1e-30f, worst = 0;
    size_t n = (size_t)c->n_rows * (size_t)c->d, at = 0;
    for (size_t i = 0; i < n; i++) {
        const float off = fabsf(got[i] - want[i]);
        size = fmaxf(size, fabsf(want[i]));
        if (off <= worst) continue;
        worst = off;
        at = i;
    }
    if (worst <= limit * size) return;
    fail_msg("%s: %d rows, %d of %d experts, %d x %d, packed %d: row %zu, value %zu is %.9g, "
             "expected %.9g, size %.3g",
        what, c->n_rows, c->n_used, c->n_experts, c->d, c->n_ff, c->is_packed, at / (size_t)c->d,
        at % (size_t)c->d, (double)got[at], (double)want[at], (double)size);
}

static void run_case(const moe_case *c) {
    static moe_weights w;
    const size_t n = (size_t)c->n_rows, d = (size_t)c->d, used = (size_t)c->n_used;
    const int sizes[5] = {c->n_rows, c->n_experts, c->n_used, c->d, c->n_ff};
    make_weights(&w, c);
    float *x = even_floats(n * d, 2), *weight = even_floats(n * used, 1);
    int32_t *expert = mem_array(n * used, sizeof *expert);
    float *want = mem_array(n * d, 4), *got = mem_array(n * d, 4), *parts = mem_array(n * d, 4);
    pick(c, expert);
    moe_args a = {x, expert, weight, w.host, &w.host[c->n_experts], want, c->n_rows, c->n_experts,
        c->n_used, c->d, c->n_ff, 10, NULL, NULL};
    a.work = mem_aligned(64, cpu->moe_work_bytes(sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]));
    host.is_bf16 = device.is_bf16 = c->is_bf16 != 0;
    cpu->moe(&host, &a);
    moe_args g = a;
    g.x = sent(x, n * d * 4), g.expert = sent(expert, n * used * 4);
    g.weight = sent(weight, n * used * 4), g.out = cuda->mem_new(n * d * 4);
    g.experts = w.device, g.shared = &w.device[c->n_experts], g.table = w.table;
    g.work = cuda->mem_new(cuda->moe_work_bytes(sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]));
    run_rows(&g, 0, c->n_rows);
    cuda->fetch(&device, got, g.out, n * d * 4);
    for (int first = 0, step = 1; first < c->n_rows; first += step, step = step * 3 + 1)
        run_rows(&g, first, step < c->n_rows - first ? step : c->n_rows - first);
    cuda->fetch(&device, parts, g.out, n * d * 4);
    compare("GPU against CPU", c, got, want, c->is_packed ? 0 : 2e-5f);
    compare("rows in parts", c, parts, got, 0);
    cuda->mem_free((void *)(uintptr_t)g.x);
    cuda->mem_free((void *)(uintptr_t)g.expert);
    cuda->mem_free((void *)(uintptr_t)g.weight);
    cuda->mem_free(g.out);
    cuda->mem_free(g.work);
    mem_aligned_free(a.work);
    mem_free(x);
    mem_free(weight);
    mem_free(expert);
    mem_free(want);
    mem_free(got);
    mem_free(parts);
}

static void test_packed(void **state) {
    (void)state;
    /* The last two have more inputs than groups take: row by row. */
    static const moe_case cases[] = {{33, 5, 2, 128, 128, 1, 0}, {75, 12, 6, 256, 384, 1, 1},
        {341, 12, 6, 256, 384, 1, 0}, {700, 12, 6, 256, 384, 1, 1}, {1300, 14, 3, 640, 128, 1, 1},
        {90, 4, 2, 1152, 2304, 1, 1}, {40, 4, 2, 5248, 128, 1, 0}, {40, 4, 2, 128, 2688, 1, 1}};
    /* without lists where the device allows it: seven tokens, the largest sizes, experts that all share, one expert each */
    static const moe_case few[] = {{8, 14, 6, 256, 384, 1, 0}, {8, 12, 6, 5120, 1152, 1, 1},
        {7, 7, 6, 640, 2304, 1, 1}, {5, 9, 1, 128, 128, 1, 0}, {3, 5, 3, 5120, 2304, 1, 1}};
    for (size_t i = 0; i < sizeof few / sizeof *few; i++)
        run_case(&few[i]);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_case(&cases[i]);
}

static void test_plain(void **state) {
    (void)state;
    static const moe_case cases[] = {
        {33, 5, 2, 32, 24, 0, 0}, {420, 12, 6, 96, 64, 0, 0}, {70, 6, 3, 130, 36, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        run_case(&cases[i]);
}

int main(void) {
    int rc = ops_fixture_open();
    if (rc != 0) return rc;
    rand_init(&noise, 5, 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_packed), cmocka_unit_test(test_plain)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
