#include "engine/dist/exchange_nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <nccl.h>
#include <pthread.h>
#include <time.h>

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
    decltype(&ncclCommGetAsyncError) async_error;
    decltype(&ncclAllGather) all_gather;
    decltype(&ncclGetErrorString) error_string;
    decltype(&ncclGetLastError) last_error; /* may be missing */
} nccl_library;

typedef struct nccl_exchange {
    exchange base;
    nccl_library nccl;
    ncclComm_t comm;
    int device;
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
            "NCCL, which two GPU ranks need, is not on this node: %s; install libnccl2, or start from a "
            "bundle that holds it (make bundle without SLIM=1)",
            dlerror());
    const bool is_whole = find(l->handle, "ncclGetVersion", &l->get_version) &&
                          find(l->handle, "ncclGetUniqueId", &l->get_unique_id) &&
                          find(l->handle, "ncclCommInitRank", &l->init_rank) &&
                          find(l->handle, "ncclCommAbort", &l->abort) &&
                          find(l->handle, "ncclCommGetAsyncError", &l->async_error) &&
                          find(l->handle, "ncclAllGather", &l->all_gather) &&
                          find(l->handle, "ncclGetErrorString", &l->error_string);
    (void)find(l->handle, "ncclGetLastError", &l->last_error);
    if (is_whole) return OK;
    (void)dlclose(l->handle);
    l->handle = NULL;
    return err_set(e, ERR_UNSUPPORTED,
        "libnccl.so.2 on this node lacks a function: it is too old; install NCCL 2.14 or newer");
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
    const char *detail = x->nccl.last_error == NULL ? NULL : x->nccl.last_error(NULL);
    const bool has_detail = detail != NULL && detail[0] != '\0';
    x->base.rc = err_set(&x->base.broken, kind,
        "NCCL on rank %d, %s: %s%s%.300s; `tandem check link` tests the rail between the nodes",
        x->base.rank, what, x->nccl.error_string(code), has_detail ? ": " : "",
        has_detail ? detail : "");
    if (e != NULL) *e = x->base.broken;
    return kind;
}

/* A call of NCCL that has no deadline of its own, made by a thread: the first member of what both share,
 * which whoever ends last frees. */
typedef struct late_call {
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t ended;
    bool is_done, is_abandoned;
} late_call;

/* False: there is no thread. */
static bool late_start(late_call *c, void *(*call)(void *)) {
    pthread_t thread;
    pthread_condattr_t attr;
    (void)pthread_mutex_init(&c->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&c->ended, &attr);
    (void)pthread_condattr_destroy(&attr);
    if (pthread_create(&thread, NULL, call, c) != 0) return false;
    (void)pthread_detach(thread);
    return true;
}

/* The thread's last word. True: nobody waits any more, it frees what is shared. */
static bool late_done(late_call *c) {
    pthread_mutex_lock(&c->lock);
    c->is_done = true;
    const bool is_mine = c->is_abandoned;
    pthread_cond_signal(&c->ended);
    pthread_mutex_unlock(&c->lock);
    return is_mine;
}

/* False when the deadline came first; the thread then keeps what is shared. */
static bool late_wait(late_call *c, int seconds) {
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += seconds;
    pthread_mutex_lock(&c->lock);
    int rc = 0;
    while (!c->is_done && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&c->ended, &c->lock, &until);
    const bool is_done = c->is_done;
    c->is_abandoned = !is_done;
    pthread_mutex_unlock(&c->lock);
    return is_done;
}

/* NCCL's own end may wait, for peers or for recorded steps. */
typedef struct nccl_end {
    late_call call;
    decltype(&ncclCommAbort) abort;
    ncclComm_t comm;
    int device;
} nccl_end;

enum { NCCL_END_S = 3, NCCL_START_S = 60 };

static void *end_thread(void *arg) {
    nccl_end *s = (nccl_end *)arg;
    (void)cudaSetDevice(s->device);
    (void)s->abort(s->comm);
    if (late_done(&s->call)) mem_free(s);
    return NULL;
}

/* The exchange is of no more use: work of the device that waits for a peer ends. */
static void nccl_give_up(nccl_exchange *x) {
    if (x->comm == NULL) return;
    nccl_end *s = (nccl_end *)mem_alloc(sizeof(*s));
    s->abort = x->nccl.abort;
    s->comm = x->comm;
    s->device = x->device;
    x->comm = NULL;
    const bool has_thread = late_start(&s->call, end_thread);
    const bool is_done = has_thread && late_wait(&s->call, NCCL_END_S);
    if (!is_done) x->nccl.handle = NULL; /* the thread still uses the library, or NCCL's own do */
    if (is_done || !has_thread) mem_free(s);
}

/* What stands in the way of a call: an earlier failure, an abort from another thread, or what NCCL
 * noticed meanwhile. */
static int nccl_ready(nccl_exchange *x, err *e) {
    if (x->base.rc == OK && __atomic_load_n(&x->base.is_aborted, __ATOMIC_ACQUIRE) == 2) {
        x->base.broken = x->base.abort_error;
        x->base.rc = x->base.broken.code;
    }
    if (x->base.rc != OK) {
        if (e != NULL) *e = x->base.broken;
        return x->base.rc;
    }
    ncclResult_t state = ncclSuccess;
    return nccl_check(x,
        x->nccl.async_error(x->comm, &state) != ncclSuccess ? ncclInternalError : state,
        "connection", e);
}

