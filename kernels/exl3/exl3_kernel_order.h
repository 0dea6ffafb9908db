/*
 * The order in which the GPU kernels read a trellis: [out/64][in/16][4 * k2 words][4 tiles]. The words of four
 * neighbouring tiles lie side by side, and what a warp streams for 64 outputs is one contiguous run. The bits of a tile
 * are unchanged, the size too. Plain host code; any thread.
 */
#ifndef KERNELS_EXL3_KERNEL_ORDER_H
#define KERNELS_EXL3_KERNEL_ORDER_H

#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "kernels/exl3/exl3_codec.h"

/* Writes the trellis of m to out, exl3_trellis_bytes(m->in, m->out, m->k2) bytes. ERR_ARG: m is not valid. */
int exl3_kernel_order_pack(const exl3_matrix *m, uint32_t *out, err *e);
/* The inverse: back to tiles [in/16][out/16]. */
int exl3_kernel_order_unpack(
    const uint32_t *words, const exl3_matrix *shape, void *trellis, err *e);

#endif
