/* Shared by the files of tandemd: the engine that serves (rank 0), the other ranks and the pair
 * that starts both on one machine. Each part runs on the main thread of its process. */
#ifndef TANDEM_ENGINE_DAEMON_INTERNAL_H
#define TANDEM_ENGINE_DAEMON_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/api/api.h"
#include "engine/base/buf.h"
#include "engine/base/err.h"
#include "engine/base/log.h"
#include "engine/dist/meet.h"
#include "engine/model/model.h"
#include "engine/run/control.h"
#include "engine/run/memory.h"
#include "engine/run/run.h"
#include "engine/run/step_times.h"

/* Exit codes, the same for all programs. PEER: another rank was lost; a new start may help. */
enum {
    EXIT_CODE_OK = 0,
    EXIT_CODE_USAGE = 2,
    EXIT_CODE_REFUSED = 20,
    EXIT_CODE_PEER = 40,
    EXIT_CODE_INTERNAL = 50,
    EXIT_CODE_STOPPED = 143 /* asked to stop before it was ready */
};
/* Of one step. A GPU decodes a weight once for all rows of a chunk, so long chunks pay there. */
enum { DAEMON_MAX_ROWS = 256, DAEMON_GPU_ROWS = 2048 };
enum { DAEMON_SERVE, DAEMON_RANK, DAEMON_PAIR };

typedef struct daemon_options {
    int role; /* DAEMON_... */
    buf model_dir, socket_path, log_path, backend, engram_dir;
    int64_t n_slots, context, n_threads, n_pages, queue, drain_s, reserve_mib, port;
    int64_t n_ranks, rank, meet_port, meet_s, meet_fd, engram_cache_mib, step_limit_ms, n_restarts;
    int64_t gap_ms;            /* 0: not given */
    char address[64];          /* "" : no TCP endpoint */
    char meet_address[64];     /* "" : 127.0.0.1 */
    double temperature, top_p; /* below 0: not given */
    bool thinks, is_strict_model, no_drafts;
    buf status_path;     /* empty: rank 0 beside the socket, other ranks none */
    int64_t check_every; /* steps between comparisons of the ranks' states; 0: never */
    buf cache_dir;       /* empty: no disk cache */
    buf exchange_kind;   /* empty: auto */
    buf pack_path;       /* rank pack, or the folder of them; empty: weights of the model folder */
    int64_t cache_disk_mib, cache_age_hours, cache_ram_mib;
    bool is_cache_per_key, no_cache;
    /* Of the endpoint; empty: not given. */
    buf keys_path, usual_keys_path, cors_origins, certificate_path, certificate_key_path,
        request_log_path, confirmed;
    bool announces, logs_prompts, opens_metrics, keeps_json_alive, guards_loops, keeps_room;
    bool probes;                             /* measure the exchange of the ranks, and end */
    bool shows_plan;                         /* say what memory a start would take, and end */
    int64_t request_timeout_s, keep_alive_s; /* 0: not given */
    log_level level;
} daemon_options;

/* daemon_options.c */
void daemon_options_init(daemon_options *o);
void daemon_options_release(daemon_options *o);
/* *is_done: the program has said what was asked for and ends well. */
int daemon_read_options(int argc, char **argv, daemon_options *o, bool *is_done, err *e);

/* daemon_cache.c: fills the cache part of out; cache_dir stays o's. */
int daemon_cache_options(const daemon_options *o, const model *m, run_options *out, err *e);

/* daemon_digest.c */
/* Equal on all ranks of the same files. */
int daemon_model_digest(const daemon_options *o, uint64_t *out, err *e);

/* daemon_self.c: where this process's start is and what it holds. Any thread; functions take NULL
 * where they say so. The file stays after a failed end and goes after a clean one. */
typedef struct daemon_self daemon_self;
daemon_self *daemon_self_new(const daemon_options *o, int rank, const char *model_id);
void daemon_self_free(daemon_self *s); /* NULL allowed */
/* Where others read it; the first call counts, and the option --status is before all. */
void daemon_self_file(daemon_self *s, const char *path);
void daemon_self_start_id(daemon_self *s, uint64_t id);
void daemon_self_phase(daemon_self *s, int phase);
/* model_options.load_tick. */
int daemon_self_loaded(void *self, uint64_t done, uint64_t total);
/* The first failure is kept. NULL allowed. */
void daemon_self_fail(daemon_self *s, const err *why);
void daemon_self_stopped(daemon_self *s); /* NULL allowed */
void daemon_self_plan(
    daemon_self *s, const memory_plan *plan, uint64_t engram_bytes, uint64_t available);
