/* What tests of operators share: both back ends with scratch, and random inputs. One thread. */
#ifndef TESTS_GPU_OPS_FIXTURE_H
#define TESTS_GPU_OPS_FIXTURE_H

#include "engine/base/rand.h"
#include "kernels/kernels.h"

extern kernel_context host, device;
extern const kernels *cpu, *cuda;
extern rand_state noise;

/* Opens both, with 64 MiB of scratch each. Exit code of a test that cannot run (77: no GPU), or 0. */
int ops_fixture_open(void);
/* n values around zero, at most 2 * size; the caller frees them. */
float *random_floats(size_t n, float size);
/* A copy in device memory. */
void *sent(const void *p, size_t bytes);
/* Waits for the device; fails the test if it has an error. */
void check_device(void);

#endif
