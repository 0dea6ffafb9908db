/* Times the EXL3 kernels at the real model's sizes: experts of one layer and
 * single linears, beside a plain read of the same bytes. Every call of a graph
 * uses other weights, so that the cache is cold; median and spread over
 * replays, in microseconds a call. Weights are random bits (any bits are a
 * valid trellis); correctness is test_exl3_gpu's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "kernels/exl3/exl3_one.h"
#include "kernels/moe/moe_few.h"
#include "tests/gpu/bench_stream.h"
#include "tests/gpu/exl3_fixture.h"

enum {
    HIDDEN = 5120,
    CHOICES = 6,
    MAX_TOKENS = 8,
    MAX_PAIRS = MAX_TOKENS * CHOICES,
    CALLS = 12,
    REPLAYS = 21
};

static unsigned char *weights;
static size_t weights_bytes, weights_at;
static uint16_t *vectors; /* fp16 scales that all matrices share */
static uint32_t *sink;

typedef struct timing {
    double median, low, high;
} timing;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Replays CALLS calls of body as one graph. */
static timing time_calls(void (*body)(void *ctx, int call, cudaStream_t s), void *ctx) {
    cudaStream_t s;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    double us[REPLAYS];
    device_ok(cudaStreamCreate(&s), "stream");
    device_ok(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "capture");
    for (int c = 0; c < CALLS; c++)
        body(ctx, c, s);
    device_ok(cudaStreamEndCapture(s, &graph), "capture");
    device_ok(cudaGraphInstantiate(&exec, graph, 0), "graph");
    device_ok(cudaEventCreate(&begin), "event");
    device_ok(cudaEventCreate(&end), "event");
    for (int i = -3; i < REPLAYS; i++) {
        float ms = 0;
        device_ok(cudaEventRecord(begin, s), "event");
        device_ok(cudaGraphLaunch(exec, s), "launch");
        device_ok(cudaEventRecord(end, s), "event");
        device_ok(cudaEventSynchronize(end), "graph");
        device_ok(cudaEventElapsedTime(&ms, begin, end), "event");
        if (i >= 0) us[i] = (double)ms * 1e3 / CALLS;
    }
    device_ok(cudaGraphExecDestroy(exec), "graph");
    device_ok(cudaGraphDestroy(graph), "graph");
    device_ok(cudaStreamDestroy(s), "stream");
    qsort(us, REPLAYS, sizeof *us, by_value);
    return (timing){us[REPLAYS / 2], us[0], us[REPLAYS - 1]};
}

/* The next bytes of the pool, round and round. */
static const void *weights_take(size_t bytes) {
    if (weights_at + bytes > weights_bytes) weights_at = 0;
    const void *p = weights + weights_at;
    weights_at += (bytes + 255) / 256 * 256;
    return p;
}

static exl3_gpu_matrix matrix_new(int in, int out, int k2) {
    return (exl3_gpu_matrix){
        weights_take(exl3_trellis_bytes(in, out, k2)), vectors, vectors, NULL, in, out, k2, 0};
}

/* ---- a plain read ---- */

typedef struct stream_case {
    const void *from[CALLS];
    size_t bytes;
} stream_case;

static void stream_body(void *ctx, int call, cudaStream_t s) {
    stream_case *c = ctx;
    bench_stream(c->from[call], c->bytes, sink, s);
}

static double stream_us(size_t bytes) {
    stream_case c = {.bytes = bytes};
    for (int i = 0; i < CALLS; i++)
        c.from[i] = weights_take(bytes);
    return time_calls(stream_body, &c).median;
}

/* ---- experts ---- */

typedef struct expert_call {
    fixture_list gate_up, down;
    exl3_gpu_rotate_args rotate;
    exl3_gpu_experts_args experts;
} expert_call;

typedef struct expert_bench {
    expert_call calls[CALLS];
    size_t bytes;
    int has_rotate, has_experts;
} expert_bench;

static void expert_body(void *ctx, int call, cudaStream_t s) {
    expert_bench *b = ctx;
    err e = ERR_INIT;
    if (b->has_rotate && exl3_gpu_rotate_run(&b->calls[call].rotate, s, &e) != OK)
        device_ok(cudaErrorUnknown, e.msg);
    if (b->has_experts && exl3_gpu_experts_run(&b->calls[call].experts, s, &e) != OK)
        device_ok(cudaErrorUnknown, e.msg);
}

