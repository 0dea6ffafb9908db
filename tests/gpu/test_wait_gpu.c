/* Waits for a device end: with the work, at the deadline, or when a watch says that a peer is gone;
 * and what stands in the way of a GPU is a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/clock.h"
#include "kernels/cuda_ops.h"
#include "tests/gpu/gpu_backend.h"
#include "tests/gpu/spin.h"

static cudaStream_t stream;
static int n_asked;

static int all_well(void *ctx, err *e) {
    (void)ctx;
    (void)e;
    n_asked++;
    return OK;
}

static int peer_gone(void *ctx, err *e) {
    return ++n_asked < 5 ? OK : err_set(e, ERR_PEER, "rank %d ended", *(const int *)ctx);
}

static void ends_with_the_work(void **state) {
    (void)state;
    err e = ERR_INIT;
    uint64_t start = clock_mono_ms();
    n_asked = 0;
    cuda_watch_set(0, all_well, NULL);
    spin_start(200, stream);
    assert_int_equal(cuda_stream_wait(stream, 0, 20000, &e), OK);
    assert_true(clock_mono_ms() - start >= 150);
    assert_true(n_asked >= 5);
    cuda_watch_set(0, NULL, NULL);
    assert_int_equal(cuda_stream_wait(stream, 0, 20000, &e), OK);
}

static void ends_at_the_deadline(void **state) {
    (void)state;
    err e = ERR_INIT;
    spin_start(1500, stream);
    assert_int_equal(cuda_stream_wait(stream, 0, 1000, &e), ERR_TIMEOUT);
    assert_non_null(strstr(e.msg, "within 1 s"));
    assert_int_equal(cuda_stream_wait(stream, 0, 20000, &e), OK);
}

static void ends_with_a_peer(void **state) {
    (void)state;
    err e = ERR_INIT;
    int rank = 1;
    n_asked = 0;
    cuda_watch_set(0, peer_gone, &rank);
    spin_start(300, stream);
    assert_int_equal(cuda_stream_wait(stream, 0, 20000, &e), ERR_PEER);
    assert_string_equal(e.msg, "rank 1 ended");
    cuda_watch_set(0, NULL, NULL);
    assert_int_equal(cudaStreamQuery(stream), cudaSuccess);
}

static void memory_ends_in_a_sentence(void **state) {
    (void)state;
    err e = ERR_INIT;
    assert_null(kernels_cuda()->mem_new((size_t)1 << 50));
    assert_int_equal(cuda_no_memory(&e, "a test", (size_t)1 << 50), ERR_MEMORY);
    assert_non_null(strstr(e.msg, "MiB are free"));
    assert_int_equal(cudaGetLastError(), cudaSuccess);
}

int main(void) {
    if (!gpu_backend_use()) return 77;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_with_the_work),
        cmocka_unit_test(ends_at_the_deadline),
        cmocka_unit_test(ends_with_a_peer),
        cmocka_unit_test(memory_ends_in_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
