/* Times the indexer at the released sizes: scores alone, and the pick alone by one CTA a row and by as many
 * as the launch chooses. Calls of a graph read other keys, so that the cache is cold for them; the pick
 * finds its scores in the cache, as in a step. Medians and spread over replays, microseconds a call; one
 * line a shape. Layers of a step: three like "ratio 2", one like "builds", four like "uses". */
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/mem.h"
#include "kernels/cuda_ops.h"
#include "kernels/indexer/indexer_gpu.h"
#include "tests/gpu/gpu_backend.h"

enum {
    HEADS = 32,
    D = 128,
    TOPK = 512,
    BLOCKS = 2048,
    BLOCK = 8,
    PAGE = 128,
    MAX_ROWS = 6,
    MAX_KEYS = 1 << 20,
    CALLS = 6,
    REPLAYS = 21,
    ALL_PARTS = 8
};

typedef struct timing {
    double median, low, high;
} timing;

typedef enum layer_kind { LAYER_RATIO_2, LAYER_BUILDS, LAYER_USES } layer_kind;

static kernel_context device;
static const kernels *cuda;
static uint8_t *key_pool; /* keys of all calls */
static size_t row_bytes;

static void stop_if_failed(void) {
    if (device.rc == OK) return;
    printf("%s\n", device.error.msg);
    exit(1);
}

static void *device_memory(size_t bytes) {
    void *p = cuda->mem_new(bytes);
    if (p != NULL) return p;
    printf("no %zu bytes of device memory\n", bytes);
    exit(1);
}

static void *sent(const void *from, size_t bytes) {
    void *p = device_memory(bytes);
    cuda->copy(&device, p, from, bytes);
    cuda->wait(&device);
    stop_if_failed();
    return p;
}

static uint64_t next_random(void) {
    static uint64_t state = 12345;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state ^ state >> 29;
}

/* Packed rows of any codes with scales around 1. */
static uint8_t *random_rows(size_t n) {
    uint8_t *rows = mem_alloc(n * row_bytes);
    for (size_t i = 0; i < n; i++) {
        for (size_t b = 0; b < D / 2; b++)
            rows[i * row_bytes + b] = (uint8_t)(next_random() >> 40);
        for (size_t b = D / 2; b < row_bytes; b++)
            rows[i * row_bytes + b] = (uint8_t)(126 + (next_random() >> 40 & 1));
    }
    return rows;
}

