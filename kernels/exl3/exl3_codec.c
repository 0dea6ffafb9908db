#include "kernels/exl3/exl3_codec.h"

#include <string.h>

#include "kernels/half.h"

bool exl3_rate_ok(exl3_codebook codebook, int k2) {
    if (codebook != EXL3_3INST && codebook != EXL3_MCG && codebook != EXL3_MUL1) return false;
    if (k2 < EXL3_MIN_K2 || k2 > EXL3_MAX_K2) return false;
    if (k2 % 2 == 0) return true;
    return codebook == EXL3_MUL1 && k2 <= 7;
}

int exl3_matrix_check(const exl3_matrix *m, err *e) {
    if (m->trellis == NULL || m->suh == NULL || m->svh == NULL)
        return err_set(e, ERR_ARG, "EXL3 matrix without trellis, suh or svh");
    if (m->in <= 0 || m->out <= 0 || m->in % EXL3_BLOCK != 0 || m->out % EXL3_BLOCK != 0)
        return err_set(e, ERR_ARG, "EXL3 matrix of %d x %d: sizes must be multiples of %d", m->in,
            m->out, EXL3_BLOCK);
    if (m->in > EXL3_MAX_IN)
        return err_set(
            e, ERR_ARG, "EXL3 matrix with %d inputs: the limit is %d", m->in, EXL3_MAX_IN);
    if (!exl3_rate_ok(m->codebook, m->k2))
        return err_set(e, ERR_ARG, "EXL3 rate of %d half bits does not exist for codebook %d",
            m->k2, (int)m->codebook);
    size_t row_bytes = (size_t)m->out * (size_t)m->k2;
    if (m->slice_stride != 0 && m->slice_stride < row_bytes)
        return err_set(
            e, ERR_ARG, "EXL3 slice stride %zu is less than %zu bytes", m->slice_stride, row_bytes);
    return OK;
}

size_t exl3_trellis_bytes(int in, int out, int k2) {
    return (size_t)in / EXL3_TILE * (size_t)out * (size_t)k2;
}

static size_t slice_stride(const exl3_matrix *m) {
    return m->slice_stride != 0 ? m->slice_stride : (size_t)m->out * (size_t)m->k2;
}

static bool range_ok(const int range[2], int limit) {
    return range[0] >= 0 && range[0] < range[1] && range[1] <= limit &&
           range[0] % EXL3_BLOCK == 0 && range[1] % EXL3_BLOCK == 0;
}

int exl3_matrix_slice(const exl3_matrix *m, const int in_range[2], const int out_range[2],
    exl3_matrix *slice, err *e) {
    if (!range_ok(in_range, m->in))
        return err_set(e, ERR_ARG, "EXL3 input slice [%d, %d) of %d is not on blocks of %d",
            in_range[0], in_range[1], m->in, EXL3_BLOCK);
    if (!range_ok(out_range, m->out))
        return err_set(e, ERR_ARG, "EXL3 output slice [%d, %d) of %d is not on blocks of %d",
            out_range[0], out_range[1], m->out, EXL3_BLOCK);
    exl3_matrix s = *m;
    s.slice_stride = slice_stride(m);
    s.trellis = (const char *)m->trellis + (size_t)in_range[0] / EXL3_TILE * s.slice_stride +
                (size_t)out_range[0] * (size_t)m->k2;
    s.suh = (const char *)m->suh + 2 * (size_t)in_range[0];
    s.svh = (const char *)m->svh + 2 * (size_t)out_range[0];
    if (m->bias != NULL) s.bias = (const char *)m->bias + 2 * (size_t)out_range[0];
    s.in = in_range[1] - in_range[0];
    s.out = out_range[1] - out_range[0];
    *slice = s;
    return OK;
}

/* ---- codebooks ---- */

uint32_t exl3_byte_sum(uint16_t state) {
    uint32_t y = (uint32_t)state * EXL3_MUL1_MULTIPLIER;
    return (y & 255u) + ((y >> 8) & 255u) + ((y >> 16) & 255u) + (y >> 24);
}

