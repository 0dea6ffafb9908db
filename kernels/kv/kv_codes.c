/* Codes of the small float formats and the packing of rows. */
#include <math.h>
#include <string.h>

#include "kernels/half.h"
#include "kernels/kv/kv.h"
#include "kernels/vec/vec.h"

enum { SCALE8_BLOCK = 32, SCALE4_BLOCK = 16 };

static const float e2m1_values[16] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
    -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

uint8_t e4m3_from_float(float v) {
    uint32_t u = float_bits(v);
    uint8_t sign = (uint8_t)(u >> 24 & 0x80u);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) {
        return (uint8_t)(sign | 0x7fu);
    }
    float a = float_from_bits(u);
    if (a >= 464.0f) {
        return (uint8_t)(sign | 0x7eu);
    }
    if (a < 0x1p-6f) {
        return (uint8_t)(sign | (uint8_t)lrintf(a * 512.0f));
    }
    uint32_t rounded = u + 0x7ffffu + (u >> 20 & 1u);
    uint32_t code = (rounded >> 20) - (120u << 3);
    return (uint8_t)(sign | (code > 0x7eu ? 0x7eu : code));
}

float e4m3_to_float(uint8_t code) {
    uint32_t exponent = code >> 3 & 15u, mantissa = code & 7u;
    float a = exponent == 15 && mantissa == 7 ? NAN
              : exponent == 0                 ? (float)mantissa * 0x1p-9f
                              : float_from_bits((exponent + 120u) << 23 | mantissa << 20);
    return (code & 0x80u) != 0 ? -a : a;
}

uint8_t e2m1_from_float(float v) {
    uint8_t sign = (uint8_t)(float_bits(v) >> 28 & 8u);
    float a = fabsf(v);
    /* Halfway points go to the even code, so they are taken in on one side only. */
    int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) +
               (a > 5.0f);
    return (uint8_t)(sign | (uint8_t)code);
}

float e2m1_to_float(uint8_t code) {
    return e2m1_values[code & 15];
}

float ue8m0_to_float(uint8_t code) {
    return code == 0 ? 0x1p-127f : float_from_bits((uint32_t)code << 23);
}

/* Code of the smallest power of two that is not below v (v positive and finite). */
static uint8_t ceil_power(float v) {
    uint32_t u = float_bits(v);
    uint32_t code = (u >> 23 & 255u) + ((u & 0x7fffffu) != 0 ? 1u : 0u);
    return (uint8_t)(code > 254u ? 254u : code);
}

static float block_max(const float *x, int n, float floor) {
    float most = floor;
    for (int i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        if (a > most) {
            most = a;
        }
    }
    return most;
}

static float clamp(float v, float limit) {
    return v > limit ? limit : v < -limit ? -limit : v;
}

static void pack_window(const float *x, int d, uint8_t *row) {
    for (int b = 0; b < d / SCALE8_BLOCK; b++) {
        const float *in = x + b * SCALE8_BLOCK;
        uint8_t code = ceil_power(block_max(in, SCALE8_BLOCK, 1e-4f) * (float)(1.0 / 448.0));
        float s = ue8m0_to_float(code);
        for (int i = 0; i < SCALE8_BLOCK; i++) {
            row[b * SCALE8_BLOCK + i] = e4m3_from_float(clamp(in[i] / s, 448.0f));
        }
        row[d + b] = code;
    }
}

static void pack_pairs(const float *in, int n, float s, uint8_t *out) {
    for (int i = 0; i < n; i += 2) {
        uint8_t low = e2m1_from_float(clamp(in[i] / s, 6.0f));
        uint8_t high = e2m1_from_float(clamp(in[i + 1] / s, 6.0f));
        out[i / 2] = (uint8_t)(low | high << 4);
    }
}

