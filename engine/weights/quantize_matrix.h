/* Quantizes one matrix to EXL3 (exl3.md 12): regularisation, scale search, error feedback with a
 * Hessian when there is one, and the trellis search, spread over a pool. */
#ifndef TANDEM_ENGINE_WEIGHTS_QUANTIZE_MATRIX_H
#define TANDEM_ENGINE_WEIGHTS_QUANTIZE_MATRIX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/thread.h"
#include "engine/weights/trellis_search.h"
#include "kernels/exl3/exl3_codec.h"

/* Shared by all matrices of one rate: the code and a work space for each thread of a pool. */
typedef struct quantize_rate quantize_rate;
/* ERR_ARG for a rate that the codebook does not have, ERR_MEMORY. Freed with quantize_rate_free. */
int quantize_rate_new(exl3_codebook codebook, int k2, pool *p, quantize_rate **out, err *e);
void quantize_rate_free(quantize_rate *r);

typedef enum quantize_scales {
    QUANTIZE_SCALES_ALWAYS, /* output channels get scales */
    QUANTIZE_SCALES_NEVER,  /* svh is +1 or -1 */
    QUANTIZE_SCALES_AUTO    /* by how even the Hessian's diagonal is; always without one */
} quantize_scales;

typedef struct quantize_matrix_args {
    const float *weight;      /* [out][in], finite */
    int in, out;              /* real sizes; padded to multiples of 128 inside */
    const float *hessian_sum; /* [in][in] sum of x x^T over calibration rows, or NULL */
    int64_t hessian_rows;
    uint64_t seed; /* of the random signs */
    quantize_scales out_scales;
    trellis_mode mode;
    const atomic_bool *cancel; /* looked at between blocks; NULL: never */
} quantize_matrix_args;

/* The result: what the four tensors hold. The caller releases it. */
typedef struct quantized_matrix {
    int in, out, k2; /* padded sizes */
    exl3_codebook codebook;
    uint8_t *trellis;    /* exl3_trellis_bytes */
    uint16_t *suh, *svh; /* fp16 [in], [out] */
    double proxy_error;  /* tr(E^T H E) / tr(W^T H W) in the rotated basis */
    double square_error; /* |E|^2 / |W|^2 in the rotated basis */
    double scale;        /* the global scale found */
    bool is_calibrated;  /* the Hessian was usable */
} quantized_matrix;

/* ERR_ARG (sizes, values that are not finite), ERR_MEMORY, ERR_CANCELLED. The same arguments give
 * the same bits with any number of threads. p is the pool given to quantize_rate_new. */
int quantize_matrix(
    const quantize_matrix_args *a, const quantize_rate *r, pool *p, quantized_matrix *out, err *e);
void quantized_matrix_release(quantized_matrix *m);

#endif