static uint32_t mix(uint32_t x) {
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

/* Picks CHOICES different experts of 384 for every token, grouped by expert:
 * tokens of expert i in rows[i]. */
static int pick(int n_tokens, uint32_t seed, int rows[][MAX_TOKENS + 1]) {
    int expert_of[MAX_PAIRS], n = 0;
    for (int t = 0; t < n_tokens; t++) {
        int chosen[CHOICES];
        for (int c = 0; c < CHOICES;) {
            int k = (int)(mix(seed++ * 2654435761u + 17u) % 384u), is_new = 1;
            for (int b = 0; b < c; b++)
                is_new = is_new && chosen[b] != k;
            if (!is_new) continue;
            chosen[c++] = k;
            int at = 0;
            while (at < n && expert_of[at] != k)
                at++;
            if (at == n) {
                expert_of[n] = k;
                rows[n++][0] = 0;
            }
            rows[at][++rows[at][0]] = t;
        }
    }
    return n;
}

static void expert_call_init(
    expert_call *c, const int shape[2] /* width, k2 */, int n_tokens, uint32_t seed) {
    static int rows[MAX_PAIRS][MAX_TOKENS + 1];
    exl3_gpu_job gate_up[2 * MAX_PAIRS] = {0}, down[MAX_PAIRS] = {0};
    const float *x_of[2 * MAX_PAIRS];
    int pair_of[MAX_PAIRS], choice[MAX_TOKENS] = {0}, pair = 0, width = shape[0], k2 = shape[1];
    float *x = device_new(sizeof(float) * MAX_TOKENS * HIDDEN), host_x[HIDDEN], weight[MAX_PAIRS];
    int n = pick(n_tokens, seed, rows);
    for (int t = 0; t < n_tokens; t++) {
        fixture_values(host_x, HIDDEN, seed + (uint32_t)t);
        device_put(x + t * HIDDEN, host_x, sizeof host_x);
    }
    for (int i = 0; i < n; i++) {
        int n_rows = rows[i][0];
        gate_up[2 * i] = (exl3_gpu_job){.matrix = matrix_new(HIDDEN, width, k2), .n_rows = n_rows};
        gate_up[2 * i + 1] =
            (exl3_gpu_job){.matrix = matrix_new(HIDDEN, width, k2), .n_rows = n_rows};
        down[i] = (exl3_gpu_job){
            .matrix = matrix_new(width, HIDDEN, k2), .n_rows = n_rows, .first_pair = pair};
        x_of[2 * i] = x_of[2 * i + 1] =
            x + rows[i][1] * HIDDEN; /* timing only: rows taken as neighbours */
        if (rows[i][1] + n_rows > MAX_TOKENS) x_of[2 * i] = x_of[2 * i + 1] = x;
        for (int r = 1; r <= n_rows; r++, pair++) {
            int t = rows[i][r];
            pair_of[t * CHOICES + choice[t]++] = pair;
            weight[pair] = 0.25f;
        }
    }
    for (int i = 0; i < 2 * n; i++) {
        gate_up[i].x = x_of[i];
        gate_up[i].x_stride = HIDDEN;
    }
    fixture_list_init(&c->gate_up, gate_up, 2 * n, 1);
    fixture_list_init(&c->down, down, n, 0);
    int *device_pair = device_new(sizeof pair_of);
    device_put(device_pair, pair_of, sizeof pair_of);
    float *device_weight = device_new(sizeof weight);
    device_put(device_weight, weight, sizeof weight);
    c->rotate = (exl3_gpu_rotate_args){c->gate_up.device, NULL, 2 * n, c->gate_up.max_rows};
    c->experts = (exl3_gpu_experts_args){.gate_up = c->gate_up.device,
        .down = c->down.device,
        .scratch = {device_new(8 * (c->gate_up.n_sums + c->down.n_sums)),
            device_new(4 * (c->gate_up.n_counters + c->down.n_counters))},
        .hidden = device_new(4 * (size_t)(MAX_PAIRS * width)),
        .row_max = device_new(4 * MAX_PAIRS),
        .row_counter = device_new(4 * MAX_PAIRS),
        .block_counter = device_new(4 * HIDDEN / 128),
        .weight = device_weight,
        .part = device_new(4 * MAX_PAIRS * HIDDEN),
        .pair_of = device_pair,
        .y = device_new(4 * MAX_TOKENS * HIDDEN),
        .n_tokens = n_tokens,
        .n_choices = CHOICES,
        .limit = 10.f,
        .max_rows = c->gate_up.max_rows,
        .max_stage_bytes = c->gate_up.max_stage_bytes,
        .has_early_list = 1};
    for (int j = 0; j < n; j++) {
        c->down.jobs[j].first_sum += (int32_t)c->gate_up.n_sums;
        c->down.jobs[j].first_counter += (int32_t)c->gate_up.n_counters;
    }
    device_put(c->down.device->jobs, c->down.jobs, sizeof *c->down.jobs * (size_t)n);
}

static void bench_experts(int width, int k2, int n_tokens) {
    static expert_bench b;
    const int shape[2] = {width, k2};
    double n_experts = 0;
    for (int c = 0; c < CALLS; c++) {
        expert_call_init(&b.calls[c], shape, n_tokens, 1000u * (uint32_t)c + (uint32_t)n_tokens);
        n_experts += b.calls[c].down.n / (double)CALLS;
    }
    double bytes = n_experts * 3 * (double)exl3_trellis_bytes(HIDDEN, width, k2);
    b.has_rotate = 1, b.has_experts = 0;
    timing rotate = time_calls(expert_body, &b);
    b.has_rotate = 0, b.has_experts = 1;
    timing experts = time_calls(expert_body, &b);
    b.has_rotate = 1;
    timing both = time_calls(expert_body, &b);
    printf("experts K=%.1f width %4d rows %d (%.1f experts): %7.1f us [%.1f .. "
           "%.1f]  without rotation %.1f  rotation %.1f"
           "  read %.1f  %.0f GB/s\n",
        k2 / 2.0, width, n_tokens, n_experts, both.median, both.low, both.high, experts.median,
        rotate.median, stream_us((size_t)bytes), bytes / both.median / 1e3);
    fflush(stdout);
}

/* ---- experts of one token, the form without lists ---- */

typedef struct row_bench {
    moe_row_args calls[CALLS];
    int is_refused;
} row_bench;

static void row_body(void *ctx, int call, cudaStream_t s) {
    row_bench *b = ctx;
    err e = ERR_INIT;
    bool is_done = false;
    if (moe_row_run(&b->calls[call], s, &is_done, &e) != OK) device_ok(cudaErrorUnknown, e.msg);
    b->is_refused |= !is_done;
}

/* n experts, the last of them the shared one when has_shared. */
static void bench_row(int width, int k2, int n, int has_shared) {
    static row_bench b;
    static float x[HIDDEN];
    b.is_refused = 0;
    moe_row_link *link = device_new(sizeof *link);
    for (int c = 0; c < CALLS; c++) {
        moe_expert table[MOE_ROW_SLOTS] = {0};
        int pick[MOE_ROW_SLOTS];
        float weight[MOE_ROW_SLOTS];
        for (int i = 0; i < n; i++) {
            table[i].w1.packed = matrix_new(HIDDEN, width, k2);
            table[i].w3.packed = matrix_new(HIDDEN, width, k2);
            table[i].w2.packed = matrix_new(width, HIDDEN, k2);
            pick[i] = i;
            weight[i] = 0.25f;
        }
        moe_expert *experts = device_new(sizeof table);
        int *device_pick = device_new(sizeof pick);
        float *device_weight = device_new(sizeof weight), *device_x = device_new(sizeof x);
        fixture_values(x, HIDDEN, (uint64_t)c + 1);
        device_put(experts, table, sizeof table);
        device_put(device_pick, pick, sizeof pick);
        device_put(device_weight, weight, sizeof weight);
        device_put(device_x, x, sizeof x);
        b.calls[c] = (moe_row_args){.experts = experts,
            .expert = device_pick,
            .weight = device_weight,
            .x = device_x,
            .y = device_new(sizeof(float) * HIDDEN),
            .sums = device_new(sizeof(int64_t) * (size_t)(n * (HIDDEN + 2 * width))),
            .link = link,
            .n_used = n - has_shared,
            .n_experts = n - has_shared,
            .d = HIDDEN,
            .n_ff = width,
            .has_shared = has_shared,
            .max_k2 = k2,
            .limit = 10.f};
    }
    timing t = time_calls(row_body, &b);
    double bytes = n * 3 * (double)exl3_trellis_bytes(HIDDEN, width, k2);
    printf("experts of one token K=%.1f width %4d, %d experts: %7.1f us [%.1f .. "
           "%.1f]  read %.1f  %.0f GB/s%s\n",
        k2 / 2.0, width, n, t.median, t.low, t.high, stream_us((size_t)bytes),
        bytes / t.median / 1e3, b.is_refused ? "  NOT RUN" : "");
    fflush(stdout);
}

/* ---- experts of a few tokens, the form without lists ---- */

typedef struct few_bench {
    moe_few_args calls[CALLS];
    int is_refused;
} few_bench;

static void few_body(void *ctx, int call, cudaStream_t s) {
    few_bench *b = ctx;
    err e = ERR_INIT;
    bool is_done = false;
    if (moe_few_run(&b->calls[call], s, &is_done, &e) != OK) device_ok(cudaErrorUnknown, e.msg);
    b->is_refused |= !is_done;
}

/* The picks of expert_call_init, experts numbered as they come. */
static int few_call_init(moe_few_args *a, int n_tokens, uint32_t seed) {
    static int rows[MAX_PAIRS][MAX_TOKENS + 1];
    static moe_expert table[MAX_PAIRS + 1];
    static float x[MAX_TOKENS * HIDDEN];
    int expert[MAX_PAIRS], n_of[MAX_TOKENS] = {0};
    float weight[MAX_PAIRS];
    const int n = pick(n_tokens, seed, rows);
    for (int i = 0; i < n; i++) {
        table[i].w1.packed = matrix_new(HIDDEN, a->n_ff, a->max_k2);
        table[i].w3.packed = matrix_new(HIDDEN, a->n_ff, a->max_k2);
        table[i].w2.packed = matrix_new(a->n_ff, HIDDEN, a->max_k2);
        for (int r = 1; r <= rows[i][0]; r++)
            expert[rows[i][r] * CHOICES + n_of[rows[i][r]]++] = i;
    }
    for (int i = 0; i < MAX_PAIRS; i++)
        weight[i] = 0.25f;
    fixture_values(x, MAX_TOKENS * HIDDEN, seed);
    moe_expert *experts = device_new(sizeof table);
    int *device_expert = device_new(sizeof expert);
    float *device_weight = device_new(sizeof weight), *device_x = device_new(sizeof x);
    device_put(experts, table, sizeof table);
    device_put(device_expert, expert, sizeof(int) * (size_t)(n_tokens * CHOICES));
    device_put(device_weight, weight, sizeof weight);
    device_put(device_x, x, sizeof x);
    a->experts = experts;
    a->expert = device_expert;
    a->weight = device_weight;
    a->x = device_x;
    a->y = device_new(sizeof x);
    a->sums = device_new(sizeof(int64_t) * MAX_PAIRS * (size_t)(HIDDEN + 2 * a->n_ff));
    a->n_experts = n;
    return n;
}

static void bench_few(int width, int k2, int n_tokens) {
    static few_bench b;
    double n_experts = 0;
    b.is_refused = 0;
    moe_few_link *link = device_new(sizeof *link);
    for (int c = 0; c < CALLS; c++) {
        b.calls[c] = (moe_few_args){.link = link,
            .n_tokens = n_tokens,
            .n_used = CHOICES,
            .d = HIDDEN,
            .n_ff = width,
            .max_k2 = k2,
            .limit = 10.f};
        n_experts +=
            few_call_init(&b.calls[c], n_tokens, 1000u * (uint32_t)c + (uint32_t)n_tokens) /
            (double)CALLS;
    }
    const timing t = time_calls(few_body, &b);
    const double bytes = n_experts * 3 * (double)exl3_trellis_bytes(HIDDEN, width, k2);
    printf("experts of %d tokens at once K=%.1f width %4d (%.1f experts): %7.1f us [%.1f .. "
           "%.1f]  %.0f GB/s%s\n",
        n_tokens, k2 / 2.0, width, n_experts, t.median, t.low, t.high, bytes / t.median / 1e3,
        b.is_refused ? "  NOT RUN" : "");
    fflush(stdout);
}

/* ---- single linears ---- */

typedef struct linear_bench {
    exl3_gpu_rotate_args rotate[CALLS];
    exl3_gpu_rows_args rows[CALLS];
    exl3_gpu_own_list own[CALLS];
    int has_rotate;
} linear_bench;

static void linear_body(void *ctx, int call, cudaStream_t s) {
    linear_bench *b = ctx;
    err e = ERR_INIT;
    int is_done = 0;
    if (b->has_rotate && exl3_one_run(&b->rows[call], 1, s, &is_done, &e) != OK)
        device_ok(cudaErrorUnknown, e.msg);
    if (is_done) return;
    if (b->has_rotate && exl3_gpu_rotate_run(&b->rotate[call], s, &e) != OK)
        device_ok(cudaErrorUnknown, e.msg);
    if (exl3_gpu_rows_run(&b->rows[call], s, &e) != OK) device_ok(cudaErrorUnknown, e.msg);
}

static void bench_linear(int in, int out, int k2, int n_rows) {
    static linear_bench b;
    float *x = device_new(sizeof(float) * 8 * (size_t)in),
          *host = mem_array(8 * (size_t)in, sizeof *host);
    fixture_values(host, 8 * (size_t)in, 3);
    device_put(x, host, sizeof(float) * 8 * (size_t)in);
    mem_free(host);
    for (int c = 0; c < CALLS; c++) {
        fixture_list list;
        exl3_gpu_job job = {.matrix = matrix_new(in, out, k2),
            .x = x,
            .x_stride = in,
            .n_rows = n_rows,
            .y_stride = out,
            .y = device_new(sizeof(float) * 8 * (size_t)out)};
        fixture_list_init(&list, &job, 1, 0);
        b.rotate[c] = (exl3_gpu_rotate_args){list.device, NULL, 1, n_rows};
        b.own[c] = (exl3_gpu_own_list){.n_jobs = 1, .n_units = list.n_units, .n_cost = list.n_cost};
        b.own[c].jobs[0] = list.jobs[0];
        b.rows[c] = (exl3_gpu_rows_args){NULL, &b.own[c],
            {device_new(8 * list.n_sums), device_new(4 * list.n_counters)}, n_rows,
            list.max_stage_bytes, 1};
    }
    b.has_rotate = 0;
    timing rows = time_calls(linear_body, &b);
    b.has_rotate = 1;
    timing both = time_calls(linear_body, &b);
    double bytes = (double)exl3_trellis_bytes(in, out, k2);
    printf("linear K=%.1f %5d -> %6d rows %d: %7.1f us [%.1f .. %.1f]  operand "
           "ready %.1f  read %.1f  %.0f GB/s\n",
        k2 / 2.0, in, out, n_rows, both.median, both.low, both.high, rows.median,
        stream_us((size_t)bytes), bytes / both.median / 1e3);
    fflush(stdout);
}

static void weights_init(void) {
    enum { PATTERN = 64 << 20 };
    uint64_t *pattern = mem_alloc(PATTERN);
    uint64_t state = 12345;
    for (size_t i = 0; i < PATTERN / 8; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        pattern[i] = state ^ (state >> 29);
    }
    weights_bytes = (size_t)8 << 30;
    weights = device_new(weights_bytes);
    for (size_t at = 0; at < weights_bytes; at += PATTERN)
        device_put(weights + at, pattern, PATTERN);
    mem_free(pattern);
    uint16_t *host = mem_array(1 << 18, 2);
    for (int i = 0; i < 1 << 18; i++)
        host[i] = (uint16_t)(0x2800 + (mix((uint32_t)i) & 0x83ff));
    vectors = device_new(2u << 18);
    device_put(vectors, host, 2u << 18);
    mem_free(host);
    sink = device_new(4);
}

int main(void) {
    struct cudaDeviceProp prop;
    device_ok(cudaGetDeviceProperties(&prop, 0), "device");
    printf("%s, %d SMs\n", prop.name, prop.multiProcessorCount);
    weights_init();
    bench_row(2304, 6, CHOICES, 0);
    bench_row(1152, 6, CHOICES, 0);
    bench_row(2304, 4, CHOICES, 0);
    bench_row(1152, 6, CHOICES + 1, 1);
    bench_few(2304, 6, 8);
    bench_few(1152, 6, 8);
    bench_few(1152, 6, 6);
    bench_few(1152, 6, 4);
    bench_experts(2304, 6, 1);
    bench_experts(1152, 6, 1);
    bench_experts(2304, 4, 1);
    bench_experts(2304, 6, 4);
    bench_experts(2304, 6, 8);
    bench_experts(1152, 6, 8);
    static const int linears[][3] = {{5120, 2304, 6}, {2304, 5120, 6}, {5120, 1152, 6},
        {5120, 2304, 8}, {5120, 1280, 10}, {5120, 512, 10}, {1280, 16384, 10}, {4096, 1024, 10},
        {4096, 5120, 10}, {5120, 64640, 12}};
    for (size_t i = 0; i < sizeof linears / sizeof *linears; i++) {
        static const int rows[] = {1, 4, 8};
        for (int r = 0; r < 3; r++)
            bench_linear(linears[i][0], linears[i][1], linears[i][2], rows[r]);
    }
    return 0;
}
