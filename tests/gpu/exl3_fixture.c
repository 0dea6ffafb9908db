#include "tests/gpu/exl3_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"
#include "kernels/exl3/exl3_kernel_order.h"
#include "kernels/half.h"

void device_ok(cudaError_t code, const char *what) {
    if (code == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(code));
    exit(1);
}

void *device_new(size_t bytes) {
    void *p = NULL;
    device_ok(cudaMalloc(&p, bytes > 0 ? bytes : 16), "cudaMalloc");
    device_ok(cudaMemset(p, 0, bytes), "cudaMemset");
    return p;
}

void device_put(void *to, const void *from, size_t bytes) {
    device_ok(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copy to device");
}

void device_get(void *to, const void *from, size_t bytes) {
    device_ok(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy from device");
}

void device_free(void *p) {
    device_ok(cudaFree(p), "cudaFree");
}

static uint64_t next(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double uniform(uint64_t *state) {
    return (double)(next(state) >> 11) * 0x1p-53;
}

/* fp16 of either sign, magnitude size * (0.5 .. 1.5). */
static uint16_t *scales(size_t n, double size, uint64_t *state) {
    uint16_t *s = mem_array(n, sizeof *s);
    for (size_t i = 0; i < n; i++) {
        double v = size * (0.5 + uniform(state));
        s[i] = half_from_double((next(state) & 1) != 0 ? v : -v);
    }
    return s;
}

static uint16_t *upload(const uint16_t *s, size_t n) {
    if (s == NULL) return NULL;
    uint16_t *d = device_new(n * sizeof *s);
    device_put(d, s, n * sizeof *s);
    return d;
}

void fixture_matrix_init(fixture_matrix *m, const int shape[3], int has_bias, uint64_t seed) {
    size_t in = (size_t)shape[0], out = (size_t)shape[1];
    size_t bytes = exl3_trellis_bytes(shape[0], shape[1], shape[2]);
    uint64_t state = seed;
    *m = (fixture_matrix){0};
    m->trellis = mem_alloc(bytes);
    for (size_t i = 0; i < bytes / 8; i++) {
        uint64_t z = next(&state);
        memcpy((uint8_t *)m->trellis + 8 * i, &z, 8);
    }
    m->suh = scales(in, 0.03, &state);
    m->svh = scales(out, 1.0, &state);
    if (has_bias) m->bias = scales(out, 0.5, &state);
    m->host = (exl3_matrix){
        m->trellis, m->suh, m->svh, m->bias, 0, shape[0], shape[1], shape[2], EXL3_MUL1};
    uint32_t *words = mem_alloc(bytes);
    err e = ERR_INIT;
    CHECK(exl3_kernel_order_pack(&m->host, words, &e) == OK);
    uint32_t *w = device_new(bytes);
    device_put(w, words, bytes);
    mem_free(words);
    m->device = (exl3_gpu_matrix){w, upload(m->suh, in), upload(m->svh, out), upload(m->bias, out),
        shape[0], shape[1], shape[2], 0};
}

void fixture_matrix_release(fixture_matrix *m) {
    mem_free(m->trellis);
    mem_free(m->suh);
    mem_free(m->svh);
    mem_free(m->bias);
    device_free((void *)m->device.words);
    device_free((void *)m->device.suh);
    device_free((void *)m->device.svh);
    if (m->device.bias != NULL) device_free((void *)m->device.bias);
}

void fixture_matrix_rows(const fixture_matrix *m, const float *x, int n_rows, float *y) {
    err e = ERR_INIT;
    exl3_linear *l = NULL;
    if (exl3_linear_new(&m->host, &l, &e) != OK) {
        fprintf(stderr, "the CPU's linear: %s\n", e.msg);
        exit(1);
    }
    void *scratch = mem_aligned(64, exl3_scratch_bytes(1, n_rows, m->host.in));
    exl3_job job = {l, x, (size_t)m->host.in, NULL, y, (size_t)m->host.out, n_rows};
    exl3_linear_run(&job, NULL, scratch);
    mem_aligned_free(scratch);
    exl3_linear_free(l);
}

void fixture_values(float *x, size_t n, uint64_t seed) {
    uint64_t state = seed;
    for (size_t i = 0; i < n; i++) {
        double v = 0;
        for (int j = 0; j < 4; j++)
            v += uniform(&state) - 0.5;
        if (next(&state) % 97 == 0) v *= 20;
        x[i] = (float)(v * 1.7);
    }
}

static int row_cap(int n_rows) {
    return n_rows <= 1 ? 1 : n_rows <= 2 ? 2 : n_rows <= 4 ? 4 : 8;
}

void fixture_list_init(fixture_list *l, const exl3_gpu_job *jobs, int n, int is_paired) {
    *l = (fixture_list){.n = n};
    l->jobs = mem_array((size_t)n, sizeof *jobs);
    for (int i = 0; i < n; i++) {
        exl3_gpu_job *j = &l->jobs[i];
        *j = jobs[i];
        j->row_cap = row_cap(j->n_rows);
        j->operand = device_new(4 * exl3_gpu_operand_words(j->matrix.in, j->row_cap));
        j->scale = device_new(sizeof *j->scale * (size_t)j->n_rows);
        j->first_sum = (int32_t)l->n_sums;
        j->first_unit = l->n_units;
        j->first_cost = l->n_cost;
        bool is_second = is_paired && i % 2 == 1;
        j->first_counter = is_second ? l->jobs[i - 1].first_counter : (int32_t)l->n_counters;
        if (!is_second) l->n_counters += (size_t)j->matrix.out / 128;
        l->n_sums += (size_t)j->n_rows * (size_t)j->matrix.out;
        int units = exl3_gpu_units(j->matrix.in, j->matrix.out);
        l->n_units += units;
        l->n_cost += units * exl3_gpu_unit_cost(j->matrix.k2, j->n_rows);
        int stage = exl3_gpu_stage_bytes(j->matrix.k2, j->row_cap);
        if (stage > l->max_stage_bytes) l->max_stage_bytes = stage;
        if (j->n_rows > l->max_rows) l->max_rows = j->n_rows;
    }
    if (l->n_sums < EXL3_GPU_LEAST_SUMS) l->n_sums = EXL3_GPU_LEAST_SUMS;
    exl3_gpu_list head = {.n_jobs = n, .n_units = l->n_units, .n_cost = l->n_cost};
    l->device = device_new(sizeof head + sizeof *jobs * (size_t)n);
    device_put(l->device, &head, sizeof head);
    device_put((char *)l->device + sizeof head, l->jobs, sizeof *jobs * (size_t)n);
}

void fixture_list_release(fixture_list *l) {
    for (int i = 0; i < l->n; i++) {
        device_free(l->jobs[i].operand);
        device_free(l->jobs[i].scale);
    }
    device_free(l->device);
    mem_free(l->jobs);
}
