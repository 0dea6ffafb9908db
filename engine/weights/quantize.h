/* Quantizes a whole model folder from official names to an EXL3 pack (model.md 2.2) with the mul1
 * codebook, the one that engines of this model read. The result is
 * written beside the target and put in place at the end; finished matrices are kept in a work
 * folder, so that a stopped run goes on where it was. One run per output folder at a time. */
#ifndef TANDEM_ENGINE_WEIGHTS_QUANTIZE_H
#define TANDEM_ENGINE_WEIGHTS_QUANTIZE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/model/config.h"

/* Which tensor gets how many bits: a list of rules, the first that matches a name decides. */
typedef struct quantize_map quantize_map;

/* Text of rules PATTERN=VALUE separated by commas, blanks or newlines; # begins a comment. A
 * pattern is a name as in model.md 2.1 without ".weight" for matrices, with * and ? as wildcards.
 * VALUE is a number of bits (1 to 8, also 1.5, 2.5, 3.5) for matrices, or keep, f16, bf16, f32 for
 * tensors that stay plain. What no rule matches is kept. "demo" alone names the map of the
 * built-in model, a text that begins with @ a file. ERR_ARG names the rule that is wrong. The
 * caller frees *out. */
int quantize_map_parse(const char *text, quantize_map **out, err *e);
void quantize_map_free(quantize_map *m);

typedef struct quantize_progress {
    int n_done, n_total; /* matrices */
    uint64_t weights_done, weights_total;
    const char *name;                       /* the matrix just finished; "" before the first */
    double bits, proxy_error, square_error; /* of that matrix */
    bool was_resumed;                       /* it was taken from an earlier run */
    double weights_per_s;                   /* of this run; 0: not known yet */
    double eta_s;                           /* negative: not known yet */
} quantize_progress;

/* Sum of x x^T over calibration rows for a matrix: sum[in][in] is zero and to be filled, *rows set.
 * Leaving *rows 0 means that there is none. wo_a slices come as "...wo_a.slice.G". */
typedef int (*quantize_hessian_fn)(
    void *ctx, const char *name, int in, float *sum, int64_t *rows, err *e);

typedef struct quantize_options {
    const quantize_map *map;
    int n_threads;                                           /* 0: one for each core */
    uint64_t shard_bytes;                                    /* a new file above this; 0: 8 GiB */
    bool without_resume;                                     /* begin anew */
    void (*progress)(void *ctx, const quantize_progress *p); /* called by the calling thread */
    void *progress_ctx;
    quantize_hessian_fn hessian; /* NULL: without calibration */
    void *hessian_ctx;
    const atomic_bool *cancel; /* set to true by another thread or a signal handler */
} quantize_options;

typedef struct quantize_report {
    int n_matrices, n_resumed, n_plain;
    uint64_t weights, bytes_out;
    double mean_bits; /* trellis bits for each quantized weight */
    double mean_proxy_error, worst_proxy_error;
    char worst_name[160];
    double seconds;
} quantize_report;

/* c is the parsed config of in_dir. out_dir must not hold a model yet (ERR_EXISTS). ERR_CANCELLED
 * leaves the work folder for a later run; every other message says what to do. report may be NULL.
 */
int quantize_model(const char *in_dir, const char *out_dir, const model_config *c,
    const quantize_options *o, quantize_report *report, err *e);

#endif
