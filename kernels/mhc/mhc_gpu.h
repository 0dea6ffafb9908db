/* One launch over the streams of hyper-connections (mhc.h): expand, then collapse without its norm and
 * the dots of a mix, each only when asked. Any order of rows and any number of them gives the same
 * bits; the dots stand in slices of 64 channels, which prepare.h adds up. */
#ifndef TANDEM_KERNELS_MHC_MHC_GPU_H
#define TANDEM_KERNELS_MHC_MHC_GPU_H

#include "kernels/cuda_ops.h"

enum { MHC_SLICE = 64, MHC_DOTS = 32 /* floats for those of four streams */ };

typedef struct mhc_streams_params {
    float *h;
    int n_rows, n_streams, d, n_slices, rows_of_block, is_bf16;
    const int32_t *rows;          /* rows of h and pre; NULL: all in order; then y is NULL */
    const float *y, *post, *comb; /* expand; y NULL: none */
    const float *pre;             /* collapse */
    float *raw;                   /* [n][d]; NULL: no collapse */
    const float *fn;              /* mix */
    float *dots;                  /* [n][n_slices][dots_stride], n_mix + 1 used; NULL: no mix */
    int dots_stride;
} mhc_streams_params;

/* Slices of streams of width d. */
static inline int mhc_slices(int d) {
    return (d + MHC_SLICE - 1) / MHC_SLICE;
}
enum { MHC_FEW_ROWS = 8 };
/* Whether rows are taken many at a time. */
static inline bool mhc_is_many(int n_rows, int n_streams, int d) {
    return n_rows > MHC_FEW_ROWS && n_streams == 4 && d % MHC_SLICE == 0;
}
/* Floats from the dots of a slice to those of the next. For many rows whole 128 bytes: two writers of one
 * sector of memory cost a read of it. */
static inline int mhc_dots_stride(int n_rows, int n_streams, int d) {
    return mhc_is_many(n_rows, n_streams, d) ? (int)MHC_DOTS : n_streams * (2 + n_streams) + 1;
}
/* Fills what follows from the sizes, and launches. */
void mhc_streams_run(kernel_context *k, mhc_streams_params *p);

#endif
