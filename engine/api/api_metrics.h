/* Metrics of the HTTP side (names in api.md 5). Any thread adds. The registry also holds the gauges
 * and counters that the metrics route copies from run_stats when it is asked. */
#ifndef TANDEM_API_METRICS_H
#define TANDEM_API_METRICS_H

#include <pthread.h>
#include <stdint.h>

#include "engine/base/metric.h"

/* The newest finished reply, for the dashboard. Rates and times below 0 are unknown. */
typedef struct api_reply {
    uint64_t time_ms; /* clock_wall_ms of its end; 0: none yet */
    double first_token_ms, queue_ms, prefill_per_s, tokens_per_s;
    int64_t n_prompt, n_cached, n_generated, n_drafted, n_accepted;
} api_reply;

typedef struct api_metrics {
    metrics *all;
    metric *first_token, *per_token, *queue, *prefill, *request,
        *grammar_compile;                                     /* histograms, seconds */
    metric *reasoning_tokens, *dropped_calls, *empty_answers; /* counters */
    pthread_mutex_t lock;                                     /* guards last */
    api_reply last;
} api_metrics;

void api_metrics_init(api_metrics *m);
void api_metrics_release(api_metrics *m);
/* Counts one answered request; finish may be NULL. */
void api_metrics_request(api_metrics *m, const char *endpoint, int status, const char *finish);
void api_metrics_reply(api_metrics *m, const api_reply *r);
void api_metrics_last(api_metrics *m, api_reply *out);

#endif
