#include <stdbool.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/dist/exchange_internal.h"

int exchange_init(
    exchange *x, const exchange_ops *ops, const int rank_world[2], size_t max_bytes, err *e) {
    int rank = rank_world[0], world = rank_world[1];
    if (world < 1 || world > EXCHANGE_MAX_WORLD || rank < 0 || rank >= world) {
        return err_set(e, ERR_ARG, "rank %d of %d; worlds of 1 to %d are possible", rank, world,
            EXCHANGE_MAX_WORLD);
    }
    x->ops = ops;
    x->rank = rank;
    x->world = world;
    x->max_bytes = max_bytes == 0 ? EXCHANGE_DEFAULT_BYTES : (max_bytes + 15) & ~(size_t)15;
    x->parts = mem_aligned(64, (size_t)world * x->max_bytes);
    if (x->parts == NULL) {
        return err_set(
            e, ERR_MEMORY, "no memory for %d exchange buffers of %zu bytes", world, x->max_bytes);
    }
    return OK;
}

void exchange_release(exchange *x) {
    mem_aligned_free(x->parts);
    x->parts = NULL;
}

void exchange_close(exchange *x) {
    if (x != NULL) {
        x->ops->close(x);
    }
}

int exchange_rank(const exchange *x) {
    return x->rank;
}

int exchange_world(const exchange *x) {
    return x->world;
}

int exchange_is_device(const exchange *x) {
    return x->ops->sum_rows != NULL;
}

void exchange_abort(exchange *x, const err *why) {
    int expected = 0;
    if (!atomic_compare_exchange_strong(&x->is_aborted, &expected, 1)) {
        return;
    }
    x->abort_error = *why;
    atomic_store(&x->is_aborted, 2);
    if (x->ops->abort != NULL) {
        x->ops->abort(x);
    }
    /* The step thread may wait for the host's part as well as for the device. */
    if (x->control != NULL) {
        exchange_abort(x->control, why);
    }
}

void exchange_usage(const exchange *x, uint64_t *ns, uint64_t *n) {
    *ns = atomic_load_explicit(&x->used_ns, memory_order_relaxed);
    *n = atomic_load_explicit(&x->n_used, memory_order_relaxed);
}

uint64_t exchange_bytes(const exchange *x) {
    return atomic_load_explicit(&x->n_bytes, memory_order_relaxed);
}

/* One piece; remembers the first failure. */
static int gather_piece(exchange *x, const void *mine, size_t bytes, void *all, err *e) {
    if (x->rc != OK) {
        if (e != NULL) {
            *e = x->broken;
        }
        return x->rc;
    }
    err local = ERR_INIT;
    uint64_t start = clock_mono_ns();
    int rc = x->ops->gather(x, mine, bytes, all, &local);
    atomic_fetch_add_explicit(&x->used_ns, clock_mono_ns() - start, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->n_used, 1, memory_order_relaxed);
    if (rc != OK) {
        if (atomic_load(&x->is_aborted) == 2) {
            local = x->abort_error;
            rc = local.code;
        }
        x->rc = rc;
        x->broken = local;
        if (e != NULL) {
            *e = local;
        }
    }
    return rc;
}

static int check_stream(void *stream, err *e) {
    return stream == NULL
               ? OK
               : err_set(e, ERR_ARG, "this exchange works on host memory, not on a stream");
}

int exchange_sum_rows(exchange *x, float *rows, size_t n, void *stream, err *e) {
    if (x->ops->sum_rows != NULL) {
        return x->ops->sum_rows(x, rows, n, stream, e);
    }
    int rc = check_stream(stream, e);
    size_t piece = x->max_bytes / sizeof(float);
    for (size_t at = 0; at < n && rc == OK && x->world > 1; at += piece) {
        size_t m = n - at < piece ? n - at : piece;
        rc = gather_piece(x, rows + at, m * sizeof(float), x->parts, e);
        if (rc != OK) {
            break;
        }
        const float *part = x->parts;
        memcpy(rows + at, part, m * sizeof(float));
        for (int r = 1; r < x->world; r++) {
            part += m;
            for (size_t i = 0; i < m; i++) {
                rows[at + i] += part[i];
            }
        }
    }
    return rc;
}

