/* One step of the search, shared between its plain and its SIMD form. */
#ifndef TANDEM_ENGINE_WEIGHTS_TRELLIS_INTERNAL_H
#define TANDEM_ENGINE_WEIGHTS_TRELLIS_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

enum {
    STATE_BITS = 16,
    LANES = 8,
    GAP_FLOATS = 16,  /* between the parts of a cost array that are read side by side */
    GAP_MIN_SHIFT = 6 /* smaller parts need no gap */
};

/* Where the cost of edge u stands when it is read with part_shift = 16 - n_out - n_in: the
 * 2^n_out in-edges of one state lie 2^part_shift apart, mostly a multiple of 4 KiB, and without
 * gaps they would fight for one set of the first cache (measured: 3 times slower at 3 bits). */
static inline int trellis_edge_at(int u, int part_shift) {
    return part_shift >= GAP_MIN_SHIFT ? u + (u >> part_shift) * GAP_FLOATS : u;
}

/* States enter with n_in new bits and leave with n_out. The cost of an edge is indexed by the 16 -
 * n bits that two states share. For out-edge o and q = 0 .. 2^n_out - 1 the state is s = q << (16
 * - n_out) | o, its in-edge s >> n_in, and
 *   out[o] = min over q of in[s >> n_in] + (value(s) - x)^2.
 * Values lie as [o / 8][q][o % 8], costs as trellis_edge_at says. in may be read up to 3 floats
 * past its end. */
typedef struct trellis_step {
    const float *values;
    int n_in, n_out;
    int out_shift; /* part_shift with which out will be read */
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