static indexer_args make_args(void) {
    int32_t *table = mem_array(MAX_KEYS / PAGE, sizeof(*table));
    float *w = mem_array((size_t)MAX_ROWS * HEADS, sizeof(*w));
    for (int i = 0; i < MAX_KEYS / PAGE; i++)
        table[i] = i;
    for (int i = 0; i < MAX_ROWS * HEADS; i++)
        w[i] = (float)(int32_t)(next_random() >> 32) * 0x1p-31f;
    uint8_t *queries = random_rows((size_t)MAX_ROWS * HEADS), *keys = random_rows(MAX_KEYS);
    key_pool = device_memory((size_t)CALLS * MAX_KEYS * row_bytes);
    for (size_t i = 0; i < CALLS; i++) {
        cuda->copy(&device, key_pool + i * MAX_KEYS * row_bytes, keys, MAX_KEYS * row_bytes);
        cuda->wait(&device);
        stop_if_failed();
    }
    indexer_args a = {.packed = sent(queries, (size_t)MAX_ROWS * HEADS * row_bytes),
        .packed_bytes = row_bytes,
        .w = sent(w, (size_t)MAX_ROWS * HEADS * 4),
        .key_format = KV_KEY,
        .keys = {key_pool, PAGE * row_bytes, row_bytes, sent(table, MAX_KEYS / PAGE * 4),
            MAX_KEYS / PAGE, PAGE},
        .n_heads = HEADS,
        .d = D,
        .topk = TOPK,
        .w_scale = 1.0f / 64,
        .blocks = device_memory((size_t)MAX_ROWS * BLOCKS * 4),
        .n_blocks = device_memory((size_t)MAX_ROWS * 4),
        .max_blocks = BLOCKS,
        .block = BLOCK,
        .selection = device_memory((size_t)MAX_ROWS * TOPK * 4),
        .n_selected = device_memory((size_t)MAX_ROWS * 4),
        .score = device_memory((size_t)MAX_ROWS * 2 * MAX_KEYS * 4),
        .score_rows = MAX_ROWS,
        .score_cap = MAX_KEYS};
    static const int32_t slots[MAX_ROWS];
    a.batch.slot = sent(slots, sizeof(slots));
    mem_free(table);
    mem_free(w);
    mem_free(queries);
    mem_free(keys);
    return a;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* CALLS calls as one graph. */
static timing time_calls(const indexer_args *a, int which, int most_parts) {
    cudaStream_t s = cuda_of(&device)->stream;
    cudaEvent_t begin = NULL, end = NULL;
    double us[REPLAYS];
    indexer_cuda_parts(&device, a, which, most_parts); /* loads the kernels */
    cuda->wait(&device);
    cuda->graph_begin(&device);
    for (size_t i = 0; i < CALLS; i++) {
        indexer_args call = *a;
        call.keys.base = key_pool + i * MAX_KEYS * row_bytes;
        indexer_cuda_parts(&device, &call, which, most_parts);
    }
    void *graph = cuda->graph_end(&device);
    stop_if_failed();
    if (cudaEventCreate(&begin) != cudaSuccess || cudaEventCreate(&end) != cudaSuccess) exit(1);
    for (int i = -3; i < REPLAYS; i++) {
        float ms = 0;
        (void)cudaEventRecord(begin, s);
        cuda->graph_run(&device, graph);
        (void)cudaEventRecord(end, s);
        cuda->wait(&device);
        stop_if_failed();
        if (cudaEventElapsedTime(&ms, begin, end) != cudaSuccess) exit(1);
        if (i >= 0) us[i] = (double)ms * 1e3 / CALLS;
    }
    cuda->graph_free(graph);
    (void)cudaEventDestroy(begin);
    (void)cudaEventDestroy(end);
    qsort(us, REPLAYS, sizeof(*us), by_value);
    return (timing){us[REPLAYS / 2], us[0], us[REPLAYS - 1]};
}

static void bench(indexer_args a, int n_rows, int64_t positions, layer_kind kind) {
    static const char *const names[] = {"ratio 2", "builds", "uses"};
    int64_t pos[MAX_ROWS];
    for (int i = 0; i < n_rows; i++)
        pos[i] = positions - n_rows + i;
    int64_t *device_pos = sent(pos, sizeof(pos));
    a.batch.n = n_rows, a.batch.pos = device_pos, a.batch.pos_bound = positions;
    a.ratio = kind == LAYER_RATIO_2 ? 2 : 1;
    a.builds_candidates = kind == LAYER_BUILDS, a.uses_candidates = kind == LAYER_USES;
    timing scores = time_calls(&a, INDEXER_DO_SCORES, ALL_PARTS);
    timing one = time_calls(&a, INDEXER_DO_PICK, 1);
    timing many = time_calls(&a, INDEXER_DO_PICK, ALL_PARTS);
    printf(
        "%d %s at %7lld, %-7s: scores %6.1f us [%.1f .. %.1f], pick %6.1f [%.1f .. %.1f], by one CTA "
        "a row %6.1f [%.1f .. %.1f]\n",
        n_rows, n_rows == 1 ? "row " : "rows", (long long)positions, names[kind], scores.median,
        scores.low, scores.high, many.median, many.low, many.high, one.median, one.low, one.high);
    fflush(stdout);
    cuda->mem_free(device_pos);
}

int main(void) {
    static const int64_t positions[] = {8192, 32768, 131072, 1048576};
    err e = ERR_INIT;
    if (!gpu_backend_use()) return 77;
    cuda = kernels_find("cuda");
    row_bytes = kv_row_bytes(KV_KEY, D);
    if (cuda->open(&device, &e) != OK) {
        printf("%s\n", e.msg);
        return 1;
    }
    indexer_args a = make_args();
    for (size_t i = 0; i < sizeof(positions) / sizeof(*positions); i++)
        for (int n = 1; n <= MAX_ROWS; n += MAX_ROWS - 1)
            for (layer_kind kind = LAYER_RATIO_2; kind <= LAYER_USES; kind++)
                bench(a, n, positions[i], kind);
    cuda->close(&device);
    return 0;
}
