#include <string.h>

#include "engine/base/clock.h"
#include "engine/run/run_internal.h"

#define NS_PER_S 1000000000ull

static const double step_seconds[] = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04,
    0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 60};
const metric_bounds RUN_STEP_SECONDS = {step_seconds, sizeof step_seconds / sizeof step_seconds[0]};
static const double step_rows[] = {
    1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096};
const metric_bounds RUN_STEP_ROWS = {step_rows, sizeof step_rows / sizeof step_rows[0]};

void run_count_second(run *r, uint32_t n_tokens, uint32_t n_prompt) {
    uint64_t second = clock_mono_ns() / NS_PER_S;
    uint32_t i = (uint32_t)(second % RUN_SECONDS);
    if (atomic_load_explicit(&r->second_of[i], memory_order_relaxed) != second) {
        atomic_store_explicit(&r->tokens_in[i], 0, memory_order_relaxed);
        atomic_store_explicit(&r->prompt_in[i], 0, memory_order_relaxed);
        atomic_store_explicit(&r->second_of[i], second, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&r->tokens_in[i], n_tokens, memory_order_relaxed);
    atomic_fetch_add_explicit(&r->prompt_in[i], n_prompt, memory_order_relaxed);
}

void run_count_step(run *r, uint64_t ns, int32_t n_rows) {
    step_times_add(&r->times, ns);
    atomic_fetch_add_explicit(&r->n_rows, (uint64_t)n_rows, memory_order_relaxed);
    histogram_add(&r->step_seconds, &RUN_STEP_SECONDS, (double)ns / 1e9);
    histogram_add(&r->step_rows, &RUN_STEP_ROWS, (double)n_rows);
    atomic_fetch_add_explicit(&r->n_steps, 1, memory_order_release);
}

/* Tokens of the last whole seconds before now; the running second is left out. */
static void sum_seconds(
    run *r, uint64_t now_second, uint64_t n_seconds, uint64_t *tokens, uint64_t *prompt) {
    *tokens = 0;
    *prompt = 0;
    for (uint64_t back = 1; back <= n_seconds; back++) {
        uint64_t second = now_second - back;
        uint32_t i = (uint32_t)(second % RUN_SECONDS);
        if (atomic_load_explicit(&r->second_of[i], memory_order_relaxed) != second) continue;
        *tokens += atomic_load_explicit(&r->tokens_in[i], memory_order_relaxed);
        *prompt += atomic_load_explicit(&r->prompt_in[i], memory_order_relaxed);
    }
}

static void fill_rates(run *r, run_stats *out) {
    uint64_t now_second = clock_mono_ns() / NS_PER_S;
    uint64_t age = now_second - r->open_ns / NS_PER_S;
    uint64_t minute = age < 60 ? age : 60;
    uint64_t tokens;
    uint64_t prompt;
    out->tokens_per_s_now = -1.0;
    out->tokens_per_s_minute = -1.0;
    out->prefill_per_s_now = -1.0;
    if (minute == 0) return;
    sum_seconds(r, now_second, 1, &tokens, &prompt);
    out->tokens_per_s_now = (double)tokens;
    out->prefill_per_s_now = (double)prompt;
    sum_seconds(r, now_second, minute, &tokens, &prompt);
    out->tokens_per_s_minute = (double)tokens / (double)minute;
}

static void fill_step_times(run *r, run_stats *out) {
    uint64_t ended = atomic_load(&r->step_ended_ns);
    step_times_read(&r->times, &out->step_ms, &out->step_ms_p95);
    if (clock_mono_ns() - ended > 60 * NS_PER_S) out->step_ms = out->step_ms_p95 = -1.0;
}

static int state_of(run *r) {
    if (atomic_load(&r->has_failed)) return RUN_STATE_FAILED;
    uint64_t started = atomic_load(&r->step_started_ns);
    uint64_t limit = (uint64_t)r->options.step_limit_ms * 1000000ull;
    if (started != 0 && clock_mono_ns() > started + limit) return RUN_STATE_STALLED;
    return atomic_load(&r->is_draining) ? RUN_STATE_DRAINING : RUN_STATE_READY;
}

void run_stats_get(run *r, run_stats *out) {
    memset(out, 0, sizeof *out);
    out->state = state_of(r);
    if (out->state == RUN_STATE_FAILED) {
        out->failure = r->failure;
    }
    out->n_slots = r->info.n_slots;
    out->queue_cap = r->options.queue_cap;
    out->n_running = atomic_load(&r->n_running);
    out->n_waiting = atomic_load(&r->n_waiting);
    out->pages_total = page_pool_total(r->pool);
    out->pages_used = page_pool_used(r->pool);
    out->pages_cached = page_pool_cached(r->pool);
    out->pages_kept = page_pool_idle(r->pool);
    out->n_marks = atomic_load_explicit(&r->n_marks, memory_order_relaxed);
    out->n_disk_tokens = atomic_load_explicit(&r->n_disk_tokens, memory_order_relaxed);
    out->has_disk = r->disk != NULL;
    if (r->disk != NULL) disk_count(r->disk, &out->disk);
    out->n_evicted = atomic_load_explicit(&r->n_evicted, memory_order_relaxed);
    out->n_steps = atomic_load(&r->n_steps);
    out->n_rows = atomic_load(&r->n_rows);
    out->n_prompt_tokens = atomic_load(&r->n_prompt_tokens);
    out->n_cached_tokens = atomic_load(&r->n_cached_tokens);
    out->n_generated = atomic_load(&r->n_generated);
    out->n_drafted = atomic_load(&r->n_drafted);
    out->n_accepted = atomic_load(&r->n_accepted);
    out->n_done = atomic_load(&r->n_done);
    out->n_failed = atomic_load(&r->n_failed);
    out->n_cancelled = atomic_load(&r->n_cancelled);
    out->n_refused = atomic_load(&r->n_refused);
    for (int i = 0; i < RUN_DRAFT_MAX; i++) {
        out->drafted_at[i] = atomic_load_explicit(&r->drafted_at[i], memory_order_relaxed);
        out->accepted_at[i] = atomic_load_explicit(&r->accepted_at[i], memory_order_relaxed);
    }
    out->uptime_ms = (clock_mono_ns() - r->open_ns) / 1000000ull;
    histogram_read(&r->step_seconds, &RUN_STEP_SECONDS, &out->step_seconds);
    histogram_read(&r->step_rows, &RUN_STEP_ROWS, &out->step_rows);
    fill_rates(r, out);
    fill_step_times(r, out);
}