uint16_t exl3_state_half(exl3_codebook codebook, uint16_t state) {
    if (codebook == EXL3_MUL1) {
        /* The format fuses the multiply and the add with one rounding; the double value is
         * exact. */
        double value =
            (1024.0 + (double)exl3_byte_sum(state)) * (double)EXL3_MUL1_SCALE - 10.3828125;
        return half_from_double(value);
    }
    uint32_t y = codebook == EXL3_MCG ? state * EXL3_MCG_MULTIPLIER : state * 89226354u + 64248484u;
    uint32_t z = (y & 0x8FFF8FFFu) ^ 0x3B603B60u;
    return half_from_float(half_to_float((uint16_t)z) + half_to_float((uint16_t)(z >> 16)));
}

void exl3_codebook_table(exl3_codebook codebook, uint16_t *table) {
    for (uint32_t s = 0; s < 65536; s++)
        table[s] = exl3_state_half(codebook, (uint16_t)s);
}

/* ---- tile and bit layout ---- */

int exl3_position_row(int p) {
    int lane = p >> 3, j = p & 7;
    return 2 * (lane & 3) + (j & 1) + 8 * ((j >> 1) & 1);
}

int exl3_position_column(int p) {
    return (p >> 5) + 8 * ((p & 7) >> 2);
}

int exl3_position_at(int row, int column) {
    int lane = 4 * (column & 7) + ((row & 7) >> 1);
    int j = (row & 1) + 2 * (row >> 3) + 4 * (column >> 3);
    return 8 * lane + j;
}

int exl3_window_end(int p, int k2) {
    if (k2 % 2 == 0) return (p + 1) * (k2 / 2);
    return (p >> 1) * k2 + ((p & 1) != 0 ? k2 : k2 >> 1);
}

