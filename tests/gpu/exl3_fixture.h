/*
 * Random EXL3 matrices on both sides, and job lists in device memory, for the GPU tests and benches. Host code; one thread.
 */
#ifndef TESTS_GPU_EXL3_FIXTURE_H
#define TESTS_GPU_EXL3_FIXTURE_H

#include <stdint.h>

#include "kernels/exl3/exl3.h"
#include "kernels/exl3/exl3_gpu.h"

/* A matrix in host memory (file order) and in device memory (kernel order). */
typedef struct fixture_matrix {
    exl3_matrix host;
    exl3_gpu_matrix device;
    void *trellis;
    uint16_t *suh, *svh, *bias;
} fixture_matrix;

/* Device memory, zeroed; ends the process with the CUDA error's text when it fails. */
void *device_new(size_t bytes);
void device_put(void *to, const void *from, size_t bytes);
void device_get(void *to, const void *from, size_t bytes);
void device_free(void *p);
/* Ends the process with the text when code is an error. */
void device_ok(cudaError_t code, const char *what);

/* Random bits, signs and scales; a bias if has_bias. */
void fixture_matrix_init(
    fixture_matrix *m, const int shape[3] /* in, out, k2 */, int has_bias, uint64_t seed);
void fixture_matrix_release(fixture_matrix *m);
/* The CPU's y [n_rows][out] of x [n_rows][in]; ends the process with the error's text when it fails. */
void fixture_matrix_rows(const fixture_matrix *m, const float *x, int n_rows, float *y);
/* Random values of about unit size with a few large ones. */
void fixture_values(float *x, size_t n, uint64_t seed);

/* A list under construction: the caller fills matrix, operand, scale, y, n_rows of each job; the rest is numbered here. */
typedef struct fixture_list {
    exl3_gpu_list *device;
    exl3_gpu_job *jobs; /* [n] host copy */
    int n, max_rows, max_stage_bytes, n_units, n_cost;
    size_t n_sums, n_counters;
} fixture_list;
/* pair: 1 when jobs 2i and 2i + 1 are gate and up and share counters. Allocates operand and scale of every job. */
void fixture_list_init(fixture_list *l, const exl3_gpu_job *jobs, int n, int is_paired);
void fixture_list_release(fixture_list *l);

#endif
