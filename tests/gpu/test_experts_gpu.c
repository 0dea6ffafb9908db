/* Experts of few rows on the GPU: within rounding of exp of the CPU, bit-stable against the company a row is in, and those
 * of one token and of a few in one launch with the bits of the form with lists. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "kernels/half.h"
#include "kernels/moe/moe_few.h"
#include "kernels/vec/vec.h"
#include "tests/gpu/exl3_fixture.h"

enum { D = 512, WIDTH = 384, EXPERTS = 12, CHOICES = 4, TOKENS = 8, LIMIT = 10 };

typedef struct expert_set {
    fixture_matrix gate[EXPERTS], up[EXPERTS], down[EXPERTS];
    float x[TOKENS * D];
    int pick[TOKENS][CHOICES];
    float weight[TOKENS][CHOICES];
} expert_set;

static float silu_times(float g, float u, float w) {
    g = g > (float)LIMIT ? (float)LIMIT : g;
    u = u > (float)LIMIT ? (float)LIMIT : u < -(float)LIMIT ? -(float)LIMIT : u;
    return w * (g / (1.f + expf(-g)) * u);
}

/* The CPU's answer for one token. */
static void cpu_token(const expert_set *s, int t, float *y) {
    memset(y, 0, sizeof(float) * D);
    for (int c = 0; c < CHOICES; c++) {
        float g[WIDTH], u[WIDTH], out[D];
        int k = s->pick[t][c];
        fixture_matrix_rows(&s->gate[k], s->x + t * D, 1, g);
        fixture_matrix_rows(&s->up[k], s->x + t * D, 1, u);
        for (int i = 0; i < WIDTH; i++)
            g[i] = silu_times(g[i], u[i], s->weight[t][c]);
        fixture_matrix_rows(&s->down[k], g, 1, out);
        for (int i = 0; i < D; i++)
            y[i] += out[i];
    }
}

/* Pairs of n tokens grouped by expert. */
typedef struct token_groups {
    exl3_gpu_job gate_up[2 * EXPERTS], down[EXPERTS];
    int token_of[EXPERTS][TOKENS], pair_of[TOKENS * CHOICES], n_jobs, n_pairs;
    float weight[TOKENS * CHOICES];
} token_groups;

static void group_tokens(const expert_set *s, int t0, int n, token_groups *g) {
    memset(g, 0, sizeof *g);
    for (int k = 0; k < EXPERTS; k++) {
        int n_rows = 0;
        for (int i = 0; i < n * CHOICES; i++) {
            int t = i / CHOICES, c = i % CHOICES;
            if (s->pick[t0 + t][c] != k) continue;
            g->token_of[g->n_jobs][n_rows++] = t;
            g->pair_of[i] = g->n_pairs;
            g->weight[g->n_pairs++] = s->weight[t0 + t][c];
        }
        if (n_rows == 0) continue;
        int j = g->n_jobs++;
        g->gate_up[2 * j] = (exl3_gpu_job){.matrix = s->gate[k].device, .n_rows = n_rows};
        g->gate_up[2 * j + 1] = (exl3_gpu_job){.matrix = s->up[k].device, .n_rows = n_rows};
        g->down[j] = (exl3_gpu_job){
            .matrix = s->down[k].device, .n_rows = n_rows, .first_pair = g->n_pairs - n_rows};
    }
}

/* The rows of each job, gathered, in the list and on the device. */
static void send_rows(const expert_set *s, int t0, const token_groups *g, fixture_list *list) {
    for (int j = 0; j < 2 * g->n_jobs; j++) {
        int n_rows = g->gate_up[j].n_rows;
        float *x = device_new(sizeof(float) * (size_t)(n_rows * D));
        for (int r = 0; r < n_rows; r++)
            device_put(x + r * D, s->x + (t0 + g->token_of[j / 2][r]) * D, sizeof(float) * D);
        list->jobs[j].x = x;
        list->jobs[j].x_stride = D;
    }
    device_put(list->device->jobs, list->jobs, sizeof *list->jobs * 2 * (size_t)g->n_jobs);
}

