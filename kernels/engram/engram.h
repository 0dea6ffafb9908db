/* Engram: decoding of fetched records and the gated write into the streams.
 *
 *   record: d E4M3 values, then d/32 UE8M0 scales; value = e4m3 * 2^(scale - 127)
 *   kv [ (S + 1) * d ] per row: S keys, then the value
 *   dot[s]  = (sum_d h[s] qk[s] key[s]) / rms(h[s]) / rms(key[s]) / sqrt(d), rms with + eps
 *   gate[s] = sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot));  h[s] += gate[s] * value
 *
 * Each row by itself. */
#ifndef TANDEM_KERNELS_ENGRAM_ENGRAM_H
#define TANDEM_KERNELS_ENGRAM_ENGRAM_H

#include "kernels/context.h"

typedef struct engram_decode_args {
    const uint8_t *records; /* [n][record_bytes] */
    size_t record_bytes;
    float *x; /* [n][d] */
    int n, d;
} engram_decode_args;
void engram_decode_run(kernel_context *k, const engram_decode_args *a);

typedef struct engram_gate_args {
    float *h;        /* [n][S][d] */
    const float *kv; /* [n][(S + 1) * d] */
    const float *qk; /* [S][d] product of the two weights */
    int n_rows, n_streams, d;
    float eps;
} engram_gate_args;
void engram_gate_run(kernel_context *k, const engram_gate_args *a);

#endif
