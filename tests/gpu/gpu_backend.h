/* Makes the CUDA back end known to a test that drives models. */
#ifndef TESTS_GPU_GPU_BACKEND_H
#define TESTS_GPU_GPU_BACKEND_H

#include <stdbool.h>

/* Registers the CUDA back end and makes probe_open use it. False: no GPU here. */
bool gpu_backend_use(void);

#endif
