#include "engine/dist/exchange_peer.h"

#include <cstdio>
#include <cstring>
#include <unistd.h>

#include "engine/dist/exchange_peer_kernel.cuh"
#include "kernels/cuda_ops.h"

/* The atomic fields of the header have the layout of plain ones and are not touched here. */
#define _Atomic
extern "C" {
#include "engine/base/file.h"
#include "engine/base/log.h"
#include "engine/dist/exchange_internal.h"
#include "engine/dist/exchange_nccl.h"
}

typedef struct peer_exchange {
    exchange base;
    int device, n_sms;
    peer_inbox *own;              /* [world - 1] */
    void *opened[PEER_MAX_WORLD]; /* of other processes */
    peer_host *host;              /* pinned */
    peer_view view;
} peer_exchange;

/* What ranks tell each other to find each other's memory. */
typedef struct peer_card {
    char host[48]; /* the kernel's boot id: equal on one host only */
    char gpu[16];  /* uuid */
    int32_t pid, device, is_ready, reserved;
    uint64_t address; /* of the inbox, for ranks of one process */
    cudaIpcMemHandle_t handle;
} peer_card;

enum { PEER_PROBE_MS = 10000, PEER_DEADLINE_MS = CUDA_WAIT_MS - 10000 };

/* Part of the rank r's inbox that rank from writes. */
static int part_of(int r, int from) {
    return from < r ? from : from - 1;
}

/* ---- state ---- */

/* An earlier failure, an abort from another thread, or a deadline of the device. */
static int peer_ready(peer_exchange *x, err *e) {
    exchange *b = &x->base;
    if (b->rc == OK && __atomic_load_n(&b->is_aborted, __ATOMIC_ACQUIRE) == 2) {
        b->broken = b->abort_error;
        b->rc = b->broken.code;
    }
    if (b->rc == OK && *(volatile uint32_t *)&x->host->is_late != 0)
        b->rc = err_set(&b->broken, ERR_TIMEOUT,
            "rank %d waited %llu s for another rank's part of a sum and gave up; both ranks must be "
            "started again",
            b->rank, (unsigned long long)(x->view.timeout_ns / 1000000000u));
    if (b->rc != OK && e != NULL) *e = b->broken;
    return b->rc;
}

/* From any thread: the device ends its waits. */
static void peer_abort(exchange *base) {
    ((volatile peer_host *)((peer_exchange *)base)->host)->is_aborted = 1;
}

/* Asked by the step thread while it waits for the device, and at the end (cuda_watch_fn). */
static int peer_watch(void *ctx, err *e) {
    peer_exchange *x = (peer_exchange *)ctx;
    const int rc = peer_ready(x, e);
    if (rc != OK) peer_abort(&x->base);
    return rc;
}

/* ---- calls ---- */

static int launch(peer_exchange *x, const peer_args *a, cudaStream_t stream, err *e) {
    const bool is_small = a->n <= PEER_SMALL_FLOATS;
    const int unit = is_small ? 2 * PEER_SMALL_THREADS : PEER_TILE_FLOATS;
    const int most = is_small ? 4 * x->n_sms : x->n_sms, blocks = (a->n + unit - 1) / unit;
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = (unsigned)(blocks < most ? blocks : most);
    config.blockDim = is_small ? PEER_SMALL_THREADS : PEER_LARGE_THREADS;
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    return cuda_check(e,
        is_small ? cudaLaunchKernelEx(&config, exchange_peer_small_kernel, *a)
                 : cudaLaunchKernelEx(&config, exchange_peer_large_kernel, *a),
        "exchange of ranks");
}

static bool is_wide(const float *p) {
    return ((uintptr_t)p & 15) == 0;
}

/* What one launch takes of n floats. */
static int piece_of(size_t n) {
    return (int)(n < PEER_LARGE_FLOATS ? n : PEER_LARGE_FLOATS);
}

