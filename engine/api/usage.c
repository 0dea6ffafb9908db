#include "engine/api/chat_reply.h"

int usage_print(const gen_result *results, int n, buf *out) {
    int64_t n_prompt = n > 0 ? results[0].progress.n_prompt : 0;
    int64_t n_cached = n > 0 ? results[0].progress.n_cached : 0;
    int64_t n_completion = 0;
    int64_t n_reasoning = 0;
    for (int i = 0; i < n; i++) {
        n_completion += results[i].n_completion;
        n_reasoning += results[i].n_reasoning;
    }
    return buf_printf(out,
        "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld,"
        "\"prompt_tokens_details\":{\"cached_tokens\":%lld},"
        "\"completion_tokens_details\":{\"reasoning_tokens\":%lld,"
        "\"accepted_prediction_tokens\":0,\"rejected_prediction_tokens\":0},"
        "\"prompt_cache_hit_tokens\":%lld,\"prompt_cache_miss_tokens\":%lld}",
        (long long)n_prompt, (long long)n_completion, (long long)(n_prompt + n_completion),
        (long long)n_cached, (long long)n_reasoning, (long long)n_cached,
        (long long)(n_prompt - n_cached));
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
