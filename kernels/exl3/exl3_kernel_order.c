#include "kernels/exl3/exl3_kernel_order.h"

#include <string.h>

enum { GROUP = 4 }; /* tiles side by side */

/* Index of word i of tile (slice, tile) in kernel order. */
static size_t word_at(const exl3_matrix *m, int slice, int tile, int i) {
    size_t n_slices = (size_t)m->in / EXL3_TILE, n_words = 4 * (size_t)m->k2;
    size_t strip = (size_t)tile / GROUP;
    return ((strip * n_slices + (size_t)slice) * n_words + (size_t)i) * GROUP +
           (size_t)tile % GROUP;
}

int exl3_kernel_order_pack(const exl3_matrix *m, uint32_t *out, err *e) {
    int rc = exl3_matrix_check(m, e);
    if (rc != OK) return rc;
    size_t stride = m->slice_stride != 0 ? m->slice_stride : (size_t)m->out * (size_t)m->k2;
    int n_words = 4 * m->k2;
    for (int slice = 0; slice < m->in / EXL3_TILE; slice++) {
        const uint8_t *from = (const uint8_t *)m->trellis + (size_t)slice * stride;
        for (int tile = 0; tile < m->out / EXL3_TILE; tile++) {
            for (int i = 0; i < n_words; i++, from += 4)
                memcpy(out + word_at(m, slice, tile, i), from, 4);
        }
    }
    return OK;
}

int exl3_kernel_order_unpack(
    const uint32_t *words, const exl3_matrix *shape, void *trellis, err *e) {
    int rc = exl3_matrix_check(shape, e);
    if (rc != OK) return rc;
    uint8_t *to = trellis;
    int n_words = 4 * shape->k2;
    for (int slice = 0; slice < shape->in / EXL3_TILE; slice++) {
        for (int tile = 0; tile < shape->out / EXL3_TILE; tile++) {
            for (int i = 0; i < n_words; i++, to += 4)
                memcpy(to, words + word_at(shape, slice, tile, i), 4);
        }
    }
    return OK;
}
