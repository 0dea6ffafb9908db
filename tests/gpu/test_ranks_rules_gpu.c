/* The exactness rules of tests/golden/test_invariants.c on two ranks with a GPU each, over NCCL and over
 * peer memory: alone = batched, any chunks, verify windows, snapshots, copies, a NaN beside good rows,
 * equal bits on both ranks. Ranks are threads. Skipped where there are fewer than two GPUs. */
#include <cuda_runtime_api.h>

#include "engine/dist/exchange_nccl.h"
#include "engine/dist/exchange_peer.h"
#include "tests/gpu/gpu_backend.h"
#include "tests/harness/model_probe.h"
#include "tests/harness/vectors.h"

#define main golden_main
#include "tests/golden/test_invariants.c"
#undef main

typedef struct opening {
    exchange *control, *x;
    exchange_kind kind;
    err e;
    int rank, rc;
} opening;

static void use_gpu(int rank) {
    CHECK(cudaSetDevice(rank) == cudaSuccess);
}

static void *open_one(void *arg) {
    opening *o = arg;
    use_gpu(o->rank);
    o->rc = exchange_gpu_open(o->control, o->kind, &o->x, &o->e);
    return NULL;
}

static bool open_both(exchange_kind kind, exchange *x[2], err *e) {
    opening o[2] = {{.kind = kind}, {.kind = kind, .rank = 1}};
    exchange *control[2];
    pthread_t t[2];
    if (exchange_local_open(2, 0, 60000, control, e) != OK) return false;
    for (int r = 0; r < 2; r++) {
        o[r].control = control[r];
        CHECK(pthread_create(&t[r], NULL, open_one, &o[r]) == 0);
    }
    for (int r = 0; r < 2; r++) {
        pthread_join(t[r], NULL);
        x[r] = o[r].x;
    }
    *e = o[0].rc != OK ? o[0].e : o[1].e;
    return o[0].rc == OK && o[1].rc == OK;
}

static void check_kind(bench *b, exchange_kind kind, const char *name) {
    exchange *x[2];
    err e = ERR_INIT;
    if (!open_both(kind, x, &e)) {
        verdict(b, name, false, e.msg);
        return;
    }
    check_rules_of_ranks(b, name, x);
    exchange_close(x[0]);
    exchange_close(x[1]);
}

/* What b names, alone for the sizes, then as two ranks. */
static void check_folder(bench *b, const char *const names[2]) {
    open_model(b);
    if (exchange_nccl_version() != 0) check_kind(b, EXCHANGE_NCCL, names[0]);
    check_kind(b, EXCHANGE_PEER, names[1]);
    model_close(b->m);
}

int main(void) {
    static bench b;
    char dir[1024];
    int n = 0;
    /* Kernels of one GPU wait for the other's: nothing may be loaded meanwhile under a common lock. */
    CHECK(setenv("CUDA_MODULE_LOADING", "EAGER", 1) == 0);
    if (!gpu_backend_use()) return 77;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n < 2) {
        printf("skipped: %d GPU\n", n);
        return 77;
    }
    rank_begins = use_gpu;
    snprintf(dir, sizeof(dir), "%s/model/tiny-a", vectors_golden_dir());
    b.name = "tiny-a";
    probe_folder(dir, "config.json", b.folder);
    check_folder(&b, (const char *[]){"tiny-a, two ranks, NCCL", "tiny-a, two ranks, peer"});
    probe_folder_remove(b.folder);
    b.name = "demo";
    snprintf(b.folder, sizeof(b.folder), "templates/demo-model");
    check_folder(&b, (const char *[]){"demo, two ranks, NCCL", "demo, two ranks, peer"});
    mem_free(b.want);
    return vectors_end(&b.v);
}
