#include <cstring>

#include "kernels/linear/linear_gpu.h"
#include "kernels/moe/moe_few.h"
#include "kernels/prepare/prepare.h"

/* ---- memory ---- */

static void *cuda_mem_new(size_t bytes) {
    void *p = NULL;
    if (cudaMalloc(&p, bytes == 0 ? 64 : bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    /* Complete before the context's stream, which does not wait for the default one, touches it. */
    if (cudaMemset(p, 0, bytes == 0 ? 64 : bytes) != cudaSuccess ||
        cudaDeviceSynchronize() != cudaSuccess) {
        (void)cudaFree(p);
        return NULL;
    }
    return p;
}

static void cuda_mem_free(void *p) {
    (void)cudaFree(p);
}

void *cuda_slab_take(cuda_device *d, size_t bytes) {
    bytes = (bytes + 255) / 256 * 256;
    if (bytes > d->slab_left) {
        const size_t size = bytes > CUDA_SLAB_BYTES ? bytes : (size_t)CUDA_SLAB_BYTES;
        void *slab = NULL;
        if (cudaMalloc(&slab, size) != cudaSuccess) {
            (void)cudaGetLastError();
            return NULL;
        }
        if (d->n_slabs == d->cap_slabs) {
            d->cap_slabs = d->cap_slabs == 0 ? 64 : 2 * d->cap_slabs;
            d->slabs = (void **)mem_realloc(d->slabs, d->cap_slabs * sizeof(*d->slabs));
        }
        d->slabs[d->n_slabs++] = slab;
        d->slab = (char *)slab;
        d->slab_left = size;
    }
    void *p = d->slab;
    d->slab += bytes;
    d->slab_left -= bytes;
    return p;
}

void *cuda_keep(cuda_device *d, size_t bytes) {
    if (d->n_kept == d->cap_kept) {
        d->cap_kept = d->cap_kept == 0 ? 64 : 2 * d->cap_kept;
        d->kept = (void **)mem_realloc(d->kept, d->cap_kept * sizeof(*d->kept));
    }
    void *p = mem_alloc(bytes);
    d->kept[d->n_kept++] = p;
    return p;
}

int cuda_upload(void *to, const void *from, size_t bytes, const char *what, err *e) {
    const int rc = cuda_check(e, cudaMemcpy(to, from, bytes, cudaMemcpyDefault), what);
    return rc != OK ? rc : cuda_check(e, cudaStreamSynchronize(cudaStreamLegacy), what);
}

/* ---- open and close ---- */

static void cuda_close(kernel_context *k) {
    cuda_device *d = cuda_of(k);
    if (d == NULL) return;
    if (d->stream != NULL) {
        err ignored = {};
        (void)cuda_stream_wait(d->stream, d->id, CUDA_WAIT_MS, &ignored);
        (void)cudaStreamDestroy(d->stream);
    }
    for (size_t i = 0; i < d->n_slabs; i++)
        (void)cudaFree(d->slabs[i]);
    mem_free(d->slabs);
    for (size_t i = 0; i < d->n_kept; i++)
        mem_free(d->kept[i]);
    mem_free(d->kept);
    (void)cudaFree(d->sums);
    (void)cudaFree(d->row_link);
    (void)cudaFree(d->few_link);
    (void)cudaFree(d->counters);
    (void)cudaFreeHost(d->staging);
    mem_free(d->pending);
    mem_free(d);
    k->device = NULL;
    k->stream = NULL;
}

/* Asks the driver whether this program holds code for the device. */
static __global__ void __launch_bounds__(32) probe_kernel() {
}

static int no_device(err *e, cudaError_t code) {
    int driver = 0;
    const int mine = CUDART_VERSION;
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    if (code == cudaErrorInsufficientDriver && driver > 0)
        return err_set(e, ERR_DEVICE,
            "the NVIDIA driver is too old: it knows CUDA %d.%d, this program needs %d.%d; install a "
            "newer driver, or start with the CPU engine",
            driver / 1000, driver % 1000 / 10, mine / 1000, mine % 1000 / 10);
    if (code == cudaSuccess || code == cudaErrorNoDevice || driver == 0)
        return err_set(e, ERR_DEVICE,
            "no usable NVIDIA GPU: %s; check that nvidia-smi lists one, or start with the CPU engine",
            driver == 0 ? "no NVIDIA driver is loaded" : "the driver finds none");
    return err_set(e, ERR_DEVICE, "the GPU cannot be used: %s; nvidia-smi may say more",
        cudaGetErrorString(code));
}

int cuda_find_device(int *id, err *e) {
    int n = 0;
    const cudaError_t found = cudaGetDeviceCount(&n);
    if (found != cudaSuccess || n == 0) return no_device(e, found);
    return cuda_check(e, cudaGetDevice(id), "choosing the GPU");
}

static int check_device(cuda_device *d, err *e) {
    cudaDeviceProp p;
    cudaFuncAttributes code;
    int rc = cuda_find_device(&d->id, e);
    if (rc == OK) rc = cuda_check(e, cudaGetDeviceProperties(&p, d->id), "reading the GPU");
    if (rc != OK) return rc;
    if (p.major < 9 || cudaFuncGetAttributes(&code, probe_kernel) != cudaSuccess) {
        (void)cudaGetLastError();
        return err_set(e, ERR_UNSUPPORTED,
            "GPU %s has compute capability %d.%d, for which this program has no code; it is built for "
            "9.0 and 12.1 (make CUDA=1), or for one of them (SLIM=1, GPU_ARCHS)",
            p.name, p.major, p.minor);
    }
    d->n_sms = p.multiProcessorCount;
    d->is_sm90 = p.major == 9;
    d->shared_bytes = (int)p.sharedMemPerBlockOptin;
    return OK;
}

static int cuda_open(kernel_context *k, err *e) {
    cuda_device *d = (cuda_device *)mem_alloc(sizeof(*d));
    d->pending = (cuda_pending *)mem_alloc(sizeof(*d->pending));
    k->device = d;
    int rc = check_device(d, e);
    if (rc == OK)
        rc = cuda_check(
            e, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "making a stream");
    if (rc == OK)
        rc = cuda_check(e, cudaMallocHost((void **)&d->staging, CUDA_STAGING_BYTES),
            "pinned memory for copies");
    if (rc == OK) {
        d->sums = (int64_t *)cuda_mem_new((size_t)EXL3_GPU_MAX_SUMS * sizeof(int64_t));
        d->counters = (int32_t *)cuda_mem_new((size_t)EXL3_GPU_MAX_COUNTERS * sizeof(int32_t));
        d->row_link = (moe_row_link *)cuda_mem_new(sizeof(moe_row_link));
        d->few_link = (moe_few_link *)cuda_mem_new(sizeof(moe_few_link));
        if (d->sums == NULL || d->counters == NULL || d->row_link == NULL || d->few_link == NULL)
            rc = cuda_no_memory(e, "work areas", (size_t)35 << 20);
    }
    if (rc != OK) {
        cuda_close(k);
        return rc;
    }
    k->stream = d->stream;
    return OK;
}

/* ---- copies ---- */

static void note(kernel_context *k, cudaError_t code, const char *what) {
    if (k->rc == OK) k->rc = cuda_check(&k->error, code, what);
}

static void wait_stream(kernel_context *k) {
    if (k->rc == OK)
        k->rc = cuda_stream_wait(cuda_of(k)->stream, cuda_of(k)->id, CUDA_WAIT_MS, &k->error);
}

static void cuda_wait(kernel_context *k) {
    cuda_settle(k);
    wait_stream(k);
}

static bool is_device_memory(const void *p) {
    cudaPointerAttributes a;
    if (cudaPointerGetAttributes(&a, p) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    return a.type == cudaMemoryTypeDevice || a.type == cudaMemoryTypeManaged;
}

/* From host memory through the pinned ring; when the ring is full the copies in it are waited for. */
static void copy_from_host(kernel_context *k, char *to, const char *from, size_t bytes) {
    cuda_device *d = cuda_of(k);
    while (bytes > 0 && k->rc == OK) {
        if (d->staging_at == CUDA_STAGING_BYTES) {
            wait_stream(k);
            d->staging_at = 0;
        }
        const size_t room = CUDA_STAGING_BYTES - d->staging_at, n = bytes < room ? bytes : room;
        char *at = d->staging + d->staging_at;
        memcpy(at, from, n);
        note(
            k, cudaMemcpyAsync(to, at, n, cudaMemcpyHostToDevice, d->stream), "copying to the GPU");
        d->staging_at += n;
        to += n;
        from += n;
        bytes -= n;
    }
}

static void cuda_copy(kernel_context *k, void *to, const void *from, size_t bytes) {
    cuda_settle(k);
    if (k->rc != OK || bytes == 0) return;
    if (!is_device_memory(from)) {
        copy_from_host(k, (char *)to, (const char *)from, bytes);
        return;
    }
    note(k, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda_of(k)->stream), "copying");
}

static void cuda_fetch(kernel_context *k, void *to, const void *from, size_t bytes) {
    cuda_copy(k, to, from, bytes);
    if (k->rc == OK) wait_stream(k);
}

/* ---- graphs ---- */

static void cuda_graph_begin(kernel_context *k) {
    cuda_settle(k);
    if (k->rc == OK)
        note(k, cudaStreamBeginCapture(cuda_of(k)->stream, cudaStreamCaptureModeThreadLocal),
            "recording a step");
}

static void *cuda_graph_end(kernel_context *k) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    cuda_settle(k);
    /* The recording is ended even after an error: the stream is unusable until then. */
    const cudaError_t ended = cudaStreamEndCapture(cuda_of(k)->stream, &graph);
    note(k, ended, "recording a step");
    if (k->rc == OK) note(k, cudaGraphInstantiate(&exec, graph, 0), "making a step graph");
    if (graph != NULL) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    return exec;
}

static void cuda_graph_run(kernel_context *k, void *graph) {
    cuda_settle(k);
    if (k->rc == OK)
        note(k, cudaGraphLaunch((cudaGraphExec_t)graph, cuda_of(k)->stream), "step graph");
}

static void cuda_graph_free(void *graph) {
    (void)cudaGraphExecDestroy((cudaGraphExec_t)graph);
}

static size_t cuda_scratch_bytes(const kernel_limits *l) {
    return linear_cuda_scratch_bytes(l->n_jobs, l->n_rows, l->max_in, l->max_out);
}

/* ---- operators before which nothing may be held back ---- */

#define SETTLED(name)                                                                              \
    static void settled_##name(kernel_context *k, const name##_args *a) {                          \
        cuda_settle(k);                                                                            \
        name##_cuda(k, a);                                                                         \
    }
