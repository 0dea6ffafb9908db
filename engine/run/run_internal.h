/* Shared inside engine/run. Who touches what: fields under "step thread" belong to it alone;
 * "callers" fields are guarded by registry_lock, which the step thread never takes; atomics are
 * written by the side named. */
#ifndef TANDEM_RUN_INTERNAL_H
#define TANDEM_RUN_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/base/clock.h"
#include "engine/run/copy_draft.h"
#include "engine/run/cost.h"
#include "engine/run/disk.h"
#include "engine/run/draft_policy.h"
#include "engine/run/memory.h"
#include "engine/run/pages.h"
#include "engine/run/prefix.h"
#include "engine/run/run.h"
#include "engine/run/step_times.h"

#define TICKET_CHUNK 256 /* events */
/* Events a reader may be behind: what a stream makes while its client stalls for as long as it may,
 * so that a slow client costs memory (180 bytes an event) and not a slot. */
#define TICKET_BEHIND 16384
#define RUN_SECONDS 128 /* per-second token buckets kept; a power of two above 60 */

typedef struct ticket_chunk ticket_chunk;
struct ticket_chunk {
    ticket_chunk *next; /* set before head goes past the chunk */
    run_event events[TICKET_CHUNK];
};

struct ticket {
    run *owner;
    char id[RUN_ID_MAX];
    ticket *next_intake; /* lock-free list on the way in, and of the dead on the way out */
    ticket *next_live, *prev_live; /* callers: the registry */
    _Atomic int n_holders;         /* 2: the caller and the step thread */

    /* Set before submit, read-only afterwards. */
    int32_t *tokens; /* [token_cap] prompt, then what was generated (step thread) */
    int32_t n_prompt, token_cap, max_tokens;
    sample_params sampling;
    sample_bias *bias;
    int32_t stop_ids[RUN_STOP_MAX], n_stop_ids;
    int32_t banned[RUN_BANNED_MAX + 4], n_banned;
    sample_counts counts; /* NULL arrays when no penalty is on (step thread) */
    run_guide guide;
    bool has_guide;
    int priority;
    bool scores_prompt;
    uint8_t salt[RUN_SALT_BYTES];
    uint64_t prompt_hash; /* of the prompt's tokens */
    uint64_t order;
    int32_t n_passed; /* younger requests admitted while this one waited for pages (step thread) */

    /* Single-producer queue: the step thread writes, the reader reads. A reader that keeps up gives
     * its chunk back as the spare one, and nothing is allocated. */
    ticket_chunk *write_chunk, *read_chunk; /* of the step thread, of the reader */
    _Atomic(ticket_chunk *) spare;
    _Alignas(64) _Atomic uint32_t head; /* next to write */
    _Alignas(64) _Atomic uint32_t tail; /* next to read */
    _Atomic int is_waiting;             /* the reader sleeps on wake_fd */
    _Atomic int is_paused;              /* the step thread found the reader too far behind */
    int wake_fd;
    err failure; /* written before the end event */

    /* Progress, written by the step thread. */
    _Atomic int is_cancelled; /* any thread */
    _Atomic int phase;
    _Atomic int32_t n_prefilled, n_cached, n_generated;
    _Atomic int64_t n_drafted, n_accepted;
    _Atomic uint64_t submit_ns, start_ns, first_ns, last_ns;
};

/* A prefix on its way from disk into a fresh stream. */
typedef struct stream_load {
    bool is_on;
    int32_t n_tokens, n_full; /* of the prefix; whole pages of it */
    int32_t i_page;           /* next to load */
    int32_t node;             /* of memory's part */
    prefix_hash hash;         /* up to i_page */
    disk_name name;           /* of the state */
} stream_load;

/* One slot of the step thread. */
typedef struct stream {
    ticket *t;       /* NULL: free */
    int32_t n_known; /* tokens known: prompt and generated */
    int32_t n_done;  /* positions the source holds */
    int32_t n_pages, n_reserved_pages;
    int32_t *pages; /* [pages_cap] */
    int32_t n_draft;
    int32_t draft[RUN_DRAFT_MAX];
    float confidence[RUN_DRAFT_MAX];
    int32_t span_tokens[RUN_DRAFT_MAX + 1];
    draft_policy policy;
    copy_draft *copies; /* owned */
    double copy_rate;   /* of copied drafts, how many are kept, moving */
    bool is_copy;       /* the drafts are copied */
    int32_t node;       /* of the prefix cache: whole pages that are in it already */
    int32_t n_in_cache; /* pages up to node */
    int32_t branch_at;  /* others went on from here: worth a mark; 0: nowhere */
    stream_load load;
    bool is_open; /* rows of a verify span are not committed; n_done of them are right */
} stream;

#define STORE_QUEUE 64
typedef struct store_item {
    int32_t node;
    uint64_t serial;
} store_item;

typedef struct entries_ask entries_ask;

struct run {
    run_options options;
    const run_source *source;
    source_info info;
    pthread_t thread;
    uint64_t open_ns;

    /* In and out of the step thread. */
    _Atomic(ticket *) intake;  /* pushed by callers, newest first */
    _Atomic(ticket *) dead;    /* given up by the step thread, freed by callers */
    _Atomic int32_t n_inside;  /* wait or run, at most waiting_cap */
    _Atomic int32_t n_waiting; /* for those who ask: who starts counts twice for an instant */
    _Atomic int is_stopping, is_draining, is_aborting, is_asleep;
    int wake_fd;

