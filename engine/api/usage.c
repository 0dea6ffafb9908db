#include "engine/api/job.h"
#include "engine/base/mem.h"

void usage_count(const job *j, usage_sum *out) {
    gen_result *results = mem_array((size_t)j->n_choices + 1, sizeof *results);
    job_results(j, results);
    *out = (usage_sum){0};
    for (int i = 0; i < j->n_choices; i++) {
        bool is_first = i % (int)j->params.n == 0; /* the samples of a prompt share it */
        if (is_first) out->n_prompt += results[i].progress.n_prompt;
        if (is_first) out->n_cached += results[i].progress.n_cached;
        out->n_completion += results[i].n_completion;
        out->n_reasoning += results[i].n_reasoning;
    }
    mem_free(results);
}

int usage_print(const job *j, buf *out) {
    usage_sum s;
    usage_count(j, &s);
    return buf_printf(out,
        "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
        "\"prompt_tokens_details\":{\"cached_tokens\":%lld},"
        "\"completion_tokens_details\":{\"reasoning_tokens\":%lld,"
        "\"accepted_prediction_tokens\":0,\"rejected_prediction_tokens\":0},"
        "\"prompt_cache_hit_tokens\":%lld,\"prompt_cache_miss_tokens\":%lld}",
        (long long)s.n_prompt, (long long)s.n_completion, (long long)(s.n_prompt + s.n_completion),
        (long long)s.n_cached, (long long)s.n_reasoning, (long long)s.n_cached,
        (long long)(s.n_prompt - s.n_cached));
}

int timings_print(const gen_result *result, buf *out) {
    const run_progress *p = &result->progress;
    bool has_first = p->first_ns != 0 && p->start_ns != 0;
    double prompt_ms = has_first ? (double)(p->first_ns - p->start_ns) / 1e6 : 0.0;
    double decode_ms = has_first ? (double)(p->last_ns - p->first_ns) / 1e6 : 0.0;
    double queue_ms = p->start_ns != 0 ? (double)(p->start_ns - p->submit_ns) / 1e6 : 0.0;
    int32_t n_after_first = p->n_generated > 0 ? p->n_generated - 1 : 0;
    double rate = decode_ms > 0.0 ? (double)n_after_first * 1e3 / decode_ms : 0.0;
    int32_t n_read = p->n_prompt - p->n_cached;
    double read_rate = prompt_ms > 0.0 ? (double)n_read * 1e3 / prompt_ms : 0.0;
    return buf_printf(out,
        "{\"queue_ms\":%.3f,\"prompt_n\":%d,\"prompt_ms\":%.3f,\"prompt_per_second\":%.2f,"
        "\"predicted_n\":%d,\"predicted_ms\":%.3f,\"predicted_per_second\":%.2f,\"cache_n\":%d,"
        "\"draft_n\":%lld,\"draft_n_accepted\":%lld}",
        queue_ms, n_read, prompt_ms, read_rate, p->n_generated, decode_ms, rate, p->n_cached,
        (long long)p->n_drafted, (long long)p->n_accepted);
}