/* Word i of the tile's stream; the file holds little-endian 32-bit words. */
static uint32_t tile_word(const unsigned char *tile, int i) {
    const unsigned char *b = tile + 4 * (size_t)i;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

void exl3_tile_states(const void *tile, int k2, uint16_t states[EXL3_TILE_VALUES]) {
    const int n_words = 4 * k2;
    for (int p = 0; p < EXL3_TILE_VALUES; p++) {
        int end = exl3_window_end(p, k2);
        int last = (end - 1) >> 5;
        int before = last == 0 ? n_words - 1 : last - 1;
        uint64_t both = (uint64_t)tile_word(tile, before) << 32 | tile_word(tile, last);
        states[p] = (uint16_t)(both >> (32 * (last + 1) - end));
    }
}

void exl3_tile_pack(const uint16_t states[EXL3_TILE_VALUES], int k2, void *tile) {
    uint32_t words[4 * EXL3_MAX_K2] = {0};
    int begin = 0;
    for (int p = 0; p < EXL3_TILE_VALUES; p++) {
        int end = exl3_window_end(p, k2);
        for (int bit = begin; bit < end; bit++) {
            uint32_t value = ((uint32_t)states[p] >> (end - 1 - bit)) & 1u;
            words[bit >> 5] |= value << (31 - (bit & 31));
        }
        begin = end;
    }
    unsigned char *out = tile;
    for (int i = 0; i < 4 * k2; i++)
        for (int b = 0; b < 4; b++)
            out[4 * i + b] = (unsigned char)(words[i] >> (8 * b));
}

/* ---- whole matrices ---- */

static void decode_tile(const exl3_matrix *m, const char *tile, uint16_t *out) {
    uint16_t states[EXL3_TILE_VALUES];
    exl3_tile_states(tile, m->k2, states);
    for (int p = 0; p < EXL3_TILE_VALUES; p++) {
        size_t at = (size_t)exl3_position_row(p) * (size_t)m->out + (size_t)exl3_position_column(p);
        out[at] = exl3_state_half(m->codebook, states[p]);
    }
}

int exl3_decode_half(const exl3_matrix *m, uint16_t *out, err *e) {
    int rc = exl3_matrix_check(m, e);
    if (rc != OK) return rc;
    const size_t stride = slice_stride(m), tile_bytes = 16 * (size_t)m->k2;
    for (int i = 0; i < m->in / EXL3_TILE; i++) {
        const char *slice = (const char *)m->trellis + (size_t)i * stride;
        uint16_t *rows = out + (size_t)i * EXL3_TILE * (size_t)m->out;
        for (int j = 0; j < m->out / EXL3_TILE; j++)
            decode_tile(m, slice + (size_t)j * tile_bytes, rows + (size_t)j * EXL3_TILE);
    }
    return OK;
}

static float half_at(const void *vector, size_t i) {
    uint16_t h;
    memcpy(&h, (const char *)vector + 2 * i, 2);
    return half_to_float(h);
}

/* Decodes one 16-input slice into fp32 rows and rotates the outputs. */
static void decode_slice(const exl3_matrix *m, int i_slice, float *rows) {
    const size_t n = (size_t)m->out;
    const char *slice = (const char *)m->trellis + (size_t)i_slice * slice_stride(m);
    for (int j = 0; j < m->out / EXL3_TILE; j++) {
        uint16_t states[EXL3_TILE_VALUES];
        exl3_tile_states(slice + (size_t)j * 16 * (size_t)m->k2, m->k2, states);
        for (int p = 0; p < EXL3_TILE_VALUES; p++) {
            size_t at = (size_t)exl3_position_row(p) * n +
                        (size_t)(j * EXL3_TILE + exl3_position_column(p));
            rows[at] = half_to_float(exl3_state_half(m->codebook, states[p]));
        }
    }
    for (size_t r = 0; r < EXL3_TILE; r++)
        for (size_t c = 0; c < n; c += EXL3_BLOCK)
            exl3_hadamard_128(rows + r * n + c);
}

int exl3_decode_full(const exl3_matrix *m, float *out, err *e) {
    int rc = exl3_matrix_check(m, e);
    if (rc != OK) return rc;
    const size_t n = (size_t)m->out;
    for (int i = 0; i < m->in / EXL3_TILE; i++)
        decode_slice(m, i, out + (size_t)i * EXL3_TILE * n);
    for (size_t block = 0; block < (size_t)m->in; block += EXL3_BLOCK) {
        for (size_t c = 0; c < n; c++) {
            float column[EXL3_BLOCK];
            for (size_t r = 0; r < EXL3_BLOCK; r++)
                column[r] = out[(block + r) * n + c];
            exl3_hadamard_128(column);
            float output_scale = half_at(m->svh, c);
            for (size_t r = 0; r < EXL3_BLOCK; r++)
                out[(block + r) * n + c] = half_at(m->suh, block + r) * column[r] * output_scale;
        }
    }
    return OK;
}

void exl3_hadamard_128(float *values) {
    for (int stride = 1; stride < EXL3_BLOCK; stride *= 2) {
        for (int i = 0; i < EXL3_BLOCK; i += 2 * stride) {
            for (int j = i; j < i + stride; j++) {
                float a = values[j], b = values[j + stride];
                values[j] = a + b;
                values[j + stride] = a - b;
            }
        }
    }
    for (int i = 0; i < EXL3_BLOCK; i++)
        values[i] *= EXL3_HADAMARD_SCALE;
}

void exl3_hadamard_128_double(double *values) {
    for (int stride = 1; stride < EXL3_BLOCK; stride *= 2) {
        for (int i = 0; i < EXL3_BLOCK; i += 2 * stride) {
            for (int j = i; j < i + stride; j++) {
                double a = values[j], b = values[j + stride];
                values[j] = a + b;
                values[j + stride] = a - b;
            }
        }
    }
    for (int i = 0; i < EXL3_BLOCK; i++)
        values[i] *= 0.08838834764831845;
}