/* Asked by the step thread while it waits for the device (cuda_watch_fn). */
static int nccl_watch(void *ctx, err *e) {
    nccl_exchange *x = (nccl_exchange *)ctx;
    const int rc = nccl_ready(x, e);
    if (rc != OK) nccl_give_up(x);
    return rc;
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

/* The end of a call. After a failure the step goes no further and nobody waits for the device, on which
 * earlier calls may stand for a peer that is gone. */
static int nccl_called(nccl_exchange *x, int rc) {
    if (x->base.rc != OK) nccl_give_up(x);
    return rc;
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
    return nccl_called(x, rc);
}

static int nccl_gather_rows(
    exchange *base, const void *mine, size_t bytes, void *all, void *stream, err *e) {
    nccl_exchange *x = (nccl_exchange *)base;
    int rc = nccl_ready(x, e);
    if (rc == OK)
        rc = nccl_check(x,
            x->nccl.all_gather(mine, all, bytes, ncclUint8, x->comm, (cudaStream_t)stream),
            "gather of ranks", e);
    return nccl_called(x, rc);
}

static int nccl_host_gather(exchange *base, const void *mine, size_t bytes, void *all, err *e) {
    return base->control->ops->gather(base->control, mine, bytes, all, e);
}

static void nccl_close(exchange *base) {
    nccl_exchange *x = (nccl_exchange *)base;
    cuda_watch_set(x->device, NULL, NULL);
    /* Nothing is under way. The orderly end of NCCL waits for the peers and for recorded steps. */
    nccl_give_up(x);
    (void)cudaFree(x->parts);
    if (x->nccl.handle != NULL) (void)dlclose(x->nccl.handle);
    exchange_close(x->base.control);
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

/* ---- start ---- */

typedef struct nccl_start {
    late_call call;
    ncclResult_t code;
    ncclComm_t comm;
    /* set before the thread */
    nccl_library nccl;
    ncclUniqueId id;
    int device, rank, world;
} nccl_start;

static void *start_thread(void *arg) {
    nccl_start *s = (nccl_start *)arg;
    s->code = cudaSetDevice(s->device) == cudaSuccess
                  ? s->nccl.init_rank(&s->comm, s->world, s->id, s->rank)
                  : ncclUnhandledCudaError;
    if (late_done(&s->call)) {
        if (s->code == ncclSuccess) (void)s->nccl.abort(s->comm);
        mem_free(s);
    }
    return NULL;
}

static int start_ranks(nccl_exchange *x, const ncclUniqueId *id, err *e) {
    nccl_start *s = (nccl_start *)mem_alloc(sizeof(*s));
    s->nccl = x->nccl;
    s->id = *id;
    s->device = x->device;
    s->rank = x->base.rank;
    s->world = x->base.world;
    if (!late_start(&s->call, start_thread)) {
        mem_free(s);
        return err_set(e, ERR_MEMORY, "no thread for the start of NCCL");
    }
    if (!late_wait(&s->call, NCCL_START_S)) {
        x->nccl.handle = NULL; /* the thread still uses the library */
        return err_set(e, ERR_TIMEOUT,
            "NCCL did not bring rank %d together with the other of %d ranks within %d s; check that "
            "NCCL_SOCKET_IFNAME and NCCL_IB_HCA name the rail between the nodes on both of them "
            "(`tandem check link` tests it) and that the other rank runs",
            x->base.rank, x->base.world, NCCL_START_S);
    }
    const ncclResult_t code = s->code;
    x->comm = s->comm;
    mem_free(s);
    if (code != ncclSuccess) x->comm = NULL;
    return nccl_check(x, code, "connecting", e);
}

static int connect_ranks(nccl_exchange *x, err *e) {
    ncclUniqueId id = {};
    int rc = OK;
    if (x->base.rank == 0) rc = nccl_check(x, x->nccl.get_unique_id(&id), "making an id", e);
    /* A rank that failed still answers, so that the others do not wait for it. */
    const int sent = exchange_bcast(x->base.control, &id, sizeof(id), 0, e);
    if (rc == OK) rc = sent;
    if (rc == OK) rc = exchange_check(x->base.control, (uint64_t)sizeof(id), "NCCL start", e);
    if (rc == OK) rc = start_ranks(x, &id, e);
    return rc;
}

int exchange_nccl_open(exchange *control, size_t max_bytes, exchange **out, err *e) {
    nccl_exchange *x = (nccl_exchange *)mem_alloc(sizeof(*x));
    const int rank_world[2] = {exchange_rank(control), exchange_world(control)};
    *out = NULL;
    int rc = exchange_init(&x->base, &nccl_ops, rank_world, control->max_bytes, e);
    x->piece_bytes = max_bytes == 0 ? (size_t)64 << 20 : max_bytes;
    if (rc == OK) rc = cuda_find_device(&x->device, e);
    if (rc == OK) rc = library_open(&x->nccl, e);
    const size_t bytes = (size_t)rank_world[1] * x->piece_bytes;
    if (rc == OK && cudaMalloc((void **)&x->parts, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        rc = cuda_no_memory(e, "the exchange of ranks", bytes);
    }
    if (rc == OK) {
        x->base.control = control;
        rc = connect_ranks(x, e);
    }
    if (rc != OK) {
        x->base.control = NULL; /* stays the caller's */
        nccl_close(&x->base);
        return rc;
    }
    cuda_watch_set(x->device, nccl_watch, x);
    *out = &x->base;
    return OK;
}
