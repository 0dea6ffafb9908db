#include "kernels/vec/vec.h"

#include "kernels/vec/vec_internal.h"

const vec_ops *vec_variant(int i) {
    if (i == 0) {
        return &vec_ops_plain;
    }
#if defined(__x86_64__)
    if (i == 1 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        return &vec_ops_avx2;
    }
#endif
    return NULL;
}

const vec_ops *vec(void) {
    /* Two threads may both find it; they find the same. */
    static const vec_ops *best;
    const vec_ops *v = __atomic_load_n(&best, __ATOMIC_RELAXED);
    if (v == NULL) {
        v = vec_variant(1) != NULL ? vec_variant(1) : vec_variant(0);
        __atomic_store_n(&best, v, __ATOMIC_RELAXED);
    }
    return v;
}