/* The device's answer for tokens t0 .. t0 + n - 1 in one run. */
static void gpu_tokens(const expert_set *s, int t0, int n, float *y) {
    token_groups g;
    group_tokens(s, t0, n, &g);
    int n_jobs = g.n_jobs;
    fixture_list gate_up_list, down_list;
    fixture_list_init(&gate_up_list, g.gate_up, 2 * n_jobs, 1);
    fixture_list_init(&down_list, g.down, n_jobs, 0);
    send_rows(s, t0, &g, &gate_up_list);
    /* Separate ranges of sums and counters for the two lists. */
    for (int j = 0; j < n_jobs; j++) {
        down_list.jobs[j].first_sum += (int32_t)gate_up_list.n_sums;
        down_list.jobs[j].first_counter += (int32_t)gate_up_list.n_counters;
    }
    device_put(down_list.device->jobs, down_list.jobs, sizeof *down_list.jobs * (size_t)n_jobs);
    float *device_weight = device_new(sizeof g.weight),
          *device_y = device_new(sizeof(float) * TOKENS * D);
    int *device_pair = device_new(sizeof g.pair_of);
    device_put(device_weight, g.weight, sizeof g.weight);
    device_put(device_pair, g.pair_of, sizeof g.pair_of);
    int most = gate_up_list.max_stage_bytes > down_list.max_stage_bytes
                   ? gate_up_list.max_stage_bytes
                   : down_list.max_stage_bytes;
    exl3_gpu_experts_args a = {.gate_up = gate_up_list.device,
        .down = down_list.device,
        .scratch = {device_new(8 * (gate_up_list.n_sums + down_list.n_sums)),
            device_new(4 * (gate_up_list.n_counters + down_list.n_counters))},
        .hidden = device_new(sizeof(float) * TOKENS * CHOICES * WIDTH),
        .row_max = device_new(4 * TOKENS * CHOICES),
        .row_counter = device_new(4 * TOKENS * CHOICES),
        .block_counter = device_new(4 * D / 128),
        .weight = device_weight,
        .part = device_new(sizeof(float) * TOKENS * CHOICES * D),
        .pair_of = device_pair,
        .y = device_y,
        .n_tokens = n,
        .n_choices = CHOICES,
        .limit = LIMIT,
        .max_rows = gate_up_list.max_rows,
        .max_stage_bytes = most};
    exl3_gpu_rotate_args rotate = {gate_up_list.device, NULL, 2 * n_jobs, gate_up_list.max_rows};
    err e = ERR_INIT;
    float first[TOKENS * D];
    for (int turn = 0; turn < 3; turn++) {
        device_ok(cudaMemset(device_y, 0xff, sizeof(float) * TOKENS * D), "poison");
        assert_int_equal(exl3_gpu_rotate_run(&rotate, NULL, &e), OK);
        assert_int_equal(exl3_gpu_experts_run(&a, NULL, &e), OK);
        device_ok(cudaDeviceSynchronize(), "experts");
        device_get(y, device_y, sizeof(float) * (size_t)(n * D));
        if (turn == 0) memcpy(first, y, sizeof(float) * (size_t)(n * D));
        assert_memory_equal(first, y, sizeof(float) * (size_t)(n * D));
    }
    void *used[] = {a.scratch.sums, a.scratch.counters, a.hidden, a.row_max, a.row_counter,
        a.block_counter, a.part, device_weight, device_y, device_pair};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        device_free(used[i]);
    for (int j = 0; j < 2 * n_jobs; j++)
        device_free((void *)(uintptr_t)gate_up_list.jobs[j].x);
    fixture_list_release(&gate_up_list);
    fixture_list_release(&down_list);
}

static moe_row_link *row_link; /* runs of different shapes share it */