static int peer_sum_rows(exchange *base, float *rows, size_t n, void *stream, err *e) {
    peer_exchange *x = (peer_exchange *)base;
    int rc = peer_ready(x, e);
    for (size_t at = 0; at < n && rc == OK; at += PEER_LARGE_FLOATS) {
        peer_args a = {x->view, rows + at, rows + at, 0, piece_of(n - at), false, false};
        a.is_wide = is_wide(rows) && a.n % 4 == 0;
        rc = launch(x, &a, (cudaStream_t)stream, e);
    }
    return rc;
}

/* What does not fit into the inboxes at once goes in the pieces of sums, each to a place of its own. */
static int peer_gather_rows(
    exchange *base, const void *mine, size_t bytes, void *all, void *stream, err *e) {
    peer_exchange *x = (peer_exchange *)base;
    const float *from = (const float *)mine;
    float *to = (float *)all;
    const size_t n = bytes / sizeof(float);
    if (bytes % sizeof(float) != 0)
        return err_set(e, ERR_LIMIT, "a gather of %zu bytes a rank; only whole floats", bytes);
    int rc = peer_ready(x, e);
    for (size_t at = 0; at < n && rc == OK; at += PEER_LARGE_FLOATS) {
        peer_args a = {x->view, from + at, to + at, n, piece_of(n - at), true, false};
        a.is_wide = is_wide(from) && is_wide(to) && n % 4 == 0;
        rc = launch(x, &a, (cudaStream_t)stream, e);
    }
    return rc;
}

static int peer_host_gather(exchange *base, const void *mine, size_t bytes, void *all, err *e) {
    return base->control->ops->gather(base->control, mine, bytes, all, e);
}

static void peer_close(exchange *base) {
    peer_exchange *x = (peer_exchange *)base;
    cuda_watch_set(x->device, NULL, NULL);
    if (base->rc != OK && x->host != NULL) peer_abort(base);
    for (int r = 0; r < base->world; r++) {
        if (x->opened[r] != NULL) (void)cudaIpcCloseMemHandle(x->opened[r]);
    }
    (void)cudaFree(x->own);
    (void)cudaFree(x->view.state);
    (void)cudaFreeHost(x->host);
    (void)cudaGetLastError();
    exchange_close(x->base.control);
    exchange_release(base);
    mem_free(x);
}

static exchange_ops make_ops() {
    exchange_ops ops = {};
    ops.gather = peer_host_gather;
    ops.sum_rows = peer_sum_rows;
    ops.gather_rows = peer_gather_rows;
    ops.abort = peer_abort;
    ops.close = peer_close;
    return ops;
}
static const exchange_ops peer_ops = make_ops();

/* ---- start ---- */

static void read_boot_id(char out[48]) {
    buf text = BUF_MAX(256);
    if (file_read("/proc/sys/kernel/random/boot_id", &text, 128, NULL) == OK && text.len > 0)
        snprintf(out, 48, "%.40s", buf_cstr(&text));
    buf_release(&text);
}

