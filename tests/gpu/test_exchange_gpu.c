/* Two GPUs: sums and gathers over NCCL and over peer memory against the host's arithmetic, in graphs
 * too; a peer that is late or gone; and the demo model as two ranks against one, over recorded steps.
 * Ranks are threads of this process, each with its own GPU. Skipped where there are fewer than two. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/dist/exchange_nccl.h"
#include "engine/dist/exchange_peer.h"
#include "engine/model/model.h"
#include "engine/model/record.h"
#include "kernels/cuda_check.h"
#include "tests/gpu/gpu_backend.h"
#include "tests/harness/model_probe.h"
#include "tests/harness/vectors.h"

enum { PROMPT = 40, DECODED = 12, CONTEXT = 256, TIMED = 84, TURNS = 15, MOST = 2048 * 5120 };

/* Values of a rank: one, an odd number, rows of a step and of a prompt, both forms' largest and one more. */
static const int sizes[] = {1, 7, 5120, 15367, 5120 * 8, 128 << 10, (128 << 10) + 1, 4 << 20, MOST};
enum { N_SIZES = sizeof(sizes) / sizeof(*sizes) };
static const int timed[] = {5120, 5120 * 6, 5120 * 8, 64640, MOST};
enum { N_TIMED = sizeof(timed) / sizeof(*timed) };

typedef struct rank_run {
    int rank;
    exchange_kind kind;
    exchange *control, *x;
    int n_wrong, n_wrong_gathered;
    double us[N_TIMED]; /* of a sum in a graph */
    float *logits;      /* of all decoded tokens */
    int n_vocab;
    err e;
    int rc;
} rank_run;

static float value_of(int rank, int i) {
    return (float)((i * 37 + rank * 101) % 1000) * 0.37f - 150.0f;
}

typedef struct device_rows {
    float *rows, *all, *host;
    cudaStream_t stream;
} device_rows;

static void rows_init(device_rows *d) {
    d->host = mem_array(2 * MOST, sizeof(float));
    CHECK(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaMalloc((void **)&d->rows, MOST * sizeof(float)) == cudaSuccess);
    CHECK(cudaMalloc((void **)&d->all, 2 * (size_t)MOST * sizeof(float)) == cudaSuccess);
}

static void rows_release(device_rows *d) {
    (void)cudaFree(d->rows);
    (void)cudaFree(d->all);
    (void)cudaStreamDestroy(d->stream);
    mem_free(d->host);
}

static int wait_for(const rank_run *r, const device_rows *d, err *e) {
    return cuda_stream_wait(d->stream, r->rank, 30000, e);
}

