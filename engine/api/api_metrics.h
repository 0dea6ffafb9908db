/* Metrics of the HTTP side (names in api.md 5). Any thread adds. The registry also holds the gauges
 * and counters that the metrics route copies from run_stats when it is asked. */
#ifndef TANDEM_API_METRICS_H
#define TANDEM_API_METRICS_H

#include "engine/base/metric.h"

typedef struct api_metrics {
    metrics *all;
    metric *first_token, *per_token, *queue, *prefill, *request,
        *grammar_compile;                     /* histograms, seconds */
    metric *reasoning_tokens, *dropped_calls; /* counters */
} api_metrics;

void api_metrics_init(api_metrics *m);
void api_metrics_release(api_metrics *m);
/* Counts one answered request; finish may be NULL. */
void api_metrics_request(api_metrics *m, const char *endpoint, int status, const char *finish);

#endif