/* Own memory; the card says where it is. */
static int make_own(peer_exchange *x, peer_card *card, err *e) {
    const size_t bytes = (size_t)(x->base.world - 1) * sizeof(peer_inbox);
    cudaDeviceProp p;
    int rc = cuda_check(e, cudaGetDeviceProperties(&p, x->device), "reading the GPU");
    if (rc == OK && cudaMalloc((void **)&x->own, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        rc = cuda_no_memory(e, "the exchange of ranks", bytes);
    }
    if (rc == OK) rc = cuda_check(e, cudaMemset(x->own, 0, bytes), "inboxes");
    if (rc == OK)
        rc = cuda_check(
            e, cudaMalloc((void **)&x->view.state, sizeof(*x->view.state)), "exchange's state");
    if (rc == OK)
        rc =
            cuda_check(e, cudaMemset(x->view.state, 0, sizeof(*x->view.state)), "exchange's state");
    if (rc == OK)
        rc = cuda_check(e,
            cudaHostAlloc(
                (void **)&x->host, sizeof(*x->host), cudaHostAllocMapped | cudaHostAllocPortable),
            "pinned memory of the exchange");
    if (rc == OK) rc = cuda_check(e, cudaDeviceSynchronize(), "inboxes");
    if (rc != OK) return rc;
    memset(x->host, 0, sizeof(*x->host));
    x->view.host = x->host;
    x->n_sms = p.multiProcessorCount;
    memcpy(card->gpu, p.uuid.bytes, sizeof(card->gpu));
    read_boot_id(card->host);
    card->pid = (int32_t)getpid();
    card->device = x->device;
    card->address = (uint64_t)(uintptr_t)x->own;
    /* Not needed among threads of one process; where it fails no other process can open it. */
    card->is_ready = card->host[0] != '\0';
    if (cudaIpcGetMemHandle(&card->handle, x->own) != cudaSuccess) (void)cudaGetLastError();
    return OK;
}

/* The inboxes of another rank, as this process sees them. */
static int open_inbox(
    peer_exchange *x, const peer_card *mine, const peer_card *other, int r, err *e) {
    void *there = NULL;
    if (!mine->is_ready || !other->is_ready ||
        strncmp(mine->host, other->host, sizeof(mine->host)) != 0)
        return err_set(e, ERR_UNSUPPORTED, "ranks %d and %d are not on one host", x->base.rank, r);
    if (memcmp(mine->gpu, other->gpu, sizeof(mine->gpu)) == 0)
        return err_set(e, ERR_UNSUPPORTED, "ranks %d and %d share a GPU", x->base.rank, r);
    cudaError_t code = cudaSuccess;
    if (mine->pid == other->pid) {
        there = (void *)(uintptr_t)other->address;
        code = cudaDeviceEnablePeerAccess(other->device, 0);
        if (code == cudaErrorPeerAccessAlreadyEnabled) code = cudaSuccess;
    } else {
        code = cudaIpcOpenMemHandle(&there, other->handle, cudaIpcMemLazyEnablePeerAccess);
        if (code == cudaSuccess) x->opened[r] = there;
    }
    (void)cudaGetLastError();
    if (code != cudaSuccess)
        return err_set(e, ERR_UNSUPPORTED,
            "the GPU of rank %d cannot write into that of rank %d: %s", x->base.rank, r,
            cudaGetErrorString(code));
    x->view.to[r] = (peer_inbox *)there + part_of(r, x->base.rank);
    x->view.from[r] = x->own + part_of(x->base.rank, r);
    return OK;
}

/* One failure is everybody's: the same answer on every rank, with the lowest failing rank's sentence. */
static int agree(peer_exchange *x, int rc, err *e) {
    typedef struct answer {
        int32_t rc;
        char text[252];
    } answer;
    answer mine = {}, all[PEER_MAX_WORLD];
    mine.rc = rc;
    if (rc != OK) snprintf(mine.text, sizeof(mine.text), "%.240s", e->msg);
    err local = {};
    const int sent = exchange_gather(x->base.control, &mine, sizeof(mine), all, NULL, &local);
    if (sent != OK) {
        *e = local;
        return sent;
    }
    for (int r = 0; r < x->base.world; r++) {
        if (all[r].rc != OK) return err_set(e, all[r].rc, "%.250s", all[r].text);
    }
    return OK;
}

static float probe_value(int rank, int i) {
    return (float)((i * 29 + rank * 71) % 1009) - 400.f;
}

/* A sum each of the small and the large form must come out right. */
static int probe(peer_exchange *x, err *e) {
    enum { N = PEER_SMALL_FLOATS + 3 * PEER_TILE_FLOATS };
    float *host = (float *)mem_array(N, sizeof(float)), *device = NULL;
    int n_wrong = 0;
    cudaStream_t s = NULL;
    int rc = cuda_check(e, cudaMalloc((void **)&device, N * sizeof(float)), "trying the exchange");
    if (rc == OK)
        rc = cuda_check(
            e, cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "trying the exchange");
    for (int n = 1000; n <= N && rc == OK; n += N - 1000) {
        for (int i = 0; i < n; i++)
            host[i] = probe_value(x->base.rank, i);
        rc = cuda_upload(device, host, (size_t)n * sizeof(float), "trying the exchange", e);
        if (rc == OK) rc = peer_sum_rows(&x->base, device, (size_t)n, s, e);
        if (rc == OK) rc = cuda_stream_wait(s, x->device, PEER_PROBE_MS + 5000, e);
        if (rc == OK)
            rc = cuda_check(e,
                cudaMemcpy(host, device, (size_t)n * sizeof(float), cudaMemcpyDefault),
                "trying the exchange");
        for (int i = 0; i < n && rc == OK; i++) {
            float want = 0.f;
            for (int r = 0; r < x->base.world; r++)
                want = r == 0 ? probe_value(r, i) : want + probe_value(r, i);
            n_wrong += host[i] != want;
        }
    }
    if (s != NULL) (void)cudaStreamDestroy(s);
    (void)cudaFree(device);
    mem_free(host);
    if (rc == OK && n_wrong > 0)
        rc = err_set(
            e, ERR_UNSUPPORTED, "what other GPUs write here arrives wrong (%d values)", n_wrong);
    return rc;
}

static int connect_ranks(peer_exchange *x, err *e) {
    peer_card mine = {}, all[PEER_MAX_WORLD];
    int rc = agree(x, make_own(x, &mine, e), e);
    if (rc == OK) rc = exchange_gather(x->base.control, &mine, sizeof(mine), all, NULL, e);
    for (int r = 0, opened = OK; rc == OK && r < x->base.world; r++) {
        if (r != x->base.rank && opened == OK) opened = open_inbox(x, &mine, &all[r], r, e);
        if (r + 1 == x->base.world) rc = agree(x, opened, e);
    }
    x->view.timeout_ns = (uint64_t)PEER_PROBE_MS * 1000000u;
    cuda_watch_set(x->device, peer_watch, x);
    if (rc == OK) {
        const int tried = probe(x, e);
        rc = agree(x, tried == OK ? OK : ERR_UNSUPPORTED, e);
    }
    return rc;
}

int exchange_peer_open(exchange *control, int timeout_ms, exchange **out, err *e) {
    peer_exchange *x = (peer_exchange *)mem_alloc(sizeof(*x));
    const int rank_world[2] = {exchange_rank(control), exchange_world(control)};
    err local = {};
    *out = NULL;
    int rc = exchange_init(&x->base, &peer_ops, rank_world, control->max_bytes, &local);
    if (rc == OK) rc = cuda_find_device(&x->device, &local);
    x->view.rank = rank_world[0];
    x->view.world = rank_world[1];
    x->base.control = control;
    if (rc == OK) rc = connect_ranks(x, &local);
    if (rc != OK) {
        x->base.control = NULL; /* stays the caller's */
        peer_close(&x->base);
        if (e != NULL) *e = local;
        return rc;
    }
    x->view.timeout_ns = (uint64_t)(timeout_ms > 0 ? timeout_ms : (int)PEER_DEADLINE_MS) * 1000000u;
    *out = &x->base;
    return OK;
}

/* ---- choice ---- */

int exchange_gpu_open(exchange *control, exchange_kind kind, exchange **out, err *e) {
    int32_t mine = (int32_t)kind, all[PEER_MAX_WORLD];
    bool has_peer = true, has_nccl = true;
    int rc = exchange_gather(control, &mine, sizeof(mine), all, NULL, e);
    for (int r = 0; r < exchange_world(control) && rc == OK; r++) {
        has_peer = has_peer && all[r] != EXCHANGE_NCCL;
        has_nccl = has_nccl && all[r] != EXCHANGE_PEER;
    }
    *out = NULL;
    if (rc != OK) return rc;
    if (!has_peer && !has_nccl)
        return err_set(e, ERR_MISMATCH,
            "one rank asks for NCCL, another for peer memory; give all ranks the same --exchange");
    if (has_peer) {
        rc = exchange_peer_open(control, 0, out, e);
        if (rc == OK || !has_nccl || rc != ERR_UNSUPPORTED) return rc;
        LOG(LOG_INFO, "ranks", "exchange over NCCL", "because=\"%s\"", e == NULL ? "" : e->msg);
        if (e != NULL) *e = err{};
    }
    return exchange_nccl_open(control, 0, out, e);
}

const char *exchange_gpu_name(const exchange *x) {
    return x->ops == &peer_ops ? "peer" : "NCCL";
}