/* The device's answer for token t in the form for one token. */
static void gpu_row(const expert_set *s, int t, float *y) {
    moe_expert table[EXPERTS] = {0};
    for (int k = 0; k < EXPERTS; k++) {
        table[k].w1.packed = s->gate[k].device;
        table[k].w3.packed = s->up[k].device;
        table[k].w2.packed = s->down[k].device;
    }
    moe_expert *experts = device_new(sizeof table);
    int *pick = device_new(sizeof s->pick[t]);
    float *weight = device_new(sizeof s->weight[t]), *x = device_new(sizeof(float) * D);
    device_put(experts, table, sizeof table);
    device_put(pick, s->pick[t], sizeof s->pick[t]);
    device_put(weight, s->weight[t], sizeof s->weight[t]);
    device_put(x, s->x + t * D, sizeof(float) * D);
    moe_row_args a = {.experts = experts,
        .expert = pick,
        .weight = weight,
        .x = x,
        .y = device_new(sizeof(float) * D),
        .sums = device_new(sizeof(int64_t) * CHOICES * (D + 2 * WIDTH)),
        .link = row_link,
        .n_used = CHOICES,
        .n_experts = EXPERTS,
        .d = D,
        .n_ff = WIDTH,
        .max_k2 = 12,
        .limit = LIMIT};
    for (int turn = 0; turn < 3; turn++) { /* sums and counters must be left clean */
        err e = ERR_INIT;
        bool is_done = false;
        device_ok(cudaMemset(a.y, 0xff, sizeof(float) * D), "poison");
        assert_int_equal(moe_row_run(&a, NULL, &is_done, &e), OK);
        assert_true(is_done);
        device_ok(cudaDeviceSynchronize(), "experts of a row");
    }
    device_get(y, a.y, sizeof(float) * D);
    void *used[] = {experts, pick, weight, x, a.y, a.sums};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        device_free(used[i]);
}

static moe_few_link *few_link; /* likewise */

/* The device's answer for tokens t0 .. t0 + n - 1 in the form for a few. */
static void gpu_few(const expert_set *s, int t0, int n, float *y) {
    const size_t pairs = (size_t)(n * CHOICES), bytes = sizeof(float) * (size_t)(n * D);
    moe_expert table[EXPERTS] = {0};
    for (int k = 0; k < EXPERTS; k++) {
        table[k].w1.packed = s->gate[k].device;
        table[k].w3.packed = s->up[k].device;
        table[k].w2.packed = s->down[k].device;
    }
    moe_expert *experts = device_new(sizeof table);
    int *pick = device_new(pairs * sizeof(int));
    float *weight = device_new(pairs * sizeof(float)), *x = device_new(bytes);
    device_put(experts, table, sizeof table);
    device_put(pick, s->pick[t0], pairs * sizeof(int));
    device_put(weight, s->weight[t0], pairs * sizeof(float));
    device_put(x, s->x + t0 * D, bytes);
    moe_few_args a = {.experts = experts,
        .expert = pick,
        .weight = weight,
        .x = x,
        .y = device_new(bytes),
        .sums = device_new(sizeof(int64_t) * pairs * (D + 2 * WIDTH)),
        .link = few_link,
        .n_tokens = n,
        .n_used = CHOICES,
        .n_experts = EXPERTS,
        .d = D,
        .n_ff = WIDTH,
        .max_k2 = 12,
        .limit = LIMIT};
    for (int turn = 0; turn < 3; turn++) { /* sums must be left clean */
        err e = ERR_INIT;
        bool is_done = false;
        device_ok(cudaMemset(a.y, 0xff, bytes), "poison");
        assert_int_equal(moe_few_run(&a, NULL, &is_done, &e), OK);
        assert_true(is_done);
        device_ok(cudaDeviceSynchronize(), "experts of a few rows");
    }
    device_get(y, a.y, bytes);
    void *used[] = {experts, pick, weight, x, a.y, a.sums};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        device_free(used[i]);
}

