#include "engine/dist/exchange_nccl.h"

#include <dlfcn.h>
#include <nccl.h>

#include "kernels/cuda_ops.h"

/* The atomic fields of the header have the layout of plain ones and are not touched here. */
#define _Atomic
extern "C" {
#include "engine/dist/exchange_internal.h"
}

/* The functions used, by name. */
typedef struct nccl_library {
    void *handle;
    decltype(&ncclGetVersion) get_version;
    decltype(&ncclGetUniqueId) get_unique_id;
    decltype(&ncclCommInitRank) init_rank;
    decltype(&ncclCommAbort) abort;
    decltype(&ncclCommDestroy) destroy;
    decltype(&ncclCommGetAsyncError) async_error;
    decltype(&ncclAllGather) all_gather;
    decltype(&ncclGetErrorString) error_string;
} nccl_library;

typedef struct nccl_exchange {
    exchange base;
    exchange *control;
    nccl_library nccl;
    ncclComm_t comm;
    float *parts; /* device, [world][piece_bytes] */
    size_t piece_bytes;
} nccl_exchange;

template <class F> static bool find(void *handle, const char *name, F *out) {
    *out = (F)dlsym(handle, name);
    return *out != NULL;
}

static int library_open(nccl_library *l, err *e) {
    l->handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (l->handle == NULL)
        return err_set(e, ERR_UNSUPPORTED,
            "NCCL (libnccl.so.2) is not installed, which two GPU ranks need: %s", dlerror());
    const bool is_whole = find(l->handle, "ncclGetVersion", &l->get_version) &&
                          find(l->handle, "ncclGetUniqueId", &l->get_unique_id) &&
                          find(l->handle, "ncclCommInitRank", &l->init_rank) &&
                          find(l->handle, "ncclCommAbort", &l->abort) &&
                          find(l->handle, "ncclCommDestroy", &l->destroy) &&
                          find(l->handle, "ncclCommGetAsyncError", &l->async_error) &&
                          find(l->handle, "ncclAllGather", &l->all_gather) &&
                          find(l->handle, "ncclGetErrorString", &l->error_string);
    if (is_whole) return OK;
    (void)dlclose(l->handle);
    l->handle = NULL;
    return err_set(e, ERR_UNSUPPORTED, "libnccl.so.2 lacks a function: it is too old");
}

int exchange_nccl_version(void) {
    nccl_library l = {};
    err ignored = {};
    int version = 0;
    if (library_open(&l, &ignored) != OK) return 0;
    if (l.get_version(&version) != ncclSuccess) version = 0;
    (void)dlclose(l.handle);
    return version;
}

/* NCCL's answer as an error of this exchange, kept for later calls. */
static int nccl_check(nccl_exchange *x, ncclResult_t code, const char *what, err *e) {
    if (code == ncclSuccess || code == ncclInProgress) return OK;
    const int kind = code == ncclRemoteError   ? ERR_PEER
                     : code == ncclSystemError ? ERR_NET
                                               : ERR_DEVICE;
    x->base.rc = err_set(&x->base.broken, kind, "NCCL, %s: %s", what, x->nccl.error_string(code));
    if (e != NULL) *e = x->base.broken;
    return kind;
}

/* What stands in the way of a call: an earlier failure, or one that NCCL noticed meanwhile. */
static int nccl_ready(nccl_exchange *x, err *e) {
    if (x->base.rc != OK) {
        if (e != NULL) *e = x->base.broken;
        return x->base.rc;
    }
    ncclResult_t state = ncclSuccess;
    return nccl_check(x,
        x->nccl.async_error(x->comm, &state) != ncclSuccess ? ncclInternalError : state,
        "connection", e);
}

__global__ void __launch_bounds__(256)
    exchange_add_kernel(float *rows, const float *parts, size_t n, int world) {
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    float sum = parts[i];
    for (int r = 1; r < world; r++)
        sum += parts[(size_t)r * n + i];
    rows[i] = sum;
}