static void pack_compressed(const float *x, int d, uint8_t *row) {
    for (int b = 0; b < d / SCALE4_BLOCK; b++) {
        const float *in = x + b * SCALE4_BLOCK;
        uint8_t code = e4m3_from_float(block_max(in, SCALE4_BLOCK, 6.0f * 0x1p-9f) / 6.0f);
        pack_pairs(in, SCALE4_BLOCK, e4m3_to_float(code), row + b * SCALE4_BLOCK / 2);
        row[d / 2 + b] = code;
    }
}

static void pack_key(const float *x, int d, uint8_t *row) {
    for (int b = 0; b < d / SCALE8_BLOCK; b++) {
        const float *in = x + b * SCALE8_BLOCK;
        uint8_t code =
            ceil_power(block_max(in, SCALE8_BLOCK, 6.0f * 0x1p-126f) * (float)(1.0 / 6.0));
        pack_pairs(in, SCALE8_BLOCK, ue8m0_to_float(code), row + b * SCALE8_BLOCK / 2);
        row[d / 2 + b] = code;
    }
}

/* Scales of up to this many blocks are decoded at a time. */
enum { SCALE_GROUP = 32 };

typedef void (*scales_of)(const uint8_t *code, int n, float *scale);

static void scales_ue8m0(const uint8_t *code, int n, float *scale) {
    for (int i = 0; i < n; i++) {
        scale[i] = ue8m0_to_float(code[i]);
    }
}

static void scales_e4m3(const uint8_t *code, int n, float *scale) {
    const float one = 1.0f;
    uint8_t padded[SCALE_GROUP] = {0};
    int whole = (n + 7) / 8 * 8; /* the decoder takes eight at a time */
    memcpy(padded, code, (size_t)n);
    vec()->from_e4m3(scale, padded, &one, whole, whole);
}

static void unpack_pairs(const uint8_t *row, int d, int block, scales_of decode, float *x) {
    for (int at = 0; at < d; at += SCALE_GROUP * block) {
        int n = d - at < SCALE_GROUP * block ? d - at : SCALE_GROUP * block;
        float scale[SCALE_GROUP];
        decode(row + d / 2 + at / block, n / block, scale);
        vec()->from_e2m1(x + at, row + at / 2, scale, block, n);
    }
}

static void unpack_window(const uint8_t *row, int d, float *x) {
    const int block = SCALE8_BLOCK;
    for (int at = 0; at < d; at += SCALE_GROUP * block) {
        int n = d - at < SCALE_GROUP * block ? d - at : SCALE_GROUP * block;
        float scale[SCALE_GROUP];
        scales_ue8m0(row + d + at / block, n / block, scale);
        vec()->from_e4m3(x + at, row + at, scale, block, n);
    }
}

size_t kv_row_bytes(kv_format f, int d) {
    size_t n = (size_t)d;
    switch (f) {
    case KV_WINDOW:
        return n + n / SCALE8_BLOCK;
    case KV_COMPRESSED:
        return n / 2 + n / SCALE4_BLOCK;
    case KV_KEY:
        return n / 2 + n / SCALE8_BLOCK;
    case KV_FLOAT:
        break;
    }
    return n * sizeof(float);
}

void kv_pack(kv_format f, const float *x, int d, uint8_t *row) {
    switch (f) {
    case KV_WINDOW:
        pack_window(x, d, row);
        return;
    case KV_COMPRESSED:
        pack_compressed(x, d, row);
        return;
    case KV_KEY:
        pack_key(x, d, row);
        return;
    case KV_FLOAT:
        memcpy(row, x, (size_t)d * sizeof(float));
        return;
    }
}

void kv_unpack(kv_format f, const uint8_t *row, int d, float *x) {
    switch (f) {
    case KV_WINDOW:
        unpack_window(row, d, x);
        return;
    case KV_COMPRESSED:
        unpack_pairs(row, d, SCALE4_BLOCK, scales_e4m3, x);
        return;
    case KV_KEY:
        unpack_pairs(row, d, SCALE8_BLOCK, scales_ue8m0, x);
        return;
    case KV_FLOAT:
        memcpy(x, row, (size_t)d * sizeof(float));
        return;
    }
}
