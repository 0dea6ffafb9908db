#include "engine/api/api_metrics.h"

#include <stdio.h>

static metric *seconds(metrics *all, const char *name, const char *help) {
    return metric_histogram(all, name, help, NULL, METRIC_SECONDS);
}

void api_metrics_init(api_metrics *m) {
    m->all = metrics_new("tandem_");
    m->last = (api_reply){0};
    pthread_mutex_init(&m->lock, NULL);
    m->first_token = seconds(
        m->all, "time_to_first_token_seconds", "From the accepted request to its first token.");
    m->per_token = seconds(m->all, "time_per_output_token_seconds",
        "Mean time between tokens of one reply after the first.");
    m->queue = seconds(m->all, "queue_seconds", "From the accepted request to its first step.");
    m->prefill = seconds(m->all, "prefill_seconds", "From the first step to the first token.");
    m->request =
        seconds(m->all, "request_seconds", "From the head of a request to the end of its answer.");
    m->grammar_compile =
        seconds(m->all, "grammar_compile_seconds", "Compiling what an answer or a call may be.");
    m->reasoning_tokens = metric_counter(
        m->all, "reasoning_tokens_total", "Generated tokens inside reasoning.", NULL);
    m->empty_answers = metric_counter(m->all, "tool_parse_recoveries_total",
        "Tool calls that came out damaged, by what was done.", "kind=\"no_answer\"");
    m->dropped_calls = metric_counter(m->all, "tool_parse_recoveries_total",
        "Tool calls that came out damaged, by what was done.", "kind=\"dropped\"");
}

void api_metrics_release(api_metrics *m) {
    metrics_free(m->all);
    pthread_mutex_destroy(&m->lock);
    m->all = NULL;
}

void api_metrics_request(api_metrics *m, const char *endpoint, int status, const char *finish) {
    buf labels = BUF_INIT;
    char text[16];
    snprintf(text, sizeof text, "%d", status);
    metric_label(&labels, "endpoint", endpoint);
    metric_label(&labels, "status", text);
    metric_label(&labels, "finish_reason", finish != NULL ? finish : "");
    metric_add(
        metric_counter(m->all, "requests_total", "Requests answered.", buf_cstr(&labels)), 1.0);
    buf_release(&labels);
}

void api_metrics_reply(api_metrics *m, const api_reply *r) {
    pthread_mutex_lock(&m->lock);
    m->last = *r;
    pthread_mutex_unlock(&m->lock);
}

void api_metrics_last(api_metrics *m, api_reply *out) {
    pthread_mutex_lock(&m->lock);
    *out = m->last;
    pthread_mutex_unlock(&m->lock);
}