static int nccl_sum_rows(exchange *base, float *rows, size_t n, void *stream, err *e) {
    nccl_exchange *x = (nccl_exchange *)base;
    const size_t piece = x->piece_bytes / sizeof(float);
    int rc = nccl_ready(x, e);
    for (size_t at = 0; at < n && rc == OK; at += piece) {
        const size_t m = n - at < piece ? n - at : piece;
        rc = nccl_check(x,
            x->nccl.all_gather(rows + at, x->parts, m, ncclFloat, x->comm, (cudaStream_t)stream),
            "sum of ranks", e);
        if (rc != OK) break;
        exchange_add_kernel<<<(unsigned)((m + 255) / 256), 256, 0, (cudaStream_t)stream>>>(
            rows + at, x->parts, m, base->world);
        rc = CUDA_LAUNCHED(e, "sum of ranks");
    }
    return rc;
}

static int nccl_gather_rows(
    exchange *base, const void *mine, size_t bytes, void *all, void *stream, err *e) {
    nccl_exchange *x = (nccl_exchange *)base;
    int rc = nccl_ready(x, e);
    if (rc != OK) return rc;
    return nccl_check(x,
        x->nccl.all_gather(mine, all, bytes, ncclUint8, x->comm, (cudaStream_t)stream),
        "gather of ranks", e);
}

static int nccl_host_gather(exchange *base, const void *mine, size_t bytes, void *all, err *e) {
    exchange *control = ((nccl_exchange *)base)->control;
    return control->ops->gather(control, mine, bytes, all, e);
}

static void nccl_close(exchange *base) {
    nccl_exchange *x = (nccl_exchange *)base;
    if (x->comm != NULL && base->rc == OK) (void)x->nccl.destroy(x->comm);
    if (x->comm != NULL && base->rc != OK) (void)x->nccl.abort(x->comm);
    (void)cudaFree(x->parts);
    if (x->nccl.handle != NULL) (void)dlclose(x->nccl.handle);
    exchange_close(x->control);
    exchange_release(base);
    mem_free(x);
}

static exchange_ops make_ops() {
    exchange_ops ops = {};
    ops.gather = nccl_host_gather;
    ops.sum_rows = nccl_sum_rows;
    ops.gather_rows = nccl_gather_rows;
    ops.close = nccl_close;
    return ops;
}
static const exchange_ops nccl_ops = make_ops();

static int connect_ranks(nccl_exchange *x, err *e) {
    ncclUniqueId id = {};
    int rc = OK;
    if (x->base.rank == 0) rc = nccl_check(x, x->nccl.get_unique_id(&id), "making an id", e);
    /* A rank that failed still answers, so that the others do not wait for it. */
    const int sent = exchange_bcast(x->control, &id, sizeof(id), 0, e);
    if (rc == OK) rc = sent;
    if (rc == OK) rc = exchange_check(x->control, (uint64_t)sizeof(id), "NCCL start", e);
    if (rc == OK)
        rc = nccl_check(
            x, x->nccl.init_rank(&x->comm, x->base.world, id, x->base.rank), "connecting", e);
    return rc;
}

int exchange_nccl_open(exchange *control, size_t max_bytes, exchange **out, err *e) {
    nccl_exchange *x = (nccl_exchange *)mem_alloc(sizeof(*x));
    const int rank_world[2] = {exchange_rank(control), exchange_world(control)};
    *out = NULL;
    int rc = exchange_init(&x->base, &nccl_ops, rank_world, control->max_bytes, e);
    x->piece_bytes = max_bytes == 0 ? (size_t)64 << 20 : max_bytes;
    if (rc == OK) rc = library_open(&x->nccl, e);
    if (rc == OK)
        rc = cuda_check(e, cudaMalloc((void **)&x->parts, (size_t)rank_world[1] * x->piece_bytes),
            "buffers of the exchange");
    if (rc == OK) {
        x->control = control;
        rc = connect_ranks(x, e);
    }
    if (rc != OK) {
        x->control = NULL; /* stays the caller's */
        nccl_close(&x->base);
        return rc;
    }
    *out = &x->base;
    return OK;
}
