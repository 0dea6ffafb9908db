#include "engine/base/histogram.h"

#include <inttypes.h>
#include <string.h>

static void add(_Atomic uint64_t *value, uint64_t n) {
    uint64_t old = atomic_load_explicit(value, memory_order_relaxed);
    atomic_store_explicit(value, old + n, memory_order_relaxed); /* one writer */
}

void histogram_add(histogram *h, const metric_bounds *bounds, double v) {
    size_t i = 0;
    while (i < bounds->n && v > bounds->values[i]) {
        i++;
    }
    add(&h->counts[i], 1);
    add(&h->sum_micro, (uint64_t)(v * 1e6 + 0.5));
}

void histogram_read(const histogram *h, const metric_bounds *bounds, histogram_counts *out) {
    memset(out, 0, sizeof *out);
    for (size_t i = 0; i <= bounds->n; i++) {
        out->counts[i] = atomic_load_explicit(&h->counts[i], memory_order_relaxed);
        out->n += out->counts[i];
    }
    out->sum = (double)atomic_load_explicit(&h->sum_micro, memory_order_relaxed) / 1e6;
}

void histogram_print(const histogram_counts *c, const metric_bounds *bounds, const char *name,
    const char *labels, buf *out) {
    const char *text = labels != NULL ? labels : "";
    const char *comma = text[0] != '\0' ? "," : "";
    uint64_t n = 0;
    for (size_t i = 0; i < bounds->n; i++) {
        n += c->counts[i];
        buf_printf(out, "%s_bucket{%s%sle=\"%.9g\"} %" PRIu64 "\n", name, text, comma,
            bounds->values[i], n);
    }
    buf_printf(out, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", name, text, comma, c->n);
    if (text[0] != '\0') {
        buf_printf(out, "%s_sum{%s} %.9g\n%s_count{%s} %" PRIu64 "\n", name, text, c->sum, name,
            text, c->n);
    } else {
        buf_printf(out, "%s_sum %.9g\n%s_count %" PRIu64 "\n", name, c->sum, name, c->n);
    }
}
