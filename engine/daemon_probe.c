/* tandemd --probe: two or more ranks without a model meet, open the exchange that a start would use,
 * and measure it: the proof of the cable through the engine's own transport. */
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/daemon_internal.h"

#ifdef TANDEM_CUDA
#include "engine/dist/exchange_peer.h"
#include "kernels/cuda_check.h"
#endif

/* Of one rank in one gather. Small beside the memory of any machine; NVIDIA's own test takes 32 GB and
 * has frozen machines. */
enum { PROBE_BYTES = 64 << 20, PROBE_HOST_BYTES = 4 << 20, PROBE_MS = 2000, WARM_UPS = 2 };
enum { PROBE_END_MS = 5000 };

typedef struct probe {
    exchange *x;
    bool is_device;
    int device;
    void *mine, *all;
    size_t bytes;
    void *stream;
} probe;

#ifdef TANDEM_CUDA
static int device_open(probe *p, err *e) {
    size_t n = (size_t)exchange_world(p->x);
    cudaStream_t stream = NULL;
    cudaError_t rc = cudaGetDevice(&p->device);
    if (rc == cudaSuccess) rc = cudaMalloc(&p->mine, p->bytes);
    if (rc == cudaSuccess) rc = cudaMalloc(&p->all, p->bytes * n);
    if (rc == cudaSuccess) rc = cudaMemset(p->mine, 1, p->bytes);
    if (rc == cudaSuccess) rc = cudaStreamCreate(&stream);
    p->stream = stream;
    return cuda_check(e, rc, "memory on the GPU for the probe");
}

/* With a deadline, and with an eye on the exchange. */
static int device_wait(probe *p, err *e) {
    return cuda_stream_wait(p->stream, p->device, CUDA_WAIT_MS, e);
}

static void device_close(probe *p) {
    err ignored = ERR_INIT;
    if (p->stream != NULL) {
        (void)cuda_stream_wait(p->stream, p->device, PROBE_END_MS, &ignored);
        (void)cudaStreamDestroy(p->stream);
    }
    (void)cudaFree(p->mine);
    (void)cudaFree(p->all);
}

static const char *kind_of(const probe *p) {
    return p->is_device ? exchange_gpu_name(p->x) : "TCP";
}
#else
static const char *kind_of(const probe *p) {
    (void)p;
    return "TCP";
}
#endif

static int buffers_open(probe *p, err *e) {
    p->is_device = exchange_is_device(p->x) != 0;
    p->bytes = p->is_device ? PROBE_BYTES : PROBE_HOST_BYTES;
#ifdef TANDEM_CUDA
    if (p->is_device) return device_open(p, e);
#endif
    (void)e;
    p->mine = mem_alloc(p->bytes);
    p->all = mem_alloc(p->bytes * (size_t)exchange_world(p->x));
    memset(p->mine, 1, p->bytes);
    return OK;
}

static void buffers_close(probe *p) {
#ifdef TANDEM_CUDA
    if (p->is_device) {
        device_close(p);
        return;
    }
#endif
    mem_free(p->mine);
    mem_free(p->all);
}

static int gather(probe *p, err *e) {
    int rc = exchange_gather(p->x, p->mine, p->bytes, p->all, p->stream, e);
#ifdef TANDEM_CUDA
    if (rc == OK && p->is_device) rc = device_wait(p, e);
#endif
    return rc;
}

/* Rank 0 says each time whether there is another round, so that all make the same number. */
static int measure(probe *p, double *gbytes_per_s, err *e) {
    int rc = OK;
    int64_t n = 0;
    for (int i = 0; i < WARM_UPS && rc == OK; i++)
        rc = gather(p, e);
    uint64_t begun = clock_mono_ns(), now = begun;
    for (uint8_t goes_on = 1; rc == OK && goes_on != 0;) {
        rc = gather(p, e);
        n++;
        now = clock_mono_ns();
        goes_on = now - begun < (uint64_t)PROBE_MS * 1000000u;
        if (rc == OK) rc = exchange_bcast(p->x, &goes_on, sizeof goes_on, 0, e);
    }
    /* Bus bandwidth as NCCL's tests count it: what each rank receives from the others. */
    double others = (double)(exchange_world(p->x) - 1);
    double seconds = (double)(now - begun) / 1e9;
    *gbytes_per_s = seconds > 0 ? (double)n * (double)p->bytes * others / seconds / 1e9 : 0;
    return rc;
}

int daemon_probe(const daemon_options *o, daemon_self *self, err *e) {
    probe p = {0};
    meet_fds fds;
    double rate = 0;
    meet_fds_init(&fds);
    int rc = daemon_meet(o, self, &fds, e);
    if (rc == OK) rc = daemon_exchange(o, self, &fds, &p.x, e);
    if (rc == OK) rc = buffers_open(&p, e);
    if (rc == OK) rc = measure(&p, &rate, e);
    if (rc == OK && exchange_rank(p.x) == 0)
        printf("probe: gather over %s %.3f GB/s with %d ranks and %zu MiB\n", kind_of(&p), rate,
            exchange_world(p.x), p.bytes >> 20);
    /* Giving memory back waits for the GPU, which may wait for a rank that is gone. */
    if (rc != OK && p.is_device) exchange_abort(p.x, e);
    if (p.x != NULL) buffers_close(&p);
    daemon_self_exchange(self, NULL, -1.0);
    exchange_close(p.x);
    meet_fds_close(&fds);
    return rc;
}
