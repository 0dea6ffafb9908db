/* The HTTP server of tandemd: the public API of api.md and the control paths under /tandem/v1, on
 * the Unix socket and, when switched on, on a loopback TCP port. It is a client of engine/run and
 * owns no model state.
 * Threads: api_open, api_close and api_endpoint from the owner's thread or (api_endpoint) from a
 * route; everything inside runs on a thread per connection. */
#ifndef TANDEM_API_API_H
#define TANDEM_API_API_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/dist/figures.h"
#include "engine/run/memory.h"
#include "engine/run/run.h"
#include "engine/text/tokenizer.h"

#define API_PORT_DEFAULT 8888
#define API_BODY_MAX_BYTES ((size_t)64 << 20)

typedef struct api api;

/* Extra vocabulary behind the tokenizer's: id n_base + i stands for pieces[i]. Markers in a piece
 * count as the tokens they spell. Used with a scripted source. */
typedef struct api_pieces {
    const char *const *pieces;
    int32_t n_pieces;
} api_pieces;

/* What is known of a rank. */
typedef struct api_rank {
    int32_t rank;
    const char *state; /* "loading", "up", "leaving", "lost", "failed"; a constant */
    double age_s;      /* of the figures; below 0: there are none */
    rank_figures f;
} api_rank;

/* What is known of the start. */
typedef struct api_start {
    char id[24]; /* "": one rank, without a start of its own */
    int phase;   /* rank_phase, of the whole engine */
    double progress;
    uint64_t since_ms; /* wall clock: the phase began */
    uint64_t settings_hash;
    memory_plan plan;         /* of rank 0; zeros: not made yet */
    uint64_t available_bytes; /* when the plan was made */
    err last_failure;         /* of an earlier process on this socket; code OK: none */
    uint64_t last_failure_ms;
} api_start;

typedef struct api_options {
    run *run;                   /* borrowed; NULL: the model is still loading, see api_attach */
    const tokenizer *tokenizer; /* borrowed; may be NULL while loading */
    const api_pieces *pieces;   /* NULL: none; borrowed */
    const char *model_id;       /* served name */
    const char *model_dir;
    const char *build; /* build id */
    bool is_demo;
    bool thinks_by_default;
    float default_temperature; /* for requests that name none; below 0: 1.0 */
    float default_top_p;       /* for requests that name none; below 0: as chat.md 9 */
    bool is_strict_model;      /* an unknown model name is a 404 */
    int64_t max_context;
    int32_t n_slots;
    int32_t keep_alive_ms;    /* comment lines in quiet streams; 0: 5000 */
    size_t max_body_bytes;    /* 0: API_BODY_MAX_BYTES */
    int32_t max_connections;  /* 0: 512 */
    const char *keys_path;    /* key file of the TCP endpoint; NULL: open on loopback */
    bool may_keys_come;       /* it counts once it is there; until then as without one */
    const char *cors_origins; /* separated by commas, "*" for any; NULL: off */
    bool opens_metrics;       /* /metrics without a key */
    const char *certificate_path, *certificate_key_path; /* TLS of the endpoint; NULL: plain */
    const char *request_log_path;                        /* NULL: no file */
    bool logs_prompts;                                   /* request bodies go into that file */
    bool keeps_json_alive;         /* newlines before whole answers that take long */
    int32_t request_timeout_ms;    /* 0: none */
    bool guards_loops, keeps_room; /* defaults of loop_guard and keep_answer_room */
    bool is_cache_per_key;         /* keys do not share the prefix cache */
    int32_t head_timeout_ms, body_timeout_ms, idle_timeout_ms; /* 0: 30 s, 60 s without a byte
                                                                  (ten times that in all), 75 s */
    int32_t stall_timeout_ms; /* an answer of which nothing is taken; 0: 120 s */
    /* The ranks, rank 0 first, at most cap, and the start; any thread, also while loading. NULL: one
     * rank, of which process and machine are known. */
    int (*ranks)(void *ctx, api_rank *out, int cap);
    void (*start)(void *ctx, api_start *out);
    void (*engram)(void *ctx, engram_store_stats *out); /* of rank 0; NULL: unknown */
    void *ranks_ctx;
    struct log_tail *log; /* borrowed: newest lines of the log; NULL: none */
    /* POST /tandem/v1/shutdown; NULL: refused. Must not block. */
    void (*on_shutdown)(void *ctx);
    /* Before it, when the request says how long running replies may take; NULL: it may not. */
    void (*on_deadline)(void *ctx, int64_t seconds);
    void *on_shutdown_ctx;
} api_options;

/* Starts serving on a listening Unix socket (taken). */
int api_open(const api_options *options, int listen_fd, api **out, err *e);
/* The model is there: the server leaves the loading state. Once, when it was opened without a
 * run. */
typedef struct api_engine {
    run *run;                   /* borrowed until api_close */
    const tokenizer *tokenizer; /* borrowed */
    int64_t max_context;
    int32_t n_slots;
} api_engine;
void api_attach(api *a, const api_engine *engine);
/* Switches the TCP endpoint on (port 0 picks one) or off. An address that is no loopback address
 * needs a key file, and confirmed must say the same address again. */
int api_endpoint(api *a, bool is_on, const char *address, int port, err *e);
int api_endpoint_confirmed(api *a, const char *address, int port, const char *confirmed, err *e);
/* Port of the endpoint, 0 while it is off. */
int api_endpoint_port(api *a);
/* No new connections; those that stand may finish. */
void api_drain(api *a);
/* Requests whose answer is not sent to its end yet; streams without an end are not counted. */
int api_busy(api *a);
/* Ends everything: waiting routes return, connections close. */
void api_close(api *a);

#endif