static int by_number(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

static bool is_picked(const int *pick, int n, int k) {
    for (int i = 0; i < n; i++) {
        if (pick[i] == k) return true;
    }
    return false;
}

/* The forms without lists need a block for every part of a matrix and large shared memory: not on GB10. */
static bool has_row_form(void) {
    int n_sms = 0, bytes = 0;
    device_ok(cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, 0), "processors");
    device_ok(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), "memory");
    return n_sms >= 64 && bytes >= 200 << 10;
}

static void test_experts(void **state) {
    (void)state;
    static expert_set s;
    row_link = device_new(sizeof *row_link);
    few_link = device_new(sizeof *few_link);
    for (int k = 0; k < EXPERTS; k++) {
        static const int rates[] = {4, 6, 6, 10, 8, 12, 5};
        const int k2 = rates[k % 7], in[3] = {D, WIDTH, k2},
                  out[3] = {WIDTH, D, rates[(k + 1) % 7]};
        fixture_matrix_init(&s.gate[k], in, 0, 100u + (unsigned)k);
        fixture_matrix_init(&s.up[k], in, 0, 200u + (unsigned)k);
        fixture_matrix_init(&s.down[k], out, 0, 300u + (unsigned)k);
    }
    fixture_values(s.x, TOKENS * D, 77);
    for (int t = 0; t < TOKENS; t++) {
        for (int c = 0; c < CHOICES; c++) {
            s.pick[t][c] = (t * (t < 4 ? 1 : 5) + 3 * c) % EXPERTS;
            if (c == 0) s.pick[t][c] = 1; /* one expert that every token takes */
            while (is_picked(s.pick[t], c, s.pick[t][c]))
                s.pick[t][c] = (s.pick[t][c] + 2) % EXPERTS;
            s.weight[t][c] = 0.2f + 0.1f * (float)c;
        }
        /* The forms without lists add experts in ascending order. */
        qsort(s.pick[t], CHOICES, sizeof s.pick[t][0], by_number);
    }
    static float together[TOKENS * D], alone[D], row[D], want[D];
    gpu_tokens(&s, 0, TOKENS, together);
    for (int n = 1; n <= TOKENS && has_row_form(); n++) {
        static float few[TOKENS * D];
        for (int t = 0; t + n <= TOKENS; t += n) {
            gpu_few(&s, t, n, few);
            assert_memory_equal(few, together + t * D, sizeof(float) * (size_t)(n * D));
        }
    }
    for (int t = 0; t < TOKENS; t++) {
        gpu_tokens(&s, t, 1, alone);
        assert_memory_equal(alone, together + t * D, sizeof alone);
        if (has_row_form()) {
            gpu_row(&s, t, row);
            assert_memory_equal(row, alone, sizeof alone);
        }
        cpu_token(&s, t, want);
        double worst = 0, size = 0;
        for (int i = 0; i < D; i++) {
            worst = fmax(worst, fabs((double)alone[i] - (double)want[i]));
            size = fmax(size, fabs((double)want[i]));
        }
        /* exp differs by an ulp or two between the machines, which may move an
     * integer of the hidden row by one: 1/32512 of its maximum. */
        if (!(worst <= 2e-5 * size)) fail_msg("token %d: off by %.3g of %.3g", t, worst, size);
    }
    for (int k = 0; k < EXPERTS; k++) {
        fixture_matrix_release(&s.gate[k]);
        fixture_matrix_release(&s.up[k]);
        fixture_matrix_release(&s.down[k]);
    }
}

/* ---- one token, real sizes ---- */

enum { ROW_TURNS = 40, ROW_STREAMS = 2 };

/* A run of the form for one token with everything it needs. */
typedef struct row_case {
    moe_row_args a;
    fixture_matrix m[MOE_ROW_SLOTS][3];
    float *first; /* [d] */
} row_case;

