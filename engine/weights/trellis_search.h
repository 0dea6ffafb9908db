/* The tile quantizer of EXL3: finds the tail-biting trellis path whose decoded values are nearest
 * to 256 given numbers (Viterbi, exl3.md 12.4). Two arithmetics: float costs, which the product
 * uses, and fp16 costs rounded as exllamav3 does, which exist so that its states can be reproduced.
 *
 * A trellis_code is made once for a codebook and a rate and is read-only: any number of threads
 * share it. A trellis_work belongs to one thread at a time. */
#ifndef TANDEM_ENGINE_WEIGHTS_TRELLIS_SEARCH_H
#define TANDEM_ENGINE_WEIGHTS_TRELLIS_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "kernels/exl3/exl3_codec.h"

typedef struct trellis_code trellis_code;
typedef struct trellis_work trellis_work;

typedef enum trellis_mode {
    TRELLIS_FLOAT, /* fp32 costs; the start edge comes from a window round position 0 */
    TRELLIS_HALF   /* fp16 costs and the tie rules of exllamav3 1.4.1 */
} trellis_mode;

/* NULL when the rate does not exist for the codebook. The caller frees it with trellis_code_free.
 */
trellis_code *trellis_code_new(exl3_codebook codebook, int k2);
void trellis_code_free(trellis_code *c);
int trellis_code_k2(const trellis_code *c);
exl3_codebook trellis_code_codebook(const trellis_code *c);
/* The decoded value of a state. */
float trellis_value(const trellis_code *c, uint16_t state);

/* Work space for searches with any code of this rate or a higher one (16 MiB at 3 bits). NULL when
 * there is no memory. */
trellis_work *trellis_work_new(int k2);
void trellis_work_free(trellis_work *w);

/* Quantizes two tiles at once (both pointers may be the same): x are 256 finite numbers each in
 * position order, states get the path. TRELLIS_HALF rounds x to fp16 first. */
void trellis_search_pair(const trellis_code *c, trellis_work *w, trellis_mode mode,
    const float *const x[2], uint16_t *const states[2]);
/* The lowest sum of squared differences of any path that need not close, for two tiles: a third of
 * the work of a search, for choosing scales. */
void trellis_free_error_pair(
    const trellis_code *c, trellis_work *w, const float *const x[2], double error[2]);
/* Sum of squared differences between the decoded path and x. */
double trellis_error(const trellis_code *c, const float *x, const uint16_t *states);

/* "avx2" or "plain": what the next search runs on. Both give the same states. */
const char *trellis_variant(void);
/* For tests: true makes every later search of the process use plain C. */
void trellis_force_plain(bool is_plain);

#endif
