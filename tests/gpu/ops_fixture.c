#include "tests/gpu/ops_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/base/mem.h"
#include "tests/gpu/gpu_backend.h"

kernel_context host, device;
const kernels *cpu, *cuda;
rand_state noise;

int ops_fixture_open(void) {
    err e = ERR_INIT;
    if (!gpu_backend_use()) return 77;
    cpu = kernels_find(NULL);
    cuda = kernels_find("cuda");
    rand_init(&noise, 3, 1);
    if (cuda->open(&device, &e) != OK) {
        print_message("%s\n", e.msg);
        return 1;
    }
    const size_t bytes = (size_t)64 << 20;
    device.scratch = cuda->mem_new(bytes);
    device.scratch_bytes = bytes;
    host.scratch = mem_aligned(64, bytes);
    host.scratch_bytes = bytes;
    host.thread_scratch[0] = mem_aligned(64, bytes);
    host.thread_scratch_bytes = bytes;
    return 0;
}

float *random_floats(size_t n, float size) {
    float *p = mem_array(n, sizeof(*p));
    for (size_t i = 0; i < n; i++)
        p[i] = size * ((float)(int32_t)rand_u32(&noise) * 0x1p-31f +
                          (float)(int32_t)rand_u32(&noise) * 0x1p-31f);
    return p;
}

void *sent(const void *p, size_t bytes) {
    void *d = cuda->mem_new(bytes);
    assert_non_null(d);
    cuda->copy(&device, d, p, bytes);
    return d;
}

void check_device(void) {
    cuda->wait(&device);
    if (device.rc != OK) fail_msg("%s", device.error.msg);
}