#define EACH_SETTLED(X)                                                                            \
    X(embed)                                                                                       \
    X(lookup)                                                                                      \
    X(rope_table)                                                                                  \
    X(mhc_mean)                                                                                    \
    X(kv_page_write)                                                                               \
    X(index_queries)                                                                               \
    X(indexer)                                                                                     \
    X(moe)                                                                                         \
    X(engram_decode)                                                                               \
    X(engram_gate) X(finite) X(argmax) X(shortlist) X(add) X(join)
EACH_SETTLED(SETTLED)
static void settled_gather(kernel_context *k, const gather_args *a) {
    cuda_settle(k);
    gather_cuda(k, a);
}
static void settled_compress_pair(kernel_context *k, const compress_args *a) {
    cuda_settle(k);
    compress_pair_cuda(k, a);
}
static void settled_compress_tail(kernel_context *k, const compress_args *a) {
    cuda_settle(k);
    compress_tail_write_cuda(k, a);
}
static void settled_round(kernel_context *k, float *x, size_t n) {
    cuda_settle(k);
    round_cuda(k, x, n);
}

static kernels make_table() {
    kernels t = {};
    t.name = "cuda";
    t.is_host = false;
    t.open = cuda_open;
    t.close = cuda_close;
    t.mem_new = cuda_mem_new;
    t.mem_free = cuda_mem_free;
    t.copy = cuda_copy;
    t.fetch = cuda_fetch;
    t.wait = cuda_wait;
    t.graph_begin = cuda_graph_begin;
    t.graph_end = cuda_graph_end;
    t.graph_run = cuda_graph_run;
    t.graph_free = cuda_graph_free;
    t.round = settled_round;
    t.packed_new = linear_cuda_packed_new;
    t.packed_free = linear_cuda_packed_free;
    t.layout = EXL3_LAYOUT_GPU;
    t.packed_view = linear_cuda_packed_view;
    t.expert_table = moe_cuda_table_new;
    t.moe_work_bytes = moe_cuda_work_bytes;
    t.scratch_bytes = cuda_scratch_bytes;
#define USE(name) t.name = settled_##name;
    EACH_SETTLED(USE)
    t.gather = settled_gather;
    t.compress_pair = settled_compress_pair;
    t.compress_tail_write = settled_compress_tail;
    t.linear = linear_cuda;
    t.attn = attn_cuda;
    t.rmsnorm = rmsnorm_pending;
    t.router = router_pending;
    t.rope = rope_pending;
    t.mhc_mix = mhc_mix_pending;
    t.mhc_collapse = mhc_collapse_pending;
    t.mhc_expand = mhc_expand_pending;
    t.kv_pack = kv_pack_pending;
    t.kv_ring_write = kv_ring_write_pending;
    return t;
}

const kernels *kernels_cuda(void) {
    static const kernels table = make_table();
    return &table;
}
