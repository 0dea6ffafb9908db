#include "kernels/attn/attn_wide_kernel.cuh"
#include "kernels/prepare/prepare.h"

enum { ATTN_MAX_D = 512, ATTN_MANY_HEADS = 4, ATTN_MAX_BLOCK_ROWS = 16 };
enum { ATTN_LONG_TILE = 64, ATTN_SHORT_TILE = 32 };

/* Up to bytes of shared memory: all that a block may have, not what this launch needs, since another context may set the
 * limit meanwhile. */
template <class KERNEL> static bool allow_shared(kernel_context *k, KERNEL kernel, int bytes) {
    k->rc = cuda_check(&k->error,
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
        "attention");
    return k->rc == OK;
}

template <int CHUNKS, int HEADS> static void launch(kernel_context *k, const attn_args *a) {
    const int cap = a->window + ATTN_MAX_BLOCK_ROWS + (a->selection == NULL ? 0 : a->max_selected);
    const size_t bytes = (size_t)HEADS * (size_t)(a->d + cap + ATTN_WARPS * a->d) * sizeof(float);
    const int room = cuda_of(k)->shared_bytes - 1024;
    if (bytes > (size_t)room) {
        k->rc = err_set(&k->error, ERR_LIMIT,
            "attention: %d rows of %d need %zu bytes of shared "
            "memory",
            cap, a->d, bytes);
        return;
    }
    if (!allow_shared(k, attn_kernel<CHUNKS, HEADS>, room)) return;
    CUDA_RUN(k, "attention", (attn_kernel<CHUNKS, HEADS>),
        dim3((unsigned)a->batch.n, (unsigned)(a->n_heads / HEADS)), ATTN_WARPS * 32, bytes, *a, cap,
        k->is_bf16);
}

/* ---- the real size ---- */

static attn_mma_params mma_params(const kernel_context *k, const attn_args *a) {
    attn_mma_params p = {};
    p.a = *a;
    p.cap = a->window + ATTN_MAX_BLOCK_ROWS + (a->selection == NULL ? 0 : a->max_selected);
    p.cap = (p.cap + ATTN_LONG_TILE - 1) / ATTN_LONG_TILE * ATTN_LONG_TILE;
    p.n_groups = a->n_heads / ATTN_GROUP;
    p.is_bf16 = k->is_bf16;
    return p;
}

/* Rows of a tile that the device has shared memory for; 0: attention of another size. */
static int tile_of(kernel_context *k, const attn_args *a) {
    const bool is_packed = a->window_format == KV_WINDOW &&
                           (a->selection == NULL || a->compressed_format == KV_COMPRESSED);
    const attn_mma_params p = mma_params(k, a);
    const size_t room = (size_t)cuda_of(k)->shared_bytes;
    if (!is_packed || a->d != ATTN_D || a->n_heads % ATTN_GROUP != 0) return 0;
    if (attn_mma_shared_bytes<ATTN_LONG_TILE>(p.cap) <= room &&
        p.cap / ATTN_LONG_TILE <= ATTN_MAX_TILES)
        return ATTN_LONG_TILE;
    return attn_mma_shared_bytes<ATTN_SHORT_TILE>(p.cap) <= room &&
                   p.cap / ATTN_SHORT_TILE <= ATTN_MAX_TILES
               ? ATTN_SHORT_TILE
               : 0;
}

static size_t few_rows_bytes(const attn_mma_params *p, int n_tiles) {
    const size_t parts = (size_t)p->a.batch.n * (size_t)p->n_groups * (size_t)n_tiles;
    return parts * ATTN_GROUP * (ATTN_D + 2) * sizeof(float) +
           (size_t)p->a.batch.n * sizeof(int32_t) + 256;
}

/* A block a tile; adding the tiles is held back for the launch behind. */
template <int TILE> static void run_few_rows(kernel_context *k, attn_mma_params *p) {
    const int n = p->a.batch.n, n_tiles = p->cap / TILE;
    const size_t parts = (size_t)n * (size_t)p->n_groups * (size_t)n_tiles;
    const size_t shared = attn_mma_shared_bytes<TILE>(p->cap);
    float *sums = (float *)cuda_tail_take(k, few_rows_bytes(p, n_tiles));
    float *ends = sums + parts * ATTN_GROUP * ATTN_D;
    p->parts = attn_parts{sums, ends, p->a.sink, (const int32_t *)(ends + parts * ATTN_GROUP * 2),
        p->n_groups, n_tiles};
    if (!allow_shared(k, attn_mma_tile_kernel<TILE>, cuda_of(k)->shared_bytes)) return;
    CUDA_RUN(k, "attention", attn_mma_tile_kernel<TILE>,
        dim3((unsigned)n_tiles, (unsigned)p->n_groups, (unsigned)n), ATTN_THREADS, shared, *p);
    if (k->rc != OK) return;
    cuda_pending *w = cuda_of(k)->pending;
    w->has_attn = true;
    w->attn = prepare_task{};
    w->attn.kind = PREPARE_ATTN;
    w->attn.n_rows = n;
    w->attn.n = p->a.n_heads * ATTN_D;
    w->attn.y = p->a.o;
    w->attn.y_stride = w->attn.n;
    w->tasks.attn = p->parts;
}

