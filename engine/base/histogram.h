#ifndef TANDEM_BASE_HISTOGRAM_H
#define TANDEM_BASE_HISTOGRAM_H
/* Counts of values by size, for figures of a hot path: no lock, no allocation, one writer thread,
 * readers on any thread. The struct is plain; zeroed it is empty. Bounds are the reader's: the
 * writer and whoever prints use the same constant. */
#include <stdatomic.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/metric.h"

typedef struct histogram {
    _Atomic uint64_t counts[METRIC_MAX_BUCKETS + 1]; /* the last: above all bounds */
    _Atomic uint64_t sum_micro;                      /* of the values, in millionths */
} histogram;

/* A reader's copy. */
typedef struct histogram_counts {
    uint64_t counts[METRIC_MAX_BUCKETS + 1];
    uint64_t n;
    double sum;
} histogram_counts;

/* The one writer; v >= 0. */
void histogram_add(histogram *h, const metric_bounds *bounds, double v);
void histogram_read(const histogram *h, const metric_bounds *bounds, histogram_counts *out);
/* The lines of a Prometheus histogram without HELP and TYPE; labels as of metric_label or NULL. */
void histogram_print(const histogram_counts *c, const metric_bounds *bounds, const char *name,
    const char *labels, buf *out);

#endif
