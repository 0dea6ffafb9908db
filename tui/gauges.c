#include "tui/gauges.h"

#include <math.h>
#include <string.h>

#include "engine/base/json.h"
#include "engine/base/str.h"

#define STALE_MS 2500

void gauges_init(gauges *g) {
    memset(g, 0, sizeof *g);
    g->context = g->streams = -1;
    g->uptime_s = g->tokens_now = g->tokens_minute = g->prefill_now = (double)NAN;
    g->kv_used = g->kv_kept = g->kv_total = g->cache_pages = g->hit_tokens = g->miss_tokens = -1;
    g->drafts_proposed = g->drafts_accepted = -1;
    g->disk_hit_tokens = g->evictions = g->steps = g->rows = -1;
    g->disk_bytes = g->steps_now = g->reply.first_token_ms = (double)NAN;
    g->queued = g->running = g->done = g->failed = -1;
}

void gauges_set_state(gauges *g, engine_state s, const char *reason, uint64_t now_ms) {
    if (g->state != s) g->state_since_ms = now_ms;
    g->state = s;
    str_copy(g->reason, sizeof g->reason, reason != NULL ? reason : "");
}

static double number(const json *v, const char *key) {
    double d;
    return json_double(json_get(v, key), &d) == OK ? d : (double)NAN;
}

static int64_t count(const json *v, const char *key) {
    double d = number(v, key);
    return isnan(d) || d < 0 || d > 9e15 ? -1 : (int64_t)d;
}

static void text(const json *v, const char *key, char *out, size_t cap) {
    const char *s = json_str(json_get(v, key));
    if (s != NULL) str_copy(out, cap, s);
}

/* The daemon's own word for its state. */
static void take_word(gauges *g, const json *v, uint64_t now_ms) {
    static const struct {
        const char *word;
        engine_state state;
    } STATES[] = {{"loading", ENGINE_STARTING}, {"ready", ENGINE_READY},
        {"draining", ENGINE_DRAINING}, {"failed", ENGINE_FAILED}};
    const char *word = json_str(json_get(v, "state"));
    const char *reason = json_str(json_get(v, "reason"));
    for (size_t i = 0; word != NULL && i < sizeof STATES / sizeof STATES[0]; i++) {
        if (str_eq(word, STATES[i].word)) gauges_set_state(g, STATES[i].state, reason, now_ms);
    }
}

static void take_rank(gauges_rank *r, const json *v) {
    const json *gpu = json_get(v, "gpu");
    *r = (gauges_rank){0};
    text(v, "state", r->state, sizeof r->state);
    r->age_s = number(v, "age_s");
    r->steps = number(v, "steps");
    r->step_ms = number(v, "step_ms");
    r->step_ms_p95 = number(v, "step_ms_p95");
    r->exchange_ms = number(v, "exchange_ms");
    r->exchange_share = number(v, "exchange_share");
    r->link_per_s = number(v, "link_bytes_per_s");
    r->memory_process = number(v, "mem_process_bytes");
    r->memory_used = number(v, "mem_machine_used_bytes");
    r->memory_total = number(v, "mem_machine_total_bytes");
    r->memory_available = number(v, "mem_machine_available_bytes");
    if (isnan(r->memory_available)) r->memory_available = r->memory_total - r->memory_used;
    r->memory_weights = number(v, "mem_weights_bytes");
    r->memory_cache = number(v, "mem_cache_bytes");
    r->memory_work = number(v, "mem_work_bytes");
    r->memory_engram = number(v, "mem_engram_bytes");
    r->pressure = number(v, "mem_pressure");
    r->cpu_percent = number(v, "cpu_percent");
    r->has_gpu = json_is_object(gpu);
    r->gpu_percent = number(gpu, "percent");
    r->gpu_celsius = number(gpu, "celsius");
    r->gpu_watt = number(gpu, "watt");
    r->gpu_mhz = number(gpu, "mhz");
    r->is_throttled = json_is_true(json_get(gpu, "throttled"));
}

static void take_drafts(gauges *g, const json *draft) {
    const json *proposed = json_get(draft, "proposed_at");
    const json *accepted = json_get(draft, "accepted_at");
    g->drafts_proposed = count(draft, "proposed");
    g->drafts_accepted = count(draft, "accepted");
    g->n_positions = 0;
    for (size_t i = 0; i < json_count(proposed) && i < GAUGES_MAX_DRAFTS; i++) {
        int64_t *p = &g->proposed_at[i], *k = &g->accepted_at[i];
        if (json_i64(json_at(proposed, i), p) != OK || json_i64(json_at(accepted, i), k) != OK)
            break;
        g->n_positions++;
    }
}

static void take_reply(gauges_reply *r, const json *v) {
    r->first_token_ms = number(v, "first_token_ms");
    r->prefill_per_s = number(v, "prefill_per_s");
    r->tokens_per_s = number(v, "tokens_per_s");
    r->prompt = count(v, "prompt_tokens");
    r->cached = count(v, "cached_tokens");
    r->tokens = count(v, "tokens");
    r->drafted = count(v, "drafted");
    r->accepted = count(v, "accepted");
}

