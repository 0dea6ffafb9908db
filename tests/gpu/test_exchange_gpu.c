/* Two GPUs over NCCL: sums and gathers against the host's arithmetic, and the demo model as two
 * ranks against one, over recorded steps too. Ranks are threads of this process, each with its own
 * GPU. Skipped where there are fewer than two GPUs. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/dist/exchange_nccl.h"
#include "engine/model/model.h"
#include "tests/gpu/gpu_backend.h"
#include "tests/harness/model_probe.h"
#include "tests/harness/vectors.h"

enum { N = 5120 * 3 + 7, PROMPT = 40, DECODED = 12, CONTEXT = 256, TIMED = 84 };

typedef struct rank_run {
    int rank;
    exchange *control, *x;
    float sums[N], gathered[2 * N];
    float *logits; /* of all decoded tokens */
    int n_vocab;
    double exchange_us;
    err e;
    int rc;
} rank_run;

static float value_of(int rank, int i) {
    return (float)((i * 37 + rank * 101) % 1000) * 0.37f - 150.0f;
}

/* Sums and gathers of made-up values. */
static int run_exchange(rank_run *r) {
    float *device = NULL, *all = NULL, host[N];
    cudaStream_t s;
    for (int i = 0; i < N; i++)
        host[i] = value_of(r->rank, i);
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaMalloc((void **)&device, sizeof(host)) == cudaSuccess);
    CHECK(cudaMalloc((void **)&all, 2 * sizeof(host)) == cudaSuccess);
    CHECK(cudaMemcpy(device, host, sizeof(host), cudaMemcpyDefault) == cudaSuccess);
    int rc = exchange_gather(r->x, device, sizeof(host), all, s, &r->e);
    if (rc == OK) rc = exchange_sum_rows(r->x, device, N, s, &r->e);
    CHECK(cudaStreamSynchronize(s) == cudaSuccess);
    CHECK(cudaMemcpy(r->sums, device, sizeof(host), cudaMemcpyDefault) == cudaSuccess);
    CHECK(cudaMemcpy(r->gathered, all, 2 * sizeof(host), cudaMemcpyDefault) == cudaSuccess);
    for (int turn = 0; turn < 3 && rc == OK; turn++) {
        uint64_t start = clock_mono_ns();
        for (int i = 0; i < TIMED && rc == OK; i++)
            rc = exchange_sum_rows(r->x, device, 5120, s, &r->e);
        CHECK(cudaStreamSynchronize(s) == cudaSuccess);
        r->exchange_us = (double)(clock_mono_ns() - start) / 1e3 / TIMED;
    }
    (void)cudaFree(device);
    (void)cudaFree(all);
    (void)cudaStreamDestroy(s);
    return rc;
}

/* A prompt, then greedy tokens one by one; logits of every decoded row. */
static void run_model(rank_run *r) {
    int32_t tokens[PROMPT];
    model_info info;
    model_options o = {.dir = "templates/demo-model",
        .max_rows = 64,
        .max_context = CONTEXT,
        .max_logit_rows = 64,
        .rank = r->rank,
        .world = r->x == NULL ? 1 : 2,
        .exchange = r->x};
    model *m = probe_open(&o);
    model_get_info(m, &info);
    r->n_vocab = info.config->n_vocab;
    r->logits = mem_array((size_t)DECODED * (size_t)r->n_vocab, sizeof(float));
    for (int i = 0; i < PROMPT; i++)
        tokens[i] = (i * 53 + 11) % r->n_vocab;
    probe_slot(m, 0, 0, CONTEXT);
    const float *row = probe_step(m, 0, tokens, PROMPT, PLAN_PROMPT);
    row += (size_t)(PROMPT - 1) * (size_t)r->n_vocab;
    for (int i = 0; i < DECODED; i++) {
        int32_t token = probe_argmax(row, r->n_vocab);
        row = probe_step(m, 0, &token, 1, PLAN_DECODE);
        memcpy(r->logits + (size_t)i * (size_t)r->n_vocab, row, (size_t)r->n_vocab * sizeof(float));
    }
    model_close(m);
}

static void *run_rank(void *arg) {
    rank_run *r = arg;
    CHECK(cudaSetDevice(r->rank) == cudaSuccess);
    r->rc = exchange_nccl_open(r->control, 0, &r->x, &r->e);
    if (r->rc == OK) r->rc = run_exchange(r);
    if (r->rc == OK) run_model(r);
    if (r->x != NULL) exchange_close(r->x);
    return NULL;
}

static void verdict(vectors *v, const char *what, bool is_fine, const char *got) {
    if (is_fine) {
        vectors_pass(v);
    } else {
        vectors_fail(v, what, "equal", got);
    }
}

static void check_values(vectors *v, const rank_run *r) {
    bool is_sum = true, is_gather = true;
    for (int i = 0; i < N; i++) {
        is_sum = is_sum && r->sums[i] == value_of(0, i) + value_of(1, i);
        for (int q = 0; q < 2; q++)
            is_gather = is_gather && r->gathered[q * N + i] == value_of(q, i);
    }
    verdict(v, "sum of ranks", is_sum, "another sum");
    verdict(v, "gather of ranks", is_gather, "other values");
}

static double worst_of(const rank_run *a, const rank_run *b) {
    double worst = 0, size = 0;
    for (size_t i = 0; i < (size_t)DECODED * (size_t)a->n_vocab; i++) {
        worst = fmax(worst, fabs((double)a->logits[i] - (double)b->logits[i]));
        size += (double)b->logits[i] * (double)b->logits[i];
    }
    return worst / sqrt(size / ((double)DECODED * a->n_vocab));
}

int main(void) {
    static rank_run r[3];
    vectors v = {0};
    exchange *control[2];
    pthread_t t[2];
    err e = ERR_INIT;
    int n = 0;
    if (!gpu_backend_use()) return 77;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n < 2 || exchange_nccl_version() == 0) {
        printf("skipped: %d GPU, NCCL %d\n", n, exchange_nccl_version());
        return 77;
    }
    CHECK(exchange_local_open(2, 0, 60000, control, &e) == OK);
    for (int i = 0; i < 2; i++) {
        r[i].rank = i;
        r[i].control = control[i];
        CHECK(pthread_create(&t[i], NULL, run_rank, &r[i]) == 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < 2; i++)
        verdict(&v, "ranks over NCCL", r[i].rc == OK, r[i].e.msg);
    if (r[0].rc == OK && r[1].rc == OK) {
        char text[64];
        check_values(&v, &r[0]);
        check_values(&v, &r[1]);
        run_model(&r[2]);
        size_t bytes = (size_t)DECODED * (size_t)r[0].n_vocab * sizeof(float);
        verdict(&v, "logits of both ranks", memcmp(r[0].logits, r[1].logits, bytes) == 0, "not");
        double worst = worst_of(&r[0], &r[2]);
        snprintf(text, sizeof(text), "off by %.3g of the rms", worst);
        verdict(&v, "two ranks against one", worst < 0.02, text);
        printf("two ranks against one: %s; NCCL %d, sum of 5120 floats %.1f us\n", text,
            exchange_nccl_version(), r[0].exchange_us);
    }
    return vectors_end(&v);
}
