#include <math.h>

#include "engine/base/mem.h"
#include "kernels/attn/attn.h"
#include "kernels/half.h"
#include "kernels/vec/vec.h"

/* Consecutive rows of one span are handled together: their windows overlap, and as long as every
 * compressed row is selected, so do their selections; each cache row is then unpacked once for the
 * tile. */
enum { ATTN_TILE = 8, ATTN_BLOCK_ROWS = 16, ATTN_INLINE_PRODUCTS = 100000 };

typedef struct attn_job {
    const attn_args *a;
    kernel_context *k;
    int n_groups; /* head groups of one tile: more than one only when there are fewer tiles than
                   * threads */
} attn_job;

/* Rows unpacked for a tile: rows [window part][d], then [compressed part][d]. */
typedef struct attn_list {
    float *rows;
    float *scores;   /* of one row and head */
    int64_t window0; /* position of rows[0] */
    int n_window;
    bool is_bf16; /* weights of the sum are rounded, the denominator is not */
    int n_compressed;
    int32_t *position[2]; /* [union_cap] the compressed part's positions, and work space */
    int32_t *index;       /* [max_selected] place of a row's selection in the compressed part */
} attn_list;

static size_t window_cap(int window) {
    return (size_t)(window + ATTN_TILE + ATTN_BLOCK_ROWS);
}

/* Different positions that the rows of a tile may select together before each unpacks its own. */
static size_t union_cap(int max_selected) {
    return 2 * (size_t)max_selected;
}

size_t attn_thread_bytes(int window, int max_selected, int d) {
    size_t rows = window_cap(window) + union_cap(max_selected), selected = (size_t)max_selected;
    return rows * (size_t)d * sizeof(float) + (window_cap(window) + selected) * sizeof(float) +
           (2 * union_cap(max_selected) + selected) * sizeof(int32_t) + 64;
}

static attn_list lay_out(const attn_args *a, void *scratch) {
    size_t rows = window_cap(a->window) + union_cap(a->max_selected);
    attn_list l = {.rows = scratch};
    l.scores = l.rows + rows * (size_t)a->d;
    l.position[0] = (int32_t *)(void *)(l.scores + window_cap(a->window) + (size_t)a->max_selected);
    l.position[1] = l.position[0] + union_cap(a->max_selected);
    l.index = l.position[1] + union_cap(a->max_selected);
    return l;
}

static const int32_t *selection_of(const attn_args *a, int row) {
    return a->selection + (size_t)row * (size_t)a->max_selected;
}

static bool selects_all(const attn_args *a, int row) {
    /* Ascending and distinct: the last one tells. */
    int n = a->n_selected[row];
    return n == 0 || selection_of(a, row)[n - 1] == n - 1;
}

static void unpack_window_rows(const attn_args *a, attn_list *l, int row0, int n_rows) {
    const batch_rows *b = &a->batch;
    int64_t start = b->span_pos[row0];
    int64_t first = a->is_block ? start - a->window : b->pos[row0] - a->window + 1;
    int64_t last = a->is_block ? start + b->span_len[row0] - 1 : b->pos[row0 + n_rows - 1];
    l->window0 = first < 0 ? 0 : first;
    l->n_window = (int)(last - l->window0 + 1);
    for (int i = 0; i < l->n_window; i++) {
        int64_t p = l->window0 + i;
        const uint8_t *row = p < start ? kv_ring_row(&a->ring, b->slot[row0], p)
                                       : a->rows + (size_t)(b->span_row[row0] + (int)(p - start)) *
                                                       a->ring.row_bytes;
        kv_unpack(a->window_format, row, a->d, l->rows + (size_t)i * (size_t)a->d);
    }
}

static void unpack_positions(
    const attn_args *a, attn_list *l, int row, const int32_t *list, int n) {
    l->n_compressed = n;
    for (int i = 0; i < n; i++) {
        kv_unpack(a->compressed_format, kv_paged_row(&a->pages, a->batch.slot[row], list[i]), a->d,
            l->rows + (size_t)(l->n_window + i) * (size_t)a->d);
    }
}

