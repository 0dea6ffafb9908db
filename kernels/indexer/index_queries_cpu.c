#include "kernels/indexer/indexer.h"
#include "kernels/rope/rope.h"

static void pack_rows(const void *args, int first, int n, int i_thread) {
    const index_queries_args *a = args;
    (void)i_thread;
    for (int i = first; i < first + n; i++) {
        float *x = a->x + (size_t)i * (size_t)a->d;
        uint8_t *row = a->packed + (size_t)i * a->packed_bytes;
        kv_pack(a->format, x, a->d, row);
        kv_unpack(a->format, row, a->d, x);
    }
}

void index_queries_run(kernel_context *k, const index_queries_args *a) {
    const size_t stride = (size_t)a->n_heads * (size_t)a->d;
    rope_run(
        k, &(rope_args){a->x, stride, a->table, a->n_rows, a->n_heads, a->d, a->d_rope, false});
    rows_run(k, a->n_rows * a->n_heads, (size_t)a->d * 10, pack_rows, a);
}
