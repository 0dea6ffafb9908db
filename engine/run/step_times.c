#include "engine/run/step_times.h"

#include <stddef.h>

void step_times_add(step_times *t, uint64_t ns) {
    uint64_t n = atomic_load_explicit(&t->n, memory_order_relaxed);
    uint64_t us = ns / 1000 < UINT32_MAX ? ns / 1000 : UINT32_MAX;
    atomic_store_explicit(&t->us[n % STEP_TIMES], (uint32_t)us, memory_order_relaxed);
    atomic_store_explicit(&t->n, n + 1, memory_order_release);
}

void step_times_read(const step_times *t, double *mean, double *p95) {
    uint32_t us[STEP_TIMES];
    uint64_t n_all = atomic_load_explicit(&t->n, memory_order_acquire);
    uint32_t n = n_all < STEP_TIMES ? (uint32_t)n_all : STEP_TIMES;
    uint32_t n_mean = n < STEP_TIMES_MEAN ? n : STEP_TIMES_MEAN;
    double sum = 0.0;
    *mean = -1.0;
    if (p95 != NULL) *p95 = -1.0;
    if (n == 0) return;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = (uint32_t)((n_all - 1 - i) % STEP_TIMES);
        uint32_t value = atomic_load_explicit(&t->us[at], memory_order_relaxed);
        sum += i < n_mean ? (double)value : 0.0;
        uint32_t j = i; /* kept in order as it grows */
        for (; j > 0 && us[j - 1] > value; j--) {
            us[j] = us[j - 1];
        }
        us[j] = value;
    }
    *mean = sum / n_mean / 1e3;
    if (p95 != NULL) *p95 = us[(n - 1) * 95 / 100] / 1e3;
}