/* Adds the ascending list to the ascending positions[0]; false when there are too many. */
static bool merge(attn_list *l, int *n, const int32_t *list, int n_list, int cap) {
    const int32_t *x = l->position[0];
    int i = 0, j = 0, n_out = 0;
    while (i < *n || j < n_list) {
        if (n_out == cap) {
            return false;
        }
        int32_t next = j == n_list || (i < *n && x[i] <= list[j]) ? x[i] : list[j];
        i += i < *n && x[i] == next;
        j += j < n_list && list[j] == next;
        l->position[1][n_out++] = next;
    }
    int32_t *old = l->position[0];
    l->position[0] = l->position[1];
    l->position[1] = old;
    *n = n_out;
    return true;
}

/* Unpacks every position that a row of the tile selects. False when there are too many. */
static bool unpack_union(const attn_args *a, attn_list *l, int row0, int n_rows) {
    int n = 0, cap = (int)union_cap(a->max_selected);
    for (int r = row0; r < row0 + n_rows; r++) {
        if (!merge(l, &n, selection_of(a, r), a->n_selected[r], cap)) {
            return false;
        }
    }
    unpack_positions(a, l, row0, l->position[0], n);
    return true;
}

static void find_in_union(const attn_args *a, attn_list *l, int row) {
    const int32_t *list = selection_of(a, row);
    int at = 0;
    for (int i = 0; i < a->n_selected[row]; i++) {
        while (l->position[0][at] != list[i]) {
            at++;
        }
        l->index[i] = at;
    }
}

typedef struct attn_range {
    const float *window, *compressed; /* first rows of the two parts */
    int n_window, n_compressed;
    const int32_t *index; /* of the compressed rows; NULL: in order */
} attn_range;

/* score[i] = q . row index[i], as dot gives it. */
static void dots(
    const float *q, const float *rows, const int32_t *index, const int n_rows_d[2], float *score) {
    const vec_ops *v = vec();
    int n_rows = n_rows_d[0], d = n_rows_d[1];
    for (int i = 0; i < n_rows; i += VEC_MAX_ROWS) {
        int n = n_rows - i < VEC_MAX_ROWS ? n_rows - i : VEC_MAX_ROWS;
        const float *x[VEC_MAX_ROWS];
        for (int r = 0; r < n; r++) {
            x[r] = rows + (size_t)(index == NULL ? i + r : index[i + r]) * (size_t)d;
        }
        v->dot_rows(q, x, n, d, score + i);
    }
}

static void attend(
    const attn_args *a, const attn_range *g, const float *q, float *o, attn_list *l, int head) {
    const vec_ops *v = vec();
    int n = g->n_window + g->n_compressed, d = a->d;
    float *score = l->scores, *second = score + g->n_window;
    dots(q, g->window, NULL, (int[2]){g->n_window, d}, score);
    dots(q, g->compressed, g->index, (int[2]){g->n_compressed, d}, second);
    float most = v->scale_max(score, a->scale, -1e30f, n);
    float den = v->exp_sum(score, most, n) + expf(a->sink[head] - most);
    for (int i = 0; i < n && l->is_bf16; i++) {
        score[i] = bf16_round(score[i]);
    }
    for (int c = 0; c < d; c++) {
        o[c] = 0.0f;
    }
    v->sum_rows(o, g->window, NULL, score, g->n_window, d);
    v->sum_rows(o, g->compressed, g->index, second, g->n_compressed, d);
    for (int c = 0; c < d; c++) {
        o[c] /= den;
    }
}

