#include "kernels/cuda_check.h"

#include <pthread.h>
#include <unistd.h>

extern "C" {
#include "engine/base/clock.h"
}

int cuda_check(err *e, cudaError_t code, const char *what) {
    if (code == cudaSuccess) return OK;
    int kind = code == cudaErrorMemoryAllocation ? ERR_MEMORY : ERR_DEVICE;
    return err_set(e, kind, "%s: %s", what, cudaGetErrorString(code));
}

int cuda_no_memory(err *e, const char *what, size_t bytes) {
    size_t n_free = 0, n_all = 0;
    if (cudaMemGetInfo(&n_free, &n_all) != cudaSuccess) (void)cudaGetLastError();
    return err_set(e, ERR_MEMORY,
        "no memory on the GPU for %s (%zu MiB): %zu of %zu MiB are free; end what else uses the GPU "
        "(nvidia-smi names it), or take fewer pages or slots",
        what, bytes >> 20, n_free >> 20, n_all >> 20);
}

/* ---- watches ---- */

enum { MAX_DEVICES = 64 };

static struct watches {
    pthread_mutex_t lock; /* guards the entries */
    struct {
        cuda_watch_fn fn;
        void *ctx;
    } of[MAX_DEVICES];
} watches = {PTHREAD_MUTEX_INITIALIZER, {}};

void cuda_watch_set(int device, cuda_watch_fn fn, void *ctx) {
    if (device < 0 || device >= MAX_DEVICES) return;
    pthread_mutex_lock(&watches.lock);
    watches.of[device].fn = fn;
    watches.of[device].ctx = ctx;
    pthread_mutex_unlock(&watches.lock);
}

static int ask_watch(int device, err *e) {
    if (device < 0 || device >= MAX_DEVICES) return OK;
    pthread_mutex_lock(&watches.lock);
    cuda_watch_fn fn = watches.of[device].fn;
    void *ctx = watches.of[device].ctx;
    pthread_mutex_unlock(&watches.lock);
    return fn == NULL ? OK : fn(ctx, e);
}

/* ---- waiting ---- */

/* Short waits are spent asking the device; long ones, of prompts, sleep between the questions. */
enum { SPIN_MS = 20, SLEEP_US = 50, WATCH_MS = 2, DRAIN_MS = 5000 };

/* OK, ERR_TIMEOUT without a message at the deadline, or the device's error. The watch is asked when e is
 * where its error goes. */
static int wait_until(cudaStream_t stream, int device, uint64_t deadline, bool has_watch, err *e) {
    const uint64_t start = clock_mono_ns();
    uint64_t asked = start;
    for (;;) {
        const cudaError_t code = cudaStreamQuery(stream);
        /* What ended may have ended without its peers. */
        if (code == cudaSuccess && has_watch) return ask_watch(device, e);
        if (code != cudaErrorNotReady) return cuda_check(e, code, "waiting for the GPU");
        (void)cudaGetLastError();
        const uint64_t now = clock_mono_ns();
        if (has_watch && now - asked > WATCH_MS * 1000000ull) {
            const int rc = ask_watch(device, e);
            if (rc != OK) return rc;
            asked = now;
        }
        if (now > deadline) return ERR_TIMEOUT;
        if (now - start > SPIN_MS * 1000000ull) (void)usleep(SLEEP_US);
    }
}

int cuda_stream_wait(cudaStream_t stream, int device, int timeout_ms, err *e) {
    err why = {};
    const uint64_t ms = 1000000ull, start = clock_mono_ns();
    const int rc = wait_until(stream, device, start + (uint64_t)timeout_ms * ms, true, &why);
    if (rc == OK) return OK;
    if (rc == ERR_TIMEOUT && why.code == OK)
        return err_set(e, ERR_TIMEOUT,
            "the GPU did not finish within %d s: its driver or a peer hangs; this rank must be started "
            "again, and the machine if that does not help (dmesg may name an Xid)",
            timeout_ms / 1000);
    /* What the watch has cut short still runs out. */
    err ignored = {};
    (void)wait_until(stream, device, clock_mono_ns() + DRAIN_MS * ms, false, &ignored);
    if (e != NULL) *e = why;
    return rc;
}
