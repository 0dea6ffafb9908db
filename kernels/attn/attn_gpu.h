/* Sums of attention over tiles that the launch behind adds up (kernels/prepare). */
#ifndef TANDEM_KERNELS_ATTN_ATTN_GPU_H
#define TANDEM_KERNELS_ATTN_ATTN_GPU_H

#include <stdint.h>

enum { ATTN_MAX_TILES = 32 };

typedef struct attn_parts {
    const float *sums;      /* [row][group][tile][16][512] */
    const float *ends;      /* [row][group][tile][16][2]: largest score, sum of weights */
    const float *sink;      /* [head] */
    const int32_t *n_tiles; /* [row] tiles that were summed */
    int32_t n_groups, max_tiles;
} attn_parts;

#endif
