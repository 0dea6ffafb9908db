#include <math.h>

#include "engine/weights/trellis_internal.h"
#include "kernels/half.h"

float trellis_candidate(float in, float value, float x) {
    float d = value - x;
    return fmaf(d, d, in);
}

/* d rounds to fp16 once, the sum rounds to fp16 once: the product of two fp16 numbers is exact in
 * double and so is its sum with a cost below 2^5, beyond which a second rounding cannot be seen. */
float trellis_candidate_half(float in, float value, float x) {
    double d = half_to_float(half_from_double((double)value - (double)x));
    return half_to_float(half_from_double(d * d + (double)in));
}

void trellis_step_plain(const trellis_step *s) {
    const int n_q = 1 << s->n_out;
    const int n_edges = 1 << (STATE_BITS - s->n_out);
    const int part_shift = STATE_BITS - s->n_out - s->n_in;
    const int part = trellis_edge_at(1 << part_shift, part_shift);
    for (int t = 0; t < 2; t++) {
        const float *values = s->values;
        const float *in = s->in[t];
        for (int o = 0; o < n_edges; o += LANES) {
            float best[LANES];
            for (int l = 0; l < LANES; l++) {
                best[l] = INFINITY;
            }
            for (int q = 0; q < n_q; q++, values += LANES) {
                for (int l = 0; l < LANES; l++) {
                    float d = values[l] - s->x[t];
                    float cost = fmaf(d, d, in[q * part + ((o + l) >> s->n_in)]);
                    best[l] = cost < best[l] ? cost : best[l];
                }
            }
            for (int l = 0; l < LANES; l++) {
                s->out[t][trellis_edge_at(o, s->out_shift) + l] = best[l];
            }
        }
    }
}

void trellis_step_half_plain(const trellis_step *s) {
    const int n_q = 1 << s->n_out;
    const int n_edges = 1 << (STATE_BITS - s->n_out);
    const int part_shift = STATE_BITS - s->n_out - s->n_in;
    const int part = trellis_edge_at(1 << part_shift, part_shift);
    for (int t = 0; t < 2; t++) {
        for (int o = 0; o < n_edges; o++) {
            const float *values = s->values + (o / LANES * n_q) * LANES + o % LANES;
            float best = INFINITY;
            for (int q = 0; q < n_q; q++) {
                float in = s->in[t][q * part + (o >> s->n_in)];
                float cost = trellis_candidate_half(in, values[q * LANES], s->x[t]);
                best = cost < best ? cost : best;
            }
            s->out[t][trellis_edge_at(o, s->out_shift)] = best;
        }
    }
}