static void row_case_init(row_case *r, const int shape[2], const int *k2, int n, int has_shared) {
    const int d = shape[0], width = shape[1], n_used = n - has_shared;
    moe_expert table[MOE_ROW_SLOTS] = {0};
    int pick[MOE_ROW_SLOTS] = {0};
    float weight[MOE_ROW_SLOTS], *x = mem_array((size_t)d, sizeof *x);
    for (int i = 0; i < n; i++) {
        const int in[3] = {d, width, k2[i % 3]}, out[3] = {width, d, k2[(i + 1) % 3]};
        for (int j = 0; j < 3; j++)
            fixture_matrix_init(&r->m[i][j], j < 2 ? in : out, 0, (unsigned)(d + 3 * i + j));
        table[i].w1.packed = r->m[i][0].device;
        table[i].w3.packed = r->m[i][1].device;
        table[i].w2.packed = r->m[i][2].device;
        pick[i] = n_used - 1 - i;
        weight[i] = 0.2f + 0.05f * (float)i;
    }
    fixture_values(x, (size_t)d, (unsigned)width);
    r->a = (moe_row_args){.experts = device_new(sizeof table),
        .expert = device_new(sizeof pick),
        .weight = device_new(sizeof weight),
        .x = device_new(sizeof *x * (size_t)d),
        .y = device_new(sizeof(float) * (size_t)d),
        .sums = device_new(sizeof(int64_t) * (size_t)(n * (d + 2 * width))),
        .link = device_new(sizeof(moe_row_link)),
        .n_used = n_used,
        .n_experts = n_used,
        .d = d,
        .n_ff = width,
        .has_shared = has_shared,
        .max_k2 = 10,
        .is_bf16 = 1,
        .limit = LIMIT};
    device_put((void *)(uintptr_t)r->a.experts, table, sizeof table);
    device_put((void *)(uintptr_t)r->a.expert, pick, sizeof pick);
    device_put((void *)(uintptr_t)r->a.weight, weight, sizeof weight);
    device_put((void *)(uintptr_t)r->a.x, x, sizeof *x * (size_t)d);
    mem_free(x);
    r->first = mem_array((size_t)d, sizeof(float));
}

/* The answer from the form with lists: experts in ascending order as the sum takes them. */
static void row_case_want(const row_case *r, float *want) {
    const moe_row_args *a = &r->a;
    const int n = a->n_used + a->has_shared;
    exl3_gpu_job in[2 * MOE_ROW_SLOTS] = {0}, out[MOE_ROW_SLOTS] = {0};
    int pair_of[MOE_ROW_SLOTS];
    float weight[MOE_ROW_SLOTS];
    for (int i = 0; i < n; i++) { /* slot n_used - 1 - i picked expert i */
        for (int j = 0; j < 2; j++)
            in[2 * i + j] = (exl3_gpu_job){.matrix = r->m[i][j].device,
                .x = a->x,
                .x_stride = a->d,
                .n_rows = 1,
                .is_bf16 = 1};
        out[i] =
            (exl3_gpu_job){.matrix = r->m[i][2].device, .n_rows = 1, .first_pair = i, .is_bf16 = 1};
        pair_of[i] = i;
        weight[i] = i < a->n_used ? 0.2f + 0.05f * (float)(a->n_used - 1 - i) : 1.f;
    }
    fixture_list ins, outs;
    fixture_list_init(&ins, in, 2 * n, 1);
    fixture_list_init(&outs, out, n, 0);
    for (int i = 0; i < n; i++) {
        outs.jobs[i].first_sum += (int32_t)ins.n_sums;
        outs.jobs[i].first_counter += (int32_t)ins.n_counters;
    }
    device_put(outs.device->jobs, outs.jobs, sizeof *outs.jobs * (size_t)n);
    float *device_weight = device_new(sizeof weight);
    int *device_pair = device_new(sizeof pair_of);
    device_put(device_weight, weight, sizeof weight);
    device_put(device_pair, pair_of, sizeof pair_of);
    const exl3_gpu_rotate_args rotate = {ins.device, NULL, 2 * n, 1};
    const exl3_gpu_experts_args x = {.gate_up = ins.device,
        .down = outs.device,
        .scratch = {device_new(8 * (ins.n_sums + outs.n_sums)),
            device_new(4 * (ins.n_counters + outs.n_counters))},
        .hidden = device_new(sizeof(float) * (size_t)(n * a->n_ff)),
        .row_max = device_new(sizeof pair_of),
        .row_counter = device_new(sizeof pair_of),
        .block_counter = device_new(4 * (size_t)(a->d / 128)),
        .weight = device_weight,
        .part = device_new(sizeof(float) * (size_t)(n * a->d)),
        .pair_of = device_pair,
        .y = device_new(sizeof(float) * (size_t)a->d),
        .n_tokens = 1,
        .n_choices = n,
        .limit = LIMIT,
        .max_rows = 1,
        .max_stage_bytes = exl3_gpu_stage_bytes(a->max_k2, 1),
        .is_bf16 = 1};
    err e = ERR_INIT;
    assert_int_equal(exl3_gpu_rotate_run(&rotate, NULL, &e), OK);
    assert_int_equal(exl3_gpu_experts_run(&x, NULL, &e), OK);
    device_ok(cudaDeviceSynchronize(), "experts");
    device_get(want, x.y, sizeof(float) * (size_t)a->d);
    void *used[] = {device_weight, device_pair, x.scratch.sums, x.scratch.counters, x.hidden,
        x.row_max, x.row_counter, x.block_counter, x.part, x.y};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        device_free(used[i]);
    fixture_list_release(&ins);
    fixture_list_release(&outs);
}