static void attend_row(
    const attn_job *j, attn_list *l, int row, const int32_t *index, const int heads[2]) {
    const attn_args *a = j->a;
    int64_t p = a->batch.pos[row];
    attn_range g = {.n_window = l->n_window, .index = index};
    g.window = l->rows;
    if (!a->is_block) {
        int64_t first = p - a->window + 1 < 0 ? 0 : p - a->window + 1;
        g.window += (size_t)(first - l->window0) * (size_t)a->d;
        g.n_window = (int)(p - first + 1);
    }
    g.compressed = l->rows + (size_t)l->n_window * (size_t)a->d;
    g.n_compressed = a->selection == NULL ? 0 : a->n_selected[row];
    size_t width = (size_t)a->n_heads * (size_t)a->d;
    for (int h = heads[0]; h < heads[1]; h++) {
        size_t at = (size_t)row * width + (size_t)h * (size_t)a->d;
        attend(a, &g, a->q + at, a->o + at, l, h);
        context_round(j->k, a->o + at, (size_t)a->d);
    }
}

/* Rows of the tile that starts at row: same span, at most ATTN_TILE. */
static int tile_len(const batch_rows *b, int row) {
    int in_span = b->span_row[row] + b->span_len[row] - row;
    return in_span < ATTN_TILE ? in_span : ATTN_TILE;
}

static void run_tile(const attn_job *j, attn_list *l, int row0, const int heads[2]) {
    const attn_args *a = j->a;
    int n = tile_len(&a->batch, row0), last = row0 + n - 1;
    unpack_window_rows(a, l, row0, n);
    bool has_list = a->selection != NULL, is_ordered = has_list, is_union = false;
    for (int r = row0; r <= last && is_ordered; r++) {
        is_ordered = selects_all(a, r);
    }
    if (is_ordered) {
        unpack_positions(a, l, last, selection_of(a, last), a->n_selected[last]);
    } else if (has_list && n > 1) {
        is_union = unpack_union(a, l, row0, n);
    }
    for (int r = row0; r <= last; r++) {
        if (is_union) {
            find_in_union(a, l, r);
        } else if (has_list && !is_ordered) {
            unpack_positions(a, l, r, selection_of(a, r), a->n_selected[r]);
        }
        attend_row(j, l, r, is_union ? l->index : NULL, heads);
    }
}

static void attn_item(void *ctx, int i_item, int i_thread) {
    const attn_job *j = ctx;
    const attn_args *a = j->a;
    int tile = i_item / j->n_groups, group = i_item % j->n_groups;
    /* Tiles start where a span starts and every ATTN_TILE rows after that. */
    int row = 0;
    for (int i = 0; i < tile; i++) {
        row += tile_len(&a->batch, row);
    }
    attn_list l = lay_out(a, j->k->thread_scratch[i_thread]);
    l.is_bf16 = j->k->is_bf16;
    int heads[2] = {group * a->n_heads / j->n_groups, (group + 1) * a->n_heads / j->n_groups};
    run_tile(j, &l, row, heads);
}

/* Whether a single row is short enough to stay on this thread (about 10 us). */
static bool is_small(const attn_args *a) {
    if (a->batch.n > 1) {
        return false;
    }
    int rows = a->window + (a->selection == NULL ? 0 : a->n_selected[0]);
    return rows * a->d * a->n_heads < ATTN_INLINE_PRODUCTS;
}

void attn_run(kernel_context *k, const attn_args *a) {
    if (k->rc != OK || a->batch.n == 0) {
        return;
    }
    CHECK(attn_thread_bytes(a->window, a->max_selected, a->d) <= k->thread_scratch_bytes);
    pool *workers = is_small(a) ? NULL : k->workers;
    int n_tiles = 0, n_threads = pool_size(workers);
    for (int row = 0; row < a->batch.n; row += tile_len(&a->batch, row)) {
        n_tiles++;
    }
    attn_job j = {a, k, 1};
    if (n_tiles < n_threads) {
        j.n_groups = n_threads < a->n_heads ? n_threads : a->n_heads;
    }
    pool_run(workers, n_tiles * j.n_groups, attn_item, &j);
}
