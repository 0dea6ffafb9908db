#include <string.h>

#include "kernels/kv/kv.h"

static void pack_rows(const void *args, int first, int n, int i_thread) {
    const kv_pack_args *a = args;
    (void)i_thread;
    for (int i = first; i < first + n; i++) {
        kv_pack(
            a->format, a->x + (size_t)i * a->x_stride, a->d, a->rows + (size_t)i * a->row_bytes);
    }
}

void kv_pack_run(kernel_context *k, const kv_pack_args *a) {
    rows_run(k, a->n, (size_t)a->d * 8, pack_rows, a);
}

void kv_ring_write_run(kernel_context *k, const kv_ring_write_args *a) {
    if (k->rc != OK) {
        return;
    }
    const batch_rows *b = &a->batch;
    for (int i = 0; i < b->n; i++) {
        int64_t end = b->span_pos[i] + b->span_len[i];
        if (end - b->pos[i] > a->ring.cap) {
            continue;
        }
        memcpy(kv_ring_row(&a->ring, b->slot[i], b->pos[i]),
            a->rows + (size_t)i * a->ring.row_bytes, a->ring.row_bytes);
    }
}

static void page_rows(const void *args, int first, int n, int i_thread) {
    const kv_page_write_args *a = args;
    (void)i_thread;
    for (int i = first; i < first + n; i++) {
        uint8_t *row = kv_paged_row(&a->pages, a->slot[i], a->group[i]);
        kv_pack(a->format, a->x + (size_t)i * (size_t)a->d, a->d, row);
    }
}

void kv_page_write_run(kernel_context *k, const kv_page_write_args *a) {
    rows_run(k, a->n, (size_t)a->d * 8, page_rows, a);
}
