/* The tables of the variants. */
#ifndef TANDEM_KERNELS_VEC_VEC_INTERNAL_H
#define TANDEM_KERNELS_VEC_VEC_INTERNAL_H

#include "kernels/vec/vec.h"

extern const vec_ops vec_ops_plain;
#if defined(__x86_64__)
extern const vec_ops vec_ops_avx2;
#endif

#endif
