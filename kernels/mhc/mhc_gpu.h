/* One launch over the streams of hyper-connections (mhc.h): expand, then collapse without its norm and
 * the dots of a mix, each only when asked. Any order of rows and any number of them gives the same
 * bits; the dots stand in slices of 64 channels, which prepare.h adds up. */
#ifndef TANDEM_KERNELS_MHC_MHC_GPU_H
#define TANDEM_KERNELS_MHC_MHC_GPU_H

#include "kernels/cuda_ops.h"

enum { MHC_SLICE = 64 };

typedef struct mhc_streams_params {
    float *h;
    int n_rows, n_streams, d, n_slices, rows_of_block, is_bf16;
    const int32_t *rows;          /* rows of h and pre; NULL: all in order; then y is NULL */
    const float *y, *post, *comb; /* expand; y NULL: none */
    const float *pre;             /* collapse */
    float *raw;                   /* [n][d]; NULL: no collapse */
    const float *fn;              /* mix */
    float *dots;                  /* [n][n_slices][n_mix + 1]; NULL: no mix */
} mhc_streams_params;

/* Slices of streams of width d. */
static inline int mhc_slices(int d) {
    return (d + MHC_SLICE - 1) / MHC_SLICE;
}
/* Fills what follows from the sizes, and launches. */
void mhc_streams_run(kernel_context *k, mhc_streams_params *p);

#endif
