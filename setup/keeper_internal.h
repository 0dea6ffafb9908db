/* Shared by the files of the keeper. */
#ifndef SETUP_KEEPER_INTERNAL_H
#define SETUP_KEEPER_INTERNAL_H

#include <pthread.h>
#include <sys/types.h>

#include "setup/keeper.h"

#define KEEPER_WINDOW_MS ((uint64_t)6 * 3600 * 1000)
enum { KEEPER_RESTARTS_MAX = 64, KEEPER_LINE_MAX = 2048 };

/* ---- the rank (keeper_rank.c): main thread only ---- */

typedef struct keeper_rank {
    pid_t pid;      /* 0: none */
    uint64_t ticks; /* when it was started, as the kernel counts: tells it from a later one */
    bool has_ended;
    int code; /* exit code, or 128 + signal */
    int generation;
    char phase[32]; /* as the rank reports it */
    double progress;
    bool is_ready;
    uint64_t moved_ms;   /* monotonic: phase or progress changed */
    uint64_t started_ms; /* monotonic */
    char status_path[512], log_path[512];
    uint64_t log_from; /* where this generation's log begins */
} keeper_rank;

/* Starts generation g of the order. */
int keeper_rank_start(keeper_rank *r, const keeper_order *o, int generation, err *e);
/* Start time of a process in ticks since boot; 0 when there is none. */
uint64_t keeper_start_ticks(pid_t pid);
/* Looks whether it ended and reads its status file. True when something changed. */
bool keeper_rank_look(keeper_rank *r);
void keeper_rank_signal(const keeper_rank *r, int signal_number);
/* Why it ended, in one sentence: what it reported, else the first sentence of its log. */
void keeper_rank_reason(const keeper_rank *r, char *out, size_t cap);
/* Appends what each of its threads is waiting in to the log's folder; for hangs. */
void keeper_rank_stacks(const keeper_rank *r, buf *out);
/* The secret and id of a generation: those of the order for 0, derived for later ones. */
void keeper_generation(
    const keeper_order *o, int generation, uint8_t secret[SHA256_BYTES], uint64_t *start_id);

/* ---- logs (keeper_logs.c) ---- */

/* Before a start: packs the logs of earlier starts of this rank (gzip, where it is installed) and
 * removes the oldest beyond keep. */
void keeper_logs_thin(const char *dir, int rank, int64_t keep);
/* A log that has grown beyond 64 MiB is packed beside itself (.1.gz) and begun anew; the rank writes on
 * at the end of the file as before. */
void keeper_logs_rotate(const char *path);

/* ---- the other keeper (keeper_link.c) ---- */

typedef enum keeper_word {
    KEEPER_WORD_STATE, /* state, generation, code, text */
    KEEPER_WORD_GO,    /* head: start generation */
    KEEPER_WORD_STOP,  /* end the rank as asked */
    KEEPER_WORD_FAIL,  /* head: this start is over; text says why */
    KEEPER_WORD_BEAT,
    KEEPER_WORDS
} keeper_word;

typedef struct keeper_message {
    keeper_word word;
    keeper_state state;
    int generation, code;
    bool is_hang;
    char text[640];
} keeper_message;

typedef struct keeper_link keeper_link;
/* Starts looking for the other keeper. wake_fd (an eventfd, borrowed) is written to when there is
 * something to take. */
keeper_link *keeper_link_open(const keeper_order *o, int wake_fd);
/* Ends the connection or the looking; joins the thread. */
void keeper_link_close(keeper_link *l);
bool keeper_link_is_up(keeper_link *l);
/* True once when the connection was lost or could not be made; why. */
bool keeper_link_has_failed(keeper_link *l, err *why);
/* The oldest message not taken yet. */
bool keeper_link_take(keeper_link *l, keeper_message *out);
/* Never blocks for long; a failure shows as keeper_link_has_failed. */
void keeper_link_say(keeper_link *l, const keeper_message *m);

/* ---- preparing (keeper_memory.c) ---- */

/* Drops the page cache of all files below dir (no rights needed for one's own files). */
void keeper_evict(const char *dir);
/* Bytes, 0 when unknown. */
uint64_t keeper_available(void);

/* Watches memory while serving: call once a second. True when it has been below the limit for the
 * given time; why names the process that grew most. */
typedef struct keeper_guard keeper_guard;
keeper_guard *keeper_guard_new(int64_t limit_mib, int64_t seconds);
void keeper_guard_free(keeper_guard *g);
bool keeper_guard_look(keeper_guard *g, char *why, size_t cap);

/* ---- the process (keeper.c) ---- */

typedef struct keeper {
    keeper_options options;
    keeper_order order;
    bool has_order, holds_secret, wants_stop, wants_quit, was_ready, is_leaving;
    keeper_state state;
    keeper_rank rank;
    keeper_link *link;
    keeper_guard *guard;
    int generation; /* of the newest go */
    /* the other side, as last heard */
    keeper_state peer_state;
    int peer_generation, peer_code;
    char peer_reason[640];
    uint64_t since_ms;                           /* wall: of the state */
    uint64_t state_ms;                           /* monotonic: of the state */
    uint64_t link_deadline_ms, gate_deadline_ms; /* monotonic */
    uint64_t ordered_ms, end_asked_ms, go_at_ms; /* monotonic; go_at 0: none planned */
    uint64_t restarts_wall_ms[KEEPER_RESTARTS_MAX];
    int n_restarts;
    char reason[640];      /* of failed */
    char first_error[640]; /* of this start, on this node */
    int first_code;
    uint64_t first_error_ms;
    char last_error[640];
    int last_code; /* -1: no rank has ended yet */
    uint64_t last_end_ms;
    uint64_t ready_wall_ms, rotated_ms;
    bool is_hang;
    int lock_fd, listen_fd, wake_fd, signal_fd;
    uint64_t idle_from_ms;
} keeper;

/* keeper_steps.c: one look at everything; moves the state machine. */
void keeper_step(keeper *k);
int keeper_take_order(keeper *k, keeper_order *o, err *e);
void keeper_ask_stop(keeper *k);
bool keeper_is_over(const keeper *k);
/* keeper_control.c */
void keeper_state_print(const keeper *k, buf *out);
/* status.json */
void keeper_state_write(const keeper *k);
/* Answers everyone who waits at the socket. */
void keeper_answer(keeper *k);
int keeper_listen(keeper *k, err *e);
/* STATE/keeper/NAME */
int keeper_file(const char *name, buf *out, err *e);
int keeper_socket_path(buf *out, err *e);

#endif