int exchange_gather(exchange *x, const void *mine, size_t bytes, void *all, void *stream, err *e) {
    if (x->ops->gather_rows != NULL) {
        return x->ops->gather_rows(x, mine, bytes, all, stream, e);
    }
    int rc = check_stream(stream, e);
    char *out = all;
    const char *in = mine;
    if (rc != OK || x->world == 1) {
        if (rc == OK && in != out) {
            memmove(out, in, bytes);
        }
        return rc;
    }
    if (bytes <= x->max_bytes) {
        return gather_piece(x, mine, bytes, all, e);
    }
    for (size_t at = 0; at < bytes && rc == OK; at += x->max_bytes) {
        size_t m = bytes - at < x->max_bytes ? bytes - at : x->max_bytes;
        rc = gather_piece(x, in + at, m, x->parts, e);
        for (int r = 0; r < x->world && rc == OK; r++) {
            memmove(out + (size_t)r * bytes + at, (char *)x->parts + (size_t)r * m, m);
        }
    }
    return rc;
}

int exchange_max_pair(exchange *x, float *value, int32_t *index, int n, void *stream, err *e) {
    struct pair {
        float value;
        int32_t index;
    };
    int rc = check_stream(stream, e);
    int piece = (int)(x->max_bytes / sizeof(struct pair) / 2);
    struct pair *mine = (struct pair *)x->parts + (size_t)x->rank * (size_t)piece;
    for (int at = 0; at < n && rc == OK && x->world > 1; at += piece) {
        int m = n - at < piece ? n - at : piece;
        mine = (struct pair *)x->parts + (size_t)x->rank * (size_t)m;
        for (int i = 0; i < m; i++) {
            mine[i] = (struct pair){value[at + i], index[at + i]};
        }
        rc = gather_piece(x, mine, (size_t)m * sizeof(*mine), x->parts, e);
        for (int r = 0; r < x->world && rc == OK; r++) {
            const struct pair *p = (const struct pair *)x->parts + (size_t)r * (size_t)m;
            for (int i = 0; i < m; i++) {
                bool is_better = p[i].value > value[at + i] ||
                                 (p[i].value == value[at + i] && p[i].index < index[at + i]);
                if (r == 0 || is_better) {
                    value[at + i] = p[i].value;
                    index[at + i] = p[i].index;
                }
            }
        }
    }
    return rc;
}

int exchange_bcast(exchange *x, void *data, size_t bytes, int root, err *e) {
    int rc = OK;
    if (root < 0 || root >= x->world) {
        return err_set(e, ERR_ARG, "root %d of %d ranks", root, x->world);
    }
    for (size_t at = 0; at < bytes && rc == OK && x->world > 1; at += x->max_bytes) {
        size_t m = bytes - at < x->max_bytes ? bytes - at : x->max_bytes;
        rc = gather_piece(x, (char *)data + at, m, x->parts, e);
        if (rc == OK && x->rank != root) {
            memcpy((char *)data + at, (char *)x->parts + (size_t)root * m, m);
        }
    }
    return rc;
}

int exchange_check(exchange *x, uint64_t hash, const char *what, err *e) {
    uint64_t all[EXCHANGE_MAX_WORLD];
    int rc = x->world == 1 ? OK : gather_piece(x, &hash, sizeof(hash), all, e);
    all[0] = x->world == 1 ? hash : all[0];
    for (int r = 0; r < x->world && rc == OK; r++) {
        if (all[r] == all[0]) {
            continue;
        }
        return err_set(e, ERR_MISMATCH,
            "%s differs: rank 0 has %016llx, rank %d %016llx; stop both ranks and "
            "start them with the same build and settings",
            what, (unsigned long long)all[0], r, (unsigned long long)all[r]);
    }
    return rc;
}
