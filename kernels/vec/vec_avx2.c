#include "kernels/vec/vec_internal.h"

#define VEC_NAME "avx2"
#define VEC_OPS vec_ops_avx2
#include "kernels/vec/vec_loops.h"