/* One gather and one sum of n values. */
static int check_size(rank_run *r, device_rows *d, int n) {
    size_t bytes = (size_t)n * sizeof(float);
    for (int i = 0; i < n; i++)
        d->host[i] = value_of(r->rank, i);
    CHECK(cudaMemcpy(d->rows, d->host, bytes, cudaMemcpyDefault) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    int rc = exchange_gather(r->x, d->rows, bytes, d->all, d->stream, &r->e);
    if (rc == OK) rc = exchange_sum_rows(r->x, d->rows, (size_t)n, d->stream, &r->e);
    if (rc == OK) rc = wait_for(r, d, &r->e);
    if (rc != OK) return rc;
    CHECK(cudaMemcpy(d->host, d->rows, bytes, cudaMemcpyDefault) == cudaSuccess);
    for (int i = 0; i < n; i++)
        r->n_wrong += d->host[i] != value_of(0, i) + value_of(1, i);
    CHECK(cudaMemcpy(d->host, d->all, 2 * bytes, cudaMemcpyDefault) == cudaSuccess);
    for (int i = 0; i < 2 * n; i++)
        r->n_wrong_gathered += d->host[i] != value_of(i / n, i % n);
    return OK;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* A graph of sums, replayed; the ranks begin each turn together. */
static int time_size(rank_run *r, device_rows *d, int i) {
    const int n = timed[i], n_sums = n == MOST ? 4 : TIMED;
    double us[TURNS];
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int rc = OK;
    CHECK(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    for (int k = 0; k < n_sums && rc == OK; k++)
        rc = exchange_sum_rows(r->x, d->rows, (size_t)n, d->stream, &r->e);
    CHECK(cudaStreamEndCapture(d->stream, &graph) == cudaSuccess);
    CHECK(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    for (int turn = -2; turn < TURNS && rc == OK; turn++) {
        rc = exchange_check(r->x, 1, "turn", &r->e);
        uint64_t start = clock_mono_ns();
        CHECK(cudaGraphLaunch(exec, d->stream) == cudaSuccess);
        if (rc == OK) rc = wait_for(r, d, &r->e);
        if (turn >= 0) us[turn] = (double)(clock_mono_ns() - start) / 1e3 / n_sums;
    }
    qsort(us, TURNS, sizeof(*us), by_value);
    r->us[i] = us[TURNS / 2];
    (void)cudaGraphExecDestroy(exec);
    (void)cudaGraphDestroy(graph);
    return rc;
}

static int run_exchange(rank_run *r) {
    device_rows d;
    int rc = OK;
    rows_init(&d);
    for (int i = 0; i < N_SIZES && rc == OK; i++)
        rc = check_size(r, &d, sizes[i]);
    CHECK(cudaMemset(d.rows, 0, MOST * sizeof(float)) == cudaSuccess);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    for (int i = 0; i < N_TIMED && rc == OK; i++)
        rc = time_size(r, &d, i);
    rows_release(&d);
    return rc;
}

/* A prompt, then the same tokens one by one over recorded steps; logits of every decoded row. Exact
 * cache rows: rounding to the stored formats would turn float noise into whole steps. */
static void run_model(rank_run *r) {
    int32_t tokens[PROMPT + DECODED];
    model_info info;
    model_options o = {.dir = "templates/demo-model",
        .max_rows = 64,
        .max_context = CONTEXT,
        .max_logit_rows = 64,
        .has_exact_kv = true,
        .rank = r->rank,
        .world = r->x == NULL ? 1 : 2,
        .exchange = r->x};
    model *m = probe_open(&o);
    if (model_record_steps(m, &r->e) != OK) {
        printf("recording: %s\n", r->e.msg);
        exit(1);
    }
    model_get_info(m, &info);
    r->n_vocab = info.config->n_vocab;
    r->logits = mem_array((size_t)DECODED * (size_t)r->n_vocab, sizeof(float));
    for (int i = 0; i < PROMPT + DECODED; i++)
        tokens[i] = (i * 53 + 11) % r->n_vocab;
    probe_slot(m, 0, 0, CONTEXT);
    (void)probe_step(m, 0, tokens, PROMPT, PLAN_PROMPT);
    for (int i = 0; i < DECODED; i++) {
        const float *row = probe_step(m, 0, tokens + PROMPT + i, 1, PLAN_DECODE);
        memcpy(r->logits + (size_t)i * (size_t)r->n_vocab, row, (size_t)r->n_vocab * sizeof(float));
    }
    model_close(m);
}

static int open_rank(rank_run *r, int timeout_ms) {
    CHECK(cudaSetDevice(r->rank) == cudaSuccess);
    return r->kind == EXCHANGE_NCCL ? exchange_nccl_open(r->control, 0, &r->x, &r->e)
                                    : exchange_peer_open(r->control, timeout_ms, &r->x, &r->e);
}

static void *run_rank(void *arg) {
    rank_run *r = arg;
    r->rc = open_rank(r, 0);
    if (r->rc == OK) r->rc = run_exchange(r);
    if (r->rc == OK) run_model(r);
    exchange_close(r->x);
    return NULL;
}

/* ---- a peer that does not come ---- */

typedef struct lonely {
    rank_run run;
    int timeout_ms;  /* of the device's wait */
    bool is_aborted; /* from another thread, soon */
    int wait_rc, later_rc;
    double ms;
    err why;
} lonely;

static void *abort_soon(void *arg) {
    err why = ERR_INIT;
    err_set(&why, ERR_PEER, "rank 1 ended");
    sleep_ms(200);
    exchange_abort(arg, &why);
    return NULL;
}

/* Rank 0 adds, rank 1 never does. */
static void *run_lonely(void *arg) {
    lonely *l = arg;
    rank_run *r = &l->run;
    device_rows d;
    pthread_t t;
    r->rc = open_rank(r, l->timeout_ms);
    if (r->rc != OK) return NULL;
    rows_init(&d);
    uint64_t start = clock_mono_ns();
    bool is_waiting = r->rank == 0;
    if (is_waiting && l->is_aborted) CHECK(pthread_create(&t, NULL, abort_soon, r->x) == 0);
    if (is_waiting) r->rc = exchange_sum_rows(r->x, d.rows, 5120, d.stream, &r->e);
    if (is_waiting) l->wait_rc = cuda_stream_wait(d.stream, 0, 60000, &l->why);
    l->ms = (double)(clock_mono_ns() - start) / 1e6;
    if (is_waiting && l->is_aborted) pthread_join(t, NULL);
    if (is_waiting) l->later_rc = exchange_sum_rows(r->x, d.rows, 5120, d.stream, &r->e);
    /* The other stays until the first is through. */
    (void)exchange_check(r->control, 7, "end", NULL);
    err gone = ERR_INIT;
    err_set(&gone, ERR_PEER, "the other rank ended");
    exchange_abort(r->x, &gone);
    rows_release(&d);
    exchange_close(r->x);
    return NULL;
}

static void check_lonely(vectors *v, bool is_aborted, const char *what) {
    static lonely l[2];
    exchange *control[2];
    pthread_t t[2];
    err e = ERR_INIT;
    char got[256];
    CHECK(exchange_local_open(2, 0, 60000, control, &e) == OK);
    for (int i = 0; i < 2; i++) {
        l[i] = (lonely){.run = {.rank = i, .kind = EXCHANGE_PEER, .control = control[i]},
            .timeout_ms = is_aborted ? 60000 : 700,
            .is_aborted = is_aborted};
        CHECK(pthread_create(&t[i], NULL, run_lonely, &l[i]) == 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    int want = is_aborted ? ERR_PEER : ERR_TIMEOUT;
    snprintf(got, sizeof(got), "open %d, wait %d, later %d after %.0f ms: %.150s", l[0].run.rc,
        l[0].wait_rc, l[0].later_rc, l[0].ms, l[0].why.msg);
    printf("%s: %s\n", what, got);
    if (l[0].wait_rc == want && l[0].later_rc == want && l[0].ms < 20000) {
        vectors_pass(v);
    } else {
        vectors_fail(v, what, "the wait and later calls end with the error", got);
    }
}

/* ---- verdicts ---- */

static void verdict(vectors *v, const char *what, bool is_fine, const char *got) {
    if (is_fine) {
        vectors_pass(v);
    } else {
        vectors_fail(v, what, "equal", got);
    }
}

/* Rows that are off by more than a thousandth of their rms: near ties in a router may fall otherwise. */
static int rows_off(const rank_run *a, const rank_run *b, double *most) {
    int n_off = 0;
    *most = 0;
    for (int r = 0; r < DECODED; r++) {
        double sum = 0, all = 0;
        for (size_t i = 0; i < (size_t)a->n_vocab; i++) {
            size_t at = (size_t)r * (size_t)a->n_vocab + i;
            double d = (double)a->logits[at] - (double)b->logits[at];
            sum += d * d;
            all += (double)b->logits[at] * (double)b->logits[at];
        }
        double off = sqrt(sum / all);
        n_off += !(off <= 1e-3);
        *most = off <= *most ? *most : off;
    }
    return n_off;
}

static bool run_kind(vectors *v, rank_run r[2], exchange_kind kind, const char *name) {
    exchange *control[2];
    pthread_t t[2];
    err e = ERR_INIT;
    CHECK(exchange_local_open(2, 0, 60000, control, &e) == OK);
    for (int i = 0; i < 2; i++) {
        r[i].rank = i;
        r[i].kind = kind;
        r[i].control = control[i];
        CHECK(pthread_create(&t[i], NULL, run_rank, &r[i]) == 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(t[i], NULL);
    for (int i = 0; i < 2; i++) {
        verdict(v, name, r[i].rc == OK, r[i].e.msg);
        verdict(v, "sums of ranks", r[i].n_wrong == 0, "other sums");
        verdict(v, "gathers of ranks", r[i].n_wrong_gathered == 0, "other values");
    }
    printf("%s: a sum in a graph, us:", name);
    for (int i = 0; i < N_TIMED; i++)
        printf("  %d: %.2f", timed[i], r[0].us[i]);
    printf("\n");
    if (r[0].rc != OK || r[1].rc != OK) return false;
    size_t bytes = (size_t)DECODED * (size_t)r[0].n_vocab * sizeof(float);
    verdict(v, "logits of both ranks", memcmp(r[0].logits, r[1].logits, bytes) == 0, "not");
    return true;
}

int main(void) {
    static rank_run nccl[2], peer[2], alone;
    vectors v = {0};
    char text[96];
    int n = 0;
    /* Kernels of one GPU wait for the other's: nothing may be loaded meanwhile under a common lock. */
    CHECK(setenv("CUDA_MODULE_LOADING", "EAGER", 1) == 0);
    if (!gpu_backend_use()) return 77;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n < 2) {
        printf("skipped: %d GPU\n", n);
        return 77;
    }
    bool has_nccl = exchange_nccl_version() != 0;
    bool is_nccl = has_nccl && run_kind(&v, nccl, EXCHANGE_NCCL, "two ranks over NCCL");
    if (run_kind(&v, peer, EXCHANGE_PEER, "two ranks over peer memory")) {
        size_t bytes = (size_t)DECODED * (size_t)peer[0].n_vocab * sizeof(float);
        run_model(&alone);
        double most;
        int n_off = rows_off(&peer[0], &alone, &most);
        snprintf(text, sizeof(text), "%d of %d rows, the worst by %.3g of its rms", n_off, DECODED,
            most);
        verdict(&v, "two ranks against one", n_off <= 1, text);
        if (is_nccl)
            verdict(&v, "NCCL and peer memory", memcmp(nccl[0].logits, peer[0].logits, bytes) == 0,
                "other bits");
        printf("two ranks against one: %s; NCCL %d\n", text, exchange_nccl_version());
    }
    check_lonely(&v, false, "peer memory, a rank that never comes");
    check_lonely(&v, true, "peer memory, aborted");
    return vectors_end(&v);
}
