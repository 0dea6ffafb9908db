#include <stdatomic.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/model/engram_store.h"

typedef struct memory_store {
    engram_store base; /* first */
    engram_table *tables;
    _Atomic uint64_t n_rows, n_errors;
} memory_store;

static const double read_seconds[] = {0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005,
    0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5, 1, 5};
const metric_bounds ENGRAM_READ_SECONDS = {
    read_seconds, sizeof(read_seconds) / sizeof(read_seconds[0])};

/* Rows lie in memory, so begin does the whole work; tickets carry nothing. */
static int memory_begin(
    engram_store *s, int i_table, const int64_t *rows, int n, uint8_t *out, int *ticket, err *e) {
    memory_store *m = (memory_store *)(void *)s;
    const engram_table *t = &m->tables[i_table];
    size_t d = (size_t)s->d, n_scales = engram_record_bytes(s->d) - d;
    for (int i = 0; i < n; i++, out += d + n_scales) {
        if (rows[i] < 0 || rows[i] >= t->n_rows) {
            atomic_fetch_add_explicit(&m->n_errors, 1, memory_order_relaxed);
            return err_set(e, ERR_ARG, "Engram table %d has %lld rows, row %lld was asked for",
                i_table, (long long)t->n_rows, (long long)rows[i]);
        }
        memcpy(out, t->values + (size_t)rows[i] * d, d);
        memcpy(out + d, t->scales + (size_t)rows[i] * n_scales, n_scales);
    }
    atomic_fetch_add_explicit(&m->n_rows, (uint64_t)n, memory_order_relaxed);
    *ticket = 0;
    return OK;
}

static int memory_wait(engram_store *s, int ticket, uint64_t deadline_ns, err *e) {
    (void)s;
    (void)ticket;
    (void)deadline_ns;
    (void)e;
    return OK;
}

static void memory_stats(const engram_store *s, engram_store_stats *out) {
    const memory_store *m = (const memory_store *)(const void *)s;
    uint64_t n = atomic_load_explicit(&m->n_rows, memory_order_relaxed);
    *out = (engram_store_stats){.n_rows = n,
        .n_cached = n,
        .n_errors = atomic_load_explicit(&m->n_errors, memory_order_relaxed)};
}

static void memory_close(engram_store *s) {
    mem_free(((memory_store *)(void *)s)->tables);
    mem_free(s);
}

static const engram_store_ops memory_ops = {
    memory_begin, memory_wait, NULL, memory_stats, memory_close};

int engram_store_memory_open(
    const engram_table *tables, int n_tables, int d, engram_store **out, err *e) {
    if (n_tables < 1 || d < ENGRAM_SCALE_BLOCK || d % ENGRAM_SCALE_BLOCK != 0) {
        return err_set(
            e, ERR_ARG, "an Engram store of %d tables with rows of %d values", n_tables, d);
    }
    memory_store *m = mem_alloc(sizeof(*m));
    m->base = (engram_store){&memory_ops, n_tables, d};
    m->tables = mem_dup(tables, (size_t)n_tables * sizeof(*tables));
    *out = &m->base;
    return OK;
}

void engram_store_close(engram_store *s) {
    if (s != NULL) {
        s->ops->close(s);
    }
}
