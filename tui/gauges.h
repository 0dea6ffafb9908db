/*
 * What is known of the engine: its state, the newest sample of the stats stream, and rings of past
 * samples for plots. Filled by the loop from client events, read by screens in the same thread. A
 * value that was not given is NAN (or -1 for counts), never zero; every sample has its time.
 */
#ifndef TUI_GAUGES_H
#define TUI_GAUGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/err.h"

#define GAUGES_MAX_RANKS 4
#define GAUGES_FINE 1800   /* 1 s samples: 30 minutes */
#define GAUGES_COARSE 8640 /* 10 s means: 24 hours */

typedef enum {
    ENGINE_UNKNOWN,  /* not asked yet */
    ENGINE_ABSENT,   /* no daemon runs */
    ENGINE_STARTING, /* coming up */
    ENGINE_READY,
    ENGINE_DRAINING,
    ENGINE_FAILED,
    ENGINE_DOWN /* was there, the connection is lost */
} engine_state;

typedef struct gauges_ring {
    float fine[GAUGES_FINE];
    float coarse[GAUGES_COARSE];
    uint32_t n; /* pushed so far */
    double sum; /* of the open coarse sample */
    int n_sum;
} gauges_ring;

#define GAUGES_MAX_DRAFTS 8

typedef struct gauges_rank {
    char state[12]; /* "up", "loading", "leaving", "lost", "failed"; "" when it is not said */
    double age_s;   /* of its sample when the engine sent it */
    double steps;   /* since the start */
    double step_ms, step_ms_p95;
    double exchange_ms, exchange_share; /* waiting for the others: of a step; of the time, 0 to 1 */
    double link_per_s;                  /* bytes, both ways */
    double memory_process, memory_used, memory_total, memory_available; /* bytes */
    double memory_weights, memory_cache, memory_work, memory_engram;
    double pressure; /* memory, full avg10, percent */
    double cpu_percent, gpu_percent, gpu_celsius, gpu_watt, gpu_mhz;
    bool has_gpu, is_throttled;
} gauges_rank;

/* The newest finished reply; a time of NAN: none yet. */
typedef struct gauges_reply {
    double first_token_ms, prefill_per_s, tokens_per_s;
    int64_t prompt, cached, tokens, drafted, accepted;
} gauges_reply;

typedef struct gauges {
    engine_state state;
    uint64_t state_since_ms; /* monotonic */
    char reason[256];        /* of ENGINE_FAILED, ENGINE_DOWN or a refused start */
    char model_id[128], model_dir[256], version[32], build[48], endpoint[96];
    bool is_demo, is_endpoint_on;
    int64_t context; /* tokens, -1 */
    int64_t streams; /* most streams at once, -1 */
    bool has_sample;
    uint64_t sample_ms; /* monotonic, when the newest sample came */
    double uptime_s, tokens_now, tokens_minute, prefill_now, steps_now;
    int64_t steps, rows;
    int64_t kv_used, kv_kept, kv_total; /* pages of streams, of cached prefixes alone, all */
    int64_t cache_pages, hit_tokens, miss_tokens;
    int64_t disk_hit_tokens, evictions;
    double disk_bytes;
    int64_t drafts_proposed, drafts_accepted;
    int n_positions; /* of a draft block */
    int64_t proposed_at[GAUGES_MAX_DRAFTS], accepted_at[GAUGES_MAX_DRAFTS];
    gauges_reply reply;
    int64_t queued, running, done, failed;
    gauges_rank ranks[GAUGES_MAX_RANKS];
    int n_ranks;
    gauges_ring decode, prefill, memory[GAUGES_MAX_RANKS], load[GAUGES_MAX_RANKS];
    uint64_t last_push_ms;
} gauges;

void gauges_init(gauges *g);
/* Sets the state; since when is kept while the state stays the same. */
void gauges_set_state(gauges *g, engine_state s, const char *reason, uint64_t now_ms);
/* One object of the stats stream. ERR_FORMAT leaves the gauges as they were. */
int gauges_take_stats(gauges *g, const char *text, size_t n, uint64_t now_ms, err *e);
/* The answer of /tandem/v1/state. */
int gauges_take_state(gauges *g, const char *text, size_t n, uint64_t now_ms, err *e);
/* Call at least once a second: moves the rings on, with gaps where no sample came. True if they
 * moved. */
bool gauges_tick(gauges *g, uint64_t now_ms);

/* Seconds since the newest sample; -1 when there is none. */
double gauges_age(const gauges *g, uint64_t now_ms);
/* Accepted of proposed drafts, 0 to 1, NAN when nothing was proposed. */
double gauges_draft_share(const gauges *g);
double gauges_hit_share(const gauges *g);
const char *gauges_state_word(engine_state s);

/* Copies the samples of the last seconds, oldest first, at most cap: 1 s samples up to 30 minutes,
 * 10 s means above. Returns how many. */
int gauges_window(const gauges_ring *r, int seconds, float *out, int cap);

#endif
