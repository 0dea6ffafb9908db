/* Exact selection of the largest values by radix over the ordered bit patterns: four passes over
 * the row, no sorting. */
#include <string.h>

#include "kernels/half.h"
#include "kernels/indexer/indexer.h"

/* Larger float = larger key; -inf and NaN become 0 = never picked. */
static uint32_t order_key(float v) {
    uint32_t u = float_bits(v);
    if ((u & 0x7fffffffu) > 0x7f800000u || u == 0xff800000u) {
        return 0;
    }
    if (u == 0x80000000u) {
        u = 0;
    } /* the two zeros are equal */
    return (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
}

/* The key of the topk-th largest and how many of that very key belong to the pick. */
static uint32_t find_threshold(const float *score, int64_t n, int topk, int64_t *n_equal) {
    uint32_t prefix = 0, mask = 0;
    int64_t left = topk;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int64_t count[256] = {0};
        for (int64_t i = 0; i < n; i++) {
            uint32_t key = order_key(score[i]);
            if (key != 0 && (key & mask) == prefix) {
                count[key >> shift & 255u]++;
            }
        }
        int digit = 255;
        while (digit > 0 && count[digit] < left) {
            left -= count[digit--];
        }
        prefix |= (uint32_t)digit << shift;
        mask |= 255u << shift;
    }
    *n_equal = left;
    return prefix;
}

int indexer_pick(const float *score, int64_t n, int topk, int32_t *out) {
    int64_t n_valid = 0;
    for (int64_t i = 0; i < n; i++) {
        n_valid += order_key(score[i]) != 0;
    }
    int64_t n_equal = 0;
    uint32_t threshold = 0;
    if (n_valid > topk) {
        threshold = find_threshold(score, n, topk, &n_equal);
    }
    int n_out = 0;
    for (int64_t i = 0; i < n && n_out < topk; i++) {
        uint32_t key = order_key(score[i]);
        if (key == 0 || key < threshold) {
            continue;
        }
        if (threshold != 0 && key == threshold && n_equal-- <= 0) {
            continue;
        }
        out[n_out++] = (int32_t)i;
    }
    return n_out;
}
