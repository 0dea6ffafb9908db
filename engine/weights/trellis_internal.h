/* One step of the search, shared between its plain and its SIMD form. */
#ifndef TANDEM_ENGINE_WEIGHTS_TRELLIS_INTERNAL_H
#define TANDEM_ENGINE_WEIGHTS_TRELLIS_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

enum { STATE_BITS = 16, LANES = 8 };

/* States enter with n_in new bits and leave with n_out. The cost of an edge is indexed by the
 * 16 - n bits that two states share. For out-edge o and q = 0 .. 2^n_out - 1 the state is
 * s = q << (16 - n_out) | o, its in-edge s >> n_in, and
 *   out[o] = min over q of in[s >> n_in] + (value(s) - x)^2.
 * Values lie as [o / 8][q][o % 8]. in may be read up to 3 floats past its end. */
typedef struct trellis_step {
    const float *values;
    int n_in, n_out;
    const float *in[2];
    float *out[2];
    float x[2];
} trellis_step;

void trellis_step_plain(const trellis_step *s);
void trellis_step_half_plain(const trellis_step *s);
/* One candidate, bit-equal to what the steps compute. */
float trellis_candidate(float in, float value, float x);
float trellis_candidate_half(float in, float value, float x);

#if defined(__x86_64__)
bool trellis_has_avx2(void);
void trellis_step_avx2(const trellis_step *s);
void trellis_step_half_avx2(const trellis_step *s);
#endif

#endif