int gauges_take_stats(gauges *g, const char *s, size_t n, uint64_t now_ms, err *e) {
    json *v;
    int rc = json_parse(s, n, NULL, &v, e);
    if (rc != OK) return rc;
    const json *kv = json_get(v, "kv"), *cache = json_get(v, "cache"),
               *draft = json_get(v, "draft");
    const json *requests = json_get(v, "requests");
    g->uptime_s = number(v, "uptime_s");
    g->tokens_now = number(v, "tokens_per_s_now");
    g->tokens_minute = number(v, "tokens_per_s_minute");
    g->prefill_now = number(v, "prefill_tokens_per_s_now");
    g->kv_used = count(kv, "pages_used");
    g->kv_kept = count(kv, "pages_kept");
    g->kv_total = count(kv, "pages_total");
    g->cache_pages = count(cache, "pages");
    g->hit_tokens = count(cache, "hit_tokens");
    g->miss_tokens = count(cache, "miss_tokens");
    g->disk_hit_tokens = count(cache, "disk_hit_tokens");
    g->evictions = count(cache, "evictions");
    g->disk_bytes = number(cache, "disk_bytes");
    g->steps_now = number(v, "steps_per_s_now");
    g->steps = count(json_get(v, "steps"), "n");
    g->rows = count(json_get(v, "steps"), "rows");
    take_drafts(g, draft);
    take_reply(&g->reply, json_get(v, "last_reply"));
    g->queued = count(requests, "queued");
    g->running = count(requests, "running");
    g->done = count(requests, "done");
    g->failed = count(requests, "failed");
    g->n_ranks = 0;
    JSON_EACH(rank, json_get(v, "ranks")) {
        if (g->n_ranks < GAUGES_MAX_RANKS) take_rank(&g->ranks[g->n_ranks++], rank);
    }
    take_word(g, v, now_ms);
    g->has_sample = true;
    g->sample_ms = now_ms;
    json_free(v);
    return OK;
}

int gauges_take_state(gauges *g, const char *s, size_t n, uint64_t now_ms, err *e) {
    json *v;
    int rc = json_parse(s, n, NULL, &v, e);
    if (rc != OK) return rc;
    const json *model = json_get(v, "model"), *endpoint = json_get(v, "endpoint");
    take_word(g, v, now_ms);
    text(v, "version", g->version, sizeof g->version);
    text(v, "build", g->build, sizeof g->build);
    text(model, "id", g->model_id, sizeof g->model_id);
    text(model, "dir", g->model_dir, sizeof g->model_dir);
    text(endpoint, "address", g->endpoint, sizeof g->endpoint);
    g->context = count(model, "context");
    g->is_demo = json_is_true(json_get(model, "demo"));
    g->is_endpoint_on = json_is_true(json_get(endpoint, "on"));
    g->streams = count(json_get(v, "streams"), "limit");
    json_free(v);
    return OK;
}

static void push(gauges_ring *r, double value) {
    r->fine[r->n % GAUGES_FINE] = (float)value;
    r->n++;
    if (!isnan(value)) {
        r->sum += value;
        r->n_sum++;
    }
    if (r->n % 10 != 0) return;
    uint32_t at = r->n / 10 - 1;
    r->coarse[at % GAUGES_COARSE] = r->n_sum > 0 ? (float)(r->sum / r->n_sum) : NAN;
    r->sum = 0;
    r->n_sum = 0;
}

static void push_all(gauges *g, bool is_fresh) {
    double gap = (double)NAN;
    push(&g->decode, is_fresh ? g->tokens_now : gap);
    push(&g->prefill, is_fresh ? g->prefill_now : gap);
    for (int i = 0; i < GAUGES_MAX_RANKS; i++) {
        const gauges_rank *r = &g->ranks[i];
        bool is_there = is_fresh && i < g->n_ranks;
        push(&g->memory[i], is_there ? r->memory_used : gap);
        push(&g->load[i], is_there ? (r->has_gpu ? r->gpu_percent : r->cpu_percent) : gap);
    }
}

bool gauges_tick(gauges *g, uint64_t now_ms) {
    if (g->last_push_ms == 0) g->last_push_ms = now_ms;
    bool has_moved = false;
    /* After a suspension of hours the rings get no more gaps than they can hold. */
    uint64_t behind = (now_ms - g->last_push_ms) / 1000;
    if (behind > GAUGES_FINE) g->last_push_ms += (behind - GAUGES_FINE) * 1000;
    while (now_ms - g->last_push_ms >= 1000) {
        g->last_push_ms += 1000;
        bool is_last = now_ms - g->last_push_ms < 1000;
        push_all(g, is_last && g->has_sample && now_ms - g->sample_ms < STALE_MS);
        has_moved = true;
    }
    return has_moved;
}

double gauges_age(const gauges *g, uint64_t now_ms) {
    return g->has_sample ? (double)(now_ms - g->sample_ms) / 1000 : -1;
}

double gauges_draft_share(const gauges *g) {
    if (g->drafts_proposed <= 0 || g->drafts_accepted < 0) return (double)NAN;
    return (double)g->drafts_accepted / (double)g->drafts_proposed;
}

double gauges_hit_share(const gauges *g) {
    int64_t all = g->hit_tokens + g->miss_tokens;
    return g->hit_tokens < 0 || g->miss_tokens < 0 || all == 0
               ? (double)NAN
               : (double)g->hit_tokens / (double)all;
}

const char *gauges_state_word(engine_state s) {
    static const char *const WORDS[] = {
        "?", "not running", "starting", "READY", "ending", "FAILED", "DOWN"};
    return WORDS[s];
}

int gauges_window(const gauges_ring *r, int seconds, float *out, int cap) {
    bool is_coarse = seconds > GAUGES_FINE;
    int wanted = is_coarse ? seconds / 10 : seconds, size = is_coarse ? GAUGES_COARSE : GAUGES_FINE;
    const float *from = is_coarse ? r->coarse : r->fine;
    uint32_t have = is_coarse ? r->n / 10 : r->n;
    if (wanted > cap) wanted = cap;
    if (wanted > size) wanted = size;
    for (int i = 0; i < wanted; i++) {
        uint32_t back = (uint32_t)(wanted - i);
        out[i] = back <= have ? from[(have - back) % (uint32_t)size] : NAN;
    }
    return wanted;
}
