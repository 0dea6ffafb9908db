/* The part of the engine that other folders talk to: a request goes in through a bounded queue,
 * tokens come out through a ring of its own. One step thread inside owns the model and all
 * stream state; nothing here makes a caller wait for it, and the step thread never waits for a
 * caller, allocates, locks or logs in a step.  Threads: run_submit, run_stats and run_each from
 * any thread. A ticket is read by one thread (next, fd, free); ticket_cancel and ticket_progress
 * may be called by any thread that holds the ticket. */
#ifndef TANDEM_RUN_RUN_H
#define TANDEM_RUN_RUN_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/base/err.h"
#include "engine/base/histogram.h"
#include "engine/run/disk.h"
#include "engine/run/sampler.h"
#include "engine/run/source.h"

#define RUN_MAX_SLOTS 32
#define RUN_ID_MAX 64
#define RUN_STOP_MAX 64
#define RUN_BANNED_MAX 16
#define RUN_SALT_BYTES 16

typedef struct run run;
typedef struct ticket ticket;

typedef struct run_options {
    const run_source *source; /* borrowed until run_close */
    int32_t queue_cap;        /* waiting requests; 0: 64 */
    int32_t gap_ms; /* aim for the longest pause between tokens of a running stream; 0: 150 */
    bool no_drafts; /* never ask the source for drafts */
    uint64_t reserve_bytes;   /* refuse new requests while less memory is available; 0: never */
    uint32_t step_limit_ms;   /* a step that takes longer is overdue: not ready; 0: 60000 */
    bool no_cache;            /* keep no prefixes */
    uint64_t cache_ram_bytes; /* for saved states of the prefix cache; 0: 256 MiB at most */
    const char *cache_dir; /* of the prefix cache on disk, borrowed during run_open; NULL: none */
    uint64_t cache_disk_bytes;  /* its budget; 0: none */
    uint32_t cache_age_hours;   /* not used for so long: removed; 0: no limit */
    uint8_t cache_identity[32]; /* of the model and how it computes: others' entries are not used */
    int32_t mark_tokens;        /* a state is saved so often in long sequences; 0: 1024 */
    bool has_constant_hash;     /* for tests of the prefix cache: all hashes are equal */
    /* For tests: the clock by which steps are measured and requests timed; NULL: clock_mono_ns. */
    uint64_t (*now_ns)(void *ctx);
    void *now_ctx;
} run_options;

/* What the step thread asks before each pick of a stream: limits that depend on the tokens so far
 * (grammar, thinking budget). before and after run on the step thread, must not allocate and see
 * only accepted tokens, in order. The run takes ctx when the submit succeeds and releases it with
 * the ticket, on any thread. */
typedef struct run_guide_view {
    int32_t forced;       /* this token is taken without sampling; -1: none */
    const uint64_t *mask; /* bit set = allowed; NULL: all */
    int32_t banned[4];    /* tokens not allowed now */
    int32_t n_banned;
    int32_t end; /* this token ends the reply as a stop id does; -1: none */
} run_guide_view;
typedef struct run_guide {
    void *ctx;
    int (*before)(void *ctx, run_guide_view *view);
    void (*after)(void *ctx, int32_t token);
    void (*release)(void *ctx);
} run_guide;

enum { RUN_PRIORITY_NORMAL, RUN_PRIORITY_BACKGROUND };

typedef struct run_request {
    const char *id;         /* shown in lists; copied, cut at RUN_ID_MAX - 1 */
    const int32_t *prompt;  /* copied */
    int32_t n_prompt;       /* >= 1 */
    int32_t max_tokens;     /* >= 1; clipped to the window */
    sample_params sampling; /* the bias array is copied */
    const int32_t
        *stop_ids; /* end the reply, not handed out as tokens; copied; at most RUN_STOP_MAX */
    int32_t n_stop_ids;
    const int32_t *banned; /* copied; at most RUN_BANNED_MAX */
    int32_t n_banned;
    const run_guide *guide; /* NULL: none; taken on success */
    int priority;
    bool
        scores_prompt; /* each prompt token after the first comes as an event first; the salt should
                           be nobody else's, for rows from the cache have no scores */
    uint8_t salt[RUN_SALT_BYTES]; /* prefixes are shared between requests of equal salt only */
} run_request;

enum { RUN_EVENT_TOKEN = 1, RUN_EVENT_END, RUN_EVENT_SCORE };
/* Why a reply ended. */
enum { RUN_END_STOP = 1, RUN_END_LENGTH, RUN_END_CANCELLED, RUN_END_ERROR };

