/* Sums of attention over tiles of rows, in order; for the kernels that make tiles and the one that adds
 * them. */
#ifndef TANDEM_KERNELS_ATTN_ATTN_SUM_CUH
#define TANDEM_KERNELS_ATTN_ATTN_SUM_CUH

#include "kernels/attn/attn_gpu.h"
#include "kernels/device.cuh"

constexpr int ATTN_SUM_D = 512, ATTN_SUM_GROUP = 16;

/* What a tile does to the sums so far: both count relative to the largest score, most. */
struct attn_step {
    float most, before, now;
};

/* The weights of what came before and of a tile whose largest score is tile_most. */
__device__ __forceinline__ attn_step attn_step_of(bool is_first, float most, float tile_most) {
    if (is_first) return {tile_most, 0.f, 1.f};
    const float m = tile_most > most ? tile_most : most;
    return {m, exp_near(most - m), exp_near(tile_most - m)};
}

__device__ __forceinline__ float attn_add(
    bool is_first, const attn_step &s, float sum, float tile) {
    return is_first ? tile : fmaf(s.now, tile, s.before * sum);
}

#endif