void daemon_self_settings(daemon_self *s, uint64_t hash);
/* Borrowed until they are taken away again with NULL. s NULL allowed. */
void daemon_self_model(daemon_self *s, const model *m);
void daemon_self_exchange(daemon_self *s, const exchange *x, double probe_us);
/* The step thread of a rank that follows. */
void daemon_self_step(daemon_self *s, uint64_t step_ns, uint64_t exchange_ns);
void daemon_self_fill(void *self, rank_figures *out);
void daemon_self_start(const daemon_self *self, api_start *out);
void daemon_self_engram(const daemon_self *self, engram_store_stats *out);

/* daemon_model.c: one rank's part of the model. */
typedef struct daemon_part {
    const daemon_options *options;
    daemon_self *self;
    int rank;
    uint64_t reserve_bytes;
    model *model;        /* owned */
    engram_store *store; /* owned; NULL: the model's own tables */
    /* Waits until the other ranks (rank 0) or rank 0 (others) are behind loading; NULL: no others. */
    int (*await_models)(void *ctx, err *e);
    void *await_ctx;
} daemon_part;
/* Rank 0 makes them up. */
void daemon_settings(const daemon_options *o, const model_config *c, control_settings *out);
/* Prices this rank's part against the memory of its machine: ERR_MEMORY with the shortfall. */
int daemon_check_memory(daemon_part *p, const control_settings *s, err *e);
/* The same as one line of text; nothing is loaded. */
int daemon_plan_text(daemon_part *p, buf *out, err *e);
int daemon_open_model(daemon_part *p, const control_settings *s, exchange *x, err *e);
void daemon_close_model(daemon_part *p);

/* daemon.c */
/* Becomes readable when the process is asked to stop. */
int daemon_stop_fd(void);
void daemon_ask_to_stop(void);
int daemon_exit_code(int rc);
/* Ends the process in the middle of loading because another rank is gone. */
_Noreturn void daemon_fail_fast(daemon_self *self, const err *why);

/* daemon_peer.c: what all ranks do alike when they start. */
int daemon_world(const daemon_options *o);
/* Reads the start's secret, then blocks until all ranks are there. */
int daemon_meet(const daemon_options *o, daemon_self *self, meet_fds *fds, err *e);
/* Takes the connections of the exchange, also on error; *out is the caller's when it is set. */
int daemon_exchange(
    const daemon_options *o, daemon_self *self, meet_fds *fds, exchange **out, err *e);

/* daemon_probe.c: this rank's part in measuring the exchange; rank 0 prints one line. */
int daemon_probe(const daemon_options *o, daemon_self *self, err *e);

/* daemon_ranks.c: rank 0's side of several ranks. */
typedef struct ranks ranks;
/* Waits for the other ranks, tells them the settings, starts the heartbeats. */
int ranks_open(
    const daemon_options *o, daemon_self *self, const control_settings *s, ranks **out, err *e);
exchange *ranks_exchange(const ranks *r);
/* daemon_part.await_models; ctx: the ranks. */
int ranks_await_models(void *ctx, err *e);
/* After the own model stands: waits until the others are loaded alike; out: the source for all. */
int ranks_join(ranks *r, model *m, const run_source *own, run_source *out, err *e);
/* From now on a lost rank fails this run; NULL: none any more. ERR_PEER: one is lost already. */
int ranks_watch(ranks *r, run *served, err *e);
/* A rank was lost; why it is. */
bool ranks_have_failed(ranks *r, err *why);
/* Another rank was asked to stop: the engine shall drain. */
bool ranks_want_stop(ranks *r);
/* The other ranks behind out[0], which is rank 0's; how many there are in all. r NULL: 1. */
int ranks_describe(ranks *r, api_rank *out, int cap);
/* Mean over the last steps; below 0: unknown. */
double ranks_exchange_ms(ranks *r);
/* With why: tells the others that this rank failed. NULL: a clean stop. The exchange stays until
 * ranks_close, behind the end of the model. */
void ranks_leave(ranks *r, const err *why);
void ranks_close(ranks *r);

/* daemon_rank.c, daemon_pair.c: the whole program in these roles. */
int daemon_rank(const daemon_options *o, daemon_self *self, err *e);
/* argv: the own arguments; both ranks get them. */
int daemon_pair(const daemon_options *o, int argc, char **argv, err *e);

/* daemon_memory.c: before any thread starts. */
void daemon_calm_memory(void);

/* daemon_engram.c: packed Engram tables where there are any; *out NULL: those of the model. */
int daemon_engram(const daemon_options *o, int rank, int world, engram_store **out, err *e);

#endif