/* Whether the form for sm_90 takes the rows: it works with the tiles of ATTN_LONG_TILE. */
static bool takes_wide(kernel_context *k, const attn_mma_params *p) {
    return cuda_of(k)->is_sm90 && p->a.n_heads % ATTN_WIDE_HEADS == 0 &&
           attn_wide_shared_bytes(p->cap) <= (size_t)cuda_of(k)->shared_bytes;
}

template <int TILE>
static void run_real_size(kernel_context *k, const attn_args *a, const rope_args *rope) {
    attn_mma_params p = mma_params(k, a);
    const size_t shared = attn_mma_shared_bytes<TILE>(p.cap);
    if (rope != NULL) p.rope = rope->table, p.d_rope = rope->d_rope;
    if (a->batch.n * p.n_groups < cuda_of(k)->n_sms &&
        few_rows_bytes(&p, p.cap / TILE) + 512 <= cuda_scratch_left(k)) {
        run_few_rows<TILE>(k, &p);
        return;
    }
    if (TILE == ATTN_WIDE_TILE && takes_wide(k, &p)) {
        const size_t bytes = attn_wide_shared_bytes(p.cap);
        p.n_blocks = cuda_of(k)->n_sms;
        if (!allow_shared(k, attn_wide_kernel, cuda_of(k)->shared_bytes)) return;
        CUDA_RUN(k, "attention", attn_wide_kernel,
            dim3((unsigned)a->batch.n, (unsigned)(p.n_groups / 2)), ATTN_THREADS, bytes, p);
        return;
    }
    if (!allow_shared(k, attn_mma_kernel<TILE>, cuda_of(k)->shared_bytes)) return;
    CUDA_RUN(k, "attention", attn_mma_kernel<TILE>,
        dim3((unsigned)a->batch.n, (unsigned)p.n_groups), ATTN_THREADS, shared, p);
}

/* The rotation of the queries, when it is held back and rows can be read four values at a time. */
static bool take_rope(kernel_context *k, const attn_args *a, rope_args *out) {
    cuda_pending *w = cuda_of(k)->pending;
    if (!w->has_rope || w->rope.x != a->q || w->rope.n_rows != a->batch.n ||
        w->rope.n_heads != a->n_heads || w->rope.d_head != ATTN_D || w->rope.d_rope % 4 != 0 ||
        w->rope.x_stride != (size_t)a->n_heads * ATTN_D)
        return false;
    *out = w->rope;
    w->has_rope = false;
    return true;
}

void attn_cuda(kernel_context *k, const attn_args *a) {
    if (k->rc != OK || a->batch.n == 0) return;
    if (a->d > ATTN_MAX_D || a->d % 32 != 0) {
        k->rc = err_set(&k->error, ERR_LIMIT, "attention: heads of %d values", a->d);
        return;
    }
    const int tile = tile_of(k, a);
    rope_args rope;
    const bool has_rope = tile != 0 && take_rope(k, a, &rope);
    cuda_settle(k);
    if (k->rc != OK) return;
    if (tile == ATTN_LONG_TILE) {
        run_real_size<ATTN_LONG_TILE>(k, a, has_rope ? &rope : NULL);
        return;
    }
    if (tile == ATTN_SHORT_TILE) {
        run_real_size<ATTN_SHORT_TILE>(k, a, has_rope ? &rope : NULL);
        return;
    }
    /* Few rows: a block a head fills the device; many: heads share the decoding of a row. */
    const bool is_many = a->n_heads % ATTN_MANY_HEADS == 0 &&
                         a->batch.n * a->n_heads / ATTN_MANY_HEADS >= 2 * cuda_of(k)->n_sms;
    if (a->d <= 128) {
        is_many ? launch<1, ATTN_MANY_HEADS>(k, a) : launch<1, 1>(k, a);
    } else {
        is_many ? launch<4, ATTN_MANY_HEADS>(k, a) : launch<4, 1>(k, a);
    }
}