typedef struct run_event {
    int32_t kind;
    int32_t end; /* RUN_EVENT_END: the reason; the token is the stop id that was drawn, or -1 */
    sample_pick pick; /* RUN_EVENT_TOKEN, RUN_EVENT_SCORE: token and log probabilities */
} run_event;

enum { RUN_PHASE_QUEUED, RUN_PHASE_PREFILL, RUN_PHASE_DECODE, RUN_PHASE_DONE };

/* Times are clock_mono_ns (or of the clock in the options), 0 = not yet. */
typedef struct run_progress {
    char id[RUN_ID_MAX];
    int phase;
    int32_t n_prompt, n_prefilled, n_cached, n_generated, max_tokens;
    int64_t n_drafted, n_accepted;
    uint64_t submit_ns, start_ns, first_ns, last_ns;
} run_progress;

/* Starts the step thread. The caller closes with run_close. */
int run_open(const run_options *options, run **out, err *e);
/* Stops taking requests; what runs goes on. */
void run_drain(run *r);
/* Ends what still runs with RUN_END_ERROR (shutting down), stops the thread, frees. Tickets must
 * have been freed. */
void run_close(run *r);
/* Ends everything in flight with an error event, keeps the thread. For a drain whose time is
 * over. */
void run_abort_all(run *r);

/* The engine cannot go on (another rank is lost): everything in flight ends with this error, new
 * requests are refused, the state is failed. The first failure counts. Any thread. */
void run_fail(run *r, const err *why);

/* Queues a request. ERR_FULL: the queue is full. ERR_LIMIT: prompt does not fit the window or
 * the page pool. ERR_CANCELLED: draining. ERR_DEVICE: the engine has failed. The caller frees
 * the ticket with ticket_free. */
int run_submit(run *r, const run_request *q, ticket **out, err *e);

/* Next event: OK, or ERR_TIMEOUT after timeout_ms (0 polls, < 0 waits). After RUN_EVENT_END
 * nothing more comes. */
int ticket_next(ticket *t, run_event *out, int timeout_ms);
/* A descriptor that becomes readable when ticket_next might have something; arm it with
 * ticket_arm, which returns true if an event is there already (then do not wait). Owned by the
 * ticket. */
int ticket_fd(const ticket *t);
bool ticket_arm(ticket *t);
/* The stream ends within one step. Harmless after the end. */
void ticket_cancel(ticket *t);
void ticket_progress(const ticket *t, run_progress *out);
/* The error of a stream that ended with RUN_END_ERROR; valid after that event. */
const err *ticket_error(const ticket *t);
/* Cancels if needed and gives the ticket back. NULL is fine. */
void ticket_free(ticket *t);

/* Calls fn for each live ticket (waiting, running, or ended and not yet freed), oldest first. fn
 * must not call back into run. */
void run_each(run *r, void (*fn)(void *ctx, const run_progress *p), void *ctx);
/* Cancels the ticket with this id; OK or ERR_NOT_FOUND. */
int run_cancel_id(run *r, const char *id);

enum { RUN_STATE_READY, RUN_STATE_DRAINING, RUN_STATE_FAILED, RUN_STATE_STALLED };

/* A snapshot; every counter since start. */
typedef struct run_stats {
    int state;
    int32_t n_slots, n_running, n_waiting, queue_cap;
    int32_t pages_total, pages_used;  /* used: that streams hold */
    int32_t pages_cached, pages_kept; /* that cached prefixes hold; of these, that no stream does */
    int32_t n_marks;                  /* saved states of the prefix cache */
    uint64_t n_disk_tokens;           /* of the cached tokens, those that came from disk */
    disk_counts disk;                 /* zeros without a disk cache */
    bool has_disk;
    uint64_t n_evicted; /* pages and tails that the prefix cache gave up */
    uint64_t n_steps, n_rows, n_prompt_tokens, n_cached_tokens, n_generated, n_drafted, n_accepted;
    uint64_t n_done, n_failed, n_cancelled, n_refused;
    double tokens_per_s_minute, tokens_per_s_now, prefill_per_s_now; /* -1: unknown */
    double step_ms, step_ms_p95; /* -1: no step in the last minute */
    uint64_t uptime_ms;
    uint64_t drafted_at[RUN_DRAFT_MAX];  /* drafts verified by position in the block */
    uint64_t accepted_at[RUN_DRAFT_MAX]; /* of these, those kept */
    histogram_counts step_seconds, step_rows;
    err failure; /* state failed: why */
} run_stats;
void run_stats_get(run *r, run_stats *out);
/* Bounds of the histograms of run_stats. */
extern const metric_bounds RUN_STEP_SECONDS, RUN_STEP_ROWS;

#endif
