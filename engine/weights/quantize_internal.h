/* What the stages of quantize_matrix share. */
#ifndef TANDEM_ENGINE_WEIGHTS_QUANTIZE_INTERNAL_H
#define TANDEM_ENGINE_WEIGHTS_QUANTIZE_INTERNAL_H

#include "engine/weights/quantize_matrix.h"

/* The constant of exl3.md 12.2, step 5: rms of the 3INST codebook, used for every codebook. */
#define QUANTIZE_RMS 1.24371088f

struct quantize_rate {
    trellis_code *code;
    trellis_work **works; /* one for each thread of the pool */
    int n_works;
};

/* A matrix on its way through the stages. in and out are padded. */
typedef struct quantize_job {
    const quantize_matrix_args *args;
    const quantize_rate *rate;
    pool *pool;
    int in, out;
    float *w;        /* [in][out] regularised weights, later scaled by g */
    float *wq;       /* [in][out] what they decode to */
    float *su, *sv;  /* [in], [out] */
    double *hessian; /* [in][in] rotated, NULL without calibration */
    float *feedback; /* [in][in] strictly block-lower factor L, NULL without */
    uint8_t *trellis;
    double scale;
} quantize_job;

/* 12.1, first half of 12.2: the Hessian with damping; leaves hessian NULL when it is unusable. */
int quantize_hessian_init(quantize_job *j, err *e);
/* Rotates the Hessian with the signs su and factors it for error feedback. */
int quantize_hessian_factor(quantize_job *j, err *e);
/* tr(E^T H E) / tr(W^T H W) for e[in][out]. */
double quantize_proxy(const quantize_job *j, const float *e);

/* 12.2, steps 1 to 6: signs, output and input scales, both rotations. */
void quantize_regularize(quantize_job *j);
/* 12.2, step 7: finds the global scale and applies it. */
void quantize_find_scale(quantize_job *j);

/* The tile at tile row i, tile column k of [in][out] values, in position order, and back. */
void quantize_gather(const float *from, int out, int i, int k, float tile[EXL3_TILE_VALUES]);
void quantize_scatter(float *to, int out, int i, int k, const float tile[EXL3_TILE_VALUES]);
static inline bool quantize_is_cancelled(const quantize_job *j) {
    return j->args->cancel != NULL && atomic_load(j->args->cancel);
}

#endif
