/* The row formats of the caches, their packing, and where rows lie. The packed forms hold exactly
 * what the trained fake quantizers (model.md 13.1) produce: pack then unpack is the quantization.
 *
 *   KV_WINDOW      d E4M3 bytes, then d/32 UE8M0 scales: P2(max(amax, 1e-4) * fp32(1/448))
 *   KV_COMPRESSED  d/2 bytes of E2M1 pairs, d/16 E4M3 scales: E4M3(max(amax, 6 * 2^-9) / 6)
 *   KV_KEY         d/2 bytes of E2M1 pairs, d/32 UE8M0 scales: P2(max(amax, 6 * 2^-126) * fp32(1/6))
 *   KV_FLOAT       d floats, no quantization (tests only)
 *
 * The low nibble of a pair is the even index. d is a multiple of 32. Pure functions on the caller's
 * memory; any thread. A value that is not finite gives a row of finite or NaN values, never a
 * crash. */
#ifndef TANDEM_KERNELS_KV_KV_H
#define TANDEM_KERNELS_KV_KV_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/context.h"

typedef enum kv_format { KV_FLOAT, KV_WINDOW, KV_COMPRESSED, KV_KEY } kv_format;

size_t kv_row_bytes(kv_format f, int d);
void kv_pack(kv_format f, const float *x, int d, uint8_t *row);
void kv_unpack(kv_format f, const uint8_t *row, int d, float *x);

/* Single codes, for tests and for reading checkpoints. Casts saturate, ties go to the even code. */
uint8_t e4m3_from_float(float v);
float e4m3_to_float(uint8_t code);
uint8_t e2m1_from_float(float v); /* 0..15, bit 3 is the sign */
float e2m1_to_float(uint8_t code);
/* 2^(code - 127). */
float ue8m0_to_float(uint8_t code);

/* Rings: row of position p of a slot at base + slot * slot_stride + (p % cap) * row_bytes. */
typedef struct kv_ring {
    uint8_t *base;
    size_t slot_stride, row_bytes;
    int cap;
} kv_ring;

static inline uint8_t *kv_ring_row(const kv_ring *r, int32_t slot, int64_t pos) {
    return r->base + (size_t)slot * r->slot_stride + (size_t)(pos % r->cap) * r->row_bytes;
}

/* Paged rows of one kv source: row j of a slot lies in page table[slot * table_stride + j /
 * rows_per_page]. */
typedef struct kv_paged {
    uint8_t *base; /* first page, already moved to this source's part of a page */
    size_t page_stride, row_bytes;
    const int32_t *table;
    int table_stride, rows_per_page;
} kv_paged;

static inline uint8_t *kv_paged_row(const kv_paged *p, int32_t slot, int64_t j) {
    int32_t page = p->table[(int64_t)slot * p->table_stride + j / p->rows_per_page];
    return p->base + (size_t)page * p->page_stride + (size_t)(j % p->rows_per_page) * p->row_bytes;
}

/* The rows of a step, one entry each. A span is the rows of one slot in this step, contiguous and
 * in order. */
typedef struct batch_rows {
    int n;
    const int32_t *token;
    const int32_t *slot;
    const int64_t *pos;
    const int32_t *span_row; /* step row of the span's first row */
    const int64_t *span_pos; /* its position */
    const int32_t *span_len;
    int64_t pos_bound; /* above every pos: back ends size their grids by it */
} batch_rows;

typedef struct kv_pack_args {
    kv_format format;
    const float *x; /* [n][x_stride], first d used */
    size_t x_stride;
    uint8_t *rows; /* [n][row_bytes] */
    size_t row_bytes;
    int n, d;
} kv_pack_args;
/* Packs n rows one after another. */
void kv_pack_run(kernel_context *k, const kv_pack_args *a);

/* Copies packed step rows into the rings: the last cap rows of every span. */
typedef struct kv_ring_write_args {
    kv_ring ring;
    const uint8_t *rows; /* [batch.n][ring.row_bytes] */
    batch_rows batch;
} kv_ring_write_args;
void kv_ring_write_run(kernel_context *k, const kv_ring_write_args *a);

/* Packs closed groups into their pages: row i belongs to slot[i], compressed position group[i]. */
typedef struct kv_page_write_args {
    kv_format format;
    kv_paged pages;
    const float *x; /* [n][d] */
    const int32_t *slot;
    const int64_t *group;
    int n, d;
} kv_page_write_args;
void kv_page_write_run(kernel_context *k, const kv_page_write_args *a);

#endif
