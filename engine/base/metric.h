#ifndef TANDEM_BASE_METRIC_H
#define TANDEM_BASE_METRIC_H
/* Counted and measured values of a process: written from any thread with atomics, read by the metrics
 * page, the stats stream and the dashboard. A registry owns its metrics; they live as long as it
 * does. A metric is looked up once and kept: the look-up takes a lock, updating never does and never
 * allocates. A gauge that was never set, or was unset, is unknown: it is not printed and not 0. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/buf.h"

#define METRIC_MAX_SERIES                                                                          \
    4096 /* more label values than this are counted under one dropped series */
#define METRIC_MAX_BUCKETS 24

typedef struct metrics metrics;
typedef struct metric metric;

/* prefix ("tandem_") is put before every name; copied. */
metrics *metrics_new(const char *prefix);
void metrics_free(metrics *m);

/* Gives the series of that name and labels, making it at the first call. labels is NULL or the text
 * between the braces, built with metric_label. A name has one kind and help for good. Never NULL. */
metric *metric_counter(metrics *m, const char *name, const char *help, const char *labels);
metric *metric_gauge(metrics *m, const char *name, const char *help, const char *labels);
/* bounds: n rising upper limits (n <= METRIC_MAX_BUCKETS), copied; the one of infinity is added. */
typedef struct metric_bounds {
    const double *values;
    size_t n;
} metric_bounds;
/* 1 ms to 10 min, for times of requests and phases. */
extern const metric_bounds METRIC_SECONDS;
metric *metric_histogram(
    metrics *m, const char *name, const char *help, const char *labels, metric_bounds bounds);
/* Appends key="value" (with a comma if out is not empty), escaping what must be. */
int metric_label(buf *out, const char *key, const char *value);

/* Counters only; v >= 0. */
void metric_add(metric *c, double v);
/* Gauges only. A value that is not finite makes it unknown. */
void metric_set(metric *g, double v);
void metric_unset(metric *g);
/* Changes a gauge by v; an unknown one starts from 0. */
void metric_shift(metric *g, double v);
/* Histograms only. */
void metric_observe(metric *h, double v);

typedef struct metric_value {
    bool is_valid;
    double value;     /* counter, gauge; sum of a histogram */
    uint64_t n;       /* histogram: observations */
    uint64_t time_ms; /* clock_wall_ms of the newest change, 0 when never */
} metric_value;
metric_value metric_read(const metric *v);
/* Estimate of the q-quantile (0..1) by linear interpolation in its bucket; false without
 * observations. Above the last bound it is that bound. */
bool metric_quantile(const metric *h, double q, double *out);

/* Prometheus text format 0.0.4, families in the order of their making. */
int metrics_print(metrics *m, buf *out);

#endif
