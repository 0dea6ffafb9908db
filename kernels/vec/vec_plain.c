#include "kernels/vec/vec_internal.h"

#define VEC_NAME "plain"
#define VEC_OPS vec_ops_plain
#include "kernels/vec/vec_loops.h"