    /* Step thread. */
    sampler *sampler;
    shortlist_ask *asks; /* [max_logit_rows] of a step; NULL: the source gives whole rows */
    page_pool *pool;
    prefix_cache *prefixes;        /* NULL: none */
    disk_cache *disk;              /* NULL: none */
    store_item store[STORE_QUEUE]; /* marks to be written through, oldest first */
    int32_t n_store;
    _Atomic uint64_t n_disk_tokens;
    _Atomic int32_t n_marks;
    _Atomic uint64_t n_evicted;
    stream streams[RUN_MAX_SLOTS];
    ticket **waiting; /* [waiting_cap] oldest first */
    int32_t n_wait_list, waiting_cap;
    int32_t pages_cap;
    step_cost cost;
    draft_history draft_history[2]; /* of greedy and of sampling streams */
    uint64_t plan_id;

    memory_guard guard;

    /* Callers. */
    pthread_mutex_t registry_lock;
    ticket *live_first, *live_last;
    uint64_t next_order;

    pthread_mutex_t ask_lock; /* callers of entries.h, one at a time */
    _Atomic(entries_ask *) ask;

    /* Counters, written by the step thread (n_refused by callers). */
    _Atomic int32_t n_running;
    _Atomic uint64_t n_steps, n_rows, n_prompt_tokens, n_cached_tokens, n_generated, n_drafted,
        n_accepted;
    _Atomic uint64_t n_done, n_failed, n_cancelled, n_refused;
    _Atomic uint64_t drafted_at[RUN_DRAFT_MAX], accepted_at[RUN_DRAFT_MAX];
    histogram step_seconds, step_rows;
    _Atomic uint64_t second_of[RUN_SECONDS];
    _Atomic uint32_t tokens_in[RUN_SECONDS], prompt_in[RUN_SECONDS];
    step_times times;
    _Atomic uint64_t step_started_ns; /* 0: no step now */
    _Atomic uint64_t step_ended_ns;
    _Atomic int is_failing; /* someone writes failure */
    _Atomic int has_failed;
    err failure;            /* written once before has_failed */
    bool has_swept_failure; /* step thread: the streams were told */
};

static inline uint64_t run_now(const run *r) {
    return r->options.now_ns != NULL ? r->options.now_ns(r->options.now_ctx) : clock_mono_ns();
}

/* ticket.c */
void ticket_push(ticket *t, const run_event *event);
bool ticket_is_full(ticket *t);
void ticket_destroy(ticket *t);
/* Drops the step thread's hold: the ticket goes to the list of the dead if it was the last. */
void ticket_leave(ticket *t);
void run_reap(run *r);
void run_wake(run *r);
void run_wake_void(void *r);

/* stream.c: all on the step thread */
void stream_end(run *r, stream *s, int end, int32_t token, const err *why);
void ticket_end(run *r, ticket *t, int end, int32_t token, const err *why);
void run_admit(run *r);
/* Ends cancelled streams; with is_aborting, or when the engine has failed, all of them. */
void run_cancel_sweep(run *r, bool is_aborting);
/* Makes sure the slot lists pages for positions below n. */
int stream_grow(run *r, stream *s, int32_t n, err *e);

/* A page out of the stream's reservation; the prefix cache gives one up if it must. */
int32_t stream_take_page(run *r, stream *s);

/* reuse.c: streams and the prefix cache, all on the step thread. */
prefix_cache *reuse_open(run *r);
/* Finds what is known of the prompt and lets a fresh stream begin behind it. */
void reuse_start(run *r, stream *s);
/* The stream's positions went from before to n_done, all final: saves states where it is worth it. */
void reuse_after(run *r, stream *s, int32_t before);
/* Prompt rows up to the next place where a state is to be saved. */
int32_t reuse_rows_to_mark(const run *r, const stream *s);
/* Before the slot is emptied. */
void reuse_end(run *r, stream *s, int end, const err *why);
void reuse_from_memory(run *r, stream *s);
/* The pages of a chain of the cache become the first of a fresh stream. */
void reuse_share(run *r, stream *s, int32_t node, int32_t n_pages);
/* The slot holds n_tokens of a known prefix: the stream goes on there. */
void reuse_begin_at(run *r, stream *s, int32_t n_tokens);
/* A start behind a known prefix failed: the stream is as fresh as before. False: pages that it shared
 * are set aside for others since, and the stream has ended; never in the step that shared them. */
bool reuse_forget(run *r, stream *s, const err *why);
/* A stream that reads the same prompt now will leave a prefix for t. */
bool reuse_should_wait(const run *r, const ticket *t);

/* store.c: the prefix cache on disk, all on the step thread but store_attach. */
void store_attach(run *r);
/* This node got a mark. */
void store_note(run *r, int32_t node);
/* What the disk calls the mark of this node; whether it is there or on its way, and then the look at the
 * disk goes on without it. */
disk_name store_mark_name(const run *r, int32_t node);
bool store_has_mark(run *r, int32_t node);
/* What is on disk of the mark of this node, or on its way, goes. False: there was nothing. */
bool store_forget_mark(run *r, int32_t node);
/* Moves some of what waits to the writer. */
void store_pump(run *r);
bool store_has_work(run *r);
/* At the end: gives the writer what is left, for a bounded time. */
void store_finish(run *r);
/* True if disk knows more of the key than the hit: the stream loads before it computes. */
bool store_plan(run *r, stream *s, const prefix_key *key, const prefix_hit *hit);
/* Loads a little for each stream that does; true while there are any. */
bool store_load(run *r);
void store_stop(run *r, stream *s);

/* accept.c: what came out of a step */
void run_absorb(
    run *r, stream *s, const plan_span *span, const step_result *result, int32_t i_span);

/* stats.c */
void run_count_second(run *r, uint32_t n_tokens, uint32_t n_prompt);
void run_count_step(run *r, uint64_t ns, int32_t n_rows);

/* step.c */
void *run_step_thread(void *arg);

#endif