static void row_case_release(row_case *r) {
    const void *used[] = {
        r->a.experts, r->a.expert, r->a.weight, r->a.x, r->a.y, r->a.sums, r->a.link};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++)
        device_free((void *)(uintptr_t)used[i]);
    for (int i = 0; i < r->a.n_used + r->a.has_shared; i++) {
        for (int j = 0; j < 3; j++)
            fixture_matrix_release(&r->m[i][j]);
    }
    mem_free(r->first);
}

/* Blocks of a run wait for each other, so two runs at once must not keep each other from the processors they need. */
static void row_both(row_case r[ROW_STREAMS]) {
    cudaStream_t s[ROW_STREAMS];
    for (int i = 0; i < ROW_STREAMS; i++)
        device_ok(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking), "stream");
    for (int turn = 0; turn < ROW_TURNS; turn++) {
        for (int i = 0; i < ROW_STREAMS; i++) {
            err e = ERR_INIT;
            bool is_done = false;
            assert_int_equal(moe_row_run(&r[i].a, s[i], &is_done, &e), OK);
            assert_true(is_done);
        }
    }
    device_ok(cudaDeviceSynchronize(), "experts of two rows at once");
    for (int i = 0; i < ROW_STREAMS; i++)
        device_ok(cudaStreamDestroy(s[i]), "stream");
}

static void test_row(void **state) {
    (void)state;
    if (!has_row_form()) skip();
    static const struct {
        int shape[ROW_STREAMS][2], n, has_shared, k2[3];
    } cases[] = {{{{5120, 1152}, {1280, 2304}}, 7, 1, {6, 6, 10}},
        {{{128, 128}, {384, 128}}, 1, 0, {6, 8, 4}}, {{{128, 384}, {1280, 640}}, 8, 1, {5, 4, 10}}};
    static row_case r[ROW_STREAMS];
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        for (int i = 0; i < ROW_STREAMS; i++) {
            row_case_init(&r[i], cases[c].shape[i], cases[c].k2, cases[c].n, cases[c].has_shared);
            row_case_want(&r[i], r[i].first);
        }
        row_both(r);
        for (int i = 0; i < ROW_STREAMS; i++) {
            const size_t bytes = sizeof(float) * (size_t)r[i].a.d;
            float *y = mem_alloc(bytes);
            device_get(y, r[i].a.y, bytes);
            assert_memory_equal(y, r[i].first, bytes);
            mem_free(y);
            row_case_release(&r[i]);
        }
    }
}

int main(void) {
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        print_message("skipped: no GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_experts), cmocka_unit_test(test_row)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
