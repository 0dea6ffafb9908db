#include "engine/base/mem.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    _Atomic(crash_hook) hook;
    atomic_bool is_crashing;
    atomic_long fail_after; /* allocations that still succeed; below 0: off */
} g_mem = {.fail_after = -1};

void crash_set_hook(crash_hook hook) {
    atomic_store(&g_mem.hook, hook);
}

_Noreturn void crash_now(const char *file, int line, const char *fmt, ...) {
    char msg[512];
    int n = snprintf(msg, sizeof msg, "%s:%d: ", file, line);
    size_t len = n < 0 ? 0 : (size_t)n;
    if (len < sizeof msg) {
        va_list ap;
        va_start(ap, fmt);
        (void)vsnprintf(msg + len, sizeof msg - len, fmt, ap);
        va_end(ap);
    }
    /* A crash inside the hook must not come round again. */
    if (!atomic_exchange(&g_mem.is_crashing, true)) {
        crash_hook hook = atomic_load(&g_mem.hook);
        if (hook != NULL) {
            hook(msg);
        } else {
            (void)!write(STDERR_FILENO, msg, strlen(msg));
            (void)!write(STDERR_FILENO, "\n", 1);
        }
    }
    abort();
}

void mem_fail_after(long n) {
    atomic_store(&g_mem.fail_after, n);
}

static int mem_must_fail(void) {
    long left = atomic_load_explicit(&g_mem.fail_after, memory_order_relaxed);
    if (__builtin_expect(left < 0, 1)) return 0;
    if (left == 0) return 1;
    atomic_store(&g_mem.fail_after, left - 1);
    return 0;
}

void *mem_try_alloc(size_t n) {
    if (mem_must_fail()) return NULL;
    return calloc(n == 0 ? 1 : n, 1);
}

void *mem_alloc(size_t n) {
    void *p = mem_try_alloc(n);
    CHECK_MSG(p != NULL, "out of memory: %zu bytes", n);
    return p;
}

void *mem_array(size_t n, size_t size) {
    size_t bytes;
    bool overflows = __builtin_mul_overflow(n, size, &bytes);
    CHECK_MSG(!overflows, "array too large: %zu x %zu", n, size);
    return mem_alloc(bytes);
}

void *mem_realloc(void *p, size_t n) {
    void *q = mem_must_fail() ? NULL : realloc(p, n == 0 ? 1 : n);
    CHECK_MSG(q != NULL, "out of memory: %zu bytes", n);
    return q;
}

void mem_free(void *p) {
    free(p);
}

void *mem_dup(const void *p, size_t n) {
    void *q = mem_alloc(n);
    if (n > 0) memcpy(q, p, n);
    return q;
}

char *mem_strndup(const char *s, size_t n) {
    size_t len = strnlen(s, n);
    char *copy = mem_alloc(len + 1);
    memcpy(copy, s, len);
    return copy;
}

char *mem_strdup(const char *s) {
    return mem_dup(s, strlen(s) + 1);
}

void *mem_aligned(size_t align, size_t n) {
    void *p = NULL;
    if (mem_must_fail() || posix_memalign(&p, align, n == 0 ? 1 : n) != 0) return NULL;
    memset(p, 0, n);
    return p;
}

void mem_aligned_free(void *p) {
    free(p);
}
